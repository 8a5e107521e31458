"""Putting sessions into a store as they were elsewhere: their ids, branches, turns and times.

Sessions that share messages come in one transaction, parents first. One whose id is here already
is left as it is here. A fork of it joins it if it has the history that the fork shares; if not, the
shared part is put in once more, as a session that is only there for its forks and has an id of its
own (a *substitute*), so that nobody's history becomes another one.

This is the only place besides `appending` that stores messages: these have their seqs already.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from holdfast import codec
from holdfast.backends.base import (
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
from holdfast.clock import EPOCH
from holdfast.core.branches import Segment
from holdfast.core.purging import Line, needed
from holdfast.core.titles import USER, Preview
from holdfast.records import BranchReason, Damage, Message, Raw, Usage
from holdfast.verbs.appending import find_head
from holdfast.verbs.places import read_preview
from holdfast.verbs.turns import free_head

_BATCH: Final = 200
_MOST: Final = 2**63 - 1


class NewBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch, and the one it leaves: the number that it has in the session with this id."""

    number: int
    parent: tuple[str, int] | None
    fork_seq: int
    asked_seq: int
    last_seq: int
    reason: BranchReason
    created_at: int
    token: str


class Newcomer(msgspec.Struct, frozen=True, kw_only=True):
    """A session that comes. `name` is its id there; a substitute has another one here.

    What it `shows` in lists is found anew unless it is known.
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
        """Whether it is only there for its forks."""
        return self.row.purged_at is not None


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a branch, the blobs that come with it, and those it needs of the file's.

    One that is `lost` stands in for a message that could not be read.
    """

    branch: int
    row: MessageRow
    blobs: tuple[tuple[str, bytes], ...] = ()
    needs: tuple[str, ...] = ()
    lost: bool = False


class NewTurn(msgspec.Struct, frozen=True):
    """A turn and its ledger."""

    row: TurnRow
    tools: tuple[ToolRow, ...]


class NewDraft(msgspec.Struct, frozen=True):
    """A record of a draft."""

    turn: int
    number: int
    record: bytes
    message_id: str | None


Item: TypeAlias = NewMessage | NewTurn | UsageRow | QueueRow | NewDraft


class Cargo(Protocol):
    """Where the contents of newcomers come from; it can be asked again from the start."""

    def items(self, who: Newcomer) -> Iterator[Item]:
        """Return what a session holds: its branches' messages in order, then what else it has."""
        ...

    def blob(self, sha256: str) -> bytes | None:
        """Return a blob."""
        ...


class Arrived(msgspec.Struct):
    """What became of a family."""

    sessions: list[tuple[int, int]] = []  # Rank, and number here.
    messages: int = 0
    skipped: list[str] = []
    damage: list[Damage] = []


def bring_in(family: Sequence[Newcomer], cargo: Cargo, new_id: Callable[[], str]) -> Verb[Arrived]:
    """Store sessions that share messages, all at once; those that are here already stay so."""
    substitutes = {who.name: new_id() for who in family}
    ours: set[str] = set()

    def run(tx: Transaction) -> Arrived:
        return _Arrival(tx, family, cargo, substitutes, ours).run()

    return run


def stand_in(session: str, branch: int, seq: int, raw: str | None) -> NewMessage:
    """Stand in for a message that could not be read, with the line that was in its place."""
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
    """Make sessions stand in lists in the order of their ranks."""
    numbers = [n for _, n in sorted(sessions)]

    def run(tx: Transaction) -> None:
        # All are held in one order: two who do this at once would else wait for each other.
        heads = {n: tx.head(n) for n in sorted(numbers)}
        for head in map(heads.__getitem__, numbers):
            if head is not None:
                tx.put_head(head)

    return run


class Known(msgspec.Struct):
    """What is here by now of a family: by session and branch its number, and its preview."""

    branches: dict[tuple[str, int], int]
    previews: dict[tuple[str, int], Preview]


class _Arrival:
    """The coming of one family, within one transaction."""

    def __init__(
        self,
        tx: Transaction,
        family: Sequence[Newcomer],
        cargo: Cargo,
        substitutes: Mapping[str, str],
        ours: set[str],
    ) -> None:
        self._tx = tx
        self._family = family
        self._cargo = cargo
        self._substitutes = substitutes
        self._ours = ours
        self._known = Known({}, {})
        self._arrived = Arrived([], 0, [], [])

    def run(self) -> Arrived:
        """Decide, then store."""
        here = {who.name: self._tx.relative(who.row.id) for who in self._family}
        coming = self._coming(here)
        kept = self._needed(coming)
        wanted: list[Newcomer] = []
        for who in self._family:
            if who.name in coming:
                wanted.append(who)
                continue
            shared = _cut_to(who, kept)
            if not shared.branches:
                continue
            row = here[who.name]
            if row is None:
                wanted.append(shared)
            elif not self._join(row, shared):
                wanted.append(self._substitute(shared))
        for who in wanted:
            Settling(self._tx, who, self._cargo, self._known, self._arrived).run()
        return self._arrived

    def _coming(self, here: Mapping[str, SessionRow | None]) -> set[str]:
        """Pick the sessions that are not here, and name those that are."""
        coming: set[str] = set()
        for who in self._family:
            there = here[who.name]
            if who.is_husk:
                continue
            if there is None:
                coming.add(who.name)
                self._ours.add(who.name)
            elif who.name in self._ours:
                # A commit that seemed to fail did not: this is what it stored.
                self._arrived.sessions.append((who.rank, there.n))
                self._arrived.messages += sum(b.last_seq - b.fork_seq for b in who.branches)
            else:
                self._arrived.skipped.append(who.name)
                if there.purged_at is not None:
                    what = "was purged here, and forks still need some of it; it was not imported"
                    self._arrived.damage.append(Damage(what=what, session_id=who.name))
        return coming

    def _needed(self, coming: set[str]) -> dict[tuple[str, int], int]:
        """Return what those that come need of the others: branches, and up to which message."""
        numbers = {who.name: n for n, who in enumerate(self._family)}
        places: dict[tuple[str, int], int] = {}
        lines = []
        for who in self._family:
            for branch in who.branches:
                parent = None if branch.parent is None else places.get(branch.parent)
                place = places[who.name, branch.number] = len(places)
                lines.append(Line(place, numbers[who.name], parent, branch.fork_seq))
        others = [numbers[who.name] for who in self._family if who.name not in coming]
        kept = needed(lines, others)
        return {key: kept[place] for key, place in places.items() if place in kept}

    # ------------------------------------------------------------------- those that are here

    def _join(self, row: SessionRow, shared: Newcomer) -> bool:
        """Let forks start on what is here, if it is the same as what they shared there.

        It need not be held: nothing is written to it, and whoever erases does so alone.
        """
        found: dict[int, BranchRow] = {}
        known: dict[tuple[str, int], int] = {}
        for branch in shared.branches:
            there = self._tx.branch(row.n, branch.number)
            if there is None or there.last_seq < branch.last_seq:
                return False
            if not starts_alike(there, branch, ChainMap(known, self._known.branches)):
                return False
            found[branch.number] = there
            known[shared.name, branch.number] = there.n
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
    """Compare messages with those on these branches; of one that is lost there is no other."""
    for batch in _batches(messages):
        there = found[batch[0].branch]
        first, last = batch[0].row.seq, batch[-1].row.seq
        ((_, rows),) = snapshot.messages([Segment(there.n, first, last, "")])
        stored = {row.seq: (row.id, row.crc) for row in rows}
        for item in batch:
            if not item.lost and stored.get(item.row.seq) != (item.row.id, item.row.crc):
                return item
    return None


def starts_alike(there: BranchRow, branch: NewBranch, known: Mapping[tuple[str, int], int]) -> bool:
    """Return whether a branch that is here starts where one did there."""
    if there.fork_seq != branch.fork_seq:
        return False
    if branch.parent is None or there.parent is None:
        return branch.parent is None and there.parent is None
    return known.get(branch.parent) == there.parent


def _cut_to(who: Newcomer, kept: Mapping[tuple[str, int], int]) -> Newcomer:
    """Return what must come of a session for the sake of its forks."""
    branches = [
        msgspec.structs.replace(branch, last_seq=kept[who.name, branch.number])
        for branch in who.branches
        if (who.name, branch.number) in kept
    ]
    row = SessionRow(
        n=0,
        id=who.row.id,
        key=None,
        scope=None,
        agent=None,
        title=None,
        title_by=None,
        model=None,
        cwd=None,
        created_at=who.row.created_at,
        pinned=False,
        archived=False,
        trashed_at=None,
        goal=None,
        metadata=b"{}",
        parent=who.row.parent,
        relation=who.row.relation,
        purged_at=who.row.created_at if who.row.purged_at is None else who.row.purged_at,
    )
    return msgspec.structs.replace(who, row=row, branches=tuple(branches))


def _batches(items: Iterable[NewMessage]) -> Iterator[list[NewMessage]]:
    """Group messages that follow one another on a branch."""
    batch: list[NewMessage] = []
    for item in items:
        if batch and (len(batch) >= _BATCH or item.branch != batch[0].branch):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


class Settling:
    """The storing of one session.

    One that comes as it `stands` keeps its open turn, which nobody holds here; if not, that is
    closed as after a crash.
    """

    def __init__(
        self,
        tx: Transaction,
        who: Newcomer,
        cargo: Cargo,
        known: Known,
        arrived: Arrived,
        *,
        stands: bool = False,
    ) -> None:
        """Store this session with what it holds."""
        self._tx = tx
        self._who = who
        self._stands = stands
        self._cargo = cargo
        self._known = known
        self._arrived = arrived
        self._reached = {branch.number: branch.fork_seq for branch in who.branches}
        self._batch: list[NewMessage] = []
        self._open: NewTurn | None = None
        self._usage, self._cost = Usage(), 0
        self._turns, self._queued = who.turns, 0
        self._n = 0

    def run(self) -> None:
        """Store all of it."""
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
        """Store who it is, and its branches."""
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
        """Return the session's row, without its key if another one has that here."""
        row = self._who.row
        if row.key is None or row.trashed_at is not None:
            return row
        taken = self._tx.find_session(key=row.key)
        if taken is None:
            return row
        what = f"session {taken.id} has the key that this one had; it was imported without"
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
        """Store the messages that were collected."""
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
        """Let no history have two messages of one id: the later one is damaged, then."""
        seen = set(self._tx.stored(branch, [item.row.id for item in batch]))
        found: list[NewMessage] = []
        for item in batch:
            if item.row.id in seen:
                raw = item.row.body.decode("utf-8", "backslashreplace")
                what = f"the id of message {item.row.seq} is that of another one"
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

    # ------------------------------------------------------------------------------ belongings

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
        """Close a turn that is open and not the last one, which no store would have."""
        if self._open is not None:
            row = msgspec.structs.replace(self._open.row, session=self._n, state="interrupted")
            self._tx.put_turn(row)
            self._open = None

    def _spent(self, row: UsageRow) -> None:
        usage, cost = self._usage + row.usage, self._cost + row.cost
        if max(cost, *msgspec.structs.astuple(usage)) > _MOST:
            self._tell("the sums of its usage are more than can be counted")
            return
        self._usage, self._cost = usage, cost
        self._spend(row)

    def _spend(self, row: UsageRow) -> None:
        self._tx.add_usage(self._n, row)

    def _draft(self, draft: NewDraft) -> None:
        """Keep a draft of the open turn until it is settled."""
        if self._open is None or self._open.row.number != draft.turn:
            return
        self._place()
        active = self._branch(self._who.branches[-1].number)
        if draft.message_id is None or not self._tx.stored(active, [draft.message_id]):
            self._tx.put_draft(self._n, draft.turn, draft.number, draft.record)

    def _preview(self, last: NewBranch, branch: int, seq: int) -> Preview:
        """Find what stands for the history; most often it is what stood for the parent's."""
        if self._who.shows is not None:
            return self._who.shows
        shown = None if last.parent is None else self._known.previews.get(last.parent)
        if shown is None or shown.rank != USER or shown.seq > last.fork_seq:
            shown = read_preview(self._tx, branch, seq)
        self._known.previews[self._who.name, last.number] = shown
        return shown

    def _finish(self) -> None:
        """Put the head where it was."""
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
