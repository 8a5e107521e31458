"""What a provider publishes comes back as it was: messages of requests, and whole replies."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import anthropic.types
import openai.types.chat
import openai.types.responses
import pytest
from hypothesis import HealthCheck, assume, given, settings

import holdfast
from holdfast import formats
from holdfast.errors import BadMessage
from holdfast.formats.difference import is_same
from holdfast.formats.registry import format_of
from holdfast.values import JSON, Message, Provider, Text, ToolCall, Usage
from tests.formats.genai import types as genai
from tests.formats.schemas import values_of
from tests.formats.stored import stored

Item = dict[str, JSON]

REQUESTS: dict[Provider, Any] = {
    "openai": openai.types.chat.ChatCompletionMessageParam,
    "openai-responses": openai.types.responses.ResponseInputItemParam,
    "anthropic": anthropic.types.MessageParam,
    "gemini": genai.Content,
}
REPLIES: dict[Provider, Any] = {
    "openai": openai.types.chat.ChatCompletion,
    "openai-responses": openai.types.responses.Response,
    "anthropic": anthropic.types.Message,
    "gemini": genai.GenerateContentResponse,
}
_some = settings(
    max_examples=max(1, settings().max_examples // 2),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _check_exact(provider: Provider, item: Item) -> Message:
    message = format_of(provider).decode(item)
    for one in (message, stored(message)):
        back = formats.kept(one, provider)
        assert back is not None
        assert is_same(back, item)
    return message


@pytest.mark.parametrize("provider", REQUESTS)
def test_a_message_of_the_published_type_comes_back(provider: Provider) -> None:
    """Unknown fields, nulls, empty lists, lone surrogates and long numbers included."""

    @_some
    @given(values_of(REQUESTS[provider]))
    def check(item: Item) -> None:
        # A reference may lack its type; with fields of the future it is nothing we know.
        assume(provider != "openai-responses" or {"type", "role"} & item.keys())
        message = _check_exact(provider, item)
        if not _is_corrected(provider, item):
            assert is_same([*format_of(provider).encode(message)], [item])

    check()


def _is_corrected(provider: Provider, item: Item) -> bool:
    """True if `encode` leaves out or puts right what the service refuses in a request."""
    if provider == "gemini":
        return not isinstance(item.get("parts"), list)
    if provider == "openai-responses":
        return item.get("output") == [] or _is_of_the_wrong_side(item)
    if provider != "openai":
        return False
    name, calls = item.get("name"), item.get("tool_calls")
    has_bad_name = isinstance(name, str) and not re.fullmatch("[a-zA-Z0-9_-]{1,64}", name)
    has_bad_calls = calls == [] or (bool(calls) and item.get("function_call") is not None)
    return has_bad_name or has_bad_calls or item.get("content") == []


def _is_of_the_wrong_side(item: Item) -> bool:
    """True if a reply consists of input, or a request of output."""
    content = item.get("content")
    given = (
        {piece.get("type") for piece in content if isinstance(piece, dict)}
        if isinstance(content, list)
        else set()
    )
    theirs, ours = {"output_text", "refusal"}, {"input_file", "input_image", "input_text"}
    return not given.isdisjoint(ours if item.get("role") == "assistant" else theirs)


@pytest.mark.parametrize("provider", REPLIES)
def test_a_reply_of_the_published_type_comes_back(provider: Provider) -> None:
    @_some
    @given(values_of(REPLIES[provider]))
    def check(item: Item) -> None:
        _check_exact(provider, item)

    check()


# ------------------------------------------------------------------------------------- each reply


_TEXT = "It is on its way, and will be there in the morning."
_ANTHROPIC: Item = {
    "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-8",
    "content": [
        {"type": "text", "text": _TEXT},
        {"type": "tool_use", "id": "toolu_1", "name": "track", "input": {"id": 17}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "output_tokens": 7,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 3},
    },
}
_OPENAI: Item = {
    "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    "object": "chat.completion",
    "created": 1741569952,
    "model": "gpt-5",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": _TEXT,
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {
                        "id": "toolu_1",
                        "type": "function",
                        "function": {"name": "track", "arguments": '{"id":17}'},
                    }
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 115,
        "completion_tokens": 7,
        "total_tokens": 122,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
    "system_fingerprint": None,
}
_RESPONSE: Item = {
    "id": "resp_67ccd3a9da748190baa7f1570fe91ac604becb25c45c1d41",
    "object": "response",
    "created_at": 1741476777,
    "status": "completed",
    "model": "gpt-5",
    "output": [
        {
            "id": "msg_67ccd3acc8d48190a77525dc6de64b4104becb25c45c1d41",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": _TEXT, "annotations": []}],
        },
        {
            "id": "fc_67ccd3acc8d48190a77525dc6de64b4104becb25c45c1d41",
            "type": "function_call",
            "status": "completed",
            "call_id": "toolu_1",
            "name": "track",
            "arguments": '{"id":17}',
        },
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "incomplete_details": None,
    "usage": {
        "input_tokens": 115,
        "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 5},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 122,
    },
}
_GEMINI: Item = {
    "responseId": "mAitaLmkHPPlz7IPvtfUqQ4",
    "modelVersion": "gemini-3-pro",
    "candidates": [
        {
            "index": 0,
            "finishReason": "STOP",
            "content": {
                "role": "model",
                "parts": [
                    {"text": _TEXT},
                    {"functionCall": {"id": "toolu_1", "name": "track", "args": {"id": 17}}},
                ],
            },
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 110,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 4,
        "thoughtsTokenCount": 3,
        "cachedContentTokenCount": 100,
        "totalTokenCount": 122,
    },
}
SAMPLES: dict[Provider, Item] = {
    "openai": _OPENAI,
    "openai-responses": _RESPONSE,
    "anthropic": _ANTHROPIC,
    "gemini": _GEMINI,
}
_IDS: dict[Provider, str] = {
    provider: str(item.get("id") or item["responseId"]) for provider, item in SAMPLES.items()
}
each_provider = pytest.mark.parametrize("provider", SAMPLES)


def _exactly(provider: Provider, message: Message) -> JSON:
    """Return what the module's own `encode` returns for a reply."""
    module = import_module(f"holdfast.formats.{provider.replace('-', '_')}")
    written: JSON = module.encode(message, reply=True)
    return written[0] if isinstance(written, list) else written


@each_provider
def test_a_reply_is_a_message_with_its_id_model_and_usage(provider: Provider) -> None:
    message = format_of(provider).decode(SAMPLES[provider])
    assert message.role == "assistant"
    assert [part for part in message.parts if isinstance(part, Text | ToolCall)] == [
        Text(_TEXT),
        ToolCall("toolu_1", "track", {"id": 17}),
    ]
    assert message.id == _IDS[provider]
    assert message.model == str(SAMPLES[provider].get("model") or "gemini-3-pro")
    wrote = 0 if provider == "gemini" else 5
    assert message.usage == Usage(
        input=115, output=7, cache_read=100, cache_write=wrote, reasoning=3
    )


@each_provider
def test_a_reply_comes_back_and_only_its_message_is_sent(provider: Provider) -> None:
    reply = SAMPLES[provider]
    message = format_of(provider).decode(reply)
    assert _exactly(provider, message) == _exactly(provider, stored(message)) == reply
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(Message.user("Where is it?"), message, Message.tool("toolu_1", "in Oslo"))
        sent = str(session.window(provider=provider).messages)
        assert _exactly(provider, session.messages()[1]) == reply
    assert _TEXT in sent
    for inner in ("gpt-5", "claude", "gemini-3", "stop", "STOP", "122", _IDS[provider]):
        assert inner not in sent


@each_provider
def test_what_the_package_dumps_of_a_reply_comes_back(provider: Provider) -> None:
    """With a null for every field that was not set."""
    reply = REPLIES[provider].model_validate(SAMPLES[provider])
    aliased: Any = {"mode": "json", "by_alias": True} if provider == "gemini" else {}
    dumped: Item = reply.model_dump(**aliased)
    assert dumped != SAMPLES[provider]
    assert _exactly(provider, format_of(provider).decode(dumped)) == dumped


@pytest.mark.parametrize(
    ("provider", "reply"),
    [
        ("openai", {**_OPENAI, "choices": []}),
        ("openai-responses", {**_RESPONSE, "output": []}),
        ("anthropic", {**_ANTHROPIC, "content": []}),
        ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}),
        ("gemini", {"candidates": [{"finishReason": "SAFETY"}]}),
    ],
)
def test_a_reply_without_a_word_is_an_empty_message(provider: Provider, reply: Item) -> None:
    message = _check_exact(provider, reply)
    assert (message.role, message.text, message.tool_calls) == ("assistant", "", ())


def test_other_choices_are_kept() -> None:
    """They are no part of the conversation."""
    choice = _OPENAI["choices"][0]  # type: ignore[index]
    reply: Item = {**_OPENAI, "choices": [choice, {**choice, "index": 1}]}  # type: ignore[dict-item]
    assert _check_exact("openai", reply).text == _TEXT


@pytest.mark.parametrize(
    ("provider", "reply", "field"),
    [
        ("openai", {"choices": {}}, "choices: expected a list, got dict"),
        ("openai", {"choices": [{"delta": {}}]}, r"choices\[0\].message: expected a message"),
        ("openai-responses", {"object": "response"}, "output: expected a list"),
        ("openai-responses", {"object": "response", "output": [1]}, r"output\[0\]"),
        ("gemini", {"candidates": {}}, "candidates: expected a list"),
        ("gemini", {"candidates": [1]}, r"candidates\[0\]: expected an object"),
        ("gemini", {"candidates": [{"content": 1}]}, r"candidates\[0\].content"),
        ("gemini", {"usage_metadata": {}}, "usage_metadata is not a field .* by_alias"),
        ("anthropic", {"type": "message", "content": b""}, "a message: bytes is not JSON"),
    ],
)
def test_what_is_no_reply_is_refused_with_its_field(
    provider: Provider, reply: Item, field: str
) -> None:
    with pytest.raises(BadMessage, match=field):
        format_of(provider).decode(reply)


def test_a_reply_that_is_no_dict_yet_is_refused_with_the_way() -> None:
    reply = anthropic.types.Message.model_validate(_ANTHROPIC)
    with pytest.raises(BadMessage, match=r"got Message; pass its model_dump\(\)"):
        format_of("anthropic").decode(reply)  # type: ignore[arg-type]


@pytest.mark.parametrize("id", ["chatcmpl-123", "x" * 5_000, None, 5])
def test_an_id_that_may_not_be_unique_is_not_a_message_s(id: JSON) -> None:
    """Some servers draw them from a thousand numbers; the store takes none beyond a limit."""
    message = _check_exact("openai", {**_OPENAI, "id": id})
    assert message.id not in {id, _IDS["openai"]}


def test_an_item_that_refers_to_another_has_an_id_of_its_own() -> None:
    item = _RESPONSE["output"][0]  # type: ignore[index]
    reference: Item = {"type": "item_reference", "id": item["id"]}  # type: ignore[index,call-overload]
    decode = format_of("openai-responses").decode
    assert decode(item).id == reference["id"]  # type: ignore[arg-type]
    assert decode(reference).id != reference["id"]


@pytest.mark.parametrize("count", [True, -1, 2**60, "7", None])
def test_a_count_that_is_none_is_not_counted(count: JSON) -> None:
    """And the store takes the reply."""
    message = _check_exact("anthropic", {**_ANTHROPIC, "usage": {"output_tokens": count}})
    assert message.usage == Usage()
