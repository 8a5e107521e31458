"""A later Holdfast whose sessions have two columns more: a program, for a process of its own.

All it changes is what such a version would: the fields of the row, and one migration.
`python -m tests.storage.wider_sessions STORE ACTION …` prints what each action returned, as JSON:
`put TITLE MOOD RANK`, `read`, `verify`, `salvage TO`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.storage import rows
from holdfast.storage.columns import Added, Count, Name
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.sql_files import load_migrations
from holdfast.url import Location


class WiderSessionRow(rows.SessionRow, frozen=True):
    mood: Annotated[Name | None, Added()] = None
    rank: Annotated[Count | None, Added()] = None


_STEPS = load_migrations("holdfast.storage.sqlite")
_STEPS |= {
    max(_STEPS) + 1: "ALTER TABLE sessions ADD COLUMN mood ANY;"
    "ALTER TABLE sessions ADD COLUMN rank INTEGER",
}
rows.SessionRow = WiderSessionRow  # type: ignore[misc]

# Whatever makes a statement or a rule of the columns is imported only now.
from holdfast.storage.sqlite import migrations  # noqa: E402
from holdfast.storage.sqlite.backend import SQLiteBackend  # noqa: E402
from holdfast.storage.sqlite.repair.salvage import salvage  # noqa: E402

migrations.load = lambda: _STEPS


def put(backend: SQLiteBackend, title: str, mood: str, rank: str) -> None:
    """Set the new fields of a session; `-` is none."""

    def run(tx: Transaction) -> None:
        (row,) = tx.sessions("title", title)
        new = {"mood": None if mood == "-" else mood, "rank": None if rank == "-" else int(rank)}
        tx.put_session(msgspec.structs.replace(row, **new))

    backend.write(run)


def read(backend: SQLiteBackend) -> list[tuple[str | None, ...]]:
    """Return title, mood and rank of every session, by title; of a damaged one nothing."""

    def run(snapshot: Snapshot) -> list[rows.ListedSession]:
        return snapshot.list_sessions(rows.SessionFilter(), before=None, limit=9)

    found = [item for item in backend.read(run) if not isinstance(item, rows.UnreadableSession)]
    return sorted((row.title, row.mood, row.rank) for row, _ in found)  # type: ignore[attr-defined]


def act(path: Path, action: str) -> object:
    """Do what an action says and return what it found."""
    name, *given = action.split()
    if name == "salvage":  # A file, in whatever format it is.
        return [damage.what for damage in salvage(path, Path(given[0])).damage]
    backend = SQLiteBackend(Location("sqlite", str(path)))
    try:
        if name == "read":
            return read(backend)
        if name == "verify":
            return [found.what for found in backend.verify()]
        put(backend, *given)
        return None
    finally:
        backend.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps([act(Path(sys.argv[1]), action) for action in sys.argv[2:]]))
