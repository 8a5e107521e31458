"""Copying sessions from another store (the source) into this one (the target), incrementally.

A session that the target has already is an *earlier copy* if it could be an earlier state of the
source's session: the same branches or fewer, with the same messages or fewer, turns that ended the
same way, no usage and no queued input that the source lacks. Then what is new in the source is
added, and the identity (key, title, metadata, goal, marks) is taken from the source. Any other
session under the same id is refused before anything is written: no history is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast import codec
from holdfast.errors import Diverged
from holdfast.operations.append import find_head
from holdfast.operations.session_import import (
    Arrived,
    Cargo,
    Known,
    NewBranch,
    Newcomer,
    NewMessage,
    NewTurn,
    Settling,
    first_unlike,
)
from holdfast.storage.protocol import (
    BranchRow,
    QueueRow,
    SessionRow,
    Snapshot,
    Transaction,
    TurnRow,
    UsageRow,
    Verb,
)
from holdfast.values import Damage, Measured, Usage


class Original(Cargo, Protocol):
    """A source of sessions whose contents can be read one kind at a time."""

    def messages(self, session: Newcomer) -> Iterator[NewMessage]:
        """Yield the messages of each branch."""
        ...

    def turns(self, session: Newcomer) -> Iterator[NewTurn]:
        """Yield the turns."""
        ...

    def usage(self, session: Newcomer) -> list[UsageRow]:
        """Return the usage, by day and model."""
        ...

    def queue(self, session: Newcomer) -> Iterator[QueueRow]:
        """Yield the queued input."""
        ...

    def became(self, session: Newcomer, id: str) -> bool:
        """True if any branch of a session has a message with this id."""
        ...


class Brought(msgspec.Struct):
    """The sessions that were added to the target, those brought up to date, and the damage."""

    added: list[str]
    renewed: list[str]
    damage: list[Damage]


def bring(
    families: Sequence[Sequence[Newcomer]], source: Original, is_copied: Callable[[str], bool]
) -> Verb[Brought]:
    """Copy families of sessions; raise `Diverged` if one of them is not an earlier copy here.

    `is_copied` returns for an id whether that session is copied too, now or later.
    """
    attempted: set[str] = set()

    def run(tx: Transaction) -> Brought:
        sessions = [session for family in families for session in family]
        existing = _held(tx, [session.name for session in sessions])
        refuse_unlike(tx, sessions, source, is_copied)
        # If an earlier attempt seemed to fail but was stored, its sessions count as added.
        stored = [s.name for s in sessions if s.name in attempted and existing[s.name]]
        result = Brought(stored, [], [])
        attempted.update(s.name for s in sessions if not s.is_husk and not existing[s.name])
        for family in families:
            _Coming(tx, source, existing, result, is_copied).run(family)
        return result

    return run


def _held(tx: Transaction, names: Iterable[str]) -> dict[str, SessionRow | None]:
    """Return the sessions that exist here, with their rows locked until the commit.

    They are locked in order of their numbers, so that concurrent copies do not deadlock.
    """
    rows = {name: tx.relative(name) for name in names}
    found = [(row.n, name) for name, row in rows.items() if row is not None and not row.purged_at]
    for n, name in sorted(found):
        rows[name] = tx.session(n)
    return rows


def refuse_unlike(
    snapshot: Snapshot,
    sessions: Iterable[Newcomer],
    source: Original,
    is_copied: Callable[[str], bool],
) -> None:
    """Raise `Diverged` if a session exists here and is not an earlier copy, or its key is taken."""
    reasons: dict[str, str] = {}
    for session in sessions:
        row = snapshot.relative(session.name)
        why = None if row is None else _Comparison(snapshot, session, row, source).why_not()
        taken = _key_holder(snapshot, session.row)
        if why is None and taken is not None and not is_copied(taken.id):
            why = f"session {taken.id} has its key in the target"
        if why is not None:
            reasons[session.name] = why
    if reasons:
        raise Diverged(reasons)


def _key_holder(snapshot: Snapshot, row: SessionRow) -> SessionRow | None:
    """Return the other session that has the key of this one; `None` if there is none."""
    if row.key is None or row.trashed_at is not None:
        return None
    found = snapshot.find_session(key=row.key)
    return None if found is None or found.id == row.id else found


# ------------------------------------------------------------------------------------- comparing


class _Comparison:
    """Compares a session of the source with the one of the same id in the target."""

    def __init__(
        self, snapshot: Snapshot, session: Newcomer, row: SessionRow, source: Original
    ) -> None:
        self._snapshot = snapshot
        self._who = session
        self._there = row
        self._original = source
        self._found = {branch.number: branch for branch in snapshot.branches(row.n)}

    def why_not(self) -> str | None:
        """Return why the target's session is not an earlier copy; `None` if it is one."""
        session, row = self._who, self._there
        if session.is_husk and row.purged_at is None:
            return "it was purged in the source; purge it in the target as well"
        if row.purged_at is not None and not session.is_husk:
            return "it was purged in the target"
        if row.created_at != session.row.created_at:
            return "it is a different session with the same id"
        return self._other_history() or (None if session.is_husk else self._other_belongings())

    def _other_history(self) -> str | None:
        coming = {branch.number: branch for branch in self._who.branches}
        # A stub here may have more branches than the forks in the source still need.
        both = coming.keys() & self._found.keys()
        if both != (coming if self._who.is_husk else self._found).keys():
            return "its branches differ from those in the source"
        for number in both:
            if not _is_branch(self._snapshot, self._found[number], coming[number]):
                return f"branch {number} starts at another position than in the source"
        reach = {number: self._found[number].last_seq for number in both}
        if any(reach[n] < coming[n].last_seq for n in both) and self._who.is_husk:
            return "some messages that its forks share are missing in the target"
        if any(reach[n] > coming[n].last_seq for n in both) and not self._who.is_husk:
            return "it has messages that the source does not have"
        return self._other_message([_up_to(coming[n], reach[n]) for n in sorted(both)])

    def _other_message(self, branches: Sequence[NewBranch]) -> str | None:
        shared = msgspec.structs.replace(self._who, branches=tuple(branches))
        other = first_unlike(self._snapshot, self._original.messages(shared), self._found)
        if other is None:
            return None
        if codec.is_tombstone(other.row.body):
            return (
                f"message {other.row.seq} was erased in the source; erase it in the target as well"
            )
        return f"message {other.row.seq} differs from the one in the source"

    def _other_belongings(self) -> str | None:
        head = self._snapshot.head(self._there.n)
        if head is None:
            return "it cannot be read in the target"
        if head.turns > self._who.turns or head.updated_at > self._who.updated_at:
            return "it was written to in the target"
        for turn in self._original.turns(self._who):
            if turn.row.number <= head.turns and not self._is_turn(turn):
                return f"turn {turn.row.number} differs from the one in the source"
        if not self._is_usage():
            return "it has usage that the source does not have"
        waiting = {row.id for row in self._original.queue(self._who)}
        for row in self._snapshot.queue(self._there.n):
            if row.id not in waiting and not self._original.became(self._who, row.id):
                return "it has queued input that the source does not have"
        return None

    def _is_turn(self, turn: NewTurn) -> bool:
        """True if the turn here is the same, or was opened by the same call and is still open."""
        row = self._snapshot.turn(self._there.n, turn.row.number)
        if row is None or row.state == "open":
            return row is not None and row.token == turn.row.token
        return _as_it_comes(row) == turn.row

    def _is_usage(self) -> bool:
        coming = {(row.day, row.model): _counts(row) for row in self._original.usage(self._who)}
        for row in self._snapshot.usage(self._there.n):
            counts = coming.get((row.day, row.model))
            if counts is None or any(map(int.__gt__, _counts(row), counts)):
                return False
        return True


def _is_branch(snapshot: Snapshot, row: BranchRow, branch: NewBranch) -> bool:
    """True if a branch of the target is the same as one of the source, except for its end."""
    parent = None if row.parent is None else snapshot.find_branch(row.parent)
    parent_key = None if parent is None else (parent.session_id, parent.number)
    return (parent_key, row.fork_seq, row.asked_seq, row.reason, row.token) == (
        branch.parent,
        branch.fork_seq,
        branch.asked_seq,
        branch.reason,
        branch.token,
    )


def _up_to(branch: NewBranch, last_seq: int) -> NewBranch:
    return msgspec.structs.replace(branch, last_seq=min(branch.last_seq, last_seq))


def _as_it_comes(row: TurnRow) -> TurnRow:
    lease = 0 if row.state == "open" else row.lease_until
    return msgspec.structs.replace(row, session=0, lease_until=lease)


def _counts(row: UsageRow) -> tuple[int, ...]:
    used, measured = msgspec.structs.astuple(row.usage), msgspec.structs.astuple(row.measured)
    return (*used, row.cost, *measured)


# ----------------------------------------------------------------------------------------- storing


class _Coming:
    """Copies one family of sessions."""

    def __init__(
        self,
        tx: Transaction,
        source: Original,
        rows: Mapping[str, SessionRow | None],
        result: Brought,
        is_copied: Callable[[str], bool],
    ) -> None:
        self._tx = tx
        self._original = source
        self._here = rows
        self._brought = result
        self._is_coming = is_copied
        self._known = Known({}, {})
        self._arrived = Arrived([], 0, [], result.damage)

    def run(self, family: Sequence[Newcomer]) -> None:
        """Add the sessions that are missing here, and update the others."""
        for session in family:
            existing = self._here[session.name]
            if existing is None:
                self._free_key(session.row)
                Settling(
                    self._tx,
                    session,
                    self._original,
                    self._known,
                    self._arrived,
                    keep_open_turn=True,
                ).run()
                if not session.is_husk:
                    self._brought.added.append(session.name)
                continue
            self._known.branches |= {
                (session.name, branch.number): branch.n for branch in self._tx.branches(existing.n)
            }
            if not self._is_level(session, existing):
                self._free_key(session.row)
                _Renewal(
                    self._tx, session, self._original, self._known, self._arrived, existing=existing
                ).run()
                if session.name not in self._brought.added:
                    self._brought.renewed.append(session.name)

    def _is_level(self, session: Newcomer, existing: SessionRow) -> bool:
        """True if nothing can be new: heads and rows are equal, and no turn is open."""
        if session.is_husk:
            return True
        head = find_head(self._tx, existing.n)
        ends = [(branch.number, branch.last_seq) for branch in self._tx.branches(existing.n)]
        return (
            head.open_turn is None
            and (head.turns, head.updated_at) == (session.turns, session.updated_at)
            and ends == [(branch.number, branch.last_seq) for branch in session.branches]
            and msgspec.structs.replace(existing, n=session.row.n) == session.row
        )

    def _free_key(self, row: SessionRow) -> None:
        """Remove the key from the session that has it here, if that one is copied as well.

        Its row is locked and read again first: another session may have taken the key by now.
        """
        taken = _key_holder(self._tx, row)
        if taken is None or not self._is_coming(taken.id):
            return
        locked = self._tx.session(taken.n)
        if locked is not None and locked.key == row.key and locked.trashed_at is None:
            self._tx.put_session(msgspec.structs.replace(locked, key=None))


class _Renewal(Settling):
    """Stores what is new in a session that exists here."""

    def __init__(
        self,
        tx: Transaction,
        session: Newcomer,
        source: Cargo,
        stored: Known,
        result: Arrived,
        *,
        existing: SessionRow,
    ) -> None:
        super().__init__(tx, session, source, stored, result, keep_open_turn=True)
        self._n = existing.n
        self._ends = {branch.number: branch.last_seq for branch in tx.branches(existing.n)}
        self._used = {(row.day, row.model): row for row in tx.usage(existing.n)}

    def _begin(self) -> None:
        """Update the row, add new branches, and drop queue and draft, to be stored again."""
        head = find_head(self._tx, self._n)
        if head.open_turn is not None:
            self._tx.drop_draft(self._n, head.open_turn)
        for waiting in self._tx.queue(self._n):
            self._tx.drop_queued(self._n, waiting.number)
        self._tx.put_session(msgspec.structs.replace(self._who.row, n=self._n))
        for branch in self._who.branches:
            if branch.number not in self._ends:
                start = self._start(branch)
                n = self._tx.add_branch(self._n, branch.number, start, branch.created_at)
                self._known.branches[self._who.name, branch.number] = n
        self._reached |= self._ends

    def _message(self, item: NewMessage) -> None:
        if item.row.seq > self._ends.get(item.branch, 0):
            super()._message(item)

    def _turn(self, turn: NewTurn) -> None:
        stored = self._tx.turn(self._n, turn.row.number)
        if stored is None or stored.state == "open":  # Closed turns are equal on both sides.
            super()._turn(turn)

    def _spend(self, row: UsageRow) -> None:
        """Add the usage that is missing here, and a new row even if all of it is zero."""
        before = self._used.get((row.day, row.model))
        if before is None:
            self._tx.add_usage(self._n, row)
            return
        *used, cost, counted, estimated = map(int.__sub__, _counts(row), _counts(before))
        more = UsageRow(row.day, row.model, Usage(*used), cost, Measured(counted, estimated))
        if any(_counts(more)):
            self._tx.add_usage(self._n, more)
