"""Fields of a session outside the store: in `SessionInfo` and in the lines of an export.

They are the columns of `SessionRow`, by the same names; times are datetimes, and JSON is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from holdfast import codec, validation
from holdfast.clock import EPOCH, to_datetime, to_micros
from holdfast.cost import from_pico
from holdfast.errors import BadMessage, Damaged, TooLarge
from holdfast.storage.columns import Column, Kind, columns_of
from holdfast.storage.rows import HeadRow, SessionRow
from holdfast.values import Goal, SessionInfo, SessionProvenance, SessionState

MAX_JSON_BYTES: Final = 1024 * 1024  # lists read the whole row
_COLUMNS: Final = columns_of(SessionRow)[1:]  # without the backend's number
_SHOWN: Final = tuple(column for column in _COLUMNS if column.name in SessionInfo.__struct_fields__)
_JSON_COLUMNS: Final = {column.name: column for column in _COLUMNS if column.kind == "json"}
# Where the other fields of `SessionInfo` come from.
_NOT_IN_ROW: Final[Mapping[str, str]] = {
    "state": "state",
    "updated_at": "to_datetime(head.updated_at)",
    "turns": "head.turns",
    "messages": "head.seq",
    "usage": "head.usage",
    "cost": "from_pico(head.cost)",
    "preview": "head.preview",
    "trashed": "row.trashed_at is not None",
    "branches": "head.branch_no",
    "forks": "forks",
    "interrupted": "state == 'interrupted'",
}
TEXT_FIELDS: Final = tuple(column.name for column in _COLUMNS if column.kind == "name")


def _field_reader() -> Callable[[SessionRow], dict[str, Any]]:
    """Return the function `to_fields`, compiled: exports read many rows."""
    scope: dict[str, Any] = {"to_datetime": to_datetime}
    items = [f"{column.name!r}: {_decoded(column, scope)}" for column in _COLUMNS]
    found: Callable[[SessionRow], dict[str, Any]] = eval(  # noqa: S307 - fixed names
        f"lambda row: {{{', '.join(items)}}}", scope
    )
    return found


def _describer() -> Callable[[SessionRow, HeadRow, SessionState, int], SessionInfo]:
    """Return the function `to_info`, compiled: lists describe many rows.

    Values are passed by position, which takes a seventh of the time that names take.
    """
    scope: dict[str, Any] = {
        "SessionInfo": SessionInfo, "to_datetime": to_datetime, "from_pico": from_pico,
    }  # fmt: skip
    values = {**_NOT_IN_ROW} | {column.name: _decoded(column, scope) for column in _SHOWN}
    given = ", ".join(values[name] for name in SessionInfo.__struct_fields__)
    found: Callable[[SessionRow, HeadRow, SessionState, int], SessionInfo] = eval(  # noqa: S307
        f"lambda row, head, state, forks: SessionInfo({given})", scope
    )
    return found


def _decoded(column: Column, scope: dict[str, Any]) -> str:
    """Return an expression for a field of `row`; what it needs is put into `scope`."""
    value = f"row.{column.name}"
    if column.kind == "time":
        decoded = f"to_datetime({value})"
    elif column.kind == "json":
        scope[f"decode_{column.name}"] = partial(_decode_json, column)
        decoded = f"decode_{column.name}({value})"
        if column.type is dict:  # Most metadata is empty.
            return f"{{}} if {value} == b'{{}}' else {decoded}"
    else:
        return value
    return f"None if {value} is None else {decoded}" if column.optional else decoded


def _decode_json(column: Column, value: bytes) -> object:
    try:
        return codec.from_json(value, column.type)
    except ValueError as error:
        raise Damaged(
            f"the {column.name} of a session cannot be decoded; run store.verify()."
        ) from error


# The fields of a stored session, and its description by its row, its head, its state and the number
# of its forks. `Damaged` is raised if a field cannot be decoded.
to_fields: Final = _field_reader()
to_info: Final = _describer()


def stored_json(row: SessionRow, field: str) -> Any:  # noqa: ANN401 - of the column's type
    """Return a field of a stored session that is JSON; raise `Damaged` if it cannot be decoded."""
    value = getattr(row, field)
    return None if value is None else _decode_json(_JSON_COLUMNS[field], value)


def check_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a session, with JSON as it is stored.

    `BadMessage` if one has a wrong type or length; the error names it.
    """
    checked = dict(fields)
    for column in _COLUMNS:
        value, check = fields.get(column.name), _CHECKS.get(column.kind)
        if check is None:
            continue  # It is not given by callers, such as a time.
        if value is not None or (column.name in fields and not column.optional):
            checked[column.name] = check(value, column.name)
    return checked


def check_goal(goal: object, field: str) -> Goal:
    """Return a goal; raise `BadMessage` unless it can be stored as it is."""
    if not isinstance(goal, Goal):
        raise BadMessage(f"{field}: expected a holdfast.Goal")
    try:
        kept = codec.from_json(codec.to_json(goal), Goal)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadMessage(f"{field}: cannot be stored: {error}") from error
    if kept != goal:
        raise BadMessage(
            f"{field}: cannot be stored as it is; its times need a time zone, its texts must be "
            "strings"
        )
    return kept


def _check_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise BadMessage(f"{field}: expected true or false")
    return value


def _check_json(value: object, field: str) -> object:
    return _JSON_CHECKS.get(field, validation.check_json_object)(value, field)


def _check_provenance(value: object, field: str) -> SessionProvenance:
    if not isinstance(value, SessionProvenance):
        raise BadMessage(f"{field}: expected a SessionProvenance")
    for name in ("source", "cwd", "key", "scope", "agent"):
        text = getattr(value, name)
        if text is not None:
            validation.check_name(text, f"{field}.{name}")
    return value


_JSON_CHECKS: Final[Mapping[str, Callable[[object, str], object]]] = {
    "goal": check_goal,
    "provenance": _check_provenance,
}
_CHECKS: Final[Mapping[Kind, Callable[[object, str], object]]] = {
    "name": validation.check_name,
    "flag": _check_flag,
    "json": _check_json,
}


def to_row(fields: Mapping[str, Any]) -> SessionRow:
    """Return the row of a session with these fields; those that are missing have no value."""
    given = {name: value for name, value in fields.items() if value is not None}
    return SessionRow(n=0, **to_columns(given))


def to_columns(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are stored for these fields; others than columns are left out."""
    return {
        column.name: _encode(column, fields[column.name])
        for column in _COLUMNS
        if column.name in fields
    }


def _encode(column: Column, value: Any) -> Any:  # noqa: ANN401 - a value of the column
    if value is None:
        return None
    if column.kind == "time":
        return to_micros(value)
    return encode_json(value, column.name) if column.kind == "json" else value


def encode_json(value: object, field: str) -> bytes:
    """Return metadata or a goal as it is stored; raise `TooLarge` if it is too large."""
    data = codec.to_json(value)
    if len(data) > MAX_JSON_BYTES:
        raise TooLarge(
            f"{field}: {len(data)} bytes of JSON are over the limit of {MAX_JSON_BYTES}; nothing "
            "was stored."
        )
    return data


def readable_fields(row: SessionRow | None) -> dict[str, Any]:
    """Return each value of a damaged row that has the right type, and a default for others.

    They are those that `SessionInfo` has.
    """
    return {column.name: _readable(column, getattr(row, column.name, None)) for column in _SHOWN}


def _readable(column: Column, value: object) -> object:
    if column.kind == "time":
        return _readable_time(value) if value is not None or not column.optional else None
    if column.kind == "json":
        return None if column.optional else {}
    if column.kind == "flag":
        return value is True
    if column.kind == "choice":
        return value if value in column.choices else None
    return value if isinstance(value, str) else None


def _readable_time(value: object) -> object:
    try:
        return to_datetime(value) if isinstance(value, int) else EPOCH
    except Damaged:
        return EPOCH
