"""The path of a history through its branches.

A branch is an append-only sequence of messages that starts at a message of its parent. So a history
is a *path*: a segment of the oldest branch, a segment of the next, and all of the newest one. `seq`
counts along the path without gaps, so any part of a history is a few ranges, one per branch it
touches, found without reading a message.

Records lie behind messages. They are numbered along their branch, and a path has those of a branch
up to a number, behind the messages of its segment. So a segment may have records and no message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.errors import Damaged


class Segment(msgspec.Struct, frozen=True):
    """A segment of a path: one branch from `first` to `last` (`None`: to its head).

    It has the branch's records behind message `first - 1` and later, up to number `last_record`
    (`None`: all).
    """

    branch: int
    first: int
    last: int | None
    session_id: str
    last_record: int | None = None


Path = tuple[Segment, ...]


class PathBranch(msgspec.Struct, frozen=True):
    """A branch of a history, met going back from the newest: where it starts, and its session."""

    branch: int
    fork_seq: int
    session_id: str
    fork_record: int | None = None


def refuse_lacking_parent(parent_fork_seq: int, fork_seq: int, fork_record: int | None) -> None:
    """Raise `Damaged` if a branch starts after a message and a record that its parent lacks.

    Otherwise a chain of branches without messages could be as long as a file has room for, and each
    history would be all of it.
    """
    if parent_fork_seq >= fork_seq + (fork_record is not None):
        raise Damaged("a branch starts at a message that its parent lacks; run store.verify().")


def join_path(steps: Iterable[PathBranch], older: Path = ()) -> Path:
    """Return the path of these branches, given newest first, as a continuation of `older`."""
    segments: list[Segment] = []
    last: int | None = None
    last_record: int | None = None
    for step in steps:
        if last is None or step.fork_seq < last or last_record:
            segments.append(
                Segment(step.branch, step.fork_seq + 1, last, step.session_id, last_record)
            )
            last = step.fork_seq
        last_record = step.fork_record or 0
    if last is None:
        return older
    kept = [cut_segment(segment, last) for segment in older[:-1] if segment.first - 1 <= last]
    if older and (older[-1].first <= last or last_record):
        kept.append(cut_segment(older[-1], last, last_record))
    return (*kept, *reversed(segments))


def cut_segment(segment: Segment, last: int | None, last_record: int | None = None) -> Segment:
    """Return a segment that ends at `last` and `last_record`, or earlier if it did."""
    last = _lower(segment.last, last)
    last_record = _lower(segment.last_record, last_record)
    if (last, last_record) == (segment.last, segment.last_record):
        return segment
    return msgspec.structs.replace(segment, last=last, last_record=last_record)


def _lower(one: int | None, two: int | None) -> int | None:
    """Return the lower of two bounds; `None` is no bound."""
    return min((bound for bound in (one, two) if bound is not None), default=None)


def record_ranges(path: Path, at: int | None = None) -> list[Segment]:
    """Return the segments whose records a history has behind message `at`, or its last, and before.

    They are the newest first; their bounds are those of the records, not of messages.
    """
    found = [segment for segment in reversed(path) if at is None or segment.first - 1 <= at]
    return found if at is None else [cut_segment(segment, at) for segment in found]


def has_record(segment: Segment, seq: int, number: int) -> bool:
    """Return whether a segment has its branch's record with this number, behind message `seq`."""
    return (
        segment.first - 1 <= seq
        and (segment.last is None or seq <= segment.last)
        and (segment.last_record is None or number <= segment.last_record)
    )


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
