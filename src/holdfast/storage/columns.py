"""Columns of the log's tables, declared once: by the annotated fields of their rows (`rows`).

A field's annotation says what its column may hold: a `Name`, `Text`, `Count`, `Number`, `Seq`,
`Day` or `Time`, or JSON of a type (`JsonOf`), given as bytes or as a struct. A `Literal` is a
choice, and a `bool` is a flag. The counts of a nested struct (`Usage`) are a column each. A
`Derived` field has none.

From this come the column lists and statements of SQL backends, the order of checksums, the rules
that repair applies to damaged values, and the conversion between rows and lines of an export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import count
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from holdfast import codec

RowT = TypeVar("RowT", bound=msgspec.Struct)
Kind: TypeAlias = Literal[
    "name", "text", "count", "number", "seq", "day", "time", "integer", "flag", "choice", "json",
    "struct",
]  # fmt: skip
Converter: TypeAlias = Callable[[Any], Any]
Name: TypeAlias = Annotated[str, "name"]  # a text that is never empty
Text: TypeAlias = Annotated[str, "text"]
Count: TypeAlias = Annotated[int, "count"]  # zero or more
Number: TypeAlias = Annotated[int, "number"]  # one or more
Seq: TypeAlias = Annotated[int, "seq"]  # of a message; zero before the first
Day: TypeAlias = Annotated[int, "day"]  # since 1970
Time: TypeAlias = Annotated[int, "time"]


class JsonOf(msgspec.Struct, frozen=True):
    """Annotates a field that is stored as JSON of this type."""

    type: Any


class Derived(msgspec.Struct, frozen=True):
    """Annotates a field that has no column of its own."""


class Added(msgspec.Struct, frozen=True):
    """Annotates an optional field whose column came with a migration.

    It is the last one of its row. It is NULL in rows that were written before, and a checksum
    covers it only where it is not.
    """


class Column(msgspec.Struct, frozen=True):
    """A column: what its values may be; `choices` for a choice, `type` for JSON."""

    name: str
    kind: Kind
    optional: bool = False
    added: bool = False
    choices: tuple[str, ...] = ()
    type: Any = None


@cache
def columns_of(row: type[msgspec.Struct]) -> tuple[Column, ...]:
    """Return the columns that the fields of a row declare, in order."""
    return tuple(column for _, _, columns in _fields_of(row) for column in columns)


@cache
def _fields_of(
    row: type[msgspec.Struct],
) -> list[tuple[str, type[msgspec.Struct] | None, list[Column]]]:
    """Return the fields of a row in order, with the type of a nested struct, and their columns."""
    hints = get_type_hints(row, include_extras=True)
    return [
        (name, hints[name] if _is_struct(hints[name]) else None, list(_columns(name, hints[name])))
        for name in row.__struct_fields__
    ]


def _columns(name: str, hint: Any) -> Iterable[Column]:  # noqa: ANN401 - an annotation
    if _is_struct(hint):
        return [Column(inner, "count") for inner in hint.__struct_fields__]
    hint, outer = _split_notes(hint)
    optional = get_origin(hint) in {Union, UnionType} and NoneType in get_args(hint)
    if optional:
        (hint,) = (inner for inner in get_args(hint) if inner is not NoneType)
    hint, notes = _split_notes(hint)
    notes = (*outer, *notes)
    if Derived() in notes:
        return []
    json_of = next((note for note in notes if isinstance(note, JsonOf)), None)
    return [
        Column(
            name=name,
            kind=_kind(hint, notes),
            optional=optional,
            added=Added() in notes,
            choices=get_args(hint) if get_origin(hint) is Literal else (),
            type=None if json_of is None else json_of.type,
        )
    ]


def _split_notes(hint: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401 - an annotation
    """Return a type without its annotations, and these."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    bare, *notes = get_args(hint)
    return bare, tuple(notes)


def _kind(hint: object, notes: Iterable[object]) -> Kind:
    if any(isinstance(note, JsonOf) for note in notes):
        return "struct" if _is_struct(hint) else "json"
    if get_origin(hint) is Literal:
        return "choice"
    named: list[Kind] = [note for note in get_args(Kind) if note in notes]
    return named[0] if named else "flag" if hint is bool else "integer"


class Layout(Generic[RowT]):
    """The fields of a row as a sequence of column values, converted by the kind of the column.

    `values` returns the values of a row, in which nested counts are flattened. `row` returns the
    row with these values, given its derived fields behind them. Both are compiled, because a loop
    over the columns takes several times as long.
    """

    def __init__(
        self,
        row: type[RowT],
        *,
        encode: Mapping[Kind, Converter],
        decode: Mapping[Kind, Converter],
        own: Sequence[str] = (),
        written: Sequence[str] | None = None,
        read: Sequence[str] | None = None,
    ) -> None:
        """Convert values by `encode` and `decode`; kinds that they lack are stored as they are.

        Text that is read as `str` needs no decoding, the most common case by far.

        `written` are the columns that `values` returns, `read` those that `row` takes; without
        them, the columns of the row. The values of a backend's `own` ones are given to `values`.
        """
        self.columns = columns_of(row)
        self.names = tuple(column.name for column in self.columns)
        self._row, self._encode, self._decode = row, encode, decode
        self._own = {name: f"own[{at}]" for at, name in enumerate(own)}
        self._written = self.names if written is None else written
        self._read = self.names if read is None else read

    # Both are compiled when they are first needed.

    @cached_property
    def values(self) -> Callable[..., list[Any]]:
        """The function that returns the values of a row."""
        scope = {f"encode_{column.name}": _encoder(column, self._encode) for column in self.columns}
        attributes: dict[str, str] = {}
        for field, struct, columns in _fields_of(self._row):
            path = f"row.{field}." if struct else "row."
            attributes |= {column.name: path + column.name for column in columns}
        encoded = [
            self._own.get(name) or _encoded(name, attributes[name], scope) for name in self._written
        ]
        found: Callable[..., list[Any]] = eval(  # noqa: S307 - fixed names
            f"lambda row, *own: [{', '.join(encoded)}]", scope
        )
        return found

    @cached_property
    def row(self) -> Callable[..., RowT]:
        """The function that returns the row with these values."""
        scope: dict[str, Any] = {"row_type": self._row}
        stored = {name: f"values[{at}]" for at, name in enumerate(self._read)}
        arguments: list[str] = []
        derived = count()
        for field, struct, columns in _fields_of(self._row):
            scope |= {f"decode_{column.name}": _decoder(column, self._decode) for column in columns}
            decoded = [_decoded(column, stored[column.name], scope) for column in columns]
            if struct is not None:
                scope[f"{field}_type"] = struct
                decoded = [f"{field}_type({', '.join(decoded)})"]
            arguments += decoded or [f"derived[{next(derived)}]"]
        found: Callable[..., RowT] = eval(  # noqa: S307 - fixed names
            f"lambda values, *derived: row_type({', '.join(arguments)})", scope
        )
        return found


def _encoded(name: str, value: str, scope: Mapping[str, object]) -> str:
    """Return an expression that encodes the value of a column; NULL stays NULL."""
    if scope[f"encode_{name}"] is None:
        return value
    return f"(None if (x := {value}) is None else encode_{name}(x))"


def _decoded(column: Column, value: str, scope: Mapping[str, object]) -> str:
    """Return an expression that decodes the value of a column; NULL stays NULL."""
    decode = f"decode_{column.name}"
    if scope[decode] is None:
        return value
    encoded = " and type(x) is not str" if column.kind in {"name", "text"} else ""
    return f"({decode}(x) if (x := {value}) is not None{encoded} else x)"


def _is_struct(hint: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _encoder(column: Column, encode: Mapping[Kind, Converter]) -> Converter | None:
    if column.kind != "struct":
        return encode.get(column.kind)
    store = encode.get("json", bytes)
    return lambda value: store(codec.to_json(value))


def _decoder(column: Column, decode: Mapping[Kind, Converter]) -> Converter | None:
    if column.kind != "struct":
        return decode.get(column.kind)
    return lambda value: codec.from_json(value, column.type)
