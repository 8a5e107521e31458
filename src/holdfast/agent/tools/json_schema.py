"""The JSON Schema of a type, with references inlined.

Providers differ in their support of references, so each `$ref` is replaced by the schema it refers
to. Only a recursive type cannot be inlined: it stays a reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from holdfast.values import JSON

_REFS: Final = "#/$defs/{name}"


def schema_of(struct: type[msgspec.Struct]) -> dict[str, JSON]:
    """Return the schema of a struct; `TypeError` if a type in it has no schema."""
    (top,), inner = msgspec.json.schema_components([struct], ref_template=_REFS)
    return _Inliner(inner).inline(top)


class _Inliner:
    """Inlines the schemas that are referred to; recursive ones stay in `$defs`."""

    def __init__(self, inner: Mapping[str, Any]) -> None:
        self._inner = {_REFS.format(name=name): schema for name, schema in inner.items()}
        self._expanding: list[str] = []
        self._recursive: set[str] = set()

    def inline(self, schema: Mapping[str, Any]) -> dict[str, JSON]:
        """Return a schema that is complete by itself."""
        inlined = cast("dict[str, JSON]", self._inlined(schema))
        recursive: dict[str, JSON] = {}
        while waiting := self._recursive - recursive.keys():
            for ref in sorted(waiting):
                self._expanding = [ref]
                recursive[ref] = self._inlined(self._plain(ref))
        if recursive:
            inlined["$defs"] = {ref.rpartition("/")[2]: found for ref, found in recursive.items()}
        return inlined

    def _plain(self, ref: str) -> dict[str, Any]:
        return {key: value for key, value in self._inner[ref].items() if key != "title"}

    def _inlined(self, schema: object) -> JSON:
        if isinstance(schema, list | tuple):
            return [self._inlined(item) for item in schema]
        if not isinstance(schema, dict):
            return cast("JSON", schema)
        ref = schema.get("$ref")
        if not isinstance(ref, str) or ref not in self._inner:
            return _typed({key: self._inlined(value) for key, value in schema.items()})
        if ref in self._expanding or ref in self._recursive:
            self._recursive.add(ref)
            return {"$ref": ref}
        self._expanding.append(ref)
        found = cast("dict[str, JSON]", self._inlined(self._plain(ref)))
        self._expanding.pop()
        siblings = {key: self._inlined(value) for key, value in schema.items() if key != "$ref"}
        return {**found, **siblings}


def _typed(schema: dict[str, JSON]) -> dict[str, JSON]:
    """Add the type to an enum of strings: not every provider infers it."""
    choices = schema.get("enum")
    if isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
        return {"type": "string", **schema}
    return schema
