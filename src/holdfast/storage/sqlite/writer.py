"""The writer connection: one per process, used under the `ProcessLock`.

After `COMMIT` the file must still be the one at the store's path. If `COMMIT` fails, the connection
is discarded (see `storage.group_commit`).
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from holdfast.clock import Clock
from holdfast.errors import Damaged, HoldfastError, StoreMoved
from holdfast.storage.ancestry import Path as BranchPath
from holdfast.storage.group_commit import CommitFailed
from holdfast.storage.sqlite.connection import MovedProbe, is_io_error, translate
from holdfast.storage.sqlite.process_lock import ProcessLock
from holdfast.storage.sqlite.statements import SQL
from holdfast.storage.sqlite.tables import bind
from holdfast.storage.sqlite.transaction import SQLiteTransaction

_NOT_STORED = "nothing was stored."


class SQLiteWriterConnection:
    """Writes to one SQLite file."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        lock: ProcessLock,
        *,
        tenant: str,
        clock: Clock,
        paths: dict[int, BranchPath],
        wipe_note: str,
        on_damage: Callable[[HoldfastError], None],
    ) -> None:
        """Open with `connect` when first needed, and call `on_damage` when the file is damaged.

        `wipe_note` names the row of `meta` that records a pending wipe of erased data.
        """
        self._connect = connect
        self._lock = lock
        self._tenant = tenant
        self._clock = clock
        self._paths = paths
        self._wipe_note = wipe_note
        self._on_damage = on_damage
        self._connection: apsw.Connection | None = None
        self._transaction: SQLiteTransaction | None = None
        self._probe: MovedProbe | None = None

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
        """Begin a transaction, opening the connection if it is not open."""
        connection = self._connection or self._open()
        transaction = self._transaction
        if transaction is None:
            number = self._tenant_number(connection)
            transaction = SQLiteTransaction(
                connection, number, self._clock, self._paths, self._wipe_note
            )
            self._transaction = transaction
        transaction.reset()
        connection.execute(SQL["begin"])
        return transaction

    def _open(self) -> apsw.Connection:
        connection = self._connection = self._connect()
        self._probe = MovedProbe(connection)
        return connection

    def _tenant_number(self, connection: apsw.Connection) -> int:
        name = bind(self._tenant)
        found = connection.execute(SQL["tenant"], (name,)).fetchone()
        row = found or connection.execute(SQL["add_tenant"], (name,)).fetchone()
        assert row is not None  # noqa: S101 - INSERT … RETURNING gives its row
        number: int = row[0]
        return number

    def commit(self) -> None:
        """Commit; the transaction is durable when this returns.

        Raises `CommitFailed` if SQLite reports an error, and `StoreMoved` if the committed file
        is no longer the one at the store's path.
        """
        assert self._connection is not None  # noqa: S101 - only after begin
        assert self._probe is not None  # noqa: S101
        try:
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            self._abandon()
            raise CommitFailed(self._translate(error), attempted=True) from error
        if self._probe.moved():
            raise StoreMoved(
                "the store's file was moved, deleted or replaced while it was open, so what was "
                "just written is not in the file at its path. Open the store again and retry."
            )

    def roll_back(self) -> None:
        """Roll back, unless SQLite has already done so."""
        connection = self._connection
        if connection is None or not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except apsw.Error as error:
            self._abandon()
            raise CommitFailed(self._translate(error), attempted=False) from error

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
        translated = translate(error, _NOT_STORED)
        if isinstance(translated, Damaged):
            self._on_damage(translated)
        return translated

    def reopen(self) -> None:
        """Open a new connection and commit a fence, which overwrites what a failed commit left."""
        self._abandon()
        try:
            connection = self._open()
            with connection:
                connection.execute(SQL["raise_fence"])
        except apsw.Error as error:
            self._abandon()
            raise self._translate(error) from error

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        self._transaction = self._probe = None
        if connection is not None:
            connection.close(force=True)

    def close(self) -> None:
        """Close the connection."""
        self._abandon()
