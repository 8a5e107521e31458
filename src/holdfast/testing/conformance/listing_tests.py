"""The list of sessions: orders, cursors, filters and marks, and damaged sessions in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.clock import to_datetime
from holdfast.errors import BadQuery
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Transaction
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Message, SessionInfo

_DAY = 86_400


class ListingTests(StoreFixtures):
    """`sessions`, beyond one page by activity."""

    # ------------------------------------------------------------------------------------- order

    def test_pinned_first(self, store: Store) -> None:
        """Then the others, each group by activity; with any page size, and with filters."""
        for n in range(9):
            store.session(str(n), scope="s" if n % 2 else "t").update(pinned=n in {1, 4, 6})
        store.session("1").append(Message.user("x"))
        whole = list("164" + "875320")
        for size in (1, 2, 3, 4, 9, 50):
            assert self.pages(store, size, order="pinned") == whole
            assert self.pages(store, size, order="pinned", scope="s") == list("1" + "753")
            assert self.pages(store, size, order="pinned", pinned=True) == list("164")
            assert self.pages(store, size, order="pinned", pinned=False) == list("875320")
        assert self.pages(store, 2) == list("187654320")

    def test_pinned_first_while_others_write(self, store: Store) -> None:
        """A session that is not changed occurs exactly once, and none occurs twice."""
        for n in range(12):
            store.session(str(n)).update(pinned=n < 4)  # noqa: PLR2004
        seen: list[str] = []
        cursor: str | None = None
        busy = iter("0b37a5")
        while True:
            page = store.sessions(order="pinned", limit=2, cursor=cursor)
            seen += [info.key or "" for info in page]
            cursor = page.cursor
            if cursor is None:
                break
            store.session(next(busy, "0")).append(Message.user("x"))
        assert len(seen) == len(set(seen))
        assert set(seen) >= {"1", "2", "4", "6", "8", "9", "10", "11"}

    def test_a_last_page_has_no_cursor(self, store: Store) -> None:
        """Also where the pinned section ends with the page."""
        for n in range(4):
            store.session(str(n)).update(pinned=n < 2)  # noqa: PLR2004
        first = store.sessions(order="pinned", limit=2)
        assert first.cursor is not None
        assert store.sessions(order="pinned", limit=2, cursor=first.cursor).cursor is None
        assert store.sessions(order="pinned", limit=4).cursor is None

    @pytest.mark.parametrize("order", ["", "created", "Pinned", None, 5])
    def test_an_order_that_is_none_is_refused(self, store: Store, order: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        with pytest.raises(BadQuery, match="order"):
            store.sessions(order=order)

    def test_a_cursor_of_another_order_is_refused(self, store: Store) -> None:
        """`BadQuery`: a cursor is valid only in its own order."""
        for n in range(3):
            store.session(str(n)).update(pinned=n == 0)
        by_activity = store.sessions(limit=1).cursor
        by_pin = store.sessions(order="pinned", limit=1).cursor
        for order, cursor in (("pinned", by_activity), ("activity", by_pin)):
            with pytest.raises(BadQuery, match="cursor"):
                store.sessions(order=order, cursor=cursor)  # type: ignore[arg-type]

    @pytest.mark.parametrize("cursor", ["p", "p-1", "x1", "u1.5", "P1", "p1 ", "u1\n", "u٣", 5])
    def test_a_cursor_of_no_page_is_refused(self, store: Store, cursor: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        for order in ("activity", "pinned"):
            with pytest.raises(BadQuery, match="cursor"):
                store.sessions(order=order, cursor=cursor)

    # ------------------------------------------------------------------------------------- times

    def test_since_and_until_are_about_the_last_activity(self, store: Store) -> None:
        """Not about when it was made; the first bound is included, the second is not."""
        times: dict[str, datetime] = {}
        for key in "abc":
            store.session(key)
        for key in "abc":
            self.clock.advance(_DAY)
            store.session(key).append(Message.user("x"))
            times[key] = store.session(key).info().updated_at
        assert self.keys(store, since=times["b"]) == "bc"
        assert self.keys(store, until=times["b"]) == "a"
        assert self.keys(store, since=times["a"], until=times["c"]) == "ab"
        moved = times["b"].astimezone(UTC) + timedelta(microseconds=1)
        assert self.keys(store, since=moved) == "c"
        assert self.keys(store, since=times["c"], until=times["a"]) == ""
        for size in (1, 2, 3):
            assert self.pages(store, size, until=times["c"]) == list("ba")

    def test_times_as_texts(self, store: Store) -> None:
        """As in a search: an age, a day, a month, a year, or an exact time."""
        store.session("a")
        self.clock.advance(40 * _DAY)
        store.session("b")
        self.clock.advance(_DAY)
        store.session("c")
        day = f"{store.session('b').info().updated_at.astimezone():%Y-%m-%d}"
        assert self.keys(store, since="30d") == self.keys(store, since="5w") == "bc"
        assert self.keys(store, until="30d") == "a"
        assert self.keys(store, since="1h") == "c"
        assert self.keys(store, since=day) == "bc"
        assert self.keys(store, until=day) == "ab"
        assert self.keys(store, since=day, until=day) == "b"
        assert self.keys(store, until="1999") == ""
        assert self.keys(store, since=f"{to_datetime(0):%Y-%m-%dT%H:%M}") == "abc"

    @pytest.mark.parametrize(
        "value", ["", " ", "yesterday", "7", "7 d", "2026-13", "2026-02-30", "-7d", '"7d"', 7, b""]
    )
    @pytest.mark.parametrize("bound", ["since", "until"])
    def test_a_time_that_is_none_is_refused(
        self,
        store: Store,
        bound: str,
        value: Any,  # noqa: ANN401
    ) -> None:
        """`BadQuery` names it and describes valid times; also for a time without a zone."""
        filters: dict[str, Any] = {bound: value}
        with pytest.raises(BadQuery, match=f"{bound}: expected a time such as 7d"):
            store.sessions(**filters)
        naive: dict[str, Any] = {bound: datetime(2026, 1, 1)}  # noqa: DTZ001 - that is the point
        with pytest.raises(BadQuery, match=f"{bound}: has no time zone"):
            store.sessions(**naive)

    # ------------------------------------------------------------------------------------- states

    def test_states(self, store: Store) -> None:
        """Open, interrupted and done: each is a filter, with any page size."""
        for n in range(9):
            session = store.session(str(n))
            if n % 3 == 0:
                self.open_turn(session)
        self.expire_leases(store)
        for n in (1, 4):
            self.open_turn(store.session(str(n)))
        for size in (1, 2, 5, 50):
            assert self.pages(store, size, state="interrupted") == list("630")
            assert self.pages(store, size, state="open") == list("41")
            assert self.pages(store, size, state="done") == list("8752")
            assert self.pages(store, size, state="damaged") == []
        assert {info.state for info in store.sessions(state="open")} == {"open"}
        store.session("6").update(pinned=True)
        assert self.pages(store, 1, order="pinned", state="interrupted") == list("630")

    def test_a_state_among_many_others(self, store: Store) -> None:
        """A page is filled, however many sessions of other states lie between."""
        first, last = store.session("first"), None
        self.open_turn(first)
        for n in range(60):
            last = store.session(str(n))
            if n % 2:
                self.open_turn(last)
        assert self.pages(store, 1, state="open")[-1] == "first"
        assert len(self.pages(store, 7, state="open")) == 31  # noqa: PLR2004

    @pytest.mark.parametrize("state", ["", "closed", "Open", 5, True])
    def test_a_state_that_is_none_is_refused(self, store: Store, state: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        with pytest.raises(BadQuery, match="state"):
            store.sessions(state=state)

    # -------------------------------------------------------------------------------------- marks

    def test_branches_and_forks_are_counted(self, store: Store, session: Session) -> None:
        """By the list as by `info`: all branches, and the forks that still exist."""
        session.append(Message.user("a"), Message.user("b"))
        assert self.marks(store, session) == (1, 0)
        session.rewind(1)
        session.undo()
        assert self.marks(store, session) == (3, 0)
        forks = [session.fork(), session.fork(at=0), store.create(parent=session)]
        for relation in ("reset", "delegate", "import"):
            store.create(parent=session, relation=relation)
        forks[0].fork()
        assert self.marks(store, session) == (3, 3)
        assert self.marks(store, forks[0]) == (1, 1)
        store.trash(forks[1].id)
        assert self.marks(store, session) == (3, 2)
        store.restore(forks[1].id)
        store.purge(forks[0].id)
        assert self.marks(self.reopen(store), session) == (3, 2)

    def marks(self, store: Store, session: Session) -> tuple[int, int]:
        """Return the marks of a session; assert that the list and `info` agree."""
        (listed,) = [info for info in store.sessions(limit=100) if info.id == session.id]
        assert listed == store.get(session.id).info()
        return listed.branches, listed.forks

    def test_a_list_of_many_with_forks(self, store: Store) -> None:
        """Every session has its own counts."""
        made = [store.session(str(n)) for n in range(70)]
        for n, session in enumerate(made):
            for _ in range(n % 3):
                session.fork()
        found = store.sessions(limit=500)
        assert {info.key: info.forks for info in found if info.key} == {
            str(n): n % 3 for n in range(70)
        }

    # ------------------------------------------------------------------------------------- damage

    def test_a_damaged_session_is_listed_as_damaged(self, store: Store, session: Session) -> None:
        """It is listed in order with its readable fields, hides no other, and is reported."""
        self.expect_no_damage = False
        session.append(Message.user("before"))
        other = store.session("other", title="The other", scope="s")
        other.append(Message.user("first words"))
        store.session("last")
        self.spoil_identity(store, other)
        for order in ("activity", "pinned"):
            found = list(store.sessions(order=order))
            assert [info.key for info in found] == ["last", "other", "the session"]
            self.check_damaged(found[1], other)
        assert {damage.session_id for damage in store.damage} == {other.id}
        for size in (1, 2, 3):
            assert self.pages(store, size) == ["last", "other", "the session"]
            assert self.pages(store, size, state="damaged") == ["other"]
            assert self.pages(store, size, state="done") == ["last", "the session"]
        assert self.pages(store, 5, scope="s") == ["other"]
        assert self.pages(store, 5, text="FIRST words") == ["other"]
        assert self.pages(store, 5, trashed=True) == []

    def check_damaged(self, info: SessionInfo, session: Session) -> None:
        """Compare with the session before the damage."""
        assert (info.id, info.state, info.interrupted) == (session.id, "damaged", False)
        assert (info.title, info.scope, info.preview) == ("The other", "s", "first words")
        assert (info.messages, info.branches, info.goal, info.metadata) == (1, 1, None, {})

    def spoil_identity(self, store: Store, session: Session) -> None:
        """Write what no operation would: a session whose identity cannot be decoded."""

        def operation(tx: Transaction) -> None:
            row = tx.session(number_of(session))
            assert row is not None
            tx.put_session(msgspec.structs.replace(row, goal=b"[1"))

        store.backend.write(operation)

    # -------------------------------------------------------------------------------------- tools

    def keys(self, store: Store, **filters: Any) -> str:  # noqa: ANN401 - any filter
        """Return the keys that are listed, sorted."""
        return "".join(sorted(info.key or "" for info in store.sessions(**filters)))

    def pages(self, store: Store, limit: int, **filters: Any) -> list[str]:  # noqa: ANN401 - as above
        """Return the keys of all pages."""
        keys: list[str] = []
        cursor: str | None = None
        while True:
            page = store.sessions(limit=limit, cursor=cursor, **filters)
            assert len(page) <= limit
            assert len(page) == limit or page.cursor is None
            keys += [info.key or "" for info in page]
            cursor = page.cursor
            if cursor is None:
                return keys
