"""Following: every later message, once, in order."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import BadQuery
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation
from holdfast.testing.conformance.fixtures import StoreFixtures, drain
from holdfast.values import Activity, BranchChanged, Head, Message

_LONG = 30.0


class FollowTests(StoreFixtures):
    """Promise 13."""

    def test_from_the_start_and_from_a_head(self, session: Session) -> None:
        """Every message after the head, each once."""
        session.append(Message.user("a"), Message.user("b"))
        head = session.head()
        session.append(Message.user("c"))
        assert [m.text for m in drain(session.follow())] == ["a", "b", "c"]
        follower = session.follow(after=head)
        assert follower.poll() == session.messages()[-1]
        assert follower.poll() is None
        assert follower.head == session.head() == Head(1, 3)
        session.append(Message.user("d"))
        assert [m.text for m in drain(follower)] == ["d"]

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
        """A second opening of the same store simulates another process."""
        self.need_persistence()
        follower = session.follow()
        other = self.open().session("the session")
        thread = threading.Thread(target=lambda: other.append(Message.user("from there")))
        thread.start()
        assert next(follower).text == "from there"
        thread.join(_LONG)

    def test_a_follower_can_be_resumed(self, store: Store, session: Session) -> None:
        """Its head is enough to resume it, also after reopening."""
        session.append(*(Message.user(str(n)) for n in range(4)))
        follower = session.follow()
        assert [next(follower).text for _ in range(2)] == ["0", "1"]
        again = self.reopen(store).session("the session")
        assert [m.text for m in drain(again.follow(follower.head))] == ["2", "3"]

    def test_a_long_history(self, session: Session) -> None:
        """A history longer than a follower's page."""
        session.append(*(Message.user(str(n)) for n in range(1200)))
        seen = [m.text for m in drain(session.follow())]
        assert seen == [str(n) for n in range(1200)]

    def test_closing_the_store_ends_the_follower(self, store: Store, session: Session) -> None:
        """The follower's loop ends, and its thread exits."""
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
        """It yields the sessions that were written to, in order; its activity number resumes it."""
        one, two = store.session("one"), store.session("two")
        one.append(Message.user("a"))
        seen = drain(store.follow())
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
    def test_an_activity_number_that_is_none_is_refused(self, store: Store, since: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        with pytest.raises(BadQuery, match="since"):
            store.follow(since=since)

    def test_a_number_of_the_future_waits(self, store: Store, session: Session) -> None:
        """The follower waits: nothing was written after that number."""
        session.append(Message.user("a"))
        assert store.follow(since=2**70).poll() is None

    def test_a_head_that_never_was(self, session: Session) -> None:
        """A branch that does not exist is `BadQuery`; a seq of the future waits."""
        session.append(Message.user("a"))
        with pytest.raises(BadQuery):
            session.follow(after=Head(7, 0)).poll()
        assert session.follow(after=Head(1, 99)).poll() is None

    # --------------------------------------------------------------------------------- branches

    def test_a_follower_yields_a_branch_change(self, session: Session) -> None:
        """Delivered messages up to `kept` stay in the history; the new ones after that follow."""
        session.append(*parse_conversation("u a u a"))
        follower = session.follow()
        assert len(drain(follower)) == 4
        session.rewind(2)
        assert drain(follower) == [BranchChanged(Head(2, 2), 2, "rewind")]
        assert follower.head == Head(2, 2)
        session.append(Message.user("other"))
        assert drain(follower) == session.messages()[2:]
        session.clear()
        session.append(Message.user("new"))
        items = drain(follower)
        assert items == [BranchChanged(Head(3, 0), 0, "clear"), *session.messages()]
        assert follower.head == session.head()

    def test_a_redo_brings_messages_back(self, session: Session) -> None:
        """They are delivered again, because their removal was reported."""
        session.append(*parse_conversation("u a u a"))
        follower = session.follow()
        drain(follower)
        session.undo()
        session.redo()
        assert drain(follower) == [
            BranchChanged(Head(2, 2), 2, "undo"),
            BranchChanged(Head(3, 2), 2, "redo"),
            *session.messages()[2:],
        ]

    def test_what_a_replace_keeps_is_not_delivered_again(self, session: Session) -> None:
        """Only the new messages after the shared prefix are delivered."""
        session.append(*parse_conversation("u a u a"))
        old = session.messages()
        follower = session.follow(after=session.head())
        session.replace([*old[:3], Message.user("x"), Message.user("y")])
        assert drain(follower) == [
            BranchChanged(Head(2, 3), 3, "replace"),
            *session.messages()[3:],
        ]

    def test_a_follower_that_comes_late_misses_nothing(
        self, store: Store, session: Session
    ) -> None:
        """It gets the rest of its branch first, then every branch change in order."""
        session.append(*parse_conversation("u a"))
        seen = session.head()
        session.append(*parse_conversation("u a"))
        lost = session.messages()[2:]
        session.rewind(3)
        session.append(Message.user("gone"))
        gone = session.messages()[3]
        session.rewind(1)
        session.append(Message.user("here"))
        again = self.reopen(store).session("the session")
        follower = again.follow(after=seen)
        assert drain(follower) == [
            *lost,
            BranchChanged(Head(2, 3), 3, "rewind"),
            gone,
            BranchChanged(Head(3, 1), 1, "rewind"),
            *again.messages()[1:],
        ]

    def test_a_new_follower_begins_with_the_history_of_now(self, session: Session) -> None:
        """Branches abandoned before are not reported."""
        session.append(*parse_conversation("u a u a"))
        session.rewind(2)
        session.append(Message.user("other"))
        follower = session.follow()
        assert drain(follower) == session.messages()
        assert follower.head == session.head()

    def test_going_over_to_another_branch(self, session: Session) -> None:
        """`kept` is the length of the common prefix of both histories."""
        session.append(*parse_conversation("u a u a"))
        session.rewind(1)
        session.append(*parse_conversation("s s s"))
        follower = session.follow()
        drain(follower)
        session.rewind(Head(1, 4))
        assert drain(follower) == [
            BranchChanged(Head(3, 1), 1, "rewind"),
            *session.messages()[1:],
        ]

    def test_a_follower_in_the_middle_of_many_changes(self, session: Session) -> None:
        """Applying the delivered items always yields the history."""
        follower = session.follow()
        view: list[Message] = []
        for n in range(12):
            session.append(*parse_conversation("u a u a"))
            for step in (session.undo, session.redo, session.clear, session.redo)[: n % 5]:
                step()
                if n % 2:
                    view = _applied(view, drain(follower))
                    assert view == session.messages()
            session.rewind(session.head().seq // 2)
            session.replace([*session.messages()[: n // 2], Message.user(str(n))])
        view = _applied(view, drain(follower))
        assert view == session.messages()
        assert follower.head == session.head()

    def test_a_follower_resumes_anywhere(self, session: Session) -> None:
        """After each item its head is enough to get the rest."""
        session.append(*parse_conversation("u a u a"))
        whole = session.follow()
        session.undo()
        session.append(*parse_conversation("s"))
        session.clear()
        session.append(*parse_conversation("u"))
        items = []
        resumed = session.follow(after=Head(1, 0))
        while (item := resumed.poll()) is not None:
            items.append(item)
            resumed = session.follow(after=resumed.head)
        assert items == drain(whole)
        assert [type(item) for item in items].count(BranchChanged) == 2

    def test_a_follower_of_a_fork(self, session: Session) -> None:
        """It starts with the parent's messages; later writes to the parent are not delivered."""
        session.append(*parse_conversation("u a"))
        fork = session.fork()
        follower = fork.follow()
        assert drain(follower) == session.messages()
        session.clear()
        fork.append(Message.user("own"))
        fork.undo()
        assert [item.text for item in drain(follower)][:1] == ["own"]
        assert follower.head == fork.head()

    def test_a_store_follower_yields_moves(self, store: Store, session: Session) -> None:
        """A move is reported with the head on its new branch."""
        session.append(*parse_conversation("u a"))
        follower = store.follow()
        drain(follower)
        session.undo()
        fork = session.fork()
        assert [(a.session_id, a.head) for a in drain(follower)] == [
            (session.id, Head(2, 0)),
            (fork.id, Head(1, 0)),
        ]

    def test_what_is_no_head_cannot_be_followed(self, session: Session) -> None:
        """`BadQuery` names it."""
        no_heads: list[Any] = [3, "1", (1, 0), Head(2**70, 0), Head(0, 0)]
        for after in no_heads:
            with pytest.raises(BadQuery, match="after"):
                session.follow(after=after).poll()


def _applied(view: list[Message], items: Sequence[Message | BranchChanged]) -> list[Message]:
    """Apply a follower's items to a view."""
    for item in items:
        view = view[: item.kept] if isinstance(item, BranchChanged) else [*view, item]
    return view
