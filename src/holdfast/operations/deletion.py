"""Trash, restore, purge.

Trash only hides a session: it sets one mark and frees the key. Purge erases it. What forks share
with a purged session stays as long as a fork does, records, too: the session becomes a *stub*,
without an identity or anything of its own, with the branches that forks need, up to where they need
them, and is deleted with the last fork. With `forks="erase"` the shared messages become tombstones
instead, and the shared records are erased. A purge of much only begins here: `purge_steps` has the
rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Final, get_args

import msgspec

from holdfast.errors import BadQuery, KeyTaken, SessionNotFound
from holdfast.operations.append import check_expected_head, find_head, to_head
from holdfast.operations.purge_rules import RequiredEnd, required_end
from holdfast.operations.purge_steps import (
    MAX_STEP_MESSAGES,
    StepReport,
    last_number,
    record_copies,
    unfinished_stub,
)
from holdfast.operations.queries import describe
from holdfast.operations.sessions import stub_row
from holdfast.operations.tombstone import (
    Erased,
    dependants,
    refresh_previews,
    refuse_stale_plan,
    write_tombstone,
)
from holdfast.operations.turns import require_free_head
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, Query, Snapshot, Transaction
from holdfast.storage.rows import BranchRow, MessageRow, SessionRow
from holdfast.values import Forks, Head, PurgeReport, SessionInfo

_PAGE_MESSAGES: Final = 500


def trash(session: int, *, expect: Head | None = None) -> Operation[SessionInfo]:
    """Move a session to the trash and free its key, if its head is the expected one.

    One that is in the trash already stays there, whatever is expected.
    """

    def run(tx: Transaction) -> SessionInfo:
        row = _require_row(tx, session)
        if row.trashed_at is not None:
            return _info(tx, row)
        if expect is not None:
            check_expected_head(expect, to_head(find_head(tx, session)))
        trashed = msgspec.structs.replace(row, trashed_at=tx.now())
        tx.put_session(trashed)
        return _info(tx, trashed)

    return run


def restore(session: int, *, keyless: bool) -> Operation[SessionInfo]:
    """Take a session out of the trash; with `keyless`, without the key it had."""

    def run(tx: Transaction) -> SessionInfo:
        row = _require_row(tx, session)
        if row.trashed_at is None:
            return _info(tx, row)
        key = None if keyless else row.key
        taken = None if key is None else tx.find_session(key=key)
        if taken is not None:
            raise KeyTaken(
                f"session {taken.id} now has this session's key; nothing was restored. Restore it "
                "with keyless=True, or move the other session to the trash first."
            )
        restored = msgspec.structs.replace(row, trashed_at=None, key=key)
        tx.put_session(restored)
        return _info(tx, restored)

    return run


def _info(tx: Transaction, row: SessionRow) -> SessionInfo:
    return describe(tx, row, find_head(tx, row.n))


def check_forks(forks: object) -> None:
    """Raise `BadQuery` unless `forks` is one of the documented choices."""
    if forks not in get_args(Forks):
        raise BadQuery(f"forks: must be one of {', '.join(get_args(Forks))}")


def plan_erasure(session: int, *, forks: Forks) -> Query[list[Segment]]:
    """Return which messages a purge erases."""

    def run(snapshot: Snapshot) -> list[Segment]:
        row = snapshot.session(session)
        plan = None if row is None else _PurgePlan(snapshot, row, forks)
        return [] if plan is None or plan.is_large else plan.segments()

    return run


def purge(
    session: int,
    session_id: str,
    *,
    forks: Forks,
    planned: Sequence[Segment] | None = None,
    expect: Head | None = None,
) -> Operation[PurgeReport]:
    """Erase a session, if its head is the expected one.

    If it no longer exists, the report counts nothing, whatever is expected. If a plan is given,
    raise `StaleErasurePlan` unless it is still right. The partial reply of an interrupted turn is
    erased as well. If there are too many messages for one transaction, the session becomes an
    unfinished stub, which `purge_steps` empties.
    """

    def run(tx: Transaction) -> PurgeReport:
        row = tx.session(session)
        if row is None:
            return _empty_report(session_id)
        head = find_head(tx, session)
        check_expected_head(expect, to_head(head))
        plan = _PurgePlan(tx, row, forks)
        if planned is not None:
            refuse_stale_plan(planned, [] if plan.is_large else plan.segments())
        if require_free_head(tx, head) != head:
            plan = _PurgePlan(tx, row, forks)  # A recovered reply is erased, too.
        return _begin(tx, plan) if plan.is_large else _Purge(tx, plan).run()

    return run


def add_steps(report: PurgeReport, steps: StepReport) -> PurgeReport:
    """Return the report of a purge with what its steps erased."""
    return msgspec.structs.replace(
        report,
        messages=report.messages + steps.messages,
        records=report.records + steps.records,
        erased_in=tuple(dict.fromkeys((*report.erased_in, *steps.erased_in))),
        blobs=report.blobs + steps.blobs,
        blob_bytes=report.blob_bytes + steps.blob_bytes,
    )


def _empty_report(session_id: str) -> PurgeReport:
    return PurgeReport(
        session_id=session_id,
        messages=0,
        kept=0,
        kept_for=(),
        erased_in=(),
        turns=0,
        drafts=0,
        queued=0,
        blobs=0,
        blob_bytes=0,
        pending=(),
    )


class _PurgePlan:
    """Computes what a purge erases of a session, and what it must keep for forks."""

    def __init__(self, snapshot: Snapshot, row: SessionRow, forks: Forks) -> None:
        self._snapshot = snapshot
        self.row = row
        self.erase_shared = forks == "erase"
        self._owners: dict[int, str] = {}
        self.own_branches = snapshot.branches(session=row.n)
        self.touched, self.required = _requirements(snapshot, self.own_branches)
        self.kept_branches = [branch for branch in self.own_branches if branch.n in self.required]

    @cached_property
    def is_large(self) -> bool:
        """Whether there are too many messages, records or branches for one transaction."""
        count = len(self.touched)
        for branch in self.touched:
            count += branch.last_seq - branch.fork_seq
            if count <= MAX_STEP_MESSAGES:
                count += last_number(self._snapshot, branch)
        return count > MAX_STEP_MESSAGES

    def last_kept_seq(self, branch: BranchRow) -> int:
        """Return the last seq that must stay of a branch of a purged session."""
        required = self.required.get(branch.n)
        return branch.fork_seq if required is None else required.seq

    def last_kept_record(self, branch: BranchRow) -> int:
        """Return the number of the last record that must stay of a branch."""
        required = self.required.get(branch.n)
        is_erased = self.erase_shared and branch.session == self.row.n
        return 0 if required is None or is_erased else required.record

    @property
    def kept(self) -> int:
        """How many messages forks share."""
        return sum(self.last_kept_seq(branch) - branch.fork_seq for branch in self.kept_branches)

    @cached_property
    def copies(self) -> list[tuple[int, str, MessageRow]]:
        """The copies of this session's messages that a replace stored in a descendant.

        Each is a branch, the id of the session that wrote it, and the row.
        """
        return list(self._find_copies())

    def _find_copies(self) -> Iterator[tuple[int, str, MessageRow]]:
        relatives = [row.n for row in self._snapshot.descendants(self.row.id)]
        for branch in self.own_branches if relatives else ():
            for rows in self.pages(branch, branch.last_seq):
                names = [row.id for row in rows]
                for n, copy in self._snapshot.stored_in_sessions(relatives, names):
                    yield n, self._owner(n), copy

    def record_copies(self) -> dict[int, list[int]]:
        """Return the copies of this session's records in descendants, as numbers by branch."""
        rows = [
            row
            for branch in self.own_branches
            if self._snapshot.has_records(branch.n, branch.last_seq)
            for _, row in self._snapshot.records([branch.own()])
        ]
        return record_copies(self._snapshot, self.row.id, rows)

    def _owner(self, n: int) -> str:
        if n not in self._owners:
            branch = self._snapshot.find_branch(n)
            self._owners[n] = "" if branch is None else branch.session_id
        return self._owners[n]

    def pages(self, branch: BranchRow, last: int) -> Iterator[list[MessageRow]]:
        """Yield a branch's own messages, a page at a time."""
        for first in range(branch.fork_seq + 1, last + 1, _PAGE_MESSAGES):
            span = Segment(
                branch.n, first, min(last, first + _PAGE_MESSAGES - 1), branch.session_id
            )
            for _, rows in self._snapshot.messages([span]):
                yield rows

    def segments(self) -> list[Segment]:
        """Return all messages whose bodies are erased."""
        found = []
        for branch in self.touched:
            all_of_it = self.erase_shared and branch.session == self.row.n
            kept = branch.fork_seq if all_of_it else self.last_kept_seq(branch)
            if kept < branch.last_seq:
                found.append(Segment(branch.n, kept + 1, branch.last_seq, branch.session_id))
        if self.erase_shared:
            found += [Segment(n, row.seq, row.seq, owner) for n, owner, row in self.copies]
        return sorted(dict.fromkeys(found), key=lambda span: (span.branch, span.first))


def _begin(tx: Transaction, plan: _PurgePlan) -> PurgeReport:
    """Turn a session into an unfinished stub; the report lacks what the steps erase."""
    sharing = dependants(tx, {branch.n: 0 for branch in plan.own_branches})
    sharing.sessions.pop(plan.row.id, None)
    active = plan.own_branches[-1]
    tx.end_branch(active.n, active.last_seq)
    dropped = tx.drop_session_rows(plan.row.n)
    tx.put_session(unfinished_stub(plan.row, "erase" if plan.erase_shared else "keep", tx.now()))
    return msgspec.structs.replace(
        _empty_report(plan.row.id),
        kept=0 if plan.erase_shared else plan.kept,
        kept_for=() if plan.erase_shared else tuple(sharing.sessions),
        turns=dropped.turns,
        drafts=dropped.drafts,
        queued=dropped.queued,
    )


class _Purge:
    """Purges one session within one transaction."""

    def __init__(self, tx: Transaction, plan: _PurgePlan) -> None:
        self._tx = tx
        self._plan = plan
        self._row = plan.row
        self._blobs: set[str] = set()

    def run(self) -> PurgeReport:
        """Erase, and return a report of it."""
        plan = self._plan
        starts = {branch.n: 0 for branch in plan.own_branches}
        copies = plan.record_copies() if plan.erase_shared else {}
        if plan.erase_shared:
            starts |= self._tombstone_copies()
        sharing = dependants(self._tx, starts)
        sharing.sessions.pop(self._row.id, None)
        messages, records = self._erase_unshared()
        for branch, numbers in copies.items():
            cut = self._tx.drop_records(branch, numbers)
            records += cut.records
            self._blobs |= cut.blobs
        if plan.erase_shared:
            self._tombstone_shared()
        dropped = self._tx.drop_session_rows(self._row.n)
        self._drop_sessions()
        if plan.erase_shared:
            refresh_previews(self._tx, sharing, Erased(self._row.n))
        blobs, size = self._tx.drop_blobs(self._blobs)
        return PurgeReport(
            session_id=self._row.id,
            messages=messages + (plan.kept if plan.erase_shared else 0),
            records=records,
            kept=0 if plan.erase_shared else plan.kept,
            kept_for=() if plan.erase_shared else tuple(sharing.sessions),
            erased_in=tuple(sharing.sessions) if plan.erase_shared else (),
            turns=dropped.turns,
            drafts=dropped.drafts,
            queued=dropped.queued,
            blobs=blobs,
            blob_bytes=size,
            pending=(),
        )

    def _erase_unshared(self) -> tuple[int, int]:
        """Erase what stays for no fork, of stubs that were kept for this session, too; count it."""
        messages = records = 0
        for branch in self._plan.touched:
            end = self._plan.last_kept_seq(branch) if branch.n in self._plan.required else None
            cut = self._tx.cut_branch(branch.n, end, self._plan.last_kept_record(branch))
            messages += cut.messages
            records += cut.records
            self._blobs |= cut.blobs
        return messages, records

    def _drop_sessions(self) -> None:
        """Delete purged sessions without branches; turn this one into a stub if it keeps some."""
        for session in {branch.session for branch in self._plan.touched} | {self._row.n}:
            if not self._tx.branches(session=session):
                self._tx.drop_session(session)
        if self._plan.kept_branches:
            self._tx.put_session(stub_row(self._row, self._tx.now()))

    def _tombstone_shared(self) -> None:
        """Replace messages that forks share by tombstones."""
        for branch in self._plan.kept_branches:
            for rows in self._plan.pages(branch, self._plan.last_kept_seq(branch)):
                for row in rows:
                    self._blobs |= write_tombstone(self._tx, branch.n, branch.session_id, row)

    def _tombstone_copies(self) -> dict[int, int]:
        """Replace the copies of messages by tombstones; return {branch: lowest seq} of them."""
        first_seqs: dict[int, int] = {}
        for n, owner, copy in self._plan.copies:
            self._blobs |= write_tombstone(self._tx, n, owner, copy)
            first_seqs[n] = min(copy.seq, first_seqs.get(n, copy.seq))
        return first_seqs


def _requirements(
    snapshot: Snapshot, purged: Sequence[BranchRow]
) -> tuple[list[BranchRow], dict[int, RequiredEnd]]:
    """Return the branches that a purge shortens or deletes, newest first, and what stays of each.

    These are the branches of the session to purge, and those of stubs that were kept only for one
    that is deleted: what is required of all others is unchanged.
    """
    touched: list[BranchRow] = []
    required: dict[int, RequiredEnd] = {}
    known, deleted = {branch.n: branch for branch in purged}, set[int]()
    pending = [-n for n in known]
    heapify(pending)  # A branch is newer than the one it starts on, and decided before it.
    while pending:
        branch = known[-heappop(pending)]
        touched.append(branch)
        end = required_end(b for b in snapshot.branches(parent=branch.n) if b.n not in deleted)
        if end is not None:
            required[branch.n] = end
            continue
        deleted.add(branch.n)
        parent = None if branch.parent is None else snapshot.find_branch(branch.parent)
        if parent is not None and parent.purged and parent.n not in known:
            known[parent.n] = parent
            heappush(pending, -parent.n)
    return touched, required


def _require_row(tx: Transaction, session: int) -> SessionRow:
    row = tx.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store; nothing was changed.")
    return row
