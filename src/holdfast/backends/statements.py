"""Statements by name: each backend keeps its own in files, most of them in `statements.sql`."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_NAMED: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)


def load(package: str, file: str = "statements.sql") -> dict[str, str]:
    """Read the statements of a backend, without the comments between them."""
    text = (files(package) / file).read_text("utf-8")
    pieces = _NAMED.split(text)[1:]
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return {name: _COMMENT.sub("", sql).strip() for name, sql in pairs}
