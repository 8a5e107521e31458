"""Positions in a history: how they are named, and that no tool exchange is split."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import BadQuery, HoldfastError, Invalid, MessageNotFound
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    call_message,
    parse_conversation,
    read_session,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Head, Message, MessageRef, ToolCall

# A conversation, and the resulting position for each requested seq from 0 on.
_BOUNDARIES = {
    "no tools": ("u a u a", [0, 1, 2, 3, 4]),
    "one call": ("u +a -a a", [0, 1, 1, 3, 4]),
    "parallel calls": ("u +a,b -a -b a", [0, 1, 1, 1, 4, 5]),
    "parallel calls, answered the other way round": ("u +a,b -b -a a", [0, 1, 1, 1, 4, 5]),
    "others append in between": ("u +a u s -a u", [0, 1, 1, 1, 1, 5, 6]),
    "calls one after the other": ("u +a -a +b -b a", [0, 1, 1, 3, 3, 5, 6]),
    "exchanges that overlap": ("u +a +b -a -b a", [0, 1, 1, 1, 1, 5, 6]),
    "exchanges that overlap, far": ("u +a +b -a u -b", [0, 1, 1, 1, 1, 1, 6]),
    "a call that nobody answered": ("u +a u a", [0, 1, 2, 3, 4]),
    "one of two calls answered": ("u +a,b -a u", [0, 1, 1, 3, 4]),
    "an id used again": ("+a -a +a -a u", [0, 0, 2, 2, 4, 5]),
    "an id used again after no answer": ("+a u +a -a", [0, 1, 2, 2, 4]),
    "a result without a call": ("u -x u", [0, 1, 2, 3]),
    "a result before its call": ("u -a +a u", [0, 1, 2, 3, 4]),
    "a second result": ("u +a -a u -a u", [0, 1, 1, 3, 4, 5, 6]),
}

_BROKEN: Any = "1"
_INVALID_POSITIONS: list[Any] = [
    *(-1, 1.5, True, b"1", "", [], (1, 2)),
    *(Head(1, -1), Head(_BROKEN, 0), Head(1, _BROKEN)),
]
_NOWHERE: list[Any] = [
    *(4, 2**70, "nobody's id", "\0\ud800"),
    *(Head(1, 4), Head(2, 0), Head(0, 0), Head(2**70, 0), Head(1, 2**70)),
]
_OPERATIONS: dict[str, Callable[[Session, Any], object]] = {
    "fork": lambda session, at: session.fork(at),
    "rewind": lambda session, at: session.rewind(at),
    "summarize": lambda session, at: session.summarize("text", upto=at),
}


class PositionTests(StoreFixtures):
    """`at`, `to` and `upto`."""

    # ------------------------------------------------------------------------------ boundaries

    @pytest.mark.parametrize("name", _BOUNDARIES)
    def test_a_fork_is_never_inside_a_tool_exchange(self, session: Session, name: str) -> None:
        """It begins at the nearest legal position before, and records the requested one."""
        line, allowed = _BOUNDARIES[name]
        session.append(*parse_conversation(line))
        whole = session.messages()
        for requested, got in enumerate(allowed):
            fork = session.fork(requested)
            assert fork.messages() == whole[:got], requested
            assert fork.head() == Head(1, got)
            (branch,) = fork.branches()
            assert (branch.asked_seq, branch.fork_seq, branch.seq) == (requested, got, got)

    @pytest.mark.parametrize("name", _BOUNDARIES)
    def test_a_rewind_is_never_inside_a_tool_exchange(self, session: Session, name: str) -> None:
        """It returns the head it moved to."""
        line, allowed = _BOUNDARIES[name]
        session.append(*parse_conversation(line))
        whole, end = session.messages(), session.head()
        for requested, got in enumerate(allowed[:-1]):
            moved = session.rewind(requested)
            assert (moved, moved.seq) == (session.head(), got), requested
            assert session.messages() == whole[:got]
            assert session.branches()[-1].asked_seq == requested
            session.rewind(end)
            assert session.messages() == whole

    @pytest.mark.parametrize("name", _BOUNDARIES)
    def test_a_summary_stands_for_whole_exchanges(self, store: Store, name: str) -> None:
        """Its coverage ends before a split exchange; `BadQuery` if nothing is covered then."""
        line, allowed = _BOUNDARIES[name]
        for requested, got in enumerate(allowed):
            session = store.create()
            session.append(*parse_conversation(line))
            whole = session.messages()
            if got:
                session.summarize("text", upto=requested)
                assert session.messages()[-1].covers == whole[got - 1].id, requested
            else:
                with pytest.raises(BadQuery, match="upto"):
                    session.summarize("text", upto=requested)
                assert session.messages() == whole

    def test_the_end_of_a_history_is_a_legal_position(self, session: Session) -> None:
        """Also when the last call is unanswered: a fork at the end keeps everything."""
        session.append(*parse_conversation("u +a"))
        assert session.rewind(2) == Head(1, 2)
        assert session.fork().head() == Head(1, 2)

    @pytest.mark.parametrize("between", [70, 200, 300, 1100])
    def test_an_exchange_with_much_in_between(self, session: Session, between: int) -> None:
        """Other writers may append while a tool runs; its exchange stays whole."""
        session.append(*parse_conversation("u +a"), *(Message.user("x") for _ in range(between)))
        session.append(Message.tool("a", "result"), Message.user("end"))
        for requested in (2, 10, between - 5, between + 2):
            assert session.fork(requested).head().seq == 1, requested
        assert session.fork(between + 3).head().seq == between + 3

    def test_a_long_chain_of_exchanges(self, session: Session) -> None:
        """Each overlaps the next, so every position inside is moved to before the first."""
        chain = [call_message("c0")]
        for n in range(200):
            chain += [call_message(f"c{n + 1}"), Message.tool(f"c{n}", "result")]
        session.append(Message.user("start"), *chain, Message.tool("c200", "result"))
        assert session.fork(300).head().seq == 1
        assert session.fork(403).head().seq == 403

    def test_many_parallel_calls(self, session: Session) -> None:
        """A hundred calls in one message, answered one by one."""
        names = [f"c{n}" for n in range(100)]
        session.append(Message.user("a"), call_message(*names))
        session.append(*(Message.tool(name, "result") for name in names))
        assert session.fork(101).head().seq == 1
        assert session.fork(102).head().seq == 102

    # --------------------------------------------------------------------- calls of an open turn

    def test_what_an_open_turn_waits_for_is_answered_later(self, session: Session) -> None:
        """A fork or summary here would end in a call whose result is still to come."""
        session.append(Message.user("before"))
        with session.turn() as turn:
            turn.user("question")
            turn.assistant("", tool_calls=[ToolCall("a", "tool"), ToolCall("b", "tool")])
            turn.tool_started("a")
            assert session.fork().head().seq == 2
            turn.tool("a", "result")
            assert session.fork().head().seq == 2
            session.summarize("text")
            assert session.messages()[-1].covers == session.messages()[1].id
            turn.tool("b", "result")
            assert session.fork().head().seq == 6
        assert session.fork(5).head().seq == 2

    def test_what_a_turn_never_answered_is_no_exchange_once_it_is_over(
        self, session: Session
    ) -> None:
        """It will not be answered, so a history may end with it."""
        with session.turn() as turn:
            turn.assistant("", tool_calls=[ToolCall("a", "tool")])
            assert session.fork().head().seq == 0
            turn.cancel()
        assert session.fork().head().seq == 1

    def test_a_call_id_used_again_by_an_open_turn(self, session: Session) -> None:
        """Some models restart their call ids in each turn; an old call is not awaited."""
        session.append(Message.user("before"))
        with session.turn() as turn:
            turn.assistant("", tool_calls=[ToolCall("call_1", "tool")])
            turn.cancel()
        session.append(Message.user("again"))
        with session.turn() as turn:
            turn.assistant("", tool_calls=[ToolCall("call_1", "tool")])
            assert session.fork(3).head().seq == 3
            assert session.fork().head().seq == 3
            turn.tool("call_1", "result")
            assert session.fork().head().seq == 5

    # ----------------------------------------------------------------------------------- naming

    def test_a_seq_an_id_and_a_head_name_the_same_position(self, session: Session) -> None:
        """And seq 0 is before the first message."""
        session.append(*parse_conversation("u a u"))
        second = session.messages()[1].id
        for at in (2, second, Head(1, 2)):
            assert texts(session.fork(at)) == ["u1", "a2"]
        for nothing in (0, Head(1, 0)):
            assert session.fork(nothing).messages() == []

    def test_an_id_on_an_abandoned_branch(self, session: Session) -> None:
        """It is found, with the history of that branch."""
        session.append(*parse_conversation("u a u a"))
        lost = session.messages()
        session.rewind(1)
        session.append(Message.assistant("other"), Message.user("more"))
        assert session.fork(lost[2].id).messages() == lost[:3]
        moved = session.rewind(lost[3].id)
        assert session.messages() == lost
        assert moved == Head(3, 4)

    def test_an_id_that_two_branches_have(self, session: Session) -> None:
        """The current history takes precedence over abandoned branches."""
        first = Message.user("first", id="one")
        session.append(first, Message.user("same", id="two"))
        session.replace([Message.user("new"), Message.user("same", id="two")])
        assert texts(session.fork("two")) == ["new", "same"]
        session.clear()
        assert texts(session.fork("two")) == ["new", "same"]
        assert texts(session.fork("one")) == ["first"]

    def test_a_head_of_an_abandoned_branch(self, session: Session) -> None:
        """Any position of it, also those it shares with other branches."""
        session.append(*parse_conversation("u a u a"))
        session.rewind(2)
        session.append(Message.user("other"))
        assert texts(session.fork(Head(1, 3))) == ["u1", "a2", "u3"]
        assert texts(session.fork(Head(2, 3))) == ["u1", "a2", "other"]
        assert texts(session.fork(Head(2, 1))) == ["u1"]
        assert texts(session.fork(session.branches()[0].head)) == ["u1", "a2", "u3", "a4"]

    def test_boundaries_on_an_abandoned_branch(self, session: Session) -> None:
        """Exchanges are searched on the branch of the position."""
        session.append(*parse_conversation("u +a -a a"))
        session.rewind(1)
        session.append(Message.assistant("other"), Message.user("more"))
        assert session.fork(Head(1, 2)).head().seq == 1
        assert session.fork(Head(2, 2)).head().seq == 2

    @pytest.mark.parametrize("operation", _OPERATIONS)
    @pytest.mark.parametrize("position", _INVALID_POSITIONS, ids=repr)
    def test_an_invalid_position_is_refused(
        self, session: Session, operation: str, position: MessageRef
    ) -> None:
        """`Invalid`, and nothing is changed."""
        session.append(*parse_conversation("u a u"))
        _refused(session, operation, position, Invalid)

    @pytest.mark.parametrize("operation", _OPERATIONS)
    @pytest.mark.parametrize("position", _NOWHERE, ids=repr)
    def test_a_position_that_does_not_exist(
        self, session: Session, operation: str, position: MessageRef
    ) -> None:
        """`MessageNotFound`: beyond the end, on no branch, an id that no branch has."""
        session.append(*parse_conversation("u a u"))
        _refused(session, operation, position, MessageNotFound)

    def test_a_rewind_to_nowhere_in_particular(self, session: Session) -> None:
        """`None` is not a position; only a fork may omit it."""
        session.append(*parse_conversation("u a u"))
        _refused(session, "rewind", None, BadQuery)

    def test_ids_of_other_sessions_name_nothing_here(self, store: Store, session: Session) -> None:
        """Also ids of a fork's own messages, which its parent does not have."""
        session.append(*parse_conversation("u a"))
        fork = session.fork(1)
        fork.append(Message.user("mine", id="mine"))
        store.create().append(Message.user("theirs", id="theirs"))
        for name in ("mine", "theirs"):
            _refused(session, "rewind", name, MessageNotFound)
        _refused(fork, "rewind", session.messages()[1].id, MessageNotFound)


def _refused(
    session: Session, operation: str, position: MessageRef | None, error: type[HoldfastError]
) -> None:
    """Assert that an operation is refused and changes nothing."""
    before = read_session(session)
    with pytest.raises(error):
        _OPERATIONS[operation](session, position)
    assert read_session(session) == before
