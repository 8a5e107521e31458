"""Online backup: copying a store while it is in use.

SQLite writes a consistent snapshot of the store into a private temporary file beside the target,
without blocking writers. The copy is verified like any store. Only if it is sound, and synced to
the disk, does it get the target's name. An existing target is never replaced, and on any failure
the temporary file is removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from holdfast import ids
from holdfast.errors import Damaged, Invalid, StoreFull, StoreUnavailable
from holdfast.storage.sqlite import location, migrations
from holdfast.storage.sqlite.connection import connect, enable_checkpoint_on_close, translate
from holdfast.storage.sqlite.repair.verify import structure, verify
from holdfast.values import BackupReport

_NO_BACKUP_MADE: Final = "no backup was made, and the store is unchanged."
_LINK_UNSUPPORTED: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_COUNTS: Final = "SELECT (SELECT count(*) FROM heads), (SELECT count(*) FROM messages)"


def backup(connection: apsw.Connection, target: Path) -> BackupReport:
    """Copy the store that `connection` reads to `target`, and verify the copy."""
    _refuse_existing(target)
    temporary = target.with_name(f".{target.name}.{ids.session_id()}.new")
    with _remove_on_exit(temporary), _translate_errors():
        location.create_private(temporary)
        counts = _copy(connection, temporary)
        sessions, messages = _check(temporary, counts)
        size = _sync(temporary)
        _publish(temporary, target)
    return BackupReport(path=str(target), sessions=sessions, messages=messages, size=size)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise Invalid(f"{target} exists already and was not changed; choose another path.")
    if not target.parent.is_dir():
        raise Invalid(f"{target.parent} is not a directory; {_NO_BACKUP_MADE} Create it first.")


@contextmanager
def _remove_on_exit(temporary: Path) -> Iterator[None]:
    try:
        yield
    finally:
        for leftover in (
            temporary,
            *(location.companion(temporary, s) for s in location.COMPANION_SUFFIXES),
        ):
            leftover.unlink(missing_ok=True)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error, _NO_BACKUP_MADE) from error
    except FileExistsError as error:
        raise Invalid(
            f"{error.filename2 or error.filename} exists already; {_NO_BACKUP_MADE}"
        ) from error
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise StoreFull(
                f"the disk is full ({error}); {_NO_BACKUP_MADE} Free some space."
            ) from error
        raise StoreUnavailable(
            f"the backup cannot be written ({error}); {_NO_BACKUP_MADE}"
        ) from error


def _copy(connection: apsw.Connection, temporary: Path) -> tuple[int, int] | None:
    """Copy the store; return its row counts, or `None` if another connection wrote meanwhile."""
    before = _version_and_counts(connection)
    connection.execute("VACUUM INTO ?", (str(temporary),))
    return before[1] if _version_and_counts(connection) == before else None


def _version_and_counts(connection: apsw.Connection) -> tuple[int, tuple[int, int]]:
    version: int = connection.execute("PRAGMA data_version").get
    return version, _counts(connection)


def _counts(connection: apsw.Connection) -> tuple[int, int]:
    sessions, messages = connection.execute(_COUNTS).get
    return int(sessions), int(messages)


def _check(temporary: Path, counts: tuple[int, int] | None) -> tuple[int, int]:
    """Verify the copy as a store, empty its log into it, and return its row counts."""
    connection = connect(temporary, readonly=False, durability="power", busy=1.0)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        # Only the newest format can be verified in full; of an older one only the structure.
        newest = connection.execute("PRAGMA user_version").get == max(migrations.load())
        damage = verify(connection) if newest else structure(connection)
        if damage:
            problems = "1 problem" if len(damage) == 1 else f"{len(damage)} problems"
            raise Damaged(
                f"verifying the copy found {problems}, the first: {damage[0].what}; "
                f"{_NO_BACKUP_MADE} "
                "Run store.verify() to list the damage, and store.salvage(to) to copy everything "
                "readable into a new store."
            )
        found = _counts(connection)
        if counts not in (None, found):
            raise Damaged(
                f"the copy has {found[0]} sessions and {found[1]} messages, which differs from "
                f"the store; {_NO_BACKUP_MADE} Try again."
            )
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        enable_checkpoint_on_close(connection)
    finally:
        connection.close()
    return found


def _sync(temporary: Path) -> int:
    """Sync the copy to the disk and return its size; SQLite has closed it by now."""
    descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _publish(temporary: Path, target: Path) -> None:
    """Link the copy under its final name, never replacing a file that was created meanwhile."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _LINK_UNSUPPORTED:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "exists", str(target)) from error
        temporary.rename(target)
    location.sync_directory(target.parent)
