"""A conversation with Claude Code itself, over a model's server of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_agent_sdk import ClaudeAgentOptions, project_key_for_directory, query

from holdfast import Message, Store, ToolCall
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore


class ModelServer(ThreadingHTTPServer):
    """A model that answers every request with the number of the request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ModelHandler)
        self.requests: list[dict[str, Any]] = []


class ModelHandler(BaseHTTPRequestHandler):
    """One request of Anthropic's Messages API, streamed or not."""

    server: ModelServer

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        request = json.loads(self.rfile.read(length) or b"{}")
        if not self.path.partition("?")[0].endswith("/v1/messages"):
            self._send("application/json", json.dumps({"input_tokens": 1}))
            return
        self.server.requests.append(request)
        message = self._message(request)
        if request.get("stream"):
            self._send("text/event-stream", "".join(map(_event, _events(message))))
        else:
            self._send("application/json", json.dumps(message))

    def _message(self, request: dict[str, Any]) -> dict[str, Any]:
        number = len(self.server.requests)
        return {
            "id": f"msg_{number:024}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [{"type": "text", "text": f"Answer {number}."}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }

    def _send(self, kind: str, body: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (block,) = message["content"]
    delta = {"type": "text_delta", "text": block["text"]}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": {**block, "text": ""}}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _event(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_claude_code_resumes_what_another_program_continued(
    store: Store, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / ".claude"))
    sessions = HoldfastSessionStore(store)
    environment = {
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }

    async def ask(prompt: str, resume: str | None = None) -> str:
        options = ClaudeAgentOptions(
            cwd=folder, session_store=sessions, env=environment, resume=resume
        )
        with anyio.fail_after(120):
            said = [message async for message in query(prompt=prompt, options=options)]
        return str(said[-1].session_id)

    session_id = await ask("Where is my parcel?")
    session = store.get(f"{project_key_for_directory(folder)}/{session_id}")
    answer = f"Answer {len(server.requests)}."
    assert [m.text for m in session.messages()] == ["Where is my parcel?", answer]
    session.append(
        Message.user("And in Holdfast?"),
        Message.assistant(tool_calls=[ToolCall("call_1", "look", {"at": "post"})], model="other"),
        Message.tool("call_1", "still there"),
        Message.assistant("At the post.", model="other"),
    )
    assert await ask("And now?", resume=session_id) == session_id

    sent = json.dumps(server.requests[-1]["messages"])
    texts = ["Where is my parcel?", answer, "And in Holdfast?", "still there", "At the post."]
    places = [sent.index(json.dumps(words)) for words in [*texts, "And now?"]]
    assert places == sorted(places)
    stored = [message.text for message in session.messages(role=("user", "assistant"))]
    assert stored[-3:] == ["At the post.", "And now?", f"Answer {len(server.requests)}."]
    assert len(stored) == len({message.id for message in session.messages()}) - 1
