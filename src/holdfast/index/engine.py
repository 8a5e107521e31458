"""Connections to the file of an index.

Every page has a checksum, which the engine checks when it reads the page (its own `cksumvfs`): a
flipped bit is an error, never a message that is not found. The file is private, and never reached
through a symbolic link. It need not survive a power cut with its newest changes, only whole, so
nothing waits for the disk.
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
from holdfast.backends.sqlite import place
from holdfast.backends.sqlite.scrub import gap
from holdfast.core.search import words
from holdfast.index.kept import BUSY

SCHEMA_VERSION: Final = 1
_ABANDONED: Final = 60.0  # seconds: making an empty index takes a hundredth of one
COMPANIONS: Final = ("-wal", "-shm")
_CHECKED: Final = "cksmvfs"
_RESERVED: Final = 8  # bytes of each page that its checksum takes
_loading: Final = threading.Lock()

# A doc is a message: place = branch * 2^32 + seq, as in the log; mark is a hash of its id. Words of
# it are in found, under the same number; contentless, so only the words' places are kept. A run
# says which messages of a branch have which numbers: those from first to last, from n on.
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
    """Name the form of an index: one with another stamp has to be made anew."""
    return f"{SCHEMA_VERSION} {words.VERSION} {'checked' if checked() else 'unchecked'}"


def is_there(path: Path) -> bool:
    """Return whether there is a file; what is none of ours is not touched."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is not a file of ours")
    return True


def connect(path: Path, *, readonly: bool) -> apsw.Connection:
    """Open the file of an index that is there."""
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    vfs = _CHECKED if checked() else None
    connection = apsw.Connection(str(path), flags=flags | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        connection.set_busy_timeout(int(BUSY * 1000))
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA cache_size=-16384")
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def create(path: Path) -> None:
    """Make an empty index, unless somebody just did: nobody ever sees half of one."""
    _clear_drafts(path)
    draft = path.with_name(f".{path.name}.{ids.session_id()}.new")
    try:
        place.create_private(draft)
        _build(draft)
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        for leftover in (draft, *(place.companion(draft, suffix) for suffix in COMPANIONS)):
            leftover.unlink(missing_ok=True)


def _clear_drafts(path: Path) -> None:
    """Remove what was left by somebody who was killed while making one; they are empty."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.new*"):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime > _ABANDONED:
                draft.unlink()


def _build(path: Path) -> None:
    connection = connect(path, readonly=False)
    try:
        if checked():
            reserved = ctypes.c_int(_RESERVED)
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
    """Take the file of an index away; its bytes are given back at once, not only its name."""
    # The log first: it must never be taken for the log of the next file of this name.
    logs = [place.companion(path, suffix) for suffix in COMPANIONS]
    for file in (*logs, path, *logs):
        _empty(file)
        file.unlink(missing_ok=True)


def _empty(file: Path) -> None:
    """Overwrite a file, if it is one that can hold words."""
    if file.name.endswith("-shm") or not file.exists():
        return
    kind = apsw.SQLITE_OPEN_WAL if file.name.endswith("-wal") else apsw.SQLITE_OPEN_MAIN_DB
    try:
        # The engine's own file layer knows of the locks that another handle here may hold.
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


def empty_log(connection: apsw.Connection) -> bool:
    """Write everything from the log to the file, and truncate the log."""
    try:
        row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except apsw.BusyError:
        return False
    return row is not None and not row[0]


def wipe(connection: apsw.Connection, path: Path) -> bool:
    """Overwrite what lies between the cells of pages; false if somebody wrote before that."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return False
    try:
        log = place.companion(path, "-wal")
        clean = not log.exists() or not log.stat().st_size
        if clean:
            _wipe_gaps(connection, path)
            # Whoever has these pages in memory must read them again.
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
    # A page is written whole, so that its checksum comes to fit.
    file = apsw.VFSFile(_CHECKED if checked() else "", str(path), [flags, 0])
    try:
        for number in range(pages):
            page = file.xRead(size, number * size)
            low, high = gap(page, 0, size, first=number == 0)
            if low < high and page[low:high].strip(b"\0"):
                wiped = page[:low] + bytes(high - low) + page[high:]
                file.xWrite(wiped, number * size)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
    finally:
        file.xClose()


@cache
def checked() -> bool:
    """Return whether pages can have checksums: not every build of the engine brings that along."""
    with _loading:
        # Loading it makes it the way in which all files are opened, but the log has checksums of
        # its own.
        usual = apsw.vfs_names()[0]
        if _CHECKED not in apsw.vfs_names() and _load():
            apsw.set_default_vfs(usual)
        return _CHECKED in apsw.vfs_names()


def _load() -> bool:
    from apsw import sqlite_extra  # noqa: PLC0415 - only searches need it

    loader = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(loader, "cksumvfs")
    except (sqlite_extra.NotAvailable, apsw.Error, OSError):
        return False
    finally:
        loader.close()
    return True
