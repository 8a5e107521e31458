"""Looking for traces of what was erased, in every file that belongs to the store.

The files are searched as they are, byte by byte: pages in use and free ones, the gaps in them, the
log, the search index, copies. They are read through the engine's own file layer, because closing
any other descriptor of them would drop its locks. Three are left out, for they cannot hold text:
the shared memory, which has numbers of pages (and its locks would be lost), and our two lock files,
which are empty.

A piece that is found may be there by right: somebody else said the same, or it is a word of the
format. So those that were found are looked up in the rows that are stored, of all tenants, and
whoever asks is not told which of them is there: only what no row has is a trace. What a salvage put
in quarantine is not there by right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw

from holdfast.records import Scan

_CHUNK: Final = 1 << 20
_FLAGS: Final = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY  # A log may be alone.
_OURS: Final = r"(-wal|-journal|(-search(\.\w+)?|\.before-\d+(\.\d+)?)(-wal|-journal)?)?"
_ASIDE: Final = "quarantine"


def scan(
    connect: Callable[[], apsw.Connection], path: Path, vfs: str | None, fragments: Sequence[bytes]
) -> Scan:
    """Search the files for these pieces."""
    wanted = tuple(dict.fromkeys(filter(None, fragments)))
    files, amount = 0, 0
    found: dict[str, set[bytes]] = {}
    for file in _files(path):
        size, there = _search(file, vfs, wanted)
        files, amount = files + 1, amount + size
        if there:
            found[file.name] = there
    traces = _unexplained(connect, set().union(*found.values())) if found else set()
    return Scan(
        files=files,
        bytes=amount,
        fragments=len(wanted),
        found=tuple(name for name, there in found.items() if there & traces),
    )


def _files(path: Path) -> list[Path]:
    """Name the files of a store, but for those that cannot hold text."""
    ours = re.compile(re.escape(path.name) + _OURS)
    return sorted(file for file in path.parent.iterdir() if ours.fullmatch(file.name))


def _search(file: Path, vfs: str | None, wanted: Sequence[bytes]) -> tuple[int, set[bytes]]:
    """Return how long a file is, and which of these pieces it has."""
    there: set[bytes] = set()
    read = 0
    for data, new in _chunks(file, vfs, max(map(len, wanted), default=1) - 1):
        there.update(piece for piece in wanted if piece not in there and piece in data)
        read += new
    return read, there


def _chunks(file: Path, vfs: str | None, overlap: int) -> Iterator[tuple[bytes, int]]:
    """Return a file in pieces, each with the end of the one before, and how much of it is new."""
    try:
        opened = apsw.VFSFile(vfs or "", str(file), [_FLAGS, 0])
    except apsw.CantOpenError:
        if file.exists():
            raise
        return  # It went meanwhile.
    try:
        at, kept = 0, b""
        size = opened.xFileSize()
        while at < size:
            data = opened.xRead(min(_CHUNK, size - at), at)
            if not data:
                return  # It became shorter meanwhile, as a log does.
            yield kept + data, len(data)
            kept, at = (kept + data)[-overlap:] if overlap else b"", at + len(data)
    finally:
        opened.xClose()


def _unexplained(connect: Callable[[], apsw.Connection], found: set[bytes]) -> set[bytes]:
    """Leave out the pieces that are part of a row that is stored."""
    connection = connect()
    try:
        lookups = list(_lookups(connection))
        return {piece for piece in found if not _is_stored(connection, lookups, piece)}
    finally:
        connection.close(force=True)


def _is_stored(connection: apsw.Connection, lookups: Sequence[str], piece: bytes) -> bool:
    return any(connection.execute(text, (piece,)).fetchone() for text in lookups)


def _lookups(connection: apsw.Connection) -> Iterator[str]:
    """Return a statement for each table that finds a piece in any of its columns."""
    tables = [
        row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    ]
    for table in ("sqlite_schema", *tables):
        if table == _ASIDE:
            continue
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        tests = (f'instr(CAST("{column}" AS BLOB), ?1)' for column in columns)
        yield f'SELECT 1 FROM "{table}" WHERE {" OR ".join(tests)} LIMIT 1'  # noqa: S608 - ours
