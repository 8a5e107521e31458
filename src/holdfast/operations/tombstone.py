"""Tombstones: what replaces a message whose body is erased.

An erasure is computed twice. Data derived from messages (the search index, say) must be prepared
for the erasure, so a query first plans which messages it covers. The write computes the plan again
inside its transaction and, if the two differ, raises `StaleErasurePlan` before it writes anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final

import msgspec

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.operations import residue
from holdfast.operations.append import find_head, with_preview
from holdfast.operations.history import read_row
from holdfast.operations.positions import continue_preview, read_preview
from holdfast.operations.record_drop import required_records
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, Query, Snapshot, Transaction
from holdfast.storage.rows import BranchRow, MessageRow, RecordRow
from holdfast.titles import RANK_USER, Preview

MAX_FRAGMENTS: Final = 16
MAX_PREVIEWS: Final = 200  # that one transaction refreshes


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


class Dependants(msgspec.Struct, frozen=True):
    """The sessions, not purged, whose histories include some messages: {id: number}.

    `branches` has the branches that include them, purged ones too.
    """

    sessions: dict[str, int]
    branches: dict[int, BranchRow]


def dependants(snapshot: Snapshot, starts: Mapping[int, int]) -> Dependants:
    """Return who depends on messages: `starts` has their branches, each with its first such seq."""
    below = {branch.n: branch for branch in snapshot.branches_below(starts)}
    children: dict[int | None, list[BranchRow]] = {}
    for branch in below.values():
        children.setdefault(branch.parent, []).append(branch)
    firsts: dict[int, int] = {}
    pending = [(n, first) for n, first in starts.items() if n in below]
    while pending:
        n, first = pending.pop()
        if n not in firsts or first < firsts[n]:
            firsts[n] = first
            pending += [(child.n, 0) for child in children.get(n, ()) if child.fork_seq >= first]
    found = {n: branch for n, branch in below.items() if n in firsts}
    live = {branch.session_id: branch.session for branch in found.values() if not branch.purged}
    return Dependants(live, found)


# ---------------------------------------------------------------------------------------- previews


class Erased(msgspec.Struct, frozen=True):
    """Messages that no preview may show: of a session, or by branch the seqs of some."""

    session: int | None = None
    seqs: Mapping[int, Collection[int]] = {}


def refresh_previews(tx: Transaction, affected: Dependants, erased: Erased) -> None:
    """Recompute previews, so that no list shows erased text. Followers see this as activity."""
    previews = _Previews(tx, affected.branches, erased)
    for session in affected.sessions.values():
        head = find_head(tx, session)
        if head.branch in affected.branches:
            head = with_preview(head, previews.read(head.branch, head.seq))
        tx.put_head(head)


def in_portions(affected: Dependants) -> Iterator[Dependants]:
    """Yield the sessions whose previews one transaction refreshes."""
    names = list(affected.sessions)
    for start in range(0, len(names), MAX_PREVIEWS):
        some = names[start : start + MAX_PREVIEWS]
        yield Dependants({name: affected.sessions[name] for name in some}, affected.branches)


def refresh_portion(portion: Dependants, erased: Erased) -> Operation[list[str]]:
    """Refresh previews; return the sessions that are still on a branch that was read before."""

    def run(tx: Transaction) -> list[str]:
        heads = {name: tx.head(n) for name, n in portion.sessions.items()}
        still = [
            name
            for name, head in heads.items()
            if head is not None and head.branch in portion.branches
        ]
        sessions = {name: portion.sessions[name] for name in still}
        refresh_previews(tx, Dependants(sessions, portion.branches), erased)
        return still

    return run


class _Previews:
    """The previews of histories that share branches, each message of which is read once."""

    def __init__(
        self, snapshot: Snapshot, branches: Mapping[int, BranchRow], erased: Erased
    ) -> None:
        self._snapshot = snapshot
        self._branches = branches
        self._erased = erased
        self._inherited: dict[int, Preview] = {}  # at the message on which a branch starts
        self._known: dict[int, tuple[int, Preview]] = {}  # the last seq read of a branch

    def read(self, branch: int, seq: int) -> Preview:
        """Return the preview of a branch's history up to a message."""
        way = [branch]
        while way[-1] not in self._inherited:
            row = self._branches[way[-1]]
            if row.parent is None:
                self._inherited[row.n] = Preview()
            elif row.parent in self._branches:
                way.append(row.parent)
            else:
                self._inherited[row.n] = read_preview(self._snapshot, row.parent, row.fork_seq)
        for parent, n in pairwise(reversed(way)):
            start = self._branches[n].fork_seq
            self._inherited[n] = self._continue(self._branches[parent], start)
        return self._continue(self._branches[branch], seq)

    def _continue(self, branch: BranchRow, seq: int) -> Preview:
        """Return the preview up to a message of a branch whose start is known."""
        inherited = self._inherited[branch.n]
        if inherited.rank == RANK_USER or seq == branch.fork_seq:
            return inherited
        if branch.session == self._erased.session:
            return inherited
        last, shown = self._known.get(branch.n, (branch.fork_seq, inherited))
        if shown.seq > seq:
            last, shown = branch.fork_seq, inherited
        if last < seq:
            path = (branch.own(),)
            erased = self._erased.seqs.get(branch.n, ())
            shown = continue_preview(self._snapshot, path, (last + 1, seq), shown, erased)
            self._known[branch.n] = seq, shown
        return shown


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


def sample_session(session: int) -> Query[list[bytes]]:
    """Return fragments of what a session to purge has besides messages: names, queue, records."""

    def run(snapshot: Snapshot) -> list[bytes]:
        try:
            row, queue = snapshot.session(session), snapshot.queue(session)
            records = _unshared_records(snapshot, session)
        except Damaged:  # It is purged all the same.
            return []
        found: list[bytes] = []
        for value in () if row is None else (row.title, row.key, row.scope, row.agent, row.cwd):
            found += residue.data_fragments(codec.encode_text(value or ""), 1)
        for data in () if row is None else (row.goal, row.metadata, row.provenance):
            found += residue.body_fragments(data or b"{}", 1)
        for queued in queue[:MAX_FRAGMENTS]:
            found += residue.body_fragments(queued.body, 1)
            for _, blob in queued.blobs[:1]:
                found += residue.data_fragments(blob, 1)
        for record in records:
            found += residue.body_fragments(record.body, 1)
            for sha256 in chain(*codec.record_blob_hashes(record.body)):
                found += residue.data_fragments(snapshot.stored_blob(sha256) or b"", 1)
        return found

    return run


def _unshared_records(snapshot: Snapshot, session: int) -> list[RecordRow]:
    """Return the newest records of a session that no other one needs, a few."""
    branches = snapshot.branches(session=session)
    required = required_records(snapshot, branches)
    found: list[RecordRow] = []
    for branch in reversed(branches):
        if not snapshot.has_records(branch.n, branch.last_seq):
            continue
        most = MAX_FRAGMENTS - len(found)
        rows = [row for _, row in snapshot.records([branch.own()], limit=most)]
        found += [row for row in rows if row.number > required.get(branch.n, 0)]
        if len(found) == MAX_FRAGMENTS:
            break
    return found


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
        found += residue.data_fragments(snapshot.stored_blob(sha256) or b"", limit)
    return residue.sample_evenly(found, limit)
