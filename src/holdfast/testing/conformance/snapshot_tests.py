"""Reads of a snapshot: filters find what a plain rule finds, and overrides agree with the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import TypeVar

import msgspec

from holdfast.session import Session, number_of
from holdfast.storage.protocol import Backend, SessionField, Snapshot
from holdfast.storage.rows import BranchRow, SessionRow, sort_usage
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.titles import normalize_title
from holdfast.values import File, Message, Usage

T = TypeVar("T")
_TITLES = ("Word", "word", "WÖRD", "a title", None)
_DAYS = 3
_DAY_S = 86_400


class SnapshotTests(StoreFixtures):
    """What `Snapshot` says of its methods."""

    def test_sessions_are_found_by_each_field(self, store: Store) -> None:
        """In the trash or not, with stubs or without, in order, and no more than the limit."""
        rows = _fill(self, store)
        runs = {row.n: _run_ids(store, row) for row in rows}
        fields: dict[SessionField, Iterable[str | int]] = {
            "n": [row.n for row in rows] + [10**6],
            "id": [row.id for row in rows] + ["none"],
            "id_prefix": [row.id[:length] for row in rows for length in (1, 4, 16)],
            "key": ["key-0", "key-1", "shared", "none"],
            "title": ["Word", "word", "WORD", "a title"],
            "title_any_case": ["wORD", "WÖRD", "wörd", "A TITLE", "none"],
            "parent": [row.id for row in rows],
            "run_id": ["run-0", "run-1", "none"],
        }
        for by, values in fields.items():
            for value, trashed, stubs in product(values, (None, True, False), (True, False)):
                wanted = [
                    row.n
                    for row in rows
                    if _matches(row, by, value, runs[row.n])
                    and (trashed is None or trashed == (row.trashed_at is not None))
                    and (stubs or row.purged_at is None)
                ]
                found = self._find(store, by, value, trashed=trashed, stubs=stubs)
                assert found == wanted, (by, value, trashed, stubs)
                one = self._find(store, by, value, trashed=trashed, stubs=stubs, limit=1)
                assert one == wanted[:1], (by, value, trashed, stubs)

    def _find(
        self,
        store: Store,
        by: SessionField,
        value: str | int,
        *,
        trashed: bool | None,
        stubs: bool,
        limit: int | None = None,
    ) -> list[int]:
        found = store.backend.read(
            lambda at: at.sessions(by, value, trashed=trashed, stubs=stubs, limit=limit)
        )
        return [row.n for row in found]

    def test_branches_are_found_by_each_field(self, store: Store) -> None:
        """By number, by session, by the write that created them, by where they start."""
        rows = _fill(self, store)
        branches = _read(
            store, lambda at: [one for row in rows for one in at.branches(session=row.n)]
        )
        assert len({branch.n for branch in branches}) == len(branches)
        for branch in branches:
            self._check_branch(store, branch, branches)
        assert _read(store, lambda at: at.branches(n=10**6)) == []
        assert _read(store, lambda at: at.branches(session=rows[0].n, number=99)) == []
        assert _read(store, lambda at: at.branches(session=rows[0].n, token="none")) == []  # noqa: S106

    def _check_branch(self, store: Store, branch: BranchRow, known: list[BranchRow]) -> None:
        session = branch.session
        assert _read(store, lambda at: at.branches(n=branch.n)) == [branch]
        by_number = _read(store, lambda at: at.branches(session=session, number=branch.number))
        assert by_number == [branch]
        by_token = _read(store, lambda at: at.branches(session=session, token=branch.token))
        assert by_token == [
            one for one in known if (one.session, one.token) == (session, branch.token)
        ]
        forked = {one.parent for one in known if one.parent is not None}
        every = [one.n for one in known]
        assert _read(store, lambda at: sorted(at.forked_branches(every))) == sorted(forked)
        started = _read(store, lambda at: at.branches(parent=branch.n))
        assert {one.n for one in started} == {one.n for one in known if one.parent == branch.n}
        assert started == sorted(started, key=lambda one: one.created_at)
        own = [one.number for one in known if one.session == session]
        assert own == sorted(own)

    def test_turns_and_drafts_and_usage(self, store: Store, session: Session) -> None:
        """One turn by its number, or the newest ones; the beginning of a draft; usage by model."""
        for _ in range(_DAYS):
            with session.turn() as turn:
                turn.assistant("a", model="m", usage=Usage(5, 7))
                turn.assistant("b", model="other", usage=Usage(1, 1))
            self.clock.advance(_DAY_S)
        n = number_of(session)
        turns = _read(store, lambda at: at.turns(n))
        assert [turn.number for turn in turns] == [1, 2, 3]
        assert _read(store, lambda at: at.turns(n, limit=2)) == turns[1:]
        assert _read(store, lambda at: at.turns(n, number=2)) == [turns[1]]
        assert _read(store, lambda at: at.turns(n, number=9)) == []
        used = _read(store, lambda at: at.usage(session=n))
        assert used == sort_usage(used)
        of_model = [row for row in used if row.model == "m"]
        assert _read(store, lambda at: at.usage(model="m", limit=9)) == of_model[::-1]
        assert _read(store, lambda at: at.usage(model="m", limit=2)) == of_model[:0:-1]
        assert _read(store, lambda at: at.usage(model="none", limit=9)) == []
        turn = self.open_turn(session)
        draft = turn.stream()
        for _ in range(3):
            draft.write("x" * 5000)
        store.flush()
        chunks = _read(store, lambda at: at.draft(n, 4))
        assert len(chunks) > 1
        assert _read(store, lambda at: at.draft(n, 4, limit=1)) == chunks[:1]
        assert _read(store, lambda at: at.draft(n, 9, limit=1)) == []

    def test_what_a_backend_does_better_is_what_the_rule_derives(self, store: Store) -> None:
        """Each override returns what the derived method returns."""
        rows = _fill(self, store)
        store.backend.read(lambda at: _compare(at, rows))
        derived = msgspec.structs.replace(
            Backend.stats(store.backend), file_bytes=store.stats().file_bytes
        )
        assert store.stats() == derived
        assert store.verify() == Backend.verify(store.backend) == []


def _compare(at: Snapshot, rows: list[SessionRow]) -> None:
    ids = [row.id for row in rows]
    assert at.count_forks(ids) == Snapshot.count_forks(at, ids)
    branches = [branch for row in rows for branch in at.branches(session=row.n)]
    numbers = [branch.n for branch in branches] + [10**6]
    assert at.owners(numbers) == Snapshot.owners(at, numbers)
    titled = {owner.id: owner for owner in Snapshot.titled(at, ["word"])}
    found = at.titled(["word"])
    assert all(titled[owner.id] == owner for owner in found)
    assert {owner.id for owner in found} >= {
        owner.id for owner in titled.values() if "word" in (owner.title or "").lower()
    }
    names = ["m1", "m2", "m9", "none"]
    for row in rows:
        assert at.session(row.n) == Snapshot.session(at, row.n)
        assert at.children(row.id) == Snapshot.children(at, row.id)
        assert at.descendants(row.id) == Snapshot.descendants(at, row.id)
        assert at.session_size(row.n) == Snapshot.session_size(at, row.n)
    for some in ([row.n for row in rows], [rows[0].n], []):
        derived = Snapshot.stored_in_sessions(at, some, names)
        assert at.stored_in_sessions(some, names) == derived
    assert at.branches_below(numbers[::3]) == Snapshot.branches_below(at, numbers[::3])
    for branch in branches:
        assert at.branches_below([branch.n]) == Snapshot.branches_below(at, [branch.n])
        path = Snapshot.path(at, branch.n)
        assert at.path(branch.n) == path
        for last in (0, 1, branch.last_seq):
            assert at.newest_summary(path, last) == Snapshot.newest_summary(at, path, last)


def _read(store: Store, query: Callable[[Snapshot], list[T]]) -> list[T]:
    return store.backend.read(query)


def _fill(tests: StoreFixtures, store: Store) -> list[SessionRow]:
    """Make sessions of every kind; return the rows of all, by number, stubs included."""
    made = [
        store.create(key=f"key-{n}", title=title, scope=f"s{n % 2}")
        for n, title in enumerate(_TITLES)
    ]
    for at, session in enumerate(made):
        with session.turn(run_id=f"run-{at % 2}") as turn:
            turn.add(Message.user("one", id="m1"))
            turn.add(Message.user([File(data=b"file of %d" % at)], id="m2"))
        if at % 2:
            session.summarize("said")
        session.append(Message.user("x" * 70_000, id="m9"))
        tests.clock.advance(1)
    made[1].rewind("m1")
    made[1].append(Message.user("again", id="m3"))
    forks = [made[0].fork(title="word of a fork"), made[2].fork(at=1), made[4].fork()]
    forks[0].append(Message.user("own", id="m4"))
    others = [store.create(parent=made[0].id, relation="delegate")]
    for _ in range(2):
        others.append(store.session("shared", title="Word"))
        store.trash(others[-1].id)
    others.append(store.session("shared"))
    store.trash(made[3].id)
    store.trash(forks[2].id)
    store.purge(made[2].id)
    ids = [session.id for session in (*made, *forks, *others)]
    return store.backend.read(lambda at: _all_rows(at, ids))


def _all_rows(at: Snapshot, ids: Iterable[str]) -> list[SessionRow]:
    found = [row for id in ids for row in at.sessions("id", id, stubs=True)]
    return sorted(found, key=lambda row: row.n)


def _run_ids(store: Store, row: SessionRow) -> set[str | None]:
    return {turn.run_id for turn in _read(store, lambda at: at.turns(row.n))}


def _matches(row: SessionRow, by: SessionField, value: str | int, runs: set[str | None]) -> bool:
    if by == "id_prefix":
        return row.id.startswith(str(value))
    if by == "title_any_case":
        return row.title is not None and normalize_title(row.title) == normalize_title(str(value))
    if by == "run_id":
        return value in runs
    return bool(getattr(row, by) == value)
