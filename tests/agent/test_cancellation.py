"""Cancelling: at any moment, by anybody, whatever the model and its tools are doing."""

from __future__ import annotations

import asyncio
import gc
import selectors
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from contextvars import Context
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

import holdfast
from holdfast import Message, Session, Store, Usage, draft
from holdfast.agent import Agent, AsyncAgent, Limits, Retry, Tool
from holdfast.agent.approval import allow_everything
from holdfast.agent.events import (
    Event,
    ReplyStored,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UserSaid,
)
from holdfast.agent.models.protocol import (
    Delta,
    ModelRequest,
    ReplyEnd,
    ReplyText,
    ReplyToolCall,
    ReplyUsage,
)
from holdfast.agent.tools.builtin import workspace_tools
from holdfast.agent.tools.function_tools import make_tool
from holdfast.agent.tools.protocol import Ask
from holdfast.aio import AsyncSession
from holdfast.aio.completion_queue import shielded
from holdfast.aio.draft import AsyncDraft
from holdfast.errors import Invalid, ModelFailed, TooLarge
from holdfast.testing.scripted_model import Pause, ScriptedModel, call, say
from tests.agent.test_shell_tool import linux, wait_for_file, wait_until_gone

T = TypeVar("T")
FAST = Retry(base=0.0, max=0.0, jitter=0.0)
LONG = 600.0  # Nothing here waits so long, unless what it tests is broken.
SOON = 50.0  # A second at most, on a machine that has nothing else to do.


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
        async with asyncio.timeout(100):
            return await work

    return asyncio.run(bounded())


def texts(session: Session) -> list[tuple[str, str]]:
    return [(message.text, message.status) for message in session.messages()]


def states(session: Session) -> list[tuple[str, str | None]]:
    return [(turn.state, turn.error) for turn in session.turns()]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not reached():  # noqa: ASYNC110 - the model says nothing when it is called
            await asyncio.sleep(0.01)


def quiet(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether asyncio had nothing to complain about."""
    gc.collect()
    return [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Heard(threading.Event):
    """A price list that is asked when the agent has taken what was said before."""

    def __call__(self, _model: str, usage: Usage) -> Decimal | None:
        self.set()
        return Decimal(usage.total)


def speaks() -> ScriptedModel:
    """A model that says something, and never ends."""
    return ScriptedModel([ReplyText("Once upon"), ReplyUsage(Usage(input=7)), Pause(LONG)])


# --------------------------------------------------------------------------------- at every step


class Steps(selectors.DefaultSelector):
    """Counts the rounds of an event loop, and does something at one of them."""

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[int, Callable[[], object]] = {}
        self._round = 0

    def at(self, wanted: dict[int, Callable[[], object]]) -> None:
        """Do these, each after so many rounds."""
        self._left, self._round = wanted, 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        doing = self._left.pop(self._round, None)
        self._round += 1
        if doing is None:
            return super().select(timeout)
        doing()
        return super().select(0)


def look(a: int = 0) -> str:
    """Look."""
    return "seen"


async def listen(a: int = 0) -> str:
    """Listen."""
    await asyncio.sleep(0.001)
    return "heard"


async def say_yes(_ask: Ask) -> bool | str:
    await asyncio.sleep(0.001)
    return True


def story() -> ScriptedModel:
    """A turn with everything: words, calls, a question, a reply that breaks off and goes on."""
    return ScriptedModel(
        [
            *(ReplyText("a"), ReplyText("b")),
            *(
                ReplyToolCall("1", "look", {}),
                ReplyToolCall("2", "listen", {}),
                ReplyToolCall("3", "look", {}),
            ),
            *(ReplyUsage(Usage(input=1, output=1)), ReplyEnd("calls")),
        ],
        [ReplyText("c"), ModelFailed("broken", retryable=True)],
        say("d", usage=Usage(input=1)),
    )


class Cancelled:
    """One turn that is cancelled after so many rounds of the loop, and what came of it."""

    def __init__(self, how: str, session: AsyncSession, steps: Steps) -> None:
        self.events: list[Event] = []
        self._how = how
        self._session = session
        self._steps = steps
        tools: list[Tool] = [make_tool(look), make_tool(listen, asks=True)]
        self._agent = AsyncAgent(story(), tools=tools, approve=say_yes, retry=FAST, titles=False)

    async def go(self, at: int) -> bool:
        """Take the turn; give whether it was still there to be cancelled."""
        task = asyncio.create_task(self._consume())
        hit: list[bool] = []

        def stop() -> None:
            if self._how in {"agent", "both"}:
                hit.append(self._agent.cancel("stop") or not task.done())
            if self._how in {"task", "twice", "both"}:
                hit.append(task.cancel())

        again = {at + 1: stop} if self._how == "twice" else {}
        self._steps.at({at: stop, **again})
        done, _ = await asyncio.wait([task], timeout=SOON)
        self._steps.at({})
        assert done, "it never ended"
        if self._how == "agent":
            assert not task.cancelled()
        if not task.cancelled():
            assert task.exception() is None
        await self._agent.close()
        await self._check()
        return any(hit)

    async def _consume(self) -> None:
        async for event in self._agent.stream(self._session, "go"):
            self.events.append(event)

    async def _check(self) -> None:
        """The turn is over, all that was said is kept, once, and the session is free."""
        turns, stored = await self._session.turns(), await self._session.messages()
        assert [turn.state for turn in turns] in ([], ["cancelled"], ["sealed"])
        ends = [event for event in self.events if isinstance(event, TurnEnded)]
        assert [end.state for end in ends] in ([], [turn.state for turn in turns])
        started = any(isinstance(event, TurnStarted) for event in self.events)
        if self._how == "agent" and started:
            assert len(ends) == 1
        said = "".join(m.text for m in stored if m.role == "assistant")
        heard = "".join(e.text for e in self.events if isinstance(e, TextDelta))
        assert "abcd".startswith(said)
        assert said.startswith(heard)
        assert [m.text for m in stored if m.role == "user"] in (
            [["go"]] if started else [[], ["go"]]
        )
        told = [
            event.message.id
            for event in self.events
            if isinstance(event, UserSaid | ReplyStored | ToolEnded)
        ]
        assert len(set(told)) == len(told)
        assert set(told) <= {message.id for message in stored}
        replies = [e.message.id for e in self.events if isinstance(e, ReplyStored)]
        if self._how == "agent":
            assert replies == [m.id for m in stored if m.role == "assistant"]
        again = AsyncAgent(ScriptedModel(say("fine")), titles=False)
        assert (await again.run(self._session, "again")).text == "fine"


def cancel_everywhere(url: str, how: str, stride: int) -> int:
    """Cancel a turn after 0, 1, 2 … rounds of the loop, until none is left; give how often."""
    steps = Steps()

    async def main() -> int:
        async with holdfast.open_async(url) as store:
            for at in range(0, 2_000, stride):
                turn = Cancelled(how, await store.session(f"k{at}"), steps)
                try:
                    if not await turn.go(at):
                        return at
                except BaseException as error:
                    error.add_note(f"cancelled after {at} rounds: {turn.events}")
                    raise
        raise AssertionError("the turn has no end")

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(steps)) as runner:
        return runner.run(main())


@pytest.mark.parametrize("how", ["agent", "task", "both", "twice"])
def test_a_turn_can_be_cancelled_at_every_step(how: str) -> None:
    """By the agent, by the consumer, by both, or twice."""
    assert cancel_everywhere("memory:", how, 1) > 20


@pytest.mark.parametrize("how", ["agent", "task"])
def test_a_turn_in_a_file_can_be_cancelled_at_every_step(how: str, tmp_path: Path) -> None:
    """What is decided is decided above the store: here some of the steps must do."""
    assert cancel_everywhere(f"sqlite:///{tmp_path}/a.db", how, 5) > 20


def test_a_turn_can_be_cancelled_before_its_first_step(session: Session) -> None:
    """Between the beginning of the work and its first step: the stream ends, and nothing began."""

    async def main() -> list[Event]:
        agent = AsyncAgent(ScriptedModel(say("never")), titles=False)
        cancelled: list[bool] = []
        loop = asyncio.get_running_loop()

        async def consume() -> list[Event]:
            loop.call_soon(lambda: cancelled.append(agent.cancel("stop")))
            return [event async for event in agent.stream(AsyncSession(session), "go")]

        events = await asyncio.wait_for(consume(), SOON)
        assert cancelled == [True]
        await agent.close()
        return events

    assert run(main()) == []
    assert (session.turns(), session.messages()) == ([], [])


def test_a_run_that_waits_for_a_busy_session_can_be_cancelled(session: Session) -> None:
    """It never began, which is no error."""

    async def main() -> None:
        twin = AsyncSession(session)
        async with AsyncAgent(
            ScriptedModel(say("never")), titles=False, limits=Limits(wait=LONG)
        ) as agent:
            async with twin.turn():
                task = asyncio.create_task(agent.run(twin, "go"))
                await asyncio.sleep(0.05)
                assert agent.cancel()
                result = await asyncio.wait_for(task, SOON)
        assert (result.state, result.turn_id, result.messages) == ("cancelled", "", ())
        assert result.error == "it was cancelled before it began"

    run(main())
    assert [turn.state for turn in session.turns()] == ["sealed"]


# --------------------------------------------------------------------------- events of what is kept


def test_what_a_cancel_keeps_is_told(session: Session) -> None:
    """The words, what they cost, and that they are stored: as of any other reply."""

    async def main() -> None:
        agent = AsyncAgent(speaks(), titles=False, prices=(heard := Heard()))
        events: list[Event] = []

        async def consume() -> None:
            async for event in agent.stream(AsyncSession(session), "tell"):
                events.append(event)  # noqa: PERF401 - what came before a failure is wanted, too

        task = asyncio.create_task(consume())
        await until(heard.is_set)
        assert agent.cancel("enough")
        await asyncio.wait_for(task, SOON)
        *_, reply, end = events
        assert isinstance(reply, ReplyStored)
        assert (reply.message.text, reply.message.status) == ("Once upon", "partial")
        assert reply.message == session.messages()[-1]
        assert isinstance(end, TurnEnded)
        assert (end.state, end.error) == ("cancelled", "enough")
        assert (end.usage, end.cost) == (Usage(input=7), Decimal(7))
        await agent.close()

    run(main())


def test_the_result_of_a_cancelled_run_is_what_was_kept(session: Session) -> None:
    with Agent(speaks(), titles=False, prices=(heard := Heard())) as agent:

        def stop() -> None:
            assert heard.wait(SOON)
            assert agent.cancel()

        stopping = threading.Thread(target=stop)
        stopping.start()
        result = agent.run(session, "tell")
        stopping.join()
    assert (result.state, result.text) == ("cancelled", "Once upon")
    assert [m.text for m in result.messages] == ["tell", "Once upon"]
    assert result.turn_id == session.turns()[0].id


def test_what_a_reply_that_is_too_large_has_kept_is_told(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "MAX_REPLY_BYTES", 100)
    events: list[Event] = []
    with Agent(ScriptedModel(say("x" * 90, "y" * 90)), titles=False) as agent:
        with pytest.raises(TooLarge):
            events.extend(agent.stream(session, "go"))
    told = [e.message for e in events if isinstance(e, ReplyStored)]
    assert told == session.messages()[1:]
    assert [(m.text, m.status) for m in told] == [("x" * 90, "partial")]
    assert [turn.state for turn in session.turns()] == ["failed"]


# ------------------------------------------------------------------------ those who do not let go


class Clinging(ScriptedModel):
    """A model that ends late after it was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        try:
            yield ReplyText("Once upon")
            yield ReplyUsage(Usage(input=7))
            await asyncio.sleep(LONG)
        finally:
            await self.free.wait()


def test_a_model_that_does_not_let_go_is_let_go(session: Session) -> None:
    async def main() -> None:
        model = Clinging()
        agent = AsyncAgent(model, titles=False, prices=(heard := Heard()))
        task = asyncio.create_task(agent.run(AsyncSession(session), "tell"))
        await until(heard.is_set)
        assert agent.cancel()
        result = await asyncio.wait_for(task, SOON)
        assert (result.state, result.text) == ("cancelled", "Once upon")
        assert states(session) == [("cancelled", "stopped by the user")]
        model.free.set()
        await agent.close()

    run(main())


class Deaf(ScriptedModel):
    """A model that ignores its cancellation, and goes on talking."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        yield ReplyText("Once upon")
        yield ReplyUsage(Usage(input=7))
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(LONG)
        yield ReplyText(" a time")
        yield ReplyEnd("stop")


class Torrent(ScriptedModel):
    """A model that sends everything at once."""

    sent = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        for _ in range(2_000):
            self.sent += 1
            yield ReplyText("x")
        yield ReplyEnd("stop")


@pytest.mark.parametrize("leaves", [False, True])
def test_nothing_more_of_a_reply_is_stored_once_its_slow_consumer_stops(
    session: Session, leaves: bool
) -> None:
    """The reader of the model's stream waits for room in the queue, and gets none."""
    model = Torrent()

    async def main() -> None:
        agent = AsyncAgent(model, titles=False)
        async with aclosing(agent.stream(AsyncSession(session), "tell")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    await until(lambda: model.sent > 16)
                    if leaves:
                        break
                    agent.cancel()
        await agent.close()

    run(main())
    assert 0 < len(session.messages()[-1].text) == model.sent < 30


@pytest.mark.parametrize("idle", [None, 0.05])
def test_what_a_model_says_after_it_was_cancelled_is_discarded(
    session: Session, idle: float | None
) -> None:
    """Whether the user stops it, or it was silent for too long."""

    async def main() -> None:
        agent = AsyncAgent(
            Deaf(),
            titles=False,
            prices=(heard := Heard()),
            limits=Limits(idle=idle),
            retry=Retry(attempts=1),
        )
        task = asyncio.create_task(agent.run(AsyncSession(session), "tell"))
        await until(heard.is_set)
        if idle is None:
            assert agent.cancel()
            assert (await asyncio.wait_for(task, SOON)).text == "Once upon"
        else:
            with pytest.raises(ModelFailed, match="sent nothing for"):
                await asyncio.wait_for(task, SOON)
        await agent.close()

    run(main())
    assert texts(session) == [("tell", "complete"), ("Once upon", "partial")]


def test_a_reply_is_not_stored_while_a_part_of_it_is_being_written(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is not over when the model has been let go is waited for."""
    steps: list[str] = []
    write, close = AsyncDraft.write, AsyncDraft.close

    async def slow_write(self: AsyncDraft, text: str) -> None:
        async def finish() -> None:
            await asyncio.sleep(1.0)
            steps.append("written")

        await write(self, text)
        steps.append("writing")
        await shielded(finish())

    async def noted_close(
        self: AsyncDraft, *, status: Literal["complete", "partial"] = "complete"
    ) -> Message | None:
        steps.append("closed")
        return await close(self, status=status)

    monkeypatch.setattr(AsyncDraft, "write", slow_write)
    monkeypatch.setattr(AsyncDraft, "close", noted_close)

    async def main() -> None:
        agent = AsyncAgent(ScriptedModel(say("Once upon")), titles=False)
        task = asyncio.create_task(agent.run(AsyncSession(session), "tell"))
        await until(lambda: bool(steps))
        assert agent.cancel()
        assert (await asyncio.wait_for(task, SOON)).text == "Once upon"
        await agent.close()

    run(main())
    assert steps[:3] == ["writing", "written", "closed"]
    assert texts(session) == [("tell", "complete"), ("Once upon", "partial")]


class Stubborn:
    """A tool that does not mind being cancelled."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.begun = asyncio.Event()

    async def hold_on(self) -> str:
        """Hold on."""
        self.begun.set()
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                continue
        return "at last"


def test_a_tool_that_does_not_let_go_is_let_go(session: Session) -> None:
    """Its outcome is unknown, and the turn is over."""

    async def main() -> None:
        tool = Stubborn()
        model = ScriptedModel(call("hold_on", id="c1"), say("never"))
        agent = AsyncAgent(model, tools=[tool.hold_on], titles=False)
        task = asyncio.create_task(agent.run(AsyncSession(session), "go"))
        await asyncio.wait_for(tool.begun.wait(), SOON)
        assert agent.cancel()
        assert (await asyncio.wait_for(task, SOON)).state == "cancelled"
        (turn,) = session.turns()
        assert [(t.call_id, t.outcome) for t in turn.tools] == [("c1", "unknown")]
        tool.free.set()
        await agent.close()

    run(main())


def test_a_tool_that_does_not_let_go_when_its_time_is_up_is_let_go(session: Session) -> None:
    """The model gets an error result, and continues."""

    async def main() -> None:
        tool = Stubborn()
        tools = [make_tool(tool.hold_on, timeout=0.05)]
        model = ScriptedModel(call("hold_on"), say("then without"))
        async with AsyncAgent(model, tools=tools, titles=False) as agent:
            result = await asyncio.wait_for(agent.run(AsyncSession(session), "go"), SOON)
            assert (result.state, result.text) == ("sealed", "then without")
            said = [m.text for m in result.messages if m.role == "tool"]
            assert said == ["timed out after 0.05 s; its outcome is unknown"]
            tool.free.set()

    run(main())


class Endless(ScriptedModel):
    """A model that says more than anybody takes."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        for n in range(100_000):
            yield ReplyText(f"{n} ")
            await asyncio.sleep(0)


def test_a_consumer_that_stands_still_does_not_hold_up_a_cancel(session: Session) -> None:
    """The turn ends though no event is read; the events stay readable."""

    async def main() -> None:
        agent = AsyncAgent(Endless(), titles=False)
        async with aclosing(agent.stream(AsyncSession(session), "go")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            await asyncio.sleep(0.1)  # Whatever can wait, waits.
            assert agent.cancel("enough")
            await until(lambda: states(session) == [("cancelled", "enough")])
            said, status = texts(session)[-1]
            assert (said[:2], status) == ("0 ", "partial")
            left = [event async for event in events]
        assert said.startswith("0 " + "".join(e.text for e in left if isinstance(e, TextDelta)))
        assert [e.message.text for e in left if isinstance(e, ReplyStored)] == [said]
        assert isinstance(left[-1], TurnEnded)
        assert left[-1].state == "cancelled"
        await agent.close()

    run(main())


# ------------------------------------------------------------------ a consumer that is cancelled


async def take_your_time() -> str:
    """Take your time."""
    try:
        await asyncio.sleep(LONG)
    finally:
        await asyncio.sleep(0.3)
    return "never"


async def leave_at(agent: AsyncAgent, session: Session, wanted: type[Event]) -> None:
    async with aclosing(agent.stream(AsyncSession(session), "go")) as events:
        async for event in events:
            if isinstance(event, wanted):
                break


def slow_agent() -> AsyncAgent:
    return AsyncAgent(
        ScriptedModel(call("take_your_time"), say("never")), tools=[take_your_time], titles=False
    )


def test_a_cancel_is_not_lost_while_an_abandoned_stream_is_ended(session: Session) -> None:
    """Whoever is cancelled while it waits for the end of the turn is cancelled, not spared."""

    async def main() -> None:
        agent = slow_agent()
        went_on: list[bool] = []

        async def consume() -> None:
            await leave_at(agent, session, ToolStarted)
            went_on.append(True)

        task = asyncio.create_task(consume())
        await until(lambda: bool(session.turns()) and bool(session.turns()[0].tools))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task], timeout=SOON)
        assert (task.cancelled(), went_on) == (True, [])
        assert [turn.state for turn in session.turns()] == ["cancelled"]
        await agent.close()

    run(main())


def test_a_time_limit_is_not_lost_while_an_abandoned_stream_is_ended(session: Session) -> None:
    async def main() -> None:
        agent = slow_agent()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await leave_at(agent, session, ToolStarted)
                await asyncio.sleep(LONG)
        assert [turn.state for turn in session.turns()] == ["cancelled"]
        await agent.close()

    run(main())


def test_leaving_a_stream_whose_events_nobody_took_ends_its_work(session: Session) -> None:
    """Also when the consumer is cancelled again and again while it leaves."""

    async def main() -> None:
        agent = AsyncAgent(Endless(), titles=False)
        task = asyncio.create_task(leave_at(agent, session, TextDelta))
        await until(lambda: bool(session.messages()))
        for _ in range(20):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task], timeout=SOON)
        assert [turn.state for turn in session.turns()] == ["cancelled"]
        assert len(asyncio.all_tasks()) == 1, "something goes on with nobody there"
        await agent.close()

    run(main())


# --------------------------------------------------------------------------- closing the agent


def test_closing_ends_what_runs_and_tells_its_consumer(session: Session) -> None:
    """Before it returns: the store may be closed next."""

    async def main() -> None:
        agent = AsyncAgent(speaks(), titles=False, prices=(heard := Heard()))
        task = asyncio.create_task(agent.run(AsyncSession(session), "tell"))
        await until(heard.is_set)
        await asyncio.wait_for(agent.close(), SOON)
        assert states(session) == [("cancelled", "the agent was closed")]
        result = await asyncio.wait_for(task, SOON)
        assert (result.state, result.error) == ("cancelled", "the agent was closed")
        assert (result.turn_id, result.text) == (session.turns()[0].id, "Once upon")
        assert [m.text for m in result.messages] == ["tell", "Once upon"]

    run(main())


def test_the_last_events_wait_for_a_consumer_that_comes_after_the_close(session: Session) -> None:
    """A consumer that was busy still gets the end of the turn."""

    async def main() -> None:
        agent = AsyncAgent(speaks(), titles=False, prices=(heard := Heard()))
        async with aclosing(agent.stream(AsyncSession(session), "tell")) as events:
            first = await anext(events)
            await until(heard.is_set)
            await asyncio.wait_for(agent.close(), SOON)
            reply, end = [event async for event in events][-2:]
        assert isinstance(first, TurnStarted)
        assert isinstance(reply, ReplyStored)
        assert reply.message == session.messages()[-1]
        assert isinstance(end, TurnEnded)
        assert (end.turn_id, end.state) == (first.turn_id, "cancelled")

    run(main())


@linux
def test_closing_ends_a_command_that_a_task_waits_for(tmp_path: Path) -> None:
    """Agent and store are closed one after the other, as `async with` does."""
    ready = tmp_path / "ready"
    command = "trap '' TERM; echo $$ >ready; sleep 1000 & wait; sleep 1000"

    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as store:
            session = await store.session("talk", cwd=str(tmp_path))
            model = ScriptedModel(call("run_command", {"command": command}), say("never"))
            async with AsyncAgent(
                model,
                tools=workspace_tools(str(tmp_path)),
                approve=allow_everything,
                titles=False,
            ) as agent:
                task = asyncio.create_task(agent.run(session, "go"))
                await asyncio.to_thread(wait_for_file, ready)
            assert [turn.state for turn in await session.turns()] == ["cancelled"]
        assert (await asyncio.wait_for(task, SOON)).state == "cancelled"

    run(main())
    wait_until_gone(int(ready.read_text()))
    with holdfast.open(tmp_path / "a.db") as store:
        assert states(store.session("talk")) == [("cancelled", "the agent was closed")]


class Consumer(threading.Thread):
    """A thread that takes the events of a stream."""

    def __init__(self, events: Iterator[Event]) -> None:
        super().__init__(daemon=True)
        self._events = events
        self.seen: list[Event] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for event in self._events:
                self.seen.append(event)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error

    def ended(self) -> bool:
        self.join(SOON)
        return not self.is_alive()


def agent_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "holdfast-agent"]


@pytest.mark.parametrize("again", range(3))
def test_closing_while_another_thread_streams(session: Session, again: int) -> None:
    """The turn and the stream end without an error, in whichever order."""
    agent = Agent(speaks(), titles=False, prices=(heard := Heard()))
    consumer = Consumer(agent.stream(session, "tell"))
    assert heard.wait(SOON)
    agent.close()
    assert states(session) == [("cancelled", "the agent was closed")]
    assert consumer.ended()
    assert consumer.error is None
    assert [(e.state, e.error) for e in consumer.seen if isinstance(e, TurnEnded)] == [
        ("cancelled", "the agent was closed")
    ]
    assert texts(session) == [("tell", "complete"), ("Once upon", "partial")]
    assert agent_threads() == []


@linux
def test_closing_while_another_thread_waits_for_a_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = "trap '' TERM; echo $$ >ready; sleep 1000 & wait; sleep 1000"
    with holdfast.open("memory:") as store:
        session = store.session("talk", cwd=str(tmp_path))
        agent = Agent(
            ScriptedModel(call("run_command", {"command": command}), say("never")),
            tools=workspace_tools(str(tmp_path)),
            approve=allow_everything,
            titles=False,
        )
        consumer = Consumer(agent.stream(session, "go"))
        wait_for_file(ready)
        agent.close()
        assert states(session) == [("cancelled", "the agent was closed")]
        assert consumer.ended()
        assert consumer.error is None
    wait_until_gone(int(ready.read_text()))


def test_closing_with_a_stream_that_nobody_finished(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn is over; leaving the stream afterwards starts nothing, and nobody complains."""
    agent = Agent(ScriptedModel([ReplyText("Once upon"), Pause(LONG)]), titles=False)
    events = agent.stream(session, "tell")
    for event in events:
        if isinstance(event, TextDelta):
            break
    agent.close()
    assert states(session) == [("cancelled", "the agent was closed")]
    events.close()
    assert agent_threads() == []
    assert quiet(caplog), caplog.text


def test_a_stream_can_be_read_to_its_end_after_the_agent_was_closed(session: Session) -> None:
    agent = Agent(ScriptedModel([ReplyText("Once upon"), Pause(LONG)]), titles=False)
    events = agent.stream(session, "tell")
    for event in events:
        if isinstance(event, TextDelta):
            break
    agent.close()
    reply, end = events
    assert isinstance(reply, ReplyStored)
    assert reply.message == session.messages()[-1]
    assert isinstance(end, TurnEnded)
    assert (end.turn_id, end.state) == (session.turns()[0].id, "cancelled")
    assert agent_threads() == []


def test_a_closed_agent_says_so(session: Session) -> None:
    agent = Agent(ScriptedModel(say("ok")), titles=False)
    agent.run(session, "hi")
    agent.close()
    for use in (
        lambda: agent.run(session, "again"),
        lambda: agent.window(session),
        lambda: agent.summarize(session),
        agent.settle,
    ):
        with pytest.raises(Invalid, match="closed"):
            use()
    assert not agent.cancel()
    assert agent_threads() == []
    assert len(session.turns()) == 1


def test_closing_does_not_wait_for_a_user_who_has_left(session: Session) -> None:
    """An approver may wait in a thread for an answer that never comes."""
    answered = threading.Event()
    asked = threading.Event()

    def ask_the_user() -> bool:
        asked.set()
        return answered.wait(LONG)

    async def approve(_ask: Ask) -> bool | str:
        return await asyncio.to_thread(ask_the_user)

    agent = Agent(
        ScriptedModel(call("look"), say("never")),
        tools=[make_tool(look, asks=True)],
        approve=approve,
        titles=False,
    )
    try:
        consumer = Consumer(agent.stream(session, "go"))
        assert asked.wait(SOON)
        assert agent.cancel()
        assert consumer.ended()
        closing = threading.Thread(target=agent.close, daemon=True)
        closing.start()
        closing.join(SOON)
        assert not closing.is_alive()
    finally:
        answered.set()
    assert [turn.state for turn in session.turns()] == ["cancelled"]


# ------------------------------------------------------------------------------------- Ctrl-C


class Interrupted(asyncio.SelectorEventLoop):
    """A loop at whose door a user presses Ctrl-C, once."""

    when = ""

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        when, self.when = self.when, ""
        if when == "before it is handed over":
            raise KeyboardInterrupt
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        if when == "before it waits":
            time.sleep(0.05)  # The errand has begun.
            raise KeyboardInterrupt
        return handle


@pytest.mark.parametrize("when", ["before it is handed over", "before it waits"])
def test_ctrl_c_between_handing_over_and_waiting(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """It goes its way as a `KeyboardInterrupt`, and not before the turn is over."""
    loop = Interrupted()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)
    model = ScriptedModel([ReplyText("Once upon"), Pause(LONG)], say("fine"))
    with Agent(model, titles=False) as agent:
        events = agent.stream(session, "tell")
        for event in events:
            if isinstance(event, TextDelta):
                break
        loop.when = when
        with pytest.raises(KeyboardInterrupt):
            next(events)
        assert [turn.state for turn in session.turns()] == ["cancelled"]
        assert texts(session) == [("tell", "complete"), ("Once upon", "partial")]
        assert agent.run(session, "again").text == "fine"
    assert quiet(caplog), caplog.text
