"""How many tokens a model gets: what it is said to take, until it says that this is too many.

What a model refused is remembered for as long as the program runs, by the model's name: all
sessions learn from one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.agent.models.base import Model
from holdfast.agent.settings import Context

_STEP: Final = 0.8
_SMALLEST: Final = 256


class Room(msgspec.Struct, frozen=True):
    """The tokens of a request and its reply, and how many of them are the reply's."""

    tokens: int
    reply: int


class Budgets:
    """What was learned of each model."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._learned: dict[str, int] = {}

    def room(self, model: Model, context: Context) -> Room:
        """Return how many tokens a request and its reply may have."""
        most = min(context.max_tokens or model.context, model.context)
        most = min(most, self._learned.get(model.name, most))
        reply = context.reserve or min(model.max_output, most // 4)
        return Room(most, max(1, min(reply, most // 2)))

    def shrink(self, model: Model, room: Room, sent: int, limit: int | None) -> int:
        """Learn that so many tokens were too many; give how many there are from now on."""
        # Our estimate of what was sent counts, not the room: it may not have been filled.
        tried = min(room.tokens, sent + room.reply)
        after = max(_SMALLEST, int(min(tried, limit or tried) * _STEP))
        self._learned[model.name] = after
        return after
