"""Group commit: writes of one process that arrive together share one transaction and one sync.

If the locks are free, a caller takes them, runs its operation and commits in its own thread. If
they are taken, it queues the operation; one writer thread runs everything queued in a single
transaction (`write_queue.py`).

An operation that raises a `HoldfastError` before its first write fails alone. After any other error
the transaction is rolled back and its operations run again one by one. A failed commit is worse:
the connection may show rows that are not on disk, or hide rows that are. It is closed; a new one
commits a fence, which overwrites whatever the failed commit left behind, and then the operations,
which are idempotent, run again: what they find or store is the truth. If even the fence fails,
callers get `OutcomeUnknown`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from holdfast.errors import HoldfastError, OutcomeUnknown, StorageError, StoreFull
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.prefetch import Prefetch, prefetch_of
from holdfast.storage.protocol import Operation
from holdfast.storage.write_queue import CountingTransaction, TakeBatch, Ticket, WriteQueue

T = TypeVar("T")
_MAX_BATCH_WRITES: Final = 1024


class CommitFailed(Exception):
    """The commit may or may not have happened, or the connection can no longer be trusted.

    `attempted` is whether a commit had been started.
    """

    def __init__(self, error: HoldfastError, *, attempted: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempted = attempted


class WriterConnection(Protocol):
    """The connection that writes. One thread at a time calls it."""

    def try_enter(self) -> bool:
        """Take the inter-process lock if it is free; true if it was."""
        ...

    def enter(self) -> None:
        """Wait for the inter-process lock."""
        ...

    def leave(self) -> None:
        """Release the inter-process lock."""
        ...

    def begin(self) -> CountingTransaction:
        """Begin a transaction."""
        ...

    def prefetch(self, hints: Sequence[Prefetch]) -> None:
        """Read what the operations of a batch need, in a few statements."""
        ...

    def write_out(self) -> None:
        """Execute the writes that the transaction has kept until now; none may be left."""
        ...

    def commit(self) -> None:
        """Commit, durably; raise `CommitFailed` if it is unknown whether that happened."""
        ...

    def roll_back(self) -> None:
        """Roll back; raise `CommitFailed` if the connection cannot be trusted any more."""
        ...

    def translate(self, error: BaseException) -> BaseException:
        """Return a driver error as a `HoldfastError`, or as `CommitFailed` if it is fatal."""
        ...

    def reopen(self) -> None:
        """Close the connection, open a new one and commit a fence."""
        ...


class GroupCommit:
    """Runs the operations of one process; `committed` is called after each commit."""

    def __init__(
        self, connection: WriterConnection, *, deadline: float, committed: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._on_commit = committed
        self.connection_lock = threading.Lock()  # held by the thread that uses the connection
        self.queue = WriteQueue(
            self._serve,
            deadline=deadline,
            max_batch_writes=_MAX_BATCH_WRITES,
            withdrawn=f"another process held the store's lock for {deadline:g} s; nothing was "
            "stored. Try again; if that does not help, run `holdfast doctor`.",
        )

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return its result: in this thread if the locks are free."""
        result = defer_signals(self._try_run_here, operation)
        return result[0] if result else self.queue.submit(operation).result()

    def _try_run_here(self, operation: Operation[T]) -> tuple[T] | None:
        """Run an operation in this thread; `None` if a lock is held or writes are queued."""
        if not self.connection_lock.acquire(blocking=False):
            return None
        try:
            queue = self.queue
            if queue.waiting or queue.closed or not self._connection.try_enter():
                return None
            try:
                return (self._run_one(operation),)
            finally:
                self._connection.leave()
        finally:
            self.connection_lock.release()

    def _serve(self, take_batch: TakeBatch) -> None:
        """Run a batch of queued writes, in the writer thread."""
        batch: Sequence[Ticket[Any]] = ()
        with self.connection_lock:
            try:
                self._connection.enter()
                try:
                    # Writes are taken only after this wait: until then all can be withdrawn.
                    tx = self._begin()
                    batch = take_batch()
                    self._run_batch(batch, tx)
                except CommitFailed as failed:
                    batch = batch or take_batch()
                    self._reopen(failed)
                    for ticket in batch:
                        ticket.run(self._attempt_again)
                finally:
                    self._connection.leave()
            except HoldfastError as error:
                batch = batch or take_batch()
                for ticket in batch:
                    ticket.error = error
            for ticket in batch:
                ticket.finish()

    # --------------------------------------------------------------------------- transactions

    def _run_batch(self, batch: Sequence[Ticket[Any]], tx: CountingTransaction) -> None:
        """Run a batch in one transaction; if that fails, each write in its own."""
        if not self._run_in_one_transaction(batch, tx):
            for ticket in batch:
                ticket.run(self._run_one)

    def _run_in_one_transaction(
        self, batch: Sequence[Ticket[Any]], tx: CountingTransaction
    ) -> bool:
        """Run a batch in one transaction; false if it was rolled back because one failed."""
        try:
            if len(batch) > 1:
                hints = [prefetch_of(ticket.operation) for ticket in batch]
                self._connection.prefetch([hint for hint in hints if hint is not None])
            for ticket in batch:
                ticket.run_in(tx)
            self._connection.write_out()
        except BaseException as error:  # noqa: BLE001 - raised again when it is run alone
            self._roll_back(error)
            return False
        self._connection.commit()
        self._on_commit()
        return True

    def _run_one(self, operation: Operation[T]) -> T:
        """Run one operation in its own transaction, again if its commit failed."""
        try:
            return self._attempt(operation)
        except CommitFailed as failed:
            self._reopen(failed)
            return self._attempt_again(operation)

    def _attempt(self, operation: Operation[T]) -> T:
        """Run one operation in its own transaction and return its result."""
        tx = self._begin()
        try:
            value = operation(tx)
            self._connection.write_out()
        except BaseException as error:
            translated = self._roll_back(error)
            if translated is error:
                raise
            raise translated from error
        self._connection.commit()
        self._on_commit()
        return value

    def _attempt_again(self, operation: Operation[T]) -> T:
        """Run one operation after a failed commit; if its commit fails too, raise the outcome."""
        try:
            return self._attempt(operation)
        except CommitFailed as again:
            raise _outcome_error(again, again.error) from again

    def _begin(self) -> CountingTransaction:
        try:
            return self._connection.begin()
        except Exception as error:
            raise self._connection.translate(error) from error

    def _roll_back(self, error: BaseException) -> BaseException:
        self._connection.roll_back()
        return self._connection.translate(error)

    def _reopen(self, failed: CommitFailed) -> None:
        """Reconnect after a failed commit; raise the outcome of its operations if that fails."""
        try:
            self._connection.reopen()
        except StorageError as error:
            raise _outcome_error(failed, error) from failed


def _outcome_error(failed: CommitFailed, later: BaseException) -> HoldfastError:
    if not failed.attempted or (
        # On a full disk the commit record itself was not written.
        isinstance(failed.error, StoreFull) and isinstance(later, StoreFull)
    ):
        return failed.error
    return OutcomeUnknown(
        f"the commit failed ({failed.error}) and the store could not be read to find out whether "
        f"it was stored ({later}). Retry with the same ids: it will be stored once."
    )
