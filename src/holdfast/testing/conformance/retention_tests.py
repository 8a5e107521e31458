"""Retention: a plan changes nothing, and applying it skips sessions changed since."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.aio import AsyncStore
from holdfast.errors import BadQuery, Invalid, ReadOnly
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, read_session, texts
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Message, Plan, RetentionReport

_DAY = 86_400
_SECRET = "the secret that must not be told"  # noqa: S105 - it is what a user said


class RetentionTests(StoreFixtures):
    """Promise 14: nothing is deleted because of its age unless the caller asks for it."""

    def advance_days(self, number: float) -> None:
        """Advance the clock by days."""
        self.clock.advance(number * _DAY)

    def create_aged(self, store: Store, *ages: float, scope: str | None = None) -> list[Session]:
        """Create sessions last written to this many days ago, the oldest first."""
        made = []
        for before, after in zip(ages, (*ages[1:], 0.0), strict=True):
            made.append(store.create(scope=scope, title=f"{before} days"))
            made[-1].append(*parse_conversation("u a"))
            self.advance_days(before - after)
        return made

    def test_nothing_goes_without_a_rule(self, store: Store) -> None:
        """A plan without a rule is empty; a scope alone is no rule."""
        self.create_aged(store, 4000, 10, scope="s")
        for plan in (store.retention(), store.retention(scope="s")):
            assert (plan.items, plan.spared, plan.frees, plan.keeps) == ((), (), 0, None)
            assert store.apply(plan).trashed == ()
        assert len(store.sessions()) == 2

    def test_a_plan_says_what_and_why_and_changes_nothing(self, store: Store) -> None:
        """Which sessions go, their last activity, and about how much space that frees."""
        old, _ = self.create_aged(store, 40, 10)
        old.append(Message.user([File(data=b"x" * 50_000)]))
        self.advance_days(35)
        before = [read_session(old), store.sessions(), store.stats()]
        plan = store.retention(idle="30d")
        assert len(plan) == 2
        [item] = [item for item in plan if item.session_id == old.id]
        assert (item.action, item.title, item.messages) == ("trash", "40 days", 3)
        assert item.why == "idle for 35 days"
        assert (item.last_activity, item.head) == (old.info().updated_at, old.head())
        assert 50_000 < item.bytes < 52_000
        assert plan.frees == sum(item.bytes for item in plan.items)
        assert (plan.trash, plan.purge) == (plan.items, ())
        assert [read_session(old), store.sessions(), store.stats()] == before

    def test_applying_puts_in_the_trash(self, store: Store) -> None:
        """Each can be restored unchanged."""
        old, young = self.create_aged(store, 40, 10)
        said = texts(old)
        report = store.apply(store.retention(idle=timedelta(days=30)))
        assert (report.trashed, report.purged, report.spared) == ((old.id,), (), ())
        assert (report.archive, report.pending, report.scan, report.frees) == (None, (), None, 0)
        store = self.reopen(store)
        assert [info.id for info in store.sessions()] == [young.id]
        assert [info.id for info in store.sessions(trashed=True)] == [old.id]
        store.restore(old.id)
        assert texts(store.get(old.id)) == said

    def test_age_counts_from_the_last_activity(self, store: Store) -> None:
        """A session created long ago that is still written to is not old."""
        (session,) = self.create_aged(store, 100)
        session.append(Message.user("still here"))
        self.advance_days(20)
        assert store.retention(older_than="90d").items == ()
        assert store.retention(idle="21d").items == ()
        assert len(store.retention(idle="20d")) == 1

    def test_older_than_with_idle_is_about_the_beginning(self, store: Store) -> None:
        """Created 90 days ago and idle for 30: both must hold."""
        long, *_ = self.create_aged(store, 100, 60, 10)
        long.append(Message.user("back"))
        self.advance_days(40)
        plan = store.retention(older_than="90d", idle="30d")
        assert {item.title for item in plan} == {"100 days", "60 days"}
        assert {item.title for item in store.retention(older_than="90d")} == {"60 days"}

    def test_the_most_recent_are_kept(self, store: Store) -> None:
        """By activity, whatever their age; the plan lists them as spared."""
        a, b, c = self.create_aged(store, 50, 40, 30)
        a.append(Message.user("again"))
        self.advance_days(20)
        plan = store.retention(idle="1d", keep_last=2)
        assert [item.session_id for item in plan] == [b.id]
        assert {spared.session_id for spared in plan.spared} == {a.id, c.id}
        assert {spared.why for spared in plan.spared} == {"it is among the 2 most recent"}

    def test_only_the_most_recent_are_kept(self, store: Store) -> None:
        """Without another rule all other sessions go."""
        a, b, _ = self.create_aged(store, 3, 2, 1)
        plan = store.retention(keep_last=1)
        assert [item.session_id for item in plan] == [a.id, b.id]
        assert {item.why for item in plan} == {"not the most recent"}

    def test_only_the_scope_is_considered(self, store: Store) -> None:
        """Only sessions of the scope count, also for the most recent and for the size."""
        (one,) = self.create_aged(store, 50, scope="one")
        self.create_aged(store, 50, scope="two")
        self.create_aged(store, 50)
        assert [item.session_id for item in store.retention(idle="1d", scope="one")] == [one.id]
        assert store.retention(keep_last=1, scope="one").items == ()
        plan = store.retention(max_bytes=0, scope="one")
        assert [item.session_id for item in plan] == [one.id]
        assert plan.keeps == 0

    def test_the_oldest_go_until_the_rest_is_small_enough(self, store: Store) -> None:
        """The oldest go until the size fits, and no more."""
        for age in (4, 3, 2, 1):
            (session,) = self.create_aged(store, age)
            session.append(Message.user("x" * 10_000))
        assert store.retention(max_bytes=1_000_000).items == ()
        plan = store.retention(max_bytes=25_000)
        assert [item.title for item in plan] == ["4 days", "3 days"]
        assert plan.keeps is not None
        assert 20_000 < plan.keeps <= 25_000
        assert 20_000 < plan.frees < 22_000

    def test_both_rules_together(self, store: Store) -> None:
        """What is too old goes first, then the oldest of the rest."""
        sessions = self.create_aged(store, 40, 30, 20, 10)
        for session in sessions:
            session.append(Message.user("x" * 10_000))
        self.advance_days(1)
        sessions[0].append(Message.user("now"))
        plan = store.retention(idle=timedelta(hours=1), max_bytes=10**9)
        assert len(plan) == 3
        assert store.retention(idle="9y", max_bytes=25_000).trash[0].title == "30 days"

    def test_pinned_and_open_ones_stay(self, store: Store) -> None:
        """The plan lists them as spared."""
        pinned, opened, old = self.create_aged(store, 30, 20, 10)
        pinned.update(pinned=True)
        turn = self.open_turn(opened)
        turn.user("working")
        self.advance_days(100)
        plan = store.retention(idle="1d", max_bytes=0)
        assert [item.session_id for item in plan] == [old.id]
        reasons = {spared.session_id: spared.why for spared in plan.spared}
        assert reasons == {pinned.id: "it is pinned", opened.id: "a turn is open in it"}
        assert store.apply(plan).trashed == (old.id,)

    def test_what_others_were_split_off_stays(self, store: Store) -> None:
        """A parent stays as long as its forks; a delegate shares nothing, and keeps no parent."""
        parent, lonely = self.create_aged(store, 50, 50)
        helper = store.create(parent=lonely, relation="delegate")
        self.advance_days(50)
        fork = parent.fork()
        fork.append(Message.user("young"))
        helper.append(Message.user("young"))
        plan = store.retention(idle="40d")
        assert [item.session_id for item in plan] == [lonely.id]
        assert [spared.session_id for spared in plan.spared] == [parent.id]
        assert fork.id in plan.spared[0].why
        self.advance_days(50)
        report = store.apply(store.retention(idle="40d"))
        assert set(report.trashed) == {parent.id, fork.id, lonely.id, helper.id}
        assert report.trashed.index(fork.id) < report.trashed.index(parent.id)

    _CHANGES: dict[str, tuple[Callable[[Store, Session], object], str]] = {  # noqa: RUF012
        "append": (lambda _, s: s.append(Message.user("x")), "it was written to since"),
        "undo": (lambda _, s: s.undo(), "it was written to since"),
        "turn": (lambda _, s: s.turn().__enter__(), "it was written to since"),
        "pin": (lambda _, s: s.update(pinned=True), "it is pinned"),
        "fork": (lambda _, s: s.fork(), "was split off it"),
        "trash": (lambda store, s: store.trash(s.id), "it is in the trash already"),
        "purge": (lambda store, s: store.purge(s.id), "it is not there any more"),
    }

    @pytest.mark.parametrize("archived", [False, True])
    @pytest.mark.parametrize("change", _CHANGES)
    def test_what_changed_since_the_plan_is_spared(
        self,
        store: Store,
        tmp_path: Path,
        change: str,
        archived: bool,  # noqa: FBT001
    ) -> None:
        """The report gives the reason; the others go."""
        changed, other = self.create_aged(store, 50, 50)
        plan = store.retention(idle="1d")
        do, why = self._CHANGES[change]
        do(store, changed)
        report = store.apply(plan, archive=tmp_path / "old.jsonl" if archived else None)
        assert report.trashed == (other.id,)
        [spared] = report.spared
        assert spared.session_id == changed.id
        assert why in spared.why or (archived and spared.why == "it changed while it was archived")
        if change not in {"trash", "purge"}:
            assert store.get(changed.id).info().trashed is False

    def test_a_plan_can_be_applied_twice(self, store: Store) -> None:
        """The second time there is nothing left to do."""
        (old,) = self.create_aged(store, 50)
        plan = store.retention(idle="1d")
        assert store.apply(plan).trashed == (old.id,)
        assert store.apply(plan).trashed == ()

    # --------------------------------------------------------------------------------- the trash

    def test_the_trash_is_emptied_only_if_asked(self, store: Store) -> None:
        """After the given time, counted from when a session was trashed."""
        old, young = self.create_aged(store, 300, 200)
        store.trash(old.id)
        self.advance_days(20)
        store.trash(young.id)
        self.advance_days(20)
        for rules in ({"idle": "1d"}, {"keep_last": 1}, {"max_bytes": 0}, {"empty_trash": "41d"}):
            assert store.retention(**rules).items == ()
        plan = store.retention(empty_trash="30d")
        assert [(item.session_id, item.action) for item in plan] == [(old.id, "purge")]
        assert plan.items[0].why == "in the trash for 40 days"
        report = store.apply(plan)
        assert (report.purged, report.trashed, report.pending) == ((old.id,), (), ())
        assert report.frees == plan.frees > 0
        assert [info.id for info in store.sessions(trashed=True)] == [young.id]

    def test_emptying_erases_all_with_one_proof(self, store: Store) -> None:
        """All their messages are erased, and one scan proves it."""
        for number in range(5):
            session = store.create()
            session.append(Message.user(f"{_SECRET} {number}"))
            store.trash(session.id)
        self.advance_days(1)
        scrubs = _count_wipes(store)
        report = store.apply(store.retention(empty_trash="1d"))
        assert len(report.purged) == 5
        assert len(scrubs) == 1
        self.check_proof(report.scan)
        assert report.scan is not None
        assert report.scan.fragments >= 5
        assert store.stats().messages == 0

    def test_in_the_trash_forks_keep_their_parents(self, store: Store) -> None:
        """Also a fork that was trashed more recently; later both go together."""
        parent, *_ = self.create_aged(store, 50)
        fork = parent.fork()
        store.trash(parent.id)
        self.advance_days(10)
        store.trash(fork.id)
        self.advance_days(10)
        plan = store.retention(empty_trash="15d")
        assert plan.items == ()
        assert [spared.session_id for spared in plan.spared] == [parent.id]
        report = store.apply(store.retention(empty_trash="5d"))
        assert report.purged == (fork.id, parent.id)
        assert store.stats().branches == 0

    def test_what_was_restored_since_is_not_erased(self, store: Store) -> None:
        """Also if it was trashed again."""
        one, two, pinned = self.create_aged(store, 50, 50, 50)
        for session in (one, two, pinned):
            store.trash(session.id)
        self.advance_days(10)
        plan = store.retention(empty_trash="5d")
        store.restore(one.id)
        store.restore(two.id)
        store.trash(two.id)
        pinned.update(pinned=True)
        report = store.apply(plan)
        assert report.purged == ()
        assert {spared.why for spared in report.spared} == {
            "it was restored",
            "it is in the trash already",
            "it is pinned",
        }
        assert texts(one) == texts(two) == ["u1", "a2"]
        assert store.retention(empty_trash="0h").spared[0].why == "it is pinned"

    # ------------------------------------------------------------------------------- the archive

    def test_an_archive_is_written_first(self, store: Store, tmp_path: Path) -> None:
        """It contains every session that goes, unchanged; another store can import it."""
        one, two = self.create_aged(store, 50, 40)
        one.append(Message.user(["key sk-ant-api03-0123456789abcdefghij", File(data=b"f" * 99)]))
        store.trash(two.id)
        self.advance_days(1)
        said = [texts(one), texts(two)]
        plan = store.retention(idle="1d", empty_trash="1d")
        to = tmp_path / "old.jsonl"
        report = store.apply(plan, archive=to)
        assert report.archive is not None
        assert (report.archive.sessions, report.archive.path) == (2, str(to))
        assert (report.trashed, report.purged) == ((one.id,), (two.id,))
        store.purge(one.id)
        assert store.import_(to, trust=True).sessions == 2
        assert [texts(store.get(id)) for id in (one.id, two.id)] == said

    def test_an_archive_that_cannot_be_written_stops_it(self, store: Store, tmp_path: Path) -> None:
        """Nothing is deleted then; an existing file is not overwritten."""
        self.create_aged(store, 50)
        there = tmp_path / "old.jsonl"
        there.write_text("mine")
        with pytest.raises(Invalid):
            store.apply(store.retention(idle="1d"), archive=there)
        assert there.read_text() == "mine"
        assert len(store.sessions()) == 1

    def test_nothing_to_go_makes_no_archive(self, store: Store, tmp_path: Path) -> None:
        """An empty file could be mistaken for an archive."""
        report = store.apply(store.retention(idle="1d"), archive=tmp_path / "old.jsonl")
        assert report.archive is None
        assert not (tmp_path / "old.jsonl").exists()

    # --------------------------------------------------------------------------------- the rest

    @pytest.mark.parametrize(
        ("rule", "value"),
        [
            *[
                (rule, value)
                for rule in ("older_than", "idle", "empty_trash")
                for value in ("", "30", "d", "-1d", "1.5d", "30 days", 30, timedelta(-1), b"1d")
            ],
            *[("keep_last", value) for value in (0, -1, 1.5, "1", True)],
            *[("max_bytes", value) for value in (-1, 1.5, "1MB", True)],
            ("scope", 5),
        ],
    )
    def test_rules_that_make_no_sense(self, store: Store, rule: str, value: Any) -> None:  # noqa: ANN401
        """`BadQuery` names the rule."""
        with pytest.raises(BadQuery, match=rule):
            store.retention(**{rule: value})

    def test_a_plan_that_is_none(self, store: Store) -> None:
        """`BadQuery`."""
        with pytest.raises(BadQuery, match="plan"):
            store.apply([])  # type: ignore[arg-type]

    def test_a_readonly_store_plans_and_does_not_apply(self, store: Store) -> None:
        """`ReadOnly`, and nothing is changed."""
        self.need_persistence()
        (old,) = self.create_aged(store, 50)
        reader = self.open(readonly=True)
        plan = reader.retention(idle="1d")
        assert [item.session_id for item in plan] == [old.id]
        with pytest.raises(ReadOnly):
            reader.apply(plan)

    def test_another_tenants_sessions_are_not_meant(self) -> None:
        """Neither a rule nor another tenant's plan reaches them."""
        self.need_persistence()
        mine, theirs = self.open(tenant="A"), self.open(tenant="B")
        self.create_aged(mine, 50)
        self.create_aged(theirs, 50)
        plan = mine.retention(idle="1d", max_bytes=0)
        assert len(plan) == 1
        assert theirs.apply(plan).trashed == ()
        assert len(theirs.sessions()) == len(mine.sessions()) == 1

    def test_progress_is_reported(self, store: Store) -> None:
        """The number of sessions done, and the total."""
        self.create_aged(store, 50, 40, 30)
        calls: list[tuple[int, int]] = []
        plan = store.retention(idle="1d")
        store.apply(plan, progress=lambda done, total: calls.append((done, total)))
        assert calls == [(1, 3), (2, 3), (3, 3)]

    def test_the_twin_plans_and_applies(self, store: Store) -> None:
        """The async twin returns the same values."""
        (old,) = self.create_aged(store, 50)

        async def work() -> None:
            twin = AsyncStore(store)
            plan = await twin.retention(older_than="1d", keep_last=None)
            assert isinstance(plan, Plan)
            report = await twin.apply(plan)
            assert isinstance(report, RetentionReport)
            assert report.trashed == (old.id,)

        asyncio.run(work())


def _count_wipes(store: Store) -> list[None]:
    """Count how often the store wipes bytes from now on."""
    counted: list[None] = []
    wipe = store.backend.wipe

    def scrub() -> tuple[str, ...]:
        counted.append(None)
        return wipe()

    store.backend.wipe = scrub  # type: ignore[method-assign]
    return counted
