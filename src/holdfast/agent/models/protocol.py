"""The model protocol: one request gives one stream of deltas.

A model receives a window, built for its provider, and the tools it may call, and streams its reply.
It is stateless, stores nothing and never retries: a failure is raised as `ModelFailed`, which says
whether a retry may help, and the loop decides.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from holdfast.errors import ModelFailed
from holdfast.values import JSON, Provider, Raw, Usage, Window

MAX_REPLY_CHARS: Final = 16 * 1024 * 1024  # Of text, thinking and arguments: 4 million tokens.
MAX_REPLY_PARTS: Final = 4_096  # Tool calls, or blocks.
MAX_CALL_NAME_CHARS: Final = 256  # A longer name is cut: it names no tool.

StopReason: TypeAlias = Literal["stop", "calls", "length", "refused", "other"]
ToolSupport: TypeAlias = Literal["native", "lenient", "text", "none"]


class ReplyText(msgspec.Struct, frozen=True):
    """The next piece of text."""

    text: str


class ReplyThinking(msgspec.Struct, frozen=True):
    """The next piece of reasoning; a signature covers everything since the previous one."""

    text: str
    signature: str | None = None


class ReplyToolCall(msgspec.Struct, frozen=True):
    """A complete tool call. `arguments` is JSON, or the model's text if that is not valid JSON."""

    id: str
    name: str
    arguments: JSON


class ReplyRaw(msgspec.Struct, frozen=True):
    """A piece of the provider's own that must be sent back to it unchanged."""

    part: Raw


class ReplyUsage(msgspec.Struct, frozen=True):
    """The reply's usage so far; the last one counts."""

    usage: Usage


class ReplyEnd(msgspec.Struct, frozen=True):
    """Why the reply ended. A stream without one was cut off."""

    reason: StopReason


Delta: TypeAlias = ReplyText | ReplyThinking | ReplyToolCall | ReplyRaw | ReplyUsage | ReplyEnd


class ReplySize:
    """The size of one reply so far; `ModelFailed` above what any model sends."""

    def __init__(self) -> None:
        self._chars = 0
        self._parts = 0

    def add_text(self, text: str) -> None:
        """Count text, thinking or arguments."""
        self._add_chars(len(text))

    def add_json(self, value: JSON) -> None:
        """Count what is kept for the provider as it came."""
        self._add_chars(len(json.dumps(value)))

    def _add_chars(self, count: int) -> None:
        self._chars += count
        if self._chars > MAX_REPLY_CHARS:
            raise ModelFailed(f"the reply exceeds the limit of {MAX_REPLY_CHARS} characters")

    def add_part(self) -> None:
        """Count a tool call or a block."""
        self._parts += 1
        if self._parts > MAX_REPLY_PARTS:
            raise ModelFailed(f"the reply exceeds the limit of {MAX_REPLY_PARTS} parts")


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as described to a model; `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, JSON]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model.

    `continuing`: the window ends with a cut-off reply, which the model is to continue.
    """

    window: Window
    tools: tuple[ToolSpec, ...] = ()
    max_output: int | None = None
    continuing: bool = False


class Model(Protocol):
    """A model that can be called.

    `name` is stored with its replies, `provider` is the format of its windows, `context` the most
    tokens that request and reply may have together, `max_output` the most tokens of a reply.
    """

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def provider(self) -> Provider:
        """The provider whose message format it takes."""

    @property
    def context(self) -> int:
        """The most tokens that a request and its reply may have together."""

    @property
    def max_output(self) -> int:
        """The most tokens that a reply may have."""

    @property
    def tools(self) -> ToolSupport:
        """How tools are offered: by the API (`native`), described in the prompt (`text`), or not.

        `lenient`: by the API, but a reply whose text is nothing but a call counts as a call, too.
        """

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Call the model. Closing the iterator ends the call at once."""

    async def close(self) -> None:
        """Close connections and free memory."""
