"""What must stay of sessions that are purged, because forks share it.

A branch of a purged session is needed as far as a branch that lives, or is itself needed, starts
on it. Everything else goes. Since a branch is always younger than the one it starts on, one pass
from the youngest to the oldest decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec


class Line(msgspec.Struct, frozen=True):
    """A branch, the session it belongs to, and where it starts."""

    branch: int
    session: int
    parent: int | None
    fork_seq: int


def needed(lines: Iterable[Line], purged: Collection[int]) -> dict[int, int]:
    """Return up to which seq each branch must stay; a branch of `purged` that is not named goes."""
    kept: dict[int, int] = {}
    for line in sorted(lines, key=lambda line: line.branch, reverse=True):
        lives = line.session not in purged or line.branch in kept
        if lives and line.parent is not None:
            kept[line.parent] = max(kept.get(line.parent, 0), line.fork_seq)
    return kept
