"""Statements by name, read from `statements.sql`, with their placeholders filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from holdfast.storage.sql_files import load_statements
from holdfast.storage.sqlite.tables import TABLES

_PLACEHOLDER: Final = re.compile(r"\{([a-z_.]+)\}")


def _load_statements() -> dict[str, str]:
    """Return the statements; a placeholder is a list of columns, or a statement further up."""
    known = {name: text for table in TABLES.values() for name, text in table.lists().items()}
    found: dict[str, str] = {}
    for name, text in load_statements(__package__).items():
        found[name] = _PLACEHOLDER.sub(lambda match: {**found, **known}[match[1]], text)
    return found


SQL: Final = _load_statements()


@cache
def with_parameters(name: str, count: int) -> str:
    """Return a statement with `count` bound parameters in its list."""
    return SQL[name].replace("(…)", f"({', '.join('?' * count)})")


def json_array(numbers: Iterable[int]) -> str:
    """Return numbers as one bound value, for statements that take any count of them."""
    return f"[{','.join(map(str, numbers))}]"
