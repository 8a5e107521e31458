"""Measuring side by side, and what a measurement found.

Those who compete take turns in rounds, so that whatever else the machine does hits all of them. Who
follows itself, or its like, finds everything warm; so the order is shuffled, and every other round
is the one before backwards. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

Times = list[float]
"""The seconds of each operation of a round."""

TIMES: Final = "\N{MULTIPLICATION SIGN}"
MET: Final = "met"
MISSED: Final = "MISSED"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report. `met` is `None` where there is no bar."""

    name: str
    what: str
    value: float
    figure: str
    ratio: float | None = None
    of: str = "bare"
    bar: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """Whether the bar was met, in a word."""
        return {True: MET, False: MISSED, None: ""}[self.met]


def alternate(rounds: int, *works: Callable[[], Times]) -> list[list[Times]]:
    """Run works in rounds; give for each work its rounds."""
    found: list[list[Times]] = [[] for _ in works]
    for number in range(rounds):
        order = list(range(len(works)))
        random.Random(number // 2).shuffle(order)
        for index in reversed(order) if number % 2 else order:
            found[index].append(works[index]())
    return found


def timed(work: Callable[[], object]) -> float:
    """Run once; give the seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median(rounds: Sequence[Times]) -> float:
    """Return the median of all operations."""
    return statistics.median(seconds for times in rounds for seconds in times)


def mean(rounds: Sequence[Times]) -> float:
    """Return the mean of all operations: whatever happens now and then is in it."""
    return statistics.fmean(seconds for times in rounds for seconds in times)


def ratio(ours: Sequence[Times], theirs: Sequence[Times]) -> float:
    """Compare round by round."""
    return statistics.median(
        statistics.median(one) / statistics.median(other)
        for one, other in zip(ours, theirs, strict=True)
    )


def micros(seconds: float) -> str:
    """Show a short time."""
    return f"{seconds * 1e6:,.0f} µs"


def millis(seconds: float) -> str:
    """Show a longer time."""
    return f"{seconds * 1e3:,.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"
