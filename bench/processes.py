"""Eight processes append to one session, against eight that insert into one bare table.

Afterwards the history is read: every turn must be complete and contiguous.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Lock
from pathlib import Path
from typing import Final

import holdfast
from bench import bare, material
from bench.appends import appends
from bench.measure import TIMES, Result, Times, alternate, millis
from bench.plan import KEY, Plan

_PROCESSES: Final = 8
_RATE_BAR: Final = 0.8
_WORST_BAR: Final = 20.0
Work = Callable[[Path, int, Barrier], Times]


def processes(plan: Plan) -> Iterator[Result]:
    """Rate, worst wait, and whether any turn is missing."""
    turns = plan.sizes.turns_of_process
    store, table = plan.path("processes"), plan.path("bare-processes")
    with holdfast.open(store) as made:
        made.session(KEY)
    bare.connect(table).close()
    walls: tuple[Times, Times] = ([], [])
    ours, theirs = alternate(
        plan.sizes.process_rounds,
        lambda: _run(_append, store, turns, walls[0]),
        lambda: _run(_insert, table, turns, walls[1]),
    )
    rates = [turns * _PROCESSES / statistics.median(wall) for wall in walls]
    share = statistics.median(b / a for a, b in zip(*walls, strict=True))
    yield Result(
        name="processes",
        what=f"{_PROCESSES} processes, one session",
        value=rates[0],
        figure=f"{rates[0]:,.0f} turns/s (bare: {rates[1]:,.0f})",
        ratio=share,
        bar=f"≥ {_RATE_BAR} {TIMES} bare",
        met=share >= _RATE_BAR,
    )
    yield _worst("the same: worst append", ours, judged=True)
    yield _worst("bare, for comparison: worst insert", theirs, judged=False)
    yield _complete(store, turns * _PROCESSES * plan.sizes.process_rounds)


def _worst(what: str, rounds: list[Times], *, judged: bool) -> Result:
    times = [seconds for times in rounds for seconds in times]
    worst, middle = max(times), statistics.median(times)
    return Result(
        name="processes",
        what=what,
        value=worst,
        figure=f"{millis(worst)} (median {millis(middle)})",
        ratio=worst / middle,
        of="median",
        bar=f"≤ {_WORST_BAR:g} {TIMES} median" if judged else "",
        met=worst / middle <= _WORST_BAR if judged else None,
    )


def _complete(store: Path, turns: int) -> Result:
    """Count the turns that are missing, torn or interleaved."""
    with holdfast.open(store) as made:
        history = made.session(KEY).messages()
    roles = ["user", "assistant", "tool", "assistant"]
    size = material.MESSAGES_PER_TURN
    whole = 0
    for first in range(0, len(history), size):
        part = history[first : first + size]
        calls = {call.id for m in part for call in m.tool_calls}
        answered = {result.call_id for m in part for result in m.tool_results}
        whole += [m.role for m in part] == roles and calls == answered
    bad = turns - whole
    return Result(
        name="processes",
        what="the same: turns lost, torn or interleaved",
        value=bad,
        figure=f"{bad} of {turns:,}",
        bar="0",
        met=bad == 0,
    )


def _run(work: Work, path: Path, turns: int, walls: Times) -> Times:
    """Start the processes together and collect their times."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(_PROCESSES + 1)
    receiver, sender = context.Pipe(duplex=False)
    gate = context.Lock()
    children = [
        context.Process(target=_child, args=(partial(work, path, turns), barrier, sender, gate))
        for _ in range(_PROCESSES)
    ]
    for child in children:
        child.start()
    barrier.wait()
    started = time.perf_counter()
    found = [receiver.recv() for _ in children]
    walls.append(max(ended for ended, _ in found) - started)
    for child in children:
        child.join()
    return [seconds for _, times in found for seconds in times]


def _child(
    work: Callable[[Barrier], Times], barrier: Barrier, sender: Connection, gate: Lock
) -> None:
    times = work(barrier)
    ended = time.perf_counter()
    with gate:
        sender.send((ended, times))


def _append(path: Path, turns: int, barrier: Barrier) -> Times:
    with holdfast.open(path) as store:
        session = store.session(KEY)
        round_ = appends(session, turns)
        barrier.wait()
        return round_()


def _insert(path: Path, turns: int, barrier: Barrier) -> Times:
    connection = bare.connect(path)
    bodies = material.bodies()
    barrier.wait()
    times = bare.append_times(connection, bodies, turns)
    connection.close()
    return times
