"""Running operations: each in a transaction, retried when that is safe, within a deadline.

A write runs in the caller's thread, on a connection of its own. Until the commit is sent, every
failure means that nothing was stored, and the operation is run again as long as the deadline
allows, on a new connection if the old one was lost.

Once the commit is sent and until it is answered, the write is in doubt. Then the server is queried
for the status of the commit (`commit_status.py`). If it was committed, the result of that run is
returned; if it was aborted, the operation is run again. If the status is unknown, the operation is
run again, too: it is idempotent by its ids, so it finds what it stored before, or stores it now. A
refusal at that point may be caused by its own first run, so whatever error ends the retries is
reported as `OutcomeUnknown`.

An append mostly goes to a session that this process wrote last, whose head is cached
(`head_cache.py`). It is then run without reading anything, in one round trip (`optimistic.py`).

Submitted writes, and those to a session that another thread writes to, are run in order
(`storage/write_queue.py`), all that wait in one transaction. Such a transaction never waits for a
row lock: two of them, each holding many sessions, would deadlock. An operation that finds a session
locked by another transaction ends the batch, and is run alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any, Final, NoReturn, TypeVar

import psycopg

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.commit_status import (
    CommitStatus,
    ConnectionLost,
    PendingCommit,
    resolve_commit,
    terminate_orphan,
)
from holdfast.storage.postgres.connection import BackendId, Connection, ReadNotAllowed
from holdfast.storage.postgres.errors import is_connection_lost, is_retryable, translate
from holdfast.storage.postgres.head_cache import HeadCache
from holdfast.storage.postgres.optimistic import OptimisticTransaction
from holdfast.storage.postgres.pool import Pool
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.postgres.transaction import (
    ExclusiveRequired,
    PostgresTransaction,
    SessionLocked,
)
from holdfast.storage.postgres.watcher import NotificationWatcher
from holdfast.storage.prefetch import forget_runs, prefetch_of
from holdfast.storage.protocol import Operation
from holdfast.storage.write_queue import TakeBatch, Ticket

T = TypeVar("T")
_NOT_STORED: Final = "nothing was stored."
_MAX_CONFLICTS: Final = 20
_MIN_BACKOFF_S: Final = 0.005
_MAX_BACKOFF_S: Final = 0.5


class RetryableConflict(Exception):
    """The transaction was rolled back because of a concurrent one; nothing was stored."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class TransactionRunner:
    """Runs operations in transactions; one per thread, up to the number of pooled connections."""

    def __init__(
        self,
        pool: Pool,
        tenant: Tenant,
        clock: Clock | None,
        paths: AncestryCache,
        *,
        deadline: float,
        response_timeout_s: float,
        exclusive_timeout_s: float,
        watcher: NotificationWatcher,
    ) -> None:
        """Write on connections of `pool`, and announce each commit to `watcher`."""
        self._pool = pool
        self._tenant = tenant
        self._clock = clock
        self._paths = paths
        self._deadline = deadline
        self._response_timeout_s = response_timeout_s
        self._exclusive_timeout_s = exclusive_timeout_s
        self._watcher = watcher
        self._head_cache = HeadCache()

    def run(
        self,
        operation: Operation[T],
        *,
        exclusive: bool = False,
        orphaned_backend: BackendId | None = None,
        in_doubt: HoldfastError | None = None,
    ) -> T:
        """Run an operation until its outcome is known, or the deadline has passed.

        `orphaned_backend` served a connection that was lost before, and may hold locks that this
        needs. `in_doubt` is the error of an earlier commit that may have stored the write.
        """
        until = time.monotonic() + self._deadline
        pause, conflicts = _MIN_BACKOFF_S, 0
        while True:
            try:
                return self._attempt(operation, orphaned_backend, exclusive=exclusive)
            except ConnectionLost as lost:
                error, orphaned_backend = lost.error, lost.backend_id or orphaned_backend
                self._drop_server_state()
                if lost.pending_commit is not None:
                    status = self._await_commit_status(lost, until)
                    if status == "committed":
                        self._watcher.announce()
                        value: T = lost.pending_commit.value
                        return value
                    if status == "aborted":
                        error = lost.pending_commit.abort_error
                    else:
                        in_doubt = in_doubt or lost.error
            except ExclusiveRequired:
                exclusive = True
                continue
            except RetryableConflict as conflict:
                error = conflict.error
                conflicts += 1
            except HoldfastError as refusal:
                _raise_outcome(refusal, in_doubt)
            if time.monotonic() + pause > until or conflicts > _MAX_CONFLICTS:
                _raise_outcome(error, in_doubt)
            _forget_unless(in_doubt, operation)
            time.sleep(pause)
            pause = min(2 * pause, _MAX_BACKOFF_S)

    def _drop_server_state(self) -> None:
        """Drop the idle connections and cached heads of a server that was lost."""
        self._pool.clear()
        self._head_cache.clear()

    def _attempt(
        self,
        operation: Operation[T],
        orphaned_backend: BackendId | None,
        *,
        exclusive: bool = False,
    ) -> T:
        """Run an operation in a transaction of its own, after terminating an orphaned backend."""
        with self._connection(
            self._exclusive_timeout_s if exclusive else self._response_timeout_s
        ) as connection:
            if orphaned_backend is not None:
                self._terminate_orphan(connection, orphaned_backend)
            elif (
                not exclusive and (done := self._run_optimistic(connection, operation)) is not None
            ):
                return done[0]
            tx = self._begin(connection, [operation], exclusive=exclusive)
            try:
                value = operation(tx)
            except BaseException as error:
                self._abort(connection, error)
                raise
            self._commit(connection, tx, value)
            return value

    def _run_optimistic(self, connection: Connection, operation: Operation[T]) -> tuple[T] | None:
        """Run an append in one round trip, if the head of its session is cached.

        Return its result in a tuple; `None` if the head is not cached, is stale, or is not all that
        the operation reads. Nothing was stored then.
        """
        hint = prefetch_of(operation)
        if hint is None or hint.session is None or not hint.is_append:
            return None
        cached = self._head_cache.checkout(hint.session, hint.newest)
        if cached is None:
            return None
        tx = OptimisticTransaction(connection, self._tenant, self._clock, self._paths)
        try:
            # A closed connection must show before the commit is sent: afterwards it is in doubt.
            connection.consume_input()
            with connection.write_only():
                self._enter(connection, tx, "enter_writing")
                tx.assume_head(cached, hint.ids, hint.records)
                value = operation(tx)
                tx.require_head_write()
        except (ReadNotAllowed, HoldfastError):
            self._head_cache.release(cached)
            return None
        except psycopg.Error as error:
            self._rollback_and_raise(connection, error)
        try:
            self._commit(connection, tx, value)
        except (RetryableConflict, HoldfastError):
            self._head_cache.invalidate(cached)
            return None  # Nothing was stored; running it with reads finds out why.
        return (value,)

    # --------------------------------------------------------------------- after a lost commit

    def _await_commit_status(self, lost: ConnectionLost, until: float) -> CommitStatus:
        """Return the status of an in-doubt commit; raise `OutcomeUnknown` at the deadline."""
        pause, error = _MIN_BACKOFF_S, lost.error
        while True:
            try:
                with self._connection(self._response_timeout_s) as connection:
                    status = self._resolve_commit(connection, lost)
                if status is not None:
                    return status
            except ConnectionLost as again:
                error = again.error
                self._drop_server_state()
            except HoldfastError as other:
                _raise_outcome(other, lost.error)
            if time.monotonic() + pause > until:
                _raise_outcome(error, lost.error)
            time.sleep(pause)
            pause = min(2 * pause, _MAX_BACKOFF_S)

    def _resolve_commit(self, connection: Connection, lost: ConnectionLost) -> CommitStatus | None:
        try:
            return resolve_commit(connection, self._tenant, lost)
        except psycopg.Error as error:
            self._rollback_and_raise(connection, error)

    def _terminate_orphan(self, connection: Connection, orphaned_backend: BackendId) -> None:
        try:
            terminate_orphan(connection, orphaned_backend)
        except psycopg.Error as error:
            self._rollback_and_raise(connection, error)

    @contextmanager
    def _connection(self, timeout_s: float) -> Iterator[Connection]:
        """Lend a connection for one attempt; failing to get one counts as losing it."""
        try:
            connection = self._pool.acquire(self._deadline)
        except psycopg.Error as error:
            raise ConnectionLost(translate(error, _NOT_STORED)) from error
        try:
            connection.timeout_s = timeout_s
            yield connection
        finally:
            self._pool.release(connection)

    def _begin(
        self,
        connection: Connection,
        operations: Sequence[Operation[Any]],
        *,
        exclusive: bool = False,
        may_block: bool = True,
    ) -> PostgresTransaction:
        """Begin a transaction for these operations, and prefetch what they are known to read."""
        hints = [hint for hint in map(prefetch_of, operations) if hint is not None]
        tx = PostgresTransaction(
            connection,
            self._tenant,
            self._clock,
            self._paths,
            exclusive=exclusive,
            may_block=may_block,
        )
        try:
            self._enter(connection, tx, "enter_exclusive" if exclusive else "enter_writing")
            if hints:
                tx.prefetch(*hints)
        except psycopg.Error as error:
            self._rollback_and_raise(connection, error)
        return tx

    def _enter(self, connection: Connection, tx: PostgresTransaction, name: str) -> None:
        connection.begin("begin_writing")
        tx.enter(name, self._tenant.write_lock, self._tenant.schema_lock)

    def _abort(self, connection: Connection, error: BaseException) -> None:
        """Roll back; an error of the server is raised as what it means."""
        if isinstance(error, psycopg.Error):
            self._rollback_and_raise(connection, error)
        connection.roll_back()

    def _rollback_and_raise(self, connection: Connection, error: psycopg.Error) -> NoReturn:
        """Roll back, and raise `ConnectionLost`, `RetryableConflict` or the translated error."""
        if is_connection_lost(error):
            connection.close()
            raise ConnectionLost(translate(error, _NOT_STORED), connection.backend_id) from error
        connection.roll_back()
        if is_retryable(error):
            raise RetryableConflict(translate(error, _NOT_STORED)) from error
        raise translate(error, _NOT_STORED) from error

    def _commit(self, connection: Connection, tx: PostgresTransaction, value: object) -> None:
        try:
            tx.write_out()
        except psycopg.Error as error:
            self._rollback_and_raise(connection, error)
        if not tx.writes:
            # What it found stored may still be on its way to a standby.
            connection.execute("commit_barrier")
        try:
            connection.commit()
        except psycopg.Error as error:
            if not is_connection_lost(error):
                # The server answered: a statement sent before the commit was refused.
                self._rollback_and_raise(connection, error)
            connection.close()
            abort_error = translate(error, _NOT_STORED)
            pending = PendingCommit(tx.xid, tx.inserted, value, abort_error)
            raise ConnectionLost(
                translate(error, "it may be stored."), connection.backend_id, pending
            ) from error
        except BaseException:
            connection.close()
            raise
        tx.update_cache(self._head_cache)
        if tx.writes:
            self._watcher.announce(has_listeners=tx.has_listeners)

    # ------------------------------------------------------------------------- batches

    def run_batch(self, take_batch: TakeBatch) -> None:
        """Run queued writes in order, as many as possible in one transaction."""
        waiting = deque(take_batch())
        while waiting:
            completed, orphaned_backend = self._run_in_one_transaction(waiting)
            for _ in range(completed):
                waiting.popleft()
            if waiting:
                self._run_one(waiting.popleft(), orphaned_backend=orphaned_backend)

    def _run_in_one_transaction(
        self, batch: Collection[Ticket[Any]]
    ) -> tuple[int, BackendId | None]:
        """Run queued writes in one transaction, stopping before the first that would block.

        Return how many completed, and the backend of the connection if it was lost. On any error
        none completes, and the first is to be run alone.
        """
        batch = list(takewhile(_may_share_transaction, batch))
        if len(batch) <= 1:
            return 0, None
        together: list[Ticket[Any]] = []
        try:
            with self._connection(self._response_timeout_s) as connection:
                operations = [ticket.operation for ticket in batch]
                tx = self._begin(connection, operations, may_block=False)
                try:
                    self._run_each(tx, batch, together)
                except BaseException as error:  # noqa: BLE001 - raised again when run alone
                    self._abort(connection, error)
                    return 0, None
                self._commit(connection, tx, None)
        except ConnectionLost as lost:
            self._drop_server_state()
            completed = 0 if lost.pending_commit is None else self._resolve_batch(together, lost)
            return completed, lost.backend_id
        except (HoldfastError, RetryableConflict):
            return 0, None
        for ticket in together:
            ticket.finish()
        return len(together), None

    def _run_each(
        self,
        tx: PostgresTransaction,
        batch: Iterable[Ticket[Any]],
        together: list[Ticket[Any]],
    ) -> None:
        for ticket in batch:
            before = tx.writes
            forget_runs(ticket.operation)  # A batch that it was part of before was rolled back.
            try:
                ticket.run_in(tx)
            except SessionLocked:
                if tx.writes != before:
                    raise
                return
            together.append(ticket)

    def _resolve_batch(self, together: Sequence[Ticket[Any]], lost: ConnectionLost) -> int:
        """Finish the writes whose common commit is in doubt; return how many completed."""
        try:
            status = self._await_commit_status(lost, time.monotonic() + self._deadline)
        except HoldfastError as unknown:
            for ticket in together:
                ticket.error = unknown
                ticket.finish()
            return len(together)
        if status == "aborted":
            return 0
        if status == "committed":
            self._watcher.announce()
            for ticket in together:
                ticket.finish()
        else:
            for ticket in together:
                self._run_one(ticket, in_doubt=lost.error)
        return len(together)

    def _run_one(
        self,
        ticket: Ticket[Any],
        *,
        orphaned_backend: BackendId | None = None,
        in_doubt: HoldfastError | None = None,
    ) -> None:
        _forget_unless(in_doubt, ticket.operation)
        ticket.run(partial(self.run, orphaned_backend=orphaned_backend, in_doubt=in_doubt))
        ticket.finish()


def _may_share_transaction(ticket: Ticket[Any]) -> bool:
    """False for a write of records of the store: it waits for their locks."""
    hint = prefetch_of(ticket.operation)
    return hint is None or not hint.store_record_names


def _forget_unless(in_doubt: HoldfastError | None, operation: Operation[Any]) -> None:
    """Make an operation forget its runs, unless one of them may have been stored."""
    if in_doubt is None:
        forget_runs(operation)


def _raise_outcome(error: HoldfastError, in_doubt: HoldfastError | None) -> NoReturn:
    """Raise the last error, or `OutcomeUnknown` if an earlier attempt may have been stored."""
    if in_doubt is None:
        raise error
    # Behind the semicolon each message says what its own attempt stored.
    first, last = (str(one).partition(";")[0] for one in (in_doubt, error))
    raise OutcomeUnknown(
        f"the connection was lost during the commit ({first}), and whether the write was stored "
        f"could not be determined ({last}); retry with the same ids: it is stored once."
    ) from error
