"""A stream while it runs: the work is a task of its own, and its events wait in a short queue.

The work goes on no faster than its events are taken. Whoever stops taking them, by leaving the
loop or by being cancelled, cancels the work: the turn is ended, keeping all of it, before the
stream is closed. `cancel` ends the turn too, and the stream then ends by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, MutableSet
from typing import Any, Final

from holdfast.agent.events import Event
from holdfast.aio.handover import unhurried
from holdfast.errors import AgentError

_AHEAD: Final = 16


class Running:
    """One stream."""

    def __init__(self, session_id: str, running: MutableSet[Running]) -> None:
        """Belong to a session; the stream is in `running` while it runs."""
        self.session_id = session_id
        self._running = running
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._gone = False
        self._cancelled = False

    async def emit(self, event: Event) -> None:
        """Return an event to whoever takes them; to nobody, if they went away.

        It waits for room, unless the work is being ended: that waits for nobody.
        """
        while len(self._events) >= _AHEAD and not self._cancelled:
            self._room.clear()
            await self._room.wait()
        if not self._gone:
            self._events.append(event)
            self._news.set()

    def cancel(self, reason: str) -> bool:
        """End the turn; false if there is nothing to end any more."""
        if self._task is None or self._task.done() or self._cancelled:
            return False
        self._cancelled = True
        self._room.set()
        return self._task.cancel(reason)

    async def events(
        self, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> AsyncGenerator[Event, None]:
        """Do the work; give its events, and raise what it raises."""
        self._running.add(self)
        self._task = asyncio.create_task(work())
        self._task.add_done_callback(lambda _: self._news.set())
        try:
            while (event := await self._next(self._task)) is not None:
                yield event
            self._raise_outcome(self._task)
        finally:
            self._gone = True
            try:
                await self.stop("nobody took its events any more")
            finally:
                self._running.discard(self)

    async def _next(self, task: asyncio.Task[None]) -> Event | None:
        """Wait for an event; `None` when there are no more."""
        while not self._events:
            if task.done():
                return None
            self._news.clear()
            await self._news.wait()
        event = self._events.popleft()
        self._room.set()
        return event

    def _raise_outcome(self, task: asyncio.Task[None]) -> None:
        """Raise what the work raised; being cancelled on request is no error."""
        if not task.cancelled():
            task.result()
        elif not self._cancelled:
            raise AgentError("the turn was cancelled from within; what was said is kept.")

    async def stop(self, reason: str) -> None:
        """End the work, and wait for it: it stores what it has."""
        self.cancel(reason)
        if self._task is not None:
            await unhurried(_finished(self._task))


async def _finished(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # Looked at: whoever could have been told has gone away.
