"""Hermes' own agent, with a model on this machine that says what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.adapters.hermes import SessionManager


class Model(BaseHTTPRequestHandler):
    """A server of chat completions that counts the messages it was sent."""

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("/chat/completions"):
            self.send_error(404)
            return
        said = [m["content"] for m in request["messages"] if m["role"] != "system"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self._send({"content": f"I was sent {len(said)}."}, None)
        self._send({}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, delta: dict[str, str], reason: str | None) -> None:
        choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": reason}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "small-1"}
        data = json.dumps({**chunk, "choices": [choice], "usage": usage if reason else None})
        self.wfile.write(f"data: {data}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def model(tmp_path: Path) -> Iterator[None]:
    """Configure Hermes to ask a server that runs during the test."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        (tmp_path / "hermes").mkdir()
        (tmp_path / "hermes" / "config.yaml").write_text(
            f"model: {{default: small-1, provider: custom, base_url: '{url}', api_key: k}}\n"
        )
        yield
        server.shutdown()


def prompt(manager: SessionManager, session_id: str, text: str) -> str:
    """Do what Hermes' ACP server does for a prompt; return the reply."""
    state = manager.get_session(session_id)
    result: dict[str, Any] = state.agent.run_conversation(
        user_message=text, conversation_history=state.history, task_id=session_id
    )
    state.history = result["messages"]
    manager.save_session(session_id)
    return str(result["final_response"])


@pytest.mark.usefixtures("model")
def test_an_agent_of_hermes_stores_each_message_once_and_goes_on_after_a_restart(
    store: Store,
) -> None:
    manager = SessionManager(store)
    id = manager.create_session("/work").session_id
    assert prompt(manager, id, "One") == "I was sent 1."
    assert prompt(manager, id, "Two") == "I was sent 3."
    assert prompt(SessionManager(store), id, "Three") == "I was sent 5."
    session = store.session(id, create=False)
    assert [message.text for message in session.messages()] == [
        "One", "I was sent 1.", "Two", "I was sent 3.", "Three", "I was sent 5.",
    ]  # fmt: skip
    assert len(session.branches()) == 1
    row = manager._get_db().get_session(id)  # noqa: SLF001 - the server's way
    assert (row["model"], row["input_tokens"], row["output_tokens"]) == ("small-1", 15, 6)
    assert "Hermes" in row["system_prompt"]
