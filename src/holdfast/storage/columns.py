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
from functools import cache
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
    hints = get_type_hints(row, include_extras=True)
    return tuple(column for name in row.__struct_fields__ for column in _columns(name, hints[name]))


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

    values: Callable[..., list[Any]]
    row: Callable[..., RowT]

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

        `written` are the columns that `values` returns, `read` those that `row` takes; without
        them, the columns of the row. The values of a backend's `own` ones are given to `values`.
        """
        self.columns = columns_of(row)
        self.names = tuple(column.name for column in self.columns)
        scope: dict[str, Any] = {"row_type": row}
        for column in self.columns:
            scope[f"encode_{column.name}"] = _encoder(column, encode)
            scope[f"decode_{column.name}"] = _decoder(column, decode)
        read = self.names if read is None else read
        stored = {name: f"values[{at}]" for at, name in enumerate(read)}
        attributes: dict[str, str] = {}  # of a row, by column
        arguments: list[str] = []  # of a row's type
        derived = count()
        hints = get_type_hints(row, include_extras=True)
        for field in row.__struct_fields__:
            names = [column.name for column in _columns(field, hints[field])]
            decoded = [_converted("decode", name, stored[name], scope) for name in names]
            if _is_struct(hints[field]):
                scope[f"{field}_type"] = hints[field]
                arguments.append(f"{field}_type({', '.join(decoded)})")
                attributes |= {name: f"row.{field}.{name}" for name in names}
            else:
                arguments += decoded or [f"derived[{next(derived)}]"]
                attributes |= {name: f"row.{name}" for name in names}
        given = {name: f"own[{at}]" for at, name in enumerate(own)}
        encoded = [
            given.get(name) or _converted("encode", name, attributes[name], scope)
            for name in (self.names if written is None else written)
        ]
        self.values = eval(f"lambda row, *own: [{', '.join(encoded)}]", scope)  # noqa: S307 - fixed names
        self.row = eval(f"lambda values, *derived: row_type({', '.join(arguments)})", scope)  # noqa: S307


def _converted(action: str, name: str, value: str, scope: Mapping[str, object]) -> str:
    """Return an expression that encodes or decodes the value of a column; NULL stays NULL."""
    if scope[f"{action}_{name}"] is None:
        return value
    return f"(None if (x := {value}) is None else {action}_{name}(x))"


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
