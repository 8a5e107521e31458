"""Tables whose rows have a checksum: their columns, and their rows as values to bind.

The columns are those that the rows of the protocol declare (`storage.columns`), and the few that
only this backend has. Everything else that depends on them comes from here: the lists in statements
(`statements`), the rules of `repair`, and what a checksum covers. So a new field of a row needs one
migration, `ALTER TABLE … ADD COLUMN`, and the annotation `Added`.

`crc` is the CRC-32 of the JSON array of the columns before it, in schema order, and of those that
were added behind it, without the last ones that are NULL: so a migration rewrites no row. Excluded
are the numbers that SQLite assigns while it stores a row. Each of these is in an index as well, so
the file holds it twice and the two can be compared. Until format 6 the activity of a head was such
a number; a migration makes these checksums anew. A checksum reveals a flipped byte in a value that
is still well-formed. A stranger's file may have right checksums, so what a column cannot hold
(`BOUNDS`) is refused as well: nothing that reads a row has to expect it.

Names that SQL text cannot hold exactly (NUL, lone surrogates) are bound as blobs of their bytes;
text and blob never compare equal, so two names are never confused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Annotated, Any, Final, Generic, Literal
from zlib import crc32

import msgspec

from holdfast import codec
from holdfast.clock import EPOCH, to_micros
from holdfast.storage.columns import (
    Column,
    Count,
    JsonOf,
    Kind,
    Layout,
    Number,
    RowT,
    Text,
    columns_of,
)
from holdfast.storage.rows import (
    BranchRow,
    HeadRow,
    QueueRow,
    SessionRow,
    ToolRow,
    TurnRow,
    UsageRow,
)

# The checksum of a row that did not match its own but had to be updated (a usage total, a tool
# outcome): it matches no row, so the damage is not hidden.
INVALID_CRC: Final = -1

# The first and last number that a column may hold. A message's rowid has 31 bits for its branch and
# 32 for its seq, which may be followed by one more.
BOUNDS: Final[Mapping[Kind, tuple[int, int]]] = {
    "count": (0, 2**63 - 1),
    "number": (1, 2**31 - 1),
    "seq": (0, 2**32 - 2),
    "day": ((date.min - EPOCH.date()).days, (date.max - EPOCH.date()).days),
    "time": (
        to_micros(datetime.min.replace(tzinfo=UTC)),
        to_micros(datetime.max.replace(tzinfo=UTC)),
    ),
    "integer": (-(2**63), 2**63 - 1),
    "flag": (0, 1),
}
SEQ_BITS: Final = 32
SEQ_MASK: Final = (1 << SEQ_BITS) - 1
_encode: Final = msgspec.json.Encoder().encode


def message_rowid(branch: int, seq: int) -> int:
    """Return the rowid of a message, or of a record by its number: the column `place`."""
    return branch << SEQ_BITS | seq


def bind(text: str | None) -> str | bytes | None:
    """Return text as a value that SQLite stores exactly."""
    if text is None:
        return None
    if "\0" in text:
        return codec.encode_text(text)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return codec.encode_text(text)
    return text


def unbind(value: Any) -> Any:  # noqa: ANN401 - whatever the column holds
    """Return a stored value, with text as it was before `bind`."""
    return codec.decode_text(value) if isinstance(value, bytes) else value


def bind_json(data: bytes | None) -> str | bytes | None:
    """Return JSON as text for SQLite, so that it is readable in the file; see `bind`."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def unbind_json(value: str | bytes | None) -> bytes | None:
    """Return stored JSON as bytes."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _is_bound_text(value: object) -> bool:
    """Return whether a value is text that had to be bound as bytes."""
    try:
        return isinstance(value, bytes) and bind(codec.decode_text(value)) == value
    except UnicodeDecodeError:
        return False


def row_check(columns: Sequence[Column]) -> Callable[..., bool]:
    """Return a function that returns whether these columns may hold the values it is given.

    It is compiled, for the same reason as `Layout`. What JSON may hold is known when it is decoded.
    """
    scope = {f"{column.name}_choices": column.choices for column in columns}
    check: Callable[..., bool] = eval(  # noqa: S307 - fixed names
        f"lambda {', '.join(column.name for column in columns)}: "
        f"{' and '.join(map(_test, columns))}",
        {"is_bound_text": _is_bound_text, "nul": "\0", **scope},
    )
    return check


def _test(column: Column) -> str:
    """Return an expression that tests the value of a column, by its name."""
    name = column.name
    if column.kind in BOUNDS:
        first, last = BOUNDS[column.kind]
        test = f"type({name}) is int and {first} <= {name} <= {last}"
    elif column.kind == "choice":
        test = f"{name} in {name}_choices"
    elif column.kind == "name":
        test = (
            f"(type({name}) is str and nul not in {name} and {name} != '' or is_bound_text({name}))"
        )
    elif column.kind == "text":
        test = f"(type({name}) is str and nul not in {name} or is_bound_text({name}))"
    else:
        test = f"(type({name}) is str or type({name}) is bytes)"
    return f"({name} is None or {test})" if column.optional else test


class DraftChunkRow(msgspec.Struct, frozen=True):
    """One chunk of a draft, in the column `record`; number 0 is its opening."""

    session: Number
    turn: Number
    number: Count
    record: Annotated[bytes, JsonOf(object)]


class QuarantineRow(msgspec.Struct, frozen=True):
    """A damaged row or value that salvage could not copy, as it was."""

    n: Number
    origin: Text
    reason: Text
    content: Text | None


_CRC: Final = Column("crc", "integer")
_NUL_IN_JSON: Final = b"\\u0000"


def _plain_row(name: str, columns: Sequence[Column]) -> type[msgspec.Struct]:
    """Return a type for the rows that are possible, except those with a NUL or with bytes.

    To convert a row to it takes less time than the compiled expression that looks at each value.
    """
    fields = [(column.name, _plain_type(column)) for column in columns]
    return msgspec.defstruct(name, fields, array_like=True)


def _plain_type(column: Column) -> Any:  # noqa: ANN401 - an annotation
    found: Any = str
    if column.kind in BOUNDS:
        first, last = BOUNDS[column.kind]
        found = Annotated[int, msgspec.Meta(ge=first, le=last)]
    elif column.kind == "choice":
        found = Literal[column.choices]
    elif column.kind == "name":
        found = Annotated[str, msgspec.Meta(min_length=1)]
    return found | None if column.optional else found


class Table(Generic[RowT]):
    """A table: its columns, lists of them for statements, and its rows as values.

    In a statement its alias is the first letter of its name.
    """

    def __init__(
        self,
        name: str,
        row: type[RowT],
        *,
        own: Mapping[str, Column] = {},
        assigned: str | None = None,
        covered_late: str | None = None,
        keys: Collection[str] = (),
        raw_json: bool = False,
    ) -> None:
        """Describe a table with the columns of a row, and those that only this backend has.

        `own` has the latter, each by the name of the column before it. SQLite assigns the number
        in `assigned`; checksums of older formats lack `covered_late`; an update does not set
        `keys`. With `raw_json` JSON is read as bytes, so that a damaged one can be read; then a row
        cannot be compared with its checksum.
        """
        self.name = name
        self.assigned = assigned
        self._keys = keys
        self._raw_json = raw_json
        self._first_covered = 1 if assigned is None else 2
        self._covered_late = covered_late
        self._row = row
        self._own = own

    # What follows from the columns is found when it is first needed: few programs use all tables.

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns in schema order, without the checksum."""
        return _with_own(columns_of(self._row), self._own)

    @cached_property
    def covered(self) -> tuple[str, ...]:
        """The names of the columns that the checksum covers."""
        return tuple(c.name for c in self.columns if c.name != self.assigned)

    @cached_property
    def selected(self) -> tuple[str, ...]:
        """The names of the columns in the order in which rows are read."""
        return ("crc", *([self.assigned] if self.assigned else []), *self.covered)

    @cached_property
    def _added(self) -> int:
        return sum(column.added for column in self.columns)

    @cached_property
    def _layout(self) -> Layout[RowT]:
        return Layout(
            self._row,
            encode={"name": bind, "text": bind, "flag": int, "json": bind_json},
            decode={"name": unbind, "text": unbind, "flag": bool, "json": unbind_json},
            own=[column.name for column in self._own.values()],
            written=self.covered,
            read=self.selected,
        )

    @cached_property
    def row(self) -> Callable[..., RowT]:
        """The function that returns the row that was read, given its derived fields."""
        return self._layout.row

    @cached_property
    def _values(self) -> Callable[..., list[Any]]:
        return self._layout.values

    @cached_property
    def _selected_columns(self) -> list[Column]:
        by_name = {column.name: column for column in self.columns}
        return [by_name.get(name, _CRC) for name in self.selected]

    @cached_property
    def is_possible(self) -> Callable[..., bool]:
        """The function that returns whether the columns may hold the values that were read."""
        return row_check(self._selected_columns)

    @cached_property
    def _plain_rows(self) -> Any:  # noqa: ANN401 - an annotation
        return list[_plain_row(self.name, self._selected_columns)]  # type: ignore[misc]

    def lists(self) -> dict[str, str]:
        """Return the lists of columns, by the placeholders that stand for them in statements.

        `{sessions}` is what `row` and `is_intact` take. `{sessions.names}`, `{sessions.values}` and
        `{sessions.set}` are parts of an INSERT and an UPDATE that bind what `values` returns.
        """
        bound = (*self.covered, "crc")
        return {
            self.name: ", ".join(map(self._read, self.selected)),
            f"{self.name}.names": ", ".join(bound),
            f"{self.name}.values": ", ".join(f"?{n}" for n in range(1, len(bound) + 1)),
            f"{self.name}.set": ", ".join(
                f"{name} = ?{n}" for n, name in enumerate(bound, 1) if name not in self._keys
            ),
        }

    def _read(self, name: str) -> str:
        json = self._raw_json and any(c.name == name and c.kind == "json" for c in self.columns)
        return f"CAST({self.name[0]}.{name} AS BLOB)" if json else f"{self.name[0]}.{name}"

    def values(self, row: RowT, *own: object) -> list[Any]:
        """Return the values of a row to bind, given those of the backend's own columns.

        The last one is the checksum.
        """
        values = self._values(row, *own)
        values.append(self.checksum(values))
        return values

    def checksum(self, covered: Sequence[object]) -> int:
        """Return the checksum of a row's covered values."""
        return crc32(_encode(covered[: self._end(covered)]))

    def _end(self, values: Sequence[object]) -> int:
        """Return where values end, without the last ones that were added and are NULL."""
        end = len(values)
        first_added = end - self._added
        while end > first_added and values[end - 1] is None:
            end -= 1
        return end

    def is_intact(self, selected: Sequence[object]) -> bool:
        """Return whether a row that was read is possible, and matches its checksum."""
        return (
            self.is_possible(*selected)
            and self.checksum(selected[self._first_covered :]) == selected[0]
        )

    def are_intact(self, rows: Sequence[Sequence[object]]) -> bool:
        """Return whether rows that were read are all intact; faster than to ask for each."""
        first, end = self._first_covered, self._end
        encoded = [_encode(row[first : end(row)]) for row in rows]
        try:
            msgspec.convert(rows, self._plain_rows)
        except msgspec.ValidationError:
            return all(map(self.is_intact, rows))
        if _NUL_IN_JSON in b"".join(encoded):
            return all(map(self.is_intact, rows))
        return [row[0] for row in rows] == list(map(crc32, encoded))

    def matches_any_format(self, covered: Sequence[object], crc: object) -> bool:
        """Return whether a row's covered values match its checksum, or one of an older format."""
        if self.checksum(covered) == crc:
            return True
        if self._covered_late is None:
            return False
        late = self.covered.index(self._covered_late)
        return self.checksum([*covered[:late], *covered[late + 1 :]]) == crc


def _with_own(columns: Sequence[Column], own: Mapping[str, Column]) -> tuple[Column, ...]:
    """Return the columns of a table in schema order; its own replace those of the same name."""
    replaced = {column.name for column in own.values()}
    found = [own[""]] if "" in own else []
    for column in columns:
        found += [column] if column.name not in replaced else []
        found += [own[column.name]] if column.name in own else []
    return tuple(found)


_SESSION: Final = Column("session", "number")
_TENANT: Final = Column("tenant", "number")
SESSIONS: Final = Table("sessions", SessionRow, own={"n": _TENANT}, assigned="n", keys={"tenant"})
HEADS: Final = Table(
    "heads", HeadRow, own={"session": _TENANT}, covered_late="activity", keys={"session", "tenant"}
)
# The end of an active branch is in its head.
BRANCHES: Final = Table(
    "branches",
    BranchRow,
    own={"asked_seq": Column("last_seq", "seq", optional=True)},
    assigned="n",
)
TURNS: Final = Table("turns", TurnRow, keys={"session", "number"})
TOOLS: Final = Table(
    "tools",
    ToolRow,
    own={"call_id": Column("position", "count")},
    keys={"session", "turn", "call_id", "position"},
)
DRAFTS: Final = Table("drafts", DraftChunkRow, keys={"session", "turn", "number"})
QUEUE: Final = Table("queue", QueueRow, own={"": _SESSION}, raw_json=True)
USAGE: Final = Table("usage", UsageRow, own={"": _SESSION}, keys={"session", "day", "model"})
QUARANTINE: Final = Table("quarantine", QuarantineRow)
TABLES: Final[Mapping[str, Table[Any]]] = {
    table.name: table
    for table in (SESSIONS, HEADS, BRANCHES, TURNS, TOOLS, DRAFTS, QUEUE, USAGE, QUARANTINE)
}
