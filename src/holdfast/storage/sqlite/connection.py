"""SQLite connections, and the translation of SQLite's errors.

Every SQLite from 3.7.0 to 3.51.2, except two patched releases, can corrupt a database in WAL mode
when two connections checkpoint at once. apsw bundles a newer one; if it was built with an affected
version, the store refuses to open.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import (
    Damaged,
    HoldfastError,
    ReadOnly,
    StoreFull,
    StoreUnavailable,
    TooLarge,
    system_error,
    too_many_files,
)
from holdfast.url import Durability

APPLICATION_ID: Final = 0x486F6C64  # "Hold"
_FIRST_SAFE_VERSION: Final = (3, 51, 3)
_PATCHED_VERSIONS: Final = frozenset({(3, 50, 7), (3, 44, 6)})
_DAMAGE_CODES: Final = frozenset({apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_DATA})
_SYNCHRONOUS: Final = {"power": "FULL", "process": "NORMAL"}


def check_sqlite_version(version: str) -> None:
    """Raise `StoreUnavailable` for a SQLite version that can corrupt a database."""
    numbers = tuple(int(part) for part in version.split("."))
    if (3, 7, 0) <= numbers < _FIRST_SAFE_VERSION and numbers not in _PATCHED_VERSIONS:
        raise StoreUnavailable(
            f"SQLite {version} can corrupt a database that several processes use; nothing was "
            "opened. Install a current apsw, which bundles a safe version."
        )


def connect(
    path: Path,
    *,
    readonly: bool,
    durability: Durability,
    busy: float,
    vfs: str | None = None,
    immutable: bool = False,
) -> apsw.Connection:
    """Open a connection that runs no code that a hostile file may contain, such as triggers."""
    check_sqlite_version(apsw.sqlite_lib_version())
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    name = str(path)
    if immutable:
        from urllib.parse import quote  # noqa: PLC0415 - rarely needed

        name = f"file:{quote(name)}?immutable=1"
        flags |= apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(name, flags=flags | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs)
    try:
        _configure(connection, durability, busy)
    except BaseException as error:
        # Closing it would free a descriptor, and hide that none was left for its log.
        exhausted = isinstance(error, apsw.CantOpenError) and _no_descriptor_left()
        connection.close(force=True)
        if exhausted:
            raise too_many_files("nothing was changed.") from error
        raise
    return connection


def _configure(connection: apsw.Connection, durability: Durability, busy: float) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    # Plans must not depend on bound values, or SQLite prepares statements again and again.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # Until the file is known to be a Holdfast store, closing must not write to it.
    disable_checkpoint_on_close(connection)
    connection.set_busy_timeout(int(busy * 1000))
    connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS[durability]}")
    connection.execute("PRAGMA secure_delete=ON")
    if sys.platform == "darwin" and durability == "power":
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute("PRAGMA checkpoint_fullfsync=ON")


def enable_checkpoint_on_close(connection: apsw.Connection) -> None:
    """Enable the checkpoint on close, once the file is known to be a Holdfast store."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def disable_checkpoint_on_close(connection: apsw.Connection) -> None:
    """Disable the checkpoint on close, and with it the removal of the log."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def frames_in_log(connection: apsw.Connection) -> int:
    """Return how many frames of the write-ahead log SQLite reads; -1 without a log.

    As a statement: in SQLite 3.51 the function refuses a checkpoint that does nothing.
    """
    busy, frames, _ = connection.execute("PRAGMA wal_checkpoint(NOOP)").get
    if busy:
        raise apsw.BusyError("the write-ahead log is being recovered")
    return int(frames)


@contextmanager
def open_file(
    path: Path, vfs: str | None = None, *, writable: bool = False
) -> Iterator[apsw.VFSFile]:
    """Open a file of a store for a `with` block, through SQLite's own file layer.

    That tracks the locks of the process; closing any other descriptor of the file would drop them.
    """
    # Opened as a main database, because SQLite opens a log only together with its database.
    access = apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY
    file = apsw.VFSFile(vfs or "", str(path), [apsw.SQLITE_OPEN_MAIN_DB | access, 0])
    try:
        yield file
    finally:
        file.xClose()


class MovedProbe:
    """Checks whether a connection's file is still the one at its path, in about a microsecond."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._answer = ctypes.c_int(0)
        self._address = ctypes.addressof(self._answer)

    def moved(self) -> bool:
        """Return true if the file was moved, deleted or replaced since it was opened."""
        self._connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, self._address)
        return bool(self._answer.value)


def is_io_error(error: BaseException) -> bool:
    """True if a write, read or sync failed: the connection's state is then unreliable."""
    return isinstance(error, apsw.IOError)


def translate(
    error: apsw.Error, effect: str, connection: apsw.Connection | None = None
) -> HoldfastError:
    """Return a SQLite error as one of Holdfast's. `effect` states what was or was not changed.

    The `connection` that raised it knows the system's error behind a failed write.
    """
    detail = f"{type(error).__name__}: {error}"
    if connection is not None and _is_file_limit(error, connection):
        return system_error(OSError(errno.EFBIG, os.strerror(errno.EFBIG)), detail, effect)
    if isinstance(error, apsw.FullError):
        return StoreFull(f"the disk is full ({detail}); {effect} Free some space and try again.")
    # An operation reads before it writes, so a violated constraint means that rows are damaged.
    corruption = apsw.CorruptError | apsw.NotADBError | apsw.ConstraintError
    if isinstance(error, corruption) or _is_damage(error):
        return Damaged(
            f"the store contains damaged data ({detail}); {effect} Run store.verify() to list the "
            "damage, and store.salvage(to) to copy everything readable into a new store."
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return ReadOnly(f"the store cannot be written to ({detail}); {effect}")
    if isinstance(error, apsw.TooBigError | apsw.NoMemError):
        return TooLarge(f"too large for the store ({detail}); {effect}")
    if isinstance(error, apsw.CantOpenError) and _no_descriptor_left():
        return too_many_files(effect)
    return StoreUnavailable(f"the store is unavailable ({detail}); {effect} Try again.")


def _no_descriptor_left() -> bool:
    """True if no file can be opened: SQLite does not report why it could not open its own."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return True
    return False


def _is_file_limit(error: apsw.Error, connection: apsw.Connection) -> bool:
    """True if a write failed because the file may not grow: SQLite takes it for a failed disk."""
    failed = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE
    return failed and connection.system_errno == errno.EFBIG


def _is_damage(error: apsw.Error) -> bool:
    # SQLite has no code of its own for a number of the header that no SQLite writes.
    unsupported = str(error) == "unsupported file format"
    return unsupported or getattr(error, "extendedresult", 0) in _DAMAGE_CODES
