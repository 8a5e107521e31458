"""The agent against a provider that other people wrote: a real process, on both APIs.

What the provider was sent is read from its own journal.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import anthropic
import apsw
import pytest

import holdfast
from holdfast import Message, Session, Text, Thinking, Usage, codec
from holdfast.agent import Limits, Retry
from holdfast.agent.events import (
    ContextShrunk,
    Event,
    ReplyStored,
    Retrying,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    TurnEnded,
)
from holdfast.agent.models.anthropic_model import AnthropicModel
from holdfast.agent.models.chat_completions import CONTINUE
from holdfast.draft_parts import DraftChunk, merge_deltas
from holdfast.errors import ModelFailed
from holdfast.testing import legality
from holdfast.values import JSON, Window
from tests.agent.aimock import Aimock, calls, fails, says
from tests.agent.provider_child import FAST, SYSTEM, agent_of, model_of

BOTH = pytest.mark.parametrize("provider", ["openai", "anthropic"])
# What is the same for every provider and takes long: one of them must do.
OPENAI, ANTHROPIC = (
    pytest.mark.parametrize("provider", [one, pytest.param(other, marks=pytest.mark.long)])
    for one, other in (("openai", "anthropic"), ("anthropic", "openai"))
)
LONG = "The tide comes and goes, and the boats rise and fall with it, twice a day, for ever."
FIRST = {"sequenceIndex": 0}
SECOND = {"sequenceIndex": 1}
_ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


@pytest.fixture
def session(path: str) -> Iterator[Session]:
    with holdfast.open(path) as store:
        yield store.session("talk")


def talk(
    aimock: Aimock, provider: str, session: Session, prompt: str, retry: Retry = FAST
) -> list[Event]:
    with agent_of(model_of(provider, aimock.anthropic), retry=retry) as agent:
        return list(agent.stream(session, prompt))


def of(kind: type[Any], events: Sequence[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def said(events: Sequence[Event]) -> str:
    return "".join(event.text for event in of(TextDelta, events))


def spoken(session: Session) -> list[tuple[str, str, str]]:
    return [(m.role, m.text, m.status) for m in session.messages()]


def in_openai_shape(window: Window) -> list[dict[str, Any]]:
    """A window as aimock writes it into its journal: what Anthropic is sent in OpenAI's shape."""
    if window.provider == "openai":
        return [dict(message) for message in window.messages]
    told = [{"role": "system", "content": window.system}] if window.system else []
    for message in cast("Sequence[dict[str, Any]]", window.messages):
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        results = [block for block in blocks if block["type"] == "tool_result"]
        asked = [block for block in blocks if block["type"] == "tool_use"]
        if results:
            told += [{"role": "user", "content": text}] if text else []
            told += [
                {"role": "tool", "content": r["content"], "tool_call_id": r["tool_use_id"]}
                for r in results
            ]
        else:
            made: dict[str, Any] = {"role": message["role"], "content": text or None}
            if asked:
                made["tool_calls"] = [_call(block) for block in asked]
            told.append(made)
    return told


def _call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block["input"], separators=(",", ":"))
    return {
        "id": block["id"],
        "type": "function",
        "function": {"name": block["name"], "arguments": arguments},
    }


def legal(window: Window) -> bool:
    problems = legality.problems(window.provider, window.messages, window.system)
    assert problems == []
    return True


# ------------------------------------------------------------------------------------- a reply


@BOTH
def test_a_reply_streams_and_is_stored_as_it_was_said(
    aimock: Aimock, session: Session, provider: str
) -> None:
    used: JSON = {
        "prompt_tokens": 21,
        "completion_tokens": 9,
        "input_tokens": 21,
        "output_tokens": 9,
    }
    aimock.script(says("Good morning 🚢, sailor!", chunkSize=3, usage=used))
    events = talk(aimock, provider, session, "hello")
    assert said(events) == "Good morning 🚢, sailor!"
    assert len(of(TextDelta, events)) > 3
    assert spoken(session) == [
        ("user", "hello", "complete"),
        ("assistant", "Good morning 🚢, sailor!", "complete"),
    ]
    (_, reply) = session.messages()
    model = {"openai": "gpt-4o", "anthropic": "claude-sonnet-4-5"}[provider]
    assert (reply.usage, reply.model) == (Usage(21, 9), model)
    (ended,) = of(TurnEnded, events)
    assert (ended.state, ended.rounds, ended.usage) == ("sealed", 1, Usage(21, 9))
    (asked,) = aimock.journal()
    assert asked.messages == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "hello"},
    ]
    assert {tool["function"]["name"] for tool in asked.body["tools"]} == {"depth", "tide"}


@BOTH
def test_calls_in_parallel_are_run_and_answered(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        says("All is well.", match={"hasToolResult": True}),
        calls(
            ("depth", {"at": "the pier"}),
            ("tide", {"harbour": "Bergen"}),
            ("anchor", {}),
            ("depth", {"of": "what?"}),
            text="Let me see.",
            chunkSize=4,
        ),
    )
    events = talk(aimock, provider, session, "how is the water?")
    assert len(of(ToolEnded, events)) == 4
    assert [m.role for m in session.messages()] == ["user", "assistant", *["tool"] * 4, "assistant"]
    reply = session.messages()[1]
    assert [call.name for call in reply.tool_calls] == ["depth", "tide", "anchor", "depth"]
    told = {r.call_id: r for m in session.messages() for r in m.tool_results}
    first, second, unknown, wrong = (told[call.id] for call in reply.tool_calls)
    assert (first.text, second.text) == ("8 m at the pier", "high water in Bergen at noon")
    assert (unknown.error, wrong.error) == (True, True)
    (_, asked) = aimock.journal()
    sent = [message for message in asked.messages if message["role"] == "tool"]
    assert sorted(message["tool_call_id"] for message in sent) == sorted(told)
    assert said(events).endswith("All is well.")


@BOTH
def test_the_next_turn_is_sent_the_whole_legal_window(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        says("High water is at noon.", match={"userMessage": "tide", "hasToolResult": True}),
        calls(("tide", {"harbour": "Bergen"}), match={"userMessage": "tide"}),
        says("You are welcome."),
    )
    with agent_of(model_of(provider, aimock.anthropic)) as agent:
        agent.run(session, "when is the tide?")
        agent.run(session, "thanks")
        assert legal(window := agent.window(session))
    (last,) = aimock.journal()[-1:]
    # The window has the last reply too.
    assert last.messages == in_openai_shape(window)[:-1]


def test_thoughts_of_anthropic_are_shown_and_go_back_sealed(
    aimock: Aimock, session: Session
) -> None:
    """What leaves is looked at on its way: the journal has no thoughts."""
    sent: list[dict[str, Any]] = []

    async def look(request: Any) -> None:  # noqa: ANN401 - of httpx or httpx2
        sent.append(json.loads(request.content))

    aimock.script(
        says("Noon.", match={"hasToolResult": True}),
        calls(
            ("tide", {"harbour": "Bergen"}),
            reasoning="Bergen, I think.",
            reasoningSignature="c2VhbA==",
            redactedThinking=["aGlkZGVu"],
        ),
    )
    http = anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [look]})
    client = anthropic.AsyncAnthropic(api_key="k", base_url=aimock.anthropic, http_client=http)
    model = AnthropicModel("claude-sonnet-4-5", client=client)
    with agent_of(model) as agent:
        events = list(agent.stream(session, "when is the tide?"))
        agent._run_in_loop(client.close())  # noqa: SLF001 (it was used in the agent's own loop)
    assert "".join(e.text for e in of(ThinkingDelta, events)) == "Bergen, I think."
    assert Thinking("Bergen, I think.", "c2VhbA==") in session.messages()[1].parts
    (_, again) = sent
    assert legality.problems("anthropic", again["messages"], again["system"]) == []
    kinds = [block["type"] for block in again["messages"][1]["content"]]
    assert sorted(kinds) == ["redacted_thinking", "thinking", "tool_use"]
    assert kinds[-1] == "tool_use"
    thought = {"type": "thinking", "thinking": "Bergen, I think.", "signature": "c2VhbA=="}
    assert thought in again["messages"][1]["content"]


# ------------------------------------------------------------------------------ when it goes wrong


@OPENAI
def test_a_busy_provider_is_asked_again_after_as_long_as_it_says(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        fails(429, "slow down", type="rate_limit_error", match=FIRST, retryAfter=1),
        says("Here I am.", match=SECOND),
    )
    began = time.monotonic()
    events = talk(aimock, provider, session, "hello")
    assert time.monotonic() - began >= 1.0, "our own wait would have been 0.05 s at most"
    (retrying,) = of(Retrying, events)
    assert (retrying.attempt, retrying.wait, retrying.status) == (1, 1.0, 429)
    assert "slow down" in retrying.error
    assert [asked.status for asked in aimock.journal()] == [429, 200]
    assert spoken(session)[1:] == [("assistant", "Here I am.", "complete")]


@BOTH
def test_what_breaks_at_the_provider_is_tried_again_and_stored_once(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        fails(500, match=FIRST),
        fails(503, match=SECOND),
        says("At last.", match={"sequenceIndex": 2}),
    )
    events = talk(aimock, provider, session, "hello")
    assert [(r.attempt, r.status) for r in of(Retrying, events)] == [(1, 500), (2, 503)]
    first, *others = aimock.journal()
    assert all(asked.messages == first.messages for asked in others)
    assert spoken(session) == [("user", "hello", "complete"), ("assistant", "At last.", "complete")]


@BOTH
def test_a_provider_that_stays_broken_ends_the_turn_as_failed(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(fails(500, "out of order"))
    agent = agent_of(
        model_of(provider, aimock.anthropic), retry=Retry(attempts=3, base=0, jitter=0)
    )
    events: list[Event] = []
    with agent, pytest.raises(ModelFailed, match="answered 500: out of order"):
        events.extend(agent.stream(session, "hello"))
    assert len(aimock.journal()) == 3
    assert spoken(session) == [("user", "hello", "complete")]
    (turn,) = session.turns()
    assert turn.state == "failed"


@BOTH
@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_that_will_not_change_is_not_tried_again(
    aimock: Aimock, session: Session, provider: str, status: int
) -> None:
    aimock.script(fails(status, "no", type="invalid_request_error"))
    with pytest.raises(ModelFailed) as caught:
        talk(aimock, provider, session, "hello")
    assert caught.value.status == status
    assert len(aimock.journal()) == 1
    assert "sk-test-key" not in str(caught.value)


@BOTH
def test_a_reply_that_breaks_off_is_kept_and_gone_on_with(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        says(" and so on, twice a day.", match={"userMessage": CONTINUE}),
        says(LONG, chunkSize=8, latency=20, truncateAfterChunks=6),
    )
    events = talk(aimock, provider, session, "tell me of the tide")
    (_, begun, rest) = session.messages()
    assert (begun.status, rest.status) == ("partial", "complete")
    assert begun.text
    assert LONG.startswith(begun.text)
    assert rest.text == " and so on, twice a day."
    assert said(events) == begun.text + rest.text, "nothing was shown twice, and nothing is missing"
    assert [stored.message.id for stored in of(ReplyStored, events)] == [begun.id, rest.id]
    (_, again) = aimock.journal()
    assert [m["role"] for m in again.messages] == ["system", "user", "assistant", "user"]
    assert again.messages[2]["content"].startswith(begun.text)
    assert again.messages[3]["content"] == CONTINUE


@BOTH
def test_a_reply_that_breaks_off_can_begin_anew(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        says(LONG, chunkSize=8, latency=20, truncateAfterChunks=6, match=FIRST),
        says("It rises.", match=SECOND),
    )
    retry = Retry(base=0.01, max=0.05, jitter=0.0, broken="anew")
    talk(aimock, provider, session, "tell me of the tide", retry)
    (_, begun, rest) = session.messages()
    assert (begun.status, begun.metadata["superseded"]) == ("partial", True)
    assert (rest.text, rest.status) == ("It rises.", "complete")
    first, again = aimock.journal()
    assert again.messages == first.messages, "windows leave out what was begun anew"


@BOTH
def test_a_connection_that_breaks_before_the_first_word_is_tried_again(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        says("never seen", match=FIRST, chaos={"disconnectRate": 1}), says("Hello.", match=SECOND)
    )
    events = talk(aimock, provider, session, "hello")
    assert len(of(Retrying, events)) == 1
    assert spoken(session)[1:] == [("assistant", "Hello.", "complete")]


@BOTH
def test_a_window_that_is_too_long_is_made_smaller(
    aimock: Aimock, session: Session, provider: str
) -> None:
    for n in range(12):
        session.append(Message.user(f"question {n}: " + "of wind and waves " * 20))
        session.append(Message.assistant(f"answer {n}: " + "the sea is wide " * 20))
    too_long = "prompt is too long: 2500 tokens > 1500 maximum"
    aimock.script(
        fails(400, too_long, type="invalid_request_error", match={"toolName": "tide", **FIRST}),
        says("Short enough.", match={"toolName": "tide", **SECOND}),
        says("They spoke of the sea."),
    )
    events = talk(aimock, provider, session, "and now?")
    assert len(of(ContextShrunk, events)) == 1
    assert of(Retrying, events) == [], "that is no failed attempt"
    # What is asked without tools is for the summary that such a history calls for.
    first, second = (asked for asked in aimock.journal() if asked.body.get("tools"))
    assert len(json.dumps(second.messages)) < len(json.dumps(first.messages))
    assert second.messages[-1] == {"role": "user", "content": "and now?"}
    assert said(events) == "Short enough."


def test_a_model_that_takes_no_tools_is_told_of_them_in_words(
    aimock: Aimock, session: Session
) -> None:
    written = '<tool_call>{"name": "tide", "arguments": {"harbour": "Bergen"}}</tool_call>'
    aimock.script(
        fails(400, "this model does not support tools", match={"toolName": "tide"}),
        says(written, match={"userMessage": "when is the tide?"}),
        says("At noon.", match={"userMessage": "high water in Bergen at noon"}),
    )
    events = talk(aimock, "openai", session, "when is the tide?")
    assert [m.role for m in session.messages()] == ["user", "assistant", "tool", "assistant"]
    assert session.messages()[-1].text == "At noon."
    assert [retrying.wait for retrying in of(Retrying, events)] == [0.0]
    first, second, third = aimock.journal()
    assert ["tools" in asked.body for asked in (first, second, third)] == [True, False, False]
    assert "tide" in second.messages[0]["content"], "the system's text tells of it"
    assert {m["role"] for m in third.messages} == {"system", "user", "assistant"}


# ----------------------------------------------------------------------------------- slow streams


@BOTH
def test_a_slow_reply_can_be_stopped_at_once(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(says(LONG * 20, chunkSize=8, latency=100))
    events: list[Event] = []
    with agent_of(model_of(provider, aimock.anthropic)) as agent:
        for event in agent.stream(session, "tell me of the tide"):
            events.append(event)
            if len(of(TextDelta, events)) == 3 and isinstance(event, TextDelta):
                assert agent.cancel("enough")
    assert len(of(TextDelta, events)) < 100, "it would have gone on for two hundred"
    (ended,) = of(TurnEnded, events)
    assert (ended.state, ended.error) == ("cancelled", "enough")
    (_, begun) = session.messages()
    assert begun.status == "partial"
    assert LONG.startswith(begun.text[: len(LONG)])
    assert said(events).startswith(begun.text) or begun.text.startswith(said(events))


@OPENAI
def test_a_stream_that_goes_silent_is_given_up_and_tried_again(
    aimock: Aimock, session: Session, provider: str
) -> None:
    aimock.script(
        says("Ready.", match={"userMessage": "are you there?"}),
        says(LONG, match=FIRST, streamingProfile={"ttft": 60_000}),
        says("Awake."),
    )
    talk(aimock, provider, session, "are you there?")  # The SDK is imported with the first call.
    model = model_of(provider, aimock.anthropic)
    retry = Retry(attempts=50, base=0.01, max=0.05, jitter=0.0)
    with agent_of(model, limits=Limits(idle=1.0), retry=retry) as agent:
        events = list(agent.stream(session, "hello"))
    assert {"sent nothing" in retrying.error for retrying in of(Retrying, events)} == {True}
    assert session.messages()[-1].text == "Awake."


# -------------------------------------------------------------------------------- kill and resume


def killed(
    path: str, provider: str, url: str, prompt: str, *, kept: int = 0, **told: int
) -> list[str]:
    """Let a process talk until it has told of all these, then kill -9 it; give what it showed.

    So many of the first words it showed are on the disk by then.
    """
    command = [sys.executable, "-m", "tests.agent.provider_child", path, provider, url, prompt]
    left, shown = Counter(told), list[str]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT, text=True) as process:
        assert process.stdout is not None
        watch = threading.Timer(60, process.kill)
        watch.start()
        try:
            for line in process.stdout:
                kind, text = json.loads(line)
                left[kind] -= 1
                shown += [text] if kind == "TextDelta" else []
                if not +left and _drafted(path) >= len("".join(shown[:kept])):
                    process.send_signal(signal.SIGKILL)
                    break
            assert process.wait() == -signal.SIGKILL
        finally:
            watch.cancel()
    assert not +left, "it was killed because it took too long"
    return shown


def _drafted(path: str) -> int:
    """How much of a reply that is not over is on the disk."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows: list[Any] = connection.execute(
            "SELECT record FROM drafts WHERE number > 0"
        ).fetchall()
    finally:
        connection.close()
    chunks = [codec.from_json(record, DraftChunk) for (record,) in rows]
    parts = merge_deltas(delta for chunk in chunks for delta in chunk.deltas)
    return sum(len(part.text) for part in parts if isinstance(part, Text))


@OPENAI
def test_after_kill_9_in_mid_reply_the_model_is_sent_exactly_the_legal_window(
    aimock: Aimock, path: str, provider: str
) -> None:
    aimock.script(
        says("It rises again.", match={"userMessage": "go on"}),
        says(LONG * 9, chunkSize=8, latency=50),
    )
    where = (path, provider, aimock.anthropic)
    shown = killed(*where, "tell me of the tide", kept=4, TextDelta=4)[:4]
    aimock_before = len(aimock.journal())
    with holdfast.open(path) as store, agent_of(model_of(provider, aimock.anthropic)) as agent:
        session = store.session("talk")
        events = list(agent.stream(session, "go on"))
        assert legal(window := agent.window(session))
        (asked, begun, again, rest) = session.messages()
    assert aimock_before == 1
    assert [m.status for m in (asked, begun, again, rest)] == [
        "complete",
        "partial",
        "complete",
        "complete",
    ]
    assert begun.text.startswith("".join(shown)), "what was shown is there"
    assert (LONG * 9).startswith(begun.text)
    assert said(events) == rest.text == "It rises again."
    (_, sent) = aimock.journal()
    assert sent.messages == in_openai_shape(window)[:-1]
    assert begun.text in json.dumps(sent.messages)


@ANTHROPIC
def test_after_kill_9_in_a_tool_the_model_is_told_that_its_outcome_is_unknown(
    aimock: Aimock, path: str, provider: str
) -> None:
    aimock.script(
        says("I will not do that again.", match={"userMessage": "go on"}),
        calls(("depth", {"at": "the pier"}), ("tide", {"harbour": "Bergen", "seconds": 60})),
    )
    killed(path, provider, aimock.anthropic, "how is the water?", ToolStarted=2, ToolEnded=1)
    with holdfast.open(path) as store, agent_of(model_of(provider, aimock.anthropic)) as agent:
        session = store.session("talk")
        agent.run(session, "go on")
        assert legal(window := agent.window(session))
        first, second = session.messages()[1].tool_calls
    (_, sent) = aimock.journal()
    assert sent.messages == in_openai_shape(window)[:-1]
    told = {m["tool_call_id"]: m["content"] for m in sent.messages if m["role"] == "tool"}
    assert told[first.id] == "8 m at the pier"
    assert "unknown" in told[second.id]
    assert [m["content"] for m in sent.messages if m["role"] == "user"][-1].endswith("go on")
