"""Reading a history, whole or in parts, and opening for reading only."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast.clock import EPOCH
from holdfast.errors import BadQuery, ReadOnly, SessionNotFound, StoreUnavailable
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import DayUsage, Growth, Head, Message, Usage


class ReadTests(StoreFixtures):
    """`messages` with its limits; a closed store; a read-only one."""

    @pytest.mark.parametrize(
        ("arguments", "seqs"),
        [
            ({}, range(1, 11)),
            ({"limit": 3}, range(8, 11)),
            ({"limit": 0}, range(0)),
            ({"limit": 99}, range(1, 11)),
            ({"before": 4}, range(1, 4)),
            ({"before": 1}, range(0)),
            ({"before": 0}, range(0)),
            ({"before": 99}, range(1, 11)),
            ({"limit": 2, "before": 4}, range(2, 4)),
            ({"after": 8}, range(9, 11)),
            ({"after": 10}, range(0)),
            ({"after": 99}, range(0)),
            ({"after": 2, "limit": 3}, range(3, 6)),
            ({"after": 2, "before": 9}, range(3, 9)),
            ({"after": 2, "before": 9, "limit": 2}, range(7, 9)),
            ({"after": 5, "before": 5}, range(0)),
            ({"after": 0, "limit": 2**70}, range(1, 11)),
            ({"before": 2**70, "after": 9}, range(10, 11)),
            ({"branch": 1, "limit": 2}, range(9, 11)),
        ],
    )
    def test_a_part_of_a_history(
        self, session: Session, arguments: dict[str, Any], seqs: range
    ) -> None:
        """The newest `limit` between two seqs; with `after` alone the next ones; oldest first."""
        session.append(*(Message.user(str(n)) for n in range(1, 11)))
        found = session.messages(**arguments)
        assert [m.seq for m in found] == list(seqs)
        assert [m.text for m in found] == [str(n) for n in seqs]

    def test_paging_back_meets_every_message_once(self, session: Session) -> None:
        """Also during concurrent writes."""
        session.append(*(Message.user(str(n)) for n in range(7)))
        seen: list[str] = []
        before: int | None = None
        while page := session.messages(limit=3, before=before):
            seen = [*(m.text for m in page), *seen]
            before = page[0].seq
            session.append(Message.user("later"))
        assert seen == [str(n) for n in range(7)]

    @pytest.mark.parametrize("field", ["limit", "before", "after"])
    @pytest.mark.parametrize("value", [-1, 1.5, "3"])
    def test_a_number_that_is_none_is_refused(
        self,
        session: Session,
        field: str,
        value: Any,  # noqa: ANN401
    ) -> None:
        """`BadQuery` names the argument."""
        with pytest.raises(BadQuery, match=field):
            session.messages(**{field: value})

    @pytest.mark.parametrize("branch", [0, 2, -1, 2**70])
    def test_a_branch_that_is_none_is_refused(self, session: Session, branch: int) -> None:
        """A session starts with branch 1 alone."""
        with pytest.raises(BadQuery, match="branch"):
            session.messages(branch=branch)

    @pytest.mark.parametrize("limit", [-1, 1.5, "3"])
    def test_turns_check_their_limit(self, session: Session, limit: Any) -> None:  # noqa: ANN401
        """As `messages` does."""
        for _ in range(3):
            with session.turn():
                pass
        with pytest.raises(BadQuery, match="limit"):
            session.turns(limit=limit)

    def test_the_newest_turns_oldest_first(self, session: Session) -> None:
        """`turns(limit=…)` counts from the end."""
        for n in range(3):
            with session.turn(run_id=str(n)):
                pass
        assert [t.run_id for t in session.turns()] == ["0", "1", "2"]
        assert [t.run_id for t in session.turns(limit=2)] == ["1", "2"]
        assert session.turns(limit=0) == []
        assert len(session.turns(limit=2**70)) == 3

    def test_a_closed_store_answers_nothing(self, store: Store, session: Session) -> None:
        """Every operation raises, none returns an empty result; closing twice is no error."""
        session.append(Message.user("a"))
        store.close()
        store.close()
        for call in (
            session.messages,
            session.head,
            session.info,
            session.recover,
            lambda: session.append(Message.user("b")),
            lambda: session.enqueue("b"),
            lambda: store.session("new"),
            store.sessions,
            store.latest,
            store.stats,
            session.fork,
            lambda: session.rewind(0),
            session.undo,
            session.redo,
            lambda: session.replace([]),
            session.clear,
            lambda: session.summarize("x"),
            session.branches,
            session.lineage,
            session.children,
            lambda: store.create(parent=session),
            lambda: store.trash(session.id),
            lambda: store.restore(session.id),
            lambda: store.purge(session.id),
        ):
            with pytest.raises(StoreUnavailable):
                call()

    def test_opened_for_reading_only(self, store: Store) -> None:
        """Everything can be read and nothing written."""
        self.need_persistence()
        written = store.session("s", title="t")
        written.append(Message.user("a"))
        left_open = self.open_turn(written)
        reader = self.open(readonly=True)
        session = reader.session("s")
        assert [m.text for m in session.messages()] == ["a"]
        assert session.info().title == "t"
        assert len(reader.sessions()) == 1
        for call in (
            lambda: session.append(Message.user("b")),
            session.append,
            lambda: session.update(title="x"),
            lambda: session.enqueue("b"),
            session.recover,
            lambda: session.turn().__enter__(),
            lambda: reader.session("new"),
            reader.create,
            lambda: reader.create(parent="s"),
            session.fork,
            lambda: session.rewind(0),
            lambda: session.rewind(1),
            session.undo,
            session.redo,
            lambda: session.replace([]),
            lambda: session.replace(session.messages()),
            session.clear,
            lambda: session.summarize("x"),
            lambda: reader.trash("s"),
            lambda: reader.restore("s"),
            lambda: reader.purge("s"),
            lambda: reader.purge("s", forks="erase"),
        ):
            with pytest.raises(ReadOnly):
                call()
        assert [b.number for b in session.branches()] == [1]
        assert len(session.lineage()) == 1
        assert session.children() == []
        with pytest.raises(SessionNotFound):
            reader.session("new", create=False)
        written.append(Message.user("b"))
        assert session.head() == Head(1, 2)
        left_open.cancel()

    def test_an_empty_store_for_reading_only_refuses_writes(self) -> None:
        """Also if there is no store to read; nothing is created."""
        if self.persistent:
            self.open().close()
        reader = self.open(readonly=True)
        with pytest.raises(ReadOnly):
            reader.session("new")
        assert reader.latest() is None

    def test_a_healthy_store_verifies(self, store: Store, session: Session) -> None:
        """`verify` finds no damage, and `health` reports no problem."""
        with session.turn() as turn:
            turn.user("x" * 100_000)
            turn.assistant("y")
        assert store.verify() == []
        assert store.damage == []

    def test_stats_count(self, store: Store, session: Session) -> None:
        """Sessions, messages, turns, and turns that are open."""
        session.append(Message.user("a"), Message.user("b"))
        store.session("other")
        left_open = self.open_turn(session)
        left_open.user("c")
        stats = store.stats()
        assert (stats.sessions, stats.messages, stats.turns, stats.open_turns) == (2, 3, 1, 1)
        left_open.cancel()
        assert store.stats().open_turns == 0

    def test_stats_count_what_is_stored(self, store: Store, session: Session) -> None:
        """Abandoned messages count, shared ones count once, and trashed sessions are counted."""
        session.append(*(Message.user(str(n)) for n in range(4)))
        session.rewind(2)
        session.append(Message.user("other"))
        fork = session.fork()
        fork.append(Message.user("own"))
        store.trash(fork.id)
        stats = store.stats()
        assert (stats.sessions, stats.trashed, stats.branches, stats.messages) == (2, 1, 3, 6)
        store.restore(fork.id)
        assert store.stats().trashed == 0

    def test_stats_have_growth_and_spending_by_day(self, store: Store) -> None:
        """Sessions by the day they were created, usage by the day it was spent."""
        for day in range(3):
            session = store.create()
            session.append(*(Message.user("x") for _ in range(day)))
            for model in ("m", None):
                session.append(
                    Message.assistant("a", model=model, usage=Usage(day), cost=Decimal(1))
                )
            if day == 1:
                session.rewind(1)
                session.fork().append(Message.user("own"))
            self.clock.advance(86_400)
        session.append(Message.assistant("b", model="m", usage=Usage(7)))
        stats = self.reopen(store).stats()
        first = EPOCH.date() + timedelta(days=1_700_000_000 // 86_400)
        days = [first + timedelta(days=n) for n in range(4)]
        assert stats.growth == (
            Growth(days[0], 1, 2),
            Growth(days[1], 2, 4),
            Growth(days[2], 1, 5),
        )
        assert stats.days == (
            DayUsage(days[0], None, Usage(0), Decimal(1)),
            DayUsage(days[0], "m", Usage(0), Decimal(1)),
            DayUsage(days[1], None, Usage(1), Decimal(1)),
            DayUsage(days[1], "m", Usage(1), Decimal(1)),
            DayUsage(days[2], None, Usage(2), Decimal(1)),
            DayUsage(days[2], "m", Usage(2), Decimal(1)),
            DayUsage(days[3], "m", Usage(7), Decimal(0)),
        )
