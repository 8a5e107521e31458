"""HTTP between an SDK and one server: our own headers go out, a bounded response comes in.

A server is trusted with the conversation and the key that it was given, and with nothing else. By
default the SDKs send it headers that the environment names, repeat a request wherever a redirect
points, keep cookies, decompress, and hold events and bodies of any size in memory. This transport
lies between them and the network: it forwards the headers of the call itself, refuses redirects and
compression, passes on three headers of the response, and counts the bytes of its body.

A stream of events is passed on event by event, however it was cut into pieces: what the SDK holds
is then never more than one event. Nothing is imported here: the SDKs bring httpx, or httpx2.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Protocol

from holdfast.errors import ModelFailed

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
MAX_EVENT_LINES: Final = 1_000  # Older SDKs copy an event for each of its lines.
MAX_STREAM_BYTES: Final = 128 * 1024 * 1024  # About 400 bytes come with each token.
MAX_ERROR_BYTES: Final = 256 * 1024  # The rest of a longer error is not read.
_EVENT_ENDS: Final = (b"\n\n", b"\r\r", b"\n\r\n")
_REQUEST_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "anthropic-version",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "user-agent",
        "x-api-key",
    }
)
# Without a content type the body is read as UTF-8; Python has character sets that are not for text.
_RESPONSE_HEADERS: Final = frozenset({"date", "retry-after", "retry-after-ms"})


class _ByteStream(Protocol):
    """The body of a response, as httpx passes it on."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the pieces, as they arrive."""

    async def aclose(self) -> None:
        """Close the connection, unless the body was read to its end."""


class ModelTransport:
    """A transport of httpx for one server; `where` names it in errors.

    `credentials` has the values of the headers that identify the user to a server other than the
    provider's own, which gets no header of the environment's; `None`: it is the provider's.
    """

    def __init__(
        self,
        http: Any,  # noqa: ANN401 - the module httpx or httpx2, whichever the SDK uses
        *,
        where: str,
        credentials: Mapping[str, str] | None,
        proxy: str | None,
    ) -> None:
        self._http = http
        self._where = where
        self._credentials = credentials
        self._inner = http.AsyncHTTPTransport(proxy=proxy)
        self._body_type = type("_BoundedBody", (_Body, http.AsyncByteStream), {})

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 - as above
        """Send a request; return its response, with a bounded body. Raise `ModelFailed`."""
        request.headers = self._http.Headers(self._own_headers(request.headers))
        response = await self._inner.handle_async_request(request)
        status = response.status_code
        failed = not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
        compressed = response.headers.get("content-encoding", "identity") != "identity"
        if refusal := _refusal(status, compressed=compressed and not failed):
            await response.aclose()
            raise ModelFailed(f"{self._where} {refusal}", status=status)
        limit = 0 if compressed else MAX_ERROR_BYTES
        body = self._error_body(response.stream, limit) if failed else self._reply(response.stream)
        return self._http.Response(
            status,
            headers={k: v for k, v in response.headers.items() if k in _RESPONSE_HEADERS},
            stream=self._body_type(response.stream, body),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    def _own_headers(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = {**given, "accept-encoding": "identity"}
        if self._credentials is None:
            return headers
        own = {**headers, **{k: v for k, v in self._credentials.items() if k in headers}}
        return {name: value for name, value in own.items() if name in _REQUEST_HEADERS}

    async def _reply(self, stream: _ByteStream) -> AsyncGenerator[bytes, None]:
        """Yield a stream's events, one or several at once; raise `ModelFailed` above the limits."""
        pending = bytearray()
        received = lines = 0
        async for piece in stream:
            received += len(piece)
            if received > MAX_STREAM_BYTES:
                raise self._too_large(f"a reply of more than {MAX_STREAM_BYTES} bytes")
            start = max(0, len(pending) - 2)
            pending += piece
            lines += piece.count(b"\n") + piece.count(b"\r")
            if end := _end_of_events(pending, start):
                yield bytes(pending[:end])
                del pending[:end]
                lines = pending.count(b"\n") + pending.count(b"\r")
            if len(pending) > MAX_EVENT_BYTES:
                raise self._too_large(f"an event of more than {MAX_EVENT_BYTES} bytes")
            if lines > MAX_EVENT_LINES:
                raise self._too_large(f"an event of more than {MAX_EVENT_LINES} lines")
        yield bytes(pending)

    async def _error_body(self, stream: _ByteStream, limit: int) -> AsyncGenerator[bytes, None]:
        """Yield the beginning of an error; one that breaks off still has its status."""
        left = limit
        try:
            async for piece in stream:
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    return
        except self._http.HTTPError:
            return

    def _too_large(self, what: str) -> ModelFailed:
        return ModelFailed(f"{self._where} sent {what}, which is the limit; the call was ended")


class _Body:
    """The bounded body of a response; closing it closes the connection."""

    def __init__(self, stream: _ByteStream, pieces: AsyncGenerator[bytes, None]) -> None:
        self._stream = stream
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        async with aclosing(self._pieces):
            await self._stream.aclose()


def _refusal(status: int, *, compressed: bool) -> str | None:
    """Return why a response is not read; `None` if it is."""
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return f"answered {status}, a redirect; it was not followed: check the base URL"
    return "sent a compressed reply, which was not requested" if compressed else None


def _end_of_events(buffer: bytearray, start: int) -> int:
    """Return the end of the last whole event in a buffer; 0 if no event ends after `start`."""
    ends = ((at, len(mark)) for mark in _EVENT_ENDS if (at := buffer.rfind(mark, start)) >= 0)
    return max((at + size for at, size in ends), default=0)
