"""Gemini's contents round-trip unchanged; other providers' become contents Gemini accepts."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.errors import BadMessage
from holdfast.formats import anthropic, openai
from holdfast.formats import gemini as shape
from holdfast.testing.legality import problems
from holdfast.values import JSON, File, Message, Raw, Text, Thinking, ToolCall, ToolResult
from tests.formats.genai import types
from tests.formats.stored import stored
from tests.model.strategies import json_objects, json_values, messages, texts

_PNG = "iVBORw0KGgo="
_SIGNATURE = "CiQB4/H/XkWhXs+dXHw="  # in the alphabet of REST


def _check_shape(payload: Mapping[str, JSON]) -> None:
    """The package's types take it. They refuse fields they do not know."""
    types.Content.model_validate_json(json.dumps(payload))


def _user(*parts: JSON) -> dict[str, JSON]:
    return {"role": "user", "parts": [*parts]}


def _model(*parts: JSON) -> dict[str, JSON]:
    return {"role": "model", "parts": [*parts]}


def _response(**fields: JSON) -> dict[str, JSON]:
    return _user({"functionResponse": {"name": "weather", **fields}})


_PAYLOADS: dict[str, dict[str, JSON]] = {
    "text of a user": _user({"text": "Where is my parcel?"}),
    "texts of a user": _user({"text": "One"}, {"text": "Two"}),
    "nobody's text": {"parts": [{"text": "Hi"}]},
    "an answer": _model({"text": "It is on its way."}),
    "an answer that is no thought": _model({"text": "It is on its way.", "thought": False}),
    "an answer with a signature": _model({"text": "Yes.", "thoughtSignature": _SIGNATURE}),
    "a signature at the end of a stream": _model(
        {"text": "Yes."}, {"text": "", "thoughtSignature": _SIGNATURE}
    ),
    "a thought": _model({"text": "They want it.", "thought": True}, {"text": "Yes."}),
    "a thought with a signature": _model(
        {"text": "They want it.", "thought": True, "thoughtSignature": _SIGNATURE}
    ),
    "a signature and nothing else": _model({"thought": True, "thoughtSignature": _SIGNATURE}),
    "a call": _model(
        {
            "functionCall": {"id": "call_1", "name": "weather", "args": {"city": "Köln"}},
            "thoughtSignature": _SIGNATURE,
        }
    ),
    "a call without an id": _model({"functionCall": {"name": "weather", "args": {"b": 1, "a": 2}}}),
    "a call without arguments": _model({"functionCall": {"name": "weather"}}),
    "calls without ids": _model(
        {"functionCall": {"name": "weather", "args": {"city": "Paris"}}},
        {"functionCall": {"name": "time", "args": {}}},
        {"functionCall": {"name": "weather", "args": {"city": "Rome"}}},
    ),
    "a call in pieces": _model(
        {
            "functionCall": {
                "name": "weather",
                "partialArgs": [{"jsonPath": "$.city", "stringValue": "Par"}],
                "willContinue": True,
            }
        }
    ),
    "a response": _response(id="call_1", response={"output": "sunny"}),
    "a response without an id": _response(response={"output": "sunny"}),
    "a response that failed": _response(id="call_1", response={"error": "no such city"}),
    "a response of the package": _response(id="call_1", response={"result": "sunny"}),
    "a response of more": _response(
        id="call_1", response={"sky": "grün", "degrees": 15.0, "wind": [1, None]}
    ),
    "a response of structure": _response(response={"output": {"sky": "blue"}}),
    "a response and an error": _response(response={"output": "sunny", "error": None}),
    "a response of nothing": _response(response={}),
    "a response that says nothing": _response(id="call_1"),
    "a response that goes on": _response(
        response={"output": "sunny"}, willContinue=True, scheduling="SILENT"
    ),
    "a response with an image": _response(
        id="call_1",
        response={"image": {"$ref": "sky.png"}},
        parts=[
            {
                "inlineData": {
                    "mimeType": "image/png",
                    "data": _PNG,
                    "displayName": "sky.png",
                }
            },
            {"fileData": {"fileUri": "gs://bucket/sky.png", "mimeType": "image/png"}},
        ],
    ),
    "responses without ids": _user(
        {"functionResponse": {"name": "weather", "response": {"output": "sunny"}}},
        {"functionResponse": {"name": "time", "response": {"output": "noon"}}},
        {"functionResponse": {"name": "weather", "response": {"output": "rain"}}},
    ),
    "a response and a question": _user(
        {"functionResponse": {"id": "call_1", "name": "weather", "response": {"output": "a"}}},
        {"text": "And tomorrow?"},
    ),
    "a response in the old role": {
        "role": "function",
        "parts": [{"functionResponse": {"name": "weather", "response": {"output": "sunny"}}}],
    },
    "an image": _user(
        {"inlineData": {"mimeType": "image/png", "data": _PNG}}, {"text": "What is this?"}
    ),
    "an image as the package writes it": _user(
        {"inlineData": {"mimeType": "image/png", "data": "-_8="}}
    ),
    "an image with a name": _user(
        {"inlineData": {"mimeType": "image/png", "data": _PNG, "displayName": "cat.png"}}
    ),
    "an image of the model": _model({"inlineData": {"mimeType": "image/png", "data": _PNG}}),
    "a film": _user(
        {
            "inlineData": {"mimeType": "video/mp4", "data": _PNG},
            "videoMetadata": {"startOffset": "1s", "endOffset": "5s", "fps": 2.0},
            "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"},
        }
    ),
    "a kind that is not on the list": _user(
        {"inlineData": {"mimeType": "application/json", "data": _PNG}}
    ),
    "a film elsewhere": _user(
        {
            "fileData": {"fileUri": "https://youtu.be/9hE5-98ZeCg", "mimeType": "video/*"},
            "videoMetadata": {"fps": 5.0},
        }
    ),
    "code on the server": _model(
        {"text": "I'll compute it."},
        {
            "executableCode": {"id": "x1", "language": "PYTHON", "code": "print(5117)"},
            "thoughtSignature": _SIGNATURE,
        },
        {"codeExecutionResult": {"id": "x1", "outcome": "OUTCOME_OK", "output": "5117\n"}},
        {"text": "5117."},
    ),
    "a tool on the server": _model(
        {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["a"]}}},
        {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"a": 1}}},
    ),
    "a part with metadata": _user({"text": "Hi", "partMetadata": {"file": "a.txt"}}),
    "nulls, as the package may write them": {
        "role": None,
        "parts": [
            {
                "text": None,
                "thought": None,
                "functionCall": {"id": None, "name": "weather", "args": None},
            },
            {"text": "Hi", "inlineData": None},
        ],
    },
}

# What no version of the package knows, or the interface refuses: it comes back all the same.
_ODD_PAYLOADS: dict[str, dict[str, JSON]] = {
    "nothing": _user(),
    "an empty text": _model({"text": ""}),
    "an empty part": _model({}),
    "a part of the future": _model({"hologram": {"depth": 3}}),
    "a part named as a note": _model({"part": {}, "of": "text"}, {"fields": {"role": "user"}}),
    "fields of the future": {**_user({"text": "Hi", "tone": 3}), "mood": "good"},
    "two things in one": _model({"text": "Hi", "functionCall": {"name": "a", "args": {}}}),
    "a call of nothing": _model({"functionCall": {"args": {}}}, {"functionCall": {}}),
    "a call with a list": _model({"functionCall": {"name": "weather", "args": ["Paris"]}}),
    "a response of text": _response(response="sunny"),
    "a response of odd parts": _response(response={"output": "a"}, parts=[3]),
    "a response of no parts": _response(response={"output": "a"}, parts=[]),
    "a response of text parts": _response(response={"output": "a"}, parts=[{"text": "b"}]),
    "a nameless response": _user({"functionResponse": {"response": {"output": "a"}}}),
    "an image that is no base64": _user({"inlineData": {"mimeType": "image/png", "data": "a b"}}),
    "an image with spare bits": _user({"inlineData": {"mimeType": "image/png", "data": "QR=="}}),
    "an empty image": _user({"inlineData": {"mimeType": "image/png", "data": ""}}),
    "an image of no kind": _user({"inlineData": {"data": _PNG}}),
}


@pytest.mark.parametrize("payload", _PAYLOADS.values(), ids=_PAYLOADS.keys())
def test_a_content_comes_back_as_it_was(payload: dict[str, JSON]) -> None:
    _check_shape(payload)
    message = shape.decode(payload)
    assert shape.encode(message) == payload
    assert shape.encode(stored(message)) == payload


@pytest.mark.parametrize("payload", _ODD_PAYLOADS.values(), ids=_ODD_PAYLOADS.keys())
def test_what_is_odd_comes_back_too(payload: dict[str, JSON]) -> None:
    assert shape.encode(stored(shape.decode(payload))) == payload


@pytest.mark.parametrize("payload", _PAYLOADS.values(), ids=_PAYLOADS.keys())
def test_what_the_package_writes_comes_back_as_it_was(payload: dict[str, JSON]) -> None:
    """Its own JSON has another alphabet for bytes, and may have a null for every field."""
    content = types.Content.model_validate_json(json.dumps(payload))
    for bare in (True, False):
        written = content.model_dump(mode="json", by_alias=True, exclude_none=bare)
        assert shape.encode(shape.decode(written)) == written


def test_the_packages_types_can_refuse() -> None:
    with pytest.raises(ValidationError):
        _check_shape(_user({"inlineData": {"mimeType": "image/png", "bytes": _PNG}}))


# -------------------------------------------------------------------------------- what it means


@pytest.mark.parametrize(
    ("name", "role", "parts"),
    [
        ("text of a user", "user", (Text("Where is my parcel?"),)),
        ("an answer", "assistant", (Text("It is on its way."),)),
        (
            "a response",
            "tool",
            (ToolResult("call_1", "sunny", name="weather"),),
        ),
        (
            "a response that failed",
            "tool",
            (ToolResult("call_1", "no such city", error=True, name="weather"),),
        ),
        (
            "a response and a question",
            "user",
            (ToolResult("call_1", "a", name="weather"), Text("And tomorrow?")),
        ),
        (
            "an image",
            "user",
            (File(mime="image/png", data=b"\x89PNG\r\n\x1a\n"), Text("What is this?")),
        ),
    ],
)
def test_what_is_ours_becomes_parts_and_nothing_else(
    name: str, role: str, parts: tuple[object, ...]
) -> None:
    message = shape.decode(_PAYLOADS[name])
    assert (message.role, message.parts) == (role, parts)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a response of the package", "sunny", False),
        ("a response of more", '{"sky": "grün", "degrees": 15.0, "wind": [1, null]}', False),
        ("a response of structure", '{"output": {"sky": "blue"}}', False),
        ("a response of nothing", "{}", False),
        ("a response that says nothing", "", False),
        ("a response with an image", '{"image": {"$ref": "sky.png"}}', False),
    ],
)
def test_the_text_of_a_response(name: str, text: str, *, error: bool) -> None:
    [result] = shape.decode(_PAYLOADS[name]).tool_results
    assert (result.text, result.error) == (text, error)


def test_the_files_of_a_response_are_files() -> None:
    [result] = shape.decode(_PAYLOADS["a response with an image"]).tool_results
    assert result.content[1] == File("sky.png", "image/png", b"\x89PNG\r\n\x1a\n")


def test_calls_and_responses_without_ids_are_pairs() -> None:
    """By the name and the place, as the interface pairs them."""
    calls = shape.decode(_PAYLOADS["calls without ids"]).tool_calls
    results = shape.decode(_PAYLOADS["responses without ids"]).tool_results
    assert [call.id for call in calls] == ["weather-1", "time-1", "weather-2"]
    assert [result.call_id for result in results] == [call.id for call in calls]


def test_a_thought_is_thinking_and_its_signature_stays_gemini_s() -> None:
    message = shape.decode(_PAYLOADS["a thought with a signature"])
    beside: JSON = {"of": "thinking", "part": {"thoughtSignature": _SIGNATURE}}
    assert message.parts == (Thinking("They want it."), Raw("gemini", beside))


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ([], "content"),
        ({"role": "assistant", "parts": []}, "role"),
        ({"role": ["user"], "parts": []}, "role"),
        ({"role": "user", "parts": "Hi"}, "parts"),
        ({"role": "user", "parts": ["Hi"]}, r"parts\[0\]"),
        (
            {"role": "user", "parts": [{"text": "a"}, {"function_call": {}}]},
            r"parts\[1\].*by_alias",
        ),
    ],
)
def test_what_is_no_content_is_refused(payload: object, field: str) -> None:
    with pytest.raises(BadMessage, match=field):
        shape.decode(payload)  # type: ignore[arg-type]


def test_a_content_without_parts_has_none() -> None:
    """A model may answer with nothing; to the interface that is the same as an empty list."""
    for payload in ({"role": "model"}, {"role": "model", "parts": None}):
        assert shape.encode(shape.decode(payload)) == {"role": "model", "parts": []}


def test_a_payload_that_is_changed_changes_no_message() -> None:
    payload = json.loads(json.dumps(_PAYLOADS["a call"]))
    message = shape.decode(payload)
    payload["parts"][0]["functionCall"]["args"]["city"] = "Rome"
    written: Any = shape.encode(message)
    written["parts"][0]["functionCall"]["args"].clear()
    assert shape.encode(message) == _PAYLOADS["a call"]


# ------------------------------------------------------------------------ what came from elsewhere


_IMAGE: JSON = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}
_HANDMADE: list[tuple[Message, list[JSON]]] = [
    (Message.user("Hi"), [{"text": "Hi"}]),
    (Message.user(""), []),
    (Message.user(" "), [{"text": " "}]),
    (Message.system("Be kind."), [{"text": "[system note]\nBe kind."}]),
    (Message.system(()), []),
    (
        Message(role="summary", parts=(Text("They met."),)),
        [{"text": "[summary of the conversation so far]\nThey met."}],
    ),
    (
        Message.system(File("cat.png", "image/png", b"\x89PNG")),
        [{"text": "[system note]"}, _IMAGE],
    ),
    (Message.assistant("Hi"), [{"text": "Hi"}]),
    (Message.assistant(File("cat.png", "image/png", b"\x89PNG")), [_IMAGE]),
    (
        Message.user(File("cat.png", "image/png", sha256="0" * 64)),
        [{"text": "[image: cat.png]"}],
    ),
    (Message.user(File("cat.png", "image/png", b"")), [{"text": "[image: cat.png]"}]),
    (Message.user(File("x.zip", "application/zip", b"PK")), [{"text": "[file: x.zip]"}]),
    (
        Message.assistant(tool_calls=[ToolCall("c1", "weather", '{"a": 1}')]),
        [{"functionCall": {"id": "c1", "name": "weather", "args": {"a": 1}}}],
    ),
    (
        Message.assistant(tool_calls=[ToolCall("", "weather", "Paris")]),
        [{"functionCall": {"name": "weather", "args": {"input": "Paris"}}}],
    ),
    (
        Message.tool("c1", "sunny"),
        [{"functionResponse": {"id": "c1", "name": "named", "response": {"output": "sunny"}}}],
    ),
    (
        Message.tool("c2", "sunny"),
        [{"functionResponse": {"id": "c2", "name": "unknown", "response": {"output": "sunny"}}}],
    ),
    (
        Message(role="tool", parts=(ToolResult("c1", "no", error=True, name="own"),)),
        [{"functionResponse": {"id": "c1", "name": "own", "response": {"error": "no"}}}],
    ),
    (
        Message.tool(
            "c1",
            [
                Text("a"),
                File("cat.png", "image/png", b"\x89PNG"),
                File("x.zip", "application/zip", b"PK"),
                File("y.pdf", "application/pdf", sha256="0" * 64),
                Raw("anthropic", {"content": {"type": "tool_reference"}}),
            ],
        ),
        [
            {
                "functionResponse": {
                    "id": "c1",
                    "name": "named",
                    "response": {"output": "a\n[file: x.zip]\n[file: y.pdf]"},
                    "parts": [_IMAGE],
                }
            }
        ],
    ),
    (Message.assistant([Thinking("Hm."), Thinking("Hm.", "EqQB"), "Hi"]), [{"text": "Hi"}]),
    (Message.assistant([Raw("anthropic", {"content": {}}), "Hi"]), [{"text": "Hi"}]),
    (Message.assistant([Raw("gemini", 5), Raw("gemini", {"content": 5}), "Hi"]), [{"text": "Hi"}]),
]


@pytest.mark.parametrize(("message", "parts"), _HANDMADE)
def test_a_message_made_by_hand(message: Message, parts: list[JSON]) -> None:
    payload = shape.encode(message, names={"c1": "named"})
    role = "model" if message.role == "assistant" else "user"
    assert payload == {"role": role, "parts": parts}
    _check_shape(payload)


def test_a_call_given_another_id_has_that_id() -> None:
    """Of an id that was made up nothing is sent; of one that came later, all."""
    call, note = shape.decode(_PAYLOADS["a call without an id"]).parts
    assert isinstance(call, ToolCall)
    other = ToolCall("call_7", call.name, call.arguments)
    payload = shape.encode(Message(role="assistant", parts=(other, note)))
    assert payload == _model(
        {"functionCall": {"id": "call_7", "name": "weather", "args": {"b": 1, "a": 2}}}
    )


def test_a_shortened_response_keeps_what_stood_beside_it() -> None:
    _, note = shape.decode(_PAYLOADS["a response of more"]).parts
    short = ToolResult("call_1", '{"sky": "gr [cut]', name="weather")
    payload = shape.encode(Message(role="tool", parts=(short, note)))
    assert payload == _response(id="call_1", response={"output": '{"sky": "gr [cut]'})


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("a call", {"of": "tool_call", "part": {"thoughtSignature": _SIGNATURE}}),
        ("a call without an id", {"of": "tool_call", "part": {}, "made": {"id": "weather-1"}}),
        ("a response of more", {"of": "tool_result", "part": {}, "form": "json"}),
        ("a response of the package", {"of": "tool_result", "part": {}, "form": "result"}),
        ("an image as the package writes it", {"of": "file", "part": {}, "form": "urlsafe"}),
        ("a response in the old role", {"fields": {"role": "function"}, "made": {"role": "user"}}),
    ],
)
def test_a_note_does_not_repeat_what_the_part_says(name: str, note: JSON) -> None:
    assert shape.decode(_PAYLOADS[name]).parts[-1] == Raw("gemini", note)


def test_a_note_whose_part_is_gone_is_not_used() -> None:
    _, note = shape.decode(_PAYLOADS["a call"]).parts
    payload = shape.encode(Message(role="assistant", parts=(Text("Hi"), note)))
    assert payload == _model({"text": "Hi"})


_Decode: TypeAlias = Callable[[Mapping[str, JSON]], Message]
_ELSEWHERE: list[tuple[_Decode, list[dict[str, JSON]]]] = [
    (
        openai.decode,
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "Thanks"},
        ],
    ),
    (
        anthropic.decode,
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
                    {"type": "redacted_thinking", "data": "Emwk"},
                    {
                        "type": "tool_use",
                        "id": "call_1",
                        "name": "weather",
                        "input": {"city": "Paris"},
                        "cache_control": {"type": "ephemeral"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "Sunny."}]},
            {"role": "user", "content": "Thanks"},
        ],
    ),
]


@pytest.mark.parametrize(("decode", "conversation"), _ELSEWHERE)
def test_a_conversation_begun_elsewhere_goes_on(
    decode: _Decode, conversation: list[dict[str, JSON]]
) -> None:
    names = {"call_1": "weather"}
    payloads = [shape.encode(decode(payload), names=names) for payload in conversation]
    for payload in payloads:
        _check_shape(payload)
    assert problems("gemini", payloads) == []
    assert payloads[1] == _model(
        {"functionCall": {"id": "call_1", "name": "weather", "args": {"city": "Paris"}}}
    )
    assert payloads[2] == _response(id="call_1", response={"output": "sunny"})


# --------------------------------------------------------------------------------- anything at all


_notes = st.builds(
    Raw,
    st.sampled_from(["anthropic", "gemini", "openai", "app"]),
    st.fixed_dictionaries(
        {},
        optional={
            "of": st.sampled_from(["text", "thinking", "tool_call", "tool_result", "file"]),
            "part": json_objects | json_values,
            "inner": json_objects | json_values,
            "fields": json_objects | st.fixed_dictionaries({"role": json_values}),
            "made": json_objects | st.just({"role": "user"}),
            "content": json_objects | json_values,
            "form": texts | st.sampled_from(["json", "result", "urlsafe"]) | st.none(),
        },
    ),
)


@st.composite
def _noted_messages(draw: st.DrawFn) -> Message:
    """Any message, with anything in the place of a note behind some of its parts."""
    message = draw(messages)
    parts: list[Any] = []
    for part in message.parts:
        parts += [part, draw(_notes)] if draw(st.booleans()) else [part]
    summary = draw(st.booleans())
    role = "summary" if summary and message.role == "system" else message.role
    return Message(role=role, parts=tuple(parts))


@settings(max_examples=settings().max_examples // 3)
@given(_noted_messages())
def test_any_message_can_be_written(message: Message) -> None:
    """What the store takes becomes JSON of the right shape, and keeps what is said in it."""
    payload = shape.encode(message)
    assert json.loads(json.dumps(payload, allow_nan=False, ensure_ascii=False)) == payload
    assert payload.get("role") in {"user", "model", "function", None}
    assert isinstance(payload["parts"], list)
    assert all(isinstance(part, dict) for part in payload["parts"])


_plain_messages = messages.filter(
    lambda message: (
        not any(isinstance(part, Raw) for part in message.parts)
        and not any(isinstance(part, Raw) for r in message.tool_results for part in r.content)
    )
)


@settings(max_examples=settings().max_examples // 3)
@given(_plain_messages)
def test_any_message_of_our_own_is_understood(message: Message) -> None:
    """The package knows its shape, and read again it says the same."""
    payload = shape.encode(message)
    # The package's types take no text that is no Unicode.
    _check_shape(json.loads(json.dumps(payload).replace("\\ud", "\\u1")))
    _assert_said_again(message, shape.decode(payload))


def _assert_said_again(message: Message, again: Message) -> None:
    said = [part.text for part in message.parts if isinstance(part, Text)]
    heard = "\n".join(part.text for part in again.parts if isinstance(part, Text))
    assert all(text in heard for text in said)
    assert [(call.name, call.id or None) for call in message.tool_calls] == [
        (same.name, same.id if call.id else None)
        for call, same in zip(message.tool_calls, again.tool_calls, strict=True)
    ]
    for result, same in zip(message.tool_results, again.tool_results, strict=True):
        assert not result.call_id or same.call_id == result.call_id
        assert same.error == result.error
        if isinstance(result.content, str):
            assert same.text == result.content


_some_objects = json_objects | json_values
_blobs = st.fixed_dictionaries(
    {},
    optional={
        "mimeType": st.sampled_from(["image/png", "IMAGE/PNG", "application/x", ""]) | json_values,
        "data": st.sampled_from([_PNG, "", "-_8=", "+/8=", "x"]) | texts,
        "displayName": texts | st.none(),
        "more": json_values,
    },
)
_any_parts = st.fixed_dictionaries(
    {},
    optional={
        "text": texts | json_values,
        "thought": st.booleans() | json_values,
        "thoughtSignature": texts,
        "inlineData": _blobs | json_values,
        "functionCall": json_values
        | st.fixed_dictionaries(
            {},
            optional={
                "id": texts | st.none(),
                "name": texts | json_values,
                "args": _some_objects,
                "more": json_values,
            },
        ),
        "functionResponse": json_values
        | st.fixed_dictionaries(
            {},
            optional={
                "id": texts | st.none(),
                "name": texts | json_values,
                "response": _some_objects
                | st.fixed_dictionaries(
                    {}, optional={"output": texts, "result": texts, "error": texts}
                ),
                "parts": st.lists(st.fixed_dictionaries({"inlineData": _blobs})) | json_values,
                "more": json_values,
            },
        ),
        "more": json_values,
    },
)


@settings(max_examples=settings().max_examples // 3)
@given(
    st.fixed_dictionaries(
        {"parts": st.lists(_any_parts, max_size=3)},
        optional={
            "role": st.sampled_from(["user", "model", "function", None]),
            "extra": json_values,
            "fields": json_values,
        },
    )
)
def test_any_parts_come_back_as_they_were(payload: dict[str, Any]) -> None:
    message = shape.decode(payload)
    assert repr(_sorted(shape.encode(message))) == repr(_sorted(payload))


def _sorted(value: JSON) -> JSON:
    """Order the keys, so that what differs only to `repr` (1 and true) is seen to differ."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value
