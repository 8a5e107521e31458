"""A connection to the server, always in pipeline mode: many statements make one journey.

Statements are collected until somebody asks for an answer, or until there are many; then they are
sent in one go, and all answers come back. So the server is never left waiting in the middle: while
a client thinks, its transaction is idle, and how long it may be is limited. The end of a
transaction that changed nothing is sent and not waited for: its answer is read with the next one.

This speaks to the driver's library below its cursors, which cost more than most statements do.

Nothing here waits longer than it is told to: a server that is silent for so long is as good as
lost. A link that is lost, or of which it is not known in what state it is, is thrown away.
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

from holdfast.backends.postgres.failures import is_lost
from holdfast.backends.postgres.statements import SQL
from holdfast.backends.postgres.target import Target
from holdfast.errors import StoreUnavailable

T = TypeVar("T")
Row = tuple[Any, ...]
_Known = tuple[str, tuple[int, ...]]
_INTERVAL: Final = 0.1
_COMMIT: Final = "COMMIT"
_PER_STATEMENT: Final = 1_000
_MOST_AT_ONCE: Final = 2_000_000
_MOST_PREPARED: Final = 500  # of a connection; lists and searches have many forms
_SLOWEST: Final = 250_000  # bytes a second: large writes have more time
_DONE: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})


class Withheld(Exception):
    """Somebody asks for an answer while nothing is sent."""


class Listener(psycopg.Connection[Row]):
    """A connection of the driver that does not wait for ever."""

    patience: float = 10.0

    @classmethod
    def open(cls, target: Target) -> Self:
        """Connect."""
        arguments: dict[str, Any] = {**target.arguments()}
        connection = cls.connect(
            target.url, autocommit=True, cursor_factory=RawCursor[Row], **arguments
        )
        connection.patience = target.answer
        return connection

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL, timeout: float | None = None) -> T:
        """Wait for the server, as long as there is patience."""
        return super().wait(gen, interval, self.patience if timeout is None else timeout)

    def disown(self) -> None:
        """Let go of it in a forked child, unheard: the connection is the parent's."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        self.close()


class Birth(NamedTuple):
    """Who serves a connection, and in which life of the server.

    When a connection is lost, who serves it may still hold what it held. A number of a transaction
    means nothing in another life: what was not written before a crash is given out again.
    """

    process: int
    since: object
    life: tuple[object, object]


class Answer:
    """What a statement gives; it is waited for when it is asked for."""

    __slots__ = ("_link", "once", "rows", "status", "text", "values")

    def __init__(
        self, link: Link, text: str, values: Sequence[object] = (), *, once: bool = False
    ) -> None:
        """Remember what to send; what is sent `once` need not be kept prepared."""
        self._link = link
        self.text = text
        self.values = values
        self.once = once
        self.rows: list[Row] | None = None
        self.status: bytes | None = None  # What the server called what it did, once it is heard.

    @property
    def load(self) -> int:
        """About how many bytes are sent."""
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
            raise psycopg.InterfaceError("something that was asked was never answered")
        return self.rows


class Link:
    """One connection. Used by one thread at a time."""

    def __init__(self, target: Target) -> None:
        """Connect."""
        self.pid = os.getpid()
        self._connection = Listener.open(target)
        # Whole numbers always have the same type: one prepared statement serves them all.
        self._connection.adapters.register_dumper(int, Int8BinaryDumper)
        self._transformer = Transformer(self._connection)
        self._library = self._connection.pgconn
        self._library.enter_pipeline_mode()
        self._socket = self._library.socket
        self._poll = select.poll()
        self._prepared: dict[_Known, bytes] = {}
        self._names = itertools.count()
        self._queue: list[Answer] = []
        self._owed: deque[Answer | _Known | None] = deque()  # `None` is the end of a journey
        self._load = 0
        self._withheld = False
        self._ending = False  # All that is owed is the end of a transaction.
        self.patience = target.answer  # seconds of silence, if little was asked
        self.loan: object = None  # the pool's
        self.journeys = 0  # how often all that was asked was answered
        self.birth = self._look_around()

    def _look_around(self) -> Birth:
        ((process, since, *life),) = self.ask("birth").fetchall()
        return Birth(process, since, (life[0], life[1]))

    # -------------------------------------------------------------------------------- asking

    def ask(self, name: str, values: Sequence[object] = ()) -> Answer:
        """Ask a statement by its name."""
        return self.ask_text(SQL[name], values)

    def ask_text(self, text: str, values: Sequence[object] = ()) -> Answer:
        """Ask a statement."""
        return self._asked(Answer(self, text, values))

    def ask_once(self, text: str) -> Answer:
        """Ask what is not asked again."""
        return self._asked(Answer(self, text, once=True))

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
        """Commit: done when this returns."""
        answer = self.ask_text(_COMMIT)
        self.sync()
        if answer.status != _COMMIT.encode():
            raise psycopg.InternalError(f"COMMIT was answered with {answer.status!r}")

    def roll_back(self) -> None:
        """End a transaction and undo what it did; it ends soon, and nobody waits for that.

        What was not sent yet never is. A link that is lost is closed, the server undoes what it
        does not hear of; one in an unknown state is left in it.
        """
        self._drop_queue()
        if self.pid != os.getpid():  # The transaction is the parent's, and goes on there.
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
        """Send nothing for now: whoever needs an answer gets `Withheld`, and all is dropped."""
        self._withheld = True
        try:
            yield
        except BaseException:
            self._drop_queue()
            raise
        finally:
            self._withheld = False

    def sync(self) -> None:
        """Send all that was asked, and wait until it is answered."""
        if self._withheld:
            raise Withheld
        if not self._queue:
            return
        if self.pid != os.getpid():
            raise StoreUnavailable(
                "the process was forked in the middle of this; it goes on in the parent."
            )
        patience = self.patience + self._load / _SLOWEST
        self._ending = False
        self._send_all()
        self._receive_all(patience)
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
        """Return the name of a prepared statement."""
        known = (text, types)
        name = self._prepared.get(known)
        if name is None:
            # A commit is to be seen on its way, by whoever looks for it.
            name = text.encode() if text == _COMMIT else f"s{next(self._names)}".encode()
            self._library.send_prepare(name, text.encode(), types)
            self._owed.append(known)
            self._prepared[known] = name
        return name

    def _flush(self) -> None:
        """Send what is written; while the server does not take it, take what it says."""
        while self._library.flush():
            if self._wait(select.POLLIN | select.POLLOUT, self.patience) & select.POLLIN:
                self._library.consume_input()

    # ----------------------------------------------------------------------------- receiving

    def _receive_all(self, patience: float) -> None:
        """Read all that is owed; the first error counts, the rest is answered by silence."""
        first: psycopg.Error | None = None
        while self._owed:
            try:
                found = self._receive(self._owed[0], patience)
            except psycopg.OperationalError as lost:
                raise (first if first is not None and is_lost(first) else lost) from None
            self._owed.popleft()
            first = first or found
        if first is not None:
            raise first

    def _receive(self, owed: Answer | _Known | None, patience: float) -> psycopg.Error | None:
        """Read the answer to one thing that was sent; give the error that it is."""
        result = self._next(patience)
        if result is None or (owed is None) != (result.status == ExecStatus.PIPELINE_SYNC):
            raise psycopg.OperationalError("the server answered something else than was asked")
        if owed is None:
            return None
        while self._next(patience) is not None:
            """An answer ends with nothing."""
        done = result.status in _DONE
        if isinstance(owed, Answer) and done:
            self._keep(owed, result)
        elif isinstance(owed, tuple) and not done:
            del self._prepared[owed]
        return None if done or result.status == ExecStatus.PIPELINE_ABORTED else _error(result)

    def _keep(self, answer: Answer, result: PGresult) -> None:
        answer.status = result.command_status
        if result.status == ExecStatus.TUPLES_OK:
            self._transformer.set_pgresult(result)
            answer.rows = self._transformer.load_rows(0, result.ntuples, tuple)
        else:
            answer.rows = []

    def _next(self, patience: float) -> PGresult | None:
        """Return the next result; each silence is as long as the patience at most."""
        while self._library.is_busy():
            self._wait(select.POLLIN, patience)
            self._library.consume_input()
        return self._library.get_result()

    def listen(self) -> None:
        """Take in what the server said unasked; if it hung up meanwhile, that is an error."""
        self._poll.register(self._socket, select.POLLIN)
        while self._poll.poll(0):
            self._library.consume_input()

    def _wait(self, events: int, patience: float) -> int:
        self._poll.register(self._socket, events)
        ready = self._poll.poll(1000 * patience)
        if not ready:
            raise psycopg.OperationalError(f"the server was silent for {patience:g} s")
        found = ready[0][1]
        # What went wrong with a socket is told by reading from it.
        return found if found & (select.POLLIN | select.POLLOUT) else select.POLLIN

    # ---------------------------------------------------------------------------------- ending

    @property
    def idle(self) -> bool:
        """Whether it is connected, and nothing is under way but an end that will be heard of."""
        if self._connection.closed or self._queue or self._withheld:
            return False
        if self._owed:
            return self._ending
        return self._library.transaction_status == TransactionStatus.IDLE

    def __del__(self) -> None:
        """Close what was dropped by an interrupt."""
        if hasattr(self, "_connection"):
            self.close()

    def close(self) -> None:
        """Let go of the connection, in whatever state it is."""
        if self.pid == os.getpid():
            self._connection.close()
        elif not self._connection.closed:
            self._connection.disown()


def _weight(value: object) -> int:
    """Say about how many bytes a value is."""
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_weight, value)) if isinstance(value, list) else 0
