"""Loading the SQL files of a backend: named statements, and numbered migrations.

Most statements are in `statements.sql`, the migrations in a directory `migrations`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_STATEMENT_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MIGRATION_FILE: Final = re.compile(r"(\d{4})_\w+\.sql")
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)


def load_statements(package: str, file: str = "statements.sql") -> dict[str, str]:
    """Return the statements of a backend by name, without their comments."""
    text = (files(package) / file).read_text("utf-8")
    pieces = _STATEMENT_NAME.split(text)[1:]
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return {name: _COMMENT.sub("", sql).strip() for name, sql in pairs}


@cache
def load_migrations(package: str) -> dict[int, str]:
    """Return the migrations of a backend by number, in order."""
    found: dict[int, str] = {}
    for entry in (files(package) / "migrations").iterdir():
        match = _MIGRATION_FILE.fullmatch(entry.name)
        if match:
            found[int(match[1])] = entry.read_text("utf-8")
    return dict(sorted(found.items()))
