"""Erasing one message, in every session that has it.

The message keeps its seq, id, role and time; its body becomes a tombstone. A message may be stored
several times: where it was first written (all forks share that row), and where a replace or an
amendment stored it again. So its id is looked up in all sessions of the lineage. A row found there
is the same message if its content is equal, or if a session has both in its branches: then they are
versions of one message. Another message that happens to have the same id stays.

No writer is blocked: an open turn goes on, and its next window no longer contains the message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from holdfast import codec
from holdfast.errors import Damaged, MessageNotFound, SessionNotFound
from holdfast.operations.append import find_head
from holdfast.operations.positions import resolve_position
from holdfast.operations.tombstone import (
    MAX_PREVIEWS,
    Dependants,
    Erased,
    dependants,
    refresh_previews,
    refuse_stale_plan,
    write_tombstone,
)
from holdfast.storage.ancestry import Segment, ranges
from holdfast.storage.protocol import Operation, Query, Snapshot, Transaction
from holdfast.storage.rows import MessageRow, SessionRow
from holdfast.values import EraseReport, MessageRef


class _StoredMessage(msgspec.Struct, frozen=True):
    """A stored row of a message, its branch, and the session that wrote it."""

    branch: int
    owner: str
    row: MessageRow


def plan_erasure(session: int, message: MessageRef) -> Query[list[Segment]]:
    """Return which rows an erasure replaces by tombstones."""

    def run(snapshot: Snapshot) -> list[Segment]:
        return _segments(_find_copies(snapshot, session, _find_named(snapshot, session, message)))

    return run


def plan_previews(session: int, message: MessageRef) -> Query[tuple[Dependants, Erased]]:
    """Return the sessions that have a message, and where it is stored."""

    def run(snapshot: Snapshot) -> tuple[Dependants, Erased]:
        copies = _find_copies(snapshot, session, _find_named(snapshot, session, message))
        return dependants(snapshot, _first_seqs(copies)), _erased(copies)

    return run


def erase(
    session: int, message: MessageRef, planned: Sequence[Segment] | None
) -> Operation[EraseReport]:
    """Erase a message. If it was erased before, the report counts no rows."""

    def run(tx: Transaction) -> EraseReport:
        named = _find_named(tx, session, message)
        copies = _find_copies(tx, session, named)
        refuse_stale_plan(planned, _segments(copies))
        erased_in = dependants(tx, _first_seqs(copies))
        blobs: set[str] = set()
        for copy in copies:
            blobs |= write_tombstone(tx, copy.branch, copy.owner, copy.row)
        refresh_previews(tx, _still_shown(tx, erased_in, copies), _erased(copies))
        dropped, size = tx.drop_blobs(blobs)
        return EraseReport(
            session_id=_require_session(tx, session).id,
            message_id=named.row.id,
            seq=named.row.seq,
            places=len(copies),
            erased_in=tuple(erased_in.sessions),
            blobs=dropped,
            blob_bytes=size,
            pending=(),
        )

    return run


def _require_session(snapshot: Snapshot, session: int) -> SessionRow:
    row = snapshot.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store; nothing was erased.")
    return row


def _find_named(snapshot: Snapshot, session: int, message: MessageRef) -> _StoredMessage:
    """Find the message that the caller named, on any branch of the session."""
    _require_session(snapshot, session)
    position = resolve_position(snapshot, find_head(snapshot, session), message)
    path = snapshot.path(position.branch, position.seq)
    for segment in ranges(path, position.seq, position.seq) if position.seq else ():
        for owner, rows in snapshot.messages([segment]):
            for row in rows:
                return _StoredMessage(segment.branch, owner, row)
    if not position.seq:
        raise MessageNotFound("messages are numbered from 1, not 0; nothing was erased.")
    raise Damaged(f"message {position.seq} is missing; nothing was erased. Run store.verify().")


def _find_copies(snapshot: Snapshot, session: int, named: _StoredMessage) -> list[_StoredMessage]:
    """Find all copies of a message that are not tombstones yet, in storage order."""
    others = [
        copy
        for copy in _rows_with_id(snapshot, session, named.row.id)
        if not _is_same_row(copy, named)
    ]
    found, new = [named], [named]
    while new and others:
        sharing = _sharing(snapshot, new)
        bodies = {copy.row.body for copy in new if not _is_erased(copy)}
        new = [
            copy
            for copy in others
            if _is_one_of(copy, bodies) or sharing & _sharing(snapshot, [copy])
        ]
        found += new
        known = {(copy.branch, copy.row.seq) for copy in new}
        others = [copy for copy in others if (copy.branch, copy.row.seq) not in known]
    copies = [copy for copy in found if not _is_erased(copy)]
    return sorted(copies, key=lambda copy: (copy.branch, copy.row.seq))


def _sharing(snapshot: Snapshot, copies: Sequence[_StoredMessage]) -> set[str]:
    """Return the ids of the sessions that have one of these rows on a branch."""
    return set(dependants(snapshot, _first_seqs(copies)).sessions)


def _rows_with_id(snapshot: Snapshot, session: int, message_id: str) -> Iterator[_StoredMessage]:
    """Yield the rows with this id in all sessions of a lineage, stubs of purged ones included."""
    oldest = _require_session(snapshot, session)
    seen = {oldest.id}
    while (
        oldest.parent is not None
        and (above := snapshot.find_session(id=oldest.parent, stubs=True)) is not None
    ):
        if above.id in seen:
            break
        seen.add(above.id)
        oldest = above
    lineage = (oldest, *snapshot.descendants(oldest.id))
    for n, row in snapshot.stored_in_sessions([member.n for member in lineage], [message_id]):
        branch = snapshot.find_branch(n)
        if branch is not None:
            yield _StoredMessage(n, branch.session_id, row)


def _is_same_row(one: _StoredMessage, other: _StoredMessage) -> bool:
    return (one.branch, one.row.seq) == (other.branch, other.row.seq)


def _is_one_of(copy: _StoredMessage, bodies: Collection[bytes]) -> bool:
    return copy.row.body in bodies or any(codec.is_same_body(copy.row.body, b) for b in bodies)


def _is_erased(copy: _StoredMessage) -> bool:
    return codec.is_tombstone(copy.row.body)


def _first_seqs(copies: Sequence[_StoredMessage]) -> dict[int, int]:
    """Return {branch: lowest seq} of these rows."""
    starts: dict[int, int] = {}
    for copy in copies:
        starts[copy.branch] = min(copy.row.seq, starts.get(copy.branch, copy.row.seq))
    return starts


def _erased(copies: Sequence[_StoredMessage]) -> Erased:
    seqs: dict[int, set[int]] = {}
    for copy in copies:
        seqs.setdefault(copy.branch, set()).add(copy.row.seq)
    return Erased(seqs=seqs)


def _still_shown(
    tx: Transaction, affected: Dependants, copies: Sequence[_StoredMessage]
) -> Dependants:
    """Return the sessions to refresh: of many, only those whose preview may show the message.

    The others were refreshed before (see `plan_previews`).
    """
    if len(affected.sessions) <= MAX_PREVIEWS:
        return affected
    seqs = {copy.row.seq for copy in copies}
    heads = {name: find_head(tx, n) for name, n in affected.sessions.items()}
    late = {name: head.session for name, head in heads.items() if head.preview_seq in seqs}
    return Dependants(late, affected.branches)


def _segments(copies: Sequence[_StoredMessage]) -> list[Segment]:
    return [Segment(copy.branch, copy.row.seq, copy.row.seq, copy.owner) for copy in copies]
