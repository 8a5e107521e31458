"""Verbs that are handed over: whoever brings one goes on, and may wait for it, or withdraw it.

One thread runs them, in the order in which they came.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final, Generic, TypeVar

from holdfast.backends.base import Verb
from holdfast.backends.interrupts import undisturbed
from holdfast.backends.threads import start_writer
from holdfast.errors import OutcomeUnknown, StoreUnavailable

T = TypeVar("T")
_LARGEST_BATCH: Final = 64


class Handed(Generic[T]):
    """A write that waits, runs, or is done."""

    def __init__(self, verb: Verb[T], deadline: float) -> None:
        """Wrap a verb."""
        self.verb = verb
        self._deadline = deadline
        self._future: Future[T] = Future()

    def begin(self) -> bool:
        """Say that it runs now; false if it was withdrawn."""
        return self._future.set_running_or_notify_cancel()

    def succeed(self, value: T) -> None:
        """Return what it gave."""
        self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Return what went wrong."""
        self._future.set_exception(error)

    def fail_if_open(self, error: BaseException) -> None:
        """Say that it is not known what became of it, unless it was said."""
        if not self._future.done():
            unknown = OutcomeUnknown(
                f"the write was broken off ({error!r}) and may be stored; retry with the same ids."
            )
            unknown.__cause__ = error
            self._future.set_exception(unknown)

    def result(self) -> T:
        """Wait for the end; withdraw it if it has not begun by the deadline."""
        try:
            return self._future.result(self._deadline)
        except TimeoutError:
            if self._future.done() or self.give_up():
                return self.outcome()
        except CancelledError:
            return self.outcome()
        try:
            return self._future.result(self._deadline)
        except TimeoutError:
            if self._future.done():
                return self.outcome()
            raise OutcomeUnknown(
                f"the write did not finish within {2 * self._deadline:g} s and may still do; retry "
                "it with the same ids."
            ) from None

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this once it is done, or at once if it is."""
        self._future.add_done_callback(lambda _: call())

    def outcome(self) -> T:
        """Return the result of what is done, or raise its error."""
        try:
            return self._future.result(0)
        except CancelledError:
            raise StoreUnavailable(
                "the write was withdrawn before it began; nothing was stored. Try again, and see "
                "`holdfast doctor` if it stays so."
            ) from None

    def give_up(self) -> bool:
        """Withdraw it if it has not begun."""
        return self._future.cancel()


class Line:
    """Verbs that were handed over, and the thread that runs them in order."""

    def __init__(self, run: Callable[[Sequence[Handed[Any]]], None], deadline: float) -> None:
        """Run them with this, some at a time."""
        self._run = run
        self._deadline = deadline
        self._waiting: deque[Handed[Any]] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    @property
    def moving(self) -> bool:
        """Whether something waits or runs; whoever comes then gets in line."""
        return self._busy or bool(self._waiting)

    def submit(self, verb: Verb[T]) -> Handed[T]:
        """Hand a verb over."""
        handed = Handed(verb, self._deadline)
        undisturbed(partial(self._hand_over, handed))
        return handed

    def _hand_over(self, handed: Handed[Any]) -> None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed; nothing was stored. Open it again.")
            if self._thread is None:
                self._thread = start_writer(self._serve)
            self._waiting.append(handed)
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._busy = True
                batch = self._take_batch()
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
                for handed in batch:
                    handed.fail_if_open(error)

    def _take_batch(self) -> list[Handed[Any]]:
        batch: list[Handed[Any]] = []
        while self._waiting and len(batch) < _LARGEST_BATCH:
            handed = self._waiting.popleft()
            if handed.begin():
                batch.append(handed)
        return batch

    def flush(self) -> None:
        """Wait until everything handed over so far is done."""
        with self._lock:
            settled = self._changed.wait_for(lambda: not self.moving, self._deadline)
        if not settled:
            raise StoreUnavailable(f"writes are still waiting after {self._deadline:g} s.")

    def close(self) -> None:
        """Finish what waits, then stop; a thread that is stuck is left behind."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._deadline)
        for handed in list(self._waiting):
            handed.give_up()
