"""A connection to the server, always in pipeline mode: many statements take one round trip.

Statements are queued until a result is needed, or until there are many; then all are sent at once,
and all results are received. While the client computes, its transaction is idle on the server, and
the server limits for how long. The rollback of a transaction that changed nothing is sent and not
waited for: its result is read with the next one.

This calls libpq through the driver directly: the driver's cursors cost more than most statements.

A pooler may stand in between. Then the process that serves a transaction is not the one that the
connection was told of at its beginning, and it is lent to other clients, too. So nothing may last
longer than a transaction: each one begins with its settings, and the rollback of the last one is
answered before the next one is sent. Prepared statements are named by a hash of their text. Poolers
that keep track of them give them names of their own; behind others, statements are sent unprepared,
since two clients that meet on one process would both prepare them.

Every wait has a timeout; a server that is silent for longer counts as lost. A connection that is
lost, or in an unknown state, is closed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result as _error
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryDumper

from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres.conninfo import ConnInfo
from holdfast.storage.postgres.errors import is_connection_lost, is_name_conflict
from holdfast.storage.postgres.statements import SQL, qualify

Row = tuple[Any, ...]
_PreparedKey = tuple[str, tuple[int, ...]]
_COMMIT: Final = "COMMIT"
_STATEMENT_OVERHEAD_BYTES: Final = 1_000
_MAX_QUEUED_BYTES: Final = 2_000_000
_MAX_PREPARED: Final = 500  # per connection; lists and searches have many forms
_MIN_BYTES_PER_S: Final = 250_000  # large writes have more time
_SUCCESS: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})
_MAX_NAMES: Final = 2_000  # whose hashes are kept
_NO_BACKEND: Final = 0  # the pid of no process

# The driver's warnings go to the handlers of the program, if it has some, and not to stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class ReadNotAllowed(Exception):
    """A result is needed while the connection is write-only."""


class BackendId(NamedTuple):
    """The server process (backend) of a connection, and the run of the server it belongs to.

    When a connection is lost, its backend may still hold its locks. A transaction id is valid only
    within one run: after a crash the server reuses ids that were not written to disk.

    Of a connection through a pooler, only the run is known of later transactions: the process is
    `shared` by other clients, and is not to be terminated.
    """

    pid: int
    started_at: object
    server_run: tuple[object, object]
    shared: bool = False


class PendingResult:
    """The result of a queued statement; fetching it sends the queue and waits."""

    __slots__ = ("_connection", "rows", "status", "text", "unprepared", "values")

    def __init__(
        self,
        connection: Connection,
        text: str,
        values: Sequence[object] = (),
        *,
        unprepared: bool = False,
    ) -> None:
        """A statement that is `unprepared` is sent as it is, since it is not sent again."""
        self._connection = connection
        self.text = text
        self.values = values
        self.unprepared = unprepared
        self.rows: list[Row] | None = None
        self.status: bytes | None = None  # the command tag, once it is received

    @property
    def size_bytes(self) -> int:
        """About how many bytes the statement takes to send."""
        found = _STATEMENT_OVERHEAD_BYTES
        for value in self.values:
            kind = type(value)
            if kind is list or isinstance(value, bytes):
                found += _size_bytes(value)
        return found

    def fetchone(self) -> Row | None:
        """Return the first row."""
        rows = self.fetchall()
        return rows[0] if rows else None

    def fetchall(self) -> list[Row]:
        """Return all rows."""
        if self.rows is None:
            self._connection.sync()
        if self.rows is None:
            raise psycopg.InterfaceError("a statement got no result")
        return self.rows


class Connection:
    """A pipelined connection. Used by one thread at a time."""

    def __init__(self, conninfo: ConnInfo, settings: Mapping[str, str] | None = None) -> None:
        """Connect; `settings` are in addition to those of the conninfo."""
        self.pid = os.getpid()
        self._connection = open_driver(conninfo)
        # All integers have the same type, so that one prepared statement serves them all.
        self._connection.adapters.register_dumper(int, Int8BinaryDumper)
        self._transformer = Transformer(self._connection)
        self._pgconn = self._connection.pgconn
        self._pgconn.enter_pipeline_mode()
        self._socket = self._pgconn.socket
        self._poll = select.poll()
        self._schema = conninfo.schema
        self._prepared: dict[_PreparedKey, bytes] = {}
        self._prepares = True
        self._names_mixed_up = False
        self._queue: list[PendingResult] = []
        self._expected: deque[PendingResult | _PreparedKey | None] = (
            deque()
        )  # `None` ends a round trip
        self._queued_bytes = 0
        self._sent_bytes = 0  # since the last answer
        self._write_only = False
        self._rollback_sent = False  # The only expected result is that of a rollback.
        self.timeout_s = conninfo.answer  # of silence; large writes have more
        self.slot: object = None  # the pool's
        self.round_trips = 0  # completed ones
        self._settings = {**conninfo.settings, **(settings or {})}
        self._connection_settings = {**conninfo.connection_settings, **(settings or {})}
        self.backend_id = self._read_backend_id()
        if self.pooled:
            self._prepares = self._has_names_tracked()

    def _read_backend_id(self) -> BackendId:
        """Return the backend; make the settings of the connection, unless a pooler lends it."""
        told = self._pgconn.backend_pid
        found = self.execute_unprepared(SQL["backend_id"])
        self.execute_unprepared(SQL["settings"], (*_columns(self._connection_settings), told))
        ((pid, started_at, *run),) = found.fetchall()
        return BackendId(pid, started_at, (run[0], run[1]), shared=pid != told)

    def _has_names_tracked(self) -> bool:
        """True if the pooler has names of its own for the statements that its clients prepare."""
        try:
            found = {row[0].encode() for row in self.execute("prepared_names").fetchall()}
            return found.isdisjoint(self._prepared.values())
        except psycopg.Error as error:
            if not is_name_conflict(error):
                raise
            self._names_mixed_up = False
            return False

    @property
    def pooled(self) -> bool:
        """True if a pooler is in between."""
        return self.backend_id.shared

    @property
    def prepares(self) -> bool:
        """True if statements are parsed once, and not each time."""
        return self._prepares

    @property
    def transaction_settings(self) -> tuple[object, ...] | None:
        """Return the values of `settings` for the beginning of a transaction, if it needs them."""
        return (*_columns(self._settings), _NO_BACKEND) if self.pooled else None

    # -------------------------------------------------------------------------------- statements

    def execute(self, name: str, values: Sequence[object] = ()) -> PendingResult:
        """Queue a statement by its name."""
        return self.execute_sql(SQL[name], values)

    def execute_sql(self, text: str, values: Sequence[object] = ()) -> PendingResult:
        """Queue a statement."""
        return self._enqueue(PendingResult(self, text, values))

    def execute_unprepared(self, text: str, values: Sequence[object] = ()) -> PendingResult:
        """Queue a statement that is not sent again, as it is written."""
        return self._enqueue(PendingResult(self, text, values, unprepared=True))

    def _enqueue(self, pending: PendingResult) -> PendingResult:
        self._queue.append(pending)
        self._queued_bytes += pending.size_bytes
        if self._queued_bytes > _MAX_QUEUED_BYTES:
            self.sync()
        return pending

    def begin(self, name: str) -> None:
        """Begin a transaction."""
        self.execute(name)
        settings = self.transaction_settings
        if settings is not None:
            self.execute("settings", settings)

    def commit(self) -> None:
        """Commit, and wait for the answer."""
        answer = self.execute_sql(_COMMIT)
        self.sync()
        if answer.status != _COMMIT.encode():
            raise psycopg.InternalError(f"COMMIT was answered with {answer.status!r}")

    def roll_back(self) -> None:
        """Roll back the transaction without waiting for the answer; drop queued statements.

        A connection that fails here is closed: the server then rolls back by itself. One in an
        unknown state stays as it is, for the pool to close.
        """
        self._drop_queue()
        if self.pid != os.getpid():  # The transaction goes on in the parent process.
            return
        if self._expected or self._pgconn.transaction_status == TransactionStatus.IDLE:
            return
        try:
            self.execute_sql("ROLLBACK")
            self._send_all()
            self._rollback_sent = True
        except psycopg.Error:
            self.close()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    @contextmanager
    def write_only(self) -> Iterator[None]:
        """Only queue statements: needing a result raises `ReadNotAllowed`, and drops the queue."""
        self._write_only = True
        try:
            yield
        except BaseException:
            self._drop_queue()
            raise
        finally:
            self._write_only = False

    def sync(self) -> None:
        """Send all queued statements, and wait for their results."""
        if self._write_only:
            raise ReadNotAllowed
        if not self._queue and (self._rollback_sent or not self._expected):
            return
        if self.pid != os.getpid():
            raise StoreUnavailable(
                "the process was forked during this operation, which goes on in the parent; "
                "nothing was sent from this process."
            )
        timeout_s = self.timeout_s + (self._sent_bytes + self._queued_bytes) / _MIN_BYTES_PER_S
        rolling_back, self._rollback_sent = self._rollback_sent, False
        if rolling_back and self.pooled:
            # The answer to it returns the server's process to the pooler, with what came behind it.
            self._receive_all(timeout_s)
        self._send_all()
        self._receive_all(timeout_s)
        self._sent_bytes = 0
        self.round_trips += 1

    def send(self) -> None:
        """Send the queued statements without waiting: the server works on them meanwhile.

        Behind a rollback whose answer a pooler waits for, they stay queued.
        """
        waits = self._rollback_sent and self.pooled
        if self._queue and not waits and not self._write_only and self.pid == os.getpid():
            self._rollback_sent = False
            self._send_all()

    # ------------------------------------------------------------------------------- sending

    def _send_all(self) -> None:
        queue, self._queue = self._queue, []
        self._sent_bytes += self._queued_bytes
        self._queued_bytes = 0
        for answer in queue:
            self._send(answer)
            answer.values = ()  # They may be large, and it may be long until the answer is read.
        self._pgconn.pipeline_sync()
        self._expected.append(None)
        self._flush()

    def _send(self, answer: PendingResult) -> None:
        values: Sequence[Buffer | None] = ()
        types: tuple[int, ...] = ()
        formats: Sequence[int] = ()
        if answer.values:
            auto = (PyFormat.AUTO,) * len(answer.values)
            values = self._transformer.dump_sequence(answer.values, auto)
            types, formats = self._transformer.types or (), self._transformer.formats or ()
        if answer.unprepared:
            text = answer.text.encode()
            self._pgconn.send_query_params(text, values, types, formats, Format.BINARY)
        elif not self._prepares or len(self._prepared) >= _MAX_PREPARED:
            text = qualify(answer.text, self._schema).encode()
            self._pgconn.send_query_params(text, values, types, formats, Format.BINARY)
        else:
            name = self._prepare(answer.text, types)
            self._pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        self._expected.append(answer)

    def _prepare(self, text: str, types: tuple[int, ...]) -> bytes:
        """Return the name of the prepared statement; prepare it first if it is new."""
        known = (text, types)
        name = self._prepared.get(known)
        if name is None:
            qualified = qualify(text, self._schema)
            # Named plainly, so that a commit can be recognized in the traffic.
            name = text.encode() if text == _COMMIT else _statement_name(qualified, types)
            self._pgconn.send_prepare(name, qualified.encode(), types)
            self._expected.append(known)
            self._prepared[known] = name
        return name

    def _flush(self) -> None:
        """Send what is buffered; read input meanwhile, so that neither side blocks the other."""
        while self._pgconn.flush():
            if self._wait(select.POLLIN | select.POLLOUT, self.timeout_s) & select.POLLIN:
                self._pgconn.consume_input()

    # ----------------------------------------------------------------------------- receiving

    def _receive_all(self, timeout_s: float) -> None:
        """Read all expected results; raise the first error (the server skips the rest)."""
        first: psycopg.Error | None = None
        while self._expected:
            try:
                found = self._receive(self._expected[0], timeout_s)
            except psycopg.OperationalError as lost:
                raise (first if first is not None and is_connection_lost(first) else lost) from None
            self._expected.popleft()
            first = first or found
        if first is not None:
            self._names_mixed_up = is_name_conflict(first)
            raise first

    def _receive(
        self, expected: PendingResult | _PreparedKey | None, timeout_s: float
    ) -> psycopg.Error | None:
        """Read the result of one thing that was sent; return the error if it failed."""
        result = self._next_result(timeout_s)
        if result is None or (expected is None) != (result.status == ExecStatus.PIPELINE_SYNC):
            raise psycopg.OperationalError("the server's answer is out of order")
        if expected is None:
            return None
        while self._next_result(timeout_s) is not None:
            """Each result is followed by an empty one."""
        done = result.status in _SUCCESS
        if isinstance(expected, PendingResult) and done:
            self._store_result(expected, result)
        elif isinstance(expected, tuple) and not done:
            del self._prepared[expected]
        return None if done or result.status == ExecStatus.PIPELINE_ABORTED else _error(result)

    def _store_result(self, answer: PendingResult, result: PGresult) -> None:
        answer.status = result.command_status
        if result.status == ExecStatus.TUPLES_OK:
            self._transformer.set_pgresult(result)
            answer.rows = self._transformer.load_rows(0, result.ntuples, tuple)
        else:
            answer.rows = []

    def _next_result(self, timeout_s: float) -> PGresult | None:
        """Return the next result; each wait for input is limited."""
        while self._pgconn.is_busy():
            self._wait(select.POLLIN, timeout_s)
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def notifications(self, timeout_s: float) -> list[str]:
        """Return the payloads of notifications, after waiting for one at most this long."""
        found = self._received_notifications()
        if not found and self._poll_input(timeout_s):
            self._pgconn.consume_input()
            found = self._received_notifications()
        return found

    def _received_notifications(self) -> list[str]:
        return [notice.extra.decode() for notice in iter(self._pgconn.notifies, None)]

    def _poll_input(self, timeout_s: float) -> bool:
        self._poll.register(self._socket, select.POLLIN)
        return bool(self._poll.poll(1000 * timeout_s))

    def consume_input(self) -> None:
        """Read what has arrived without waiting; raise if the server has closed the connection."""
        while self._poll_input(0):
            self._pgconn.consume_input()

    def _wait(self, events: int, timeout_s: float) -> int:
        self._poll.register(self._socket, events)
        ready = self._poll.poll(1000 * timeout_s)
        if not ready:
            raise psycopg.OperationalError(f"the server did not respond for {timeout_s:g} s")
        found = ready[0][1]
        # An error of the socket shows by reading from it.
        return found if found & (select.POLLIN | select.POLLOUT) else select.POLLIN

    # ---------------------------------------------------------------------------------- ending

    @property
    def idle(self) -> bool:
        """Whether it is connected without an open transaction, or with one being rolled back."""
        if self._connection.closed or self._queue or self._write_only or self._names_mixed_up:
            return False
        if self._expected:
            return self._rollback_sent
        return self._pgconn.transaction_status == TransactionStatus.IDLE

    def __del__(self) -> None:
        """Close a connection that was dropped by an interrupt."""
        if hasattr(self, "_connection"):
            self.close()

    def close(self) -> None:
        """Close the connection, in whatever state it is."""
        if self.pid == os.getpid():
            self._connection.close()
        elif not self._connection.closed:
            self._abandon_in_child()

    def _abandon_in_child(self) -> None:
        """Close this in a forked child without notifying the server: the parent still uses it."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, self._socket)
        os.close(nowhere)
        self._connection.close()

    def interrupt(self) -> None:
        """Shut the connection down from another thread, which ends a wait for the server."""
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._connection.fileno())) as connection,
        ):
            connection.shutdown(socket.SHUT_RDWR)


def open_driver(conninfo: ConnInfo) -> psycopg.Connection:
    """Connect."""
    arguments: dict[str, Any] = {**conninfo.driver_arguments()}
    return psycopg.connect(conninfo.url, autocommit=True, **arguments)


@lru_cache(_MAX_NAMES)
def _statement_name(text: str, types: tuple[int, ...]) -> bytes:
    """Return the name of a prepared statement, which stands for this text on every connection."""
    return b"h" + hashlib.sha256(f"{types} {text}".encode()).hexdigest()[:32].encode()


def _columns(settings: Mapping[str, str]) -> tuple[list[str], list[str]]:
    return [*settings], [*settings.values()]


def _size_bytes(value: object) -> int:
    """Return about how many bytes a value takes."""
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_size_bytes, value)) if isinstance(value, list) else 0
