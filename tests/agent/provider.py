r"""A provider on loopback that speaks OpenAI's streaming language, and does as it is told.

It stands where a user has a real provider: the client's SDK, its HTTP and its parsing are the real
ones. What it answers is decided by a script, else by the words of the last message, so that a test
(or a person at a terminal) can ask for any behaviour in the prompt.

In a test, in the same process:

    with Provider() as provider:
        model = OpenAIModel("mock-1", base_url=provider.url, api_key="key")
        ...
        provider.requests[-1]["messages"]   # what was sent, as JSON; `provider.replies()` for words
        provider.left                       # how many clients went away in mid-reply

As a process, for programs under test (it ends when its standard input does, or on SIGTERM):

    python -m tests.agent.provider [--script FILE] [--journal FILE] [--port N]

It prints its base URL (`http://127.0.0.1:PORT/v1`) as its first line, and writes every request as
a line of JSON into the journal, before it answers. `running(…)` starts one and gives its URL.
`environment(url)` is what makes `holdfast` use it: OPENAI_BASE_URL, OPENAI_API_KEY, HOLDFAST_MODEL.

What a prompt may say (the last user message that was not injected; each on a line of its own):

    say TEXT            exactly this (`\n` in it is a line break)
    slow N              N words, word-1 word-2 …, one every 50 ms; `slow N SECONDS` says how often
    call NAME JSON      a tool call; several lines are parallel calls
    think TEXT          reasoning first
    cut N               N words, then the connection breaks; once: the same prompt again is answered
    fail STATUS         an HTTP error, every time; `fail STATUS N` only the first N times
    hang                not a word, until the client goes away
    markdown            a text with headings, a list, code and a table

Anything else is echoed: `You said: …`. Behind a tool's result it says `The tool said: …`. A request
without tools that asks for a title or a summary is answered with one (`A title by the model`).

A script is a JSON list of replies, each used once, in order, before the words count:

    {"say": "hi", "think": "…", "calls": [{"name": "f", "arguments": {}, "id": "call_1"}],
     "delay": 0.05,          seconds before each piece
     "cut": 3,               break the connection behind so many pieces
     "hang": 3,              go silent behind so many pieces
     "hold": [3, 7],         behind so many, wait each time until `provider.go_on()` is called
     "status": 429, "headers": {"retry-after": "1"}, "error": "slow down",
     "finish": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 7},
     "when": "parcel"}       only for a request whose last user message has this in it
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

Reply: TypeAlias = Mapping[str, Any]
Body: TypeAlias = dict[str, Any]

TITLE: Final = "A title by the model"
SUMMARY: Final = "A summary by the model."
MARKDOWN: Final = """\
# Where it is

Your parcel is in **Oslo**, see `track`.

- one
- two

```python
def where():
    return "Oslo"
```

| place | day |
|-------|-----|
| Oslo  | 3   |
| Bergen | 4  |

That is all.
"""
_PIECES: Final = re.compile(r"\s*\S+\s*?(?=\s|$)|\s+$")
_FAILURES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found",
    429: "rate_limit_error",
}
_BREATH: Final = 0.02


class Provider:
    """The server, in this process; use it in a `with` block."""

    def __init__(
        self, script: Sequence[Reply] = (), *, port: int = 0, journal: Path | None = None
    ) -> None:
        self.requests: list[Body] = []
        self.left = 0
        self._script = list(script)
        self._journal = journal
        self._tries: dict[str, int] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.closing = threading.Event()
        self.going_on = threading.Semaphore(0)
        self._server = _Server(("127.0.0.1", port), _Handler, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_BREATH,))

    @property
    def url(self) -> str:
        """The base URL that a client is given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def say_next(self, *replies: Reply) -> None:
        """Add to the script."""
        with self._lock:
            self._script += replies

    def go_on(self) -> None:
        """Let a reply that is held go on to where it is held next, or to its end."""
        self.going_on.release()

    def replies(self) -> list[Body]:
        """The requests that were for replies: neither for a title nor for a summary."""
        return [request for request in self.requests if _background(request) is None]

    # ------------------------------------------------------------------- asked by the handler

    def taken(self, body: Body) -> tuple[int, Reply]:
        """Note a request, and decide what is answered."""
        with self._lock:
            self.requests.append(body)
            if self._journal is not None:
                with self._journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(body) + "\n")
            return next(self._numbers), self._decided(body)

    def client_left(self) -> None:
        """Note that a client went away before the end."""
        with self._lock:
            self.left += 1

    def _decided(self, body: Body) -> Reply:
        said = last_user_text(body)
        for n, reply in enumerate(self._script):
            if reply.get("when", "") in said:
                return self._script.pop(n)
        made = _background(body)
        if made is not None:
            return {"say": made}
        self._tries[said] = self._tries.get(said, 0) + 1
        return by_words(body, self._tries[said])


# ---------------------------------------------------------------------------------- what is said


def last_user_text(body: Body) -> str:
    """What the user said last."""
    said = (text_of(m) for m in reversed(body.get("messages", [])) if m.get("role") == "user")
    return next(said, "")


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whatever its shape."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if part.get("type") == "text")


def _background(body: Body) -> str | None:
    """What is asked for beside the conversation, if it is that: a title or a summary."""
    messages = body.get("messages", [])
    if body.get("tools") or not messages:
        return None
    asked = f"{text_of(messages[0])}\n{text_of(messages[-1])}".lower()
    if re.search(r"\b(a|short|the) title\b", asked):
        return TITLE
    return SUMMARY if re.search(r"\bsummar(y|ise|ize)\b", asked) else None


def by_words(body: Body, attempt: int) -> Reply:
    """Decide by what the last message says."""
    last = body["messages"][-1]
    if last.get("role") == "tool":
        return {"say": f"The tool said: {text_of(last)[:200]}"}
    said = last_user_text(body)
    reply: dict[str, Any] = {}
    for line in said.splitlines():
        _obey(reply, line.strip(), attempt)
    if not reply.keys() & {"say", "calls", "status", "hang", "cut"}:
        reply["say"] = f"You said: {said}"
    return reply


def _obey(reply: dict[str, Any], line: str, attempt: int) -> None:
    word, _, rest = line.partition(" ")
    match word, rest.split():
        case "say", [_, *_]:
            reply["say"] = rest.replace("\\n", "\n")
        case "slow", [number, *delay]:
            reply["say"] = _words(int(number))
            reply["delay"] = float(delay[0]) if delay else 0.05
        case "call", [name, *_]:
            given = rest.partition(" ")[2].strip()
            call = {"name": name, "arguments": json.loads(given) if given else {}}
            reply.setdefault("calls", []).append(call)
        case "think", [_, *_]:
            reply["think"] = rest
        case "cut", [number] if attempt == 1:
            reply |= {"say": _words(int(number) + 5), "cut": int(number)}
        case "fail", [status, *times] if attempt <= int([*times, "1000000"][0]):
            reply["status"] = int(status)
        case "hang", []:
            reply["hang"] = 0
        case "markdown", []:
            reply["say"] = MARKDOWN


def _words(number: int) -> str:
    return " ".join(f"word-{n}" for n in range(1, number + 1))


# -------------------------------------------------------------------------------------- the wire


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], provider: Provider
    ) -> None:
        super().__init__(address, handler)
        self.provider = provider


class _Gone(Exception):
    """The client went away, or the server closes."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def handle(self) -> None:
        # A connection that is kept alive must not keep the server from closing.
        self.close_connection = False
        while not self.close_connection and self._is_asked():
            with contextlib.suppress(ConnectionError):
                self.handle_one_request()

    def _is_asked(self) -> bool:
        while not self.server.provider.closing.is_set():
            if select.select([self.connection], [], [], _BREATH)[0]:
                return True
        return False

    def do_GET(self) -> None:
        models = [{"id": "mock-1", "object": "model", "owned_by": "tests"}]
        self._answer(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length))
        number, reply = self.server.provider.taken(body)
        if reply.get("status", 200) != 200:
            self._fail(reply)
        elif body.get("stream"):
            self._stream(number, body, reply)
        else:
            self._answer(200, _whole(number, body, reply))

    def _fail(self, reply: Reply) -> None:
        status = reply["status"]
        kind = _FAILURES.get(status, "server_error")
        said = reply.get("error", f"the provider was told to answer {status}")
        error = {"message": said, "type": kind, "code": reply.get("code")}
        self._answer(status, {"error": error}, reply.get("headers", {}))

    def _answer(self, status: int, body: Body, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, number: int, body: Body, reply: Reply) -> None:
        self.close_connection = True
        try:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self._stream_events(number, body, reply)
        except (_Gone, ConnectionError):
            if not self.server.provider.closing.is_set():
                self.server.provider.client_left()

    def _stream_events(self, number: int, body: Body, reply: Reply) -> None:
        sent = 0
        for delta in _deltas(reply, number):
            if sent == reply.get("cut", -1):
                return
            if sent == reply.get("hang", -1):
                self._wait(None)
            if sent in reply.get("hold", ()):
                self._wait(None, self.server.provider.going_on)
            self._wait(reply.get("delay", 0.0))
            self._event(_chunk(number, body, [_choice(delta)]))
            sent += 1
        if sent <= reply.get("cut", -1):
            return
        if sent <= reply.get("hang", -1):
            self._wait(None)
        self._event(_chunk(number, body, [_choice({}, _finish(reply))]))
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({**_chunk(number, body, []), "usage": _usage(body, reply)})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: Body) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def _wait(self, seconds: float | None, told: threading.Semaphore | None = None) -> None:
        """Wait until told, for ever if no time is given; a client that goes away ends it."""
        until = None if seconds is None else time.monotonic() + seconds
        while until is None or time.monotonic() < until:
            if told is not None and told.acquire(blocking=False):
                return
            if self.server.provider.closing.is_set():
                raise _Gone
            left = _BREATH if until is None else max(0.0, until - time.monotonic())
            if select.select([self.connection], [], [], min(left, _BREATH))[0]:
                raise _Gone


def _deltas(reply: Reply, number: int) -> Iterator[Body]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(reply.get("think", "")):
        yield {"reasoning_content": piece}
    for piece in _pieces(reply.get("say", "")):
        yield {"content": piece}
    for index, call in enumerate(reply.get("calls", [])):
        yield from _call_deltas(index, call, number)


def _call_deltas(index: int, call: Mapping[str, Any], number: int) -> Iterator[Body]:
    """A call comes in pieces, as it does from real providers."""
    id = call.get("id", f"call_{number}_{index}")
    given = call.get("arguments", {})
    text = given if isinstance(given, str) else json.dumps(given)
    function = {"name": call["name"], "arguments": ""}
    yield {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
    for start in range(0, len(text), 16):
        piece = {"arguments": text[start : start + 16]}
        yield {"tool_calls": [{"index": index, "function": piece}]}


def _pieces(text: str) -> list[str]:
    return _PIECES.findall(text)


def _choice(delta: Body, finish: str | None = None) -> Body:
    return {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}


def _finish(reply: Reply) -> str:
    finish: str = reply.get("finish", "tool_calls" if reply.get("calls") else "stop")
    return finish


def _usage(body: Body, reply: Reply) -> Body:
    """Tokens are words here."""
    asked = sum(len(text_of(message).split()) for message in body.get("messages", []))
    said = len(reply.get("say", "").split()) + 3 * len(reply.get("calls", []))
    used = reply.get("usage") or {"prompt_tokens": asked, "completion_tokens": said}
    return {**used, "total_tokens": used["prompt_tokens"] + used["completion_tokens"]}


def _head(number: int, body: Body, kind: str) -> Body:
    model = body.get("model", "mock-1")
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_700_000_000, "model": model}


def _chunk(number: int, body: Body, choices: list[Body]) -> Body:
    return {**_head(number, body, "chat.completion.chunk"), "choices": choices}


def _whole(number: int, body: Body, reply: Reply) -> Body:
    message: Body = {"role": "assistant", "content": reply.get("say", "")}
    if reply.get("calls"):
        message["tool_calls"] = [
            {
                "id": call.get("id", f"call_{number}_{index}"),
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for index, call in enumerate(reply["calls"])
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    whole = _head(number, body, "chat.completion")
    return {**whole, "choices": [choice], "usage": _usage(body, reply)}


# ----------------------------------------------------------------------------------- as a process


def environment(url: str) -> dict[str, str]:
    """What a child needs in its environment to use the provider, and no other."""
    keys = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "test-key"}
    return {"OPENAI_BASE_URL": url, "HOLDFAST_MODEL": "openai:mock-1", **keys}


@contextlib.contextmanager
def running(*, script: Path | None = None, journal: Path | None = None) -> Iterator[str]:
    """A provider in a process of its own; gives its URL."""
    command = [sys.executable, "-m", "tests.agent.provider"]
    command += ["--script", str(script)] if script else []
    command += ["--journal", str(journal)] if journal else []
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.stdin.close()
            process.wait(timeout=10)


def main() -> None:
    """Serve until the standard input ends."""
    options = argparse.ArgumentParser(description="A scripted provider on loopback.")
    options.add_argument("--script", type=Path)
    options.add_argument("--journal", type=Path)
    options.add_argument("--port", type=int, default=0)
    chosen = options.parse_args()
    script = json.loads(chosen.script.read_text()) if chosen.script else []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Provider(script, port=chosen.port, journal=chosen.journal) as provider:
        sys.stdout.write(f"{provider.url}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
