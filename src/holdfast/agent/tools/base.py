"""What a tool is to the agent: a name, a schema, and a function that never raises for the model.

A tool is given its arguments as the model wrote them, checked against its schema, and gives an
output. What it raises becomes an error result: the model is told, and nothing else breaks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from holdfast.agent.models.base import ToolSpec
from holdfast.aio.session import AsyncSession
from holdfast.records import JSON, File, Raw, Text, ToolCall


class Output(msgspec.Struct, frozen=True):
    """What a tool answers."""

    content: str | tuple[Text | File | Raw, ...]
    error: bool = False


class ToolContext(msgspec.Struct, frozen=True):
    """What a tool may know of the call it serves: the session, where it works, and the call."""

    session: AsyncSession
    cwd: str
    call: ToolCall


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool.

    `run` takes arguments that fit `spec.parameters`. `asks` gives what the user must be asked
    before these arguments may be used, or `None`. After `timeout` seconds the tool is given up.
    """

    spec: ToolSpec
    run: Callable[[ToolContext, dict[str, JSON]], Awaitable[Output]]
    asks: Callable[[ToolContext, dict[str, JSON]], str | None] | None = None
    timeout: float | None = 120.0

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name


class Ask(msgspec.Struct, frozen=True):
    """A question to the user: may this call be made? `what` says what it would do."""

    call: ToolCall
    what: str


# True: go on. A text: why not, for the model to read.
Approver: TypeAlias = Callable[[Ask], Awaitable[bool | str]]
