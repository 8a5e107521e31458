"""Choosing the backend for a URL, and what is known of a store before it is opened.

Each backend is imported when it is first used.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import UnknownBackend, install_command
from holdfast.storage.protocol import Backend
from holdfast.url import Durability, Location, no_backend_error


def open_backend(
    location: Location, *, tenant: str, durability: Durability, readonly: bool, clock: Clock
) -> Backend:
    """Open the store at a location; raise `UnknownBackend` if there is no backend for it."""
    if location.scheme == "sqlite":
        from holdfast.storage.sqlite.backend import SQLiteBackend  # noqa: PLC0415

        return SQLiteBackend(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
    if location.scheme == "memory":
        from holdfast.storage.memory import MemoryBackend  # noqa: PLC0415

        return MemoryBackend(location, tenant=tenant, readonly=readonly, clock=clock)
    if location.scheme == "postgresql":
        try:
            from holdfast.storage.postgres.backend import PostgresBackend  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise _not_installed(error) from error

        return PostgresBackend(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
    raise no_backend_error(location.scheme)


def store_file(location: Location) -> Path | None:
    """Return the path of a store's file; `None` if it is not kept in a local file."""
    return Path(location.address).absolute() if location.scheme == "sqlite" else None


def missing_store(location: Location) -> str | None:
    """Return the address if there is no store there yet, else `None`. Creates nothing."""
    if location.scheme == "sqlite":
        from holdfast.storage.sqlite import location as file_location  # noqa: PLC0415

        return (
            None
            if file_location.check_file(Path(location.address).absolute())
            else location.address
        )
    if location.scheme == "postgresql":
        try:
            from holdfast.storage.postgres.backend import missing_store  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise _not_installed(error) from error

        return missing_store(location)
    return None  # A store in memory is created by opening it.


def _not_installed(error: ModuleNotFoundError) -> UnknownBackend:
    return UnknownBackend(
        f"PostgreSQL needs the package {error.name}: run {install_command('postgres')}"
    )
