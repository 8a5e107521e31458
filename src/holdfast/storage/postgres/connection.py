"""A connection to the server, always in pipeline mode: many statements take one round trip.

Statements are queued until a result is needed, or until there are many; then all are sent at once,
and all results are received. While the client computes, its transaction is idle on the server, and
the server limits for how long. The rollback of a transaction that changed nothing is sent and not
waited for: its result is read with the next one.

This calls libpq through the driver directly: the driver's cursors cost more than most statements.

Every wait has a timeout; a server that is silent for longer counts as lost. A connection that is
lost, or in an unknown state, is closed.
"""

from __future__ import annotations

import itertools
import os
import select
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result as _error
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryDumper

from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres.conninfo import Target
from holdfast.storage.postgres.errors import is_lost
from holdfast.storage.postgres.statements import SQL

T = TypeVar("T")
Row = tuple[Any, ...]
_Known = tuple[str, tuple[int, ...]]
_INTERVAL: Final = 0.1
_COMMIT: Final = "COMMIT"
_PER_STATEMENT: Final = 1_000
_MOST_AT_ONCE: Final = 2_000_000
_MOST_PREPARED: Final = 500  # per connection; lists and searches have many forms
_SLOWEST: Final = 250_000  # large writes have more time
_DONE: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})


class Withheld(Exception):
    """A result is needed while the connection is write-only."""


class Listener(psycopg.Connection[Row]):
    """A connection of the driver whose waits have a timeout."""

    patience: float = 10.0

    @classmethod
    def open(cls, conninfo: Target) -> Self:
        """Connect."""
        arguments: dict[str, Any] = {**conninfo.arguments()}
        connection = cls.connect(
            conninfo.url, autocommit=True, cursor_factory=RawCursor[Row], **arguments
        )
        connection.patience = conninfo.answer
        return connection

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL, timeout: float | None = None) -> T:
        """Wait for the server, up to the timeout."""
        return super().wait(gen, interval, self.patience if timeout is None else timeout)

    def disown(self) -> None:
        """Close this in a forked child without notifying the server: the parent still uses it."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        self.close()


class Birth(NamedTuple):
    """The server process (backend) of a connection, and the run of the server it belongs to.

    When a connection is lost, its backend may still hold its locks. A transaction id is valid only
    within one run: after a crash the server reuses ids that were not written to disk.
    """

    process: int
    since: object
    life: tuple[object, object]


class Answer:
    """The result of a queued statement; fetching it sends the queue and waits."""

    __slots__ = ("_link", "once", "rows", "status", "text", "values")

    def __init__(
        self,
        connection: Link,
        text: str,
        values: Sequence[object] = (),
        *,
        unprepared: bool = False,
    ) -> None:
        """A statement that is `unprepared` is sent as it is, since it is not sent again."""
        self._link = connection
        self.text = text
        self.values = values
        self.once = unprepared
        self.rows: list[Row] | None = None
        self.status: bytes | None = None  # the command tag, once it is received

    @property
    def load(self) -> int:
        """About how many bytes the statement takes to send."""
        found = _PER_STATEMENT
        for value in self.values:
            kind = type(value)
            if kind is bytes or kind is list:
                found += _weight(value)
        return found

    def fetchone(self) -> Row | None:
        """Return the first row."""
        rows = self.fetchall()
        return rows[0] if rows else None

    def fetchall(self) -> list[Row]:
        """Return all rows."""
        if self.rows is None:
            self._link.sync()
        if self.rows is None:
            raise psycopg.InterfaceError("a statement got no result")
        return self.rows


class Link:
    """A pipelined connection. Used by one thread at a time."""

    def __init__(self, conninfo: Target) -> None:
        """Connect."""
        self.pid = os.getpid()
        self._connection = Listener.open(conninfo)
        # All integers have the same type, so that one prepared statement serves them all.
        self._connection.adapters.register_dumper(int, Int8BinaryDumper)
        self._transformer = Transformer(self._connection)
        self._library = self._connection.pgconn
        self._library.enter_pipeline_mode()
        self._socket = self._library.socket
        self._poll = select.poll()
        self._prepared: dict[_Known, bytes] = {}
        self._names = itertools.count()
        self._queue: list[Answer] = []
        self._owed: deque[Answer | _Known | None] = deque()  # `None` ends a round trip
        self._load = 0
        self._withheld = False
        self._ending = False  # The only expected result is that of a rollback.
        self.patience = conninfo.answer  # of silence; large writes have more
        self.loan: object = None  # the pool's
        self.journeys = 0  # completed ones
        self.birth = self._look_around()

    def _look_around(self) -> Birth:
        ((pid, started_at, *run),) = self.ask("backend_id").fetchall()
        return Birth(pid, started_at, (run[0], run[1]))

    # -------------------------------------------------------------------------------- statements

    def ask(self, name: str, values: Sequence[object] = ()) -> Answer:
        """Queue a statement by its name."""
        return self.ask_text(SQL[name], values)

    def ask_text(self, text: str, values: Sequence[object] = ()) -> Answer:
        """Queue a statement."""
        return self._asked(Answer(self, text, values))

    def ask_once(self, text: str) -> Answer:
        """Queue a statement that is not sent again, without preparing it."""
        return self._asked(Answer(self, text, unprepared=True))

    def _asked(self, answer: Answer) -> Answer:
        self._queue.append(answer)
        self._load += answer.load
        if self._load > _MOST_AT_ONCE:
            self.sync()
        return answer

    def begin(self, name: str) -> None:
        """Begin a transaction."""
        self.ask(name)

    def commit(self) -> None:
        """Commit, and wait for the answer."""
        answer = self.ask_text(_COMMIT)
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
        if self._owed or self._library.transaction_status == TransactionStatus.IDLE:
            return
        try:
            self.ask_text("ROLLBACK")
            self._send_all()
            self._ending = True
        except psycopg.Error:
            self.close()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._load = 0

    @contextmanager
    def withheld(self) -> Iterator[None]:
        """Only queue statements: needing a result raises `ReadNotAllowed`, and drops the queue."""
        self._withheld = True
        try:
            yield
        except BaseException:
            self._drop_queue()
            raise
        finally:
            self._withheld = False

    def sync(self) -> None:
        """Send all queued statements, and wait for their results."""
        if self._withheld:
            raise Withheld
        if not self._queue:
            return
        if self.pid != os.getpid():
            raise StoreUnavailable(
                "the process was forked during this operation, which goes on in the parent; "
                "nothing was sent from this process."
            )
        timeout_s = self.patience + self._load / _SLOWEST
        self._ending = False
        self._send_all()
        self._receive_all(timeout_s)
        self.journeys += 1

    # ------------------------------------------------------------------------------- sending

    def _send_all(self) -> None:
        queue, self._queue, self._load = self._queue, [], 0
        for answer in queue:
            self._send(answer)
        self._library.pipeline_sync()
        self._owed.append(None)
        self._flush()

    def _send(self, answer: Answer) -> None:
        values: Sequence[Buffer | None] = ()
        types: tuple[int, ...] = ()
        formats: Sequence[int] = ()
        if answer.values:
            auto = (PyFormat.AUTO,) * len(answer.values)
            values = self._transformer.dump_sequence(answer.values, auto)
            types, formats = self._transformer.types or (), self._transformer.formats or ()
        if answer.once or len(self._prepared) >= _MOST_PREPARED:
            self._library.send_query_params(
                answer.text.encode(), values, types, formats, Format.BINARY
            )
        else:
            name = self._prepare(answer.text, types)
            self._library.send_query_prepared(name, values, formats, Format.BINARY)
        self._owed.append(answer)

    def _prepare(self, text: str, types: tuple[int, ...]) -> bytes:
        """Return the name of the prepared statement; prepare it first if it is new."""
        known = (text, types)
        name = self._prepared.get(known)
        if name is None:
            # Named plainly, so that a commit can be recognized in the traffic.
            name = text.encode() if text == _COMMIT else f"s{next(self._names)}".encode()
            self._library.send_prepare(name, text.encode(), types)
            self._owed.append(known)
            self._prepared[known] = name
        return name

    def _flush(self) -> None:
        """Send what is buffered; read input meanwhile, so that neither side blocks the other."""
        while self._library.flush():
            if self._wait(select.POLLIN | select.POLLOUT, self.patience) & select.POLLIN:
                self._library.consume_input()

    # ----------------------------------------------------------------------------- receiving

    def _receive_all(self, timeout_s: float) -> None:
        """Read all expected results; raise the first error (the server skips the rest)."""
        first: psycopg.Error | None = None
        while self._owed:
            try:
                found = self._receive(self._owed[0], timeout_s)
            except psycopg.OperationalError as lost:
                raise (first if first is not None and is_lost(first) else lost) from None
            self._owed.popleft()
            first = first or found
        if first is not None:
            raise first

    def _receive(self, expected: Answer | _Known | None, timeout_s: float) -> psycopg.Error | None:
        """Read the result of one thing that was sent; return the error if it failed."""
        result = self._next(timeout_s)
        if result is None or (expected is None) != (result.status == ExecStatus.PIPELINE_SYNC):
            raise psycopg.OperationalError("the server's answer is out of order")
        if expected is None:
            return None
        while self._next(timeout_s) is not None:
            """Each result is followed by an empty one."""
        done = result.status in _DONE
        if isinstance(expected, Answer) and done:
            self._keep(expected, result)
        elif isinstance(expected, tuple) and not done:
            del self._prepared[expected]
        return None if done or result.status == ExecStatus.PIPELINE_ABORTED else _error(result)

    def _keep(self, answer: Answer, result: PGresult) -> None:
        answer.status = result.command_status
        if result.status == ExecStatus.TUPLES_OK:
            self._transformer.set_pgresult(result)
            answer.rows = self._transformer.load_rows(0, result.ntuples, tuple)
        else:
            answer.rows = []

    def _next(self, timeout_s: float) -> PGresult | None:
        """Return the next result; each wait for input is limited."""
        while self._library.is_busy():
            self._wait(select.POLLIN, timeout_s)
            self._library.consume_input()
        return self._library.get_result()

    def listen(self) -> None:
        """Read what has arrived without waiting; raise if the server has closed the connection."""
        self._poll.register(self._socket, select.POLLIN)
        while self._poll.poll(0):
            self._library.consume_input()

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
        if self._connection.closed or self._queue or self._withheld:
            return False
        if self._owed:
            return self._ending
        return self._library.transaction_status == TransactionStatus.IDLE

    def __del__(self) -> None:
        """Close a connection that was dropped by an interrupt."""
        if hasattr(self, "_connection"):
            self.close()

    def close(self) -> None:
        """Close the connection, in whatever state it is."""
        if self.pid == os.getpid():
            self._connection.close()
        elif not self._connection.closed:
            self._connection.disown()


def _weight(value: object) -> int:
    """Return about how many bytes a value takes."""
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_weight, value)) if isinstance(value, list) else 0
