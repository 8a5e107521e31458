"""Statements by name, read from `statements.sql`."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_NAMED: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def _load() -> dict[str, str]:
    text = (files(__package__) / "statements.sql").read_text("utf-8")
    pieces = _NAMED.split(text)[1:]
    return {name: sql.strip() for name, sql in zip(pieces[::2], pieces[1::2], strict=True)}


SQL: Final = _load()
