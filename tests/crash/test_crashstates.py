"""The crash-state machinery proved on bare apsw databases, before anything is built on it.

It must pass what SQLite promises (WAL with FULL loses nothing, with NORMAL only the newest), and
it must *catch* what SQLite does not promise (`synchronous=OFF`), or else passing means nothing.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw
import pytest

from holdfast.testing.faults import (
    CrashState,
    Recording,
    RecordingIncomplete,
    StateFailed,
    Trace,
    explore,
    record,
    state_named,
    states,
)
from holdfast.testing.faults.replay import main as replay
from holdfast.testing.faults.trace import (
    Ack,
    LinkName,
    Sync,
    SyncNames,
    TraceEvent,
    Truncate,
    Unlink,
    Write,
)

DATABASE = "log.db"
ROWS = 8
FEW_PAGES = 3
BOUNDED = 600


def _insert_rows(
    recording: Recording, *, synchronous: str, journal: str = "wal", rows: int = ROWS
) -> None:
    """Open, create, insert one row per transaction with a checkpoint every few pages, close."""
    connection = apsw.Connection(str(recording.directory / DATABASE), vfs=recording.vfs)
    connection.pragma("journal_mode", journal)
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", FEW_PAGES)
    connection.execute("CREATE TABLE IF NOT EXISTS log (n INTEGER PRIMARY KEY, body TEXT)")
    have = connection.execute("SELECT count(*) FROM log").get
    for n in range(have + 1, have + rows + 1):
        recording.begin(str(n))
        connection.execute("INSERT INTO log VALUES (?, ?)", (n, f"{n} " * 300))
        recording.ack(str(n))
    connection.close()


def _rows_after_crash(directory: Path) -> list[int]:
    """Open the state as a user would, which recovers it, and return the rows of a whole file."""
    connection = apsw.Connection(str(directory / DATABASE))
    try:
        assert connection.pragma("integrity_check") == "ok"
        if not connection.table_exists(None, "log"):
            return []
        rows = list(connection.execute("SELECT n, body FROM log ORDER BY n"))
        assert all(body == f"{n} " * 300 for n, body in rows)
        return [n for n, _ in rows]
    finally:
        connection.close()


def check_nothing_lost(directory: Path, state: CrashState) -> None:
    """All acknowledged rows are there, nothing that was not begun, and no row is skipped."""
    found = _rows_after_crash(directory)
    assert found == list(range(1, len(found) + 1))
    assert len(state.acked) <= len(found) <= len(state.begun)


def check_only_newest_lost(directory: Path, state: CrashState) -> None:
    """A power cut may take the newest rows, never one in the middle; a kill takes none."""
    found = _rows_after_crash(directory)
    assert found == list(range(1, len(found) + 1))
    assert len(found) <= len(state.begun)
    if state.model == "kill":
        assert len(found) >= len(state.acked)


@pytest.fixture(scope="module")
def full() -> Trace:
    """One run with WAL and synchronous=FULL."""
    return record(partial(_insert_rows, synchronous="full"))


@pytest.fixture(scope="module")
def normal() -> Trace:
    """One run with WAL and synchronous=NORMAL."""
    return record(partial(_insert_rows, synchronous="normal"))


def test_full_keeps_every_acknowledged_row(full: Trace) -> None:
    """WAL with FULL: whatever the power cut leaves, acknowledged rows are there."""
    explored = explore(full, check_nothing_lost, limit=BOUNDED)
    assert explored.power > 500
    assert explored.torn > 200
    assert explored.kill > ROWS
    assert explored.points > len(full.events) // 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_full_keeps_every_acknowledged_row_in_every_chosen_state(full: Trace, seed: int) -> None:
    """The same with no limit and other seeds."""
    assert explore(full, check_nothing_lost, seed=seed, samples=400).states > 2 * BOUNDED


def test_normal_loses_only_the_newest_rows(normal: Trace) -> None:
    """WAL with NORMAL: a power cut takes a suffix or nothing, a kill nothing."""
    assert explore(normal, check_only_newest_lost, limit=BOUNDED).power == BOUNDED


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_normal_loses_only_the_newest_rows_in_every_chosen_state(normal: Trace, seed: int) -> None:
    """The same with no limit and other seeds."""
    assert explore(normal, check_only_newest_lost, seed=seed, samples=400).states > 2 * BOUNDED


def test_normal_does_lose_rows_to_a_power_cut(normal: Trace, tmp_path: Path) -> None:
    """The difference between NORMAL and FULL is detected: an acknowledged row is lost."""
    with pytest.raises(StateFailed):
        explore(normal, check_nothing_lost, limit=BOUNDED, keep=tmp_path)


def test_sync_off_is_caught(tmp_path: Path) -> None:
    """With synchronous=OFF even the weaker promise breaks: rows vanish or the file is damaged."""
    trace = record(partial(_insert_rows, synchronous="off"))
    with pytest.raises(StateFailed):
        explore(trace, check_only_newest_lost, limit=BOUNDED, keep=tmp_path)


def test_rollback_journal_keeps_rows_with_extra() -> None:
    """DELETE with EXTRA syncs the directory after each delete: nothing is lost either."""
    trace = record(partial(_insert_rows, synchronous="extra", journal="delete", rows=3))
    assert explore(trace, check_nothing_lost, limit=BOUNDED).torn > 0


def test_rollback_journal_without_extra_can_roll_back(tmp_path: Path) -> None:
    """DELETE with FULL leaves the deletion in doubt: the journal can come back and undo a row."""
    trace = record(partial(_insert_rows, synchronous="full", journal="delete", rows=3))
    with pytest.raises(StateFailed):
        explore(trace, check_nothing_lost, limit=BOUNDED, keep=tmp_path)


A, B = b"a" * 512, b"b" * 512


def _disks(before: dict[str, bytes], *events: TraceEvent) -> list[dict[str, bytes]]:
    """Return every disk state that a crash at the end of these events could leave."""
    trace = Trace(before, [*events, Ack("end")])
    return [state.files for state in states(trace) if state.acked]


def test_a_write_tears_at_sectors_until_it_is_synced() -> None:
    """Any of a write's sectors may be there; after the sync all of them are."""
    write = Write(0, 0, B + B)
    torn = _disks({"f": A + A}, write)
    assert sorted(disk["f"] for disk in torn) == [A + A, A + B, B + A, B + B]
    assert _disks({"f": A + A}, write, Sync(0, covers=1)) == [{"f": B + B}]


def test_a_write_across_a_sector_border_tears_there() -> None:
    """Sectors are those of the file, not of the write."""
    disks = _disks({"f": A + A}, Write(0, 510, b"bbbb"))
    seams = [disk["f"][508:516] for disk in disks]
    assert sorted(seams) == [b"aaaaaaaa", b"aaaabbaa", b"aabbaaaa", b"aabbbbaa"]


def test_a_sync_covers_its_own_file_and_what_came_before_it_began() -> None:
    """Another file, and a write made while the sync ran, stay in doubt."""
    assert len(_disks({"f": A, "g": A}, Write(0, 0, B), Sync(1, covers=1))) == 2
    assert len(_disks({"f": A}, Write(0, 0, B), Sync(0, covers=0))) == 2


def test_a_file_may_have_grown_without_its_data() -> None:
    """Nothing, zeros of the new size, or the data."""
    disks = _disks({"f": A}, Write(0, 512, B))
    assert sorted(disk["f"] for disk in disks) == [A, A + bytes(512), A + B]


def test_a_truncation_is_in_doubt_until_the_sync() -> None:
    """The old size or the new."""
    disks = _disks({"f": A + B}, Truncate(0, 512))
    assert sorted(disk["f"] for disk in disks) == [A, A + B]


def test_names_are_in_doubt_until_the_directory_is_synced() -> None:
    """A created file may be missing though its data was synced; a deleted one may be back."""
    made: list[TraceEvent] = [LinkName("g", 1), Write(1, 0, B), Sync(1, covers=2)]
    assert sorted(_disks({}, *made), key=len) == [{}, {"g": B}]
    assert _disks({}, *made, SyncNames(covers=3)) == [{"g": B}]
    assert sorted(_disks({"f": A}, Unlink("f")), key=len) == [{}, {"f": A}]
    assert _disks({"f": A}, Unlink("f"), SyncNames(covers=1)) == [{}]


def test_a_name_given_to_a_new_file_may_still_be_the_old_one() -> None:
    """Deleted and made again: the old file, none, the new one empty or with its data."""
    disks = _disks({"f": A}, Unlink("f"), LinkName("f", 1), Write(1, 0, B))
    found = {disk.get("f") for disk in disks}
    assert found == {A, None, b"", bytes(512), B}


def test_checkpoints_are_part_of_the_run(full: Trace) -> None:
    """The run syncs the main file several times: crash states fall inside checkpoints."""
    assert full.syncs_of(DATABASE) >= 3
    assert full.syncs_of(f"{DATABASE}-wal") > ROWS


def test_states_are_repeatable_and_distinct(full: Trace) -> None:
    """The same trace and seed give the same states; no two have the same bytes and promises."""
    names = [state.describe() for state in states(full, seed=3, limit=BOUNDED)]
    again = [state.describe() for state in states(full, seed=3, limit=BOUNDED)]
    other = [state.describe() for state in states(full, seed=4, limit=BOUNDED)]
    assert names == again
    assert names != other
    assert len(set(names)) == len(names)


def test_a_named_state_is_rebuilt_from_the_saved_trace(full: Trace, tmp_path: Path) -> None:
    """A state's name and the saved trace give the same bytes again."""
    full.save(tmp_path / "run.trace")
    loaded = Trace.load(tmp_path / "run.trace")
    for state in states(full, limit=50):
        assert state_named(loaded, state.describe()) == state


def test_a_failing_state_prints_the_command_that_replays_it(normal: Trace, tmp_path: Path) -> None:
    """The command from the message rebuilds the state and fails in the same way."""
    with pytest.raises(StateFailed) as failed:
        explore(normal, check_nothing_lost, limit=BOUNDED, keep=tmp_path)
    command = str(failed.value).rpartition("replay: ")[2]
    ended = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "AssertionError" in ended.stderr
    assert (tmp_path / "state" / DATABASE).exists()


def test_replay_refuses_a_directory_in_use(
    full: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state that was opened is no longer that state, so it is not written over."""
    full.save(tmp_path / "run.trace")
    words = [str(tmp_path / "run.trace"), "--state", "9:kill", "--to", str(tmp_path / "state")]
    assert replay(words) == 0
    assert "state 9:kill" in capsys.readouterr().out
    assert replay(words) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_shrinking_file_keeps_its_rows() -> None:
    """Truncated WAL, vacuumed and truncated main file: rows stay whatever of it happened."""

    def scenario(recording: Recording) -> None:
        _insert_rows(recording, synchronous="full", rows=4)
        connection = apsw.Connection(str(recording.directory / DATABASE), vfs=recording.vfs)
        connection.pragma("synchronous", "full")
        connection.execute("CREATE TABLE bulk AS SELECT zeroblob(9000)")
        connection.execute("DROP TABLE bulk; VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    trace = record(scenario)
    assert any(isinstance(event, Truncate) and event.size == 0 for event in trace.events)
    assert explore(trace, check_nothing_lost, limit=BOUNDED).power > 300


def test_a_crash_after_a_crash(full: Trace) -> None:
    """A run that starts from a crash state, recovery included, can crash again at any point."""
    torn = [state for state in states(full, limit=BOUNDED) if state.torn and state.acked][::30]
    assert torn
    for state in torn:
        trace = record(partial(_insert_rows, synchronous="full", rows=2), prepare=state.write_to)
        explore(trace, _continues(state), limit=20)


def _continues(first: CrashState) -> Callable[[Path, CrashState], None]:
    def check(directory: Path, second: CrashState) -> None:
        found = _rows_after_crash(directory)
        promised = [int(what) for what in (*first.acked, *second.acked)]
        assert found == list(range(1, len(found) + 1))
        assert set(promised) <= set(found)

    return check


def test_a_write_past_the_recording_is_noticed() -> None:
    """A file changed by other means differs from the trace, and the run is refused."""

    def scenario(recording: Recording) -> None:
        _insert_rows(recording, synchronous="full", rows=1)
        with (recording.directory / DATABASE).open("ab") as file:
            file.write(b"unseen")

    with pytest.raises(RecordingIncomplete, match=DATABASE):
        record(scenario)


def test_an_empty_run_has_one_state() -> None:
    """No events, one state: the counts show that such an exploration proves nothing."""
    explored = explore(record(lambda _: None), lambda _directory, _state: None)
    assert explored.states == 1
    assert explored.torn == 0
