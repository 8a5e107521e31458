"""An event stream: the loop runs as a task, and its events pass through one bounded queue.

A full queue pauses the loop until the consumer reads on. A consumer that stops reading, by leaving
its loop or by being cancelled, cancels the turn, which is ended and stored before the stream is
closed. `cancel` ends the turn as well; the stream then ends without an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, MutableSet
from typing import Any, Final

from holdfast.agent.events import Event
from holdfast.aio.completion_queue import shielded
from holdfast.errors import AgentError

_MAX_QUEUED_EVENTS: Final = 16


class AgentStream:
    """The events of one `stream` call, and the task that produces them."""

    def __init__(self, session_id: str, running: MutableSet[AgentStream]) -> None:
        """The stream is a member of `running` while it runs."""
        self.session_id = session_id
        self._streams = running
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._consumer_gone = False
        self._cancelled = False

    async def emit(self, event: Event) -> None:
        """Queue an event for the consumer; discard it if the consumer is gone.

        Wait while the queue is full, unless the turn is being cancelled.
        """
        while len(self._events) >= _MAX_QUEUED_EVENTS and not self._cancelled:
            self._has_room.clear()
            await self._has_room.wait()
        if self._cancelled:
            await asyncio.sleep(0)  # The turn gets to cancel the task that reads the model's reply.
        if not self._consumer_gone:
            self._events.append(event)
            self._changed.set()

    def cancel(self, reason: str) -> bool:
        """Cancel the turn; false if it has ended or is being cancelled already."""
        if self._task is None or self._task.done() or self._cancelled:
            return False
        self._cancelled = True
        self._has_room.set()
        return self._task.cancel(reason)

    async def events(
        self, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> AsyncGenerator[Event, None]:
        """Run `work` as a task; yield its events, and raise what it raises."""
        self._streams.add(self)
        self._task = asyncio.create_task(work())
        self._task.add_done_callback(lambda _: self._changed.set())
        try:
            while (event := await self._next(self._task)) is not None:
                yield event
            self._raise_outcome(self._task)
        finally:
            self._consumer_gone = True
            try:
                await self.stop("the consumer stopped reading events")
            finally:
                self._streams.discard(self)

    async def _next(self, task: asyncio.Task[None]) -> Event | None:
        """Return the next event; `None` when the task has ended and the queue is empty."""
        while not self._events:
            if task.done():
                return None
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        self._has_room.set()
        return event

    def _raise_outcome(self, task: asyncio.Task[None]) -> None:
        """Raise what the task raised; a requested cancellation is not an error."""
        if not task.cancelled():
            task.result()
        elif not self._cancelled:
            raise AgentError("the turn was cancelled by its own code; what was said is kept.")

    async def stop(self, reason: str) -> None:
        """Cancel the turn and wait until it is stored."""
        self.cancel(reason)
        if self._task is not None:
            await shielded(_finished(self._task))


async def _finished(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # Retrieved, so that asyncio does not log it: the consumer is gone.
