"""The local model: real weights, the real engine, in this process, locked against other clients."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from holdfast.agent.models.local_model import LocalModel
from holdfast.agent.models.protocol import (
    Delta,
    ModelRequest,
    ReplyEnd,
    ReplyText,
    ReplyToolCall,
    ReplyUsage,
    ToolSpec,
)
from holdfast.errors import ContextTooLong, ModelFailed, ModelMissing
from holdfast.values import JSON, Usage, Window
from tests.agent.ggufs import made, smollm2

_LONG = 60.0  # seconds; what takes minutes if it is not stopped takes a few if it is


def window(*messages: Message) -> Window:
    """What a model is sent of these messages."""
    with holdfast.open("memory:") as store:
        session = store.session("talk")
        for message in messages:
            session.append(message)
        return session.window(max_tokens=100_000, provider="openai")


def by_hand(*messages: dict[str, JSON]) -> Window:
    """A window with these messages, as they are."""
    return Window(
        provider="openai",
        messages=[*messages],
        sources=((),) * len(messages),
        system=None,
        tokens=1,
        left_out=(),
        notes=(),
        call_ids={},
    )


def asked(text: str, **more: int) -> ModelRequest:
    return ModelRequest(window=window(Message.user(text)), **more)  # type: ignore[arg-type]


async def heard(model: LocalModel, request: ModelRequest) -> list[Delta]:
    return [delta async for delta in model.stream(request)]


def hear(model: LocalModel, request: ModelRequest) -> list[Delta]:
    """All that the model says."""
    return asyncio.run(heard(model, request))


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ReplyText))


def usage_of(deltas: list[Delta]) -> Usage:
    return [delta.usage for delta in deltas if isinstance(delta, ReplyUsage)][-1]


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    """The default model; it always takes the likeliest word."""
    opened = LocalModel(smollm2(), extra={"temperature": 0})
    yield opened
    asyncio.run(opened.close())


# --------------------------------------------------------------------------------------- talking


def test_it_talks(model: LocalModel) -> None:
    """A reply comes in pieces, says why it ends, and what it used."""
    deltas = hear(model, asked("What is 2+2?", max_output=40))
    assert "4" in text_of(deltas)
    assert len([delta for delta in deltas if isinstance(delta, ReplyText) and delta.text]) > 3
    assert isinstance(deltas[-1], ReplyEnd)
    usage = usage_of(deltas)
    assert usage.input > 10
    assert 3 < usage.output <= 40


def test_it_says_what_it_is(model: LocalModel) -> None:
    """Its name, its size, and that it is too small for tools."""
    assert model.name == "SmolLM2-135M-Instruct.Q4_1"
    assert (model.provider, model.context, model.max_output) == ("openai", 8192, 512)
    assert model.tools == "none"


def test_a_reply_has_an_end(model: LocalModel) -> None:
    """One that reaches the limit says so, and may be asked for no more than the model gives."""
    deltas = hear(model, asked("Count from one to a hundred.", max_output=5))
    assert deltas[-1] == ReplyEnd("length")
    assert usage_of(deltas).output == 5


def test_a_reply_that_was_cut_off_goes_on(model: LocalModel) -> None:
    """The model reads its own words, without the mark behind them, and writes the next ones."""
    request = ModelRequest(
        window=window(
            Message.user("Count from 1 to 20."),
            Message.assistant("1, 2, 3, 4, 5, 6, 7, 8,", status="partial"),
        ),
        max_output=8,
        continuing=True,
    )
    assert text_of(hear(model, request)).lstrip().startswith("9, 10")


def test_the_part_of_the_window_that_is_known_is_not_read_again(model: LocalModel) -> None:
    """The next turn of a conversation costs its own words only."""
    first = [Message.user("My name is Ada. " * 10)]
    reply = text_of(hear(model, ModelRequest(window=window(*first), max_output=8)))
    more = [*first, Message.assistant(reply), Message.user("What is my name?")]
    usage = usage_of(hear(model, ModelRequest(window=window(*more), max_output=4)))
    assert usage.cache_read > 50


def test_two_at_once_wait_for_each_other(model: LocalModel) -> None:
    """The second begins when the first has ended; both are whole."""

    async def both() -> tuple[list[Delta], list[Delta]]:
        return await asyncio.gather(
            heard(model, asked("Say yes.", max_output=8)),
            heard(model, asked("Say no.", max_output=8)),
        )

    for deltas in asyncio.run(both()):
        assert text_of(deltas)
        assert isinstance(deltas[-1], ReplyEnd)


def test_what_is_no_text_is_named(model: LocalModel) -> None:
    """An image, a lone surrogate, a message without content: none of them ends the call."""
    image = holdfast.File("cat.png", "image/png", b"\x89PNG")
    said = window(Message.user(["What is this? \ud800", image]))
    assert text_of(hear(model, ModelRequest(window=said, max_output=4)))
    calls: list[JSON] = [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ]
    exchange = by_hand(
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "A cat."},
    )
    assert text_of(hear(model, ModelRequest(window=exchange, max_output=4)))


# ----------------------------------------------------------------------------------------- tools

_TEMPLATE = """{%- if tools %}<|im_start|>system
You may call {% for tool in tools %}{{ tool.function.name }} {% endfor %}within tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}{% if message.tool_calls %}<|im_start|>assistant
{% for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_template_with_tools_makes_calls() -> None:
    """Shown how it is done, even a small model calls a tool; the engine reads the call."""
    told: list[dict[str, JSON]] = []
    for name in ("a.txt", "b.txt"):
        arguments = f'{{"path": "{name}"}}'
        call: JSON = {"name": "read_file", "arguments": arguments}
        calls: list[JSON] = [{"id": name, "type": "function", "function": call}]
        told.append({"role": "user", "content": f"Read the file {name}"})
        told.append({"role": "assistant", "content": "", "tool_calls": calls})
    told.append({"role": "user", "content": "Read the file d.txt"})
    schema: dict[str, JSON] = {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    }
    request = ModelRequest(
        window=by_hand(*told),
        tools=(ToolSpec("read_file", "Read a file", schema),),
        max_output=60,
    )

    async def call_it() -> list[Delta]:
        model = LocalModel(smollm2(), template=_TEMPLATE, extra={"temperature": 0})
        assert model.tools == "lenient"
        try:
            return await heard(model, request)
        finally:
            await model.close()

    deltas = asyncio.run(call_it())
    [made_call] = [delta for delta in deltas if isinstance(delta, ReplyToolCall)]
    assert (made_call.name, made_call.arguments) == ("read_file", {"path": "d.txt"})
    assert deltas[-1] == ReplyEnd("calls")


@pytest.mark.parametrize(
    ("template", "parameters", "support"),
    [
        ("{{ tools }}", 10, "lenient"),
        ("{{ messages }}", 1_000_000_000, "text"),
        ("{{ messages }}", 100_000_000, "none"),
    ],
)
def test_size_and_template_tell_how_tools_are_told(
    tmp_path: Path, template: str, parameters: int, support: str
) -> None:
    """As such, in words, or not at all."""
    path = tmp_path / "some.gguf"
    facts: dict[str, str | int] = {
        "general.architecture": "llama",
        "llama.context_length": 131_072,
        "tokenizer.chat_template": template,
    }
    path.write_bytes(made(facts, {"all": [parameters]}))
    model = LocalModel(path)
    assert model.tools == support
    assert model.context == 8192  # A longer one has to be asked for,
    assert LocalModel(path, context=32_768).context == 32_768
    assert LocalModel(path, context=500_000).context == 131_072  # and be in it.


# -------------------------------------------------------------------------------------- stopping


async def until_it_speaks(stream: AsyncIterator[Delta]) -> None:
    async for delta in stream:
        if isinstance(delta, ReplyText) and delta.text:
            return


def test_closing_the_stream_ends_the_call(model: LocalModel) -> None:
    """Here at once; the engine is free for the next call before it could have ended the first."""

    async def main() -> float:
        async with aclosing(model.stream(asked("Tell me a very long story."))) as stream:
            await until_it_speaks(stream)
            began = time.monotonic()
        assert time.monotonic() - began < _LONG / 2
        await heard(model, asked("Hi.", max_output=2))
        return time.monotonic() - began

    assert asyncio.run(main()) < _LONG / 2


def test_a_call_can_be_stopped_while_the_window_is_read(model: LocalModel) -> None:
    """Before the first word: an empty one says that it goes on, and the engine asks in between."""

    async def main() -> float:
        async with aclosing(model.stream(asked("Different words. " * 2000))) as stream:
            assert await anext(stream) == ReplyText("")
            began = time.monotonic()
        await heard(model, asked("Hi.", max_output=2))
        return time.monotonic() - began

    assert asyncio.run(main()) < _LONG / 2


def test_a_call_that_was_given_up_before_its_turn_is_not_made(model: LocalModel) -> None:
    """It waits behind another, and nobody wants it any more."""

    async def main() -> None:
        first = asyncio.ensure_future(heard(model, asked("Say yes.", max_output=8)))
        second = asyncio.ensure_future(heard(model, asked("Tell me a long story.")))
        await asyncio.sleep(0)
        second.cancel()
        assert text_of(await first)
        began = time.monotonic()
        assert text_of(await heard(model, asked("Say no.", max_output=8)))
        assert time.monotonic() - began < _LONG / 2

    asyncio.run(main())


_LEAVES = """
import asyncio, sys
from tests.agent.test_local_model import LocalModel, asked, smollm2
async def main():
    model = LocalModel(smollm2())
    async for delta in model.stream(asked("Tell me a very long story.")):
        if delta.text:
            print("speaking", flush=True)
            {then}
{starts}
"""


@pytest.mark.parametrize(
    ("then", "starts"),
    [
        ("sys.exit(0)", "asyncio.run(main())"),
        pytest.param(
            "asyncio.get_running_loop().stop()",
            "asyncio.new_event_loop().run_until_complete(main())",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_program_may_end_in_the_middle_of_a_reply(then: str, starts: str) -> None:
    """Without closing anything: it ends soon, and the engine brings nothing down with it."""
    smollm2()
    script = _LEAVES.format(then=then, starts=starts)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=_LONG, check=False
    )
    assert ran.stdout == "speaking\n"
    assert ran.returncode == (1 if "stop" in then else 0), ran.stderr
    if "stop" not in then:
        assert ran.stderr == ""


# --------------------------------------------------------------------------------------- failing


def test_a_window_that_is_too_long_is_refused_with_the_limit() -> None:
    """The loop makes it smaller by that."""

    async def main() -> None:
        model = LocalModel(smollm2(), context=256)
        with pytest.raises(ContextTooLong) as raised:
            await heard(model, asked("word " * 500))
        assert raised.value.limit == 256
        assert not raised.value.retryable
        await model.close()

    asyncio.run(main())


def test_what_the_engine_refuses_is_not_tried_again(model: LocalModel) -> None:
    """A message without a role, say."""
    with pytest.raises(ModelFailed) as raised:
        hear(model, ModelRequest(window=by_hand({"content": "Hi."})))
    assert not raised.value.retryable


def test_weights_that_are_cut_off_cannot_be_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The beginning is there, so it looks like a model; the engine says nothing on its own."""
    path = tmp_path / "half.gguf"
    with smollm2().open("rb") as whole:
        path.write_bytes(whole.read(4 << 20))

    async def main() -> None:
        model = LocalModel(path)
        with pytest.raises(ModelFailed, match="cannot be loaded") as raised:
            await heard(model, asked("Hi."))
        assert not raised.value.retryable
        await model.close()

    asyncio.run(main())
    assert capfd.readouterr() == ("", "")


def test_what_is_no_model_is_missing(tmp_path: Path) -> None:
    """Before anything is called."""
    with pytest.raises(ModelMissing, match="No such file"):
        LocalModel(tmp_path / "none.gguf")


# -------------------------------------------------------------------------------- alone with it


def test_it_loads_and_talks_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing of what the engine has to say about itself is printed."""

    async def main() -> None:
        model = LocalModel(smollm2())
        assert text_of(await heard(model, asked("Hi.", max_output=4)))
        await model.close()

    asyncio.run(main())
    assert capfd.readouterr() == ("", "")


def _asked(address: str, path: str, method: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Ask the engine's port as a stranger would; gives status, headers and body."""
    body = b'{"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2, "prompt": "Hi."}'
    request = urllib.request.Request(  # noqa: S310 - the address of the engine
        address + path,
        data=body if method == "POST" else None,
        method=method,
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - as above
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


@pytest.fixture(scope="module")
def address(model: LocalModel) -> str:
    """Where the engine listens."""
    hear(model, asked("Hi.", max_output=1))
    assert model.address is not None
    assert model.address.startswith("http://127.0.0.1:")
    return model.address


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/completions",
        "/completion",
        "/v1/messages",
        "/v1/responses",
        "/infill",
        "/embedding",
        "/tokenize",
        "/apply-template",
        "/props",
        "/slots/0?action=erase",
        "/tools",
        "/lora-adapters",
    ],
)
def test_a_stranger_cannot_post(address: str, path: str) -> None:
    """Without the key, or with a wrong one."""
    wrong = {"Authorization": "Bearer wrong", "X-Api-Key": "wrong"}
    for headers in ({}, wrong):
        status, _, body = _asked(address, path, "POST", **headers)
        assert status == 401
        assert "choices" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/index.html",
        "/health",
        "/v1/health",
        "/models",
        "/v1/models",
        "/api/tags",
        "/props",
        "/slots",
        "/metrics",
        "/tools",
        "/cors-proxy",
        "/v1/stream",
        "/lora-adapters",
    ],
)
def test_a_stranger_learns_nothing(address: str, path: str) -> None:
    """Neither which model it is, nor what was asked, nor that it is well."""
    status, _, body = _asked(address, path, "GET")
    assert status in {401, 404}
    assert "SmolLM2" not in body


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_no_web_page_may_ask(address: str, method: str, origin: str) -> None:
    """No origin is let in, so a browser shows no answer and sends no key."""
    _, headers, _ = _asked(
        address,
        "/v1/chat/completions",
        method,
        Origin=origin,
        **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"},
    )
    folded = {name.lower(): value for name, value in headers.items()}
    assert not folded.get("access-control-allow-origin")
    assert not folded.get("access-control-allow-headers")
    assert folded.get("access-control-allow-credentials", "false") == "false"


def test_closing_frees_everything() -> None:
    """The weights are out of memory, the port is closed, no thread of ours is left."""

    async def main() -> None:
        model = LocalModel(smollm2())
        assert model.address is None
        stream = model.stream(asked("Tell me a long story."))
        await until_it_speaks(stream)
        address = model.address
        assert address is not None
        await model.close()
        await model.close()
        assert model.address is None
        with pytest.raises(urllib.error.URLError, match="refused"):
            await asyncio.to_thread(_asked, address, "/health", "GET")
        with pytest.raises(ModelFailed, match="was closed"):
            await heard(model, asked("Hi."))
        await stream.aclose()

    mapped, threads = _mapped(), _threads()
    asyncio.run(main())
    assert _mapped() == mapped
    deadline = time.monotonic() + _LONG
    while _threads() != threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _mapped() -> int:
    """How many times weights are mapped into this process."""
    maps = Path("/proc/self/maps")
    return maps.read_text().count(".gguf") if maps.exists() else 0


def _threads() -> int:
    """How many threads of ours there are."""
    return len([one for one in threading.enumerate() if one.name.startswith("holdfast-model")])
