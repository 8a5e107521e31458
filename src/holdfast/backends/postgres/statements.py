"""Statements by name, read from `statements.sql`, with their lists of columns filled in."""

from __future__ import annotations

from typing import Final

from holdfast.backends.statements import load

_COLUMNS: Final = "_columns"


def _filled() -> dict[str, str]:
    found = load(__package__)
    lists = {name: text for name, text in found.items() if name.endswith(_COLUMNS)}
    for name, columns in lists.items():
        mark = "{" + name.removesuffix(_COLUMNS) + "}"
        found = {other: text.replace(mark, columns) for other, text in found.items()}
    return {name: text for name, text in found.items() if name not in lists}


SQL: Final = _filled()
