"""Base class of models behind an API: the SDK client, one call, and adapting to the server.

The SDK is imported, and its client created, at the first call, in a thread: both are slow. A client
belongs to the event loop it was first used in; another loop gets its own.

Servers with a compatible API do not support every parameter of it. When one rejects a request for
an optional parameter, the model remembers that and repeats the call at once without it: this is not
a failed attempt, and happens at most once for each parameter.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from types import ModuleType
from typing import Final, Protocol
from urllib.parse import SplitResult, urlsplit

from holdfast.agent.models.context_limits import Size, size_of
from holdfast.agent.models.errors import Complaint, complaint_of, failure
from holdfast.agent.models.protocol import Delta, Request, StopReason, ToolSupport
from holdfast.errors import BadConfig, ModelFailed, ModelMissing
from holdfast.values import JSON

CONNECT: Final = 10.0  # Seconds. The loop decides how long a stream may be silent.
_AFTERWARDS: Final = 5.0  # Seconds that a server gets to close a stream that is complete.
# Reasoning counts as output: with less than this, some models never get to their reply.
_LEAST_OUTPUT: Final = 4_096
_AT_HOME: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal"})  # noqa: S104 (nothing is bound to it)


class Stream(Protocol):
    """The stream of events of both SDKs."""

    async def __anext__(self) -> object:
        """Return the next event."""

    async def close(self) -> None:
        """Close the connection."""


class Client(Protocol):
    """The part of both SDKs' clients that is used here."""

    async def close(self) -> None:
        """Close its connections."""


class Reading(Protocol):
    """Parses the events of one reply into deltas; `has_output`: there was text or a call."""

    said: bool

    @property
    def reason(self) -> StopReason | None:
        """Why the reply ended; `None` until it is complete."""

    def take(self, event: object) -> list[Delta]:
        """Return the deltas of an event."""

    def end(self) -> list[Delta]:
        """Return the final deltas."""


class Hosted(ABC):
    """A model behind an API, called through its SDK."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None,
        api_key: str | None,
        context: int | None,
        max_output: int | None,
        tools: ToolSupport,
        extra: Mapping[str, JSON] | None,
        client: Client | None,
        package: str,
        address: str,
    ) -> None:
        """Store the configuration; the SDK is neither imported nor called before the first call."""
        if importlib.util.find_spec(package) is None:
            raise ModelMissing(
                f"{name} needs the package {package}: run pip install 'holdfast[{package}]'"
            )
        self._url = _checked_url(base_url or address)
        self._key = _checked_key(api_key)
        if client is None and base_url is None and not self._key:
            raise ModelMissing(f"{name} needs an API key: pass api_key")
        size = size_of(name, is_local=self._url.hostname in _AT_HOME)
        self._name = name
        self._size = Size(
            context or size.context, max_output or min(size.output, context or size.output)
        )
        self._tools: ToolSupport = tools
        self._package = package
        # The provider's own server, not another one with a compatible API.
        self._original = self._url.hostname == urlsplit(address).hostname
        self._given = client
        self._made: tuple[asyncio.AbstractEventLoop, Client] | None = None
        self._refused: set[str] = set()
        self.extra: Mapping[str, JSON] = extra or {}

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def context(self) -> int:
        """The most tokens that a request and its reply may have together."""
        return self._size.context

    @property
    def max_output(self) -> int:
        """The most tokens that a reply may have."""
        return self._size.output

    @property
    def tools(self) -> ToolSupport:
        """How tools are offered to it."""
        return self._tools

    @property
    def where(self) -> str:
        """The model and its server, for error messages; without credentials in the URL."""
        port = f":{self._url.port}" if self._url.port else ""
        return f"{self._name} at {self._url.hostname}{port}"

    async def close(self) -> None:
        """Close the connections of the model's own client; a given one stays open."""
        own, self._made = self._made, None
        if own is not None and own[0] is asyncio.get_running_loop():
            await own[1].close()

    # ------------------------------------------------------------------------------------- one call

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Call the model. Closing the iterator closes the connection at once."""
        events = await self._begin(request)
        reading = self._reading()
        try:
            while (event := await self._next(events, reading)) is not None:
                for delta in reading.take(event):
                    yield delta
        finally:
            await events.close()
        if reading.reason == "refused" and not reading.said:
            raise ModelFailed(f"{self.where} refused to answer")
        for delta in reading.end():
            yield delta

    async def _begin(self, request: Request) -> Stream:
        """Start the call; repeat it without each parameter that the server rejects."""
        client = await self._client()
        while True:
            try:
                return await self._call(client, self._body(request))
            except self._errors() as error:
                complaint = complaint_of(error)
                if complaint is None or not self._learns(complaint, request):
                    raise self._failure(error) from error

    async def _next(self, events: Stream, reading: Reading) -> object | None:
        """Return the next event, or `None` at the end."""
        try:
            if reading.reason is None:
                return await anext(events)
            return await asyncio.wait_for(anext(events), _AFTERWARDS)
        except StopAsyncIteration:
            return None
        except self._errors() as error:
            if (
                reading.reason is not None
            ):  # The reply is complete; only the stream's end is missing.
                return None
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ModelFailed:
        return failure(error, self.where, secret=self._key)

    def output_for(self, request: Request) -> int:
        """Return how many tokens the reply may have."""
        least = min(_LEAST_OUTPUT, self.max_output, max(1, self.context // 4))
        return max(min(request.max_output or self.max_output, self.max_output), least)

    # ------------------------------------------------------------------------------------- adapting

    def refuses(self, parameter: str) -> bool:
        """True if the server has rejected a parameter."""
        return parameter in self._refused

    def _learns(self, complaint: Complaint, request: Request) -> bool:
        """Adapt to a rejection; return whether to repeat the call at once."""
        if complaint.retryable or complaint.is_too_long:
            return False
        if (limit := complaint.output_limit) is not None and limit < self.output_for(request):
            self._size = Size(self._size.context, limit)
            return True
        if request.tools and complaint.refuses_tools:
            # The window must be built again, with the tools described in the prompt.
            self._tools = "text"
            raise ModelFailed(
                f"{self.where} does not support tool calling",
                status=complaint.status,
                retryable=True,
                retry_after=0.0,
            )
        return self._learn_word(complaint)

    def _learn_word(self, complaint: Complaint) -> bool:
        for parameter in self._words():
            if parameter in complaint.text and parameter not in self._refused:
                self._refused.add(parameter)
                return True
        return False

    def _words(self) -> tuple[str, ...]:
        """Return the parameters that a request can do without."""
        return ()

    # -------------------------------------------------------------------------------------- the SDK

    async def _client(self) -> Client:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            client = await asyncio.to_thread(self._connect)
            if self._made is not None and self._made[0] is loop:  # Another call created one first.
                await client.close()
            else:
                self._made = (loop, client)
        return self._made[1]

    def _sdk(self) -> ModuleType:
        return importlib.import_module(self._package)

    def _errors(self) -> tuple[type[Exception], ...]:
        """Return what a call may raise: errors of the SDK, its transport, and JSON parsing."""
        sdk, transport = self._sdk(), importlib.import_module("httpx2")
        return (sdk.APIError, transport.HTTPError, transport.InvalidURL, TimeoutError, ValueError)

    @abstractmethod
    def _connect(self) -> Client:
        """Create a client."""

    @abstractmethod
    def _body(self, request: Request) -> dict[str, JSON]:
        """Return the body of the request."""

    @abstractmethod
    async def _call(self, client: Client, body: dict[str, JSON]) -> Stream:
        """Send the request."""

    @abstractmethod
    def _reading(self) -> Reading:
        """Return a parser for one reply."""


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # Such as a port above 65535.
        fits = False
    if not fits:  # The URL is not repeated: it may contain a password.
        raise BadConfig("base_url: expected a URL such as http://localhost:11434/v1")
    return parts


def _checked_key(key: str | None) -> str:
    """Return a key that an HTTP header can carry: otherwise an error would quote the key."""
    trimmed = (key or "").strip()
    if not trimmed.isascii() or not trimmed.isprintable() or " " in trimmed:
        raise ModelMissing(
            "the API key contains invalid characters; check for whitespace or a truncated paste"
        )
    return trimmed
