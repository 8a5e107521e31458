"""An agent's settings: retries, context size and limits."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from holdfast.errors import Invalid
from holdfast.values import Usage

# Returns the cost of a reply from the model's name and the usage; `None` if it is unknown.
Prices: TypeAlias = Callable[[str, Usage], Decimal | None]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How failed model calls are retried: after `base` seconds, doubled each time up to `max`.

    Up to `jitter` random seconds are added. A longer delay that the provider requests is honoured,
    up to `longest`. A reply that breaks off is continued where it stopped (`continue`) or started
    over (`anew`): then the partial reply stays in the history, and windows leave it out.
    """

    attempts: int = 5
    base: float = 0.5
    max: float = 30.0
    jitter: float = 1.0
    longest: float = 300.0
    broken: Literal["continue", "anew"] = "continue"

    def __post_init__(self) -> None:
        """Raise `Invalid` for a value out of range."""
        _check_minimum(1, attempts=self.attempts)
        _check_minimum(0, base=self.base, max=self.max, jitter=self.jitter, longest=self.longest)
        _check_choice(("continue", "anew"), broken=self.broken)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the history a model is sent.

    `max_tokens` is the budget for request and reply (`None`: the model's context size), `reserve`
    the part of it for the reply. With the strategy `summarize`, a window that fills more than
    `threshold` of the budget makes the model summarise all but the newest `keep_recent` messages;
    `truncate` sends only the first user message and the newest `keep_recent`.
    """

    max_tokens: int | None = None
    reserve: int | None = None
    threshold: float = 0.8
    keep_recent: int = 20
    strategy: Literal["summarize", "truncate"] = "summarize"

    def __post_init__(self) -> None:
        """Raise `Invalid` for a value out of range."""
        for name, value in (("max_tokens", self.max_tokens), ("reserve", self.reserve)):
            if value is not None:
                _check_minimum(1, **{name: value})
        _check_minimum(1, keep_recent=self.keep_recent)
        if not 0 < self.threshold <= 1:
            raise Invalid("threshold: must be a share of the budget, above 0 and at most 1")
        _check_choice(("summarize", "truncate"), strategy=self.strategy)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a turn.

    A turn calls the model at most `rounds` times; a goal starts at most `goal_rounds` turns by
    itself. A stream that sends nothing for `idle` seconds is abandoned (`None`: never; while a goal
    is active, only if `idle_in_goal`). A tool's output beyond `tool_output` characters is stored
    whole and sent shortened. `parallel` tools run at once. `wait` is how many seconds to wait for a
    busy session.
    """

    rounds: int = 50
    goal_rounds: int = 20
    idle: float | None = 120.0
    idle_in_goal: bool = True
    tool_output: int = 20_000
    parallel: int = 8
    wait: float = 0.0

    def __post_init__(self) -> None:
        """Raise `Invalid` for a value out of range."""
        _check_minimum(1, rounds=self.rounds, parallel=self.parallel, tool_output=self.tool_output)
        _check_minimum(0, goal_rounds=self.goal_rounds, wait=self.wait)
        if self.idle is not None and not self.idle > 0:
            raise Invalid("idle: must be more than 0 seconds, or None")


def _check_minimum(least: float, **values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise Invalid(f"{name}: must be a number, at least {least}")


def _check_choice(choices: tuple[str, ...], **values: str) -> None:
    for name, value in values.items():
        if value not in choices:
            raise Invalid(f"{name}: must be one of {', '.join(choices)}")
