"""Several writers of one session, and writers that are killed: what is refused, lost and torn.

A writer that is refused goes on with its next turn, without a retry. A history is read by a new
process after all writers have ended.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import msgspec

from bench.measure import Result
from bench.peers.catalog import HOLDFAST
from bench.peers.contest import PeerRun, duration
from bench.peers.driver_process import DriverFailed, DriverProcess, Installed, opened
from bench.peers.turns import MESSAGES_PER_TURN, Mark
from bench.peers.verdict import Verdict, judge

_KEY: Final = "shared"
_FOREVER: Final = 10**9
_KILL_WITHIN_S: Final = 0.2


def writers(run: PeerRun) -> Iterator[Result]:
    """Let several processes append to one session for some seconds."""
    rates: dict[str, float] = {}
    ours = 0.0
    for installed in run.installed:
        try:
            written = _written(run, installed)
        except DriverFailed as error:
            yield _failed("writers", installed, error)
            continue
        is_ours = installed.name == HOLDFAST.name
        ours = written.rate if is_ours else ours
        if written.flawless and not is_ours:
            rates[installed.name] = written.rate
        yield Result(
            name="writers",
            what=f"{run.sizes.writers} writers, one session: {installed.name}",
            value=written.rate,
            figure=str(written),
            ratio=None if is_ours else written.rate / ours,
            of=HOLDFAST.name,
            bar="0 lost, torn" if is_ours else "",
            met=written.flawless if is_ours else None,
        )
    if rates:
        best = max(rates, key=lambda name: rates[name])
        yield Result(
            name="writers",
            what=f"the same: {HOLDFAST.name} beside the fastest without a flaw",
            value=ours,
            figure=f"{ours:,.0f} turns/s ({best}: {rates[best]:,.0f})",
            ratio=ours / rates[best],
            of=best,
            bar="≥ every peer",
            met=ours >= rates[best],
        )


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """What several writers stored together, and how long they took."""

    turns: int
    seconds: float
    worst: float
    refused: Counter[str]
    verdict: Verdict

    @property
    def rate(self) -> float:
        """Turns in a second."""
        return self.turns / self.seconds

    @property
    def flawless(self) -> bool:
        """Whether nothing was refused and nothing went wrong."""
        return self.verdict.flawless and not self.refused

    def __str__(self) -> str:
        """Return the figure of the report."""
        refused = "".join(f", {count:,} refused ({name})" for name, count in self.refused.items())
        messages = self.turns * MESSAGES_PER_TURN
        return (
            f"{self.rate:,.0f} turns/s, worst {duration(self.worst)}; "
            f"of {messages:,} messages {self.verdict}{refused}"
        )


def _written(run: PeerRun, installed: Installed) -> _Written:
    sizes = run.sizes
    directory = run.directory_of("writers", installed)
    with opened(installed, directory, _KEY):
        pass
    with ExitStack() as stack:
        start = partial(DriverProcess, installed, directory)
        with ThreadPoolExecutor(sizes.writers) as pool:
            numbers = range(sizes.writers)
            drivers = list(pool.map(lambda _: stack.enter_context(start()), numbers))
        for driver in drivers:
            driver.open(_KEY)
        began = time.perf_counter()
        for number, driver in enumerate(drivers):
            driver.send(
                "append",
                key=_KEY,
                writer=f"w{number}",
                first=0,
                turns=_FOREVER,
                seconds=sizes.writer_seconds,
            )
        answers = [driver.receive() for driver in drivers]
        taken = time.perf_counter() - began
    stored = {(f"w{n}", turn) for n, answer in enumerate(answers) for turn in answer["stored"]}
    refused: Counter[str] = sum((Counter(answer["refused"]) for answer in answers), Counter())
    return _Written(
        turns=len(stored),
        seconds=taken,
        worst=max((seconds for answer in answers for seconds in answer["times"]), default=0.0),
        refused=refused,
        verdict=judge(stored, history(run, "writers", installed)),
    )


def history(run: PeerRun, part: str, installed: Installed) -> list[Mark | None]:
    """Return the marks of the shared session, read by a new process."""
    with opened(installed, run.directory_of(part, installed), _KEY) as driver:
        marks: list[Any] = driver.ask("history", key=_KEY)["marks"]
    return [None if mark is None else Mark(*mark) for mark in marks]


def kills(run: PeerRun) -> Iterator[Result]:
    """Kill a writer in the middle of its appends, several times, and read what is there."""
    for installed in run.installed:
        try:
            yield _killed(run, installed)
        except DriverFailed as error:
            yield _failed("kills", installed, error)


def _killed(run: PeerRun, installed: Installed) -> Result:
    chance = random.Random(20)
    stored: set[tuple[str, int]] = set()
    unopened = 0
    for number in range(run.sizes.kills):
        try:
            stored |= _one_killed(run, installed, f"k{number}", chance.uniform(0, _KILL_WITHIN_S))
        except DriverFailed:
            unopened += 1
    directory = run.directory_of("kills", installed)
    litter = sum(1 for path in (directory / "store").rglob("*") if path.suffix == ".tmp")
    verdict: Verdict = judge(stored, history(run, "kills", installed))
    ours = installed.name == HOLDFAST.name
    return Result(
        name="kills",
        what=f"kill -9, {run.sizes.kills} times: {installed.name}",
        value=verdict.lost + verdict.torn,
        figure=f"of {MESSAGES_PER_TURN * len(stored):,} messages {verdict}"
        + (f"; {litter} temporary files left" if litter else "")
        + (f"; {unopened} times not opened" if unopened else ""),
        bar="0 lost, torn" if ours else "",
        met=verdict.flawless and not unopened if ours else None,
    )


def _one_killed(
    run: PeerRun, installed: Installed, writer: str, seconds: float
) -> set[tuple[str, int]]:
    """Kill a writer some seconds after its first turn; return what it acknowledged."""
    with opened(installed, run.directory_of("kills", installed), _KEY) as driver:
        driver.send(
            "append",
            key=_KEY,
            writer=writer,
            first=0,
            turns=_FOREVER,
            seconds=60.0,
            acknowledge=True,
        )
        first: int = driver.receive()["stored"]
        time.sleep(seconds)
        driver.kill()
        return {(writer, number) for number in (first, *driver.acknowledged())}


def _failed(part: str, installed: Installed, error: DriverFailed) -> Result:
    return Result(name=part, what=f"{part}: {installed.name}", value=0, figure=f"failed: {error}")
