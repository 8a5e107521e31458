"""Residue scan: searching every file of a store for fragments of erased content.

The files are searched byte by byte: used and free pages, the gaps in them, the log, the search
indexes, and migration backups. They are read through SQLite's own file layer, because closing any
other descriptor of them would drop its locks. Three files are excluded because they cannot hold
text: the shared memory, which has page numbers (and whose locks would be lost), and the two lock
files, which are empty.

Copies of the store in its directory are searched too: what a restore replaced, a damaged store that
was set aside, and whatever begins like a store or an export, under any name. The user made them, so
they are not changed, but the result names those that hold what was erased. Files in an export are
searched as it has them, in base64. A file that cannot be read may be a copy, so it is a problem.

A fragment may also be in a file legitimately: another message says the same, or it is part of the
format. So each fragment that was found is looked up in the stored rows of all tenants, and only one
that no row contains is residue. The result never reveals which fragments other rows contain. Rows
in quarantine do not count as stored.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import StoreUnavailable
from holdfast.storage.sqlite.connection import APPLICATION_ID, open_file
from holdfast.storage.sqlite.location import COMPANION_SUFFIXES
from holdfast.values import Scan
from holdfast.written_files import (
    DAMAGED_DIRECTORY,
    EXPORT_START,
    ID,
    SEARCH_INDEX,
    UNFINISHED,
    UNFINISHED_LINK,
    names_beside,
)

_CHUNK_BYTES: Final = 1 << 20
_MAX_NAMES: Final = 5
_QUARANTINE_TABLE: Final = "quarantine"
_STORE_START: Final = b"SQLite format 3\0"
_APPLICATION_ID_AT: Final = 68  # in the header of the file
_NO_TEXT: Final = tuple(suffix for suffix in COMPANION_SUFFIXES if suffix != "-wal")
_LINK: Final = re.compile(rf"\..*\.{ID}\.{UNFINISHED_LINK}")
_SUFFIXES: Final = re.compile(rf"({SEARCH_INDEX})?(-wal|-journal)?$")


def scan_residue(
    connect: Callable[[], apsw.Connection], path: Path, vfs: str | None, fragments: Sequence[bytes]
) -> Scan:
    """Search the store's files for these fragments and return which files hold residue."""
    unique = tuple(dict.fromkeys(filter(None, fragments)))
    own = _own_files(path)
    copies, unreadable = _copies(path, vfs, own)
    bytes_read = 0
    found: dict[Path, set[bytes]] = {}
    for file in (*own, *copies):
        size, in_file = _search(file, vfs, unique)
        bytes_read += size
        if in_file:
            found[file] = in_file
    residue = _not_stored(connect, set().union(*found.values())) if found else set()
    holding = {file for file, in_file in found.items() if in_file & residue}
    return Scan(
        files=len(own) + len(copies),
        bytes=bytes_read,
        fragments=len(unique),
        found=tuple(file.name for file in own if file in holding),
        copies=tuple(str(file.relative_to(path.parent)) for file in copies if file in holding),
        problem=_not_searched(unreadable),
    )


def _not_searched(unreadable: Sequence[str]) -> str | None:
    """Return a sentence that names files which may be copies and could not be read."""
    if not unreadable:
        return None
    names = ", ".join(ascii(name)[1:-1] for name in unreadable[:_MAX_NAMES])
    more = "" if len(unreadable) <= _MAX_NAMES else f" and {len(unreadable) - _MAX_NAMES} more"
    return f"what may be copies of the store cannot be read, and was not searched: {names}{more}"


def _own_files(path: Path) -> list[Path]:
    """Return the files of a store that can hold text; raise if one of them is not regular."""
    names = names_beside(path.name, "wiped", "deleted")
    with os.scandir(path.parent) as entries:
        found = [
            one for one in entries if names.fullmatch(one.name) and not _LINK.fullmatch(one.name)
        ]
    for entry in found:
        if not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
            raise StoreUnavailable(f"{entry.path} is not a regular file; it is not Holdfast's.")
    return sorted(path.parent / entry.name for entry in found)


def _copies(path: Path, vfs: str | None, own: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the copies of a store in its directory, with their logs and search indexes.

    And the names of files that cannot be read, so that nobody knows whether they are copies.
    """
    names = names_beside(path.name, "kept")
    others = [file for file in _regular_files(path.parent) if file not in own]
    copies: set[str] = set()
    unreadable = []
    for file in others:
        try:
            if names.fullmatch(file.name) or _is_unfinished(file) or _is_copy(file, vfs):
                copies.add(file.name)
        except (apsw.Error, UnicodeEncodeError):  # The latter for a name SQLite cannot open.
            if os.path.lexists(file):
                unreadable.append(file.name)
    aside = path.with_name(path.stem + DAMAGED_DIRECTORY)
    found = [
        *(file for file in others if _SUFFIXES.sub("", file.name) in copies),
        *(_regular_files(aside) if aside.is_dir() and not aside.is_symlink() else ()),
    ]
    return found, unreadable


def _regular_files(directory: Path) -> list[Path]:
    """Return the files in a directory that can hold text, in order."""
    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    return [directory / name for name in sorted(names) if not _is_companion(name, names)]


def _is_companion(name: str, names: Collection[str]) -> bool:
    """True if a file is the shared memory or a lock of a store among these names."""
    return any(name.endswith(one) and name.removesuffix(one) in names for one in _NO_TEXT)


def _is_unfinished(file: Path) -> bool:
    """True if a file has the name of an unfinished copy, which may lack its first bytes."""
    return re.fullmatch(UNFINISHED, file.name) is not None


def _is_copy(file: Path, vfs: str | None) -> bool:
    """True if a file begins like a store or an export."""
    with open_file(file, vfs) as opened:
        start = opened.xRead(_APPLICATION_ID_AT + 4, 0)
    identified = start[_APPLICATION_ID_AT:] == APPLICATION_ID.to_bytes(4)
    return start.startswith(EXPORT_START) or (start.startswith(_STORE_START) and identified)


def _search(file: Path, vfs: str | None, fragments: Sequence[bytes]) -> tuple[int, set[bytes]]:
    """Return the number of bytes read from a file, and the fragments found in it."""
    forms = {fragment: fragment for fragment in fragments}
    encoded = {form: fragment for fragment in fragments for form in _base64_forms(fragment)}
    found: set[bytes] = set()
    bytes_read = 0
    for data, new in _chunks(file, vfs, max(map(len, (*forms, *encoded)), default=1) - 1):
        if not bytes_read and data.startswith(EXPORT_START):
            forms |= encoded
        found.update(one for form, one in forms.items() if one not in found and form in data)
        bytes_read += new
    return bytes_read, found


def _base64_forms(data: bytes) -> Iterator[bytes]:
    """Yield what is the same in every text of base64 that has these bytes somewhere in it."""
    for before in range(3):
        text = b64encode(bytes(before) + data)
        yield text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


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
