"""Making the bytes go of what was erased.

The engine overwrites what a transaction deletes (`secure_delete`), but bytes of it are left in
three places. The write-ahead log holds the pages as they were: it is emptied, which has to wait for
whoever reads from it. The gap in the middle of a b-tree page, between its list of cells and the
cells, holds copies of cells that once moved to another page: gaps are overwritten in the file,
while nobody can write and the log is empty. And a migration made a copy of the whole file: it is
deleted. What is still there after that is told, not passed over.

The transaction that erased something notes that this is owed, and by whom. The note goes when the
bytes are gone, by the one who made it: nobody else knows whether its search index forgot the words.
Whoever opens the store finds the note, if a crash came in between or somebody was reading, deletes
the indexes, and tries again.

Overwriting a gap cannot hurt. The engine never reads what lies there, and whoever has the page in
memory reads it again afterwards, because a commit follows. It is written through the engine's own
file layer, so that no lock is dropped.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

import apsw

from holdfast.backends.sqlite.place import log_size, sync_directory
from holdfast.backends.sqlite.statements import SQL

_ATTEMPTS: Final = 3
_PAGES_AT_ONCE: Final = 256
_HEADERS: Final = {2: 12, 5: 12, 10: 8, 13: 8}  # How long they are, by kind of page.
_ZEROS: Final = bytes(1 << 16)
_FILE_HEADER: Final = 100
_unpack: Final = struct.Struct(">HH").unpack_from
_MOST_PAGES: Final = 1 << 25  # Beyond, the first byte of a page does not tell what it is.


def scrub(
    connect: Callable[[], apsw.Connection],
    path: Path,
    vfs: str | None,
    notes: Collection[str],
    *,
    patience: int,
) -> tuple[str, ...]:
    """Overwrite what erased rows left behind; say what still holds some of it.

    These notes go with it. Others have `patience` milliseconds to finish what they do.
    """
    connection = connect()
    try:
        connection.set_busy_timeout(patience)
        # The notes go with the gaps: what is deleted has to be gone for good by then.
        return (
            *_delete_copies(path),
            *_wipe_log_and_gaps(connection, path, vfs, notes),
            *_look_aside(connection),
        )
    finally:
        connection.close(force=True)


def _wipe_log_and_gaps(
    connection: apsw.Connection, path: Path, vfs: str | None, notes: Collection[str]
) -> Iterator[str]:
    for _ in range(_ATTEMPTS):
        if not _empty_log(connection):
            break
        version = _version(connection)
        dirty = _Dirty(version, list(_dirty_pages(connection, path, vfs)))
        if _wipe(connection, path, vfs, dirty, notes):
            _empty_log(connection)
            return
    yield (
        "the write-ahead log or the file still holds bytes of what was erased, because others use "
        "the store right now; they go with the next purge, or when the store is next opened."
    )


def _empty_log(connection: apsw.Connection) -> bool:
    try:
        row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except apsw.BusyError:
        return False
    return row is not None and not row[0]


# ---------------------------------------------------------------------------------------- gaps


class _Dirty(NamedTuple):
    """Pages that have something in their gap, and the version of the file that was read."""

    version: int
    pages: list[int]


def _version(connection: apsw.Connection) -> int:
    """Return a number that changes when another connection commits or empties the log."""
    number: int = connection.execute("PRAGMA data_version").get
    return number


def _dirty_pages(connection: apsw.Connection, path: Path, vfs: str | None) -> Iterator[int]:
    """Find the pages that have something in their gap."""
    size: int = connection.execute("PRAGMA page_size").get
    pages: int = connection.execute("PRAGMA page_count").get
    with _File(path, vfs) as file:
        for first in range(0, min(pages, _MOST_PAGES), _PAGES_AT_ONCE):
            count = min(_PAGES_AT_ONCE, pages - first)
            data = file.read(first * size, count * size)
            for at in range(count):
                low, high = gap(data, at * size, size, first=first + at == 0)
                if low < high and not data.startswith(_ZEROS[: high - low], at * size + low):
                    yield first + at


def gap(data: bytes, at: int, size: int, *, first: bool) -> tuple[int, int]:
    """Return where the unused middle of the b-tree page at `at` is, counted from its start.

    A page of another kind has none.
    """
    start = _FILE_HEADER if first else 0
    header = _HEADERS.get(data[at + start])
    if header is None:
        return 0, 0
    cells, content = _unpack(data, at + start + 3)
    low, high = start + header + 2 * cells, content or 1 << 16
    return (low, high) if low <= high <= size else (0, 0)


def _wipe(
    connection: apsw.Connection,
    path: Path,
    vfs: str | None,
    dirty: _Dirty,
    notes: Collection[str],
) -> bool:
    """Overwrite gaps while nobody writes; false if somebody did before that."""
    size: int = connection.execute("PRAGMA page_size").get
    try:
        connection.execute(SQL["begin"])
    except apsw.BusyError:
        return False
    try:
        if log_size(path):
            connection.execute("ROLLBACK")
            return False
        pages = dirty.pages
        if _version(connection) != dirty.version:
            # Somebody wrote, and the log was emptied again: bytes may have moved to other pages.
            pages = list(_dirty_pages(connection, path, vfs))
        with _File(path, vfs) as file:
            for number in pages:
                page = file.read(number * size, size)
                low, high = gap(page, 0, size, first=number == 0)
                if low < high:
                    file.write(number * size + low, bytes(high - low))
            file.sync()
        connection.executemany(SQL["scrubbed"], [(note,) for note in notes])
        # Whoever has these pages in memory must read them again.
        connection.execute(SQL["raise_fence"])
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return True


class _File:
    """The database file, opened by the engine's file layer, which knows of all its locks."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
        self._file = apsw.VFSFile(vfs or "", str(path), [flags, 0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.xClose()

    def read(self, at: int, amount: int) -> bytes:
        return self._file.xRead(amount, at)

    def write(self, at: int, data: bytes) -> None:
        self._file.xWrite(data, at)

    def sync(self) -> None:
        self._file.xSync(apsw.SQLITE_SYNC_FULL)


# -------------------------------------------------------------------------------- other places


def _delete_copies(path: Path) -> Iterator[str]:
    ours = re.compile(re.escape(path.name) + r"\.before-\d+(\.\d+)?(-wal|-shm)?")
    for copy in path.parent.iterdir():
        if not ours.fullmatch(copy.name):
            continue
        try:
            copy.unlink()
        except OSError as error:
            yield f"{copy}, a copy from before a migration, cannot be deleted: {error.strerror}."
    sync_directory(path.parent)  # Also for search indexes that were deleted before.


def delete_indexes(path: Path) -> None:
    """Delete the search indexes beside a store: they are derived, and are made anew."""
    ours = re.compile(re.escape(path.name) + r"-search(\.\d+)?(-wal|-shm)?")
    for file in path.parent.iterdir():
        if ours.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


def _look_aside(connection: apsw.Connection) -> Iterator[str]:
    aside = connection.execute("SELECT count(*) FROM quarantine").get
    if aside:
        yield (
            f"the quarantine holds {aside} damaged rows that were kept aside by a salvage; some of "
            "them may be of what was erased."
        )
