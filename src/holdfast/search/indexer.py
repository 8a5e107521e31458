"""The incremental indexer: adds the messages to an index that the log has and the index lacks.

Every write raises the activity number of its session. So what an index lacks is in the sessions
with a higher number than the one it has reached: on their branches, after the last indexed message
of each, and on the branches of other sessions that their histories start with. Indexing proceeds in
short steps, each one transaction of the index. Several processes may take turns: a step reads the
index's progress once it has the writer lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Self

import msgspec

from holdfast.clock import EPOCH, to_micros
from holdfast.errors import Damaged
from holdfast.operations.history import read_row
from holdfast.search.document import Document, document
from holdfast.search.protocol import Anchor, IndexedMessage, IndexStorage, PreparedRows
from holdfast.storage.ancestry import Segment, refuse_lacking_parent
from holdfast.storage.protocol import Backend, Snapshot
from holdfast.storage.rows import (
    BranchRow,
    MessageRow,
    SessionFilter,
    SessionRow,
    UnreadableSession,
)
from holdfast.values import Message

_BATCH_MESSAGES = 500
_BATCH_TEXT = 400_000  # characters: a search may have to wait for one batch
_SESSIONS_PER_BATCH = 50
_UNREADABLE = frozenset({"erased", "damaged"})


class IndexStale(Exception):
    """The index does not match the log, or has erased messages: it must be rebuilt."""


class _Plan(msgspec.Struct):
    """The next segments to index.

    `reached`: once the first n segments are indexed, the index has reached an activity number.
    """

    erasures: int
    segments: list[Segment] = []
    reached: list[tuple[int, int]] = []
    complete: bool = True

    def activity(self, finished: int) -> int | None:
        """Return the activity number that is reached with so many segments; None for none."""
        numbers = (number for segments, number in self.reached if segments <= finished)
        return max(numbers, default=None)


class _Batch(msgspec.Struct):
    """Messages to add in one go, and how many segments of the plan are finished with them."""

    messages: list[IndexedMessage]
    finished: int


def step(backend: Backend, storage: IndexStorage, batches: int = 1) -> bool:
    """Add the next messages to an index, within a write transaction of it.

    Return True if nothing is missing now. Of several batches the next one is read and split into
    words while one is added: both take about as long, and adding does not hold the interpreter.
    """
    with _BatchWriter(storage) as writer:
        return backend.read(lambda log: _index(log, storage, writer, batches))


def _index(log: Snapshot, storage: IndexStorage, writer: _BatchWriter, batches: int) -> bool:
    plan = _plan(log, storage, batches)
    finished, newest = 0, None
    for batch in _read(log, plan, batches):
        finished, newest = batch.finished, batch.messages[-1]
        rows = storage.prepare(batch.messages)
        writer.add(rows, more=batches > 1 and finished < len(plan.segments))
    writer.wait()
    storage.put_meta(erasures=plan.erasures)
    if newest is not None:
        storage.anchor = Anchor(newest.branch, newest.seq, newest.crc)
    activity = plan.activity(finished)
    if activity is not None and activity != storage.activity:
        storage.put_meta(activity=activity)
    return plan.complete and finished == len(plan.segments)


class _BatchWriter:
    """Adds batches to an index, in a thread of its own while there are more to come.

    While it adds, nobody else may use the connection of the index.
    """

    def __init__(self, storage: IndexStorage) -> None:
        self._storage = storage
        self._executor: Executor | None = ThreadPoolExecutor(1, "holdfast-index-writer")
        self._added: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown()

    def add(self, rows: PreparedRows, *, more: bool) -> None:
        """Add a batch once the last one is added; if `more` follow, do not wait for it."""
        self.wait()
        if more and self._executor is not None:
            try:
                self._added = self._executor.submit(self._storage.add, rows)
            except RuntimeError:  # No thread can be started, or the interpreter is exiting.
                # It keeps what was submitted: a thread started later would add it once more.
                self._executor = None
            else:
                return
        self._storage.add(rows)

    def wait(self) -> None:
        """Wait until all batches are added; raise what adding them raised."""
        added, self._added = self._added, None
        if added is not None:
            added.result()


def is_complete(snapshot: Snapshot, storage: IndexStorage) -> bool:
    """True if an index lacks nothing; raise `IndexStale` if it does not match the log."""
    check_not_stale(snapshot, storage)
    return not has_activity_after(snapshot, storage.activity)


def has_activity_after(snapshot: Snapshot, activity: int) -> bool:
    """True if anything was written after an activity number, or if damage may hide that."""
    try:
        return bool(snapshot.activity_after(activity, 1))
    except Damaged:
        return True


def is_behind(snapshot: Snapshot, activity: int) -> bool:
    """True if a search has to scan what was written after an activity number.

    Everything committed counts, even while a write with a lower number is not committed yet: an
    index adds messages in the order of these numbers and waits for that write, a search does not.
    """
    try:
        newest = snapshot.list_sessions(SessionFilter(), before=None, limit=1)
    except Damaged:
        return True
    numbers = (
        item.activity if isinstance(item, UnreadableSession) else item[1].activity
        for item in newest
    )
    return any(number > activity for number in numbers) or has_activity_after(snapshot, activity)


def check_not_stale(snapshot: Snapshot, storage: IndexStorage) -> int:
    """Return the number of erasures in the log.

    Raise `IndexStale` if the index is of another log, or has messages that were erased from it.
    """
    erasures = snapshot.erasures()
    if storage.erasures not in (None, erasures):
        raise IndexStale("messages were erased since it was updated")
    anchor = storage.anchor
    if anchor is None:
        return erasures
    segment = Segment(anchor.branch, anchor.seq, anchor.seq, "")
    rows = [row for _, found in snapshot.messages([segment]) for row in found]
    if [row.crc for row in rows] != [anchor.crc]:
        raise IndexStale("it is of another log")
    return erasures


def _plan(snapshot: Snapshot, storage: IndexStorage, batches: int) -> _Plan:
    """Return what to index next: no more than so many batches have room for."""
    # First, because on this call some backends restart the whole query.
    sessions = batches * _SESSIONS_PER_BATCH
    written = snapshot.activity_after(storage.activity, sessions)
    plan = _Plan(check_not_stale(snapshot, storage))
    room = batches * _BATCH_MESSAGES
    lasts: dict[int, int] = {}
    for number, session_id, _, _ in written:
        row = snapshot.find_session(id=session_id)
        for segment in (
            () if row is None else unindexed_segments(snapshot, row, _last_indexed(storage, lasts))
        ):
            end = min(segment.last or 0, segment.first + room - 1)
            for first in range(segment.first, end + 1, _BATCH_MESSAGES):
                last = min(first + _BATCH_MESSAGES - 1, end)
                plan.segments.append(Segment(segment.branch, first, last, segment.session_id))
            room -= end - segment.first + 1
            lasts[segment.branch] = end
            if end != segment.last:
                plan.complete = False
                return plan
        plan.reached.append((len(plan.segments), number))
    plan.complete = len(written) < sessions
    return plan


def _read(snapshot: Snapshot, plan: _Plan, batches: int) -> Iterator[_Batch]:
    """Read the planned segments in at most so many batches."""
    messages: list[IndexedMessage] = []
    text = 0
    for number, segment in enumerate(plan.segments):
        for message in read_segment(snapshot, segment):
            messages.append(message)
            text += len(message.document.text)
            if text >= _BATCH_TEXT or len(messages) >= _BATCH_MESSAGES:
                yield _Batch(messages, number + (message.seq == segment.last))
                messages, text, batches = [], 0, batches - 1
                if not batches:
                    return
    if messages:
        yield _Batch(messages, len(plan.segments))


def _last_indexed(storage: IndexStorage, lasts: dict[int, int]) -> Callable[[int], int]:
    def last(branch: int) -> int:
        if branch not in lasts:
            lasts[branch] = storage.last_seq(branch)
        return lasts[branch]

    return last


def unindexed_segments(
    snapshot: Snapshot, session: SessionRow, last: Callable[[int], int]
) -> Iterator[Segment]:
    """Yield the segments of a session's history that are not indexed yet, shared ones included.

    Each branch is indexed from its start, so the indexed part of a branch never has gaps. `last`
    returns the last indexed `seq` of a branch.
    """
    branches = snapshot.branches(session=session.n)
    own = {branch.n for branch in branches}
    for branch in branches:
        if branch.parent is not None and branch.parent not in own:
            for segment in _inherited(snapshot, branch, last):
                yield from _unindexed_part(snapshot, segment, last(segment.branch))
        whole = Segment(branch.n, branch.fork_seq + 1, branch.last_seq, branch.session_id)
        if last(branch.n) > branch.last_seq:
            raise IndexStale("the log has fewer messages than it had")
        yield from _unindexed_part(snapshot, whole, last(branch.n))


def _inherited(
    snapshot: Snapshot, branch: BranchRow, last: Callable[[int], int]
) -> Iterator[Segment]:
    """Yield the segments that a branch inherits, oldest first, from the first to be indexed.

    Whatever comes before an indexed message in its history was indexed before it.
    """
    found: list[Segment] = []
    parent, end, records = branch.parent, branch.fork_seq, branch.fork_record
    while parent is not None and end:
        row = snapshot.find_branch(parent)
        if row is None:
            raise Damaged(f"branch {parent} is missing; run store.verify().")
        refuse_lacking_parent(row.fork_seq, end, records)
        found.append(Segment(row.n, row.fork_seq + 1, end, row.session_id))
        if last(row.n) > row.fork_seq:
            break
        parent, end, records = row.parent, min(end, row.fork_seq), row.fork_record
    yield from reversed(found)


def _unindexed_part(snapshot: Snapshot, segment: Segment, indexed: int) -> Iterator[Segment]:
    first, last = max(segment.first, indexed + 1), segment.last or 0
    part = snapshot.stored_part(Segment(segment.branch, first, last, segment.session_id))
    if part is not None:
        yield part


def read_segment(snapshot: Snapshot, segment: Segment) -> Iterator[IndexedMessage]:
    """Read the messages of a segment for indexing; a missing one yields an empty message."""
    seq = segment.first
    for owner, rows in snapshot.messages([segment]):
        for row in rows:
            if row.seq != seq:
                yield from (_missing(segment.branch, gap) for gap in range(seq, row.seq))
            yield to_indexed(snapshot, owner, segment.branch, row)
            seq = row.seq + 1
    yield from (_missing(segment.branch, gap) for gap in range(seq, (segment.last or 0) + 1))


def to_indexed(snapshot: Snapshot, owner: str, branch: int, row: MessageRow) -> IndexedMessage:
    """Return a stored message in the form in which it is indexed."""
    message = read_row(snapshot, owner, row)
    return IndexedMessage(
        branch=branch,
        seq=row.seq,
        id=row.id,
        role=message.role,
        at=created_micros(message),
        document=document(message),
        crc=row.crc,
        unreadable=message.status in _UNREADABLE,
    )


def created_micros(message: Message) -> int:
    """Return the time of a stored message in microseconds."""
    return to_micros(message.created_at or EPOCH)


def _missing(branch: int, seq: int) -> IndexedMessage:
    return IndexedMessage(branch, seq, "", "system", 0, Document(), unreadable=True)
