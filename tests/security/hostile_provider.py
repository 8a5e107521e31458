"""A provider on loopback that attacks its clients with the bytes a test gives it.

It speaks just enough HTTP to read a request; what it answers is bytes, made lazily, so that a body
may be endless. The user's words name the attack, `please cut`:

    with HostileProvider({"cut": lambda: [b"HTTP/1.1 200 OK\\r\\n\\r\\ndata: {"]}) as provider:
        ...
        provider.requests[-1].head       # the request as it came, with its headers
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias

Attack: TypeAlias = Callable[[], Iterable[bytes]]
STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
_MAX_SENT: Final = 192 << 20  # An attack that is still read then has succeeded.
_PATIENCE: Final = 60.0


class Asked(NamedTuple):
    """A request: the bytes of its head, and its body."""

    head: bytes
    body: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        """The headers, by their names in lower case."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def attack(self) -> str:
        """What the user asked for last: `please NAME`."""
        texts = [text for message in self.body["messages"] for text in _texts(message["content"])]
        asked = [text.removeprefix("please ") for text in texts if text.startswith("please ")]
        return asked[-1].strip() if asked else ""


def _texts(content: object) -> list[str]:
    parts = content if isinstance(content, list) else [{"text": content}]
    return [str(part.get("text") or "") for part in parts]


class HostileProvider:
    """The server, in this process; use it in a `with` block."""

    def __init__(self, attacks: Mapping[str, Attack]) -> None:
        self.attacks = dict(attacks)
        self.requests: list[Asked] = []
        self.sent: dict[str, int] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, asked: Asked) -> tuple[str, Iterable[bytes]]:
        """Note a request; return the name of what is answered, and its bytes."""
        self.requests.append(asked)
        name = asked.attack if asked.attack in self.attacks else "well-behaved"
        return name, self.attacks[name]()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    provider: HostileProvider


class _Handler(socketserver.BaseRequestHandler):
    request: socket.socket
    server: _Server

    def handle(self) -> None:
        self.request.settimeout(_PATIENCE)
        # A client that goes away in the middle has done the right thing.
        with contextlib.suppress(OSError), self.request.makefile("rb") as file:
            asked = _read(file)
            if asked is None:
                return
            name, pieces = self.server.provider.answer(asked)
            for piece in pieces:
                self.request.sendall(piece)
                sent = self.server.provider.sent
                sent[name] = sent.get(name, 0) + len(piece)
                if sent[name] > _MAX_SENT:
                    return


def _read(file: Any) -> Asked | None:  # noqa: ANN401 - a file of bytes
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = file.readline()
        if not line:
            return None
        head += line
    length = int(Asked(head, {}).headers.get("content-length", 0))
    return Asked(head, json.loads(file.read(length) or b"{}"))


# ------------------------------------------------------------------------------ what is answered


class Style(NamedTuple):
    """How a provider's API streams text, and ends a reply."""

    name: str
    path: str
    model: str

    def text(self, text: str) -> bytes:
        """Return the event of a piece of text."""
        if self.name == "openai":
            return event({"choices": [{"index": 0, "delta": {"content": text}}]})
        delta = {"type": "text_delta", "text": text}
        return event({"type": "content_block_delta", "index": 0, "delta": delta})

    def start(self) -> bytes:
        """Return what comes before the text, with the head of the response."""
        if self.name == "openai":
            return STREAM
        block = {"type": "text", "text": ""}
        began = event({"type": "message_start", "message": {"role": "assistant", "usage": {}}})
        return (
            STREAM
            + began
            + event({"type": "content_block_start", "index": 0, "content_block": block})
        )

    def end(self, usage: Mapping[str, object] | None = None) -> bytes:
        """Return the events that end a reply."""
        if self.name == "openai":
            choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
            return event({"choices": [choice], "usage": usage}) + b"data: [DONE]\n\n"
        return (
            event({"type": "content_block_stop", "index": 0})
            + event(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": "end_turn"},
                    "usage": usage or {},
                }
            )
            + event({"type": "message_stop"})
        )

    def call(self, id: str, name: str, arguments: str) -> bytes:
        """Return the events of a whole tool call, and of the end of the reply."""
        if self.name == "openai":
            function = {"name": name, "arguments": arguments}
            calls = [{"index": 0, "id": id, "type": "function", "function": function}]
            choice = {"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}
            return event({"choices": [choice]}) + b"data: [DONE]\n\n"
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": arguments}
        return (
            event({"type": "content_block_start", "index": 1, "content_block": block})
            + event({"type": "content_block_delta", "index": 1, "delta": delta})
            + event({"type": "content_block_stop", "index": 1})
            + event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}})
        )

    def reply(self, text: str) -> Iterator[bytes]:
        """Return a reply as any provider makes it."""
        yield self.start() + self.text(text) + self.end()


OPENAI: Final = Style("openai", "/v1", "openai:mock-1")
ANTHROPIC: Final = Style("anthropic", "", "anthropic:claude-mock-1")


def event(body: Mapping[str, object]) -> bytes:
    """Return a server-sent event."""
    name = f"event: {body['type']}\n" if "type" in body else ""
    return f"{name}data: {json.dumps(body)}\n\n".encode()


def endless(piece: bytes) -> Iterator[bytes]:
    """Repeat a piece, until the client leaves or has taken far too much."""
    while True:
        yield piece
