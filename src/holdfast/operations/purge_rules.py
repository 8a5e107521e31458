"""What a purge must keep of a session, because forks share it.

A branch of a purged session is required up to the last seq at which a branch starts on it that
belongs to a session not purged, or is itself required. Everything else is erased. A branch is
always newer than the one it starts on, so one pass from the newest to the oldest decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec


class BranchNode(msgspec.Struct, frozen=True):
    """A branch, the session it belongs to, and where it starts."""

    branch: int
    session: int
    parent: int | None
    fork_seq: int


def required_seqs(nodes: Iterable[BranchNode], purged: Collection[int]) -> dict[int, int]:
    """Return the last seq to keep of each branch; a branch of `purged` without one is erased."""
    kept: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: node.branch, reverse=True):
        is_live = node.session not in purged or node.branch in kept
        if is_live and node.parent is not None:
            kept[node.parent] = max(kept.get(node.parent, 0), node.fork_seq)
    return kept
