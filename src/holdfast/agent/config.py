"""An agent's configuration; a stream uses one copy from its first turn to its last."""

from __future__ import annotations

import msgspec

from holdfast.agent.models.protocol import Model, ToolSpec
from holdfast.agent.settings import Context, Limits, Prices, Retry
from holdfast.agent.token_budgets import TokenBudgets
from holdfast.agent.tools.protocol import Approver, Tool


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model, its tools, and the settings of an agent."""

    model: Model
    tools: tuple[Tool, ...]
    system: str | None
    approve: Approver | None
    retry: Retry
    context: Context
    limits: Limits
    prices: Prices | None
    budgets: TokenBudgets
    titles: bool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tool schemas that are sent to the model."""
        return () if self.model.tools == "none" else tuple(tool.spec for tool in self.tools)

    def tool(self, name: str) -> Tool | None:
        """Return a tool by name; `None` if there is none."""
        return next((tool for tool in self.tools if tool.name == name), None)
