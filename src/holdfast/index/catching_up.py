"""Bringing an index up to date with the log.

Every session that was written to has a higher activity number than before. So what an index lacks
is in the sessions behind the number it has come to: on their branches, behind the last message of
each that it has, and on the branches of others that their histories begin with. It is brought there
in short steps, each one transaction of the index, which two processes may take in turn; a step
reads how far the index is once it has the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.backends.base import Backend, Listing, MessageRow, SessionRow, Snapshot, Unreadable
from holdfast.clock import EPOCH, to_micros
from holdfast.core.branches import Segment
from holdfast.core.search.documents import Document, document
from holdfast.errors import Damaged
from holdfast.index.kept import Anchor, Doc, Kept
from holdfast.records import Message
from holdfast.verbs.histories import read_row

_STEP_MESSAGES = 500
_STEP_TEXT = 4_000_000
_SESSIONS = 50
_UNREADABLE = frozenset({"erased", "damaged"})


class Outdated(Exception):
    """The index is not of this log, or not of what is left of it: it must be made anew."""


class Step(msgspec.Struct):
    """What one step adds: messages by branch, and the activity number it comes to."""

    runs: list[list[Doc]]
    activity: int
    erasures: int
    complete: bool


def step(backend: Backend, file: Kept) -> Step:
    """Add the next messages to an index that is being written to."""
    activity = file.activity
    found = backend.read(lambda snapshot: _gather(snapshot, file, activity))
    file.put_meta(erasures=found.erasures)
    for run in found.runs:
        file.add(run)
    if found.runs:
        newest = found.runs[-1][-1]
        file.anchor = Anchor(newest.branch, newest.seq, newest.crc)
    if found.activity != activity:
        file.put_meta(activity=found.activity)
    return found


def is_whole(snapshot: Snapshot, file: Kept) -> bool:
    """Return whether an index is of this log, and has everything."""
    check(snapshot, file)
    return not lacks(snapshot, file.activity)


def lacks(snapshot: Snapshot, activity: int) -> bool:
    """Return whether anything was written behind an activity number; damage may hide it."""
    try:
        return bool(snapshot.activity_after(activity, 1))
    except Damaged:
        return True


def is_behind(snapshot: Snapshot, activity: int) -> bool:
    """Return whether a search has to look at what was written behind an activity number.

    What was committed counts even where somebody with a lower number has yet to commit: an index
    goes on in the order of these numbers and waits for that, a search does not.
    """
    try:
        newest = snapshot.list_sessions(Listing(), before=None, limit=1)
    except Damaged:
        return True
    numbers = (
        item.activity if isinstance(item, Unreadable) else item[1].activity for item in newest
    )
    return any(number > activity for number in numbers) or lacks(snapshot, activity)


def check(snapshot: Snapshot, file: Kept) -> int:
    """Refuse an index that is of another log, or has something that was erased from this one.

    Give how many erasures there were.
    """
    erasures = snapshot.erasures()
    if file.erasures not in (None, erasures):
        raise Outdated("something was erased")
    anchor = file.anchor
    if anchor is None:
        return erasures
    place = Segment(anchor.branch, anchor.seq, anchor.seq, "")
    rows = [row for _, found in snapshot.messages([place]) for row in found]
    if [row.crc for row in rows] != [anchor.crc]:
        raise Outdated("the log is another one")
    return erasures


def _gather(snapshot: Snapshot, file: Kept, activity: int) -> Step:
    written = snapshot.activity_after(activity, _SESSIONS)  # Some backends begin anew with this.
    gathered = Step([], activity, check(snapshot, file), complete=True)
    room, text = _STEP_MESSAGES, _STEP_TEXT
    lasts: dict[int, int] = {}
    for number, session_id, _, _ in written:
        row = snapshot.find_session(id=session_id)
        for segment in () if row is None else lacking(snapshot, row, _known(file, lasts)):
            if room <= 0 or text <= 0:
                gathered.complete = False
                return gathered
            last = min(segment.last or 0, segment.first + room - 1)
            part = Segment(segment.branch, segment.first, last, segment.session_id)
            run = list(read(snapshot, part))
            gathered.runs.append(run)
            lasts[part.branch] = last
            room -= len(run)
            text -= sum(len(doc.document.text) for doc in run)
            if last != segment.last:
                gathered.complete = False
                return gathered
        gathered.activity = number
    gathered.complete = len(written) < _SESSIONS
    return gathered


def _known(file: Kept, lasts: dict[int, int]) -> Callable[[int], int]:
    def last(branch: int) -> int:
        if branch not in lasts:
            lasts[branch] = file.last(branch)
        return lasts[branch]

    return last


def lacking(
    snapshot: Snapshot, session: SessionRow, last: Callable[[int], int]
) -> Iterator[Segment]:
    """The messages of a session, and of those it shares, behind the last ones that are known.

    They come branch by branch, each from its begin on, so what is known of one has no gaps.
    """
    branches = snapshot.branches(session.n)
    own = {branch.n for branch in branches}
    for branch in branches:
        if branch.parent is not None and branch.parent not in own:
            for segment in snapshot.path(branch.n)[:-1]:
                yield from _behind(segment, last(segment.branch))
        whole = Segment(branch.n, branch.fork_seq + 1, branch.last_seq, branch.session_id)
        if last(branch.n) > branch.last_seq:
            raise Outdated("the log has less than it had")
        yield from _behind(whole, last(branch.n))


def _behind(segment: Segment, known: int) -> Iterator[Segment]:
    first, last = max(segment.first, known + 1), segment.last or 0
    if first <= last:
        yield Segment(segment.branch, first, last, segment.session_id)


def read(snapshot: Snapshot, segment: Segment) -> Iterator[Doc]:
    """Read messages as they are indexed; one that is missing has its place."""
    seq = segment.first
    for owner, rows in snapshot.messages([segment]):
        for row in rows:
            yield from (_missing(segment.branch, gap) for gap in range(seq, row.seq))
            yield doc_of(snapshot, owner, segment.branch, row)
            seq = row.seq + 1
    yield from (_missing(segment.branch, gap) for gap in range(seq, (segment.last or 0) + 1))


def doc_of(snapshot: Snapshot, owner: str, branch: int, row: MessageRow) -> Doc:
    """Read a stored message as it is indexed."""
    message = read_row(snapshot, owner, row)
    return Doc(
        branch=branch,
        seq=row.seq,
        id=row.id,
        role=message.role,
        at=when(message),
        document=document(message),
        crc=row.crc,
        lost=message.status in _UNREADABLE,
    )


def when(message: Message) -> int:
    """Return the time of a stored message."""
    return to_micros(message.created_at or EPOCH)


def _missing(branch: int, seq: int) -> Doc:
    return Doc(branch, seq, "", "system", 0, Document(), lost=True)
