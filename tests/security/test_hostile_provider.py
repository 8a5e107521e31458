"""A provider as attacker: a typed error, flat memory, and nothing goes where it was not meant to.

Each style of API gets one `holdfast chat`, in a process of its own, that meets all attacks in turn.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast.values import Message, TurnInfo
from tests.cli.shell import RAW
from tests.security.hostile_provider import (
    ANTHROPIC,
    OPENAI,
    STREAM,
    Attack,
    HostileProvider,
    Style,
    endless,
    event,
)

KEY = "sk-canary-key-0123456789"
DATA = b"event: content_block_delta\ndata: "
SO_FAR = "so far, so good"
MAX_MEMORY_KB = 400 * 1024  # The SDKs alone take 100 MB; a bomb alone is 576 MB.
# `ru_maxrss` of a child may be that of the process that started it; this is its own.
_MEASURED = """
import atexit, pathlib, re
def measure():
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        pathlib.Path("memory").write_text(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1])
atexit.register(measure)
from holdfast.cli import main
main()
"""
_BOMB = gzip.compress(b"\0" * (64 << 20), 9)
_CANARIES = {
    "OPENAI_ORG_ID": "canary-organisation",
    "OPENAI_PROJECT_ID": "canary-project",
    "OPENAI_ADMIN_KEY": "canary-admin",
    "OPENAI_CUSTOM_HEADERS": "X-Team: canary-team\nAuthorization: Bearer canary-bearer",
    "ANTHROPIC_AUTH_TOKEN": "canary-token",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Team: canary-team\nX-Api-Key: canary-api-key",
}


def _error(status: int, body: Iterator[bytes] | bytes, headers: bytes = b"") -> Iterator[bytes]:
    yield b"HTTP/1.1 %d Said\r\nconnection: close\r\n%b\r\n" % (status, headers)
    yield from [body] if isinstance(body, bytes) else body


def _redirect(status: int, url: str) -> Iterator[bytes]:
    return _error(status, b"", f"location: {url}/v1/chat/completions\r\n".encode())


def _refused(text: str) -> bytes:
    return json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()


# Attacks that end a call, and words of the error. Those on a stream come after some text.
_STREAMED: Mapping[str, tuple[Attack, str]] = {
    "nested": (
        lambda: [DATA + b"[" * 100_000 + b"]" * 100_000 + b"\n\n"],
        "nested too deeply",
    ),
    "less-nested": (
        lambda: [DATA + b'{"error": ' + b"[" * 500 + b"]" * 500 + b"}\n\n"],
        "",
    ),
    "nested-delta": (
        lambda: [
            DATA
            + b'{"type": "content_block_start", "index": 7, "content_block": {"type": "x", "y":'
            + b"[" * 500
            + b"]" * 500
            + b"}}\n\n"
        ],
        "nested too deeply",
    ),
    "endless-line": (lambda: endless(b"data: " + b"x" * 65_536), "8388608 bytes"),
    "endless-event": (lambda: endless(b"data: x\n" * 1_000), "1000 lines"),
    "endless-reply": (lambda: endless(b":" + b"x" * 1_000_000 + b"\n\n"), "134217728 bytes"),
    "bad-utf8": (lambda: [DATA + b'{"x": "\xff\xfe"}\n\n'], "cannot be parsed"),
    "bad-json": (lambda: [DATA + b"{'x': nan\n\n"], "cannot be parsed"),
    "long-number": (lambda: [DATA + b'{"x": ' + b"9" * 100_000 + b"}\n\n"], "cannot be parsed"),
    "many-calls": (
        lambda: (
            event(
                {
                    "choices": [{"delta": {"tool_calls": [{"id": f"c{n}", "index": n}]}}],
                    "type": "content_block_start",
                    "index": n,
                    "content_block": {"type": "tool_use", "id": f"c{n}", "name": "f"},
                }
            )
            for n in range(1_000_000)
        ),
        "4096 parts",
    ),
}
_ANSWERED: Mapping[str, tuple[Attack, str]] = {
    "endless-error": (lambda: _error(400, endless(b"x" * 65_536)), "answered 400"),
    "error-bomb": (
        lambda: _error(400, _BOMB, b"content-encoding: gzip\r\n"),
        "answered 400",
    ),
    "charset-bomb": (
        lambda: _error(
            400, zlib.compress(b"\0" * (64 << 20), 9), b"content-type: a/b; charset=zlib\r\n"
        ),
        "answered 400",
    ),
    "reply-bomb": (
        lambda: [STREAM[:-2] + b"content-encoding: gzip\r\n\r\n", *[_BOMB] * 9],
        "compressed",
    ),
    "nested-error": (lambda: _error(400, b"[" * 100_000), "answered 400"),
    "escapes": (
        lambda: _error(400, _refused("\x1b[2J\x1b]0;owned\x07 \u202egnp \x9b31m end")),
        "owned",
    ),
    "echo": (lambda: _error(400, _refused(f"wrong key: {KEY}!")), "wrong key: [key]!"),
    "echo-at-the-limit": (
        lambda: _error(400, _refused(f"{' ' * 3_985}wrong: {KEY}!")),
        "wrong: ",
    ),
    "echo-in-a-header": (
        lambda: [b"HTTP/1.1 200 OK\r\nx " + KEY.encode() + b"\r\n\r\n"],
        "connection",
    ),
    "retry-in-ten-years": (
        lambda: _error(429, _refused("later"), b"retry-after: 315360000\r\n"),
        "later",
    ),
    "retry-on-no-day": (
        lambda: _error(429, _refused("later"), b"retry-after: 1 Dec %b 23:59:59\r\n" % (b"9" * 99)),
        "later",
    ),
    "switching": (lambda: _error(101, endless(b"x" * 65_536)), ""),
    "many-headers": (
        lambda: [b"HTTP/1.1 200 OK\r\n", *[b"x-%d: y\r\n" % n for n in range(100_000)]],
        "connection",
    ),
    "long-header": (lambda: [b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 65_536] * 100], "connection"),
    "long-status": (lambda: [b"HTTP/1.1 200 ", *[b"y" * 65_536] * 100], "connection"),
    "negative-length": (
        lambda: [b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"],
        "connection",
    ),
    "too-long-a-length": (
        lambda: _error(400, _refused("cut"), b"content-length: 999999999999\r\n"),
        "answered 400",
    ),
    "nothing": (list, "connection"),
    "noise": (lambda: [b"\0\xff" * 500], "connection"),
    "not-a-stream": (lambda: [STREAM, b"<html>" + b"x" * 10_000], "before the reply did"),
}
_REDIRECTS = {
    f"redirect-{status}": (list, f"answered {status}, a redirect; it was not followed")
    for status in (301, 302, 303, 307, 308)
}
_FAILING = {**_STREAMED, **_ANSWERED, **_REDIRECTS}


def _crlf(events: bytes) -> bytes:
    return events.replace(b"\n", b"\r\n")


def _harmless(style: Style) -> dict[str, tuple[Attack, str]]:
    """Attacks that a reply survives, and its text."""
    count = {"prompt_tokens": -5, "completion_tokens": 10**30, "input_tokens": float("nan")}
    sse = b"retry: 999999999999999999\nid: " + b"9" * 10_000 + b"\n: a comment\n"
    return {
        "usage": (lambda: [style.start(), style.text("counted"), style.end(count)], "counted"),
        "surrogate": (
            lambda: [style.start() + style.text("half \ud83d") + style.end()],
            "half \ufffd",
        ),
        "fields": (lambda: [style.start() + sse + style.text("fields") + style.end()], "fields"),
        "bytes": (
            lambda: (
                bytes([byte])
                for byte in style.start() + _crlf(style.text("one by one") + style.end())
            ),
            "one by one",
        ),
        "after-the-end": (
            lambda: iter([style.start() + style.text("over") + style.end(), *[b"x" * 65_536] * 99]),
            "over",
        ),
        "call": (
            iter(
                [
                    [style.start() + style.call("\ud800" * 99, "\ud800" * 1_000_000, "[" * 99_999)],
                    style.reply("called"),
                ]
            ).__next__,
            "called",
        ),
        "cookie": (
            lambda: [
                STREAM[:-2] + b"set-cookie: canary-cookie=1; path=/\r\n\r\n",
                style.start()[len(STREAM) :] + style.text("crumbs") + style.end(),
            ],
            "crumbs",
        ),
    }


class Chat(NamedTuple):
    """What a chat left behind: a directory, and its store's turns; and what it asked of whom."""

    root: Path
    code: int
    turns: dict[str, TurnInfo]
    messages: dict[str, list[Message]]
    provider: HostileProvider
    other: HostileProvider

    @property
    def out(self) -> str:
        """What it printed."""
        return (self.root / "out").read_text()


def _attacks(style: Style) -> dict[str, Attack]:
    streamed = {
        name: (lambda make=make: _after_text(style, make)) for name, (make, _) in _STREAMED.items()
    }
    others = {name: make for name, (make, _) in {**_ANSWERED, **_harmless(style)}.items()}
    return {**streamed, **others, "well-behaved": lambda: style.reply("All is well.")}


def _after_text(style: Style, make: Attack) -> Iterator[bytes]:
    yield style.start() + style.text(SO_FAR)
    yield from make()
    yield style.end()


def _chat(
    style: Style, root: Path, prompts: list[str], attacks: dict[str, Attack], settings: str
) -> Chat:
    """Say one line after the other to `holdfast chat`, in a process of its own."""
    config, said, out = root / "holdfast.toml", root / "said", root / "out"
    config.write_text(settings)
    said.write_text("".join(f"please {prompt}\n" for prompt in prompts))
    with HostileProvider(attacks) as provider, HostileProvider(attacks) as other:
        for status in (301, 302, 303, 307, 308):
            provider.attacks[f"redirect-{status}"] = partial(_redirect, status, other.url)
        environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            **_CANARIES,
            **dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY"), other.url),
            "HOME": str(root),
            "HOLDFAST_URL": str(root / "agent.db"),
            "HOLDFAST_CONFIG": str(config),
            "HOLDFAST_MODEL": style.model,
            "PYTHONIOENCODING": "utf-8",
            f"{style.name.upper()}_API_KEY": KEY,
            f"{style.name.upper()}_BASE_URL": provider.url + style.path,
        }
        with said.open("rb") as stdin, out.open("wb") as stdout:
            process = subprocess.run(
                [sys.executable, "-c", _MEASURED, "chat"],
                cwd=root,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                check=False,
            )
    with holdfast.open(root / "agent.db", readonly=True) as store:
        session = store.get("@latest")
        turns = session.turns()
        messages = session.messages()
    ids = dict(zip(prompts, turns, strict=True))
    by_turn = {name: [m for m in messages if m.turn_id == turn.id] for name, turn in ids.items()}
    return Chat(root, process.returncode, ids, by_turn, provider, other)


@pytest.fixture(scope="module", params=[OPENAI, ANTHROPIC], ids=lambda style: style.name)
def style(request: pytest.FixtureRequest) -> Style:
    chosen: Style = request.param
    return chosen


@pytest.fixture(scope="module")
def chat(style: Style, tmp_path_factory: pytest.TempPathFactory) -> Chat:
    prompts = [*_FAILING, *_harmless(style), "hello"]
    settings = "[retry]\nattempts = 2\nbase = 0\njitter = 0\n"
    return _chat(style, tmp_path_factory.mktemp("chat"), prompts, _attacks(style), settings)


@pytest.mark.parametrize("attack", _FAILING)
def test_an_attack_is_a_typed_error_and_the_chat_goes_on(chat: Chat, attack: str) -> None:
    turn = chat.turns[attack]
    assert turn.state == "failed"
    assert _FAILING[attack][1] in (turn.error or "")


@pytest.mark.parametrize("attack", _STREAMED)
def test_what_came_before_an_attack_is_kept(chat: Chat, attack: str) -> None:
    assert SO_FAR in [message.text for message in chat.messages[attack]]
    assert chat.messages[attack][1].status == "partial"


@pytest.mark.parametrize("attack", _harmless(OPENAI))
def test_what_a_reply_survives(style: Style, chat: Chat, attack: str) -> None:
    assert chat.messages[attack][-1].text == _harmless(style)[attack][1]
    assert chat.turns[attack].state == "sealed"


def test_the_chat_answers_after_all_of_it(chat: Chat) -> None:
    assert chat.code == 0
    assert "Traceback" not in chat.out
    assert chat.messages["hello"][-1].text == "All is well."


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say it")
def test_memory_stays_flat(chat: Chat) -> None:
    assert int((chat.root / "memory").read_text()) < MAX_MEMORY_KB


def test_no_more_is_read_than_the_limits(chat: Chat) -> None:
    """What lies in the buffers of the connection was sent, too."""
    buffers = 16 << 20
    limits = {"endless-error": 1 << 20, "endless-line": 8 << 20, "endless-reply": 128 << 20}
    for attack, limit in limits.items():
        assert chat.provider.sent[attack] < limit + buffers


def test_the_name_of_a_tool_is_cut(chat: Chat) -> None:
    calls = [call for message in chat.messages["call"] for call in message.tool_calls]
    assert [len(call.name) for call in calls] == [256]


def test_a_terminal_is_not_taken_over_and_the_key_is_not_shown(chat: Chat) -> None:
    assert not RAW & set(chat.out)
    errors = str([turn.error for turn in chat.turns.values()])
    assert KEY[:10] not in chat.out + errors


def test_only_our_own_headers_are_sent(chat: Chat) -> None:
    sent = {name for asked in chat.provider.requests for name in asked.headers}
    assert sent <= {
        "accept",
        "accept-encoding",
        "anthropic-version",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "x-api-key",
    }
    heads = b"".join(asked.head for asked in chat.provider.requests)
    assert b"canary-" not in heads.replace(KEY.encode(), b"")
    assert KEY.encode() in chat.provider.requests[-1].head


def test_no_other_server_is_asked(chat: Chat) -> None:
    """Neither that of a redirect, nor a proxy: the server is on this machine."""
    assert chat.other.requests == []


def test_a_stream_that_drips_is_given_up(tmp_path: Path) -> None:
    """Bytes that never become an event are silence."""

    def drip() -> Iterator[bytes]:
        yield OPENAI.start() + OPENAI.text(SO_FAR) + b"data: "
        while True:
            time.sleep(0.05)
            yield b"x"

    settings = "[retry]\nattempts = 1\n[limits]\nidle = 10\n"
    attacks = {**_attacks(OPENAI), "drip": drip}
    chat = _chat(OPENAI, tmp_path, ["hello", "drip"], attacks, settings)
    assert "sent nothing for 10 s" in (chat.turns["drip"].error or "")
    assert SO_FAR in [message.text for message in chat.messages["drip"]]
