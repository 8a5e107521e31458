"""One writer of a proof: `python -m holdfast.proof.worker '{…}'`, until it is killed.

It writes as fast as it can and records each step before and after. After a restart it first retries
its last two writes with the same ids, even if they were acknowledged: a program that was killed
cannot know. It reads now and then, and exits by itself only when its parent process is gone (its
standard input is at end of file).

Writers with the role `moves` move heads in sessions of their own, a few at a time and new ones
every few seconds, so that no history grows too long to compare. After a restart they retry an
interrupted operation if it had an expected head: then it takes effect once.
"""

from __future__ import annotations

import itertools
import random
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

import holdfast
from holdfast.errors import Conflict, HoldfastError, OutcomeUnknown, StorageError
from holdfast.proof import checker
from holdfast.proof.script import (
    TOOL_NAME,
    Flushed,
    NoteFile,
    Opened,
    Replying,
    Sealed,
    Started,
    WriterLife,
    call_id_of,
    fingerprint,
    is_reply,
    message_of,
    reply_fingerprint,
    state_after,
    text_of,
    to_stored,
)

_MAX_BATCH = 5
_RETRIED_WRITES = 2  # the write in progress when it was killed, and the one before
_READ_LIMIT = 60
_READ_EVERY = 12
_MAX_PAUSE_S = 0.004  # between two pieces of a streamed reply
_SESSION_PERIOD_S = 3.0  # seconds
_OPERATION_WEIGHTS: dict[checker.OperationName, int] = {
    "append": 16, "rewind": 2, "undo": 2, "redo": 2, "clear": 1, "fork": 1,
}  # fmt: skip


class ProofWriter:
    """One life of a writer."""

    def __init__(self, store: holdfast.Store, part: WriterLife) -> None:
        self._store = store
        self._life = part
        self._recorder = checker.Recorder(part.events, part.name)
        self._notes = NoteFile(part.notes)
        self._numbers = itertools.count(1)
        self._rng = random.Random(part.name)  # noqa: S311 - chance need not be secret

    def run(self) -> None:
        """Write until the parent process is gone."""
        self._retry_last_writes()
        for number in itertools.count(1):
            if _parent_is_gone():
                return
            session = self._choose_session()
            if self._life.role == "turns":
                self._turn(session)
            elif self._life.role == "moves":
                self._random_operation(session)
            else:
                self._append(session, [self._new_id(role) for role in self._roles()])
            if number % _READ_EVERY == 0:
                self._read(session)

    # --- appending ------------------------------------------------------------------------------

    def _choose_session(self) -> holdfast.Session:
        role, number = self._life.role, self._rng.randrange(self._life.sessions)
        key = role if role == "shared" else f"{role}-{number}"
        if role == "moves":
            key = f"{key}-{time.monotonic() // _SESSION_PERIOD_S:.0f}"
        return self._store.session(key)

    def _roles(self) -> Iterator[str]:
        return itertools.islice(itertools.cycle("ua"), self._rng.randint(1, _MAX_BATCH))

    def _new_id(self, role: str) -> str:
        return f"{self._life.name}:{next(self._numbers)}{role}"

    def _append(self, session: holdfast.Session, ids: list[str], *, again: bool = False) -> None:
        """Append a batch with its record; a message of a turn, which is retried, has none."""
        messages = [message_of(id_) for id_ in ids]
        records = [] if self._life.role == "turns" else [state_after(ids[-1])]
        before = session.head().seq if again else 0
        write = self._recorder.invoked(_key(session), ids, [fingerprint(m) for m in messages])
        with suppress(Conflict, StorageError), self._recording(write):
            head = session.append(*messages, *records)
            self._recorder.acked(write, last=head.seq, duplicate=head.seq <= before)

    @contextmanager
    def _recording(self, write: checker.Invoked) -> Iterator[None]:
        """Record the failure of a write, if it fails."""
        try:
            yield
        except OutcomeUnknown:
            self._recorder.unknown(write)
            raise
        except HoldfastError as error:
            self._recorder.refused(write, type(error).__name__)
            raise

    def _retry_last_writes(self) -> None:
        for write in self._last_writes():
            if self._life.role == "moves":
                self._retry_operation(write)
            elif not any(map(is_reply, write.ids)):
                self._append(self._store.session(write.session), list(write.ids), again=True)

    def _last_writes(self) -> list[checker.Invoked]:
        for life in self._life.earlier_lives():
            if life.events.exists():
                events = checker.load([life.events])
                invoked = [event for event in events if isinstance(event, checker.Invoked)]
                if invoked:
                    return invoked[-_RETRIED_WRITES:]
        return []

    # --- moving ---------------------------------------------------------------------------------

    def _random_operation(self, session: holdfast.Session) -> None:
        """Run a random operation, with or without an expected head."""
        (operation,) = self._rng.choices(
            list(_OPERATION_WEIGHTS), list(_OPERATION_WEIGHTS.values())
        )
        head = session.head()
        to = self._rng.randint(0, head.seq) if operation in {"rewind", "fork"} else None
        ids = [self._new_id(role) for role in self._roles()] if operation == "append" else []
        self._run_operation(session, operation, ids, to=to, expect=self._rng.choice([head, None]))

    def _run_operation(
        self,
        session: holdfast.Session,
        operation: checker.OperationName,
        ids: list[str],
        *,
        to: int | None,
        expect: holdfast.Head | None,
    ) -> None:
        messages = [message_of(id_) for id_ in ids]
        digests = [fingerprint(message) for message in messages]
        write = self._recorder.invoked_operation(
            _key(session), operation, ids, digests, to=to, expect=expect
        )
        with suppress(HoldfastError), self._recording(write):
            match operation:
                case "append":
                    head = session.append(*messages, state_after(ids[-1]), expect=expect)
                    self._recorder.acked_head(write, head)
                case "rewind" if to is not None:
                    self._recorder.acked_head(write, session.rewind(to, expect=expect))
                case "undo":
                    self._recorder.acked_head(write, session.undo(expect=expect))
                case "redo":
                    self._recorder.acked_head(write, session.redo(expect=expect))
                case "clear":
                    self._recorder.acked_head(write, session.clear(expect=expect))
                case "fork":
                    key = f"fork-{self._new_id('f')}"
                    session.fork(to, key=key, expect=expect)
                    self._recorder.acked_fork(write, key)

    def _retry_operation(self, write: checker.Invoked) -> None:
        """Retry an operation that is idempotent by its message ids or by its expected head."""
        expect = None
        if write.expect is not None and write.expect_branch is not None:
            expect = holdfast.Head(write.expect_branch, write.expect)
        to = write.to if isinstance(write.to, int) else None
        if write.operation == "append" or (expect is not None and write.operation != "fork"):
            session = self._store.session(write.session)
            self._run_operation(session, write.operation, list(write.ids), to=to, expect=expect)

    # --- turns ----------------------------------------------------------------------------------

    def _turn(self, session: holdfast.Session) -> None:
        try:
            with session.turn(wait=1.0) as turn:
                self._record_opened(session, turn)
                self._write_turn(session, turn)
        except (Conflict, StorageError):
            return  # Busy, or lost: each failed step has been recorded.
        self._notes.note(Sealed(_key(session), turn.id))

    def _record_opened(self, session: holdfast.Session, turn: holdfast.Turn) -> None:
        self._recorder.fenced(_key(session), _fence(turn))
        closed = None if turn.recovered is None else turn.recovered.turn_id
        self._notes.note(Opened(_key(session), turn.id, closed))

    def _write_turn(self, session: holdfast.Session, turn: holdfast.Turn) -> None:
        self._add(session, turn, self._new_id("u"))
        answer = self._new_id("t")
        self._stream(session, turn, call_id_of(answer))
        turn.tool_started(call_id_of(answer))
        self._notes.note(Started(_key(session), turn.id, call_id_of(answer)))
        self._add(session, turn, answer)
        self._add(session, turn, self._new_id("a"))

    def _add(self, session: holdfast.Session, turn: holdfast.Turn, id_: str) -> None:
        message = message_of(id_)
        write = self._record_invocation(session, turn, id_, fingerprint(message))
        with self._recording(write):
            stored = turn.add(message)
        self._recorder.acked(write, last=stored.seq)

    def _record_invocation(
        self, session: holdfast.Session, turn: holdfast.Turn, id_: str, digest: str
    ) -> checker.Invoked:
        return self._recorder.invoked(_key(session), [id_], [digest], fence=_fence(turn))

    def _stream(self, session: holdfast.Session, turn: holdfast.Turn, call: str) -> None:
        reply = turn.stream()
        self._notes.note(Replying(_key(session), reply.id))
        text = text_of(reply.id)
        length = 0
        while length < len(text):
            step = self._rng.randint(1, 60)
            reply.write(text[length : length + step])
            length = min(length + step, len(text))
            time.sleep(self._rng.uniform(0, _MAX_PAUSE_S))
            if self._rng.random() < 0.3:  # noqa: PLR2004 - about every third piece
                reply.flush()
                self._notes.note(Flushed(_key(session), reply.id, length))
        reply.tool_call(call, TOOL_NAME, {"text": text[:20]})
        self._close(session, turn, reply)

    def _close(self, session: holdfast.Session, turn: holdfast.Turn, reply: holdfast.Draft) -> None:
        write = self._record_invocation(session, turn, reply.id, reply_fingerprint(reply.id))
        with self._recording(write):
            message = reply.close()
        assert message is not None
        self._recorder.acked(write, last=message.seq)

    # --- reading --------------------------------------------------------------------------------

    def _read(self, session: holdfast.Session) -> None:
        began = checker.now()
        if self._life.role == "moves":
            branch = session.head().branch
            whole = [to_stored(message) for message in session.messages(branch=branch)]
            self._recorder.read(_key(session), began, whole, complete=True, branch=branch)
            return
        seen = [to_stored(message) for message in session.messages(limit=_READ_LIMIT)]
        self._recorder.read(_key(session), began, seen, complete=False)


def _key(session: holdfast.Session) -> str:
    assert session.key is not None
    return session.key


def _fence(turn: holdfast.Turn) -> int:
    """Return a turn's fence: its number, the last component of its id."""
    return int(turn.id.rpartition(".")[2])


def _parent_is_gone() -> bool:
    """True if the parent process is gone: then standard input is at end of file."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    """Run the writer described by the JSON argument."""
    part = msgspec.json.decode(sys.argv[1], type=WriterLife)
    with holdfast.open(part.url) as store:
        ProofWriter(store, part).run()


if __name__ == "__main__":
    main()
