"""The PostgreSQL backend: one database, many workers on many hosts.

Reads and writes use connections of one pool. A forked child keeps none of them: it opens its own.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from holdfast.clock import Clock, SystemClock, to_day
from holdfast.cost import sum_by_day
from holdfast.errors import Invalid, ReadOnly, StoreUnavailable
from holdfast.storage import metadata_marks
from holdfast.storage.audit import find_damage
from holdfast.storage.index_tables import IndexTableHost
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.postgres import migrations, search_tables, server_checks
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.conversion import metadata_uuids, readable_text, split_branch
from holdfast.storage.postgres.errors import is_connection_lost, is_name_conflict, translate
from holdfast.storage.postgres.pool import Pool
from holdfast.storage.postgres.retry import TransactionRunner
from holdfast.storage.postgres.search_tables import PostgresIndexTables
from holdfast.storage.postgres.snapshot import HorizonRequired, PostgresSnapshot, Tenant
from holdfast.storage.postgres.tables import USAGE
from holdfast.storage.postgres.watcher import NotificationWatcher
from holdfast.storage.prefetch import Prefetched, prefetch_of
from holdfast.storage.protocol import Backend, HealthCheck, Operation, PendingWrite, Query
from holdfast.storage.write_queue import Ticket, WriteQueue
from holdfast.url import Durability, Location
from holdfast.values import Damage, Growth, Scan, Stats

T = TypeVar("T")
_MAX_BATCH_WRITES: Final = 64
_RETRY_PAUSE_S: Final = 0.05
_UNCHANGED: Final = "nothing was changed."
_live: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


class PostgresBackend(Backend, IndexTableHost):
    """All sessions of one tenant in one PostgreSQL database."""

    def __init__(
        self,
        location: Location,
        *,
        tenant: str = "default",
        durability: Durability = "power",
        readonly: bool = False,
        clock: Clock | None = None,
        steps: migrations.Steps | None = None,
    ) -> None:
        """Open the database; create the tables if there are none. `steps` is for tests."""
        clock = clock or SystemClock()
        super().__init__(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
        self._conninfo = parse_conninfo(location, durability)
        self.url = self._conninfo.redacted_url
        # Leases are compared across hosts, so the time is the server's, unless a test sets it.
        self._clock = None if isinstance(clock, SystemClock) else clock
        self._steps = migrations.load() if steps is None else steps
        self._tenant_info = Tenant(tenant, self._conninfo.schema, max(self._steps))
        self._paths = AncestryCache()
        self._pool = Pool(partial(Connection, self._conninfo), self._conninfo.pool)
        self._watcher = NotificationWatcher(
            self._pool,
            self._conninfo.past_pooler,
            self._highest_activity,
            self._tenant_info.channel,
            self._tenant_info.write_lock,
        )
        self._make_writer()
        self._check_server()
        _live.add(self)

    # ------------------------------------------------------------------------------- opening

    @classmethod
    def exists(cls, location: Location) -> bool:
        """Return whether the database has the tables of a store."""
        conninfo = parse_conninfo(location, "process")
        try:
            with closing(Connection(conninfo)) as connection:
                row = connection.execute("store_exists", (conninfo.schema,)).fetchone()
        except psycopg.Error as error:
            raise translate(error, _UNCHANGED) from error
        return row is not None and bool(row[0])

    @classmethod
    def shown(cls, location: Location) -> str:
        """Return the URL without its password, and the schema."""
        conninfo = parse_conninfo(location, "process")
        return f"{conninfo.redacted_url} (schema {conninfo.schema})"

    def _make_writer(self) -> None:
        self._writing: dict[int, object] = {}  # sessions that a thread writes to by itself
        # Unfinished writes: those of threads that wait by session, submitted ones without.
        self._queued: dict[Ticket[Any], int | None] = {}
        self._runner = TransactionRunner(
            self._pool,
            self._tenant_info,
            self._clock,
            self._paths,
            deadline=self.deadline,
            response_timeout_s=self._conninfo.answer,
            exclusive_timeout_s=self._conninfo.statement,
            watcher=self._watcher,
        )
        self._write_queue = WriteQueue(
            self._runner.run_batch,
            deadline=self.deadline,
            max_batch_writes=_MAX_BATCH_WRITES,
            withdrawn="the write was withdrawn before it started; nothing was stored. Try again; "
            "if it keeps happening, run `holdfast doctor`.",
        )

    def _check_server(self) -> None:
        """Check the server, and create the schema or bring it up to date."""
        try:
            with self._connection(self._conninfo.statement) as connection:
                connection.begin("begin_reading")
                found = server_checks.read_server_info(connection)
                connection.roll_back()
                server_checks.require_supported(found, self._conninfo, readonly=self.readonly)
                migrations.prepare_schema(
                    connection, self._conninfo, self._steps, readonly=self.readonly
                )
        except BaseException:
            self._pool.close()
            raise

    def _highest_activity(self, listener: Connection) -> object:
        """Read the highest activity number, which every write of this tenant changes."""
        tenant = (self._tenant_info.mark,)
        listener.begin("begin_reading")
        listener.execute("enter_reading", tenant)
        found = listener.execute("highest_activity", tenant)
        listener.commit()
        return found.fetchone()

    @contextmanager
    def _connection(self, timeout_s: float) -> Iterator[Connection]:
        """Lend a connection, and translate its errors."""
        try:
            connection = self._pool.acquire(self.deadline)
        except psycopg.Error as error:
            raise translate(error, _UNCHANGED) from error
        try:
            connection.timeout_s = timeout_s
            yield connection
        except psycopg.Error as error:
            connection.close()
            raise translate(error, _UNCHANGED) from error
        finally:
            self._pool.release(connection)

    # --------------------------------------------------------------------- reading and writing

    def read(self, query: Query[T]) -> T:
        """Run a query on a snapshot."""
        hint = prefetch_of(query)

        def run(_: Connection, snapshot: PostgresSnapshot) -> T:
            if hint is not None:
                snapshot.prefetch(hint)
            return query(snapshot)

        return self._read(run, self._conninfo.answer, restartable=isinstance(query, Prefetched))

    def _read(
        self,
        query: Callable[[Connection, PostgresSnapshot], T],
        timeout_s: float,
        *,
        restartable: bool = False,
    ) -> T:
        """Run a query; retry if the connection was lost before the query received a result.

        The loss of an idle connection goes unnoticed until it is used. A `restartable` query is
        retried even if it has received results.
        """
        self._refuse_closed()
        until = time.monotonic() + self.deadline
        needed, horizon = False, None
        while True:
            received = False
            try:
                if needed:
                    horizon = self._horizon()
                with self._snapshot(timeout_s, horizon) as (connection, snapshot):
                    snapshot.until = until
                    before = connection.round_trips
                    try:
                        found = query(connection, snapshot)
                        snapshot.check_format()
                        return found
                    finally:
                        received = connection.round_trips != before
            except HorizonRequired:
                needed = True
                continue
            except StoreUnavailable as error:
                lost = error.__cause__ is not None and _is_cured_by_another(error.__cause__)
                over = self.closed or time.monotonic() + _RETRY_PAUSE_S > until
                if not lost or over or (received and not restartable):
                    raise
            self._pool.clear()
            time.sleep(_RETRY_PAUSE_S)

    def _horizon(self) -> int:
        """Return the activity up to which all writes are committed; read before the snapshot."""
        with self._snapshot(self._conninfo.answer) as (connection, _):
            values = (self._tenant_info.mark, self._tenant_info.activity_lock)
            row = connection.execute("horizon", values).fetchone()
        return row[0] if row else 0

    @contextmanager
    def _snapshot(
        self, timeout_s: float, horizon: int | None = None
    ) -> Iterator[tuple[Connection, PostgresSnapshot]]:
        with self._connection(timeout_s) as connection:
            snapshot = PostgresSnapshot(
                connection, self._tenant_info, self._clock, self._paths, horizon
            )
            connection.begin("begin_reading")
            snapshot.enter("enter_snapshot", self._conninfo.snapshot_idle_timeout)
            try:
                yield connection, snapshot
            finally:
                connection.roll_back()

    def index_tables(self) -> PostgresIndexTables | None:
        """Return the tables of this tenant's search index, if they can be used here."""
        usable = self._read(
            lambda connection, _: search_tables.index_usable(connection), self._conninfo.answer
        )
        return PostgresIndexTables(self._conninfo, self._tenant_info) if usable else None

    def write(self, operation: Operation[T], *, exclusive: bool = False) -> T:
        """Run an operation; it is durable when this returns.

        Writes of several threads to one session would wait for each other's commit; so while one
        runs, the others are queued, and share a transaction.
        """
        self._refuse_write()
        if exclusive:
            return defer_signals(partial(self._runner.run, operation, exclusive=True))
        hint = prefetch_of(operation)
        session = None if hint is None else hint.session
        if not self._waits_in_queue(session):
            result = defer_signals(self._try_run_here, operation, session)
            if result is not None:
                return result[0]
        return self._queue(operation, session).result()

    def _waits_in_queue(self, session: int | None) -> bool:
        """True if a submitted write is unfinished, or one of another thread to this session.

        Those of threads to other sessions are passed: what they wait for may take long.
        """
        return any(queued is None or queued == session for queued in list(self._queued.values()))

    def _queue(self, operation: Operation[T], session: int | None = None) -> Ticket[T]:
        ticket = self._write_queue.submit(operation)
        self._queued[ticket] = session
        ticket.when_done(partial(self._forget_queued, ticket))
        return ticket

    def _forget_queued(self, ticket: Ticket[Any]) -> None:
        self._queued.pop(ticket, None)

    def _try_run_here(self, operation: Operation[T], session: int | None) -> tuple[T] | None:
        """Run an operation in this thread; `None` if another one writes to the same session."""
        if session is None:
            return (self._runner.run(operation),)
        mine = object()
        if self._writing.setdefault(session, mine) is not mine:  # One step for all threads.
            return None
        try:
            return (self._runner.run(operation),)
        finally:
            del self._writing[session]

    def submit(self, operation: Operation[T]) -> PendingWrite[T]:
        """Queue an operation for the writer thread."""
        self._refuse_write()
        return self._queue(operation)

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until something was written since `seen`."""
        return self._watcher.wait(seen, timeout)

    def flush(self) -> None:
        """Wait for all submitted writes."""
        self._write_queue.flush()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable("the store is closed; open it again.")

    def _refuse_write(self) -> None:
        self._refuse_closed()
        if self.readonly:
            raise ReadOnly("this store was opened for reading only; nothing was stored.")

    # ----------------------------------------------------------------------------- whole store

    def wipe(self) -> tuple[str, ...]:
        """Do nothing: the server reuses freed space when it needs it."""
        self._refuse_write()
        return ()

    def scan(self, fragments: Sequence[bytes]) -> Scan:
        """Report that the server's files cannot be searched from here."""
        self._refuse_closed()
        why = (
            "the server's files cannot be searched from here; rows are gone at once, their bytes "
            "when the server has vacuumed and its write-ahead log was recycled (docs/postgresql.md)"
        )
        return Scan(files=0, bytes=0, fragments=len(fragments), problem=why, searchable=False)

    def verify(self) -> list[Damage]:
        """Read everything and report what is damaged, other tenants' sessions aside."""
        return self._read(
            lambda connection, snapshot: list(dict.fromkeys(self._verify(connection, snapshot))),
            self._conninfo.statement,
        )

    def _verify(self, connection: Connection, snapshot: PostgresSnapshot) -> Iterator[Damage]:
        tenant = self._tenant_info.mark

        def recorded(branch: int, seq: int) -> list[str]:
            found = connection.execute("blob_uses", (tenant, *split_branch(branch), seq))
            return [sha256 for (sha256,) in found.fetchall()]

        def recorded_for_record(branch: int, number: int) -> list[str]:
            found = connection.execute("record_blobs", (tenant, *split_branch(branch), number))
            return [sha256 for (sha256,) in found.fetchall()]

        yield from find_damage(snapshot, recorded, recorded_for_record)
        for (owner,) in connection.execute("sessions_without_head", (tenant,)).fetchall():
            yield Damage(what="the session has no head", session_id=readable_text(owner))
        yield from self._mark_damage(connection)
        for sha256, owner, seq in connection.execute("missing_blobs", (tenant,)).fetchall():
            session_id = None if owner is None else readable_text(owner)
            what = f"blob {sha256} is missing"
            yield Damage(what=what, session_id=session_id, seq=seq, blocking=False)
        for (sha256,) in connection.execute("damaged_blobs", (tenant,)).fetchall():
            yield Damage(what=f"blob {sha256} does not match its hash", blocking=False)

    def _mark_damage(self, connection: Connection) -> Iterator[Damage]:
        """Compare the metadata of sessions with its marks; they are derived and block nothing."""
        tenant = (self._tenant_info.mark,)
        for owner, metadata, marks in connection.execute("metadata_and_marks", tenant).fetchall():
            if sorted(marks) != metadata_uuids(metadata_marks.pairs(metadata)):
                what = "the session's metadata differs from its index entries"
                yield Damage(what=what, session_id=readable_text(owner), blocking=False)
        if connection.execute("stray_mark", tenant).fetchone():
            what = "metadata of a session that is missing is indexed"
            yield Damage(what=what, blocking=False)

    def _unsupported(self, action: str, to: str) -> Invalid:
        """Return a refusal: a server has its own backups, from which it is restored if damaged."""
        return Invalid(
            f"cannot {action} a store on a PostgreSQL server to {to!r}; nothing was written. Use "
            "pg_dump or the server's own backups (docs/postgresql.md)."
        )

    def stats(self) -> Stats:
        """Count what is there."""
        return self._read(lambda connection, _: self._stats(connection), self._conninfo.statement)

    def _stats(self, connection: Connection) -> Stats:
        tenant = (self._tenant_info.mark,)
        counted, stored = (
            connection.execute("stats", tenant),
            connection.execute("stored_messages", tenant),
        )
        growth, spent = (
            connection.execute("growth", tenant),
            connection.execute("usage_by_day", tenant),
        )
        ((sessions, trashed, turns, held, blobs, blob_bytes),) = counted.fetchall()
        ((branches, messages),) = stored.fetchall()
        return Stats(
            sessions=sessions,
            trashed=trashed,
            branches=branches,
            messages=messages,
            turns=turns,
            open_turns=held,
            blobs=blobs,
            blob_bytes=blob_bytes,
            growth=tuple(Growth(to_day(day), *counts) for day, *counts in growth.fetchall()),
            days=sum_by_day(
                (row.day, row.model, row.usage, row.cost)
                for row in map(USAGE.row, spent.fetchall())
            ),
            file_bytes=None,
        )

    def health(self) -> list[HealthCheck]:
        """Return the checks of the server and the store, for `doctor`."""

        def read_checks(connection: Connection, _: PostgresSnapshot) -> list[HealthCheck]:
            without_rls = server_checks.tables_without_rls(connection, self._conninfo)
            number = migrations.schema_version(connection, self._conninfo)
            found = server_checks.checks(
                server_checks.read_server_info(connection),
                self._conninfo,
                without_rls,
                server_checks.check_standbys(connection),
                server_checks.describe_pooler(connection, self._conninfo),
            )
            return [*found, HealthCheck("format", str(number))]

        return self._read(read_checks, self._conninfo.answer)

    def close(self) -> None:
        """Finish submitted writes and close all connections."""
        if self.closed:
            return
        self.closed = True
        self._write_queue.close()
        self._watcher.close()
        self._pool.close()

    # ------------------------------------------------------------------------------------ fork

    def after_fork_in_child(self) -> None:
        """Reset in a forked child: it has no threads, and the connections belong to the parent."""
        self._pool.reset_after_fork()
        self._watcher.reset_after_fork()
        if not self.closed:
            self._make_writer()


def _is_cured_by_another(error: BaseException) -> bool:
    """True if another connection may do what this one did not."""
    return is_connection_lost(error) or is_name_conflict(error)


def _after_fork_in_child() -> None:
    for backend in list(_live):
        backend.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
