"""A temporary schema on a PostgreSQL server for a proof run, dropped afterwards.

The user's own store is another schema of the same database, and is never touched. The server may
need a moment to notice that a killed writer's connection is closed, and until then still executes
what that writer had sent. So the final check waits until all of these connections are gone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import holdfast
from holdfast.errors import StoreUnavailable
from holdfast.url import default_url, parse_url, split_options

if TYPE_CHECKING:
    import psycopg

_OVERRIDDEN_OPTIONS: Final = frozenset({"schema", "lease", "application_name"})
_DISCONNECT_TIMEOUT_S: Final = 30.0
_POLL_INTERVAL_S: Final = 0.02


def server_url(url: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the URL of a store on a PostgreSQL server; None for any other store."""
    if parse_url(url, environ).scheme != "postgresql":
        return None
    return default_url(environ) if url is None else url


class ProofSchema:
    """A schema for one proof run."""

    def __init__(self, url: str, lease: float) -> None:
        """Create the store; raise `StoreUnavailable` if the server refuses."""
        self.schema = f"holdfast_prove_{secrets.token_hex(4)}"
        base, _, query = url.partition("?")
        options = split_options(query)
        kept = [written for name, _, written in options if name not in _OVERRIDDEN_OPTIONS]
        ours = {"schema": self.schema, "lease": lease, "application_name": self.schema}
        self.url = f"{base}?{'&'.join([*kept, urlencode(ours)])}"
        try:
            store = holdfast.open(self.url)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error} A proof creates a schema: its role needs CREATE on the database."
            ) from error
        with store:
            self.label = f"schema {self.schema} of {store.url}"
            checks = {check.name: check.value for check in store.backend.health()}
            self.engine = checks["engine"]

    def wait_for_disconnects(self) -> None:
        """Wait until the server has closed the killed writers' connections."""
        until = time.monotonic() + _DISCONNECT_TIMEOUT_S
        with self._connect() as connection:
            while self._open_connections(connection):
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        "the server still has connections of killed writers after "
                        f"{_DISCONNECT_TIMEOUT_S:g} s."
                    )
                time.sleep(_POLL_INTERVAL_S)

    def _open_connections(self, connection: psycopg.Connection) -> int:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = %s AND pid <> pg_backend_pid()",
            (self.schema,),
        ).fetchone()
        return row[0] if row else 0

    def drop(self) -> None:
        """Drop the schema."""
        with self._connect() as connection:
            # The name is generated above: it needs no quoting.
            connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")

    @contextmanager
    def _connect(self) -> Iterator[psycopg.Connection]:
        import psycopg  # noqa: PLC0415 - the driver is an optional dependency

        from holdfast.storage.postgres.conninfo import parse_conninfo  # noqa: PLC0415 - as above

        conninfo = parse_conninfo(parse_url(self.url, {}), "power")
        try:
            with psycopg.connect(conninfo.url, autocommit=True, connect_timeout=10) as connection:
                yield connection
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"cannot reach {self.label} ({str(error).strip()}); the schema may still exist."
            ) from error
