"""Online backup: copying a store while it is in use.

SQLite writes a consistent snapshot of the store into a new file (`new_file`), without blocking
writers. The copy is verified like any store. Only if it is sound does it get the target's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import Damaged
from holdfast.storage.sqlite import location, migrations
from holdfast.storage.sqlite.connection import connect, enable_checkpoint_on_close
from holdfast.storage.sqlite.new_file import new_file
from holdfast.storage.sqlite.repair.verify import structure, verify
from holdfast.storage.sqlite.statements import SQL
from holdfast.storage.sqlite.wal import Binding
from holdfast.values import BackupReport

_NO_BACKUP_MADE: Final = "no backup was made, and the store is unchanged."
_COUNTS: Final = "SELECT (SELECT count(*) FROM heads), (SELECT count(*) FROM messages)"


def backup(connection: apsw.Connection, store: Path, target: Path) -> BackupReport:
    """Copy the store that `connection` reads to `target`, and verify the copy."""
    location.require_utf8(target)
    with new_file(target, _NO_BACKUP_MADE, copy_of=store) as temporary:
        sessions, messages = write_copy(connection, temporary, _NO_BACKUP_MADE)
        size = temporary.stat().st_size
    return BackupReport(path=str(target), sessions=sessions, messages=messages, size=size)


def write_copy(connection: apsw.Connection, to: Path, effect: str) -> tuple[int, int]:
    """Copy the store that `connection` reads to a new file, verify it, and return its counts.

    `effect` states what was not made if the copy is not sound.
    """
    location.create_private(to)
    return _check(to, _copy(connection, to), effect)


def _copy(connection: apsw.Connection, temporary: Path) -> tuple[int, int] | None:
    """Copy the store; return its row counts, or `None` if another connection wrote meanwhile."""
    before = _version_and_counts(connection)
    connection.execute("VACUUM INTO ?", (str(temporary),))
    return before[1] if _version_and_counts(connection) == before else None


def _version_and_counts(connection: apsw.Connection) -> tuple[int, tuple[int, int]]:
    version: int = connection.execute("PRAGMA data_version").get
    return version, _counts(connection)


def _counts(connection: apsw.Connection) -> tuple[int, int]:
    sessions, messages = connection.execute(_COUNTS).get
    return int(sessions), int(messages)


def _check(temporary: Path, counts: tuple[int, int] | None, effect: str) -> tuple[int, int]:
    """Verify the copy as a store, empty its log into it, and return its row counts."""
    connection = connect(temporary, readonly=False, durability="power", busy=1.0)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        # Only the newest format can be verified in full; of an older one only the structure.
        newest = connection.execute("PRAGMA user_version").get == max(migrations.load())
        damage = verify(connection) if newest else structure(connection)
        if damage:
            problems = "1 problem" if len(damage) == 1 else f"{len(damage)} problems"
            raise Damaged(
                f"verifying the copy found {problems}, the first: {damage[0].what}; "
                f"{effect} "
                "Run store.verify() to list the damage, and store.salvage(to) to copy everything "
                "readable into a new store."
            )
        found = _counts(connection)
        if counts not in (None, found):
            raise Damaged(
                f"the copy has {found[0]} sessions and {found[1]} messages, which differs from "
                f"the store; {effect} Try again."
            )
        if newest:
            # A copy is a store of its own: the log of the original must not be taken for its own.
            connection.execute(SQL["bind_log"], (Binding.random().encode(),))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        enable_checkpoint_on_close(connection)
    finally:
        connection.close()
    return found
