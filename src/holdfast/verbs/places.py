"""Finding a place in a session's histories, and where it may be left from.

A place is named by a seq of the current history, by a message's id, or by a head; the latter two
reach abandoned branches as well. What is left there moves back to the nearest place that cuts no
tool exchange in two (`core.pairs`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from holdfast import checks
from holdfast.backends.base import HeadRow, Snapshot, Start
from holdfast.core.branches import holder
from holdfast.core.pairs import answered_calls, open_calls, whole_length
from holdfast.core.titles import USER, Preview, preview
from holdfast.errors import BadQuery, MessageNotFound
from holdfast.ids import split_turn_id
from holdfast.records import BranchReason, Head, Message, Place
from holdfast.verbs.appending import preview_of
from holdfast.verbs.histories import read_span, read_tools

_LOOK_BACK: Final = 64
_LOOK_BACK_AT_MOST: Final = 10_000
_LOOK_AHEAD: Final = 256
_LOOK_AHEAD_AT_MOST: Final = 2_000
_NOBODY_ASKED: Final = 1_000
_PAGE: Final = 100
_FIRST_PAGE: Final = 8


class Spot(msgspec.Struct, frozen=True):
    """A place: a message of the history of a branch, which goes on to `end`."""

    branch: int
    seq: int
    end: int


def check_place(place: Place | None, field: str) -> Place | None:
    """Refuse what cannot name a place; numbers that are too large for any come back smaller."""
    if isinstance(place, Head):
        branch = checks.check_number(place.branch, field)
        return Head(branch, checks.check_number(place.seq, field))
    if isinstance(place, str):
        return checks.check_name(place, field)
    return None if place is None else checks.check_number(place, field)


def locate(snapshot: Snapshot, head: HeadRow, place: Place | None) -> Spot:
    """Find a place of a session, the end of its history if none is named."""
    if place is None:
        return Spot(head.branch, head.seq, head.seq)
    if isinstance(place, Head):
        return _by_head(snapshot, head, place)
    if isinstance(place, str):
        return _by_id(snapshot, head, place)
    if place > head.seq:
        raise MessageNotFound(f"this history ends at {head.seq}; there is no message {place}.")
    return Spot(head.branch, place, head.seq)


def _by_head(snapshot: Snapshot, head: HeadRow, place: Head) -> Spot:
    branch = snapshot.branch(head.session, place.branch)
    if branch is None or place.seq > branch.last_seq:
        raise MessageNotFound(
            f"this session has no message {place.seq} on branch {place.branch}; "
            "session.branches() lists what there is."
        )
    return Spot(branch.n, place.seq, branch.last_seq)


def _by_id(snapshot: Snapshot, head: HeadRow, message_id: str) -> Spot:
    """Look on the current history first, then on the others, the newest first."""
    found = snapshot.stored(head.branch, [message_id])
    if message_id in found:
        return Spot(head.branch, found[message_id][1].seq, head.seq)
    for branch in reversed(snapshot.branches(head.session)):
        found = snapshot.stored(branch.n, [message_id])
        if message_id in found:
            return Spot(branch.n, found[message_id][1].seq, branch.last_seq)
    raise MessageNotFound(f"no branch of this session has a message {message_id!r}.")


def start_at(
    snapshot: Snapshot, head: HeadRow, spot: Spot, reason: BranchReason, token: str
) -> Start:
    """Return where a branch starts that leaves the history at this place."""
    seq = whole(snapshot, spot, awaited_calls(snapshot, head))
    path = snapshot.path(spot.branch, seq)
    return Start(
        parent=holder(path, seq), fork_seq=seq, asked_seq=spot.seq, reason=reason, token=token
    )


def awaited_calls(snapshot: Snapshot, head: HeadRow) -> set[str]:
    """Name the calls of the open turn whose results are still to come."""
    if head.open_turn is None:
        return set()
    ledger = snapshot.tools(head.session, head.open_turn)
    return {row.call_id for row in ledger if row.outcome in {"called", "running"}}


def whole(snapshot: Snapshot, spot: Spot, awaited: Collection[str] = ()) -> int:
    """Return the nearest seq, at this place or before it, that cuts no tool exchange in two."""
    seq = spot.seq
    while seq and (seq < spot.end or awaited):
        after = _tools(snapshot, spot.branch, seq + 1, min(spot.end, seq + _LOOK_AHEAD))
        before = _exchange(snapshot, spot.branch, seq, after, awaited)
        if open_calls([*before, *after]):
            # Most are answered at once, some late, and some never.
            last = min(spot.end, seq + _LOOK_AHEAD_AT_MOST)
            after += _tools(snapshot, spot.branch, seq + len(after) + 1, last)
        kept = whole_length(before, after, awaited)
        if kept == len(before):
            return seq
        seq -= len(before) - kept
    return seq


def _exchange(
    snapshot: Snapshot,
    branch: int,
    seq: int,
    after: Sequence[Message],
    awaited: Collection[str],
) -> list[Message]:
    """Read back from a message, further while there are results whose calls were not met."""
    found: list[Message] = []
    low = seq + 1
    while low > 1 and len(found) < _LOOK_BACK_AT_MOST:
        if len(found) >= _LOOK_BACK and not answered_calls([*found, *after], awaited):
            break
        high, low = low - 1, max(1, low - _LOOK_BACK)
        found = _tools(snapshot, branch, low, high) + found
    return found


def _tools(snapshot: Snapshot, branch: int, low: int, high: int) -> list[Message]:
    return read_tools(snapshot, snapshot.path(branch, low), (low, high)) if low <= high else []


# -------------------------------------------------------------------------------------- turns


def back_by_turns(snapshot: Snapshot, head: HeadRow, turns: int) -> int:
    """Return the seq that is left when the last so many turns are taken back."""
    if not head.seq:
        raise BadQuery("undo: there is nothing to undo, this history is empty")
    back, seq = _Back(snapshot, head.branch), head.seq
    for _ in range(turns):
        if not seq:
            break
        seq = _beginning(back, seq) - 1
    return seq


class _Back:
    """Reads a history from its end, a page at a time, each larger than the one before."""

    def __init__(self, snapshot: Snapshot, branch: int) -> None:
        self._snapshot = snapshot
        self._branch = branch
        self._size = _FIRST_PAGE
        self._page: dict[int, Message] = {}

    def at(self, seq: int) -> Message:
        """Read one message."""
        if seq not in self._page:
            low = max(1, seq - self._size + 1)
            path = self._snapshot.path(self._branch, low)
            self._page = dict(enumerate(read_span(self._snapshot, path, (low, seq)), low))
            self._size = min(self._size * 4, _PAGE)
        return self._page[seq]

    def begun(self, turn: str, last: int) -> int | None:
        """Find the first message of a turn by where it was opened, if it is still there."""
        session_id, number = split_turn_id(turn)
        session = self._snapshot.relative(session_id)
        row = None if session is None else self._snapshot.turn(session.n, number)
        if row is None:
            return None
        low, high = row.first_seq + 1, min(last, row.first_seq + _LOOK_AHEAD)
        path = self._snapshot.path(self._branch, low)
        read = read_span(self._snapshot, path, (low, high)) if low <= high else []
        return next((seq for seq, m in enumerate(read, low) if m.turn_id == turn), None)


def _beginning(back: _Back, last: int) -> int:
    """Find where the turn began that ends here. Summaries belong to what is before them."""
    while last > 1 and back.at(last).role == "summary":
        last -= 1
    turn = back.at(last).turn_id
    return _asked(back, last) if turn is None else _opened(back, last, turn)


def _opened(back: _Back, last: int, turn: str) -> int:
    """Find the first message of a turn, in whose middle others may have appended."""
    first = seq = back.begun(turn, last) or last
    while seq > 1 and first - seq < _LOOK_BACK:
        seq -= 1
        of = back.at(seq).turn_id
        if of == turn:
            first = seq
        elif of is not None:
            break
    return first


def _asked(back: _Back, last: int) -> int:
    """Find the user's words that a reply without a turn answers; if nobody asked, it is alone."""
    seq = last
    while back.at(seq).role != "user":
        seq -= 1
        if seq < 1 or last - seq > _NOBODY_ASKED or back.at(seq).turn_id is not None:
            return last
    while seq > 1 and back.at(seq - 1).role == "user" and back.at(seq - 1).turn_id is None:
        seq -= 1
    return seq


# ------------------------------------------------------------------------------------ previews


def read_preview(snapshot: Snapshot, branch: int, seq: int) -> Preview:
    """Find what stands for a history up to a message."""
    path, shown = snapshot.path(branch), Preview()
    low, size = 1, _FIRST_PAGE
    while low <= seq and shown.rank != USER:
        span = (low, min(seq, low + size - 1))
        shown = preview(read_span(snapshot, path, span), low, shown)
        low, size = low + size, _PAGE
    return shown


def preview_at(snapshot: Snapshot, head: HeadRow, start: Start) -> Preview:
    """Find the preview of a history that leaves a session's at `start`."""
    if start.parent is None:
        return Preview()
    shown = preview_of(head)
    here = start.fork_seq <= head.seq and shown.seq <= start.fork_seq
    if here and holder(snapshot.path(head.branch, start.fork_seq), start.fork_seq) == start.parent:
        return shown  # It is of a message that both have.
    return read_preview(snapshot, start.parent, start.fork_seq)
