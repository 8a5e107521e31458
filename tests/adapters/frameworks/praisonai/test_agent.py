"""PraisonAI's own agent, with a model on this machine that calls a tool and answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from praisonaiagents import Agent
from praisonaiagents.session import store as session_store

from holdfast import Store
from holdfast.adapters.praisonai import BotSessionManager, DefaultSessionStore, LocalManagedAgent

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


class Model(BaseHTTPRequestHandler):
    """A server of chat completions that calls `add` once for each question."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = request["messages"][-1]["role"] == "user"
        reply: dict[str, Any] = {"role": "assistant", "content": "It is 2."}
        if asked and request.get("tools"):
            reply = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        reason = "tool_calls" if "tool_calls" in reply else "stop"
        self.send_response(200)
        if request.get("stream"):
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self._write("data: ", "delta", reply, None)
            self._write("\n\ndata: ", "delta", {}, reason)
            self.wfile.write(b"\n\ndata: [DONE]\n\n")
        else:
            self.send_header("content-type", "application/json")
            self.end_headers()
            self._write("", "message", reply, reason)

    def _write(self, start: str, field: str, reply: dict[str, Any], reason: str | None) -> None:
        kind = "chat.completion.chunk" if field == "delta" else "chat.completion"
        choice = {"index": 0, field: reply, "finish_reason": reason}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        head = {"id": "1", "object": kind, "created": 1, "model": "small-1", "usage": usage}
        self.wfile.write(f"{start}{json.dumps({**head, 'choices': [choice]})}".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def add() -> int:
    """Add one and one."""
    return 2


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Agent]]:
    """Make agents that ask a server which runs during the test."""
    monkeypatch.setenv("PRAISONAI_TELEMETRY_DISABLED", "true")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_BASE", url)
        yield lambda **options: Agent(
            name="adder", instructions="Add.", llm="gpt-4o-mini", tools=[add], **options
        )
        server.shutdown()


def roles(store: Store, session_id: str) -> list[str]:
    return [message.role for message in store.session(session_id, create=False).messages()]


def test_an_agent_of_praisonai_has_its_conversation_in_the_store(
    store: Store, agents: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "_default_store", DefaultSessionStore(store))
    options = {"memory": {"session_id": "sums"}, "output": "silent"}
    agent = agents(**options)
    assert agent.chat("1 + 1?") == "It is 2."
    assert "".join(agent.iter_stream("And again?")) == "It is 2."
    assert agents(**options).chat("Sure?") == "It is 2."
    assert roles(store, "sums") == [
        *("user", "assistant"),
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]
    session = store.session("sums")
    assert [call.name for call in session.messages()[3].tool_calls] == ["add"]
    assert (session.info().state, len(session.branches())) == ("done", 1)
    assert session.info().metadata["praisonai.agent_name"] == "adder"


async def test_an_agent_of_praisonai_is_managed_and_answers_as_a_bot(
    store: Store, agents: Callable[..., Agent]
) -> None:
    managed = LocalManagedAgent(store, lambda: agents(output="silent"))
    assert await managed.execute("1 + 1?") == "It is 2."
    assert await managed.execute("And again?") == "It is 2."
    assert roles(store, managed.session_id or "") == ["user", "assistant", "tool", "assistant"] * 2
    bot = BotSessionManager(store, platform="telegram")
    assert await bot.chat(agents(output="silent"), "u", "1 + 1?") == "It is 2."
    assert roles(store, "bot_telegram_u") == ["user", "assistant"]


def test_an_agent_of_praisonai_delegates_to_a_managed_one(
    store: Store, agents: Callable[..., Agent], scripted: Callable[[], Any]
) -> None:
    managed = LocalManagedAgent(store, scripted)
    front = agents(output="silent", backend=managed)
    assert front.start("hello") == "0: hello!"
    assert front.start("again") == "2: again!"
    assert roles(store, managed.session_id or "") == ["user", "assistant"] * 2
