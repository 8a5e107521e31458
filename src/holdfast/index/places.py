"""Where the index of a store is kept: its backend names a file, or tables, or nothing."""

from __future__ import annotations

from holdfast.backends.base import Backend
from holdfast.index.file import FilePlace
from holdfast.index.kept import Place


def place_of(backend: Backend) -> Place | None:
    """Find the place for an index of what a backend has; nothing if there is none (yet)."""
    path = backend.index_path()
    return None if path is None else FilePlace(path)
