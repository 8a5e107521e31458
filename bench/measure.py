"""Side-by-side measurements and their results.

The compared functions alternate in rounds, so that other load on the machine affects all of them. A
function that follows itself, or a similar one, finds warm caches; so the order is shuffled, and
every other round is the one before in reverse. A ratio is the median of the rounds' ratios.
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
        """Whether the bar was met, as text; empty without a bar."""
        return {True: MET, False: MISSED, None: ""}[self.met]


def alternate(rounds: int, *works: Callable[[], Times]) -> list[list[Times]]:
    """Run functions in alternating rounds; return the rounds of each."""
    found: list[list[Times]] = [[] for _ in works]
    for number in range(rounds):
        order = list(range(len(works)))
        random.Random(number // 2).shuffle(order)
        for index in reversed(order) if number % 2 else order:
            found[index].append(works[index]())
    return found


def timed(work: Callable[[], object]) -> float:
    """Run once; return the seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median(rounds: Sequence[Times]) -> float:
    """Return the median of all operations."""
    return statistics.median(seconds for times in rounds for seconds in times)


def mean(rounds: Sequence[Times]) -> float:
    """Return the mean of all operations, rare slow ones included."""
    return statistics.fmean(seconds for times in rounds for seconds in times)


def ratio(ours: Sequence[Times], theirs: Sequence[Times]) -> float:
    """Return the median of the ratios of corresponding rounds."""
    return statistics.median(
        statistics.median(one) / statistics.median(other)
        for one, other in zip(ours, theirs, strict=True)
    )


def micros(seconds: float) -> str:
    """Format a time in microseconds."""
    return f"{seconds * 1e6:,.0f} µs"


def millis(seconds: float) -> str:
    """Format a time in milliseconds."""
    return f"{seconds * 1e3:,.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"
