"""Tombstones: what replaces a message whose body is erased.

An erasure is computed twice. Data derived from messages (the search index, say) must be prepared
for the erasure, so a query first plans which messages it covers. The write computes the plan again
inside its transaction and, if the two differ, raises `StaleErasurePlan` before it writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from holdfast import codec
from holdfast.operations import residue
from holdfast.operations.append import find_head, with_preview
from holdfast.operations.history import read_row
from holdfast.operations.positions import read_preview
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Query, Snapshot, Transaction
from holdfast.storage.rows import MessageRow, SessionRow

MAX_FRAGMENTS: Final = 16


class StaleErasurePlan(Exception):
    """The messages to erase are no longer those that were planned. Nothing was written."""


def refuse_stale_plan(planned: Sequence[Segment] | None, found: Sequence[Segment]) -> None:
    """Raise `StaleErasurePlan` if `found` differs from `planned`; `None` means no plan was made."""
    if planned is not None and list(planned) != list(found):
        raise StaleErasurePlan


def write_tombstone(tx: Transaction, branch: int, owner: str, row: MessageRow) -> frozenset[str]:
    """Replace a message by a tombstone and return the hashes of the blobs it referred to."""
    message = read_row(tx, owner, row)
    body = codec.encode_unchecked(codec.tombstone(message)).body
    return tx.put_tombstone(branch, MessageRow.create(row.seq, row.id, row.turn, body))


def dependants(snapshot: Snapshot, starts: Mapping[int, int]) -> dict[str, int]:
    """Return the sessions, not purged, whose histories include these messages: {id: number}.

    `starts` names branches, each with the first seq that counts.
    """
    found: dict[str, int] = {}
    pending = dict(starts)
    seen = set(pending)
    while pending:
        n, first = pending.popitem()
        owner = snapshot.find_branch(n)
        if owner is not None and not owner.purged:
            found[owner.session_id] = owner.session
        for branch in snapshot.branches(parent=n):
            if branch.fork_seq >= first and branch.n not in seen:
                seen.add(branch.n)
                pending[branch.n] = 0
    return found


def descendants(snapshot: Snapshot, session_id: str) -> Iterator[SessionRow]:
    """Yield all descendants of a session, purged ones included."""
    pending, seen = [session_id], {session_id}
    while pending:
        for child in snapshot.children(pending.pop()):
            if child.id not in seen:
                seen.add(child.id)
                pending.append(child.id)
                yield child


def refresh_previews(tx: Transaction, sessions: Iterable[int]) -> None:
    """Recompute previews, so that no list shows erased text. Followers see this as activity."""
    for session in sessions:
        head = find_head(tx, session)
        tx.put_head(with_preview(head, read_preview(tx, head.branch, head.seq)))


# --------------------------------------------------------------------------------------- fragments


def sample_fragments(to_erase: Sequence[Segment]) -> Query[list[bytes]]:
    """Return fragments of the messages to erase, to search the files for them afterwards."""

    def run(snapshot: Snapshot) -> list[bytes]:
        sampled = list(_sample_messages(to_erase))
        each = max(1, MAX_FRAGMENTS // max(1, len(sampled)))
        found: list[bytes] = []
        for segment in sampled:
            for _, rows in snapshot.messages([segment]):
                for row in rows:
                    found += _row_fragments(snapshot, row, each)
        return residue.sample_evenly(found, MAX_FRAGMENTS)

    return run


def _sample_messages(to_erase: Sequence[Segment]) -> Iterator[Segment]:
    """Yield single messages, spread evenly over these ranges."""
    total = sum((span.last or 0) - span.first + 1 for span in to_erase)
    step, skip = max(1, total // MAX_FRAGMENTS), 0
    for span in to_erase:
        last = span.last or 0
        for seq in range(span.first + skip, last + 1, step):
            yield Segment(span.branch, seq, seq, span.session_id)
        length = last - span.first + 1
        skip = skip - length if skip >= length else -(length - skip) % step


def _row_fragments(snapshot: Snapshot, row: MessageRow, limit: int) -> list[bytes]:
    """Return fragments of one message and of its blobs."""
    found = residue.body_fragments(row.body, limit)
    for sha256 in residue.blob_hashes(row.body):
        found += residue.data_fragments(snapshot.blob(sha256) or b"", limit)
    return residue.sample_evenly(found, limit)
