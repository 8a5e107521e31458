"""The files that a connection has open, compared with those at its path.

An open store is three files: the database, the write-ahead log (`-wal`), and the shared memory
(`-shm`) that says what is in the log. SQLite opens them once and never looks again. If a companion
is deleted beside a running process, the next process that opens the store makes a new one: then
two processes write to one database without knowing of each other, and each overwrites what the
other acknowledged. So the files are compared inside the lock before a transaction writes, again
before its commit is acknowledged, and before what was read is returned; and a store that others
have open is not opened without its companions.

Only the last connection to close removes the companions, so none is missing while one is open.

A file cannot be replaced without a change of its directory, which shows in the directory's time of
change. (Its time of modification can be set, and a restored backup often has the one from before.)
So while that is the same as when all files were compared, they are not compared again; provided
that it was old by then, because a file system may count time in seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import StoreMoved
from holdfast.storage.sqlite.connection import (
    MovedProbe,
    disable_checkpoint_on_close,
    frames_in_log,
    open_file,
)
from holdfast.storage.sqlite.location import companion

_WAL_FORMAT: Final = b"\x02\x02"
_WAL_FORMAT_AT: Final = 18  # Offset in the file's header.
_MAX_OPENING_S: Final = 3.0  # Another process may be about to make the companions.

_MAX_TIMESTAMP_STEP_NS: Final = 3_000_000_000  # FAT counts in steps of two seconds.

Identity = tuple[int, ...]  # Inode and device.


class OpenFiles:
    """A connection and the identity of the files that it has open."""

    def __init__(self, connection: apsw.Connection) -> None:
        """Remember the companions that the connection has opened; it is closed if that fails."""
        self.connection = connection
        self._probe = MovedProbe(connection)
        self._wal, self._shm = f"{connection.filename}-wal", f"{connection.filename}-shm"
        self._directory = os.path.dirname(connection.filename)  # noqa: PTH120 - as in `_identity`
        self._unchanged: Identity = ()  # The directory when it was old and had the right files.
        self._companions: tuple[Identity | None, Identity | None] | None = None
        try:
            # -1 without a log: an immutable file has no companions.
            if frames_in_log(connection) >= 0:
                self._companions = self._at_path()
        except BaseException:
            connection.close(force=True)
            raise

    def _at_path(self) -> tuple[Identity | None, Identity | None]:
        return _identity(self._wal), _identity(self._shm)

    def main_moved(self) -> bool:
        """Return true if the database was moved, deleted or replaced since it was opened."""
        return self._probe.moved()

    def moved(self) -> str | None:
        """Return which file is no longer the one that is open, as a clause; `None` if all are."""
        found = self._stat_directory()
        if found == self._unchanged:
            return None
        if self._probe.moved():
            return "the store's file was moved, deleted or replaced while it was open"
        moved = self._find_moved_companion()
        if moved is None and found and time.time_ns() - found[2] > _MAX_TIMESTAMP_STEP_NS:
            self._unchanged = found
        return moved

    def companion_moved(self) -> str | None:
        """Return which companion is no longer the one that is open; `None` if both are."""
        if self._stat_directory() == self._unchanged:
            return None
        return self._find_moved_companion()

    def _stat_directory(self) -> Identity | None:
        """Return the identity of the directory, and when it was changed; `None` if it is gone."""
        try:
            found = os.stat(self._directory)  # noqa: PTH116 - as in `_identity`
        except OSError:
            return None
        return found.st_ino, found.st_dev, found.st_ctime_ns

    def _find_moved_companion(self) -> str | None:
        companions = self._companions
        if companions is None or companions == (at_path := self._at_path()):
            return None
        name = self._wal if at_path[0] != companions[0] else self._shm
        return f"{name} was deleted or replaced while the store was open"

    def save_log(self) -> bool:
        """Write a deleted log, which this process still has open, into the database.

        Return whether nothing is left that only the deleted log holds. The caller holds the
        process lock. A log that another one has replaced is not written: both changed the
        database, each without the other.
        """
        if self._companions is None or self._probe.moved():
            return False
        wal = _identity(self._wal)
        if wal is not None:
            return wal == self._companions[0]
        try:
            logged, saved = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
        except apsw.Error:
            return False
        return logged == saved

    def close(self) -> None:
        """Close the connection. The last one writes its log into the database and removes it.

        SQLite removes it by name: it must not do so if the companions there are those of others.
        """
        if not self._owns_companions():
            disable_checkpoint_on_close(self.connection)
        self.connection.close(force=True)

    def _owns_companions(self) -> bool:
        at_path = self._at_path()
        return self._companions in (None, at_path) or at_path[0] is None


def _identity(path: str) -> Identity | None:
    try:
        return os.stat(path)[1:3]  # noqa: PTH116 - a Path takes as long as the call itself
    except OSError:
        return None


def refuse_moved_file(connection: apsw.Connection) -> None:
    """Close a connection and raise `StoreMoved` if its database was replaced while it was opened.

    It opened the log of another database then, which must not be written into its own.
    """
    if MovedProbe(connection).moved():
        path = connection.filename
        disable_checkpoint_on_close(connection)
        connection.close(force=True)
        raise StoreMoved(
            f"{path} was replaced while it was opened; nothing was changed. Try again."
        )


def refuse_deleted_companions(path: Path, vfs: str | None, seconds: float) -> None:
    """Raise `StoreMoved` if another connection has the store open and a companion is missing.

    Another process that is just opening the store has `seconds` to make them.
    """
    deadline = time.monotonic() + min(seconds, _MAX_OPENING_S)
    while missing := [c for s in ("-wal", "-shm") if not (c := companion(path, s)).exists()]:
        if not is_in_use(path, vfs, wal_only=True):
            return
        if time.monotonic() > deadline:
            raise StoreMoved(
                f"{missing[0]} was deleted while the store is open elsewhere; nothing was changed. "
                "Close the store there, without killing the process: that writes what only the "
                "deleted file holds into the store. Then try again."
            )
        time.sleep(0.01)


def is_in_use(path: Path, vfs: str | None = None, *, wal_only: bool = False) -> bool:
    """Return true if any connection, also one of this process, has a database open.

    With `wal_only`, one in another mode than WAL, which has no companions, is not regarded.
    """
    try:
        with lock_exclusively(path, vfs, wal_only=wal_only):
            return False
    except apsw.BusyError:
        return True


@contextmanager
def lock_exclusively(
    path: Path, vfs: str | None = None, *, wal_only: bool = False
) -> Iterator[None]:
    """Keep every connection from reading a database, also those that are opened meanwhile.

    Raises `apsw.BusyError` if one has it open. A file that cannot be locked or read is not locked;
    opening it gives the reason. SQLite's own file layer locks it, because closing another
    descriptor would drop its locks.
    """
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open_file(path, vfs, writable=True))
        except apsw.Error:
            pass
        else:
            opened.callback(file.xUnlock, apsw.SQLITE_LOCK_NONE)
            _lock(file, wal_only=wal_only)
        yield


def _lock(file: apsw.VFSFile, *, wal_only: bool) -> None:
    try:
        if wal_only and file.xRead(2, _WAL_FORMAT_AT) != _WAL_FORMAT:
            return
        for level in (apsw.SQLITE_LOCK_SHARED, apsw.SQLITE_LOCK_EXCLUSIVE):
            file.xLock(level)
    except apsw.BusyError:
        raise
    except apsw.Error:
        return
