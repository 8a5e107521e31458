"""Undo, redo and clear: step by step, as in every editor."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import BadQuery, HeadMoved
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    parse_conversation,
    read_session,
    take_turn,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Head, Message, ToolCall

_WRITES: dict[str, Callable[[Session], object]] = {
    "append": lambda session: session.append(Message.user("x")),
    "turn": lambda session: take_turn(session, "x"),
    "summarize": lambda session: session.summarize("x"),
    "replace": lambda session: session.replace([Message.user("x")]),
}


class UndoTests(StoreFixtures):
    """`undo`, `redo` and `clear`."""

    # -------------------------------------------------------------------------------------- undo

    def test_undo_takes_back_turns(self, session: Session) -> None:
        """Whole ones, the last first, however many messages they have."""
        for text in "abc":
            take_turn(session, text)
        with session.turn() as turn:
            turn.user("d")
            turn.assistant("", tool_calls=[ToolCall("x", "tool"), ToolCall("y", "tool")])
            turn.tool("x", "X")
            turn.tool("y", "Y")
            turn.assistant("D")
        assert session.undo().seq == 6
        assert texts(session) == ["a", "A", "b", "B", "c", "C"]
        assert session.undo(2).seq == 2
        assert texts(session) == ["a", "A"]

    def test_undo_without_turns(self, session: Session) -> None:
        """A user's message and what follows it."""
        session.append(*parse_conversation("s u a u +x -x a u"))
        assert [session.undo().seq for _ in range(3)] == [7, 3, 1]
        assert session.undo().seq == 0

    def test_undo_takes_the_last_of_several_user_messages(self, session: Session) -> None:
        """Each was appended by itself, and each can be taken back by itself."""
        for text in "abc":
            session.append(Message.user(text))
        assert session.undo().seq == 2
        assert texts(session) == ["a", "b"]
        session.append(Message.assistant("B"))
        assert session.undo().seq == 1
        assert session.redo().seq == 3
        assert session.undo(2).seq == 0

    def test_undo_with_and_without_turns(self, session: Session) -> None:
        """Each by its own rule."""
        take_turn(session, "a")
        session.append(*parse_conversation("u a"))
        take_turn(session, "b")
        session.append(Message.assistant("by the way"))
        assert [session.undo().seq for _ in range(4)] == [6, 4, 2, 0]

    @pytest.mark.parametrize("others", [1, 5, 100])
    def test_what_others_appended_during_a_turn_goes_with_it(
        self, session: Session, others: int
    ) -> None:
        """They are stored between the turn's messages."""
        take_turn(session, "a")
        with session.turn() as turn:
            turn.user("b")
            session.append(*(Message.user("meanwhile") for _ in range(others)))
            turn.assistant("B")
        assert session.undo().seq == 2

    @pytest.mark.parametrize("n", [5, 100, 2**20])
    def test_more_than_there_are(self, session: Session, n: int) -> None:
        """All of them."""
        for text in "abc":
            take_turn(session, text)
        assert session.undo(n) == Head(2, 0)
        assert session.messages() == []
        assert session.redo().seq == 6

    def test_far_more_than_there_are(self, session: Session) -> None:
        """The cost depends on the history, not on the requested count."""
        take_turn(session, "a")
        assert session.undo(2**62) == Head(2, 0)
        session.redo()
        assert session.undo(2**70) == Head(4, 0)

    def test_nothing_to_undo(self, session: Session) -> None:
        """`BadQuery` on an empty history, also on one that was emptied."""
        with pytest.raises(BadQuery, match="undo"):
            session.undo()
        take_turn(session, "a")
        session.clear()
        with pytest.raises(BadQuery, match="undo"):
            session.undo()
        assert session.head() == Head(2, 0)

    @pytest.mark.parametrize("n", [0, -1, 1.5, "1", None, True])
    def test_a_count_that_is_none_is_refused(self, session: Session, n: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        take_turn(session, "a")
        with pytest.raises(BadQuery, match="n:"):
            session.undo(n)
        assert session.head() == Head(1, 2)

    def test_summaries_go_with_what_is_before_them(self, session: Session) -> None:
        """A summary of undone messages covers nothing and goes; an earlier one stays."""
        take_turn(session, "a")
        session.summarize("one")
        take_turn(session, "b")
        session.summarize("two")
        session.summarize("three")
        assert session.undo().seq == 3
        assert texts(session) == ["a", "A", "one"]
        assert session.undo().seq == 0

    def test_a_history_of_nothing_but_a_summary(self, session: Session) -> None:
        """`replace` can create one; undo removes it as a whole."""
        take_turn(session, "a")
        session.summarize("short")
        session.replace(session.messages()[-1:])
        assert session.undo().seq == 0

    def test_undo_cuts_no_exchange(self, session: Session) -> None:
        """Undoing a turn that answers an earlier turn's call undoes that call, too."""
        session.append(Message.user("a"))
        with session.turn() as turn:
            turn.assistant("", tool_calls=[ToolCall("c", "tool")])
        with session.turn() as turn:
            turn.tool("c", "result")
        assert session.undo().seq == 1
        assert session.branches()[-1].asked_seq == 2

    def test_a_turn_without_messages_is_none_to_undo(self, session: Session) -> None:
        """Undo counts only turns that have messages in the history."""
        take_turn(session, "a")
        with session.turn():
            pass
        assert session.undo().seq == 0

    def test_an_interrupted_turn_is_undone_whole(self, store: Store, session: Session) -> None:
        """Including the partial reply that recovery kept."""
        take_turn(session, "a")
        turn = self.open_turn(session)
        turn.user("b")
        reply = turn.stream()
        reply.write("half")
        reply.flush()
        self.expire_leases(store)
        assert session.undo().seq == 2
        assert texts(session, branch=1) == ["a", "A", "b", "half"]

    # -------------------------------------------------------------------------------------- redo

    def test_undos_are_redone_one_by_one(self, store: Store, session: Session) -> None:
        """The last one first; then there is nothing more."""
        for text in "abc":
            take_turn(session, text)
        whole = session.messages()
        assert [session.undo().seq for _ in range(3)] == [4, 2, 0]
        later = self.reopen(store).session("the session")
        assert [later.redo().seq for _ in range(3)] == [2, 4, 6]
        assert later.messages() == whole
        with pytest.raises(BadQuery, match="redo"):
            later.redo()

    def test_redo_in_between(self, session: Session) -> None:
        """Undo and redo are a stack, as in every editor."""
        for text in "abcd":
            take_turn(session, text)
        steps = [(session.undo, 6), (session.undo, 4), (session.redo, 6), (session.undo, 4)]
        steps += [(session.undo, 2), (session.redo, 4), (session.redo, 6), (session.redo, 8)]
        for step, seq in steps:
            assert step().seq == seq
        with pytest.raises(BadQuery):
            session.redo()

    def test_a_rewind_and_a_clear_can_be_redone(self, session: Session) -> None:
        """Redo returns to where they were called, also from one branch to another."""
        session.append(*parse_conversation("u a u a"))
        session.rewind(2)
        session.append(Message.user("other"))
        session.rewind(Head(1, 3))
        session.clear()
        assert texts(session) == []
        session.redo()
        assert texts(session) == ["u1", "a2", "u3"]
        session.redo()
        assert texts(session) == ["u1", "a2", "other"]
        with pytest.raises(BadQuery):
            session.redo()
        assert texts(session) == ["u1", "a2", "other"]

    def test_nothing_to_redo(self, session: Session) -> None:
        """On a new session, and on one where nothing was undone."""
        with pytest.raises(BadQuery, match="redo"):
            session.redo()
        take_turn(session, "a")
        with pytest.raises(BadQuery, match="redo"):
            session.redo()
        assert session.head() == Head(1, 2)

    @pytest.mark.parametrize("write", _WRITES)
    def test_what_is_written_ends_redo(self, session: Session, write: str) -> None:
        """A redo would hide the new messages; `rewind` is the way back."""
        for text in "ab":
            take_turn(session, text)
        session.undo()
        _WRITES[write](session)
        before = read_session(session)
        with pytest.raises(BadQuery, match="redo"):
            session.redo()
        assert read_session(session) == before
        assert session.rewind(Head(1, 4)).seq == 4

    def test_what_adds_nothing_to_the_history_leaves_redo(self, session: Session) -> None:
        """Forks, queued input, updates, empty turns, retries and moves to the current position."""
        for text in "ab":
            take_turn(session, text)
        session.undo()
        session.fork().append(Message.user("x"))
        session.enqueue("waiting")
        session.update(title="t")
        session.append(session.messages()[0])
        session.rewind(2)
        with session.turn():
            pass
        assert session.redo().seq == 4

    def test_undo_behind_what_was_appended_is_redone_alone(self, session: Session) -> None:
        """Redo returns to the append, not beyond it."""
        for text in "ab":
            take_turn(session, text)
        session.undo()
        take_turn(session, "c")
        session.undo()
        session.redo()
        assert texts(session) == ["a", "A", "c", "C"]
        with pytest.raises(BadQuery):
            session.redo()

    # ------------------------------------------------------------------------------------- clear

    def test_clear_starts_an_empty_history(self, store: Store, session: Session) -> None:
        """The history is empty, the title stays, and all messages are still stored."""
        take_turn(session, "a")
        session.update(title="t")
        rows = store.stats().messages
        assert session.clear() == Head(2, 0)
        info = session.info()
        assert (info.messages, info.preview, info.title, info.turns) == (0, None, "t", 1)
        assert store.stats().messages == rows
        assert texts(session, branch=1) == ["a", "A"]
        take_turn(session, "b")
        assert [m.seq for m in session.messages()] == [1, 2]
        assert session.info().preview == "b"
        assert session.info().turns == 2

    def test_clearing_what_is_empty_changes_nothing(self, session: Session) -> None:
        """No new branch; but the head is compared."""
        assert session.clear() == Head(1, 0)
        assert len(session.branches()) == 1
        with pytest.raises(HeadMoved):
            session.clear(expect=Head(1, 1))
        session.append(Message.user("a"))
        assert session.clear() == session.clear() == Head(2, 0)
