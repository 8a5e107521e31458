"""A question that a bot asks an agent of PraisonAI, with what the agent is lent for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
from praisonaiagents.agent.interrupt import InterruptController

from holdfast.adapters.praisonai.session_message import Item


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
        self,
        prompt: str,
        history: list[Item],
        controller: InterruptController,
        loop: asyncio.AbstractEventLoop,
    ) -> tuple[object, list[Item]]:
        """Return what the agent replies, and its history then, which begins with the one given."""
        with self._lent(history):
            reply = self._reply(prompt, controller, loop)
            return reply, [*self.agent.chat_history]

    @contextmanager
    def _lent(self, history: list[Item]) -> Iterator[None]:
        """Set the history and tools of the agent, which others may share, for one run."""
        agent = self.agent
        own, tools = agent.chat_history, getattr(agent, "tools", None)
        policy = self.tool_policy if tools else None
        allowed = policy.filter_tools([*(tools or ())]) if policy is not None else tools
        agent.chat_history = [*history]
        if policy is not None:
            agent.tools = allowed
        try:
            yield
        finally:
            agent.chat_history = own
            if policy is not None:
                agent.tools = tools

    def _reply(
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
