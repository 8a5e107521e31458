"""A pool of reading connections, kept open between reads; one thread at a time uses each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from holdfast.errors import HoldfastError, StoreMoved
from holdfast.storage.sqlite.connection import MovedProbe

_MAX_IDLE = 8


class ReaderPool:
    """A pool of reading connections."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        """Open connections with `connect` when none is idle."""
        self._connect = connect
        self._idle: list[tuple[apsw.Connection, MovedProbe]] = []
        self._closed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Make new locks, with no connection in use; a child's copies may stay locked for ever."""
        self._guard = threading.Lock()
        self._returned = threading.Condition(self._guard)
        self._in_use = 0

    @contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """Lend a connection inside a read transaction, so that all reads see one snapshot."""
        connection, probe = self._take()
        usable = False
        try:
            connection.execute("BEGIN")
            yield connection
            _refuse_moved(probe)
            _end(connection)
            usable = True
        except HoldfastError:
            # The query was refused; the connection itself is sound.
            connection.execute("ROLLBACK")
            usable = True
            raise
        finally:
            self._take_back(connection, probe, usable=usable)

    def add(self, connection: apsw.Connection) -> None:
        """Add a connection that is already open."""
        self._idle.append((connection, MovedProbe(connection)))

    def _take(self) -> tuple[apsw.Connection, MovedProbe]:
        with self._guard:
            self._in_use += 1
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
            keep = usable and not self._closed and len(self._idle) < _MAX_IDLE
            if keep:
                self._idle.append((connection, probe))
        if not keep:
            connection.close(force=True)
        self._note_return()

    def _note_return(self) -> None:
        with self._guard:
            self._in_use -= 1
            self._returned.notify_all()

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are returned."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close(force=True)

    def pause(self, seconds: float) -> None:
        """Before a fork: wait for connections in use, close idle ones, and block new reads."""
        self._guard.acquire()
        self._returned.wait_for(lambda: not self._in_use, seconds)
        for connection, _ in self._idle:
            connection.close(force=True)
        self._idle = []

    def resume(self) -> None:
        """After a fork, in the parent: let reads go on."""
        self._guard.release()


def _end(connection: apsw.Connection) -> None:
    """End a read transaction.

    SQLite reports a damaged page once more here, although the query that met it has handled it.
    """
    try:
        connection.execute("COMMIT")
    except apsw.CorruptError:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _refuse_moved(probe: MovedProbe) -> None:
    if probe.moved():
        raise StoreMoved(
            "the store's file was moved, deleted or replaced while it was open, so what was read "
            "did not come from the file at its path. Open the store again."
        )
