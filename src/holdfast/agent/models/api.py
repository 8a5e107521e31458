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
import urllib.request
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from ipaddress import ip_address
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.agent.models.context_limits import ContextLimits, limits_for
from holdfast.agent.models.errors import ProviderError, parse_error, to_model_failed
from holdfast.agent.models.protocol import Delta, ModelRequest, StopReason, ToolSupport
from holdfast.agent.models.transport import ModelTransport
from holdfast.errors import BadConfig, ModelFailed, ModelMissing, install_command
from holdfast.formats.common import is_deeper
from holdfast.values import JSON

NO_KEY: Final = "none"  # The SDKs require a key, even for a server that needs none.
CONNECT_TIMEOUT_S: Final = 10.0  # Seconds. The loop decides how long a stream may be silent.
_CLOSE_TIMEOUT_S: Final = 5.0  # Seconds that a server gets to close a stream that is complete.
_MAX_EVENT_DEPTH: Final = 200
_MAX_REQUESTS: Final = 5  # of one call: each but the first adapts to a rejection.
# Reasoning counts as output: with less than this, some models never get to their reply.
_MIN_OUTPUT_TOKENS: Final = 4_096
_LOCAL_HOSTS: Final = frozenset(
    {"localhost", "0.0.0.0", "::", "host.docker.internal"}  # noqa: S104 - not bound
)


class EventStream(Protocol):
    """The stream of events of both SDKs."""

    async def __anext__(self) -> object:
        """Return the next event."""

    async def close(self) -> None:
        """Close the connection."""


class SdkClient(Protocol):
    """The part of both SDKs' clients that is used here."""

    async def close(self) -> None:
        """Close its connections."""


class StreamParser(Protocol):
    """Parses the events of one reply into deltas; `has_output`: there was text or a call."""

    has_output: bool

    @property
    def reason(self) -> StopReason | None:
        """Why the reply ended; `None` until it is complete."""

    def feed(self, event: object) -> list[Delta]:
        """Return the deltas of an event."""

    def finish(self) -> list[Delta]:
        """Return the final deltas."""


class ApiModel(ABC):
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
        client: SdkClient | None,
        package: str,
        address: str,
    ) -> None:
        """Store the configuration; the SDK is neither imported nor called before the first call."""
        if importlib.util.find_spec(package) is None:
            raise ModelMissing(
                f"{name} needs the package {package}: run {install_command(package)}"
            )
        self._url = _checked_url(base_url or address)
        self._key = _checked_key(api_key)
        if client is None and base_url is None and not self._key:
            raise ModelMissing(f"{name} needs an API key: pass api_key")
        size = limits_for(name, is_local=_is_local(self._url.hostname or ""))
        self._name = name
        self._limits = ContextLimits(
            context or size.context, max_output or min(size.output, context or size.output)
        )
        self._tools: ToolSupport = tools
        self._package = package
        host, own_host = self._url.hostname or "", urlsplit(address).hostname or ""
        # The provider's own server, not another one with a compatible API.
        self._is_official = host == own_host
        # What the environment says of the provider's account is sent to the provider alone.
        self._has_environment = self._is_official or host.endswith(f".{own_host}")
        self._user_client = client
        self._own_client: tuple[asyncio.AbstractEventLoop, SdkClient] | None = None
        self._rejected: set[str] = set()
        self.extra: Mapping[str, JSON] = extra or {}

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def context(self) -> int:
        """The most tokens that a request and its reply may have together."""
        return self._limits.context

    @property
    def max_output(self) -> int:
        """The most tokens that a reply may have."""
        return self._limits.output

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
        own, self._own_client = self._own_client, None
        if own is not None and own[0] is asyncio.get_running_loop():
            await own[1].close()

    # ------------------------------------------------------------------------------------- one call

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Call the model. Closing the iterator closes the connection at once."""
        events = await self._open_stream(request)
        reading = self._parser()
        deadline: float | None = None
        try:
            while (event := await self._next(events, deadline)) is not None:
                for delta in reading.feed(event):
                    yield delta
                if reading.reason is not None and deadline is None:
                    deadline = asyncio.get_running_loop().time() + _CLOSE_TIMEOUT_S
        finally:
            await events.close()
        if reading.reason == "refused" and not reading.has_output:
            raise ModelFailed(f"{self.where} refused to answer")
        for delta in reading.finish():
            yield delta

    async def _open_stream(self, request: ModelRequest) -> EventStream:
        """Start the call; repeat it without each parameter that the server rejects."""
        client = await self._client()
        for left in reversed(range(_MAX_REQUESTS)):
            try:
                return await self._call(client, self._body(request))
            except self._errors() as error:
                provider_error = parse_error(error)
                fatal = provider_error is None or not self._adapt(provider_error, request)
                if fatal or not left:
                    raise self._failure(error) from error
        raise AssertionError("the last request returns or raises")

    async def _next(self, events: EventStream, deadline: float | None) -> object | None:
        """Return the next event, or `None` at the end: at the latest at the deadline, if any."""
        try:
            async with asyncio.timeout_at(deadline):
                return _checked_event(await anext(events))
        except StopAsyncIteration:
            return None
        except self._errors() as error:
            if deadline is not None:  # The reply is complete; only the stream's end is missing.
                return None
            if isinstance(error, ModelFailed):  # The transport ended the call.
                raise
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ModelFailed:
        return to_model_failed(error, self.where, secret=self._key)

    def output_for(self, request: ModelRequest) -> int:
        """Return how many tokens the reply may have."""
        least = min(_MIN_OUTPUT_TOKENS, self.max_output, max(1, self.context // 4))
        return max(min(request.max_output or self.max_output, self.max_output), least)

    # ------------------------------------------------------------------------------------- adapting

    def has_rejected(self, parameter: str) -> bool:
        """True if the server has rejected a parameter."""
        return parameter in self._rejected

    def _adapt(self, provider_error: ProviderError, request: ModelRequest) -> bool:
        """Adapt to a rejection; return whether to repeat the call at once."""
        if provider_error.retryable or provider_error.is_too_long:
            return False
        if (limit := provider_error.output_limit) is not None and limit < self.output_for(request):
            self._limits = ContextLimits(self._limits.context, limit)
            return True
        if request.tools and provider_error.lacks_tool_support:
            # The window must be built again, with the tools described in the prompt.
            self._tools = "text"
            raise ModelFailed(
                f"{self.where} does not support tool calling",
                status=provider_error.status,
                retryable=True,
                retry_after=0.0,
            )
        return self._drop_parameter(provider_error)

    def _drop_parameter(self, provider_error: ProviderError) -> bool:
        for parameter in self._optional_parameters():
            if parameter in provider_error.text and parameter not in self._rejected:
                self._rejected.add(parameter)
                return True
        return False

    def _optional_parameters(self) -> tuple[str, ...]:
        """Return the parameters that a request can do without."""
        return ()

    # -------------------------------------------------------------------------------------- the SDK

    async def _client(self) -> SdkClient:
        if self._user_client is not None:
            return self._user_client
        loop = asyncio.get_running_loop()
        if self._own_client is None or self._own_client[0] is not loop:
            client = await asyncio.to_thread(self._connected)
            if (
                self._own_client is not None and self._own_client[0] is loop
            ):  # Another call created one first.
                await client.close()
            else:
                self._own_client = (loop, client)
        return self._own_client[1]

    def _connected(self) -> SdkClient:
        """Create a client; raise `BadConfig` if its URL is not one for the SDK."""
        try:
            return self._connect()
        except self._http().InvalidURL:
            raise _bad_url() from None

    def _sdk(self) -> ModuleType:
        return importlib.import_module(self._package)

    def _errors(self) -> tuple[type[Exception], ...]:
        """Return what a call may raise: errors of the SDK, its HTTP package, and JSON parsing."""
        sdk, http = self._sdk(), self._http()
        calls = (sdk.APIError, http.HTTPError, http.InvalidURL, TimeoutError, ModelFailed)
        return (*calls, ValueError, RecursionError)

    def _http(self) -> ModuleType:
        """Return the SDK's HTTP package: httpx, or httpx2 in newer versions."""
        return importlib.import_module(self._sdk().DefaultAsyncHttpxClient.__base__.__module__)

    def _http_client(self) -> Any:  # noqa: ANN401 - of either package
        """Return an HTTP client for the SDK: no redirects, cookies or headers of others."""
        http = self._http()
        credentials = {"authorization": self._authorization(), "x-api-key": self._key or NO_KEY}
        try:
            transport = ModelTransport(
                http,
                where=self.where,
                credentials=None if self._has_environment else credentials,
                proxy=self._proxy(),
            )
        except (ImportError, ValueError) as error:
            raise BadConfig(f"the environment's proxy cannot be used: {error}") from error
        except http.InvalidURL:
            raise BadConfig("the environment's proxy cannot be used: it is not a URL") from None
        except OSError as error:
            raise BadConfig(f"SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {error}") from error
        return http.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)

    def _authorization(self) -> str:
        if self._url.username is None:
            return f"Bearer {self._key or NO_KEY}"
        pair = f"{unquote(self._url.username)}:{unquote(self._url.password or '')}"
        return f"Basic {b64encode(pair.encode()).decode()}"

    def _proxy(self) -> str | None:
        """Return the proxy that the environment names; a server on this machine is called directly.

        A conversation with a local server must not pass through another machine.
        """
        host = self._url.hostname or ""
        if _is_local(host) or urllib.request.proxy_bypass(host):
            return None
        proxies = urllib.request.getproxies()
        proxy = proxies.get(self._url.scheme) or proxies.get("all")
        return proxy if proxy is None or "://" in proxy else f"http://{proxy}"

    @abstractmethod
    def _connect(self) -> SdkClient:
        """Create a client."""

    @abstractmethod
    def _body(self, request: ModelRequest) -> dict[str, JSON]:
        """Return the body of the request."""

    @abstractmethod
    async def _call(self, client: SdkClient, body: dict[str, JSON]) -> EventStream:
        """Send the request."""

    @abstractmethod
    def _parser(self) -> StreamParser:
        """Return a parser for one reply."""


def _checked_event(event: object) -> object:
    """Return an event that can be parsed; raise `RecursionError` if it is nested too deeply."""
    if is_deeper(event, _MAX_EVENT_DEPTH):
        raise RecursionError
    return event


def _is_local(host: str) -> bool:
    """True if a host is this machine: one of its names, or a loopback address."""
    try:
        return host in _LOCAL_HOSTS or ip_address(host).is_loopback
    except ValueError:
        return host.endswith(".localhost")


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # Such as a port above 65535.
        fits = False
    if not fits:
        raise _bad_url()
    return parts


def _bad_url() -> BadConfig:
    """Return the error for a `base_url`, without it: it may contain a password."""
    return BadConfig("base_url: expected a URL such as http://localhost:11434/v1")


def _checked_key(key: str | None) -> str:
    """Return a key that an HTTP header can carry: otherwise an error would quote the key."""
    trimmed = (key or "").strip()
    if not trimmed.isascii() or not trimmed.isprintable() or " " in trimmed:
        raise ModelMissing(
            "the API key contains invalid characters; check for whitespace or a truncated paste"
        )
    return trimmed
