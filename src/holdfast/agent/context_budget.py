"""Token budgets: a model's declared context size, lowered when the model rejects a prompt.

A lowered budget holds for all sessions that use the model, until the program ends.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.agent.models.protocol import Model
from holdfast.agent.settings import Context

_STEP: Final = 0.8
_SMALLEST: Final = 256


class Room(msgspec.Struct, frozen=True):
    """The tokens of a request with its reply, and how many of them are for the reply."""

    tokens: int
    reply: int


class Budgets:
    """The budgets of all models, by name."""

    def __init__(self) -> None:
        self._learned: dict[str, int] = {}

    def room(self, model: Model, context: Context) -> Room:
        """Return the token budget of a request and its reply."""
        limit = min(context.max_tokens or model.context, model.context)
        limit = min(limit, self._learned.get(model.name, limit))
        reply = context.reserve or min(model.max_output, limit // 4)
        return Room(limit, max(1, min(reply, limit // 2)))

    def shrink(self, model: Model, room: Room, sent: int, limit: int | None) -> int:
        """Lower a model's budget after a request of `sent` tokens was too long; return it."""
        # From the estimate of what was sent: the request may not have filled its budget.
        tried = min(room.tokens, sent + room.reply)
        after = max(_SMALLEST, int(min(tried, limit or tried) * _STEP))
        self._learned[model.name] = after
        return after
