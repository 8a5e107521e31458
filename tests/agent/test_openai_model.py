"""Chat completions: requests, parsing of replies, and servers that deviate from the API."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, cast, get_type_hints

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

from holdfast.agent.models.chat_completions import (
    CONTINUE,
    ChatStreamParser,
    ServerFields,
    encode_messages,
    flatten_text,
)
from holdfast.agent.models.context_limits import limits_for
from holdfast.agent.models.openai_model import OpenAIModel
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
    ToolSupport,
)
from holdfast.agent.models.surrogates import SurrogateJoiner
from holdfast.errors import BadConfig, ContextTooLong, ModelFailed, ModelMissing
from holdfast.formats import openai as shape
from holdfast.testing import legality
from holdfast.values import JSON, Message, Part, Text, ToolCall, Usage, Window
from tests.agent.wire import CUT, STAY, Answer, Wire, hear, refused, sse

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
DONE = "data: [DONE]\n\n"


def window(*messages: dict[str, JSON]) -> Window:
    said = messages or ({"role": "user", "content": "hi"},)
    return Window(
        provider="openai",
        messages=[*said],
        sources=((),) * len(said),
        system=None,
        tokens=1,
        left_out=(),
        notes=(),
        call_ids={},
    )


def chunk(delta: object = None, finish: str | None = None, **more: object) -> dict[str, object]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}


def piece(
    index: int | None = 0, id: str | None = None, name: str | None = None, text: object = None
) -> dict[str, object]:
    """A piece of a call."""
    function = {
        key: value for key, value in (("name", name), ("arguments", text)) if value is not None
    }
    given = (("index", index), ("id", id), ("function", function))
    return chunk({"tool_calls": [{key: value for key, value in given if value is not None}]})


def read(*chunks: object, own: ServerFields | None = None) -> list[Delta]:
    reading = ChatStreamParser() if own is None else ChatStreamParser(own)
    deltas = [delta for item in chunks for delta in reading.feed(item)]
    return [*deltas, *reading.finish()]


def parts_of(deltas: Sequence[Delta]) -> tuple[Part, ...]:
    """The parts that a reply becomes."""
    parts: list[Part] = []
    for delta in deltas:
        match delta:
            case ReplyText(text):
                parts.append(Text(text))
            case ReplyToolCall(id, name, arguments):
                parts.append(ToolCall(id, name, arguments))
            case ReplyRaw(part):
                parts.append(part)
            case _:
                pass
    return tuple(parts)


# --------------------------------------------------------------------------------- what is read


def test_text_comes_as_it_is_said_and_the_end_comes_last() -> None:
    used = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert read(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        {"choices": [], "usage": used},
    ) == [ReplyText("Hel"), ReplyText("lo"), ReplyUsage(Usage(7, 2)), ReplyEnd("stop")]


def test_parallel_calls_are_put_together_from_their_pieces() -> None:
    assert read(
        piece(0, "a", "look", ""),
        piece(0, text='{"at": '),
        piece(1, "b", "wait", ""),
        piece(0, text='"sea"}'),
        piece(1, text='{"for":2}'),
        chunk({}, "tool_calls"),
    ) == [
        ReplyToolCall("a", "look", {"at": "sea"}),
        ReplyToolCall("b", "wait", {"for": 2}),
        ReplyEnd("calls"),
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [piece(0, "a", "f", '{"n":1}'), piece(0, "b", "f", '{"n":2}')], id="all numbered 0"
        ),
        pytest.param(
            [piece(None, "a", "f", '{"n":1}'), piece(None, "b", "f", '{"n":2}')], id="no numbers"
        ),
        pytest.param(
            [piece(0, "a", "f", '{"n"'), piece(0, "a", "f", ":1}"), piece(1, "b", "f", '{"n":2}')],
            id="id and name repeated",
        ),
        pytest.param(
            [piece(0, "a", "f", {"n": 1}), piece(1, "b", "f", {"n": 2})], id="objects, not text"
        ),
        pytest.param(
            [piece(0, "a", "f", '{"n":1}'), piece(1, "b", "f"), piece(1, text='{"n":2}')],
            id="the second in pieces",
        ),
    ],
)
def test_servers_take_liberties_with_calls(pieces: list[object]) -> None:
    expected = [
        ReplyToolCall("a", "f", {"n": 1}),
        ReplyToolCall("b", "f", {"n": 2}),
        ReplyEnd("calls"),
    ]
    assert read(*pieces, chunk({}, "tool_calls")) == expected
    assert read(*pieces, chunk({}, "stop")) == expected, "some say stop after calls"


def test_calls_without_ids_are_calls_too() -> None:
    pieces = [piece(None, name="f", text='{"n":1}'), piece(None, name="f", text='{"n":2}')]
    assert read(*pieces, chunk({}, "stop")) == [
        ReplyToolCall("", "f", {"n": 1}),
        ReplyToolCall("", "f", {"n": 2}),
        ReplyEnd("calls"),
    ]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("", {}), (None, {}), ("{}", {}), ('{"a": 1', '{"a": 1'), ("[1]", "[1]"), ("NaN", "NaN")],
)
def test_arguments_are_an_object_or_the_text_that_the_model_wrote(
    text: str | None, arguments: JSON
) -> None:
    found = read(piece(0, "a", "f", text), chunk({}, "tool_calls"))
    assert found == [ReplyToolCall("a", "f", arguments), ReplyEnd("calls")]


def test_of_a_reply_that_is_cut_off_no_call_is_given() -> None:
    assert read(chunk({"content": "I will"}), piece(0, "a", "f", '{"n":1}')) == [
        ReplyText("I will")
    ]


def test_of_a_reply_that_grew_too_long_only_whole_calls_are_given() -> None:
    pieces = [piece(0, "a", "f", '{"n":1}'), piece(1, "b", "f", '{"n":')]
    assert read(*pieces, chunk({}, "length")) == [
        ReplyToolCall("a", "f", {"n": 1}),
        ReplyEnd("length"),
    ]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "refused"),
        ("tool_calls", "calls"),
        ("eos", "other"),
    ],
)
def test_why_a_reply_ends(finish: str, reason: str) -> None:
    assert read(chunk({"content": "x"}, finish))[-1] == ReplyEnd(cast("Any", reason))


@pytest.mark.parametrize("finish", [None, "", "error", "abort", "insufficient_system_resource"])
def test_a_reply_that_was_given_up_is_cut_off(finish: str | None) -> None:
    assert read(chunk({"content": "x"}), chunk({}, finish)) == [ReplyText("x")]


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
    ],
)
def test_thinking_goes_by_many_names(delta: object) -> None:
    found = read(chunk(delta), chunk({"content": [{"type": "text", "text": "So."}]}, "stop"))
    assert found == [ReplyThinking("hm"), ReplyText("So."), ReplyEnd("stop")]


def test_a_refusal_is_something_said() -> None:
    found = read(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop"))
    assert found == [ReplyText("I can"), ReplyText("not."), ReplyEnd("stop")]


def test_tokens_are_counted_by_kind() -> None:
    used = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    assert read({"choices": None, "usage": used}) == [ReplyUsage(Usage(100, 50, 60, 5, 40))]


def test_a_character_that_was_cut_in_two_is_one_again() -> None:
    whole = "a😀b😀"
    halves = [char.encode("utf-16-be", "surrogatepass") for char in whole]
    units = [half[at : at + 2] for half in halves for at in range(0, len(half), 2)]
    pieces = [unit.decode("utf-16-be", "surrogatepass") for unit in units]
    said = read(*(chunk({"content": text}) for text in pieces), chunk({}, "stop"))[:-1]
    assert "".join(delta.text for delta in said if isinstance(delta, ReplyText)) == whole
    for delta in said:
        str(delta).encode("utf-8")  # No half is ever given.


def test_half_a_character_at_the_very_end_is_told_as_such() -> None:
    assert read(chunk({"content": "a\ud83d"}), chunk({}, "stop")) == [
        ReplyText("a"),
        ReplyText("\ufffd"),
        ReplyEnd("stop"),
    ]


@given(st.text(), st.lists(st.integers(0, 60), max_size=8))
def test_halves_lose_and_add_nothing(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    at = sorted({2 * min(cut, len(units) // 2) for cut in cuts} | {0, len(units)})
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(at)]
    halves = SurrogateJoiner()
    assert "".join(map(halves.feed, pieces)) + halves.flush() == text


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "tool_calls",
                    "function",
                    "index",
                    "id",
                    "usage",
                    "name",
                    "arguments",
                    "finish_reason",
                    "reasoning",
                    "text",
                    "thinking",
                    "type",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.lists(_json, max_size=4))
def test_no_chunk_makes_the_reader_fail(chunks: list[object]) -> None:
    for delta in read(*chunks, chunk({}, "stop")):
        str(delta).encode("utf-8")


# --------------------------------------------------------------------- what goes back to a server


def test_fields_that_a_server_wants_to_see_again_are_sent_again() -> None:
    """Gemini signs its calls, and refuses them without their seal; DeepSeek wants its reasoning."""
    own = ServerFields(message=frozenset({"reasoning_content"}), call=frozenset({"extra_content"}))
    signed = {"google": {"thought_signature": "seal"}}
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    deltas = read(
        chunk({"reasoning_content": "let me "}),
        chunk({"reasoning_content": "see"}),
        chunk({"tool_calls": [{**call, "extra_content": signed, "foreign": 1}]}),
        chunk({}, "tool_calls"),
        own=own,
    )
    sent = shape.encode(Message(role="assistant", parts=parts_of(deltas)))
    plain = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert sent["reasoning_content"] == "let me see"
    assert sent["tool_calls"] == [{**plain, "extra_content": signed}]

    said = ModelRequest(window=window({"role": "user", "content": "go"}, sent))
    assert encode_messages(said, own=own)[1] == sent
    (_, elsewhere) = encode_messages(said)
    assert elsewhere == {"role": "assistant", "content": None, "tool_calls": [plain]}


def test_other_servers_keep_nothing_of_their_own() -> None:
    deltas = read(
        chunk({"reasoning_content": "hm", "odd": 1}),
        chunk({"tool_calls": [{"index": 0, "id": "a", "odd": 1, "function": {"name": "f"}}]}),
        chunk({}, "stop"),
    )
    assert not any(isinstance(delta, ReplyRaw) for delta in deltas)


def test_a_reply_that_was_cut_off_is_gone_on_with() -> None:
    asked: dict[str, JSON] = {"role": "user", "content": "count"}
    begun: dict[str, JSON] = {"role": "assistant", "content": "one two"}
    sent = encode_messages(ModelRequest(window=window(asked, begun), continuing=True))
    assert sent == [asked, begun, {"role": "user", "content": CONTINUE}]
    assert legality.problems("openai", cast("Any", sent)) == []


def test_a_model_without_calls_is_told_of_them_in_words() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = window(
        {"role": "user", "content": "where?"},
        {"role": "assistant", "content": None, "tool_calls": [cast("JSON", call)]},
        {"role": "tool", "tool_call_id": "a", "content": "at sea"},
    )
    sent = cast("list[dict[str, JSON]]", encode_messages(ModelRequest(window=said), as_text=True))
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert all("tool_calls" not in message for message in sent)
    assert "at sea" in str(sent[2]["content"])


def test_text_in_pieces_becomes_one_text() -> None:
    texts: list[JSON] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    image: JSON = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    mixed: JSON = {"role": "user", "content": [*texts, image]}
    assert flatten_text([{"role": "tool", "content": texts}, mixed]) == [
        {"role": "tool", "content": "a\nb"},
        mixed,
    ]


# ---------------------------------------------------------------------------------- over the wire


def with_wire(
    *answers: Answer,
    do: Callable[[Wire, OpenAIModel], Coroutine[Any, Any, None]],
    **options: Any,  # noqa: ANN401 (they are the model's)
) -> Wire:
    """Let a model talk to a wire."""

    async def main() -> Wire:
        async with Wire(*answers) as wire:
            model = OpenAIModel(options.pop("name", "m"), base_url=f"{wire.url}/v1", **options)
            try:
                await do(wire, model)
            finally:
                await model.close()
            return wire

    return asyncio.run(main())


ASK = ModelRequest(window=window())
HELLO = sse(chunk({"content": "Hello"}), chunk({}, "stop"), DONE)


def test_what_is_sent() -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        assert await hear(
            model, ModelRequest(window=window(), tools=(LOOK,), max_output=2_000)
        ) == [
            ReplyText("Hello"),
            ReplyEnd("stop"),
        ]

    wire = with_wire(HELLO, do=do, api_key="  sk-a-key\n", extra={"temperature": 0.5})
    (asked,) = wire.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer sk-a-key"
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 2_048,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": LOOK.parameters,
                },
            }
        ],
        "temperature": 0.5,
    }
    kind: Any = CompletionCreateParamsStreaming
    assert asked.body.keys() <= get_type_hints(kind).keys()
    TypeAdapter(kind).validate_python(asked.body)


def test_others_than_openai_are_sent_one_text_for_several() -> None:
    pieces: JSON = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    async def do(wire: Wire, model: OpenAIModel) -> None:
        await hear(model, ModelRequest(window=window({"role": "user", "content": pieces})))

    assert with_wire(HELLO, do=do).asked[0].body["messages"] == [
        {"role": "user", "content": "a\nb"}
    ]


def test_only_arguments_say_whom_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")

    async def do(wire: Wire, model: OpenAIModel) -> None:
        await hear(model, ASK)

    (asked,) = with_wire(HELLO, do=do).asked
    assert "sk-of-the-environment" not in str(asked.headers)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("m", "max_tokens"),
        ("gpt-4o", "max_tokens"),
        ("o3-mini", "max_completion_tokens"),
        ("gpt-5-mini", "max_completion_tokens"),
        ("openai/gpt-6-sol", "max_completion_tokens"),
    ],
)
def test_models_that_think_have_another_word_for_the_limit(name: str, word: str) -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        await hear(model, ASK)

    body = with_wire(HELLO, do=do, name=name).asked[0].body
    assert {"max_tokens", "max_completion_tokens"} & body.keys() == {word}


def test_a_server_that_knows_no_usage_is_not_asked_for_it_again() -> None:
    no = {"error": {"message": "Unrecognized request argument supplied: stream_options"}}

    async def do(wire: Wire, model: OpenAIModel) -> None:
        assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]
        assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]

    wire = with_wire(refused(400, no), HELLO, do=do)
    assert ["stream_options" in asked.body for asked in wire.asked] == [True, False, False]


def test_a_server_with_another_word_for_the_limit_is_learned_from() -> None:
    no = {
        "error": {
            "message": "Unsupported parameter: 'max_tokens' is not supported with this model."
        }
    }

    async def do(wire: Wire, model: OpenAIModel) -> None:
        assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]

    wire = with_wire(refused(400, no), HELLO, do=do)
    words = [[w for w in asked.body if w.startswith("max_")] for asked in wire.asked]
    assert words == [["max_tokens"], ["max_completion_tokens"]]


def test_a_server_that_gives_shorter_replies_is_learned_from() -> None:
    no = {"error": {"message": "max_tokens is too large: 16384. This model supports at most 4096 "}}
    no["error"]["message"] += "completion tokens, whereas you provided 16384."

    async def do(wire: Wire, model: OpenAIModel) -> None:
        await hear(model, ASK)
        assert model.max_output == 4096

    wire = with_wire(refused(400, no), HELLO, do=do, context=128_000, max_output=16_384)
    assert [asked.body["max_tokens"] for asked in wire.asked] == [16_384, 4_096]


def test_a_server_that_refuses_whatever_is_sent_is_believed() -> None:
    """Learning ends: each lesson is learned once, and then the refusal stands."""
    no = {"error": {"message": "neither stream_options nor max_tokens nor max_completion_tokens"}}

    async def do(wire: Wire, model: OpenAIModel) -> None:
        with pytest.raises(ModelFailed, match="answered 400") as caught:
            await hear(model, ASK)
        assert not caught.value.retryable

    assert len(with_wire(refused(400, no), do=do).asked) == 4


def test_a_model_that_takes_no_tools_is_told_of_them_in_words_from_now_on() -> None:
    no = {"error": {"message": "registry.example/library/small does not support tools"}}
    supports: list[ToolSupport] = []

    async def do(wire: Wire, model: OpenAIModel) -> None:
        with pytest.raises(ModelFailed, match="does not support tool calling") as caught:
            await hear(model, ModelRequest(window=window(), tools=(LOOK,)))
        assert (caught.value.retryable, caught.value.retry_after) == (True, 0.0)
        supports.append(model.tools)

    assert len(with_wire(refused(400, no), do=do).asked) == 1
    assert supports == ["text"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_the_sdk_does_not_try_again_by_itself(status: int) -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        with pytest.raises(ModelFailed) as caught:
            await hear(model, ASK)
        assert (caught.value.status, caught.value.retryable) == (status, True)
        assert caught.value.retry_after == 9.0

    answer = refused(
        status, {"error": {"message": "later"}}, retry_after="9", x_should_retry="true"
    )
    assert len(with_wire(answer, do=do).asked) == 1


def test_too_long_a_window_is_told_as_such() -> None:
    said = {
        "error": {"message": "maximum context length is 4096 tokens", "type": "BadRequestError"}
    }

    async def do(wire: Wire, model: OpenAIModel) -> None:
        with pytest.raises(ContextTooLong) as caught:
            await hear(model, ASK)
        assert caught.value.limit == 4096

    assert len(with_wire(refused(400, said), do=do).asked) == 1


def test_too_long_a_window_teaches_nothing_else() -> None:
    """The loop makes it smaller; the words in it are known all the same."""
    words = "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum "
    said = {"error": {"message": words + "context length is 4096 tokens", "code": 400}}

    async def do(wire: Wire, model: OpenAIModel) -> None:
        for _ in range(2):
            with pytest.raises(ContextTooLong):
                await hear(model, ASK)

    wire = with_wire(refused(400, said), do=do)
    assert ["max_tokens" in asked.body for asked in wire.asked] == [True, True]


def test_a_server_that_repeats_the_key_is_not_repeated() -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        with pytest.raises(ModelFailed, match="answered 401") as caught:
            await hear(model, ASK)
        assert "sk-a-secret-key" not in str(caught.value)

    said = {"error": {"message": "the key sk-a-secret-key is unknown"}}
    with_wire(refused(401, said), do=do, api_key="sk-a-secret-key")


def test_a_stream_that_just_ends_gives_no_end() -> None:
    for last in ((), (DONE,)):

        async def do(wire: Wire, model: OpenAIModel) -> None:
            assert await hear(model, ASK) == [ReplyText("Hel")]

        with_wire(sse(chunk({"content": "Hel"}), *last), do=do)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (CUT, "was lost"),
        ('data: {"choices": [{"del\n\n', "cannot be parsed"),
        ({"error": {"message": "upstream died", "code": 502}}, "answered 502: upstream died"),
        ({"error": {"message": "try later", "type": "server_error"}}, "answered 500: try later"),
    ],
)
def test_what_was_said_before_a_stream_broke_was_given(last: object, said: str) -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        found: list[Delta] = []
        with pytest.raises(ModelFailed, match=said) as caught:
            async for delta in model.stream(ASK):
                found.append(delta)  # noqa: PERF401 (what comes before the error counts)
        assert found == [ReplyText("Hel")]
        assert caught.value.retryable

    with_wire(sse(chunk({"content": "Hel"}), last), do=do)


@pytest.mark.parametrize("last", [CUT, "data: {\n\n", {"error": {"message": "late"}}])
def test_what_breaks_behind_the_end_of_a_reply_breaks_nothing(last: object) -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]

    with_wire(sse(chunk({"content": "Hello"}), chunk({}, "stop"), last), do=do)


def test_a_server_that_never_says_goodbye_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.models.api._CLOSE_TIMEOUT_S", 0.05)

    async def do(wire: Wire, model: OpenAIModel) -> None:
        assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]
        await asyncio.wait_for(wire.left.wait(), 60)

    with_wire(sse(chunk({"content": "Hello"}), chunk({}, "stop"), STAY), do=do)


def test_closing_the_stream_hangs_up_at_once() -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        stream = cast("AsyncGenerator[Delta, None]", model.stream(ASK))
        assert await anext(stream) == ReplyText("Hel")
        await stream.aclose()
        await asyncio.wait_for(wire.left.wait(), 60)

    with_wire(sse(chunk({"content": "Hel"}), STAY), do=do)


@pytest.mark.parametrize("first", [(), (chunk({"content": "Hel"}),)])
def test_a_cancelled_call_hangs_up_at_once(first: tuple[object, ...]) -> None:
    """Whether the model has begun to speak or not."""

    async def do(wire: Wire, model: OpenAIModel) -> None:
        task = asyncio.ensure_future(hear(model, ASK))
        await asyncio.wait_for(wire.called.wait(), 60)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(wire.left.wait(), 60)

    with_wire(sse(*first, STAY), do=do)


def test_a_model_that_refuses_without_a_word_is_not_asked_again() -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        with pytest.raises(ModelFailed, match="refused to answer") as caught:
            await hear(model, ASK)
        assert not caught.value.retryable

    with_wire(sse(chunk({}, "content_filter"), DONE), do=do)


def test_a_server_that_is_not_there() -> None:
    async def main() -> None:
        async with Wire(HELLO) as wire:
            url = wire.url
        model = OpenAIModel("m", base_url=f"{url}/v1", api_key="sk-secret-key")
        with pytest.raises(ModelFailed, match="cannot be reached") as caught:
            await hear(model, ASK)
        await model.close()
        assert (caught.value.status, caught.value.retryable) == (None, True)
        assert url.removeprefix("http://") in str(caught.value)

    asyncio.run(main())


def test_a_model_can_be_used_in_one_loop_after_another() -> None:
    model = OpenAIModel("m", base_url="http://127.0.0.1:9/v1")

    async def main() -> None:
        async with Wire(HELLO) as wire:
            model._url = model._url._replace(netloc=wire.url.removeprefix("http://"))  # noqa: SLF001 (the port is known only now)
            assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]
            await model.close()

    for _ in range(2):
        asyncio.run(main())


def test_calls_at_the_same_time_share_a_client() -> None:
    async def do(wire: Wire, model: OpenAIModel) -> None:
        for found in await asyncio.gather(hear(model, ASK), hear(model, ASK)):
            assert found == [ReplyText("Hello"), ReplyEnd("stop")]

    assert len(with_wire(HELLO, do=do).asked) == 2


def test_a_client_that_is_given_is_used_without_its_retries_and_stays_open() -> None:
    async def main() -> None:
        async with Wire(refused(500, {"error": {"message": "x"}}), HELLO) as wire:
            async with openai.AsyncOpenAI(
                api_key="sk-theirs", base_url=f"{wire.url}/v1", max_retries=3
            ) as client:
                model = OpenAIModel("m", client=client)
                with pytest.raises(ModelFailed):
                    await hear(model, ASK)
                assert len(wire.asked) == 1
                assert await hear(model, ASK) == [ReplyText("Hello"), ReplyEnd("stop")]
                await model.close()
                assert not client.is_closed()
            assert wire.asked[1].headers["authorization"] == "Bearer sk-theirs"

    asyncio.run(main())


# ------------------------------------------------------------------------------------ as it is made


def test_openai_itself_needs_a_key_and_others_may_not() -> None:
    with pytest.raises(ModelMissing, match="needs an API key"):
        OpenAIModel("gpt-4o")
    assert OpenAIModel("m", base_url="http://localhost:11434/v1").name == "m"


@pytest.mark.parametrize("key", ["sk one two", "sk-\u00e9", "sk-\x00"])
def test_a_key_that_cannot_be_one_is_not_sent_anywhere(key: str) -> None:
    with pytest.raises(ModelMissing, match="contains invalid characters") as caught:
        OpenAIModel("gpt-4o", api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["localhost:11434", "ftp://host/v1", "http://", "nonsense", "http://h:99999", "http://[::1"],
)
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadConfig, match="base_url"):
        OpenAIModel("m", base_url=url, api_key="k")


@pytest.mark.parametrize(
    ("url", "tools"),
    [
        (None, "native"),
        ("https://eu.api.openai.com/v1", "native"),
        ("https://ours.openai.azure.com/openai/v1", "native"),
        ("https://openrouter.ai/api/v1", "lenient"),
        ("http://localhost:11434/v1", "lenient"),
        ("https://api.openai.com.example.com/v1", "lenient"),
    ],
)
def test_others_than_openai_may_write_calls_as_text(url: str | None, tools: str) -> None:
    assert OpenAIModel("m", base_url=url, api_key="k").tools == tools
    assert OpenAIModel("m", base_url=url, api_key="k", tools="none").tools == "none"


def test_errors_name_the_server_without_its_secrets() -> None:
    model = OpenAIModel("m", base_url="https://user:pass@host:8443/v1?key=1")
    assert model.where == "m at host:8443"


@pytest.mark.parametrize(
    ("name", "url", "context", "output"),
    [
        ("gpt-4o-mini", None, 128_000, 16_384),
        ("gpt-4.1-nano", None, 1_047_576, 32_768),
        ("gpt-4", None, 8_192, 4_096),
        ("gpt-4-1106-preview", None, 128_000, 4_096),
        ("gpt-5-mini", None, 400_000, 128_000),
        ("gpt-5.1-chat-latest", None, 128_000, 16_384),
        ("gpt-6.1-sol", None, 1_050_000, 128_000),
        ("o4-mini", None, 200_000, 100_000),
        ("anthropic/claude-sonnet-4.5", "https://openrouter.ai/api/v1", 200_000, 64_000),
        ("something-new", "https://example.com/v1", 128_000, 16_384),
        ("llama3.2:3b", "http://localhost:11434/v1", 8_192, 4_096),
        ("gpt-4o", "http://127.0.0.1:8000/v1", 8_192, 4_096),
    ],
)
def test_sizes_are_guessed_by_the_name(
    name: str, url: str | None, context: int, output: int
) -> None:
    model = OpenAIModel(name, base_url=url, api_key="sk-key")
    assert (model.context, model.max_output) == (context, output)


def test_who_knows_the_sizes_better_says_so() -> None:
    model = OpenAIModel("gpt-4o", api_key="k", context=5_000)
    assert (model.context, model.max_output) == (5_000, 5_000)
    assert OpenAIModel("gpt-4o", api_key="k", max_output=77).max_output == 77
    assert limits_for("claude-opus-5-5").context == 1_000_000


def test_nothing_is_imported_before_the_first_call() -> None:
    code = (
        "import sys; from holdfast.agent.models.openai_model import OpenAIModel; "
        "from holdfast.agent.models.anthropic_model import AnthropicModel; "
        "OpenAIModel('m', api_key='k'); AnthropicModel('m', api_key='k'); "
        "heavy = ('openai', 'anthropic', 'httpx', 'httpx2'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert json.loads(said.stdout.replace("'", '"')) == []
