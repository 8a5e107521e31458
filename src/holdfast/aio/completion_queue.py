"""Submitting writes and awaiting them; one wake-up of the event loop serves many of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from holdfast.errors import OutcomeUnknown
from holdfast.storage.protocol import Backend, Pending, Verb

T = TypeVar("T")


class Desk:
    """The submitted writes that one event loop waits for.

    The loop is woken once for all writes that finish together. They finish in the order they were
    submitted, so the oldest is first in the queue and one timer covers the deadlines of all. The
    loop is not kept alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop_ref = ref(loop)
        self._finished: deque[Waiting] = deque()
        self._rung = False
        self._line: deque[Waiting] = deque()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop_ref()
        if loop is None:
            raise RuntimeError("the event loop was garbage-collected")
        return loop

    def wait_for(self, pending: Pending[T], timeout: float) -> asyncio.Future[T]:
        """Return a future for a write.

        After `timeout` seconds a write that has not started is withdrawn; one that has fails with
        `OutcomeUnknown` after as long again.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        waiting = Waiting(future, pending, self._loop.time() + timeout, timeout)
        self._line.append(waiting)
        if self._watch is None:
            self._watch = self._loop.call_later(timeout, self._look_for_late)
        pending.when_done(lambda: self._ring(waiting))
        return future

    def _ring(self, waiting: Waiting) -> None:
        """Report that a write is done; called in the writer's thread."""
        self._finished.append(waiting)
        if not self._rung:
            self._rung = True
            # In a closed loop no task waits for it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        # Cleared first: a write that finishes from now on schedules another wake-up.
        self._rung = False
        while self._finished:
            waiting = self._finished.popleft()
            if waiting.future.done():
                continue
            try:
                waiting.future.set_result(waiting.pending.outcome())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting task
                waiting.future.set_exception(error)
        while self._line and self._line[0].future.done():
            self._line.popleft()

    def _look_for_late(self) -> None:
        """Withdraw writes past their deadline; those that have started get as long again."""
        self._watch = None
        now = self._loop.time()
        for waiting in list(self._line):
            if waiting.deadline <= now and not waiting.pending.give_up():
                self._loop.call_later(waiting.timeout, _doubt, waiting)
        later = [waiting.deadline for waiting in self._line if waiting.deadline > now]
        if later:
            self._watch = self._loop.call_later(later[0] - now, self._look_for_late)


class Waiting:
    """A submitted write, its future, and when its deadline ends."""

    __slots__ = ("deadline", "future", "pending", "timeout")

    def __init__(
        self, future: asyncio.Future[Any], pending: Pending[Any], deadline: float, timeout: float
    ) -> None:
        self.future = future
        self.pending = pending
        self.deadline = deadline
        self.timeout = timeout


def _doubt(waiting: Waiting) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(
            OutcomeUnknown(
                f"the write did not finish within {2 * waiting.timeout:g} s and may still "
                "be stored; retry it with the same ids."
            )
        )


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = WeakKeyDictionary()


async def run_write(backend: Backend, operation: Verb[T]) -> T:
    """Submit an operation, await it and return its result; a cancelled task withdraws it."""
    loop = asyncio.get_running_loop()
    desk = _desks.get(loop)
    if desk is None:
        desk = _desks[loop] = Desk(loop)
    pending = backend.submit(operation)
    try:
        return await desk.wait_for(pending, backend.deadline)
    except asyncio.CancelledError:
        pending.give_up()
        raise


async def unhurried(work: Coroutine[Any, Any, T]) -> T:
    """Await clean-up work to its end, even if the task is cancelled again meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
