"""A history that several programs write: Hermes reads all of it, and all read what Hermes wrote."""

from __future__ import annotations

import base64

from holdfast import File, Message, Store, Text, Thinking, ToolCall, Usage
from holdfast.adapters.hermes import SessionManager
from holdfast.testing.legality import problems

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def test_hermes_continues_what_another_program_wrote(store: Store) -> None:
    session = store.session("chat-7", cwd="/work", model="large-2")
    session.append(
        Message.user(["What is this?", File("dot.png", "image/png", PNG)]),
        Message.assistant(
            [Thinking("A dot.", signature="s"), Text("Let me look.")],
            tool_calls=[ToolCall("c1", "look", {"at": "dot"}), ToolCall("c2", "look", {})],
            usage=Usage(5, 3),
        ),
        Message.tool("c1", "red"),
        Message.tool("c2", [Text("small")], error=True),
        Message.assistant("A dot."),
    )
    manager = SessionManager(store, object)
    state = manager.get_session("chat-7")
    assert (state.cwd, state.model) == ("/work", "large-2")
    assert [item["role"] for item in state.history] == [
        "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    image = state.history[0]["content"][1]["image_url"]["url"]
    assert image == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert state.history[1]["reasoning"] == "A dot."
    assert [call["id"] for call in state.history[1]["tool_calls"]] == ["c1", "c2"]
    state.history.append({"role": "user", "content": "Thanks"})
    manager.save_session("chat-7")
    assert session.messages()[-1].text == "Thanks"
    assert len(session.branches()) == 1


def test_all_providers_take_what_hermes_wrote(store: Store) -> None:
    manager = SessionManager(store, object)
    state = manager.create_session("/work")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    state.history = [
        {"role": "user", "content": "Add", "timestamp": 1.5, "message_id": "77"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "so"},
        {"role": "tool", "tool_call_id": "c1", "tool_name": "add", "content": "2"},
        {"role": "assistant", "content": "2", "finish_reason": "stop", "codex_message_items": [1]},
        {"role": "user", "content": "Again"},
    ]
    manager.save_session(state.session_id)
    session = store.session(state.session_id, create=False)
    for provider in ("openai", "openai-responses", "anthropic", "gemini"):
        window = session.window(provider=provider)
        assert problems(provider, window.messages, window.system) == []
    sent = session.window().messages
    assert {name for item in sent for name in item} == {
        "role", "content", "tool_calls", "tool_call_id",
    }  # fmt: skip
    assert session.messages()[2].tool_results[0].name == "add"
