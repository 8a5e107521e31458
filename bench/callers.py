"""Many asyncio callers of one process, each with a session of its own, each turn synced.

The bare engine commits the same turns one by one in a loop. A second pair runs on a disk whose
syncs take a millisecond longer, where sharing them counts most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import apsw

from bench import bare, material
from bench.counting_vfs import slow_syncs
from bench.measure import TIMES, Result, Times, alternate, median, ratio
from bench.plan import Plan
from holdfast import AsyncSession, AsyncStore, Message, Store
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.url import Durability, Location

_ENOUGH: Final = 64
_RATE_BAR: Final = 10_000
_BARS: Final = {1: 0.6, _ENOUGH: 2.0}
_SLOW_BARS: Final = {_ENOUGH: 10.0}
_ROUNDS: Final = 7


def callers(plan: Plan) -> Iterator[Result]:
    """Callers on this disk as it is."""
    for result in _callers(plan, "callers", "", None, _BARS):
        yield result
        if f"{_ENOUGH} asyncio" in result.what:
            yield Result(
                name="callers",
                what=f"{_ENOUGH} asyncio callers, where a sync takes 0.15 ms",
                value=result.value,
                figure=f"{result.value:,.0f} turns/s (a sync here: {_sync_time(plan)})",
                bar=f"≥ {_RATE_BAR:,} turns/s",
                met=result.value >= _RATE_BAR,
            )


def slow_disk(plan: Plan) -> Iterator[Result]:
    """Callers on a disk whose syncs take a millisecond longer."""
    with slow_syncs(0.001) as vfs:
        yield from _callers(plan, "slow-disk", ", 1 ms added to a sync", vfs, _SLOW_BARS)


def _callers(
    plan: Plan, name: str, added: str, vfs: str | None, bars: Mapping[int, float]
) -> Iterator[Result]:
    with asyncio.Runner() as runner:
        connection = bare.connect(plan.path("bare-callers"), vfs=vfs)
        store = _open(plan.path("callers"), vfs)
        for number in plan.sizes.callers:
            turns = _turns(plan, number, slow=vfs is not None)
            sessions = runner.run(_sessions(store, number))
            ours, theirs = alternate(
                _ROUNDS,
                partial(_run_together, runner, sessions, turns),
                partial(_one_by_one, connection, min(turns, 512)),
            )
            rate, faster = 1 / median(ours), ratio(theirs, ours)
            bar = bars.get(number)
            yield Result(
                name=name,
                what=f"{number} asyncio caller{'s' if number > 1 else ''}{added}",
                value=rate,
                figure=f"{rate:,.0f} turns/s (bare, one by one: {1 / median(theirs):,.0f})",
                ratio=faster,
                bar="" if bar is None else f"≥ {bar:g} {TIMES} bare",
                met=None if bar is None else faster >= bar,
            )
        runner.run(store.close())
        connection.close()


def _turns(plan: Plan, callers: int, *, slow: bool) -> int:
    """Fewer turns where each takes long."""
    most = plan.sizes.turns_of_callers
    if callers == 1:
        return most // (16 if slow else 4)
    return max(most // (2 if slow else 1), callers * 2)


def _open(path: Path, vfs: str | None) -> AsyncStore:
    return AsyncStore(Store(SQLiteBackend(Location("sqlite", str(path)), vfs=vfs)))


async def _sessions(store: AsyncStore, number: int) -> list[AsyncSession]:
    found = [await store.session(f"caller-{n}") for n in range(number)]
    await _together(found, 2 * number)
    return found


def _run_together(runner: asyncio.Runner, sessions: list[AsyncSession], turns: int) -> Times:
    return [runner.run(_together(sessions, turns))]


async def _together(sessions: list[AsyncSession], turns: int) -> float:
    """Let every session append its share concurrently; return the seconds per turn."""
    share = turns // len(sessions)
    # Created in the order in which they will be stored, as they would be outside a benchmark.
    made = zip(*([material.turn() for _ in sessions] for _ in range(share)), strict=True)
    started = time.perf_counter()
    await asyncio.gather(*map(_caller, sessions, made))
    return (time.perf_counter() - started) / (share * len(sessions))


async def _caller(session: AsyncSession, turns: Iterable[tuple[Message, ...]]) -> None:
    for messages in turns:
        await session.append(*messages)


def _one_by_one(connection: apsw.Connection, turns: int) -> Times:
    return [sum(bare.append_times(connection, material.bodies(), turns)) / turns]


def _sync_time(plan: Plan) -> str:
    """Measure the engine's cost of a sync: a bare commit with one, minus one without."""
    bodies, times = material.bodies(), []
    modes: tuple[Durability, ...] = ("power", "process")
    for durability in modes:
        connection = bare.connect(plan.path("sync"), durability)
        bare.append_times(connection, bodies, 100)
        times.append(median([bare.append_times(connection, bodies, 200)]))
        connection.close()
    return f"{(times[0] - times[1]) * 1e3:.2f} ms"
