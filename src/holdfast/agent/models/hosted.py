"""What models in other people's keeping have in common: a client, a call, and lessons.

The SDK is imported, and its client made, when the first call is made, beside the event loop:
neither is quick. A client belongs to the event loop it was first used in; another loop gets
another one.

Servers that speak a provider's language do not all know every word of it. When one refuses a
request for a word it does not know, the model learns that, and calls again at once without it:
that is no failed attempt, and can happen only once for every word.
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

from holdfast.agent.models.base import Delta, Request, StopReason, ToolSupport
from holdfast.agent.models.failures import Complaint, complaint_of, failure
from holdfast.agent.models.sizes import Size, size_of
from holdfast.errors import BadConfig, ModelFailed, ModelMissing
from holdfast.records import JSON

CONNECT: Final = 10.0  # Seconds; how long a stream may be silent is the loop's to say.
_AFTERWARDS: Final = 5.0  # Seconds that a server gets to close a reply that is whole.
# Models that think first count that too: with less than this, some never come to speak.
_LEAST_OUTPUT: Final = 4_096
_AT_HOME: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal"})  # noqa: S104 (nothing is bound to it)


class Stream(Protocol):
    """The SDKs' stream of events."""

    async def __anext__(self) -> object:
        """Return the next event."""

    async def close(self) -> None:
        """Hang up."""


class Client(Protocol):
    """The SDKs' client, as far as it is the same."""

    async def close(self) -> None:
        """Let go of its connections."""


class Reading(Protocol):
    """Makes deltas of a stream's events."""

    said: bool

    @property
    def reason(self) -> StopReason | None:
        """Why the reply ended; `None` while it is not whole."""

    def take(self, event: object) -> list[Delta]:
        """Read an event."""

    def end(self) -> list[Delta]:
        """End the reply."""


class Hosted(ABC):
    """A model behind an SDK."""

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
        """Prepare; nothing is called, or even imported, before the first reply."""
        if importlib.util.find_spec(package) is None:
            raise ModelMissing(f"{name} needs a package: pip install 'holdfast[{package}]'")
        self._url = _checked_url(base_url or address)
        self._key = _checked_key(api_key)
        if client is None and base_url is None and not self._key:
            raise ModelMissing(f"{name} needs a key: give one as api_key")
        size = size_of(name, at_home=self._url.hostname in _AT_HOME)
        self._name = name
        self._size = Size(
            context or size.context, max_output or min(size.output, context or size.output)
        )
        self._tools: ToolSupport = tools
        self._package = package
        # Whether this is the provider itself, not somebody who speaks its language.
        self._original = self._url.hostname == urlsplit(address).hostname
        self._given = client
        self._made: tuple[asyncio.AbstractEventLoop, Client] | None = None
        self._refused: set[str] = set()
        self.extra: Mapping[str, JSON] = extra or {}

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def context(self) -> int:
        """How many tokens a request and its reply may have together."""
        return self._size.context

    @property
    def max_output(self) -> int:
        """How many tokens a reply may have."""
        return self._size.output

    @property
    def tools(self) -> ToolSupport:
        """How it can be told of tools."""
        return self._tools

    @property
    def where(self) -> str:
        """Who is called, for errors: without what an address may hold of secrets."""
        port = f":{self._url.port}" if self._url.port else ""
        return f"{self._name} at {self._url.hostname}{port}"

    async def close(self) -> None:
        """Let go of connections; a client that was given is not ours to close."""
        made, self._made = self._made, None
        if made is not None and made[0] is asyncio.get_running_loop():
            await made[1].close()

    # ------------------------------------------------------------------------------------- one call

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Call the model. Closing the iterator hangs up at once."""
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
        """Call, once more for everything that the server turns out not to know."""
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
            if reading.reason is not None:  # The reply is whole; only the farewell is missing.
                return None
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ModelFailed:
        return failure(error, self.where, secret=self._key)

    def output_for(self, request: Request) -> int:
        """Return how many tokens the reply may have."""
        least = min(_LEAST_OUTPUT, self.max_output, max(1, self.context // 4))
        return max(min(request.max_output or self.max_output, self.max_output), least)

    # -------------------------------------------------------------------------------------- lessons

    def refuses(self, word: str) -> bool:
        """Return whether the server turned out not to know a word."""
        return word in self._refused

    def _learns(self, complaint: Complaint, request: Request) -> bool:
        """Learn from a refusal; say whether to call again because of it."""
        if complaint.retryable or complaint.is_too_long:
            return False
        if (most := complaint.output_limit) is not None and most < self.output_for(request):
            self._size = Size(self._size.context, most)
            return True
        if request.tools and complaint.refuses_tools:
            # The window has to be made anew, with the tools in words.
            self._tools = "text"
            raise ModelFailed(
                f"{self.where} cannot be told of tools but in words",
                status=complaint.status,
                retryable=True,
                retry_after=0.0,
            )
        return self._learn_word(complaint)

    def _learn_word(self, complaint: Complaint) -> bool:
        for word in self._words():
            if word in complaint.text and word not in self._refused:
                self._refused.add(word)
                return True
        return False

    def _words(self) -> tuple[str, ...]:
        """Name the words that a request can do without."""
        return ()

    # -------------------------------------------------------------------------------------- the SDK

    async def _client(self) -> Client:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            client = await asyncio.to_thread(self._connect)
            if self._made is not None and self._made[0] is loop:  # Another call was quicker.
                await client.close()
            else:
                self._made = (loop, client)
        return self._made[1]

    def _sdk(self) -> ModuleType:
        return importlib.import_module(self._package)

    def _errors(self) -> tuple[type[Exception], ...]:
        """Name what a call may raise: the SDK's errors, its transport's, and what is no JSON."""
        sdk, transport = self._sdk(), importlib.import_module("httpx2")
        return (sdk.APIError, transport.HTTPError, transport.InvalidURL, TimeoutError, ValueError)

    @abstractmethod
    def _connect(self) -> Client:
        """Make a client."""

    @abstractmethod
    def _body(self, request: Request) -> dict[str, JSON]:
        """Return what to send."""

    @abstractmethod
    async def _call(self, client: Client, body: dict[str, JSON]) -> Stream:
        """Send it."""

    @abstractmethod
    def _reading(self) -> Reading:
        """Begin to read a reply."""


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # Such as a port beyond all ports.
        fits = False
    if not fits:  # It is not repeated: there may be a password in it.
        raise BadConfig("base_url: expected an address such as http://localhost:11434/v1")
    return parts


def _checked_key(key: str | None) -> str:
    """Check a key: what HTTP cannot carry in a header would be told in an error, with the key."""
    trimmed = (key or "").strip()
    if not trimmed.isascii() or not trimmed.isprintable() or " " in trimmed:
        raise ModelMissing(
            "the key has characters that no key has: was it copied whole, and alone?"
        )
    return trimmed
