"""A purge of many messages, in steps, so that no other writer waits longer than for one of them.

The first transaction turns the session into a stub: from then on no reader sees it. The stub is
*unfinished*: it is in the trash, and its key says what becomes of the messages that forks share.
Steps erase the records and then the messages of its branches, each branch from its end, so that
what is left is always the beginning of a branch. With `forks="erase"` records that forks share, and
copies of records, are erased as well, and a step replaces shared messages, and all copies of its
messages, by tombstones. The last transaction refreshes the previews that are left and makes it a
stub like any other, or deletes it.

A purge that was interrupted is continued from its stub by the next one, of whatever session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, get_args

import msgspec

from holdfast.operations.purge_rules import RequiredEnd, required_end
from holdfast.operations.records import last_record
from holdfast.operations.sessions import stub_row
from holdfast.operations.tombstone import (
    Dependants,
    Erased,
    dependants,
    refresh_previews,
    refuse_stale_plan,
    write_tombstone,
)
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, Query, Snapshot, Transaction
from holdfast.storage.rows import BranchRow, MessageRow, RecordRow, SessionRow
from holdfast.values import Forks

MAX_STEP_MESSAGES: Final = 500
_BRANCH_COST: Final = 10  # a branch, in messages that take as long to erase


class UnfinishedPurge(msgspec.Struct, frozen=True):
    """A stub that still has messages to erase."""

    n: int
    forks: Forks


class StepReport(msgspec.Struct, frozen=True):
    """What one step erased."""

    messages: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    erased_in: tuple[str, ...] = ()
    records: int = 0

    def __add__(self, other: StepReport) -> StepReport:
        """Return what both erased."""
        return StepReport(
            self.messages + other.messages,
            self.blobs + other.blobs,
            self.blob_bytes + other.blob_bytes,
            tuple(dict.fromkeys((*self.erased_in, *other.erased_in))),
            self.records + other.records,
        )


def unfinished_stub(row: SessionRow, forks: Forks, now: int) -> SessionRow:
    """Return the row of a session whose purge has begun."""
    return msgspec.structs.replace(stub_row(row, row.purged_at or now), key=forks, trashed_at=now)


def unfinished() -> Query[list[UnfinishedPurge]]:
    """Return the purges that have begun and are not finished."""

    def run(snapshot: Snapshot) -> list[UnfinishedPurge]:
        return [
            UnfinishedPurge(row.n, forks)
            for forks in get_args(Forks)
            for row in snapshot.sessions("key", forks, trashed=True, stubs=True)
            if row.purged_at is not None
        ]

    return run


# ---------------------------------------------------------------------------------------- records


def last_number(snapshot: Snapshot, branch: BranchRow, upto: int | None = None) -> int:
    """Return the number of the last record on a branch itself, up to a number; 0 without one."""
    found = last_record(snapshot, branch.own(upto), branch.last_seq)
    return 0 if found is None else found.number


def record_steps(purge: UnfinishedPurge) -> Query[list[tuple[int, range]]]:
    """Return the records to erase in steps, each as a branch and numbers on it, the last first."""

    def run(snapshot: Snapshot) -> list[tuple[int, range]]:
        return [
            (branch.n, numbers)
            for branch in reversed(snapshot.branches(session=purge.n))
            for numbers in _record_ranges(snapshot, purge, branch)
        ]

    return run


def _record_ranges(
    snapshot: Snapshot, purge: UnfinishedPurge, branch: BranchRow
) -> Iterator[range]:
    """Yield the numbers to erase on a branch; each range ends with one that was not dropped."""
    kept, last = _kept_record(snapshot, purge, branch), last_number(snapshot, branch)
    while last > kept:
        first = max(kept, last - MAX_STEP_MESSAGES) + 1
        yield range(first, last + 1)
        last = last_number(snapshot, branch, first - 1)


def _kept_record(snapshot: Snapshot, purge: UnfinishedPurge, branch: BranchRow) -> int:
    """Return the number of the last record that a purge keeps of a branch."""
    required = required_end(snapshot.branches(parent=branch.n))
    return 0 if required is None or purge.forks == "erase" else required.record


def erase_records(purge: UnfinishedPurge, n: int, numbers: range) -> Operation[StepReport]:
    """Erase records of a branch; nothing if another process has done it."""

    def run(tx: Transaction) -> StepReport:
        branch = tx.find_branch(n)
        if branch is None or _unfinished_row(tx, purge) is None:
            return StepReport()
        kept = _kept_record(tx, purge, branch)
        to_drop = {n: [number for number in numbers if number > kept]}
        if purge.forks == "erase":
            rows = [row for _, row in tx.records([branch.own(numbers[-1])], limit=len(numbers))]
            to_drop |= record_copies(tx, branch.session_id, rows)
        cuts = [tx.drop_records(at, found) for at, found in to_drop.items()]
        dropped, size = tx.drop_blobs(set[str]().union(*(cut.blobs for cut in cuts)))
        return StepReport(blobs=dropped, blob_bytes=size, records=sum(cut.records for cut in cuts))

    return run


def record_copies(
    snapshot: Snapshot, session_id: str, rows: Sequence[RecordRow]
) -> dict[int, list[int]]:
    """Return the copies of a session's records that amendments placed in its descendants.

    They are numbers by branch.
    """
    found: dict[int, list[int]] = {}
    known = {(row.id, row.kind, row.key, row.body) for row in rows}
    ids = list(dict.fromkeys(row.id for row in rows))
    for relative in snapshot.descendants(session_id) if rows else ():
        for branch in snapshot.branches(session=relative.n):
            for row in snapshot.stored_records(branch.n, ids).values():
                own = last_record(snapshot, branch.own(row.number), branch.last_seq)
                if own == row and (row.id, row.kind, row.key, row.body) in known:
                    found.setdefault(branch.n, []).append(row.number)
    return found


# --------------------------------------------------------------------------------------- messages


def steps(purge: UnfinishedPurge) -> Query[list[list[Segment]]]:
    """Return the messages to erase, newest first, in steps; a branch to delete may have none."""

    def run(snapshot: Snapshot) -> list[list[Segment]]:
        found: list[list[Segment]] = []
        cost = MAX_STEP_MESSAGES
        for part in _parts(snapshot, purge):
            size = _BRANCH_COST + (part.last or 0) - part.first + 1
            if cost + size > MAX_STEP_MESSAGES:
                found.append([])
                cost = 0
            found[-1].append(part)
            cost += size
        return found

    return run


def _parts(snapshot: Snapshot, purge: UnfinishedPurge) -> Iterator[Segment]:
    """Yield the ranges of messages to erase, the end of each branch first."""
    most = MAX_STEP_MESSAGES - _BRANCH_COST
    for branch in reversed(snapshot.branches(session=purge.n)):
        required = required_end(snapshot.branches(parent=branch.n))
        keeps = required is not None and purge.forks == "keep"
        first = required.seq if required is not None and keeps else branch.fork_seq
        for last in range(branch.last_seq, first, -most):
            yield Segment(branch.n, max(first, last - most) + 1, last, branch.session_id)
        if required is None and branch.last_seq <= first:
            yield Segment(branch.n, first + 1, first, branch.session_id)


def plan_step(purge: UnfinishedPurge, step: Sequence[Segment]) -> Query[list[Segment]]:
    """Return which messages a step erases, copies included."""
    return lambda snapshot: _Step(snapshot, purge, step).segments()


def erase_step(
    purge: UnfinishedPurge, step: Sequence[Segment], planned: Sequence[Segment] | None
) -> Operation[StepReport]:
    """Erase the messages of a step; nothing if another process has done it."""

    def run(tx: Transaction) -> StepReport:
        if _unfinished_row(tx, purge) is None:
            return StepReport()
        found = _Step(tx, purge, step)
        refuse_stale_plan(planned, found.segments())
        return found.erase(tx)

    return run


class _Step:
    """One step of a purge, as one snapshot has it."""

    def __init__(self, snapshot: Snapshot, purge: UnfinishedPurge, step: Sequence[Segment]) -> None:
        self._snapshot = snapshot
        branches = ((part, snapshot.find_branch(part.branch)) for part in step)
        self._parts = [(part, branch) for part, branch in branches if branch is not None]
        self._rows = self._read_rows() if purge.forks == "erase" else []
        self._copies = self._find_copies()

    def _read_rows(self) -> list[tuple[Segment, list[MessageRow]]]:
        parts = [part for part, _ in self._parts if part.first <= (part.last or 0)]
        read = self._snapshot.messages(parts)
        return [(part, rows) for part, (_, rows) in zip(parts, read, strict=True)]

    def _find_copies(self) -> list[tuple[int, str, MessageRow]]:
        """Return the copies of these messages in descendants of the session."""
        ids = [row.id for _, rows in self._rows for row in rows]
        if not ids:
            return []
        owner = self._parts[0][0].session_id
        relatives = [row.n for row in self._snapshot.descendants(owner)]
        owners: dict[int, str] = {}
        found = self._snapshot.stored_in_sessions(relatives, ids)
        for n, _ in found:
            if n not in owners:
                branch = self._snapshot.find_branch(n)
                owners[n] = "" if branch is None else branch.session_id
        return [(n, owners[n], row) for n, row in found]

    def segments(self) -> list[Segment]:
        parts = [part for part, _ in self._parts if part.first <= (part.last or 0)]
        parts += [Segment(n, row.seq, row.seq, owner) for n, owner, row in self._copies]
        return sorted(dict.fromkeys(parts), key=lambda part: (part.branch, part.first))

    def erase(self, tx: Transaction) -> StepReport:
        blobs: set[str] = set()
        starts: dict[int, int] = {}
        for n, owner, copy in self._copies:
            blobs |= write_tombstone(tx, n, owner, copy)
            starts[n] = min(copy.seq, starts.get(n, copy.seq))
        affected = dependants(tx, starts)
        refresh_previews(tx, affected, Erased())
        rows = dict(self._rows)
        erased = 0
        for part, branch in self._parts:
            required = required_end(tx.branches(parent=branch.n))
            for row in rows.get(part, ()):
                if required is not None and row.seq <= required.seq:
                    blobs |= write_tombstone(tx, part.branch, part.session_id, row)
                    erased += 1
            erased += self._cut(tx, part, branch, required, blobs)
        dropped, size = tx.drop_blobs(blobs)
        return StepReport(erased, dropped, size, tuple(affected.sessions))

    def _cut(
        self,
        tx: Transaction,
        part: Segment,
        branch: BranchRow,
        required: RequiredEnd | None,
        blobs: set[str],
    ) -> int:
        """Erase the end of a branch that no fork needs, and the branch with its first message."""
        end = part.first - 1 if required is None else max(required.seq, part.first - 1)
        if required is None and part.first == branch.fork_seq + 1:
            cut = tx.cut_branch(branch.n, None)
            _release_parent(tx, branch)
        elif end < branch.last_seq:
            cut = tx.cut_branch(branch.n, end, 0 if required is None else required.record)
        else:
            return 0
        blobs |= cut.blobs
        return cut.messages


def _release_parent(tx: Transaction, branch: BranchRow) -> None:
    """Purge what a stub kept for a branch that is deleted."""
    parent = None if branch.parent is None else tx.find_branch(branch.parent)
    if parent is None or not parent.purged:
        return
    for row in tx.sessions("n", parent.session, stubs=True):
        if row.trashed_at is None:
            tx.put_session(unfinished_stub(row, "keep", tx.now()))


# --------------------------------------------------------------------------------------- finishing


def sharing(purge: UnfinishedPurge) -> Query[Dependants]:
    """Return the sessions that show tombstones of this purge."""

    def run(snapshot: Snapshot) -> Dependants:
        own = snapshot.branches(session=purge.n) if purge.forks == "erase" else []
        return dependants(snapshot, {branch.n: 0 for branch in own})

    return run


def finish(purge: UnfinishedPurge, refreshed: Collection[str]) -> Operation[tuple[str, ...] | None]:
    """Finish a purge whose messages are erased; return the sessions that show tombstones of it.

    Return `None`, and change nothing, if messages are left.
    """

    def run(tx: Transaction) -> tuple[str, ...] | None:
        row = _unfinished_row(tx, purge)
        if row is None:
            return ()
        branches = tx.branches(session=purge.n)
        if any(_is_unfinished(tx, purge, branch) for branch in branches):
            return None
        affected = sharing(purge)(tx)
        late = {name: n for name, n in affected.sessions.items() if name not in refreshed}
        refresh_previews(tx, Dependants(late, affected.branches), Erased(purge.n))
        if branches:
            tx.put_session(stub_row(row, row.purged_at or tx.now()))
        else:
            tx.drop_session(purge.n)
        return tuple(affected.sessions)

    return run


def _is_unfinished(tx: Transaction, purge: UnfinishedPurge, branch: BranchRow) -> bool:
    """True if a branch has messages or records that are to be erased."""
    required = required_end(tx.branches(parent=branch.n))
    if (0 if required is None else required.seq) < branch.last_seq:
        return True
    return last_number(tx, branch) > _kept_record(tx, purge, branch)


def _unfinished_row(tx: Transaction, purge: UnfinishedPurge) -> SessionRow | None:
    rows = tx.sessions("n", purge.n, trashed=True, stubs=True)
    return next((row for row in rows if row.purged_at is not None), None)
