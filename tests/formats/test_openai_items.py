"""Items of the Responses API are sent with the items they require: none is rejected for its id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.formats.openai_items import make_compatible
from holdfast.formats.openai_responses import decode, encode
from holdfast.testing.legality import problems
from holdfast.values import JSON, Message, ToolCall, ToolResult

Item = dict[str, JSON]

ASKED: Item = {"role": "user", "content": "Where is it?"}
THANKS: Item = {"role": "user", "content": "Thanks!"}
OUTPUT: Item = {"type": "function_call_output", "call_id": "call_1", "output": "Oslo"}
SEARCH: Item = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "Oslo"},
}
SCREEN: Item = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "call_s",
    "status": "completed",
    "pending_safety_checks": [],
    "action": {"type": "screenshot"},
}
SEEN: Item = {
    "type": "computer_call_output",
    "call_id": "call_s",
    "output": {"type": "computer_screenshot", "image_url": "https://a.example/s.png"},
}


def _reasoning(id: str = "rs_1") -> Item:
    return {"type": "reasoning", "id": id, "summary": []}


def _call(id: str = "fc_1", call_id: str = "call_1") -> Item:
    return {"type": "function_call", "id": id, "call_id": call_id, "name": "f", "arguments": "{}"}


def _said(id: str = "msg_1", text: str = "In Oslo.") -> Item:
    return {
        "type": "message",
        "id": id,
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _bare(item: Item) -> Item:
    return {key: value for key, value in item.items() if key != "id"}


def _history(*items: Item | None) -> list[Message]:
    """Decode items as they would be read from a store; None is one that was left out."""
    read = []
    for seq, item in enumerate(items, 1):
        if item is not None:
            message = decode(item)
            read.append(Message(role=message.role, parts=message.parts, seq=seq))
    return read


def _sent(*items: Item | None) -> list[Item]:
    return [item for message in make_compatible(_history(*items)) for item in encode(message)]


# --------------------------------------------------------------------------------------- ids


def test_ids_stay_behind_reasoning_that_is_sent() -> None:
    items = [
        ASKED,
        _reasoning(),
        _said("msg_0", "I look."),
        _call(),
        _call("fc_2", "call_2"),
        OUTPUT,
        {**OUTPUT, "call_id": "call_2"},
        _reasoning("rs_2"),
        SEARCH,
        _reasoning("rs_3"),
        _said(),
        THANKS,
    ]
    assert _sent(*items) == items


def test_a_call_whose_reasoning_was_left_out_loses_its_id() -> None:
    assert _sent(ASKED, None, _call(), OUTPUT) == [ASKED, _bare(_call()), OUTPUT]


def test_a_message_whose_reasoning_was_left_out_loses_its_id() -> None:
    assert _sent(ASKED, None, _said(), THANKS) == [ASKED, _bare(_said()), THANKS]


def test_a_call_whose_reasoning_was_never_stored_loses_its_id() -> None:
    """An agent that keeps calls and not reasoning would be stuck for good otherwise."""
    assert _sent(ASKED, _call(), OUTPUT) == [ASKED, _bare(_call()), OUTPUT]


def test_reasoning_of_one_run_is_none_of_another() -> None:
    sent = _sent(ASKED, _reasoning(), _call(), OUTPUT, _said(), THANKS)
    assert sent == [ASKED, _reasoning(), _call(), OUTPUT, _bare(_said()), THANKS]


def test_one_that_is_missing_in_the_middle_of_a_run_ends_it() -> None:
    """What is behind may have come of what is missing, not of the reasoning before."""
    sent = _sent(ASKED, _reasoning(), SEARCH, None, _said(), THANKS)
    assert sent == [ASKED, _reasoning(), SEARCH, _bare(_said()), THANKS]


def test_a_built_in_tool_whose_reasoning_was_left_out_is_left_out() -> None:
    """It cannot be sent without its id."""
    assert _sent(ASKED, None, SEARCH, _said(), THANKS) == [ASKED, _bare(_said()), THANKS]


def test_a_built_in_tool_of_a_model_that_does_not_reason_is_sent() -> None:
    assert _sent(ASKED, SEARCH, _said(), THANKS) == [ASKED, SEARCH, _bare(_said()), THANKS]


@pytest.mark.parametrize("id", ["call_1", "fc 1", "fc_" + "0" * 64, ""])
def test_an_id_that_is_none_of_the_service_is_not_sent(id: str) -> None:
    """Other servers of this protocol give other ids."""
    assert _sent(ASKED, _reasoning(), _call(id), OUTPUT) == [
        ASKED,
        _reasoning(),
        _bare(_call()),
        OUTPUT,
    ]


def test_no_item_comes_twice() -> None:
    twice = _sent(ASKED, _reasoning(), _said(), THANKS, _reasoning(), _said(), THANKS)
    assert twice == [ASKED, _reasoning(), _said(), THANKS, _bare(_said()), THANKS]


# ---------------------------------------------------------------------------------- reasoning


def test_reasoning_is_not_sent_without_what_it_led_to() -> None:
    assert _sent(ASKED, _reasoning(), None, _said(), THANKS) == [ASKED, _bare(_said()), THANKS]
    assert _sent(ASKED, _reasoning(), THANKS) == [ASKED, THANKS]
    assert _sent(ASKED, _reasoning(), _reasoning("rs_2")) == [ASKED]


# -------------------------------------------------------------------------------------- pairs


def test_a_computer_is_sent_with_what_it_answered() -> None:
    assert _sent(ASKED, SCREEN, SEEN, _said()) == [ASKED, SCREEN, SEEN, _bare(_said())]
    assert _sent(ASKED, SCREEN, None, _said()) == [ASKED, _bare(_said())]
    assert _sent(ASKED, None, SEEN, _said()) == [ASKED, _bare(_said())]
    assert _sent(ASKED, SEEN, SCREEN, _said()) == [ASKED, _bare(_said())]


def test_an_answer_to_a_custom_tool_is_written_as_one() -> None:
    """Also if it was made for a call that nobody answered."""
    custom: Item = {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "call_1",
        "name": "plan",
        "input": "TO oslo",
    }
    made = Message(role="tool", parts=(ToolResult("call_1", "not run"),))
    (_, *answer) = [i for m in make_compatible([*_history(custom), made]) for i in encode(m)]
    assert answer == [{"type": "custom_tool_call_output", "call_id": "call_1", "output": "not run"}]


def test_an_answer_to_a_function_is_none_of_a_custom_tool() -> None:
    (answered,) = _history({**OUTPUT, "type": "custom_tool_call_output", "id": "cto_1"})
    said = [Message.assistant(tool_calls=[ToolCall("call_1", "f")]), answered]
    assert [item["type"] for message in make_compatible(said) for item in encode(message)] == [
        "function_call",
        "function_call_output",
    ]


def test_what_needs_nothing_is_the_same() -> None:
    said = [Message.user("Hi"), Message.assistant("Hello!")]
    assert make_compatible(said) == said


# ---------------------------------------------------------------------------------- in windows


_items = st.sampled_from(
    [
        ASKED,
        THANKS,
        OUTPUT,
        SEARCH,
        SCREEN,
        SEEN,
        _reasoning(),
        _reasoning("rs_2"),
        _call(),
        _call("fc_2", "call_2"),
        _call("call_2", "call_3"),
        {**OUTPUT, "call_id": "call_2"},
        {**OUTPUT, "type": "custom_tool_call_output", "call_id": "call_1"},
        _said(),
        _said("msg_2", ""),
        {
            "type": "custom_tool_call",
            "id": "ctc_1",
            "call_id": "call_1",
            "name": "p",
            "input": "",
        },
    ]
)


@given(st.lists(st.tuples(_items, st.booleans()), max_size=16), st.none() | st.integers(1, 9))
def test_windows_of_any_items_are_legal(items: list[tuple[Item, bool]], most: int | None) -> None:
    """Whatever is hidden or cut, no item is there without its companions."""
    with holdfast.open("memory:") as store:
        session = store.create()
        for item, hidden in items:
            read = decode(item)
            session.append(
                Message(
                    role=read.role, parts=read.parts, metadata={"hidden": True} if hidden else {}
                )
            )
        window = session.window(provider="openai-responses", max_messages=most)
        if window.messages:
            assert problems("openai-responses", window.messages, window.system) == []
        assert all(item["id"] == "ws_1" or led for item, led in _with_ids(window.messages))


def _with_ids(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """Return what the model made and has an id, and whether reasoning is before it in its run."""
    led = False
    for item in items:
        kind = item.get("type", "message")
        if kind == "reasoning":
            led = True
        elif item.get("role") == "user" or str(kind).endswith("_output"):
            led = False
        elif "id" in item and kind != "computer_call":
            yield item, led
