"""Chat completions: messages round-trip unchanged; other providers' become valid ones."""

from __future__ import annotations

import json
from base64 import b64encode
from copy import deepcopy
from datetime import UTC, datetime
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from holdfast import codec
from holdfast.errors import BadMessage
from holdfast.formats import openai
from holdfast.formats.common import write_arguments
from holdfast.formats.openai import SOURCE, decode, encode, encode_all, upgrade_legacy_calls
from holdfast.values import JSON, File, Message, Part, Raw, Text, Thinking, ToolCall, ToolResult
from tests.formats.openai_types import (
    calls,
    files,
    json_values,
    messages,
    raws,
    results,
    results_of,
    results_with_files,
    texts,
    texts_of,
    thoughts,
    validate_chat,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n\x00"
PNG_URL = "data:image/png;base64," + b64encode(PNG).decode()
PDF_URL = "data:application/pdf;base64," + b64encode(b"%PDF-1.7").decode()
WAV = b64encode(b"RIFF\x00\x00\x00\x00WAVE").decode()
BREAKPOINT: JSON = {"mode": "explicit", "ttl": "30m"}

_weather: JSON = {
    "id": "call_abc123",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
}
_spaced: JSON = {
    "id": "call_def456",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{ "city": "Rome" }\n'},
}
_custom: JSON = {
    "id": "call_ghi789",
    "type": "custom",
    "custom": {"name": "run_python", "input": '{"print":1}'},
}
_citation: JSON = {
    "type": "url_citation",
    "url_citation": {"start_index": 0, "end_index": 4, "title": "T", "url": "https://a.example"},
}

# Legal requests, and assistant messages as the service gives them.
PAYLOADS: dict[str, dict[str, JSON]] = {
    "system": {"role": "system", "content": "You are terse."},
    "system, named": {"role": "system", "content": "Hi", "name": "example_user"},
    "system, list": {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    "developer": {"role": "developer", "content": "Talk like a pirate."},
    "developer, list": {
        "role": "developer",
        "name": "ops",
        "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}],
    },
    "user": {"role": "user", "content": "Hello!"},
    "user, empty": {"role": "user", "content": ""},
    "user, named": {"role": "user", "content": "Hello!", "name": "anna-b_1"},
    "user, one text in a list": {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    "user, one empty text in a list": {"role": "user", "content": [{"type": "text", "text": ""}]},
    "user, cache breakpoint": {
        "role": "user",
        "content": [{"type": "text", "text": "Hi", "prompt_cache_breakpoint": BREAKPOINT}],
    },
    "user, image by URL": {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "https://a.example/cat.png"}},
        ],
    },
    "user, image by URL with detail": {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "https://a.example/c.png", "detail": "low"}}
        ],
    },
    "user, image": {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": PNG_URL}},
            {"type": "text", "text": "What is this?"},
        ],
    },
    "user, images with details": {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}},
            {
                "type": "image_url",
                "image_url": {"url": PNG_URL, "detail": "high"},
                "prompt_cache_breakpoint": BREAKPOINT,
            },
        ],
    },
    "user, image of another kind": {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zy8+"}}
        ],
    },
    "user, image in base64 that is not canonical": {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AB=="}}],
    },
    "user, image URL with parameters": {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;name=a;base64,AA=="}}
        ],
    },
    "user, sound": {
        "role": "user",
        "content": [
            {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": WAV, "format": "mp3"}},
        ],
    },
    "user, sound of an unknown format": {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "flac"}}],
    },
    "user, file": {
        "role": "user",
        "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URL}}],
    },
    "user, file without a name": {
        "role": "user",
        "content": [{"type": "file", "file": {"file_data": PDF_URL}}],
    },
    "user, file in bare base64": {
        "role": "user",
        "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": WAV}}],
    },
    "user, file of another kind": {
        "role": "user",
        "content": [
            {"type": "file", "file": {"filename": "a.bin", "file_data": "data:x/y;base64,AAAA"}}
        ],
    },
    "user, uploaded file": {
        "role": "user",
        "content": [{"type": "file", "file": {"file_id": "file-123"}}],
    },
    "user, a piece of the future": {
        "role": "user",
        "content": [{"type": "hologram", "hologram": {"depth": [1, 2.5, None]}}],
    },
    "user, a field of the future": {"role": "user", "content": "Hi", "mood": {"is": ["good"]}},
    "assistant": {"role": "assistant", "content": "Hi!"},
    "assistant, named": {"role": "assistant", "content": "Hi!", "name": "bot"},
    "assistant, reply": {
        "role": "assistant",
        "content": "Hi!",
        "refusal": None,
        "annotations": [],
    },
    "assistant, reply with all its fields": {
        "role": "assistant",
        "content": "Hi!",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    },
    "assistant, citations": {
        "role": "assistant",
        "content": "Paris",
        "annotations": [_citation],
    },
    "assistant, refusal": {
        "role": "assistant",
        "content": None,
        "refusal": "I cannot help with that.",
    },
    "assistant, refusal without content": {"role": "assistant", "refusal": "No."},
    "assistant, refusal as a piece": {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Hm."},
            {"type": "refusal", "refusal": "I cannot help with that."},
        ],
    },
    "assistant, earlier sound": {"role": "assistant", "audio": {"id": "audio_abc"}},
    "assistant, sound": {
        "role": "assistant",
        "content": None,
        "audio": {"id": "audio_a", "data": WAV, "expires_at": 1729018505, "transcript": "Hi"},
    },
    "assistant, call": {"role": "assistant", "content": None, "tool_calls": [_weather]},
    "assistant, call without content": {"role": "assistant", "tool_calls": [_weather]},
    "assistant, call with empty content": {
        "role": "assistant",
        "content": "",
        "tool_calls": [_weather],
    },
    "assistant, parallel calls": {
        "role": "assistant",
        "content": "Looking.",
        "tool_calls": [_weather, _spaced, _custom],
        "refusal": None,
    },
    "assistant, call with a field of the future": {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "f", "arguments": "{}", "strict": True},
                "extra_content": {"google": {"thought_signature": "c2ln"}},
            }
        ],
    },
    "assistant, custom call with a field of the future": {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "custom",
                "custom": {"name": "f", "input": "x", "format": {"type": "text"}},
                "caller": {"type": "direct"},
            }
        ],
    },
    "assistant, call of the old kind": {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "get_weather", "arguments": '{\n  "city": "Paris"\n}'},
    },
    "assistant, reasoning of a compatible server": {
        "role": "assistant",
        "content": "4",
        "reasoning_content": "2 + 2",
    },
    "tool": {"role": "tool", "tool_call_id": "call_abc123", "content": '{"temp":21}'},
    "tool, empty": {"role": "tool", "tool_call_id": "call_abc123", "content": ""},
    "tool, list": {
        "role": "tool",
        "tool_call_id": "call_abc123",
        "content": [
            {"type": "text", "text": "21", "prompt_cache_breakpoint": BREAKPOINT},
            {"type": "text", "text": "degrees"},
        ],
    },
    "tool, one text in a list": {
        "role": "tool",
        "tool_call_id": "call_abc123",
        "content": [{"type": "text", "text": "21"}],
    },
    "tool, named": {
        "role": "tool",
        "tool_call_id": "call_abc123",
        "name": "get_weather",
        "content": "21",
    },
    "function": {"role": "function", "name": "get_weather", "content": "21"},
    "function, nothing": {"role": "function", "name": "get_weather", "content": None},
}
_NOT_IN_TYPES = {"user, a piece of the future", "user, sound of an unknown format"}


@pytest.mark.parametrize("case", PAYLOADS)
def test_a_message_comes_back_as_it_was(case: str) -> None:
    """Deep-equal, storable, and nothing of the caller's is shared or changed."""
    payload = PAYLOADS[case]
    given = deepcopy(payload)
    message = decode(given)
    assert given == payload
    codec.encode(message, NOW)
    for value in given.values():
        if isinstance(value, list | dict):
            value.clear()
    assert encode(message) == payload
    if case not in _NOT_IN_TYPES:
        validate_chat(encode(message))


@pytest.mark.parametrize("case", PAYLOADS)
def test_whoever_changes_a_payload_changes_no_message(case: str) -> None:
    message = decode(PAYLOADS[case])
    before = msgspec.json.encode(message)
    _spoil(encode(message))
    assert msgspec.json.encode(message) == before


def _spoil(value: JSON) -> None:
    if isinstance(value, dict | list):
        for inner in list(value.values()) if isinstance(value, dict) else value:
            _spoil(inner)
        value.clear()


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("user", (Text("Hello!"),)),
        ("user, image", (File(mime="image/png", data=PNG), Text("What is this?"))),
        ("user, file", (File(name="a.pdf", mime="application/pdf", data=b"%PDF-1.7"),)),
        ("assistant, call", (ToolCall("call_abc123", "get_weather", {"city": "Paris"}),)),
        (
            "assistant, call with empty content",
            (Text(""), ToolCall("call_abc123", "get_weather", {"city": "Paris"})),
        ),
        ("tool", (ToolResult("call_abc123", '{"temp":21}'),)),
        ("tool, one text in a list", (ToolResult("call_abc123", (Text("21"),)),)),
    ],
)
def test_what_has_parts_of_ours_needs_nothing_beside_them(
    case: str, parts: tuple[Part, ...]
) -> None:
    assert decode(PAYLOADS[case]).parts == parts


def test_what_has_no_part_of_ours_is_kept_beside() -> None:
    """A developer's message is a system message; the rest of its fields stand at the end."""
    developer = decode(PAYLOADS["developer"])
    assert developer.role == "system"
    assert developer.parts[-1] == Raw(SOURCE, {"fields": {"role": "developer"}, "of": "system"})
    refused = decode(PAYLOADS["assistant, refusal"])
    assert refused.parts[-1] == Raw(
        SOURCE,
        {"fields": {"refusal": "I cannot help with that."}, "of": "assistant", "shape": "null"},
    )
    assert decode(PAYLOADS["user, named"]).name == "anna-b_1"


def test_arguments_are_read_only_if_they_are_written_the_same() -> None:
    """An object when its text is the one we would write, else the text, to the last space."""
    first, second, third = decode(PAYLOADS["assistant, parallel calls"]).tool_calls
    assert first.arguments == {"city": "Paris"}
    assert second.arguments == '{ "city": "Rome" }\n'
    assert third.arguments == '{"print":1}'  # A custom tool takes text, whatever it looks like.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        '"{}"',
        '{"a":NaN}',
        '{"a":1e999}',
        '{"a":1.50}',
        '{"a":1,"a":2}',
        '{"a":"\\u00e9"}',
        '{"a":' + "1" * 5000 + "}",
        '{"a":' + "1" * 3000 + "}",
        '{"a":' + "[" * 300 + "]" * 300 + "}",
        '{"a":' * 100_000,
    ],
)
def test_arguments_that_are_not_kept_as_json_stay_text(text: str) -> None:
    """And the store takes them."""
    call: JSON = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    message = decode({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message.tool_calls[0].arguments == text
    codec.encode(message, NOW)
    assert encode(message)["tool_calls"] == [call]


@settings(max_examples=settings().max_examples // 3)
@given(st.dictionaries(st.text(), json_values))
def test_arguments_of_ours_come_back(arguments: dict[str, JSON]) -> None:
    call = ToolCall("call_1", "f", arguments)
    assert decode(encode(Message.assistant(tool_calls=[call]))).tool_calls == (call,)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("hello", "expected a chat message"),
        ({}, "role: None"),
        ({"role": "robot", "content": "x"}, "role: 'robot'"),
        ({"role": ["user"], "content": "x"}, "role:"),
        ({"role": "user", "content": 5}, "content: expected text or a list, got int"),
        ({"role": "assistant", "tool_calls": {}}, "tool_calls: expected a list, got dict"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "tool_call_id"),
    ],
)
def test_what_is_no_message_is_refused(payload: dict[str, JSON], error: str) -> None:
    with pytest.raises(BadMessage, match=error):
        decode(payload)


@pytest.mark.parametrize(
    "call",
    [
        "call",
        {"id": "c", "type": "function"},
        {"id": "c", "type": "function", "function": {"name": None, "arguments": "{}"}},
        {"type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "c", "type": "custom", "custom": {"name": "f"}},
    ],
)
def test_a_call_that_cannot_be_read_costs_only_itself(call: JSON) -> None:
    """It is kept, and not sent; the text and the other calls are."""
    payload: dict[str, JSON] = {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [call, _weather],
    }
    message = decode(payload)
    assert Raw(SOURCE, {"call": call}) in message.parts
    assert encode(message) == {"role": "assistant", "content": "Hi", "tool_calls": [_weather]}


@pytest.mark.parametrize("nothing", [None, []])
def test_no_calls_are_not_sent_as_an_empty_list(nothing: JSON) -> None:
    """A dumped reply has them; a request with them is refused."""
    message = decode({"role": "assistant", "content": "Hi", "tool_calls": nothing})
    assert encode(message) == {"role": "assistant", "content": "Hi"}


def test_a_dumped_reply_comes_back() -> None:
    """As the package dumps it, but for what a request may not hold."""
    reply = ChatCompletionMessage.model_validate(PAYLOADS["assistant, parallel calls"])
    dumped = reply.model_dump(mode="json")
    assert encode(decode(dumped)) == dumped
    plain = ChatCompletionMessage(role="assistant", content="Hi").model_dump(mode="json")
    assert encode(decode(plain)) == {k: v for k, v in plain.items() if k != "tool_calls"}


# ---------------------------------------------------------------------- messages from elsewhere


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (Message.user("Hi"), {"role": "user", "content": "Hi"}),
        (Message.system("Be brief"), {"role": "system", "content": "Be brief"}),
        (Message.assistant("Hi"), {"role": "assistant", "content": "Hi"}),
        (Message.tool("c", "21"), {"role": "tool", "tool_call_id": "c", "content": "21"}),
        (
            Message(role="summary", parts=(Text("They met."),), covers="m"),
            {"role": "user", "content": "They met."},
        ),
        (Message.user(()), {"role": "user", "content": ""}),
        (Message.assistant(()), {"role": "assistant", "content": ""}),
        (
            Message.user(["a", "b"]),
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ),
        (
            Message.assistant([Thinking("hm", "sig"), "Hi", Raw("anthropic", {"content": {}})]),
            {"role": "assistant", "content": "Hi"},
        ),
        (
            Message.assistant([Thinking("hm")], tool_calls=[ToolCall("c", "f")]),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}"},
                    }
                ],
            },
        ),
        (
            Message.user(File(name="cat.png", data=PNG)),
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": PNG_URL}}],
            },
        ),
        (
            Message.user(File(data=b"%PDF-1.7", mime="application/pdf")),
            {
                "role": "user",
                "content": [
                    {"type": "file", "file": {"filename": "file.pdf", "file_data": PDF_URL}}
                ],
            },
        ),
        (
            Message.user(File(name="cat.png", mime="image/png", sha256="0" * 64, size=9)),
            {"role": "user", "content": "[image: cat.png]"},
        ),
        (
            Message.user(File(mime="image/png", sha256="0" * 64)),
            {"role": "user", "content": "[image]"},
        ),
        (
            Message.user(["See", File(name="a\nb.zip", data=b"PK")]),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {"type": "text", "text": "[file: a b.zip]"},
                ],
            },
        ),
        (
            Message.assistant(File(name="cat.png", data=PNG)),
            {"role": "assistant", "content": "[image: cat.png]"},
        ),
        (
            Message.tool("c", [Text("Done"), File(name="cat.png", data=PNG)]),
            {
                "role": "tool",
                "tool_call_id": "c",
                "content": [
                    {"type": "text", "text": "Done"},
                    {"type": "text", "text": "[image: cat.png]"},
                ],
            },
        ),
        (Message.tool("c", []), {"role": "tool", "tool_call_id": "c", "content": ""}),
        (
            Message.user("Hi", name="Anna Müller"),
            {"role": "user", "content": "Hi", "name": "Anna_M_ller"},
        ),
        (Message.user("Hi", name="李"), {"role": "user", "content": "Hi"}),
        (
            Message.user("Hi", name="x" * 99),
            {"role": "user", "content": "Hi", "name": "x" * 64},
        ),
    ],
)
def test_a_message_of_ours_is_written(message: Message, payload: dict[str, JSON]) -> None:
    assert encode(message) == payload
    validate_chat(payload)


def test_what_takes_several_messages_is_written_as_several() -> None:
    """Results first come first: the order of the parts is kept."""
    message = Message.user(
        [ToolResult("a", "1"), ToolResult("b", (Text("2"),)), "Go on", File(data=PNG, name="i.png")]
    )
    with pytest.raises(BadMessage, match="takes 3 chat messages"):
        encode(message)
    written = encode_all(message)
    assert [item["role"] for item in written] == ["tool", "tool", "user"]
    assert [item.get("tool_call_id") for item in written] == ["a", "b", None]
    assert encode_all(Message.user("Hi")) == [{"role": "user", "content": "Hi"}]


def test_what_stands_beside_a_result_is_not_trusted_as_instructions() -> None:
    message = Message(role="tool", parts=(ToolResult("a", "1"), Text("Obey!")))
    assert [item["role"] for item in encode_all(message)] == ["tool", "user"]


def test_calls_of_the_old_kind_are_pairs_and_become_modern() -> None:
    """A result of the new kind may answer them then."""
    asked = decode(PAYLOADS["assistant, call of the old kind"])
    answered = decode(PAYLOADS["function"])
    assert asked.tool_calls[0].id == answered.tool_results[0].call_id
    call, result = encode(upgrade_legacy_calls(asked)), encode(upgrade_legacy_calls(answered))
    validate_chat(call)
    assert call["tool_calls"] == [
        {
            "id": "function_call_get_weather",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{\n  "city": "Paris"\n}'},
        }
    ]
    assert result == {
        "role": "tool",
        "tool_call_id": "function_call_get_weather",
        "content": "21",
    }
    plain = decode(PAYLOADS["assistant, parallel calls"])
    assert upgrade_legacy_calls(plain) is plain


def test_notes_follow_parts_that_were_changed() -> None:
    """A window may shorten texts and give calls other ids; what it does holds."""
    message = decode(PAYLOADS["assistant, call with a field of the future"])
    call, note, *rest = message.parts
    assert isinstance(call, ToolCall)
    renamed = msgspec.structs.replace(call, id="call_other")
    written = encode(msgspec.structs.replace(message, parts=(renamed, note, *rest)))
    calls = deepcopy(PAYLOADS["assistant, call with a field of the future"]["tool_calls"])
    assert json.dumps(calls).count('"call_1"') == 1
    assert written["tool_calls"] == json.loads(json.dumps(calls).replace("call_1", "call_other"))


def test_a_note_whose_part_is_gone_is_not_laid_over_another() -> None:
    image, note, *_ = decode(PAYLOADS["user, images with details"]).parts
    assert isinstance(image, File)
    stored = File(mime="image/png", sha256="0" * 64)
    assert encode(Message.user([stored, note])) == {"role": "user", "content": "[image]"}
    assert encode(Message.user(["Hi", note])) == {"role": "user", "content": "Hi"}
    assert encode(Message.user([note])) == {"role": "user", "content": ""}
    assert encode(Message(role="assistant", parts=(image, note))) == {
        "role": "assistant",
        "content": "[image]",
    }


def _kept(**data: JSON) -> Raw:
    return Raw(SOURCE, {**data})


@pytest.mark.parametrize(
    "part",
    [
        _kept(content={"type": "refusal", "refusal": "No."}),  # It is the assistant's alone.
        _kept(content={"type": "image_url"}),
        _kept(content={"type": "image_url", "image_url": {"url": 5}}),
        _kept(content={"type": "input_audio", "input_audio": "x"}),
        _kept(content={"type": "file"}),
        _kept(content={"type": "text", "text": 5}),
        _kept(content={"text": "x"}),
        _kept(content="x"),
        _kept(part={"x": 1}, of="image_url"),
        _kept(fields={"refusal": "No."}, of="assistant"),
        _kept(fields={"content": "x", "role": "tool", "tool_calls": []}, of="user"),
        _kept(fields={"function_call": {"name": "f"}, "audio": {}, "refusal": 5}, of="user"),
        _kept(fields={"name": "not a name"}, of="user"),
        _kept(fields={"role": "developer"}, of="user"),
        _kept(fields="x", of="user"),
        _kept(shape="null", fields={}, of="user"),
        _kept(call={"id": "c"}),
        Raw("openai-responses", {"content": {"type": "input_image", "file_id": "f"}}),
    ],
)
def test_what_cannot_stand_in_a_message_is_left_out(part: Raw) -> None:
    assert encode(Message.user(["Hi", part])) == {"role": "user", "content": "Hi"}


def test_pictures_are_the_users_alone() -> None:
    image = decode(PAYLOADS["user, image by URL"]).parts[-1]
    assert encode(Message.assistant(["Hi", image])) == {"role": "assistant", "content": "Hi"}


def test_an_old_call_that_cannot_be_read_costs_only_itself() -> None:
    payload: dict[str, JSON] = {"role": "assistant", "content": "Hi", "function_call": {"name": 5}}
    assert encode(decode(payload)) == {"role": "assistant", "content": "Hi"}


def test_the_note_directly_behind_a_part_is_its_own() -> None:
    """One that lost its part does not push it away, nor is it taken for another kind."""
    text, own = decode(PAYLOADS["user, cache breakpoint"]).parts[:2]
    image, lost = decode(PAYLOADS["user, images with details"]).parts[:2]
    assert encode(Message.user([text, own, lost])) == PAYLOADS["user, cache breakpoint"]
    assert encode(Message.user([image, own])) == {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": PNG_URL}}],
    }


@given(messages(texts, calls, results, thoughts, raws))
def test_any_message_is_written_and_keeps_what_it_says(message: Message) -> None:
    """Whatever the order, the role and the foreign data in it."""
    codec.encode(message, NOW, known=True)
    written = encode_all(message)
    for item in written:
        validate_chat(item)
    back = tuple(part for item in written for part in decode(item).parts)
    assert texts_of(back) == texts_of(message.parts)
    assert results_of(back) == results_of(message.parts)
    assert [(c.id, c.name, write_arguments(c.arguments)) for c in _calls(back)] == [
        (c.id, c.name, write_arguments(c.arguments)) for c in _calls(message.parts)
    ]


def _calls(parts: tuple[Part, ...]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


@given(messages(texts, files, results_with_files, raws))
def test_any_file_is_written_or_leaves_its_breadcrumb(message: Message) -> None:
    """There is no message in which a file is silently gone."""
    written = encode_all(message)
    for item in written:
        validate_chat(item)
    pieces = [piece for item in written for piece in _pieces(item["content"])]
    given_parts = [
        part
        for whole in message.parts
        for part in (whole.content if isinstance(whole, ToolResult) else (whole,))
        if isinstance(part, Text | File) and part != Text("")
    ]
    assert len(pieces) == len(given_parts)


def _pieces(content: JSON) -> list[JSON]:
    if isinstance(content, list):
        return [piece for piece in content if piece != {"type": "text", "text": ""}]
    return [content] if content else []


def test_text_that_is_no_unicode_goes_through() -> None:
    message = Message.assistant("\ud800", tool_calls=[ToolCall("c", "f", {"a": "\udfff"})])
    written = encode(message)
    assert json.loads(json.dumps(written)) == written
    assert decode(written).parts == message.parts


_DEFINED = (
    "role content name tool_calls tool_call_id function_call refusal audio type text image_url url "
    "file input_audio id function custom"
)
_extras: st.SearchStrategy[dict[str, JSON]] = st.dictionaries(
    st.text().filter(lambda key: key not in _DEFINED.split()), json_values
)


def _json(value: object) -> JSON:
    return cast("JSON", value)


def _with_extras(value: dict[str, JSON]) -> st.SearchStrategy[dict[str, JSON]]:
    return _extras.map(lambda extra: {**extra, **value})


_piece = (
    st.text().flatmap(lambda text: _with_extras({"type": "text", "text": text}))
    | st.binary(max_size=5).flatmap(
        lambda data: _with_extras(
            {
                "type": "image_url",
                "image_url": {"url": f"data:image/png;base64,{b64encode(data).decode()}"},
            }
        )
    )
    | st.text().flatmap(lambda url: _with_extras({"type": "image_url", "image_url": {"url": url}}))
    | st.text().flatmap(lambda name: _with_extras({"type": "file", "file": {"file_id": name}}))
)
_call = st.tuples(st.text(), st.text(), st.text() | json_values.map(json.dumps), _extras).flatmap(
    lambda said: _with_extras(
        {
            "id": said[0],
            "type": "function",
            "function": {**said[3], "name": said[1], "arguments": said[2]},
        }
    )
)
_user = (st.text() | st.lists(_piece, min_size=1, max_size=4)).flatmap(
    lambda content: _with_extras({"role": "user", "content": _json(content)})
)
_assistant = st.tuples(st.none() | st.text(), st.lists(_call, min_size=1, max_size=3)).flatmap(
    lambda said: _with_extras(
        {"role": "assistant", "content": said[0], "tool_calls": _json(said[1])}
    )
)


@settings(max_examples=settings().max_examples // 3)
@given(_user | _assistant)
def test_whatever_a_provider_adds_comes_back(payload: dict[str, JSON]) -> None:
    assert encode(decode(payload)) == payload


def test_the_source_is_the_one_that_windows_ask_for() -> None:
    assert openai.SOURCE == "openai"
