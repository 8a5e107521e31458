"""Copying the pages of a database whose header cannot be trusted.

SQLite reads nothing of a file whose first 100 bytes are damaged. So it is given another first page,
with a sound header and no tables, and copies the pages as they are, in the version that the
write-ahead log has of them. The file is only read. A page that the disk cannot read becomes zeros.

The page size is that of the log. Without a log it is the one with which most of the file's
beginning looks like pages of tables and indexes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from holdfast import ids
from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.connection import open_file
from holdfast.storage.sqlite.repair.page_format import is_btree_page

PAGE_SIZES: Final = (4096, 512, 1024, 2048, 8192, 16384, 32768, 65536)
_HEADER_BYTES: Final = 100
_SAMPLE_BYTES: Final = 4 << 20
_PAGES_PER_STEP: Final = 1000
_BUSY_TIMEOUT_MS: Final = 10_000
_WAL_MAGIC: Final = (0x377F0682, 0x377F0683)


def copy_pages(source: Path, target: Path) -> None:
    """Copy all pages of a database into a new file, without a header or a schema of its own."""
    vfs = _SoundHeaderVFS(_first_page(_page_size(source), logged=bool(location.wal_size(source))))
    try:
        location.create_private(target)
        _copy(source, target, vfs.name)
    finally:
        vfs.unregister()


def _copy(source: Path, target: Path, vfs: str) -> None:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
    damaged = apsw.Connection(str(source), flags=flags, vfs=vfs)
    copy = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        damaged.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        damaged.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
        damaged.set_busy_timeout(_BUSY_TIMEOUT_MS)
        copy.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF").fetchall()
        with copy.backup("main", damaged, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_PER_STEP)
    finally:
        copy.close(force=True)
        damaged.close(force=True)


def _first_page(size: int, *, logged: bool) -> bytes:
    """Return the first page of a database without tables."""
    connection = apsw.Connection(":memory:")
    connection.execute(f"PRAGMA page_size={size}; CREATE TABLE t (n); DROP TABLE t; VACUUM")
    page = bytearray(connection.serialize("main")[:size])
    connection.close()
    page[18:20] = b"\2\2" if logged else b"\1\1"
    page[28:32] = bytes(4)  # The size of the file, not one in its header, counts.
    return bytes(page)


def _page_size(path: Path) -> int:
    return _logged_page_size(path) or _likely_page_size(path)


def _logged_page_size(path: Path) -> int:
    """Return the page size in the header of the log; 0 if there is none."""
    try:
        with location.companion(path, "-wal").open("rb") as log:
            head = log.read(12)
    except FileNotFoundError:
        return 0
    size = int.from_bytes(head[8:12], "big")
    return size if int.from_bytes(head[:4], "big") in _WAL_MAGIC and size in PAGE_SIZES else 0


def _likely_page_size(path: Path) -> int:
    with open_file(path) as file:
        data = file.xRead(min(file.xFileSize(), _SAMPLE_BYTES), 0)
    stated = {1: 65536}.get(found := int.from_bytes(data[16:18], "big"), found)
    sizes = sorted(PAGE_SIZES, key=lambda size: size != stated)
    return max(
        sizes,
        key=lambda size: sum(
            is_btree_page(data, at, size) for at in range(size, len(data) - size + 1, size)
        ),
    )


class _SoundHeaderVFS(apsw.VFS):
    """Files whose first page is replaced by another when they are read."""

    def __init__(self, first_page: bytes) -> None:
        self.name = f"holdfast-{ids.session_id()}"
        self._first_page = first_page
        super().__init__(self.name, "")

    def xOpen(  # noqa: N802 - SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        """Open a file; a database with another first page."""
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return _SoundHeaderFile(name, flags, self._first_page)
        return super().xOpen(name, flags)


class _SoundHeaderFile(apsw.VFSFile):
    def __init__(
        self, name: str | apsw.URIFilename | None, flags: list[int], first_page: bytes
    ) -> None:
        self._first_page = first_page
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name
        """Return the bytes at an offset; zeros for those that cannot be read."""
        try:
            data = super().xRead(amount, offset)
        except apsw.IOError:
            data = bytes(amount)
        first = self._first_page[offset : offset + amount]
        return first + data[len(first) :]
