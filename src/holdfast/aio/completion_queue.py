"""Submitting writes and awaiting them; one wake-up of the event loop serves many of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from holdfast.context import GuardedWriter
from holdfast.errors import Invalid
from holdfast.storage.protocol import Operation, PendingWrite
from holdfast.storage.write_queue import unfinished_error

T = TypeVar("T")


class CompletionQueue:
    """The submitted writes that one event loop waits for.

    The loop is woken once for all writes that finish together. They finish in the order they were
    submitted, so the oldest is first in the queue and one timer covers the deadlines of all. The
    loop is not kept alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop_ref = ref(loop)
        self._finished: deque[AwaitedWrite] = deque()
        self._wakeup_scheduled = False
        self._pending: deque[AwaitedWrite] = deque()
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop_ref()
        if loop is None:
            raise RuntimeError("the event loop was garbage-collected")
        return loop

    def wait_for(self, pending: PendingWrite[T], timeout: float) -> asyncio.Future[T]:
        """Return a future for a write.

        After `timeout` seconds a write that has not started is withdrawn; one that has fails with
        `OutcomeUnknown` after as long again.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        waiting = AwaitedWrite(future, pending, self._loop.time() + timeout, timeout)
        self._pending.append(waiting)
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_later(timeout, self._check_deadlines)
        pending.when_done(lambda: self._notify_done(waiting))
        return future

    def _notify_done(self, waiting: AwaitedWrite) -> None:
        """Report that a write is done; called in the writer's thread."""
        self._finished.append(waiting)
        if not self._wakeup_scheduled:
            self._wakeup_scheduled = True
            # In a closed loop no task waits for it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._resolve_finished)

    def _resolve_finished(self) -> None:
        # Cleared first: a write that finishes from now on schedules another wake-up.
        self._wakeup_scheduled = False
        while self._finished:
            waiting = self._finished.popleft()
            if waiting.future.done():
                continue
            try:
                waiting.future.set_result(waiting.pending.outcome())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting task
                waiting.future.set_exception(error)
        while self._pending and self._pending[0].future.done():
            self._pending.popleft()

    def _check_deadlines(self) -> None:
        """Withdraw writes past their deadline; those that have started get as long again."""
        self._deadline_timer = None
        now = self._loop.time()
        for waiting in list(self._pending):
            if waiting.deadline <= now and not waiting.pending.withdraw():
                self._loop.call_later(waiting.timeout, _fail_unknown, waiting)
        later = [waiting.deadline for waiting in self._pending if waiting.deadline > now]
        if later:
            self._deadline_timer = self._loop.call_later(later[0] - now, self._check_deadlines)


class AwaitedWrite:
    """A submitted write, its future, and when its deadline ends."""

    __slots__ = ("deadline", "future", "pending", "timeout")

    def __init__(
        self,
        future: asyncio.Future[Any],
        pending: PendingWrite[Any],
        deadline: float,
        timeout: float,
    ) -> None:
        self.future = future
        self.pending = pending
        self.deadline = deadline
        self.timeout = timeout


def _fail_unknown(waiting: AwaitedWrite) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(unfinished_error(waiting.timeout))


_completion_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, CompletionQueue] = (
    WeakKeyDictionary()
)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return asyncio's running loop; raise `Invalid` if there is none, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise Invalid(
            "the async API needs a running event loop of asyncio, and there is none here; nothing "
            "was opened or stored. Without asyncio use the sync API (holdfast.open), in a program "
            "on trio with trio.to_thread.run_sync."
        ) from error


async def run_write(writer: GuardedWriter, operation: Operation[T]) -> T:
    """Submit an operation, await it and return its result; a cancelled task withdraws it."""
    loop = running_loop()
    queue = _completion_queues.get(loop)
    if queue is None:
        queue = _completion_queues[loop] = CompletionQueue(loop)
    pending = writer.submit(operation)
    try:
        return await queue.wait_for(pending, writer.deadline)
    except asyncio.CancelledError:
        pending.withdraw()
        raise


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await clean-up work to its end, even if the task is cancelled again meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
