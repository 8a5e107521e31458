"""Opening the store that a command works on.

Only commands that add data create a store. Those that read or change existing data raise
`NoStoreYet` if there is none.
"""

from __future__ import annotations

import os

import holdfast
from holdfast.errors import Invalid, NotFound
from holdfast.storage import registry
from holdfast.url import parse_url


class NoStoreYet(NotFound):
    """There is no store at this path or URL yet."""


class UntrustedStore(Invalid):
    """A session would act that another person may have made."""


def open_readonly(url: str | None) -> holdfast.Store:
    """Open an existing store read-only; raise `NoStoreYet` if there is none."""
    require_store(url)
    return holdfast.open(url, readonly=True)


def open_or_create(url: str | None) -> holdfast.Store:
    """Open a store for writing; create it if there is none, as one of the user's own."""
    created = registry.missing_store(parse_url(url, os.environ)) is not None
    opened = holdfast.open(url)
    if created:
        from holdfast.cli.known_stores import StoreTrust

        StoreTrust(opened, url).accept()
    return opened


def open_existing(url: str | None) -> holdfast.Store:
    """Open an existing store for writing; raise `NoStoreYet` if there is none."""
    require_store(url)
    return holdfast.open(url)


def require_store(url: str | None) -> None:
    """Raise `NoStoreYet` if there is no store at this path or URL."""
    where = registry.missing_store(parse_url(url, os.environ))
    if where is not None:
        raise NoStoreYet(f"there is no store at {where} yet")
