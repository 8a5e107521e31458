"""The path of a history through its branches.

A branch is an append-only sequence of messages that starts at a message of its parent. So a history
is a *path*: a segment of the oldest branch, a segment of the next, and all of the newest one. `seq`
counts along the path without gaps, so any part of a history is a few ranges, one per branch it
touches, found without reading a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


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
    for segment in path:
        if segment.first <= seq and (segment.last is None or seq <= segment.last):
            return segment.branch
    return None


def shared_length(one: Path, two: Path, limit: int) -> int:
    """Return how many messages two histories share from the start, at most `limit`."""
    reached = 0
    for left, right in zip(one, two, strict=False):
        if left.branch != right.branch:
            break
        ends = [segment.last for segment in (left, right) if segment.last is not None]
        reached = min([*ends, limit])
        if left.last != right.last:
            break
    return min(reached, limit)


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
