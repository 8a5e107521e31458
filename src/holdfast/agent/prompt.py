"""The prompt: a window of the history, built for the model's token budget."""

from __future__ import annotations

import msgspec

from holdfast import tokens
from holdfast.agent import goals
from holdfast.agent.config import AgentConfig
from holdfast.agent.text_tools import describe_tools
from holdfast.agent.token_budgets import TokenBudget
from holdfast.aio.session import AsyncSession
from holdfast.values import Goal, Window


class Prompt(msgspec.Struct, frozen=True):
    """A window, and the token budget it was built for."""

    window: Window
    budget: TokenBudget


async def current_prompt(config: AgentConfig, session: AsyncSession) -> Prompt:
    """Build the prompt of a session with its current goal."""
    return await build_prompt(config, session, (await session.info()).goal)


async def build_prompt(config: AgentConfig, session: AsyncSession, goal: Goal | None) -> Prompt:
    """Build the prompt of a session with the given goal."""
    context = config.context
    budget = config.budgets.budget_for(config.model, context)
    only = context.strategy == "truncate"
    window = await session.window(
        provider=config.model.provider,
        max_tokens=budget.tokens,
        reserve=min(budget.tokens - 1, budget.reply_tokens + _tool_tokens(config)),
        system=_system_text(config, goal),
        keep_first_user=only,
        max_messages=context.keep_recent if only else None,
    )
    return Prompt(window, budget)


def _system_text(config: AgentConfig, goal: Goal | None) -> str | None:
    """Return the system text: instructions, tools described as text if needed, and the goal."""
    tools = describe_tools(config.specs) if config.model.tools == "text" else None
    texts = [text for text in (config.system, tools, goals.system_text(goal)) if text]
    return "\n\n".join(texts) or None


def _tool_tokens(config: AgentConfig) -> int:
    """Estimate the tokens of the tool schemas sent beside the window."""
    if config.model.tools == "text" or not config.specs:
        return 0
    return tokens.of_text(msgspec.json.encode(config.specs).decode())
