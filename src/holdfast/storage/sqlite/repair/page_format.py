"""The format of a database's pages: the records in the pages of tables and indexes.

SQLite finds a row through the pages above its own. Here each page is read by itself, so that rows
are found whatever became of the rest of the file. Only what a record's header and the page's own
pointers show is believed; a cell that makes no sense is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from holdfast.storage.sqlite.repair.row_scan import Value, decoded_text

TABLE_LEAF: Final = 13
INDEX_LEAF: Final = 10
INDEX_INTERIOR: Final = 2
_TABLE_INTERIOR: Final = 5
_HEADER_BYTES: Final = {INDEX_INTERIOR: 12, _TABLE_INTERIOR: 12, INDEX_LEAF: 8, TABLE_LEAF: 8}
_CHILD_BYTES: Final = 4  # An interior cell begins with the number of the page below it.
_LINK_BYTES: Final = 4  # An overflow page begins with the number of the next one.
_INTEGER_BYTES: Final = (0, 1, 2, 3, 4, 6, 8)  # By serial type.
_REAL: Final = 7
_ZERO, _ONE = 8, 9
_FIRST_TEXT_OR_BLOB: Final = 12
_MAX_COLUMNS: Final = 100
_unpack: Final = struct.Struct(">HH").unpack_from

ReadPage = Callable[[int], bytes]


class Cell(NamedTuple):
    """A row of a page: its rowid if its table has one, the types of its values, where they are."""

    rowid: int | None
    types: tuple[int, ...]
    body: bytes
    missing: int
    overflow: int

    def values(self, read_page: ReadPage) -> list[Value]:
        """Return the values; one whose end cannot be read is shorter, or NULL."""
        body = self.body
        if self.missing:
            body += b"".join(_overflow(read_page, self.overflow, self.missing))
        return list(_decoded(self.types, body))


def is_btree_page(data: bytes, at: int, size: int) -> bool:
    """True if the bytes at `at` can be a page of a table or an index that has cells."""
    header = _HEADER_BYTES.get(data[at])
    if header is None:
        return False
    cells, content = _unpack(data, at + 3)
    first = int.from_bytes(data[at + header : at + header + 2], "big")
    return bool(cells > 0 and header + 2 * cells <= (content or 1 << 16) <= first < size)


def cells(page: bytes) -> Iterator[Cell]:
    """Yield the rows in a page of a table or an index, in its order."""
    header = _HEADER_BYTES.get(page[0], 0)
    if not header or page[0] == _TABLE_INTERIOR:
        return
    count, _ = _unpack(page, 3)
    end = min(header + 2 * count, len(page))
    for at in range(header, end - 1, 2):
        # SQLite ignores the bits above the size of a page, so one that was flipped loses no row.
        start = int.from_bytes(page[at : at + 2], "big") % len(page)
        if end <= start < len(page):
            cell = _cell(page, start)
            if cell is not None:
                yield cell


def _cell(page: bytes, at: int) -> Cell | None:
    rowid = None
    try:
        if page[0] == INDEX_INTERIOR:
            at += _CHILD_BYTES
        size, at = _varint(page, at)
        if page[0] == TABLE_LEAF:
            rowid, at = _varint(page, at)
            rowid = rowid if rowid < 1 << 63 else rowid - (1 << 64)
        local = _local_bytes(size, len(page), table=page[0] == TABLE_LEAF)
        if at + local + (_LINK_BYTES if local < size else 0) > len(page):
            return None
        head, start = _varint(page, at)
        types, position = [], start
        while position < at + head:
            kind, position = _varint(page, position)
            types.append(kind)
    except IndexError:
        return None
    if position != at + head or head > local or not 0 < len(types) <= _MAX_COLUMNS:
        return None
    if sum(map(_width, types)) != size - head:
        return None
    link = page[at + local : at + local + _LINK_BYTES] if local < size else b""
    overflow = int.from_bytes(link, "big")
    return Cell(rowid, tuple(types), page[at + head : at + local], size - local, overflow)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for end in range(at, at + 8):
        number = number << 7 | data[end] & 127
        if data[end] < 128:  # noqa: PLR2004 - the bit that says that more follows
            return number, end + 1
    return number << 8 | data[at + 8], at + 9


def _local_bytes(size: int, page_size: int, *, table: bool) -> int:
    """Return how much of a record is in its page; the rest is in overflow pages."""
    least = (page_size - 12) * 32 // 255 - 23
    most = page_size - 35 if table else (page_size - 12) * 64 // 255 - 23
    if size <= most:
        return size
    local = least + (size - least) % (page_size - _LINK_BYTES)
    return local if local <= most else least


def _overflow(read_page: ReadPage, number: int, missing: int) -> Iterator[bytes]:
    """Yield the rest of a record, as far as its chain of pages leads."""
    while missing > 0 and number > 1:
        page = read_page(number)
        if len(page) <= _LINK_BYTES:
            return
        part = page[_LINK_BYTES : _LINK_BYTES + missing]
        yield part
        missing -= len(part)
        number = int.from_bytes(page[:_LINK_BYTES], "big")


def _width(kind: int) -> int:
    if kind < len(_INTEGER_BYTES):
        return _INTEGER_BYTES[kind]
    if kind >= _FIRST_TEXT_OR_BLOB:
        return (kind - _FIRST_TEXT_OR_BLOB) // 2
    return 8 if kind == _REAL else 0


def _decoded(types: tuple[int, ...], body: bytes) -> Iterator[Value]:
    at = 0
    for kind in types:
        width = _width(kind)
        yield _value(kind, body[at : at + width], whole=at + width <= len(body))
        at += width


def _value(kind: int, data: bytes, *, whole: bool) -> Value:
    if kind in (_ZERO, _ONE):
        return kind - _ZERO
    if kind >= _FIRST_TEXT_OR_BLOB:
        return decoded_text(data) if kind % 2 else data
    if not whole or not kind:
        return None
    if kind == _REAL:
        return float(struct.unpack(">d", data)[0])
    return int.from_bytes(data, "big", signed=True) if kind < _REAL else None
