"""When a turn may be taken over, and the outcome of its open tool calls.

A turn may be taken over when its holder is known to be dead, or when its lease has expired. A
holder that is alive, or whose state is unknown, keeps the session until then.

When a turn ends, however it ends, no tool call stays open: one that started and did not answer is
`unknown` (it may have had its effect), one that never started was `not_run`.
"""

from __future__ import annotations

from holdfast.values import ToolOutcome


def may_take_over(*, alive: bool | None, lease_until: int, now: int) -> bool:
    """Return whether a turn may be taken over; `alive` is `None` if its holder's state is unknown.

    Times are in microseconds.
    """
    return alive is False or now >= lease_until


def final_outcome(outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome of a call once its turn is over."""
    if outcome == "running":
        return "unknown"
    return "not_run" if outcome == "called" else outcome
