"""Statements by name, read from `statements.sql`, with their column lists filled in.

`add_messages_4` and the like insert that many messages with one bound value for each column of
each: for few messages this costs half as much as binding arrays.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.storage.sql_files import load_statements

_COLUMNS: Final = "_columns"
_UNROLLED_ROWS: Final = range(2, 9)
_VALUES_CLAUSE: Final = re.compile(r"VALUES \((.*)\)")
_SHARED_COLUMNS: Final = 3  # tenant, session and branch


def _load_statements() -> dict[str, str]:
    found = load_statements(__package__)
    lists = {name: text for name, text in found.items() if name.endswith(_COLUMNS)}
    for name, columns in lists.items():
        placeholder = "{" + name.removesuffix(_COLUMNS) + "}"
        found = {other: text.replace(placeholder, columns) for other, text in found.items()}
    return {name: text for name, text in found.items() if name not in lists}


def _unrolled(text: str, rows: int) -> str:
    """Return an INSERT of one row as one of several; they share the values of the first columns."""
    columns = len(_VALUES_CLAUSE.findall(text)[0].split(","))
    shared, own = range(1, _SHARED_COLUMNS + 1), columns - _SHARED_COLUMNS
    values = []
    for row in range(rows):
        first = _SHARED_COLUMNS + 1 + row * own
        parameters = [*shared, *range(first, first + own)]
        values.append(f"({', '.join(f'${number}' for number in parameters)})")
    return _VALUES_CLAUSE.sub(lambda _: f"VALUES {', '.join(values)}", text)


SQL: Final = _load_statements()
SQL.update((f"add_messages_{rows}", _unrolled(SQL["add_message"], rows)) for rows in _UNROLLED_ROWS)
