"""`run` and `stream`, sync and async, leave the same records, whatever the model does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Message, Session, Usage
from holdfast.agent import Agent, AsyncAgent, Limits, Retry
from holdfast.agent.models.protocol import (
    ReplyEnd,
    ReplyRaw,
    ReplyText,
    ReplyThinking,
    ReplyToolCall,
    ReplyUsage,
)
from holdfast.aio.session import AsyncSession
from holdfast.errors import ContextTooLong, HoldfastError, ModelFailed
from holdfast.testing.scripted_model import ScriptedModel, Step
from holdfast.values import Raw

texts = st.text(st.characters(codec="utf-8"), max_size=12)
arguments = st.one_of(
    st.fixed_dictionaries({"a": st.integers(-9, 9), "b": st.integers(-9, 9)}),
    st.just({"a": "x"}),
    st.just("{broken"),
    st.just({"a": 1, "b": 1}).map(msgspec.json.encode).map(bytes.decode),
)
deltas: st.SearchStrategy[Step] = st.one_of(
    texts.map(ReplyText),
    texts.map(ReplyText),
    st.builds(ReplyThinking, texts, st.sampled_from([None, "sig"])),
    st.builds(
        ReplyToolCall,
        st.sampled_from(["", "c1", "c2"]),
        st.sampled_from(["add", "fail", "no"]),
        arguments,
    ),
    st.just(ReplyRaw(Raw("openai", {"kind": "x"}))),
    st.builds(ReplyUsage, st.builds(Usage, st.integers(0, 99), st.integers(0, 99))),
)
ends: st.SearchStrategy[list[Step]] = st.sampled_from(
    [
        [ReplyEnd("stop")],
        [ReplyEnd("stop")],
        [ReplyEnd("calls")],
        [ReplyEnd("length")],
        [],
        [ModelFailed("reset", retryable=True)],
        [ModelFailed("refused", status=400)],
        [ContextTooLong("too long", limit=50)],
        [ValueError("a bug")],
    ]
)
scripts = st.lists(
    st.builds(lambda said, end: [*said, *end], st.lists(deltas, max_size=4), ends), max_size=5
)


Outcome: TypeAlias = tuple[str | None, object]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def fail() -> str:
    """Fail."""
    raise RuntimeError("it failed")


def _fields(broken: str) -> dict[str, Any]:
    return {
        "tools": [add, fail],
        "titles": False,
        "retry": Retry(attempts=3, base=0.0, max=0.0, jitter=0.0, broken=broken),  # type: ignore[arg-type]
        "limits": Limits(rounds=4, parallel=1),
        "prices": lambda name, usage: Decimal(usage.total) / 1000,
    }


def _run(session: Session, agent: Agent) -> None:
    agent.run(session, "go")


def _stream(session: Session, agent: Agent) -> None:
    for _ in agent.stream(session, "go"):
        pass


async def _run_async(session: AsyncSession, agent: AsyncAgent) -> None:
    await agent.run(session, "go")


async def _stream_async(session: AsyncSession, agent: AsyncAgent) -> None:
    async for _ in agent.stream(session, "go"):
        pass


def _sync(
    way: Callable[[Session, Agent], None], script: Sequence[Sequence[Step]], broken: str
) -> Outcome:
    with holdfast.open("memory:") as store:
        session = store.session("talk")
        with Agent(ScriptedModel(*script), **_fields(broken)) as agent:
            error = _told(lambda: way(session, agent))
        return error, _records(session)


def _async(
    way: Callable[[AsyncSession, AsyncAgent], Awaitable[None]],
    script: Sequence[Sequence[Step]],
    broken: str,
) -> Outcome:
    async def main() -> Outcome:
        with holdfast.open("memory:") as store:
            session = store.session("talk")
            async with AsyncAgent(ScriptedModel(*script), **_fields(broken)) as agent:
                try:
                    await way(AsyncSession(session), agent)
                    error = None
                except (HoldfastError, ValueError) as raised:
                    error = repr(raised)
            return error, _records(session)

    return asyncio.run(main())


def _told(way: Callable[[], None]) -> str | None:
    try:
        way()
    except (HoldfastError, ValueError) as raised:
        return repr(raised)
    return None


def _records(session: Session) -> object:
    """Everything that is stored, but for what chance and the clock decide."""
    names: dict[str, str] = {}
    messages = [_plain(message, names) for message in session.messages()]
    turns = [
        (t.state, t.model, t.usage, t.cost, t.error, [(x.name, x.outcome) for x in t.tools])
        for t in session.turns()
    ]
    return messages, turns


def _plain(message: Message, names: dict[str, str]) -> bytes:
    """Return the bytes of a message with its made-up ids replaced by their order."""
    told = msgspec.structs.replace(message, id="", turn_id="", created_at=None)
    text = msgspec.json.encode(told).decode()
    ids = [call.id for call in message.tool_calls] + [r.call_id for r in message.tool_results]
    for id in ids:
        name = names.setdefault(id, f"call {len(names)}")
        text = text.replace(f'"{id}"', f'"{name}"')
    return text.encode()


@settings(max_examples=settings().max_examples // 3)
@given(scripts, st.sampled_from(["continue", "anew"]))
def test_all_ways_leave_the_same_records(script: list[list[Step]], broken: str) -> None:
    ran = _sync(_run, script, broken)
    assert _sync(_stream, script, broken) == ran
    assert _async(_run_async, script, broken) == ran
    assert _async(_stream_async, script, broken) == ran


@settings(max_examples=settings().max_examples // 3)
@given(scripts, st.sampled_from(["continue", "anew"]))
def test_nothing_that_was_said_is_missing_or_doubled(script: list[list[Step]], broken: str) -> None:
    """The words in the history are the words that the model said in the calls it got."""
    with holdfast.open("memory:") as store:
        session = store.session("talk")
        model = ScriptedModel(*script)
        with Agent(model, **_fields(broken)) as agent:
            _told(lambda: _stream(session, agent))
        said = "".join(
            step.text for steps in script[: len(model.requests)] for step in _heard(steps)
        )
        kept = [m for m in session.messages() if m.role == "assistant"]
        assert "".join(m.text for m in kept).replace("\n", "") == said.replace("\n", "")
        assert all(turn.state != "open" for turn in session.turns())


def _heard(steps: Sequence[Step]) -> list[ReplyText]:
    """Return what a model says until its script ends or it fails."""
    return [step for step in steps if isinstance(step, ReplyText)]


@pytest.mark.parametrize("way", [_run, _stream])
def test_a_scripted_model_that_ends_says_so(way: Callable[[Session, Agent], None]) -> None:
    with holdfast.open("memory:") as store, Agent(ScriptedModel(), titles=False) as agent:
        with pytest.raises(ModelFailed, match="no script is left"):
            way(store.session("talk"), agent)
