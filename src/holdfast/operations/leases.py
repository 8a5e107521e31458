"""When a turn may be taken over, and the outcome of its open tool calls.

A turn may be taken over when its holder is known to be dead, or when its lease has expired. A
holder that is alive, or whose state is unknown, keeps the session until then.

A lease is judged by the monotonic clock wherever that is the holder's, too: a clock that is set
ahead takes no turn from a holder that renews it. From elsewhere it is judged by the database's
clock. If that was set back, a lease seems to end later than it can, and is shortened.

When a turn ends, however it ends, no tool call stays open: one that started and did not answer is
`unknown` (it may have had its effect), one that never started was `not_run`.
"""

from __future__ import annotations

from typing import Final

from holdfast.values import ToolOutcome

_SECOND_US: Final = 1_000_000


def may_take_over(*, alive: bool | None, lease_until: int, now: int) -> bool:
    """Return whether a turn may be taken over; `alive` is `None` if its holder's state is unknown.

    Times are in microseconds of one clock.
    """
    return alive is False or now >= lease_until


def lease_end(now: int, seconds: float) -> int:
    """Return when a lease ends that is given now: the latest that any of this length can."""
    return now + int(seconds * _SECOND_US)


def final_outcome(outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome of a call once its turn is over."""
    if outcome == "running":
        return "unknown"
    return "not_run" if outcome == "called" else outcome
