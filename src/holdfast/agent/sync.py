"""The agent for programs without asyncio: an `AsyncAgent` in a thread of its own.

Each method submits a coroutine to that thread's event loop and waits for it. Ctrl-C while waiting
first ends the turn as cancelled, keeping what was said, and is then raised.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from holdfast.agent.agent import SETTLE_TIMEOUT_S, STOPPED_BY_USER, AsyncAgent, ResultBuilder
from holdfast.agent.events import Event, Summarized
from holdfast.agent.loop import Result
from holdfast.agent.models.protocol import Model
from holdfast.agent.settings import Context, Limits, Prices, Retry
from holdfast.agent.tools.protocol import Approver, Tool
from holdfast.aio.session import AsyncSession
from holdfast.errors import Invalid
from holdfast.session import Session
from holdfast.values import Content, Message, Window

T = TypeVar("T")
_CLOSED: Final = "this agent is closed; create another one."


class Agent:
    """An agent for programs without asyncio; close it, or use it in a `with` block."""

    def __init__(
        self,
        model: Model,
        *,
        tools: Iterable[Tool | Callable[..., object]] = (),
        system: str | None = None,
        approve: Approver | None = None,
        retry: Retry | None = None,
        context: Context | None = None,
        limits: Limits | None = None,
        prices: Prices | None = None,
        titles: bool = True,
    ) -> None:
        """Create an agent; functions with type hints become tools."""
        self._agent = AsyncAgent(
            model,
            tools=tools,
            system=system,
            approve=approve,
            retry=retry,
            context=context,
            limits=limits,
            prices=prices,
            titles=titles,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._closed = False
        self._pid = 0
        self._streams: set[_SyncStream] = set()
        self._calls: set[_LoopCall[Any]] = set()

    @property
    def model(self) -> Model:
        """The model that the next turn calls."""
        return self._agent.model

    @model.setter
    def model(self, model: Model) -> None:
        self._agent.model = model

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The agent's tools."""
        return self._agent.tools

    def stream(
        self,
        session: Session,
        prompt: Content | Message | None = None,
        *,
        run_id: str | None = None,
    ) -> Generator[Event, None, None]:
        """Answer a prompt, or queued input; yield events as they happen."""
        if self._closed:
            raise Invalid(_CLOSED)
        stream = _SyncStream(self._agent.stream(AsyncSession(session), prompt, run_id=run_id))
        self._streams.add(stream)
        try:
            while (event := self._next_event(stream)) is not None:
                yield event
        finally:
            self._streams.discard(stream)
            self._close_stream(stream)

    def run(
        self,
        session: Session,
        prompt: Content | Message | None = None,
        *,
        run_id: str | None = None,
    ) -> Result:
        """Answer a prompt, or queued input; return the result."""
        gathered = ResultBuilder()
        for event in self.stream(session, prompt, run_id=run_id):
            gathered.add(event)
        return gathered.result()

    def cancel(self, reason: str = STOPPED_BY_USER, *, session_id: str | None = None) -> bool:
        """Cancel all running turns, or that of one session; from any thread."""

        async def cancel() -> bool:
            return self._agent.cancel(reason, session_id=session_id)

        if threading.current_thread() is self._thread:
            return self._agent.cancel(reason, session_id=session_id)
        if self._loop is None or self._closed:
            return False
        return self._run_in_loop(cancel())

    def settle(self, seconds: float = SETTLE_TIMEOUT_S) -> bool:
        """Wait for titles and summaries in the making; false if some are not finished in time."""
        return self._run_in_loop(self._agent.settle(seconds))

    def window(self, session: Session) -> Window:
        """Return the window the model would be sent for a session now."""
        return self._run_in_loop(self._agent.window(AsyncSession(session)))

    def summarize(self, session: Session) -> Summarized | None:
        """Summarise all but the newest messages now; `None` if there are too few."""
        return self._run_in_loop(self._agent.summarize(AsyncSession(session)))

    def close(self, *, settle: float = SETTLE_TIMEOUT_S) -> None:
        """Cancel running turns, wait `settle` seconds for background tasks, and close the models.

        A stream that another thread is reading yields its remaining events and ends.
        """
        if self._closed:
            return
        self._run_in_loop(self._agent.close(settle=settle))
        self._run_in_loop(self._drain())
        self._closed = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        for call in list(self._calls):
            call.abort()

    async def _drain(self) -> None:
        for stream in list(self._streams):
            await stream.drain()

    def _next_event(self, stream: _SyncStream) -> Event | None:
        """Return the next event; after the agent was closed, the next buffered one."""
        if not self._closed:
            try:
                return self._run_in_loop(stream.next())
            except (Invalid, asyncio.CancelledError):
                if not self._closed:
                    raise
        return stream.remaining.popleft() if stream.remaining else None

    def _close_stream(self, stream: _SyncStream) -> None:
        """Close a stream from any thread; a closed agent has closed it already."""
        if self._closed or self._loop is None:
            return
        if threading.current_thread() is self._thread:  # Garbage-collected in that thread.
            self._loop.create_task(stream.close())
            return
        with suppress(Invalid):  # The agent is being closed.
            self._run_in_loop(stream.close())

    def _run_in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the agent's loop; return its result."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise Invalid(
                "this call would wait for itself: use AsyncAgent in the agent's own tools."
            )
        call = _LoopCall(coroutine)
        try:
            loop = self._ensure_loop()
        except Invalid:
            coroutine.close()
            raise
        self._calls.add(call)
        try:
            loop.call_soon_threadsafe(call.start)
            return call.outcome.result()
        except KeyboardInterrupt:
            # Only after the call has ended: it stores what was said.
            loop.call_soon_threadsafe(call.cancel)
            concurrent.futures.wait([call.outcome])
            raise
        finally:
            self._calls.discard(call)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise Invalid(_CLOSED)
        # Without the lock if possible: a signal handler may run while it is held.
        if self._loop is not None and self._pid == os.getpid():
            return self._loop
        with self._start_lock:
            if self._loop is None or self._pid != os.getpid():
                self._pid = os.getpid()  # A forked child does not inherit the thread.
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="holdfast-agent", daemon=True
                )
                self._thread.start()
            return self._loop

    def __enter__(self) -> Self:
        """Use the agent within a `with` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the agent; after an error, without waiting for background tasks."""
        self.close(settle=SETTLE_TIMEOUT_S if error is None else 0.0)


class _LoopCall(Generic[T]):
    """A coroutine in the agent's loop, and the future another thread waits on."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._cancel_requested = False
        self._task: asyncio.Task[T] | None = None
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def start(self) -> None:
        if self._task is not None:
            return
        self._task = asyncio.ensure_future(self._coroutine)
        self._task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        self._cancel_requested = True
        if self._task is None:  # Interrupted before `start` was scheduled.
            self.start()
        assert self._task is not None  # noqa: S101 - it has begun
        self._task.cancel()

    def abort(self) -> None:
        """Fail the waiting thread: the loop has ended."""
        if not self.outcome.done():
            self._coroutine.close()
            self.outcome.set_exception(Invalid(_CLOSED))

    def _on_done(self, task: asyncio.Task[T]) -> None:
        if self.outcome.done():
            return
        if task.cancelled():
            self.outcome.set_exception(
                asyncio.CancelledError() if self._cancel_requested else Invalid(_CLOSED)
            )
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class _SyncStream:
    """A stream that is read from another thread, one event at a time."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._lock = asyncio.Lock()
        self.remaining: deque[Event] = deque()

    async def next(self) -> Event | None:
        async with self._lock:
            return self.remaining.popleft() if self.remaining else await anext(self._events, None)

    async def drain(self) -> None:
        """Buffer the remaining events of a stream whose turn has ended."""
        async with self._lock:
            self.remaining.extend([event async for event in self._events])

    async def close(self) -> None:
        """Close the stream, after a reader that is being cancelled has left it."""
        async with self._lock:
            await self._events.aclose()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    threads = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="holdfast-agent-read")
    loop.set_default_executor(threads)
    try:
        loop.run_forever()
        # Threads that still wait for a call get an error.
        unfinished = asyncio.all_tasks(loop)
        for task in unfinished:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        # Without waiting for running threads: one may wait for a user's answer.
        threads.shutdown(wait=False, cancel_futures=True)
        loop.close()
