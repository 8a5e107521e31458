"""Connections that read, kept open between reads: each is used by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from holdfast.backends.sqlite.connection import MovedProbe
from holdfast.errors import HoldfastError, StoreMoved

_KEPT = 8


class Readers:
    """A pool of reading connections."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        """Open connections with `connect` as they are needed."""
        self._connect = connect
        self._idle: list[tuple[apsw.Connection, MovedProbe]] = []
        self._closed = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begin with nothing lent, as a forked child does."""
        self._guard = threading.Lock()
        self._returned = threading.Condition(self._guard)
        self._lent = 0

    @contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """Lend a connection inside a read transaction: everything read is of one moment."""
        connection, probe = self._take()
        usable = False
        try:
            connection.execute("BEGIN")
            yield connection
            _refuse_moved(probe)
            _end(connection)
            usable = True
        except HoldfastError:
            # The question was wrong, not the connection.
            connection.execute("ROLLBACK")
            usable = True
            raise
        finally:
            self._take_back(connection, probe, usable=usable)

    def add(self, connection: apsw.Connection) -> None:
        """Take over a connection that is open already."""
        self._idle.append((connection, MovedProbe(connection)))

    def _take(self) -> tuple[apsw.Connection, MovedProbe]:
        with self._guard:
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            connection = self._connect()
        except BaseException:
            self._note_return()
            raise
        return connection, MovedProbe(connection)

    def _take_back(self, connection: apsw.Connection, probe: MovedProbe, *, usable: bool) -> None:
        with self._guard:
            keep = usable and not self._closed and len(self._idle) < _KEPT
            if keep:
                self._idle.append((connection, probe))
        if not keep:
            connection.close(force=True)
        self._note_return()

    def _note_return(self) -> None:
        with self._guard:
            self._lent -= 1
            self._returned.notify_all()

    def close(self) -> None:
        """Close what is idle; what is lent closes when it comes back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close(force=True)

    def pause(self, seconds: float) -> None:
        """Before a fork: wait for what is lent, close what is idle, and lend nothing more."""
        self._guard.acquire()
        self._returned.wait_for(lambda: not self._lent, seconds)
        for connection, _ in self._idle:
            connection.close(force=True)
        self._idle = []

    def go_on(self) -> None:
        """After a fork, in the parent."""
        self._guard.release()


def _end(connection: apsw.Connection) -> None:
    """End a reading. The engine repeats here what a query met in a damaged page and dealt with."""
    try:
        connection.execute("COMMIT")
    except apsw.CorruptError:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _refuse_moved(probe: MovedProbe) -> None:
    if probe.moved():
        raise StoreMoved(
            "the store's file was moved, deleted or replaced while it was open; what was read is "
            "not what its path leads to. Open the store again."
        )
