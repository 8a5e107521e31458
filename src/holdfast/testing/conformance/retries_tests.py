"""Operations that run twice: after a failed commit one is run again, and must be idempotent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import codec, ids
from holdfast.clock import to_datetime
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.operations import deletion, head_moves, sessions, turns
from holdfast.processes import this_process
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Operation
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, read_session
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Head, Message, Text

_NOW = to_datetime(1_700_000_000_000_000)
_TOKEN = "the token"  # noqa: S105 - a mark, no secret


def _replace(
    session: Session, expect: Head | None, messages: list[Message], keep: int | None = None
) -> Operation[Head]:
    batch = codec.encode_history(messages, _NOW)
    return head_moves.replace(number_of(session), batch, token=_TOKEN, expect=expect, keep=keep)


def _summarize(session: Session, expect: Head | None) -> Operation[Head]:
    return head_moves.summarize(
        number_of(session), "short", 2, message_id="mine", now=_NOW, expect=expect
    )


def _descend(session: Session, expect: Head | None, relation: Any) -> Operation[Any]:  # noqa: ANN401
    row = sessions.new_row(id=ids.session_id(), key="child")
    at = 2 if relation == "fork" else None
    origin = sessions.Origin(parent=number_of(session), relation=relation, at=at, expect=expect)
    return sessions.create(row, origin=origin)


_MOVES: dict[str, Callable[[Session, Head | None], Operation[Any]]] = {
    "rewind": lambda s, e: head_moves.rewind(number_of(s), 2, token=_TOKEN, expect=e),
    "rewind to here": lambda s, e: head_moves.rewind(number_of(s), 4, token=_TOKEN, expect=e),
    "undo": lambda s, e: head_moves.undo(number_of(s), 1, token=_TOKEN, expect=e),
    "redo": lambda s, e: head_moves.redo(number_of(s), token=_TOKEN, expect=e),
    "clear": lambda s, e: head_moves.clear(number_of(s), token=_TOKEN, expect=e),
    "exact rewind": lambda s, e: head_moves.rewind(
        number_of(s), 3, token=_TOKEN, expect=e, exact=True
    ),
    "pop": lambda s, e: head_moves.pop(number_of(s), token=_TOKEN, expect=e),
    "amend": lambda s, e: head_moves.amend(
        number_of(s), 2, [Text("x")], token=_TOKEN, now=_NOW, expect=e
    ),
    "replace a tail": lambda s, e: _replace(s, e, [s.messages()[2], Message.user("new")], 2),
    "replace a tail by what is kept": lambda s, e: _replace(s, e, s.messages()[:1], 2),
    "replace a tail by nothing": lambda s, e: _replace(s, e, [], 2),
    "replace a tail by more": lambda s, e: _replace(s, e, [Message.user("new")], 4),
    "replace": lambda s, e: _replace(s, e, [s.messages()[0], Message.user("new")]),
    "replace by less": lambda s, e: _replace(s, e, s.messages()[:3]),
    "replace by more": lambda s, e: _replace(s, e, [*s.messages(), Message.user("new")]),
    "replace by the same": lambda s, e: _replace(s, e, s.messages()),
    "replace by nothing": lambda s, e: _replace(s, e, []),
    "summarize": _summarize,
    "fork": lambda s, e: _descend(s, e, "fork"),
    "continue": lambda s, e: _descend(s, e, "continue"),
    "reset": lambda s, e: _descend(s, e, "reset"),
}
_LEFT_ALONE = {"fork", "continue", "reset", "summarize"}  # these leave an open turn unchanged
_DELETIONS: dict[str, Callable[[Session], Operation[Any]]] = {
    "trash": lambda s: deletion.trash(number_of(s)),
    "restore": lambda s: deletion.restore(number_of(s), keyless=False),
    "restore, keyless": lambda s: deletion.restore(number_of(s), keyless=True),
    "purge": lambda s: deletion.purge(number_of(s), s.id, forks="keep"),
    "purge and erase": lambda s: deletion.purge(number_of(s), s.id, forks="erase"),
}


def _open(session: Session) -> Operation[Any]:
    claim = turns.TurnClaim(
        session=number_of(session),
        token=_TOKEN,
        holder=this_process(),
        lease=600.0,
        run_id=None,
        model=None,
    )
    return turns.open_turn(claim)


def _flush(session: Session) -> Operation[Any]:
    chunks = [(number, DraftChunk((Text(text),))) for number, text in enumerate("ab", 1)]
    return turns.flush_draft(number_of(session), 1, DraftOpening("mine", None, 1), chunks)


def _close(session: Session) -> Operation[Any]:
    item = codec.encode(Message.assistant("whole", id="mine"), _NOW)
    return turns.close_draft(number_of(session), 1, item)


_STEPS: dict[str, Callable[[Session], Operation[Any]]] = {
    "open": _open,
    "flush": _flush,
    "close": _close,
    "start a tool": lambda s: turns.start_tool(number_of(s), 1, "call"),
    "end": lambda s: turns.end_turn(number_of(s), 1, "failed", "why"),
}


class RetryTests(StoreFixtures):
    """Promise 12: retrying is safe. Only the backend protocol can run one operation twice."""

    @pytest.mark.parametrize("compare", [False, True])
    @pytest.mark.parametrize("move", _MOVES)
    def test_a_movement_is_made_once(
        self,
        store: Store,
        session: Session,
        move: str,
        compare: bool,  # noqa: FBT001
    ) -> None:
        """The same result both times, and no effect the second time."""
        session.append(*parse_conversation("u a u a"))
        if move == "redo":
            session.undo()
        operation = _MOVES[move](session, session.head() if compare else None)
        first = store.backend.write(operation)
        before = (read_session(session), store.stats().messages, store.stats().sessions)
        assert store.backend.write(operation) == first
        assert (read_session(session), store.stats().messages, store.stats().sessions) == before
        again = self.reopen(store)
        assert again.backend.write(operation) == first
        assert read_session(again.get(session.id)) == before[0]

    @pytest.mark.parametrize("move", [m for m in _MOVES if m not in _LEFT_ALONE])
    def test_a_movement_that_a_crash_came_before(
        self, store: Store, session: Session, move: str
    ) -> None:
        """The turn that the crash left open is recovered once, too."""
        session.append(*parse_conversation("u a u a"))
        if move == "redo":
            session.undo()
        turn = self.open_turn(session)
        if move != "redo":
            reply = turn.stream()
            reply.write("half")
            reply.flush()
        self.expire_leases(store)
        operation = _MOVES[move](session, None)
        first = store.backend.write(operation)
        before = read_session(session)
        assert store.backend.write(operation) == first
        assert read_session(session) == before
        assert [t.state for t in session.turns()] == ["interrupted"]

    @pytest.mark.parametrize("step", _STEPS)
    def test_a_step_of_a_turn_is_made_once(self, store: Store, session: Session, step: str) -> None:
        """Idempotent by the turn's token, its number or the reply's id."""
        if step != "open":
            store.backend.write(_open(session))
        operation = _STEPS[step](session)
        first = store.backend.write(operation)
        before = (read_session(session), _draft(store, session))
        assert store.backend.write(operation) == first
        assert (read_session(session), _draft(store, session)) == before
        again = self.reopen(store)
        assert again.backend.write(operation) == first
        assert (read_session(again.get(session.id)), _draft(again, session)) == before

    @pytest.mark.parametrize("operation", _DELETIONS)
    def test_a_deletion_is_made_once(self, store: Store, session: Session, operation: str) -> None:
        """The second run deletes nothing, and leaves the fork unchanged."""
        session.append(*parse_conversation("u a"), Message.user([File(data=b"x")]))
        fork = session.fork(2)
        if operation.startswith("restore"):
            store.trash(session.id)
        run = _DELETIONS[operation](session)
        store.backend.write(run)
        before = (
            read_session(fork),
            _counts(store),
            store.sessions(),
            store.sessions(trashed=True),
        )
        store.backend.write(run)
        after = (read_session(fork), _counts(store), store.sessions(), store.sessions(trashed=True))
        assert after == before

    def test_a_repeated_purge_reports_nothing(self, store: Store, session: Session) -> None:
        """The report of the second run counts nothing."""
        session.append(*parse_conversation("u a"))
        run = deletion.purge(number_of(session), session.id, forks="keep")
        assert store.backend.write(run).messages == len(parse_conversation("u a"))
        again = store.backend.write(run)
        assert (again.session_id, again.messages, again.turns) == (session.id, 0, 0)


def _draft(store: Store, session: Session) -> list[bytes]:
    return store.backend.read(lambda snapshot: snapshot.draft(number_of(session), 1))


def _counts(store: Store) -> tuple[int, ...]:
    stats = store.stats()
    return stats.sessions, stats.trashed, stats.branches, stats.messages, stats.turns, stats.blobs
