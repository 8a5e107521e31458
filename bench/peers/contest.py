"""One measurement of all stores: their drivers run side by side, and one that fails drops out.

A ratio is the median over the rounds that both took part in, as in `bench.measure`.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from bench.measure import Result, Times, alternate
from bench.peers.catalog import HOLDFAST
from bench.peers.driver_process import DriverFailed, DriverProcess, Installed

T = TypeVar("T")
_MILLISECONDS_FROM_S: Final = 0.01


class PeerSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a run; seconds are bounds for slow stores."""

    histories: tuple[int, ...]
    rounds: int
    turns_a_round: int
    round_seconds: float
    store_seconds: float
    fill_seconds: float
    traced_turns: int
    starts: int
    writers: int
    writer_seconds: float
    kills: int
    sessions: int
    searched: int
    queries: int
    forked: int
    forks: int


FULL: Final = PeerSizes(
    histories=(0, 1_000, 100_000),
    rounds=15,
    turns_a_round=10,
    round_seconds=3.0,
    store_seconds=25.0,
    fill_seconds=60.0,
    traced_turns=50,
    starts=5,
    writers=8,
    writer_seconds=5.0,
    kills=20,
    sessions=10_000,
    searched=200_000,
    queries=10,
    forked=10_000,
    forks=3,
)
QUICK: Final = PeerSizes(
    histories=(0, 400),
    rounds=3,
    turns_a_round=5,
    round_seconds=0.5,
    store_seconds=2.0,
    fill_seconds=2.0,
    traced_turns=5,
    starts=1,
    writers=3,
    writer_seconds=0.5,
    kills=2,
    sessions=100,
    searched=1_000,
    queries=2,
    forked=200,
    forks=1,
)


class PeerRun(msgspec.Struct, frozen=True):
    """The stores that are here, Holdfast first, the sizes, and where their files go."""

    installed: tuple[Installed, ...]
    sizes: PeerSizes
    directory: Path

    def directory_of(self, part: str, installed: Installed) -> Path:
        """Return the directory of a store in a measurement."""
        return self.directory / part / installed.name.replace(" ", "-")


class Contest:
    """The drivers of one measurement, by the names of their stores, and why others failed."""

    def __init__(self) -> None:
        self.drivers: dict[str, DriverProcess] = {}
        self.failures: dict[str, str] = {}

    def attempt(self, name: str, work: Callable[[DriverProcess], T]) -> T | None:
        """Do something with a store's driver; `None` if it has failed before or fails now."""
        driver = self.drivers.get(name)
        if driver is None:
            return None
        try:
            return work(driver)
        except DriverFailed as error:
            if name == HOLDFAST.name:
                raise
            self.failures[name] = str(error)
            self.drivers.pop(name).kill()
            return None

    def all_at_once(self, work: Callable[[DriverProcess], T]) -> dict[str, T]:
        """Do what is not timed with all drivers, some at a time; return what they returned."""
        names = list(self.drivers)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda name: self.attempt(name, work), names)
        return {
            name: result for name, result in zip(names, found, strict=True) if result is not None
        }

    def rounds(
        self, count: int, work: Callable[[DriverProcess], Times], seconds: float
    ) -> dict[str, list[Times]]:
        """Run rounds in alternating order; a store that has used its seconds sits out."""
        used = dict.fromkeys(self.drivers, 0.0)

        def round_of(name: str) -> Callable[[], Times]:
            def run() -> Times:
                if used[name] > seconds:
                    return []
                times = self.attempt(name, work) or []
                used[name] += sum(times)
                return times

            return run

        names = list(self.drivers)
        found = alternate(count, *map(round_of, names))
        return {name: times for name, times in zip(names, found, strict=True) if any(times)}


@contextmanager
def contest(run: PeerRun, part: str, can: str | None = None) -> Iterator[Contest]:
    """Start the drivers of a measurement, of those stores that can do it."""
    found = Contest()
    with ExitStack() as stack:
        for installed in run.installed:
            try:
                driver = DriverProcess(installed, run.directory_of(part, installed))
            except DriverFailed as error:
                found.failures[installed.name] = str(error)
                continue
            stack.enter_context(driver)
            if can is None or can in driver.can:
                found.drivers[installed.name] = driver
            else:
                driver.close()
        yield found


def median(rounds: Sequence[Times]) -> float:
    """Return the median of all operations of the rounds that took place."""
    return statistics.median(seconds for times in rounds for seconds in times)


def ratio(theirs: Sequence[Times], ours: Sequence[Times]) -> float:
    """Return the median of the ratios of the rounds that both took part in."""
    return statistics.median(
        statistics.median(one) / statistics.median(other)
        for one, other in zip(theirs, ours, strict=True)
        if one and other
    )


def duration(seconds: float) -> str:
    """Format a time in the unit that fits."""
    if seconds < _MILLISECONDS_FROM_S:
        return f"{seconds * 1e6:,.0f} µs"
    return f"{seconds * 1e3:,.0f} ms"


def timed_rows(
    part: str,
    found: dict[str, list[Times]],
    label: Callable[[str], str],
    note: Callable[[str], str] = lambda _: "",
    rivals: frozenset[str] | None = None,
) -> Iterator[Result]:
    """Yield a row for each store; Holdfast's has a bar: it is not slower than any rival."""
    ours = found[HOLDFAST.name]
    others = [
        median(rounds)
        for name, rounds in found.items()
        if name != HOLDFAST.name and (rivals is None or name in rivals)
    ]
    for name, rounds in found.items():
        value = median(rounds)
        is_ours = name == HOLDFAST.name
        yield Result(
            name=part,
            what=label(name),
            value=value,
            figure=f"{duration(value)}{note(name)}",
            ratio=None if is_ours else ratio(rounds, ours),
            of=HOLDFAST.name,
            bar="≤ every peer" if is_ours and others else "",
            met=value <= min(others) if is_ours and others else None,
        )


def failure_rows(part: str, failed: Contest) -> Iterator[Result]:
    """Yield a row for each store that failed."""
    for name, reason in failed.failures.items():
        yield Result(name=part, what=f"{part}: {name}", value=0, figure=f"failed: {reason}")
