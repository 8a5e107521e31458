"""The compatibility filter: providers' own pieces are sent only in valid combinations."""

from __future__ import annotations

from typing import Final

import pytest

from holdfast.formats import anthropic, gemini, openai
from holdfast.formats.registry import PROVIDERS, format_of
from holdfast.values import JSON, Message, Part, Raw, Thinking, ToolCall, ToolResult

Item = dict[str, JSON]

SEARCH: Item = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND: Item = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
WORDS: Item = {"type": "text", "text": "It is in Oslo."}
THOUGHT: Item = {"type": "thinking", "thinking": "Search.", "signature": "c2ln"}
GONE: Item = {"type": "text", "text": "[interrupted]"}


# ------------------------------------------------------------------------------------- anthropic


def _anthropic(*blocks: Item, then: bool = True) -> JSON:
    """Return what is sent of a reply with these blocks, with or without a question behind it."""
    said = [anthropic.decode({"role": "assistant", "content": [*blocks]})]
    return anthropic.encode(
        anthropic.FORMAT.make_compatible(said + [Message.user("And?")] * then)[0]
    )["content"]


def test_a_servers_tool_is_sent_with_its_result() -> None:
    assert _anthropic(SEARCH, FOUND, WORDS) == [SEARCH, FOUND, WORDS]


def test_a_servers_tool_without_a_result_is_not_sent() -> None:
    assert _anthropic(SEARCH, WORDS) == [WORDS]


def test_a_result_of_a_servers_tool_without_its_call_is_not_sent() -> None:
    assert _anthropic(FOUND, WORDS) == [WORDS]
    assert _anthropic(FOUND, SEARCH, WORDS) == [WORDS]
    assert _anthropic(SEARCH, FOUND, FOUND, WORDS) == [SEARCH, FOUND, WORDS]


def test_at_the_end_a_server_may_be_asked_to_go_on() -> None:
    assert _anthropic(WORDS, SEARCH, then=False) == [WORDS, SEARCH]


@pytest.mark.parametrize("thoughts", [[], [THOUGHT]])
def test_a_message_of_which_nothing_is_left_says_so(thoughts: list[Item]) -> None:
    """It stands between two of the user's, and no message ends with thinking."""
    assert _anthropic(*thoughts, SEARCH) == [*thoughts, GONE]


UNSENDABLE: Final[dict[str, Part]] = {
    "unsigned": Thinking("Search."),
    "of nobody we know": Raw("elsewhere", {"item": {"type": "reasoning", "id": "rs_1"}}),
    "of another provider": Raw("gemini", {"content": {"text": "Search.", "thought": True}}),
}


@pytest.mark.parametrize("first", UNSENDABLE)
def test_thinking_is_left_out_where_what_it_began_with_cannot_be_sent(first: str) -> None:
    """Else it would stand behind words."""
    said = Message.assistant([UNSENDABLE[first], "One.", Thinking("So.", "c2ln"), "Two."])
    (sent, _) = anthropic.FORMAT.make_compatible([said, Message.user("And?")])
    assert anthropic.encode(sent)["content"] == [
        {"type": "text", "text": "One."},
        {"type": "text", "text": "Two."},
    ]


def test_thinking_between_words_stays_behind_thinking() -> None:
    assert _anthropic(THOUGHT, WORDS, THOUGHT, WORDS) == [THOUGHT, WORDS, THOUGHT, WORDS]
    redacted: Item = {"type": "redacted_thinking", "data": "c2ln"}
    assert _anthropic(redacted, WORDS, THOUGHT, WORDS) == [redacted, WORDS, THOUGHT, WORDS]


PICTURE: Item = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


def _result(*content: Item) -> Item:
    block: Item = {"type": "tool_result", "tool_use_id": "c", "is_error": True}
    block["content"] = [*content]
    decoded = anthropic.decode({"role": "user", "content": [block]})
    return anthropic.encode(anthropic.FORMAT.make_compatible([decoded])[0])["content"][0]  # type: ignore[index,return-value]


def test_an_error_with_a_picture_says_so_in_words() -> None:
    """The flag is for text alone."""
    assert _result(WORDS)["is_error"] is True
    shown = _result(WORDS, PICTURE)
    assert "is_error" not in shown
    assert shown["content"] == [{**WORDS, "text": "[error] It is in Oslo."}, PICTURE]
    assert _result(PICTURE)["content"] == [{**WORDS, "text": "[error]"}, PICTURE]


def test_an_error_of_which_nothing_can_be_sent_says_so() -> None:
    result = ToolResult("c", (Raw("elsewhere", {"x": 1}),), error=True)
    (said,) = anthropic.FORMAT.make_compatible([Message(role="tool", parts=(result,))])
    assert anthropic.encode(said)["content"] == [
        {"type": "tool_result", "tool_use_id": "c", "content": "[error]", "is_error": True}
    ]


# ---------------------------------------------------------------------------------------- gemini


_CALL: Item = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]}


def _responses(*messages: Message) -> JSON:
    sent = [gemini.encode(message) for message in gemini.FORMAT.make_compatible(messages)]
    return [part["functionResponse"] for part in sent[-1]["parts"]]  # type: ignore[index,call-overload,union-attr]


def test_a_result_of_a_call_without_an_id_has_none() -> None:
    """Also if it was made for a call that nobody answered."""
    asked = gemini.decode(_CALL)
    made = Message.tool(asked.tool_calls[0].id, "done")
    assert _responses(asked, made) == [{"name": "unknown", "response": {"output": "done"}}]


def test_a_result_of_a_call_with_an_id_has_it() -> None:
    """Its response came without one, from a server that gives none."""
    answered = gemini.decode(
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"x": 1}}}]}
    )
    asked = Message.assistant(tool_calls=[ToolCall("look-1", "look")])
    assert _responses(asked, answered) == [{"id": "look-1", "name": "look", "response": {"x": 1}}]


# ---------------------------------------------------------------------------------------- openai


def test_calls_of_the_first_kind_are_sent_with_ids() -> None:
    asked = openai.decode(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    )
    answered = Message(role="tool", parts=(ToolResult(asked.tool_calls[0].id, "1"),))
    call, result = (openai.encode(m) for m in openai.FORMAT.make_compatible([asked, answered]))
    assert "function_call" not in call
    assert call["tool_calls"] == [
        {
            "id": result["tool_call_id"],
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
        }
    ]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_needs_nothing_is_the_same(provider: str) -> None:
    said = [
        Message.user("Hi"),
        Message.assistant([Thinking("Hm."), ToolCall("c", "look")]),
        Message.tool("c", "done"),
        Message.assistant("Hello!"),
    ]
    assert format_of(provider).make_compatible(said) == said
