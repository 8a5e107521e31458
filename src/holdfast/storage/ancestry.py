"""The path of a history through its branches.

A branch is an append-only sequence of messages that starts at a message of its parent. So a history
is a *path*: a segment of the oldest branch, a segment of the next, and all of the newest one. `seq`
counts along the path without gaps, so any part of a history is a few ranges, one per branch it
touches, found without reading a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.errors import Damaged


class Segment(msgspec.Struct, frozen=True):
    """A segment of a path: one branch from `first` to `last` (`None`: to its head)."""

    branch: int
    first: int
    last: int | None
    session_id: str


Path = tuple[Segment, ...]


class PathBranch(msgspec.Struct, frozen=True):
    """A branch of a history, met going back from the newest: where it starts, and its session."""

    branch: int
    fork_seq: int
    session_id: str


def refuse_lacking_parent(parent_fork_seq: int, fork_seq: int) -> None:
    """Raise `Damaged` if a branch starts after a message that is not its parent's own.

    Otherwise a chain of branches without messages could be as long as a file has room for, and each
    history would be all of it.
    """
    if parent_fork_seq >= fork_seq:
        raise Damaged("a branch starts at a message that its parent lacks; run store.verify().")


def join_path(steps: Iterable[PathBranch], older: Path = ()) -> Path:
    """Return the path of these branches, given newest first, as a continuation of `older`."""
    segments: list[Segment] = []
    last: int | None = None
    for step in steps:
        if last is None or step.fork_seq < last:
            segments.append(Segment(step.branch, step.fork_seq + 1, last, step.session_id))
            last = step.fork_seq
    if last is None:
        return older
    kept = (cut_segment(segment, last) for segment in older if segment.first <= last)
    return (*kept, *reversed(segments))


def cut_segment(segment: Segment, last: int) -> Segment:
    """Return a segment that ends at `last`, or earlier if it did."""
    if segment.last is not None and segment.last <= last:
        return segment
    return msgspec.structs.replace(segment, last=last)


def ranges(path: Path, low: int, high: int) -> list[Segment]:
    """Return the ranges of messages `low` to `high`, oldest first, each with both ends set."""
    found = []
    for segment in path:
        first = max(segment.first, low)
        last = high if segment.last is None else min(segment.last, high)
        if first <= last:
            found.append(Segment(segment.branch, first, last, segment.session_id))
    return found


def branch_at(path: Path, seq: int) -> int | None:
    """Return the branch of a path that has message `seq`; `None` for a seq before the first."""
    segment = _segment_at(path, seq)
    return None if segment is None else segment.branch


def _segment_at(path: Path, seq: int) -> Segment | None:
    for segment in path:
        if segment.first <= seq and (segment.last is None or seq <= segment.last):
            return segment
    return None


def shared_length(path: Callable[[int, int], Path], one: int, two: int, limit: int) -> int:
    """Return how many messages the histories of two branches share, at most `limit`.

    `path` returns the path of a branch, back to a message at least. It is read from `limit` back to
    where the histories part, not to their start.
    """
    while limit > 0:
        left, right = (_segment_at(path(branch, limit), limit) for branch in (one, two))
        if left is None or right is None:
            return 0
        if left.branch == right.branch:
            return limit
        one, two, limit = left.branch, right.branch, max(left.first, right.first) - 1
    return 0


def seq_range(
    head: int, *, limit: int | None, before: int | None, after: int | None
) -> tuple[int, int]:
    """Return the first and last seq to read.

    These are the newest `limit` between `after` and `before`; with `after` alone the next `limit`
    after it, so that a reader can page forward as well as back.
    """
    low = max(1, 1 if after is None else after + 1)
    high = head if before is None else min(head, before - 1)
    if limit is None:
        return low, high
    if after is not None and before is None:
        return low, min(high, low + limit - 1)
    return max(low, high - limit + 1), high


def is_on_path(path: Sequence[Segment], branch: int, seq: int) -> bool:
    """Return whether message `seq` of a branch is on this path."""
    return any(
        segment.branch == branch
        and segment.first <= seq
        and (segment.last is None or seq <= segment.last)
        for segment in path
    )
