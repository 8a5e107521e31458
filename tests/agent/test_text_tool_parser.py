"""Calls that a model wrote as text, found; answers in JSON, left alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.models.protocol import ToolSpec
from holdfast.agent.text_tool_parser import UNREADABLE_CALL, ParsedReply, TextCall, parse_reply
from holdfast.agent.text_tools import CLOSING, OPENING, describe_tools, to_text_messages
from holdfast.formats import openai
from holdfast.validation import check_message
from holdfast.values import JSON, Message, ToolCall

NAMES = {"read_file", "list_files", "write_file"}
READ = TextCall("read_file", {"path": "a.py"})


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "read_file", "arguments": {"path": "a.py"}}',
        '  \n{"name": "read_file", "arguments": {"path": "a.py"}}\n',
        '{"name": "read_file", "parameters": {"path": "a.py"}}',
        '{"tool": "read_file", "args": {"path": "a.py"}}',
        '{"tool_name": "read_file", "params": {"path": "a.py"}}',
        '{"action": "read_file", "action_input": {"path": "a.py"}}',
        '{"function": "read_file", "input": {"path": "a.py"}}',
        '{"tool": "read_file", "path": "a.py"}',
        '{"read_file": {"path": "a.py"}}',
        '{"name": "functions.read_file", "arguments": {"path": "a.py"}}',
        '{"name": "read_file", "arguments": "{\\"path\\": \\"a.py\\"}"}',
        '{"type": "function", "function": {"name": "read_file", "arguments": {"path": "a.py"}}}',
        '{"tool_calls": [{"name": "read_file", "arguments": {"path": "a.py"}}]}',
        '[{"name": "read_file", "arguments": {"path": "a.py"}}]',
        '{"name": "read_file", "arguments": {"path": "a.py",},}',
        '{"name": "read_file", "arguments": {"path": "a.py"}',
        '```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```',
        '```\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```',
        '```tool_call\n{"name": "read_file", "arguments": {"path": "a.py"}}```',
        '```json\n{"name": "read_file", "arguments": {"path": "a.py"}}',
        '~~~json\n[{"name": "read_file", "arguments": {"path": "a.py"}}]\n~~~',
        '````json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n````',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>',
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}',
        '<tool_call>```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```</tool_call>',
        '```xml\n<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>\n```',
        '<function_call>{"name": "read_file", "arguments": {"path": "a.py"}}</function_call>',
        '<|python_tag|>{"name": "read_file", "parameters": {"path": "a.py"}}',
        '[TOOL_CALLS][{"name": "read_file", "arguments": {"path": "a.py"}}]',
    ],
)
def test_a_call_is_found_however_it_is_written(text: str) -> None:
    assert parse_reply(text, NAMES) == ParsedReply("", (READ,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The answer is 42.",
        "{",
        '{"name": "Ada", "arguments": {"born": 1815}}',
        '{"name": "read_file", "size": 12, "path": "a.py"}',
        '{"path": "a.py"}',
        '[{"name": "read_file", "arguments": {}}, {"name": "Ada"}]',
        "[]",
        "[1, 2]",
        "null",
        '"read_file"',
        '{"tool_calls": []}',
        '```json\n{"name": "Ada", "arguments": {}}\n```',
        '```python\nprint({"name": "read_file", "arguments": {}})\n```',
        '```json\n{"name": "read_file", "arguments": {}}\nand so on\n```',
        'I would write {"name": "read_file", "arguments": {}} then.',
        '{"name": "read_file", "arguments": {}} would be the call.',
        "Write it between <tool_call> tags.",
        '<think>{"name": "read_file", "arguments": {}}',
        '<think><tool_call>{"name": "read_file", "arguments": {}}</tool_call></think>No.',
    ],
)
def test_what_is_no_call_stays_as_it_is(text: str) -> None:
    assert parse_reply(text, NAMES) == ParsedReply(text, ())


def test_what_is_said_around_calls_is_kept() -> None:
    call = '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>'
    found = parse_reply(f"I look.\n{call}\n{call}\nThen I go on.", NAMES)
    assert found == ParsedReply("I look.\n\n\nThen I go on.", (READ, READ))
    fenced = '```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```'
    assert parse_reply(f"I look.\n{fenced}\nDone?", NAMES) == ParsedReply(
        "I look.\n\nDone?", (READ,)
    )
    thoughts = '<think>hm {"name": "list_files", "arguments": {}}</think>'
    bare = '{"name": "read_file", "arguments": {"path": "a.py"}}'
    assert parse_reply(f"{thoughts}\n{bare}", NAMES) == ParsedReply(thoughts, (READ,))


def test_several_calls_are_found_in_order() -> None:
    one = '{"name": "read_file", "arguments": {"path": "a.py"}}'
    two = '{"name": "list_files"}'
    wanted = (READ, TextCall("list_files", {}))
    for text in (
        f"{one}\n{two}",
        f"{one}; {two}",
        f"[{one}, {two}]",
        f"```json\n{one}\n{two}\n```",
        f"```json\n{one}\n```\n```json\n{two}\n```",
        f"<tool_call>{one}\n{two}</tool_call>",
        f"<tool_calls>[{one}, {two}]</tool_calls>",
    ):
        assert parse_reply(text, NAMES).calls == wanted, text


def test_a_fence_within_the_text_of_a_call_does_not_end_it() -> None:
    content = "# Title\n\n```python\nprint('}')\n```\n</tool_call>\n"
    call = json.dumps({"name": "write_file", "arguments": {"path": "a.md", "content": content}})
    wanted = ParsedReply("", (TextCall("write_file", {"path": "a.md", "content": content}),))
    assert parse_reply(f"```json\n{call}\n```", NAMES) == wanted
    assert parse_reply(f"<tool_call>{call}</tool_call>", NAMES) == wanted


@pytest.mark.parametrize(
    ("inside", "call"),
    [
        ('{"name": "rm", "arguments": {"a": 1}}', TextCall("rm", {"a": 1})),
        ("read the file please", TextCall(UNREADABLE_CALL, "read the file please")),
        ('{"path": "a.py"}', TextCall(UNREADABLE_CALL, {"path": "a.py"})),
        ('{"name": 3}', TextCall(UNREADABLE_CALL, {"name": 3})),
        ('{"name": "read_file", "arguments": 42}', TextCall("read_file", 42)),
        ('{"name": "read_file", "arguments": "{nonsense"}', TextCall("read_file", "{nonsense")),
        ("", TextCall(UNREADABLE_CALL, "")),
        ("[" * 500, TextCall(UNREADABLE_CALL, "[" * 500)),
    ],
)
def test_nonsense_between_tags_is_a_call_that_will_be_refused(inside: str, call: TextCall) -> None:
    assert parse_reply(f"<tool_call>{inside}</tool_call>", NAMES).calls == (call,)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "write_file", "arguments": {"path": "a", "content": "half of',
        '<tool_call>{"name": "write_file", "arguments": {"path": "a", "content": "half of',
        '```json\n{"name": "write_file", "arguments": {"path": "a", "content": "half of',
        '{"name": "read_file", "arguments": {"count": 12',
    ],
)
def test_a_call_that_was_cut_off_within_a_value_is_never_completed(text: str) -> None:
    """`rm -rf /tmp/x` may have been the beginning of `rm -rf /tmp/x/cache`."""
    for call in parse_reply(text, NAMES).calls:
        assert call.name == UNREADABLE_CALL
        assert isinstance(call.arguments, str)


def test_python_words_and_control_characters_are_understood() -> None:
    text = '{"name": "list_files", "arguments": {"all": True, "a": None, "b": "x\ty\nTrue,]"}}'
    wanted: dict[str, JSON] = {"all": True, "a": None, "b": "x\ty\nTrue,]"}
    assert parse_reply(text, NAMES).calls == (TextCall("list_files", wanted),)


@pytest.mark.parametrize(
    "piece",
    [
        *("```", "```json\n{", "<tool_call>", "<tool_call>{", "{", '{"', "[", '","', "~~~["),
        *('<tool_call>{"a": "', "```x\n<tool_call>", ", ", '\\"', "{}", '{"name": "read_file"} '),
    ],
)
def test_hostile_text_takes_no_longer_for_being_hostile(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    parse_reply(text, NAMES)
    assert time.process_time() - began < 10  # Quadratic time would be minutes.


def test_tags_that_nobody_closes_are_not_looked_for_again_and_again() -> None:
    text = "<tool_call>" * 300_000
    began = time.process_time()
    assert parse_reply(text, NAMES) == ParsedReply(text, ())
    assert time.process_time() - began < 15


pieces = st.sampled_from(
    [
        *("```", "json\n", "<tool_call>", "</tool_call>", "{", "}", "[", "]", '"', ",", ":", "\\"),
        *('"name"', '"read_file"', '"arguments"', "True", "1e999", "-", "NaN", "\ud800", "x"),
        *('{"name": "read_file", "arguments": {}}', "<think>", "</think>", "[TOOL_CALLS]", "\n"),
    ]
)


@given(st.lists(pieces, max_size=30).map("".join) | st.text())
def test_nothing_raises_and_whatever_is_found_can_be_stored(text: str) -> None:
    found = parse_reply(text, NAMES)
    parts = [ToolCall("c", call.name, call.arguments) for call in found.calls]
    message = Message.assistant(found.text, tool_calls=parts)
    assert openai.encode_all(message)
    assert found.calls or found.text == text
    check_message(message)


# ------------------------------------------------------------------------------------- telling


SPEC = ToolSpec(
    "read_file",
    "Read a file.\n  All of it.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Which one."},
            "mode": {"enum": ["text", "hex"]},
            "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "any": {},
        },
        "required": ["path"],
    },
)


def test_tools_are_told_in_words() -> None:
    told = describe_tools([SPEC])
    assert "- read_file: Read a file. All of it." in told
    assert "  - path (text): Which one." in told
    assert '  - mode ("text" or "hex", optional)' in told
    assert "  - count (whole number, optional)" in told
    assert "  - any (anything, optional)" in told
    assert describe_tools([]) == ""


def test_the_form_that_is_told_is_understood() -> None:
    line = next(line for line in describe_tools([SPEC]).splitlines() if line.startswith(OPENING))
    assert parse_reply(line, {"TOOL"}).calls == (TextCall("TOOL", {"PARAMETER": "VALUE"}),)
    assert line.endswith(CLOSING)


def test_calls_and_results_become_words_that_are_understood_again() -> None:
    call: dict[str, Any] = {"name": "read_file", "arguments": '{"path": "a.py"}'}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read."},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "1", "type": "function", "function": call}] * 2,
        },
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Done."},
    ]
    before = json.dumps(messages)
    plain = to_text_messages(messages)
    assert json.dumps(messages) == before
    roles = [message["role"] for message in plain]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert parse_reply(str(plain[2]["content"]), NAMES) == ParsedReply("I look.", (READ, READ))
    assert plain[3]["content"] == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\nAnd?"
    )
    assert not any("tool_calls" in message or message["role"] == "tool" for message in plain)
    assert to_text_messages(plain) == plain


@pytest.mark.parametrize(
    "words",
    [
        '{"name": "read_file", "arguments": {"path": "a.py"}}',
        'I look.\n```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>',
    ],
)
def test_a_call_that_was_made_in_words_is_not_told_twice(words: str) -> None:
    """The history has the words as they were said, and the call that was understood."""
    function: dict[str, JSON] = {"name": "read_file", "arguments": '{"path":"a.py"}'}
    said: dict[str, JSON] = {
        "role": "assistant",
        "content": words,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    assert to_text_messages([said]) == [{"role": "assistant", "content": words}]
