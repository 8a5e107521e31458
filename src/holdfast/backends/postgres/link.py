"""A connection to the server, always in pipeline mode: many statements make one journey.

Statements are collected until somebody asks for an answer, or until there are many; then they are
sent in one go, and all answers come back. So the server is never left waiting in the middle: while
a client thinks, its transaction is idle, and how long it may be is limited.

Nothing here waits longer than it is told to: whatever does not answer in time is as good as lost.
A link that is lost, or of which it is not known in what state it is, is thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.waiting import Ready, Wait

from holdfast.backends.postgres.statements import SQL
from holdfast.backends.postgres.target import Target

T = TypeVar("T")
Row = tuple[Any, ...]
_INTERVAL: Final = 0.1
_COMMITTED: Final = "COMMIT"
_PER_STATEMENT: Final = 1_000
_MOST_AT_ONCE: Final = 2_000_000
_SLOWEST: Final = 250_000  # bytes a second: large writes have more time


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


def _flushed(connection: PGconn) -> PQGen[None]:
    """Wait until all is sent: the driver waits for answers alone, though half may be unsent."""
    while connection.flush():
        ready = yield Wait.RW
        if ready & Ready.R:
            connection.consume_input()


class Answer:
    """What a statement gives; it is waited for when it is asked for."""

    __slots__ = ("_cursor", "_link", "_prepare", "_text", "_values")

    def __init__(
        self, link: Link, text: str, values: Sequence[object], *, prepare: bool | None = None
    ) -> None:
        """Remember what to send."""
        self._link = link
        self._text = text
        self._values = values
        self._prepare = prepare
        self._cursor: psycopg.Cursor[Row] | None = None

    @property
    def load(self) -> int:
        """About how many bytes are sent."""
        return _PER_STATEMENT + sum(map(_weight, self._values))

    def send(self, connection: psycopg.Connection[Row]) -> None:
        """Send the statement."""
        self._cursor = connection.execute(
            self._text, self._values or None, binary=True, prepare=self._prepare
        )

    def fetchone(self) -> Row | None:
        """Give the next row."""
        return self._arrived().fetchone()

    def fetchall(self) -> list[Row]:
        """Give all rows."""
        return self._arrived().fetchall()

    def _arrived(self) -> psycopg.Cursor[Row]:
        self._link.sync()
        assert self._cursor is not None  # noqa: S101 - all that was asked was sent
        return self._cursor

    @property
    def status(self) -> str | None:
        """What the server called what it did; nothing if it was not heard."""
        return None if self._cursor is None else self._cursor.statusmessage


class Link:
    """One connection. Used by one thread at a time."""

    def __init__(self, target: Target) -> None:
        """Connect."""
        self._connection = Listener.open(target)
        self.pid = os.getpid()
        # Whole numbers always have the same type: one prepared statement serves them all.
        self._connection.adapters.register_dumper(int, Int8BinaryDumper)
        self._manager = self._connection.pipeline()
        self._pipeline = self._manager.__enter__()
        self._queue: list[Answer] = []
        self._load = 0
        self.patience = target.answer  # seconds that an answer may take, if little was asked
        self.journeys = 0  # how often all that was asked was answered
        # Who serves it: when it is lost, that one may still hold what it held.
        self.served_by = self._connection.info.backend_pid

    def ask(self, name: str, values: Sequence[object] = ()) -> Answer:
        """Ask a statement by its name."""
        return self.ask_text(SQL[name], values)

    def ask_text(self, text: str, values: Sequence[object] = ()) -> Answer:
        """Ask a statement."""
        return self._asked(Answer(self, text, values))

    def _asked(self, answer: Answer) -> Answer:
        self._queue.append(answer)
        self._load += answer.load
        if self._load > _MOST_AT_ONCE:
            self.sync()
        return answer

    def _say(self, text: str) -> Answer:
        """Say what begins or ends a transaction; there is nothing to prepare about it."""
        return self._asked(Answer(self, text, (), prepare=False))

    def begin(self, name: str) -> None:
        """Begin a transaction."""
        self._say(SQL[name])

    def commit(self) -> None:
        """Commit: done when this returns."""
        answer = self._say("COMMIT")
        self.sync()
        if answer.status != _COMMITTED:
            raise psycopg.InternalError(f"COMMIT was answered with {answer.status}")

    def roll_back(self) -> None:
        """Undo; what was not sent yet never is."""
        self._queue.clear()
        self._load = 0
        self.end()

    def end(self) -> None:
        """End a transaction that changed nothing."""
        self._say("ROLLBACK")
        self.sync()

    def sync(self) -> None:
        """Send all that was asked, and wait until it is answered."""
        if not self._queue:
            return
        self._connection.patience = self.patience + self._load / _SLOWEST
        queue, self._queue, self._load = self._queue, [], 0
        error: psycopg.Error | None = None
        try:
            for answer in queue:
                answer.send(self._connection)
            self._connection.wait(_flushed(self._connection.pgconn))
        except psycopg.Error as first:
            # It is the server's answer to something before; the rest is answered by silence.
            error = first
        try:
            self._pipeline.sync()
        except psycopg.Error as later:
            raise (error or later) from None
        if error is not None:
            raise error
        self.journeys += 1

    @property
    def idle(self) -> bool:
        """Whether it is connected and nothing is under way."""
        status = self._connection.info.transaction_status
        return status == TransactionStatus.IDLE and not self._queue

    def close(self) -> None:
        """Let go of the connection, in whatever state it is."""
        if self.pid == os.getpid():
            self._connection.close()
        elif not self._connection.closed:
            self._connection.disown()
        with suppress(psycopg.Error):
            self._manager.__exit__(None, None, None)


def _weight(value: object) -> int:
    """Say about how many bytes a value is."""
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_weight, value)) if isinstance(value, list) else 0
