"""Start-up: what `import holdfast`, and resuming a session, add to the interpreter; the command.

The interpreters compile into a directory of this run and find everything compiled when measured, as
an installed package is, whatever the environment says about writing compiled files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.measure import TIMES, Result, Times, alternate, median, millis, ratio, timed
from bench.plan import KEY, Plan

_IMPORT_BAR: Final = 0.060
_COMMAND_BARS: Final = {"--version": 0.120, "ls": 0.250}
_RESUME_BAR: Final = 0.035
_FEW: Final = 50
_LS_FLAT: Final = 1.2
_RESUMED: Final = 1_000  # messages

_RESUME: Final = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as store:
    assert len(store.session(sys.argv[2]).messages(limit=50)) == 50
"""


def start(plan: Plan) -> Iterator[Result]:
    """Start new interpreters in alternating rounds."""
    number = plan.sizes.lists[0]
    many, few = plan.many_sessions(number), plan.many_sessions(_FEW)
    script = str(Path(sys.executable).with_name("holdfast"))
    commands = {
        "nothing": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import holdfast"],
        "resume": [sys.executable, "-c", _RESUME, str(plan.history(_RESUMED)), KEY],
        "--version": [script, "--version"],
        "ls": [script, "ls", "--store", str(many)],
        "ls of few": [script, "ls", "--store", str(few)],
    }
    surroundings = _surroundings(plan.directory / "compiled")
    works = [_start(command, surroundings) for command in commands.values()]
    alternate(1, *works)
    found = dict(zip(commands, alternate(plan.sizes.starts, *works), strict=True))
    yield _added("import holdfast", _IMPORT_BAR, found["import"], found["nothing"])
    what = "import + open + last 50, new process"
    yield _added(what, _RESUME_BAR, found["resume"], found["nothing"])
    for name, bar in _COMMAND_BARS.items():
        yield _command(name, bar, found[name], found["nothing"])
    yield _flat(number, ratio(found["ls"], found["ls of few"]))


def _added(what: str, bar: float, rounds: Sequence[Times], nothing: Sequence[Times]) -> Result:
    added = median(rounds) - median(nothing)
    return Result(
        name="start",
        what=what,
        value=added,
        figure=f"{millis(added)} (interpreter alone: {millis(median(nothing))})",
        ratio=median(rounds) / median(nothing),
        of="python -c pass",
        bar=f"≤ {bar * 1e3:g} ms",
        met=added <= bar,
    )


def _command(name: str, bar: float, rounds: Sequence[Times], nothing: Sequence[Times]) -> Result:
    return Result(
        name="start",
        what=f"holdfast {name}, whole process",
        value=median(rounds),
        figure=millis(median(rounds)),
        ratio=median(rounds) / median(nothing),
        of="python -c pass",
        bar=f"≤ {bar * 1e3:g} ms",
        met=median(rounds) <= bar,
    )


def _flat(number: int, growth: float) -> Result:
    return Result(
        name="start",
        what=f"the same: ls of {number:,} sessions against {_FEW}",
        value=growth,
        figure=f"{growth:.2f} {TIMES}",
        ratio=growth,
        of=f"at {_FEW}",
        bar=f"≤ {_LS_FLAT} {TIMES} at {_FEW}",
        met=growth <= _LS_FLAT,
    )


def _surroundings(compiled: Path) -> dict[str, str]:
    """Return an environment in which interpreters keep compiled files in this directory."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(compiled)}


def _start(command: Sequence[str], surroundings: dict[str, str]) -> Callable[[], Times]:
    def run() -> None:
        subprocess.run(command, check=True, capture_output=True, env=surroundings)

    return lambda: [timed(run)]
