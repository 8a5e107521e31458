"""The prompt: a window of the history, built for the model's token budget."""

from __future__ import annotations

import msgspec

from holdfast import tokens
from holdfast.agent import goals
from holdfast.agent.config import Setup
from holdfast.agent.context_budget import TokenBudget
from holdfast.agent.text_tools import describe_tools
from holdfast.aio.session import AsyncSession
from holdfast.values import Goal, Window


class Prompt(msgspec.Struct, frozen=True):
    """A window, and the token budget it was built for."""

    window: Window
    budget: TokenBudget


async def current_prompt(setup: Setup, session: AsyncSession) -> Prompt:
    """Build the prompt of a session with its current goal."""
    return await build_prompt(setup, session, (await session.info()).goal)


async def build_prompt(setup: Setup, session: AsyncSession, goal: Goal | None) -> Prompt:
    """Build the prompt of a session with the given goal."""
    context = setup.context
    budget = setup.budgets.budget_for(setup.model, context)
    only = context.strategy == "truncate"
    window = await session.window(
        provider=setup.model.provider,
        max_tokens=budget.tokens,
        reserve=min(budget.tokens - 1, budget.reply_tokens + _tool_tokens(setup)),
        system=_system_text(setup, goal),
        keep_first_user=only,
        max_messages=context.keep_recent if only else None,
    )
    return Prompt(window, budget)


def _system_text(setup: Setup, goal: Goal | None) -> str | None:
    """Return the system text: instructions, tools described as text if needed, and the goal."""
    tools = describe_tools(setup.specs) if setup.model.tools == "text" else None
    texts = [text for text in (setup.system, tools, goals.system_text(goal)) if text]
    return "\n\n".join(texts) or None


def _tool_tokens(setup: Setup) -> int:
    """Estimate the tokens of the tool schemas sent beside the window."""
    if setup.model.tools == "text" or not setup.specs:
        return 0
    return tokens.of_text(msgspec.json.encode(setup.specs).decode())
