"""With the extra `tokens`, tokens are counted as the model does, and nothing is ever fetched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import holdfast
from holdfast import Message
from holdfast.tokens import MESSAGE_TOKENS
from holdfast.windows.tokenizers import tokenizer_for

_RECORDED: Final = Path(__file__).parent / "recorded.json"


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4o-mini", "o200k_base"),
        ("openai/gpt-5", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("GPT-3.5-turbo", "cl100k_base"),
        ("meta/llama-3.1-8b", "llama3"),
        ("deepseek-chat", "deepseek_v3"),
        ("gemma-3-4b", "gemma3"),
    ],
)
def test_a_known_model_counts_as_recorded(model: str, family: str) -> None:
    count = tokenizer_for(model)
    assert count is not None
    for said in json.loads(_RECORDED.read_text(encoding="utf-8"))[0]:
        assert count(said["text"]) == said["tokens"][family]


@pytest.mark.parametrize("model", [None, "", "claude-opus-4", "my-own", "gemini-2.5-pro"])
def test_of_an_unknown_model_nothing_is_claimed(model: str | None) -> None:
    assert tokenizer_for(model) is None


def test_a_window_for_a_known_model_is_counted_exactly() -> None:
    recorded = json.loads(_RECORDED.read_text(encoding="utf-8"))[0]
    with holdfast.open("memory:") as store:
        session = store.create(model="gpt-4o")
        session.append(*[Message.user(said["text"]) for said in recorded])
        told = sum(MESSAGE_TOKENS + said["tokens"]["o200k_base"] for said in recorded)
        assert session.window().tokens == told
        assert session.window(max_tokens=told).left_out == ()
        assert session.window(max_tokens=told - 1).left_out != ()
        cut = session.window(max_tokens=told // 2, system="Be brief.")
        assert cut.tokens <= told // 2


def test_text_that_is_not_unicode_is_counted_as_it_is_sent() -> None:
    count = tokenizer_for("gpt-4o")
    assert count is not None
    assert count("a\ud800b") == count("a?b")


_OFFLINE: Final = """
import sys

def refuse(event, details):
    if event in {"socket.connect", "socket.getaddrinfo", "urllib.Request"}:
        raise SystemExit(f"{event} {details}")

sys.addaudithook(refuse)
import holdfast
with holdfast.open("memory:") as store:
    for model in ("gpt-4o", "gpt-4", "llama-3", "claude-opus-4", "unknown"):
        session = store.create(model=model)
        session.append(holdfast.Message.user("hello there"))
        print(model, session.window(max_tokens=100).tokens)
print("splintr" in sys.modules)
"""


def test_no_model_s_tokens_are_counted_over_the_network() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _OFFLINE], capture_output=True, text=True, check=False, timeout=120
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1] == "True"
