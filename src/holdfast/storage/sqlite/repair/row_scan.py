"""Row scan: reading every readable row of a database that may be damaged.

A table is a tree of pages. SQLite stops with an error at an unreadable page, although the pages
after it may be intact. `scan_rows` reads a table by its integer key. After an error it probes
larger keys, in growing steps, until one can be read, and then bisects back to the first readable
key. The keys in between are reported as an `UnreadableRange`.

A flipped byte may also change a key. Keys ascend along the tree, so a row whose key is out of order
is a `MisfiledRow`; in a table without gaps its right key may still be clear from its neighbours.

Text is not assumed to be valid: bytes that are not UTF-8 are returned as `BadText`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

import apsw
import msgspec

from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.connection import check_sqlite_version

LAST_KEY: Final = 2**63 - 1
_FIRST_KEY: Final = -(2**63)
_LINEAR_PROBES: Final = 256
_STEP_DIVISOR: Final = 8
_BUSY_TIMEOUT_MS: Final = 10_000

# SQLite's errors for data that it cannot read; errors from locks and interrupts are not included.
UNREADABLE: Final = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.IOError,
    apsw.FormatError,
    apsw.TooBigError,
    apsw.NoMemError,
    apsw.SQLError,  # a table or column that is missing from a damaged schema
)


class BadText(bytes):
    """Bytes stored as text that are not valid UTF-8."""

    __slots__ = ()


Value: TypeAlias = str | bytes | int | float | None
Values: TypeAlias = dict[str, Value]
NextKey: TypeAlias = Callable[[int], int]


class KeyedTable(msgspec.Struct, frozen=True):
    """A table with an integer key: its columns, its smallest key, and whether keys have no gaps.

    An `added` one came with a migration: an older format does not have it.
    """

    name: str
    key: str
    columns: tuple[str, ...]
    first: int = 1
    dense: bool = False
    added: bool = False


class Row(msgspec.Struct, frozen=True):
    """A row. `stored_key` is its key in the file, if that differs from its right one."""

    key: int
    values: Values
    stored_key: int | None = None


class MisfiledRow(msgspec.Struct, frozen=True):
    """A row with a wrong key."""

    key: int
    values: Values


class UnreadableRange(msgspec.Struct, frozen=True):
    """Keys, from first to last, that cannot be read, and SQLite's error."""

    first: int
    last: int
    why: str


Item: TypeAlias = Row | MisfiledRow | UnreadableRange


def open_damaged(path: Path) -> apsw.Connection:
    """Open a possibly damaged file for reading; nothing is ever written to it.

    `writable_schema` makes SQLite skip a bad header or schema entry instead of refusing the file.
    """
    check_sqlite_version(apsw.sqlite_lib_version())
    try:
        return _open(str(path), 0)
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        # On read-only storage SQLite cannot create the shared memory that a log needs. Without a
        # log none is needed.
        if os.access(path.parent, os.W_OK) or location.wal_size(path):
            raise
        return _open(f"file:{quote(str(path))}?immutable=1", apsw.SQLITE_OPEN_URI)


def _open(name: str, flags: int) -> apsw.Connection:
    flags |= apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
    connection = apsw.Connection(name, flags=flags)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        connection.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
        connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        connection.close(force=True)
        raise
    except apsw.Error:
        return connection  # The caller finds out what can be read.
    return connection


# ----------------------------------------------------------------------------------- by a key


def scan_rows(
    connection: apsw.Connection, table: KeyedTable, landmark: NextKey = lambda _: LAST_KEY
) -> Iterator[Item]:
    """Yield a table's rows by key, with misfiled rows and unreadable ranges in their positions.

    `landmark` returns the next key worth probing after an unreadable one.
    """
    if not table.added or has_table(connection, table.name):
        yield from in_order(_runs(connection, table, landmark), dense=table.dense)


def has_table(connection: apsw.Connection, name: str) -> bool:
    """False if a database has no table of this name; true also if that cannot be read."""
    try:
        return connection.execute(f"PRAGMA table_info({name})").fetchone() is not None
    except (*UNREADABLE, UnicodeDecodeError):
        return True


def in_order(items: Iterable[Row | UnreadableRange], *, dense: bool) -> Iterator[Item]:
    """Yield rows by key, given them in file order, and find the misfiled ones."""
    last: int | None = None
    held: Row | None = None
    misfiled: list[Row] = []  # Rows with wrong keys between `last` and `held`,
    next_misfiled: list[Row] = []  # and those after `held`.
    for item in items:
        if isinstance(item, Row) and held is not None and item.key <= held.key:
            if last is None or item.key > last:
                misfiled.append(held)
                held = item
            else:
                next_misfiled.append(item)
            continue
        if held is not None:
            yield from _resolve_misfiled(last, misfiled, held, dense=dense)
            yield held
            last, held, misfiled, next_misfiled = held.key, None, next_misfiled, []
        if isinstance(item, UnreadableRange):
            yield from _resolve_misfiled(last, misfiled, None, dense=False)
            misfiled = []
            yield item
        else:
            held = item
    yield from _resolve_misfiled(last, misfiled, held, dense=dense)
    if held is not None:
        yield held
        yield from _resolve_misfiled(held.key, next_misfiled, None, dense=False)


def _resolve_misfiled(
    last: int | None, misfiled: list[Row], following: Row | None, *, dense: bool
) -> Iterator[Row | MisfiledRow]:
    """Yield rows with wrong keys; a single one beside a gap of one key gets that key."""
    gap = dense and last is not None and following is not None and following.key == last + 2
    for row in misfiled:
        if gap and last is not None and len(misfiled) == 1:
            yield Row(last + 1, row.values, row.key)
        else:
            yield MisfiledRow(row.key, row.values)


def _runs(
    connection: apsw.Connection, table: KeyedTable, landmark: NextKey
) -> Iterator[Row | UnreadableRange]:
    """Yield the rows in file order, continuing after every error."""
    query, names = _select(connection, table), table.columns
    start, last = _FIRST_KEY, _FIRST_KEY
    while start <= LAST_KEY:
        try:
            for key, *cells in connection.execute(query, (start,)):
                yield Row(key, _values(names, cells))
                last = max(last, key)
            return
        except apsw.AbortError as error:
            # An error in another statement aborted this one: continue after the last row.
            why, broken = str(error), last < start
        except UNREADABLE as error:
            why, broken = str(error), True
        first = max(table.first, start, last + 1 if last > _FIRST_KEY else _FIRST_KEY)
        if first > LAST_KEY:
            return
        reached = _first_readable_key(connection, query, first, landmark) if broken else first
        if reached > first:
            yield UnreadableRange(first, reached - 1, why)
        elif first == start:  # No progress and no range: skip one key to avoid looping.
            yield UnreadableRange(first, first, why)
            reached = first + 1
        start = reached


def _first_readable_key(
    connection: apsw.Connection, query: str, first: int, landmark: NextKey
) -> int:
    """Return the first readable key from `first` on; `LAST_KEY + 1` if there is none."""
    low, probe = first - 1, first
    while not _reachable(connection, query, probe):
        if probe == LAST_KEY:
            return LAST_KEY + 1
        low, away = probe, probe - first
        step = 1 if away < _LINEAR_PROBES else away // _STEP_DIVISOR
        probe = min(probe + step, landmark(probe), LAST_KEY)
    while probe - low > 1:
        middle = (low + probe) // 2
        if _reachable(connection, query, middle):
            probe = middle
        else:
            low = middle
    return probe


def _reachable(connection: apsw.Connection, query: str, key: int) -> bool:
    try:
        connection.execute(f"{query} LIMIT 1", (key,)).fetchall()
    except (*UNREADABLE, apsw.AbortError):
        return False
    return True


def _select(connection: apsw.Connection, table: KeyedTable) -> str:
    return (
        f"SELECT {table.key}, {_typed_columns(connection, table)} FROM {table.name} NOT INDEXED "  # noqa: S608
        f"WHERE {table.key} >= ? ORDER BY {table.key}"
    )


def _typed_columns(connection: apsw.Connection, table: KeyedTable | SessionKeyedTable) -> str:
    """Return SQL that selects values with their types, and text as undecoded bytes.

    A column that an older format does not have is NULL.
    """
    try:
        known = {row[1] for row in connection.execute(f"PRAGMA table_info({table.name})")}
    except (*UNREADABLE, UnicodeDecodeError):
        known = set(table.columns)
    return ", ".join(
        f"typeof({name}), iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})"
        for name in (column if column in known else "NULL" for column in table.columns)
    )


def _values(names: tuple[str, ...], cells: list[Value]) -> Values:
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return {name: _value(kind, raw) for name, (kind, raw) in zip(names, pairs, strict=True)}


def _value(kind: Value, raw: Value) -> Value:
    return decoded_text(raw) if kind == "text" and isinstance(raw, bytes) else raw


def decoded_text(data: bytes) -> str | BadText:
    """Return the text in these bytes, or the bytes if they are not valid UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return BadText(data)


# ------------------------------------------------------------------------------- by a session


class SessionKeyedTable(msgspec.Struct, frozen=True):
    """A table whose key begins with the session: its columns, and the rest of its key."""

    name: str
    columns: tuple[str, ...]
    order: tuple[str, ...]


class UnreadableRows(msgspec.Struct, frozen=True):
    """Marks that some rows, of this session if it is known, cannot be read."""

    session: int | None
    why: str


def scan_session_rows(
    connection: apsw.Connection, table: SessionKeyedTable, known: Iterable[int]
) -> Iterator[Values | UnreadableRows]:
    """Yield a table's rows in file order, so that no wrong key hides another row.

    After an error the rest is read by session: first those found in the table, then those `known`.
    """
    current: Value = None
    passed: set[Value] = set()
    yielded: set[tuple[Value, ...]] = set()  # Keys of the current session's rows.
    try:
        for cells in connection.execute(_select_all(connection, table)):
            values = _values(table.columns, list(cells))
            if values["session"] != current:
                passed.add(current)
                current, yielded = values["session"], set()
            yielded.add(_order_of(table, values))
            yield values
    except apsw.AbortError:
        pass  # An error in another statement aborted this one.
    except UNREADABLE as error:
        yield UnreadableRows(None, str(error))
    else:
        return
    for session in chain(_sessions_in(connection, table), known):
        if session not in passed:
            passed.add(session)
            found, why = _rows_of(connection, table, session)
            if why is not None:
                yield UnreadableRows(session, why)
            repeated = yielded if session == current else ()
            yield from (values for values in found if _order_of(table, values) not in repeated)


def _select_all(connection: apsw.Connection, table: SessionKeyedTable) -> str:
    return f"SELECT {_typed_columns(connection, table)} FROM {table.name} NOT INDEXED"  # noqa: S608


def _rows_of(
    connection: apsw.Connection, table: SessionKeyedTable, session: int
) -> tuple[list[Values], str | None]:
    """Return a session's rows, read from both ends, and SQLite's error if there was one."""
    found, why = _read_in_order(connection, table, session, "ASC")
    if why is None:
        return found, None
    others, _ = _read_in_order(connection, table, session, "DESC")
    known = {_order_of(table, row) for row in found}
    found += [row for row in reversed(others) if _order_of(table, row) not in known]
    return found, why


def _read_in_order(
    connection: apsw.Connection, table: SessionKeyedTable, session: int, direction: str
) -> tuple[list[Values], str | None]:
    order = ", ".join(f"{name} {direction}" for name in table.order)
    query = f"{_select_all(connection, table)} WHERE session = ? ORDER BY {order}"
    found: list[Values] = []
    try:
        for cells in connection.execute(query, (session,)):
            found.append(_values(table.columns, list(cells)))  # noqa: PERF401 - keep partial reads
    except (*UNREADABLE, apsw.AbortError) as error:
        return found, str(error)
    return found, None


def _order_of(table: SessionKeyedTable, row: Values) -> tuple[Value, ...]:
    return tuple(row[name] for name in table.order)


def _sessions_in(connection: apsw.Connection, table: SessionKeyedTable) -> Iterator[int]:
    """Yield the sessions that have rows in a table, as far as it can be read."""
    query = (
        f"SELECT min(session) FROM {table.name} NOT INDEXED "  # noqa: S608
        "WHERE session > ? AND typeof(session) = 'integer'"
    )
    session = _FIRST_KEY
    while True:
        try:
            found: Value = connection.execute(query, (session,)).get
        except (*UNREADABLE, apsw.AbortError):
            return
        if not isinstance(found, int) or found <= session:  # Wrong keys break the order.
            return
        yield found
        session = found
