"""What a purge must keep of a session, because forks share it.

A branch of a purged session is required up to the last message and the last record at which a
branch starts on it that belongs to a session not purged, or is itself required. Everything else is
erased. A branch is always newer than the one it starts on, so one pass from the newest to the
oldest decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from holdfast.storage.rows import BranchRow


class BranchNode(msgspec.Struct, frozen=True):
    """A branch, the session it belongs to, and where it starts."""

    branch: int
    session: int
    parent: int | None
    fork_seq: int
    fork_record: int | None = None


class RequiredEnd(NamedTuple):
    """The last message and the last record of a branch that the branches starting on it need."""

    seq: int
    record: int


def required_end(starting: Iterable[BranchNode | BranchRow]) -> RequiredEnd | None:
    """Return what branches need of the one they start on; `None` if there are none."""
    ends = [(branch.fork_seq, branch.fork_record or 0) for branch in starting]
    return RequiredEnd(*map(max, zip(*ends, strict=True))) if ends else None


def required_ends(nodes: Iterable[BranchNode], purged: Collection[int]) -> dict[int, RequiredEnd]:
    """Return what to keep of each branch; a branch of `purged` without an entry is erased."""
    starting: defaultdict[int, list[BranchNode]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.branch, reverse=True):
        is_live = node.session not in purged or node.branch in starting
        if is_live and node.parent is not None:
            starting[node.parent].append(node)
    return {
        branch: end
        for branch, found in starting.items()
        if (end := required_end(found)) is not None
    }
