"""Appends by length of the session, the last messages in a new process, and syncs of a turn.

The lengths are sessions of one store. An append is timed around the store's own call, by one caller
in its process; between two rounds the drivers of the other stores run. So the first append of a
round finds cold caches, as one does after the pause in which a model answers: its median is printed
beside the median of all.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench.measure import Result, Times
from bench.peers.catalog import HOLDFAST, PEERS
from bench.peers.contest import (
    Contest,
    PeerRun,
    contest,
    duration,
    failure_rows,
    timed_rows,
)
from bench.peers.driver_process import DriverFailed, DriverProcess, Installed
from bench.peers.turns import MESSAGES_PER_TURN

_PAGE: Final = 50
_DURABILITY: Final = {entry.name: entry.durability for entry in PEERS}
_VERSIONS: Final = {
    entry.name: entry.requirements[0].partition("==")[2] for entry in PEERS if entry.requirements
}
_TRACE: Final = ("strace", "--seccomp-bpf", "-f", "-e", "trace=fsync,fdatasync,getsid")
_MARK: Final = "getsid("
_SYNC: Final = re.compile(r"\b(?:fsync|fdatasync)\(")


def durability(run: PeerRun) -> Iterator[Result]:
    """Count the syncs of a turn, where strace is here and may trace."""
    for installed in run.installed:
        syncs = None
        try:
            syncs = syncs_of_a_turn(run, installed)
            counted = f"{syncs:.1f} syncs a turn"
        except (DriverFailed, OSError) as error:
            counted = f"syncs not counted ({error})"
        judged = installed.name == HOLDFAST.name and syncs is not None
        yield Result(
            name="durability",
            what=f"{installed.name} {_VERSIONS.get(installed.name, '')}".rstrip(),
            value=syncs or 0.0,
            figure=f"{counted}: {_DURABILITY[installed.name]}",
            bar="1" if judged else "",
            met=syncs == 1 if judged else None,
        )


def syncs_of_a_turn(run: PeerRun, installed: Installed) -> float:
    """Append turns under strace and return the syncs of each; raise OSError without strace."""
    directory = run.directory_of("durability", installed)
    directory.mkdir(parents=True)
    trace = directory / "trace"
    with DriverProcess(installed, directory, trace=(*_TRACE, "-o", str(trace))) as driver:
        driver.open("traced")
        append_turns(driver, "traced", range(5), 60.0)
        driver.ask("mark")
        append_turns(driver, "traced", range(5, 5 + run.sizes.traced_turns), 60.0)
        driver.ask("mark")
    return syncs_between_marks(trace) / run.sizes.traced_turns


def syncs_between_marks(trace: Path) -> int:
    """Return the syncs in a trace of system calls, between its two marks."""
    counts = [0]
    for line in trace.read_text().splitlines():
        if _MARK in line:
            counts.append(0)
        # A call that another thread interrupts is on two lines, the second of which says resumed.
        elif _SYNC.search(line):
            counts[-1] += 1
    _, between, _ = counts
    return between


def append(run: PeerRun) -> Iterator[Result]:
    """Fill sessions, append turns to each, then open the longest one in new processes."""
    sizes = run.sizes
    with contest(run, "append") as field:
        lengths = {
            length: field.all_at_once(partial(_fill, run, length)) for length in sizes.histories
        }
        counter = _TurnCounter()
        for length, reached in lengths.items():
            field.rounds(1, partial(counter.append, length, 1, sizes.round_seconds), 0.0)
            work = partial(counter.append, length, sizes.turns_a_round, sizes.round_seconds)
            found = field.rounds(sizes.rounds, work, sizes.store_seconds)
            yield from _append_rows(found, reached)
    yield from failure_rows("append", field)
    yield from _last(run, sizes.histories[-1], lengths[sizes.histories[-1]])


def _key(length: int) -> str:
    return f"history-{length}"


def _fill(run: PeerRun, length: int, driver: DriverProcess) -> int:
    """Fill a session; return how many messages it has, which may be fewer."""
    if not length:
        return 0
    key = _key(length)
    driver.open(key)
    turns = length // MESSAGES_PER_TURN
    given: int = driver.ask("fill", key=key, turns=turns, seconds=run.sizes.fill_seconds)["turns"]
    return given * MESSAGES_PER_TURN


class _TurnCounter:
    """Appends turns that no session has yet; each round at length 0 begins a session."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = defaultdict(int)

    def append(self, length: int, turns: int, seconds: float, driver: DriverProcess) -> Times:
        """Append a round of turns to the session of a length; return the seconds of each."""
        first = self._numbers[driver.name]
        self._numbers[driver.name] = first + turns
        key = _key(length)
        if not length:
            key = f"{key}-{first}"
            driver.open(key)
        return append_turns(driver, key, range(first, first + turns), seconds)


def append_turns(driver: DriverProcess, key: str, numbers: range, seconds: float) -> Times:
    """Append turns until the seconds are over; return the seconds of each."""
    work = {"writer": "one", "first": numbers.start, "turns": len(numbers), "seconds": seconds}
    answer = driver.ask("append", key=key, **work)
    if answer["refused"]:
        raise DriverFailed(f"refused: {answer['refused']}")
    times: Times = answer["times"]
    return times


def _append_rows(found: dict[str, list[Times]], reached: dict[str, int]) -> Iterator[Result]:
    def note(name: str) -> str:
        rounds = [times for times in found[name] if times]
        cold = statistics.median(times[0] for times in rounds)
        few = sum(map(len, rounds))
        return f"; first of a round {duration(cold)}" + (f" ({few} turns)" if few < 10 else "")

    yield from timed_rows(
        "append",
        found,
        lambda name: f"append at {reached[name]:,}: {name}",
        note,
        rivals=frozenset(entry.name for entry in PEERS if entry.syncs),
    )


def _last(run: PeerRun, length: int, reached: dict[str, int]) -> Iterator[Result]:
    """Read the last messages of the longest session in new processes, in alternating rounds."""
    imports: dict[str, Times] = defaultdict(list)
    reads: dict[str, Times] = defaultdict(list)
    failed = Contest()
    for number in range(run.sizes.starts + 1):
        for installed in run.installed if number % 2 else reversed(run.installed):
            if installed.name in failed.failures or installed.name not in reached:
                continue
            try:
                imported, read = _start(run, installed, _key(length))
            except DriverFailed as error:
                failed.failures[installed.name] = str(error)
                continue
            if number:  # The first one warms up.
                imports[installed.name].append(imported)
                reads[installed.name].append(read)
    together = {
        name: [[one + other] for one, other in zip(imports[name], reads[name], strict=True)]
        for name in reads
    }
    yield from timed_rows(
        "last",
        together,
        lambda name: f"last {_PAGE} of {reached[name]:,}, new process: {name}",
        lambda name: (
            f" (import {duration(statistics.median(imports[name]))}, "
            f"open and read {duration(statistics.median(reads[name]))})"
        ),
    )
    yield from failure_rows("last", failed)


def _start(run: PeerRun, installed: Installed, key: str) -> tuple[float, float]:
    with DriverProcess(installed, run.directory_of("append", installed)) as driver:
        opened = driver.open(key)
        answer = driver.ask("measure", method="last", arguments=[key, _PAGE], times=1, seconds=0)
        if not _PAGE - MESSAGES_PER_TURN <= answer["result"] <= _PAGE:
            raise DriverFailed(f"read {answer['result']} messages instead of {_PAGE}")
        return driver.imported, opened + sum(answer["times"])
