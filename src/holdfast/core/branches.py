"""How a history runs through branches.

A branch is an append-only line of messages. It starts where it left its parent, so a history is a
*path*: a stretch of the oldest branch, a stretch of the next, and the whole of the newest one.
`seq` counts along the path without gaps, so any part of a history is a few ranges, one per branch
it touches, found without looking at a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class Segment(msgspec.Struct, frozen=True):
    """A stretch of a path: one branch from `first` to `last` (`None`: to its head)."""

    branch: int
    first: int
    last: int | None
    session_id: str


Path = tuple[Segment, ...]


class Step(msgspec.Struct, frozen=True):
    """A branch on the way back along a history: where it starts, and whose it is."""

    branch: int
    fork_seq: int
    session_id: str


def joined(steps: Iterable[Step], older: Path = ()) -> Path:
    """Put a path together from its branches, the newest first, behind an `older` one."""
    segments: list[Segment] = []
    last: int | None = None
    for step in steps:
        if last is None or step.fork_seq < last:
            segments.append(Segment(step.branch, step.fork_seq + 1, last, step.session_id))
            last = step.fork_seq
    if last is None:
        return older
    kept = (cut(segment, last) for segment in older if segment.first <= last)
    return (*kept, *reversed(segments))


def cut(segment: Segment, last: int) -> Segment:
    """End a segment at `last`, if it does not end earlier."""
    if segment.last is not None and segment.last <= last:
        return segment
    return msgspec.structs.replace(segment, last=last)


def ranges(path: Path, low: int, high: int) -> list[Segment]:
    """Return the ranges that hold `low` to `high`, oldest first, each with both ends."""
    found = []
    for segment in path:
        first = max(segment.first, low)
        last = high if segment.last is None else min(segment.last, high)
        if first <= last:
            found.append(Segment(segment.branch, first, last, segment.session_id))
    return found


def holder(path: Path, seq: int) -> int | None:
    """Name the branch on which this message of a path lies; `None` for what is before the first."""
    for segment in path:
        if segment.first <= seq and (segment.last is None or seq <= segment.last):
            return segment.branch
    return None


def shared(one: Path, two: Path, limit: int) -> int:
    """Return how many messages two histories share from their beginning, `limit` at most."""
    reached = 0
    for left, right in zip(one, two, strict=False):
        if left.branch != right.branch:
            break
        ends = [segment.last for segment in (left, right) if segment.last is not None]
        reached = min([*ends, limit])
        if left.last != right.last:
            break
    return min(reached, limit)


def interval(
    head: int, *, limit: int | None, before: int | None, after: int | None
) -> tuple[int, int]:
    """Return which seqs a reader asked for.

    The newest `limit` of those between `after` and `before`; with `after` alone the next `limit`
    behind it, so that a reader can page forward as well as back.
    """
    low = max(1, 1 if after is None else after + 1)
    high = head if before is None else min(head, before - 1)
    if limit is None:
        return low, high
    if after is not None and before is None:
        return low, min(high, low + limit - 1)
    return max(low, high - limit + 1), high


def lies_on(path: Sequence[Segment], branch: int, seq: int) -> bool:
    """Return whether this place belongs to the history."""
    return any(
        segment.branch == branch
        and segment.first <= seq
        and (segment.last is None or seq <= segment.last)
        for segment in path
    )
