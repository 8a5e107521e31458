"""The tables of a search index, reached by connections of their own.

The indexer holds one of these connections while it also reads the log, so they do not come from the
pool: two threads that each held one and waited for another would deadlock. A search reads index and
log through one connection, in one transaction. The tables hold only what can be derived from the
log, so their commits do not wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from holdfast.errors import StoreUnavailable
from holdfast.storage.ancestry import Segment
from holdfast.storage.postgres import search_snapshot
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.connection import Connection, PendingResult
from holdfast.storage.postgres.conninfo import ConnInfo
from holdfast.storage.postgres.conversion import mark
from holdfast.storage.postgres.errors import is_connection_lost, translate
from holdfast.storage.postgres.search_snapshot import PostgresSearchSnapshot
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.postgres.statements import SQL

_CODE_LENGTH: Final = 5
_INDEX_UNCHANGED: Final = "the search index was not changed."


def index_usable(connection: Connection) -> bool:
    """True if a search index can be kept in the tables of this database."""
    return connection.execute_sql(search_snapshot.SQL["usable"]).fetchone() == (True,)


class PostgresIndexTables:
    """The tables of one tenant's index."""

    def __init__(self, conninfo: ConnInfo, tenant: Tenant) -> None:
        self._conninfo = conninfo
        self._tenant = tenant
        self._paths = AncestryCache()
        self.shown = (
            f"{conninfo.redacted_url} (tables {conninfo.schema}.index*, tenant {tenant.name})"
        )
        self.code = tenant.mark.hex[:_CODE_LENGTH]
        self.lock = _lock(f"{conninfo.schema}\0{tenant.name}")

    def connect(self) -> PostgresIndexConnection:
        """Return a connection, which is opened when it is first used."""
        return PostgresIndexConnection(self._conninfo, self._tenant, self.lock, self._paths)


class _ReplayableResult:
    """The result of a statement, which can be sent again on another connection."""

    __slots__ = ("_connection", "pending", "text", "values")

    def __init__(
        self, connection: PostgresIndexConnection, text: str, values: Sequence[object]
    ) -> None:
        self._connection = connection
        self.text = text
        self.values = values
        self.pending: PendingResult | None = None

    def fetchone(self) -> tuple[Any, ...] | None:
        found = self.fetchall()
        return found[0] if found else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._connection.fetch(self)


class PostgresIndexConnection:
    """One connection to the tables. Its errors are translated to Holdfast's."""

    def __init__(self, conninfo: ConnInfo, tenant: Tenant, lock: int, paths: AncestryCache) -> None:
        self._conninfo = conninfo
        self._tenant = tenant
        self._index_lock = lock
        self._paths = paths
        self._connection: Connection | None = None
        self._replayable: list[_ReplayableResult] | None = (
            None  # since BEGIN, until a row is received
        )
        self._log_snapshot: PostgresSearchSnapshot | None = None

    # ------------------------------------------------------------------------------ transactions

    def begin_reading(self) -> None:
        """Begin a read-only snapshot; it is sent with the first query."""
        self._begin("begin_reading")
        self._log_snapshot = PostgresSearchSnapshot(self, self._tenant, self._paths)
        self._log_snapshot.enter("enter_snapshot", self._conninfo.snapshot_idle_timeout)

    def begin_writing(self, timeout_s: float) -> None:
        """Begin an exclusive write; the first result waits at most this long for other writers."""
        self._begin("begin_writing")
        self.execute("enter_reading", (self._tenant.mark,))
        self.execute_sql(search_snapshot.SQL["lock_timeout"], (_millis(timeout_s),))
        if self._connected.pooled:
            # One that indexes keeps a process of the server while it reads the log through another.
            # If many tenants did so at once, they could have all processes of the pooler.
            self.execute_sql(search_snapshot.SQL["lock"], (_lock(self._conninfo.schema),))
        self.execute_sql(search_snapshot.SQL["lock"], (self._index_lock,))

    def _begin(self, name: str) -> None:
        with self._translated_errors():
            if self._connection is None:
                self._connect()
            settings = self._connected.transaction_settings
        self._replayable = []
        self.execute(name)
        if settings is not None:
            self.execute("settings", settings)

    def _connect(self) -> Connection:
        self._connection = connection = Connection(self._conninfo, search_settings(self._conninfo))
        connection.timeout_s = self._conninfo.statement
        return connection

    def commit(self) -> None:
        """Commit, and wait for the answer."""
        with self._translated_errors():
            self._connected.commit()

    def roll_back(self) -> None:
        """Roll back, and end the snapshot."""
        self._log_snapshot = None
        if self._connection is None:
            return
        try:
            self._connection.roll_back()
            lost = not self._connection.idle  # A caller was interrupted while it received results.
        except psycopg.Error:
            lost = True
        if lost:
            self.close()

    def close(self) -> None:
        """Close the connection, in whatever state it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---------------------------------------------------------------------------------- statements

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        return self.execute_sql(text, values).fetchall()

    def send(self, text: str, values: Sequence[object] = ()) -> _ReplayableResult:
        """Queue a statement; its rows or its error show when they are fetched."""
        return self.execute_sql(text, values)

    def execute(self, name: str, values: Sequence[object] = ()) -> _ReplayableResult:
        """Queue a statement of the log by its name."""
        return self.execute_sql(SQL[name], values)

    def execute_sql(self, text: str, values: Sequence[object]) -> _ReplayableResult:
        """Queue a statement."""
        result = _ReplayableResult(self, text, values)
        with self._translated_errors():
            result.pending = self._connected.execute_sql(text, values)
        if self._replayable is not None:
            self._replayable.append(result)
        return result

    def fetch(self, result: _ReplayableResult) -> list[tuple[Any, ...]]:
        """Wait for a result.

        The loss of an idle connection goes unnoticed until it is used: if no result was received
        since the beginning of the transaction, all its statements are sent again on a new one.
        """
        assert result.pending is not None  # noqa: S101 - it was queued
        with self._translated_errors():
            try:
                found = result.pending.fetchall()
            except psycopg.Error as error:
                if self._replayable is None or not is_connection_lost(error):
                    raise
                self._replay(self._replayable)
                found = result.pending.fetchall()
        self._replayable = None
        return found

    def _replay(self, results: Sequence[_ReplayableResult]) -> None:
        self.close()
        self._replayable, connection = None, self._connect()
        for result in results:
            result.pending = connection.execute_sql(result.text, result.values)

    def sync(self) -> None:
        """Send all queued statements, and wait for their results."""
        with self._translated_errors():
            self._connected.sync()

    @property
    def _connected(self) -> Connection:
        if self._connection is None:
            raise StoreUnavailable(
                f"the connection to the search index was lost; {_INDEX_UNCHANGED}"
            )
        return self._connection

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            self.close()
            raise translate(error, _INDEX_UNCHANGED) from error

    # ----------------------------------------------------------------------------------- the log

    def log(self) -> PostgresSearchSnapshot:
        """Return the log in the snapshot that is open."""
        if self._log_snapshot is None:
            raise StoreUnavailable(f"the search index has no open snapshot; {_INDEX_UNCHANGED}")
        return self._log_snapshot

    def prefetch(self, segments: Sequence[Segment], titles: Sequence[str] | None = None) -> None:
        """Prefetch messages and titles of the log, and its highest activity."""
        self.log().prefetch_search(segments, titles)

    def log_activity(self) -> int:
        """Return the highest activity number of the log; a lower one may be committed later.

        Raise `SchemaTooNew` if a newer version has migrated the tables.
        """
        found = self.log().activity()
        self.log().check_format()
        return found

    def branches_of(
        self,
        scopes: Sequence[str],
        agents: Sequence[str],
        cwds: Sequence[str],
        *,
        all_branches: bool,
    ) -> list[int]:
        """Return the branches that sessions of these scopes, agents and directories can show."""
        return self.log().visible_branches(scopes, agents, cwds, all_branches=all_branches)


def _lock(name: str) -> int:
    return int.from_bytes(mark(f"index of {name}").bytes[:8], "big", signed=True)


def search_settings(conninfo: ConnInfo) -> dict[str, str]:
    """Return the settings of connections to an index, in addition to those of all connections.

    With this work_mem a bitmap of the many messages with a common word stays exact. An erasure
    holds the index for long.
    """
    return {
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
        "synchronous_commit": "off",
        "work_mem": "32MB",
        "idle_in_transaction_session_timeout": _millis(conninfo.statement),
    }


def _millis(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
