"""Starting: what `import holdfast` adds to the interpreter, and how long the command takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.measure import Result, Times, alternate, median, millis, timed
from bench.plan import Plan

_IMPORT_BAR: Final = 0.060
_COMMAND_BARS: Final = {"--version": 0.120, "ls": 0.250}


def start(plan: Plan) -> Iterator[Result]:
    """Start new interpreters in turns."""
    store = str(plan.many_sessions(plan.sizes.lists[0]))
    commands = {
        "--version": ["--version"],
        "ls": ["ls", "--store", store],
    }
    script = str(Path(sys.executable).with_name("holdfast"))
    there = [name for name, arguments in commands.items() if _works([script, *arguments])]
    nothing, imported, *ran = alternate(
        plan.sizes.starts,
        _start([sys.executable, "-c", "pass"]),
        _start([sys.executable, "-c", "import holdfast"]),
        *(_start([script, *commands[name]]) for name in there),
    )
    added = median(imported) - median(nothing)
    yield Result(
        name="start",
        what="import holdfast",
        value=added,
        figure=f"{millis(added)} (interpreter alone: {millis(median(nothing))})",
        ratio=median(imported) / median(nothing),
        of="python -c pass",
        bar=f"≤ {_IMPORT_BAR * 1e3:g} ms",
        met=added <= _IMPORT_BAR,
    )
    for name, rounds in zip(there, ran, strict=True):
        yield Result(
            name="start",
            what=f"holdfast {name}, whole process",
            value=median(rounds),
            figure=millis(median(rounds)),
            ratio=median(rounds) / median(nothing),
            of="python -c pass",
            bar=f"≤ {_COMMAND_BARS[name] * 1e3:g} ms",
            met=median(rounds) <= _COMMAND_BARS[name],
        )
    for name in commands.keys() - set(there):
        yield Result(
            name="start", what=f"holdfast {name}", value=0.0, figure="the command does not run"
        )


def _start(command: list[str]) -> Callable[[], Times]:
    return lambda: [timed(lambda: subprocess.run(command, check=True, capture_output=True))]


def _works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
