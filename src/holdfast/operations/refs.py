"""Built-in references: `@latest`, `@latest:SCOPE`, `@pinned`.

They are resolved before any other, so they always mean the same, even where a session has one of
them as its key or title. Every other text that begins with `@` is an ordinary reference.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.errors import BadRef

LATEST: Final = "@latest"
PINNED: Final = "@pinned"

BuiltinKind: TypeAlias = Literal["latest", "pinned"]


class BuiltinRef(msgspec.Struct, frozen=True):
    """A built-in reference: the session written to last (of a scope), or the pinned one."""

    kind: BuiltinKind
    scope: str | None = None


def parse_builtin(ref: str) -> BuiltinRef | None:
    """Parse a built-in reference; `None` if it is an ordinary one."""
    name, colon, scope = ref.partition(":")
    if name == LATEST and (scope or not colon):
        return BuiltinRef("latest", scope or None)
    if name == LATEST:
        raise BadRef(
            "@latest: the scope is missing; write @latest:SCOPE, or @latest for any scope."
        )
    return BuiltinRef("pinned") if ref == PINNED else None


def check_ref(ref: object) -> str:
    """Return `ref`; raise `BadRef` if it cannot name a session: empty, blank or a lone dash."""
    if not isinstance(ref, str) or not ref.strip() or ref == "-":
        raise BadRef("an empty name cannot name a session; use an id, a key or a title.")
    return ref


def is_builtin(name: str) -> bool:
    """True if a text would be read as a built-in reference."""
    return name in {PINNED, LATEST} or name.startswith(f"{LATEST}:")
