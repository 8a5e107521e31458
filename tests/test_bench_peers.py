"""The comparison with other stores can find that Holdfast loses: every counter can fail.

Nothing is installed here: the only driver that runs is Holdfast's, by the processes and commands
that all others have, too, and copies of it that are broken in one way each.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bench import __main__ as bench_main
from bench import plan as plans
from bench.measure import Result, Times
from bench.peers import concurrency, histories, lookups, run
from bench.peers.catalog import HOLDFAST, PEERS
from bench.peers.contest import QUICK, PeerRun, PeerSizes, timed_rows
from bench.peers.driver_process import DriverFailed, DriverProcess, Installed
from bench.peers.turns import Mark, recognise, turn
from bench.peers.verdict import judge
from bench.plan import Plan
from tools import environments

_SCRIPTS = Path(histories.__file__).parent
_ABILITIES = ["sessions", "search", "fork", "catch_up"]
_DRIVER = Installed(
    HOLDFAST.name, Path(sys.executable), f"bench.peers.drivers.{HOLDFAST.driver}", HOLDFAST.variant
)
_TINY = msgspec.structs.replace(
    QUICK,
    histories=(0, 60),
    rounds=2,
    turns_a_round=2,
    writers=2,
    writer_seconds=0.0,  # one turn each
    sessions=60,
    searched=400,
    forked=40,
)
_FAULTY = """
from bench.peers.drivers.holdfast_store import Message, Peer as Store

class Peer(Store):
    def append(self, key, messages):
        def store(*stored):
            Store.append(self, key, stored)
        user, call, result, reply = messages
        {append}
"""
# What a store does wrong with each turn, and what is printed of the two that it was given.
_FAULTS = {
    "no reply": ("store(user, call, result)", "of 8 messages 2 lost, 2 torn"),
    "nothing": ("pass", "of 8 messages 8 lost, 0 torn"),
    "reply first": ("store(reply, user, call, result)", "0 lost, 0 torn, 2 interleaved"),
    "other reply": (
        "store(user, call, result, Message.assistant('other'))",
        "2 lost, 2 torn, 2 changed",
    ),
    "user twice": ("store(*messages, Message.user(user.text))", "0 lost, 0 torn, 2 doubled"),
    "refused": ("raise OSError('full')", "of 0 messages 0 lost, 0 torn, 2 refused (OSError)"),
}


def _peer_run(directory: Path, sizes: PeerSizes = _TINY) -> PeerRun:
    return PeerRun((_DRIVER,), sizes, directory)


def _faulty_run(directory: Path, part: str, append: str) -> PeerRun:
    """A run of one part in which Holdfast appends in another way."""
    faulty = msgspec.structs.replace(_DRIVER, module="faulty")
    found = PeerRun((faulty,), _TINY, directory)
    path = found.directory_of(part, faulty) / "surroundings" / "path"
    path.mkdir(parents=True)
    (path / "faulty.py").write_text(_FAULTY.format(append=append))
    return found


def _by_what(results: Sequence[Result]) -> dict[str, Result]:
    return {result.what: result for result in results}


# -------------------------------------------------------------------------------------- messages


def test_a_turn_has_four_messages_of_the_sizes_that_are_promised() -> None:
    user, call_id, arguments, result, reply = turn("w1", 7)
    sizes = [len(user), len(msgspec.json.encode(arguments)) + 1, len(result), len(reply)]
    assert sizes == [300, 200, 2_000, 800]
    assert turn("w1", 7) == turn("w1", 7) != turn("w2", 7)
    texts = [(user, None), (call_id, arguments), (result, None), (reply, None)]
    assert [recognise(*given) for given in texts] == [Mark("w1", 7, n) for n in range(4)]


@pytest.mark.parametrize("text", ["", None, "other", turn("w", 1).reply[:-1], turn("w", 1).call_id])
def test_a_message_that_is_not_as_it_was_given_is_not_recognised(text: str | None) -> None:
    assert recognise(text) is None


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ([0, 1, 2, 3], "0 lost, 0 torn"),
        ([], "4 lost, 0 torn"),
        ([0, 1], "2 lost, 1 torn"),
        ([0, 1, 3, 2], "0 lost, 0 torn, 1 interleaved"),
        ([0, 1, None, 2, 3], "0 lost, 0 torn, 1 interleaved, 1 changed"),
        ([0, 1, 2, 3, 3], "0 lost, 0 torn, 1 doubled"),
    ],
)
def test_what_is_kept_is_compared_with_what_was_acknowledged(
    history: list[int | None], found: str
) -> None:
    marks = [None if message is None else Mark("w", 1, message) for message in history]
    verdict = judge([("w", 1)], marks)
    assert str(verdict) == found
    assert verdict.flawless == (history == [0, 1, 2, 3])


def test_a_turn_that_was_not_acknowledged_may_be_there_but_only_whole() -> None:
    assert judge([], [Mark("w", 1, message) for message in range(4)]).flawless
    assert judge([], [Mark("w", 1, 0)]).torn == 1


# --------------------------------------------------------------------------- Holdfast's driver


def test_the_driver_of_holdfast_answers_every_command(tmp_path: Path) -> None:
    with DriverProcess(_DRIVER, tmp_path) as driver:
        assert driver.imported > 0
        assert driver.can == _ABILITIES
        driver.open("k")
        answer = driver.ask("append", key="k", writer="w", first=5, turns=3, seconds=60)
        assert answer["stored"] == [5, 6, 7]
        assert len(answer["times"]) == 3
        assert not answer["refused"]
        marks = driver.ask("history", key="k")["marks"]
        assert marks == [["w", n, message] for n in (5, 6, 7) for message in range(4)]
        with pytest.raises(DriverFailed, match="AttributeError"):
            driver.ask("measure", method="missing", arguments=[], times=1, seconds=0)
        assert driver.ask("fill", key="k", turns=2, seconds=60) == {"turns": 2}
        assert driver.ask("fill", key="k", turns=2, seconds=-1) == {"turns": 0}
        driver.kill()
        with pytest.raises(DriverFailed, match="it ended"):
            driver.ask("history", key="k")


def test_a_driver_that_cannot_be_imported_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(DriverFailed, match="No module named 'missing'"):
        DriverProcess(msgspec.structs.replace(_DRIVER, module="missing"), tmp_path)


def test_every_part_measures_holdfast(tmp_path: Path) -> None:
    """The appends, the new process, the lists, the search and the fork have a figure each."""
    parts = (histories.append, lookups.lists, lookups.search, lookups.forks)
    found = [result for part in parts for result in part(_peer_run(tmp_path))]
    assert [result.what for result in found] == [
        "append at 0: Holdfast",
        "append at 60: Holdfast",
        "last 50 of 60, new process: Holdfast",
        "list 50 of 60: Holdfast",
        "store and index 400: Holdfast",
        "search 400, rare word: Holdfast",
        "search 400, two words: Holdfast",
        "search 400, common word: Holdfast",
        "fork of 40: Holdfast",
    ]
    assert all(result.value > 0 for result in found)


def test_writers_and_kills_leave_nothing_lost_or_torn(tmp_path: Path) -> None:
    sizes = msgspec.structs.replace(_TINY, writer_seconds=0.3)
    (written,) = concurrency.writers(_peer_run(tmp_path, sizes))
    (killed,) = concurrency.kills(_peer_run(tmp_path))
    for result in (written, killed):
        assert result.met is True, result.figure
        assert "0 lost, 0 torn" in result.figure


# ------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_store_that_loses_something_is_found_out_by_writers(fault: str, tmp_path: Path) -> None:
    append, printed = _FAULTS[fault]
    (result,) = concurrency.writers(_faulty_run(tmp_path, "writers", append))
    assert printed in result.figure
    assert result.met is False


def test_a_store_that_acknowledges_before_it_stores_is_found_out_by_a_kill(tmp_path: Path) -> None:
    (result,) = concurrency.kills(_faulty_run(tmp_path, "kills", "pass"))
    assert result.value >= 4 * _TINY.kills
    assert result.met is False


def test_a_store_that_refuses_drops_out_of_the_appends(tmp_path: Path) -> None:
    """Holdfast's own refusal ends the run: nothing can be compared with it."""
    faulty = _faulty_run(tmp_path, "append", "raise OSError('full')")
    with pytest.raises(DriverFailed, match="OSError"):
        list(histories.append(faulty))
    other = msgspec.structs.replace(faulty.installed[0], name="other")
    path = "surroundings/path/faulty.py"
    source = (faulty.directory_of("append", _DRIVER) / path).read_text()
    place = faulty.directory_of("append", other) / path
    place.parent.mkdir(parents=True)
    place.write_text(source)
    sizes = msgspec.structs.replace(_TINY, histories=(60,))
    found = _by_what(list(histories.append(PeerRun((_DRIVER, other), sizes, tmp_path))))
    assert found["append at 60: Holdfast"].value > 0
    assert found["append: other"].figure.startswith("failed: refused: {'OSError': 1}")


def test_a_row_says_when_another_store_is_faster() -> None:
    def rows(theirs: Times, rivals: frozenset[str] | None = None) -> dict[str, Result]:
        found = {HOLDFAST.name: [[0.002], [0.004]], "other": [theirs, []]}
        return _by_what(list(timed_rows("append", found, str, rivals=rivals)))

    assert rows([0.005])[HOLDFAST.name].met is True
    assert rows([0.001])[HOLDFAST.name].met is False
    assert rows([0.001])["other"].ratio == 0.5  # of the round that both took part in
    assert rows([0.001], rivals=frozenset())[HOLDFAST.name].met is None


def test_syncs_are_counted_between_the_marks(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(
        "1 fdatasync(3) = 0\n"
        "1 getsid(0) = 1\n"
        "1 fdatasync(3 <unfinished ...>\n"
        "2 fsync(4) = 0\n"
        "1 <... fdatasync resumed>) = 0\n"
        "1 getsid(0) = 1\n"
        "1 fsync(3) = 0\n"
    )
    assert histories.syncs_between_marks(trace) == 2


def test_without_a_tracer_syncs_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (result,) = histories.durability(_peer_run(tmp_path))
    assert result.figure.startswith("syncs not counted (")
    assert result.figure.endswith(HOLDFAST.durability)
    assert result.met is None


# ------------------------------------------------------------------------------ what is installed


def test_a_store_that_cannot_be_installed_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "environments_directory", lambda: tmp_path / "environments")
    monkeypatch.setattr(environments, "run_command", _fail)
    found = list(run.PEER_BENCHMARKS["peers-kills"](Plan(plans.QUICK, tmp_path)))
    skipped = [result for result in found if result.figure == "skipped: no such version"]
    assert [result.what for result in skipped] == [entry.name for entry in PEERS[1:]]
    assert [result.met for result in found if result not in skipped] == [True]


def _fail(*_: str) -> None:
    raise environments.NotInstalled("no such version")


def test_an_environment_is_made_once_for_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(environments, "run_command", lambda *command: _note(commands, command))
    entry = next(entry for entry in PEERS if entry.requirements)
    python = environments.interpreter(entry.driver, entry.requirements, tmp_path)
    assert commands[-1][-2:] == ("install", *entry.requirements)
    made = len(commands)
    assert environments.interpreter(entry.driver, entry.requirements, tmp_path) == python
    assert len(commands) == made
    assert environments.interpreter(entry.driver, ("other==2",), tmp_path) != python
    assert not python.parents[1].exists()


def _note(commands: list[tuple[str, ...]], command: tuple[str, ...]) -> None:
    commands.append(command)
    if "venv" in command:
        Path(command[-1]).mkdir(parents=True)


def test_versions_are_pinned_and_names_are_unique() -> None:
    assert all("==" in one for entry in PEERS for one in entry.requirements)
    assert len({entry.name for entry in PEERS}) == len(PEERS)


def test_the_comparison_runs_only_on_request() -> None:
    assert set(run.PEER_BENCHMARKS) <= set(bench_main.ON_REQUEST)
    assert not set(run.PEER_BENCHMARKS) & set(bench_main.BENCHMARKS)


def test_what_runs_in_other_environments_imports_nothing_of_this_project() -> None:
    """Its turns and its driver are plain, and nothing there has Holdfast or msgspec."""
    scripts = sorted((_SCRIPTS / "drivers").glob("*.py"))
    assert {entry.driver for entry in PEERS} == {path.stem for path in scripts} - {"__init__"}
    for path in (_SCRIPTS / "driver.py", _SCRIPTS / "turns.py", *scripts):
        imported = _imported(path)
        ours = {name for name in imported if name.partition(".")[0] in ("bench", "holdfast")}
        if path.stem == HOLDFAST.driver:
            ours.discard("holdfast")
        assert ours <= {"bench.peers.turns"}, path
        assert "msgspec" not in imported


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found
