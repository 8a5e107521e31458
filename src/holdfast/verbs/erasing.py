"""Erasing one message, wherever it is.

The message keeps its place, its id, its role and its time; its body is a tombstone from then on. It
is one message however often it is there: where it was first written, for everybody who shares that
place, and where a replace stored it again. So its id is looked up in all sessions of the lineage,
and what is found is the same message if it says the same, or if it stands in a session that shares
it: there it is another version of it. What somebody else said under the same id stays.

Nobody has to wait for it: an open turn goes on, and its next window has the message no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast import codec
from holdfast.backends.base import MessageRow, Query, SessionRow, Snapshot, Transaction, Verb
from holdfast.core.branches import Segment, ranges
from holdfast.errors import Damaged, MessageNotFound, SessionNotFound
from holdfast.records import EraseReport, Place
from holdfast.verbs.appending import find_head
from holdfast.verbs.burying import bury, descent, heirs, refuse_changes, renew_previews
from holdfast.verbs.places import locate


class _Spot(msgspec.Struct, frozen=True):
    """Where a message is stored, and the session that wrote it there."""

    branch: int
    owner: str
    row: MessageRow


def foretell(session: int, message: Place) -> Query[list[Segment]]:
    """Return which rows an erasure replaces."""

    def run(snapshot: Snapshot) -> list[Segment]:
        return _segments(_everywhere(snapshot, session, _find(snapshot, session, message)))

    return run


def erase(session: int, message: Place, doomed: Sequence[Segment] | None) -> Verb[EraseReport]:
    """Erase a message. One that was erased before is reported as erased nowhere."""

    def run(tx: Transaction) -> EraseReport:
        named = _find(tx, session, message)
        spots = _everywhere(tx, session, named)
        refuse_changes(doomed, _segments(spots))
        gone_from = heirs(tx, _starts(spots))
        blobs: set[str] = set()
        for spot in spots:
            blobs |= bury(tx, spot.branch, spot.owner, spot.row)
        renew_previews(tx, gone_from.values())
        dropped, size = tx.drop_blobs(blobs)
        return EraseReport(
            session_id=_session(tx, session).id,
            message_id=named.row.id,
            seq=named.row.seq,
            places=len(spots),
            erased_in=tuple(gone_from),
            blobs=dropped,
            blob_bytes=size,
            pending=(),
        )

    return run


def _session(snapshot: Snapshot, session: int) -> SessionRow:
    row = snapshot.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store; nothing was erased.")
    return row


def _find(snapshot: Snapshot, session: int, message: Place) -> _Spot:
    """Find the message that is named, in one of the session's histories."""
    _session(snapshot, session)
    place = locate(snapshot, find_head(snapshot, session), message)
    path = snapshot.path(place.branch, place.seq)
    for segment in ranges(path, place.seq, place.seq) if place.seq else ():
        for owner, rows in snapshot.messages([segment]):
            for row in rows:
                return _Spot(segment.branch, owner, row)
    if not place.seq:
        raise MessageNotFound("no message has the number 0; nothing was erased.")
    raise Damaged(f"message {place.seq} is missing; nothing was erased. Run store.verify().")


def _everywhere(snapshot: Snapshot, session: int, named: _Spot) -> list[_Spot]:
    """Find the places that have this message, but for those where it is a tombstone already."""
    others = [
        spot for spot in _same_id(snapshot, session, named.row.id) if not _is_same(spot, named)
    ]
    found = [named]
    while True:
        sharing = heirs(snapshot, _starts(found))
        new = [
            spot
            for spot in others
            if spot.owner in sharing or any(_says_the_same(spot, other) for other in found)
        ]
        if not new:
            break
        found += new
        others = [spot for spot in others if spot not in new]
    spots = [spot for spot in found if not _is_erased(spot)]
    return sorted(spots, key=lambda spot: (spot.branch, spot.row.seq))


def _same_id(snapshot: Snapshot, session: int, message_id: str) -> Iterator[_Spot]:
    """Look an id up in all sessions of a lineage, also in what was left of those purged."""
    oldest = _session(snapshot, session)
    seen = {oldest.id}
    while oldest.parent is not None and (above := snapshot.relative(oldest.parent)) is not None:
        if above.id in seen:
            break
        seen.add(above.id)
        oldest = above
    for relative in (oldest, *descent(snapshot, oldest.id)):
        for branch, row in snapshot.placed(relative.n, [message_id]):
            yield _Spot(branch, relative.id, row)


def _is_same(one: _Spot, other: _Spot) -> bool:
    return (one.branch, one.row.seq) == (other.branch, other.row.seq)


def _says_the_same(one: _Spot, other: _Spot) -> bool:
    return not _is_erased(one) and codec.same_body(one.row.body, other.row.body)


def _is_erased(spot: _Spot) -> bool:
    return codec.is_tombstone(spot.row.body)


def _starts(spots: Sequence[_Spot]) -> dict[int, int]:
    """Return the branches on which these are, each with the first of its seqs."""
    starts: dict[int, int] = {}
    for spot in spots:
        starts[spot.branch] = min(spot.row.seq, starts.get(spot.branch, spot.row.seq))
    return starts


def _segments(spots: Sequence[_Spot]) -> list[Segment]:
    return [Segment(spot.branch, spot.row.seq, spot.row.seq, spot.owner) for spot in spots]
