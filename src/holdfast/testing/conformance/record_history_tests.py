"""Records go where the history goes: each position has the state as it was there."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import pytest

from holdfast.errors import BadQuery
from holdfast.session import Session, number_of
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.testing.conformance.records_tests import data_of, state
from holdfast.values import Head, Message, MessageRef


def newest(session: Session, at: MessageRef | None = None) -> object:
    """Return the data of the newest record of kind `state`; `None` if there is none."""
    found = session.record("state", at=at)
    return None if found is None else found.data


class RecordHistoryTests(StoreFixtures):
    """Time travel, rewind, undo, redo, forks."""

    def test_state_is_read_as_of_a_position(self, session: Session) -> None:
        """By seq, message id or head; the records behind a message belong to it."""
        session.append(state(0), Message.user("a", id="a"), state(1), state(2), Message.user("b"))
        session.append(state(3))
        assert [newest(session, at) for at in (0, 1, 2, None)] == [0, 2, 3, 3]
        assert newest(session, "a") == 2
        session.rewind(1)
        session.append(state(4))
        assert newest(session) == 4
        assert newest(session, Head(1, 2)) == 3
        assert newest(session, Head(1, 1)) == 2

    def test_a_rewind_cuts_the_state_that_came_later(self, store: Store, session: Session) -> None:
        """What lies behind the message stays, all of it together; what comes later is cut."""
        session.append(Message.user("a"), state(1), state(2), Message.user("b"), state(3))
        session.rewind(1)
        assert data_of(session.records()) == [1, 2]
        session.append(state(4), Message.user("c"))
        session = self.reopen(store).session("the session")
        assert data_of(session.records()) == [1, 2, 4]
        session.rewind(0)
        assert session.records() == []

    def test_state_before_the_first_message_stays(self, session: Session) -> None:
        """A rewind to the start keeps it; `clear` gives an empty history."""
        session.append(state(1), Message.user("a"), state(2))
        session.rewind(0)
        assert data_of(session.records()) == [1]
        session.clear()
        assert session.records() == []
        assert session.redo().seq == 0
        assert data_of(session.records()) == [1]

    def test_records_do_not_end_redo(self, session: Session) -> None:
        """Undo cuts the state of the turn, redo brings it back, and what came between is cut."""
        session.append(Message.user("a"), state(1))
        session.append(Message.user("b"), state(2))
        session.undo()
        assert newest(session) == 1
        session.append(state("between"))
        session.redo()
        assert data_of(session.records()) == [1, 2]
        session.undo()
        session.append(Message.user("c"))
        with pytest.raises(BadQuery):
            session.redo()

    def test_a_rewind_to_another_state_behind_the_same_message(self, session: Session) -> None:
        """The message is the newest in both histories; the state is not."""
        session.append(Message.user("a"), state(1), Message.user("b"))
        session.rewind(1)
        session.append(state(2))
        assert session.rewind(Head(2, 1)) == Head(2, 1)
        assert session.rewind(1) == Head(2, 1)
        assert data_of(session.records()) == [1, 2]
        assert session.rewind(Head(1, 1)) == Head(3, 1)
        assert data_of(session.records()) == [1]

    def test_a_state_stored_again_on_another_branch(self, session: Session) -> None:
        """Its id is the newest of both histories; what lies before it is not the same."""
        session.append(Message.user("a"), Message.user("b"))
        again = state("again", id="again")
        for before in (1, 2):
            session.rewind(Head(1, 1))
            session.append(state(before), again)
        assert session.rewind(Head(2, 1)) == Head(4, 1)
        assert data_of(session.records()) == [1, "again"]

    def test_a_replaced_tail_keeps_the_state_of_its_position(self, session: Session) -> None:
        """The messages there are those of the current history; the state is not."""
        session.append(Message.user("a"), state(1), Message.user("b"))
        session.rewind(1)
        session.append(state(2))
        assert session.replace([], keep=1) == Head(2, 1)
        assert data_of(session.records()) == [1, 2]
        assert session.replace([], keep=Head(1, 1)) == Head(3, 1)
        assert data_of(session.records()) == [1]
        assert session.replace([Message.user("c")], keep=Head(2, 1)) == Head(4, 2)
        assert data_of(session.records()) == [1, 2]

    def test_a_fork_has_the_state_of_its_start(self, session: Session) -> None:
        """And nothing of what its parent stores later, behind the same message either."""
        session.append(Message.user("a"), state(1))
        fork, continued = session.fork(), session.fork(1)
        session.append(state(2))
        assert data_of(fork.records()) == data_of(continued.records()) == [1]
        fork.append(state(3), Message.user("b"))
        assert data_of(session.records()) == [1, 2]
        assert data_of(session.fork().records()) == [1, 2]
        assert data_of(fork.fork(1).records()) == [1, 3]
        assert fork.fork(1).head() == Head(1, 1)

    def test_a_continued_session_starts_with_the_state(
        self, store: Store, session: Session
    ) -> None:
        """One that is reset or delegated to does not."""
        session.append(Message.user("a"), state(1))
        assert data_of(store.create(parent=session).records()) == [1]
        assert store.create(parent=session, relation="reset").records() == []
        assert store.create(parent=session, relation="delegate").records() == []

    def test_histories_of_records_alone(self, store: Store, session: Session) -> None:
        """Forks of forks that have no message of their own, each with its state."""
        session.append(state(0))
        chain = [session]
        for n in range(1, 6):
            chain.append(chain[-1].fork())
            chain[-1].append(state(n))
        store = self.reopen(store)
        for n, one in enumerate(chain):
            found = store.get(one.id)
            assert data_of(found.records()) == list(range(n + 1))
            assert (found.head(), found.messages()) == (Head(1, 0), [])
        last = store.get(chain[-1].id)
        last.append(Message.user("a"), state("end"))
        assert newest(last) == "end"
        assert newest(last, 0) == 5
        last.rewind(0)
        assert data_of(last.records()) == list(range(6))

    def test_a_chain_behind_one_message(self, store: Store, session: Session) -> None:
        """Forks at one message, each with a record of its own, then messages again."""
        session.append(Message.user("a"), state(0), Message.user("later"), state("later"))
        chain = [session.fork(1)]
        for n in range(1, 5):
            chain[-1].append(state(n))
            chain.append(chain[-1].fork())
        last = chain[-1]
        last.append(Message.user("b"), state(5))
        store = self.reopen(store)
        last = store.get(last.id)
        assert data_of(last.records()) == [0, 1, 2, 3, 4, 5]
        assert data_of(store.get(chain[1].id).records()) == [0, 1, 2]
        assert [m.text for m in last.messages()] == ["a", "b"]
        assert data_of(last.fork(1).records()) == [0, 1, 2, 3, 4]
        assert last.fork(1).info().preview == "a"

    def test_an_id_may_be_stored_again_where_it_was_cut_off(self, session: Session) -> None:
        """As that of a message."""
        one = state(1)
        session.append(Message.user("a"), Message.user("b"), one)
        session.rewind(1)
        session.append(one)
        assert data_of(session.records()) == [1]
        assert data_of(session.records(all_branches=True)) == [1, 1]

    def test_a_new_branch_counts_its_records_from_one(self, store: Store, session: Session) -> None:
        """Numbers are those of a branch, and none is assigned twice on it."""

        def newest() -> int | None:
            head = store.backend.read(lambda at: at.head(number_of(session)))
            return None if head is None else head.records

        assert newest() is None
        session.append(Message.user("a"), state(1), state(2), Message.user("b"))
        session.drop(kind="state")
        assert newest() == 2
        session.rewind(1)
        assert newest() is None
        session.append(state(3))
        assert newest() == 1

    def test_replace_keeps_the_state_of_what_it_keeps(self, session: Session) -> None:
        """Records behind the shared messages; those of the others are cut."""
        session.append(Message.user("a"), state(1), Message.user("b"), state(2))
        first = session.messages()[0]
        session.replace([first, Message.user("c")])
        assert data_of(session.records()) == [1]
        assert newest(session, Head(1, 2)) == 2

    def test_a_turn_that_was_interrupted_keeps_its_state(
        self, store: Store, session: Session
    ) -> None:
        """Each record was durable when it was stored."""
        turn = self.open_turn(session)
        turn.user("a")
        turn.record("state", 1)
        self.expire_leases(store)
        session.recover()
        assert newest(session) == 1
