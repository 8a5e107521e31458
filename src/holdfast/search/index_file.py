"""Creating, opening, wiping and removing the file of an index.

Every page has a checksum, which SQLite verifies when it reads the page (its extension `cksumvfs`):
a flipped bit is an error, never a message that is silently not found. The file is private, and is
never opened through a symbolic link. After a power cut it must be consistent, but may lack its
newest changes, so no write waits for the disk.
"""

from __future__ import annotations

import ctypes
import glob
import os
import stat
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import apsw

from holdfast import ids
from holdfast.search import tokenize
from holdfast.search.protocol import BUSY_TIMEOUT_S
from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.wipe import page_gap

SCHEMA_VERSION: Final = 1
_ABANDONED_AFTER_S: Final = 60.0  # creating an empty index takes a hundredth of a second
COMPANIONS: Final = ("-wal", "-shm")
_CHECKSUM_VFS: Final = "cksmvfs"
_CHECKSUM_BYTES: Final = 8  # of each page, for its checksum
_load_lock: Final = threading.Lock()

# docs has a row per message: place = branch * 2^32 + seq, as in the log; mark is a hash of its id.
# found has its words under the same number; it is contentless, so it stores only their positions.
# A row of runs maps the messages `first` to `last` of a branch to consecutive numbers from `n` on.
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE docs (
  n       INTEGER PRIMARY KEY,
  place   INTEGER NOT NULL,
  role    INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  length  INTEGER NOT NULL,
  thought INTEGER NOT NULL,
  mark    INTEGER NOT NULL
) STRICT;
CREATE TABLE runs (
  branch INTEGER NOT NULL,
  first  INTEGER NOT NULL,
  last   INTEGER NOT NULL,
  n      INTEGER NOT NULL,
  PRIMARY KEY (branch, first)
) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE found USING fts5(
  text, parts, thinking, content = '', detail = full, columnsize = 0,
  tokenize = "ascii tokenchars '+#%$'"
);
INSERT INTO found (found, rank) VALUES ('secure-delete', 1);
INSERT INTO found (found, rank) VALUES ('pgsz', 4000);
"""


def stamp() -> str:
    """Return the version of the index format: an index with another stamp must be rebuilt."""
    return f"{SCHEMA_VERSION} {tokenize.VERSION} {'checked' if has_checksums() else 'unchecked'}"


def has_own_tables(connection: apsw.Connection) -> bool:
    """Return whether the tables of a file are those of an index, and nothing else is in it."""
    return _tables(connection) == _own_tables()


def _tables(connection: apsw.Connection) -> frozenset[tuple[str, str, str]]:
    return frozenset(connection.execute("SELECT type, name, sql FROM sqlite_schema"))


@cache
def _own_tables() -> frozenset[tuple[str, str, str]]:
    model = apsw.Connection(":memory:")
    model.execute(_SCHEMA)
    found = _tables(model)
    model.close()
    return found


def exists(path: Path) -> bool:
    """True if the file exists; raise `PermissionError` if it is not a file of this user."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is not a regular file of this user")
    return True


def connect(path: Path, *, readonly: bool) -> apsw.Connection:
    """Open the file of an existing index."""
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    vfs = _CHECKSUM_VFS if has_checksums() else None
    connection = apsw.Connection(str(path), flags=flags | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        connection.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA cache_size=-16384")
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def create(path: Path) -> None:
    """Create an empty index, unless another process just did. No process ever sees half of one."""
    _remove_abandoned(path)
    draft = path.with_name(f".{path.name}.{ids.session_id()}.new")
    try:
        location.create_private(draft)
        _build(draft)
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        for leftover in (draft, *(location.companion(draft, suffix) for suffix in COMPANIONS)):
            leftover.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of processes that were killed in `create`; they are empty."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.new*"):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime > _ABANDONED_AFTER_S:
                draft.unlink()


def _build(path: Path) -> None:
    connection = connect(path, readonly=False)
    try:
        if has_checksums():
            reserved = ctypes.c_int(_CHECKSUM_BYTES)
            connection.file_control(
                "main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved)
            )
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        with connection:
            connection.execute(_SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('stamp', ?)", (stamp(),))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()


def remove(path: Path) -> None:
    """Overwrite and delete the file of an index."""
    # The WAL first: it must never be taken for the WAL of the next file of this name.
    logs = [location.companion(path, suffix) for suffix in COMPANIONS]
    for file in (*logs, path, *logs):
        _overwrite(file)
        file.unlink(missing_ok=True)


def _overwrite(file: Path) -> None:
    """Overwrite and truncate a file, if it can contain words."""
    if file.name.endswith("-shm") or not file.exists():
        return
    kind = apsw.SQLITE_OPEN_WAL if file.name.endswith("-wal") else apsw.SQLITE_OPEN_MAIN_DB
    try:
        # SQLite's own file layer respects the locks of other connections of this process.
        opened = apsw.VFSFile("", str(file), [kind | apsw.SQLITE_OPEN_READWRITE, 0])
    except apsw.Error:
        return
    try:
        size, zeros = opened.xFileSize(), bytes(1 << 20)
        for at in range(0, size, len(zeros)):
            opened.xWrite(zeros[: size - at], at)
        opened.xTruncate(0)
    except apsw.Error:
        pass
    finally:
        opened.xClose()


def truncate_wal(connection: apsw.Connection) -> bool:
    """Checkpoint the WAL into the file and truncate it; False if another connection prevents it."""
    try:
        row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except apsw.BusyError:
        return False
    return row is not None and not row[0]


def wipe(connection: apsw.Connection, path: Path) -> bool:
    """Overwrite the free space within pages; False if another connection wrote in between."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return False
    try:
        log = location.companion(path, "-wal")
        clean = not log.exists() or not log.stat().st_size
        if clean:
            _wipe_gaps(connection, path)
            # Other connections must read these pages again; a changed row makes them do so.
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('wiped', random())")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return clean


def _wipe_gaps(connection: apsw.Connection, path: Path) -> None:
    size: int = connection.execute("PRAGMA page_size").get
    pages: int = connection.execute("PRAGMA page_count").get
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
    # Whole pages are written, so that this file layer updates their checksums.
    file = apsw.VFSFile(_CHECKSUM_VFS if has_checksums() else "", str(path), [flags, 0])
    try:
        for number in range(pages):
            page = file.xRead(size, number * size)
            low, high = page_gap(page, 0, size, first=number == 0)
            if low < high and page[low:high].strip(b"\0"):
                wiped = page[:low] + bytes(high - low) + page[high:]
                file.xWrite(wiped, number * size)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
    finally:
        file.xClose()


@cache
def has_checksums() -> bool:
    """True if pages can have checksums: not every build of SQLite has the extension."""
    with _load_lock:
        # Loading the extension makes it the default for all files, but the log has its own
        # checksums.
        usual = apsw.vfs_names()[0]
        if _CHECKSUM_VFS not in apsw.vfs_names() and _load_checksum_vfs():
            apsw.set_default_vfs(usual)
        return _CHECKSUM_VFS in apsw.vfs_names()


def _load_checksum_vfs() -> bool:
    from apsw import sqlite_extra  # noqa: PLC0415 - only searches need it

    loader = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(loader, "cksumvfs")
    except (sqlite_extra.NotAvailable, apsw.Error, OSError):
        return False
    finally:
        loader.close()
    return True
