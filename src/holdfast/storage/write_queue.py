"""The queue of submitted writes, and the thread that runs them in order.

A caller that submits a write gets its ticket: it may go on, wait for the outcome, or withdraw the
write as long as it has not started. A backend runs the queue in batches; it decides when a batch
starts, by taking it. A caller waits with a deadline: a write that has not started by then is
withdrawn, one that has is given as long again.

Submitting takes no lock: each of its steps is atomic in the interpreter, and a signal handler that
raises between two of them leaves a write that has been queued or one that has not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast.errors import HoldfastError, OutcomeUnknown, StoreUnavailable
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.protocol import Operation, Transaction

T = TypeVar("T")


class CountingTransaction(Transaction):
    """A transaction that counts its writes."""

    writes: int


class Ticket(Generic[T]):
    """A submitted write: waiting, running or done."""

    __slots__ = (
        "_callbacks",
        "_deadline",
        "_withdraw",
        "done",
        "error",
        "operation",
        "value",
        "withdrawn",
    )

    def __init__(
        self,
        operation: Operation[T],
        deadline: float,
        withdraw: Callable[[Ticket[Any]], bool],
    ) -> None:
        self.operation = operation
        self.withdrawn = False
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._deadline = deadline
        self._withdraw = withdraw
        self._callbacks: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------------- the caller

    def result(self) -> T:
        """Wait for the result; withdraw the write if it has not started by the deadline."""
        # One that has started cannot be withdrawn: its commit may hang.
        if self._wait() or self.withdraw() or self._wait():
            return self.outcome()
        raise unfinished_error(self._deadline)

    def _wait(self) -> bool:
        """Wait until it is done; false if that takes longer than the deadline."""
        # A signal handler cannot interrupt taking or releasing a plain lock; a condition it can.
        gate = threading.Lock()
        gate.acquire()
        self.when_done(gate.release)
        return gate.acquire(timeout=self._deadline)

    def outcome(self) -> T:
        """Return the result of a write that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value

    def when_done(self, call: Callable[[], None]) -> None:
        """Run `call` once it is done, at once if it is."""
        self._callbacks.append(call)
        if self.done:
            self._call_back()

    def _call_back(self) -> None:
        """Run each callback once, whichever thread comes first."""
        while True:
            try:
                call = self._callbacks.pop()
            except IndexError:
                return
            call()

    def withdraw(self) -> bool:
        """Withdraw it; false if it has started."""
        return defer_signals(self._withdraw, self)

    # ------------------------------------------------------------------------------- the writer

    def run(self, attempt: Callable[[Operation[T]], T]) -> None:
        """Run the operation with `attempt`, and set the result or the error."""
        try:
            self.value, self.error = attempt(self.operation), None
        except BaseException as error:  # noqa: BLE001 - kept for its caller
            self.error = error

    def run_in(self, tx: CountingTransaction) -> None:
        """Run the operation in a transaction that it shares with others, and set the result.

        A refusal before its first write is its own error; any other error is raised.
        """
        before = tx.writes
        try:
            self.value, self.error = self.operation(tx), None
        except HoldfastError as error:
            if tx.writes != before:
                raise
            self.error = error

    def finish(self) -> None:
        """Mark it done, with the result or the error that was set, and wake its caller."""
        self.done = True
        self._call_back()


TakeBatch: TypeAlias = Callable[[], Sequence[Ticket[Any]]]


class WriteQueue:
    """The submitted writes of one backend, and the thread that runs them."""

    def __init__(
        self,
        serve: Callable[[TakeBatch], None],
        *,
        deadline: float,
        max_batch_writes: int,
        withdrawn: str,
    ) -> None:
        """Call `serve` while writes wait: it takes a batch, which starts it, and finishes it.

        `withdrawn` is the error message of a write that was withdrawn.
        """
        self._serve = serve
        self._deadline = deadline
        self._max_batch_writes = max_batch_writes
        self._withdrawn = withdrawn
        self.waiting: deque[Ticket[Any]] = deque()
        self.closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._wake_up = threading.Lock()  # taken while the thread may sleep
        self._wake_up.acquire()
        self._asleep = False
        self._running = False
        self._batch: Sequence[Ticket[Any]] = ()

    @property
    def active(self) -> bool:
        """Whether a write waits or runs; a new write must then be queued to keep the order."""
        # In this order: one that no longer waits runs already.
        return bool(self.waiting) or self._running

    def submit(self, operation: Operation[T]) -> Ticket[T]:
        """Queue an operation."""
        ticket = Ticket(operation, self._deadline, self._withdraw)
        if self._thread is None:
            defer_signals(self._start_thread)
        self.waiting.append(ticket)
        self._wake()
        # Compared last: a queue that is closed meanwhile may have nothing that would run it.
        if self.closed and ticket.withdraw():
            raise StoreUnavailable("the store is closed; nothing was stored. Open it again.")
        return ticket

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is None and not self.closed:
                self._thread = _start_thread(self._run)

    def _wake(self) -> None:
        if self._asleep:
            with suppress(RuntimeError):  # Another thread has woken it.
                self._wake_up.release()

    def _withdraw(self, ticket: Ticket[Any]) -> bool:
        try:
            self.waiting.remove(ticket)
        except ValueError:
            return ticket.withdrawn
        ticket.withdrawn = True
        ticket.error = StoreUnavailable(self._withdrawn)
        ticket.finish()
        with self._lock:
            self._changed.notify_all()
        return True

    def flush(self) -> None:
        """Wait until every write submitted so far is done."""
        self._wake()
        with self._lock:
            settled = self._changed.wait_for(lambda: not self.active, self._deadline)
        if not settled:
            raise StoreUnavailable(
                f"writes are still waiting after {self._deadline:g} s; they may still be stored."
            )

    def close(self) -> None:
        """Finish the waiting writes and stop; a thread that does not end in time is abandoned."""
        with self._lock:
            self.closed = True
            thread = self._thread
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._deadline)
        for ticket in list(self.waiting):
            ticket.withdraw()

    # ------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while self._await_writes():
            try:
                self._serve(self._take_batch)
            except BaseException as error:  # noqa: BLE001 - no caller may wait forever
                self._fail_batch(error)
            self._batch = ()
            self._running = False
            with self._lock:
                self._changed.notify_all()

    def _await_writes(self) -> bool:
        """Wait until a write waits; false if the queue was closed and none does."""
        while not self.waiting:
            if self.closed:
                return False
            self._asleep = True
            # What was queued before the flag was set is seen here, what comes later wakes it.
            if not self.waiting and not self.closed:
                self._wake_up.acquire()
            self._asleep = False
        self._running = True
        return True

    def _take_batch(self) -> Sequence[Ticket[Any]]:
        """Start the oldest waiting writes and return them: from now on none can be withdrawn."""
        batch: list[Ticket[Any]] = []
        with suppress(IndexError):  # They may be withdrawn meanwhile.
            while len(batch) < self._max_batch_writes:
                batch.append(self.waiting.popleft())
        self._batch = batch
        return batch

    def _fail_batch(self, error: BaseException) -> None:
        """Report `OutcomeUnknown` for what an unexpected error left unfinished."""
        for ticket in self._batch or self._take_batch():
            if not ticket.done:
                ticket.error = OutcomeUnknown(
                    f"the write was interrupted ({error!r}) and may be stored; retry with the same "
                    "ids."
                )
                ticket.error.__cause__ = error
                ticket.finish()


def unfinished_error(deadline: float) -> OutcomeUnknown:
    """Return the error of a write that started and did not finish in twice the deadline."""
    return OutcomeUnknown(
        f"the write did not finish within {2 * deadline:g} s and may still be stored; retry with "
        "the same ids."
    )


def _start_thread(serve: Callable[[], None]) -> threading.Thread:
    """Start the writer thread; raise `StoreUnavailable` if the system allows no more threads."""
    thread = threading.Thread(target=serve, name="holdfast-writer", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailable(
            f"no thread can be started for writing ({error}); nothing was stored. End some "
            "threads, or raise the limit of the process."
        ) from error
    return thread
