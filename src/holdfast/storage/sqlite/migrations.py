"""Schema migrations, in numbered steps.

`PRAGMA user_version` is the number of the last step applied to a file. A new store is built in a
temporary file and then renamed, so no other process sees a half-built one. An older store is
migrated under the process lock, in one transaction, after a backup; row counts are compared before
the commit. A store with steps that this version does not know is refused and not changed.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from holdfast import ids
from holdfast.errors import Damaged, SchemaTooNew, StorageError, StoreFull, StoreUnavailable
from holdfast.storage.sql_files import load_migrations
from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.connection import APPLICATION_ID, connect, translate
from holdfast.storage.sqlite.process_lock import ProcessLock

_COUNTED_TABLES: Final = ("sessions", "heads", "branches", "messages", "turns", "blobs")

Steps = dict[int, str]


def load() -> Steps:
    """Return the SQL scripts of all steps by number."""
    return load_migrations(__package__)


def schema_version(connection: apsw.Connection, path: Path) -> int:
    """Return a file's schema version; raise `StoreUnavailable` if it is not a Holdfast store."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreUnavailable(
            f"{path} is a database of another program; it was not changed. Choose another path."
        )
    return _pragma(connection, "user_version")


def check_version(found: int, known: int, path: Path) -> None:
    """Raise `SchemaTooNew` if a newer Holdfast wrote the store."""
    if found > known:
        raise SchemaTooNew(
            f"{path} was written by a newer Holdfast (format {found}; this version supports up to "
            f"{known}); it was not changed. Upgrade Holdfast to open it."
        )


def create(
    path: Path, steps: Steps, lock: ProcessLock, *, vfs: str | None, deadline: float
) -> None:
    """Create a new store, unless another process has just done so."""
    lock.acquire_within(deadline)
    try:
        if not path.exists():
            location.refuse_orphaned_log(path)
            _create_atomically(path, steps, vfs)
    except apsw.Error as error:
        raise translate(error, "no store was created.") from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreFull(f"the disk is full ({error}); no store was created.") from error
        raise StoreUnavailable(f"{path} cannot be created ({error}).") from error
    finally:
        lock.release()


def _create_atomically(path: Path, steps: Steps, vfs: str | None) -> None:
    temporary = path.with_name(f".{path.name}.{ids.session_id()}.new")
    try:
        _build(temporary, steps, vfs)
        temporary.rename(path)
    finally:
        for leftover in (
            temporary,
            *(location.companion(temporary, s) for s in location.COMPANION_SUFFIXES),
        ):
            leftover.unlink(missing_ok=True)
    location.sync_directory(path.parent)


def _build(path: Path, steps: Steps, vfs: str | None) -> None:
    location.create_private(path)
    connection = connect(path, readonly=False, durability="power", busy=1.0, vfs=vfs)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        with connection:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            for number, script in steps.items():
                connection.execute(script)
                connection.execute(f"PRAGMA user_version={number}")
        # The file must be complete without its log before it gets its final name.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def migrate(
    connection: apsw.Connection,
    path: Path,
    steps: Steps,
    lock: ProcessLock,
    *,
    deadline: float,
    backup: Callable[[Path], object],
) -> None:
    """Migrate an older store: back it up, apply all steps or none, compare row counts."""
    lock.acquire_within(deadline)
    try:
        before = schema_version(connection, path)
        pending = {number: script for number, script in steps.items() if number > before}
        if not pending:
            return
        copy = _unused_path(path.with_name(f"{path.name}.before-{max(pending)}"))
        backup(copy)
        with connection:
            counts = _counts(connection)
            for number, script in pending.items():
                connection.execute(script)
                connection.execute(f"PRAGMA user_version={number}")
            if _counts(connection) != counts:
                raise Damaged(
                    f"migrating {path} would have lost rows; nothing was changed. The backup "
                    f"{copy} holds everything."
                )
    except apsw.SQLError as error:
        raise StorageError(
            f"{path} could not be migrated to the current format ({error}); nothing was changed."
        ) from error
    except apsw.Error as error:
        raise translate(error, f"{path} was not migrated.") from error
    finally:
        lock.release()


def _unused_path(wanted: Path) -> Path:
    """Return a path that does not exist: an earlier attempt's backup may lack later writes."""
    names = (wanted.with_name(f"{wanted.name}.{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([wanted], names) if not name.exists())


def _counts(connection: apsw.Connection) -> list[int]:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    return [
        connection.execute(f"SELECT count(*) FROM {table}").get  # noqa: S608 - fixed names
        for table in _COUNTED_TABLES
        if table in tables
    ]


def _pragma(connection: apsw.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").get
    return value
