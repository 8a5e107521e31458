"""Which backend a URL means, and what must be known of a place before it is opened.

Each backend is imported only when it is asked for.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.backends.base import Backend
from holdfast.clock import Clock
from holdfast.errors import UnknownBackend
from holdfast.settings import Durability, Location, no_backend


def open_backend(
    location: Location, *, tenant: str, durability: Durability, readonly: bool, clock: Clock
) -> Backend:
    """Open the database a URL names."""
    if location.scheme == "sqlite":
        from holdfast.backends.sqlite.backend import SQLiteBackend  # noqa: PLC0415

        return SQLiteBackend(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
    if location.scheme == "memory":
        from holdfast.backends.memory import MemoryBackend  # noqa: PLC0415

        return MemoryBackend(location, tenant=tenant, readonly=readonly, clock=clock)
    if location.scheme == "postgresql":
        try:
            from holdfast.backends.postgres.backend import PostgresBackend  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise _not_installed(error) from error

        return PostgresBackend(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
    raise no_backend(location.scheme)


def file_of(location: Location) -> Path | None:
    """Name the file that a store is in; `None` if it is in none that we could look after."""
    return Path(location.address).absolute() if location.scheme == "sqlite" else None


def empty_place(location: Location) -> str | None:
    """Name the place if there is no store yet; `None` if there is one. Nothing is made."""
    if location.scheme == "sqlite":
        from holdfast.backends.sqlite import place  # noqa: PLC0415

        return None if place.check(Path(location.address).absolute()) else location.address
    if location.scheme == "postgresql":
        try:
            from holdfast.backends.postgres.backend import missing_store  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise _not_installed(error) from error

        return missing_store(location)
    return None  # In memory it begins with whoever opens it.


def _not_installed(error: ModuleNotFoundError) -> UnknownBackend:
    return UnknownBackend(
        f"PostgreSQL needs the package {error.name}: pip install 'holdfast[postgres]'"
    )
