"""Dropping and purging records: really gone, and nothing that another session needs."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import BadMessage, BadQuery, Conflict
from holdfast.operations import record_drop
from holdfast.operations.purge_steps import MAX_STEP_MESSAGES
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.testing.conformance.records_tests import data_of, state
from holdfast.values import DropReport, File, Forks, Message, Record

_FILE = b"a file" * 1000


def counts(report: DropReport) -> tuple[int, int]:
    """Return how many records were erased, and how many a fork needs."""
    return report.records, report.kept


class DropTests(StoreFixtures):
    """`Session.drop`."""

    def test_all_of_a_kind_are_dropped(self, store: Store, session: Session) -> None:
        """On all branches; other kinds, messages and the head stay."""
        session.append(Message.user("a"), state(1), Message.user("b"), state(2, key="k"))
        session.append(Record("other", data=3))
        session.rewind(1)
        session.append(state(4))
        head, info = session.head(), session.info()
        assert counts(session.drop(kind="state")) == (3, 0)
        session = self.reopen(store).session("the session")
        assert data_of(session.records(all_branches=True)) == [3]
        assert (session.head(), session.info().messages) == (head, info.messages)
        assert counts(session.drop(kind="state")) == (0, 0)
        session.append(state(5))
        assert data_of(session.records()) == [5]

    def test_those_of_some_keys_are_dropped(self, session: Session) -> None:
        """`None` means those without a key."""
        session.append(state(1), state(2, key="a"), state(3, key="b"), state(4, key="a"))
        assert counts(session.drop(kind="state", keys=["a", "unknown", "a"])) == (2, 0)
        assert data_of(session.records()) == [1, 3]
        assert counts(session.drop(kind="state", keys=[None])) == (1, 0)
        assert counts(session.drop(kind="state", keys=[])) == (0, 0)
        assert data_of(session.records()) == [3]

    def test_the_newest_of_the_history_are_kept(self, session: Session) -> None:
        """Not those of a branch that was abandoned, however new they are."""
        session.append(Message.user("a"), *map(state, range(4)), Message.user("b"), state("cut"))
        session.rewind(1)
        session.append(state(4))
        assert counts(session.drop(kind="state", keep=2)) == (4, 0)
        assert data_of(session.records(all_branches=True)) == [3, 4]
        assert counts(session.drop(kind="state", keep=2)) == (0, 0)
        assert counts(session.drop(kind="state", keep=1)) == (1, 0)
        assert data_of(session.records()) == [4]

    def test_the_newest_of_several_keys_are_kept_together(self, session: Session) -> None:
        """`keep` counts the records of all keys that are dropped."""
        session.append(*(state(n, key="ab"[n % 2]) for n in range(6)), state("c", key="c"))
        assert counts(session.drop(kind="state", keys=["a", "b"], keep=3)) == (3, 0)
        assert data_of(session.records()) == [3, 4, 5, "c"]

    def test_what_a_fork_runs_through_stays(self, store: Store, session: Session) -> None:
        """Also one in the trash; when the fork is purged it can be dropped."""
        session.append(Message.user("a"), state(1), state(2), Message.user("b"), state(3))
        fork = session.fork(1)
        session.append(state(4))
        store.trash(fork.id)
        assert counts(session.drop(kind="state")) == (2, 2)
        store.restore(fork.id)
        assert data_of(fork.records()) == [1, 2]
        assert data_of(session.records()) == [1, 2]
        store.purge(fork.id)
        assert counts(session.drop(kind="state")) == (2, 0)
        assert session.records() == []

    def test_what_was_inherited_stays(self, store: Store, session: Session) -> None:
        """Also when the session that stored it is purged; a fork drops what it stored itself."""
        session.append(Message.user("a"), state(1))
        fork = session.fork(entries=[state(2)])
        assert counts(fork.drop(kind="state")) == (1, 0)
        assert data_of(fork.records()) == [1]
        store.purge(session.id)
        assert counts(fork.drop(kind="state")) == (0, 0)
        assert data_of(fork.records()) == [1]

    def test_a_fork_of_an_abandoned_branch_keeps_what_leads_to_it(
        self, store: Store, session: Session
    ) -> None:
        """The whole way back from it, through branches that have records alone."""
        session.append(Message.user("a"), state(1), Message.user("b"), state(2))
        session.rewind(1)
        session.append(state(3))
        fork = session.fork()
        session.rewind(0)
        session.append(state(4))
        assert counts(session.drop(kind="state")) == (2, 2)
        assert data_of(fork.records()) == [1, 3]
        assert counts(fork.drop(kind="state")) == (0, 0)
        last = fork.fork()
        store.purge(fork.id)
        assert counts(session.drop(kind="state")) == (0, 2)
        assert data_of(last.records()) == [1, 3]

    def test_a_dropped_number_is_not_assigned_again(self, session: Session) -> None:
        """A fork that had the newest one does not get a later one instead."""
        session.append(Message.user("a"), state(1))
        fork = session.fork()
        fork.append(state(2))
        fork.drop(kind="state")
        fork.append(state(3))
        later = fork.fork()
        fork.drop(kind="state")
        fork.append(state(4))
        assert data_of(later.records()) == [1, 3]
        assert data_of(fork.records()) == [1, 3, 4]

    def test_blobs_go_with_the_last_that_refers_to_them(
        self, store: Store, session: Session
    ) -> None:
        """A message, another record or a record of the store keeps one."""
        file = File(data=_FILE)
        session.append(state(1, files={"f": file}), state("x" * 100_000))
        session.append(Message.user([file]), Record("other", files={"f": file}))
        store.put_record(Record("shared", files={"f": file}))
        report = session.drop(kind="state")
        assert (report.records, report.blobs) == (2, 1)
        assert report.blob_bytes > 100_000
        session.drop(kind="other")
        assert store.stats().blobs == 1
        session.erase(1)
        assert store.stats().blobs == 1
        store.put_record(Record("shared"))
        assert store.stats().blobs == 0
        assert store.verify() == []

    def test_an_open_turn_is_not_disturbed(self, session: Session) -> None:
        """State may be dropped while another holder works."""
        with session.turn() as turn:
            turn.record("state", 1)
            assert counts(session.drop(kind="state")) == (1, 0)
            turn.record("state", 2)
        assert data_of(session.records()) == [2]

    def test_after_a_drop_there_is_none(self, session: Session) -> None:
        """What `after` compares with is what is there."""
        one = state(1)
        session.append(one)
        session.drop(kind="state")
        with pytest.raises(Conflict):
            session.append(state(2, after=one.id))
        session.append(state(2, after=None))

    def test_erasing_a_message_leaves_the_state_behind_it(self, session: Session) -> None:
        """That is dropped by itself."""
        session.append(Message.user("a"), state(1))
        session.erase(1)
        assert data_of(session.records()) == [1]

    def test_many_are_dropped_in_steps(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each step goes on where the last one ended; what must stay is stepped over."""
        monkeypatch.setattr(record_drop, "MAX_STEP_RECORDS", 3)
        session.append(Message.user("a"), *(state(n, key="ab"[n % 2]) for n in range(10)))
        fork = session.fork()
        session.append(*(state(n, key="ab"[n % 2]) for n in range(10, 20)))
        assert counts(session.drop(kind="state", keys=["a", "b"], keep=4)) == (6, 10)
        assert data_of(session.records()) == [*range(10), 16, 17, 18, 19]
        assert data_of(fork.records()) == list(range(10))
        assert counts(session.drop(kind="state")) == (4, 10)

    def test_a_drop_that_is_not_valid_is_refused_by_field(self, session: Session) -> None:
        """Nothing is dropped."""
        session.append(state(1))
        calls: dict[str, list[Callable[[], object]]] = {
            "kind": [lambda: session.drop(kind=""), lambda: session.drop(kind=1)],  # type: ignore[arg-type]
            "keys": [
                lambda: session.drop(kind="state", keys="key"),
                lambda: session.drop(kind="state", keys=[""]),
                lambda: session.drop(kind="state", keys=1),  # type: ignore[arg-type]
            ],
            "keep": [
                lambda: session.drop(kind="state", keep=0),
                lambda: session.drop(kind="state", keep=-1),
                lambda: session.drop(kind="state", keep=True),
            ],
        }
        for field, several in calls.items():
            for call in several:
                with pytest.raises((BadQuery, BadMessage), match=rf"^{field}: "):
                    call()
        assert data_of(session.records()) == [1]


class PurgeRecordTests(StoreFixtures):
    """`Store.purge` of sessions with records."""

    def test_a_purge_erases_the_records(self, store: Store, session: Session) -> None:
        """On all branches, with their blobs; other sessions and records of the store stay."""
        session.append(Message.user("a"), state(1, files={"f": File(data=_FILE)}), state(2))
        session.rewind(0)
        session.append(state("text that is searched for " * 10))
        store.put_record(Record("shared", data=1))
        other = store.create()
        other.append(state(3))
        report = store.purge(session.id)
        assert (report.records, report.messages, report.blobs) == (3, 1, 1)
        self.check_proof(report.scan)
        store = self.reopen(store)
        assert data_of(store.get(other.id).records()) == [3]
        assert store.record("shared") is not None
        assert store.stats().blobs == 0

    def test_forks_keep_the_state_they_share(self, store: Store, session: Session) -> None:
        """Up to the last record they have, and no further; with the last fork it is gone."""
        session.append(Message.user("a"), state(1), state(2), Message.user("b"), state(3))
        fork = session.fork(1)
        session.append(state(4))
        session.rewind(1)
        session.append(state(5))
        second = session.fork()
        report = store.purge(session.id)
        assert (report.records, report.messages, report.kept) == (2, 1, 1)
        store = self.reopen(store)
        fork, second = store.get(fork.id), store.get(second.id)
        assert data_of(fork.records()) == [1, 2]
        assert data_of(second.records()) == [1, 2, 5]
        assert store.purge(second.id).records == 1
        assert data_of(fork.records()) == [1, 2]
        fork.append(state(6))
        assert data_of(fork.fork().records()) == [1, 2, 6]

    def test_the_last_fork_takes_what_was_kept_for_it(self, store: Store, session: Session) -> None:
        """Through a chain of forks that have records alone."""
        session.append(state(1))
        chain = [session]
        for n in range(2, 5):
            chain.append(chain[-1].fork())
            chain[-1].append(state(n))
        for one in chain[:-1]:
            assert store.purge(one.id).records == 0
        last = store.get(chain[-1].id)
        assert data_of(last.records()) == [1, 2, 3, 4]
        assert store.purge(last.id).records == 4
        assert (store.stats().branches, store.stats().sessions) == (0, 0)

    def test_shared_state_is_erased_with_forks(self, store: Store, session: Session) -> None:
        """With `forks="erase"`, also what forks share; what is theirs stays."""
        session.append(Message.user("a"), state(1, files={"f": File(data=_FILE)}))
        fork = session.fork()
        fork.append(state(2))
        report = store.purge(session.id, forks="erase")
        assert (report.records, report.blobs, report.kept) == (1, 1, 0)
        self.check_proof(report.scan)
        store = self.reopen(store)
        fork = store.get(fork.id)
        assert data_of(fork.records()) == [2]
        assert [m.status for m in fork.messages()] == ["erased"]
        assert data_of(fork.fork().records()) == [2]
        assert store.stats().blobs == 0

    @pytest.mark.parametrize("more", [0, 600])
    def test_state_that_a_fork_placed_again_is_erased(
        self, store: Store, session: Session, more: int
    ) -> None:
        """With `forks="erase"`, in one transaction or in steps; what is the fork's own stays."""
        files = {"f": File(data=_FILE)}
        session.append(Message.user("a"), state(1, files=files), Message.user("b"), state(2))
        fork = session.fork(entries=[state("own")])
        session.append(*(state(n) for n in range(more)))
        fork.amend(1, "amended")
        assert data_of(fork.records()) == [1, 2, "own"]
        report = store.purge(session.id, forks="erase")
        assert (report.records, report.blobs) == (4 + more, 1)
        assert data_of(fork.records(all_branches=True)) == ["own", "own"]
        fork.append(state("later"))
        assert data_of(fork.records()) == ["own", "later"]
        assert store.verify() == []

    @pytest.mark.parametrize("forks", ["keep", "erase"])
    def test_a_purge_of_many_records_in_steps(
        self, store: Store, session: Session, forks: Forks
    ) -> None:
        """More than one transaction may erase, behind one message."""
        many = MAX_STEP_MESSAGES + 10
        session.append(Message.user("a"), *map(state, range(3)))
        fork = session.fork()
        session.append(*map(state, range(many)), Message.user("b"), state("end"))
        report = store.purge(session.id, forks=forks)
        kept = [0, 1, 2] if forks == "keep" else []
        assert report.records == many + 4 - len(kept)
        assert data_of(fork.records()) == kept
        assert store.finish_purges() == 0
        assert store.purge(fork.id).records == len(kept)
        assert store.stats().branches == 0

    def test_retention_counts_the_bytes_of_records(self, store: Store, session: Session) -> None:
        """A session is as large as its state is, too."""
        session.append(state("x" * 10_000, files={"f": File(data=b"y" * 5_000)}))
        (item,) = store.retention(max_bytes=1).items
        assert item.bytes > 15_000
        assert store.retention(max_bytes=100_000).items == ()
