"""Loading the SQL files of a backend: named statements, and numbered migrations.

Most statements are in `statements.sql`, the migrations in a directory `migrations`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_STATEMENT_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MIGRATION_FILE: Final = re.compile(r"(\d{4})_\w+\.sql")
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)


def load_statements(package: str, file: str = "statements.sql") -> dict[str, str]:
    """Return the statements of a backend by name, without their comments."""
    pieces = _STATEMENT_NAME.split((_files(package) / file).read_text("utf-8"))[1:]
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return {name: _COMMENT.sub("", sql).strip() for name, sql in pairs}


@cache
def load_migrations(package: str) -> dict[int, str]:
    """Return the migrations of a backend by number, in order."""
    found: dict[int, str] = {}
    for entry in (_files(package) / "migrations").iterdir():
        match = _MIGRATION_FILE.fullmatch(entry.name)
        if match:
            found[int(match[1])] = entry.read_text("utf-8")
    return dict(sorted(found.items()))


def _files(package: str) -> Path | Traversable:
    """Return the directory of a package, which may be inside an archive."""
    directory = Path(str(import_module(package).__file__)).parent
    if directory.is_dir():
        return directory
    from importlib.resources import files  # noqa: PLC0415 - slow to import, and rarely needed

    return files(package)
