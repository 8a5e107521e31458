"""A session: a stable identity whose history lives across runs.

The object is only a handle: it holds no history and no lock, so any number of them, in any thread
or process, may name the same session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import msgspec

from holdfast import codec, ids
from holdfast.backends.base import SessionRow
from holdfast.erasure import Erasure
from holdfast.errors import BadQuery
from holdfast.following import Follower
from holdfast.records import (
    JSON,
    BranchInfo,
    Content,
    EraseReport,
    Head,
    Link,
    Message,
    Place,
    Provider,
    QueuedInput,
    Recovered,
    SessionInfo,
    TurnInfo,
    UsageReport,
    Window,
    to_parts,
)
from holdfast.runtime import Runtime
from holdfast.turn import Turn, TurnState
from holdfast.verbs import appending, browsing, erasing, moving, queue, reading, sessions, turns
from holdfast.verbs.places import check_place


class Session:
    """One session of a store."""

    def __init__(self, runtime: Runtime, row: SessionRow, *, interrupted: bool = False) -> None:
        """Name a session; `Store.session` and its siblings make these."""
        self._runtime = runtime
        self._n = row.n
        self._read = runtime.backend.read
        self._write = runtime.backend.write
        self.id = row.id
        self.key = row.key
        self.interrupted = interrupted

    def __repr__(self) -> str:
        """Show the id; keys may be private."""
        return f"<Session {self.id}>"

    def info(self) -> SessionInfo:
        """Tell who the session is and where it stands."""
        return self._read(reading.info(self._n))

    def head(self) -> Head:
        """Tell where the history ends; pass it as `expect` to compare."""
        return self._read(reading.head(self._n))

    def append(self, *messages: Message, expect: Head | None = None) -> Head:
        """Store messages, all or none; each id once. Needs no turn."""
        batch = codec.encode_batch(messages, self._runtime.now())
        return self._write(appending.append(self._n, batch, expect=expect))

    def turn(
        self, *, wait: float = 0.0, model: str | None = None, run_id: str | None = None
    ) -> Turn:
        """Open a turn in a `with` block; `SessionBusy` if another is open after `wait` seconds."""
        state = TurnState(self._runtime, self._n, self.id, model=model, run_id=run_id)
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

        With `after` alone, the next `limit` behind it.
        """
        return self._read(
            reading.messages(
                self._n,
                limit=limit,
                before=before,
                after=after,
                branch=branch,
                report=self._runtime.report,
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
        """Choose and shape what is sent to a model: legal for the provider, within the budget.

        `reserve` tokens of `max_tokens` are left for the reply. Nothing that is stored changes.
        """
        from holdfast.verbs import windowing  # noqa: PLC0415 - only those who call models need it

        wish = windowing.Wish(
            provider=provider,
            max_tokens=max_tokens,
            reserve=reserve,
            max_messages=max_messages,
            keep_first_user=keep_first_user,
            system=system,
            timestamps=timestamps,
        )
        query = windowing.window(self._n, windowing.check_wish(wish), self._runtime.report)
        return self._read(query)

    # ---------------------------------------------------------------------- going back and apart

    def fork(
        self,
        at: Place | None = None,
        *,
        key: str | None = None,
        title: str | None = None,
        cwd: str | None = None,
        model: str | None = None,
        metadata: dict[str, JSON] | None = None,
        expect: Head | None = None,
    ) -> Session:
        """Make a new session whose history is this one's up to `at`, inclusive; copies nothing.

        `at` is a seq, a message's id or a head (of any branch); inside a tool exchange it moves to
        before it. Scope, agent, model and cwd are inherited.
        """
        at = check_place(at, "at")
        who = sessions.identity(
            id=ids.session_id(),
            key=key,
            scope=None,
            title=title,
            agent=None,
            model=model,
            cwd=cwd,
            metadata=metadata,
        )
        origin = sessions.Origin(parent=self._n, relation="fork", at=at, expect=expect)
        return Session(self._runtime, self._write(sessions.create(who, origin=origin)))

    def rewind(self, to: Place, *, expect: Head | None = None) -> Head:
        """Make message `to` the newest: a seq, an id or a head; nothing is lost, see `branches`.

        Inside a tool exchange it goes to before it, as the head tells that it returns.
        """
        return self._write(moving.rewind(self._n, to, token=ids.message_id(), expect=expect))

    def undo(self, n: int = 1, *, expect: Head | None = None) -> Head:
        """Take back the last `n` turns."""
        return self._write(moving.undo(self._n, n, token=ids.message_id(), expect=expect))

    def redo(self, *, expect: Head | None = None) -> Head:
        """Take back the last undo, rewind or clear; until the next append."""
        return self._write(moving.redo(self._n, token=ids.message_id(), expect=expect))

    def replace(self, messages: Sequence[Message], *, expect: Head | None = None) -> Head:
        """Make these messages the history, at once; what they begin with alike is shared."""
        batch = codec.encode_history(messages, self._runtime.now())
        verb = moving.replace(self._n, batch, token=ids.message_id(), expect=expect)
        return self._write(verb)

    def clear(self, *, expect: Head | None = None) -> Head:
        """Go on with an empty history."""
        return self._write(moving.clear(self._n, token=ids.message_id(), expect=expect))

    def summarize(
        self, text: str, *, upto: Place | None = None, expect: Head | None = None
    ) -> Head:
        """Append a summary that stands, in windows, for the history up to `upto`, inclusive.

        Pass what was the newest message when the summary was begun: what came since stays in view.
        """
        verb = moving.summarize(
            self._n,
            text,
            upto,
            message_id=ids.message_id(),
            now=self._runtime.now(),
            expect=expect,
        )
        return self._write(verb)

    def summary(self) -> Message | None:
        """Read the newest summary: it stands for the history up to the message `covers` names."""
        return self._read(reading.summary(self._n, self._runtime.report))

    def covered(self) -> int:
        """Tell up to which seq the newest summary stands for the history; 0 without one."""
        return self._read(reading.covered(self._n, self._runtime.report))

    def erase(self, message: Place) -> EraseReport:
        """Erase what a message says, everywhere it is shared; its id, seq, role and time stay.

        It is named by its id, a seq of the history, or a head. Nobody has to wait for it, and
        nothing brings it back; windows go on without it.
        """
        place = check_place(message, "message")
        if place is None:
            raise BadQuery("message: name the one to erase, by its id or seq")
        erasure = Erasure(self._runtime)
        report = erasure.write(
            erasing.foretell(self._n, place),
            lambda doomed: erasing.erase(self._n, place, doomed),
        )
        pending, scan = erasure.settle()
        return msgspec.structs.replace(report, pending=pending, scan=scan)

    def branches(self) -> list[BranchInfo]:
        """List the branches by number: what was left, when, and why."""
        return self._read(browsing.branches(self._n))

    def lineage(self) -> list[Link]:
        """List the sessions this one comes from, the first one first, and itself."""
        return self._read(browsing.lineage(self._n))

    def children(self) -> list[Link]:
        """List the sessions that come directly from this one."""
        return self._read(browsing.children(self._n))

    # --------------------------------------------------------------------------- turns and input

    def recover(self) -> Recovered | None:
        """Close what a crash left open; `None` if nothing was, `SessionBusy` while it is held."""
        return self._write(turns.recover(self._n))

    def turns(self, *, limit: int | None = None) -> list[TurnInfo]:
        """Tell how the newest turns went, oldest first."""
        return self._read(reading.turns(self._n, limit))

    def enqueue(self, content: Content | Message) -> QueuedInput:
        """Store input for the next turn, at once; the turn takes it with `take_queued`."""
        message = to_input(content)
        item = codec.encode(message, self._runtime.now())
        verb = queue.enqueue(self._n, item, self._runtime.clock.micros())
        return reading.as_queued(*self._write(verb))

    def queued(self) -> list[QueuedInput]:
        """List input that waits, in order."""
        return self._read(reading.queued(self._n))

    def update(self, **changes: Unpack[sessions.Changes]) -> SessionInfo:
        """Change title, model, cwd, scope, pinned, archived, goal or metadata.

        `metadata` merges, and `None` removes a key. `auto_title` is a title by a program: it never
        replaces one by the user. With `expect_goal` a goal that is another one by now is a
        `Conflict`.
        """
        return self._write(sessions.update(self._n, sessions.check_changes(changes)))

    def usage(self) -> UsageReport:
        """Sum up tokens and cost, by model."""
        return self._read(reading.usage(self._n))

    def follow(self, after: Head | None = None) -> Follower:
        """Iterate over every message behind `after` (or of the history) as it is written.

        A `BranchChanged` among them tells that the session went to another branch.
        """
        return Follower(self._runtime, self._n, after)


def runtime_of(session: Session) -> Runtime:
    """Return what a session shares with its store."""
    return session._runtime  # noqa: SLF001 - this module's own


def number_of(session: Session) -> int:
    """Return the backend's number of a session: it counts all tenants', so it is not for users."""
    return session._n  # noqa: SLF001 - this module's own


def to_input(content: Content | Message) -> Message:
    """Take a user's input as content or as a message with an id of its own."""
    if isinstance(content, Message):
        return content
    return Message(role="user", parts=to_parts(content))
