"""The work of one stream: a turn, and while a goal is active the turns behind it.

The order of a turn is that of durability. What the user said is stored; the model is called; its
reply is a draft, then a message; each tool is noted before it starts and its answer when it is
there; so on until a reply asks for no tool; then the turn is sealed. A crash anywhere leaves all of
it before that point, and a turn that the next one recovers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.agent import goals, looking, summarizing, titling
from holdfast.agent.calling import Caller
from holdfast.agent.events import (
    Event,
    GoalChanged,
    GoalPaused,
    Titled,
    TurnEnded,
    TurnStarted,
    UserSaid,
)
from holdfast.agent.looking import Shown
from holdfast.agent.replying import Emit, Replier
from holdfast.agent.setup import Setup
from holdfast.aio.handover import unhurried
from holdfast.aio.session import AsyncSession
from holdfast.aio.turn import AsyncTurn
from holdfast.errors import Invalid
from holdfast.records import Content, Goal, Message, TurnState, Usage
from holdfast.session import to_input
from holdfast.turn import ending

# Does something beside the turn, one thing of a kind and session at a time; gives what came of it.
Beside: TypeAlias = Callable[[str, Coroutine[Any, Any, Event | None]], None]
_FIRST_TURNS: Final = 2
_OUT_OF_ROUNDS: Final = "the model was called {} times in this turn, which is the limit"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a turn: the model's last word, and all that was stored."""

    text: str
    state: TurnState
    turn_id: str
    messages: tuple[Message, ...]
    usage: Usage
    cost: Decimal | None
    rounds: int
    error: str | None = None


async def work(
    setup: Setup,
    session: AsyncSession,
    prompt: Content | Message | None,
    *,
    run_id: str | None,
    emit: Emit,
    beside: Beside,
) -> None:
    """Work on what was said, then on the goal as long as there is one."""
    said = None if prompt is None else to_input(prompt)
    if said is None and not await session.queued():
        raise Invalid("there is nothing to answer: give a prompt, or enqueue one.")
    rounds = 0
    while True:
        turn = _Turn(setup, session, emit, beside)
        await turn.run(said, run_id)
        if turn.goal is None or turn.goal.state != "active":
            return
        goal = (await session.info()).goal  # Another process may have ended it during the turn.
        if goal is None or goal.state != "active":
            return
        if rounds >= setup.limits.goal_rounds:
            await emit(GoalPaused(goal, f"after {rounds} turns of its own, which is the limit"))
            return
        if turn.rounds >= setup.limits.rounds:
            await emit(GoalPaused(goal, _OUT_OF_ROUNDS.format(turn.rounds)))
            return
        rounds += 1
        goal = await goals.count_round(session)
        if goal is None:  # It was ended just now, by somebody else.
            return
        await emit(GoalChanged(goal))
        said = goals.go_on(goal)


class _Turn:
    """One turn."""

    def __init__(self, setup: Setup, session: AsyncSession, emit: Emit, beside: Beside) -> None:
        self._setup = setup
        self._session = session
        self._emit = emit
        self._beside = beside
        self._usage = Usage()
        self._cost: Decimal | None = None
        self._began = time.monotonic()
        self._call_ids: set[str] = set()
        self._needs_title = False
        self.goal: Goal | None = None
        self.rounds = 0

    async def run(self, said: Message | None, run_id: str | None) -> None:
        """Open a turn, do the work, and end it, however that goes."""
        model = self._setup.model.name
        turn = self._session.turn(wait=self._setup.limits.wait, model=model, run_id=run_id)
        state: TurnState = "sealed"
        error: str | None = None
        started = False
        try:
            async with turn:
                started = True
                try:
                    await self._emit(
                        TurnStarted(turn_id=turn.id, model=model, recovered=turn.recovered)
                    )
                    error = await self._work(turn, said)
                except asyncio.CancelledError as cancelled:
                    state, error = "cancelled", str(cancelled) or "the consumer went away"
                    await unhurried(turn.cancel(error))
                    raise
                except Exception as failure:
                    state, error = "failed", ending(failure)[1]
                    raise
        finally:
            if started:
                await self._emit(self._ended(turn.id, state, error))
        if self._needs_title:
            self._beside("title", self._make_title())

    async def _work(self, turn: AsyncTurn, said: Message | None) -> str | None:
        """Take the input, then call the model and its tools in turn; give why it was stopped."""
        taken = await self._take_input(turn, said)
        info = await self._session.info()
        self.goal = info.goal
        # After the first exchange; if the model fails to make one, after the second.
        self._needs_title = self._setup.titles and info.title is None and info.turns <= _FIRST_TURNS
        if not taken:
            return "somebody else took the input that waited"
        if info.model != self._setup.model.name:
            await self._session.update(model=self._setup.model.name)
        caller = Caller(self._setup, self._session, turn, self._emit, info.cwd or ".")
        while self.rounds < self._setup.limits.rounds:
            self.rounds += 1
            reply = await self._reply(turn)
            if not reply.tool_calls:
                return None
            await caller.run(reply.tool_calls)
            await self._see_goal()
        return _OUT_OF_ROUNDS.format(self.rounds)

    async def _take_input(self, turn: AsyncTurn, said: Message | None) -> bool:
        """Store what waited, then what was said; false if there was nothing."""
        taken = await turn.take_queued()
        for message in taken:
            await self._emit(UserSaid(message))
        if said is not None:
            await self._emit(UserSaid(await turn.add(said)))
        return bool(taken) or said is not None

    async def _see_goal(self) -> None:
        """Tell of a goal that a tool has set, changed or ended."""
        goal = (await self._session.info()).goal
        if goal is not None and goal != self.goal:
            await self._emit(GoalChanged(goal))
        self.goal = goal

    async def _reply(self, turn: AsyncTurn) -> Message:
        goal = self.goal
        limits = self._setup.limits
        busy = goal is not None and goal.state == "active" and not limits.idle_in_goal
        replier = Replier(
            self._setup,
            turn,
            lambda: self._look(goal),
            self._emit,
            round=self.rounds,
            idle=None if busy else limits.idle,
            seen=self._call_ids,
        )
        try:
            return await replier.reply()
        finally:
            for message in replier.parts:
                self._count(message)

    async def _look(self, goal: Goal | None) -> Shown:
        """Make the window, and see whether the history should be summarised."""
        setup = self._setup
        shown = await looking.at(setup, self._session, goal)
        if self.rounds == 1 and summarizing.is_due(shown.window, shown.room, setup.context):
            # At most half of what is seen stays: nothing is to drop out of sight before its time.
            keep = min(setup.context.keep_recent, max(2, len(shown.window) // 2))
            unseen = summarizing.unseen(shown.window)
            doing = summarizing.summarize(
                self._session, setup.model, shown.room, keep, unseen=unseen
            )
            self._beside("summary", doing)
        return shown

    def _count(self, message: Message) -> None:
        if message.usage is not None:
            self._usage += message.usage
        if message.cost is not None:
            self._cost = message.cost + (self._cost or 0)

    async def _make_title(self) -> Event | None:
        title = await titling.make_title(self._session, self._setup.model)
        return None if title is None else Titled(title)

    def _ended(self, turn_id: str, state: TurnState, error: str | None) -> TurnEnded:
        """Tell how the turn ended."""
        return TurnEnded(
            turn_id=turn_id,
            state=state,
            rounds=self.rounds,
            usage=self._usage,
            cost=self._cost,
            latency_ms=round((time.monotonic() - self._began) * 1000),
            error=error,
        )
