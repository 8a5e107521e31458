"""The provider of these tests says what it is told to, to the real client of OpenAI."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent import provider as made
from tests.agent.provider import MARKDOWN, Provider, running


async def _ask(url: str, *said: str, stop_after: int | None = None) -> list[Any]:
    """Say this to the provider; give the deltas, or the first few and go away."""
    messages: Any = [{"role": "user", "content": text} for text in said]
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="mock-1", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        deltas = []
        async with stream:
            async for chunk in stream:
                deltas.append(chunk)
                if len(deltas) == stop_after:
                    break
        return deltas


def _text(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def _said(url: str, *said: str) -> str:
    return _text(asyncio.run(_ask(url, *said)))


def test_words_decide_what_is_said() -> None:
    """An echo, an exact text, Markdown, words one by one."""
    with Provider() as provider:
        assert _said(provider.url, "hello") == "You said: hello"
        assert _said(provider.url, "say one\\n two ") == "one\n two"
        assert _said(provider.url, "markdown") == MARKDOWN
        assert _said(provider.url, "slow 3 0.001") == "word-1 word-2 word-3"
    assert provider.requests[0]["messages"] == [{"role": "user", "content": "hello"}]


def test_calls_come_in_pieces_and_usage_at_the_end() -> None:
    """Two calls in one reply are told apart by their index."""
    prompt = 'call track {"id": 17, "name": "a long name for a parcel"}\ncall guess'
    with Provider() as provider:
        chunks = asyncio.run(_ask(provider.url, prompt))
    pieces: dict[int, str] = {}
    for chunk in chunks:
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            pieces[call.index] = pieces.get(call.index, "") + (call.function.arguments or "")
    assert json.loads(pieces[0]) == {"id": 17, "name": "a long name for a parcel"}
    assert pieces[1] == "{}"
    assert chunks[-1].usage.completion_tokens == 6


def test_failures_and_a_script_that_goes_first() -> None:
    """A status of the script, then one by words that holds for the first time only."""
    with Provider([{"status": 429, "headers": {"retry-after": "1"}}]) as provider:
        with pytest.raises(openai.RateLimitError):
            _said(provider.url, "hello")
        with pytest.raises(openai.InternalServerError):
            _said(provider.url, "fail 500 1")
        assert _said(provider.url, "fail 500 1") == "You said: fail 500 1"


def test_a_reply_of_the_script_may_wait_for_its_prompt() -> None:
    with Provider([{"say": "in Oslo", "when": "parcel"}]) as provider:
        assert _said(provider.url, "hello") == "You said: hello"
        assert _said(provider.url, "my parcel?") == "in Oslo"
        assert _said(provider.url, "my parcel?") == "You said: my parcel?"


def test_a_cut_stream_ends_without_a_reason_to_stop() -> None:
    with Provider() as provider:
        chunks = asyncio.run(_ask(provider.url, "cut 3"))
        assert _text(chunks) == "word-1 word-2"  # the first delta has no words
        assert not [c for c in chunks if c.choices and c.choices[0].finish_reason]
        assert _said(provider.url, "cut 3") == "You said: cut 3"


def test_who_goes_away_is_counted() -> None:
    """In the middle of a slow reply, and where nothing comes at all."""
    with Provider() as provider:
        asyncio.run(_ask(provider.url, "slow 1000", stop_after=3))
        asyncio.run(_until_it_is_asked(provider))
        until = time.monotonic() + 60
        while provider.left < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert provider.left == 2


async def _until_it_is_asked(provider: Provider) -> None:
    """Ask what is never answered, and go away when the question has arrived."""
    before = len(provider.requests)
    asking = asyncio.create_task(_ask(provider.url, "hang"))
    while len(provider.requests) == before:  # noqa: ASYNC110 - another thread takes it
        await asyncio.sleep(0.02)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def test_titles_and_summaries_are_told_from_replies() -> None:
    with Provider() as provider:
        asked = "Give this conversation a short title of a few words."
        assert _said(provider.url, "hello", asked) == made.TITLE
        assert _said(provider.url, "hello") == "You said: hello"
        assert len(provider.replies()) == 1


def test_as_a_process_it_keeps_a_journal(tmp_path: Path) -> None:
    """And ends when nobody holds its standard input any more."""
    journal = tmp_path / "journal.jsonl"
    with running(journal=journal) as url:
        assert _said(url, "hello") == "You said: hello"
    [line] = journal.read_text().splitlines()
    assert json.loads(line)["messages"][0]["content"] == "hello"


@given(st.text(alphabet="a \n\tb"))
def test_pieces_are_the_whole_text(text: str) -> None:
    assert "".join(made._pieces(text)) == text  # noqa: SLF001 - this test's own
