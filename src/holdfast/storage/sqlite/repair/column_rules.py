"""Column rules: the valid values of each column, and checks of rows against their checksums.

`verify` reports values that break a rule; `salvage` replaces them by the rule's default. A row
whose values are all valid may still differ from what was written, which its checksum reveals
(`matches_checksum`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar, get_args

import msgspec

from holdfast import codec, ids
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.errors import Damaged
from holdfast.storage.protocol import MessageRow
from holdfast.storage.sqlite.checksums import CHECKSUMMED_TABLES, covered_columns, row_checksum
from holdfast.storage.sqlite.repair.row_scan import (
    BadText,
    KeyedTable,
    SessionKeyedTable,
    Value,
    Values,
)
from holdfast.storage.sqlite.transaction import message_values, unbind_json
from holdfast.values import (
    BranchReason,
    File,
    Goal,
    Holder,
    Message,
    Relation,
    TitleBy,
    ToolOutcome,
    ToolResult,
    TurnState,
)

T = TypeVar("T")
Predicate: TypeAlias = Callable[[Value], bool]
NO_HOLDER: Final = Holder("?", 0, "", "", "")
_MAX_MICROS: Final = 253_402_300_799_999_999  # The last microsecond of the year 9999.
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


def _is_count(value: Value) -> bool:
    return isinstance(value, int) and value >= 0


def _is_number(value: Value) -> bool:
    return isinstance(value, int) and value >= 1


def _is_time(value: Value) -> bool:
    return isinstance(value, int) and -_MAX_MICROS // 5 <= value <= _MAX_MICROS


def _one_of(*allowed: Value) -> Predicate:
    return lambda value: value in allowed


def _optional(check: Predicate) -> Predicate:
    return lambda value: value is None or check(value)


def _is_json(kind: type[T]) -> Predicate:
    return lambda value: decoded(value, kind) is not None


def decoded(value: Value, kind: type[T]) -> T | None:
    """Return a stored struct, decoded; `None` if it cannot be decoded."""
    data = bytes_of(value)
    if data is None:
        return None
    try:
        return codec.from_json(data, kind)
    except _UNDECODABLE:
        return None


_TEXT: Final = ColumnRule(_optional(_is_text))
_ANY_TEXT: Final = ColumnRule(lambda value: value is None or text_of(value) is not None)
_COUNT: Final = ColumnRule(_is_count, lambda: 0)
_NUMBER: Final = ColumnRule(_is_number, lambda: 1)
_SESSION: Final = ColumnRule(_is_number, lambda: 0)  # No session has number 0.
_MAYBE_NUMBER: Final = ColumnRule(_optional(_is_number))
_TIME: Final = ColumnRule(_is_time, lambda: 0)
_MAYBE_TIME: Final = ColumnRule(_optional(_is_time))
_FLAG: Final = ColumnRule(_one_of(0, 1), lambda: 0)
_USAGE_RULES: Final = dict.fromkeys(
    ("input", "output", "cache_read", "cache_write", "reasoning", "cost"), _COUNT
)

RULES: Final[dict[str, dict[str, ColumnRule]]] = {
    "tenants": {"n": _NUMBER, "name": ColumnRule(_is_text, lambda: f"salvaged {ids.session_id()}")},
    "sessions": {
        "n": _NUMBER,
        "tenant": _NUMBER,
        "id": ColumnRule(_is_text, ids.session_id),
        "key": _TEXT,
        "scope": _TEXT,
        "agent": _TEXT,
        "title": _TEXT,
        "title_by": ColumnRule(_one_of(None, *get_args(TitleBy))),
        "model": _TEXT,
        "cwd": _TEXT,
        "created_at": _TIME,
        "pinned": _FLAG,
        "archived": _FLAG,
        "trashed_at": _MAYBE_TIME,
        "goal": ColumnRule(_optional(_is_json(Goal))),
        "metadata": ColumnRule(_is_json(dict), lambda: "{}"),
        "parent": _TEXT,
        "relation": ColumnRule(_one_of(None, *get_args(Relation))),
        "purged_at": _MAYBE_TIME,
    },
    "heads": {
        "session": _SESSION,
        "tenant": _NUMBER,
        "branch": _NUMBER,
        "branch_no": _NUMBER,
        "seq": _COUNT,
        "turns": _COUNT,
        "open_turn": _MAYBE_NUMBER,
        "updated_at": _TIME,
        "activity": _COUNT,
        **_USAGE_RULES,
        "preview": _ANY_TEXT,
        "preview_rank": _COUNT,
        "preview_seq": _COUNT,
        "queued": _COUNT,
    },
    "branches": {
        "n": _NUMBER,
        "session": _SESSION,
        "number": _NUMBER,
        "parent": _MAYBE_NUMBER,
        "fork_seq": _COUNT,
        "asked_seq": _COUNT,
        "last_seq": ColumnRule(_optional(_is_count)),
        "created_at": _TIME,
        "reason": ColumnRule(_one_of(*get_args(BranchReason)), lambda: "start"),
        "token": ColumnRule(lambda value: isinstance(value, str), ids.message_id),
    },
    "turns": {
        "session": _SESSION,
        "number": _NUMBER,
        "token": ColumnRule(lambda value: isinstance(value, str), lambda: ""),
        "state": ColumnRule(_one_of(*get_args(TurnState)), lambda: "interrupted"),
        "run_id": _TEXT,
        "model": _TEXT,
        "holder": ColumnRule(_is_json(Holder), lambda: codec.to_json(NO_HOLDER).decode()),
        "lease_until": ColumnRule(lambda value: isinstance(value, int), lambda: 0),
        "first_seq": _COUNT,
        "started_at": _TIME,
        "ended_at": _MAYBE_TIME,
        **_USAGE_RULES,
        "error": _ANY_TEXT,
    },
    "tools": {
        "session": _SESSION,
        "turn": _NUMBER,
        "call_id": ColumnRule(lambda value: text_of(value) is not None, ids.message_id),
        "position": _COUNT,
        "name": _ANY_TEXT,
        "outcome": ColumnRule(_one_of(*get_args(ToolOutcome)), lambda: "unknown"),
        "started_at": _MAYBE_TIME,
        "ended_at": _MAYBE_TIME,
    },
    "usage": {
        "session": _SESSION,
        "day": _COUNT,
        "model": _ANY_TEXT,
        **_USAGE_RULES,
        "counted": _COUNT,
        "estimated": _COUNT,
    },
}


def invalid_columns(table: str, values: Values) -> list[str]:
    """Return the columns of a row whose values break their rule."""
    rules = RULES.get(table, {})
    return [name for name, rule in rules.items() if not rule.holds(values[name])]


def _keyed(name: str, key: str) -> KeyedTable:
    return KeyedTable(name, key, (*RULES[name], *_crc(name)))


def _session_table(name: str, *order: str) -> SessionKeyedTable:
    return SessionKeyedTable(name, (*RULES[name], *_crc(name)), order)


def _crc(name: str) -> tuple[str, ...]:
    return ("crc",) if name in CHECKSUMMED_TABLES else ()


TENANTS: Final = _keyed("tenants", "n")
SESSIONS: Final = _keyed("sessions", "n")
HEADS: Final = _keyed("heads", "session")
BRANCHES: Final = _keyed("branches", "n")
USAGE: Final = _keyed("usage", "rowid")
MESSAGES: Final = KeyedTable(
    "messages", "place", ("id", "turn", "crc", "body"), 1 << 32, dense=True
)
BLOBS: Final = KeyedTable("blobs", "n", ("n", "tenant", "sha256", "data"))
QUEUE_BLOBS: Final = KeyedTable("queue_blobs", "rowid", ("session", "number", "sha256", "data"))
QUARANTINE: Final = KeyedTable("quarantine", "n", ("n", "origin", "reason", "content", "crc"))
TURNS: Final = _session_table("turns", "number")
TOOLS: Final = _session_table("tools", "turn", "call_id")
DRAFTS: Final = SessionKeyedTable(
    "drafts", ("session", "turn", "number", "record", "crc"), ("turn", "number")
)
QUEUE: Final = SessionKeyedTable(
    "queue", ("session", "number", "id", "created_at", "body", "crc"), ("number",)
)
SESSION_TABLES: Final = (TURNS, TOOLS, DRAFTS, QUEUE)
_COVERED: Final = {
    table.name: covered_columns(table.name, table.columns)
    for table in (SESSIONS, HEADS, BRANCHES, USAGE, QUARANTINE, *SESSION_TABLES)
}


def matches_checksum(table: str, values: Values) -> bool:
    """True if a row matches its checksum, or its table has none."""
    if table not in _COVERED:
        return True
    cells = [values[name] for name in _COVERED[table]]
    return (
        not any(isinstance(cell, BadText) for cell in cells)
        and row_checksum(cells) == values["crc"]
    )


def find_flipped_bit(
    table: str, values: Values, columns: Sequence[str] = ()
) -> tuple[str, int] | None:
    """Find a single flipped bit in a number of a row that does not match its checksum.

    Returns the column and its right value, with which the row matches; `None` if there is none.
    """
    for column in columns or _COVERED.get(table, ()):
        value = values[column]
        if isinstance(value, int):
            for other in _one_bit_off(value):
                if matches_checksum(table, {**values, column: other}):
                    return column, other
    return None


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


def is_draft_record(values: Values) -> bool:
    """True if a record of a draft can be decoded."""
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
    """Return a message's row as it was written; raise `Damaged` if it is not what was written."""
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
        raise Damaged("cannot be decoded, or a part stored as a blob is missing") from error
    needed |= {file.sha256 for file in _files(message) if file.sha256}
    return message, needed


def _files(message: Message) -> Iterator[File]:
    for part in message.parts:
        inner = part.content if isinstance(part, ToolResult) else (part,)
        yield from (item for item in inner if isinstance(item, File))
