"""Following: everything written later, once, in order."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import BadQuery
from holdfast.records import Activity, Head, Message
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.setting import Setting

_LONG = 30.0


class FollowingOthers(Setting):
    """Promise 13."""

    def test_from_the_start_and_from_a_head(self, session: Session) -> None:
        """Every message behind the head, and nothing twice."""
        session.append(Message.user("a"), Message.user("b"))
        head = session.head()
        session.append(Message.user("c"))
        assert [m.text for m in iter(session.follow().poll, None)] == ["a", "b", "c"]
        follower = session.follow(after=head)
        assert follower.poll() == session.messages()[-1]
        assert follower.poll() is None
        assert follower.head == session.head() == Head(1, 3)
        session.append(Message.user("d"))
        assert [m.text for m in iter(follower.poll, None)] == ["d"]

    def test_what_another_thread_writes_arrives(self, session: Session) -> None:
        """In order, each once, while the follower waits."""
        count = 50

        def write() -> None:
            for n in range(count):
                session.append(Message.user(str(n)))

        follower = session.follow()
        thread = threading.Thread(target=write)
        thread.start()
        seen = [next(follower).text for _ in range(count)]
        thread.join(_LONG)
        assert seen == [str(n) for n in range(count)]
        assert follower.poll() is None

    def test_what_another_opening_writes_arrives(self, session: Session) -> None:
        """A second opening of the same store stands for another process."""
        self.need_persistence()
        follower = session.follow()
        other = self.open().session("the session")
        thread = threading.Thread(target=lambda: other.append(Message.user("from there")))
        thread.start()
        assert next(follower).text == "from there"
        thread.join(_LONG)

    def test_a_follower_can_be_resumed(self, store: Store, session: Session) -> None:
        """Its head is all it needs to remember, also across reopening."""
        session.append(*(Message.user(str(n)) for n in range(4)))
        follower = session.follow()
        assert [next(follower).text for _ in range(2)] == ["0", "1"]
        again = self.later(store).session("the session")
        assert [m.text for m in iter(again.follow(follower.head).poll, None)] == ["2", "3"]

    def test_a_long_history(self, session: Session) -> None:
        """More than a follower reads at once."""
        session.append(*(Message.user(str(n)) for n in range(1200)))
        seen = [m.text for m in iter(session.follow().poll, None)]
        assert seen == [str(n) for n in range(1200)]

    def test_closing_the_store_ends_the_follower(self, store: Store, session: Session) -> None:
        """The loop ends; the thread is not left behind."""
        session.append(Message.user("a"))
        seen: list[str] = []
        arrived = threading.Event()

        def follow() -> None:
            for message in session.follow():
                seen.append(message.text)
                arrived.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert arrived.wait(_LONG)
        store.close()
        thread.join(_LONG)
        assert not thread.is_alive()
        assert seen == ["a"]

    def test_following_a_store(self, store: Store) -> None:
        """Tells which sessions were written to, in order; its number resumes it."""
        one, two = store.session("one"), store.session("two")
        one.append(Message.user("a"))
        seen = list(iter(store.follow().poll, None))
        assert [(a.session_id, a.head) for a in seen] == [
            (two.id, Head(1, 0)),
            (one.id, Head(1, 1)),
        ]
        assert [a.number for a in seen] == sorted({a.number for a in seen})
        follower = store.follow(since=seen[-1].number)
        assert follower.poll() is None
        two.append(Message.user("b"), Message.user("c"))
        newest = follower.poll()
        assert isinstance(newest, Activity)
        assert (newest.session_id, newest.head) == (two.id, Head(1, 2))
        assert follower.number == newest.number

    @pytest.mark.parametrize("since", [-1, "x", None, 1.5])
    def test_a_number_that_is_none_is_refused(self, store: Store, since: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        with pytest.raises(BadQuery, match="since"):
            store.follow(since=since)

    def test_a_number_of_the_future_waits(self, store: Store, session: Session) -> None:
        """Nothing was written behind it."""
        session.append(Message.user("a"))
        assert store.follow(since=2**70).poll() is None

    def test_a_head_that_never_was(self, session: Session) -> None:
        """A branch that is none is `BadQuery`; a seq of the future waits."""
        session.append(Message.user("a"))
        with pytest.raises(BadQuery):
            session.follow(after=Head(7, 0)).poll()
        assert session.follow(after=Head(1, 99)).poll() is None
