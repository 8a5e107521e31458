"""Summaries: a message that covers earlier ones in windows; the originals stay."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadMessage, BadQuery, MessageNotFound
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    parse_conversation,
    read_session,
    take_turn,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Head, Message, ToolCall, Usage


class SummaryTests(StoreFixtures):
    """`summarize`, `summary` and `covered`."""

    def test_a_summary_is_appended(self, store: Store, session: Session) -> None:
        """It has a seq of its own; nothing else changes."""
        take_turn(session, "a")
        old, info = session.messages(), session.info()
        assert session.summarize("short") == Head(1, 3)
        later = self.reopen(store).session("the session")
        assert later.messages()[:2] == old
        summary = later.messages()[2]
        assert (summary.role, summary.text, summary.status) == ("summary", "short", "complete")
        assert (summary.covers, summary.turn_id, summary.seq) == (old[1].id, None, 3)
        assert summary.created_at is not None
        after = later.info()
        assert (after.messages, after.preview, after.turns) == (3, info.preview, info.turns)
        assert len(later.branches()) == 1

    def test_what_came_meanwhile_stays_in_view(self, session: Session) -> None:
        """It covers the history up to the message that was the newest when it was begun."""
        session.append(*parse_conversation("u a"))
        seen = session.head()
        newest = session.messages()[-1]
        session.append(Message.user("meanwhile"))
        for upto in (seen, seen.seq, newest.id):
            session.summarize("short", upto=upto)
            assert session.messages()[-1].covers == newest.id
        assert texts(session) == ["u1", "a2", "meanwhile", "short", "short", "short"]

    def test_a_summary_of_a_summary(self, session: Session) -> None:
        """It may cover the earlier one."""
        session.append(*parse_conversation("u a"))
        session.summarize("one")
        session.summarize("two")
        found = session.messages()
        assert [m.covers for m in found] == [None, None, found[1].id, found[2].id]

    @pytest.mark.parametrize("text", ["x", "\0 \ud800", "é" * 200_000, "line\nline"])
    def test_any_text_can_be_a_summary(self, store: Store, session: Session, text: str) -> None:
        """It comes back exactly, also when it is large."""
        session.append(*parse_conversation("u"))
        session.summarize(text)
        assert self.reopen(store).session("the session").messages()[1].text == text

    @pytest.mark.parametrize("text", ["", "  \n", None, 5, b"x", ["x"]])
    def test_what_says_nothing_is_refused(self, session: Session, text: Any) -> None:  # noqa: ANN401
        """`BadMessage` names it."""
        session.append(*parse_conversation("u"))
        with pytest.raises(BadMessage, match="text"):
            session.summarize(text)
        assert session.head() == Head(1, 1)

    def test_nothing_to_summarize(self, session: Session) -> None:
        """`BadQuery` on an empty history, and before the first message."""
        with pytest.raises(BadQuery, match="upto"):
            session.summarize("short")
        session.append(*parse_conversation("u a"))
        with pytest.raises(BadQuery, match="upto"):
            session.summarize("short", upto=0)
        assert session.head() == Head(1, 2)

    def test_what_is_not_in_the_history_cannot_be_summarized(self, session: Session) -> None:
        """Only messages of the current history, shared ones included, can be covered."""
        session.append(*parse_conversation("u a u a"))
        lost = session.messages()[3]
        session.rewind(2)
        session.append(*parse_conversation("s s"))
        before = read_session(session)
        for upto in (lost.id, Head(1, 3), Head(1, 4)):
            with pytest.raises(MessageNotFound, match="upto"):
                session.summarize("short", upto=upto)
        assert read_session(session) == before
        session.summarize("short", upto=Head(1, 2))
        assert session.messages()[-1].covers == session.messages()[1].id

    def test_during_a_turn(self, session: Session) -> None:
        """It is stored, is not part of the turn, and covers no call that awaits its result."""
        session.append(*parse_conversation("u"))
        with session.turn() as turn:
            turn.assistant("", tool_calls=[ToolCall("c", "tool")])
            session.summarize("short")
            turn.tool("c", "result")
        found = session.messages()
        assert [m.role for m in found] == ["user", "assistant", "summary", "tool"]
        assert (found[2].covers, found[2].turn_id) == (found[0].id, None)
        assert session.undo().seq == 1

    def test_forks_and_rewinds_take_it_along(self, session: Session) -> None:
        """It is a message of the history like any other."""
        session.append(*parse_conversation("u a"))
        session.summarize("short")
        session.append(*parse_conversation("u"))
        assert session.fork(3).messages() == session.messages()[:3]
        assert session.fork(2).messages() == session.messages()[:2]
        session.rewind(3)
        assert texts(session) == ["u1", "a2", "short"]

    def test_the_newest_one_is_read(self, store: Store, session: Session) -> None:
        """With the seq it covers; before the first there is none, and nothing is covered."""
        assert (session.summary(), session.covered()) == (None, 0)
        session.append(*parse_conversation("u a u a"))
        assert (session.summary(), session.covered()) == (None, 0)
        session.summarize("one", upto=2)
        assert (session.summary(), session.covered()) == (session.messages()[4], 2)
        session.append(*parse_conversation("u a"))
        assert session.covered() == 2  # noqa: PLR2004
        session.summarize("two", upto=5)
        later = self.reopen(store).session("the session")
        assert (later.summary(), later.covered()) == (later.messages()[7], 5)

    def test_the_newest_one_of_another_history(self, session: Session) -> None:
        """A summary after the head, or on another branch, does not belong to this history."""
        session.append(*parse_conversation("u a"))
        session.summarize("one", upto=1)
        session.append(*parse_conversation("u a"))
        session.summarize("two", upto=4)
        two = session.messages()[5]
        session.rewind(5)
        assert (session.summary(), session.covered()) == (session.messages()[2], 1)
        session.redo()
        assert (session.summary(), session.covered()) == (two, 4)
        fork = session.fork(4)
        assert (fork.summary(), fork.covered()) == (fork.messages()[2], 1)
        session.clear()
        assert (session.summary(), session.covered()) == (None, 0)

    def test_an_erased_one_is_none(self, session: Session) -> None:
        """The one before it applies again; the covered messages may be erased themselves."""
        session.append(*parse_conversation("u a u"))
        session.summarize("one", upto=2)
        session.summarize("two", upto=3)
        session.erase(session.messages()[1].id)
        session.erase(session.messages()[4].id)
        assert (session.summary(), session.covered()) == (session.messages()[3], 2)
        session.erase(session.messages()[3].id)
        assert (session.summary(), session.covered()) == (None, 0)

    def test_it_costs_nothing_and_is_no_turn(self, session: Session) -> None:
        """Counts and sums stay."""
        with session.turn() as turn:
            turn.assistant("a", usage=Usage(5))
        session.summarize("short")
        assert session.info().usage == Usage(5)
        assert session.info().turns == 1

    def test_only_summarize_makes_one(self, session: Session) -> None:
        """A summary cannot be appended as a message: it would cover nothing."""
        session.append(*parse_conversation("u"))
        with pytest.raises(BadMessage, match="role"):
            session.append(Message(role="summary", parts=Message.user("x").parts))
        with pytest.raises(BadMessage, match="covers"):
            session.append(Message(role="user", covers="x"))
        assert session.head() == Head(1, 1)
