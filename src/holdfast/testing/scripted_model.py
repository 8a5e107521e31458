"""A scripted model: for tests of agents, without a provider.

It plays one script for each call, and keeps the requests it was called with. A script is a list of
deltas to yield, errors to raise, and pauses.

    model = ScriptedModel(say("Hello, ", "you"), call("read_file", {"path": "a.txt"}), say("Done"))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

import msgspec

from holdfast.agent.models.protocol import (
    Delta,
    ModelRequest,
    ReplyEnd,
    ReplyText,
    ReplyToolCall,
    ReplyUsage,
    ToolSupport,
)
from holdfast.errors import ModelFailed
from holdfast.values import JSON, Provider, Usage


class Pause(msgspec.Struct, frozen=True):
    """Wait for this many seconds."""

    seconds: float


class Hold(msgspec.Struct, frozen=True):
    """Wait until an event is set."""

    event: asyncio.Event


Step: TypeAlias = Delta | Pause | Hold | Exception
Script: TypeAlias = Sequence[Step]


def say(*texts: str, usage: Usage | None = None) -> list[Step]:
    """Return the script of a text reply."""
    spent = [] if usage is None else [ReplyUsage(usage)]
    return [*map(ReplyText, texts), *spent, ReplyEnd("stop")]


def call(name: str, arguments: JSON = None, *, id: str = "") -> list[Step]:
    """Return the script of a reply that calls one tool."""
    return calls((id, name, arguments))


def calls(*wanted: tuple[str, str, JSON]) -> list[Step]:
    """Return the script of a reply that calls several tools: id, name and arguments of each."""
    return [*(ReplyToolCall(*one) for one in wanted), ReplyEnd("calls")]


class ScriptedModel:
    """A model that plays its scripts, one for each call."""

    def __init__(
        self,
        *scripts: Script,
        name: str = "scripted",
        provider: Provider = "openai",
        context: int = 100_000,
        max_output: int = 4_000,
        tools: ToolSupport = "native",
    ) -> None:
        """Take the scripts in order; a call beyond the last raises `ModelFailed`."""
        self.name = name
        self.provider: Provider = provider
        self.context = context
        self.max_output = max_output
        self.tools: ToolSupport = tools
        self.requests: list[ModelRequest] = []
        self.closed = False
        self._scripts = list(scripts)

    def add(self, *scripts: Script) -> None:
        """Add scripts."""
        self._scripts.extend(scripts)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Play the next script."""
        self.requests.append(request)
        if not self._scripts:
            raise ModelFailed("no script is left for this call")
        for step in self._scripts.pop(0):
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Hold):
                await step.event.wait()
            else:
                yield step

    async def close(self) -> None:
        """Record that it was closed."""
        self.closed = True
