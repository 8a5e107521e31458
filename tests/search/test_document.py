"""The searchable text of a message."""

import pytest
from hypothesis import given

from holdfast.search.document import Document, document
from holdfast.search.tokenize import words
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Raw,
    Status,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from tests.model import strategies as some


def _text(*parts: Part) -> str:
    return document(Message(role="assistant", parts=parts)).text


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Text("red green"), "red green"),
        (Text(""), ""),
        (Thinking("red"), ""),
        (Raw("elsewhere", {"text": "red"}), ""),
        (File(name="notes.txt", mime="text/plain", data=b"red"), "notes.txt"),
        (File(sha256="ab" * 32), ""),
        (ToolCall("call-1", "read_file"), "read_file"),
        (ToolCall("call-1", "read_file", "--all red"), "read_file\n--all red"),
        (ToolCall("call-1", "read", {"path": "a/b.py", "n": 3}), "read\npath: a/b.py\nn: 3"),
        (ToolCall("call-1", "f", {"text": 'a\n"b"'}), 'f\ntext: a\n"b"'),
        (
            ToolCall("call-1", "f", {"on": True, "off": False, "no": None, "x": 0.5}),
            "f\non: true\noff: false\nno: null\nx: 0.5",
        ),
        (
            ToolCall("call-1", "f", {"edits": [{"old": "a", "new": "b"}, ["c", 1]]}),
            "f\nedits:\nold: a\nnew: b\nc\n1",
        ),
        (ToolCall("call-1", "f", []), "f"),
        (ToolResult("call-1", "done"), "done"),
        (ToolResult("call-1", "failed", error=True, name="run"), "run\nfailed"),
        (
            ToolResult("call-1", (Text("red"), File(name="a.png"), Raw("x", "no"), Text("blue"))),
            "red\na.png\nblue",
        ),
    ],
)
def test_the_text_of_a_part(part: Part, expected: str) -> None:
    assert _text(part) == expected


def test_thinking_is_kept_apart() -> None:
    message = Message.assistant(
        [Thinking("first"), "said", Thinking("second"), "more"],
        tool_calls=[ToolCall("call-1", "run")],
        name="ada",
    )
    assert document(message) == Document("said\nmore\nrun", "first\nsecond")


@pytest.mark.parametrize("status", ["damaged", "erased"])
def test_what_is_gone_has_no_words(status: Status) -> None:
    assert document(Message.user("red", status=status)) == Document()


@pytest.mark.parametrize("status", ["complete", "partial"])
def test_what_was_cut_off_has_words(status: Status) -> None:
    assert document(Message.user("red", status=status)) == Document("red")


def test_a_summary_can_be_found() -> None:
    assert document(Message(role="summary", parts=(Text("so far"),), covers="x")).text == "so far"


def _strings(value: JSON) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in _strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in _strings(one)]
    return [value] if isinstance(value, str) else []


@given(arguments=some.json_values)
def test_every_text_in_arguments_can_be_found(arguments: JSON) -> None:
    found = words(_text(ToolCall("call-1", "run", arguments)))
    wanted = [word for text in _strings(arguments) for word in words(text)]
    for word in set(wanted):
        assert found.count(word) >= wanted.count(word)


def test_deep_arguments_can_be_read() -> None:
    """As deeply nested as may be stored."""
    arguments: JSON = "bottom"
    for _ in range(200):
        arguments = {"in": [arguments]}
    assert words(_text(ToolCall("call-1", "run", arguments)))[-1] == "bottom"
