"""Who may take a session over, and what becomes of the tools of a turn that ended.

A turn may be taken over when its holder is known to be dead, or when its lease has run out. A
holder that is alive, or of which nothing is known, keeps the session until then.

When a turn ends, however it ends, no tool call stays open: one that started and did not answer is
`unknown` (it may have had its effect), one that never started was `not_run`.
"""

from __future__ import annotations

from holdfast.records import ToolOutcome


def may_take_over(*, alive: bool | None, lease_until: int, now: int) -> bool:
    """Return whether the session may be taken from this holder."""
    return alive is False or now >= lease_until


def settled(outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome of a call once its turn is over."""
    if outcome == "running":
        return "unknown"
    return "not_run" if outcome == "called" else outcome
