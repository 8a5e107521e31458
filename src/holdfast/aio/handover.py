"""Handing writes over to the writer and awaiting them, with one wake-up for many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from holdfast.backends.base import Backend, Pending, Verb
from holdfast.errors import OutcomeUnknown

T = TypeVar("T")


class Desk:
    """The writes that one event loop waits for.

    It is woken once for all that finish together. Writes finish in the order they were handed
    over, so the oldest is the first in line, and one timer watches over all of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this loop, without keeping it alive."""
        self._loop_ref = ref(loop)
        self._finished: deque[Waiting] = deque()
        self._rung = False
        self._line: deque[Waiting] = deque()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop_ref()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        return loop

    def wait_for(self, pending: Pending[T], patience: float) -> asyncio.Future[T]:
        """Return a future for a write; one that is late is withdrawn, or said to be in doubt."""
        future: asyncio.Future[T] = self._loop.create_future()
        waiting = Waiting(future, pending, self._loop.time() + patience, patience)
        self._line.append(waiting)
        if self._watch is None:
            self._watch = self._loop.call_later(patience, self._look_for_late)
        pending.when_done(lambda: self._ring(waiting))
        return future

    def _ring(self, waiting: Waiting) -> None:
        """Say that a write is done; called from the writer's thread."""
        self._finished.append(waiting)
        if not self._rung:
            self._rung = True
            # Nobody waits any more in a loop that is closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        # Cleared first: whoever finishes from now on rings again.
        self._rung = False
        while self._finished:
            waiting = self._finished.popleft()
            if waiting.future.done():
                continue
            try:
                waiting.future.set_result(waiting.pending.outcome())
            except BaseException as error:  # noqa: BLE001 - it is the waiting task's
                waiting.future.set_exception(error)
        while self._line and self._line[0].future.done():
            self._line.popleft()

    def _look_for_late(self) -> None:
        """Withdraw what is late; what has begun gets as long again."""
        self._watch = None
        now = self._loop.time()
        for waiting in list(self._line):
            if waiting.late_at <= now and not waiting.pending.give_up():
                self._loop.call_later(waiting.patience, _doubt, waiting)
        later = [waiting.late_at for waiting in self._line if waiting.late_at > now]
        if later:
            self._watch = self._loop.call_later(later[0] - now, self._look_for_late)


class Waiting:
    """A write, and the future that waits for it."""

    __slots__ = ("future", "late_at", "patience", "pending")

    def __init__(
        self, future: asyncio.Future[Any], pending: Pending[Any], late_at: float, patience: float
    ) -> None:
        """Wait until `late_at`."""
        self.future = future
        self.pending = pending
        self.late_at = late_at
        self.patience = patience


def _doubt(waiting: Waiting) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(
            OutcomeUnknown(
                f"the write did not finish within {2 * waiting.patience:g} s and may still do; "
                "retry it with the same ids."
            )
        )


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = WeakKeyDictionary()


async def run_write(backend: Backend, verb: Verb[T]) -> T:
    """Hand a write over and await it."""
    loop = asyncio.get_running_loop()
    desk = _desks.get(loop)
    if desk is None:
        desk = _desks[loop] = Desk(loop)
    pending = backend.submit(verb)
    try:
        return await desk.wait_for(pending, backend.deadline)
    except asyncio.CancelledError:
        pending.give_up()
        raise


async def unhurried(work: Coroutine[Any, Any, T]) -> T:
    """Finish cleaning up, even if the task is cancelled once more meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
