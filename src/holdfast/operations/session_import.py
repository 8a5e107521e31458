"""Importing sessions into a store with their ids, branches, turns and times.

A *family* (sessions that share messages) is imported in one transaction, parents first. A session
whose id exists in the store already is skipped. A fork of it is attached to the existing session if
that has the history the fork shares. If not, the shared part is imported once more as a *stub*: a
session that exists only for its forks, here with an id of its own (a *substitute*). So no session
ever gets the history of another one.

Besides `operations.append` only this module stores messages: imported ones have seqs already.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from holdfast import codec
from holdfast.clock import EPOCH
from holdfast.operations.append import find_head
from holdfast.operations.positions import read_preview
from holdfast.operations.purge_rules import Line, needed
from holdfast.operations.turns import free_head
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import (
    BranchRow,
    MessageRow,
    QueueRow,
    SessionRow,
    Snapshot,
    Start,
    ToolRow,
    Transaction,
    TurnRow,
    UsageRow,
    Verb,
)
from holdfast.titles import USER, Preview
from holdfast.values import BranchReason, Damage, Message, Raw, Usage

_BATCH: Final = 200
_MOST: Final = 2**63 - 1


class NewBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch to import. Its parent is named by session id and branch number."""

    number: int
    parent: tuple[str, int] | None
    fork_seq: int
    asked_seq: int
    last_seq: int
    reason: BranchReason
    created_at: int
    token: str


class Newcomer(msgspec.Struct, frozen=True, kw_only=True):
    """A session to import. `source_id` is its id in the source; a substitute has another one here.

    Its preview is computed from its messages unless it is given.
    """

    name: str
    row: SessionRow
    branches: tuple[NewBranch, ...]
    turns: int
    updated_at: int
    rank: int
    shows: Preview | None = None

    @property
    def is_husk(self) -> bool:
        """True if it exists only for its forks."""
        return self.row.purged_at is not None


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to import, the blobs that come with it, and the hashes of those in the source.

    With `lost` it is a placeholder for a message that could not be read.
    """

    branch: int
    row: MessageRow
    blobs: tuple[tuple[str, bytes], ...] = ()
    needs: tuple[str, ...] = ()
    lost: bool = False


class NewTurn(msgspec.Struct, frozen=True):
    """A turn to import, with its ledger."""

    row: TurnRow
    tools: tuple[ToolRow, ...]


class NewDraft(msgspec.Struct, frozen=True):
    """A draft record to import."""

    turn: int
    number: int
    record: bytes
    message_id: str | None


Item: TypeAlias = NewMessage | NewTurn | UsageRow | QueueRow | NewDraft


class Cargo(Protocol):
    """A source of the contents of sessions. It can be read again from the start."""

    def items(self, session: Newcomer) -> Iterator[Item]:
        """Yield the contents of a session: each branch's messages in order, then all else."""
        ...

    def blob(self, sha256: str) -> bytes | None:
        """Return a blob; `None` if the source does not have it."""
        ...


class Arrived(msgspec.Struct):
    """The result of importing a family."""

    sessions: list[tuple[int, int]] = []  # Rank, and number in this store.
    messages: int = 0
    skipped: list[str] = []
    damage: list[Damage] = []


def bring_in(family: Sequence[Newcomer], source: Cargo, new_id: Callable[[], str]) -> Verb[Arrived]:
    """Import a family of sessions; those that exist already are skipped."""
    substitutes = {session.name: new_id() for session in family}
    attempted: set[str] = set()

    def run(tx: Transaction) -> Arrived:
        return _Arrival(tx, family, source, substitutes, attempted).run()

    return run


def stand_in(session: str, branch: int, seq: int, raw: str | None) -> NewMessage:
    """Return a placeholder for a message that could not be read, with its source text if any."""
    message = Message(
        id=f"{session}.{branch}.{seq}.damaged",
        role="system",
        parts=(Raw("damaged", raw),),
        created_at=EPOCH,
        status="damaged",
    )
    item = codec.encode(message, EPOCH, limit=None, known=True)
    row = MessageRow(seq, item.id, None, codec.checksum(item.id, None, item.body), item.body)
    return NewMessage(branch=branch, row=row, blobs=item.blobs, lost=True)


def in_order(sessions: Iterable[tuple[int, int]]) -> Verb[None]:
    """Write to sessions in the order of their ranks, so that lists show them in that order."""
    numbers = [n for _, n in sorted(sessions)]

    def run(tx: Transaction) -> None:
        # Locked in order of their numbers, so that concurrent imports do not deadlock.
        heads = {n: tx.head(n) for n in sorted(numbers)}
        for head in map(heads.__getitem__, numbers):
            if head is not None:
                tx.put_head(head)

    return run


class Known(msgspec.Struct):
    """What is stored of a family so far: branch numbers and previews by (session, branch)."""

    branches: dict[tuple[str, int], int]
    previews: dict[tuple[str, int], Preview]


class _Arrival:
    """Imports one family within one transaction."""

    def __init__(
        self,
        tx: Transaction,
        family: Sequence[Newcomer],
        source: Cargo,
        substitutes: Mapping[str, str],
        attempted: set[str],
    ) -> None:
        self._tx = tx
        self._family = family
        self._cargo = source
        self._substitutes = substitutes
        self._ours = attempted
        self._known = Known({}, {})
        self._arrived = Arrived([], 0, [], [])

    def run(self) -> Arrived:
        """Decide what to import, then store it."""
        existing = {session.name: self._tx.relative(session.row.id) for session in self._family}
        missing = self._coming(existing)
        required = self._needed(missing)
        to_store: list[Newcomer] = []
        for session in self._family:
            if session.name in missing:
                to_store.append(session)
                continue
            shared = _cut_to(session, required)
            if not shared.branches:
                continue
            row = existing[session.name]
            if row is None:
                to_store.append(shared)
            elif not self._join(row, shared):
                to_store.append(self._substitute(shared))
        for session in to_store:
            Settling(self._tx, session, self._cargo, self._known, self._arrived).run()
        return self._arrived

    def _coming(self, existing: Mapping[str, SessionRow | None]) -> set[str]:
        """Return the ids of sessions to import, and note those that exist as skipped."""
        missing: set[str] = set()
        for session in self._family:
            row = existing[session.name]
            if session.is_husk:
                continue
            if row is None:
                missing.add(session.name)
                self._ours.add(session.name)
            elif session.name in self._ours:
                # An earlier attempt seemed to fail, but its commit went through.
                self._arrived.sessions.append((session.rank, row.n))
                self._arrived.messages += sum(b.last_seq - b.fork_seq for b in session.branches)
            else:
                self._arrived.skipped.append(session.name)
                if row.purged_at is not None:
                    what = "was purged here, and forks still need some of it; it was not imported"
                    self._arrived.damage.append(Damage(what=what, session_id=session.name))
        return missing

    def _needed(self, missing: set[str]) -> dict[tuple[str, int], int]:
        """Return what imported sessions share with the others: {(session, branch): last seq}."""
        numbers = {session.name: n for n, session in enumerate(self._family)}
        indexes: dict[tuple[str, int], int] = {}
        nodes = []
        for session in self._family:
            for branch in session.branches:
                parent = None if branch.parent is None else indexes.get(branch.parent)
                index = indexes[session.name, branch.number] = len(indexes)
                nodes.append(Line(index, numbers[session.name], parent, branch.fork_seq))
        others = [numbers[session.name] for session in self._family if session.name not in missing]
        required = needed(nodes, others)
        return {key: required[index] for key, index in indexes.items() if index in required}

    # --------------------------------------------------------------------- existing sessions

    def _join(self, row: SessionRow, shared: Newcomer) -> bool:
        """Attach forks to the existing session if it has what they share; return whether it does.

        Its row is not locked: nothing is written to it, and erasures run alone.
        """
        found: dict[int, BranchRow] = {}
        known: dict[tuple[str, int], int] = {}
        for branch in shared.branches:
            stored = self._tx.branch(row.n, branch.number)
            if stored is None or stored.last_seq < branch.last_seq:
                return False
            if not starts_alike(stored, branch, ChainMap(known, self._known.branches)):
                return False
            found[branch.number] = stored
            known[shared.name, branch.number] = stored.n
        messages = (i for i in self._cargo.items(shared) if isinstance(i, NewMessage))
        if first_unlike(self._tx, messages, found) is not None:
            return False
        self._known.branches.update(known)
        return True

    def _substitute(self, shared: Newcomer) -> Newcomer:
        name = self._substitutes[shared.name]
        what = (
            f"session {shared.name} has another history here; what its forks shared with it was "
            f"imported as {name}"
        )
        self._arrived.damage.append(Damage(what=what, session_id=shared.name))
        return msgspec.structs.replace(shared, row=msgspec.structs.replace(shared.row, id=name))


def first_unlike(
    snapshot: Snapshot, messages: Iterable[NewMessage], found: Mapping[int, BranchRow]
) -> NewMessage | None:
    """Return the first message that differs from the stored one; `lost` ones are not compared."""
    for batch in _batches(messages):
        branch = found[batch[0].branch]
        first, last = batch[0].row.seq, batch[-1].row.seq
        ((_, rows),) = snapshot.messages([Segment(branch.n, first, last, "")])
        stored = {row.seq: (row.id, row.crc) for row in rows}
        for item in batch:
            if not item.lost and stored.get(item.row.seq) != (item.row.id, item.row.crc):
                return item
    return None


def starts_alike(
    stored: BranchRow, branch: NewBranch, known: Mapping[tuple[str, int], int]
) -> bool:
    """True if a stored branch has the same parent and start as an imported one."""
    if stored.fork_seq != branch.fork_seq:
        return False
    if branch.parent is None or stored.parent is None:
        return branch.parent is None and stored.parent is None
    return known.get(branch.parent) == stored.parent


def _cut_to(session: Newcomer, required: Mapping[tuple[str, int], int]) -> Newcomer:
    """Return a stub of a session: only what its forks share."""
    branches = [
        msgspec.structs.replace(branch, last_seq=required[session.name, branch.number])
        for branch in session.branches
        if (session.name, branch.number) in required
    ]
    row = SessionRow(
        n=0,
        id=session.row.id,
        key=None,
        scope=None,
        agent=None,
        title=None,
        title_by=None,
        model=None,
        cwd=None,
        created_at=session.row.created_at,
        pinned=False,
        archived=False,
        trashed_at=None,
        goal=None,
        metadata=b"{}",
        parent=session.row.parent,
        relation=session.row.relation,
        purged_at=session.row.created_at
        if session.row.purged_at is None
        else session.row.purged_at,
    )
    return msgspec.structs.replace(session, row=row, branches=tuple(branches))


def _batches(items: Iterable[NewMessage]) -> Iterator[list[NewMessage]]:
    """Group consecutive messages of a branch."""
    batch: list[NewMessage] = []
    for item in items:
        if batch and (len(batch) >= _BATCH or item.branch != batch[0].branch):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


class Settling:
    """Stores one session with its contents.

    With `keep_open_turn` a turn that is open in the source stays open here, without a holder; else
    it is closed as after a crash.
    """

    def __init__(
        self,
        tx: Transaction,
        session: Newcomer,
        source: Cargo,
        stored: Known,
        result: Arrived,
        *,
        keep_open_turn: bool = False,
    ) -> None:
        self._tx = tx
        self._who = session
        self._stands = keep_open_turn
        self._cargo = source
        self._known = stored
        self._arrived = result
        self._reached = {branch.number: branch.fork_seq for branch in session.branches}
        self._batch: list[NewMessage] = []
        self._open: NewTurn | None = None
        self._usage, self._cost = Usage(), 0
        self._turns, self._queued = session.turns, 0
        self._n = 0

    def run(self) -> None:
        """Store the row, branches and contents, then the head."""
        self._begin()
        for item in self._cargo.items(self._who):
            if isinstance(item, NewMessage):
                self._message(item)
            elif not self._who.is_husk:
                self._belonging(item)
        self._place()
        for branch in self._who.branches[: None if self._who.is_husk else -1]:
            self._tx.end_branch(self._branch(branch.number), self._reached[branch.number])
        if not self._who.is_husk:
            self._finish()
            self._arrived.sessions.append((self._who.rank, self._n))

    def _branch(self, number: int) -> int:
        return self._known.branches[self._who.name, number]

    def _begin(self) -> None:
        """Store the session's row and branches."""
        row, branches = self._named(), self._who.branches
        self._n = self._tx.add_session(row, self._start(branches[0]))
        for branch in branches:
            if branch.number == 1 and not self._who.is_husk:
                first = self._tx.branch(self._n, 1)
                n = 0 if first is None else first.n
            else:
                start = self._start(branch)
                n = self._tx.add_branch(self._n, branch.number, start, branch.created_at)
            self._known.branches[self._who.name, branch.number] = n

    def _named(self) -> SessionRow:
        """Return the session's row, without its key if another session here has it."""
        row = self._who.row
        if row.key is None or row.trashed_at is not None:
            return row
        taken = self._tx.find_session(key=row.key)
        if taken is None:
            return row
        what = f"session {taken.id} already has its key; it was imported without a key"
        self._arrived.damage.append(Damage(what=what, session_id=row.id))
        return msgspec.structs.replace(row, key=None)

    def _start(self, branch: NewBranch) -> Start:
        return Start(
            parent=None if branch.parent is None else self._known.branches[branch.parent],
            fork_seq=branch.fork_seq,
            asked_seq=branch.asked_seq,
            reason=branch.reason,
            token=branch.token,
        )

    # -------------------------------------------------------------------------------- messages

    def _message(self, item: NewMessage) -> None:
        if self._batch and (len(self._batch) >= _BATCH or item.branch != self._batch[0].branch):
            self._place()
        self._batch.append(item)

    def _place(self) -> None:
        """Store the collected messages."""
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        number = batch[0].branch
        branch = self._branch(number)
        batch = self._each_id_once(branch, batch)
        self._tx.add_messages(branch, [item.row for item in batch])
        for item in batch:
            self._blobs(branch, item)
            if not self._who.is_husk:
                self._turns = max(self._turns, item.row.turn or 0)
        self._reached[number] = batch[-1].row.seq
        self._arrived.messages += sum(not item.lost for item in batch)

    def _each_id_once(self, branch: int, batch: Sequence[NewMessage]) -> list[NewMessage]:
        """Replace messages whose id the history has already by damaged placeholders."""
        seen = set(self._tx.stored(branch, [item.row.id for item in batch]))
        found: list[NewMessage] = []
        for item in batch:
            if item.row.id in seen:
                raw = item.row.body.decode("utf-8", "backslashreplace")
                what = f"message {item.row.seq} has the id of another message"
                self._tell(what, item.row.seq)
                found.append(stand_in(self._who.row.id, item.branch, item.row.seq, raw))
            else:
                seen.add(item.row.id)
                found.append(item)
        return found

    def _tell(self, what: str, seq: int | None = None) -> None:
        damage = Damage(what=what, session_id=self._who.row.id, seq=seq)
        self._arrived.damage.append(damage)

    def _blobs(self, branch: int, item: NewMessage) -> None:
        for sha256, data in item.blobs:
            self._tx.add_blob(branch, item.row.seq, sha256, data)
        for sha256 in item.needs:
            if self._tx.refer_blob(branch, item.row.seq, sha256):
                continue
            found = self._cargo.blob(sha256)
            if found is None:
                self._tell(f"the data of a file, {sha256}, is missing", item.row.seq)
            else:
                self._tx.add_blob(branch, item.row.seq, sha256, found)

    # --------------------------------------------------------- turns, usage, queue, drafts, head

    def _belonging(self, item: NewTurn | UsageRow | QueueRow | NewDraft) -> None:
        if isinstance(item, NewTurn):
            self._turn(item)
        elif isinstance(item, UsageRow):
            self._spent(item)
        elif isinstance(item, QueueRow):
            self._tx.add_queued(self._n, item)
            self._queued += 1
        else:
            self._draft(item)

    def _turn(self, turn: NewTurn) -> None:
        self._turns = max(self._turns, turn.row.number)
        if self._open is not None:
            self._close_turn()
        if turn.row.state == "open":
            self._open = turn
        self._tx.put_turn(msgspec.structs.replace(turn.row, session=self._n))
        for tool in turn.tools:
            self._tx.put_tool(msgspec.structs.replace(tool, session=self._n))

    def _close_turn(self) -> None:
        """Close an open turn that is not the last one: a store never has such a turn."""
        if self._open is not None:
            row = msgspec.structs.replace(self._open.row, session=self._n, state="interrupted")
            self._tx.put_turn(row)
            self._open = None

    def _spent(self, row: UsageRow) -> None:
        usage, cost = self._usage + row.usage, self._cost + row.cost
        if max(cost, *msgspec.structs.astuple(usage)) > _MOST:
            self._tell("its usage adds up to more than can be stored; some was left out")
            return
        self._usage, self._cost = usage, cost
        self._spend(row)

    def _spend(self, row: UsageRow) -> None:
        self._tx.add_usage(self._n, row)

    def _draft(self, draft: NewDraft) -> None:
        """Store a draft of the open turn unless its message is stored already."""
        if self._open is None or self._open.row.number != draft.turn:
            return
        self._place()
        active = self._branch(self._who.branches[-1].number)
        if draft.message_id is None or not self._tx.stored(active, [draft.message_id]):
            self._tx.put_draft(self._n, draft.turn, draft.number, draft.record)

    def _preview(self, last: NewBranch, branch: int, seq: int) -> Preview:
        """Return the preview of the history, which is often that of the parent's."""
        if self._who.shows is not None:
            return self._who.shows
        shown = None if last.parent is None else self._known.previews.get(last.parent)
        if shown is None or shown.rank != USER or shown.seq > last.fork_seq:
            shown = read_preview(self._tx, branch, seq)
        self._known.previews[self._who.name, last.number] = shown
        return shown

    def _finish(self) -> None:
        """Write the head as it was in the source."""
        last = self._who.branches[-1]
        branch, seq = self._branch(last.number), self._reached[last.number]
        if self._open is not None and self._open.row.number != self._turns:
            self._close_turn()
        shown = self._preview(last, branch, seq)
        head = msgspec.structs.replace(
            find_head(self._tx, self._n),
            branch=branch,
            branch_no=last.number,
            seq=seq,
            turns=self._turns,
            open_turn=None if self._open is None else self._open.row.number,
            updated_at=self._who.updated_at,
            usage=self._usage,
            cost=self._cost,
            preview=shown.text,
            preview_rank=shown.rank,
            preview_seq=shown.seq,
            queued=self._queued,
        )
        self._tx.put_head(head)
        if not self._stands:
            free_head(self._tx, find_head(self._tx, self._n))
