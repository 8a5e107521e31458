"""Bringing sessions from another store, as they are, and what changed there since.

A session that is here already is an *earlier copy* if it could have been that session some time
ago: the same branches or fewer, with the same messages or fewer, turns that ended the same way,
nothing used or waiting here that is not known there. Then what is new there is added; who it is
(its key, title, metadata, goal, marks) becomes what it is there. Anything else under the same id is
refused, before a word is written: a history is nobody's to overwrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast import codec
from holdfast.backends.base import (
    BranchRow,
    QueueRow,
    SessionRow,
    Snapshot,
    Transaction,
    TurnRow,
    UsageRow,
    Verb,
)
from holdfast.errors import Diverged
from holdfast.records import Damage, Measured, Usage
from holdfast.verbs.appending import find_head
from holdfast.verbs.importing import (
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


class Original(Cargo, Protocol):
    """Where sessions come from: what they hold can be asked for piece by piece."""

    def messages(self, who: Newcomer) -> Iterator[NewMessage]:
        """Return the messages of each branch."""
        ...

    def turns(self, who: Newcomer) -> Iterator[NewTurn]:
        """Return the turns."""
        ...

    def usage(self, who: Newcomer) -> list[UsageRow]:
        """Return what was used, by day and model."""
        ...

    def queue(self, who: Newcomer) -> Iterator[QueueRow]:
        """Return input that waits."""
        ...

    def became(self, who: Newcomer, id: str) -> bool:
        """Return whether a message of this id is somewhere in a session."""
        ...


class Brought(msgspec.Struct):
    """What became of families: which sessions are new here, and which went on."""

    added: list[str]
    renewed: list[str]
    damage: list[Damage]


def bring(
    families: Sequence[Sequence[Newcomer]], original: Original, is_coming: Callable[[str], bool]
) -> Verb[Brought]:
    """Bring families here; `Diverged` if something else is here under one of their names.

    `is_coming` says of an id whether that session is copied too, now or later.
    """
    begun: set[str] = set()

    def run(tx: Transaction) -> Brought:
        everybody = [who for family in families for who in family]
        here = _held(tx, [who.name for who in everybody])
        refuse_unlike(tx, everybody, original, is_coming)
        # What an earlier try of this verb stored, though it seemed to fail, is new all the same.
        found = [who.name for who in everybody if who.name in begun and here[who.name]]
        brought = Brought(found, [], [])
        begun.update(who.name for who in everybody if not who.is_husk and not here[who.name])
        for family in families:
            _Coming(tx, original, here, brought, is_coming).run(family)
        return brought

    return run


def _held(tx: Transaction, names: Iterable[str]) -> dict[str, SessionRow | None]:
    """Find those that are here, and hold them: what they are now they stay until all is stored.

    They are held in one order: two who copy at once would else wait for each other.
    """
    here = {name: tx.relative(name) for name in names}
    found = [(row.n, name) for name, row in here.items() if row is not None and not row.purged_at]
    for n, name in sorted(found):
        here[name] = tx.session(n)
    return here


def refuse_unlike(
    snapshot: Snapshot,
    newcomers: Iterable[Newcomer],
    original: Original,
    is_coming: Callable[[str], bool],
) -> None:
    """Refuse to bring sessions that are here and are no earlier copies, or whose key is taken."""
    reasons: dict[str, str] = {}
    for who in newcomers:
        there = snapshot.relative(who.name)
        why = None if there is None else _Comparison(snapshot, who, there, original).why_not()
        taken = _key_holder(snapshot, who.row)
        if why is None and taken is not None and not is_coming(taken.id):
            why = f"session {taken.id} has its key there"
        if why is not None:
            reasons[who.name] = why
    if reasons:
        raise Diverged(reasons)


def _key_holder(snapshot: Snapshot, row: SessionRow) -> SessionRow | None:
    """Find the other session that has the key of this one."""
    if row.key is None or row.trashed_at is not None:
        return None
    found = snapshot.find_session(key=row.key)
    return None if found is None or found.id == row.id else found


# ---------------------------------------------------------------------------- what is here already


class _Comparison:
    """A session that is here, beside the one that comes."""

    def __init__(
        self, snapshot: Snapshot, who: Newcomer, there: SessionRow, original: Original
    ) -> None:
        self._snapshot = snapshot
        self._who = who
        self._there = there
        self._original = original
        self._found = {branch.number: branch for branch in snapshot.branches(there.n)}

    def why_not(self) -> str | None:
        """Return why this is no earlier copy; `None` if it is one."""
        who, there = self._who, self._there
        if who.is_husk and there.purged_at is None:
            return "it was purged in the source; purge it in the target as well"
        if there.purged_at is not None and not who.is_husk:
            return "it was purged in the target"
        if there.created_at != who.row.created_at:
            return "it is another session"
        return self._other_history() or (None if who.is_husk else self._other_belongings())

    def _other_history(self) -> str | None:
        coming = {branch.number: branch for branch in self._who.branches}
        # Of one that is only there for its forks, more may be here than is needed there by now.
        both = coming.keys() & self._found.keys()
        if both != (coming if self._who.is_husk else self._found).keys():
            return "it has other branches"
        for number in both:
            if not _is_branch(self._snapshot, self._found[number], coming[number]):
                return f"branch {number} starts elsewhere"
        reach = {number: self._found[number].last_seq for number in both}
        if any(reach[n] < coming[n].last_seq for n in both) and self._who.is_husk:
            return "some of what its forks share is not there"
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
        return f"message {other.row.seq} is another one"

    def _other_belongings(self) -> str | None:
        head = self._snapshot.head(self._there.n)
        if head is None:
            return "it cannot be read there"
        if head.turns > self._who.turns or head.updated_at > self._who.updated_at:
            return "it was written to in the target"
        for turn in self._original.turns(self._who):
            if turn.row.number <= head.turns and not self._is_turn(turn):
                return f"turn {turn.row.number} is another one"
        if not self._is_usage():
            return "it has used what the source does not know of"
        waiting = {row.id for row in self._original.queue(self._who)}
        for row in self._snapshot.queue(self._there.n):
            if row.id not in waiting and not self._original.became(self._who, row.id):
                return "input waits that the source does not know of"
        return None

    def _is_turn(self, turn: NewTurn) -> bool:
        """Return whether a turn is what this one was: the same by now, or still open here."""
        there = self._snapshot.turn(self._there.n, turn.row.number)
        if there is None or there.state == "open":
            return there is not None and there.token == turn.row.token
        return _as_it_comes(there) == turn.row

    def _is_usage(self) -> bool:
        coming = {(row.day, row.model): _counts(row) for row in self._original.usage(self._who)}
        for row in self._snapshot.usage(self._there.n):
            counts = coming.get((row.day, row.model))
            if counts is None or any(map(int.__gt__, _counts(row), counts)):
                return False
        return True


def _is_branch(snapshot: Snapshot, there: BranchRow, branch: NewBranch) -> bool:
    """Return whether a branch that is here is the one that comes, its end aside."""
    parent = None if there.parent is None else snapshot.find_branch(there.parent)
    starts = None if parent is None else (parent.session_id, parent.number)
    return (starts, there.fork_seq, there.asked_seq, there.reason, there.token) == (
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
    """The coming of one family."""

    def __init__(
        self,
        tx: Transaction,
        original: Original,
        here: Mapping[str, SessionRow | None],
        brought: Brought,
        is_coming: Callable[[str], bool],
    ) -> None:
        self._tx = tx
        self._original = original
        self._here = here
        self._brought = brought
        self._is_coming = is_coming
        self._known = Known({}, {})
        self._arrived = Arrived([], 0, [], brought.damage)

    def run(self, family: Sequence[Newcomer]) -> None:
        """Store what is not here."""
        for who in family:
            there = self._here[who.name]
            if there is None:
                self._free_key(who.row)
                Settling(
                    self._tx, who, self._original, self._known, self._arrived, stands=True
                ).run()
                if not who.is_husk:
                    self._brought.added.append(who.name)
                continue
            self._known.branches |= {
                (who.name, branch.number): branch.n for branch in self._tx.branches(there.n)
            }
            if not self._is_level(who, there):
                self._free_key(who.row)
                _Renewal(
                    self._tx, who, self._original, self._known, self._arrived, there=there
                ).run()
                if who.name not in self._brought.added:
                    self._brought.renewed.append(who.name)

    def _is_level(self, who: Newcomer, there: SessionRow) -> bool:
        """Return whether nothing can be new: it stands where it stood, and no turn is open."""
        if who.is_husk:
            return True
        head = find_head(self._tx, there.n)
        ends = [(branch.number, branch.last_seq) for branch in self._tx.branches(there.n)]
        return (
            head.open_turn is None
            and (head.turns, head.updated_at) == (who.turns, who.updated_at)
            and ends == [(branch.number, branch.last_seq) for branch in who.branches]
            and msgspec.structs.replace(there, n=who.row.n) == who.row
        )

    def _free_key(self, row: SessionRow) -> None:
        """Take the key from whoever had it there before, and is renewed later.

        It is held first, and asked again: another may have the key by now, who keeps it.
        """
        taken = _key_holder(self._tx, row)
        if taken is None or not self._is_coming(taken.id):
            return
        held = self._tx.session(taken.n)
        if held is not None and held.key == row.key and held.trashed_at is None:
            self._tx.put_session(msgspec.structs.replace(held, key=None))


class _Renewal(Settling):
    """The storing of what is new in a session that is here."""

    def __init__(
        self,
        tx: Transaction,
        who: Newcomer,
        cargo: Cargo,
        known: Known,
        arrived: Arrived,
        *,
        there: SessionRow,
    ) -> None:
        super().__init__(tx, who, cargo, known, arrived, stands=True)
        self._n = there.n
        self._ends = {branch.number: branch.last_seq for branch in tx.branches(there.n)}
        self._used = {(row.day, row.model): row for row in tx.usage(there.n)}

    def _begin(self) -> None:
        """Return who it is now; what waits and what is streamed is put here anew."""
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
        there = self._tx.turn(self._n, turn.row.number)
        if there is None or there.state == "open":  # One that ended is here as it is there.
            super()._turn(turn)

    def _spend(self, row: UsageRow) -> None:
        """Add what is not here; also a row of nothing but zeros."""
        before = self._used.get((row.day, row.model))
        if before is None:
            self._tx.add_usage(self._n, row)
            return
        *used, cost, counted, estimated = map(int.__sub__, _counts(row), _counts(before))
        more = UsageRow(row.day, row.model, Usage(*used), cost, Measured(counted, estimated))
        if any(_counts(more)):
            self._tx.add_usage(self._n, more)
