"""A question that a bot asks an agent of PraisonAI, with what comes with it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec
from praisonaiagents.agent.interrupt import InterruptController


class ToolFilter(Protocol):
    """Which tools an agent has in a run."""

    def filter_tools(self, tools: list[Any]) -> list[Any]:
        """Return the tools that are allowed."""


class BotRun(msgspec.Struct, frozen=True):
    """A question to an agent: in which session, and with what besides its text."""

    key: str
    agent: Any
    stream_callback: Callable[[object], object] | None
    tool_policy: ToolFilter | None
    attachments: list[str] | None

    def ask(
        self, prompt: str, controller: InterruptController, loop: asyncio.AbstractEventLoop
    ) -> object:
        """Return what the agent replies; its events go to the callback, on the loop if async."""
        known = inspect.signature(self.agent.chat).parameters
        options = {"cancel_token": controller, "attachments": self.attachments}
        if self.stream_callback is not None:
            options["stream"] = True
        given = {name: value for name, value in options.items() if name in known and value}
        emitter = getattr(self.agent, "stream_emitter", None)
        if self.stream_callback is None or emitter is None:
            return self.agent.chat(prompt, **given)
        callback = partial(_forward, self.stream_callback, loop)
        emitter.add_callback(callback)
        try:
            return self.agent.chat(prompt, **given)
        finally:
            emitter.remove_callback(callback)


def _forward(
    callback: Callable[[object], object], loop: asyncio.AbstractEventLoop, event: object
) -> None:
    result = callback(event)
    if inspect.iscoroutine(result):
        asyncio.run_coroutine_threadsafe(result, loop)
