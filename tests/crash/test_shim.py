"""The fault shim proved on a bare apsw child: killed, or its disk failing, at the Nth operation.

The child inserts rows, one commit each, and prints `ack N` after each; on an error of the
database it says so and ends with 3. Whatever happened, the acknowledged rows must be there
afterwards, in a sound file, with nothing after them but the one row that was under way.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from holdfast.testing.faults import ChildHung, Outcome, Shim, ShimUnavailable, every
from holdfast.testing.faults.shim import FaultKind, ShimOperation

ROWS = 6
GAVE_UP = 3

CHILD = """
import sys, apsw
connection = None
try:
    connection = apsw.Connection(sys.argv[1])
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.pragma("wal_autocheckpoint", 3)
    connection.execute("CREATE TABLE log (n INTEGER PRIMARY KEY, body TEXT)")
    for n in range(1, int(sys.argv[2]) + 1):
        connection.execute("INSERT INTO log VALUES (?, ?)", (n, f"{n} " * 300))
        print("ack", n, flush=True)
    connection.close()
except apsw.Error as error:
    print("gave up:", repr(error), flush=True)
    sys.exit(3)
"""

HASTY_CHILD = CHILD.replace('        print("ack", n, flush=True)\n', "").replace(
    "        connection.execute(",
    '        print("ack", n, flush=True)\n        connection.execute(',
)

Child = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Fault:
    """The fault, the kind of operation, once or from then on."""

    kind: FaultKind
    on: ShimOperation
    sticky: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{self.on}{'-sticky' if self.sticky else ''}"


KILLS = [
    Fault("kill", "write"),
    Fault("kill_after", "write"),
    Fault("tear", "write"),
    Fault("kill", "sync"),
    Fault("kill_after", "sync"),
]
ERRORS = [
    Fault("eio", "write"),
    Fault("eio", "write", sticky=True),
    Fault("enospc", "write"),
    Fault("enospc", "write", sticky=True),
    Fault("short", "write", sticky=True),
    Fault("eio", "sync"),
    Fault("eio", "sync", sticky=True),
    Fault("enospc", "sync"),
]
SHORT = Fault("short", "write")
# The effect of each kind is tested with three writes below; these stop a database anywhere.
SOME_KILLS = [Fault("tear", "write"), Fault("kill", "sync")]
SOME_ERRORS = [
    Fault("eio", "write"),
    Fault("short", "write", sticky=True),
    Fault("eio", "sync", sticky=True),
]


@pytest.fixture(scope="module")
def shim() -> Shim:
    """The compiled shim, or a skip that says why there is none."""
    try:
        return Shim.build()
    except ShimUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def child(tmp_path: Path) -> Child:
    """Return the function that gives the command for a directory."""
    return _child(tmp_path / "child.py", CHILD)


def _child(script: Path, source: str) -> Child:
    script.write_text(source)
    return lambda where: [sys.executable, str(script), str(where / "log.db"), str(ROWS)]


def _acked(outcome: Outcome) -> int:
    return sum(line.startswith("ack ") for line in outcome.stdout.splitlines())


def _rows(directory: Path) -> list[int]:
    connection = apsw.Connection(str(directory / "log.db"))
    try:
        assert connection.pragma("integrity_check") == "ok"
        if not connection.table_exists(None, "log"):
            return []
        return [n for (n,) in connection.execute("SELECT n FROM log ORDER BY n")]
    finally:
        connection.close()


def _must_be_kept(outcome: Outcome) -> None:
    found, acked = _rows(outcome.directory), _acked(outcome)
    assert found == list(range(1, len(found) + 1)), outcome.command
    assert acked <= len(found) <= acked + 1, outcome.command


def _must_have_died(outcome: Outcome) -> None:
    assert outcome.killed == outcome.reached, outcome.command
    if not outcome.reached:
        assert _acked(outcome) == ROWS, outcome.command


def _must_have_ended_in_order(outcome: Outcome) -> None:
    # A failed checkpoint costs nothing, so a child with its fault there may end with 0.
    assert outcome.returncode in {0, GAVE_UP}, outcome.command + outcome.stderr
    assert not outcome.stderr, outcome.command + outcome.stderr
    if outcome.returncode == 0:
        assert _acked(outcome) == ROWS, outcome.command


def _visit(shim: Shim, child: Child, fault: Fault, under: Path, *, step: int) -> Iterator[Outcome]:
    """Run with the fault at each operation; too few reached faults would prove nothing."""
    reached = 0
    outcomes = every(
        shim,
        child,
        kind=fault.kind,
        on=fault.on,
        sticky=fault.sticky,
        under=under,
        first=10,
        step=step,
    )
    for outcome in outcomes:
        _must_be_kept(outcome)
        reached += outcome.reached
        yield outcome
    assert reached >= 10


@pytest.mark.parametrize("fault", SOME_KILLS, ids=str)
def test_acknowledged_rows_survive_a_kill(
    shim: Shim, child: Child, tmp_path: Path, fault: Fault
) -> None:
    """Killed at the Nth write or sync, the child has lost nothing it acknowledged."""
    for outcome in _visit(shim, child, fault, tmp_path, step=4):
        _must_have_died(outcome)


@pytest.mark.long
@pytest.mark.parametrize("fault", KILLS, ids=str)
def test_acknowledged_rows_survive_a_kill_anywhere(
    shim: Shim, child: Child, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    for outcome in _visit(shim, child, fault, tmp_path, step=1):
        _must_have_died(outcome)


@pytest.mark.parametrize("fault", SOME_ERRORS, ids=str)
def test_acknowledged_rows_survive_an_error(
    shim: Shim, child: Child, tmp_path: Path, fault: Fault
) -> None:
    """With a failing disk the child ends in order, and has lost nothing it acknowledged."""
    outcomes = list(_visit(shim, child, fault, tmp_path, step=4))
    for outcome in outcomes:
        _must_have_ended_in_order(outcome)
    assert any(outcome.returncode == GAVE_UP for outcome in outcomes)


@pytest.mark.long
@pytest.mark.parametrize("fault", [*ERRORS, SHORT], ids=str)
def test_acknowledged_rows_survive_an_error_anywhere(
    shim: Shim, child: Child, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    for outcome in _visit(shim, child, fault, tmp_path, step=1):
        _must_have_ended_in_order(outcome)


def test_a_short_write_is_finished(shim: Shim, child: Child, tmp_path: Path) -> None:
    """A write that was cut short once is taken up where it stopped: no row is missing."""
    for outcome in _visit(shim, child, SHORT, tmp_path, step=4):
        assert outcome.returncode == 0, outcome.command
        assert _rows(outcome.directory) == list(range(1, ROWS + 1)), outcome.command


def test_a_hasty_acknowledgement_is_caught(shim: Shim, tmp_path: Path) -> None:
    """A child that acknowledges before it commits does not pass."""
    hasty = _child(tmp_path / "hasty.py", HASTY_CHILD)
    with pytest.raises(AssertionError, match="HOLDFAST_FAULT_AT"):
        list(_visit(shim, hasty, Fault("kill", "write"), tmp_path, step=1))


def _run(shim: Shim, argv: list[str], fault: Fault, at: int, where: Path) -> Outcome:
    where.mkdir()
    return shim.run(
        argv, kind=fault.kind, on=fault.on, at=at, path_prefix=where, sticky=fault.sticky
    )


def test_the_engine_goes_through_the_shim(shim: Shim, child: Child, tmp_path: Path) -> None:
    """The bundled SQLite's own writes and syncs are counted: one sync per commit at least."""
    where = tmp_path / "counted"
    outcome = _run(shim, child(where), Fault("none", "write"), 0, where)
    assert outcome.returncode == 0, outcome.stderr
    assert not outcome.reached
    assert outcome.syncs > ROWS
    assert outcome.writes > 2 * ROWS


def test_other_files_are_left_alone(shim: Shim, child: Child, tmp_path: Path) -> None:
    """Operations on files outside the path are neither counted nor harmed."""
    where, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    where.mkdir()
    elsewhere.mkdir()
    outcome = shim.run(child(where), kind="kill", on="write", at=1, path_prefix=elsewhere)
    assert (outcome.returncode, outcome.writes, outcome.syncs) == (0, 0, 0)


WRITER = """
import errno, os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for size in (4, 4, 4):
    try:
        print(os.write(file, b"x" * size), flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


@pytest.mark.parametrize(
    ("fault", "said", "size"),
    [
        (Fault("kill", "write"), "4", 4),
        (Fault("kill_after", "write"), "4", 8),
        (Fault("tear", "write"), "4", 6),
        (Fault("eio", "write"), "4 EIO 4", 8),
        (Fault("eio", "write", sticky=True), "4 EIO EIO", 4),
        (Fault("enospc", "write", sticky=True), "4 ENOSPC ENOSPC", 4),
        (Fault("short", "write"), "4 2 4", 10),
        (Fault("short", "write", sticky=True), "4 2 ENOSPC", 6),
    ],
)
def test_each_fault_does_what_it_says(
    shim: Shim, tmp_path: Path, fault: Fault, said: str, size: int
) -> None:
    """The second of three writes goes wrong in the way that the kind names."""
    where = tmp_path / "files"
    argv = [sys.executable, "-c", WRITER, str(where / "file")]
    outcome = _run(shim, argv, fault, 2, where)
    assert outcome.reached
    assert outcome.killed == (fault in KILLS)
    assert " ".join(outcome.stdout.split()) == said
    assert (where / "file").stat().st_size == size


def test_the_replay_command_does_the_same_again(shim: Shim, child: Child, tmp_path: Path) -> None:
    """What a failing test prints can be pasted into a shell."""
    where = tmp_path / "replayed"
    outcome = _run(shim, child(where), Fault("eio", "sync"), 7, where)
    again = subprocess.run(
        ["sh", "-c", outcome.command], capture_output=True, text=True, check=False
    )
    assert outcome.reached
    assert (again.returncode, again.stdout) == (outcome.returncode, outcome.stdout)


def test_every_leaves_no_operation_out(shim: Shim, child: Child, tmp_path: Path) -> None:
    """Operations from the first to one past the last; a step skips only later ones."""
    all_places = [o.at for o in every(shim, child, kind="kill", on="sync", under=tmp_path / "a")]
    assert all_places == list(range(1, len(all_places) + 1))
    counted = _run(shim, child(tmp_path / "c"), Fault("none", "sync"), 0, tmp_path / "c").syncs
    assert all_places[-1] == counted + 1
    thinned = every(shim, child, kind="kill", on="sync", under=tmp_path / "b", first=3, step=6)
    assert [outcome.at for outcome in thinned][:5] == [1, 2, 3, 9, 15]


def test_a_sync_has_no_half(shim: Shim, tmp_path: Path) -> None:
    """Faults that cut a write in two are refused for syncs."""
    with pytest.raises(ValueError, match="applies to writes only"):
        shim.run(["true"], kind="tear", on="sync", at=1, path_prefix=tmp_path)


def test_a_child_that_hangs_is_ended_and_reported(shim: Shim, tmp_path: Path) -> None:
    """A run has a deadline, and its end is an error that names the command."""
    with pytest.raises(ChildHung, match="replay: "):
        shim.run(["sleep", "60"], kind="none", on="write", at=0, path_prefix=tmp_path, timeout=0.2)


def test_without_a_compiler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shim cannot be built, the error says why."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ShimUnavailable, match="no C compiler"):
        Shim.build()
