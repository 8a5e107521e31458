"""Append: one order, all or nothing, each id once, and nothing at all on refusal."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.errors import BadMessage, HeadMoved, IdConflict, TooLarge
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import Head, Message

_WRITERS = 4
_EACH = 25


class AppendTests(StoreFixtures):
    """Promises 2 to 7."""

    def test_a_new_history_is_empty(self, session: Session) -> None:
        """A session starts at seq 0 of branch 1."""
        assert session.head() == Head(1, 0)
        assert session.messages() == []

    def test_seq_counts_from_one_without_gaps(self, store: Store, session: Session) -> None:
        """Single messages and batches are numbered 1, 2, 3 …, also after reopening."""
        assert session.append(Message.user("a")) == Head(1, 1)
        assert session.append(Message.user("b"), Message.user("c")) == Head(1, 3)
        again = self.reopen(store).session("the session")
        assert [(m.seq, m.text) for m in again.messages()] == [(1, "a"), (2, "b"), (3, "c")]
        assert again.head() == Head(1, 3)

    def test_the_callers_seq_and_turn_id_are_ignored(self, session: Session) -> None:
        """The store assigns `seq` and `turn_id`; the caller's values are ignored."""
        session.append(Message(role="user", seq=9, turn_id="x.9"))
        (stored,) = session.messages()
        assert (stored.seq, stored.turn_id) == (1, None)

    def test_an_empty_batch_changes_nothing(self, session: Session) -> None:
        """Appending nothing returns the head."""
        session.append(Message.user("a"))
        assert session.append() == Head(1, 1)

    def test_a_retry_stores_nothing_and_gives_the_same_receipt(self, session: Session) -> None:
        """The same ids again return the original receipt, although the history has grown."""
        batch = [Message.user("a"), Message.assistant("b")]
        receipt = session.append(*batch)
        session.append(Message.user("c"))
        assert session.append(*batch) == receipt
        assert [m.text for m in session.messages()] == ["a", "b", "c"]

    def test_a_retry_may_come_after_reopening(self, store: Store, session: Session) -> None:
        """Idempotency survives reopening the store."""
        message = Message.user("a", id="mine")
        receipt = session.append(message)
        again = self.reopen(store).session("the session")
        assert again.append(message) == receipt
        assert len(again.messages()) == 1

    def test_a_retry_may_bring_new_messages(self, session: Session) -> None:
        """Stored messages are skipped; the rest is stored after the head, in order."""
        first, second = Message.user("a"), Message.user("b")
        session.append(first)
        assert session.append(first, second) == Head(1, 2)
        assert [m.text for m in session.messages()] == ["a", "b"]

    def test_a_retry_is_no_conflict_though_the_clock_moved(self, session: Session) -> None:
        """A time that the store filled in does not make a retry a different message."""
        message = Message.user("a")
        session.append(message)
        before = session.messages()
        self.clock.advance(60)
        session.append(message)
        assert session.messages() == before

    def test_a_retry_ignores_expect(self, session: Session) -> None:
        """The retry of a committed write is acknowledged, whatever head it expects."""
        message, start = Message.user("a"), session.head()
        receipt = session.append(message, expect=start)
        assert session.append(message, expect=start) == receipt

    def test_the_same_id_with_another_body_is_refused(self, session: Session) -> None:
        """`IdConflict` names the message, and nothing of the batch is stored."""
        session.append(Message.user("a", id="mine"))
        with pytest.raises(IdConflict) as refused:
            session.append(Message.user("new"), Message.user("b", id="mine"))
        assert (refused.value.message_id, refused.value.seq) == ("mine", 1)
        assert [m.text for m in session.messages()] == ["a"]
        assert session.info().messages == 1

    @pytest.mark.parametrize(
        "other",
        [
            Message.assistant("a", id="mine"),
            Message.user("a", id="mine", name="Ann"),
            Message.user("a", id="mine", metadata={"k": 1}),
            Message.user("a", id="mine", status="partial"),
            Message.user(["a", ""], id="mine"),
        ],
    )
    def test_any_other_field_is_another_body(self, session: Session, other: Message) -> None:
        """The body is all of the message, not only its text."""
        session.append(Message.user("a", id="mine"))
        with pytest.raises(IdConflict):
            session.append(other)

    def test_equal_texts_under_two_ids_are_two_messages(self, session: Session) -> None:
        """Messages are compared by id, not by content."""
        session.append(Message.user("yes"), Message.user("yes"))
        session.append(Message.user("yes"))
        assert [m.text for m in session.messages()] == ["yes"] * 3

    def test_an_id_twice_in_one_batch_is_stored_once(self, session: Session) -> None:
        """With the same body it is one message, at its first position."""
        twice = Message.user("a", id="mine")
        assert session.append(twice, Message.user("b"), twice) == Head(1, 2)
        assert [m.text for m in session.messages()] == ["a", "b"]

    def test_an_id_twice_in_one_batch_with_two_bodies_is_refused(self, session: Session) -> None:
        """Storing one of the bodies would lose the other."""
        with pytest.raises(IdConflict):
            session.append(Message.user("a", id="mine"), Message.user("b", id="mine"))
        assert session.messages() == []

    def test_ids_belong_to_one_history(self, store: Store) -> None:
        """Two sessions may hold the same id."""
        one, two = store.session("one"), store.session("two")
        one.append(Message.user("a", id="mine"))
        assert two.append(Message.user("b", id="mine")) == Head(1, 1)
        assert [s.messages()[0].text for s in (one, two)] == ["a", "b"]

    def test_expect_compares_the_head(self, session: Session) -> None:
        """The current head lets a write through; any other raises, and nothing is stored."""
        start = session.head()
        seen = session.append(Message.user("a"), expect=start)
        with pytest.raises(HeadMoved) as refused:
            session.append(Message.user("b"), Message.user("c"), expect=start)
        assert (refused.value.expected, refused.value.actual) == (start, seen)
        assert session.head() == seen
        assert session.append(Message.user("b"), expect=seen) == Head(1, 2)

    @pytest.mark.parametrize("head", [Head(1, 7), Head(2, 0), Head(0, 0)])
    def test_a_head_that_never_was_is_refused(self, session: Session, head: Head) -> None:
        """A head in the future, or on another branch, is not the head."""
        with pytest.raises(HeadMoved):
            session.append(Message.user("a"), expect=head)

    def test_of_writers_that_expect_one_head_one_wins(self, session: Session) -> None:
        """Compare-and-append from several threads: one succeeds, the others are refused."""
        start, outcomes = session.head(), list[object]()

        def write(text: str) -> None:
            try:
                outcomes.append(session.append(Message.user(text), expect=start))
            except HeadMoved as refused:
                outcomes.append(refused)

        run_concurrently(*(partial(write, str(n)) for n in range(_WRITERS)))
        assert sum(isinstance(outcome, Head) for outcome in outcomes) == 1
        assert len(outcomes) == _WRITERS
        assert session.head() == Head(1, 1)

    def test_threads_that_write_at_once_lose_nothing(self, session: Session) -> None:
        """Each batch is whole, each writer's order is kept, and every receipt is correct."""
        receipts: dict[str, int] = {}

        def write(writer: int) -> None:
            for n in range(_EACH):
                batch = [Message.user(f"{writer}.{n}.{i}") for i in (0, 1)]
                receipts[batch[1].id] = session.append(*batch).seq

        run_concurrently(*(partial(write, n) for n in range(_WRITERS)))
        stored = session.messages()
        assert [m.seq for m in stored] == list(range(1, 2 * _WRITERS * _EACH + 1))
        assert {m.id: m.seq for m in stored if m.text.endswith(".1")} == receipts
        for writer in range(_WRITERS):
            mine = [m for m in stored if m.text.startswith(f"{writer}.")]
            wanted = [f"{writer}.{n}.{i}" for n in range(_EACH) for i in (0, 1)]
            assert [m.text for m in mine] == wanted
        pairs = [(a.text[:-1], b.text[:-1]) for a, b in zip(stored[::2], stored[1::2], strict=True)]
        assert all(a == b for a, b in pairs)

    def test_a_bad_message_refuses_its_whole_batch(self, session: Session) -> None:
        """No message of the batch is stored."""
        with pytest.raises(BadMessage):
            session.append(Message.user("a"), Message(role="boss"), Message.user("b"))  # type: ignore[arg-type]
        assert session.messages() == []

    def test_what_is_no_message_is_refused(self, session: Session) -> None:
        """The error names the constructors to use."""
        with pytest.raises(BadMessage, match=r"Message\.user"):
            session.append("hi")  # type: ignore[arg-type]

    def test_a_batch_has_a_limit(self, session: Session) -> None:
        """More than 10,000 messages at once are `TooLarge`; nothing is stored."""
        message = Message.user("a")
        with pytest.raises(TooLarge):
            session.append(*[message] * 10_001)
        assert session.messages() == []

    def test_refusals_change_no_count(self, session: Session) -> None:
        """After every kind of refusal `info` is unchanged."""
        session.append(Message.user("a", id="mine"))
        before = session.info()
        for refused in (
            [Message.user("b"), Message.user("c", id="mine")],
            [Message.user("b"), Message(role="boss")],  # type: ignore[arg-type]
        ):
            with pytest.raises((IdConflict, BadMessage)):
                session.append(*refused)
        with pytest.raises(HeadMoved):
            session.append(Message.user("b"), expect=Head(1, 0))
        assert session.info() == before
