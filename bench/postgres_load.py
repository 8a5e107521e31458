"""What appends cost the server's processors, and how fast many writers share one session.

A turn here is two messages. The processor time is that of all processes of the server, as Linux
counts it, beside the same turns by hand; a server on another machine is not measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

import holdfast
from bench import material
from bench.by_hand import ByHand
from bench.measure import Result, Times, alternate, median, ratio
from bench.plan import Plan
from holdfast import AsyncStore, Message

_WRITERS: Final = 64
_CPU_BAR_MS: Final = 0.2
_RATE_BAR: Final = 2000
_TURNS_A_WRITER: Final = 20
_WARM_TURNS: Final = 20


def load(plan: Plan, url: str, hand_url: str, tenant: UUID, folder: Path) -> Iterator[Result]:
    """Measure both, of the server that has its data in this folder."""
    if (folder / "postmaster.pid").exists():
        yield _processor_time(plan, url, hand_url, tenant, folder)
    yield _writers(plan, url)


def _turn() -> tuple[Message, Message]:
    user, _, _, reply = material.turn()
    return user, reply


def _processor_time(plan: Plan, url: str, hand_url: str, tenant: UUID, folder: Path) -> Result:
    turns = plan.sizes.turns_of_process
    user, _, _, reply = (msgspec.json.decode(body) for body in material.bodies())
    stored = [user, reply]
    with holdfast.open(url) as store, ByHand(hand_url, tenant) as hand:
        session = store.session("processor time")
        number = hand.add_session("processor time")

        def ours() -> None:
            session.append(*_turn())

        def theirs() -> None:
            hand.append(number, [message.id for message in _turn()], stored)

        found = alternate(
            plan.sizes.process_rounds,
            lambda: [_server_ms(folder, ours, turns)],
            lambda: [_server_ms(folder, theirs, turns)],
        )
    mine, others = median(found[0]), median(found[1])
    return Result(
        name="postgres",
        what="PostgreSQL: processor time of the server for two messages",
        value=mine,
        figure=f"{mine:.2f} ms (by hand {others:.2f} ms)",
        ratio=ratio(*found),
        of="by hand",
        bar=f"≤ {_CPU_BAR_MS} ms",
        met=mine <= _CPU_BAR_MS,
    )


def _server_ms(folder: Path, work: Callable[[], None], turns: int) -> float:
    """Return the milliseconds of processor time that a call of `work` takes the server."""
    for _ in range(_WARM_TURNS):
        work()
    before = _processor_ns(folder)
    for _ in range(turns):
        work()
    return (_processor_ns(folder) - before) / turns / 1e6


def _processor_ns(folder: Path) -> int:
    """Return the processor time of the server's processes that are there."""
    parent = (folder / "postmaster.pid").read_text().split()[0]
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    files = [Path(f"/proc/{process}/schedstat") for process in (parent, *children)]
    return sum(int(file.read_text().split()[0]) for file in files if file.exists())


def _writers(plan: Plan, url: str) -> Result:
    """Append from many callers of one process to one session, each turn synced."""
    rates: Times = []
    with holdfast.open(url) as store, asyncio.Runner() as runner:
        session = runner.run(AsyncStore(store).session("one for all"))

        async def write() -> None:
            for _ in range(_TURNS_A_WRITER):
                await session.append(*_turn())

        async def together() -> None:
            await asyncio.gather(*(write() for _ in range(_WRITERS)))

        runner.run(together())
        for _ in range(plan.sizes.process_rounds):
            started = time.perf_counter()
            runner.run(together())
            rates.append(_WRITERS * _TURNS_A_WRITER / (time.perf_counter() - started))
    rate = median([rates])
    return Result(
        name="postgres",
        what=f"PostgreSQL: {_WRITERS} callers, one session",
        value=rate,
        figure=f"{rate:,.0f} turns/s of two messages",
        bar=f"≥ {_RATE_BAR:,} turns/s",
        met=rate >= _RATE_BAR,
    )
