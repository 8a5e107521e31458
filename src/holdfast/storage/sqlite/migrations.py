"""Schema migrations, in numbered steps.

`PRAGMA user_version` is the number of the last step applied to a file. A new store gets its name
when it is complete (`new_file`), so no other process sees a half-built one. An older store is
migrated under the process lock, in one transaction, after a backup; row counts are compared before
the commit. A store with steps that this version does not know is refused and not changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import Damaged, SchemaTooNew, StorageError, StoreUnavailable, import_errors
from holdfast.storage.sql_files import load_migrations
from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.connection import APPLICATION_ID, connect, translate
from holdfast.storage.sqlite.metadata_table import fill_marks
from holdfast.storage.sqlite.process_lock import ProcessLock
from holdfast.storage.sqlite.recent_table import cover_activity

_COUNTED_TABLES: Final = (
    *("sessions", "heads", "branches", "messages", "turns", "blobs"),
    *("records", "store_records"),
)

# What a step cannot do in SQL: fill a table from others, make checksums anew.
_AFTER_STEP: Final[Mapping[int, Callable[[apsw.Connection], None]]] = {
    5: fill_marks,
    6: cover_activity,
}
_MAX_FORMAT: Final = 9999  # The numbers of steps have four digits.

Steps = dict[int, str]
_Tables = frozenset[tuple[str, str, str]]

# What SQLite's ANALYZE leaves.
_STATISTICS: Final = frozenset(
    {
        ("table", "sqlite_stat1", "CREATE TABLE sqlite_stat1(tbl,idx,stat)"),
        ("table", "sqlite_stat4", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"),
    }
)


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


def check_header(connection: apsw.Connection, path: Path, steps: Steps) -> None:
    """Raise `Damaged` if the header contradicts the tables, which show that it is damaged."""
    problem = header_damage(connection, steps)
    if problem is not None:
        raise Damaged(
            f"{path}: {problem}; nothing was changed. Open it with readonly=True, and copy "
            "everything into a new store with store.salvage(to) or `holdfast doctor --fix`."
        )


def header_damage(connection: apsw.Connection, steps: Steps) -> str | None:
    """Return how the header contradicts the tables; `None` if it does not.

    The number of another format is damaged only if the tables are exactly those of a known format,
    and it differs from that by one bit, or no format can have it. So two formats with the same
    tables must have numbers that differ in more than one bit.
    """
    application, version = (
        _pragma(connection, "application_id"),
        _pragma(connection, "user_version"),
    )
    if application == APPLICATION_ID and version == max(steps):
        return None
    formats = list(same_tables(connection, steps))
    if formats and application != APPLICATION_ID:
        return "the header does not identify the file as a Holdfast store, which its tables are"
    near = [number for number in formats if (number ^ version).bit_count() == 1]
    possible = 0 < version <= _MAX_FORMAT
    if version in formats or not (near or (formats and not possible)):
        return None
    return (
        f"the header has the format number {version}, but the tables are those of format "
        f"{max(near or formats)}"
    )


def check_tables(connection: apsw.Connection, path: Path, steps: Steps) -> None:
    """Raise `Damaged` if the tables and indexes are not exactly those of a store.

    What is read from others is not what was stored: a generated column, a virtual table or an index
    over an expression computes it, as the maker of the file wanted. Triggers and views are never
    run, so a file may have any; and statistics, as any tool leaves them, change no result.
    """
    if any(same_tables(connection, steps)):
        return
    check_version(_pragma(connection, "user_version"), max(steps), path)
    raise Damaged(
        f"{path} has tables or indexes that no Holdfast store has; nothing was read or changed. "
        "Open it with readonly=True, and copy everything readable into a new store with "
        "store.salvage(to) or `holdfast doctor --fix`."
    )


def same_tables(connection: apsw.Connection, steps: Steps) -> Iterator[int]:
    """Yield the formats that have exactly the tables and indexes of this database, newest first."""
    found = _tables(connection)
    scripts = tuple(steps.values())
    for count, number in reversed(list(enumerate(steps, 1))):
        if _tables_of(scripts[:count]) == found:
            yield number


def _tables(connection: apsw.Connection) -> _Tables:
    query = "SELECT type, name, sql FROM sqlite_schema WHERE type NOT IN ('trigger', 'view')"
    return frozenset(connection.execute(query)) - _STATISTICS


@cache
def _tables_of(scripts: tuple[str, ...]) -> _Tables:
    """Return the tables and indexes that these steps create."""
    model = apsw.Connection(":memory:")
    for script in scripts:
        model.execute(script)
    found = _tables(model)
    model.close()
    return found


def check_version(found: int, known: int, path: Path) -> None:
    """Raise `SchemaTooNew` if a newer Holdfast wrote the store."""
    if found > known:
        raise SchemaTooNew(
            f"{path} was written by a newer Holdfast (format {found}; this version supports up to "
            f"{known}); it was not changed. Upgrade Holdfast to open it."
        )


class FormatProbe:
    """Notices, inside a transaction, that another connection has committed, or migrated the store.

    The format number is read only if another connection has committed.
    """

    def __init__(self, connection: apsw.Connection, path: Path, known: int) -> None:
        """Raise `SchemaTooNew` in `check` for a format that is newer than `known`."""
        self._connection = connection
        self._path = path
        self._known = known
        self._seen = -1

    def check(self) -> bool:
        """Return whether another connection has committed; raise `SchemaTooNew` if it migrated.

        Call it after the first read.
        """
        changed = self._connection.data_version() != self._seen
        if changed:
            self.read()
        return changed

    def read(self) -> None:
        """Read the format number, in a transaction of its own if there is none; see `check`."""
        check_version(_pragma(self._connection, "user_version"), self._known, self._path)
        self.note_commit()

    def note_commit(self) -> None:
        """Expect the content as it is now, after a commit of this connection."""
        self._seen = self._connection.data_version()


def create(
    path: Path, steps: Steps, lock: ProcessLock, *, vfs: str | None, deadline: float
) -> None:
    """Create a new store, unless another process has just done so."""
    with import_errors():
        from holdfast.storage.sqlite.new_file import new_file  # noqa: PLC0415 - once per store

    lock.acquire_within(deadline)
    try:
        if not path.exists():
            location.refuse_orphaned_log(path)
            with new_file(path, "no store was created.") as temporary:
                build_store(temporary, steps, vfs)
    finally:
        lock.release()


def build_store(path: Path, steps: Steps | None = None, vfs: str | None = None) -> None:
    """Build an empty store in a new file, complete without a log."""
    location.create_private(path)
    connection = connect(path, readonly=False, durability="power", busy=1.0, vfs=vfs)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        with connection:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            for number, script in (load() if steps is None else steps).items():
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
        # Whatever the durability: nothing that is not synced may come between synced commits.
        connection.execute("PRAGMA synchronous=FULL")
        with connection:
            counts = _counts(connection, _COUNTED_TABLES)
            for number, script in pending.items():
                connection.execute(script)
                if number in _AFTER_STEP:
                    _AFTER_STEP[number](connection)
                connection.execute(f"PRAGMA user_version={number}")
            if _counts(connection, counts) != counts:
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


def _counts(connection: apsw.Connection, tables: Iterable[str]) -> dict[str, int]:
    """Return how many rows each of these tables has; those that a format lacks are left out."""
    known = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    return {
        table: connection.execute(f"SELECT count(*) FROM {table}").get  # noqa: S608 - fixed names
        for table in tables
        if table in known
    }


def _pragma(connection: apsw.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").get
    return value
