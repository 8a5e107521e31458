"""Strategies from the types that the providers publish: JSON as their packages take and give it.

Every field of an object has any value of its type; one that need not be there may be absent; and an
object may have a field that no version knows yet.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typing_extensions
from hypothesis import strategies as st
from pydantic import BaseModel

from holdfast.values import JSON
from tests.model.strategies import json_objects, json_values, numbers, texts

Values: TypeAlias = st.SearchStrategy[Any]

_MAX_DEPTH = 5
_REQUIRED = (typing_extensions.Required,)
_WRAPPERS = (Annotated, typing_extensions.Required, typing_extensions.NotRequired)
_base64 = st.sampled_from(["iVBORw0KGgo=", "QR==", "-_8=", "", "a b"])
_urls = st.sampled_from(
    ["https://a.example/x", "data:image/png;base64,AAAA", "data:x/y;base64,AB=="]
)
_arguments = st.sampled_from(['{"a":1}', '{"a": 1.0}', "{", "", '{"a":1e999}', '{"b":"\ud800"}'])
_ids = st.sampled_from(["", "call_1", "msg_01XFDUDYJgAACzvnptvVoYEL", "chatcmpl-1"])
_mimes = st.sampled_from(["image/png", "IMAGE/PNG", "application/pdf", "text/plain", "x/y", ""])
# Texts of these fields that mean something to a format.
_MEANINGS: Mapping[str, Values] = {
    "arguments": _arguments,
    "call_id": _ids,
    "data": _base64,
    "file_data": _base64 | _urls,
    "id": _ids,
    "image_url": _urls,
    "input": _arguments,
    "media_type": _mimes,
    "mimeType": _mimes,
    "tool_call_id": _ids,
    "url": _urls,
}


@cache
def values_of(kind: Any, depth: int = 0, field: str = "") -> Values:  # noqa: ANN401 (any annotation)
    """Return JSON values of a type: a `TypedDict`, a model, a union of them or anything in one."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _WRAPPERS:
        return values_of(inner[0], depth, field)
    if origin in {Union, types.UnionType}:
        simple = [one for one in inner if depth < _MAX_DEPTH or not _is_object(one)]
        return st.one_of([values_of(one, depth, field) for one in simple or inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if typing_extensions.is_typeddict(kind):
        return _objects(depth, _typed_fields(kind))
    if origin is dict:
        return st.dictionaries(texts, values_of(inner[1], depth + 1), max_size=2)
    if origin is not None:  # A list, under any of its names.
        return st.lists(
            values_of(inner[0], depth + 1, field), max_size=3 if depth < _MAX_DEPTH else 0
        )
    return _plain(kind, depth, field)


def _plain(kind: Any, depth: int, field: str) -> Values:  # noqa: ANN401
    if kind is str:
        if field == "role":
            return st.sampled_from(["user", "model", "function"])
        return texts | _MEANINGS[field] if field in _MEANINGS else texts
    simple = {bool: st.booleans(), int: st.integers(), type(None): st.none(), float: numbers}
    if kind in simple:
        return simple[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from([member.value for member in kind] or ["unknown"])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _objects(depth, _model_fields(kind))
    if kind is dict:
        return json_objects
    return texts if isinstance(kind, type) and kind is not object else json_values


def _is_object(kind: Any) -> bool:  # noqa: ANN401
    return typing_extensions.is_typeddict(kind) or (
        isinstance(kind, type) and issubclass(kind, BaseModel)
    )


def _typed_fields(kind: Any) -> dict[str, tuple[Any, bool]]:  # noqa: ANN401
    hints: dict[str, Any] = typing_extensions.get_type_hints(kind, include_extras=True)
    return {name: (hint, get_origin(hint) in _REQUIRED) for name, hint in hints.items()}


def _model_fields(kind: type[BaseModel]) -> dict[str, tuple[Any, bool]]:
    """Return the fields as they are dumped; bytes and times are texts there."""
    return {
        field.alias or name: (field.annotation, field.is_required())
        for name, field in kind.model_fields.items()
    }


def _later(kind: Any, depth: int, field: str) -> Values:  # noqa: ANN401
    """Return the values of a type that may contain itself."""
    return st.deferred(lambda: values_of(kind, depth, field))


def _objects(depth: int, fields: Mapping[str, tuple[Any, bool]]) -> Values:
    def made(*, required: bool) -> dict[str, Values]:
        return {
            name: _later(hint, depth + 1, name)
            for name, (hint, needed) in fields.items()
            if needed is required and (needed or depth < _MAX_DEPTH)
        }

    known = st.fixed_dictionaries(made(required=True), optional=made(required=False))
    unknown: st.SearchStrategy[dict[str, JSON]] = st.just({}) | st.dictionaries(
        st.sampled_from(["x_new", "fields", "part", "original", "$"]), json_values, max_size=1
    )
    return st.builds(lambda more, given: {**more, **given}, unknown, known)
