"""The loop: what is stored, in which order, and what becomes of failures."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import get_args

import pytest

import holdfast
from holdfast import File, Message, Raw, Session, Store, Text, Thinking, ToolCall, Usage
from holdfast.agent import Agent, AsyncAgent, Context, Limits, Output, Retry, Tool, ToolContext
from holdfast.agent.events import (
    ContextShrunk,
    Event,
    ModelCalled,
    ReplyStored,
    Retrying,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UserSaid,
)
from holdfast.agent.models.protocol import (
    ReplyEnd,
    ReplyRaw,
    ReplyText,
    ReplyThinking,
    ReplyToolCall,
    ReplyUsage,
)
from holdfast.errors import ContextTooLong, Invalid, ModelFailed, SessionBusy
from holdfast.testing.legality import problems
from holdfast.testing.scripted_model import Hold, Pause, Script, ScriptedModel, call, calls, say
from holdfast.values import Provider
from holdfast.windows.pairing import NOT_RUN

FAST = Retry(base=0.0, max=0.0, jitter=0.0)


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("talk")


def roles(session: Session) -> list[str]:
    return [message.role for message in session.messages()]


def texts(session: Session) -> list[tuple[str, str]]:
    return [(message.text, message.status) for message in session.messages()]


def agent_of(model: ScriptedModel, **fields: object) -> Agent:
    fields.setdefault("titles", False)
    fields.setdefault("retry", FAST)
    return Agent(model, **fields)  # type: ignore[arg-type]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110 - the model says nothing when it is called
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------------------------------- a turn


def test_a_turn_in_its_order(session: Session) -> None:
    """Every event tells of something that is stored already (the work may be ahead of them)."""
    model = ScriptedModel(call("add", {"a": 1, "b": 2}, id="c1"), say("It is ", "3"))
    order = [
        ("TurnStarted", 0),
        ("UserSaid", 1),
        ("ModelCalled", 1),
        ("ReplyStored", 2),
        ("ToolStarted", 2),
        ("ToolEnded", 3),
        ("ModelCalled", 3),
        ("TextDelta", 3),
        ("TextDelta", 3),
        ("ReplyStored", 4),
        ("TurnEnded", 4),
    ]
    with agent_of(model, tools=[add]) as agent:
        for event, (kind, stored) in zip(agent.stream(session, "1 + 2?"), order, strict=True):
            assert type(event).__name__ == kind
            assert len(session.messages()) >= stored


def test_the_ledger_says_that_a_tool_starts_before_it_does(session: Session) -> None:
    seen: list[str] = []

    async def look(context: ToolContext) -> str:
        (turn,) = await context.session.turns()
        seen.extend(tool.outcome for tool in turn.tools)
        return "done"

    with agent_of(ScriptedModel(call("look"), say("ok")), tools=[look]) as agent:
        agent.run(session, "go")
    assert seen == ["running"]
    (turn,) = session.turns()
    assert [tool.outcome for tool in turn.tools] == ["done"]


def test_the_result(session: Session) -> None:
    model = ScriptedModel(
        [ReplyToolCall("c1", "add", {"a": 1, "b": 2}), ReplyUsage(Usage(10, 5)), ReplyEnd("calls")],
        say("It is 3", usage=Usage(20, 4, cache_read=8)),
    )
    priced = lambda name, usage: Decimal(usage.total) if name == "scripted" else None  # noqa: E731
    with agent_of(model, tools=[add], prices=priced) as agent:
        result = agent.run(session, "1 + 2?", run_id="run-7")
    assert (result.text, result.state, result.rounds) == ("It is 3", "sealed", 2)
    assert result.usage == Usage(30, 9, cache_read=8)
    assert result.cost == Decimal(39)
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    (turn,) = session.turns()
    assert (turn.id, turn.run_id, turn.model) == (result.turn_id, "run-7", "scripted")
    assert (turn.usage, turn.cost) == (result.usage, result.cost)
    assert session.info().model == "scripted"


def test_what_the_model_is_sent(session: Session) -> None:
    session.append(Message.user("Hi"), Message.assistant("Hello"))
    model = ScriptedModel(say("Fine"))
    with agent_of(model, tools=[add], system="Be kind.") as agent:
        agent.run(session, "How are you?")
    (request,) = model.requests
    assert [(m["role"], m["content"]) for m in request.window] == [
        ("system", "Be kind."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "How are you?"),
    ]
    assert [tool.name for tool in request.tools] == ["add"]
    assert request.max_output == 4000


def test_everything_a_model_may_say_is_kept(session: Session) -> None:
    """Thoughts end with their signature; foreign pieces come back as they are."""
    raw = Raw("anthropic", {"type": "redacted_thinking", "data": "xyz"})
    model = ScriptedModel(
        [
            ReplyThinking("Let me "),
            ReplyThinking("see"),
            ReplyThinking("", "sig-1"),
            ReplyThinking("More"),
            ReplyThinking("", "sig-2"),
            ReplyRaw(raw),
            ReplyText("Well, "),
            ReplyText("yes"),
            ReplyEnd("stop"),
        ]
    )
    with agent_of(model) as agent:
        agent.run(session, "Is it?")
    assert session.messages()[-1].parts == (
        Thinking("Let me see", "sig-1"),
        Thinking("More", "sig-2"),
        raw,
        Text("Well, yes"),
    )


def test_a_prompt_may_be_a_message_or_parts(session: Session) -> None:
    with agent_of(ScriptedModel(say("a"), say("b"))) as agent:
        agent.run(session, Message.user("hi", id="mine", metadata={"channel": 7}))
        agent.run(session, ["look", File(name="a.png", mime="image/png", data=b"\x89PNG")])
    stored = [m for m in session.messages() if m.role == "user"]
    assert (stored[0].id, stored[0].metadata) == ("mine", {"channel": 7})
    assert [type(part) for part in stored[1].parts] == [Text, File]


def test_queued_input_goes_first_and_in_order(session: Session) -> None:
    session.enqueue("one")
    session.enqueue("two")
    model = ScriptedModel(say("a"), say("b"))
    with agent_of(model) as agent:
        agent.run(session, "three")
        session.enqueue("four")
        agent.run(session)
        with pytest.raises(Invalid, match="nothing to answer"):
            agent.run(session)
    asked = [message.text for message in session.messages() if message.role == "user"]
    assert asked == ["one", "two", "three", "four"]
    assert [turn.state for turn in session.turns()] == ["sealed", "sealed"]


def test_a_busy_session_is_told(session: Session) -> None:
    with agent_of(ScriptedModel()) as agent, session.turn():
        with pytest.raises(SessionBusy):
            agent.run(session, "hi")
    assert roles(session) == []


def test_a_turn_stops_at_its_limit(session: Session) -> None:
    model = ScriptedModel(*[call("add", {"a": 1, "b": 1}) for _ in range(3)])
    with agent_of(model, tools=[add], limits=Limits(rounds=3)) as agent:
        result = agent.run(session, "go")
    assert (result.state, result.rounds) == ("sealed", 3)
    assert "3 times" in (result.error or "")
    assert roles(session) == ["user", *["assistant", "tool"] * 3]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match="two tools are named 'add'"):
        agent_of(ScriptedModel(), tools=[add, add])


# --------------------------------------------------------------------------------------- failures


def test_a_failed_call_is_tried_again(session: Session) -> None:
    """Each attempt is an event; what comes of it is stored once."""
    model = ScriptedModel(
        [ModelFailed("overloaded", status=529, retryable=True)],
        [ModelFailed("slow down", status=429, retryable=True, retry_after=0.01)],
        say("Here"),
    )
    with agent_of(model) as agent:
        events = list(agent.stream(session, "hi"))
    assert [(e.attempt, e.status, e.error) for e in events if isinstance(e, Retrying)] == [
        (1, 529, "overloaded"),
        (2, 429, "slow down"),
    ]
    assert [e.attempt for e in events if isinstance(e, ModelCalled)] == [1, 2, 3]
    assert texts(session) == [("hi", "complete"), ("Here", "complete")]


def test_a_provider_that_asks_for_a_pause_gets_it(session: Session) -> None:
    model = ScriptedModel([ModelFailed("wait", retryable=True, retry_after=0.3)], say("Here"))
    began = time.monotonic()
    with agent_of(model) as agent:
        agent.run(session, "hi")
    assert time.monotonic() - began >= 0.3


def test_a_pause_that_is_too_long_is_an_error(session: Session) -> None:
    model = ScriptedModel([ModelFailed("come back tomorrow", retryable=True, retry_after=86_400.0)])
    with agent_of(model) as agent, pytest.raises(ModelFailed, match="tomorrow"):
        agent.run(session, "hi")


def test_what_will_not_change_is_not_tried_again(session: Session) -> None:
    model = ScriptedModel([ModelFailed("no such model", status=404)], say("never"))
    events: list[Event] = []
    with agent_of(model) as agent, pytest.raises(ModelFailed, match="no such model"):
        events.extend(agent.stream(session, "hi"))
    assert len(model.requests) == 1
    assert roles(session) == ["user"]
    (turn,) = session.turns()
    assert (turn.state, turn.error) == ("failed", "ModelFailed: no such model")


def test_a_failure_is_told_before_it_is_raised(session: Session) -> None:
    events: list[Event] = []
    with agent_of(ScriptedModel()) as agent, pytest.raises(ModelFailed):
        for event in agent.stream(session, "hi"):
            events.append(event)  # noqa: PERF402 - what came before the error is wanted
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].state == "failed"


def test_attempts_come_to_an_end(session: Session) -> None:
    model = ScriptedModel(*[[ModelFailed("down", retryable=True)]] * 9)
    retry = Retry(attempts=3, base=0.0, max=0.0, jitter=0.0)
    with agent_of(model, retry=retry) as agent, pytest.raises(ModelFailed, match="down"):
        agent.run(session, "hi")
    assert len(model.requests) == 3


def test_an_empty_reply_is_a_failed_call(session: Session) -> None:
    with agent_of(ScriptedModel([ReplyEnd("stop")], say("Here"))) as agent:
        agent.run(session, "hi")
    assert texts(session) == [("hi", "complete"), ("Here", "complete")]


@pytest.mark.parametrize(
    "broken",
    [[ReplyText("Once upon"), ModelFailed("reset", retryable=True)], [ReplyText("Once upon")]],
    ids=["it raises", "it just ends"],
)
def test_a_stream_that_breaks_goes_on(session: Session, broken: Script) -> None:
    """What was said is kept and marked, and the model goes on behind it: nothing comes twice."""
    model = ScriptedModel(broken, say(" a time"))
    with agent_of(model) as agent:
        result = agent.run(session, "tell")
    assert result.text == "Once upon a time"
    assert texts(session) == [
        ("tell", "complete"),
        ("Once upon", "partial"),
        (" a time", "complete"),
    ]
    assert [request.continuing for request in model.requests] == [False, True]
    assert "Once upon" in str(model.requests[1].window.messages[-1])


def test_a_stream_that_breaks_begins_anew(session: Session) -> None:
    """What was cut off stays in the history; windows do not have it."""
    model = ScriptedModel(
        [ReplyText("Once upon"), ModelFailed("reset", retryable=True)], say("Long ago"), say("Bye")
    )
    retry = Retry(base=0.0, max=0.0, jitter=0.0, broken="anew")
    with agent_of(model, retry=retry) as agent:
        events = list(agent.stream(session, "tell"))
        assert agent.run(session, "more").text == "Bye"
    stored = [e for e in events if isinstance(e, ReplyStored)]
    assert [(e.message.text, e.superseded) for e in stored] == [
        ("Once upon", True),
        ("Long ago", False),
    ]
    assert texts(session)[:3] == [
        ("tell", "complete"),
        ("Once upon", "partial"),
        ("Long ago", "complete"),
    ]
    assert "Once upon" not in str(model.requests[1].window.messages)
    assert "Once upon" not in str(model.requests[2].window.messages)


def test_what_was_said_stays_when_no_attempt_succeeds(session: Session) -> None:
    """Also with `broken="anew"`: there is no other answer, so windows include it."""
    model = ScriptedModel([ReplyText("Once"), ModelFailed("a", retryable=True)], say("ok"))
    retry = Retry(attempts=1, broken="anew")
    with agent_of(model, retry=retry) as agent:
        with pytest.raises(ModelFailed):
            agent.run(session, "tell")
        agent.run(session, "go on")
    assert texts(session)[1] == ("Once", "partial")
    assert "Once" in str(model.requests[1].window.messages)


def _acting(made: list[int]) -> Callable[[int], str]:
    """Make a tool that notes what it was called with."""

    def act(n: int) -> str:
        made.append(n)
        return "done"

    return act


def _broken_call() -> Script:
    """Write the script of a reply that breaks off behind a call."""
    return [
        ReplyText("Let me see"),
        ReplyToolCall("c1", "act", {"n": 1}),
        ModelFailed("reset", retryable=True),
    ]


def test_calls_of_a_reply_that_broke_are_not_made(session: Session) -> None:
    """A reply that was cut off may have been about to say something else."""
    made: list[int] = []
    broken: Script = [ReplyToolCall("c1", "act", {"n": 1}), ModelFailed("reset", retryable=True)]
    model = ScriptedModel(broken, call("act", {"n": 2}), say("ok"))
    with agent_of(model, tools=[_acting(made)]) as agent:
        agent.run(session, "go")
    assert made == [2]


@pytest.mark.parametrize("provider", get_args(Provider))
@pytest.mark.parametrize("id", ["c1", "c2"])
def test_a_stream_that_breaks_behind_a_call_is_not_gone_on_with(
    session: Session, provider: Provider, id: str
) -> None:
    """The partial reply is kept as superseded; the model starts over, and its call runs once."""
    made: list[int] = []
    model = ScriptedModel(
        _broken_call(), call("act", {"n": 1}, id=id), say("ok"), provider=provider
    )
    assert FAST.broken == "continue"
    with agent_of(model, tools=[_acting(made)]) as agent:
        agent.run(session, "go")
    assert made == [1]
    assert texts(session) == [
        ("go", "complete"),
        ("Let me see", "partial"),
        ("", "complete"),
        ("done", "complete"),
        ("ok", "complete"),
    ]
    _, left, asked, answer, _ = session.messages()
    assert left.metadata == {"hidden": True, "superseded": True}
    assert [call.id for call in left.tool_calls] == ["c1"]
    assert [result.call_id for result in answer.tool_results] == [asked.tool_calls[0].id]
    assert asked.tool_calls[0].id != "c1"
    (turn,) = session.turns()
    assert {tool.call_id: tool.outcome for tool in turn.tools} == {
        "c1": "not_run",
        asked.tool_calls[0].id: "done",
    }
    first, anew, last = model.requests
    assert [request.continuing for request in model.requests] == [False, False, False]
    assert anew.window.messages == first.window.messages
    assert problems(provider, last.window.messages, last.window.system) == []
    assert "Let me see" not in str(last.window.messages)
    assert str(last.window.messages).count("done") == 1


@pytest.mark.parametrize("provider", get_args(Provider))
def test_a_call_of_the_last_attempt_that_broke_is_kept_and_not_made(
    session: Session, provider: Provider
) -> None:
    """The history has it, and what is sent next says that it was not run."""
    made: list[int] = []
    model = ScriptedModel(_broken_call(), _broken_call(), say("ok"), provider=provider)
    retry = Retry(attempts=2, base=0.0, max=0.0, jitter=0.0)
    with agent_of(model, tools=[_acting(made)], retry=retry) as agent:
        with pytest.raises(ModelFailed, match="reset"):
            agent.run(session, "go")
        agent.run(session, "and now?")
    assert made == []
    assert texts(session) == [
        ("go", "complete"),
        ("Let me see", "partial"),
        ("Let me see", "partial"),
        ("and now?", "complete"),
        ("ok", "complete"),
    ]
    assert ["hidden" in m.metadata for m in session.messages()[1:3]] == [True, False]
    sent = model.requests[2].window
    assert problems(provider, sent.messages, sent.system) == []
    assert str(sent.messages).count("Let me see") == 1
    assert str(sent.messages).count(NOT_RUN) == 1


def test_a_stream_that_breaks_behind_words_goes_on_after_one_that_broke_behind_a_call(
    session: Session,
) -> None:
    """The calls of an attempt are its own."""
    reset = ModelFailed("reset", retryable=True)
    model = ScriptedModel(
        [ReplyToolCall("c1", "act", {}), reset], [ReplyText("Once upon"), reset], say(" a time")
    )
    with agent_of(model) as agent:
        assert agent.run(session, "tell").text == "Once upon a time"
    assert texts(session)[2:] == [("Once upon", "partial"), (" a time", "complete")]
    assert [request.continuing for request in model.requests] == [False, False, True]


def test_a_reply_that_is_too_long_is_kept_as_cut_off(session: Session) -> None:
    with agent_of(ScriptedModel([ReplyText("On and on"), ReplyEnd("length")])) as agent:
        result = agent.run(session, "talk")
    assert (result.state, result.text) == ("sealed", "On and on")
    assert texts(session)[-1] == ("On and on", "partial")


def test_a_silent_stream_is_given_up(session: Session) -> None:
    model = ScriptedModel([ReplyText("Hm"), Pause(30.0)], say(", yes"))
    with agent_of(model, limits=Limits(idle=0.1)) as agent:
        result = agent.run(session, "hi")
    assert result.text == "Hm, yes"
    assert texts(session)[1] == ("Hm", "partial")


def test_an_error_of_the_model_itself_ends_the_turn(session: Session) -> None:
    model = ScriptedModel([ReplyText("Hm"), RuntimeError("a bug")])
    with agent_of(model) as agent, pytest.raises(RuntimeError, match="a bug"):
        agent.run(session, "hi")
    assert texts(session) == [("hi", "complete"), ("Hm", "partial")]
    assert session.turns()[0].state == "failed"


# ---------------------------------------------------------------------------------------- context


def test_a_window_that_is_too_long_is_made_smaller_and_that_is_remembered(
    session: Session,
) -> None:
    for n in range(40):
        session.append(Message.user(f"question {n} " + "x " * 200), Message.assistant("y " * 200))
    model = ScriptedModel(
        [ContextTooLong("at most 3000 tokens", status=400, limit=3000)], say("Fits"), say("Again")
    )
    with agent_of(model, context=Context(strategy="truncate", keep_recent=1000)) as agent:
        events = list(agent.stream(session, "now?"))
        agent.run(session, "and now?")
    (shrunk,) = [e for e in events if isinstance(e, ContextShrunk)]
    assert shrunk.after < 3000
    sent = [request.window.tokens for request in model.requests]
    assert sent[1] < 3000 < sent[0]
    assert sent[2] < 3000
    assert [e.attempt for e in events if isinstance(e, ModelCalled)] == [1, 1]


def test_a_prompt_that_is_too_long_by_itself_is_an_error(session: Session) -> None:
    model = ScriptedModel(*[[ContextTooLong("too long")]] * 20)
    with agent_of(model) as agent, pytest.raises(ContextTooLong):
        agent.run(session, "x " * 2000)
    assert len(model.requests) < 20
    assert roles(session) == ["user"]


def test_truncation_keeps_the_first_words_and_the_newest(session: Session) -> None:
    for n in range(20):
        session.append(Message.user(f"question {n}"), Message.assistant(f"answer {n}"))
    model = ScriptedModel(say("ok"))
    with agent_of(model, context=Context(strategy="truncate", keep_recent=6)) as agent:
        agent.run(session, "the last one")
    said = [str(m["content"]) for m in model.requests[0].window]
    assert said[0].startswith("question 0")
    assert said[-1] == "the last one"
    assert len(said) <= 7
    assert session.summary() is None


# ------------------------------------------------------------------------------------------ tools


def test_calls_of_one_reply_run_together(session: Session) -> None:
    meeting = threading.Barrier(3, timeout=60)

    def meet() -> str:
        meeting.wait()
        return "met"

    model = ScriptedModel(calls(*[(f"c{n}", "meet", {}) for n in range(3)]), say("ok"))
    with agent_of(model, tools=[meet]) as agent:
        agent.run(session, "go")
    answers = [m for m in session.messages() if m.role == "tool"]
    assert sorted(part.call_id for m in answers for part in m.tool_results) == ["c0", "c1", "c2"]
    assert {m.text for m in answers} == {"met"}


def test_no_more_than_so_many_at_once(session: Session) -> None:
    now, most, guard = [0], [0], threading.Lock()

    def work() -> str:
        with guard:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with guard:
            now[0] -= 1
        return "done"

    model = ScriptedModel(calls(*[(f"c{n}", "work", {}) for n in range(6)]), say("ok"))
    with agent_of(model, tools=[work], limits=Limits(parallel=2)) as agent:
        agent.run(session, "go")
    assert most[0] == 2


def test_calls_with_the_same_id_are_told_apart(session: Session) -> None:
    """Small models call everything call_1."""
    model = ScriptedModel(
        calls(("1", "add", {"a": 1, "b": 1}), ("1", "add", {"a": 2, "b": 2})),
        call("add", {"a": 3, "b": 3}, id="1"),
        say("ok"),
    )
    with agent_of(model, tools=[add]) as agent:
        agent.run(session, "go")
    answers = [p for m in session.messages() for p in m.tool_results]
    assert sorted(str(answer.text) for answer in answers) == ["2", "4", "6"]
    assert len({answer.call_id for answer in answers}) == 3
    assert [tool.outcome for tool in session.turns()[0].tools] == ["done"] * 3


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("nonsense", {}, "there is no tool 'nonsense'; there are: add"),
        ("add", {"a": 1}, "b"),
        ("add", {"a": "x", "b": 1}, "a"),
        ("add", "{not json", "JSON"),
        ("add", [1, 2], "object"),
    ],
)
def test_a_nonsense_call_gets_an_error_result(
    session: Session, name: str, arguments: object, told: str
) -> None:
    model = ScriptedModel(call(name, arguments), say("Sorry"))  # type: ignore[arg-type]
    with agent_of(model, tools=[add]) as agent:
        result = agent.run(session, "go")
    (answer,) = [p for m in result.messages for p in m.tool_results]
    assert answer.error
    assert told in answer.text
    assert result.text == "Sorry"


def test_a_tool_that_raises_or_is_too_slow_gets_an_error_result(session: Session) -> None:
    def fail() -> str:
        raise RuntimeError("the disk is full")

    async def hang(context: ToolContext, arguments: dict[str, object]) -> Output:
        await asyncio.sleep(30)
        return Output("never")

    from holdfast.agent.models.protocol import ToolSpec  # noqa: PLC0415 - only here

    slow = Tool(spec=ToolSpec("hang", "Hang.", {"type": "object"}), run=hang, timeout=0.05)  # type: ignore[arg-type]
    model = ScriptedModel(calls(("a", "fail", {}), ("b", "hang", {})), say("ok"))
    with agent_of(model, tools=[fail, slow]) as agent:
        result = agent.run(session, "go")
    told = {p.call_id: p for m in result.messages for p in m.tool_results}
    assert told["a"].error
    assert "the disk is full" in told["a"].text
    assert told["b"].error
    assert "0.05 s" in told["b"].text


def test_a_tool_that_asks_does_not_run_when_nobody_is_there(session: Session) -> None:
    ran: list[str] = []

    async def danger(context: ToolContext, arguments: dict[str, object]) -> Output:
        ran.append("ran")
        return Output("done")

    from holdfast.agent.models.protocol import ToolSpec  # noqa: PLC0415 - only here

    tool = Tool(
        spec=ToolSpec("danger", "Danger.", {"type": "object"}),
        run=danger,  # type: ignore[arg-type]
        asks=lambda context, arguments: "delete everything",
    )
    asked: list[str] = []

    async def says_no(ask: object) -> bool | str:
        asked.append(ask.what)  # type: ignore[attr-defined]
        return "not on a Friday"

    async def says_yes(ask: object) -> bool | str:
        return True

    for approve, ran_then, told in (
        (None, 0, "no user is present"),
        (says_no, 0, "not on a Friday"),
        (says_yes, 1, "done"),
    ):
        model = ScriptedModel(call("danger"), say("ok"))
        with agent_of(model, tools=[tool], approve=approve) as agent:
            result = agent.run(session, "go")
        (answer,) = [p for m in result.messages for p in m.tool_results]
        assert len(ran) == ran_then
        assert told in answer.text
    assert asked == ["delete everything"]
    # What was not run was never started: the ledger says so.
    assert [t.tools[0].started_at is None for t in session.turns()] == [True, True, False]


def test_a_long_output_is_kept_whole_and_shown_shortened(store: Store, session: Session) -> None:
    def speak() -> str:
        return "word " * 20_000

    model = ScriptedModel(call("speak"), say("ok"))
    with agent_of(model, tools=[speak], limits=Limits(tool_output=2_000)) as agent:
        agent.run(session, "go")
    (answer,) = [p for m in session.messages() for p in m.tool_results]
    assert len(answer.text) < 3_000
    (whole,) = [part for part in answer.content if isinstance(part, File)]
    assert store.blob(whole.sha256 or "") == ("word " * 20_000).encode()
    assert len(str(model.requests[1].window.messages)) < 5_000


def test_calls_written_as_text_are_understood(session: Session) -> None:
    """With a model that uses the text tool protocol."""
    text = 'I will add.\n```json\n{"name": "add", "arguments": {"a": 2, "b": 5}}\n```'
    model = ScriptedModel(say(text), say("It is 7"), tools="text")
    with agent_of(model, tools=[add]) as agent:
        result = agent.run(session, "2 + 5?")
    assert [p.text for m in result.messages for p in m.tool_results] == ["7"]
    assert model.requests[0].tools == ()
    assert "add" in str(model.requests[0].window.messages[0]["content"])


def test_a_model_that_makes_real_calls_may_write_about_them(session: Session) -> None:
    text = 'A call looks like this:\n```json\n{"name": "add", "arguments": {"a": 2, "b": 5}}\n```'
    for support in ("native", "lenient"):
        with agent_of(ScriptedModel(say(text), tools=support), tools=[add]) as agent:
            assert agent.run(session, "How?").rounds == 1
    alone = '{"name": "add", "arguments": {"a": 2, "b": 5}}'
    with agent_of(ScriptedModel(say(alone), say("7"), tools="lenient"), tools=[add]) as agent:
        assert agent.run(session, "2 + 5?").rounds == 2


# ------------------------------------------------------------------------------------------ cancel


def test_cancel_keeps_what_was_said(session: Session) -> None:
    """From another thread; the stream ends without an error, the turn as cancelled."""
    model = ScriptedModel([ReplyText("Once upon"), Pause(600.0), ReplyText("never")])
    with agent_of(model) as agent:
        events = []
        for event in agent.stream(session, "tell"):
            events.append(event)
            if isinstance(event, TextDelta):
                threading.Thread(target=agent.cancel, args=("enough",)).start()
        assert not agent.cancel()
    assert isinstance(events[-1], TurnEnded)
    assert (events[-1].state, events[-1].error) == ("cancelled", "enough")
    assert texts(session) == [("tell", "complete"), ("Once upon", "partial")]
    (turn,) = session.turns()
    assert (turn.state, turn.error) == ("cancelled", "enough")


def test_cancel_stops_tools(session: Session) -> None:
    """The ledger says that the outcome of one is unknown, and the next window that it is."""
    started = threading.Event()

    async def forever() -> str:
        started.set()
        await asyncio.sleep(30)
        return "never"

    model = ScriptedModel(call("forever", id="c1"), say("I see"))
    with agent_of(model, tools=[forever]) as agent:
        threading.Thread(target=lambda: started.wait(60) and agent.cancel()).start()
        result = agent.run(session, "go")
        assert result.state == "cancelled"
        assert [t.outcome for t in session.turns()[0].tools] == ["unknown"]
        agent.run(session, "well?")
    assert "the outcome of this call is unknown" in str(model.requests[1].window.messages)


def test_leaving_the_stream_cancels_the_turn(session: Session) -> None:
    model = ScriptedModel([ReplyText("Once"), ReplyText(" upon"), Pause(30.0)])
    with agent_of(model) as agent:
        for event in agent.stream(session, "tell"):
            if isinstance(event, TextDelta):
                break
        assert session.turns()[0].state == "cancelled"
    assert texts(session)[1][1] == "partial"


def test_leaving_the_async_stream_cancels_the_turn() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as store:
            session = await store.session("talk")
            model = ScriptedModel([ReplyText("Once"), Pause(30.0)])
            async with AsyncAgent(model, titles=False) as agent:
                stream = agent.stream(session, "tell")
                async for event in stream:
                    if isinstance(event, TextDelta):
                        await stream.aclose()
                (turn,) = await session.turns()
                assert turn.state == "cancelled"
                assert [m.text for m in await session.messages()] == ["tell", "Once"]

    asyncio.run(main())


def test_a_cancelled_task_cancels_the_turn() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as store:
            session = await store.session("talk")
            model = ScriptedModel([ReplyText("Once"), Pause(30.0)])
            async with AsyncAgent(model, titles=False) as agent:
                task = asyncio.create_task(agent.run(session, "tell"))
                await until(lambda: bool(model.requests))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                (turn,) = await session.turns()
                assert turn.state == "cancelled"
                assert [m.text for m in await session.messages()] == ["tell", "Once"]

    asyncio.run(main())


def test_one_agent_serves_many_sessions_at_once() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as store:
            sessions = [await store.session(f"s{n}") for n in range(8)]
            script: Script = [Pause(0.05), ReplyText("ok"), ReplyEnd("stop")]
            model = ScriptedModel(*[script] * 8)
            async with AsyncAgent(model, titles=False) as agent:
                results = await asyncio.gather(*(agent.run(s, "hi") for s in sessions))
            assert {result.text for result in results} == {"ok"}
            for session in sessions:
                assert [m.text for m in await session.messages()] == ["hi", "ok"]

    asyncio.run(main())


def test_only_the_turn_of_one_session_is_cancelled() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as store:
            one, two = await store.session("one"), await store.session("two")
            cancelled = asyncio.Event()
            script: Script = [ReplyText("a"), Hold(cancelled), ReplyText("b"), ReplyEnd("stop")]
            model = ScriptedModel(*[script] * 2)
            async with AsyncAgent(model, titles=False) as agent:
                running = [asyncio.create_task(agent.run(s, "hi")) for s in (one, two)]
                await until(lambda: len(model.requests) == 2)
                assert agent.cancel(session_id=one.id)
                cancelled.set()
                states = [result.state for result in await asyncio.gather(*running)]
            assert states == ["cancelled", "sealed"]

    asyncio.run(main())


def test_the_model_is_changed_between_turns(session: Session) -> None:
    first, second = ScriptedModel(say("a"), name="one"), ScriptedModel(say("b"), name="two")
    with agent_of(first) as agent:
        agent.run(session, "hi")
        agent.model = second
        agent.run(session, "hi")
    assert [m.model for m in session.messages() if m.role == "assistant"] == ["one", "two"]
    assert session.info().model == "two"
    assert second.closed


def test_events_can_be_told_as_json(session: Session) -> None:
    import msgspec  # noqa: PLC0415 - only here

    model = ScriptedModel(call("add", {"a": 1, "b": 2}), say("3"))
    with agent_of(model, tools=[add]) as agent:
        lines = [msgspec.json.encode(event) for event in agent.stream(session, "1 + 2?")]
    told = [msgspec.json.decode(line, type=Event) for line in lines]
    assert [type(event) for event in told] == [
        TurnStarted, UserSaid, ModelCalled, ReplyStored, ToolStarted, ToolEnded, ModelCalled,
        TextDelta, ReplyStored, TurnEnded,
    ]  # fmt: skip
    assert isinstance(told[3], ReplyStored)
    assert isinstance(told[3].message.parts[0], ToolCall)
