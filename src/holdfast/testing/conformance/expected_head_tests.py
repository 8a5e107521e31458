"""Expected heads and open turns: an operation applies to the head its caller saw, or not."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.errors import BadQuery, HeadMoved, Invalid, SessionBusy, TurnLost
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, read_session, texts
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import Head, Message, ToolCall

# Every operation that takes `expect=`, as it is called on a session with some messages.
_COMPARED: dict[str, Callable[[Session, Any], object]] = {
    "append": lambda session, expect: session.append(Message.user("x"), expect=expect),
    "fork": lambda session, expect: session.fork(1, expect=expect),
    "rewind": lambda session, expect: session.rewind(1, expect=expect),
    "undo": lambda session, expect: session.undo(expect=expect),
    "redo": lambda session, expect: session.redo(expect=expect),
    "replace": lambda session, expect: session.replace([Message.user("x")], expect=expect),
    "replace a tail": lambda session, expect: session.replace(
        [Message.user("x")], keep=1, expect=expect
    ),
    "amend": lambda session, expect: session.amend(1, "x", expect=expect),
    "pop": lambda session, expect: session.pop(expect=expect),
    "clear": lambda session, expect: session.clear(expect=expect),
    "summarize": lambda session, expect: session.summarize("x", expect=expect),
    "update": lambda session, expect: session.update(title="x", expect=expect),
}
_MOVES = ["rewind", "undo", "redo", "replace", "replace a tail", "amend", "pop", "clear"]


class ExpectedHeadTests(StoreFixtures):
    """`expect=` of every operation that takes it, and open turns."""

    # ------------------------------------------------------------------------------------ expect

    @pytest.mark.parametrize("operation", _COMPARED)
    def test_a_stale_head_is_refused(self, session: Session, operation: str) -> None:
        """`HeadMoved` has both heads, and nothing is changed."""
        _prepare(session)
        for stale in (Head(1, 3), Head(1, 4), Head(2, 2), Head(2, 4), Head(3, 3)):
            before = read_session(session)
            with pytest.raises(HeadMoved) as moved:
                _COMPARED[operation](session, stale)
            assert (moved.value.expected, moved.value.actual) == (stale, Head(2, 3))
            assert read_session(session) == before

    @pytest.mark.parametrize("operation", _COMPARED)
    def test_the_head_of_now_is_let_through(self, session: Session, operation: str) -> None:
        """The current head has the same effect as no `expect=`."""
        _prepare(session)
        if operation == "redo":
            session.undo()
        before = read_session(session)
        _COMPARED[operation](session, session.head())
        assert read_session(session) != before

    @pytest.mark.parametrize("operation", _COMPARED)
    @pytest.mark.parametrize("expect", [3, "head", (2, 3)])
    def test_what_is_no_head_is_refused(
        self,
        session: Session,
        operation: str,
        expect: Any,  # noqa: ANN401
    ) -> None:
        """`Invalid` names it."""
        _prepare(session)
        before = read_session(session)
        with pytest.raises(Invalid, match="expect"):
            _COMPARED[operation](session, expect)
        assert read_session(session) == before

    def test_no_head_ever_comes_twice(self, session: Session) -> None:
        """No sequence of undo and redo repeats a head: an equal head means that nothing moved."""
        session.append(*parse_conversation("u a u a"))
        seen = [session.head()]
        moves: list[Callable[[], Head]] = [
            session.undo,
            session.redo,
            session.undo,
            session.undo,
            session.redo,
            session.redo,
            partial(session.rewind, 2),
            partial(session.rewind, Head(1, 4)),
            session.clear,
            session.redo,
            partial(session.replace, []),
            partial(session.append, Message.user("x")),
            session.clear,
            partial(session.rewind, Head(1, 4)),
            partial(session.replace, session.messages()[:2]),
            partial(session.rewind, Head(1, 4)),
        ]
        for move in moves:
            head = move()
            assert head == session.head()
            assert head not in seen
            seen.append(head)
        for old in seen[:-1]:
            with pytest.raises(HeadMoved):
                session.append(Message.user("late"), expect=old)

    def test_threads_that_compare_lose_nothing(self, session: Session) -> None:
        """Concurrent undo, redo, append and replace apply to the head they saw, or not at all."""
        session.append(*parse_conversation("u a u a"))
        done: list[tuple[Head, Head]] = []

        def work(move: Callable[[Head], Head]) -> None:
            for _ in range(10):
                seen = session.head()
                try:
                    done.append((seen, move(seen)))
                except (HeadMoved, BadQuery):
                    continue

        run_concurrently(
            partial(work, lambda seen: session.undo(expect=seen)),
            partial(work, lambda seen: session.redo(expect=seen)),
            partial(work, lambda seen: session.append(Message.user("x"), expect=seen)),
            partial(work, lambda seen: session.replace([Message.user("y")], expect=seen)),
        )
        starts, ends = [pair[0] for pair in done], [pair[1] for pair in done]
        assert len(set(starts)) == len(starts)
        assert len(set(ends)) == len(ends)
        steps, at = dict(done), Head(1, 4)
        for _ in done:
            at = steps.pop(at)
        assert at == session.head()

    # ------------------------------------------------------------------------------- open turns

    @pytest.mark.parametrize("operation", _MOVES)
    def test_an_open_turn_stops_a_movement(self, session: Session, operation: str) -> None:
        """`SessionBusy` for every caller, and nothing is changed."""
        _prepare(session)
        if operation == "redo":
            session.undo()
        with session.turn() as turn:
            before = read_session(session)
            with pytest.raises(SessionBusy) as busy:
                _COMPARED[operation](session, None)
            assert busy.value.session_id == session.id
            assert read_session(session) == before
            turn.user("goes on")
        if operation != "redo":
            _COMPARED[operation](session, None)

    def test_an_open_turn_stops_nothing_else(self, session: Session) -> None:
        """Append, fork, summarize, update and enqueue work during a turn."""
        with session.turn() as turn:
            turn.user("question")
            session.append(Message.user("meanwhile"))
            assert texts(session.fork()) == ["question", "meanwhile"]
            session.summarize("both")
            session.update(title="t")
            session.enqueue("later")
            turn.assistant("answer")
        assert texts(session) == ["question", "meanwhile", "both", "answer"]

    @pytest.mark.parametrize("operation", _MOVES)
    def test_a_turn_that_a_crash_left_open_is_recovered_first(
        self, store: Store, session: Session, operation: str
    ) -> None:
        """Its partial reply is stored, its tools get an outcome, and its holder loses the turn."""
        _prepare(session)
        turn = self.open_turn(session)
        turn.assistant("", tool_calls=[ToolCall("c", "tool")])
        turn.tool_started("c")
        reply = turn.stream()
        reply.write("half")
        reply.flush()
        self.expire_leases(store)
        if operation == "redo":
            # The recovery appends the partial reply, so there is nothing to redo.
            with pytest.raises(BadQuery):
                session.redo()
            assert session.info().state == "interrupted"
            return
        _COMPARED[operation](session, session.head())
        kept = session.messages(branch=2)[-1]
        assert (kept.text, kept.status, kept.seq) == ("half", "partial", 5)
        (info,) = session.turns()
        assert (info.state, info.tools[0].outcome) == ("interrupted", "unknown")
        assert session.head().branch == 3
        with pytest.raises(TurnLost):
            turn.user("late")
        with session.turn() as new:
            assert new.recovered is None


def _prepare(session: Session) -> None:
    """Bring a session to its second branch, at seq 3."""
    session.append(*parse_conversation("u a u a"))
    session.rewind(1)
    session.append(*parse_conversation("a u"))
