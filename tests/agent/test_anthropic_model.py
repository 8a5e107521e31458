"""Anthropic's Messages API: requests, parsing of replies, and what must be sent back."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast, get_type_hints

import anthropic
import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from holdfast.agent.models.anthropic_messages import MessagesStreamParser, encode_messages
from holdfast.agent.models.anthropic_model import AnthropicModel
from holdfast.agent.models.chat_completions import CONTINUE
from holdfast.agent.models.protocol import (
    Delta,
    ModelRequest,
    ReplyEnd,
    ReplyRaw,
    ReplyText,
    ReplyThinking,
    ReplyToolCall,
    ReplyUsage,
    ToolSpec,
)
from holdfast.errors import ContextTooLong, ModelFailed, ModelMissing
from holdfast.formats import anthropic as shape
from holdfast.testing import legality
from holdfast.values import JSON, Message, Part, Text, Thinking, ToolCall, Usage, Window
from tests.agent.wire import CUT, STAY, Answer, Wire, hear, refused, sse

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})


def window(*messages: dict[str, JSON], system: JSON = None) -> Window:
    said = messages or ({"role": "user", "content": "hi"},)
    return Window(
        provider="anthropic",
        messages=[*said],
        sources=((),) * len(said),
        system=system,
        tokens=1,
        left_out=(),
        notes=(),
        call_ids={},
    )


ASK = ModelRequest(window=window())


def start(**usage: int) -> dict[str, object]:
    used = {"input_tokens": 0, "output_tokens": 0, **usage}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": used}
    return {"type": "message_start", "message": message}


def block(at: int, began: Mapping[str, object], *deltas: Mapping[str, object]) -> list[object]:
    """A block, from its beginning to its end."""
    return [
        {"type": "content_block_start", "index": at, "content_block": began},
        *({"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": at},
    ]


def text(at: int, *pieces: str) -> list[object]:
    deltas = ({"type": "text_delta", "text": piece} for piece in pieces)
    return block(at, {"type": "text", "text": "", "citations": None}, *deltas)


def call(at: int, id: str, name: str, *pieces: str) -> list[object]:
    deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    return block(at, {"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas)


def over(reason: str | None, **usage: int) -> list[object]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def read(*events: object) -> list[Delta]:
    reading = MessagesStreamParser()
    return [*(delta for event in events for delta in reading.feed(event)), *reading.finish()]


def parts_of(deltas: Sequence[Delta]) -> tuple[Part, ...]:
    """The parts that a reply becomes: pieces of thought are one, and end with their seal."""
    parts: list[Part] = []
    thought = ""
    for delta in deltas:
        match delta:
            case ReplyText(said):
                parts.append(Text(said))
            case ReplyThinking(said, None):
                thought += said
            case ReplyThinking(said, seal):
                parts.append(Thinking(thought + said, seal))
                thought = ""
            case ReplyToolCall(id, name, arguments):
                parts.append(ToolCall(id, name, arguments))
            case ReplyRaw(part):
                parts.append(part)
            case _:
                pass
    return tuple(parts)


# --------------------------------------------------------------------------------- what is read


def test_a_reply_of_text_and_two_calls() -> None:
    events = [
        start(input_tokens=10, output_tokens=1),
        *text(0, "I'll ", "look."),
        *call(1, "toolu_1", "look", '{"at"', ': "sea"}'),
        {"type": "ping"},
        *call(2, "toolu_2", "wait"),
        *over("tool_use", output_tokens=25),
    ]
    assert read(*events) == [
        ReplyUsage(Usage(10, 1)),
        ReplyText("I'll "),
        ReplyText("look."),
        ReplyToolCall("toolu_1", "look", {"at": "sea"}),
        ReplyToolCall("toolu_2", "wait", {}),
        ReplyUsage(Usage(10, 25)),
        ReplyEnd("calls"),
    ]


def test_what_the_cache_gave_is_a_part_of_what_was_sent() -> None:
    events = [
        start(input_tokens=10, cache_read_input_tokens=500, cache_creation_input_tokens=40),
        *over("end_turn", output_tokens=7),
    ]
    assert read(*events)[1] == ReplyUsage(Usage(550, 7, 500, 40))


def test_later_counts_go_before_earlier_ones() -> None:
    details = {"thinking_tokens": 20}
    ended = {"stop_reason": "end_turn"}
    used = {"input_tokens": 12, "output_tokens": 30, "output_tokens_details": details}
    used["cache_read_input_tokens"] = None
    events = [
        start(input_tokens=10, cache_read_input_tokens=3),
        {"type": "message_delta", "delta": ended, "usage": used},
    ]
    assert read(*events)[1] == ReplyUsage(Usage(15, 30, 3, 0, 20))


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "calls"),
        ("refusal", "refused"),
        ("pause_turn", "other"),
    ],
)
def test_why_a_reply_ends(stop: str, reason: str) -> None:
    assert read(*text(0, "x"), *over(stop))[-1] == ReplyEnd(cast("Any", reason))


def test_a_reply_that_is_cut_off_has_no_end_and_no_half_call() -> None:
    half = call(1, "toolu_1", "look", '{"at":')[:-1]
    assert read(start(), *text(0, "I'll"), *half) == [ReplyText("I'll")]
    assert read(start(), *text(0, "I'll"), *over(None)) == [ReplyText("I'll")]


def test_arguments_that_are_no_object_are_the_text_that_the_model_wrote() -> None:
    found = read(*call(0, "toolu_1", "look", '{"at": "s'), *over("max_tokens"))
    assert found == [ReplyToolCall("toolu_1", "look", '{"at": "s'), ReplyEnd("length")]


@pytest.mark.parametrize("model", ["claude-x", "glm-5"])
def test_thoughts_go_back_with_their_seals_and_hidden_ones_as_they_are(model: str) -> None:
    """Also those of models that others serve in Anthropic's shape."""
    thinking = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "The sea "},
        {"type": "thinking_delta", "thinking": "is wide."},
        {"type": "signature_delta", "signature": "seal=="},
    )
    hidden = block(1, {"type": "redacted_thinking", "data": "c2VjcmV0"})
    deltas = read(start(), *thinking, *hidden, *text(2, "Wide."), *over("end_turn"))
    assert deltas[:3] == [
        ReplyThinking("The sea "),
        ReplyThinking("is wide."),
        ReplyThinking("", "seal=="),
    ]
    sent = shape.encode(Message(role="assistant", parts=parts_of(deltas), model=model))
    assert sent["content"] == [
        {"type": "thinking", "thinking": "The sea is wide.", "signature": "seal=="},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "text", "text": "Wide."},
    ]


def test_a_thought_without_its_seal_does_not_go_back() -> None:
    began = {"type": "thinking", "thinking": "", "signature": ""}
    thinking = block(0, began, {"type": "thinking_delta", "thinking": "Hm."})
    assert read(*thinking, *over("end_turn")) == [ReplyThinking("Hm."), ReplyEnd("stop")]


def test_sources_of_a_quotation_go_back() -> None:
    cited = {"type": "char_location", "cited_text": "wide", "document_index": 0}
    quoted = block(
        0,
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "It is wide."},
        {"type": "citations_delta", "citation": cited},
    )
    deltas = read(*quoted, *over("end_turn"))
    sent = shape.encode(Message(role="assistant", parts=parts_of(deltas)))
    assert sent["content"] == [{"type": "text", "text": "It is wide.", "citations": [cited]}]


def test_a_call_keeps_what_else_the_provider_said_of_it() -> None:
    began = {"type": "tool_use", "id": "t1", "name": "f", "input": {}, "caller": {"type": "direct"}}
    deltas = read(*block(0, began), *over("tool_use"))
    sent = shape.encode(Message(role="assistant", parts=parts_of(deltas)))
    assert sent["content"] == [began]


def test_a_character_that_was_cut_in_two_is_one_again() -> None:
    events = [*text(0, "a\ud83d", "\ude00b"), *text(1, "c\ud83d"), *over("end_turn")]
    said = [delta.text for delta in read(*events) if isinstance(delta, ReplyText)]
    assert said == ["a", "😀b", "c", "\ufffd"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "index", "text", "thinking", "signature", "input", "usage", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_events = st.fixed_dictionaries(
    {"type": st.sampled_from(["content_block_start", "content_block_delta", "message_delta"])},
    optional={
        "index": st.integers(0, 1),
        "content_block": st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "thinking", "tool_use", "server_tool_use"])},
            optional={"id": _json, "name": _json, "input": _json, "text": _json},
        ),
        "delta": _json,
        "usage": _json,
    },
)


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(_events | _json, max_size=5))
def test_no_event_makes_the_reader_fail(events: list[object]) -> None:
    stops = ({"type": "content_block_stop", "index": at} for at in (0, 1))
    for delta in read(*events, *stops, *over("end_turn")):
        str(delta).encode("utf-8")


# --------------------------------------------------------------------------------- what is sent


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "content": [{"type": "text", "text": "one two"}]},
        {"role": "user", "content": "count on"},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "done"}],
        },
    ],
)
def test_a_reply_that_was_cut_off_is_gone_on_with_in_turn(last: dict[str, JSON]) -> None:
    called: JSON = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    before: list[dict[str, JSON]] = [{"role": "user", "content": "count"}]
    if last["role"] == "user":
        before.append(
            {"role": "assistant", "content": [called]}
            if "tool" in str(last)
            else {"role": "assistant", "content": [{"type": "text", "text": "one"}]}
        )
    said = window(*before, last)
    sent = cast("list[dict[str, Any]]", encode_messages(ModelRequest(window=said, continuing=True)))
    assert legality.problems("anthropic", sent) == []
    assert sent[-1]["role"] == "user"
    assert sent[-1]["content"][-1] == {"type": "text", "text": CONTINUE}
    assert said.messages[-1] == last, "the window is as it was"


def with_wire(
    *answers: Answer,
    do: Callable[[Wire, AnthropicModel], Coroutine[Any, Any, None]],
    **options: Any,  # noqa: ANN401 (they are the model's)
) -> Wire:
    """Let a model talk to a wire."""

    async def main() -> Wire:
        async with Wire(*answers) as wire:
            model = AnthropicModel("claude-x", base_url=wire.url, api_key="sk-ant-key", **options)
            try:
                await do(wire, model)
            finally:
                await model.close()
            return wire

    return asyncio.run(main())


def said(*events: object) -> Answer:
    return sse(*events, named=True)


HELLO = said(start(), *text(0, "Hello"), *over("end_turn"))


def test_what_is_sent() -> None:
    async def do(wire: Wire, model: AnthropicModel) -> None:
        asking = ModelRequest(window=window(system="Be kind."), tools=(LOOK,), max_output=2_500)
        assert await hear(model, asking) == [ReplyText("Hello"), ReplyEnd("stop")]

    wire = with_wire(HELLO, do=do, extra={"service_tier": "auto"})
    (asked,) = wire.asked
    assert asked.path == "/v1/messages"
    assert "sk-ant-key" in asked.headers.get("x-api-key", "") + asked.headers.get(
        "authorization", ""
    )
    assert asked.body == {
        "model": "claude-x",
        "messages": [{"role": "user", "content": "hi"}],
        "system": "Be kind.",
        "max_tokens": 2_500,
        "stream": True,
        "tools": [{"name": "look", "description": "Looks.", "input_schema": LOOK.parameters}],
        "service_tier": "auto",
    }
    kind: Any = MessageCreateParamsStreaming
    assert asked.body.keys() <= get_type_hints(kind).keys()
    TypeAdapter(kind).validate_python(asked.body)


def test_tools_that_were_called_before_are_told_of_but_cannot_be_called() -> None:
    """A request that has their calls in it would be refused without them."""
    called: JSON = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    answered: JSON = {"type": "tool_result", "tool_use_id": "t1", "content": "sea"}
    talk = window(
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [answered]},
    )

    async def do(wire: Wire, model: AnthropicModel) -> None:
        await hear(model, ModelRequest(window=talk))

    body = with_wire(HELLO, do=do).asked[0].body
    assert [tool["name"] for tool in body["tools"]] == ["look"]
    assert body["tool_choice"] == {"type": "none"}


def test_only_arguments_say_whom_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")

    async def do(wire: Wire, model: AnthropicModel) -> None:
        await hear(model, ASK)

    (asked,) = with_wire(HELLO, do=do).asked
    assert "of-the-environment" not in str(asked.headers)


def test_a_model_that_gives_shorter_replies_is_learned_from() -> None:
    words = "max_tokens: 4096 > 1024, which is the maximum allowed number of output tokens for m"
    no = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}

    async def do(wire: Wire, model: AnthropicModel) -> None:
        assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]
        assert model.max_output == 1_024

    wire = with_wire(refused(400, no), HELLO, do=do)
    assert [asked.body["max_tokens"] for asked in wire.asked] == [4_096, 1_024]


def test_the_sdk_does_not_try_again_by_itself() -> None:
    no = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    async def do(wire: Wire, model: AnthropicModel) -> None:
        with pytest.raises(ModelFailed, match="answered 529: Overloaded") as caught:
            await hear(model, ASK)
        assert (caught.value.retryable, caught.value.retry_after) == (True, 4.0)

    assert len(with_wire(refused(529, no, retry_after="4"), do=do).asked) == 1


def test_too_long_a_window_is_told_as_such() -> None:
    words = "prompt is too long: 201000 tokens > 200000 maximum"
    no = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}

    async def do(wire: Wire, model: AnthropicModel) -> None:
        with pytest.raises(ContextTooLong) as caught:
            await hear(model, ASK)
        assert caught.value.limit == 200_000

    with_wire(refused(400, no), do=do)


@pytest.mark.parametrize(
    ("last", "said_of_it"),
    [
        (CUT, "was lost"),
        ('event: content_block_delta\ndata: {"typ\n\n', "cannot be parsed"),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            "answered 529: Overloaded",
        ),
    ],
)
def test_what_was_said_before_a_stream_broke_was_given(last: object, said_of_it: str) -> None:
    async def do(wire: Wire, model: AnthropicModel) -> None:
        found: list[Delta] = []
        with pytest.raises(ModelFailed, match=said_of_it) as caught:
            async for delta in model.stream(ASK):
                found.append(delta)  # noqa: PERF401 (what comes before the error counts)
        assert found == [ReplyText("Hel")]
        assert caught.value.retryable

    with_wire(said(start(), *text(0, "Hel")[:-1], last), do=do)


def test_a_stream_that_just_ends_gives_no_end() -> None:
    async def do(wire: Wire, model: AnthropicModel) -> None:
        assert await hear(model, ASK) == [ReplyText("Hel")]

    with_wire(said(start(), *text(0, "Hel")), do=do)


def test_what_breaks_behind_the_end_of_a_reply_breaks_nothing() -> None:
    async def do(wire: Wire, model: AnthropicModel) -> None:
        assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]

    with_wire(said(start(), *text(0, "Hello"), *over("end_turn")[:1], CUT), do=do)


def test_closing_the_stream_hangs_up_at_once() -> None:
    async def do(wire: Wire, model: AnthropicModel) -> None:
        stream = cast("AsyncGenerator[Delta, None]", model.stream(ASK))
        assert await anext(stream) == ReplyText("Hel")
        await stream.aclose()
        await asyncio.wait_for(wire.left.wait(), 60)

    with_wire(said(start(), *text(0, "Hel")[:-1], STAY), do=do)


def test_a_cancelled_call_hangs_up_at_once() -> None:
    async def do(wire: Wire, model: AnthropicModel) -> None:
        task = asyncio.ensure_future(hear(model, ASK))
        await asyncio.wait_for(wire.called.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(wire.left.wait(), 60)

    with_wire(said(STAY), do=do)


def test_a_model_that_refuses_without_a_word_is_not_asked_again() -> None:
    async def do(wire: Wire, model: AnthropicModel) -> None:
        with pytest.raises(ModelFailed, match="refused to answer") as caught:
            await hear(model, ASK)
        assert not caught.value.retryable

    with_wire(said(start(), *over("refusal")), do=do)


# ------------------------------------------------------------------------------------ as it is made


def test_anthropic_itself_needs_a_key() -> None:
    with pytest.raises(ModelMissing, match="needs an API key"):
        AnthropicModel("claude-x")


def test_only_anthropic_itself_is_asked_to_keep_what_was_sent() -> None:
    """The next round sends all of it again; other servers may not know the word."""
    ours = AnthropicModel("claude-opus-5", api_key="sk-ant-key")
    theirs = AnthropicModel("glm-5", base_url="https://example.com/anthropic", api_key="k")
    asking = ModelRequest(window=window(), tools=(LOOK,))
    assert ours._body(asking)["cache_control"] == {"type": "ephemeral"}  # noqa: SLF001 (it cannot be called here)
    assert "cache_control" not in theirs._body(asking)  # noqa: SLF001 (as above)


def test_a_client_that_is_given_is_used_without_its_retries_and_stays_open() -> None:
    async def main() -> None:
        no = {"type": "error", "error": {"type": "api_error", "message": "x"}}
        async with Wire(refused(500, no), HELLO) as wire:
            async with anthropic.AsyncAnthropic(
                api_key="sk-theirs", base_url=wire.url, max_retries=3
            ) as client:
                model = AnthropicModel("claude-x", client=client)
                with pytest.raises(ModelFailed):
                    await hear(model, ASK)
                assert len(wire.asked) == 1
                assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]
                await model.close()
                assert not client.is_closed()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "context", "output"),
    [
        ("claude-opus-5-5", 1_000_000, 128_000),
        ("claude-mythos-preview", 1_000_000, 128_000),
        ("claude-opus-4-7", 1_000_000, 64_000),
        ("claude-opus-4-5-20251101", 200_000, 64_000),
        ("claude-haiku-4-5", 200_000, 64_000),
        ("claude-opus-4-1", 200_000, 32_000),
        ("claude-3-7-sonnet-latest", 200_000, 64_000),
        ("claude-3-5-haiku-20241022", 200_000, 8_192),
        ("claude-3-haiku-20240307", 200_000, 4_096),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000, 64_000),
        ("claude-what-comes-next", 200_000, 32_000),
    ],
)
def test_sizes_are_guessed_by_the_name(name: str, context: int, output: int) -> None:
    model = AnthropicModel(name, api_key="sk-ant-key")
    assert (model.context, model.max_output) == (context, output)


def test_nothing_is_traced() -> None:
    """The package records calls by default; what is said to a model goes to the model alone."""
    made = AnthropicModel("m", api_key="k", base_url="http://127.0.0.1:9")
    client = made._connect()  # noqa: SLF001 - the package's client is nowhere else
    assert isinstance(client, anthropic.AsyncAnthropic)
    assert client.open_telemetry["traces"]["enabled"] is False
