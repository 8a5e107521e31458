"""The bare engine: what the same work costs with apsw and nothing else.

One table with an INTEGER PRIMARY KEY, no index, no ids, no checks, no encoding: the bytes are
ready. WAL, the same `synchronous`, one transaction per turn, prepared statements (apsw keeps them),
one connection that stays open. No store with guarantees can be faster.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw

from holdfast.url import Durability

_SYNCHRONOUS: Final = {"power": "FULL", "process": "NORMAL"}
_BUSY_MS: Final = 60_000
_ADD: Final = "INSERT INTO messages (body) VALUES (?)"
_LAST: Final = "SELECT n, body FROM messages WHERE n > ? ORDER BY n"
_NEWEST: Final = """
    SELECT n, id, title, preview, count, state, updated_at FROM sessions
    ORDER BY updated_at DESC LIMIT 50
"""


def connect(
    path: Path, durability: Durability = "power", vfs: str | None = None
) -> apsw.Connection:
    """Open a database in WAL mode with one table for messages and one for sessions."""
    connection = apsw.Connection(str(path), vfs=vfs)
    connection.set_busy_timeout(_BUSY_MS)
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS[durability]}")
    connection.execute("CREATE TABLE IF NOT EXISTS messages (n INTEGER PRIMARY KEY, body TEXT)")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS sessions (n INTEGER PRIMARY KEY, id TEXT, title TEXT, "
        "preview TEXT, count INTEGER, state TEXT, updated_at INTEGER)"
    )
    connection.execute("CREATE INDEX IF NOT EXISTS sessions_by_time ON sessions (updated_at)")
    return connection


def append(connection: apsw.Connection, bodies: Sequence[str]) -> None:
    """Store one turn in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_ADD, [(body,) for body in bodies])
    connection.execute("COMMIT")


def append_times(connection: apsw.Connection, bodies: Sequence[str], turns: int) -> list[float]:
    """Store turns one after the other; return the seconds of each."""
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        append(connection, bodies)
        times.append(time.perf_counter() - started)
    return times


def fill(connection: apsw.Connection, bodies: Sequence[str], messages: int) -> None:
    """Store many messages in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_ADD, ((bodies[n % len(bodies)],) for n in range(messages)))
    connection.execute("COMMIT")


def fill_sessions(connection: apsw.Connection, sessions: int) -> None:
    """Store the rows that a list of sessions reads."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "INSERT INTO sessions (id, title, preview, count, state, updated_at) "
        "VALUES (?, ?, ?, 24, 'done', ?)",
        ((f"bench{n:011}", f"Parcel {n}", "p" * 120, n) for n in range(sessions)),
    )
    connection.execute("COMMIT")


def erase(connection: apsw.Connection, first: int, last: int) -> None:
    """Delete rows and wipe their bytes."""
    connection.execute("PRAGMA secure_delete=ON").fetchall()
    connection.execute("DELETE FROM messages WHERE n BETWEEN ? AND ?", (first, last))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def read(connection: apsw.Connection, after: int) -> list[tuple[object, ...]]:
    """Read the rows after `after`, undecoded."""
    return connection.execute(_LAST, (after,)).fetchall()


def newest_sessions(connection: apsw.Connection) -> list[tuple[object, ...]]:
    """Read the 50 newest sessions' rows."""
    return connection.execute(_NEWEST).fetchall()
