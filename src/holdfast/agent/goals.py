"""A goal: what the agent works towards, across turns, restarts and summaries.

It is stored with the session, not in its history, and part of each turn's system text. While it is
active, the agent starts turn after turn by itself, until the goal ends, a turn fails or is
cancelled, or the limit of rounds is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.aio.session import AsyncSession
from holdfast.errors import Conflict
from holdfast.values import JSON, Goal, Message

INJECTED: Final[dict[str, JSON]] = {"injected": "goal"}


def system_text(goal: Goal | None) -> str | None:
    """Return the goal as system text; `None` if there is no active goal."""
    if goal is None or goal.state != "active":
        return None
    so_far = f"\nSo far: {goal.summary}" if goal.summary else ""
    return (
        f"You are working towards this goal:\n{goal.objective}{so_far}\n"
        "Take the next step. Note progress with update_goal. When it is reached, or cannot be, say "
        "so with complete_goal and a recap."
    )


def next_input(goal: Goal) -> Message:
    """Return the input of a turn that the agent starts by itself."""
    return Message.user(f"Go on with the goal: {goal.objective}", metadata=INJECTED)


async def update(session: AsyncSession, changed: Callable[[Goal | None], Goal]) -> Goal:
    """Update the goal with `changed(current)`, retrying if another writer changed it first."""
    while True:
        goal = (await session.info()).goal
        updated = changed(goal)
        try:
            await session.update(goal=updated, expect_goal=goal)
        except Conflict:
            continue
        return updated


async def count_round(session: AsyncSession) -> Goal | None:
    """Count another turn spent on the goal; `None` if it is no longer active."""
    try:
        return await update(session, _with_another_round)
    except _NoActiveGoal:
        return None


class _NoActiveGoal(Exception):
    """There is no active goal."""


def _with_another_round(goal: Goal | None) -> Goal:
    if goal is None or goal.state != "active":
        raise _NoActiveGoal
    return msgspec.structs.replace(goal, rounds=goal.rounds + 1)
