"""The connection that writes: one per process, behind the turnstile.

`COMMIT` is where things go wrong: after it the file must still be the one the path names, and if it
failed the connection is thrown away (see `groupcommit`).
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from holdfast.backends.groupcommit import CommitFailed
from holdfast.backends.sqlite.connection import MovedProbe, is_io_error, translate
from holdfast.backends.sqlite.statements import SQL
from holdfast.backends.sqlite.transaction import SQLiteTransaction, bind
from holdfast.backends.sqlite.turnstile import Turnstile
from holdfast.clock import Clock
from holdfast.core.branches import Path as BranchPath
from holdfast.errors import Damaged, HoldfastError, StoreMoved

_NOT_STORED = "nothing was stored."


class SQLiteEngine:
    """Writes to one SQLite file."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        lock: Turnstile,
        *,
        tenant: str,
        clock: Clock,
        paths: dict[int, BranchPath],
        wipe_note: str,
        damaged: Callable[[HoldfastError], None],
    ) -> None:
        """Open with `connect` when first needed; `damaged` is told when the file is damaged.

        `wipe_note` is the name of the note that what was erased is to be wiped.
        """
        self._connect = connect
        self._lock = lock
        self._tenant = tenant
        self._clock = clock
        self._paths = paths
        self._wipe_note = wipe_note
        self._damaged = damaged
        self._connection: apsw.Connection | None = None
        self._transaction: SQLiteTransaction | None = None
        self._probe: MovedProbe | None = None

    def try_enter(self) -> bool:
        """Take the lock between processes if it is free."""
        return self._lock.try_enter()

    def enter(self) -> None:
        """Wait for the lock between processes."""
        self._lock.enter()

    def leave(self) -> None:
        """Release it."""
        self._lock.leave()

    def begin(self) -> SQLiteTransaction:
        """Begin a transaction, opening the connection the first time."""
        connection = self._connection or self._open()
        transaction = self._transaction
        if transaction is None:
            number = self._tenant_number(connection)
            transaction = SQLiteTransaction(
                connection, number, self._clock, self._paths, self._wipe_note
            )
            self._transaction = transaction
        transaction.begin_anew()
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
        """Commit: durable when this returns."""
        assert self._connection is not None  # noqa: S101 - only after begin
        assert self._probe is not None  # noqa: S101
        try:
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            self._abandon()
            said = self._say(error)
            raise CommitFailed(said, attempted=True) from error
        if self._probe.moved():
            raise StoreMoved(
                "the store's file was moved, deleted or replaced while it was open, so what was "
                "just written is not where its path leads. Open the store again and retry."
            )

    def roll_back(self) -> None:
        """Undo; the engine may have done so itself."""
        connection = self._connection
        if connection is None or not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except apsw.Error as error:
            self._abandon()
            raise CommitFailed(self._say(error), attempted=False) from error

    def translate(self, error: BaseException) -> BaseException:
        """Say an engine's error in our words; one of input or output ends the connection."""
        if not isinstance(error, apsw.Error):
            return error
        said = self._say(error)
        if is_io_error(error):
            self._abandon()
            return CommitFailed(said, attempted=False)
        return said

    def _say(self, error: apsw.Error) -> HoldfastError:
        said = translate(error, _NOT_STORED)
        if isinstance(said, Damaged):
            self._damaged(said)
        return said

    def reopen(self) -> None:
        """Open a new connection and commit a fence over whatever the old one left behind."""
        self._abandon()
        try:
            connection = self._open()
            with connection:
                connection.execute(SQL["raise_fence"])
        except apsw.Error as error:
            self._abandon()
            raise self._say(error) from error

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        self._transaction = self._probe = None
        if connection is not None:
            connection.close(force=True)

    def close(self) -> None:
        """Close the connection."""
        self._abandon()
