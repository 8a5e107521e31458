"""A message of the framework becomes messages that every program reads, and comes back exactly."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    ImageUrl,
    InstructionBaselinePart,
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from holdfast import File, Message, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.pydantic_ai import HoldfastConversationStore
from holdfast.testing.legality import PROVIDERS, problems

LONG = "a long text " * 900
DATA = bytes(range(256)) * 40  # Its base64 has every character of the alphabet.
PNG = BinaryContent(DATA, media_type="image/png", identifier="chart")
NOW = datetime(2026, 5, 1, 12, 30, 15, 123456, tzinfo=UTC)


def returned(content: object, **fields: object) -> ModelRequest:
    return ModelRequest([ToolReturnPart("look", content, "call-1", timestamp=NOW, **fields)])


MESSAGES: dict[str, ModelMessage] = {
    "a prompt": ModelRequest.user_text_prompt("Hello", instructions="Be short."),
    "a system prompt and a prompt": ModelRequest(
        [SystemPromptPart("Be nice.", dynamic_ref="x"), UserPromptPart("Hi")],
        timestamp=NOW,
        run_id="run-1",
        conversation_id="c",
        metadata={"a": [1, 1.0, True, None]},
    ),
    "content of all kinds": ModelRequest(
        [
            UserPromptPart(
                [
                    "see",
                    TextContent("this", metadata={"from": "b"}),
                    PNG,
                    ImageUrl("https://example.org/a.png", vendor_metadata={"detail": "low"}),
                    CachePoint(),
                    UploadedFile("file-1", provider_name="openai"),
                ]
            )
        ]
    ),
    "a reply of all kinds": ModelResponse(
        [
            ThinkingPart("hm", signature="c2ln", provider_name="anthropic", id="rs_1"),
            TextPart("Hello", id="m", provider_name="x", provider_details={"logprobs": [0.5]}),
            ToolCallPart("look", '{"at":1}', "call-1"),
            ToolCallPart("look", '{"at": 1}', "call-2"),
            ToolCallPart("look", {"at": "ä", "n": 1.0}, "call-3", id="fc_1", provider_name="x"),
            ToolCallPart("look", None, "call-4"),
            ToolCallPart("look", "", "call-5"),
            NativeToolCallPart("web_search", {"q": "b"}, "n-1", provider_name="openai"),
            NativeToolReturnPart("web_search", {"found": [1]}, "n-1", provider_name="openai"),
            FilePart(PNG),
        ],
        usage=RequestUsage(
            input_tokens=9, output_tokens=4, cache_read_tokens=2, details={"x": 1}, cost=Decimal(1)
        ),
        model_name="claude-x",
        provider_name="anthropic",
        provider_response_id="msg_1",
        provider_details={"raw": {"a": []}},
        finish_reason="tool_call",
        timestamp=NOW,
    ),
    "results, a retry and a prompt": ModelRequest(
        [
            ToolReturnPart("look", "found", "call-1", metadata={"rows": 3}),
            ToolReturnPart("look", "no", "call-2", outcome="failed"),
            RetryFeedbackPart("Say it again.", retry=RetryInfo("model_retry", attempt=1)),
            UserPromptPart("And?"),
        ]
    ),
    "nothing said": ModelRequest([]),
    "no reply": ModelResponse([], state="interrupted"),
    "state alone": ModelRequest([ToolAvailabilityDeltaPart(tools_added=["look"])]),
    "state around a prompt": ModelRequest(
        [
            InstructionBaselinePart(instructions=[InstructionPart("Be short.")]),
            UserPromptPart("Hi"),
            ToolAvailabilityDeltaPart(tools_added=["look"]),
        ]
    ),
    "a summary": ModelRequest([CompactionPart("They said hello.")]),
    "a provider's summary and speech": ModelResponse(
        [
            CompactionPart("They said hello.", provider_name="anthropic"),
            SpeechPart(speaker="assistant", transcript="Hello.", audio=PNG),
        ]
    ),
    "an empty text": ModelRequest([UserPromptPart("")]),
    "NUL": ModelRequest([UserPromptPart("a\0b")]),
    "a result of JSON": returned({"rows": [{"a": 1.0, "b": None}], "text": "ä"}),
    "a result that is not of JSON": returned({"n": math.nan, "m": [math.inf]}),
    "a result like what is kept": returned({"json": "[1]"}),
    "a list of texts": returned(["a", "b"]),
    "an empty list": returned([]),
    "no result": returned(None),
    "a number": returned(5),
    "bytes": returned(b"\xff\xfe\xfb"),
    "a file": returned(PNG),
    "a list with files": returned(["see", PNG, {"x": 1}, ImageUrl("https://example.org/a.png")]),
    "a file inside": returned({"charts": [PNG], "note": "below"}),
    "data like a file's": returned({"kind": "binary", "data": "no base64!", "media_type": "a/b"}),
    "data like a link's": returned({"kind": "image-url", "url": "https://example.org/a.png"}),
}


async def stored(conversations: HoldfastConversationStore, *messages: ModelMessage) -> None:
    await conversations.save(Conversation(conversation_id="c", messages=[*messages]))


async def loaded(conversations: HoldfastConversationStore) -> list[ModelMessage]:
    found = await conversations.load("c")
    assert found is not None
    return found.messages


def as_json(messages: list[ModelMessage]) -> object:
    return json.loads(ModelMessagesTypeAdapter.dump_json(messages))


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_message_comes_back_as_the_frameworks_own_json_would_bring_it(
    name: str, conversations: HoldfastConversationStore
) -> None:
    given = [MESSAGES[name]]
    expected = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(given))
    await stored(conversations, *given)
    found = await loaded(conversations)
    assert as_json(found) == as_json(expected)
    assert found == expected


async def test_one_history_of_all_of_them_is_exact_too(
    conversations: HoldfastConversationStore,
) -> None:
    given = [*MESSAGES.values()]
    expected = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(given))
    await stored(conversations, *given)
    assert as_json(await loaded(conversations)) == as_json(expected)
    for limit in (1, 2, 5):
        found = await conversations.load("c", limit=limit)
        assert found is not None
        assert as_json(found.messages) == as_json(expected[-limit:])


async def test_a_lone_surrogate_comes_back_though_it_is_not_json(
    conversations: HoldfastConversationStore,
) -> None:
    given = ModelRequest([UserPromptPart("half \ud800", timestamp=NOW)])
    await stored(conversations, given)
    assert await loaded(conversations) == [given]


async def test_messages_have_the_roles_parts_usage_and_ids_of_what_was_said(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    names = (
        "a system prompt and a prompt",
        "a reply of all kinds",
        "results, a retry and a prompt",
    )
    entries = await conversations.save(
        Conversation(conversation_id="c", messages=[MESSAGES[name] for name in names])
    )
    messages = store.session("c").messages()
    assert [m.role for m in messages] == ["system", "user", "assistant", "tool", "user"]
    assert [messages[1].id, messages[2].id, messages[4].id] == [entry.id for entry in entries]
    reply, results = messages[2], messages[3].tool_results
    assert (messages[0].text, messages[0].created_at) == ("Be nice.", NOW)
    assert reply.usage == Usage(input=9, output=4, cache_read=2)
    assert (reply.model, reply.cost, reply.created_at) == ("claude-x", Decimal(1), NOW)
    assert reply.parts[:2] == (Thinking("hm", "c2ln"), Text("Hello"))
    assert reply.tool_calls[:2] == (
        ToolCall("call-1", "look", {"at": 1}),
        ToolCall("call-2", "look", '{"at": 1}'),
    )
    assert store.blob(str(reply.files[0].sha256)) == DATA
    assert results == (
        ToolResult("call-1", "found", name="look"),
        ToolResult("call-2", "no", error=True, name="look"),
    )
    assert messages[4].text == "Say it again.\nAnd?"


async def test_a_reply_that_was_cut_off_is_partial(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    await stored(conversations, ModelResponse([TextPart("I was")], state="interrupted"))
    assert store.session("c").messages()[0].status == "partial"


@pytest.mark.parametrize(
    "message",
    [
        ModelRequest([SystemPromptPart("s"), UserPromptPart(LONG)]),
        ModelRequest([UserPromptPart(["a", TextContent(LONG)])]),
        ModelResponse([TextPart(LONG)]),
        ModelResponse([ThinkingPart(LONG, signature="s", provider_name="anthropic")]),
        ModelResponse([ToolCallPart("look", {"at": LONG}, "call-1")]),
        ModelResponse([ToolCallPart("look", json.dumps({"at": LONG}), "call-1")]),
        returned(LONG),
        returned({"text": LONG, "n": 1}),
        returned([LONG]),
        returned([LONG, PNG]),
    ],
    ids=lambda message: message.parts[-1].part_kind,
)
async def test_a_text_is_stored_once(
    message: ModelMessage, store: Store, conversations: HoldfastConversationStore
) -> None:
    await stored(conversations, message)
    encoded = b"".join(msgspec.json.encode(m.parts) for m in store.session("c").messages())
    assert encoded.count(LONG.encode()) == 1


async def test_a_file_is_stored_once(
    store: Store, path: Path, conversations: HoldfastConversationStore
) -> None:
    prompt = ModelRequest([UserPromptPart([PNG, PNG])])
    await stored(conversations, prompt, returned([PNG]), returned({"a": [PNG]}))
    encoded = b"".join(msgspec.json.encode(m.parts) for m in store.session("c").messages())
    assert len(encoded) < len(DATA)
    assert store.stats().blobs == 1


async def test_a_window_is_legal_for_every_provider(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    await stored(conversations, *MESSAGES.values())
    for provider in PROVIDERS:
        window = store.session("c").window(provider=provider)
        assert problems(provider, window.messages, window.system) == []


# -------------------------------------------------------------------------- of other programs


async def test_messages_of_other_programs_are_built_from_their_parts(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    session = store.session("c")
    session.append(
        Message.system("Be nice."),
        Message.user(["see", File(mime="image/png", data=DATA)]),
        Message.assistant(
            [Thinking("hm", "c2ln"), Text("Looking.")],
            tool_calls=[ToolCall("call-1", "look", {"at": 1}), ToolCall("call-2", "see", "{")],
            model="claude-x",
            usage=Usage(input=3, output=2),
        ),
        Message.tool("call-1", "found"),
        Message.tool("call-2", [Text("nothing"), File(mime="image/png", data=DATA)], error=True),
        Message.assistant("It is", status="partial"),
    )
    session.summarize("They looked.")
    system, user, reply, first, second, partial, summary = await loaded(conversations)
    assert [part.part_kind for part in system.parts] == ["system-prompt"]
    assert user.parts[0].content == ["see", BinaryContent(DATA, media_type="image/png")]
    thinking, text, call, other = reply.parts
    assert (thinking.content, thinking.signature) == ("hm", "c2ln")
    assert (text.content, reply.model_name, reply.usage.input_tokens) == ("Looking.", "claude-x", 3)
    assert (call.tool_name, call.args, call.tool_call_id) == ("look", {"at": 1}, "call-1")
    assert other.args == "{"
    assert (first.parts[0].tool_name, first.parts[0].content) == ("look", "found")
    assert (second.parts[0].tool_name, second.parts[0].outcome) == ("see", "failed")
    assert second.parts[0].content[1].data == DATA
    assert partial.state == "interrupted"
    assert summary.parts == [CompactionPart("They looked.")]
    assert await loaded(conversations) == [system, user, reply, first, second, partial, summary]


async def test_an_amended_message_is_built_from_its_parts_and_keeps_its_id(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    entries = await conversations.save(
        Conversation(
            conversation_id="c",
            messages=[ModelRequest([UserPromptPart("secret")]), ModelResponse([TextPart("ok")])],
        )
    )
    store.session("c").amend(entries[0].id, "[redacted]")
    found = await conversations.load_entries("c")
    assert found is not None
    assert [entry.id for entry in found] == [entry.id for entry in entries]
    assert found[0].message.parts[0].content == "[redacted]"


async def test_an_erased_message_leaves_an_empty_entry(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    await stored(conversations, ModelRequest([UserPromptPart("secret")]), MESSAGES["a prompt"])
    store.session("c").erase(1)
    erased, prompt = await loaded(conversations)
    assert (erased.parts, prompt) == ([], MESSAGES["a prompt"])


async def test_a_request_that_another_program_cut_in_two_is_what_is_left_of_it(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    await stored(conversations, MESSAGES["a system prompt and a prompt"])
    store.session("c").rewind(1)
    store.session("c").append(Message.user("Hello?"))
    left, prompt = await loaded(conversations)
    assert [part.content for part in left.parts] == ["Be nice."]
    assert [part.content for part in prompt.parts] == ["Hello?"]


@pytest.mark.parametrize("flag", ["hidden", "command"])
async def test_what_no_model_may_be_sent_is_an_empty_entry(
    store: Store, conversations: HoldfastConversationStore, flag: str
) -> None:
    store.session("c").append(
        Message.user("not for models", metadata={flag: True}),
        Message.assistant("neither is this", metadata={flag: True}),
        Message.user("Hello?"),
    )
    first, second, prompt = await loaded(conversations)
    assert (first.parts, second.parts) == ([], [])
    assert prompt.parts[0].content == "Hello?"
