"""Hard cases: tools that misbehave, calls and numbers nobody can store, and two who do the same."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, Unpack

import pytest

import holdfast
from holdfast import Goal, Message, Session, Store, Usage
from holdfast.agent import Agent, AsyncAgent, Context, Limits, Output, Retry, Tool, ToolContext
from holdfast.agent.events import Event, ReplyStored, TurnEnded
from holdfast.agent.goals import update
from holdfast.agent.models.chat_completions import ChatStreamParser
from holdfast.agent.models.protocol import (
    Delta,
    ModelRequest,
    ReplyEnd,
    ReplyText,
    ReplyThinking,
    ReplyUsage,
    StopReason,
    ToolSpec,
)
from holdfast.agent.tools.function_tools import make_tool
from holdfast.agent.tools.goal_tools import goal_tools
from holdfast.agent.tools.protocol import Ask
from holdfast.aio import AsyncSession
from holdfast.errors import AgentError, ContextTooLong, ModelFailed
from holdfast.testing.scripted_model import Script, ScriptedModel, call, calls, say
from holdfast.values import JSON, Head, QueuedInput, SessionChanges, SessionInfo

T = TypeVar("T")
FAST = Retry(attempts=3, base=0.0, max=0.0, jitter=0.0)


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("talk")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, with an end."""

    async def bounded() -> T:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(bounded())


def agent_of(model: ScriptedModel, **fields: Any) -> AsyncAgent:  # noqa: ANN401 - an agent's own
    return AsyncAgent(model, **{"titles": False, "retry": FAST, **fields})


def answers(session: Session) -> list[str]:
    return [message.text for message in session.messages() if message.role == "tool"]


def served(session: Session, tool: Tool | Callable[..., object], script: Script) -> list[str]:
    """Let the model call a tool, which must end well whatever it does; give the tools' answers."""

    async def main() -> None:
        model = ScriptedModel(script, say("ok"), say("fine"))
        async with agent_of(model, tools=[tool]) as agent:
            result = await agent.run(AsyncSession(session), "go")
            assert (result.state, result.text) == ("sealed", "ok")
            assert (await agent.run(AsyncSession(session), "again")).text == "fine"

    run(main())
    assert [turn.state for turn in session.turns()] == ["sealed", "sealed"]
    return answers(session)


# ------------------------------------------------------------------------- tools that misbehave


def leave() -> str:
    """Leave."""
    sys.exit(2)


async def leave_at_once() -> str:
    """Leave."""
    sys.exit(2)


def press_ctrl_c() -> str:
    """Interrupt."""
    raise KeyboardInterrupt("in a thread")


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (leave, "RuntimeError: SystemExit: 2"),
        (leave_at_once, "SystemExit: 2"),
        (press_ctrl_c, "RuntimeError: KeyboardInterrupt: in a thread"),
    ],
)
def test_a_tool_that_wants_to_end_the_program_ends_itself(
    session: Session, tool: Callable[..., object], said: str
) -> None:
    """As argument parsers do; in a thread or in the loop, the model gets an error result."""
    assert served(session, tool, call(tool.__name__)) == [said]


def test_a_tool_that_wants_to_end_the_program_does_not_hang_the_sync_agent(
    session: Session,
) -> None:
    with Agent(ScriptedModel(call("leave"), say("ok")), tools=[leave], titles=False) as agent:
        assert agent.run(session, "go").text == "ok"


async def await_what_was_cancelled() -> str:
    """Await."""
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


async def be_cancelled() -> str:
    """Raise."""
    raise asyncio.CancelledError("from a library")


@pytest.mark.parametrize("tool", [await_what_was_cancelled, be_cancelled])
def test_a_tool_that_was_cancelled_cancels_nobody_else(
    session: Session, tool: Callable[..., object]
) -> None:
    assert served(session, tool, call(tool.__name__)) == ["the tool was cancelled"]


def test_an_approver_that_was_cancelled_is_no_cancel_of_the_consumer(session: Session) -> None:
    """The stream fails with `AgentError`; the consumer was not cancelled."""

    async def approve(_ask: Ask) -> bool | str:
        raise asyncio.CancelledError

    async def main() -> None:
        tools = [make_tool(leave, asks=True)]
        model = ScriptedModel(call("leave"), say("never"))
        async with agent_of(model, tools=tools, approve=approve) as agent:
            with pytest.raises(AgentError, match="cancelled by its own code"):
                await agent.run(AsyncSession(session), "go")

    run(main())
    assert [turn.state for turn in session.turns()] == ["cancelled"]


class Wordless(Exception):
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise ValueError("no words")


def fail_without_words() -> str:
    """Fail."""
    raise Wordless


def run_out_of_time() -> str:
    """Fail."""
    raise TimeoutError


def answer_a_number() -> Output:
    """Answer."""
    return Output(content=123)  # type: ignore[arg-type]


def answer_numbers() -> Output:
    """Answer."""
    return Output(content=(1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (fail_without_words, "Wordless"),
        (run_out_of_time, "TimeoutError"),
        (answer_a_number, "the tool's result cannot be stored"),
        (answer_numbers, "the tool's result cannot be stored"),
    ],
)
def test_whatever_a_tool_does_the_model_gets_an_answer(
    session: Session, tool: Callable[..., object], said: str
) -> None:
    """A `TimeoutError` of its own is no time limit of ours."""
    (answer,) = served(session, tool, call(tool.__name__))
    assert answer.startswith(said)
    assert "its outcome is unknown" not in answer


def test_a_tool_that_fails_before_there_is_anything_to_await(session: Session) -> None:
    async def later(text: str) -> Output:
        return Output(text)

    def begin(_context: ToolContext, arguments: dict[str, JSON]) -> Awaitable[Output]:
        return later(str(arguments["missing"]))

    tool = Tool(spec=ToolSpec("t", "Try", {"type": "object"}), run=begin)
    assert served(session, tool, call("t")) == ["KeyError: 'missing'"]


def test_a_tool_that_gives_no_output(session: Session) -> None:
    async def begin(_context: ToolContext, _arguments: dict[str, JSON]) -> Output:
        return "text"  # type: ignore[return-value]

    tool = Tool(spec=ToolSpec("t", "Try", {"type": "object"}), run=begin)
    assert served(session, tool, call("t")) == ["TypeError: the tool returned str, not an Output"]


# ------------------------------------------------------------------- calls that nobody can store


def take(a: int = 0) -> str:
    """Take a number."""
    return "taken"


def nested(depth: int) -> JSON:
    value: JSON = 1
    for _ in range(depth):
        value = [value]
    return {"a": value}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (call("take", {}, id="x" * 10_000), "taken"),
        (call("take", {}, id="\ud800"), "taken"),
        (call("take", {}, id="a\0b\n"), "taken"),
        (call("take", {"a": float("nan")}, id="c"), "the arguments are not JSON"),
        (call("take", nested(300), id="c"), "the arguments are not JSON"),
        (call("take", {"a": 10**3000}, id="c"), "the arguments are not JSON"),
        (call("take", {"a": "x" * 100_000}, id="c"), "invalid arguments: a: "),
        (call("take", "{bad", id="c"), "the arguments are not JSON"),
        (call("take", [1], id="c"), "the arguments must be a JSON object"),
        (call("", {}, id="c"), "there is no tool ''"),
        (call("n" * 10_000, {}, id="c"), "there is no tool 'nnn"),
        (call("\ud800", {}, id="c"), "there is no tool"),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, str) else "",
)
def test_a_call_that_makes_no_sense_gets_an_answer(
    session: Session, script: Script, said: str
) -> None:
    """It is kept as far as it can be, and the turn goes on."""
    (answer,) = served(session, take, script)
    assert answer.startswith(said)


def test_calls_of_the_same_name_are_told_apart(session: Session) -> None:
    script = calls(("c", "take", {}), ("c", "take", {}), ("", "take", {}))
    assert served(session, take, script) == ["taken"] * 3
    ids = [c.id for m in session.messages() for c in m.tool_calls]
    assert (len(set(ids)), ids[0]) == (3, "c")


# ------------------------------------------------------------------- numbers that nobody believes


def said_by_chat(*chunks: dict[str, JSON]) -> list[Delta]:
    reading = ChatStreamParser()
    deltas = [delta for chunk in chunks for delta in reading.feed(chunk)]
    return [*deltas, *reading.finish()]


def chunk(finish: str | None = None, **delta: JSON) -> dict[str, JSON]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize("tokens", [10**30, -1, True, 2.5, "many", None])
def test_a_count_that_cannot_be_costs_no_reply(session: Session, tokens: JSON) -> None:
    used: JSON = {"prompt_tokens": tokens, "completion_tokens": 5}
    script = said_by_chat(chunk(content="hi"), {"choices": [], "usage": used}, chunk(finish="stop"))
    with Agent(ScriptedModel(script), titles=False) as agent:
        result = agent.run(session, "go")
    assert (result.state, result.text) == ("sealed", "hi")
    assert result.usage.input < 10**18


@pytest.mark.parametrize("usage", [Usage(input=10**30), Usage(output=-1)])
def test_a_count_by_any_model_costs_no_reply(session: Session, usage: Usage) -> None:
    with Agent(ScriptedModel(say("hi", usage=usage)), titles=False) as agent:
        result = agent.run(session, "go")
    assert (result.state, result.text, result.usage) == ("sealed", "hi", Usage())


@pytest.mark.parametrize("digits", [4_000, 50_000])
def test_an_argument_of_thousands_of_digits_is_answered(session: Session, digits: int) -> None:
    wanted: JSON = {"name": "take", "arguments": f'{{"a": {"9" * digits}}}'}
    called: JSON = [{"index": 0, "id": "c", "function": wanted}]
    script = said_by_chat(chunk(tool_calls=called), chunk(finish="tool_calls"))
    (answer,) = served(session, take, script)
    assert answer.startswith("the arguments are not JSON")


def too_dear(_model: str, _usage: Usage) -> Decimal | None:
    return Decimal(20_000)


def broken(_model: str, _usage: Usage) -> Decimal | None:
    raise ZeroDivisionError


def no_number(_model: str, _usage: Usage) -> Decimal | None:
    return Decimal("nan")


@pytest.mark.parametrize("prices", [too_dear, broken, no_number])
def test_a_price_that_makes_no_sense_costs_no_reply(
    session: Session, prices: Callable[[str, Usage], Decimal | None]
) -> None:
    """What it cost is then not known; what it used is."""
    model = ScriptedModel(say("hi", usage=Usage(input=5)))
    with Agent(model, titles=False, prices=prices) as agent:
        result = agent.run(session, "go")
    assert (result.state, result.text) == ("sealed", "hi")
    assert (result.usage, result.cost) == (Usage(input=5), None)


# ----------------------------------------------------------------------- replies that are none


def heard(session: Session, *scripts: Script, retry: Retry = FAST) -> tuple[list[Event], int]:
    """Let a model fail; give the events, and how often it was called."""
    model, events = ScriptedModel(*scripts), list[Event]()
    with Agent(model, titles=False, retry=retry) as agent:
        with pytest.raises(ModelFailed):
            events.extend(agent.stream(session, "go"))
    return events, len(model.requests)


@pytest.mark.parametrize("reason", ["length", "refused"])
def test_a_model_that_only_thought_is_paid_for_once(session: Session, reason: StopReason) -> None:
    """With the same room, or the same question, it would do the same again."""
    script: Script = [
        ReplyThinking("hm"),
        ReplyUsage(Usage(input=10, output=4_000)),
        ReplyEnd(reason),
    ]
    events, called = heard(session, *[script] * 5)
    assert called == 1
    (thoughts,) = [e for e in events if isinstance(e, ReplyStored)]
    assert (thoughts.superseded, thoughts.message.usage) == (True, Usage(10, 4_000))
    assert session.messages()[1:] == [thoughts.message]


@pytest.mark.parametrize(
    "script",
    [
        [ReplyUsage(Usage(input=7)), ModelFailed("broke", retryable=True)],
        [ReplyThinking("hm"), ReplyUsage(Usage(input=7)), ModelFailed("broke", retryable=True)],
        [ReplyUsage(Usage(input=7)), ModelFailed("no")],
    ],
)
def test_what_was_spent_without_a_word_is_told_and_no_model_sees_it(
    session: Session, script: Script
) -> None:
    """As by a provider that tells first what the question costs, then breaks off."""
    events, called = heard(session, *[script] * 3)
    stored = [e.message for e in events if isinstance(e, ReplyStored) and e.superseded]
    assert stored == session.messages()[1:]
    assert len(stored) == called
    end = events[-1]
    assert isinstance(end, TurnEnded)
    assert (end.state, end.usage) == ("failed", Usage(input=7 * called))
    assert session.turns()[0].usage == end.usage
    model = ScriptedModel(say("fine"))
    with Agent(model, titles=False) as agent:
        agent.run(session, "again")
    said = [(m["role"], m["content"]) for m in model.requests[0].window]
    assert said == [("user", "go"), ("user", "again")]


@pytest.fixture
def long(session: Session) -> Session:
    """A session with a history that can be sent shortened."""
    for _ in range(40):
        session.append(Message.user("word " * 60), Message.assistant("reply " * 60))
    return session


TOO_LONG = ContextTooLong("exceeds the context", limit=3_000)
TRUNCATE = Context(strategy="truncate", keep_recent=60)


def small(*scripts: Script) -> ScriptedModel:
    return ScriptedModel(*scripts, context=8_000)


def replies(session: Session) -> list[tuple[str, str, bool]]:
    """Return the replies to the last thing that was said."""
    said = session.messages()
    last = max(n for n, message in enumerate(said) if message.role == "user")
    return [(m.text, m.status, bool(m.metadata.get("hidden"))) for m in said[last + 1 :]]


def test_a_context_that_is_full_amid_a_reply_doubles_nothing(long: Session) -> None:
    """As with any other stream that breaks off: the model goes on behind what it said."""
    model = small([ReplyText("The answer "), TOO_LONG], say("is 42."))
    with Agent(model, titles=False, context=TRUNCATE) as agent:
        result = agent.run(long, "go")
    assert result.text == "The answer is 42."
    assert replies(long) == [("The answer ", "partial", False), ("is 42.", "complete", False)]
    assert [request.continuing for request in model.requests] == [False, True]


def test_a_context_that_is_full_amid_a_reply_that_begins_anew(long: Session) -> None:
    model = small([ReplyText("The answer "), TOO_LONG], say("The answer is 42."))
    anew = Retry(base=0.0, jitter=0.0, broken="anew")
    with Agent(model, titles=False, context=TRUNCATE, retry=anew) as agent:
        assert agent.run(long, "go").text == "The answer is 42."
    assert replies(long) == [
        ("The answer ", "partial", True),
        ("The answer is 42.", "complete", False),
    ]


def test_a_context_that_is_full_amid_thoughts(long: Session) -> None:
    model = small([ReplyThinking("hm"), ReplyUsage(Usage(input=3)), TOO_LONG], say("42."))
    with Agent(model, titles=False, context=TRUNCATE) as agent:
        result = agent.run(long, "go")
    assert (result.text, result.usage) == ("42.", Usage(input=3))
    assert replies(long) == [("", "partial", True), ("42.", "complete", False)]


# ----------------------------------------------------------------------------- two at a time


def test_a_goal_that_was_completed_stays_completed(store: Store) -> None:
    """Whatever else the same reply does to it: its calls run together."""
    wanted = calls(
        ("1", "update_goal", {"summary": "half"}),
        ("2", "complete_goal", {"recap": "done"}),
        ("3", "update_goal", {"summary": "more"}),
    )
    for n in range(5):
        session = store.session(f"s{n}")
        session.update(goal=Goal("Mend the roof"))
        model = ScriptedModel(wanted, say("bye"))
        with Agent(model, tools=goal_tools(), titles=False) as agent:
            agent.run(session, "go")
        goal = session.info().goal
        assert goal is not None
        assert (goal.state, goal.recap) == ("completed", "done")
        assert len(model.requests) == 2


class Meddled(AsyncSession):
    """A session whose goal the user ends just when the agent is about to change it."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._sync = session
        self.meddle = True

    async def update(
        self, *, expect: Head | None = None, **changes: Unpack[SessionChanges]
    ) -> SessionInfo:
        if "goal" in changes and self.meddle:
            self.meddle = False
            self._sync.update(goal=Goal("Mend the roof", state="cancelled", recap="by the user"))
        return await super().update(expect=expect, **changes)


def test_a_goal_that_was_ended_meanwhile_stays_ended(session: Session) -> None:
    """The agent counts its turns; the user's word counts more."""
    session.update(goal=Goal("Mend the roof"))

    async def main() -> None:
        model = ScriptedModel(say("one"), say("never"))
        async with agent_of(model, limits=Limits(goal_rounds=5)) as agent:
            await agent.run(Meddled(session), "go")
        assert len(model.requests) == 1

    run(main())
    goal = session.info().goal
    assert goal is not None
    assert (goal.state, goal.recap, goal.rounds) == ("cancelled", "by the user", 0)


def test_a_goal_is_changed_as_it_is_by_then(session: Session) -> None:
    session.update(goal=Goal("Mend the roof"))
    seen: list[str] = []

    def ended(goal: Goal | None) -> Goal:
        assert goal is not None
        seen.append(goal.state)
        return Goal("Mend the roof", state=goal.state, summary="noted")

    run(update(Meddled(session), ended))
    assert seen == ["active", "cancelled"]
    assert session.info().goal == Goal("Mend the roof", state="cancelled", summary="noted")


class Stale(AsyncSession):
    """A session that still tells of what waited a moment ago."""

    waited: Sequence[QueuedInput] = ()

    async def queued(self, *, held: bool = False) -> list[QueuedInput]:
        return [] if held else list(self.waited)


def test_two_agents_answer_what_waits_once(session: Session) -> None:
    """The second has seen it, too, finds that another turn took it, and calls no model."""
    session.enqueue("hello")

    async def main() -> None:
        late = Stale(session)
        late.waited = session.queued()
        models = [ScriptedModel(say("hi")), ScriptedModel(say("never"))]
        first, second = [agent_of(model) for model in models]
        assert (await first.run(AsyncSession(session))).text == "hi"
        result = await second.run(late)
        assert (result.text, result.error) == ("", "another turn took the queued input")
        assert [len(model.requests) for model in models] == [1, 0]

    run(main())
    assert [(m.role, m.text) for m in session.messages()] == [
        ("user", "hello"),
        ("assistant", "hi"),
    ]


# --------------------------------------------------------------------------- beside the turn


class Buggy(ScriptedModel):
    """A model that answers once, and then has a fault of its own."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        if len(self.requests) > 1:
            raise ZeroDivisionError("a bug in somebody's model")
        for delta in (ReplyText("hi"), ReplyEnd("stop")):
            yield delta


def test_a_title_that_fails_bothers_nobody(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        model = Buggy()
        async with AsyncAgent(model) as agent:
            assert (await agent.run(AsyncSession(session), "go")).state == "sealed"
            assert await agent.settle(10)
        assert len(model.requests) == 2

    run(main())
    gc.collect()
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []
    assert session.info().title is None


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("<think>\nThe user greets.\n</think>\n\nA greeting", "A greeting"),
        ("<think>\nThe user greets, and then", None),
        ("<b>A greeting</b>", None),
    ],
)
def test_thoughts_are_no_title(session: Session, answer: str, title: str | None) -> None:
    with Agent(ScriptedModel(say("hi"), say(answer))) as agent:
        agent.run(session, "hello")
        assert agent.settle(10)
    assert session.info().title == title


# ------------------------------------------------------------------------ whose the models are


def test_every_model_that_an_agent_had_is_closed(session: Session) -> None:
    one, two = ScriptedModel(say("one")), ScriptedModel(say("two"))
    with Agent(one, titles=False) as agent:
        agent.run(session, "go")
        agent.model = two
        assert agent.run(session, "go").text == "two"
        assert not one.closed
        agent.model = one
    assert (one.closed, two.closed) == (True, True)


_FORKED = """
import os, signal, sys
import holdfast
from holdfast.agent import Agent
from holdfast.testing.scripted_model import ScriptedModel, say

path = sys.argv[1]
agent = Agent(ScriptedModel(say("one"), say("two"), say("two")), titles=False)
with holdfast.open(path) as store:
    print(agent.run(store.session("parent"), "hi").text, flush=True)
child = os.fork()
if child == 0:
    signal.alarm(20)  # Ended, should it hang.
with holdfast.open(path) as store:
    print(agent.run(store.session("child" if child == 0 else "parent"), "hi").text, flush=True)
agent.close()
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_an_agent_can_be_used_in_a_forked_child(tmp_path: Path) -> None:
    """The thread it works in is its parent's: the child begins another."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, str(tmp_path / "a.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["one", "two", "two", "0"], "")
    with holdfast.open(tmp_path / "a.db") as store:
        assert [m.text for m in store.session("child").messages()] == ["hi", "two"]
