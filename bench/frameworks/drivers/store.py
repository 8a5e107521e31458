"""The store of every adapter here. What it imports when it is first opened is imported with it."""

from __future__ import annotations

from pathlib import Path

import holdfast
import holdfast.storage.sqlite.backend
from holdfast import Store


def open_store(directory: Path) -> Store:
    """Open a store with its default settings: durable on power loss."""
    return holdfast.open(directory / "store.db")
