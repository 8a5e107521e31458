"""A goal: what the agent works towards, across turns, restarts and summaries.

It is kept with the session, not in its history, and put before the model at each turn. While it is
active the agent goes on by itself, turn after turn, until the goal has ended, something needs the
user, or the rounds are used up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.aio.session import AsyncSession
from holdfast.errors import Conflict
from holdfast.records import JSON, Goal, Message

INJECTED: Final[dict[str, JSON]] = {"injected": "goal"}


def told(goal: Goal | None) -> str | None:
    """Say the goal to the model, if it is active."""
    if goal is None or goal.state != "active":
        return None
    so_far = f"\nSo far: {goal.summary}" if goal.summary else ""
    return (
        f"You are working towards this goal:\n{goal.objective}{so_far}\n"
        "Take the next step. Note progress with update_goal. When it is reached, or cannot be, say "
        "so with complete_goal and a recap."
    )


def go_on(goal: Goal) -> Message:
    """Make the input of a turn that the agent begins by itself."""
    return Message.user(f"Go on with the goal: {goal.objective}", metadata=INJECTED)


async def change(session: AsyncSession, changed: Callable[[Goal | None], Goal]) -> Goal:
    """Change the goal, as it is now: also when others change it at the same time."""
    while True:
        goal = (await session.info()).goal
        wanted = changed(goal)
        try:
            await session.update(goal=wanted, expect_goal=goal)
        except Conflict:
            continue
        return wanted


async def count_round(session: AsyncSession) -> Goal | None:
    """Note that another turn is spent on the goal; `None` if it is not active any more."""
    try:
        return await change(session, _counted)
    except _Ended:
        return None


class _Ended(Exception):
    """There is no active goal."""


def _counted(goal: Goal | None) -> Goal:
    if goal is None or goal.state != "active":
        raise _Ended
    return msgspec.structs.replace(goal, rounds=goal.rounds + 1)
