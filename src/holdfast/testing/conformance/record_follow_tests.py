"""Following records: in order with the messages, each once, also behind the same message later."""

from __future__ import annotations

import threading

import pytest

from holdfast.errors import BadQuery
from holdfast.follow import Follower
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, drain
from holdfast.testing.conformance.records_tests import state
from holdfast.values import BranchChanged, Message, Record

_LONG = 30.0
_MANY = 700  # more than a page has


def seen(follower: Follower[Message | Record | BranchChanged]) -> list[object]:
    """Return what a follower delivers now: texts, data, and where it went back to."""
    return [_shown(item) for item in drain(follower)]


def _shown(item: Message | Record | BranchChanged) -> object:
    if isinstance(item, Record):
        return item.data
    return item.text if isinstance(item, Message) else ("back to", item.kept)


class RecordFollowTests(StoreFixtures):
    """Promise 13, for records."""

    def test_each_record_comes_after_its_message(self, session: Session) -> None:
        """From the start; without `records` nothing changes."""
        session.append(state(0), Message.user("a"), state(1), state(2), Message.user("b"))
        session.append(state(3))
        assert seen(session.follow(records=True)) == [0, "a", 1, 2, "b", 3]
        assert [item.text for item in drain(session.follow())] == ["a", "b"]

    def test_records_behind_the_same_message_arrive_later(self, session: Session) -> None:
        """While nothing is said, state may change many times."""
        session.append(Message.user("a"))
        follower = session.follow(records=True)
        assert seen(follower) == ["a"]
        for n in range(3):
            session.append(state(n))
            assert seen(follower) == [n]
        session.append(state(3), Message.user("b"))
        assert seen(follower) == [3, "b"]

    def test_none_is_missed_among_many_that_were_dropped(self, session: Session) -> None:
        """Many in a row, a few, and many again, with long gaps in between."""
        expected: list[object] = []
        for kept in (300, 3, 300):
            session.append(*(Record("dropped") for _ in range(_MANY)))
            session.append(*(state(len(expected) + n) for n in range(kept)))
            expected += range(len(expected), len(expected) + kept)
        session.drop(kind="dropped")
        assert seen(session.follow(records=True)) == expected

    def test_a_record_alone_wakes_a_follower(self, session: Session) -> None:
        """It waits for nothing else."""
        follower = session.follow(records=True)
        thread = threading.Thread(target=lambda: session.append(state("woken")))
        thread.start()
        item = next(follower)
        thread.join(_LONG)
        assert _shown(item) == "woken"

    def test_a_cursor_resumes_anywhere(self, store: Store, session: Session) -> None:
        """After each item, without a gap or a repeat, across branches and openings."""
        session.append(state(0), state(1), Message.user("a"), state(2), Message.user("b"), state(3))
        fork = session.fork(1)
        fork.append(state(4), state(5), Message.user("c"), state(6))
        whole = [0, 1, "a", 2, 4, 5, "c", 6]
        fork = self.reopen(store).get(fork.id)
        assert seen(fork.follow(records=True)) == whole
        cursor: str | None = None
        for n in range(len(whole)):
            follower = fork.follow(cursor, records=True)
            assert seen(follower) == whole[n:]
            follower = fork.follow(cursor, records=True)
            next(follower)
            cursor = follower.cursor
        assert seen(fork.follow(cursor, records=True)) == []
        fork.append(state(7))
        assert seen(fork.follow(cursor, records=True)) == [7]

    def test_a_cursor_of_messages_alone(self, session: Session) -> None:
        """It is a head; with records, those behind its message come next."""
        session.append(Message.user("a"), state(1), Message.user("b"))
        follower = session.follow()
        next(follower)
        assert [item.text for item in drain(session.follow(follower.cursor))] == ["b"]
        assert seen(session.follow(follower.cursor, records=True)) == [1, "b"]
        assert seen(session.follow(follower.head, records=True)) == [1, "b"]

    def test_a_change_of_branch_brings_the_state_of_its_start(self, session: Session) -> None:
        """All records behind the last message that was kept, then what follows."""
        session.append(Message.user("a"), state(1), Message.user("b"), state(2))
        follower = session.follow(records=True)
        assert seen(follower) == ["a", 1, "b", 2]
        session.rewind(1)
        session.append(state(3), Message.user("c"))
        assert seen(follower) == [("back to", 1), 1, 3, "c"]
        session.clear()
        assert seen(follower) == [("back to", 0)]

    def test_the_rest_of_a_branch_comes_before_the_next(self, session: Session) -> None:
        """Its records, too, however late the follower is."""
        follower = session.follow(records=True)
        session.append(Message.user("a"))
        assert seen(follower) == ["a"]
        session.append(state(1))
        session.clear()
        session.append(state(2))
        assert seen(follower) == [1, ("back to", 0), 2]

    def test_more_records_than_a_page(self, session: Session) -> None:
        """Behind one message, and gaps where some were dropped."""
        session.append(Message.user("a"), *map(state, range(_MANY)), Message.user("b"))
        session.append(Record("dropped", data="dropped"))
        session.append(*(Record("dropped") for _ in range(_MANY)), state("end"))
        session.drop(kind="dropped")
        assert seen(session.follow(records=True)) == ["a", *range(_MANY), "b", "end"]

    def test_what_is_no_position_is_refused(self, session: Session) -> None:
        """By the name of the argument."""
        for bad in ("", "1", "1.2.3", "a.b", "1.-2", "1.2.3.4.5", "1." + "9" * 40):
            with pytest.raises(BadQuery, match=r"^after: "):
                session.follow(bad)
        with pytest.raises(BadQuery, match=r"^after: "):
            session.follow(3)  # type: ignore[call-overload]
        with pytest.raises(BadQuery, match=r"^records: "):
            session.follow(records=1)  # type: ignore[call-overload]
