"""The tool protocol: a name, a schema, and a function.

A tool receives the model's arguments, checked against its schema, and returns an output. An
exception becomes an error result that the model reads; the turn goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from holdfast.agent.models.protocol import ToolSpec
from holdfast.aio.session import AsyncSession
from holdfast.values import JSON, File, Raw, Text, ToolCall


class Output(msgspec.Struct, frozen=True):
    """The output of a tool."""

    content: str | tuple[Text | File | Raw, ...]
    error: bool = False


class ToolContext(msgspec.Struct, frozen=True):
    """The context of a tool call: the session, and the call itself.

    It has no directory: one that is stored with a session may be a stranger's. Tools that need a
    directory are created with it.
    """

    session: AsyncSession
    call: ToolCall


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool.

    `run` takes arguments that fit `spec.parameters`. `asks` returns the question that the user must
    approve before the tool runs with these arguments, as a text or an `Ask`, or `None`. After
    `timeout` seconds the call fails.
    """

    spec: ToolSpec
    run: Callable[[ToolContext, dict[str, JSON]], Awaitable[Output]]
    asks: Callable[[ToolContext, dict[str, JSON]], str | Ask | None] | None = None
    timeout: float | None = 120.0

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        return self.spec.name


class Ask(msgspec.Struct, frozen=True):
    """A request for the user's approval of a call; `what` describes what it would do.

    A `sensitive` call reads a secret, or may decide what runs or is allowed later: no rule for
    writes and no earlier "always" covers it.
    """

    call: ToolCall
    what: str
    sensitive: bool = False


# Returns true to approve. A text denies the call, and is the reason given to the model.
Approver: TypeAlias = Callable[[Ask], Awaitable[bool | str]]
