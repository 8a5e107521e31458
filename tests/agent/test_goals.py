"""Goals: put before the model at each turn, worked on until they end, and kept meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Goal, Session, Store
from holdfast.agent import Agent, Limits, Retry, ToolContext
from holdfast.agent.events import Event, GoalChanged, GoalPaused, TurnEnded
from holdfast.agent.models.protocol import Delta, ModelRequest
from holdfast.errors import ModelFailed
from holdfast.testing.scripted_model import Pause, ScriptedModel, call, say


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    session = store.session("work")
    session.update(goal=Goal("Mend the roof"))
    return session


async def finish(context: ToolContext, recap: str) -> str:
    """End the goal."""
    goal = (await context.session.info()).goal
    assert goal is not None
    ended = Goal(goal.objective, state="completed", rounds=goal.rounds, recap=recap)
    await context.session.update(goal=ended)
    return "ended"


def agent_of(model: ScriptedModel, **limits: int) -> Agent:
    return Agent(
        model,
        tools=[finish],
        titles=False,
        limits=Limits(**limits),  # type: ignore[arg-type]
        retry=Retry(attempts=1),
    )


def told(model: ScriptedModel, n: int) -> str:
    return str(model.requests[n].window.messages[0]["content"])


def test_the_agent_goes_on_by_itself_until_the_goal_ends(session: Session) -> None:
    model = ScriptedModel(
        say("I look at it"),
        say("I fetch a ladder"),
        call("finish", {"recap": "tight"}),
        say("Done"),
    )
    with agent_of(model) as agent:
        events = list(agent.stream(session, "begin"))
    assert [e.state for e in events if isinstance(e, TurnEnded)] == ["sealed"] * 3
    changes = [(e.goal.rounds, e.goal.state) for e in events if isinstance(e, GoalChanged)]
    assert changes == [(1, "active"), (2, "active"), (2, "completed")]
    asked = [m for m in session.messages() if m.role == "user"]
    assert [m.text for m in asked] == ["begin", *["Go on with the goal: Mend the roof"] * 2]
    assert [m.metadata for m in asked] == [{}, {"injected": "goal"}, {"injected": "goal"}]
    goal = session.info().goal
    assert goal is not None
    assert (goal.state, goal.recap, goal.rounds) == ("completed", "tight", 2)
    # Once it has ended, it is not put before the model any more.
    assert all("Mend the roof" in told(model, n) for n in range(3))
    assert "Mend the roof" not in told(model, 3)


def test_it_stops_visibly_at_its_limit(session: Session) -> None:
    model = ScriptedModel(*[say(f"step {n}") for n in range(9)])
    with agent_of(model, goal_rounds=3) as agent:
        events = list(agent.stream(session, "begin"))
    assert isinstance(events[-1], GoalPaused)
    assert "3" in events[-1].why
    assert len(model.requests) == 4
    goal = session.info().goal
    assert goal is not None
    assert goal.state == "active"


def test_a_goal_survives_a_restart_and_a_summary(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        session = store.session("work")
        session.update(goal=Goal("Mend the roof", summary="the ladder is here"))
        with agent_of(ScriptedModel(say("a")), goal_rounds=0) as agent:
            agent.run(session, "begin")
        session.summarize("They talked about a roof.")
    with holdfast.open(tmp_path / "a.db") as store:
        model = ScriptedModel(say("b"))
        with agent_of(model, goal_rounds=0) as agent:
            agent.run(store.session("work"), "and now?")
    assert "Mend the roof" in told(model, 0)
    assert "the ladder is here" in told(model, 0)


def test_a_fork_drops_it(session: Session) -> None:
    session.append(holdfast.Message.user("hi"))
    assert session.fork().info().goal is None


def test_input_that_waits_goes_before_the_next_round(session: Session) -> None:
    def interrupt() -> str:
        """Say something meanwhile."""
        session.enqueue("mind the cat")
        return "said"

    model = ScriptedModel(
        call("interrupt"), say("I hear"), call("finish", {"recap": ""}), say("ok")
    )
    with Agent(model, tools=[interrupt, finish], titles=False) as agent:
        agent.run(session, "begin")
    asked = [m.text for m in session.messages() if m.role == "user"]
    assert asked == ["begin", "mind the cat", "Go on with the goal: Mend the roof"]


@pytest.mark.parametrize("state", ["completed", "cancelled", "blocked"])
def test_a_goal_that_ended_is_left_alone(store: Store, state: str) -> None:
    session = store.session("rest")
    session.update(goal=Goal("Mend the roof", state=state))  # type: ignore[arg-type]
    model = ScriptedModel(say("ok"))
    with agent_of(model) as agent:
        assert agent.run(session, "hi").rounds == 1
    assert "Mend the roof" not in told(model, 0)


def test_cancelling_stops_the_rounds(session: Session) -> None:
    model = ScriptedModel(say("one"), [Pause(30.0)])
    events: list[Event] = []
    with agent_of(model) as agent:
        for event in agent.stream(session, "begin"):
            events.append(event)
            if isinstance(event, GoalChanged):
                agent.cancel()
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].state == "cancelled"


def test_a_failed_turn_stops_the_rounds(session: Session) -> None:
    with agent_of(ScriptedModel(say("one"))) as agent, pytest.raises(ModelFailed):
        agent.run(session, "begin")
    goal = session.info().goal
    assert goal is not None
    assert goal.state == "active"
    assert [turn.state for turn in session.turns()] == ["sealed", "failed"]


def test_silence_is_borne_while_a_goal_runs_if_so_wished(session: Session) -> None:
    quiet = [Pause(0.4), *say("at last")]
    patient = Limits(idle=0.1, idle_in_goal=False, goal_rounds=0)
    with Agent(
        ScriptedModel(quiet), titles=False, limits=patient, retry=Retry(attempts=1)
    ) as agent:
        assert agent.run(session, "begin").text == "at last"
    hasty = Limits(idle=0.1, idle_in_goal=True, goal_rounds=0)
    with Agent(ScriptedModel(quiet), titles=False, limits=hasty, retry=Retry(attempts=1)) as agent:
        with pytest.raises(ModelFailed, match="sent nothing"):
            agent.run(session, "begin")


def test_a_goal_that_another_process_sets_during_a_turn_is_pursued(store: Store) -> None:
    """The turn had no goal when it began, and called no tool."""
    session = store.session("talk")

    class Interrupted(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            if not self.requests:
                await asyncio.to_thread(session.update, goal=Goal("Mend the roof"))
            async for delta in super().stream(request):
                yield delta

    model = Interrupted(say("hello"), call("finish", {"recap": "done"}), say("bye"))
    with agent_of(model) as agent:
        ended = [event for event in agent.stream(session, "hi") if isinstance(event, TurnEnded)]
    assert len(ended) == 2
    goal = session.info().goal
    assert goal is not None
    assert (goal.state, goal.rounds) == ("completed", 1)
