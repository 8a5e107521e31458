"""What a database may know of an operation before it runs; a backend may ignore it.

A prefetch hint, and what to do after a run that was rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
SnapshotT = TypeVar("SnapshotT")

PrefetchItem: TypeAlias = Literal[
    "session", "trashed", "usage", "summary", "turn", "tools", "draft", "opening"
]
StoreRecordName: TypeAlias = tuple[str | None, str, str | None]  # scope, kind and key


class Prefetch(msgspec.Struct, frozen=True):
    """Prefetch hint: what an operation or a query will read, known before it runs.

    A remote database can read all of it in one round trip, and any database that of many operations
    at once. A backend may ignore the hint, and the operation may read other rows, too.
    """

    session: int | None  # its head; `None` if only records of the store are read
    ids: tuple[str, ...] = ()  # messages looked up by id in its history
    newest: int = 0  # how many messages at the end of its history
    items: tuple[PrefetchItem, ...] = ()  # what else of the session, and of this turn
    turn: int = 0
    records: tuple[str, ...] = ()  # records looked up by id in its history
    record_names: tuple[tuple[str, str | None], ...] = ()  # kind and key: the newest record of each
    store_records: tuple[str, ...] = ()  # records of the store looked up by id
    store_record_names: tuple[StoreRecordName, ...] = ()  # the current record of each

    @property
    def is_append(self) -> bool:
        """Whether it reads nothing but the head, the end of its history, and what must be new.

        A session that is to get records must not be in the trash.
        """
        entries = self.session is not None and (self.ids or self.records)
        others = self.record_names or self.store_record_names or set(self.items) - {"trashed"}
        return bool(entries) and not others


class Prefetched(Generic[SnapshotT, T]):
    """An operation or a query with a prefetch hint, if one is known.

    A query of this kind has no side effects, so it may be run again from the start, as operations
    may. `forget` makes an operation that remembers its runs forget them.
    """

    def __init__(
        self,
        run: Callable[[SnapshotT], T],
        prefetch: Prefetch | None = None,
        forget: Callable[[], None] | None = None,
    ) -> None:
        self._run = run
        self.prefetch = prefetch
        self.forget = forget

    def __call__(self, at: SnapshotT) -> T:
        """Run it on a snapshot or transaction."""
        return self._run(at)


def prefetch_of(run: object) -> Prefetch | None:
    """Return the prefetch hint of an operation or a query, if it has one."""
    return run.prefetch if isinstance(run, Prefetched) else None


def forget_runs(operation: object) -> None:
    """Make an operation forget its runs: all of them were rolled back."""
    if isinstance(operation, Prefetched) and operation.forget is not None:
        operation.forget()
