"""Checks of the server: its version and settings, and whether it can keep a write durable."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import ConnInfo
from holdfast.storage.protocol import HealthCheck

_MIN_VERSION: Final = 150000
_FSYNC_HINT: Final = "set it to on: without it a power cut may destroy the whole database"
_FULL_PAGE_WRITES_HINT: Final = (
    "set it to on: without it a power cut may tear pages that were written before"
)
_NO_STANDBY_HINT: Final = (
    "start a standby of that name, or change synchronous_standby_names: no write is acknowledged"
)
_STANDBY_HINT: Final = "connect to the primary: a standby may lag behind acknowledged writes"
_SETTINGS_HINT: Final = (
    "Something in between seems to drop the settings of connections: connect to the server itself."
)
_ROW_SECURITY_HINT: Final = (
    "revoke this role's rights on these tables: they show it the rows of all tenants"
)
_ROLE_HINT: Final = (
    "use a role that is not a superuser: row-level security does not apply to this one"
)


class ServerInfo(msgspec.Struct, frozen=True):
    """The server's version and settings, and the role of the connection."""

    version_number: int
    version: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    is_standby: bool
    bypasses_rls: bool
    role: str


def read_server_info(connection: Connection) -> ServerInfo:
    """Read the server's version and settings."""
    row = connection.execute("server").fetchone()
    assert row is not None  # noqa: S101 - it has no WHERE
    return ServerInfo(*row)


def require_supported(server: ServerInfo, conninfo: ConnInfo, *, readonly: bool) -> None:
    """Raise `StoreUnavailable` for a server on which an acknowledged write might be lost."""
    if server.version_number < _MIN_VERSION:
        raise StoreUnavailable(
            f"{conninfo.redacted_url} runs PostgreSQL {server.version}; Holdfast needs 15 or newer."
        )
    if readonly:
        return
    if server.is_standby:
        raise StoreUnavailable(
            f"{conninfo.redacted_url} is a standby; nothing was opened. To write, {_STANDBY_HINT}."
        )
    if server.synchronous_commit != conninfo.synchronous_commit:
        raise StoreUnavailable(
            f"{conninfo.redacted_url} has synchronous_commit = {server.synchronous_commit} "
            "although this "
            f"connection set it to {conninfo.synchronous_commit}; nothing was opened. "
            f"{_SETTINGS_HINT}"
        )
    for name, value, hint in _durability_settings(server):
        if value != "on" and conninfo.durability == "power":
            raise StoreUnavailable(
                f"{conninfo.redacted_url} has {name} = {value}; nothing was opened. Server: "
                f"{hint}. durability='process' accepts it."
            )


def _durability_settings(server: ServerInfo) -> tuple[tuple[str, str, str], ...]:
    return (
        ("fsync", server.fsync, _FSYNC_HINT),
        ("full_page_writes", server.full_page_writes, _FULL_PAGE_WRITES_HINT),
    )


def tables_without_rls(connection: Connection, conninfo: ConnInfo) -> str | None:
    """Return the names of tables that this role may read without row-level security, if any."""
    row = connection.execute("tables_without_rls", (conninfo.schema,)).fetchone()
    return None if row is None else row[0]


def describe_pooler(connection: Connection, conninfo: ConnInfo) -> str:
    """Return whether a pooler is in between, and what it means for statements and followers."""
    if not connection.pooled:
        return "none"
    statements = "are prepared" if connection.prepares else "are parsed each time"
    followers = "poll" if conninfo.listen is None else "listen past it"
    return f"in between; statements {statements}; followers {followers}"


def check_standbys(connection: Connection) -> HealthCheck:
    """Return whether commits wait for a standby, as far as this role may see it.

    A role without `pg_monitor` sees how many standbys there are, and not which are synchronous.
    """
    ((names, connected, synchronous),) = connection.execute("standbys").fetchall()
    if not names:
        return HealthCheck("standbys", f"{connected} connected, commits wait for none")
    if not connected or synchronous == 0:
        value = f"{connected} connected, none synchronous; commits wait for {names}"
        return HealthCheck("standbys", value, ok=False, hint=_NO_STANDBY_HINT)
    seen = "shown to pg_monitor only" if synchronous is None else str(synchronous)
    return HealthCheck("standbys", f"{connected} connected, synchronous: {seen}")


def checks(
    server: ServerInfo,
    conninfo: ConnInfo,
    without_rls: str | None,
    standbys: HealthCheck,
    pooler: str,
) -> list[HealthCheck]:
    """Return the checks of the server's setup, for `doctor`."""
    synced = {"power": "survives a power cut", "process": "survives kill -9"}
    return [
        HealthCheck("backend", "postgresql"),
        HealthCheck("database", conninfo.redacted_url),
        HealthCheck(
            "engine", f"PostgreSQL {server.version}", server.version_number >= _MIN_VERSION
        ),
        HealthCheck("durability", f"{conninfo.durability} ({synced[conninfo.durability]})"),
        *(
            HealthCheck(name, value, value == "on", hint)
            for name, value, hint in _durability_settings(server)
        ),
        HealthCheck("synchronous_commit", server.synchronous_commit),
        standbys,
        HealthCheck("pooler", pooler),
        HealthCheck(
            "standby", "yes" if server.is_standby else "no", not server.is_standby, _STANDBY_HINT
        ),
        HealthCheck("role", server.role, not server.bypasses_rls, _ROLE_HINT),
        HealthCheck("row security", without_rls or "on", without_rls is None, _ROW_SECURITY_HINT),
    ]
