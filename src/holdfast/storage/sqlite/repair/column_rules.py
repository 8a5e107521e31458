"""Column rules: the valid values of each column, and checks of rows against their checksums.

The rules follow from what a column is declared to hold (`storage.columns`). `verify` reports values
that break a rule; `salvage` replaces them by the rule's default. A row whose values are all valid
may still differ from what was written, which its checksum reveals (`matches_checksum`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from holdfast import codec, ids
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.errors import Damaged
from holdfast.storage.columns import Column, Kind
from holdfast.storage.rows import MessageRow, RecordRow, StoreRecordRow
from holdfast.storage.sqlite import tables
from holdfast.storage.sqlite.record_tables import (
    RECORD_COLUMNS,
    STORE_RECORD_COLUMNS,
    record_values,
    store_record_values,
)
from holdfast.storage.sqlite.repair.row_scan import (
    BadText,
    KeyedTable,
    SessionKeyedTable,
    Value,
    Values,
)
from holdfast.storage.sqlite.tables import BOUNDS, SEQ_MASK, TABLES, Table, unbind_json
from holdfast.storage.sqlite.transaction import message_values
from holdfast.values import JSON, File, Holder, Message, ToolResult

T = TypeVar("T")
Predicate: TypeAlias = Callable[[Value], bool]
NO_HOLDER: Final = Holder("?", 0, "", "", "")
_INTEGER_WIDTHS: Final = (
    8,
    16,
    24,
    32,
    48,
    64,
)  # SQLite stores an integer in one of these bit widths.
_UNDECODABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)


class ColumnRule(msgspec.Struct, frozen=True):
    """The test that a column's values must pass, and the default for one that does not."""

    holds: Predicate
    default: Callable[[], Value] = lambda: None


def text_of(value: Value) -> str | None:
    """Return stored text; `None` if the value is not text or not valid."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes) or isinstance(value, BadText):
        return None
    try:
        return codec.decode_text(value)
    except UnicodeDecodeError:
        return None


def bytes_of(value: Value) -> bytes | None:
    """Return stored JSON as bytes, without decoding it; `None` if the value is a number."""
    return unbind_json(value) if isinstance(value, str | bytes) else None


def _is_text(value: Value) -> bool:
    return bool(text_of(value))


def _within(kind: Kind) -> Predicate:
    first, last = BOUNDS[kind]
    return lambda value: isinstance(value, int) and first <= value <= last


_is_number: Final = _within("number")
_is_time: Final = _within("time")


def _one_of(*allowed: Value) -> Predicate:
    return lambda value: value in allowed


def _optional(check: Predicate) -> Predicate:
    return lambda value: value is None or check(value)


def decoded(value: Value, kind: type[T]) -> T | None:
    """Return a stored struct, decoded; `None` if it cannot be decoded."""
    data = bytes_of(value)
    if data is None:
        return None
    try:
        return codec.from_json(data, kind)
    except _UNDECODABLE:
        return None


_HOLDS: Final[Mapping[Kind, Predicate]] = {
    "name": _is_text,
    "text": lambda value: text_of(value) is not None,
    **{kind: _within(kind) for kind in BOUNDS},
}
_DEFAULTS: Final[Mapping[str, Callable[[], Value]]] = {
    "id": ids.session_id,
    "session": lambda: 0,  # No session has number 0.
    "metadata": lambda: "{}",
    "reason": lambda: "start",
    "token": ids.message_id,
    "state": lambda: "interrupted",
    "holder": lambda: codec.to_json(NO_HOLDER).decode(),
    "call_id": ids.message_id,
    "outcome": lambda: "unknown",
}


def _rule(column: Column) -> ColumnRule:
    """Return the rule of a column; an optional value is replaced by NULL."""
    holds = _predicate(column)
    if column.optional:
        return ColumnRule(_optional(holds))
    lowest = 1 if column.kind == "number" else 0
    return ColumnRule(holds, _DEFAULTS.get(column.name, lambda: lowest))


def _predicate(column: Column) -> Predicate:
    if column.kind == "choice":
        return _one_of(*column.choices)
    if column.kind in {"json", "struct"}:
        return lambda value: decoded(value, column.type) is not None
    return _HOLDS[column.kind]


# Drafts, queued input, messages and the bodies of records are decoded as a whole.
RULES: Final[dict[str, dict[str, ColumnRule]]] = {
    "tenants": {
        "n": _rule(Column("n", "number")),
        "name": ColumnRule(_is_text, lambda: f"salvaged {ids.session_id()}"),
    },
    **{
        table.name: {column.name: _rule(column) for column in table.columns}
        for table in (
            tables.SESSIONS,
            tables.HEADS,
            tables.BRANCHES,
            tables.TURNS,
            tables.TOOLS,
            tables.USAGE,
        )
    },
    **{
        name: {column.name: _rule(column) for column in columns if column.kind != "json"}
        for name, columns in (
            ("records", (Column("number", "number"), *RECORD_COLUMNS)),
            ("store_records", (Column("tenant", "number"), *STORE_RECORD_COLUMNS)),
        )
    },
}


def default_row(table: str) -> Values:
    """Return a row of default values."""
    return {name: rule.default() for name, rule in RULES[table].items()}


def invalid_columns(table: str, values: Values) -> list[str]:
    """Return the columns of a row whose values break their rule."""
    rules = RULES.get(table, {})
    return [name for name, rule in rules.items() if not rule.holds(values[name])]


def _keyed(table: Table[Any], key: str) -> KeyedTable:
    return KeyedTable(table.name, key, _columns(table))


def _session_table(table: Table[Any], *order: str) -> SessionKeyedTable:
    return SessionKeyedTable(table.name, _columns(table), order)


def _columns(table: Table[Any]) -> tuple[str, ...]:
    """Return all columns of a table in schema order."""
    first = (column.name for column in table.columns if not column.added)
    return (*first, "crc", *(column.name for column in table.columns if column.added))


def _names(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.name for column in columns)


TENANTS: Final = KeyedTable("tenants", "n", tuple(RULES["tenants"]))
SESSIONS: Final = _keyed(tables.SESSIONS, "n")
HEADS: Final = _keyed(tables.HEADS, "session")
BRANCHES: Final = _keyed(tables.BRANCHES, "n")
USAGE: Final = _keyed(tables.USAGE, "rowid")
MESSAGES: Final = KeyedTable(
    "messages", "place", ("id", "turn", "crc", "body"), 1 << 32, dense=True
)
RECORDS: Final = KeyedTable(
    "records", "place", ("place", *_names(RECORD_COLUMNS)), 1 << 32, added=True
)
STORE_RECORDS: Final = KeyedTable(
    "store_records", "n", ("n", "tenant", *_names(STORE_RECORD_COLUMNS)), added=True
)
BLOBS: Final = KeyedTable("blobs", "n", ("n", "tenant", "sha256", "data"))
QUEUE_BLOBS: Final = KeyedTable("queue_blobs", "rowid", ("session", "number", "sha256", "data"))
QUARANTINE: Final = _keyed(tables.QUARANTINE, "n")
TURNS: Final = _session_table(tables.TURNS, "number")
TOOLS: Final = _session_table(tables.TOOLS, "turn", "call_id")
DRAFTS: Final = _session_table(tables.DRAFTS, "turn", "number")
QUEUE: Final = _session_table(tables.QUEUE, "number")
SESSION_TABLES: Final = (TURNS, TOOLS, DRAFTS, QUEUE)


def matches_checksum(table: str, values: Values) -> bool:
    """True if a row matches its checksum, or its table has none."""
    known = TABLES.get(table)
    if known is None:
        return True
    cells = [values[name] for name in known.covered]
    return not any(isinstance(cell, BadText) for cell in cells) and known.matches_any_format(
        cells, values["crc"]
    )


def find_flipped_bit(
    table: str, values: Values, columns: Sequence[str] = ()
) -> tuple[str, int] | None:
    """Find a single flipped bit in a number of a row that does not match its checksum.

    Returns the column and its right value, with which the row matches; `None` if there is none.
    """
    for column in columns or TABLES[table].covered:
        value = values[column]
        if isinstance(value, int):
            for other in _one_bit_off(value):
                if matches_checksum(table, {**values, column: other}):
                    return column, other
    return None


def row_as_json(values: Values) -> str:
    """Return a row as readable JSON, with invalid bytes escaped."""
    plain: dict[str, JSON] = {
        name: value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }
    return codec.to_json(plain).decode()


def session_of(table: str, values: Values) -> Value:
    """Return the session that a row belongs to, even if one bit of its number was flipped."""
    found = (
        None if matches_checksum(table, values) else find_flipped_bit(table, values, ("session",))
    )
    return found[1] if found else values["session"]


def _one_bit_off(number: int) -> set[int]:
    """Return all numbers that differ in one bit, for each width that may have been stored."""
    found: set[int] = set()
    for width in _INTEGER_WIDTHS:
        if -(1 << width - 1) <= number < 1 << width - 1:
            low = number % (1 << width)
            found |= {_signed(low ^ (1 << bit), width) for bit in range(width)}
    return found


def _signed(low: int, width: int) -> int:
    return low if low < 1 << width - 1 else low - (1 << width)


def is_draft_chunk(values: Values) -> bool:
    """True if a chunk of a draft can be decoded."""
    kind: type[DraftOpening | DraftChunk] = DraftOpening if values["number"] == 0 else DraftChunk
    return _is_number(values["turn"]) and decoded(values["record"], kind) is not None


def is_queued_input(values: Values, blob: codec.BlobReader) -> bool:
    """True if queued input can be decoded."""
    body, name = bytes_of(values["body"]), text_of(values["id"])
    if body is None or not name or not _is_time(values["created_at"]):
        return False
    try:
        codec.decode(body, id=name, seq=None, turn_id=None, blob=blob)
    except Damaged:
        return False
    return True


def written_row(seq: int, values: Values) -> MessageRow:
    """Return a message's row; raise `Damaged` if it is not what was written."""
    name, body, turn = text_of(values["id"]), bytes_of(values["body"]), values["turn"]
    if not name or body is None or not isinstance(turn, int | None):
        raise Damaged("has an invalid id, turn or body")
    row = MessageRow.create(seq, name, turn or None, body)
    if row.crc != values["crc"]:
        raise Damaged("does not match its checksum")
    return row


def has_written_types(row: MessageRow, values: Values) -> bool:
    """True if a row's values have the types that they were written with.

    The checksum covers bytes and `turn or 0`, so it does not reveal a changed type.
    """
    return message_values(row) == tuple(values[name] for name in MESSAGES.columns)


def read_message(row: MessageRow, blob: codec.BlobReader) -> tuple[Message, set[str]]:
    """Return a message and the hashes of the blobs that it references.

    Raises `Damaged` if it cannot be decoded.
    """
    needed: set[str] = set()

    def fetch(sha256: str) -> bytes | None:
        needed.add(sha256)
        return blob(sha256)

    try:
        message = codec.decode(row.body, id=row.id, seq=None, turn_id=None, blob=fetch)
    except Damaged as error:
        raise Damaged(
            "cannot be decoded, or a part stored as a blob is missing or damaged",
            blocking=error.blocking,
        ) from error
    needed |= {file.sha256 for file in _files(message) if file.sha256}
    return message, needed


def _files(message: Message) -> Iterator[File]:
    for part in message.parts:
        inner = part.content if isinstance(part, ToolResult) else (part,)
        yield from (item for item in inner if isinstance(item, File))


# --------------------------------------------------------------------------------------- records


def written_record(values: Values) -> RecordRow:
    """Return a record's row; raise `Damaged` if it is not what was written."""
    place, seq = values["place"], values["seq"]
    number = place & SEQ_MASK if isinstance(place, int) else 0
    _refuse_invalid("records", {**values, "number": number})
    id, kind, key = (text_of(values[name]) or "" for name in ("id", "kind", "key"))
    assert isinstance(seq, int)  # noqa: S101 - the rule of its column
    row = RecordRow.create(number, seq, id, (kind, key or None), bytes_of(values["body"]) or b"")
    _refuse_changed(values, record_values(row), _names(RECORD_COLUMNS))
    return row


def written_store_record(values: Values) -> StoreRecordRow:
    """Return a store record's row; raise `Damaged` if it is not what was written."""
    _refuse_invalid("store_records", values)
    scope, kind, key, id = (text_of(values[name]) or "" for name in ("scope", "kind", "key", "id"))
    row = StoreRecordRow.create(scope or None, kind, key or None, id, bytes_of(values["body"]))
    _refuse_changed(values, store_record_values(row), _names(STORE_RECORD_COLUMNS))
    return row


def _refuse_invalid(table: str, values: Values) -> None:
    invalid = invalid_columns(table, values)
    if invalid:
        raise Damaged(f"has an invalid {' and '.join(invalid)}")


def _refuse_changed(values: Values, written: Sequence[Value], columns: Sequence[str]) -> None:
    """Raise `Damaged` if a row's values are not those that were written."""
    found = {name: values[name] for name in columns}
    if dict(zip(columns, written, strict=True)) != found:
        same = written[columns.index("crc")] == values["crc"]
        raise Damaged("is not stored as it was written" if same else "does not match its checksum")


def blobs_of_record(row: RecordRow | StoreRecordRow, blob: codec.BlobReader) -> set[str]:
    """Return the hashes of the blobs that a record references.

    Raises `Damaged` if it cannot be decoded.
    """
    if row.body is None:  # It was replaced.
        return set()
    try:
        codec.decode_record(row.body, kind=row.kind, key=row.key, id=row.id, seq=None, blob=blob)
    except Damaged as error:
        raise Damaged(
            "cannot be decoded, or data stored as a blob is missing or damaged",
            blocking=error.blocking,
        ) from error
    return {*chain(*codec.record_blob_hashes(row.body))}
