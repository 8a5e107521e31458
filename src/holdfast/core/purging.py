"""What a purge must keep of a session, because forks share it.

A branch of a purged session is required up to the last seq at which a branch starts on it that
belongs to a session not purged, or is itself required. Everything else is erased. A branch is
always newer than the one it starts on, so one pass from the newest to the oldest decides.
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
    """Return the last seq to keep of each branch; a branch of `purged` without one is erased."""
    kept: dict[int, int] = {}
    for line in sorted(lines, key=lambda line: line.branch, reverse=True):
        lives = line.session not in purged or line.branch in kept
        if lives and line.parent is not None:
            kept[line.parent] = max(kept.get(line.parent, 0), line.fork_seq)
    return kept
