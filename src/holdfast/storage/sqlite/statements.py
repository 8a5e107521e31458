"""Statements by name, read from `statements.sql`, with their placeholders filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from holdfast.storage.sql_files import load_statements
from holdfast.storage.sqlite.tables import TABLES

_PLACEHOLDER: Final = re.compile(r"\{([a-z_.]+)\}")


class _Statements(dict[str, str]):
    """The statements by name; each is made when it is first needed."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, name: str) -> str:
        self[name] = _PLACEHOLDER.sub(self._fill, self._texts[name])
        return self[name]

    def _fill(self, match: re.Match[str]) -> str:
        """Return what a placeholder stands for: a list of columns, or another statement."""
        name = match[1]
        table = TABLES.get(name.partition(".")[0])
        return self[name] if table is None else table.lists()[name]


SQL: Final = _Statements(load_statements(__package__))


@cache
def with_parameters(name: str, count: int) -> str:
    """Return a statement with `count` bound parameters in its list."""
    return SQL[name].replace("(…)", f"({', '.join('?' * count)})")


@cache
def with_rows(name: str, rows: int, columns: int) -> str:
    """Return a statement with so many rows of bound parameters."""
    row = f"({', '.join('?' * columns)})"
    return SQL[name].replace("(…)", ", ".join([row] * rows))


def json_array(numbers: Iterable[int]) -> str:
    """Return numbers as one bound value, for statements that take any count of them."""
    return f"[{','.join(map(str, numbers))}]"
