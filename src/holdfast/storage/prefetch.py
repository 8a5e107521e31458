"""Prefetch hints, which only a remote database needs; others ignore them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
SnapshotT = TypeVar("SnapshotT")

PrefetchItem: TypeAlias = Literal[
    "session", "usage", "summary", "turn", "tools", "draft", "opening"
]


class Prefetch(msgspec.Struct, frozen=True):
    """Prefetch hint: what an operation or a query will read, known before it runs.

    A remote database can read all of it in one round trip, also for many operations at once. A
    backend may ignore the hint, and the operation may read other rows, too.
    """

    session: int  # its head
    ids: tuple[str, ...] = ()  # messages looked up by id in its history
    newest: int = 0  # how many messages at the end of its history
    items: tuple[PrefetchItem, ...] = ()  # what else of the session, and of this turn
    turn: int = 0


class Prefetched(Generic[SnapshotT, T]):
    """An operation or a query with a prefetch hint, if one is known.

    A query of this kind has no side effects, so it may be run again from the start, as operations
    may.
    """

    def __init__(self, run: Callable[[SnapshotT], T], prefetch: Prefetch | None = None) -> None:
        self._run = run
        self.prefetch = prefetch

    def __call__(self, at: SnapshotT) -> T:
        """Run it on a snapshot or transaction."""
        return self._run(at)


def prefetch_of(run: object) -> Prefetch | None:
    """Return the prefetch hint of an operation or a query, if it has one."""
    return run.prefetch if isinstance(run, Prefetched) else None
