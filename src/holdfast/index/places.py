"""Where the index of a store is kept: its backend names a file, or tables, or nothing."""

from __future__ import annotations

from holdfast.backends.base import Backend
from holdfast.index.file import FilePlace
from holdfast.index.kept import Place
from holdfast.index.table import TablePlace


def place_of(backend: Backend) -> Place | None:
    """Find the place for an index of what a backend has; nothing if there is none (yet)."""
    path = backend.index_path()
    if path is not None:
        return FilePlace(path)
    tables = backend.index_tables()
    return None if tables is None else TablePlace(tables)
