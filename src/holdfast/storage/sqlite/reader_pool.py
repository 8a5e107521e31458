"""A pool of reading connections, kept open between reads; one thread at a time uses each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import apsw

from holdfast.errors import HoldfastError, StoreMoved
from holdfast.storage.sqlite.migrations import FormatProbe
from holdfast.storage.sqlite.open_files import OpenFiles

_MAX_IDLE = 8


class _Reader(NamedTuple):
    """A connection with its files, and what notices a migration by another process."""

    files: OpenFiles
    format: FormatProbe


class ReaderPool:
    """A pool of reading connections."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        probe_format: Callable[[apsw.Connection], FormatProbe],
    ) -> None:
        """Open connections with `connect` when none is idle."""
        self._connect = connect
        self._probe_format = probe_format
        self._idle: list[_Reader] = []
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
        reader = self._take()
        files, connection = reader.files, reader.files.connection
        usable = False
        try:
            connection.execute("BEGIN")
            try:
                yield connection
            except apsw.SQLError:
                reader.format.check()  # A table or column may have another name by now.
                raise
            _refuse_moved(files)
            reader.format.check()
            _end(connection)
            usable = True
        except HoldfastError:
            # The query was refused; the connection itself is sound.
            connection.execute("ROLLBACK")
            usable = True
            _refuse_moved(files)
            raise
        except apsw.Error:
            _refuse_moved(files)
            raise
        finally:
            self._take_back(reader, usable=usable)

    def add(self, connection: apsw.Connection) -> None:
        """Add a connection that is already open."""
        self._idle.append(self._reader(connection))

    def _reader(self, connection: apsw.Connection) -> _Reader:
        return _Reader(OpenFiles(connection), self._probe_format(connection))

    def _take(self) -> _Reader:
        with self._guard:
            self._in_use += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._reader(self._connect())
        except BaseException:
            self._note_return()
            raise

    def _take_back(self, reader: _Reader, *, usable: bool) -> None:
        with self._guard:
            keep = usable and not self._closed and len(self._idle) < _MAX_IDLE
            if keep:
                self._idle.append(reader)
        if not keep:
            reader.files.close()
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
        for reader in idle:
            reader.files.close()

    def pause(self, seconds: float) -> None:
        """Before a fork: wait for connections in use, close idle ones, and block new reads."""
        self._guard.acquire()
        self._returned.wait_for(lambda: not self._in_use, seconds)
        for reader in self._idle:
            reader.files.close()
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


def _refuse_moved(files: OpenFiles) -> None:
    """Raise `StoreMoved` if what was read did not come from the files at the store's path."""
    if moved := files.moved():
        raise StoreMoved(f"{moved}, so nothing can be read. Close the store and open it again.")
