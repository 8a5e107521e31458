"""What each format declares, as windows show it: instructions, and thinking in its own form."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.formats import anthropic
from holdfast.formats.registry import PROVIDERS, format_of
from holdfast.testing.legality import RULES
from holdfast.values import JSON, Message, Provider, Text, Thinking

# What a model thought, as pieces that no part can represent.
OWN_THINKING: dict[Provider, dict[str, JSON]] = {
    "openai": {"role": "assistant", "content": [{"type": "thinking", "thinking": []}]},
    "openai-responses": {"type": "reasoning", "id": "rs_1", "summary": []},
    "anthropic": {
        "role": "assistant",
        "content": [{"type": "redacted_thinking", "data": "c2ln"}],
    },
    "gemini": {
        "role": "model",
        "parts": [{"executableCode": {"language": "PYTHON", "code": "1"}, "thought": True}],
    },
}
each_provider = pytest.mark.parametrize("provider", OWN_THINKING)


def test_a_format_and_its_rules_bear_the_name_they_are_found_by() -> None:
    assert [format_of(provider).provider for provider in PROVIDERS] == [*PROVIDERS]
    assert {rule.provider for rule in RULES} == {*PROVIDERS}


@pytest.mark.parametrize(
    ("provider", "first", "system"),
    [
        ("openai", {"role": "system", "content": "Be kind."}, None),
        ("openai-responses", {"role": "system", "content": "Be kind."}, None),
        ("anthropic", {"role": "user", "content": "hi"}, "Be kind."),
        (
            "gemini",
            {"role": "user", "parts": [{"text": "hi"}]},
            {"parts": [{"text": "Be kind."}]},
        ),
    ],
)
def test_instructions_are_where_the_provider_expects_them(
    provider: Provider, first: JSON, system: JSON
) -> None:
    with holdfast.open("memory:") as store:
        session = store.session("talk")
        session.append(Message.user("hi"))
        window = session.window(provider=provider, system="Be kind.")
    assert (window.messages[0], window.system) == (first, system)


def _sent(provider: Provider, *messages: Message) -> list[dict[str, JSON]]:
    with holdfast.open("memory:") as store:
        session = store.session("talk")
        session.append(*messages)
        return [*session.window(provider=provider)]


@each_provider
def test_thinking_that_led_to_nothing_is_not_sent(provider: Provider) -> None:
    thought = format_of(provider).decode(OWN_THINKING[provider])
    assert _sent(provider, Message.user("hi"), thought) == _sent(provider, Message.user("hi"))


@each_provider
def test_thinking_is_sent_although_another_providers_reply_joins_it(provider: Provider) -> None:
    """The other's own thinking is left out, so it does not make the message foreign."""
    other = format_of(provider).decode(OWN_THINKING[provider])
    _, joined, _ = _sent(
        "anthropic",
        Message.user("hi"),
        Message.assistant([Thinking("Greet.", "c2ln"), Text("Hello,")]),
        Message.assistant([*other.parts, "Ann."]),
        Message.user("Bye."),
    )
    assert joined == anthropic.encode(
        Message.assistant([Thinking("Greet.", "c2ln"), Text("Hello,"), Text("Ann.")])
    )
