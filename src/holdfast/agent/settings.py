"""How an agent goes about its work: how often it tries, how much a model is sent, when it stops."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from holdfast.errors import Invalid
from holdfast.records import Usage

# What a reply cost, as far as it is known: the model's name and what it used.
Prices: TypeAlias = Callable[[str, Usage], Decimal | None]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How a failed call of a model is tried again: after `base` seconds, then twice as many.

    At most `max` of them, with up to `jitter` more by chance; a longer wait that the provider asks
    for is kept, up to `longest`. A reply that breaks off goes on where it stopped (`continue`), or
    begins anew (`anew`): then what was cut off stays in the history, and windows leave it out.
    """

    attempts: int = 5
    base: float = 0.5
    max: float = 30.0
    jitter: float = 1.0
    longest: float = 300.0
    broken: Literal["continue", "anew"] = "continue"

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _least(1, attempts=self.attempts)
        _least(0, base=self.base, max=self.max, jitter=self.jitter, longest=self.longest)
        _one_of(("continue", "anew"), broken=self.broken)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the history a model is sent.

    `max_tokens` is the room for request and reply (`None`: what the model takes), `reserve` what of
    it is left for the reply. With the strategy `summarize` a window that fills more than
    `threshold` of the room lets the model summarise what lies before the newest `keep_recent`
    messages; `truncate` only sends the first user message and the newest `keep_recent`.
    """

    max_tokens: int | None = None
    reserve: int | None = None
    threshold: float = 0.8
    keep_recent: int = 20
    strategy: Literal["summarize", "truncate"] = "summarize"

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, value in (("max_tokens", self.max_tokens), ("reserve", self.reserve)):
            if value is not None:
                _least(1, **{name: value})
        _least(1, keep_recent=self.keep_recent)
        if not 0 < self.threshold <= 1:
            raise Invalid("threshold: a share of the room, above 0 and at most 1")
        _one_of(("summarize", "truncate"), strategy=self.strategy)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent stops.

    A turn calls the model at most `rounds` times; a goal goes on by itself for `goal_rounds` turns.
    A stream that says nothing for `idle` seconds is given up (`None`: never), while a goal is
    worked on only if `idle_in_goal`. A tool's output beyond `tool_output` characters is kept whole
    and shown shortened. `parallel` tools run at once. `wait` is for a session that is busy.
    """

    rounds: int = 50
    goal_rounds: int = 20
    idle: float | None = 120.0
    idle_in_goal: bool = True
    tool_output: int = 20_000
    parallel: int = 8
    wait: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _least(1, rounds=self.rounds, parallel=self.parallel, tool_output=self.tool_output)
        _least(0, goal_rounds=self.goal_rounds, wait=self.wait)
        if self.idle is not None and not self.idle > 0:
            raise Invalid("idle: seconds, more than 0, or None")


def _least(least: float, **values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise Invalid(f"{name}: a number, at least {least}")


def _one_of(choices: tuple[str, ...], **values: str) -> None:
    for name, value in values.items():
        if value not in choices:
            raise Invalid(f"{name}: one of {', '.join(choices)}")
