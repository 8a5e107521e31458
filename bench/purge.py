"""Purge: erasing a session for good, its bytes included, against the bare engine.

The bare engine deletes as many rows in one transaction, overwrites what it deletes
(`secure_delete`) and empties its write-ahead log, as a purge does. It has no index to update and
no forks that may still need a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import apsw

import holdfast
from bench import bare, material
from bench.measure import Result, Times, alternate, median, millis, ratio, timed
from bench.plan import Plan
from holdfast import Store
from holdfast.values import PurgeReport

_ROUNDS: Final = 3


def purge(plan: Plan) -> Iterator[Result]:
    """Purge sessions of several lengths, next to another session of the same length."""
    for length in plan.sizes.purged:
        connection = bare.connect(plan.path("bare-purge"), "process")
        bare.fill(connection, material.bodies(), (_ROUNDS + 1) * length)
        with holdfast.open(plan.path("purge"), durability="process") as store:
            _lay_down(store, length)
            ours, theirs = alternate(_ROUNDS, _purges(store, length), _deletes(connection, length))
            assert store.session("stays", create=False).head().seq == length
        connection.close()
        yield Result(
            name="purge",
            what=f"purge of {length:,} messages, with their bytes",
            value=median(ours),
            figure=f"{millis(median(ours))} (bare rows: {millis(median(theirs))})",
            ratio=ratio(ours, theirs),
        )
    yield from _small_beside_large(plan)


def _small_beside_large(plan: Plan) -> Iterator[Result]:
    """Purge one turn beside a long history: the whole file is scanned for residue."""
    length = plan.sizes.histories[-1]
    with holdfast.open(plan.history(length), durability="process") as store:
        times = [_purge_a_turn(store) for _ in range(_ROUNDS)]
    size = plan.history(length).stat().st_size
    yield Result(
        name="purge",
        what=f"purge of one turn beside {length:,} messages",
        value=median([times]),
        figure=f"{millis(median([times]))} (a file of {size / 1e6:,.0f} MB)",
    )


def _purge_a_turn(store: Store) -> float:
    session = store.create()
    session.append(*material.turn())
    return timed(lambda: store.purge(session.id))


def _lay_down(store: Store, length: int) -> None:
    for key in ("stays", *(f"goes {number}" for number in range(_ROUNDS))):
        material.lengthen(store, store.session(key), length)


def _purges(store: Store, length: int) -> Callable[[], Times]:
    numbers = count()

    def run() -> Times:
        key = f"goes {next(numbers)}"
        seconds = timed(lambda: found.append(store.purge(key)))
        assert found[-1].messages == length
        assert not found[-1].pending
        return [seconds]

    found: list[PurgeReport] = []
    return run


def _deletes(connection: apsw.Connection, length: int) -> Callable[[], Times]:
    firsts = count(1, length)

    def run() -> Times:
        first = next(firsts)
        return [timed(lambda: bare.erase(connection, first, first + length - 1))]

    return run
