"""Values as records have them: JSON where it gives back the same value, else a serializer's bytes.

The serializer is that of the framework. If it is one that the user chose, such as one that
encrypts, nothing is written but what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast import File
from holdfast.values import JSON

# A value of a graph, or what the framework made of it: any object.
Foreign: TypeAlias = Any
_MAX_INT: Final = 2**63
_MAX_DEPTH: Final = 64


class Serializer:
    """Converts values to JSON that names files, and back."""

    def __init__(self, serde: Foreign) -> None:
        self._serde = serde
        self.is_plain = isinstance(serde, JsonPlusSerializer)

    def dumps(self, value: object) -> tuple[str, bytes]:
        """Return the bytes of a value, and their type."""
        kind, data = self._serde.dumps_typed(value)
        return kind, bytes(data)

    def loads(self, kind: str, data: bytes) -> Foreign:
        """Return the value of bytes."""
        return self._serde.loads_typed((kind, data))

    def encode(self, value: object, files: dict[str, File]) -> dict[str, JSON]:
        """Return a value as JSON; bytes are added to the files of a record."""
        if self.is_plain and is_plain(value):
            return {"json": value}  # type: ignore[dict-item]
        kind, data = self.dumps(value)
        if not data:
            return {"type": kind}
        name = str(len(files))
        files[name] = File(data=data)
        return {"type": kind, "file": name}

    def decode(self, entry: Mapping[str, Any], data: Mapping[str, bytes]) -> Foreign:
        """Return the value that `encode` was given; `data` has the bytes of the files."""
        if "json" in entry:
            return entry["json"]
        return self.loads(entry["type"], data[entry["file"]] if "file" in entry else b"")


def digest(*parts: object) -> str:
    """Return a hash of JSON, texts and bytes."""
    found = sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.hexdigest()


def is_plain(value: object, depth: int = 0) -> bool:
    """Return whether JSON gives a value back with all its types."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return True
    if kind is int:
        return -_MAX_INT <= value < _MAX_INT  # type: ignore[operator]
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if depth == _MAX_DEPTH:
        return False
    if kind is list:
        return all(is_plain(one, depth + 1) for one in value)  # type: ignore[attr-defined]
    if kind is dict:
        items = value.items()  # type: ignore[attr-defined]
        return all(type(name) is str and is_plain(one, depth + 1) for name, one in items)
    return False
