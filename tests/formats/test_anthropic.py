"""Anthropic's messages round-trip unchanged; other providers' become messages Anthropic accepts."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import anthropic.types
import pytest
from anthropic.types import MessageParam
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast.errors import BadMessage
from holdfast.formats import anthropic as shape
from holdfast.formats import gemini, openai
from holdfast.testing.legality import problems
from holdfast.values import JSON, File, Message, Raw, Text, Thinking, ToolCall, ToolResult, Usage
from tests.formats.stored import stored
from tests.model.strategies import json_objects, json_values, messages, texts

_PARAM: TypeAdapter[Any] = TypeAdapter(MessageParam)
_PNG = "iVBORw0KGgo="
_PDF = "JVBERi0xLjcK"
_CACHE: JSON = {"type": "ephemeral", "ttl": "1h"}


def _validated(value: object) -> object:
    """Let the package's own types check a message, lists within lists included."""
    if isinstance(value, dict):
        return {key: _validated(inner) for key, inner in value.items()}
    if isinstance(value, list | Iterator):
        return [_validated(inner) for inner in value]
    if isinstance(value, BaseModel):  # The types of replies are good for requests, too.
        return value.model_dump(mode="json", exclude_unset=True)
    return value


def _check_shape(payload: dict[str, JSON]) -> None:
    """The package's types take it, and know each of its fields (they drop those they do not)."""
    assert _validated(_PARAM.validate_python(payload)) == payload


def _user(*blocks: JSON) -> dict[str, JSON]:
    return {"role": "user", "content": [*blocks]}


def _assistant(*blocks: JSON) -> dict[str, JSON]:
    return {"role": "assistant", "content": [*blocks]}


_PAYLOADS: dict[str, dict[str, JSON]] = {
    "text of a user": {"role": "user", "content": "Where is my parcel?"},
    "a block of a user": _user({"type": "text", "text": "Where is my parcel?"}),
    "blocks of a user": _user(
        {"type": "text", "text": "One"}, {"type": "text", "text": "Two", "cache_control": _CACHE}
    ),
    "no cache control, said": _user({"type": "text", "text": "One", "cache_control": None}),
    "a prefill": {"role": "assistant", "content": "The best answer is ("},
    "an answer": _assistant({"type": "text", "text": "Hi, I'm Claude."}),
    "an answer with citations": _assistant(
        {"type": "text", "text": "The grass is "},
        {
            "type": "text",
            "text": "green",
            "citations": [
                {
                    "type": "char_location",
                    "cited_text": "The grass is green.",
                    "document_index": 0,
                    "document_title": "Facts",
                    "start_char_index": 0,
                    "end_char_index": 20,
                },
                {
                    "type": "page_location",
                    "cited_text": "Green.",
                    "document_index": 1,
                    "document_title": None,
                    "start_page_number": 5,
                    "end_page_number": 6,
                },
            ],
        },
    ),
    "no citations, as a reply says it": _assistant(
        {"type": "text", "text": "Hi", "citations": None}
    ),
    "an image": _user(
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": _PNG},
        },
        {"type": "text", "text": "What is this?"},
    ),
    "an image to be cached": _user(
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/webp", "data": _PNG},
            "cache_control": {"type": "ephemeral"},
        },
    ),
    "an image elsewhere": _user(
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    ),
    "an uploaded image": _user({"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
    "a document": _user(
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": _PDF},
            "title": "invoice.pdf",
            "context": "from last year",
            "citations": {"enabled": True},
            "cache_control": _CACHE,
        }
    ),
    "a document without a title, said": _user(
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": _PDF},
            "title": None,
        }
    ),
    "a document of text": _user(
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Grün ist das Gras."},
            "title": "Facts",
        }
    ),
    "a document of blocks": _user(
        {
            "type": "document",
            "source": {"type": "content", "content": [{"type": "text", "text": "a chunk"}]},
        }
    ),
    "a document elsewhere": _user(
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}
    ),
    "an uploaded document": _user(
        {"type": "document", "source": {"type": "file", "file_id": "file_2"}}
    ),
    "a call": _assistant(
        {"type": "text", "text": "I'll check the weather."},
        {"type": "tool_use", "id": "toolu_01", "name": "weather", "input": {"city": "Köln"}},
    ),
    "two calls": _assistant(
        {"type": "tool_use", "id": "toolu_01", "name": "weather", "input": {"b": 1, "a": [None]}},
        {"type": "tool_use", "id": "toolu_02", "name": "time", "input": {}},
    ),
    "a call by code": _assistant(
        {
            "type": "tool_use",
            "id": "toolu_01",
            "name": "query",
            "input": {"sql": "select 1"},
            "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"},
            "cache_control": _CACHE,
        }
    ),
    "a result": _user({"type": "tool_result", "tool_use_id": "toolu_01", "content": "15 degrees"}),
    "a result without content": _user({"type": "tool_result", "tool_use_id": "toolu_01"}),
    "a result with nothing in it": _user(
        {"type": "tool_result", "tool_use_id": "toolu_01", "content": ""},
        {"type": "tool_result", "tool_use_id": "toolu_02", "content": []},
    ),
    "a result that is an error": _user(
        {
            "type": "tool_result",
            "tool_use_id": "toolu_01",
            "content": "ConnectionError",
            "is_error": True,
        }
    ),
    "a result that is none, said": _user(
        {"type": "tool_result", "tool_use_id": "toolu_01", "content": "ok", "is_error": False}
    ),
    "a result of blocks": _user(
        {
            "type": "tool_result",
            "tool_use_id": "toolu_01",
            "content": [
                {"type": "text", "text": "a screenshot"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/jpeg", "data": _PNG},
                },
                {"type": "text", "text": "done", "cache_control": _CACHE},
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "log"},
                },
                {"type": "tool_reference", "tool_name": "weather"},
            ],
            "cache_control": _CACHE,
        }
    ),
    "results and a question": _user(
        {"type": "tool_result", "tool_use_id": "toolu_01", "content": "15 degrees"},
        {"type": "tool_result", "tool_use_id": "toolu_02", "content": "noon"},
        {"type": "text", "text": "And tomorrow?"},
    ),
    "search results": _user(
        {
            "type": "search_result",
            "source": "https://example.org",
            "title": "Example",
            "content": [{"type": "text", "text": "found"}],
            "citations": {"enabled": True},
        }
    ),
    "thinking and a call": _assistant(
        {"type": "thinking", "thinking": "They want the weather.", "signature": "EqQBCgIYAhIM"},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_01", "name": "weather", "input": {"city": "Paris"}},
    ),
    "thinking whose text is omitted": _assistant(
        {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"},
        {"type": "text", "text": "Yes."},
    ),
    "a search on the server": _assistant(
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "claude shannon birth date"},
        },
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [
                {
                    "type": "web_search_result",
                    "url": "https://en.wikipedia.org/wiki/Claude_Shannon",
                    "title": "Claude Shannon",
                    "encrypted_content": "EqgfCioIARgBIiQ3YTAwMjY1Mi1m",
                    "page_age": "April 30, 2025",
                }
            ],
        },
        {
            "type": "text",
            "text": "Claude Shannon was born on April 30, 1916.",
            "citations": [
                {
                    "type": "web_search_result_location",
                    "url": "https://en.wikipedia.org/wiki/Claude_Shannon",
                    "title": "Claude Shannon",
                    "encrypted_index": "Eo8BCioIAhgBIiQyYjQ0OWJmZi1l",
                    "cited_text": "Claude Elwood Shannon (April 30, 1916",
                }
            ],
        },
    ),
    "a search that failed": _assistant(
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {
                "type": "web_search_tool_result_error",
                "error_code": "max_uses_exceeded",
            },
        }
    ),
    "code on the server": _assistant(
        {
            "type": "server_tool_use",
            "id": "srvtoolu_2",
            "name": "bash_code_execution",
            "input": {"command": "ls"},
        },
        {
            "type": "bash_code_execution_tool_result",
            "tool_use_id": "srvtoolu_2",
            "content": {
                "type": "bash_code_execution_result",
                "stdout": "a.txt\n",
                "stderr": "",
                "return_code": 0,
                "content": [{"type": "bash_code_execution_output", "file_id": "file_3"}],
            },
        },
    ),
    "an upload": _user(
        {"type": "text", "text": "Look at it."}, {"type": "container_upload", "file_id": "file_4"}
    ),
    "instructions in the middle": {"role": "system", "content": "Be brief from now on."},
    "instructions in a block": {
        "role": "system",
        "content": [{"type": "text", "text": "Be brief.", "cache_control": _CACHE}],
    },
}

# What no version of the package knows, or the interface refuses: it comes back all the same.
_ODD_PAYLOADS: dict[str, dict[str, JSON]] = {
    "nothing": {"role": "user", "content": []},
    "empty text": {"role": "user", "content": ""},
    "blank blocks": _assistant({"type": "text", "text": "\n\n"}, {"type": "text", "text": ""}),
    "a block of the future": _assistant({"type": "hologram", "text": "?", "depth": 3}),
    "a field of the future": {"role": "user", "content": "Hi", "mood": {"kind": "good"}},
    "fields of the future": _user({"type": "text", "text": "Hi", "tone": 3, "fields": {"part": 1}}),
    "text that is none": _user({"type": "text", "text": None}),
    "a call with a list": _assistant(
        {"type": "tool_use", "id": "toolu_01", "name": "weather", "input": ["Paris"]}
    ),
    "a nameless call": _assistant({"type": "tool_use", "id": "toolu_01", "input": {}}),
    "an image that is no base64": _user(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "a b"}}
    ),
    "an image in base64 with spare bits": _user(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QR=="}}
    ),
    "an empty image": _user(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    ),
    "an image of another kind": _user(
        {"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": _PNG}}
    ),
    "a source with more to it": _user(
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": _PNG, "size": 8},
        }
    ),
    "an image of the assistant": _assistant(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PNG}}
    ),
    "unsigned thinking": _assistant({"type": "thinking", "thinking": "Hm."}),
    "thinking signed with nothing": _assistant(
        {"type": "thinking", "thinking": "Hm.", "signature": ""}
    ),
    "a result of odd things": _user(
        {"type": "tool_result", "tool_use_id": "toolu_01", "content": 7},
        {"type": "tool_result", "tool_use_id": "toolu_01", "content": [7]},
        {"type": "tool_result", "tool_use_id": "toolu_01", "content": None, "is_error": None},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_01",
            "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}],
        },
    ),
}


@pytest.mark.parametrize("payload", _PAYLOADS.values(), ids=_PAYLOADS.keys())
def test_a_message_comes_back_as_it_was(payload: dict[str, JSON]) -> None:
    _check_shape(payload)
    message = shape.decode(payload)
    assert shape.encode(message) == payload
    assert shape.encode(stored(message)) == payload


@pytest.mark.parametrize("payload", _ODD_PAYLOADS.values(), ids=_ODD_PAYLOADS.keys())
def test_what_is_odd_comes_back_too(payload: dict[str, JSON]) -> None:
    assert shape.encode(stored(shape.decode(payload))) == payload


def test_the_packages_types_can_refuse() -> None:
    """The check of shapes is one: what is wrong deep inside is found."""
    inside: JSON = {"type": "txt", "text": "a"}
    with pytest.raises(ValidationError):
        _check_shape(_user({"type": "tool_result", "tool_use_id": "a", "content": [inside]}))


# -------------------------------------------------------------------------------- what it means


@pytest.mark.parametrize(
    ("name", "role", "parts"),
    [
        ("text of a user", "user", (Text("Where is my parcel?"),)),
        ("an answer", "assistant", (Text("Hi, I'm Claude."),)),
        (
            "a call",
            "assistant",
            (
                Text("I'll check the weather."),
                ToolCall("toolu_01", "weather", {"city": "Köln"}),
            ),
        ),
        ("a result", "tool", (ToolResult("toolu_01", "15 degrees"),)),
        ("a result without content", "tool", (ToolResult("toolu_01"),)),
        (
            "a result that is an error",
            "tool",
            (ToolResult("toolu_01", "ConnectionError", error=True),),
        ),
        (
            "results and a question",
            "user",
            (
                ToolResult("toolu_01", "15 degrees"),
                ToolResult("toolu_02", "noon"),
                Text("And tomorrow?"),
            ),
        ),
        (
            "an image",
            "user",
            (File(mime="image/png", data=b"\x89PNG\r\n\x1a\n"), Text("What is this?")),
        ),
        (
            "a document of text",
            "user",
            (File("Facts", "text/plain", "Grün ist das Gras.".encode()),),
        ),
    ],
)
def test_what_is_ours_becomes_parts_and_nothing_else(
    name: str, role: str, parts: tuple[object, ...]
) -> None:
    message = shape.decode(_PAYLOADS[name])
    assert (message.role, message.parts) == (role, parts)


def test_what_is_not_ours_stands_beside_the_part() -> None:
    message = shape.decode(_PAYLOADS["thinking and a call"])
    thinking, note, redacted, text, call = message.parts
    assert thinking == Thinking("They want the weather.", "EqQBCgIYAhIM")
    assert note == Raw("anthropic", {"of": "thinking", "part": {}})
    data: JSON = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"}
    assert redacted == Raw("anthropic", {"content": data})
    assert (text, call) == (
        Text("Let me see."),
        ToolCall("toolu_01", "weather", {"city": "Paris"}),
    )


def test_instructions_in_the_middle_are_a_system_message() -> None:
    message = shape.decode(_PAYLOADS["instructions in the middle"])
    assert (message.role, message.text) == ("system", "Be brief from now on.")


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ([], "message"),
        ({"content": "Hi"}, "role"),
        ({"role": "model", "content": "Hi"}, "role"),
        ({"role": ["user"], "content": "Hi"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": ["Hi"]}, r"content\[0\]"),
        ({"role": "user", "content": [{"text": "Hi"}]}, r"content\[0\]"),
    ],
)
def test_what_is_no_message_is_refused(payload: object, field: str) -> None:
    with pytest.raises(BadMessage, match=field):
        shape.decode(payload)  # type: ignore[arg-type]


def test_of_a_reply_only_what_may_be_sent_goes_back() -> None:
    """Its id, its model and its count of tokens are kept, but are no part of a request."""
    content: list[JSON] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
        {"type": "text", "text": "Sunny."},
    ]
    reply: dict[str, JSON] = {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-8",
        "content": content,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "output_tokens": 7,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 5,
        },
    }
    theirs = anthropic.types.Message.model_validate(reply)
    message = shape.decode(theirs.model_dump(mode="json", exclude_unset=True))
    assert message.model == "claude-opus-4-8"
    assert message.usage == Usage(input=115, output=7, cache_read=100, cache_write=5)
    assert json.dumps(message.parts[-1].data).count("msg_01") == 1  # type: ignore[union-attr]
    assert shape.encode(message) == {"role": "assistant", "content": content}
    assert _validated(_PARAM.validate_python(theirs.to_param()))  # the package's own way back


def test_a_payload_that_is_changed_changes_no_message() -> None:
    payload = json.loads(json.dumps(_PAYLOADS["thinking and a call"]))
    message = shape.decode(payload)
    before = shape.encode(message)
    payload["content"][3]["input"]["city"] = "Rome"
    payload["content"][1]["data"] = ""
    shape.encode(message)["content"][3]["input"].clear()  # type: ignore[index,call-overload,union-attr]
    assert shape.encode(message) == before == _PAYLOADS["thinking and a call"]


# ------------------------------------------------------------------------ what came from elsewhere


_IMAGE = File("cat.png", "image/png", b"\x89PNG")
_HANDMADE: list[tuple[Message, JSON]] = [
    (Message.user("Hi"), "Hi"),
    (Message.user(["Hi", "there"]), [{"type": "text", "text": t} for t in ("Hi", "there")]),
    (Message.user(""), []),
    (Message.user([" \n", "Hi"]), "Hi"),
    (Message.system("Be kind."), "[system note]\nBe kind."),
    (Message.system(""), []),
    (
        Message(role="summary", parts=(Text("They met."),)),
        "[summary of the conversation so far]\nThey met.",
    ),
    (
        Message.system(_IMAGE),
        [
            {"type": "text", "text": "[system note]"},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
            },
        ],
    ),
    (Message.assistant("Hi"), [{"type": "text", "text": "Hi"}]),
    (Message.assistant(), []),
    (Message.assistant(_IMAGE), [{"type": "text", "text": "[image: cat.png]"}]),
    (Message.user(File("cat.png", "image/png", sha256="0" * 64)), "[image: cat.png]"),
    (Message.user(File("cat.png", "image/png", b"")), "[image: cat.png]"),
    (Message.user(File("x.zip", "application/zip", b"PK")), "[file: x.zip]"),
    (Message.user(File("x.txt", "text/plain", b"\xff")), "[file: x.txt]"),
    (Message.user(File("x.txt", "text/plain", b" ")), "[file: x.txt]"),
    (
        Message.user(File("x.md", "text/markdown; charset=utf-8", b"# Title")),
        [
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "# Title"},
                "title": "x.md",
            }
        ],
    ),
    (
        Message.user(File("x.pdf", "application/pdf", b"%PDF-1.7\n")),
        [
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": _PDF},
                "title": "x.pdf",
            }
        ],
    ),
    (
        Message.user(File("x.JPG", "image/JPG", b"\x89PNG\r\n\x1a\n")),
        [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/jpeg", "data": _PNG},
            }
        ],
    ),
    (
        Message.tool("c1", "sunny"),
        [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}],
    ),
    (
        Message.tool("c1", "broken", error=True),
        [{"type": "tool_result", "tool_use_id": "c1", "content": "broken", "is_error": True}],
    ),
    (
        Message.tool("c1", [Raw("openai", {"content": {}}), Text("")]),
        [{"type": "tool_result", "tool_use_id": "c1"}],
    ),
    (
        Message.tool("c1", [Text("a"), File("x.zip", "application/zip", b"PK")]),
        [
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "[file: x.zip]"},
                ],
            }
        ],
    ),
    (Message.assistant([Thinking("Hm.")]), []),
    (
        Message.assistant([Thinking("Hm.", "EqQB")]),
        [{"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}],
    ),
    (
        Message.assistant([Thinking("Hm.", "EqQB")], model="eu.anthropic.claude-opus-4-8"),
        [{"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}],
    ),
    (Message.assistant([Thinking("Hm.", "EqQB"), "Hi"], model="gpt-6"), None),
    (Message.assistant([Thinking("Hm.", "EqQB"), Raw("openai-responses", {}), "Hi"]), None),
    (Message.assistant([Raw("gemini", {"content": {"text": "x"}}), "Hi"]), None),
    (Message.assistant([Raw("anthropic", 5), Raw("anthropic", {"content": {}}), "Hi"]), None),
]


@pytest.mark.parametrize(("message", "content"), _HANDMADE)
def test_a_message_made_by_hand(message: Message, content: JSON) -> None:
    """None stands for: nothing but the greeting is sent."""
    payload = shape.encode(message)
    role = "assistant" if message.role == "assistant" else "user"
    greeting: JSON = [{"type": "text", "text": "Hi"}]
    assert payload == {"role": role, "content": greeting if content is None else content}
    _check_shape(payload)


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        (None, {}),
        ("", {}),
        ("{}", {}),
        ("[1]", {"input": "[1]"}),
        ("{broken", {"input": "{broken"}),
        ('{"a": NaN}', {"input": '{"a": NaN}'}),
        ('{"a": 1e999}', {"input": '{"a": 1e999}'}),
        ([1], {"input": [1]}),
        (False, {"input": False}),
        ('{"a":' * 400 + "1" + "}" * 400, {"input": '{"a":' * 400 + "1" + "}" * 400}),
    ],
)
def test_arguments_are_an_object(arguments: JSON, input: JSON) -> None:
    payload = shape.encode(Message.assistant(tool_calls=[ToolCall("c1", "tool", arguments)]))
    assert payload["content"] == [{"type": "tool_use", "id": "c1", "name": "tool", "input": input}]


def test_a_shortened_result_keeps_what_stood_beside_it() -> None:
    """A window may change what a part says; the note behind it still fits."""
    parts = shape.decode(_PAYLOADS["a result of blocks"]).parts
    message = Message(role="tool", parts=(ToolResult("call_9", "cut", error=True), *parts[1:]))
    block = {"type": "tool_result", "tool_use_id": "call_9", "content": "cut", "is_error": True}
    assert shape.encode(message)["content"] == [{**block, "cache_control": _CACHE}]


def test_what_the_part_says_goes_before_its_note() -> None:
    """It was noted that the result is no error; then somebody said it is one."""
    _, note = shape.decode(_PAYLOADS["a result that is none, said"]).parts
    assert note == Raw("anthropic", {"of": "tool_result", "part": {"is_error": False}})
    message = Message(role="tool", parts=(ToolResult("toolu_01", "no", error=True), note))
    block = {"type": "tool_result", "tool_use_id": "toolu_01", "content": "no", "is_error": True}
    assert shape.encode(message)["content"] == [block]


def test_a_note_whose_part_is_gone_is_not_used() -> None:
    parts = shape.decode(_PAYLOADS["a call by code"]).parts
    message = Message(role="assistant", parts=(Text("Hi"), *parts[1:]))
    assert shape.encode(message)["content"] == [{"type": "text", "text": "Hi"}]


def test_a_system_message_that_became_a_users_is_one() -> None:
    parts = shape.decode(_PAYLOADS["instructions in the middle"]).parts
    assert shape.encode(Message(role="user", parts=parts))["role"] == "user"


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
            {"role": "assistant", "content": "Sunny.", "annotations": []},
            {"role": "user", "content": "Thanks"},
        ],
    ),
    (
        gemini.decode,
        [
            {"role": "user", "parts": [{"text": "Weather?"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True, "thoughtSignature": "AAAA"},
                    {
                        "functionCall": {"name": "weather", "args": {"city": "Paris"}},
                        "thoughtSignature": "AAAA",
                    },
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "weather", "response": {"sky": "blue"}}}],
            },
            {"role": "model", "parts": [{"text": "Sunny."}]},
            {"role": "user", "parts": [{"text": "Thanks"}]},
        ],
    ),
]


@pytest.mark.parametrize(("decode", "conversation"), _ELSEWHERE)
def test_a_conversation_begun_elsewhere_goes_on(
    decode: _Decode, conversation: list[dict[str, JSON]]
) -> None:
    payloads = [shape.encode(decode(payload)) for payload in conversation]
    for payload in payloads:
        _check_shape(payload)
    assert problems("anthropic", payloads) == []
    again = [shape.decode(payload) for payload in payloads]
    assert [call.arguments for call in again[1].tool_calls] == [{"city": "Paris"}]
    assert again[2].tool_results[0].call_id == again[1].tool_calls[0].id


# --------------------------------------------------------------------------------- anything at all


_sources = st.sampled_from(["anthropic", "gemini", "openai", "app"])
_notes = st.builds(
    Raw,
    _sources,
    st.fixed_dictionaries(
        {},
        optional={
            "of": st.sampled_from(["text", "thinking", "tool_call", "tool_result", "file"]),
            "part": json_objects | json_values,
            "fields": json_objects | st.fixed_dictionaries({"role": json_values}),
            "made": json_objects | st.just({"role": "user"}),
            "content": json_objects | json_values,
            "form": texts | st.sampled_from(["string", "blocks"]) | st.none(),
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
    return Message(role=role, parts=tuple(parts), model=message.model)


@settings(max_examples=settings().max_examples // 3)
@given(_noted_messages())
def test_any_message_can_be_written(message: Message) -> None:
    """What the store takes becomes JSON of the right shape, and keeps what is said in it."""
    payload = shape.encode(message)
    assert json.loads(json.dumps(payload, allow_nan=False, ensure_ascii=False)) == payload
    assert payload["role"] in {"user", "assistant"} or message.role == "system"
    content = payload["content"]
    assert isinstance(content, str | list)
    for block in content if isinstance(content, list) else ():
        assert isinstance(block, dict)
        assert isinstance(block["type"], str)
    _assert_said_again(message, shape.decode(payload))


def _assert_said_again(message: Message, again: Message) -> None:
    said = [part.text for part in message.parts if isinstance(part, Text) and part.text.strip()]
    heard = "\n".join(part.text for part in again.parts if isinstance(part, Text))
    assert all(text in heard for text in said)
    for call in message.tool_calls:
        assert any((call.id, call.name) == (same.id, same.name) for same in again.tool_calls)
    results = iter(again.tool_results)
    for result in message.tool_results:
        same = next(same for same in results if same.call_id == result.call_id)
        assert same.error == result.error
        if isinstance(result.content, str):
            assert same.text == result.content


_plain_messages = messages.filter(
    lambda message: (
        not any(isinstance(part, Raw) for part in message.parts)
        and not any(isinstance(part, Raw) for r in message.tool_results for part in r.content)
    )
)


@settings(max_examples=settings().max_examples // 3)
@given(_plain_messages)
def test_any_message_of_our_own_has_a_shape_the_package_knows(message: Message) -> None:
    payload = shape.encode(message)
    # The package's types take no text that is no Unicode.
    _check_shape(json.loads(json.dumps(payload).replace("\\ud", "\\u1")))


_any_blocks = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["text", "thinking", "tool_use", "tool_result", "image", "document", "new"]
            )
        },
        optional={
            "text": texts | json_values,
            "thinking": texts,
            "signature": texts | st.none(),
            "id": texts,
            "name": texts,
            "input": json_objects | json_values,
            "tool_use_id": texts,
            "content": texts
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}))
            | json_values,
            "is_error": st.booleans() | json_values,
            "source": st.fixed_dictionaries(
                {"type": st.sampled_from(["base64", "text", "url"])},
                optional={
                    "media_type": st.sampled_from(["image/png", "application/pdf", "text/plain"]),
                    "data": st.sampled_from([_PNG, "", "x", "QR=="]) | texts,
                },
            ),
            "title": texts | st.none(),
            "cache_control": json_values,
        },
    ),
    max_size=3,
)


@given(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": texts | _any_blocks,
        },
        optional={"extra": json_values, "fields": json_values},
    )
)
def test_any_blocks_come_back_as_they_were(payload: dict[str, Any]) -> None:
    message = shape.decode(payload)
    assert repr(_sorted(shape.encode(message))) == repr(_sorted(payload))


def _sorted(value: JSON) -> JSON:
    """Order the keys, so that what differs only to `repr` (1 and true) is seen to differ."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value
