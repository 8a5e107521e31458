"""The agent's loop: one turn and, while a goal is active, the turns that follow it.

Each step of a turn is stored before the next one starts: the user's input; the reply, first as a
draft and then as a message; each tool call when it starts and its result when it finishes. The
model is called again until a reply contains no tool call; then the turn is sealed. After a crash
everything up to that point is stored, and the next turn recovers the one that was left open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.agent import goals, session_title, summarizer
from holdfast.agent.completion import Completion, Emit
from holdfast.agent.config import AgentConfig
from holdfast.agent.events import (
    Event,
    GoalChanged,
    GoalPaused,
    Titled,
    TurnEnded,
    TurnStarted,
    UserSaid,
)
from holdfast.agent.prompt import Prompt, build_prompt
from holdfast.agent.tool_runner import ToolRunner
from holdfast.aio.completion_queue import shielded
from holdfast.aio.session import AsyncSession
from holdfast.aio.turn import AsyncTurn
from holdfast.errors import Invalid
from holdfast.session import to_input
from holdfast.turn import ending
from holdfast.values import Content, Goal, Message, TurnState, Usage

# Starts a background task of a kind; one of each kind runs per session. The result is an event.
RunInBackground: TypeAlias = Callable[[str, Coroutine[Any, Any, Event | None]], None]
_TITLE_TURNS: Final = 2
_OUT_OF_ROUNDS: Final = "the model was called {} times in this turn, which is the limit"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a turn: the model's final text, and every message that was stored."""

    text: str
    state: TurnState
    turn_id: str
    messages: tuple[Message, ...]
    usage: Usage
    cost: Decimal | None
    rounds: int
    error: str | None = None


async def run_turns(
    config: AgentConfig,
    session: AsyncSession,
    prompt: Content | Message | None,
    *,
    run_id: str | None,
    emit: Emit,
    run_in_background: RunInBackground,
) -> None:
    """Run a turn for the prompt, then further turns while the session has an active goal."""
    user_input = None if prompt is None else to_input(prompt)
    if user_input is None and not await session.queued():
        raise Invalid("there is nothing to answer: pass a prompt, or enqueue one first.")
    rounds = 0
    while True:
        turn = _TurnLoop(config, session, emit, run_in_background)
        await turn.run(user_input, run_id)
        goal = turn.goal
        if goal is None or goal.state != "active":
            return
        if rounds >= config.limits.goal_rounds:
            await emit(GoalPaused(goal, f"after {rounds} turns of its own, which is the limit"))
            return
        if turn.rounds >= config.limits.rounds:
            await emit(GoalPaused(goal, _OUT_OF_ROUNDS.format(turn.rounds)))
            return
        rounds += 1
        goal = await goals.count_round(session)
        if goal is None:  # Another process has just ended it.
            return
        await emit(GoalChanged(goal))
        user_input = goals.next_input(goal)


class _TurnLoop:
    """One turn."""

    def __init__(
        self,
        config: AgentConfig,
        session: AsyncSession,
        emit: Emit,
        run_in_background: RunInBackground,
    ) -> None:
        self._config = config
        self._session = session
        self._emit = emit
        self._run_in_background = run_in_background
        self._usage = Usage()
        self._cost: Decimal | None = None
        self._began = time.monotonic()
        self._call_ids: set[str] = set()
        self.goal: Goal | None = None
        self.rounds = 0

    async def run(self, user_input: Message | None, run_id: str | None) -> None:
        """Open a turn, run it, and end it as sealed, cancelled or failed."""
        model = self._config.model.name
        turn = self._session.turn(wait=self._config.limits.wait, model=model, run_id=run_id)
        state: TurnState = "sealed"
        error: str | None = None
        started = False
        try:
            async with turn:
                started = True
                try:
                    # First, and whole: a turn that is cancelled at once keeps what was said.
                    said = await shielded(_store_input(turn, user_input))
                    await self._emit(
                        TurnStarted(turn_id=turn.id, model=model, recovered=turn.recovered)
                    )
                    error = await self._run_rounds(turn, said)
                except asyncio.CancelledError as cancelled:
                    state, error = (
                        "cancelled",
                        str(cancelled) or "the consumer stopped reading events",
                    )
                    await shielded(turn.cancel(error))
                    raise
                except Exception as failure:
                    state, error = "failed", ending(failure)[1]
                    raise
        finally:
            if started:
                await self._emit(self._ended(turn.id, state, error))
        await self._refresh_session()

    async def _run_rounds(self, turn: AsyncTurn, said: Sequence[Message]) -> str | None:
        """Alternate between the model and its tools, after what the user said.

        Return why the turn stopped early, or `None`.
        """
        for message in said:
            await self._emit(UserSaid(message))
        info = await self._session.info()
        self.goal = info.goal
        if not said:
            return "another turn took the queued input"
        if info.model != self._config.model.name:
            await self._session.update(model=self._config.model.name)
        runner = ToolRunner(self._config, self._session, turn, self._emit)
        while self.rounds < self._config.limits.rounds:
            self.rounds += 1
            reply = await self._reply(turn)
            if not reply.tool_calls:
                return None
            await runner.run(reply.tool_calls)
            await self._refresh_goal()
        return _OUT_OF_ROUNDS.format(self.rounds)

    async def _refresh_goal(self) -> None:
        """Emit `GoalChanged` if a tool has set, changed or ended the goal."""
        goal = (await self._session.info()).goal
        if goal is not None and goal != self.goal:
            await self._emit(GoalChanged(goal))
        self.goal = goal

    async def _refresh_session(self) -> None:
        """Read the session after the turn: its goal, and whether it needs a title.

        The user, a tool or another process may have changed either during the turn.
        """
        info = await self._session.info()
        self.goal = info.goal
        # After the first exchange; if the model fails to make one, after the second.
        if self._config.titles and info.title is None and info.turns <= _TITLE_TURNS:
            self._run_in_background("title", self._make_title())

    async def _reply(self, turn: AsyncTurn) -> Message:
        goal = self.goal
        limits = self._config.limits
        busy = goal is not None and goal.state == "active" and not limits.idle_in_goal
        completion = Completion(
            self._config,
            turn,
            lambda: self._build_prompt(goal),
            self._emit,
            round=self.rounds,
            idle=None if busy else limits.idle,
            call_ids=self._call_ids,
        )
        try:
            return await completion.reply()
        finally:
            for message in completion.parts:
                self._add_usage(message)

    async def _build_prompt(self, goal: Goal | None) -> Prompt:
        """Build the prompt, and start a summary in the background if one is due."""
        config = self._config
        prompt = await build_prompt(config, self._session, goal)
        if self.rounds == 1 and summarizer.is_due(prompt.window, prompt.budget, config.context):
            # Keep at most half of the window, so that the summary covers messages before the
            # budget drops them.
            keep = min(config.context.keep_recent, max(2, len(prompt.window) // 2))
            unseen = summarizer.count_dropped(prompt.window)
            coroutine = summarizer.summarize(
                self._session, config.model, prompt.budget, keep, unseen=unseen
            )
            self._run_in_background("summary", coroutine)
        return prompt

    def _add_usage(self, message: Message) -> None:
        if message.usage is not None:
            self._usage += message.usage
        if message.cost is not None:
            self._cost = message.cost + (self._cost or 0)

    async def _make_title(self) -> Event | None:
        title = await session_title.make_title(self._session, self._config.model)
        return None if title is None else Titled(title)

    def _ended(self, turn_id: str, state: TurnState, error: str | None) -> TurnEnded:
        """Return the event that ends the turn."""
        return TurnEnded(
            turn_id=turn_id,
            state=state,
            rounds=self.rounds,
            usage=self._usage,
            cost=self._cost,
            latency_ms=round((time.monotonic() - self._began) * 1000),
            error=error,
        )


async def _store_input(turn: AsyncTurn, user_input: Message | None) -> Sequence[Message]:
    """Store queued input, then the prompt, and return them as stored."""
    said = list(await turn.take_queued())
    if user_input is not None:
        said.append(await turn.add(user_input))
    return said
