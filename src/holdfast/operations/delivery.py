"""What a follower delivers: messages, records behind them, and changes of branch, in order.

A follower reads on from what it has delivered. It follows branches one after the other, so it
misses nothing, however late it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from holdfast.errors import BadQuery
from holdfast.operations.history import DamageCallback, read_span
from holdfast.operations.queries import require_row
from holdfast.operations.records import last_record, read_record
from holdfast.storage.ancestry import Path, Segment, cut_segment, seq_range, shared_length
from holdfast.storage.prefetch import Prefetch, Prefetched
from holdfast.storage.protocol import Query, Snapshot
from holdfast.storage.rows import RecordRow
from holdfast.values import BranchChanged, Head, Message, Record

_PAGE_RECORDS: Final = 100


class Delivered(msgspec.Struct, frozen=True):
    """Up to where a follower has delivered: a message, and the last of the records behind it.

    That record is given by the branch it lies on, counted back along the path from the head's, and
    its number there; without one, none of the records behind the message was delivered.
    """

    head: Head
    record: tuple[int, int] | None = None


Delivery: TypeAlias = tuple[Message | Record | BranchChanged, Delivered]


def deliveries_after(
    session: int, seen: Delivered, limit: int, report: DamageCallback, *, records: bool = False
) -> Query[list[Delivery]]:
    """Return what comes after `seen`: the rest of its branch, then the change to the next branch.

    Each item comes with what is delivered by then.
    """

    def run(snapshot: Snapshot) -> list[Delivery]:
        require_row(snapshot, session)
        head = seen.head
        branch = snapshot.branch(session, head.branch)
        if branch is None:
            raise BadQuery(f"after: this session has no branch {head.branch}")
        span = seq_range(branch.last_seq, limit=limit, before=None, after=head.seq)
        path = snapshot.path(branch.n, min(span[0], head.seq))
        read = read_span(snapshot, path, span, last=span[1] == branch.last_seq, report=report)
        found: list[Delivery] = [
            (message, Delivered(Head(head.branch, message.seq or 0))) for message in read
        ]
        if records:
            last = max(head.seq, span[0] + len(read) - 1)
            behind = list(islice(_records_after(snapshot, path, seen, last, report), limit))
            found = _merge(found, behind, complete=len(behind) < limit)
        if found:
            return found
        following = snapshot.branch(session, head.branch + 1)
        if following is None:
            return []
        most = min(head.seq, following.fork_seq)
        kept = shared_length(snapshot.path, branch.n, following.n, most)
        start = Head(following.number, kept)
        return [(BranchChanged(start, kept, following.reason), Delivered(start))]

    return Prefetched(run, Prefetch(session))


def _merge(
    messages: Sequence[Delivery], records: Sequence[Delivery], *, complete: bool
) -> list[Delivery]:
    """Return messages and records in order, each record after the message it lies behind.

    Unless the records are complete, only what comes before the last of them is known.
    """
    last = None if complete else records[-1][1].head.seq
    known = [item for item in messages if last is None or item[1].head.seq <= last]
    # Sorting is stable: records behind one message stay in order.
    return sorted([*known, *records], key=lambda item: (item[1].head.seq, bool(item[1].record)))


def _records_after(
    snapshot: Snapshot, path: Path, seen: Delivered, last: int, report: DamageCallback
) -> Iterator[tuple[Record, Delivered]]:
    """Yield the records behind the last delivered message and up to message `last`, in order."""
    first = seen.head.seq
    for depth, segment in reversed(list(enumerate(reversed(path)))):
        if segment.first - 1 > last or (segment.last is not None and segment.last < first):
            continue
        if seen.record is not None and depth > seen.record[0]:
            continue
        number = _number_before(snapshot, segment, first)
        if seen.record is not None and depth == seen.record[0]:
            number = seen.record[1]
        for owner, row in _rows_after(snapshot, cut_segment(segment, last), number):
            at = Delivered(Head(seen.head.branch, row.seq), (depth, row.number))
            yield read_record(snapshot, row, owner, report), at


def _number_before(snapshot: Snapshot, segment: Segment, seq: int) -> int:
    """Return the number of a segment's last record that lies behind a message before `seq`."""
    if seq < segment.first:
        return 0
    found = last_record(snapshot, cut_segment(segment, seq - 1), seq - 1)
    return 0 if found is None else found.number


def _rows_after(
    snapshot: Snapshot, segment: Segment, number: int
) -> Iterator[tuple[str, RecordRow]]:
    """Yield the records of a segment after a number, oldest first, a page at a time.

    A page has the records of a range of numbers, which grows where most of them were dropped.
    """
    newest = last_record(snapshot, segment, segment.last or 0)
    last = 0 if newest is None else newest.number
    size = _PAGE_RECORDS
    while number < last:
        end = min(last, number + size)
        most = min(end - number, _PAGE_RECORDS)
        read = snapshot.records([cut_segment(segment, None, end)], limit=most)
        page = [item for item in reversed(read) if item[1].number > number]
        if len(page) == most < end - number:
            size //= 2  # There may be others before these.
            continue
        yield from page
        number = end
        if len(page) < most // 2:
            size *= 2
