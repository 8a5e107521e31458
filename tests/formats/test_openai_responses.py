"""Items of the Responses API round-trip unchanged; other providers' messages become valid ones."""

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
from openai.types.responses import Response

from holdfast import codec
from holdfast.errors import BadMessage
from holdfast.formats import openai, originals
from holdfast.formats.common import write_arguments
from holdfast.formats.openai_items import SOURCE
from holdfast.formats.openai_responses import decode, encode
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Raw,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from tests.formats.openai_types import (
    ITEM_TYPES,
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
    validate_item,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n\x00"
PNG_URL = "data:image/png;base64," + b64encode(PNG).decode()
PDF_URL = "data:application/pdf;base64," + b64encode(b"%PDF-1.7").decode()
WAV = b64encode(b"RIFF\x00\x00\x00\x00WAVE").decode()
BREAKPOINT: JSON = {"mode": "explicit", "ttl": "30m"}

_citations: list[JSON] = [
    {
        "type": "url_citation",
        "start_index": 0,
        "end_index": 4,
        "title": "T",
        "url": "https://a.example",
    },
    {"type": "file_citation", "file_id": "file-1", "filename": "a.pdf", "index": 3},
    {
        "type": "container_file_citation",
        "container_id": "cntr_1",
        "file_id": "cfile_1",
        "filename": "plot.png",
        "start_index": 1,
        "end_index": 2,
    },
    {"type": "file_path", "file_id": "file-2", "index": 0},
]
_logprobs: JSON = [{"token": "P", "bytes": [80], "logprob": -0.5, "top_logprobs": []}]

# Items of requests, and such as the service gives and takes back.
ITEMS: dict[str, dict[str, JSON]] = {
    "user": {"role": "user", "content": "Hello!"},
    "user, with its type": {"type": "message", "role": "user", "content": "Hello!"},
    "user, empty": {"role": "user", "content": ""},
    "system": {"role": "system", "content": "Be brief."},
    "developer": {"role": "developer", "content": "Talk like a pirate."},
    "assistant": {"role": "assistant", "content": "Hi!"},
    "assistant, phase": {"role": "assistant", "content": "Hi!", "phase": "commentary"},
    "user, list": {
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": BREAKPOINT}],
    },
    "user, one text in a list": {
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
    },
    "user, as it is listed": {
        "id": "msg_68",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi"}],
    },
    "developer, list": {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
    },
    "user, image by URL": {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": "https://a.example/c.png", "detail": "auto"},
        ],
    },
    "user, image without detail": {
        "role": "user",
        "content": [{"type": "input_image", "image_url": PNG_URL}],
    },
    "user, images": {
        "role": "user",
        "content": [
            {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
            {"type": "input_image", "image_url": PNG_URL, "detail": "low"},
        ],
    },
    "user, image of another kind": {
        "role": "user",
        "content": [
            {
                "type": "input_image",
                "image_url": "data:image/bmp;base64,Qk0=",
                "detail": "original",
            }
        ],
    },
    "user, uploaded image": {
        "role": "user",
        "content": [{"type": "input_image", "file_id": "file-1", "detail": "high"}],
    },
    "user, file": {
        "role": "user",
        "content": [{"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL}],
    },
    "user, file with detail": {
        "role": "user",
        "content": [
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL, "detail": "low"}
        ],
    },
    "user, file without a name": {
        "role": "user",
        "content": [{"type": "input_file", "file_data": PDF_URL}],
    },
    "user, file in bare base64": {
        "role": "user",
        "content": [{"type": "input_file", "filename": "a.txt", "file_data": "aGk="}],
    },
    "user, file of another kind": {
        "role": "user",
        "content": [
            {"type": "input_file", "filename": "a.zip", "file_data": "data:x/zip;base64,UEs="}
        ],
    },
    "user, uploaded file": {
        "role": "user",
        "content": [{"type": "input_file", "file_id": "file-1"}],
    },
    "user, file by URL": {
        "role": "user",
        "content": [{"type": "input_file", "file_url": "https://a.example/a.pdf"}],
    },
    "user, sound": {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}],
    },
    "user, a piece of the future": {
        "role": "user",
        "content": [{"type": "input_hologram", "depth": [1, 2.5, None]}],
    },
    "user, a field of the future": {"role": "user", "content": "Hi", "mood": {"is": ["good"]}},
    "output": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hi!", "annotations": []}],
    },
    "output, with all of it": {
        "id": "msg_2",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "phase": "final_answer",
        "content": [
            {
                "type": "output_text",
                "text": "Paris",
                "annotations": _citations,
                "logprobs": _logprobs,
            },
            {"type": "output_text", "text": "!", "annotations": [], "logprobs": []},
        ],
    },
    "output, refusal": {
        "id": "msg_3",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "refusal", "refusal": "I cannot help with that."}],
    },
    "output, nothing": {
        "id": "msg_4",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [],
    },
    "output, without an id": {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi!"}],
    },
    "call": {
        "type": "function_call",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": '{"city":"Paris"}',
    },
    "call, as it came": {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "get_weather",
        "namespace": "weather",
        "arguments": '{"city": "Paris"}',
    },
    "call, by a program": {
        "type": "function_call",
        "call_id": "call_1",
        "name": "f",
        "arguments": "",
        "caller": {"type": "program", "caller_id": "prog_1"},
        "async": True,
    },
    "result": {"type": "function_call_output", "call_id": "call_1", "output": "21"},
    "result, as it is listed": {
        "id": "fco_1",
        "type": "function_call_output",
        "call_id": "call_1",
        "status": "completed",
        "name": "get_weather",
        "output": "",
    },
    "result, list": {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "Done", "prompt_cache_breakpoint": None},
            {"type": "input_image", "image_url": PNG_URL},
            {"type": "input_image", "image_url": PNG_URL, "detail": None},
            {"type": "input_image", "image_url": "https://a.example/c.png", "detail": "low"},
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL},
            {"type": "input_file", "file_id": "file-1"},
        ],
    },
    "result, one text in a list": {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_text", "text": "21"}],
    },
    "result, of no call": {
        "type": "function_call_output",
        "call_id": None,
        "name": "notify",
        "output": "21",
    },
    "custom call": {
        "id": "ctc_1",
        "type": "custom_tool_call",
        "call_id": "call_2",
        "name": "run_python",
        "input": '{"print":1}',
    },
    "custom call, no more than needed": {
        "type": "custom_tool_call",
        "call_id": "call_2",
        "name": "run_python",
        "input": "print(1)\n",
    },
    "custom result": {"type": "custom_tool_call_output", "call_id": "call_2", "output": "1"},
    "custom result, list": {
        "id": "ctco_1",
        "type": "custom_tool_call_output",
        "call_id": "call_2",
        "output": [{"type": "input_text", "text": "1"}],
    },
    "reasoning": {"id": "rs_1", "type": "reasoning", "summary": []},
    "reasoning, encrypted": {
        "id": "rs_2",
        "type": "reasoning",
        "summary": [
            {"type": "summary_text", "text": "**Adding**"},
            {"type": "summary_text", "text": "2 + 2"},
        ],
        "encrypted_content": "gAAAAABo",
        "status": "completed",
    },
    "reasoning, open": {
        "id": "rs_3",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Two and two."}],
        "encrypted_content": None,
    },
    "reference": {"type": "item_reference", "id": "msg_1"},
    "reference without a type": {"id": "msg_1"},
    "reference of no type": {"type": None, "id": "msg_1"},
    "web search": {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "Paris", "sources": []},
    },
    "file search": {
        "id": "fs_1",
        "type": "file_search_call",
        "status": "completed",
        "queries": ["x"],
        "results": None,
    },
    "code": {
        "id": "ci_1",
        "type": "code_interpreter_call",
        "status": "completed",
        "container_id": "cntr_1",
        "code": "1",
        "outputs": [{"type": "logs", "logs": "1"}],
    },
    "image": {
        "id": "ig_1",
        "type": "image_generation_call",
        "status": "completed",
        "result": "iVBORw0KGgo=",
    },
    "mcp": {
        "id": "mcp_1",
        "type": "mcp_call",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
        "output": "x",
    },
    "approval": {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": True,
    },
    "shell": {
        "type": "shell_call_output",
        "call_id": "call_3",
        "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "computer": {
        "type": "computer_call_output",
        "call_id": "call_4",
        "output": {"type": "computer_screenshot", "image_url": PNG_URL},
    },
    "compaction": {"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAAA"},
    "tools": {"type": "additional_tools", "role": "developer", "tools": []},
    "an item of the future": {"type": "dream", "id": "dr_1", "of": {"sheep": [1]}},
}
# The package's types ask for more, or know less, than the service.
_NOT_IN_TYPES = {"user, sound", "user, a piece of the future", "user, image without detail"} | {
    "output, without an id"
}


@pytest.mark.parametrize("case", ITEMS)
def test_an_item_comes_back_as_it_was(case: str) -> None:
    """Deep-equal, storable, and nothing of the caller's is shared or changed."""
    item = ITEMS[case]
    given = deepcopy(item)
    message = decode(given)
    assert given == item
    codec.encode(message, NOW)
    for value in given.values():
        if isinstance(value, list | dict):
            value.clear()
    assert encode(message) == [item]
    if (item.get("type") in ITEM_TYPES or "content" in item) and case not in _NOT_IN_TYPES:
        validate_item(item)


@pytest.mark.parametrize("case", ITEMS)
def test_whoever_changes_a_payload_changes_no_message(case: str) -> None:
    message = decode(ITEMS[case])
    before = msgspec.json.encode(message)
    for item in encode(message):
        _spoil(item)
    assert msgspec.json.encode(message) == before


def _spoil(value: JSON) -> None:
    if isinstance(value, dict | list):
        for inner in list(value.values()) if isinstance(value, dict) else value:
            _spoil(inner)
        value.clear()


@pytest.mark.parametrize(
    ("case", "role", "parts"),
    [
        ("user", "user", (Text("Hello!"),)),
        ("assistant", "assistant", (Text("Hi!"),)),
        ("call", "assistant", (ToolCall("call_1", "get_weather", {"city": "Paris"}),)),
        ("result", "tool", (ToolResult("call_1", "21"),)),
        ("result, one text in a list", "tool", (ToolResult("call_1", (Text("21"),)),)),
        ("user, file", "user", (File(name="a.pdf", mime="application/pdf", data=b"%PDF-1.7"),)),
        ("reasoning", "assistant", (Raw(SOURCE, {"item": ITEMS["reasoning"]}),)),
        (
            "reasoning, encrypted",
            "assistant",
            (
                Thinking("**Adding**\n\n2 + 2"),
                Raw(SOURCE, {"item": ITEMS["reasoning, encrypted"]}),
            ),
        ),
        (
            "developer",
            "system",
            (
                Text("Talk like a pirate."),
                Raw(SOURCE, {"fields": {"role": "developer"}, "of": "system"}),
            ),
        ),
        ("web search", "assistant", (Raw(SOURCE, {"item": ITEMS["web search"]}),)),
        ("shell", "tool", (Raw(SOURCE, {"item": ITEMS["shell"]}),)),
        ("approval", "tool", (Raw(SOURCE, {"item": ITEMS["approval"]}),)),
        ("tools", "system", (Raw(SOURCE, {"item": ITEMS["tools"]}),)),
    ],
)
def test_what_an_item_is_read_as(case: str, role: Role, parts: tuple[Part, ...]) -> None:
    message = decode(ITEMS[case])
    assert (message.role, message.parts) == (role, parts)


def test_a_whole_output_may_be_one_message() -> None:
    """The parts of items put together give these items again, in order."""
    cases = ["reasoning, encrypted", "output", "output, with all of it", "web search"]
    cases += ["call, as it came", "custom call", "reasoning", "output, refusal"]
    parts = [part for case in cases for part in decode(ITEMS[case]).parts]
    assert encode(Message.assistant(parts)) == [ITEMS[case] for case in cases]


def test_a_dumped_response_comes_back() -> None:
    """As the package dumps what it was given."""
    cases = ["reasoning, encrypted", "web search", "output, with all of it", "call, as it came"]
    response = Response.model_validate(
        {
            "id": "resp_1",
            "created_at": 0,
            "model": "gpt-5",
            "object": "response",
            "output": [ITEMS[case] for case in cases],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
    )
    for item in response.output:
        for dumped in (item.model_dump(mode="json"), item.model_dump(exclude_none=True)):
            assert encode(decode(dumped)) == [dumped]


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ("hello", "expected an item"),
        ({}, "type: None is not an item"),
        ({"id": "msg_1", "x": 1}, "type: None is not an item"),
        ({"type": 5}, "type: 5 is not an item"),
        ({"type": "message", "content": "x"}, "role: None"),
        ({"role": "tool", "content": "x"}, "role: 'tool'"),
        ({"role": "user"}, "content: expected text or a list, got NoneType"),
        (
            {"type": "function_call", "call_id": "c", "name": "f"},
            "function_call: call_id, name and arguments are required",
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}},
            "function_call: call_id, name and arguments are required",
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "input": ""},
            "custom_tool_call: call_id, name and input are required",
        ),
        ({"type": "function_call_output", "call_id": "c"}, "output: expected text or a list"),
        ({"type": "reasoning", "summary": []}, "type: 'reasoning'"),
    ],
)
def test_what_is_no_item_is_refused(item: dict[str, JSON], error: str) -> None:
    with pytest.raises(BadMessage, match=error):
        decode(item)


@pytest.mark.parametrize(
    ("role", "kind", "legal"),
    [("assistant", "input_text", "output_text"), ("user", "output_text", "input_text")],
)
def test_text_of_the_wrong_side_is_put_right(role: str, kind: str, legal: str) -> None:
    """The service refuses text that an assistant was given, or a user put out."""
    pieces: list[JSON] = [{"type": kind, "text": "a"}, {"type": kind, "text": "b"}]
    [item] = encode(decode({"role": role, "content": pieces}))
    assert isinstance(item["content"], list)
    assert [piece["type"] for piece in item["content"] if isinstance(piece, dict)] == [legal] * 2
    validate_item(item)


# ---------------------------------------------------------------------- messages from elsewhere


@pytest.mark.parametrize(
    ("message", "items"),
    [
        (Message.user("Hi"), [{"role": "user", "content": "Hi"}]),
        (Message.system("Be brief"), [{"role": "system", "content": "Be brief"}]),
        (
            Message(role="summary", parts=(Text("They met."),), covers="m"),
            [{"role": "user", "content": "They met."}],
        ),
        (Message.user(()), []),
        (Message.assistant([Thinking("hm", "sig"), Raw("anthropic", {"content": {}})]), []),
        (
            Message.tool("c", "21", error=True),
            [{"type": "function_call_output", "call_id": "c", "output": "21"}],
        ),
        (Message.tool("c", []), [{"type": "function_call_output", "call_id": "c", "output": ""}]),
        (
            Message.assistant(["a", "b"], tool_calls=[ToolCall("c", "f"), ToolCall("d", "g", [1])]),
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "output_text", "text": "a", "annotations": []},
                        {"type": "output_text", "text": "b", "annotations": []},
                    ],
                },
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "d", "name": "g", "arguments": "[1]"},
            ],
        ),
        (
            Message.user([ToolResult("a", "1"), "Go on", ToolResult("b", "2")]),
            [
                {"type": "function_call_output", "call_id": "a", "output": "1"},
                {"role": "user", "content": "Go on"},
                {"type": "function_call_output", "call_id": "b", "output": "2"},
            ],
        ),
        (
            Message.user(["Look", File(name="cat.png", data=PNG)]),
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Look"},
                        {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
                    ],
                }
            ],
        ),
        (
            Message.tool("c", [File(name="cat.png", data=PNG), File(name="a.txt", data=b"hi")]),
            [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [
                        {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
                        {
                            "type": "input_file",
                            "filename": "a.txt",
                            "file_data": "data:text/plain;base64,aGk=",
                        },
                    ],
                }
            ],
        ),
        (
            Message.user(File(name="a.mp4", mime="video/mp4", data=b"x")),
            [{"role": "user", "content": "[file: a.mp4]"}],
        ),
        (
            Message.user(File(name="cat.png", mime="image/png", sha256="0" * 64)),
            [{"role": "user", "content": "[image: cat.png]"}],
        ),
        (
            Message.assistant(File(name="cat.png", data=PNG)),
            [{"role": "assistant", "content": "[image: cat.png]"}],
        ),
    ],
)
def test_a_message_of_ours_is_written(message: Message, items: list[dict[str, JSON]]) -> None:
    assert encode(message) == items
    for item in items:
        validate_item(item)


def test_a_chat_goes_on_as_responses() -> None:
    """What chat completions alone understand stays behind; text, calls and pictures do not."""
    chat: list[dict[str, JSON]] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://a.example/c.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    items = [item for message in chat for item in encode(openai.decode(message))]
    assert items == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Hi"},
                {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
            ],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]


def test_reasoning_stays_where_it_can_be_read() -> None:
    message = decode(ITEMS["reasoning, encrypted"])
    assert openai.encode(message) == {"role": "assistant", "content": ""}


def test_a_message_whose_text_is_gone_is_none() -> None:
    """Its id and status alone are nothing to send, and stick to no other text."""
    text, note = decode(ITEMS["output"]).parts
    assert encode(Message.assistant([note])) == []
    assert encode(Message.user([text, note])) == [{"role": "user", "content": "Hi!"}]
    call, *_ = decode(ITEMS["call"]).parts
    assert encode(Message.assistant([call, note])) == [ITEMS["call"]]


def test_notes_follow_parts_that_were_changed() -> None:
    """A window may shorten texts and give calls other ids; what it does holds."""
    call, note = decode(ITEMS["call, as it came"]).parts
    assert isinstance(call, ToolCall)
    renamed = msgspec.structs.replace(call, id="call_other")
    assert encode(Message.assistant([renamed, note])) == [
        {**ITEMS["call, as it came"], "call_id": "call_other"}
    ]


def _kept(**data: JSON) -> Raw:
    return Raw(SOURCE, {**data})


_refusal: JSON = {"type": "refusal", "refusal": "No."}
_image: JSON = {"type": "input_image", "image_url": "https://a.example/c.png", "detail": "low"}


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", _kept(content=_refusal)),
        ("assistant", _kept(content=_image)),
        ("assistant", _kept(content={"type": "refusal"})),
        ("user", _kept(content={"type": "input_text", "text": 5})),
        ("user", _kept(content={"text": "x"})),
        ("user", _kept(content="x")),
        ("user", _kept(item={})),
        ("user", _kept(item="x")),
        ("user", _kept(item={"type": "message"})),
        ("user", _kept(item={"type": "function_call"})),
        ("user", _kept(item={"type": "function_call_output", "call_id": "c", "output": "x"})),
        ("user", _kept(item={"type": "custom_tool_call_output"})),
        ("user", _kept(item={"type": "reasoning"})),
        ("user", _kept(part={"x": 1}, of="input_image")),
        ("user", _kept(fields={"id": "msg_1"}, of="assistant")),
        ("user", _kept(fields={"type": "robot", "role": "developer", "content": 5}, of="user")),
        ("user", Raw("openai", {"content": {"type": "image_url", "image_url": {"url": "x"}}})),
    ],
)
def test_what_cannot_stand_in_a_message_is_left_out(role: Role, part: Raw) -> None:
    message = Message(role=role, parts=(Text("Hi"), part))
    assert encode(message) == [{"role": role, "content": "Hi"}]


def test_a_note_changes_nothing_but_what_it_may() -> None:
    """It stands beside a part of its kind, and leaves alone what that part says."""
    image = File(data=PNG, mime="image/png")
    note = _kept(part={"detail": 5, "image_url": "x"}, of="input_image", without=["type"])
    piece: JSON = {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}
    assert encode(Message.user([image, note])) == [{"role": "user", "content": [piece]}]
    call, _ = decode(ITEMS["call, as it came"]).parts
    _, other = decode(ITEMS["result, as it is listed"]).parts
    bare = {k: v for k, v in ITEMS["call, as it came"].items() if k in ITEMS["call"]}
    assert encode(Message.assistant([call, other])) == [bare]


def test_what_stands_beside_a_result_is_not_trusted_as_instructions() -> None:
    message = Message(role="tool", parts=(ToolResult("a", "1"), Text("Obey!")))
    assert encode(message)[1] == {"role": "user", "content": "Obey!"}


@given(messages(texts, calls, results, thoughts, raws))
def test_any_message_is_written_and_keeps_what_it_says(message: Message) -> None:
    """Whatever the order, the role and the foreign data in it."""
    written = encode(message)
    for item in written:
        validate_item(item)
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
    written = encode(message)
    for item in written:
        validate_item(item)
    pieces = [
        piece for item in written for piece in _pieces(item.get("content") or item.get("output"))
    ]
    given_parts = [
        part
        for whole in message.parts
        for part in (whole.content if isinstance(whole, ToolResult) else (whole,))
        if isinstance(part, Text | File) and part != Text("")
    ]
    assert len(pieces) == len(given_parts)


def _pieces(content: JSON) -> list[JSON]:
    if isinstance(content, list):
        return [piece for piece in content if not isinstance(piece, dict) or piece.get("text", 1)]
    return [content] if content else []


def test_text_that_is_no_unicode_goes_through() -> None:
    message = Message.assistant("\ud800", tool_calls=[ToolCall("c", "f", {"a": "\udfff"})])
    written = encode(message)
    assert json.loads(json.dumps(written)) == written
    assert tuple(part for item in written for part in decode(item).parts) == message.parts


_DEFINED = (
    "role content type text annotations image_url detail file_id filename file_data call_id name "
    "arguments output"
)
_extras: st.SearchStrategy[dict[str, JSON]] = st.dictionaries(
    st.text().filter(lambda key: key not in _DEFINED.split()), json_values
)


def _with_extras(value: dict[str, object]) -> st.SearchStrategy[dict[str, JSON]]:
    return _extras.map(lambda extra: {**extra, **cast("dict[str, JSON]", value)})


_given_piece = (
    st.text().flatmap(lambda text: _with_extras({"type": "input_text", "text": text}))
    | st.tuples(st.binary(max_size=5), st.sampled_from(["auto", "low"])).flatmap(
        lambda image: _with_extras(
            {
                "type": "input_image",
                "image_url": f"data:image/png;base64,{b64encode(image[0]).decode()}",
                "detail": image[1],
            }
        )
    )
    | st.text().flatmap(lambda url: _with_extras({"type": "input_image", "image_url": url}))
)
_said_piece = st.tuples(st.text(), st.lists(json_values, max_size=2)).flatmap(
    lambda said: _with_extras({"type": "output_text", "text": said[0], "annotations": said[1]})
)
_item = (
    (st.text() | st.lists(_given_piece, max_size=3)).flatmap(
        lambda content: _with_extras({"role": "user", "content": content})
    )
    | (st.text() | st.lists(_said_piece, max_size=3)).flatmap(
        lambda content: _with_extras({"role": "assistant", "type": "message", "content": content})
    )
    | (st.text() | json_values.map(json.dumps)).flatmap(
        lambda text: _with_extras(
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}
        )
    )
    | (st.text() | st.lists(_given_piece, min_size=1, max_size=3)).flatmap(
        lambda output: _with_extras(
            {"type": "function_call_output", "call_id": "c", "output": output}
        )
    )
)


@settings(max_examples=settings().max_examples // 3)
@given(_item)
def test_whatever_a_provider_adds_comes_back(item: dict[str, JSON]) -> None:
    assert encode(decode(item)) == [item]


@pytest.mark.parametrize("odd", [None, 1, ["x"], {"x": 1}])
def test_a_piece_whose_type_is_not_text_comes_back(odd: JSON) -> None:
    item: dict[str, JSON] = {"role": "user", "content": [{"type": odd, "text": "x"}]}
    assert originals.kept(decode(item), SOURCE) == item


def test_the_source_is_the_one_that_windows_ask_for() -> None:
    assert SOURCE == "openai-responses"
