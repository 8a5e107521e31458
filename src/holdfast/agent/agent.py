"""The agent: a model, its tools and the loop between them.

`stream` runs a turn and yields its events; `run` drains `stream` and returns the result. An agent
keeps no history: it can be given any session, and several at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from holdfast.agent import summarizer
from holdfast.agent.config import AgentConfig
from holdfast.agent.events import (
    Event,
    ReplyStored,
    Summarized,
    ToolEnded,
    TurnEnded,
    UserSaid,
)
from holdfast.agent.loop import Result, run_turns
from holdfast.agent.models.protocol import Model
from holdfast.agent.prompt import current_prompt
from holdfast.agent.settings import Context, Limits, Prices, Retry
from holdfast.agent.stream import AgentStream
from holdfast.agent.token_budgets import TokenBudgets
from holdfast.agent.tools.function_tools import as_tool
from holdfast.agent.tools.protocol import Approver, Tool
from holdfast.aio.session import AsyncSession
from holdfast.errors import Invalid
from holdfast.values import Content, Message, Usage, Window

_log = logging.getLogger("holdfast")
SETTLE_TIMEOUT_S: Final = 5.0  # seconds that closing waits for titles and summaries
STOPPED_BY_USER: Final = "stopped by the user"


class AsyncAgent:
    """An agent for asyncio; close it, or use it in an `async with` block."""

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
        """Create an agent; functions with type hints become tools.

        `approve` is called before a tool that needs the user's consent. With `titles` the model
        names sessions that have no title, in the background.
        """
        self._config = AgentConfig(
            model=model,
            tools=_distinct([as_tool(tool) for tool in tools]),
            system=system,
            approve=approve,
            retry=retry or Retry(),
            context=context or Context(),
            limits=limits or Limits(),
            prices=prices,
            budgets=TokenBudgets(),
            titles=titles,
        )
        self._models = [model]
        self._streams: set[AgentStream] = set()
        self._background: dict[tuple[str, str], asyncio.Task[None]] = {}

    @property
    def model(self) -> Model:
        """The model that the next turn calls."""
        return self._config.model

    @model.setter
    def model(self, model: Model) -> None:
        self._config = msgspec.structs.replace(self._config, model=model)
        self._models.append(model)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The agent's tools."""
        return self._config.tools

    def stream(
        self,
        session: AsyncSession,
        prompt: Content | Message | None = None,
        *,
        run_id: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Answer a prompt, or queued input; yield events as they happen.

        A turn that cannot be finished ends as failed, and the error is raised. Leaving the loop
        ends the turn as cancelled. Either way what was said is kept.
        """
        running = AgentStream(session.id, self._streams)

        def run_in_background(kind: str, coroutine: Coroutine[Any, Any, Event | None]) -> None:
            self._start_background(session.id, kind, coroutine, running)

        def do() -> Coroutine[Any, Any, None]:
            return run_turns(
                self._config,
                session,
                prompt,
                run_id=run_id,
                emit=running.emit,
                run_in_background=run_in_background,
            )

        return running.events(do)

    async def run(
        self,
        session: AsyncSession,
        prompt: Content | Message | None = None,
        *,
        run_id: str | None = None,
    ) -> Result:
        """Answer a prompt, or queued input; return the result."""
        gathered = ResultBuilder()
        async with aclosing(self.stream(session, prompt, run_id=run_id)) as events:
            async for event in events:
                gathered.add(event)
        return gathered.result()

    def cancel(self, reason: str = STOPPED_BY_USER, *, session_id: str | None = None) -> bool:
        """Cancel all running turns, or that of one session; false if none is running.

        What was said is kept, and the stream ends without an error.
        """
        chosen = [stream for stream in self._streams if session_id in {None, stream.session_id}]
        cancelled = [stream for stream in chosen if stream.cancel(reason)]
        return bool(cancelled)

    async def settle(self, seconds: float = SETTLE_TIMEOUT_S) -> bool:
        """Wait for titles and summaries in the making; false if some are not finished in time."""
        tasks = list(self._background.values())
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=seconds)
        return not late

    async def window(self, session: AsyncSession) -> Window:
        """Return the window the model would be sent for a session now."""
        prompt = await current_prompt(self._config, session)
        return prompt.window

    async def summarize(self, session: AsyncSession) -> Summarized | None:
        """Summarise all but the newest messages now; `None` if there are too few.

        Agents do this automatically when the history fills most of the model's context.
        """
        budget = self._config.budgets.budget_for(self._config.model, self._config.context)
        keep = self._config.context.keep_recent
        return await summarizer.summarize(session, self._config.model, budget, keep)

    async def close(self, *, settle: float = SETTLE_TIMEOUT_S) -> None:
        """Cancel running turns, wait `settle` seconds for background tasks, and close the models.

        Models that were replaced are closed, too.
        """
        await asyncio.gather(*(r.stop("the agent was closed") for r in list(self._streams)))
        await self.settle(settle)
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for model in {id(model): model for model in self._models}.values():
            await model.close()

    def _start_background(
        self,
        session_id: str,
        kind: str,
        coroutine: Coroutine[Any, Any, Event | None],
        running: AgentStream,
    ) -> None:
        """Start a background task, unless one of this kind is running for the session."""
        slot = (session_id, kind)
        if slot in self._background:
            coroutine.close()
            return

        async def do() -> None:
            try:
                event = await coroutine
            except Exception as error:  # noqa: BLE001 - optional; the next turn tries again
                _log.info("no %s was made: %s", kind, type(error).__name__)
                return
            finally:
                self._background.pop(slot, None)
            if event is not None:
                await running.emit(event)

        self._background[slot] = asyncio.create_task(do())

    async def __aenter__(self) -> Self:
        """Use the agent within an `async with` block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the agent; after an error, without waiting for background tasks."""
        await self.close(settle=SETTLE_TIMEOUT_S if error is None else 0.0)


# For a stream that was cancelled before its turn opened, such as while the session was busy.
_NOT_STARTED: Final = TurnEnded(
    turn_id="",
    state="cancelled",
    rounds=0,
    usage=Usage(),
    cost=None,
    latency_ms=0,
    error="it was cancelled before it began",
)


class ResultBuilder:
    """Builds a `Result` from the events of a stream."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._texts: list[str] = []
        self._ends: list[TurnEnded] = []

    def add(self, event: Event) -> None:
        """Add an event."""
        match event:
            case UserSaid(message):
                self._messages.append(message)
                self._texts.clear()
            case ToolEnded():
                self._messages.append(event.message)
                self._texts.clear()
            case ReplyStored(message, superseded):
                self._messages.append(message)
                if not superseded:
                    self._texts.append(message.text)
            case TurnEnded():
                self._ends.append(event)
            case _:
                pass

    def result(self) -> Result:
        """Return the result so far: totals over all turns, state and error of the last one."""
        last = self._ends[-1] if self._ends else _NOT_STARTED
        costs = [end.cost for end in self._ends if end.cost is not None]
        return Result(
            text="".join(self._texts),
            state=last.state,
            turn_id=last.turn_id,
            messages=tuple(self._messages),
            usage=sum((end.usage for end in self._ends), Usage()),
            cost=sum(costs[1:], costs[0]) if costs else None,
            rounds=sum(end.rounds for end in self._ends),
            error=last.error,
        )


def _distinct(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise Invalid(f"two tools are named {tool.name!r}; tool names must be unique.")
        names.add(tool.name)
    return tuple(tools)
