"""What an agent works with, put together once and the same for all of a stream."""

from __future__ import annotations

import msgspec

from holdfast.agent.budgets import Budgets
from holdfast.agent.models.base import Model, ToolSpec
from holdfast.agent.settings import Context, Limits, Prices, Retry
from holdfast.agent.tools.base import Approver, Tool


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent works with."""

    model: Model
    tools: tuple[Tool, ...]
    system: str | None
    approve: Approver | None
    retry: Retry
    context: Context
    limits: Limits
    prices: Prices | None
    budgets: Budgets
    titles: bool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model is told of them."""
        return () if self.model.tools == "none" else tuple(tool.spec for tool in self.tools)

    def tool(self, name: str) -> Tool | None:
        """Find a tool."""
        return next((tool for tool in self.tools if tool.name == name), None)
