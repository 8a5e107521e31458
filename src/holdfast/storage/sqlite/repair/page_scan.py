"""Page scan: collecting the rows of a store page by page, when its trees cannot be followed.

The header, the schema or a page above others may be lost while the pages with the rows are whole.
The tables of a store are known, so a page shows by the columns of its rows which one it belongs to.
Rows come in the order of their pages' keys, as from a table, so that a row with a wrong key is
found (`row_scan.in_order`).

The rows go into a database of their own, with tables of the same names and columns but no rules, so
that damaged rows keep their values. Of two rows with one key the one that matches its checksum
stays; the other goes into the table `conflicts`. Only the numbers of the pages are in memory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import apsw

from holdfast.errors import Damaged
from holdfast.storage.columns import Column, Kind
from holdfast.storage.sqlite.location import create_private
from holdfast.storage.sqlite.repair import column_rules
from holdfast.storage.sqlite.repair.column_rules import (
    matches_checksum,
    written_record,
    written_row,
    written_store_record,
)
from holdfast.storage.sqlite.repair.page_format import TABLE_LEAF, Cell, cells
from holdfast.storage.sqlite.repair.row_scan import (
    BadText,
    KeyedTable,
    MisfiledRow,
    Row,
    SessionKeyedTable,
    Value,
    Values,
    in_order,
)
from holdfast.storage.sqlite.tables import TABLES

CONFLICTS: Final = KeyedTable("conflicts", "n", ("n", "origin", "content"))
_MIN_TOLERANT_COLUMNS: Final = 5  # With so many, one value may be of another type than declared.
_FIRST_PLACE: Final = 1 << 32
_META_NAMES: Final = ("fence", "created_at", "log", "activity of ", "scrub of ")
_TEXT_KINDS: Final = frozenset[Kind]({"name", "text", "choice", "json", "struct"})


class Shape(NamedTuple):
    """The columns of a table as its pages have them, each with the letters of its types.

    The letters are n for NULL, i for an integer, r for a real number, s for text or a blob. A row
    that an older format stored has only the first `least` columns. `table` is `None` for tables
    that salvage does not scan.
    """

    name: str
    table: KeyedTable | SessionKeyedTable | None
    columns: tuple[str, ...]
    letters: tuple[str, ...]
    least: int

    @property
    def has_rowid(self) -> bool:
        """True if the rows have a number of their own, and their pages are those of a table."""
        return isinstance(self.table, KeyedTable)

    def fits(self, cell: Cell) -> bool:
        """True if a row can be one of this table's."""
        found = [_letter(kind) for kind in cell.types]
        if not self.least <= len(found) <= len(self.columns):
            return False
        pairs = zip(found, self.letters, strict=False)
        wrong = sum(letter not in allowed for letter, allowed in pairs)
        if self.letters[0] == "n" and found[0] != "n":
            return False
        return wrong <= (len(self.columns) >= _MIN_TOLERANT_COLUMNS)

    def values(self, cell: Cell, read_page: Pages) -> Values:
        """Return the values of a row by column."""
        found = cell.values(read_page.read)
        found += [None] * (len(self.columns) - len(found))
        if self.letters[0] == "n":  # The key is the row's number.
            found[0] = cell.rowid
        return dict(zip(self.columns, found, strict=False))


def _letter(kind: int) -> str:
    if kind in (0, 10, 11):
        return "n"
    return "s" if kind >= 12 else "r" if kind == 7 else "i"  # noqa: PLR2004 - serial types


def _shape(table: KeyedTable | SessionKeyedTable, *letters: str) -> Shape:
    """Return the shape of a table, by default with the types that its columns declare."""
    known = TABLES.get(table.name)
    columns = table.columns
    least = len(columns)
    if known is not None and not letters:
        declared = {column.name: _letters(column) for column in known.columns}
        letters = tuple(declared.get(name, "i") for name in columns)
        least -= sum(column.added for column in known.columns)
    if isinstance(table, KeyedTable) and table.key != "rowid":
        if table.key not in columns:
            columns, letters, least = (table.key, *columns), ("n", *letters), least + 1
        else:
            letters = ("n", *letters[1:])
    return Shape(table.name, table, columns, letters, least)


def _letters(column: Column) -> str:
    return ("s" if column.kind in _TEXT_KINDS else "i") + ("n" if column.optional else "")


_META: Final = Shape("meta", None, ("name", "value"), ("s", "is"), 2)
# Those of records look the same. They are not needed: the bodies of records name their blobs.
_BLOB_USES: Final = Shape("blob_uses", None, ("place", "blob"), ("i", "i"), 2)
_SHAPES: Final = (
    _shape(column_rules.TENANTS, "n", "s"),
    _shape(column_rules.SESSIONS),
    _shape(column_rules.HEADS),
    _shape(column_rules.BRANCHES),
    _shape(column_rules.MESSAGES, "s", "in", "i", "s"),
    _shape(column_rules.RECORDS, "n", "i", "s", "s", "sn", "i", "s"),
    _shape(column_rules.STORE_RECORDS, "n", "i", "sn", "s", "sn", "s", "i", "sn"),
    _shape(column_rules.BLOBS, "n", "i", "s", "s"),
    _shape(column_rules.QUEUE_BLOBS, "i", "i", "s", "s"),
    _shape(column_rules.QUARANTINE, "n", "s", "s", "nisr", "i"),
    _shape(column_rules.USAGE),
    *map(_shape, column_rules.SESSION_TABLES),
    _META,
    _BLOB_USES,
)


class Pages:
    """The pages of a private copy of a database (`page_copy`)."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = int.from_bytes(os.pread(self._descriptor, 2, 16), "big")
        self._size = 1 << 16 if size == 1 else size
        self.bytes = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of all pages but the first, which is not the database's own."""
        return iter(range(2, self.bytes // self._size + 1))

    def read(self, number: int) -> bytes:
        """Return a page; nothing behind the end of the file."""
        return os.pread(self._descriptor, self._size, (number - 1) * self._size)

    def cells(self, number: int) -> Iterator[Cell]:
        """Yield the rows in a page whose length is possible."""
        return (cell for cell in cells(self.read(number)) if cell.missing <= self.bytes)


def collect_rows(copy: Path, target: Path) -> bool:
    """Collect the rows of a store into a new database; true if any matches its checksum."""
    create_private(target)
    connection = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF").fetchall()
        connection.execute("BEGIN")
        with Pages(copy) as pages:
            collector = _Collector(connection, pages)
            for shape, numbers in _pages_by_table(pages).items():
                collector.collect(shape, numbers)
        connection.execute("COMMIT")
        return collector.found_intact
    finally:
        connection.close(force=True)


def _pages_by_table(pages: Pages) -> dict[Shape, list[int]]:
    """Return the pages of each table, in the order of their keys."""
    found: dict[Shape, list[tuple[int, int]]] = {shape: [] for shape in _SHAPES}
    for number in pages:
        content = list(pages.cells(number))
        shape = _shape_of(pages, number, content)
        if shape is not None:
            # The key in the middle: that of the first row may be damaged.
            found[shape].append((content[len(content) // 2].rowid or 0, number))
    return {shape: [number for _, number in sorted(keyed)] for shape, keyed in found.items()}


def _shape_of(pages: Pages, number: int, content: list[Cell]) -> Shape | None:
    """Return the table that most of a page's rows fit; `None` for other pages."""
    if not content:
        return None
    has_rowid = pages.read(number)[0] == TABLE_LEAF
    votes = Counter(
        shape
        for cell in content
        for shape in _SHAPES
        if shape.has_rowid == has_rowid and shape.fits(cell) and _is_plausible(shape, cell, pages)
    )
    (winner, count), *_ = [*votes.most_common(1), (None, 0)]
    return winner if 2 * count > len(content) else None


def _is_plausible(shape: Shape, cell: Cell, pages: Pages) -> bool:
    """False for an entry of an index that has the columns of one of the small tables."""
    if shape is _META:
        name = shape.values(cell, pages)["name"]
        return isinstance(name, str) and name.startswith(_META_NAMES)
    if shape is _BLOB_USES:
        place, blob = shape.values(cell, pages).values()
        return isinstance(place, int) and isinstance(blob, int) and blob < _FIRST_PLACE <= place
    return True


class _Collector:
    """Writes the rows of pages into tables without rules."""

    def __init__(self, connection: apsw.Connection, pages: Pages) -> None:
        self._connection = connection
        self._pages = pages
        self.found_intact = False
        for statement in map(_create_table, _SHAPES):
            connection.execute(statement)
        connection.execute("CREATE INDEX meta_by_value ON meta (value)")
        connection.execute("CREATE TABLE conflicts (n INTEGER PRIMARY KEY, origin, content)")

    def collect(self, shape: Shape, numbers: Iterable[int]) -> None:
        """Collect the rows of a table from these pages."""
        if not isinstance(shape.table, KeyedTable):
            for row in self._rows(shape, numbers):
                self._insert(shape, row.values)
            return
        for item in in_order(self._rows(shape, numbers), dense=shape.table.dense):
            if isinstance(item, MisfiledRow):
                self._set_aside(shape, item.values)
            elif isinstance(item, Row):
                self._insert(shape, item.values | {shape.table.key: item.key})

    def _rows(self, shape: Shape, numbers: Iterable[int]) -> Iterator[Row]:
        for number in numbers:
            for cell in self._pages.cells(number):
                if shape.least <= len(cell.types) <= len(shape.columns):
                    yield Row(cell.rowid or 0, shape.values(cell, self._pages))

    def _insert(self, shape: Shape, values: Values) -> None:
        self.found_intact = self.found_intact or _is_intact(shape, values)
        try:
            self._write("INSERT", shape, values)
        except apsw.ConstraintError:
            stored = self._stored(shape, values)
            if stored == values:
                return
            if stored is not None and _is_intact(shape, values) > _is_intact(shape, stored):
                self._write("REPLACE", shape, values)
                values = stored
            self._set_aside(shape, values)

    def _write(self, statement: str, shape: Shape, values: Values) -> None:
        # A blob would be read as one, and not as text that is damaged.
        marks = ("CAST(? AS TEXT)" if isinstance(v, BadText) else "?" for v in values.values())
        query = f"{statement} INTO {shape.name} ({', '.join(values)}) VALUES ({', '.join(marks)})"
        self._connection.execute(query, tuple(values.values()))

    def _stored(self, shape: Shape, values: Values) -> Values | None:
        """Return the row that has the key of another."""
        names = _key_columns(shape)
        where = " AND ".join(f"{name} = ?" for name in names)
        query = f"SELECT {', '.join(values)} FROM {shape.name} WHERE {where}"  # noqa: S608
        row = self._connection.execute(query, tuple(values[name] for name in names)).fetchone()
        return None if row is None else dict(zip(values, row, strict=True))

    def _set_aside(self, shape: Shape, values: Values) -> None:
        content = column_rules.row_as_json(values)
        query = "INSERT INTO conflicts (origin, content) VALUES (?, ?)"
        self._connection.execute(query, (shape.name, content))


def _key_columns(shape: Shape) -> tuple[str, ...]:
    if isinstance(shape.table, KeyedTable):
        return (shape.table.key,)
    if shape.table is not None:
        return ("session", *shape.table.order)
    return shape.columns if shape is _BLOB_USES else ("name",)


def _create_table(shape: Shape) -> str:
    """Return the statement that creates a table like this one, without types and rules."""
    names = ", ".join(shape.columns)
    if shape.letters[0] == "n":
        names = names.replace(shape.columns[0], f"{shape.columns[0]} INTEGER PRIMARY KEY", 1)
        return f"CREATE TABLE {shape.name} ({names})"
    if shape.has_rowid:
        return f"CREATE TABLE {shape.name} ({names})"
    key = ", ".join(_key_columns(shape))
    return f"CREATE TABLE {shape.name} ({names}, PRIMARY KEY ({key})) WITHOUT ROWID"


def _is_intact(shape: Shape, values: Mapping[str, Value]) -> bool:
    """True if a row matches its checksum; false also for a table that has none."""
    known = dict(values)
    try:
        if shape.name == "messages":
            written_row(0, known)
        elif shape.name == "records":
            written_record(known)
        elif shape.name == "store_records":
            written_store_record(known)
        else:
            return shape.name in TABLES and matches_checksum(shape.name, known)
    except Damaged:
        return False
    return True
