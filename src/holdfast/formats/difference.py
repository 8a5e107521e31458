"""The difference of a JSON value from a document that holds most of it.

A difference is the value itself, with references to the document wherever these are shorter:

    {"$": path}                               the value at this path of the document
    {"$": path, "with": {…}, "without": […]}  that object, with other fields and without some
    {"$": {…}}                                this object, as it is: it has a key `$` itself

Numbers and booleans that Python takes for equal (1, 1.0, true) are different values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from holdfast.formats.common import JSONObject, copied
from holdfast.values import JSON

Path: TypeAlias = tuple[str | int, ...]

_REFERENCE: Final = "$"
_WITH: Final = "with"
_WITHOUT: Final = "without"
# Of the many objects that have the same field, such as a type, only these are compared.
_MAX_HOLDERS: Final = 8


def difference(value: JSONObject, document: Mapping[str, JSON]) -> JSON:
    """Return the difference from a document to a value; `restored` returns the value."""
    return _Index(document).written(value).difference


def verbatim(value: JSONObject) -> JSON:
    """Return the difference of a value from nothing, which is no deeper than needed."""
    return {_REFERENCE: value}


def restored(difference: JSON, document: Mapping[str, JSON]) -> JSON:
    """Return the value of a difference; `LookupError` or `TypeError` if it does not fit."""
    if isinstance(difference, list):
        return [restored(inner, document) for inner in difference]
    if not isinstance(difference, dict):
        return difference
    path = difference.get(_REFERENCE)
    if isinstance(path, dict):
        return copied(path)
    if not isinstance(path, list):
        return {key: restored(inner, document) for key, inner in difference.items()}
    found = copied(_at(document, path))
    if not isinstance(found, dict):
        return found
    without = difference.get(_WITHOUT, [])
    rest = {key: value for key, value in found.items() if key not in without}  # type: ignore[operator]
    return {**rest, **_restored_fields(difference, document)}


def _restored_fields(difference: JSONObject, document: Mapping[str, JSON]) -> JSONObject:
    fields = difference.get(_WITH)
    if not isinstance(fields, dict):
        return {}
    return {key: restored(inner, document) for key, inner in fields.items()}


def _at(document: Mapping[str, JSON], path: list[JSON]) -> JSON:
    if not path:
        raise LookupError("a path leads to a value of the document")
    found = document[path[0]]  # type: ignore[index]
    for step in path[1:]:
        found = found[step]  # type: ignore[index]
    return found


def is_same(one: JSON, other: JSON) -> bool:
    """True if two JSON values are equal, and so are the types of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)  # Zero has two signs.
    return type(one) is type(other) and one == other


class _Written(msgspec.Struct, frozen=True):
    """A value: the number of its content, its difference, and how long that is as JSON."""

    content: int
    difference: JSON
    size: int


class _Index:
    """The values of a document by their content."""

    def __init__(self, document: Mapping[str, JSON]) -> None:
        self._contents: dict[object, int] = {}
        self._paths: dict[int, Path] = {}
        self._objects: dict[int, dict[str, int]] = {}
        self._holders: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for name, value in document.items():
            self._add(value, (name,))

    # ----------------------------------------------------------------------------- the document

    def _add(self, value: JSON, path: Path) -> int:
        """Add a value and all values in it; return the number of its content."""
        if isinstance(value, dict):
            fields = {key: self._add(inner, (*path, key)) for key, inner in value.items()}
            content = self._object_content(fields)
            if content not in self._objects:
                self._objects[content] = fields
                for field in fields.items():
                    self._holders[field].append(content)
        elif isinstance(value, list):
            items = (self._add(inner, (*path, at)) for at, inner in enumerate(value))
            content = self._content((list, *items))
        else:
            content = self._scalar_content(value)
        self._paths.setdefault(content, path)
        return content

    def _content(self, key: object) -> int:
        return self._contents.setdefault(key, len(self._contents))

    def _object_content(self, fields: Mapping[str, int]) -> int:
        return self._content((dict, *sorted(fields.items())))

    def _scalar_content(self, value: JSON) -> int:
        return self._content((type(value), repr(value) if isinstance(value, float) else value))

    # -------------------------------------------------------------------------- the difference

    def written(self, value: JSON) -> _Written:
        """Return a value with the shortest difference found."""
        if isinstance(value, dict):
            fields = {key: self.written(inner) for key, inner in value.items()}
            plain = self._written_object(value, fields)
        elif isinstance(value, list):
            items = [self.written(inner) for inner in value]
            content = self._content((list, *(item.content for item in items)))
            size = 2 + sum(item.size + 1 for item in items)
            plain = _Written(content, [item.difference for item in items], size)
        else:
            plain = _Written(self._scalar_content(value), value, _size(value))
        path = self._paths.get(plain.content)
        return plain if path is None else _shorter(_reference(plain.content, path), plain)

    def _written_object(self, value: JSONObject, fields: Mapping[str, _Written]) -> _Written:
        content = self._object_content({key: field.content for key, field in fields.items()})
        if _REFERENCE in value:
            return _Written(content, verbatim(value), _size(value))
        plain = _Written(
            content,
            {key: field.difference for key, field in fields.items()},
            2 + sum(_field_sizes(fields)),
        )
        holder = self._most_alike(fields)
        return plain if holder is None else _shorter(self._changed(holder, content, fields), plain)

    def _most_alike(self, fields: Mapping[str, _Written]) -> int | None:
        """Return the object of the document with which most is shared."""
        shared: Counter[int] = Counter()
        for (key, field), size in zip(fields.items(), _field_sizes(fields), strict=True):
            for holder in self._holders.get((key, field.content), ())[:_MAX_HOLDERS]:
                shared[holder] += size
        return max(shared, key=lambda holder: shared[holder], default=None)

    def _changed(self, holder: int, content: int, fields: Mapping[str, _Written]) -> _Written:
        """Return a reference to an object of the document, and the fields that differ."""
        theirs = self._objects[holder]
        other = {key: one for key, one in fields.items() if theirs.get(key) != one.content}
        without: list[JSON] = [key for key in theirs if key not in fields]
        reference = _reference(content, self._paths[holder])
        found: JSONObject = {**reference.difference}  # type: ignore[dict-item]
        size = reference.size
        if other:
            found[_WITH] = {key: one.difference for key, one in other.items()}
            size += len('"with":{},') + sum(_field_sizes(other))
        if without:
            found[_WITHOUT] = without
            size += len('"without":,') + _size(without)
        return _Written(content, found, size)


def _field_sizes(fields: Mapping[str, _Written]) -> Iterator[int]:
    return (_size(key) + field.size + 2 for key, field in fields.items())


def _reference(content: int, path: Path) -> _Written:
    found: JSON = {_REFERENCE: [*path]}
    return _Written(content, found, _size(found))


def _shorter(one: _Written, other: _Written) -> _Written:
    return one if one.size < other.size else other


def _size(value: JSON) -> int:
    """Return the length of a value as JSON, without what is escaped in it."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, list):
        return 2 + sum(_size(inner) + 1 for inner in value)
    if isinstance(value, dict):
        return 2 + sum(_size(key) + _size(inner) + 2 for key, inner in value.items())
    return len(repr(value))
