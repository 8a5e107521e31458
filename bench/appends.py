"""Append of one turn by one caller: against the bare engine, and by history length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from bench import bare, material
from bench.counting_vfs import watching
from bench.measure import TIMES, Result, Times, alternate, mean, median, micros, ratio
from bench.plan import Plan, opened
from holdfast import Session, Store
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.url import Durability, Location

_BARS: Final[dict[Durability, float]] = {"power": 1.4, "process": 3.0}
_FLAT: Final = 1.1


def append(plan: Plan) -> Iterator[Result]:
    """One turn, one caller, beside the same bytes in the bare engine."""
    for durability, bar in _BARS.items():
        ours, theirs = _beside_bare(plan, durability)
        found = ratio(ours, theirs)
        yield Result(
            name="append",
            what=f"append one turn, {durability}",
            value=median(ours),
            figure=f"{micros(median(ours))} (bare {micros(median(theirs))})",
            ratio=found,
            bar=f"≤ {bar:g} {TIMES} bare",
            met=found <= bar,
        )
        yield Result(
            name="append",
            what=f"the same, {durability}, mean with checkpoints",
            value=mean(ours),
            figure=f"{micros(mean(ours))} (bare {micros(mean(theirs))})",
            ratio=mean(ours) / mean(theirs),
        )


def _beside_bare(plan: Plan, durability: Durability) -> list[list[Times]]:
    size = plan.sizes.turns_a_round
    bodies = material.bodies()
    connection = bare.connect(plan.path("bare"), durability)
    with opened(plan.path("append"), durability) as (_, session):
        ours = appends(session, size)
        ours()
        bare.append_times(connection, bodies, size)
        found = alternate(
            plan.sizes.rounds, ours, lambda: bare.append_times(connection, bodies, size)
        )
    connection.close()
    return found


def appends(session: Session, turns: int) -> Callable[[], Times]:
    """Return a round of appends; creating the messages is not timed."""

    def run() -> Times:
        times = []
        for _ in range(turns):
            messages = material.turn()
            started = time.perf_counter()
            session.append(*messages)
            times.append(time.perf_counter() - started)
        return times

    return run


def flat(plan: Plan) -> Iterator[Result]:
    """Append to histories of several lengths, in alternating rounds."""
    durabilities: tuple[Durability, ...] = ("power", "process")
    for durability in durabilities:
        with ExitStack() as stack:
            works = []
            for length in plan.sizes.histories:
                _, session = stack.enter_context(opened(plan.history(length), durability))
                works.append(appends(session, plan.sizes.turns_a_round))
            alternate(2, *works)
            found = alternate(plan.sizes.rounds, *works)
        for length, rounds in zip(plan.sizes.histories[1:], found[1:], strict=True):
            growth = ratio(rounds, found[0])
            yield Result(
                name="flat",
                what=f"append at {length:,} messages, {durability}",
                value=median(rounds),
                figure=f"{micros(median(rounds))} (at 0: {micros(median(found[0]))})",
                ratio=growth,
                of="at 0",
                bar=f"≤ {_FLAT} {TIMES} at 0",
                met=growth <= _FLAT,
            )


def turn(plan: Plan) -> Iterator[Result]:
    """A turn by the Turn API, each step durable when it returns: its syncs and its time."""
    with watched_store(plan) as (store, counted):
        session = store.session("counted")
        _whole_turn(session)
        before = counted()
        _whole_turn(session)
        syncs = counted() - before
    yield Result(
        name="turn",
        what="a turn by the Turn API: 4 messages, a tool start",
        value=syncs,
        figure=f"{syncs} syncs (open, 4 messages, tool start, seal)",
        bar="one per step: 7",
        met=syncs == 7,
    )
    bodies = material.bodies()
    connection = bare.connect(plan.path("bare-turn"))
    with opened(plan.path("turn"), "power") as (_, session):
        ours, theirs = alternate(
            plan.sizes.rounds,
            lambda: [_timed_turn(session) for _ in range(4)],
            lambda: [sum(bare.append_times(connection, bodies[:1], 7)) for _ in range(4)],
        )
    connection.close()
    yield Result(
        name="turn",
        what="the same, time, power",
        value=median(ours),
        figure=f"{micros(median(ours))} (bare, 7 commits of one row: {micros(median(theirs))})",
        ratio=ratio(ours, theirs),
    )


def _timed_turn(session: Session) -> float:
    started = time.perf_counter()
    _whole_turn(session)
    return time.perf_counter() - started


def _whole_turn(session: Session) -> None:
    user, call, result, reply = material.turn()
    with session.turn() as turn:
        turn.add(user)
        turn.add(call)
        turn.tool_started(call.tool_calls[0].id)
        turn.add(result)
        turn.add(reply)


@contextmanager
def watched_store(plan: Plan) -> Iterator[tuple[Store, Callable[[], int]]]:
    """Open a new store whose syncs are counted."""
    with watching() as watched:
        location = Location("sqlite", str(plan.path("watched")))
        with Store(SQLiteBackend(location, vfs=watched.name)) as store:
            yield store, lambda: watched.syncs
