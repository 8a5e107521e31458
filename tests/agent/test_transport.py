"""What a model's server is sent and through whom, and how much of what it sends is taken."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import openai
import pytest

from holdfast.agent.models.anthropic_messages import MessagesStreamParser
from holdfast.agent.models.anthropic_model import AnthropicModel
from holdfast.agent.models.chat_completions import ChatStreamParser, ServerFields
from holdfast.agent.models.openai_model import OpenAIModel
from holdfast.agent.models.protocol import (
    MAX_REPLY_CHARS,
    MAX_REPLY_PARTS,
    Delta,
    Model,
    ModelRequest,
    ReplyEnd,
    ReplyRaw,
    ReplyText,
    ReplyToolCall,
)
from holdfast.errors import BadConfig, ModelFailed
from holdfast.values import Window
from tests.agent.wire import Wire, hear, refused
from tests.security.hostile_provider import ANTHROPIC, OPENAI, HostileProvider, Style

KEY = "sk-a-key-of-the-user"
HTTP = importlib.import_module(openai.DefaultAsyncHttpxClient.__base__.__module__)
REQUEST = ModelRequest(
    window=Window(
        provider="openai",
        messages=[{"role": "user", "content": "hi"}],
        sources=((),),
        system=None,
        tokens=1,
        left_out=(),
        notes=(),
        call_ids={},
    )
)


async def _call(model: Model) -> list[Delta]:
    try:
        return await hear(model, REQUEST)
    finally:
        await model.close()


class Network:
    """Stands for the network: notes each request and its proxy, and refuses all of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.requests: list[Any] = []
        self.proxies: list[str | None] = []
        patch.setattr(HTTP, "AsyncHTTPTransport", self._transport)

    def _transport(self, *, proxy: str | None) -> Any:  # noqa: ANN401 - of either package
        self.proxies.append(proxy)
        return HTTP.MockTransport(self._answer)

    def _answer(self, request: Any) -> Any:  # noqa: ANN401 - as above
        self.requests.append(request)
        return HTTP.Response(401, json={"error": {"message": "no"}})

    def call(self, model: Model) -> dict[str, str]:
        """Call a model, which fails; return the headers that were sent."""
        with pytest.raises(ModelFailed, match="answered 401"):
            asyncio.run(_call(model))
        return dict(self.requests[-1].headers)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return Network(monkeypatch)


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        (None, True),
        ("https://eu.api.openai.com/v1", True),
        ("https://api.openai.com.example.com/v1", False),
        ("https://example-api.openai.com/v1", False),
        ("https://ours.openai.azure.com/openai/v1", False),
        ("https://openrouter.ai/api/v1", False),
        ("http://localhost:11434/v1", False),
    ],
)
def test_the_environments_headers_are_for_the_provider_alone(
    network: Network, monkeypatch: pytest.MonkeyPatch, url: str | None, is_own: bool
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "the-organisation")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "the-project")
    headers = network.call(OpenAIModel("m", base_url=url, api_key=KEY))
    assert ("the-organisation" in headers.values()) is is_own
    assert ("the-project" in headers.values()) is is_own
    assert any(name.startswith("x-stainless") for name in headers) is is_own
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(("url", "is_own"), [(None, True), ("https://example.com", False)])
def test_custom_headers_are_for_the_provider_alone(
    network: Network, monkeypatch: pytest.MonkeyPatch, url: str | None, is_own: bool
) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: the-team")
    headers = network.call(AnthropicModel("m", base_url=url, api_key=KEY))
    assert ("x-team" in headers) is is_own
    assert "anthropic-version" in headers


def test_another_servers_key_is_the_one_that_was_given(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one of the environment's headers, nor a token that is there as well."""
    stolen = "Authorization: Bearer stolen\nX-Api-Key: stolen"
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", stolen)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", stolen)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "stolen")
    for model in (AnthropicModel, OpenAIModel):
        for key in (KEY, None):
            sent = network.call(model("m", base_url="https://example.com", api_key=key))
            assert "stolen" not in str(sent)
            assert (key or "none") in str(sent)


def test_credentials_in_the_url_are_sent_to_its_server(network: Network) -> None:
    headers = network.call(OpenAIModel("m", base_url="https://me:a%20b@example.com/v1"))
    assert headers["authorization"] == "Basic bWU6YSBi"


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://example.com/v1", "http://proxy:3128"),
        ("http://example.com/v1", "http://plain:3128"),
        ("https://inside.example.org/v1", None),
        ("http://localhost:11434/v1", None),
        ("http://127.0.0.1:8080/v1", None),
        ("http://[::1]:8080/v1", None),
        ("http://127.0.0.2:8080/v1", None),
        ("http://models.localhost/v1", None),
        ("http://0.0.0.0:8080/v1", None),
    ],
)
def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(
    network: Network, monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    monkeypatch.setenv("http_proxy", "plain:3128")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "example.org")
    network.call(OpenAIModel("m", base_url=url, api_key=KEY))
    assert network.proxies == [proxy]


@pytest.mark.parametrize(
    "proxy", ["gopher://me:canary@proxy", "http://me:canary/x@proxy", "http://me:canary@\udcff"]
)
def test_a_proxy_that_cannot_be_used_is_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """Which does not show its password."""
    monkeypatch.setenv("all_proxy", proxy)
    with pytest.raises(BadConfig, match="proxy") as caught:
        asyncio.run(_call(OpenAIModel("m", base_url="https://example.com", api_key=KEY)))
    assert "canary" not in "".join(format_exception(caught.value))


@pytest.mark.parametrize("host", ["\udcff", "a\x01b", "[v1.x]", "\u2603..com", "x/" + "y" * 99_999])
@pytest.mark.parametrize("model", [OpenAIModel, AnthropicModel])
def test_a_base_url_that_only_the_sdk_refuses_is_an_error_of_the_configuration(
    model: type[OpenAIModel | AnthropicModel], host: str
) -> None:
    """It was a traceback."""
    url = f"http://me:{'canary'}@{host}"
    with pytest.raises(BadConfig, match="base_url") as caught:
        asyncio.run(_call(model("m", base_url=url, api_key=KEY)))
    assert "me:canary" not in "".join(format_exception(caught.value))


def test_certificates_that_cannot_be_read_are_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(BadConfig, match="SSL_CERT_FILE"):
        asyncio.run(_call(OpenAIModel("m", base_url="https://example.com", api_key=KEY)))


# ------------------------------------------------------------------------------ what is received


@pytest.mark.parametrize("style", [OPENAI, ANTHROPIC], ids=lambda style: style.name)
def test_a_server_that_goes_on_after_the_end_is_left(
    monkeypatch: pytest.MonkeyPatch, style: Style
) -> None:
    """It gets some seconds to close the stream, not some seconds for each event."""
    monkeypatch.setattr("holdfast.agent.models.api._CLOSE_TIMEOUT_S", 0.2)

    pings = iter(range(500))

    def answer() -> Iterator[bytes]:
        yield style.start() + style.text("over") + style.end().partition(b"data: [DONE]")[0]
        for _ in pings:
            time.sleep(0.02)
            yield style.text("")

    with HostileProvider({"well-behaved": answer}) as provider:
        kind = OpenAIModel if style is OPENAI else AnthropicModel
        model = kind("m", base_url=provider.url + style.path, api_key=KEY)
        deltas = asyncio.run(_call(model))
    assert next(pings, None) is not None
    assert ReplyText("over") in deltas
    assert deltas[-1] == ReplyEnd("stop")


def test_a_server_that_rejects_every_limit_is_not_asked_for_ever() -> None:
    async def call() -> int:
        limits = itertools.count(3_000, -1)
        answers = [
            refused(
                400, {"error": {"message": f"supports at most {next(limits)} completion tokens"}}
            )
            for _ in range(50)
        ]
        async with Wire(*answers) as wire:
            with pytest.raises(ModelFailed, match="at most"):
                await _call(OpenAIModel("m", base_url=wire.url, api_key=KEY))
            return len(wire.asked)

    assert asyncio.run(call()) == 5


def _chunk(**call: object) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [call]}}]}


def test_a_call_in_many_pieces_is_put_together() -> None:
    """In time that grows with its length, not with its square: this ends."""
    parser = ChatStreamParser(ServerFields(message=frozenset({"reasoning_content"})))
    parser.feed(_chunk(index=0, id="a", function={"name": "f", "arguments": '{"x": "'}))
    for _ in range(100_000):
        parser.feed(_chunk(index=0, function={"arguments": "0123456789"}))
        parser.feed({"choices": [{"delta": {"reasoning_content": "0123456789"}}]})
    parser.feed(_chunk(index=0, function={"arguments": '"}'}))
    parser.feed({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    call, thought, _ = parser.finish()
    assert call == ReplyToolCall("a", "f", {"x": "0123456789" * 100_000})
    assert isinstance(thought, ReplyRaw)
    assert "0123456789" * 100_000 in json.dumps(thought.part.data)


def test_a_block_in_many_pieces_is_put_together() -> None:
    parser = MessagesStreamParser()
    block = {"type": "tool_use", "id": "a", "name": "f"}
    parser.feed({"type": "content_block_start", "index": 0, "content_block": block})
    for piece in ['{"x": "', *["0123456789"] * 100_000, '"}']:
        delta = {"type": "input_json_delta", "partial_json": piece}
        parser.feed({"type": "content_block_delta", "index": 0, "delta": delta})
    deltas = parser.feed({"type": "content_block_stop", "index": 0})
    assert deltas[0] == ReplyToolCall("a", "f", {"x": "0123456789" * 100_000})


def _openai_part(n: int) -> dict[str, Any]:
    return _chunk(index=n, id=f"c{n}")


def _anthropic_part(n: int) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"c{n}", "name": "f"}
    return {"type": "content_block_start", "index": n, "content_block": block}


@pytest.mark.parametrize(
    ("parser", "part"),
    [(ChatStreamParser, _openai_part), (MessagesStreamParser, _anthropic_part)],
)
def test_a_reply_has_a_limit_of_parts(
    parser: type[ChatStreamParser | MessagesStreamParser], part: Callable[[int], object]
) -> None:
    reading = parser()
    for n in range(MAX_REPLY_PARTS):
        reading.feed(part(n))
    with pytest.raises(ModelFailed, match="parts"):
        reading.feed(part(MAX_REPLY_PARTS))


_BIG = "x" * (MAX_REPLY_CHARS // 2 + 1)


@pytest.mark.parametrize(
    ("parser", "piece"),
    [
        (ChatStreamParser, {"choices": [{"delta": {"content": _BIG}}]}),
        (ChatStreamParser, {"choices": [{"delta": {"reasoning": _BIG}}]}),
        (ChatStreamParser, _chunk(index=0, function={"arguments": _BIG})),
        (
            MessagesStreamParser,
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "redacted_thinking", "data": _BIG},
            },
        ),
    ],
)
def test_a_reply_has_a_limit_of_characters(
    parser: type[ChatStreamParser | MessagesStreamParser], piece: dict[str, Any]
) -> None:
    reading = parser()
    reading.feed(piece)
    with pytest.raises(ModelFailed, match="characters"):
        reading.feed(piece)
