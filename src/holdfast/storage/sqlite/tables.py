"""Tables whose rows have a checksum: their columns, and their rows as values to bind.

The columns are those that the rows of the protocol declare (`storage.columns`), and the few that
only this backend has. Everything else that depends on them comes from here: the lists in statements
(`statements`), the rules of `repair`, and what a checksum covers. So a new field of a row needs one
migration, `ALTER TABLE … ADD COLUMN`, and the annotation `Added`.

`crc` is the CRC-32 of the JSON array of the columns before it, in schema order, and of those that
were added behind it, without the last ones that are NULL: so a migration rewrites no row. Excluded
are the numbers that SQLite assigns while it stores a row. Each of these is in an index as well, so
the file holds it twice and the two can be compared. A checksum reveals a flipped byte in a value
that is still well-formed. A stranger's file may have right checksums, so what a column cannot hold
(`BOUNDS`) is refused as well: nothing that reads a row has to expect it.

Names that SQL text cannot hold exactly (NUL, lone surrogates) are bound as blobs of their bytes;
text and blob never compare equal, so two names are never confused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, Final, Generic
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
    return codec.encode_text(value) if isinstance(value, str) else value


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


class Table(Generic[RowT]):
    """A table: its columns, lists of them for statements, and its rows as values.

    In a statement its alias is the first letter of its name. `row` returns the row that was read,
    given its derived fields; `is_possible` whether its columns may hold the values that were read.
    """

    row: Callable[..., RowT]
    is_possible: Callable[..., bool]

    def __init__(
        self,
        name: str,
        row: type[RowT],
        *,
        own: Mapping[str, Column] = {},
        assigned: str | None = None,
        keys: Collection[str] = (),
        raw_json: bool = False,
    ) -> None:
        """Describe a table with the columns of a row, and those that only this backend has.

        `own` has the latter, each by the name of the column before it. SQLite assigns the number
        in `assigned`; an update does not set `keys`. With `raw_json` JSON is read as bytes, so that
        a damaged one can be read; then a row cannot be compared with its checksum.
        """
        self.name = name
        self.assigned = assigned
        self.columns = _with_own(columns_of(row), own)
        self.covered = tuple(c.name for c in self.columns if c.name != assigned)
        self.selected = ("crc", *([assigned] if assigned else []), *self.covered)
        self._keys = keys
        self._raw_json = raw_json
        self._first_covered = len(self.selected) - len(self.covered)
        self._always_covered = sum(not c.added for c in self.columns if c.name != assigned)
        self._has_added = self._always_covered < len(self.covered)
        layout = Layout(
            row,
            encode={"name": bind, "text": bind, "flag": int, "json": bind_json},
            decode={"name": unbind, "text": unbind, "flag": bool, "json": unbind_json},
            own=[column.name for column in own.values()],
            written=self.covered,
            read=self.selected,
        )
        self._values, self.row = layout.values, layout.row
        by_name = {column.name: column for column in self.columns}
        self.is_possible = row_check([by_name.get(name, _CRC) for name in self.selected])

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
        if self._has_added:
            covered = self._without_added_nulls(covered)
        return crc32(_encode(covered))

    def _without_added_nulls(self, covered: Sequence[object]) -> Sequence[object]:
        end = len(covered)
        while end > self._always_covered and covered[end - 1] is None:
            end -= 1
        return covered[:end]

    def is_intact(self, selected: Sequence[object]) -> bool:
        """Return whether a row that was read is possible, and matches its checksum."""
        return (
            self.is_possible(*selected)
            and self.checksum(selected[self._first_covered :]) == selected[0]
        )


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
    "heads", HeadRow, own={"session": _TENANT}, assigned="activity", keys={"session", "tenant"}
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
