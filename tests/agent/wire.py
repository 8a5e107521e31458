"""A server on loopback that sends exactly the bytes it is told, and remembers what it was sent.

For what no well-behaved provider does: streams that stop in the middle of a word, say nothing, or
never end. It runs in the test's own event loop:

    async with Wire(sse(chunk, chunk), refused(400, "no")) as wire:
        ... OpenAIModel("m", base_url=wire.url) ...
    wire.asked[0].body
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.agent.models.protocol import Delta, Model, ModelRequest

CUT = object()  # The connection breaks, in the middle of what HTTP calls a chunk.
STAY = object()  # Nothing more comes, until the client goes.


class Answer(msgspec.Struct, frozen=True):
    """A response: its pieces are sent one by one, `CUT` and `STAY` are done."""

    pieces: tuple[Any, ...]
    status: int = 200
    headers: dict[str, str] = {}


class Asked(msgspec.Struct, frozen=True):
    """A request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def sse(*events: object, named: bool = False) -> Answer:
    """A stream of events; what is text is sent as it is."""
    return Answer(tuple(_event(event, named=named) for event in events))


def _event(event: object, *, named: bool) -> object:
    if not isinstance(event, dict):
        return event
    name = f"event: {event['type']}\n" if named else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def refused(status: int, error: object, **headers: str) -> Answer:
    """An error, as JSON."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer((json.dumps(error),), status, {"content-type": "application/json", **said})


async def hear(model: Model, request: ModelRequest) -> list[Delta]:
    """Let a model say all it says."""
    return [delta async for delta in model.stream(request)]


class Wire:
    """The server; every request gets the next answer, and the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Sequence[Answer] = answers
        self.asked: list[Asked] = []
        self.called = asyncio.Event()
        self.left = asyncio.Event()  # A client went away before its answer was over.
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        with suppress(TimeoutError):  # A client that kept its connection ends it later.
            await asyncio.wait_for(self._server.wait_closed(), 0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if not (first := await reader.readline()):
            return False
        headers: dict[str, str] = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.asked.append(Asked(first.decode().split()[1], headers, body))
        self.called.set()
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        kind = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        head = "".join(f"{n}: {v}\r\n" for n, v in {**kind, **answer.headers}.items())
        writer.write(f"HTTP/1.1 {answer.status} Said\r\n{head}\r\n".encode())
        for piece in answer.pieces:
            if piece is CUT:
                writer.write(b"ffff\r\nhalf")
                await writer.drain()
                return False
            if piece is STAY:
                if not await reader.read(1):
                    self.left.set()
                return False
            data = str(piece).encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
