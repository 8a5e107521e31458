"""The comparison of adapters with their frameworks' own stores can find that ours loses.

Nothing is installed here: in place of a framework there is a package with two classes, both of
which are a store of Holdfast, or one that is broken.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bench import __main__ as bench_main
from bench import plan as plans
from bench.frameworks import pair, run
from bench.frameworks.catalog import ENTRIES, FrameworkEntry
from bench.measure import Result
from bench.peers.contest import QUICK, PeerRun, PeerSizes
from bench.peers.driver_process import Installed
from bench.peers.turns import MESSAGES_PER_TURN
from bench.plan import Plan
from tools import environments, frameworks

_DRIVERS: Final = Path(pair.__file__).parent / "drivers"
_ENTRY = msgspec.structs.replace(
    ENTRIES[0], title="Framework", own="own", adapter="adapter", newest_at_most=1e6
)
_SIZES = msgspec.structs.replace(QUICK, histories=(20,), rounds=1, turns_a_round=2)
_DRIVER = """
from bench.peers.drivers.holdfast_store import Message, Peer

class Own(Peer):
    def resume(self, key):
        return len(self._sessions[key].messages())

class Adapter(Own):
    {change}
"""
_FILL = "def fill(self, key, turns): "
_APPEND = "def append(self, key, messages): "
# What an adapter does wrong, and why it fails: it is given five turns, then two and two more.
_FAULTS = {
    "a reply lost": (
        f"{_APPEND}Peer.append(self, key, messages[:3])",
        "of 7 turns 2 lost, 2 torn; 26 messages",
    ),
    "a message doubled": (
        f"{_APPEND}Peer.append(self, key, [*messages, Message.user(messages[0].text)])",
        "of 7 turns 0 lost, 0 torn, 2 doubled; 30 messages",
    ),
    "an append refused": (f"{_APPEND}raise OSError('full')", "refused: {'OSError': 2}"),
    "a fill refused": (f"{_FILL}raise OSError('full')", "OSError: full"),
    "another history": ("def resume(self, key): return 50", "adapter read 50 messages of 20"),
    "no history": ("def last(self, key, limit): return 0", "history-20-0 has no messages"),
}
_ROWS = ["resume, new process", "newest 50", "append a turn"]


def _results(
    directory: Path,
    change: str = "pass",
    *,
    entry: FrameworkEntry = _ENTRY,
    sizes: PeerSizes = _SIZES,
) -> list[Result]:
    """Measure a package of two stores, the second of which is changed."""
    package = directory / "pair"
    package.mkdir()
    (package / "__init__.py").write_text(_DRIVER.format(change=change))
    python = Path(sys.executable)
    installed = tuple(
        Installed(name, python, package.name, variant, (package,))
        for name, variant in ((entry.own, "Own"), (entry.adapter, "Adapter"))
    )
    return list(pair.Pair(entry, PeerRun(installed, sizes, directory / "run")).results())


def _failures(results: Sequence[Result]) -> list[str]:
    return [result.figure for result in results if result.figure.startswith("failed: ")]


def test_each_length_has_a_resume_a_read_and_an_append(tmp_path: Path) -> None:
    sizes = msgspec.structs.replace(_SIZES, histories=(20, 60))
    durability, *rows = _results(tmp_path, sizes=sizes)
    assert durability.what == f"Framework {_ENTRY.version}: syncs of a turn"
    assert "adapter (power): " in durability.figure
    assert [row.what for row in rows] == [
        *(f"Framework: {_ROWS[0]}, {length} messages" for length in (20, 60)),
        *(f"Framework: {what}, {length} messages" for length in (20, 60) for what in _ROWS[1:]),
    ]
    assert all(row.value > 0 and row.ratio and row.of == "own" for row in rows)
    assert [row.met for row in rows] == [None, None, True, None, True, None]


def test_a_read_that_takes_too_long_misses_its_bar(tmp_path: Path) -> None:
    entry = msgspec.structs.replace(_ENTRY, newest_at_most=0.0)
    assert [row.met for row in _results(tmp_path, entry=entry)].count(False) == 1


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_store_that_does_not_keep_or_read_all_has_failed(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, failure = _FAULTS[fault]
    monkeypatch.setenv("PATH", str(tmp_path))  # No tracer is there: nothing is traced.
    assert f"failed: {failure}" in _failures(_results(tmp_path, change))


def test_a_history_is_as_long_as_the_slower_store_made_it(tmp_path: Path) -> None:
    """What is printed is what both have, not what was asked for."""
    slow = "pass\n\nclass Own(Own):\n    def fill(self, key, turns):\n"
    slow += "        Peer.fill(self, key, iter([next(turns), next(turns)]))\n        next(turns, 0)"
    results = _results(tmp_path, slow)
    assert not _failures(results)
    assert [result.what for result in results[1:]] == [
        f"Framework: {what}, 8 messages" for what in _ROWS
    ]


# ------------------------------------------------------------------------------- what is measured


def test_a_framework_that_cannot_be_installed_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: str) -> None:
        raise environments.NotInstalled("no such version")

    monkeypatch.setattr(frameworks, "environments_directory", lambda: tmp_path)
    monkeypatch.setattr(environments, "run_command", fail)
    found = list(run.FRAMEWORK_BENCHMARKS["frameworks"](Plan(plans.QUICK, tmp_path)))
    assert [(result.what, result.figure) for result in found] == [
        (entry.title, "skipped: no such version") for entry in ENTRIES
    ]


def test_the_frameworks_are_measured_only_on_request() -> None:
    assert set(run.FRAMEWORK_BENCHMARKS) <= set(bench_main.ON_REQUEST)
    assert not set(run.FRAMEWORK_BENCHMARKS) & set(bench_main.BENCHMARKS)


def test_a_framework_has_a_driver_with_both_of_its_stores() -> None:
    scripts = {path.stem: ast.parse(path.read_text()) for path in _DRIVERS.glob("*.py")}
    for entry in ENTRIES:
        classes = [node.name for node in scripts[entry.name].body if isinstance(node, ast.ClassDef)]
        assert classes == ["Own", "Adapter"]
    assert set(scripts) - {entry.name for entry in ENTRIES} == {"__init__", "store"}


def test_all_lengths_are_whole_turns() -> None:
    lengths = [length for entry in ENTRIES for length in entry.histories]
    assert not any(length % MESSAGES_PER_TURN for length in lengths)
    (langgraph,) = (entry for entry in ENTRIES if entry.name == "langgraph")
    assert langgraph.label("put a step", 8_000) == "LangGraph: put a step, 2,000 turns"
