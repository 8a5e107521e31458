"""Copying sessions from another store (the source) into this one (the target), incrementally.

A session that the target has already is an *earlier copy* if it could be an earlier state of the
source's session: the same branches or fewer, with the same messages or fewer, turns that ended the
same way, no usage and no queued input that the source lacks. Then records that were dropped in the
source are dropped, what is new there is added, and the identity (key, title, metadata, goal, marks)
is taken from the source. Any other session under the same id is refused before anything is written:
no history is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast import codec
from holdfast.errors import Diverged
from holdfast.operations.append import find_head
from holdfast.operations.record_drop import required_records
from holdfast.operations.session_import import (
    ImportedMessage,
    ImportedRecord,
    ImportedSession,
    ImportResult,
    NewBranch,
    NewTurn,
    RecordIdentity,
    SessionSource,
    SessionWriter,
    StoredFamily,
    first_difference,
    key_holder,
    key_holders,
    record_identity,
    stored_records,
)
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import BranchRow, QueueRow, SessionRow, TurnRow, UsageRow
from holdfast.values import Damage, MeasuredTokens, Usage


class CopySource(SessionSource, Protocol):
    """A source of sessions whose contents can be read one kind at a time."""

    def messages(self, session: ImportedSession) -> Iterator[ImportedMessage]:
        """Yield the messages of each branch."""
        ...

    def records(self, session: ImportedSession) -> Iterator[ImportedRecord]:
        """Yield the records of each branch."""
        ...

    def turns(self, session: ImportedSession) -> Iterator[NewTurn]:
        """Yield the turns."""
        ...

    def usage(self, session: ImportedSession) -> list[UsageRow]:
        """Return the usage, by day and model."""
        ...

    def queue(self, session: ImportedSession) -> Iterator[QueueRow]:
        """Yield the queued input."""
        ...

    def has_message(self, session: ImportedSession, id: str) -> bool:
        """True if any branch of a session has a message with this id."""
        ...

    def has_store_record(self, id: str) -> bool:
        """True if the source has a record of the store with this id, or had it."""
        ...


class CopyResult(msgspec.Struct):
    """The sessions that were added to the target, those brought up to date, and the damage."""

    added: list[str]
    renewed: list[str]
    damage: list[Damage]


def copy_sessions(
    families: Sequence[Sequence[ImportedSession]],
    source: CopySource,
    is_copied: Callable[[str], bool],
) -> Operation[CopyResult]:
    """Copy families of sessions; raise `Diverged` if one of them is not an earlier copy here.

    `is_copied` returns for an id whether that session is copied too, now or later.
    """
    attempted: set[str] = set()

    def run(tx: Transaction) -> CopyResult:
        sessions = [session for family in families for session in family]
        existing = _lock_existing(tx, [session.source_id for session in sessions])
        refuse_diverged(tx, sessions, source, is_copied)
        # If an earlier attempt seemed to fail but was stored, its sessions count as added.
        stored = [
            s.source_id for s in sessions if s.source_id in attempted and existing[s.source_id]
        ]
        result = CopyResult(stored, [], [])
        attempted.update(
            s.source_id for s in sessions if not s.is_stub and not existing[s.source_id]
        )
        rows = [session.row for session in sessions]
        taken = {row.key for row in key_holders(tx, rows).values()}
        free_keys = {row.key for row in rows if row.key is not None} - taken
        for family in families:
            _FamilyCopy(tx, source, existing, result, is_copied, free_keys=free_keys).run(family)
        return result

    return run


def drop_gone_records(
    sessions: Sequence[ImportedSession], source: CopySource, is_copied: Callable[[str], bool]
) -> Operation[list[str]]:
    """Drop the records that the source dropped since an earlier copy; return of which sessions.

    What forks of the target need stays. It reads other sessions, so it must be `exclusive`.
    """

    def run(tx: Transaction) -> list[str]:
        _lock_existing(tx, [session.source_id for session in sessions])
        refuse_diverged(tx, sessions, source, is_copied)
        dropped: list[str] = []
        unused: set[str] = set()
        for session in sessions:
            gone = gone_records(tx, session, source)
            for branch, numbers in gone.items():
                unused |= tx.drop_records(branch, numbers).blobs
            dropped += [session.source_id] if gone else []
        if unused:
            tx.drop_blobs(unused)
        return dropped

    return run


def gone_records(
    snapshot: Snapshot, session: ImportedSession, source: CopySource
) -> dict[int, set[int]]:
    """Return the records, by branch and number, that only an earlier copy has and no fork needs."""
    row = snapshot.find_session(id=session.source_id)
    if row is None or session.is_stub:
        return {}
    rows = snapshot.branches(session=row.n)
    stored = [
        (branch.number, row.n, stored_records(snapshot, branch.own(row.n)).keys())
        for branch, row in zip(session.branches, rows, strict=False)
    ]
    if not any(numbers for _, _, numbers in stored):
        return {}
    coming = _identities_by_branch(source.records(session))
    required = required_records(snapshot, rows)
    found: dict[int, set[int]] = {}
    for number, branch, numbers in stored:
        gone = numbers - coming.get(number, {}).keys()
        gone = {one for one in gone if one > required.get(branch, 0)}
        if gone:
            found[branch] = gone
    return found


def _lock_existing(tx: Transaction, names: Sequence[str]) -> dict[str, SessionRow | None]:
    """Return the sessions that exist here, with their rows locked until the commit.

    They are locked in order of their numbers, so that concurrent copies do not deadlock.
    """
    found_rows = tx.sessions_by_id(list(names))
    rows = {name: found_rows.get(name) for name in names}
    found = [(row.n, name) for name, row in rows.items() if row is not None and not row.purged_at]
    for n, name in sorted(found):
        rows[name] = tx.session(n)
    return rows


def refuse_diverged(
    snapshot: Snapshot,
    sessions: Sequence[ImportedSession],
    source: CopySource,
    is_copied: Callable[[str], bool],
) -> None:
    """Raise `Diverged` if a session exists here and is not an earlier copy, or its key is taken."""
    reasons: dict[str | None, str] = {}
    existing = snapshot.sessions_by_id([session.source_id for session in sessions])
    holders = key_holders(snapshot, [session.row for session in sessions])
    for session in sessions:
        row, taken = existing.get(session.source_id), holders.get(session.row.id)
        why = None if row is None else _Comparison(snapshot, session, row, source).divergence()
        if why is None and taken is not None and not is_copied(taken.id):
            why = f"session {taken.id} has its key in the target"
        if why is not None:
            reasons[session.source_id] = why
    if reasons:
        raise Diverged(reasons)


# ------------------------------------------------------------------------------------- comparing


class _Comparison:
    """Compares a session of the source with the one of the same id in the target."""

    def __init__(
        self, snapshot: Snapshot, session: ImportedSession, row: SessionRow, source: CopySource
    ) -> None:
        self._snapshot = snapshot
        self._session = session
        self._row = row
        self._source = source
        self._branches = {branch.number: branch for branch in snapshot.branches(session=row.n)}

    def divergence(self) -> str | None:
        """Return why the target's session is not an earlier copy; `None` if it is one."""
        session, row = self._session, self._row
        if session.is_stub and row.purged_at is None:
            return "it was purged in the source; purge it in the target as well"
        if row.purged_at is not None and not session.is_stub:
            return "it was purged in the target"
        if row.created_at != session.row.created_at:
            return "it is a different session with the same id"
        return self._history_divergence() or (None if session.is_stub else self._state_divergence())

    def _history_divergence(self) -> str | None:
        coming = {branch.number: branch for branch in self._session.branches}
        # A stub here may have more branches than the forks in the source still need.
        both = coming.keys() & self._branches.keys()
        if both != (coming if self._session.is_stub else self._branches).keys():
            return "its branches differ from those in the source"
        for number in both:
            if not _is_same_branch(self._snapshot, self._branches[number], coming[number]):
                return f"branch {number} starts at another position than in the source"
        reach = {number: self._branches[number].last_seq for number in both}
        if any(reach[n] < coming[n].last_seq for n in both) and self._session.is_stub:
            return "some messages that its forks share are missing in the target"
        if any(reach[n] > coming[n].last_seq for n in both) and not self._session.is_stub:
            return "it has messages that the source does not have"
        shared = [_truncated(coming[n], reach[n]) for n in sorted(both)]
        return self._message_divergence(shared) or self._record_divergence(
            [coming[n] for n in sorted(both)]
        )

    def _record_divergence(self, branches: Sequence[NewBranch]) -> str | None:
        """Return why the records are not those of an earlier copy; some may have been dropped."""
        coming = _identities_by_branch(self._source.records(self._session))
        for branch in branches:
            found = coming.get(branch.number, {})
            stored = stored_records(self._snapshot, branch.own(self._branches[branch.number].n))
            for number, identity in found.items():
                if identity is not None and stored.get(number, identity) != identity:
                    return f"record {number} differs from the one in the source"
                if identity is not None and number not in stored and self._session.is_stub:
                    return "some records that its forks share are missing in the target"
            # Only the newest branch can have got records here: those that the source never had.
            newest = max((*found, self._newest_record(branch.number)), default=0)
            if branch.number == max(self._branches) and any(one > newest for one in stored):
                return "it has records that the source does not have"
        return None

    def _newest_record(self, number: int) -> int:
        """Return the highest number that a record of a branch is known to have had."""
        branches = self._session.branches
        if number == branches[-1].number:
            return self._session.newest_record
        own = (self._session.source_id, number)
        return max((one.fork_record or 0 for one in branches if one.parent == own), default=0)

    def _message_divergence(self, branches: Sequence[NewBranch]) -> str | None:
        shared = msgspec.structs.replace(self._session, branches=tuple(branches))
        other = first_difference(self._snapshot, self._source.messages(shared), self._branches)
        if other is None:
            return None
        if codec.is_tombstone(other.row.body):
            return (
                f"message {other.row.seq} was erased in the source; erase it in the target as well"
            )
        return f"message {other.row.seq} differs from the one in the source"

    def _state_divergence(self) -> str | None:
        head = self._snapshot.head(self._row.n)
        if head is None:
            return "it cannot be read in the target"
        if head.turns > self._session.turns or head.updated_at > self._session.updated_at:
            return "it was written to in the target"
        for turn in self._source.turns(self._session):
            if turn.row.number <= head.turns and not self._is_same_turn(turn):
                return f"turn {turn.row.number} differs from the one in the source"
        if not self._has_no_extra_usage():
            return "it has usage that the source does not have"
        waiting = {row.id for row in self._source.queue(self._session)}
        for row in self._snapshot.queue(self._row.n):
            if row.id not in waiting and not self._source.has_message(self._session, row.id):
                return "it has queued input that the source does not have"
        return None

    def _is_same_turn(self, turn: NewTurn) -> bool:
        """True if the turn here is the same, or was opened by the same call and is still open."""
        row = self._snapshot.turn(self._row.n, turn.row.number)
        if row is None or row.state == "open":
            return row is not None and row.token == turn.row.token
        return without_lease(row) == turn.row

    def _has_no_extra_usage(self) -> bool:
        coming = {(row.day, row.model): _counts(row) for row in self._source.usage(self._session)}
        for row in self._snapshot.usage(session=self._row.n):
            counts = coming.get((row.day, row.model))
            if counts is None or any(map(int.__gt__, _counts(row), counts)):
                return False
        return True


def _identities_by_branch(
    items: Iterable[ImportedRecord],
) -> dict[int, dict[int, RecordIdentity | None]]:
    """Return what tells records apart, by branch and number; `None` for one that cannot be read."""
    found: dict[int, dict[int, RecordIdentity | None]] = {}
    for item in items:
        identity = None if item.lost else record_identity(item.row)
        found.setdefault(item.branch, {})[item.row.number] = identity
    return found


def _is_same_branch(snapshot: Snapshot, row: BranchRow, branch: NewBranch) -> bool:
    """True if a branch of the target is the same as one of the source, except for its end."""
    parent = None if row.parent is None else snapshot.find_branch(row.parent)
    parent_key = None if parent is None else (parent.session_id, parent.number)
    start = (parent_key, row.fork_seq, row.fork_record, row.asked_seq, row.reason, row.token)
    return start == (
        branch.parent,
        branch.fork_seq,
        branch.fork_record,
        branch.asked_seq,
        branch.reason,
        branch.token,
    )


def _truncated(branch: NewBranch, last_seq: int) -> NewBranch:
    return msgspec.structs.replace(branch, last_seq=min(branch.last_seq, last_seq))


def without_lease(row: TurnRow) -> TurnRow:
    """Return a turn without its lease, which is valid only in the store where it was given."""
    row = msgspec.structs.replace(row, session=0)
    if row.state != "open":
        return row
    holder = msgspec.structs.replace(row.holder, lease=None)
    return msgspec.structs.replace(row, holder=holder, lease_until=0)


def _counts(row: UsageRow) -> tuple[int, ...]:
    used, measured = msgspec.structs.astuple(row.usage), msgspec.structs.astuple(row.measured)
    return (*used, row.cost, *measured)


# ----------------------------------------------------------------------------------------- storing


class _FamilyCopy:
    """Copies one family of sessions."""

    def __init__(
        self,
        tx: Transaction,
        source: CopySource,
        rows: Mapping[str, SessionRow | None],
        result: CopyResult,
        is_copied: Callable[[str], bool],
        *,
        free_keys: set[str],
    ) -> None:
        self._tx = tx
        self._source = source
        self._existing = rows
        self._result = result
        self._is_copied = is_copied
        self._stored = StoredFamily(free_keys=free_keys)
        self._import_result = ImportResult(damage=result.damage)

    def run(self, family: Sequence[ImportedSession]) -> None:
        """Add the sessions that are missing here, and update the others."""
        for session in family:
            existing = self._existing[session.source_id]
            if existing is None:
                self._free_key(session.row)
                SessionWriter(
                    self._tx,
                    session,
                    self._source,
                    self._stored,
                    self._import_result,
                    keep_open_turn=True,
                ).run()
                if not session.is_stub:
                    self._result.added.append(session.source_id)
                continue
            self._stored.branches |= {
                (session.source_id, branch.number): branch.n
                for branch in self._tx.branches(session=existing.n)
            }
            if not self._is_up_to_date(session, existing):
                self._free_key(session.row)
                _SessionUpdate(
                    self._tx,
                    session,
                    self._source,
                    self._stored,
                    self._import_result,
                    existing=existing,
                ).run()
                if session.source_id not in self._result.added:
                    self._result.renewed.append(session.source_id)

    def _is_up_to_date(self, session: ImportedSession, existing: SessionRow) -> bool:
        """True if nothing can be new: heads and rows are equal, and no turn is open."""
        if session.is_stub:
            return True
        head = find_head(self._tx, existing.n)
        ends = [
            (branch.number, branch.last_seq) for branch in self._tx.branches(session=existing.n)
        ]
        return (
            head.open_turn is None
            and (head.turns, head.updated_at) == (session.turns, session.updated_at)
            and ends == [(branch.number, branch.last_seq) for branch in session.branches]
            and (head.records or 0) == session.newest_record
            and msgspec.structs.replace(existing, n=session.row.n) == session.row
        )

    def _free_key(self, row: SessionRow) -> None:
        """Remove the key from the session that has it here, if that one is copied as well.

        Its row is locked and read again first: another session may have taken the key by now.
        """
        taken = None if row.key in self._stored.free_keys else key_holder(self._tx, row)
        if taken is None or not self._is_copied(taken.id):
            return
        locked = self._tx.session(taken.n)
        if locked is not None and locked.key == row.key and locked.trashed_at is None:
            self._tx.put_session(msgspec.structs.replace(locked, key=None))


class _SessionUpdate(SessionWriter):
    """Stores what is new in a session that exists here."""

    def __init__(
        self,
        tx: Transaction,
        session: ImportedSession,
        source: SessionSource,
        stored: StoredFamily,
        result: ImportResult,
        *,
        existing: SessionRow,
    ) -> None:
        super().__init__(tx, session, source, stored, result, keep_open_turn=True)
        self._n = existing.n
        stored_branches = tx.branches(session=existing.n)
        self._stored_seqs = {branch.number: branch.last_seq for branch in stored_branches}
        self._stored_records = {
            row.number: set(stored_records(tx, branch.own(row.n)))
            for row, branch in zip(stored_branches, session.branches, strict=False)
        }
        self._stored_usage = {(row.day, row.model): row for row in tx.usage(session=existing.n)}

    def _store_row_and_branches(self) -> None:
        """Update the row, add new branches, and drop queue and draft, to be stored again."""
        head = find_head(self._tx, self._n)
        if head.open_turn is not None:
            self._tx.drop_draft(self._n, head.open_turn)
        for waiting in self._tx.queue(self._n):
            self._tx.drop_queued(self._n, waiting.number)
        self._tx.put_session(msgspec.structs.replace(self._session.row, n=self._n))
        for branch in self._session.branches:
            if branch.number not in self._stored_seqs:
                start = self._start(branch)
                n = self._tx.add_branch(self._n, branch.number, start, branch.created_at)
                self._stored.branches[self._session.source_id, branch.number] = n
        self._last_seqs |= self._stored_seqs

    def _store_messages(self, batch: Sequence[ImportedMessage]) -> None:
        stored = self._stored_seqs.get(batch[0].branch, 0)
        fresh = [item for item in batch if item.row.seq > stored]
        if fresh:
            super()._store_messages(fresh)

    def _store_records(self, batch: Sequence[ImportedRecord]) -> None:
        stored = self._stored_records.get(batch[0].branch, set())
        fresh = [item for item in batch if item.row.number not in stored]
        if fresh:
            super()._store_records(fresh)

    def _store_turn(self, turn: NewTurn) -> None:
        stored = self._tx.turn(self._n, turn.row.number)
        if stored is None or stored.state == "open":  # Closed turns are equal on both sides.
            super()._store_turn(turn)

    def _store_usage(self, row: UsageRow) -> None:
        """Add the usage that is missing here, and a new row even if all of it is zero."""
        before = self._stored_usage.get((row.day, row.model))
        if before is None:
            self._tx.add_usage(self._n, row)
            return
        *used, cost, counted, estimated = map(int.__sub__, _counts(row), _counts(before))
        more = UsageRow(row.day, row.model, Usage(*used), cost, MeasuredTokens(counted, estimated))
        if any(_counts(more)):
            self._tx.add_usage(self._n, more)
