"""The writer connection: one per process, used under the `ProcessLock`.

Before a transaction, and after `COMMIT`, the files must still be those at the store's path
(`open_files`). If `COMMIT` fails, the connection is discarded (see `storage.group_commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import apsw

from holdfast.clock import Clock
from holdfast.errors import Damaged, HoldfastError, OutcomeUnknown, StorageError, StoreMoved
from holdfast.storage.ancestry import Path as BranchPath
from holdfast.storage.group_commit import CommitFailed
from holdfast.storage.prefetch import Prefetch
from holdfast.storage.sqlite.connection import is_io_error, translate
from holdfast.storage.sqlite.migrations import FormatProbe
from holdfast.storage.sqlite.open_files import OpenFiles
from holdfast.storage.sqlite.process_lock import ProcessLock
from holdfast.storage.sqlite.statements import SQL
from holdfast.storage.sqlite.tables import bind
from holdfast.storage.sqlite.transaction import SQLiteTransaction
from holdfast.storage.sqlite.wal import LogBinder
from holdfast.url import Durability

_NOT_STORED = "nothing was stored."


class _OpenWriter(NamedTuple):
    """A connection with its files, its log, and what notices a migration by another process."""

    files: OpenFiles
    log: LogBinder
    format: FormatProbe


class SQLiteWriterConnection:
    """Writes to one SQLite file."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        lock: ProcessLock,
        *,
        path: Path,
        durability: Durability,
        version: int,
        tenant: str,
        clock: Clock,
        paths: dict[int, BranchPath],
        wipe_note: str,
        on_damage: Callable[[HoldfastError], None],
    ) -> None:
        """Open with `connect` when first needed, and call `on_damage` when the file is damaged.

        `version` is the newest format that can be written.
        `wipe_note` names the row of `meta` that records a pending wipe of erased data.
        """
        self._connect = connect
        self._lock = lock
        self._path = path
        self._durability = durability
        self._unsynced = durability == "process"
        self._version = version
        self._tenant = tenant
        self._clock = clock
        self._paths = paths
        self._wipe_note = wipe_note
        self._on_damage = on_damage
        self._opened: _OpenWriter | None = None
        self._transaction: SQLiteTransaction | None = None

    def try_enter(self) -> bool:
        """Acquire the process lock if it is free."""
        return self._lock.try_acquire()

    def enter(self) -> None:
        """Acquire the process lock, waiting for it."""
        self._lock.acquire()

    def leave(self) -> None:
        """Release the process lock."""
        self._lock.release()

    def begin(self) -> SQLiteTransaction:
        """Begin a transaction, opening the connection if it is not open.

        Raises `StoreMoved` if its log is no longer the one at the store's path: frames that
        another process acknowledged would be overwritten.
        """
        opened = self._opened or self._open()
        if moved := opened.files.companion_moved():
            raise _refusal(opened.files, moved)
        transaction = self._transaction or self._first_transaction(opened)
        connection = opened.files.connection
        connection.execute(SQL["begin"])
        try:
            if opened.format.check():
                transaction.forget()
                self._bind_foreign_log(opened)
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        transaction.reset()
        return transaction

    def _first_transaction(self, opened: _OpenWriter) -> SQLiteTransaction:
        """Return the transaction of a new connection, whose log is bound."""
        opened.format.read()  # What follows writes; the lock keeps migrations out.
        if self._unsynced:
            opened.log.bind()  # Before the first commit that is not synced.
        connection = opened.files.connection
        number = self._tenant_number(connection)
        self._transaction = SQLiteTransaction(
            connection, number, self._clock, self._paths, self._wipe_note
        )
        return self._transaction

    def _bind_foreign_log(self, opened: _OpenWriter) -> None:
        """Bind a log that another connection has begun, before a commit that is not synced."""
        if self._unsynced and not opened.log.is_current:
            connection = opened.files.connection
            connection.execute("ROLLBACK")
            opened.log.bind()
            connection.execute(SQL["begin"])

    def _open(self) -> _OpenWriter:
        files = OpenFiles(self._connect())
        try:
            log = LogBinder(files.connection, self._path, self._durability)
        except BaseException:
            files.close()
            raise
        format = FormatProbe(files.connection, self._path, self._version)
        opened = self._opened = _OpenWriter(files, log, format)
        return opened

    def _tenant_number(self, connection: apsw.Connection) -> int:
        name = bind(self._tenant)
        found = connection.execute(SQL["tenant"], (name,)).fetchone()
        row = found or connection.execute(SQL["add_tenant"], (name,)).fetchone()
        assert row is not None  # noqa: S101 - INSERT … RETURNING gives its row
        number: int = row[0]
        return number

    def prefetch(self, hints: Sequence[Prefetch]) -> None:
        """Read what the operations of a batch need, in a few statements."""
        assert self._transaction is not None  # noqa: S101 - only after begin
        self._transaction.prefetch(hints)

    def write_out(self) -> None:
        """Execute the writes that the transaction has kept."""
        assert self._transaction is not None  # noqa: S101 - only after begin
        self._transaction.write_out()

    def commit(self) -> None:
        """Commit; the transaction is durable, in a log bound to the store, when this returns.

        Raises `CommitFailed` if SQLite reports an error, `StoreMoved` if the committed file is no
        longer the one at the store's path, and `OutcomeUnknown` if one of its companions is not.
        """
        assert self._opened is not None  # noqa: S101 - only after begin
        files, log, format = self._opened
        try:
            files.connection.execute("COMMIT")
        except apsw.Error as error:
            failed = CommitFailed(self._translate(error), attempted=True)
            self._abandon()
            raise failed from error
        if not log.is_current:
            self._bind(log)
        if moved := files.moved():
            if files.main_moved():
                raise StoreMoved(
                    f"{moved}, so what was just written is not in the file at its path. "
                    "Open the store again and retry."
                )
            files.save_log()
            raise OutcomeUnknown(
                f"{moved}, while this was written; it may be stored. Close the store, open it "
                "again and retry with the same ids: it will be stored once."
            )
        format.note_commit()

    def _bind(self, log: LogBinder) -> None:
        try:
            log.bind()
        except apsw.Error as error:
            self._abandon()
            # Not the error itself: the transaction is stored, whatever the reason of this one.
            failed = StorageError(f"its log could not be bound to the store: {error}")
            raise CommitFailed(failed, attempted=True) from error

    def roll_back(self) -> None:
        """Roll back, unless SQLite has already done so."""
        if self._opened is None:
            return
        connection = self._opened.files.connection
        if self._transaction is not None:
            self._transaction.forget()
        if not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except apsw.Error as error:
            failed = CommitFailed(self._translate(error), attempted=False)
            self._abandon()
            raise failed from error

    def translate(self, error: BaseException) -> BaseException:
        """Return a SQLite error as one of Holdfast's; an I/O error also ends the connection."""
        if not isinstance(error, apsw.Error):
            return error
        translated = self._translate(error)
        if is_io_error(error):
            self._abandon()
            return CommitFailed(translated, attempted=False)
        return translated

    def _translate(self, error: apsw.Error) -> HoldfastError:
        connection = None if self._opened is None else self._opened.files.connection
        translated = translate(error, _NOT_STORED, connection)
        if isinstance(translated, Damaged):
            self._on_damage(translated)
        return translated

    def reopen(self) -> None:
        """Open a new connection and commit a fence, which overwrites what a failed commit left."""
        self._abandon()
        try:
            connection = self._open().files.connection
            with connection:
                connection.execute(SQL["raise_fence"])
        except apsw.Error as error:
            translated = self._translate(error)
            self._abandon()
            raise translated from error

    def _abandon(self) -> None:
        opened, self._opened = self._opened, None
        self._transaction = None
        if opened is not None:
            opened.log.close()
            opened.files.close()

    def close(self) -> None:
        """Close the connection."""
        self._abandon()


def _refusal(files: OpenFiles, moved: str) -> StoreMoved:
    """Return the error of a transaction that found its log moved before it wrote anything."""
    safe = (
        "What was stored before is safe"
        if files.save_log()
        else "What was stored shortly before may be lost"
    )
    return StoreMoved(
        f"{moved}; nothing was stored. {safe}. Close the store, open it again and retry."
    )
