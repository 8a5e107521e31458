"""`python -m bench [--quick] [--json FILE] [--dir DIR] [name …]`: run and print.

The report is a Markdown table, one line per figure, printed as it is measured. The exit code is 0
also when a bar is missed: that is a result, not a failure of the run.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Final

import apsw
import msgspec

import holdfast
from bench import (
    appends,
    branches,
    callers,
    head_moves,
    postgres,
    postgres_sessions,
    processes,
    purge,
    reads,
    records,
    search,
    startup,
    transfer,
    windows,
)
from bench.frameworks.run import FRAMEWORK_BENCHMARKS
from bench.measure import TIMES, Result
from bench.peers.run import PEER_BENCHMARKS
from bench.plan import FULL, QUICK, Plan
from holdfast.storage.sqlite.location import filesystem_of

_WIDTHS: Final = (52, 58, 22, 18, 6)
BENCHMARKS: Final[dict[str, Callable[[Plan], Iterator[Result]]]] = {
    "append": appends.append,
    "flat": appends.flat,
    "turn": appends.turn,
    "callers": callers.callers,
    "slow-disk": callers.slow_disk,
    "processes": processes.processes,
    "resume": reads.resume,
    "history": reads.history,
    "list": reads.listing,
    "search": search.search,
    "window": windows.window,
    "size": reads.size,
    "fork": head_moves.fork,
    "move": head_moves.move,
    "replace": head_moves.replace,
    "across": branches.across,
    "chain": branches.chain,
    "purge": purge.purge,
    "records": records.records,
    "carry": transfer.carry,
    "start": startup.start,
    "bulk": postgres.bulk,
    "postgres": postgres.postgres,
    "postgres-sessions": postgres_sessions.postgres_sessions,
}
# Not by default: they install other projects.
ON_REQUEST: Final = {**PEER_BENCHMARKS, **FRAMEWORK_BENCHMARKS}


def main(arguments: list[str]) -> int:
    """Run the selected benchmarks and return the exit code."""
    options = _parse(arguments)
    # A run that is terminated (by a time limit, say) cleans up, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.dir) as made:
        directory = Path(made).resolve()
        plan = Plan(QUICK if options.quick else FULL, directory)
        print(_surroundings(directory, quick=options.quick))
        _print_row("what", "figure", "ratio", "bar", "")
        _print_row(*("-" * width for width in _WIDTHS))
        for name in options.names or BENCHMARKS:
            results += _printed({**BENCHMARKS, **ON_REQUEST}[name](plan))
    missed = sum(result.met is False for result in results)
    judged = sum(result.met is not None for result in results)
    print(f"\n{judged - missed} of {judged} bars met, {missed} missed.")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return 0


def _printed(found: Iterator[Result]) -> list[Result]:
    """Print results as they come and return them; the benchmark is closed in any case."""
    results = []
    try:
        for result in found:
            results.append(result)
            _print(result)
    finally:
        # The directory is about to be removed, and a server may run in it.
        if isinstance(found, Generator):
            found.close()
    return results


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    known = [*BENCHMARKS, *ON_REQUEST]
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"{', '.join(BENCHMARKS)}; only on request: {', '.join(ON_REQUEST)}",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run, in a minute or two")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument(
        "--dir", type=Path, default=_disk(), help="directory on the disk to measure"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in known:
            parser.error(f"unknown benchmark {name!r}; choose from {', '.join(known)}")
    return options


def _disk() -> Path:
    """Return a directory that is, if possible, not in memory."""
    kept = Path("/var/tmp")  # noqa: S108 - only the parent of a private temporary directory
    return kept if os.access(kept, os.W_OK) else Path(tempfile.gettempdir())


def _surroundings(directory: Path, *, quick: bool) -> str:
    mounts = Path("/proc/self/mountinfo")
    kind = filesystem_of(directory, mounts.read_text()) if mounts.exists() else None
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"Holdfast {holdfast.__version__}, SQLite {apsw.sqlite_lib_version()}, Python "
        f"{platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {kind or 'unknown'} file system, load {load}, "
        f"{time.strftime('%Y-%m-%d')}{', quick' if quick else ''}\n"
    )


def _print(result: Result) -> None:
    ratio = "" if result.ratio is None else f"{result.ratio:.2f} {TIMES} {result.of}"
    _print_row(result.what, result.figure, ratio, result.bar, result.verdict)


def _print_row(*cells: str) -> None:
    padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    print(f"| {' | '.join(padded)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
