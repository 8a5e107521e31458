"""The bytes of purged data, when the purge is interrupted or a reader is active.

A purge commits first; only then are the bytes wiped that the engine no longer uses: in the log, and
in the unused middle of pages. If it is killed in between, the data is purged, but its bytes are
still in the files. They are wiped when the store is next opened, or by the next purge of anything.
A reader of an earlier snapshot loses nothing.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import SessionNotFound, StorageError
from holdfast.operations import deletion
from holdfast.proof.checker import digest
from holdfast.session import number_of
from holdfast.storage.sqlite import location, wipe
from holdfast.testing.faults import (
    CrashState,
    FailingDisk,
    Recording,
    Trace,
    explore,
    state_named,
)
from holdfast.testing.faults.failing_disk import FileOperation
from holdfast.testing.faults.trace import Begin, Sync, Write
from tests.crash._bytes import (
    CANARY,
    OPERATIONS,
    SOME,
    at_every_place,
    die,
    filled_gaps,
    holding,
    is_one_in,
    long_or_short,
    reading,
    recorded,
)
from tests.crash._facts import DATABASE, open_store
from tests.crash._nursery import Nursery

BEFORE_THE_WIPING = """
import os, signal, sys, holdfast
from holdfast.session import number_of
from holdfast.operations.deletion import purge
store = holdfast.open(sys.argv[1])
for key in sys.argv[2:]:
    session = store.session(key, create=False)
    session.append(holdfast.Message.user("one CANARY more"))
    store.backend.write(purge(number_of(session), session.id, forks="keep"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A store in which pages were split and joined while a talk with canaries grew among others.

    What was moved to another page then leaves a copy in the unused middle of the first. Whether it
    does hangs on the sizes of all messages, so several orders are tried.
    """
    for seed in range(60):
        path = tmp_path_factory.mktemp("base") / DATABASE
        _talk(path, random.Random(seed))
        tried = tmp_path_factory.mktemp("tried") / DATABASE
        shutil.copy(path, tried)
        die(nursery, BEFORE_THE_WIPING, tried, "talk-2", "canary-fork-free")
        _empty_log(tried)
        if DATABASE in holding(tried):
            return path
    pytest.fail("no order leaves a copy")


def _talk(path: Path, chance: random.Random) -> None:
    with open_store(path, durability="process") as store:
        sessions = [store.session(f"talk-{number}") for number in range(6)]
        for number in range(400):
            of = chance.randrange(len(sessions))
            word = f"{'CANARY' if of == 2 else 'plain'}{number} "
            sessions[of].append(Message.user(long_or_short(word, chance), id=word))
            if chance.random() < 0.05:
                sessions[of].undo()
        store.session("canary-fork-free").append(Message.user("CANARY sings"))


@pytest.fixture
def path(base: Path, tmp_path: Path) -> Path:
    """That store, to be changed."""
    return Path(shutil.copy(base, tmp_path / DATABASE))


def _empty_log(path: Path) -> None:
    """Copy the log into the file, as the engine does by itself sooner or later."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _must_be_purged(store: Store) -> None:
    with pytest.raises(SessionNotFound):
        store.get("talk-2")
    assert len(store.sessions().items) >= 5
    assert store.verify() == []
    assert all(
        found.text.startswith("plain")
        for info in store.sessions()
        for found in store.get(info.id).messages()
        if info.key in {"talk-0", "talk-1", "talk-3", "talk-4", "talk-5"}
    )


def test_a_purge_wipes_what_the_engine_leaves(path: Path) -> None:
    """Nothing is pending, and no file has a canary, while the store is open and afterwards."""
    assert holding(path) == {DATABASE}
    with holdfast.open(path) as store:
        for key in ("talk-2", "canary-fork-free"):
            assert store.purge(key).pending == ()
        assert holding(path) == set()
        _must_be_purged(store)
    assert holding(path) == set()


def _killed_before_it_wiped(nursery: Nursery, path: Path) -> None:
    """Leave a store that was purged, with canaries in the log, in the pages and in a copy."""
    copy = path.with_name(f"{DATABASE}.before-2")
    copy.write_bytes(path.read_bytes())
    die(nursery, BEFORE_THE_WIPING, path, "talk-2", "canary-fork-free")
    assert f"{DATABASE}-wal" in holding(path), "nothing was left to wipe in the log"
    _empty_log(path)
    assert holding(path) == {DATABASE, copy.name}, "nothing was left to wipe in the pages"


def test_a_purge_that_was_killed_before_it_wiped_is_finished_at_the_next_opening(
    nursery: Nursery, path: Path
) -> None:
    """The canaries are in the files until the store is next opened."""
    _killed_before_it_wiped(nursery, path)
    with holdfast.open(path) as store:
        assert holding(path) == set()
        _must_be_purged(store)
    assert holding(path) == set()


def test_a_readonly_store_wipes_nothing(nursery: Nursery, path: Path) -> None:
    """Pending bytes stay pending, and the talk is purged all the same."""
    _killed_before_it_wiped(nursery, path)
    before = holding(path)
    with holdfast.open(path, readonly=True) as store:
        _must_be_purged(store)
    assert holding(path) == before


def test_a_purge_that_was_killed_before_it_wiped_is_finished_by_the_next_purge(
    nursery: Nursery, path: Path
) -> None:
    """Another process has the store open all the time; its next purge wipes for both."""
    with holdfast.open(path) as store:
        die(nursery, BEFORE_THE_WIPING, path, "talk-2", "canary-fork-free")
        assert holding(path), "nothing was left to wipe"
        _must_be_purged(store)
        assert store.purge("talk-5").pending == ()
        assert holding(path) == set()
        assert len(store.sessions().items) == 4
        assert store.verify() == []


_KILLED = """
import os, signal, sys, holdfast
from holdfast.storage.sqlite import wipe
setattr(wipe, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
holdfast.open(sys.argv[1])
"""


@pytest.mark.parametrize(
    "at", ["_truncate_wal", "_dirty_pages", "_wipe_gaps", "_delete_migration_backups"]
)
def test_killed_while_it_wipes(nursery: Nursery, path: Path, at: str) -> None:
    """Remaining bytes are wiped at the next opening."""
    _killed_before_it_wiped(nursery, path)
    die(nursery, _KILLED, path, at)
    with holdfast.open(path) as store:
        assert holding(path) == set()
        _must_be_purged(store)


# ------------------------------------------------------------------------------ while others write


def _between_finding_and_wiping(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call a function once, when the pages to wipe were found and none is wiped yet."""
    find, waiting = wipe._dirty_pages, [act]  # noqa: SLF001 - there is no other way in between

    def found(connection: apsw.Connection, path: Path, vfs: str | None) -> Iterator[int]:
        pages = list(find(connection, path, vfs))
        if waiting:
            waiting.pop()()
        return iter(pages)

    monkeypatch.setattr(wipe, "_dirty_pages", found)


def test_a_commit_between_finding_and_wiping_does_not_bring_bytes_back(
    nursery: Nursery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has put pages with canaries in the log, from where they would return to the file."""
    _killed_before_it_wiped(nursery, path)

    def commit() -> None:
        with closing(apsw.Connection(str(path))) as other:
            for change in (1, -1):
                other.execute("UPDATE messages SET crc = crc + ?", (change,))
            assert CANARY in path.with_name(f"{DATABASE}-wal").read_bytes()

    _between_finding_and_wiping(monkeypatch, commit)
    with holdfast.open(path) as store:
        assert holding(path) == set()
        _must_be_purged(store)


def test_a_purge_is_not_stopped_by_a_commit_whose_pages_are_only_in_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has more pages then than its file."""
    version = wipe._version  # noqa: SLF001 - there is no other way in between
    with holdfast.open(path) as store, open_store(path, durability="process") as other:
        waiting = [lambda: other.session("talk-0").append(Message.user("long " * 10_000))]

        def seen(connection: apsw.Connection) -> int:
            found = version(connection)
            if waiting:
                waiting.pop()()
            return found

        monkeypatch.setattr(wipe, "_version", seen)
        assert store.purge("canary-fork-free").pending == ()


def test_pages_that_changed_between_finding_and_wiping_are_wiped_as_they_are_then(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wrote in between, and the log was emptied, so that the file itself is another one.

    Nothing they wrote is hurt, and nothing is left in the unused middle of any page but those from
    which the note was taken.
    """
    chance = random.Random(5)
    with holdfast.open(path) as store, open_store(path, durability="process") as other:
        talks = [other.session(f"talk-{number}") for number in (0, 1, 3, 4, 5)]

        def write() -> None:
            for number in range(60):
                talk = chance.choice(talks)
                talk.append(Message.user(long_or_short(f"plain{number} ", chance)))
            _empty_log(path)

        store.purge("canary-fork-free")
        _between_finding_and_wiping(monkeypatch, write)
        before = sum(talk.info().messages for talk in talks)
        assert store.purge("talk-2").pending == ()
        assert sum(len(talk.messages()) for talk in talks) == before + 60
        assert holding(path) == set()
        _must_be_purged(store)
    with closing(apsw.Connection(str(path))) as connection:
        found = connection.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'meta'")
        of_the_note = {page - 1 for (page,) in found}
    assert set(filled_gaps(path)) <= of_the_note


# ------------------------------------------------------------------------------- while others read


def _purged_while_read(store: Store, path: Path) -> None:
    """Purge while a reader holds a snapshot, which stays readable until it ends."""
    store.session("talk-0").append(Message.user("plain and in the log"))
    with reading(path) as count:
        before = count()
        report = store.purge("talk-2")
        assert report.messages > 0
        assert len(report.pending) == 1
        assert "still holds" in report.pending[0]
        assert count() == before, "the reader's snapshot changed"
        _must_be_purged(store)
    assert holding(path), "nothing was pending, then"


def test_what_a_reader_holds_is_pending_and_goes_with_the_next_purge(path: Path) -> None:
    """A purge beside a reader reports pending bytes; the next purge leaves no canary."""
    with holdfast.open(path) as store:
        _purged_while_read(store, path)
        assert store.purge("canary-fork-free").pending == ()
        assert holding(path) == set()
        _must_be_purged(store)


def test_what_a_reader_holds_goes_when_the_store_is_next_opened(path: Path) -> None:
    """No further purge is needed."""
    with holdfast.open(path) as store:
        store.purge("canary-fork-free")
        _purged_while_read(store, path)
    with holdfast.open(path) as store:
        assert holding(path) == set()
        _must_be_purged(store)


# ----------------------------------------------------------- crashes and faults while it is wiped


def test_the_note_goes_only_when_the_wiped_bytes_are_on_the_disk(
    base: Path, tmp_path: Path
) -> None:
    """After a power cut at any time, remaining bytes are wiped at the next opening."""

    def purge(store: Store, recording: Recording) -> None:
        for key in ("talk-2", "canary-fork-free"):
            session = store.session(key)
            session.append(Message.user("one CANARY more"))
            store.backend.write(deletion.purge(number_of(session), session.id, forks="keep"))
        recording.begin("wiping")
        assert store.backend.wipe() == ()

    trace = recorded(base, 1000, purge)
    begun = trace.events.index(Begin("wiping"))
    syncs = [at for at, event in enumerate(trace.events) if isinstance(event, Sync)]
    for point in [at + 1 for at in syncs if at > begun]:
        state = state_named(trace, f"{point}:0")  # Only what was synced is there.
        folder = tmp_path / str(point)
        folder.mkdir()
        state.write_to(folder)
        with open_store(folder / DATABASE):
            assert holding(folder / DATABASE) == set(), f"lost at {state.describe()}"


def test_what_was_deleted_is_deleted_for_good_before_the_note_goes(
    nursery: Nursery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is synced in between: a power cut does not bring a copy or an index back."""
    _killed_before_it_wiped(nursery, path)
    path.with_name(f"{DATABASE}-search").write_bytes(b"CANARY")
    seen: list[tuple[set[str], bool]] = []

    def synced(folder: Path) -> None:
        location.sync_directory(folder)
        with closing(apsw.Connection(str(path))) as connection:
            (notes,) = connection.execute("SELECT count(*) FROM meta WHERE name LIKE 'scrub of %'")
        seen.append((holding(path) - {DATABASE, f"{DATABASE}-wal"}, notes != (0,)))

    monkeypatch.setattr(wipe, "sync_directory", synced)
    with holdfast.open(path):
        assert seen == [(set(), True)]


def test_what_an_older_version_did_not_wipe_is_wiped_at_opening(
    nursery: Nursery, path: Path
) -> None:
    """Version 0.1.0 left one note for all, without a name."""
    _killed_before_it_wiped(nursery, path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE meta SET name = 'scrub' WHERE name LIKE 'scrub of %'")
    with holdfast.open(path):
        assert holding(path) == set()
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("SELECT * FROM meta WHERE name LIKE 'scrub%'").get is None


def _sums(store: Store) -> dict[str, str]:
    """Return a short digest of each talk."""
    return {
        str(info.key): digest("".join(found.text for found in store.get(info.id).messages()))
        for info in store.sessions(limit=100)
    }


def check_nothing_else_is_hurt(directory: Path, state: CrashState) -> None:
    """The talk is there whole or not at all, the others are as they were; then no canary stays."""
    (before,) = state.begun or ("",)
    if not before:
        return
    path = directory / DATABASE
    with open_store(path, hours=10) as store:
        assert store.verify() == []
        found, expected = _sums(store), msgspec.json.decode(before, type=dict[str, str])
        gone = {key: text for key, text in expected.items() if key != "talk-2"}
        assert found in ([gone] if state.acked else [expected, gone])
        for key in ("talk-2", "canary-fork-free"):
            if key in found:
                assert store.purge(key).pending == ()
        assert holding(path) == set()
        assert store.verify() == []


def _record(base: Path, pages: int) -> Trace:
    def purge(store: Store, recording: Recording) -> None:
        before = msgspec.json.encode(_sums(store)).decode()
        recording.begin(before)
        assert store.purge("talk-2").pending == ()
        recording.ack(before)

    return recorded(base, pages, purge)


def check_one_in_eight(directory: Path, state: CrashState) -> None:
    """The same for some of the states, chosen by their names."""
    if is_one_in(8, state):
        check_nothing_else_is_hurt(directory, state)


def test_a_crash_while_bytes_are_wiped_hurts_nothing(base: Path) -> None:
    """Pages are written outside of transactions then; used bytes in them are not changed."""
    trace = _record(base, 1000)
    wiped = [e for e in trace.events if isinstance(e, Write) and not any(e.data)]
    assert wiped, "no page had anything to wipe"
    explored = explore(trace, check_one_in_eight, limit=len(trace.events))
    assert explored.torn > 10


@pytest.mark.long
@pytest.mark.parametrize("pages", [1000, 6])
def test_a_crash_while_bytes_are_wiped_hurts_nothing_in_many_more_states(
    base: Path, pages: int
) -> None:
    """The same in many more states."""
    explored = explore(_record(base, pages), check_nothing_else_is_hurt, limit=2_000)
    assert explored.torn > 500


def _purge_on_a_failing_disk(
    path: Path, disk: FailingDisk, operation: FileOperation, at: int
) -> bool:
    """Purge, with one fault: nothing else is changed, and a second purge wipes all."""
    with open_store(path, vfs=disk.name) as store:
        expected = _sums(store)
        disk.fail(operation, at=at, lasting=at % 2 == 0)
        purged = True
        pending: tuple[str, ...] = ("not reported",)
        try:
            pending = store.purge("talk-2").pending
        except StorageError:
            purged = "talk-2" not in _healed_sums(store, disk)
        met = disk.met
        disk.heal()
        assert met or not pending
        gone = {key: text for key, text in expected.items() if key != "talk-2"}
        assert _sums(store) == (gone if purged else expected)
        for key in ["canary-fork-free"] if purged else ["talk-2", "canary-fork-free"]:
            assert store.purge(key).pending == ()
        assert holding(path) == set()
        assert store.verify() == []
    return met


def _healed_sums(store: Store, disk: FailingDisk) -> dict[str, str]:
    disk.heal()
    return _sums(store)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_while_bytes_are_wiped_hurts_nothing(
    base: Path, tmp_path: Path, operation: FileOperation
) -> None:
    """What could not be wiped is reported, and wiped by the next purge."""
    at_every_place(base, tmp_path, operation, SOME[operation], _purge_on_a_failing_disk)


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_anywhere_while_bytes_are_wiped_hurts_nothing(
    base: Path, tmp_path: Path, operation: FileOperation
) -> None:
    """The same at every single operation."""
    at_every_place(base, tmp_path, operation, 1, _purge_on_a_failing_disk)
