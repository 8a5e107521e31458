"""Statements by name, read from `statements.sql`, with their lists of columns filled in.

`add_messages_4` and the like add so many messages with a value for each column of each: for few
messages that is half of what lists cost.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.backends.statements import load

_COLUMNS: Final = "_columns"
_FEW: Final = range(2, 9)
_ROW: Final = re.compile(r"VALUES \((.*)\)")
_SHARED: Final = 3  # tenant, session and branch


def _filled() -> dict[str, str]:
    found = load(__package__)
    lists = {name: text for name, text in found.items() if name.endswith(_COLUMNS)}
    for name, columns in lists.items():
        mark = "{" + name.removesuffix(_COLUMNS) + "}"
        found = {other: text.replace(mark, columns) for other, text in found.items()}
    return {name: text for name, text in found.items() if name not in lists}


def _several(text: str, rows: int) -> str:
    """Make of a statement that adds a row one that adds some; the first columns are the same."""
    columns = len(_ROW.findall(text)[0].split(","))
    shared, own = range(1, _SHARED + 1), columns - _SHARED
    values = []
    for row in range(rows):
        first = _SHARED + 1 + row * own
        places = [*shared, *range(first, first + own)]
        values.append(f"({', '.join(f'${place}' for place in places)})")
    return _ROW.sub(lambda _: f"VALUES {', '.join(values)}", text)


SQL: Final = _filled()
SQL.update((f"add_messages_{rows}", _several(SQL["add_message"], rows)) for rows in _FEW)
