"""Erasing one message, in every session that has it.

The message keeps its seq, id, role and time; its body becomes a tombstone. A message may be stored
several times: where it was first written (all forks share that row), and where a replace stored it
again. So its id is looked up in all sessions of the lineage. A row found there is the same message
if its content is equal, or if it is stored in a session that shares the message: then it is another
version of it. Another message that happens to have the same id stays.

No writer is blocked: an open turn goes on, and its next window no longer contains the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast import codec
from holdfast.errors import Damaged, MessageNotFound, SessionNotFound
from holdfast.operations.append import find_head
from holdfast.operations.positions import locate
from holdfast.operations.tombstone import bury, descent, heirs, refuse_changes, renew_previews
from holdfast.storage.ancestry import Segment, ranges
from holdfast.storage.protocol import MessageRow, Query, SessionRow, Snapshot, Transaction, Verb
from holdfast.values import EraseReport, Place


class _Spot(msgspec.Struct, frozen=True):
    """A stored row of a message, its branch, and the session that wrote it."""

    branch: int
    owner: str
    row: MessageRow


def foretell(session: int, message: Place) -> Query[list[Segment]]:
    """Return which rows an erasure replaces by tombstones."""

    def run(snapshot: Snapshot) -> list[Segment]:
        return _segments(_everywhere(snapshot, session, _find(snapshot, session, message)))

    return run


def erase(session: int, message: Place, planned: Sequence[Segment] | None) -> Verb[EraseReport]:
    """Erase a message. If it was erased before, the report counts no rows."""

    def run(tx: Transaction) -> EraseReport:
        named = _find(tx, session, message)
        copies = _everywhere(tx, session, named)
        refuse_changes(planned, _segments(copies))
        erased_in = heirs(tx, _starts(copies))
        blobs: set[str] = set()
        for copy in copies:
            blobs |= bury(tx, copy.branch, copy.owner, copy.row)
        renew_previews(tx, erased_in.values())
        dropped, size = tx.drop_blobs(blobs)
        return EraseReport(
            session_id=_session(tx, session).id,
            message_id=named.row.id,
            seq=named.row.seq,
            places=len(copies),
            erased_in=tuple(erased_in),
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
    """Find the message that the caller named, on any branch of the session."""
    _session(snapshot, session)
    position = locate(snapshot, find_head(snapshot, session), message)
    path = snapshot.path(position.branch, position.seq)
    for segment in ranges(path, position.seq, position.seq) if position.seq else ():
        for owner, rows in snapshot.messages([segment]):
            for row in rows:
                return _Spot(segment.branch, owner, row)
    if not position.seq:
        raise MessageNotFound("messages are numbered from 1, not 0; nothing was erased.")
    raise Damaged(f"message {position.seq} is missing; nothing was erased. Run store.verify().")


def _everywhere(snapshot: Snapshot, session: int, named: _Spot) -> list[_Spot]:
    """Find all copies of a message that are not tombstones yet, in storage order."""
    others = [
        copy for copy in _same_id(snapshot, session, named.row.id) if not _is_same(copy, named)
    ]
    found = [named]
    while True:
        sharing = heirs(snapshot, _starts(found))
        new = [
            copy
            for copy in others
            if copy.owner in sharing or any(_says_the_same(copy, other) for other in found)
        ]
        if not new:
            break
        found += new
        others = [copy for copy in others if copy not in new]
    copies = [copy for copy in found if not _is_erased(copy)]
    return sorted(copies, key=lambda copy: (copy.branch, copy.row.seq))


def _same_id(snapshot: Snapshot, session: int, message_id: str) -> Iterator[_Spot]:
    """Yield the rows with this id in all sessions of a lineage, stubs of purged ones included."""
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


def _is_erased(copy: _Spot) -> bool:
    return codec.is_tombstone(copy.row.body)


def _starts(copies: Sequence[_Spot]) -> dict[int, int]:
    """Return {branch: lowest seq} of these rows."""
    starts: dict[int, int] = {}
    for copy in copies:
        starts[copy.branch] = min(copy.row.seq, starts.get(copy.branch, copy.row.seq))
    return starts


def _segments(copies: Sequence[_Spot]) -> list[Segment]:
    return [Segment(copy.branch, copy.row.seq, copy.row.seq, copy.owner) for copy in copies]
