"""The SQLite backend: one file, many processes, one writer at a time.

Reads use a small pool of connections (`reader_pool`); writes go through group commit to the one
writer connection (`writer`). Before `os.fork` every connection is closed; parent and child open
their own afterwards.
"""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from holdfast import ids
from holdfast.clock import Clock, SystemClock, to_day
from holdfast.cost import sum_by_day
from holdfast.errors import (
    Damaged,
    HoldfastError,
    Invalid,
    ReadOnly,
    StoreMoved,
    StoreUnavailable,
    import_errors,
)
from holdfast.storage.ancestry import Path as BranchPath
from holdfast.storage.group_commit import GroupCommit
from holdfast.storage.index_tables import IndexFileHost
from holdfast.storage.protocol import Backend, HealthCheck, Operation, PendingWrite, Query
from holdfast.storage.sqlite import location as file_location
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import (
    check_sqlite_version,
    connect,
    enable_checkpoint_on_close,
    translate,
)
from holdfast.storage.sqlite.open_files import refuse_deleted_companions, refuse_moved_file
from holdfast.storage.sqlite.owner_cache import OwnerCache
from holdfast.storage.sqlite.process_lock import ProcessLock
from holdfast.storage.sqlite.reader_pool import ReaderPool
from holdfast.storage.sqlite.statements import SQL
from holdfast.storage.sqlite.tables import USAGE, bind
from holdfast.storage.sqlite.transaction import SQLiteSnapshot
from holdfast.storage.sqlite.wal import sync_log
from holdfast.storage.sqlite.wal_check import (
    IgnoredFrames,
    find_ignored,
    refuse_damaged_log,
    refuse_foreign_log,
)
from holdfast.storage.sqlite.watcher import SQLiteWatcher
from holdfast.storage.sqlite.writer import SQLiteWriterConnection
from holdfast.url import Durability, Location
from holdfast.values import BackupReport, Damage, Growth, SalvageReport, Scan, Stats

T = TypeVar("T")
_OWN_DIRECTORY_HINT: Final = (
    "move the store, with all files that begin with its name, into a directory of your own"
)
_MAX_CACHED_PATHS: Final = 100_000
_WIPE_BUSY_TIMEOUT_MS: Final = 2000  # Milliseconds that a wipe waits for other connections.
_open_backends: weakref.WeakSet[SQLiteBackend] = weakref.WeakSet()
_forking: list[SQLiteBackend] = []  # Those prepared for the fork that is in progress.


class SQLiteBackend(Backend, IndexFileHost):
    """All sessions of one tenant in one SQLite file."""

    def __init__(
        self,
        location: Location,
        *,
        tenant: str = "default",
        durability: Durability = "power",
        readonly: bool = False,
        clock: Clock | None = None,
        vfs: str | None = None,
        steps: migrations.Steps | None = None,
    ) -> None:
        """Open the file, creating it if it is missing. `vfs` and `steps` are for tests."""
        check_sqlite_version(apsw.sqlite_lib_version())
        clock = clock or SystemClock()
        super().__init__(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
        self._path = self.store_file(location)
        self.url = str(self._path)
        self._durability = durability
        self._clock = clock
        self._vfs = vfs
        self._steps = migrations.load() if steps is None else steps
        self._paths: dict[int, BranchPath] = {}
        self._owners = OwnerCache()
        self._damage: HoldfastError | None = None
        self._paused_for_fork = self._holds_writer = False
        self._pending_wipes: frozenset[str] = frozenset()
        self._tenant_number: int | None = None
        self._lock: ProcessLock | None = None
        self._readers = ReaderPool(self._connect_to_read, self._probe_format)
        self._watcher = SQLiteWatcher(self._connect_to_read)
        self._open_store()
        _open_backends.add(self)

    # ------------------------------------------------------------------------------- opening

    @classmethod
    def store_file(cls, location: Location) -> Path:
        """Return the path of the database."""
        return Path(os.path.abspath(location.address))  # noqa: PTH100 - keep symlinks

    @classmethod
    def exists(cls, location: Location) -> bool:
        """Return whether the file exists; raise if it is not usable."""
        return file_location.check_file(cls.store_file(location))

    @classmethod
    def shown(cls, location: Location) -> str:
        """Return the path as it was given."""
        return location.address

    def _open_store(self) -> None:
        exists = file_location.check_file(self._path)
        if self.readonly and not exists:
            raise StoreUnavailable(f"{self._path} does not exist; nothing was created.")
        if exists:
            self._refuse_foreign_log()
        try:
            if not exists:
                self._create()
            self._first_connection()
        except Damaged as error:
            # A damaged store still opens read-only, so that it can be verified and salvaged.
            self._close_lock()
            if not self.readonly:
                raise
            self.opening_damage = (Damage(what=str(error)),)
        except BaseException:
            self._close_lock()
            raise
        self._make_writer()
        if self._pending_wipes:
            with import_errors():
                from holdfast.storage.sqlite.wipe import (  # noqa: PLC0415 - few callers need it
                    delete_search_indexes,
                )

            # The process that erased something may have died before it updated its search index.
            delete_search_indexes(self._path)
            self._wipe(busy_timeout_ms=0)

    def _refuse_foreign_log(self) -> None:
        try:
            refuse_foreign_log(self._path, self._vfs)
        except apsw.Error as error:
            raise translate(error, "nothing was changed.") from error

    def _close_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _create(self) -> None:
        file_location.prepare_directory(self._path)
        lock = self._lock = ProcessLock(self._path)
        migrations.create(self._path, self._steps, lock, vfs=self._vfs, deadline=self.deadline)

    def _make_writer(self) -> None:
        if self._lock is None:
            return
        self._wipe_note = f"scrub of {ids.session_id()}"
        self._writer_connection = SQLiteWriterConnection(
            self._connect_to_write,
            self._lock,
            path=self._path,
            durability=self._durability,
            version=max(self._steps),
            tenant=self.tenant,
            clock=self._clock,
            paths=self._paths,
            wipe_note=self._wipe_note,
            on_damage=self._note_damage,
        )
        self._writer = GroupCommit(
            self._writer_connection, deadline=self.deadline, committed=self._watcher.notify
        )

    def _first_connection(self) -> None:
        """Check the file before anything is written to it or beside it, and migrate it."""
        connection = self._open(readonly=self.readonly)
        try:
            migrations.check_header(connection, self._path, self._steps)
            found = migrations.schema_version(connection, self._path)
            known = max(self._steps)
            migrations.check_version(found, known, self._path)
            migrations.check_tables(connection, self._path, self._steps)
            refuse_damaged_log(connection, self._path, self._vfs)
            if not self.readonly and self._lock is None:
                self._lock = ProcessLock(self._path)
            if found < known:
                self._migrate(connection, found)
            if not self.readonly:
                connection.execute("PRAGMA journal_mode=WAL").fetchall()
                _make_query_only(connection)
                self._pending_wipes = frozenset(
                    row[0] for row in connection.execute(SQL["wipe_notes"])
                )
        except apsw.Error as error:
            connection.close(force=True)
            raise translate(error, "nothing was changed.") from error
        except BaseException:
            connection.close(force=True)
            raise
        self._readers.add(connection)

    def _migrate(self, connection: apsw.Connection, found: int) -> None:
        if self._lock is None:
            raise ReadOnly(
                f"{self._path} has the older format {found} and cannot be migrated read-only; "
                "open it once for writing to migrate it."
            )
        with import_errors():
            from holdfast.storage.sqlite.backup import backup  # noqa: PLC0415 - as above

        sync_log(self._path, self._vfs)  # As in `_connect_to_write`.
        migrations.migrate(
            connection,
            self._path,
            self._steps,
            self._lock,
            deadline=self.deadline,
            backup=lambda to: backup(connection, self._path, to),
        )

    def _open(self, *, readonly: bool) -> apsw.Connection:
        refuse_deleted_companions(self._path, self._vfs, self.deadline)
        try:
            try:
                connection = self._connect(readonly=readonly)
                refuse_moved_file(connection)
                return connection
            except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
                # On read-only storage SQLite cannot create the shared memory that a log needs.
                if os.access(self._path.parent, os.W_OK):
                    raise
                if not readonly:
                    raise ReadOnly(
                        f"{self._path.parent} cannot be written to; nothing was changed. Open the "
                        "store with readonly=True to read it."
                    ) from error
                if file_location.wal_size(self._path):
                    raise
                return self._connect(readonly=True, immutable=True)
        except apsw.Error as error:
            raise translate(error, "nothing was changed.") from error

    def _connect(self, *, readonly: bool, immutable: bool = False) -> apsw.Connection:
        return connect(
            self._path,
            readonly=readonly,
            durability=self._durability,
            busy=self.deadline,
            vfs=self._vfs,
            immutable=immutable,
        )

    def _connect_to_read(self) -> apsw.Connection:
        connection = self._open(readonly=self.readonly)
        try:
            migrations.check_tables(connection, self._path, self._steps)
        except BaseException:
            connection.close(force=True)
            raise
        if not self.readonly:
            _make_query_only(connection)
        return connection

    def _connect_to_write(self) -> apsw.Connection:
        connection = self._open(readonly=False)
        try:
            migrations.check_tables(connection, self._path, self._steps)
            refuse_damaged_log(connection, self._path, self._vfs)
            if self._durability == "power":
                # A writer that was killed may have left a commit that was not synced.
                sync_log(self._path, self._vfs)
        except BaseException as error:
            connection.close(force=True)
            if isinstance(error, Damaged):
                self._note_damage(error)
            raise
        enable_checkpoint_on_close(connection)
        return connection

    def _probe_format(self, connection: apsw.Connection) -> migrations.FormatProbe:
        return migrations.FormatProbe(connection, self._path, max(self._steps))

    # --------------------------------------------------------------------- reading and writing

    def identity(self) -> str | None:
        """Return the time of the store's creation in microseconds, which nobody else can guess."""
        with self._snapshot() as connection:
            row = connection.execute(SQL["created_at"]).fetchone()
        return str(row[0]) if row is not None and isinstance(row[0], int) else None

    def read(self, query: Query[T]) -> T:
        """Run a query on a snapshot and return its result."""
        with self._snapshot() as connection:
            number = self._tenant_number or self._find_tenant(connection)
            return query(SQLiteSnapshot(connection, number, self._clock, self._paths, self._owners))

    @contextmanager
    def snapshot(self) -> Iterator[SQLiteSnapshot]:
        """Open a snapshot for a `with` block."""
        with self._snapshot() as connection:
            number = self._tenant_number or self._find_tenant(connection)
            yield SQLiteSnapshot(connection, number, self._clock, self._paths, self._owners)

    def index_path(self) -> Path | None:
        """Return the path of this tenant's search index; `None` before the tenant's first write."""
        with self._snapshot() as connection:
            number = self._tenant_number or self._find_tenant(connection)
        return (
            None
            if number is None
            else file_location.companion(self._path, file_location.search_suffix(number))
        )

    @contextmanager
    def _snapshot(self) -> Iterator[apsw.Connection]:
        """Lend a reading connection inside a transaction, and translate SQLite's errors."""
        self._refuse_closed()
        try:
            with self._readers.snapshot() as connection:
                yield connection
        except apsw.Error as error:
            translated = translate(error, "nothing was changed.")
            if isinstance(translated, Damaged):
                self._note_damage(translated)
            raise translated from error
        except UnicodeDecodeError as error:
            raise Damaged(
                "the store contains text that is not valid UTF-8; nothing was changed. Run "
                "store.verify() to list the damage, and store.salvage(to) to copy everything "
                "readable into a new store."
            ) from error

    def _find_tenant(self, connection: apsw.Connection) -> int | None:
        row = connection.execute(SQL["tenant"], (bind(self.tenant),)).fetchone()
        self._tenant_number = None if row is None else row[0]
        return self._tenant_number

    # There is one writer at a time, so every operation is exclusive.
    def write(self, operation: Operation[T], *, exclusive: bool = False) -> T:  # noqa: ARG002
        """Run an operation in a transaction, durable when this returns, and return its result."""
        self._refuse_write()
        return self._writer.run(operation)

    def submit(self, operation: Operation[T]) -> PendingWrite[T]:
        """Queue an operation for the writer thread."""
        self._refuse_write()
        return self._writer.queue.submit(operation)

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the change count is not `seen`, or for `timeout` seconds; return the count."""
        try:
            return self._watcher.wait(seen, timeout)
        except apsw.Error as error:
            raise translate(error, "nothing was changed.") from error

    def flush(self) -> None:
        """Wait until all queued writes are done."""
        if self._lock is not None:
            self._writer.queue.flush()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable("the store is closed; open it again.")
        if len(self._paths) > _MAX_CACHED_PATHS:
            self._paths.clear()

    def _refuse_write(self) -> None:
        self._refuse_closed()
        if self._lock is None:
            raise ReadOnly("this store was opened for reading only; nothing was stored.")
        if self._damage is not None:
            raise Damaged(
                f"{self._damage} The store accepts no writes since; store.salvage(to) copies "
                "everything readable into a new store."
            ) from self._damage

    def _require_default_tenant(self) -> None:
        if self.tenant != "default":
            raise Invalid(
                "this copies the whole file, including other tenants' sessions; open the store "
                "without tenant= to do so."
            )

    def _note_damage(self, error: HoldfastError) -> None:
        self._damage = self._damage or error

    # ----------------------------------------------------------------------------- whole store

    def wipe(self) -> tuple[str, ...]:
        """Wipe what erased rows left in the store's files; return what still holds some of it."""
        self._refuse_write()
        return self._wipe(busy_timeout_ms=_WIPE_BUSY_TIMEOUT_MS)

    def _wipe(self, *, busy_timeout_ms: int) -> tuple[str, ...]:
        notes = {*self._pending_wipes, self._wipe_note}
        try:
            with import_errors():
                from holdfast.storage.sqlite.wipe import wipe_erased  # noqa: PLC0415 - as above

            return wipe_erased(
                self._connect_to_write,
                self._path,
                self._vfs,
                notes,
                busy_timeout_ms=busy_timeout_ms,
            )
        except (apsw.Error, HoldfastError, OSError) as error:
            return (f"bytes of what was erased may still be in the file: {error}",)

    def scan(self, fragments: Sequence[bytes]) -> Scan:
        """Search the store's files for fragments of erased content."""
        self._refuse_closed()
        try:
            with import_errors():
                from holdfast.storage.sqlite.residue_scan import (  # noqa: PLC0415 - as above
                    scan_residue,
                )

            return scan_residue(self._connect_to_read, self._path, self._vfs, fragments)
        except (apsw.Error, HoldfastError, OSError) as error:
            problem = f"the files could not be searched: {error}"
            return Scan(files=0, bytes=0, fragments=len(fragments), problem=problem)

    def verify(self) -> list[Damage]:
        """Read everything and return the damage, except in other tenants' sessions.

        No write is accepted after damage that belongs to no session: in pages, or in rows whose
        session is lost.
        """
        self._refuse_closed()
        found = self._verify()
        for damage in found:
            if damage.blocking and damage.session_id is None:
                self._note_damage(Damaged(f"{damage.what}; nothing was stored."))
        return found

    def _verify(self) -> list[Damage]:
        with import_errors():
            from holdfast.storage.sqlite.repair.verify import verify_file  # noqa: PLC0415 - as above

        try:
            with self._readers.snapshot() as connection:
                number = self._tenant_number or self._find_tenant(connection)
        except StoreMoved:
            raise
        except (HoldfastError, apsw.Error):
            tenants: tuple[int, ...] | None = None
        else:
            tenants = () if number is None else (number,)
        try:
            return verify_file(self._path, tenants, self._steps)
        except apsw.Error as error:
            raise translate(error, "nothing was verified.") from error

    def salvage(self, to: str) -> SalvageReport:
        """Copy everything readable into a new store."""
        with import_errors():
            from holdfast.storage.sqlite.repair.salvage import salvage  # noqa: PLC0415 - as above

        self._require_default_tenant()
        return salvage(self._path, Path(to))

    def backup(self, to: str) -> BackupReport:
        """Copy the store while it is in use, and verify the copy."""
        with import_errors():
            from holdfast.storage.sqlite.backup import backup  # noqa: PLC0415 - as above

        self._refuse_closed()
        self._require_default_tenant()
        connection = self._open(readonly=True)
        try:
            refuse_damaged_log(connection, self._path, self._vfs)
            return backup(connection, self._path, Path(to))
        except apsw.Error as error:
            raise translate(error, "no backup was made; the store is unchanged.") from error
        finally:
            connection.close(force=True)

    def stats(self) -> Stats:
        """Return counts of what this tenant has stored."""
        with self._snapshot() as connection:
            number = self._tenant_number or self._find_tenant(connection)
            ((sessions, trashed, turns, held, blobs, size),) = _fetch_all(
                connection, "stats", number
            )
            ((branches, messages),) = _fetch_all(connection, "stored_messages", number)
            growth = _fetch_all(connection, "growth", number)
            spent = _fetch_all(connection, "usage_by_day", number)
            if not all(USAGE.is_possible(*row) for row in spent):
                raise Damaged("a row of usage is not what a store writes; run store.verify().")
        return Stats(
            sessions=sessions,
            trashed=trashed,
            branches=branches,
            messages=messages,
            turns=turns,
            open_turns=held,
            blobs=blobs,
            blob_bytes=size,
            file_bytes=self._file_bytes() if self.tenant == "default" else None,
            growth=tuple(Growth(to_day(day), begun, held) for day, begun, held in growth),
            days=sum_by_day(
                (row.day, row.model, row.usage, row.cost) for row in map(USAGE.row, spent)
            ),
        )

    def _file_bytes(self) -> int:
        suffixes = ("", *file_location.COMPANION_SUFFIXES)
        files = (file_location.companion(self._path, suffix) for suffix in suffixes)
        return sum(map(file_location.file_size, files))

    def health(self) -> list[HealthCheck]:
        """Return checks of the file's format, permissions and SQLite settings."""
        with self._snapshot() as connection:
            journal = str(connection.execute("PRAGMA journal_mode").get)
            found = migrations.schema_version(connection, self._path)
        synced = {"power": "survives a power cut", "process": "survives kill -9"}
        checks = [
            HealthCheck("backend", "sqlite"),
            HealthCheck("file", str(self._path)),
            HealthCheck(
                "engine", f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"
            ),
            HealthCheck("format", str(found)),
            HealthCheck(
                "journal mode", journal, journal == "wal", "must be wal: salvage the store"
            ),
            HealthCheck("durability", f"{self._durability} ({synced[self._durability]})"),
        ]
        ignored = self._ignored_frames()
        if ignored is not None:
            checks.append(HealthCheck("write-ahead log", str(ignored), not ignored.damaged))
        checks.append(_directory_permissions(self._path.parent))
        checks += map(_exposed_directory, file_location.world_writable_parents(self._path.parent))
        return checks + [_file_permissions(p) for p in file_location.files_of(self._path)]

    def _ignored_frames(self) -> IgnoredFrames | None:
        connection = self._open(readonly=True)
        try:
            return find_ignored(connection, self._path, self._vfs)
        except apsw.Error as error:
            raise translate(error, "nothing was changed.") from error
        finally:
            connection.close(force=True)

    def close(self) -> None:
        """Finish queued writes and close the file."""
        if self.closed:
            return
        self.closed = True
        self._watcher.close()
        if self._lock is not None:
            self._writer.queue.close()
            # A writer thread that is blocked keeps its connection until the process ends.
            if self._writer.connection_lock.acquire(timeout=self.deadline):
                self._writer_connection.close()
                self._lock.close()
                self._writer.connection_lock.release()
        self._readers.close()

    # ------------------------------------------------------------------------------------ fork

    def before_fork(self) -> None:
        """Close every connection, because a child must not inherit SQLite's list of its locks.

        Parent and child open new ones when they next need them.
        """
        self._paused_for_fork = not self.closed
        if not self._paused_for_fork:
            return
        if self._lock is not None:
            self._holds_writer = self._writer.connection_lock.acquire(timeout=self.deadline)
            if self._holds_writer:
                self._writer_connection.close()
        self._readers.pause(self.deadline)
        self._watcher.pause()

    def after_fork_in_parent(self) -> None:
        """Let reads and writes go on."""
        if not self._paused_for_fork:
            return
        self._watcher.resume()
        self._readers.resume()
        if self._lock is not None and self._holds_writer:
            self._writer.connection_lock.release()

    def after_fork_in_child(self) -> None:
        """Make new locks and a new writer: no thread survived, and the lock files are shared."""
        if not self._paused_for_fork:
            return
        self._watcher.reset_after_fork()
        self._readers.reset_after_fork()
        if self._lock is None:
            return
        self._lock.close()
        try:
            self._lock = ProcessLock(self._path)
        except StoreUnavailable:
            self.closed = True  # The directory is gone; using the store in the child raises.
            return
        self._make_writer()


def _fetch_all(connection: apsw.Connection, name: str, *values: int | None) -> list[Any]:
    found: list[Any] = connection.execute(SQL[name], values).fetchall()
    return found


def _make_query_only(connection: apsw.Connection) -> None:
    enable_checkpoint_on_close(connection)
    connection.execute("PRAGMA query_only=ON")


def _file_permissions(path: Path) -> HealthCheck:
    mode = stat.S_IMODE(path.lstat().st_mode)
    return HealthCheck(
        f"permissions of {path.name}", f"{mode:o}", not mode & 0o077, f"chmod 600 {path}"
    )


def _directory_permissions(path: Path) -> HealthCheck:
    """Check a store's directory: the files in it have modes of their own, but can be replaced."""
    mode = stat.S_IMODE(path.stat().st_mode)
    name, writable = f"permissions of {path.name}", mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writable and mode & stat.S_ISVTX:
        shown = f"{mode:o}: other users may create files beside the store"
        return HealthCheck(name, shown, ok=False, hint=_OWN_DIRECTORY_HINT)
    return HealthCheck(name, f"{mode:o}", not writable, f"chmod go-w {path}")


def _exposed_directory(path: Path) -> HealthCheck:
    shown = f"{stat.S_IMODE(path.stat().st_mode):o}: every user may replace what is in it"
    return HealthCheck(f"permissions of {path}", shown, ok=False, hint=f"chmod o-w {path}")


def _before_fork() -> None:
    _forking[:] = list(_open_backends)
    for backend in _forking:
        backend.before_fork()


def _after_fork_in_parent() -> None:
    for backend in _forking:
        backend.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for backend in _forking:
        backend.after_fork_in_child()
    _forking.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
