"""Secure wipe: removing the bytes of erased rows from a store's files.

SQLite overwrites what a transaction deletes (`secure_delete`), but bytes remain in three other
locations, each with its own remedy:

- The write-ahead log holds earlier versions of pages. It is truncated, which has to wait for
  readers that still use it.
- The gap in a b-tree page, between its cell pointers and its cells, holds copies of cells that
  moved to another page. Gaps are overwritten in the file while no process can write and the log
  is empty.
- A migration leaves a backup of the whole file, and a process that is killed while it copies the
  store leaves an unfinished copy. They are deleted.

Whatever could not be removed is reported.

The transaction that erases something records a wipe note, a row of `meta`, under a name unique to
its backend. That backend deletes the note once the bytes are gone. Others that have the store open
do not, because they cannot know whether the search index has dropped the words. If a crash or a
reader prevented the wipe, the next process that opens the store finds the note, deletes the search
indexes, wipes again and deletes the note.

Overwriting a gap is safe. SQLite never reads it, and a commit follows, so connections that have the
page cached read it again. It is written through SQLite's own file layer, so no lock is dropped.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from holdfast.storage.sqlite.connection import open_file
from holdfast.storage.sqlite.location import sync_directory, wal_size
from holdfast.storage.sqlite.new_file import remove_unfinished_copies
from holdfast.storage.sqlite.statements import SQL
from holdfast.written_files import MIGRATION_BACKUP, SEARCH_INDEX

_MAX_ATTEMPTS: Final = 3
_PAGES_PER_READ: Final = 256
_HEADER_BYTES: Final = {2: 12, 5: 12, 10: 8, 13: 8}  # Bytes of a page header, by b-tree page type.
_ZEROS: Final = bytes(1 << 16)
_FILE_HEADER: Final = 100
_unpack: Final = struct.Struct(">HH").unpack_from
_MAX_PAGES: Final = 1 << 25  # Beyond, the first byte of a page no longer identifies its type.


def wipe_erased(
    connect: Callable[[], apsw.Connection],
    path: Path,
    vfs: str | None,
    notes: Collection[str],
    *,
    busy_timeout_ms: int,
) -> tuple[str, ...]:
    """Wipe what erased rows left behind and delete these notes.

    Returns a sentence for each file that still holds some of it. Other connections have
    `busy_timeout_ms` to finish.
    """
    connection = connect()
    try:
        connection.set_busy_timeout(busy_timeout_ms)
        # The notes are deleted with the gaps, so file deletions must be durable before that.
        return (
            *remove_unfinished_copies(path),
            *_delete_migration_backups(path),
            *_wipe_wal_and_gaps(connection, path, vfs, notes),
            *_report_quarantine(connection),
        )
    finally:
        connection.close(force=True)


def _wipe_wal_and_gaps(
    connection: apsw.Connection, path: Path, vfs: str | None, notes: Collection[str]
) -> Iterator[str]:
    for _ in range(_MAX_ATTEMPTS):
        if not _truncate_wal(connection):
            break
        version = _version(connection)
        dirty = _DirtyPages(version, list(_dirty_pages(connection, path, vfs)))
        if _wipe_gaps(connection, path, vfs, dirty, notes):
            _truncate_wal(connection)
            return
    yield (
        "the write-ahead log or the file still holds bytes of what was erased, because other "
        "connections are using the store; they are removed by the next purge, or when the store "
        "is next opened."
    )


def _truncate_wal(connection: apsw.Connection) -> bool:
    try:
        row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except apsw.BusyError:
        return False
    return row is not None and not row[0]


# ---------------------------------------------------------------------------------------- gaps


class _DirtyPages(NamedTuple):
    """Page numbers with data in their gap, and the `data_version` at which they were found."""

    version: int
    pages: list[int]


def _version(connection: apsw.Connection) -> int:
    """Return a number that changes when another connection commits or truncates the log."""
    number: int = connection.execute("PRAGMA data_version").get
    return number


def _dirty_pages(connection: apsw.Connection, path: Path, vfs: str | None) -> Iterator[int]:
    """Yield the numbers of pages with data in their gap."""
    size: int = connection.execute("PRAGMA page_size").get
    pages: int = connection.execute("PRAGMA page_count").get
    with open_file(path, vfs) as file:
        for first in range(0, min(pages, _MAX_PAGES), _PAGES_PER_READ):
            count = min(_PAGES_PER_READ, pages - first)
            data = file.xRead(count * size, first * size)
            for at in range(len(data) // size):  # Pages of a later commit may be only in its log.
                low, high = page_gap(data, at * size, size, first=first + at == 0)
                if low < high and not data.startswith(_ZEROS[: high - low], at * size + low):
                    yield first + at


def page_gap(data: bytes, at: int, size: int, *, first: bool) -> tuple[int, int]:
    """Return start and end of the gap in the b-tree page at `at`, as offsets into that page.

    Both are 0 for a page of another type.
    """
    start = _FILE_HEADER if first else 0
    header = _HEADER_BYTES.get(data[at + start])
    if header is None:
        return 0, 0
    cells, content = _unpack(data, at + start + 3)
    low, high = start + header + 2 * cells, content or 1 << 16
    return (low, high) if low <= high <= size else (0, 0)


def _wipe_gaps(
    connection: apsw.Connection,
    path: Path,
    vfs: str | None,
    dirty: _DirtyPages,
    notes: Collection[str],
) -> bool:
    """Overwrite gaps under the write lock and delete the notes.

    Returns false, with nothing done, if another connection is writing or the log is not empty.
    """
    size: int = connection.execute("PRAGMA page_size").get
    try:
        connection.execute(SQL["begin"])
    except apsw.BusyError:
        return False
    try:
        if wal_size(path):
            connection.execute("ROLLBACK")
            return False
        pages = dirty.pages
        if _version(connection) != dirty.version:
            # Another connection wrote and truncated the log: bytes may have moved to other pages.
            pages = list(_dirty_pages(connection, path, vfs))
        with open_file(path, vfs, writable=True) as file:
            for number in pages:
                page = file.xRead(size, number * size)
                low, high = page_gap(page, 0, size, first=number == 0)
                if low < high:
                    file.xWrite(bytes(high - low), number * size + low)
            file.xSync(apsw.SQLITE_SYNC_FULL)
        connection.executemany(SQL["drop_wipe_note"], [(note,) for note in notes])
        # A commit makes connections that have these pages cached read them again.
        connection.execute(SQL["raise_fence"])
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return True


# --------------------------------------------------------------------------------- other files


def _delete_migration_backups(path: Path) -> Iterator[str]:
    pattern = re.compile(re.escape(path.name) + MIGRATION_BACKUP + r"(-wal|-journal|-shm)?")
    for copy in path.parent.iterdir():
        if not pattern.fullmatch(copy.name):
            continue
        try:
            copy.unlink()
        except OSError as error:
            yield f"{copy}, a backup made before a migration, cannot be deleted: {error.strerror}."
    sync_directory(path.parent)  # Also for what was deleted before: copies and search indexes.


def delete_search_indexes(path: Path) -> None:
    """Delete the search indexes beside a store; they are derived data and are rebuilt."""
    pattern = re.compile(re.escape(path.name) + SEARCH_INDEX + "(-wal|-shm)?")
    for file in path.parent.iterdir():
        if pattern.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


def _report_quarantine(connection: apsw.Connection) -> Iterator[str]:
    count = connection.execute("SELECT count(*) FROM quarantine").get
    if count:
        yield (
            f"the quarantine holds {count} damaged rows kept by a salvage; some of them may belong "
            "to what was erased."
        )
