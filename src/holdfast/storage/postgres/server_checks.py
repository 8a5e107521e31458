"""Checks of the server: its version and settings, and whether it can keep a write durable."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres.connection import Link
from holdfast.storage.postgres.conninfo import Target
from holdfast.storage.protocol import Check

_OLDEST: Final = 150000
_FSYNC: Final = "set it to on: without it a power cut may destroy the whole database"
_PAGES: Final = "set it to on: without it a power cut may tear pages that were written before"
_STANDBY: Final = "connect to the primary: a standby may lag behind acknowledged writes"
_POOLER: Final = (
    "A pooler in between seems to drop the settings of connections: connect to the server directly."
)
_UNGUARDED: Final = (
    "revoke this role's rights on these tables: they show it the rows of all tenants"
)
_ROLE: Final = "use a role that is not a superuser: row-level security does not apply to this one"


class Server(msgspec.Struct, frozen=True):
    """The server's version and settings, and the role of the connection."""

    number: int
    version: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    standby: bool
    bypasses: bool
    role: str


def look(connection: Link) -> Server:
    """Read the server's version and settings."""
    row = connection.ask("server").fetchone()
    assert row is not None  # noqa: S101 - it has no WHERE
    return Server(*row)


def refuse_unfit(server: Server, conninfo: Target, *, readonly: bool) -> None:
    """Raise `StoreUnavailable` for a server on which an acknowledged write might be lost."""
    if server.number < _OLDEST:
        raise StoreUnavailable(
            f"{conninfo.shown} runs PostgreSQL {server.version}; Holdfast needs 15 or newer."
        )
    if readonly:
        return
    if server.standby:
        raise StoreUnavailable(
            f"{conninfo.shown} is a standby; nothing was opened. To write, {_STANDBY}."
        )
    if server.synchronous_commit != conninfo.synchronous_commit:
        raise StoreUnavailable(
            f"{conninfo.shown} has synchronous_commit = {server.synchronous_commit} although this "
            f"connection set it to {conninfo.synchronous_commit}; nothing was opened. {_POOLER}"
        )
    for name, value, hint in _durable(server):
        if value != "on" and conninfo.durability == "power":
            raise StoreUnavailable(
                f"{conninfo.shown} has {name} = {value}; nothing was opened. Server: {hint}. "
                "durability='process' accepts it."
            )


def _durable(server: Server) -> tuple[tuple[str, str, str], ...]:
    return (
        ("fsync", server.fsync, _FSYNC),
        ("full_page_writes", server.full_page_writes, _PAGES),
    )


def unguarded(connection: Link, conninfo: Target) -> str | None:
    """Return the names of tables that this role may read without row-level security, if any."""
    row = connection.ask("tables_without_rls", (conninfo.schema,)).fetchone()
    return None if row is None else row[0]


def checks(server: Server, conninfo: Target, without_rls: str | None) -> list[Check]:
    """Return the checks of the server's setup, for `doctor`."""
    synced = {"power": "survives a power cut", "process": "survives kill -9"}
    return [
        Check("backend", "postgresql"),
        Check("database", conninfo.shown),
        Check("engine", f"PostgreSQL {server.version}", server.number >= _OLDEST),
        Check("durability", f"{conninfo.durability} ({synced[conninfo.durability]})"),
        *(Check(name, value, value == "on", hint) for name, value, hint in _durable(server)),
        Check("synchronous_commit", server.synchronous_commit),
        Check("standby", "yes" if server.standby else "no", not server.standby, _STANDBY),
        Check("role", server.role, not server.bypasses, _ROLE),
        Check("row security", without_rls or "on", without_rls is None, _UNGUARDED),
    ]
