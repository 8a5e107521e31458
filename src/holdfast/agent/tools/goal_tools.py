"""Tools by which a model sets, updates and ends the goal of its session.

The goal is stored with the session (see `holdfast.agent.goals`). A model cannot remove a goal: it
records the outcome, and the goal stays readable.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.agent import goals
from holdfast.agent.tools.function_tools import ToolError, make_tool
from holdfast.agent.tools.protocol import Tool, ToolContext
from holdfast.clock import Clock, SystemClock, to_datetime
from holdfast.values import Goal

_MAX_TEXT_CHARS: Final = 4_000


def goal_tools(clock: Clock | None = None) -> tuple[Tool, ...]:
    """Return the tools."""
    tools = GoalTools(clock or SystemClock())
    return tuple(map(make_tool, (tools.create_goal, tools.update_goal, tools.complete_goal)))


class GoalTools:
    """The tools."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def create_goal(self, context: ToolContext, objective: str) -> str:
        """Set a goal to work towards over several turns. Only when the user asks for such work.

        Args:
            objective: What is to be achieved, and how to verify that it is.
        """
        new = Goal(_checked(objective, "objective"), started_at=to_datetime(self._clock.micros()))

        def create(goal: Goal | None) -> Goal:
            if goal is not None and goal.state == "active":
                raise ToolError("there is an active goal already; end it first with complete_goal.")
            return new

        await goals.update(context.session, create)
        return "the goal is set."

    async def update_goal(self, context: ToolContext, summary: str) -> str:
        """Record the progress on the active goal; it replaces the last one.

        Args:
            summary: What is done, what was learned, and what comes next.
        """
        note = _checked(summary, "summary")

        def noted(goal: Goal | None) -> Goal:
            return msgspec.structs.replace(_active(goal), summary=note)

        await goals.update(context.session, noted)
        return "noted."

    async def complete_goal(
        self,
        context: ToolContext,
        recap: str,
        outcome: Literal["completed", "blocked"] = "completed",
    ) -> str:
        """End the active goal: it is achieved, or blocked until the user helps.

        Args:
            recap: What was done and its result, or what blocks the goal.
            outcome: Whether the goal is completed or blocked.
        """
        last, now = _checked(recap, "recap"), to_datetime(self._clock.micros())

        def ended(goal: Goal | None) -> Goal:
            return msgspec.structs.replace(_active(goal), state=outcome, recap=last, ended_at=now)

        await goals.update(context.session, ended)
        return f"the goal is {outcome}."


def _active(goal: Goal | None) -> Goal:
    if goal is None or goal.state != "active":
        raise ToolError("there is no active goal; use create_goal to set one.")
    return goal


def _checked(text: str, field: str) -> str:
    if not text.strip():
        raise ToolError(f"{field} is empty.")
    if len(text) > _MAX_TEXT_CHARS:
        raise ToolError(f"{field} has more than {_MAX_TEXT_CHARS:,} characters; shorten it.")
    return text.strip()
