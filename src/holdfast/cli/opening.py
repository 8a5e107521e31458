"""Opening the store a command was pointed at.

Looking never makes a store, and neither does changing: where there is none yet, a command that
needs what is in one says so.
"""

from __future__ import annotations

import os

import holdfast
from holdfast import settings
from holdfast.backends import registry
from holdfast.errors import NotFound


class NoStoreYet(NotFound):
    """There is no store at this place yet."""


def open_to_read(url: str | None) -> holdfast.Store:
    """Open for reading only; `NoStoreYet` if there is nothing to read."""
    require(url)
    return holdfast.open(url, readonly=True)


def open_to_write(url: str | None) -> holdfast.Store:
    """Open for writing, beginning a store if there is none."""
    return holdfast.open(url)


def open_to_change(url: str | None) -> holdfast.Store:
    """Open for writing what is there; `NoStoreYet` if there is nothing to change."""
    require(url)
    return holdfast.open(url)


def require(url: str | None) -> None:
    """Refuse a place where no store is."""
    where = registry.empty_place(settings.parse(url, os.environ))
    if where is not None:
        raise NoStoreYet(f"there is no store at {where} yet")
