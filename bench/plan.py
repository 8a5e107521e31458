"""The sizes of a run, its directory, and the stores it has already built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import holdfast
from bench import bare, material
from holdfast import Session, Store
from holdfast.url import Durability

KEY = "bench"


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a run."""

    rounds: int
    turns_a_round: int
    histories: tuple[int, ...]
    callers: tuple[int, ...]
    turns_of_callers: int
    process_rounds: int
    turns_of_process: int
    starts: int
    whole_history: int
    lists: tuple[int, ...]
    replaced: int
    runs: int
    purged: tuple[int, ...]
    checkpoints: int
    carried: tuple[int, ...]
    moved: int
    searched: tuple[int, ...]
    searched_on_server: tuple[int, ...]
    sessions_on_server: tuple[int, int]
    search_rounds: int


FULL = Sizes(
    rounds=30,
    turns_a_round=30,
    histories=(0, 1_000, 100_000, 1_000_000),
    callers=(1, 8, 64, 512),
    turns_of_callers=4_096,
    process_rounds=5,
    turns_of_process=200,
    starts=15,
    whole_history=100_000,
    lists=(10_000, 100_000),
    replaced=10_000,
    runs=1_000,
    purged=(10_000, 100_000),
    checkpoints=10_000,
    carried=(10_000, 100_000),
    moved=100_000,
    searched=(10_000, 200_000, 1_000_000),
    searched_on_server=(2_000, 10_000, 100_000),
    sessions_on_server=(10_000, 1_000_000),
    search_rounds=5,
)
QUICK = Sizes(
    rounds=6,
    turns_a_round=20,
    histories=(0, 1_000, 20_000),
    callers=(1, 64),
    turns_of_callers=512,
    process_rounds=1,
    turns_of_process=40,
    starts=3,
    whole_history=20_000,
    lists=(10_000,),
    replaced=2_000,
    runs=100,
    purged=(2_000, 10_000),
    checkpoints=1_000,
    carried=(2_000, 10_000),
    moved=10_000,
    searched=(2_000, 20_000),
    searched_on_server=(2_000, 10_000),
    sessions_on_server=(10_000, 50_000),
    search_rounds=3,
)


class Plan:
    """One run: its sizes, its directory, and the stores built there."""

    def __init__(self, sizes: Sizes, directory: Path) -> None:
        self.sizes = sizes
        self.directory = directory
        self._count = 0

    def path(self, name: str) -> Path:
        """Return the path of a new file."""
        self._count += 1
        return self.directory / f"{self._count:02}-{name}.db"

    def history(self, messages: int) -> Path:
        """Return a store with one session (its key is `KEY`) of at least this many messages."""
        path = self.directory / f"history-{messages}.db"
        if not path.exists():
            with holdfast.open(path, durability="process") as store:
                material.lengthen(store, store.session(KEY), messages)
        return path

    def bare_history(self, messages: int) -> Path:
        """Return a bare database with this many rows."""
        path = self.directory / f"bare-{messages}.db"
        if not path.exists():
            connection = bare.connect(path, "process")
            bare.fill(connection, material.bodies(), messages)
            connection.close()
        return path

    def many_sessions(self, sessions: int) -> Path:
        """Return a store with this many sessions."""
        path = self.directory / f"sessions-{sessions}.db"
        if not path.exists():
            with holdfast.open(path, durability="process") as store:
                material.add_sessions(store, sessions)
        return path


@contextmanager
def opened(path: Path, durability: Durability) -> Iterator[tuple[Store, Session]]:
    """Open a store and its one session."""
    with holdfast.open(path, durability=durability) as store:
        yield store, store.session(KEY)
