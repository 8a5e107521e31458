"""Providers' messages: stored as they are, and returned exactly."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from holdfast import formats
from holdfast.aio import AsyncStore
from holdfast.errors import BadMessage, BadQuery, HeadMoved, IdConflict
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import JSON, Head, Message, Provider, Record, Usage

_REPLY: Final[dict[str, JSON]] = {
    "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-8",
    "content": [{"type": "text", "text": "Hello!", "citations": None}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2, "service_tier": "standard"},
}
_PAIRS: Final[dict[Provider, list[dict[str, JSON]]]] = {
    "openai": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!", "refusal": None, "tool_calls": None},
    ],
    "openai-responses": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "message", "role": "assistant", "content": "Hello!", "phase": "final_answer"},
    ],
    "anthropic": [{"role": "user", "content": "Hi"}, _REPLY],
    "gemini": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hello!"}]}}]},
    ],
}


class ProviderMessageTests(StoreFixtures):
    """`Session.append_from`, `Turn.add_from` and their async twins."""

    @pytest.mark.parametrize("provider", _PAIRS)
    def test_messages_of_a_provider_are_stored_as_they_are(
        self, store: Store, session: Session, provider: Provider
    ) -> None:
        """They are messages like any other, and `kept` returns each exactly, also later."""
        assert session.append_from(provider, *_PAIRS[provider]) == Head(1, 2)
        again = self.reopen(store).session("the session")
        read = again.messages()
        assert [(m.role, m.text) for m in read] == [("user", "Hi"), ("assistant", "Hello!")]
        assert [formats.kept(message, provider) for message in read] == _PAIRS[provider]

    def test_a_reply_has_its_id_model_and_usage(self, session: Session) -> None:
        """Its usage is the session's."""
        session.append_from("anthropic", _REPLY)
        (read,) = session.messages()
        assert (read.id, read.model) == (_REPLY["id"], _REPLY["model"])
        assert read.usage == session.usage().usage == Usage(input=3, output=2)

    def test_a_reply_that_is_stored_again_is_stored_once(self, session: Session) -> None:
        """By its id; with another body it is refused."""
        receipt = session.append_from("anthropic", _REPLY)
        session.append(Message.user("Thanks"))
        assert session.append_from("anthropic", _REPLY) == receipt
        with pytest.raises(IdConflict):
            session.append_from("anthropic", {**_REPLY, "stop_reason": "max_tokens"})
        assert [message.text for message in session.messages()] == ["Hello!", "Thanks"]

    def test_messages_of_one_id_in_a_batch_are_all_stored(self, session: Session) -> None:
        """The first has that id: some programs write one reply as several messages."""
        more: dict[str, JSON] = {**_REPLY, "content": [{"type": "text", "text": "And more."}]}
        session.append_from("anthropic", _REPLY, more)
        first, second = session.messages()
        assert (first.id, second.text) == (_REPLY["id"], "And more.")
        assert formats.kept(second, "anthropic") == more

    def test_what_is_no_message_of_the_provider_refuses_the_whole_batch(
        self, session: Session
    ) -> None:
        """The error names its index and its field."""
        good = {"role": "user", "content": "Hi"}
        with pytest.raises(BadMessage, match=r"items\[1\]: role: 'model'"):
            session.append_from("openai", good, {"role": "model", "parts": []})
        with pytest.raises(BadMessage, match=r"items\[0\]: .* got Message"):
            session.append_from("openai", Message.user("Hi"))  # type: ignore[arg-type]
        with pytest.raises(BadQuery, match="provider: must be one of openai"):
            session.append_from("acme", good)  # type: ignore[arg-type]
        assert session.messages() == []

    def test_they_are_stored_only_at_the_expected_head(self, session: Session) -> None:
        """As with `append`."""
        head = session.append_from("openai", {"role": "user", "content": "Hi"})
        session.append(Message.user("meanwhile"))
        with pytest.raises(HeadMoved):
            session.append_from("anthropic", _REPLY, expect=head)
        assert [message.text for message in session.messages()] == ["Hi", "meanwhile"]

    @pytest.mark.parametrize(
        ("given", "way"),
        [
            ({"role": "user", "content": "Hi"}, "provider"),
            ({"role": "tool", "tool_call_id": "c", "content": "1"}, '"openai"'),
            ({"type": "function_call", "call_id": "c"}, '"openai-responses"'),
            ({"role": "user", "content": [{"type": "tool_result"}]}, '"anthropic"'),
            (_REPLY, '"anthropic"'),
            ({"role": "user", "parts": [{"text": "Hi"}]}, '"gemini"'),
            ({"parts": [], "tool_calls": []}, "provider"),
        ],
    )
    def test_a_dict_given_to_append_is_refused_with_the_converter(
        self, session: Session, given: dict[str, JSON], way: str
    ) -> None:
        """The provider is named if it is sure."""
        with pytest.raises(BadMessage, match=rf"got dict; session\.append_from\({way}, …\)"):
            session.append(given)  # type: ignore[arg-type]

    def test_a_list_or_record_in_place_of_a_message_is_refused_with_the_way(
        self, session: Session
    ) -> None:
        """Where it would have been taken."""
        hi = Message.user("Hi")
        with pytest.raises(BadMessage, match=r"got list; .* session\.append\(\*messages\)"):
            session.append([hi, Record("state")])  # type: ignore[arg-type]
        with pytest.raises(BadMessage, match=r"got Record; session\.append .* take records"):
            session.replace([hi, Record("state")])  # type: ignore[list-item]
        assert session.messages() == []

    def test_a_turn_stores_a_reply_as_it_is(self, session: Session) -> None:
        """It is a message of the turn."""
        with session.turn() as turn:
            turn.add_from("openai", {"role": "user", "content": "Hi"})
            stored = turn.add_from("anthropic", _REPLY)
        assert stored.id == _REPLY["id"]
        assert [message.turn_id for message in session.messages()] == [turn.id, turn.id]

    def test_the_async_twins_store_them_too(self, store: Store) -> None:
        """The same operations, awaited."""

        async def work() -> list[Message]:
            session = await AsyncStore(store).session("k")
            await session.append_from("anthropic", {"role": "user", "content": "Hi"})
            async with session.turn() as turn:
                await turn.add_from("anthropic", _REPLY)
            return await session.messages()

        first, second = asyncio.run(work())
        assert first.text == "Hi"
        assert formats.kept(second, "anthropic") == _REPLY
