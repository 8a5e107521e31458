"""Resolving an in-doubt commit: it was sent, and its answer was lost with the connection.

The server answers by the transaction's id, but only if it has not restarted or failed over since:
afterwards the id may belong to another transaction. An optimistic transaction takes one round trip,
so its id is not known; whether its messages or records are at their positions answers for it.

If they are not, and the server has not restarted, the transaction was rolled back once the server
process (backend) of the lost connection has ended. So that backend is terminated first.

Behind a pooler the process is another one for each transaction, and the pooler may still send on
what it was sent. What is not stored then may still be, so its status is unknown until the operation
was run again: the head is another one after that, and a compare-and-swap that comes late fails.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
import psycopg

from holdfast.errors import HoldfastError
from holdfast.storage.postgres.connection import BackendId, Connection
from holdfast.storage.postgres.conversion import bind, int8_array, split_branch
from holdfast.storage.postgres.errors import is_connection_lost
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.postgres.transaction import InsertedEntries
from holdfast.storage.rows import MessageRow

CommitStatus = Literal["committed", "aborted", "unknown"]
_XACT_STATUS: Final[dict[str | None, CommitStatus | None]] = {
    "committed": "committed",
    "aborted": "aborted",
    "in progress": None,
}


class PendingCommit(msgspec.Struct, frozen=True):
    """A transaction whose commit was sent and not answered: its result, and how to identify it.

    It is identified by its `xid`, or by the entries it `inserted`. `abort_error` is the error to
    report if the commit turns out not to have been received.
    """

    xid: str | None
    inserted: InsertedEntries | None
    value: Any
    abort_error: HoldfastError


class ConnectionLost(Exception):
    """The connection was lost. A `pending_commit` was sent and may have been received."""

    def __init__(
        self,
        error: HoldfastError,
        backend_id: BackendId | None = None,
        pending_commit: PendingCommit | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.backend_id = backend_id
        self.pending_commit = pending_commit


def resolve_commit(
    connection: Connection, tenant: Tenant, lost: ConnectionLost
) -> CommitStatus | None:
    """Return the status of an in-doubt commit; `None` while its transaction is in progress.

    Only errors that end the connection are raised.
    """
    if lost.backend_id is None or lost.pending_commit is None:
        return "unknown"
    ended = terminate_orphan(connection, lost.backend_id)
    shared = lost.backend_id.shared or connection.pooled
    same_run = connection.backend_id.server_run == lost.backend_id.server_run and not shared
    xid, inserted = lost.pending_commit.xid, lost.pending_commit.inserted
    status: CommitStatus | None = "unknown"
    try:
        if inserted is not None:
            status = _status_by_entries(connection, tenant, inserted)
            if status is None:
                status = "unknown" if not same_run else "aborted" if ended else None
        elif xid is not None:
            status = _status_by_xid(connection, xid, lost.backend_id)
        if status == "committed":
            _commit_barrier(connection)
    except psycopg.Error as error:
        if is_connection_lost(error):
            raise
        connection.roll_back()
        return "unknown"
    return status


def terminate_orphan(connection: Connection, orphan: BackendId) -> bool:
    """Terminate the backend of a lost connection: its commit has arrived by now, or never will.

    Return whether it has ended. One that this role may not terminate ends by itself at the idle
    timeout. Only errors that end the connection are raised.
    """
    backend = (orphan.pid, orphan.started_at)
    if orphan.shared:
        return False  # By now it may serve another client. A pooler ends it with its client.
    ended = _terminate(connection, "terminate_backend", backend)
    return (
        connection.execute("find_backend", backend).fetchone() is None if ended is None else ended
    )


def _terminate(connection: Connection, name: str, values: tuple[object, ...]) -> bool | None:
    """Run a statement that terminates a backend; return whether it ended, `None` if not allowed."""
    try:
        return all(row[0] for row in connection.execute(name, values).fetchall())
    except psycopg.Error as error:
        if is_connection_lost(error):
            raise
    return None


def _status_by_xid(connection: Connection, xid: str, orphan: BackendId) -> CommitStatus | None:
    """Return the status of a lost transaction by its id; `None` while it is in progress.

    Ids of another run of the server than the one that the connection began in mean nothing.
    """
    status = _read_status(connection, xid, orphan)
    if status is None and orphan.shared and _terminate(connection, "terminate_transaction", (xid,)):
        status = _read_status(connection, xid, orphan)  # It has ended.
    return status


def _read_status(connection: Connection, xid: str, orphan: BackendId) -> CommitStatus | None:
    row = connection.execute("commit_status", (xid,)).fetchone()
    if row is None or row[1:] != orphan.server_run:
        return "unknown"
    return _XACT_STATUS.get(row[0], "unknown")


def _status_by_entries(
    connection: Connection, tenant: Tenant, inserted: InsertedEntries
) -> CommitStatus | None:
    """Return the status of a lost transaction by the messages or records that it was to insert.

    `None` if their positions are empty: the transaction may still be running, or this server may
    lag behind, as a standby does. "unknown" if an id is there with another body: another write
    stored it, or it was erased since.
    """
    branch, rows = inserted
    name = "expected_messages" if isinstance(rows[0], MessageRow) else "expected_records"
    places = int8_array(row.seq if isinstance(row, MessageRow) else row.number for row in rows)
    entries = (places, [bind(row.id) for row in rows], [row.body for row in rows])
    connection.begin("begin_writing")
    connection.execute("enter_reading", (tenant.mark,))
    counts = connection.execute(name, (tenant.mark, *split_branch(branch), *entries)).fetchall()
    connection.roll_back()
    ((occupied, same_id, same_body),) = counts
    if same_id:
        return "committed" if same_body == len(rows) else "unknown"
    return "aborted" if occupied else None


def _commit_barrier(connection: Connection) -> None:
    """Commit a log entry after the in-doubt commit, and wait for the disk and for standbys.

    Terminating the backend of the lost connection also ended its wait for a standby.
    """
    connection.begin("begin_writing")
    connection.execute("commit_barrier")
    connection.commit()
