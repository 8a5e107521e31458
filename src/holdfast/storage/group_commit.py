"""Group commit: writes of one process that arrive together share one transaction and one sync.

If the locks are free, a caller takes them, runs its operation and commits in its own thread. If
they are taken, it queues the operation; one writer thread runs everything queued in a single
transaction. A caller waits on its ticket with a deadline, and withdraws a write that has not
started by then.

An operation that raises a `HoldfastError` before its first write fails alone. After any other error
the transaction is rolled back and its operations run again one by one. A failed commit is worse:
the connection may show rows that are not on disk, or hide rows that are. It is closed; a new one
commits a fence, which overwrites whatever the failed commit left behind, and then the operations,
which are idempotent, run again: what they find or store is the truth. If even the fence fails,
callers get `OutcomeUnknown`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import HoldfastError, OutcomeUnknown, StorageError, StoreFull, StoreUnavailable
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.writer_thread import start_writer

T = TypeVar("T")
_MAX_BATCH_WRITES = 1024


class CommitFailed(Exception):
    """The commit may or may not have happened, or the connection can no longer be trusted.

    `attempted` is whether a commit had been started.
    """

    def __init__(self, error: HoldfastError, *, attempted: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempted = attempted


class CountingTransaction(Transaction, Protocol):
    """A transaction that counts its writes."""

    writes: int


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


class Ticket(Generic[T]):
    """A queued write: waiting, running or done."""

    __slots__ = (
        "_callback",
        "_wakeup",
        "_writer",
        "done",
        "error",
        "operation",
        "started",
        "value",
    )

    def __init__(self, operation: Operation[T], writer: GroupCommit) -> None:
        self.operation = operation
        self.started = False
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._callback: Callable[[], None] | None = None
        self._wakeup: threading.Lock | None = None
        self._writer = writer

    def finish(self) -> None:
        """Mark it done and wake the caller that waits for it."""
        with self._writer.ticket_lock:
            self.done = True
            callback, wakeup = self._callback, self._wakeup
        if wakeup is not None:
            wakeup.release()
        if callback is not None:
            callback()

    def when_done(self, call: Callable[[], None]) -> None:
        """Run `call` once it is done, at once if it is. One callback is kept."""
        with self._writer.ticket_lock:
            if not self.done:
                self._callback = call
                return
        call()

    def wait(self, seconds: float) -> bool:
        """Wait until it is done; false if that takes longer than `seconds`."""
        with self._writer.ticket_lock:
            if self.done:
                return True
            if self._wakeup is None:
                self._wakeup = threading.Lock()
                self._wakeup.acquire()
            wakeup = self._wakeup
        return wakeup.acquire(timeout=seconds)

    def result(self) -> T:
        """Wait until it is done, with the writer's deadline; return its result."""
        return self._writer.wait_for(self)

    def withdraw(self) -> bool:
        """Withdraw it; false if it has started."""
        return self._writer.withdraw(self)

    def outcome(self) -> T:
        """Return the result of a write that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


class GroupCommit:
    """Runs the operations of one process; `committed` is called after each commit."""

    def __init__(
        self, engine: WriterConnection, *, deadline: float, committed: Callable[[], None]
    ) -> None:
        self._connection = engine
        self._deadline = deadline
        self._on_commit = committed
        self.ticket_lock = threading.Lock()
        self._connection_lock = threading.Lock()
        self._queue: deque[Ticket[Any]] = deque()
        # A signal handler cannot interrupt taking or releasing a plain lock; a condition it can.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._running = False
        self._closed = False

    # ------------------------------------------------------------------------------ callers

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return its result: in this thread if the locks are free."""
        result = defer_signals(partial(self._try_run_here, operation))
        return result[0] if result else self.submit(operation).result()

    def _try_run_here(self, operation: Operation[T]) -> tuple[T] | None:
        """Run an operation in this thread; `None` if a lock is held or writes are queued."""
        if not self._connection_lock.acquire(blocking=False):
            return None
        try:
            if self._queue or self._closed or not self._connection.try_enter():
                return None
            try:
                return (self._run_here(operation),)
            finally:
                self._connection.leave()
        finally:
            self._connection_lock.release()

    def submit(self, operation: Operation[T]) -> Ticket[T]:
        """Queue an operation for the writer thread."""
        ticket = Ticket(operation, self)
        defer_signals(partial(self._enqueue, ticket))
        return ticket

    def _enqueue(self, ticket: Ticket[Any]) -> None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed; nothing was stored. Open it again.")
            if self._thread is None:
                self._thread = start_writer(self._serve)
            self._queue.append(ticket)
            self._changed.notify_all()

    def wait_for(self, ticket: Ticket[T]) -> T:
        """Wait with the deadline; withdraw a write that has not started by then."""
        if ticket.wait(self._deadline) or self.withdraw(ticket):
            return ticket.outcome()
        # It is running: a commit that hangs cannot be withdrawn.
        if ticket.wait(self._deadline):
            return ticket.outcome()
        raise OutcomeUnknown(
            f"the write did not finish within {2 * self._deadline:g} s and may still be "
            "stored; retry it with the same ids."
        )

    def withdraw(self, ticket: Ticket[Any]) -> bool:
        """Remove a write from the queue; false if it has started."""
        return defer_signals(partial(self._withdraw, ticket))

    def _withdraw(self, ticket: Ticket[Any]) -> bool:
        with self._lock:
            if ticket.started or ticket.done:
                return False
            self._queue.remove(ticket)
        ticket.error = StoreUnavailable(
            f"another process held the store's lock for {self._deadline:g} s; nothing was stored. "
            "Try again; if that does not help, run `holdfast doctor`."
        )
        ticket.finish()
        return True

    def flush(self) -> None:
        """Wait until everything queued so far is done."""
        with self._lock:
            settled = self._changed.wait_for(
                lambda: not self._queue and not self._running, self._deadline
            )
        if not settled:
            raise StoreUnavailable(
                f"writes are still waiting after {self._deadline:g} s; they may still be stored."
            )

    def close(self) -> None:
        """Run what is queued, then stop. A thread that waits for a stuck lock is not joined."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._deadline)
        for ticket in list(self._queue):
            self.withdraw(ticket)

    @property
    def connection_lock(self) -> threading.Lock:
        """The lock held by the thread that uses the connection."""
        return self._connection_lock

    # ----------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._running = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                self._running = True
            with self._connection_lock:
                self._serve_once()

    def _serve_once(self) -> None:
        batch: list[Ticket[Any]] = []
        try:
            self._connection.enter()
            try:
                # Writes count as started only after this wait: until then all can be withdrawn.
                tx = self._begin()
                batch = self._take_batch()
                self._run_batch(batch, tx)
            except CommitFailed as failed:
                batch = batch or self._take_batch()
                self._retry_after_failed_commit(batch, failed)
            finally:
                self._connection.leave()
        except BaseException as error:  # noqa: BLE001 - raised in the callers' threads
            batch = batch or self._take_batch()
            for ticket in batch:
                ticket.error = ticket.error or error
        for ticket in batch:
            ticket.finish()

    def _take_batch(self) -> list[Ticket[Any]]:
        batch: list[Ticket[Any]] = []
        with self._lock:
            while self._queue and len(batch) < _MAX_BATCH_WRITES:
                ticket = self._queue.popleft()
                ticket.started = True
                batch.append(ticket)
        return batch

    # --------------------------------------------------------------------------- transactions

    def _run_here(self, operation: Operation[T]) -> T:
        try:
            return self._attempt(operation)
        except CommitFailed as failed:
            ticket = Ticket(operation, self)
            self._retry_after_failed_commit([ticket], failed)
            return ticket.outcome()

    def _run_batch(self, batch: Sequence[Ticket[Any]], tx: CountingTransaction) -> None:
        if self._run_in_one_transaction(batch, tx):
            return
        for ticket in batch:
            self._run_one(ticket)

    def _run_in_one_transaction(
        self, batch: Sequence[Ticket[Any]], tx: CountingTransaction
    ) -> bool:
        """Run a batch in one transaction; false if it was rolled back because one failed."""
        for ticket in batch:
            before = tx.writes
            try:
                ticket.value = ticket.operation(tx)
            except BaseException as error:  # noqa: BLE001 - classified, and kept for its caller
                if not isinstance(error, HoldfastError) or tx.writes != before:
                    self._roll_back(error)
                    _clear_results(batch)
                    return False
                ticket.error = error
        self._commit()
        return True

    def _run_one(self, ticket: Ticket[Any]) -> None:
        """Run one operation in its own transaction, and set its ticket's result or error."""
        try:
            ticket.value = self._attempt(ticket.operation)
        except CommitFailed as failed:
            self._retry_after_failed_commit([ticket], failed)
        except BaseException as error:  # noqa: BLE001 - kept for its caller
            ticket.error = error

    def _attempt(self, operation: Operation[T]) -> T:
        """Run one operation in its own transaction and return its result."""
        tx = self._begin()
        try:
            value = operation(tx)
        except BaseException as error:
            translated = self._roll_back(error)
            if translated is error:
                raise
            raise translated from error
        self._commit()
        return value

    def _begin(self) -> CountingTransaction:
        try:
            return self._connection.begin()
        except Exception as error:
            raise self._connection.translate(error) from error

    def _commit(self) -> None:
        self._connection.commit()
        self._on_commit()

    def _roll_back(self, error: BaseException) -> BaseException:
        self._connection.roll_back()
        return self._connection.translate(error)

    def _retry_after_failed_commit(
        self, batch: Sequence[Ticket[Any]], failed: CommitFailed
    ) -> None:
        """Reconnect after a failed commit and run its operations again, one by one."""
        _clear_results(batch)
        try:
            self._connection.reopen()
        except StorageError as error:
            for ticket in batch:
                ticket.error = _outcome_error(failed, error)
            return
        for ticket in batch:
            try:
                ticket.value = self._attempt(ticket.operation)
            except CommitFailed as again:
                ticket.error = _outcome_error(again, again.error)
                if not again.attempted:
                    ticket.error = again.error
            except BaseException as error:  # noqa: BLE001 - kept for its caller
                ticket.error = error


def _clear_results(batch: Sequence[Ticket[Any]]) -> None:
    for ticket in batch:
        ticket.value, ticket.error = None, None


def _outcome_error(failed: CommitFailed, later: BaseException) -> BaseException:
    if not failed.attempted or (
        # On a full disk the commit record itself was not written.
        isinstance(failed.error, StoreFull) and isinstance(later, StoreFull)
    ):
        return failed.error
    unknown = OutcomeUnknown(
        f"the commit failed ({failed.error}) and the store could not be read to find out whether "
        f"it was stored ({later}). Retry with the same ids: it will be stored once."
    )
    unknown.__cause__ = failed.error
    return unknown
