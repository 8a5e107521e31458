"""A session: a stable identity whose history persists across runs.

The object is only a handle: it has no history and no lock, so any number of them, in any thread or
process, may refer to the same session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, Unpack, overload

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import codec, ids, validation
from holdfast.context import GuardedWriter, StoreContext
from holdfast.errors import BadQuery, import_errors
from holdfast.follow import Follower
from holdfast.history_pages import HistoryPages
from holdfast.operations import (
    append,
    head_moves,
    lineage,
    queries,
    queue,
    sessions,
    turns,
)
from holdfast.operations.positions import check_position
from holdfast.operations.session_changes import SessionUpdate, check_update
from holdfast.storage.rows import SessionRow
from holdfast.turn import Turn, TurnCore, messages_from
from holdfast.values import (
    JSON,
    BranchChanged,
    BranchInfo,
    Content,
    DropReport,
    EraseReport,
    ForkFields,
    Head,
    Link,
    Message,
    MessageRef,
    Provider,
    QueuedInput,
    Record,
    Recovered,
    Role,
    SessionChanges,
    SessionInfo,
    TurnInfo,
    UsageReport,
    Window,
    to_parts,
)


class Session:
    """One session of a store; `Store.session`, `create` and `get` return these."""

    def __init__(
        self, context: StoreContext, row: SessionRow, *, interrupted: bool = False
    ) -> None:
        self._context = context
        self._n = row.n
        self._read = context.backend.read
        self._write = GuardedWriter(context, row.id).write
        self.id = row.id
        self.key = row.key
        self.interrupted = interrupted

    def __repr__(self) -> str:
        """Return a text with the id, not the key, which may be private."""
        return f"<Session {self.id}>"

    def info(self) -> SessionInfo:
        """Return the session's identity, state and sums."""
        return self._read(queries.info(self._n))

    def head(self) -> Head:
        """Return where the history ends; pass it as `expect` to write only if it has not moved."""
        return self._read(queries.head(self._n))

    def append(
        self,
        *entries: Message | Record,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Store messages and records, all or none, each id once; return the new head.

        A record lies behind the message before it, and does not move the head; one with a `scope`
        is stored beyond the session, as by `Store.put_record`. `update` is stored with them, as by
        `Session.update`. If all ids are stored already, this is a retry: it returns the head of the
        first time and updates nothing. Needs no turn.
        """
        messages, records = codec.encode_batch(entries, self._context.now())
        operation = append.append(
            self._n, messages, records, expect=expect, update=check_update(update)
        )
        return self._write(operation)

    def record(
        self, kind: str, key: str | None = None, *, at: MessageRef | None = None
    ) -> Record | None:
        """Read the newest record of a kind and key; with `at`, as of that position.

        Without a key, the newest of those that have none; `records(kind, limit=1)` reads the newest
        of all keys. The cost does not depend on how many there are.
        """
        query = queries.record(self._n, kind, key, at=at, report=self._context.report)
        return self._read(query)

    def records(
        self,
        kind: str | None = None,
        *,
        key: str | UnsetType | None = UNSET,
        prefix: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        all_branches: bool = False,
    ) -> list[Record]:
        """Read the newest `limit` records of the history, oldest first.

        Of one kind, and of that of one key (`None`: those without a key) or of keys that begin with
        `prefix`. `before` is the id of a record: only older ones are read. With `all_branches`, the
        records of abandoned branches are read, too.
        """
        wanted = queries.RecordFilter(
            kind=kind,
            key=key,
            prefix=prefix,
            before=before,
            limit=limit,
            all_branches=all_branches,
        )
        query = queries.records(self._n, queries.check_record_filter(wanted), self._context.report)
        return self._read(query)

    def append_from(
        self, provider: Provider, *items: Mapping[str, JSON], expect: Head | None = None
    ) -> Head:
        """Store a provider's messages, or whole replies, as they are; see `append`.

        A reply has its id, so that storing it again stores nothing; `formats.kept` returns it.
        """
        return self.append(*messages_from(provider, items), expect=expect)

    def turn(
        self, *, wait: float = 0.0, model: str | None = None, run_id: str | None = None
    ) -> Turn:
        """Open a turn in a `with` block; `SessionBusy` if another is open after `wait` seconds."""
        state = TurnCore(self._context, self._n, self.id, model=model, run_id=run_id)
        return Turn(state, wait=wait)

    def messages(
        self,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        branch: int | None = None,
        upto: MessageRef | None = None,
        role: Role | Sequence[Role] | None = None,
        hidden: bool | None = None,
    ) -> list[Message]:
        """Read the newest `limit` messages between two seqs, oldest first.

        With `after` alone, the next `limit` messages after it. `upto` is the last one to read: a
        seq, a message's id or a head, of any branch. `role` is one role or several; `hidden`
        selects messages whose metadata has `hidden` set, or those without. A damaged message is
        returned whatever is selected.

        The cost is that of the messages between the seqs, or of `limit`. With `role` or `hidden`
        the history is read in pages, only until there are `limit`; those of another role are not
        decoded.
        """
        bounds = queries.HistoryBounds(before=before, after=after, branch=branch, upto=upto)
        wanted = queries.message_filter(role, hidden)
        report = self._context.report
        return self._read(
            queries.messages(self._n, bounds, limit=limit, wanted=wanted, report=report)
        )

    def iter_messages(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        branch: int | None = None,
        upto: MessageRef | None = None,
        role: Role | Sequence[Role] | None = None,
        hidden: bool | None = None,
    ) -> Iterator[Message]:
        """Iterate over the messages that `messages` reads without a limit, oldest first.

        They are read some hundred at a time, so that the memory taken and the time until the first
        one do not depend on the length of the history. It is the history as it is when the first
        message is read: what is appended later is not among them, and no rewind, replace or clear
        meanwhile changes them. A message that is erased meanwhile has the status `erased`. If the
        session is purged, `SessionNotFound` is raised.
        """
        bounds = queries.HistoryBounds(before=before, after=after, branch=branch, upto=upto)
        wanted = queries.message_filter(role, hidden)
        pages = HistoryPages(self._context, self._n, bounds, wanted)
        return chain.from_iterable(iter(pages.next, []))

    def message(self, id: str) -> Message:
        """Read one message by its id; `MessageNotFound` if no branch has it.

        One of the current history comes first, then those of other branches, newest first. The cost
        does not depend on the length of the history.
        """
        return self._read(queries.message(self._n, id, self._context.report))

    def window(
        self,
        *,
        provider: Provider = "openai",
        max_tokens: int | None = None,
        reserve: int = 0,
        max_messages: int | None = None,
        keep_first_user: bool = False,
        system: str | None = None,
        timestamps: bool = False,
    ) -> Window:
        """Build the window to send to a model: valid for the provider and within the budget.

        `reserve` tokens of `max_tokens` are kept free for the reply. Stored messages do not change.
        """
        with import_errors():
            from holdfast.windows import build  # noqa: PLC0415 - only agents need it

        options = build.WindowOptions(
            provider=provider,
            max_tokens=max_tokens,
            reserve=reserve,
            max_messages=max_messages,
            keep_first_user=keep_first_user,
            system=system,
            timestamps=timestamps,
        )
        query = build.window(self._n, build.check_options(options), self._context.report)
        return self._read(query)

    # ----------------------------------------------------------------------- forks and branches

    def fork(
        self,
        at: MessageRef | None = None,
        *,
        key: str | None = None,
        exact: bool = False,
        entries: Sequence[Message | Record] = (),
        update: SessionChanges | None = None,
        expect: Head | None = None,
        **fields: Unpack[ForkFields],
    ) -> Session:
        """Create a session whose history is this one's up to `at`, inclusive; nothing is copied.

        `at` is a seq, a message's id or a head (of any branch); inside a tool exchange it moves to
        before it, unless it is `exact`. The fields are `title`, `model`, `cwd` and `metadata`.
        Scope, agent, model and cwd are inherited. With the fork are stored its first messages and
        records, `entries`, and the changes of `update`, as by `Session.update`.
        """
        validation.check_arguments(fields, ForkFields, "Session.fork")
        validation.check_flag(exact, "exact", optional=False)
        at = check_position(at, "at")
        row = sessions.new_row(id=ids.session_id(), key=key, **fields)
        batch, records = codec.encode_batch(entries, self._context.now())
        origin = sessions.Origin(parent=self._n, relation="fork", at=at, exact=exact, expect=expect)
        operation = sessions.create(
            row, origin=origin, batch=batch, records=records, update=check_update(update)
        )
        # Not refused if this session is damaged: the fork is another one.
        return Session(self._context, self._context.backend.write(operation))

    def rewind(
        self,
        to: MessageRef,
        *,
        exact: bool = False,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Make message `to` the newest: a seq, an id or a head; nothing is lost, see `branches`.

        Inside a tool exchange it moves to before it, as the returned head shows, unless it is
        `exact`. `update` is stored with the move, as by `Session.update`.
        """
        operation = head_moves.rewind(
            self._n,
            to,
            token=ids.message_id(),
            expect=expect,
            exact=exact,
            update=check_update(update),
        )
        return self._write(operation)

    def pop(self, *, expect: Head | None = None) -> Message | None:
        """Rewind by one message, exactly, and return it; `None` if the history is empty.

        `redo` gives it back. It costs the same however long the history is.
        """
        return self._write(head_moves.pop(self._n, token=ids.message_id(), expect=expect))

    def undo(
        self, n: int = 1, *, expect: Head | None = None, update: SessionChanges | None = None
    ) -> Head:
        """Rewind to before the last `n` turns; `update` is stored with it."""
        operation = head_moves.undo(
            self._n, n, token=ids.message_id(), expect=expect, update=check_update(update)
        )
        return self._write(operation)

    def redo(self, *, expect: Head | None = None, update: SessionChanges | None = None) -> Head:
        """Revert the last undo, rewind, pop or clear; possible until the next append.

        `update` is stored with it.
        """
        operation = head_moves.redo(
            self._n, token=ids.message_id(), expect=expect, update=check_update(update)
        )
        return self._write(operation)

    def replace(
        self,
        messages: Sequence[Message],
        *,
        keep: MessageRef | None = None,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Replace the history by these messages, atomically; a common prefix is shared.

        With `keep` (a seq, an id or a head) the history up to that message stays, unread, and the
        messages follow it. `update` is stored with them, as by `Session.update`. With `expect`, a
        retry of a replace that only added messages returns its head and updates nothing; of any
        other, it raises `HeadMoved`.
        """
        batch = codec.encode_history(messages, self._context.now())
        operation = head_moves.replace(
            self._n,
            batch,
            token=ids.message_id(),
            expect=expect,
            keep=keep,
            update=check_update(update),
        )
        return self._write(operation)

    def amend(self, message: MessageRef, parts: Content, *, expect: Head | None = None) -> Head:
        """Replace the parts of a message, on a new branch with what follows it; return the head.

        Id, role, time, turn, metadata and usage stay. The earlier version can be read on its branch
        until `erase` of the message, which erases all versions.
        """
        operation = head_moves.amend(
            self._n,
            message,
            to_parts(parts),
            token=ids.message_id(),
            now=self._context.now(),
            expect=expect,
        )
        return self._write(operation)

    def clear(self, *, expect: Head | None = None, update: SessionChanges | None = None) -> Head:
        """Continue with an empty history; the old one stays readable.

        `update` is stored with it.
        """
        operation = head_moves.clear(
            self._n, token=ids.message_id(), expect=expect, update=check_update(update)
        )
        return self._write(operation)

    def summarize(
        self,
        text: str,
        *,
        upto: MessageRef | None = None,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Append a summary that replaces, in windows, the history up to `upto`, inclusive.

        Pass the message that was newest when the summary was started: later ones stay in windows.
        `update` is stored with it, as by `Session.update`.
        """
        operation = head_moves.summarize(
            self._n,
            text,
            upto,
            message_id=ids.message_id(),
            now=self._context.now(),
            expect=expect,
            update=check_update(update),
        )
        return self._write(operation)

    def summary(self) -> Message | None:
        """Read the newest summary; it covers the history up to the message with id `covers`."""
        return self._read(queries.summary(self._n, self._context.report))

    def covered(self) -> int:
        """Return the last seq that the newest summary covers; 0 without one."""
        return self._read(queries.covered(self._n, self._context.report))

    def erase(self, message: MessageRef) -> EraseReport:
        """Erase the content of a message wherever it is shared; its id, seq, role and time stay.

        It is given by its id, a seq of the history, or a head; all versions of it are erased. An
        open turn is not disturbed. This cannot be undone; windows leave the message out.
        """
        with import_errors():
            from holdfast.erasure import Erasure  # noqa: PLC0415 - few callers need it
            from holdfast.operations import erase  # noqa: PLC0415

        position = check_position(message, "message")
        if position is None:
            raise BadQuery("message: pass the id or seq of the message to erase")
        erasure = Erasure(self._context)
        erasure.hide_previews(erase.plan_previews(self._n, position))
        report = erasure.write(
            erase.plan_erasure(self._n, position),
            lambda planned: erase.erase(self._n, position, planned),
        )
        pending, scan = erasure.wipe_and_scan()
        return msgspec.structs.replace(report, pending=pending, scan=scan)

    def drop(
        self, *, kind: str, keys: Collection[str | None] | None = None, keep: int | None = None
    ) -> DropReport:
        """Erase the records of a kind, on all branches: those with one of `keys`, or all.

        `None` among the keys means those without one. The newest `keep` of the current history
        stay, counted over all these keys together: to keep the newest of each key, drop one key at
        a time. Those that the history of a fork runs through and those that this session inherited
        stay, too. Messages and an open turn are not disturbed. This cannot be undone; the ids are
        free again, so a late retry of a write stores its record once more unless `after` forbids.
        """
        with import_errors():
            from holdfast.erasure import Erasure  # noqa: PLC0415 - few callers need it
            from holdfast.operations import record_drop  # noqa: PLC0415

        wanted = record_drop.check_drop(kind, keys, keep)
        return Erasure(self._context).drop_records(self._n, wanted)

    def branches(self) -> list[BranchInfo]:
        """List the branches by number: where each starts and ends, and why it was abandoned."""
        return self._read(lineage.branches(self._n))

    def lineage(self) -> list[Link]:
        """List the ancestors of this session, the oldest first, and itself."""
        return self._read(lineage.lineage(self._n))

    def children(self) -> list[Link]:
        """List the direct children of this session."""
        return self._read(lineage.children(self._n))

    # --------------------------------------------------------------------------- turns and input

    def recover(self) -> Recovered | None:
        """Close a turn that a crash left open; `None` if none is, `SessionBusy` while held."""
        return self._write(turns.recover(self._n))

    def turns(self, *, limit: int | None = None) -> list[TurnInfo]:
        """Read the newest turns with their tool calls, oldest first."""
        return self._read(queries.turns(self._n, limit))

    def enqueue(self, content: Content | Message) -> QueuedInput:
        """Store input for the next turn, which takes it with `take_queued`."""
        message = to_input(content)
        item = codec.encode(message, self._context.now())
        operation = queue.enqueue(self._n, item, self._context.clock.micros())
        return queries.queued_input(*self._write(operation))

    def queued(self, *, held: bool = False) -> list[QueuedInput]:
        """List queued input, in order; with `held`, the input that an import set aside.

        No turn takes held input; `enqueue(held.message)` queues it for the next one.
        """
        return self._read(queries.queued(self._n, held=held))

    def update(
        self, *, expect: Head | None = None, **changes: Unpack[SessionChanges]
    ) -> SessionInfo:
        """Change title, model, cwd, scope, pinned, archived, goal or metadata.

        `metadata` is merged; a value of `None` removes its key. `auto_title` is a title by a
        program: it never replaces one by the user. With `expect`, another current head raises
        `HeadMoved`. With `expect_goal`, another current goal raises `PreconditionFailed`; so does,
        with `expect_metadata`, another value of one of its keys (`None`: there must be no such
        key).
        """
        return self._write(sessions.update(self._n, SessionUpdate(changes), expect=expect))

    def usage(self) -> UsageReport:
        """Return tokens and cost, in total and by model."""
        return self._read(queries.usage(self._n))

    @overload
    def follow(
        self, after: Head | str | None = None, *, records: Literal[False] = False
    ) -> Follower[Message | BranchChanged]: ...

    @overload
    def follow(
        self, after: Head | str | None = None, *, records: bool
    ) -> Follower[Message | Record | BranchChanged]: ...

    def follow(
        self, after: Head | str | None = None, *, records: bool = False
    ) -> Follower[Message | BranchChanged] | Follower[Message | Record | BranchChanged]:
        """Iterate over every message after `after` (or of the whole history) as it is written.

        `after` is a head, or the `cursor` of a follower. With `records`, the records are among
        them, each after the message it lies behind. A `BranchChanged` means that the session moved
        to another branch; the records behind the last message that was kept follow it again.
        """
        return Follower(self._context, self._n, after, records=records)


def context_of(session: Session) -> StoreContext:
    """Return the context that a session shares with its store."""
    return session._context  # noqa: SLF001 - this module's own


def number_of(session: Session) -> int:
    """Return the backend's number of a session; it counts those of all tenants: never show it."""
    return session._n  # noqa: SLF001 - this module's own


def to_input(content: Content | Message) -> Message:
    """Return a user's input, given as content or as a message with its own id, as a message."""
    if isinstance(content, Message):
        return content
    return Message(role="user", parts=to_parts(content))
