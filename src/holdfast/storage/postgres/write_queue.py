"""The queue of submitted writes: the caller goes on, and may wait for a write or withdraw it.

One thread runs them, in the order in which they were submitted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final, Generic, TypeVar

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.protocol import Operation
from holdfast.storage.writer_thread import start_writer

T = TypeVar("T")
_MAX_BATCH_WRITES: Final = 64


class QueuedWrite(Generic[T]):
    """A submitted write: waiting, running or done."""

    def __init__(self, operation: Operation[T], deadline: float) -> None:
        self.operation = operation
        self._deadline = deadline
        self._future: Future[T] = Future()

    def start(self) -> bool:
        """Mark the write as running; false if it was withdrawn."""
        return self._future.set_running_or_notify_cancel()

    def set_result(self, value: T) -> None:
        """Complete the write with its result."""
        self._future.set_result(value)

    def set_error(self, error: BaseException) -> None:
        """Complete the write with an error."""
        self._future.set_exception(error)

    def set_unknown_if_open(self, error: BaseException) -> None:
        """Complete the write with `OutcomeUnknown`, unless it is complete."""
        if not self._future.done():
            unknown = OutcomeUnknown(
                f"the write was interrupted ({error!r}) and may be stored; retry with the same ids."
            )
            unknown.__cause__ = error
            self._future.set_exception(unknown)

    def result(self) -> T:
        """Wait for the result; withdraw the write if it has not started by the deadline."""
        try:
            return self._future.result(self._deadline)
        except TimeoutError:
            if self._future.done() or self.withdraw():
                return self.outcome()
        except CancelledError:
            return self.outcome()
        try:
            return self._future.result(self._deadline)
        except TimeoutError:
            if self._future.done():
                return self.outcome()
            raise OutcomeUnknown(
                f"the write did not finish within {2 * self._deadline:g} s and may still be "
                "stored; retry with the same ids."
            ) from None

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this once the write is done, or at once if it is."""
        self._future.add_done_callback(lambda _: call())

    def outcome(self) -> T:
        """Return the result of a write that is done, or raise its error."""
        try:
            return self._future.result(0)
        except CancelledError:
            raise StoreUnavailable(
                "the write was withdrawn before it started; nothing was stored. Try again; if it "
                "keeps happening, run `holdfast doctor`."
            ) from None

    def withdraw(self) -> bool:
        """Withdraw the write if it has not started; false if it has."""
        return self._future.cancel()


class WriteQueue:
    """The submitted writes, and the thread that runs them in order."""

    def __init__(self, run: Callable[[Sequence[QueuedWrite[Any]]], None], deadline: float) -> None:
        """Pass batches of writes to `run`."""
        self._run = run
        self._deadline = deadline
        self._waiting: deque[QueuedWrite[Any]] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._running = False
        self._closed = False

    @property
    def active(self) -> bool:
        """Whether a write waits or runs; a new write must then be queued to keep the order."""
        return self._running or bool(self._waiting)

    def submit(self, operation: Operation[T]) -> QueuedWrite[T]:
        """Queue an operation."""
        write = QueuedWrite(operation, self._deadline)
        defer_signals(partial(self._enqueue, write))
        return write

    def _enqueue(self, write: QueuedWrite[Any]) -> None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed; nothing was stored. Open it again.")
            if self._thread is None:
                self._thread = start_writer(self._serve)
            self._waiting.append(write)
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._running = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._running = True
                batch = self._take_batch()
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - no caller may wait forever
                for write in batch:
                    write.set_unknown_if_open(error)

    def _take_batch(self) -> list[QueuedWrite[Any]]:
        batch: list[QueuedWrite[Any]] = []
        while self._waiting and len(batch) < _MAX_BATCH_WRITES:
            write = self._waiting.popleft()
            if write.start():
                batch.append(write)
        return batch

    def flush(self) -> None:
        """Wait until every write submitted so far is done."""
        with self._lock:
            settled = self._changed.wait_for(lambda: not self.active, self._deadline)
        if not settled:
            raise StoreUnavailable(
                f"writes are still waiting after {self._deadline:g} s; they may still be stored."
            )

    def close(self) -> None:
        """Finish the waiting writes and stop; a thread that does not end in time is abandoned."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._deadline)
        for write in list(self._waiting):
            write.withdraw()
