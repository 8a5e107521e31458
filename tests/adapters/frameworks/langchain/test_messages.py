"""Each message of LangChain comes back equal, and is a message for every other program."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)

from holdfast import File, Message, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.langchain import HoldfastChatMessageHistory
from holdfast.adapters.langchain_messages import from_message, from_messages, to_message
from holdfast.errors import BadMessage

CALL = {"name": "look", "args": {"at": "post"}, "id": "call_1", "type": "tool_call"}
LONG = "0123456789" * 1000
PNG = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}

MESSAGES: dict[str, BaseMessage] = {
    "human": HumanMessage("hello"),
    "human with an id": HumanMessage("hello", id="7", name="Ada", example=True),
    "human with an extra field": HumanMessage("hello", mood="glad", additional_kwargs={"a": [1.0]}),
    "human with blocks": HumanMessage(
        [
            "one",
            {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            PNG,
            {"type": "image", "source_type": "base64", "data": "aGk=", "mime_type": "image/png"},
            {"type": "file", "base64": "not base64", "mime_type": "text/plain"},
            {"type": "audio", "url": "https://example.org/a.wav"},
            {"type": "text", "text": 7},
            {"no": "type"},
            {"type": "tool_use", "id": ["no id"]},
        ]
    ),
    "any text": HumanMessage("\ud800 \x00 \u2028 é e\u0301"),
    "empty": HumanMessage(""),
    "no blocks": AIMessage([]),
    "ai with a call": AIMessage(
        "I look.",
        tool_calls=[CALL],
        usage_metadata={
            "input_tokens": 12,
            "output_tokens": 5,
            "total_tokens": 17,
            "input_token_details": {"cache_read": 4, "cache_creation": 2, "audio": 1},
            "output_token_details": {"reasoning": 3},
        },
        response_metadata={"model_name": "small-1", "finish_reason": "tool_calls", "x": {"y": 1.5}},
        id="lc_run--1",
    ),
    "ai of Anthropic": AIMessage(
        [
            {"type": "thinking", "thinking": "Look.", "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "c2VhbGVk"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "post"}},
        ],
        tool_calls=[CALL],
    ),
    "ai that reasons": AIMessage("So.", additional_kwargs={"reasoning_content": "Look."}),
    "ai with reasoning": AIMessage([{"type": "reasoning", "reasoning": "Look."}, "So."]),
    "ai with a call that is not JSON": AIMessage(
        "",
        additional_kwargs={
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "n", "arguments": "{"}}
            ]
        },
    ),
    "ai with a call without an id": AIMessage("", tool_calls=[{**CALL, "id": None}]),
    "tool": ToolMessage("found", tool_call_id="call_1", name="look"),
    "tool with an error": ToolMessage("lost", tool_call_id="call_1", status="error"),
    "tool with blocks": ToolMessage(
        ["found", {"type": "text", "text": "it"}, PNG], tool_call_id="call_1", artifact={"a": [1]}
    ),
    "system": SystemMessage("Be brief."),
    "chat": ChatMessage("hm", role="critic"),
    "function": FunctionMessage("found", name="look"),
    "remove": RemoveMessage(id="7"),
    "ai chunk": AIMessageChunk(
        "So",
        tool_call_chunks=[
            {"name": "look", "args": '{"at"', "id": "c", "index": 0, "type": "tool_call_chunk"}
        ],
    ),
    "human chunk": HumanMessageChunk("So"),
    "system chunk": SystemMessageChunk("So"),
    "chat chunk": ChatMessageChunk("So", role="critic"),
    "function chunk": FunctionMessageChunk("So", name="look"),
    "tool chunk": ToolMessageChunk("So", tool_call_id="call_1"),
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_message_comes_back_equal(history: HoldfastChatMessageHistory, name: str) -> None:
    message = MESSAGES[name]
    history.add_message(message)
    for (found,) in (history.messages, await history.aget_messages()):
        assert type(found) is type(message)
        assert found == message
        assert json.dumps(found.model_dump()) == json.dumps(message.model_dump())


def test_calls_that_were_taken_away_do_not_come_back(history: HoldfastChatMessageHistory) -> None:
    function = {"name": "pay", "arguments": "{}"}
    raw = {"id": "1", "type": "function", "function": function}
    message = AIMessage("", additional_kwargs={"tool_calls": [raw]})
    assert len(message.tool_calls) == 1
    message.tool_calls = []
    history.add_message(message)
    (found,) = history.messages
    assert isinstance(found, AIMessage)
    assert found == message
    assert found.tool_calls == []


def test_all_types_of_messages_are_tried() -> None:
    def subclasses(kind: type[BaseMessage]) -> set[type[BaseMessage]]:
        found = {one for child in kind.__subclasses__() for one in {child, *subclasses(child)}}
        return {one for one in found if one.__module__.startswith("langchain_core.messages")}

    abstract = {kind for kind in subclasses(BaseMessage) if kind.__name__ == "BaseMessageChunk"}
    assert {type(message) for message in MESSAGES.values()} == subclasses(BaseMessage) - abstract


def test_a_message_is_one_for_every_other_program() -> None:
    reply = to_message(MESSAGES["ai with a call"])
    assert reply.role == "assistant"
    assert reply.id == "lc_run--1"
    assert reply.parts[:2] == (Text("I look."), ToolCall("call_1", "look", {"at": "post"}))
    assert reply.usage == Usage(12, 5, cache_read=4, cache_write=2, reasoning=3)
    assert reply.model == "small-1"

    thought = to_message(MESSAGES["ai of Anthropic"])
    assert thought.parts[0] == Thinking("Look.", "c2lnbmVk")
    assert thought.tool_calls == (ToolCall("call_1", "look", {"at": "post"}),)
    for name in ("ai that reasons", "ai with reasoning"):
        assert to_message(MESSAGES[name]).parts[:2] == (Thinking("Look."), Text("So."))

    failed = to_message(MESSAGES["tool with an error"])
    assert failed.role == "tool"
    assert failed.tool_results == (ToolResult("call_1", "lost", error=True),)
    shown = to_message(MESSAGES["human with blocks"])
    assert (shown.role, shown.text) == ("user", "one\ntwo")
    assert [bytes(file.data or b"") for file in shown.files] == [
        b"\x89PNG\r\n\x1a\n",
        b"\x89PNG\r\n\x1a\n",
        b"hi",
    ]
    assert to_message(MESSAGES["tool with blocks"]).tool_results[0].text == "found\nit"


@pytest.mark.parametrize(
    ("role", "ours"),
    [("assistant", "assistant"), ("System", "system"), ("critic", "user"), ("tool", "user")],
)
def test_an_unknown_role_is_trusted_as_a_user_is(role: str, ours: str) -> None:
    assert to_message(ChatMessage("x", role=role)).role == ours


def test_a_conversation_can_be_sent_to_any_model(
    store: Store, history: HoldfastChatMessageHistory
) -> None:
    history.add_messages(
        [
            MESSAGES["system"],
            MESSAGES["human with blocks"],
            MESSAGES["ai with a call"],
            MESSAGES["tool with blocks"],
            MESSAGES["remove"],
            MESSAGES["ai that reasons"],
        ]
    )
    session = store.session("support-42")
    for provider in ("openai", "openai-responses", "anthropic", "gemini"):
        window = session.window(provider=provider)
        shown = json.dumps([*window])
        assert "I look." in shown
        assert "found" in shown
    roles = [item["role"] for item in session.window()]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage(LONG),
        HumanMessage([{"type": "text", "text": LONG}, {"type": "x", "y": {"z": LONG + "1"}}]),
        AIMessage("", tool_calls=[{"name": "write", "args": {"text": LONG}, "id": "1"}]),
        AIMessage(
            [{"type": "tool_use", "id": "1", "name": "write", "input": {"text": LONG}}],
            tool_calls=[{"name": "write", "args": {"text": LONG}, "id": "1"}],
        ),
        ToolMessage(LONG, tool_call_id="1", artifact={"whole": LONG}),
        AIMessage("x", additional_kwargs={"reasoning_content": LONG}),
    ],
)
def test_a_long_text_is_stored_once(
    store: Store, history: HoldfastChatMessageHistory, message: BaseMessage
) -> None:
    history.add_message(message)
    (stored,) = store.session("support-42").messages()
    longer = repr(stored).count(LONG + "1")
    assert repr(stored).count(LONG) - longer == 1
    assert history.messages == [message]


def test_messages_of_other_programs_are_messages_of_langchain(
    store: Store, history: HoldfastChatMessageHistory
) -> None:
    session = store.session("support-42")
    session.append(
        Message.system("Be brief.", id="s"),
        Message.user(["Look:", File(mime="image/png", data=b"png")], id="u"),
        Message.assistant(
            [Thinking("hm"), "I look."],
            tool_calls=[ToolCall("a", "look", {"x": 1}), ToolCall("b", "look", "{not JSON")],
            model="other-1",
            usage=Usage(12, 5, cache_read=4, cache_write=2, reasoning=3),
            id="a",
        ),
        Message(
            role="tool",
            id="t",
            parts=(ToolResult("a", "found", name="look"), ToolResult("b", "lost", error=True)),
        ),
        Message.user("not for models", metadata={"hidden": True}),
        Message.user("/model large", metadata={"command": True}),
    )
    head = session.append(Message.assistant("Done.", id="d"))
    session.summarize("They looked.")
    session.append(Message.user("secret", id="e"))
    session.erase("e")
    assert head.seq == 7

    system, user, reply, first, second, done, summary = history.messages
    assert system == SystemMessage("Be brief.", id="s")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
    assert user == HumanMessage([{"type": "text", "text": "Look:"}, image], id="u")
    assert isinstance(reply, AIMessage)
    assert (reply.content, reply.id) == ("I look.", "a")
    assert [(call["id"], call["args"]) for call in reply.tool_calls] == [("a", {"x": 1})]
    assert [call["args"] for call in reply.invalid_tool_calls] == ["{not JSON"]
    assert reply.usage_metadata == {
        "input_tokens": 12,
        "output_tokens": 5,
        "total_tokens": 17,
        "input_token_details": {"cache_read": 4, "cache_creation": 2},
        "output_token_details": {"reasoning": 3},
    }
    assert reply.response_metadata == {"model_name": "other-1"}
    assert first == ToolMessage("found", tool_call_id="a", name="look", id="t")
    assert second == ToolMessage("lost", tool_call_id="b", status="error", id="t/1")
    assert done == AIMessage("Done.", id="d")
    assert isinstance(summary, HumanMessage)
    assert str(summary.content).endswith("They looked.")


def test_a_message_with_several_results_is_not_one() -> None:
    several = Message(role="tool", parts=(ToolResult("a", "1"), ToolResult("b", "2")))
    with pytest.raises(BadMessage, match="2 messages"):
        from_message(several)
    assert len(from_messages([several])) == 2


@pytest.mark.parametrize(
    "message",
    [
        ToolMessage("x", tool_call_id="1", artifact=object()),
        HumanMessage("x", additional_kwargs={"at": float("nan")}),
        HumanMessage("x", additional_kwargs={7: "x"}),
        HumanMessage("x", id="y" * 5000),
        Message.user("ours"),
    ],
)
def test_what_cannot_come_back_is_refused(
    history: HoldfastChatMessageHistory, message: BaseMessage
) -> None:
    with pytest.raises(BadMessage):
        history.add_messages([HumanMessage("before"), message])
    assert history.messages == []


def test_a_type_of_a_users_own_is_refused(history: HoldfastChatMessageHistory) -> None:
    class Note(BaseMessage):
        type: str = "note"

    with pytest.raises(BadMessage, match="note"):
        history.add_message(Note("x"))


@pytest.mark.parametrize("count", [-1, 2**70, 0])
def test_a_count_of_tokens_that_cannot_be_loses_no_message(
    history: HoldfastChatMessageHistory, count: int
) -> None:
    usage = {"input_tokens": count, "output_tokens": 1, "total_tokens": count}
    message = AIMessage("x", usage_metadata=usage)
    history.add_message(message)
    assert history.messages == [message]


def test_the_history_of_which_one_message_was_amended_is_read(
    store: Store, history: HoldfastChatMessageHistory
) -> None:
    calling = AIMessage("I look.", tool_calls=[{**CALL, "args": {"at": LONG}}], id="a")
    history.add_messages([calling, HumanMessage("Thanks.", id="b")])
    text, _call, *rest = store.session("support-42").message("a").parts
    store.session("support-42").amend("a", [text, *rest])
    assert history.messages == [AIMessage("I look.", id="a"), HumanMessage("Thanks.", id="b")]


def test_a_file_that_is_not_passed_is_not_left_out(
    store: Store, history: HoldfastChatMessageHistory
) -> None:
    history.add_message(HumanMessage([PNG]))
    store.session("support-42").append(Message.user([File(mime="image/png", data=b"png")]))
    for message in store.session("support-42").messages():
        with pytest.raises(BadMessage, match="blob"):
            from_message(message)


def test_a_call_whose_arguments_another_program_kept_as_text_is_valid() -> None:
    """OpenAI's models put spaces into the JSON, so it is kept as they wrote it."""
    (found,) = from_messages([Message.assistant(tool_calls=[ToolCall("c", "find", '{"id": 7}')])])
    assert isinstance(found, AIMessage)
    assert [call["args"] for call in found.tool_calls] == [{"id": 7}]
    assert not found.invalid_tool_calls
