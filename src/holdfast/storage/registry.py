"""Finding the backend for a URL, by its scheme.

A backend is an entry point of the group `holdfast.backends`: its name is the scheme, and it refers
to a subclass of `Backend`. Each is imported when it is first used. The built-in ones are entry
points, too; they are also listed here, since reading the entry points of all installed packages
takes as long as opening a store.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Final

from holdfast.clock import Clock
from holdfast.errors import UnknownBackend, install_command
from holdfast.storage.protocol import Backend
from holdfast.url import Durability, Location

ENTRY_POINTS: Final = "holdfast.backends"
BUILT_IN: Final = {
    "memory": "holdfast.storage.memory:MemoryBackend",
    "postgresql": "holdfast.storage.postgres.backend:PostgresBackend",
    "sqlite": "holdfast.storage.sqlite.backend:SQLiteBackend",
}


def open_backend(
    location: Location, *, tenant: str, durability: Durability, readonly: bool, clock: Clock
) -> Backend:
    """Open the store at a location; raise `UnknownBackend` if there is no backend for it."""
    backend = find_backend(location.scheme)
    return backend(location, tenant=tenant, durability=durability, readonly=readonly, clock=clock)


def store_file(location: Location) -> Path | None:
    """Return the path of a store's file; `None` if it is not kept in a local file."""
    return find_backend(location.scheme).store_file(location)


def missing_store(location: Location) -> str | None:
    """Return the address if there is no store there yet, else `None`. Creates nothing."""
    backend = find_backend(location.scheme)
    return None if backend.exists(location) else backend.shown(location)


def find_backend(scheme: str) -> type[Backend]:
    """Return the backend of a scheme; raise `UnknownBackend` if no installed package has one."""
    target = BUILT_IN.get(scheme) or _entry_point(scheme)
    if target is None:
        raise UnknownBackend(
            f"no backend for {scheme!r}: use a path, sqlite:///path.db, "
            "postgresql://host/database or memory:, or install a package that has one."
        )
    module, _, name = target.partition(":")
    try:
        backend = attrgetter(name)(import_module(module))
    except ModuleNotFoundError as error:
        raise _not_installed(scheme, error) from error
    except Exception as error:  # whatever another package raises
        raise UnknownBackend(
            f"the backend for {scheme!r}, {target}, cannot be imported: {error}"
        ) from error
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise UnknownBackend(f"the backend for {scheme!r}, {target}, is not a Backend.")
    return backend


def _entry_point(scheme: str) -> str | None:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    return next((found.value for found in entry_points(group=ENTRY_POINTS, name=scheme)), None)


def _not_installed(scheme: str, error: ModuleNotFoundError) -> UnknownBackend:
    if scheme == "postgresql":
        return UnknownBackend(
            f"PostgreSQL needs the package {error.name}: run {install_command('postgres')}"
        )
    return UnknownBackend(f"the backend for {scheme!r} needs the package {error.name}.")
