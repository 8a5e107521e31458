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

Submitted writes (`write_queue.py`) are run in order, all that wait in one transaction. Such a
transaction never waits for a row lock: two of them, each holding many sessions, would deadlock. An
operation that finds a session locked by another transaction ends the batch, and is run alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import psycopg

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.storage.postgres.ancestry_cache import Paths
from holdfast.storage.postgres.commit_status import Fate, Lost, Receipt, end_orphan, fate_of
from holdfast.storage.postgres.connection import Birth, Link, Withheld
from holdfast.storage.postgres.errors import is_again, is_lost, translate
from holdfast.storage.postgres.head_cache import Standings
from holdfast.storage.postgres.optimistic import SupposingTransaction
from holdfast.storage.postgres.pool import Pool
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.postgres.transaction import HeldByOthers, PostgresTransaction
from holdfast.storage.postgres.watcher import Watcher
from holdfast.storage.postgres.write_queue import Handed
from holdfast.storage.protocol import Verb, sight_of

T = TypeVar("T")
_NOT_STORED: Final = "nothing was stored."
_MOST_COLLISIONS: Final = 20
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5


class Again(Exception):
    """The transaction was rolled back because of a concurrent one; nothing was stored."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class Runner:
    """Runs operations in transactions; one per thread, up to the number of pooled connections."""

    def __init__(
        self,
        pool: Pool,
        tenant: Tenant,
        clock: Clock | None,
        paths: Paths,
        *,
        deadline: float,
        response_timeout_s: float,
        exclusive_timeout_s: float,
        watcher: Watcher,
    ) -> None:
        """Write on connections of `pool`, and announce each commit to `watcher`."""
        self._pool = pool
        self._tenant = tenant
        self._clock = clock
        self._paths = paths
        self._deadline = deadline
        self._answer = response_timeout_s
        self._longest = exclusive_timeout_s
        self._watcher = watcher
        self._standings = Standings()

    def run(
        self,
        operation: Verb[T],
        *,
        alone: bool = False,
        orphaned_backend: Birth | None = None,
        in_doubt: HoldfastError | None = None,
    ) -> T:
        """Run an operation until its outcome is known, or the deadline has passed.

        `orphaned_backend` served a connection that was lost before, and may hold locks that this
        needs. `in_doubt` is the error of an earlier commit that may have stored the write.
        """
        until = time.monotonic() + self._deadline
        pause, conflicts = _FIRST_PAUSE, 0
        while True:
            try:
                return self._attempt(operation, orphaned_backend, alone=alone)
            except Lost as lost:
                error, orphaned_backend = lost.error, lost.born or orphaned_backend
                self._forget_server()
                if lost.receipt is not None:
                    status = self._fate(lost, until)
                    if status == "committed":
                        self._watcher.announce()
                        value: T = lost.receipt.value
                        return value
                    if status == "aborted":
                        error = lost.receipt.undone
                    else:
                        in_doubt = in_doubt or lost.error
            except Again as conflict:
                error = conflict.error
                conflicts += 1
            except HoldfastError as refusal:
                _give_up(refusal, in_doubt)
            if time.monotonic() + pause > until or conflicts > _MOST_COLLISIONS:
                _give_up(error, in_doubt)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _forget_server(self) -> None:
        """Drop the idle connections and cached heads of a server that was lost."""
        self._pool.clear()
        self._standings.clear()

    def _attempt(
        self, operation: Verb[T], orphaned_backend: Birth | None, *, alone: bool = False
    ) -> T:
        """Run an operation in a transaction of its own, after terminating an orphaned backend."""
        with self._link(self._longest if alone else self._answer) as connection:
            if orphaned_backend is not None:
                self._end_orphan(connection, orphaned_backend)
            elif not alone and (done := self._run_supposing(connection, operation)) is not None:
                return done[0]
            tx = self._begin(connection, [operation], alone=alone)
            try:
                value = operation(tx)
            except BaseException as error:
                self._undo(connection, error)
                raise
            self._commit(connection, tx, value)
            return value

    def _run_supposing(self, connection: Link, operation: Verb[T]) -> tuple[T] | None:
        """Run an append in one round trip, if the head of its session is cached.

        Return its result in a tuple; `None` if the head is not cached, is stale, or is not all that
        the operation reads. Nothing was stored then.
        """
        hint = sight_of(operation)
        if hint is None or not hint.ids or hint.looks:
            return None
        cached = self._standings.suppose(hint.session, hint.newest)
        if cached is None:
            return None
        tx = SupposingTransaction(connection, self._tenant, self._clock, self._paths)
        try:
            # A closed connection must show before the commit is sent: afterwards it is in doubt.
            connection.listen()
            with connection.withheld():
                self._enter(connection, tx, "enter_writing")
                tx.suppose(cached, hint.ids)
                value = operation(tx)
                tx.finish()
        except (Withheld, HoldfastError):
            self._standings.keep(cached)
            return None
        except psycopg.Error as error:
            self._fail(connection, error)
        try:
            self._commit(connection, tx, value)
        except (Again, HoldfastError):
            self._standings.mistrust(cached)
            return None  # Nothing was stored; running it with reads finds out why.
        return (value,)

    # --------------------------------------------------------------------- after a lost commit

    def _fate(self, lost: Lost, until: float) -> Fate:
        """Return the status of an in-doubt commit; raise `OutcomeUnknown` at the deadline."""
        pause, error = _FIRST_PAUSE, lost.error
        while True:
            try:
                with self._link(self._answer) as connection:
                    status = self._ask_fate(connection, lost)
                if status is not None:
                    return status
            except Lost as again:
                error = again.error
                self._forget_server()
            except HoldfastError as other:
                _give_up(other, lost.error)
            if time.monotonic() + pause > until:
                _give_up(error, lost.error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _ask_fate(self, connection: Link, lost: Lost) -> Fate | None:
        try:
            return fate_of(connection, self._tenant, lost)
        except psycopg.Error as error:
            self._fail(connection, error)

    def _end_orphan(self, connection: Link, orphaned_backend: Birth) -> None:
        try:
            end_orphan(connection, orphaned_backend)
        except psycopg.Error as error:
            self._fail(connection, error)

    @contextmanager
    def _link(self, timeout_s: float) -> Iterator[Link]:
        """Lend a connection for one attempt; failing to get one counts as losing it."""
        try:
            connection = self._pool.take(self._deadline)
        except psycopg.Error as error:
            raise Lost(translate(error, _NOT_STORED)) from error
        try:
            connection.patience = timeout_s
            yield connection
        finally:
            self._pool.give_back(connection)

    def _begin(
        self,
        connection: Link,
        operations: Sequence[Verb[Any]],
        *,
        alone: bool = False,
        may_block: bool = True,
    ) -> PostgresTransaction:
        """Begin a transaction for these operations, and prefetch what they are known to read."""
        hints = [hint for hint in map(sight_of, operations) if hint is not None]
        tx = PostgresTransaction(
            connection, self._tenant, self._clock, self._paths, alone=alone, may_block=may_block
        )
        try:
            self._enter(connection, tx, "enter_exclusive" if alone else "enter_writing")
            if hints:
                tx.foresee(*hints)
        except psycopg.Error as error:
            self._fail(connection, error)
        return tx

    def _enter(self, connection: Link, tx: PostgresTransaction, name: str) -> None:
        connection.begin("begin_writing")
        tx.enter(name, self._tenant.lock, self._tenant.store_lock)

    def _undo(self, connection: Link, error: BaseException) -> None:
        """Roll back; an error of the server is raised as what it means."""
        if isinstance(error, psycopg.Error):
            self._fail(connection, error)
        connection.roll_back()

    def _fail(self, connection: Link, error: psycopg.Error) -> NoReturn:
        """Roll back, and raise `ConnectionLost`, `RetryableConflict` or the translated error."""
        if is_lost(error):
            connection.close()
            raise Lost(translate(error, _NOT_STORED), connection.birth) from error
        connection.roll_back()
        if is_again(error):
            raise Again(translate(error, _NOT_STORED)) from error
        raise translate(error, _NOT_STORED) from error

    def _commit(self, connection: Link, tx: PostgresTransaction, value: object) -> None:
        if not tx.writes:
            # What it found stored may still be on its way to a standby.
            connection.ask("commit_barrier")
        try:
            connection.commit()
        except psycopg.Error as error:
            if not is_lost(error):
                # The server answered: a statement sent before the commit was refused.
                self._fail(connection, error)
            connection.close()
            abort_error = translate(error, _NOT_STORED)
            pending = Receipt(tx.number, tx.trace, value, abort_error)
            raise Lost(translate(error, "it may be stored."), connection.birth, pending) from error
        except BaseException:
            connection.close()
            raise
        tx.note(self._standings)
        if tx.writes:
            self._watcher.announce(has_listeners=tx.heard)

    # ------------------------------------------------------------------------- batches

    def run_batch(self, batch: Sequence[Handed[Any]]) -> None:
        """Run queued writes in order, as many as possible in one transaction."""
        waiting = deque(batch)
        while waiting:
            completed, orphaned_backend = self._run_together(waiting)
            for _ in range(completed):
                waiting.popleft()
            if waiting:
                self._run_one(waiting.popleft(), orphaned_backend=orphaned_backend)

    def _run_together(self, batch: Sequence[Handed[Any]]) -> tuple[int, Birth | None]:
        """Run queued writes in one transaction, stopping before the first that would block.

        Return how many completed, and the backend of the connection if it was lost. On any error
        none completes, and the first is to be run alone.
        """
        if len(batch) == 1:
            return 0, None
        done: list[Callable[[], None]] = []
        try:
            with self._link(self._answer) as connection:
                tx = self._begin(connection, [write.verb for write in batch], may_block=False)
                try:
                    self._gather(tx, batch, done)
                except Exception as error:  # noqa: BLE001 - raised again when run alone
                    self._undo(connection, error)
                    return 0, None
                self._commit(connection, tx, None)
        except Lost as lost:
            self._forget_server()
            completed = 0 if lost.receipt is None else self._settle(batch, done, lost)
            return completed, lost.born
        except (HoldfastError, Again):
            return 0, None
        for complete in done:
            complete()
        return len(done), None

    def _settle(
        self, batch: Sequence[Handed[Any]], done: Sequence[Callable[[], None]], lost: Lost
    ) -> int:
        """Complete the writes whose common commit is in doubt; return how many completed."""
        together = [batch[index] for index in range(len(done))]
        try:
            status = self._fate(lost, time.monotonic() + self._deadline)
        except HoldfastError as unknown:
            for write in together:
                write.fail(unknown)
            return len(done)
        if status == "aborted":
            return 0
        if status == "committed":
            self._watcher.announce()
            for complete in done:
                complete()
        else:
            for write in together:
                self._run_one(write, in_doubt=lost.error)
        return len(done)

    def _gather(
        self,
        tx: PostgresTransaction,
        batch: Sequence[Handed[Any]],
        done: list[Callable[[], None]],
    ) -> None:
        for write in batch:
            before = tx.writes
            try:
                value = write.verb(tx)
            except HeldByOthers:
                if tx.writes != before:
                    raise
                return
            except HoldfastError as error:
                if tx.writes != before:
                    raise
                done.append(partial(write.fail, error))
            else:
                done.append(partial(write.succeed, value))

    def _run_one(
        self,
        write: Handed[Any],
        *,
        orphaned_backend: Birth | None = None,
        in_doubt: HoldfastError | None = None,
    ) -> None:
        try:
            value = self.run(write.verb, orphaned_backend=orphaned_backend, in_doubt=in_doubt)
        except BaseException as error:  # noqa: BLE001 - every error belongs to the caller
            write.fail(error)
        else:
            write.succeed(value)


def _give_up(error: HoldfastError, in_doubt: HoldfastError | None) -> NoReturn:
    """Raise the last error, or `OutcomeUnknown` if an earlier attempt may have been stored."""
    if in_doubt is None:
        raise error
    # Behind the semicolon each message says what its own attempt stored.
    first, last = (str(one).partition(";")[0] for one in (in_doubt, error))
    raise OutcomeUnknown(
        f"the connection was lost during the commit ({first}), and whether the write was stored "
        f"could not be determined ({last}); retry with the same ids: it is stored once."
    ) from error
