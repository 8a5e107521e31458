"""`Window.sources`: the stored messages that each item of a window is made of."""

import pytest

import holdfast
from holdfast import Message, Raw, Text, ToolCall, ToolResult
from holdfast.values import Provider, Window

OPENAI: tuple[Provider, ...] = ("openai", "openai-responses")
ALTERNATING: tuple[Provider, ...] = ("anthropic", "gemini")
FOUND = ToolResult("a", "found")


def _window(provider: Provider, *messages: Message, system: str | None = None) -> Window:
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(*messages)
        return session.window(provider=provider, system=system)


def _call(id: str) -> ToolCall:
    return ToolCall(id, "look_up", {})


def _exchange() -> list[Message]:
    """Two calls in messages of their own, as the items of a response are, and one result."""
    return [
        Message.user("hi", id="ask"),
        Message.assistant("Let me see.", tool_calls=[_call("a")], id="first"),
        Message.assistant(tool_calls=[_call("b")], id="second"),
        Message.tool("a", "found", id="answer"),
    ]


def test_each_result_names_its_message_and_one_that_was_added_names_none() -> None:
    window = _window("openai", *_exchange())
    assert window.sources == (("ask",), ("first", "second"), ("answer",), ())


def test_joined_calls_that_are_items_of_their_own_name_their_own_message() -> None:
    window = _window("openai-responses", *_exchange())
    kinds = [item.get("type", "message") for item in window.messages]
    assert list(zip(kinds, window.sources, strict=True)) == [
        ("message", ("ask",)),
        ("message", ("first",)),
        ("function_call", ("first",)),
        ("function_call", ("second",)),
        ("function_call_output", ("answer",)),
        ("function_call_output", ()),
    ]


@pytest.mark.parametrize("provider", ALTERNATING)
def test_merged_messages_are_named_together(provider: Provider) -> None:
    more = Message.user("And?", id="more")
    window = _window(provider, *_exchange(), more, Message.user("Well?", id="last"))
    assert window.sources == (("ask",), ("first", "second"), ("answer", "more", "last"))


@pytest.mark.parametrize("provider", ALTERNATING)
def test_what_the_window_begins_with_itself_names_none(provider: Provider) -> None:
    window = _window(provider, Message.assistant("Hello!", id="greeting"))
    assert window.sources == ((), ("greeting",))


@pytest.mark.parametrize("provider", OPENAI)
def test_stored_instructions_are_named_where_they_are_items(provider: Provider) -> None:
    said = [Message.system("Be kind.", id="rule"), Message.user("hi", id="ask")]
    assert _window(provider, *said, system="Be brief.").sources == ((), ("rule",), ("ask",))


@pytest.mark.parametrize("provider", ALTERNATING)
def test_stored_instructions_apart_from_the_items_are_not_named(provider: Provider) -> None:
    said = [Message.system("Be kind.", id="rule"), Message.user("hi", id="ask")]
    window = _window(provider, *said, system="Be brief.")
    assert (window.sources, window.left_out) == ((("ask",),), ())


@pytest.mark.parametrize(
    ("provider", "expected"),
    [*((provider, False) for provider in OPENAI), *((provider, True) for provider in ALTERNATING)],
)
def test_a_summary_is_named_by_its_own_id(provider: Provider, *, expected: bool) -> None:
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(Message.user("hi", id="old"))
        session.summarize("so far")
        session.append(Message.user("And?", id="new"))
        summary = session.summary()
        assert summary is not None
        merged = session.window(provider=provider).sources == ((summary.id, "new"),)
        apart = session.window(provider=provider).sources == ((summary.id,), ("new",))
    assert (merged, apart) == (expected, not expected)


def test_a_message_with_a_result_and_a_text_is_behind_both_items() -> None:
    said = [
        Message.user("hi", id="ask"),
        Message.assistant(tool_calls=[_call("a")], id="call"),
        Message(role="user", parts=(FOUND, Text("And?")), id="both"),
    ]
    window = _window("openai", *said)
    assert window.sources == (("ask",), ("call",), ("both",), ("both",))


def test_a_blank_message_whose_result_is_sent_is_not_left_out() -> None:
    said = [
        Message.user("hi", id="ask"),
        Message.assistant(tool_calls=[_call("a")], id="call"),
        Message(role="user", parts=(FOUND, Text(" ")), id="blank"),
    ]
    window = _window("openai", *said)
    assert window.sources[-1] == ("blank",)
    assert window.left_out == ()


def test_a_message_of_which_nothing_can_be_sent_is_counted() -> None:
    """What the provider would reject is found only once the window is put together."""
    shell = Raw("openai-responses", {"item": {"type": "shell_call", "call_id": "s", "id": "sh"}})
    said = [
        Message.user("hi", id="ask"),
        Message(role="assistant", parts=(shell,), id="unanswered"),
        Message.user("And?", id="more"),
    ]
    window = _window("openai-responses", *said)
    assert window.sources == (("ask",), ("more",))
    assert [(left.count, left.why) for left in window.left_out] == [(1, "empty")]
