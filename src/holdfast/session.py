"""A session: a stable identity whose history persists across runs.

The object is only a handle: it has no history and no lock, so any number of them, in any thread or
process, may refer to the same session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import msgspec

from holdfast import codec, ids, validation
from holdfast.context import GuardedWriter, StoreContext
from holdfast.erasure import Erasure
from holdfast.errors import BadQuery, import_errors
from holdfast.follow import Follower
from holdfast.operations import append, erase, head_moves, lineage, queries, queue, sessions, turns
from holdfast.operations.positions import check_position
from holdfast.storage.rows import SessionRow
from holdfast.turn import Turn, TurnCore
from holdfast.values import (
    BranchInfo,
    Content,
    EraseReport,
    ForkFields,
    Head,
    Link,
    Message,
    MessageRef,
    Provider,
    QueuedInput,
    Recovered,
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

    def append(self, *messages: Message, expect: Head | None = None) -> Head:
        """Store messages, all or none, each id once; return the new head. Needs no turn."""
        batch = codec.encode_batch(messages, self._context.now())
        return self._write(append.append(self._n, batch, expect=expect))

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
    ) -> list[Message]:
        """Read the newest `limit` messages between two seqs, oldest first.

        With `after` alone, the next `limit` messages after it.
        """
        return self._read(
            queries.messages(
                self._n,
                limit=limit,
                before=before,
                after=after,
                branch=branch,
                report=self._context.report,
            )
        )

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
        expect: Head | None = None,
        **fields: Unpack[ForkFields],
    ) -> Session:
        """Create a session whose history is this one's up to `at`, inclusive; nothing is copied.

        `at` is a seq, a message's id or a head (of any branch); inside a tool exchange it moves to
        before it. The fields are `title`, `model`, `cwd` and `metadata`. Scope, agent, model and
        cwd are inherited.
        """
        validation.check_arguments(fields, ForkFields, "Session.fork")
        at = check_position(at, "at")
        row = sessions.new_row(id=ids.session_id(), key=key, **fields)
        origin = sessions.Origin(parent=self._n, relation="fork", at=at, expect=expect)
        # Not refused if this session is damaged: the fork is another one.
        made = self._context.backend.write(sessions.create(row, origin=origin))
        return Session(self._context, made)

    def rewind(self, to: MessageRef, *, expect: Head | None = None) -> Head:
        """Make message `to` the newest: a seq, an id or a head; nothing is lost, see `branches`.

        Inside a tool exchange it moves to before it, as the returned head shows.
        """
        return self._write(head_moves.rewind(self._n, to, token=ids.message_id(), expect=expect))

    def undo(self, n: int = 1, *, expect: Head | None = None) -> Head:
        """Rewind to before the last `n` turns."""
        return self._write(head_moves.undo(self._n, n, token=ids.message_id(), expect=expect))

    def redo(self, *, expect: Head | None = None) -> Head:
        """Revert the last undo, rewind or clear; possible until the next append."""
        return self._write(head_moves.redo(self._n, token=ids.message_id(), expect=expect))

    def replace(self, messages: Sequence[Message], *, expect: Head | None = None) -> Head:
        """Replace the history by these messages, atomically; a common prefix is shared."""
        batch = codec.encode_history(messages, self._context.now())
        operation = head_moves.replace(self._n, batch, token=ids.message_id(), expect=expect)
        return self._write(operation)

    def clear(self, *, expect: Head | None = None) -> Head:
        """Continue with an empty history; the old one stays readable."""
        return self._write(head_moves.clear(self._n, token=ids.message_id(), expect=expect))

    def summarize(
        self, text: str, *, upto: MessageRef | None = None, expect: Head | None = None
    ) -> Head:
        """Append a summary that replaces, in windows, the history up to `upto`, inclusive.

        Pass the message that was newest when the summary was started: later ones stay in windows.
        """
        operation = head_moves.summarize(
            self._n,
            text,
            upto,
            message_id=ids.message_id(),
            now=self._context.now(),
            expect=expect,
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

        It is given by its id, a seq of the history, or a head. An open turn is not disturbed. This
        cannot be undone; windows leave the message out.
        """
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

    def update(self, **changes: Unpack[SessionChanges]) -> SessionInfo:
        """Change title, model, cwd, scope, pinned, archived, goal or metadata.

        `metadata` is merged; a value of `None` removes its key. `auto_title` is a title by a
        program: it never replaces one by the user. With `expect_goal`, another current goal raises
        `Conflict`.
        """
        return self._write(sessions.update(self._n, sessions.check_changes(changes)))

    def usage(self) -> UsageReport:
        """Return tokens and cost, in total and by model."""
        return self._read(queries.usage(self._n))

    def follow(self, after: Head | None = None) -> Follower:
        """Iterate over every message after `after` (or of the whole history) as it is written.

        A `BranchChanged` among them means that the session moved to another branch.
        """
        return Follower(self._context, self._n, after)


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
