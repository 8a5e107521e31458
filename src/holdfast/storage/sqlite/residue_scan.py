"""Residue scan: searching every file of a store for fragments of erased content.

The files are searched byte by byte: used and free pages, the gaps in them, the log, the search
indexes, and migration backups. They are read through SQLite's own file layer, because closing any
other descriptor of them would drop its locks. Three files are excluded because they cannot hold
text: the shared memory, which has page numbers (and whose locks would be lost), and the two lock
files, which are empty.

A fragment may also be in a file legitimately: another message says the same, or it is part of the
format. So each fragment that was found is looked up in the stored rows of all tenants, and only one
that no row contains is residue. The result never reveals which fragments other rows contain. Rows
in quarantine do not count as stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw

from holdfast.storage.sqlite.connection import open_file
from holdfast.values import Scan

_CHUNK_BYTES: Final = 1 << 20
_FILE_SUFFIXES: Final = r"(-wal|-journal|(-search(\.\w+)?|\.before-\d+(\.\d+)?)(-wal|-journal)?)?"
_QUARANTINE_TABLE: Final = "quarantine"


def scan_residue(
    connect: Callable[[], apsw.Connection], path: Path, vfs: str | None, fragments: Sequence[bytes]
) -> Scan:
    """Search the store's files for these fragments and return which files hold residue."""
    unique = tuple(dict.fromkeys(filter(None, fragments)))
    files, bytes_read = 0, 0
    found: dict[str, set[bytes]] = {}
    for file in _files(path):
        size, in_file = _search(file, vfs, unique)
        files, bytes_read = files + 1, bytes_read + size
        if in_file:
            found[file.name] = in_file
    residue = _not_stored(connect, set().union(*found.values())) if found else set()
    return Scan(
        files=files,
        bytes=bytes_read,
        fragments=len(unique),
        found=tuple(name for name, in_file in found.items() if in_file & residue),
    )


def _files(path: Path) -> list[Path]:
    """Return the files of a store that can hold text."""
    pattern = re.compile(re.escape(path.name) + _FILE_SUFFIXES)
    return sorted(file for file in path.parent.iterdir() if pattern.fullmatch(file.name))


def _search(file: Path, vfs: str | None, fragments: Sequence[bytes]) -> tuple[int, set[bytes]]:
    """Return the number of bytes read from a file, and the fragments found in it."""
    found: set[bytes] = set()
    bytes_read = 0
    for data, new in _chunks(file, vfs, max(map(len, fragments), default=1) - 1):
        found.update(one for one in fragments if one not in found and one in data)
        bytes_read += new
    return bytes_read, found


def _chunks(file: Path, vfs: str | None, overlap: int) -> Iterator[tuple[bytes, int]]:
    """Yield a file's chunks, each preceded by the last `overlap` bytes of the one before.

    With each chunk comes the number of bytes in it that are new.
    """
    try:
        with open_file(file, vfs) as opened:
            at, tail = 0, b""
            size = opened.xFileSize()
            while at < size:
                data = opened.xRead(min(_CHUNK_BYTES, size - at), at)
                if not data:
                    return  # The file was truncated meanwhile, as a log is.
                yield tail + data, len(data)
                tail, at = (tail + data)[-overlap:] if overlap else b"", at + len(data)
    except apsw.CantOpenError:
        if file.exists():  # Otherwise it was deleted meanwhile.
            raise


def _not_stored(connect: Callable[[], apsw.Connection], found: set[bytes]) -> set[bytes]:
    """Return the fragments that no stored row contains."""
    connection = connect()
    try:
        queries = list(_lookups(connection))
        return {fragment for fragment in found if not _is_stored(connection, queries, fragment)}
    finally:
        connection.close(force=True)


def _is_stored(connection: apsw.Connection, queries: Sequence[str], fragment: bytes) -> bool:
    return any(connection.execute(query, (fragment,)).fetchone() for query in queries)


def _lookups(connection: apsw.Connection) -> Iterator[str]:
    """Yield a query for each table that finds a fragment in any of its columns."""
    tables = [
        row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    ]
    for table in ("sqlite_schema", *tables):
        if table == _QUARANTINE_TABLE:
            continue
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        tests = (f'instr(CAST("{column}" AS BLOB), ?1)' for column in columns)
        yield f'SELECT 1 FROM "{table}" WHERE {" OR ".join(tests)} LIMIT 1'  # noqa: S608 - fixed names
