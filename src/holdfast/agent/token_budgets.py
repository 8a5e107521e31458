"""Token budgets: a model's declared context size, lowered when the model rejects a prompt.

A lowered budget holds for all sessions that use the model, until the program ends.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.agent.models.protocol import Model
from holdfast.agent.settings import Context

_SHRINK_FACTOR: Final = 0.8
_MIN_TOKENS: Final = 256


class TokenBudget(msgspec.Struct, frozen=True):
    """The tokens of a request with its reply, and how many of them are for the reply."""

    tokens: int
    reply_tokens: int


class TokenBudgets:
    """The budgets of all models, by name."""

    def __init__(self) -> None:
        self._learned: dict[str, int] = {}

    def budget_for(self, model: Model, context: Context) -> TokenBudget:
        """Return the token budget of a request and its reply."""
        limit = min(context.max_tokens or model.context, model.context)
        limit = min(limit, self._learned.get(model.name, limit))
        reply = context.reserve or min(model.max_output, limit // 4)
        return TokenBudget(limit, max(1, min(reply, limit // 2)))

    def shrink(self, model: Model, room: TokenBudget, sent: int, limit: int | None) -> int:
        """Lower a model's budget after a request of `sent` tokens was too long; return it."""
        # From the estimate of what was sent: the request may not have filled its budget.
        tried = min(room.tokens, sent + room.reply_tokens)
        after = max(_MIN_TOKENS, int(min(tried, limit or tried) * _SHRINK_FACTOR))
        self._learned[model.name] = after
        return after
