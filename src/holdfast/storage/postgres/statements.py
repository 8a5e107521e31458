"""Statements by name, read from `statements.sql`, with their column lists filled in.

`add_messages_4` and the like insert that many messages with one bound value for each column of
each: for few messages this costs half as much as binding arrays.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.storage.sql_files import load

_COLUMNS: Final = "_columns"
_FEW: Final = range(2, 9)
_ROW: Final = re.compile(r"VALUES \((.*)\)")
_SHARED: Final = 3  # tenant, session and branch


def _filled() -> dict[str, str]:
    found = load(__package__)
    lists = {name: text for name, text in found.items() if name.endswith(_COLUMNS)}
    for name, columns in lists.items():
        placeholder = "{" + name.removesuffix(_COLUMNS) + "}"
        found = {other: text.replace(placeholder, columns) for other, text in found.items()}
    return {name: text for name, text in found.items() if name not in lists}


def _several(text: str, rows: int) -> str:
    """Return an INSERT of one row as one of several; they share the values of the first columns."""
    columns = len(_ROW.findall(text)[0].split(","))
    shared, own = range(1, _SHARED + 1), columns - _SHARED
    values = []
    for row in range(rows):
        first = _SHARED + 1 + row * own
        parameters = [*shared, *range(first, first + own)]
        values.append(f"({', '.join(f'${number}' for number in parameters)})")
    return _ROW.sub(lambda _: f"VALUES {', '.join(values)}", text)


SQL: Final = _filled()
SQL.update((f"add_messages_{rows}", _several(SQL["add_message"], rows)) for rows in _FEW)
