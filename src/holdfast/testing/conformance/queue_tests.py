"""Input that arrives while a turn runs: durable at once, taken in order, exactly once."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest

from holdfast.errors import BadMessage, IdConflict, TurnLost
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Message

_DATA = b"a file" * 50


class QueueTests(StoreFixtures):
    """`enqueue`, `queued`, `take_queued`."""

    def test_input_waits_and_is_taken_in_order(self, store: Store, session: Session) -> None:
        """When `take_queued` returns, it is in the history, as part of the turn that took it."""
        with session.turn() as turn:
            turn.user("a")
            for text in ("b", "c"):
                session.enqueue(text)
        later = self.reopen(store).session("the session")
        assert [q.message.text for q in later.queued()] == ["b", "c"]
        assert [m.text for m in later.messages()] == ["a"]
        with later.turn() as turn:
            taken = turn.take_queued()
            assert later.messages()[1:] == taken
            assert turn.take_queued() == []
        assert [(m.seq, m.text, m.role) for m in taken] == [(2, "b", "user"), (3, "c", "user")]
        assert {m.turn_id for m in taken} == {turn.id}
        assert later.queued() == []

    def test_a_message_of_ones_own(self, session: Session) -> None:
        """Its id, time and metadata are kept."""
        when = datetime(2020, 2, 2, tzinfo=UTC)
        message = Message.user("a", id="mine\0\ud800", created_at=when, metadata={"k": [1]})
        waiting = session.enqueue(message)
        assert waiting.id == message.id
        assert [q.id for q in session.queued()] == [message.id]
        with session.turn() as turn:
            (taken,) = turn.take_queued()
        assert (taken.id, taken.created_at, taken.metadata) == (
            message.id,
            when,
            message.metadata,
        )

    def test_the_receipt_is_the_queued_message(self, session: Session) -> None:
        """What `enqueue` returns equals what `queued` lists."""
        given = session.enqueue(["look", File(name="f", data=_DATA)])
        assert session.queued() == [given]

    def test_a_retry_does_not_wait_twice(self, session: Session) -> None:
        """A retry is not queued again, neither while the input waits nor after it was taken."""
        message = Message.user("a")
        session.enqueue(message)
        session.enqueue(message)
        assert len(session.queued()) == 1
        with session.turn() as turn:
            turn.take_queued()
        session.enqueue(message)
        assert session.queued() == []
        assert len(session.messages()) == 1

    def test_a_queued_id_with_another_body_is_refused(self, session: Session) -> None:
        """It is compared with queued input and with stored messages."""
        session.enqueue(Message.user("a", id="waits"))
        session.append(Message.user("a", id="said"))
        for id in ("waits", "said"):
            with pytest.raises(IdConflict):
                session.enqueue(Message.user("b", id=id))
        assert [q.message.text for q in session.queued()] == ["a"]

    def test_equal_texts_wait_twice(self, session: Session) -> None:
        """Two ids, two inputs."""
        session.enqueue("yes")
        session.enqueue("yes")
        with session.turn() as turn:
            assert [m.text for m in turn.take_queued()] == ["yes", "yes"]

    def test_files_and_large_parts_wait_with_their_data(
        self, store: Store, session: Session
    ) -> None:
        """They are in the store once the input is taken, and can be read while it waits."""
        sha = hashlib.sha256(_DATA).hexdigest()
        large = "x" * 200_000
        session.enqueue([large, File(name="f", data=_DATA)])
        again = self.reopen(store)
        later = again.session("the session")
        part = File(name="f", sha256=sha, size=len(_DATA))
        assert later.queued()[0].message.parts[1] == part
        assert later.queued()[0].message.text == large
        with later.turn() as turn:
            (taken,) = turn.take_queued()
        assert taken.parts[1] == part
        assert taken.text == large
        assert again.blob(sha) == _DATA

    def test_input_that_was_appended_meanwhile_is_taken_as_it_is(self, session: Session) -> None:
        """A message that was queued and appended is in the history once."""
        message = Message.user("a")
        session.enqueue(message)
        session.append(message)
        with session.turn() as turn:
            assert turn.take_queued() == []
        assert session.queued() == []
        assert len(session.messages()) == 1

    def test_a_conflict_does_not_stop_the_queue(self, session: Session) -> None:
        """If an id that waits is appended with another body, one of the two calls is refused.

        In both cases the input after it can still be taken, and nothing is lost silently.
        """
        session.enqueue(Message.user("waits", id="mine"))
        session.enqueue("next")
        with pytest.raises(IdConflict):
            session.append(Message.user("other", id="mine"))
        with session.turn() as turn:
            assert [m.text for m in turn.take_queued()] == ["waits", "next"]

    def test_the_queue_outlives_a_crash(self, store: Store, session: Session) -> None:
        """What was not taken still waits; what was taken is not taken again."""
        session.enqueue("a")
        turn = self.open_turn(session)
        turn.take_queued()
        session.enqueue("b")
        self.expire_leases(store)
        with self.reopen(store).session("the session").turn() as following:
            assert [m.text for m in following.take_queued()] == ["b"]

    def test_a_lost_turn_takes_nothing(self, store: Store, session: Session) -> None:
        """The input stays queued for the current holder."""
        old = self.open_turn(session)
        session.enqueue("a")
        self.expire_leases(store)
        with session.turn() as new:
            with pytest.raises(TurnLost):
                old.take_queued()
            assert [m.text for m in new.take_queued()] == ["a"]

    def test_bad_input_is_refused(self, session: Session) -> None:
        """`enqueue` refuses it, so that it cannot make a turn fail later."""
        for bad in (None, 5, [5], Message(role="boss")):  # type: ignore[arg-type]
            with pytest.raises(BadMessage):
                session.enqueue(bad)  # type: ignore[arg-type]
        assert session.queued() == []
