"""What the model is shown: a window of the history, made for the room that the model has."""

from __future__ import annotations

import msgspec

from holdfast import tokens
from holdfast.agent import goals
from holdfast.agent.budgets import Room
from holdfast.agent.setup import Setup
from holdfast.agent.telling import tell
from holdfast.aio.session import AsyncSession
from holdfast.records import Goal, Window


class Shown(msgspec.Struct, frozen=True):
    """What the model is shown of the history, and the room it was made for."""

    window: Window
    room: Room


async def look(setup: Setup, session: AsyncSession) -> Shown:
    """Make the window of a session as it is now."""
    return await at(setup, session, (await session.info()).goal)


async def at(setup: Setup, session: AsyncSession, goal: Goal | None) -> Shown:
    """Make the window of a session with this goal."""
    context = setup.context
    room = setup.budgets.room(setup.model, context)
    only = context.strategy == "truncate"
    window = await session.window(
        provider=setup.model.provider,
        max_tokens=room.tokens,
        reserve=min(room.tokens - 1, room.reply + _tools_cost(setup)),
        system=_system(setup, goal),
        keep_first_user=only,
        max_messages=context.keep_recent if only else None,
    )
    return Shown(window, room)


def _system(setup: Setup, goal: Goal | None) -> str | None:
    """Say to the model who it is, what tools it has if it must be told in words, and the goal."""
    tools = tell(setup.specs) if setup.model.tools == "text" else None
    said = [text for text in (setup.system, tools, goals.told(goal)) if text]
    return "\n\n".join(said) or None


def _tools_cost(setup: Setup) -> int:
    """Count the tokens of tools that the model is told of as such."""
    if setup.model.tools == "text" or not setup.specs:
        return 0
    return tokens.of_text(msgspec.json.encode(setup.specs).decode())
