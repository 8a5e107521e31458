"""Moving the head back and to other branches: nothing is lost, and all counts are right."""

from __future__ import annotations

import itertools
from contextlib import suppress
from decimal import Decimal
from functools import partial

from holdfast.errors import IdConflict
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    parse_conversation,
    read_session,
    take_turn,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Head, Message, Usage


class HeadMoveTests(StoreFixtures):
    """`rewind` and `branches`, and what is reported after any move."""

    # ---------------------------------------------------------------------------------- rewind

    def test_a_rewind_loses_nothing(self, store: Store, session: Session) -> None:
        """The history ends earlier; the rest can still be read, and rewound to."""
        session.append(*parse_conversation("u a u a"))
        whole = session.messages()
        rows = store.stats().messages
        moved = session.rewind(2)
        assert moved == session.head() == Head(2, 2)
        assert store.stats().messages == rows
        again = self.reopen(store).session("the session")
        assert again.messages() == whole[:2]
        assert again.messages(branch=1) == whole
        assert again.rewind(Head(1, 4)) == Head(3, 4)
        assert again.messages() == whole

    def test_what_is_appended_then_goes_on_without_a_gap(self, session: Session) -> None:
        """Seqs count along the history, whichever branches it runs through."""
        session.append(*parse_conversation("u a u a"))
        session.rewind(2)
        assert session.append(*parse_conversation("s s")) == Head(2, 4)
        assert [m.seq for m in session.messages()] == [1, 2, 3, 4]
        assert texts(session) == ["u1", "a2", "s1", "s2"]
        assert texts(session, branch=1) == ["u1", "a2", "u3", "a4"]
        assert [m.text for m in session.messages(limit=3)] == ["a2", "s1", "s2"]
        assert [m.text for m in session.messages(after=1, limit=2)] == ["a2", "s1"]
        assert [m.text for m in session.messages(branch=1, before=4, limit=1)] == ["u3"]

    def test_going_where_one_is_changes_nothing(self, session: Session) -> None:
        """The same head, and no new branch, however the position is named."""
        session.append(*parse_conversation("u a"))
        session.rewind(1)
        before = read_session(session)
        for here in (1, session.messages()[0].id, Head(1, 1), Head(2, 1)):
            assert session.rewind(here) == Head(2, 1)
        assert read_session(session) == before

    def test_an_id_that_was_left_behind_is_new_again(self, session: Session) -> None:
        """It can be appended to the current history, also with another body."""
        session.append(Message.user("a", id="a"), Message.user("b", id="b"))
        session.rewind(1)
        assert session.append(Message.user("a", id="a")) == Head(2, 1)
        assert session.append(Message.user("B", id="b")) == Head(2, 2)
        assert session.append(Message.user("B", id="b")) == Head(2, 2)
        assert texts(session) == ["a", "B"]
        assert texts(session, branch=1) == ["a", "b"]

    def test_through_many_branches(self, session: Session) -> None:
        """Each branch starts from the one before; the history runs through all of them."""
        wanted = []
        for n in range(40):
            session.append(Message.user(f"{n}"), Message.user(f"{n} lost"))
            wanted.append(f"{n}")
            session.rewind(n + 1)
        assert texts(session) == wanted
        assert [m.text for m in session.messages(limit=3)] == wanted[-3:]
        assert [m.text for m in session.messages(after=5, before=9)] == wanted[5:8]
        assert texts(session, branch=20) == [*wanted[:20], "19 lost"]

    # -------------------------------------------------------------------------- what is reported

    def test_the_branches_record_what_was_abandoned_when_and_why(self, session: Session) -> None:
        """By number; only the last is active."""
        session.append(*parse_conversation("u +a -a u a"))
        session.rewind(2)
        take_turn(session, "other")
        session.undo()
        session.clear()
        session.redo()
        session.replace([Message.user("new")])
        found = session.branches()
        assert [
            (b.number, b.parent, b.fork_seq, b.asked_seq, b.seq, b.reason, b.abandoned_by)
            for b in found
        ] == [
            (1, None, 0, 0, 5, "start", "rewind"),
            (2, 1, 1, 2, 3, "rewind", "undo"),
            (3, 1, 1, 1, 1, "undo", "clear"),
            (4, None, 0, 0, 0, "clear", "redo"),
            (5, 1, 1, 1, 1, "redo", "replace"),
            (6, None, 0, 0, 1, "replace", None),
        ]
        assert {b.parent_id for b in found} == {None, session.id}
        assert [b.active for b in found] == [False] * 5 + [True]
        assert found[-1].head == session.head()
        for left, following in itertools.pairwise(found):
            assert left.abandoned_at == following.created_at > left.created_at
        assert found[-1].abandoned_at is None

    def test_every_branch_can_be_read_forked_and_gone_back_to(self, session: Session) -> None:
        """Abandoned branches stay readable, forkable and valid targets of a rewind."""
        for step in "abc":
            session.append(*parse_conversation("u a"), Message.user(step))
            session.rewind(1)
        session.clear()
        seen = {
            branch.head: session.messages(branch=branch.number) for branch in session.branches()
        }
        for head, history in seen.items():
            assert session.fork(head).messages() == history
            session.rewind(head)
            assert session.messages() == history
        assert {b.head: session.messages(branch=b.number) for b in session.branches()[:5]} == seen

    def test_counts_and_spending_stay_and_the_preview_follows(self, session: Session) -> None:
        """`turns`, `usage` and `cost` never shrink; messages and preview follow the head."""
        session.append(Message.assistant("hello"))
        for text in ("one", "two"):
            with session.turn(model="m") as turn:
                turn.user(text)
                turn.assistant(text, usage=Usage(1, 2), cost=Decimal("0.5"))
        spent = (session.usage(), session.turns())
        states = []
        for move in (
            partial(session.rewind, 3),
            partial(session.rewind, 1),
            session.clear,
            session.redo,
            session.redo,
            session.redo,
            partial(session.undo, 2),
        ):
            move()
            info = session.info()
            states.append((info.messages, info.preview))
            assert info.messages == len(session.messages()) == session.head().seq
            assert (info.turns, info.usage, info.cost) == (2, Usage(2, 4), Decimal(1))
            assert (session.usage(), session.turns()) == spent
        assert states == [
            (3, "one"),
            (1, "hello"),
            (0, None),
            (1, "hello"),
            (3, "one"),
            (5, "one"),
            (1, "hello"),
        ]

    def test_an_id_of_an_abandoned_branch_is_not_charged_again(self, session: Session) -> None:
        """Its usage was counted once; only new messages are charged."""
        reply = Message.assistant("a", usage=Usage(5), cost=Decimal("0.1"), model="m")
        session.append(Message.user("q"), reply)
        session.rewind(1)
        new = Message.assistant("b", usage=Usage(7), cost=Decimal("0.2"), model="m")
        session.append(reply, new)
        assert session.usage().usage == session.info().usage == Usage(12)
        assert session.usage().cost == session.info().cost == Decimal("0.3")
        session.clear()
        with session.turn() as turn:
            turn.add(reply)
        assert session.usage().usage == Usage(12)

    def test_a_movement_counts_as_activity(self, store: Store, session: Session) -> None:
        """The session becomes the latest, with the time of the move."""
        session.append(*parse_conversation("u a u a"))
        for move in (partial(session.rewind, 1), session.redo, session.undo, session.clear):
            store.create().append(Message.user("x"))
            before = session.info().updated_at
            move()
            latest = store.latest()
            assert latest is not None
            assert latest.id == session.id
            assert session.info().updated_at > before

    def test_input_that_waits_goes_on_waiting(self, session: Session) -> None:
        """Queued input belongs to the session, not to a branch."""
        session.append(*parse_conversation("u a"))
        session.enqueue("waiting")
        session.clear()
        assert [q.message.text for q in session.queued()] == ["waiting"]
        with session.turn() as turn:
            assert [m.seq for m in turn.take_queued()] == [1]
        session.undo()
        session.redo()
        assert texts(session) == ["waiting"]
        assert session.queued() == []

    def test_waiting_input_is_not_taken_for_another_message(self, session: Session) -> None:
        """Its id may be on a branch that the session moves back to; the input is not lost."""
        session.append(Message.user("said", id="mine"))
        session.clear()
        with suppress(IdConflict):
            session.enqueue(Message.user("waiting", id="mine"))
            session.rewind(Head(1, 1))
            with session.turn() as turn:
                turn.take_queued()
            found = [*session.messages(), *(waits.message for waits in session.queued())]
            assert "waiting" in [message.text for message in found]
