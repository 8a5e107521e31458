"""What the agent needs of a model: one stream of deltas for one request.

A model is given a window, made for its provider, and the tools it may call. It gives what it says
as it says it. It keeps nothing, stores nothing and never tries again: what goes wrong is raised as
a `ModelFailed`, which says whether trying again may help, and the loop decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol, TypeAlias

import msgspec

from holdfast.records import JSON, Provider, Raw, Usage, Window

StopReason: TypeAlias = Literal["stop", "calls", "length", "refused", "other"]
ToolSupport: TypeAlias = Literal["native", "lenient", "text", "none"]


class Said(msgspec.Struct, frozen=True):
    """More text."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """More reasoning; a signature holds for all of it since the last one."""

    text: str
    signature: str | None = None


class Called(msgspec.Struct, frozen=True):
    """A whole tool call. `arguments` is JSON, or the text as the model wrote it when it is none."""

    id: str
    name: str
    arguments: JSON


class Kept(msgspec.Struct, frozen=True):
    """Something of the provider's own that must go back to it as it is."""

    part: Raw


class Spent(msgspec.Struct, frozen=True):
    """What the reply has used so far; the last word counts."""

    usage: Usage


class Stopped(msgspec.Struct, frozen=True):
    """Why the model stopped. A stream without one was cut off."""

    reason: StopReason


Delta: TypeAlias = Said | Thought | Called | Kept | Spent | Stopped


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model is told of it; `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, JSON]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model.

    `continuing` says that the window ends with a reply that was cut off, and that the model is to
    go on with it.
    """

    window: Window
    tools: tuple[ToolSpec, ...] = ()
    max_output: int | None = None
    continuing: bool = False


class Model(Protocol):
    """A model that can be called.

    `name` is what is stored with its replies, `provider` whose windows it takes, `context` how many
    tokens fit into request and reply together, and `max_output` how many a reply has at most.
    """

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def provider(self) -> Provider:
        """Whose shape of messages it takes."""

    @property
    def context(self) -> int:
        """How many tokens a request and its reply may have together."""

    @property
    def max_output(self) -> int:
        """How many tokens a reply may have."""

    @property
    def tools(self) -> ToolSupport:
        """How it can be told of tools: as such (`native`), in words (`text`), or not at all.

        `lenient`: as such, but a reply that is nothing but a call, written as text, is one.
        """

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Call the model. Closing the iterator ends the call at once."""

    async def close(self) -> None:
        """Let go of connections and memory."""
