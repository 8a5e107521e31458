"""The round trip of conversations, recorded with the providers' own packages, through a store.

They come back deep-equal from their formats, and from a window for the provider they were recorded
with; for every other provider a window of them is valid.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from anthropic.types import MessageParam
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import BaseModel, TypeAdapter

import holdfast
from holdfast.formats import openai
from holdfast.formats.registry import format_of
from holdfast.testing.legality import problems
from holdfast.values import JSON, Message, Provider, Window
from tests.formats import record
from tests.formats.genai import types as genai

Items = list[dict[str, JSON]]

NAMES = sorted(record.files())
each_conversation = pytest.mark.parametrize("name", NAMES)
each_provider = pytest.mark.parametrize("provider", get_args(Provider))

# The types of the providers' own packages.
_TYPES: dict[str, TypeAdapter[Any]] = {
    "anthropic": TypeAdapter(MessageParam),
    "gemini": TypeAdapter(genai.Content),
    "openai": TypeAdapter(ChatCompletionMessageParam),
    "openai-responses": TypeAdapter(ResponseInputItemParam),
}


def _recorded(name: str) -> tuple[Provider, Items]:
    found = json.loads((record.RECORDED / name).read_text(encoding="utf-8"))
    return found["provider"], found["messages"]


def _walked(value: object) -> object:
    """Look into everything that was validated: the packages check some lists only then."""
    if isinstance(value, BaseModel):
        return value
    if isinstance(value, dict):
        return {key: _walked(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | Iterator):
        return [_walked(inner) for inner in value]
    return value


def _window(tmp_path: Path, name: str, provider: Provider, *, joined: bool = False) -> Window:
    """Store a conversation in a file, open it anew, and ask for a window."""
    held_on, items = _recorded(name)
    messages = [format_of(held_on).decode(item) for item in items]
    with holdfast.open(tmp_path / "store.db") as store:
        store.session("held").append(*(_in_turns(messages) if joined else messages))
    with holdfast.open(tmp_path / "store.db") as store:
        return store.session("held").window(provider=provider)


def _in_turns(messages: list[Message]) -> Iterator[Message]:
    """Put what one speaker said in a row into one message, as many agents store it."""
    waiting: list[Message] = []
    for message in messages:
        if waiting and waiting[0].role != message.role:
            yield _one(waiting)
            waiting = []
        waiting.append(message)
    yield _one(waiting)


def _one(messages: list[Message]) -> Message:
    parts = tuple(part for message in messages for part in message.parts)
    return Message(role=messages[0].role, parts=parts)


def test_the_recordings_are_what_the_packages_make() -> None:
    """If this fails after an update of a package: `python -m tests.formats.record`."""
    made = record.files()
    assert {path.name for path in record.RECORDED.glob("*.json")} == set(made)
    for name, text in made.items():
        assert (record.RECORDED / name).read_text(encoding="utf-8") == text


@each_conversation
def test_they_are_conversations_of_some_length(name: str) -> None:
    _, items = _recorded(name)
    assert 8 <= len(items) <= 25


@each_conversation
def test_the_packages_take_them(name: str) -> None:
    provider, items = _recorded(name)
    for item in items:
        _walked(_TYPES[provider].validate_python(item))


@each_conversation
def test_formats_give_them_back_deep_equal(name: str) -> None:
    provider, items = _recorded(name)
    shape = format_of(provider)
    for item in items:
        before = json.dumps(item)
        assert shape.encode(shape.decode(item)) == [item]
        assert json.dumps(item) == before


# ---------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
@each_provider
@each_conversation
def test_any_provider_can_go_on_with_them(
    tmp_path: Path, name: str, provider: Provider, *, joined: bool
) -> None:
    window = _window(tmp_path, name, provider, joined=joined)
    assert problems(provider, window.messages, window.system) == []
    for item in window.messages if provider in _TYPES else ():
        _walked(_TYPES[provider].validate_python(_with_made_id(item)))


def _with_made_id(item: dict[str, JSON]) -> dict[str, JSON]:
    """The service takes a reply without an id, the package's type does not."""
    if item.get("role") == "assistant" and isinstance(item["content"], list):
        return {"id": "msg_1", "status": "completed", "type": "message", **item}
    return item


_ALIKE = [name for name in NAMES if name not in {"openai_legacy.json", "responses_hosted.json"}]


@pytest.mark.parametrize("name", _ALIKE)
def test_a_window_gives_a_conversation_back_as_it_was(tmp_path: Path, name: str) -> None:
    provider, items = _recorded(name)
    window = _window(tmp_path, name, provider)
    assert list(window.messages) == items
    assert window.left_out == ()


def test_ids_of_a_model_that_does_not_reason_are_not_needed(tmp_path: Path) -> None:
    """Whether it reasoned and that was not stored cannot be told; without ids both are legal."""
    _, items = _recorded("responses_hosted.json")
    expected = [_without_id(item) for item in items]
    window = _window(tmp_path, "responses_hosted.json", "openai-responses")
    assert list(window.messages) == expected
    assert window.left_out == ()


def _without_id(item: dict[str, JSON]) -> dict[str, JSON]:
    if item.get("type") in {"message", "function_call"}:
        return {key: value for key, value in item.items() if key != "id"}
    return item


def test_function_calls_of_the_first_kind_get_ids(tmp_path: Path) -> None:
    """Their kind of result is no longer taken by all who speak this shape."""
    _, items = _recorded("openai_legacy.json")
    window = _window(tmp_path, "openai_legacy.json", "openai")
    said = [item.get("content") for item in items]
    assert [item.get("content") for item in window.messages] == said
    calls = [call for item in window.messages for call in _list(item.get("tool_calls"))]
    assert [call["function"] for call in calls] == [
        item["function_call"] for item in items if "function_call" in item
    ]
    answers = [item["tool_call_id"] for item in window.messages if item["role"] == "tool"]
    assert answers == [call["id"] for call in calls]


def _list(value: JSON) -> list[Any]:
    return value if isinstance(value, list) else []


def test_an_error_is_told_to_every_provider(tmp_path: Path) -> None:
    """Anthropic and Gemini have a field for it, the shapes of OpenAI have words only."""
    for at, (provider, telling) in enumerate(
        {
            "openai": '"[error] no such city"',
            "openai-responses": '"[error] no such city"',
            "anthropic": '"is_error": true',
            "gemini": '{"error": "no such city"}',
        }.items()
    ):
        for name in ("anthropic_thinking.json", "gemini_tools.json"):
            (tmp_path / f"{at}{name}").mkdir()
            window = _window(tmp_path / f"{at}{name}", name, provider)  # type: ignore[arg-type]
            assert telling in json.dumps(window.messages)


def test_a_window_that_is_stored_and_sent_again_says_an_error_once(tmp_path: Path) -> None:
    window = _window(tmp_path, "anthropic_thinking.json", "openai")
    with holdfast.open(tmp_path / "store.db") as store:
        again = store.session("again")
        again.append(*(openai.decode(item) for item in window.messages))
        assert again.window(provider="openai").messages == window.messages


_messages = st.sampled_from(
    [
        format_of(provider).decode(item)
        for provider, makers in record.CONVERSATIONS.items()
        for make in makers
        for item in make()
    ]
)


@given(st.lists(st.tuples(_messages, st.booleans()), max_size=16), st.none() | st.integers(1, 9))
def test_whatever_is_left_of_them_is_legal(
    picked: list[tuple[Message, bool]], most: int | None
) -> None:
    """Messages of all providers in any order, some of them hidden, some cut."""
    with holdfast.open("memory:") as store:
        session = store.create()
        for message, hidden in picked:
            flags: dict[str, JSON] = {"hidden": True} if hidden else {}
            session.append(Message(role=message.role, parts=message.parts, metadata=flags))
        for provider in get_args(Provider):
            window = session.window(provider=provider, max_messages=most)
            if window.messages:
                assert problems(provider, window.messages, window.system) == []
