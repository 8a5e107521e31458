"""Which backend a URL means. Each is imported only when it is asked for."""

from __future__ import annotations

from holdfast.backends.base import Backend
from holdfast.clock import Clock
from holdfast.errors import UnknownBackend
from holdfast.settings import Durability, Location


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
            raise UnknownBackend(
                f"PostgreSQL needs the package {error.name}: pip install 'holdfast[postgres]'"
            ) from error

        return PostgresBackend(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
    raise UnknownBackend(
        f"no backend for {location.scheme!r}: use a path, sqlite:///path.db, "
        "postgresql://host/database or memory:"
    )
