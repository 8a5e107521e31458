"""Importing sessions into a store with their ids, branches, turns and times.

A *family* (sessions that share messages) is imported in one transaction, parents first. A session
whose id exists in the store already is skipped. A fork of it is attached to the existing session if
that has the history the fork shares. If not, the shared part is imported once more as a *stub*: a
session that exists only for its forks, here with an id of its own (a *substitute*). So no session
ever gets the history of another one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from holdfast import codec
from holdfast.operations.append import (
    NewMessage,
    find_head,
    overflows,
    store_messages,
    to_head,
    with_preview,
)
from holdfast.operations.positions import read_preview
from holdfast.operations.purge_rules import BranchNode, RequiredEnd, required_ends
from holdfast.operations.records import branch_records
from holdfast.operations.sessions import stub_row
from holdfast.operations.turns import require_free_head
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import (
    BlobUse,
    BranchRow,
    BranchStart,
    MessageRow,
    QueueRow,
    RecordRow,
    SessionRow,
    ToolRow,
    TurnRow,
    UsageRow,
)
from holdfast.titles import RANK_USER, Preview
from holdfast.values import BranchReason, Damage, Demotion, SessionProvenance, Usage

_BATCH_ENTRIES: Final = 1_000
_BATCH_BYTES: Final = 1_000_000


class NewBranch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A branch to import, up to `last_seq` and record `last_record` (`None`: its last).

    Its parent is named by session id and branch number.
    """

    number: int
    parent: tuple[str, int] | None
    fork_seq: int
    asked_seq: int
    last_seq: int
    reason: BranchReason
    created_at: int
    token: str
    fork_record: int | None = None
    last_record: int | None = None

    def own(self, n: int) -> Segment:
        """Return what is imported of it, which has the number `n` in its store."""
        return Segment(n, self.fork_seq + 1, self.last_seq, "", self.last_record)


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session to import. `source_id` is its id in the source; a substitute has another one here.

    `newest_record` is the highest number that a record of its active branch had. Its preview is
    computed from its messages unless it is given. `demotion` is what was taken from its row, if the
    source is not trusted.
    """

    source_id: str
    row: SessionRow
    branches: tuple[NewBranch, ...]
    turns: int
    updated_at: int
    rank: int
    newest_record: int = 0
    preview: Preview | None = None
    demotion: Demotion | None = None

    @property
    def is_stub(self) -> bool:
        """True if it exists only for its forks."""
        return self.row.purged_at is not None


class ImportedMessage(NewMessage, frozen=True, kw_only=True, gc=False):
    """A message to import; the blobs that it only refers to are in the source.

    With `lost` it is a placeholder for a message that could not be read. `was_system` and `was_raw`
    say that it was a system message, and had data of a provider, before it was demoted.
    """

    branch: int
    lost: bool = False
    was_system: bool = False
    was_raw: bool = False


class ImportedRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record to import; the blobs that it only refers to are in the source.

    With `lost` it cannot be read there: it is not stored.
    """

    branch: int
    row: RecordRow
    blobs: Sequence[tuple[str, bytes]] = ()
    blob_refs: Sequence[str] = ()
    lost: bool = False


class NewTurn(msgspec.Struct, frozen=True):
    """A turn to import, with its ledger."""

    row: TurnRow
    tools: tuple[ToolRow, ...]


class NewDraft(msgspec.Struct, frozen=True):
    """A chunk of a draft to import."""

    turn: int
    number: int
    chunk: bytes
    message_id: str | None


SessionItem: TypeAlias = NewTurn | UsageRow | QueueRow | NewDraft
ImportItem: TypeAlias = ImportedMessage | ImportedRecord | SessionItem


class EntryBatch(msgspec.Struct):
    """Messages and records of one branch that follow each other."""

    branch: int
    messages: list[ImportedMessage]
    records: list[ImportedRecord]
    size: int = 0  # of the bodies and blobs, in bytes

    def add(self, item: ImportedMessage | ImportedRecord) -> None:
        """Add the next message or record."""
        if isinstance(item, ImportedMessage):
            self.messages.append(item)
        else:
            self.records.append(item)
        self.size += len(item.row.body) + sum(len(data) for _, data in item.blobs)

    def takes(self, item: ImportItem) -> bool:
        """True if an item is of the same branch, and there is room for it."""
        if not isinstance(item, ImportedMessage | ImportedRecord) or item.branch != self.branch:
            return False
        return len(self.messages) + len(self.records) < _BATCH_ENTRIES and self.size < _BATCH_BYTES


class SessionSource(Protocol):
    """A source of the contents of sessions. It can be read again from the start."""

    def items(self, session: ImportedSession) -> Iterator[ImportItem]:
        """Yield the contents of a session: the messages and records of each branch, then all else.

        Both are in order, and no record comes before the message that it lies behind.
        """
        ...

    def blob(self, sha256: str) -> bytes | None:
        """Return a blob; `None` if the source does not have it."""
        ...


class ImportSource(SessionSource, Protocol):
    """A source of an import, which may have changed what it contains."""

    def original_items(self, session: ImportedSession) -> Iterator[ImportItem]:
        """Yield the contents of a session as its store had them."""
        ...


class ImportResult(msgspec.Struct):
    """The result of importing a family."""

    sessions: list[tuple[int, int]] = []  # Rank, and number in this store.
    messages: int = 0
    records: int = 0
    skipped: list[str] = []
    damage: list[Damage] = []
    demotions: list[Demotion] = []


def import_sessions(
    family: Sequence[ImportedSession], source: ImportSource, new_id: Callable[[], str]
) -> Operation[ImportResult]:
    """Import a family of sessions; those that exist already are skipped."""
    substitutes = {session.source_id: new_id() for session in family}
    attempted: set[str] = set()

    def run(tx: Transaction) -> ImportResult:
        return _FamilyImport(tx, family, source, substitutes, attempted).run()

    return run


def imported_message(
    item: codec.EncodedMessage, branch: int, seq: int, turn: int | None, *, lost: bool = False
) -> ImportedMessage:
    """Return an encoded message as one to import."""
    row = MessageRow.create(seq, item.id, turn, item.body)
    return ImportedMessage(row, item.blobs, item.blob_refs, branch=branch, lost=lost)


def placeholder_message(session: str, branch: int, seq: int, raw: str | None) -> ImportedMessage:
    """Return a placeholder for a message that could not be read, with its source text if any."""
    message = codec.placeholder(f"{session}.{branch}.{seq}.damaged", raw)
    return imported_message(codec.encode_unchecked(message), branch, seq, None, lost=True)


def restore_list_order(sessions: Iterable[tuple[int, int]]) -> Operation[None]:
    """Write to sessions in the order of their ranks, so that lists show them in that order."""
    numbers = [n for _, n in sorted(sessions)]

    def run(tx: Transaction) -> None:
        heads = tx.heads(numbers)
        for n in numbers:
            if n in heads:
                tx.put_head(heads[n])

    return run


class StoredFamily(msgspec.Struct):
    """What is stored of a family: branch numbers and previews by (session, branch), and blobs.

    `free_keys` are those that no session has here; each is used once.
    """

    branches: dict[tuple[str, int], int] = {}
    previews: dict[tuple[str, int], Preview] = {}
    blobs: set[str] = set()
    free_keys: set[str] = set()


class _FamilyImport:
    """Imports one family within one transaction."""

    def __init__(
        self,
        tx: Transaction,
        family: Sequence[ImportedSession],
        source: ImportSource,
        substitutes: Mapping[str, str],
        attempted: set[str],
    ) -> None:
        self._tx = tx
        self._family = family
        self._source = source
        self._substitutes = substitutes
        self._attempted = attempted
        self._stored = StoredFamily()
        self._result = ImportResult()

    def run(self) -> ImportResult:
        """Decide what to import, then store it."""
        existing = {
            session.source_id: self._tx.find_session(id=session.row.id, stubs=True)
            for session in self._family
        }
        missing = self._missing_sessions(existing)
        required = self._shared_prefixes(missing)
        to_store: list[ImportedSession] = []
        for session in self._family:
            if session.source_id in missing:
                to_store.append(session)
                continue
            shared = _stub_of(session, required)
            if not shared.branches:
                continue
            row = existing[session.source_id]
            if row is None:
                to_store.append(shared)
            elif not self._attach_forks(row, shared):
                to_store.append(self._substitute(shared))
        for session in to_store:
            SessionWriter(self._tx, session, self._source, self._stored, self._result).run()
        return self._result

    def _missing_sessions(self, existing: Mapping[str, SessionRow | None]) -> set[str]:
        """Return the ids of sessions to import, and note those that exist as skipped."""
        missing: set[str] = set()
        for session in self._family:
            row = existing[session.source_id]
            if session.is_stub:
                continue
            if row is None:
                missing.add(session.source_id)
                self._attempted.add(session.source_id)
            elif session.source_id in self._attempted:
                # An earlier attempt seemed to fail, but its commit went through.
                self._result.sessions.append((session.rank, row.n))
                self._result.messages += sum(b.last_seq - b.fork_seq for b in session.branches)
                self._result.records += _count_records(self._tx, row.n)
                if session.demotion is not None:
                    self._result.demotions.append(session.demotion)
            else:
                self._result.skipped.append(session.source_id)
                if row.purged_at is not None:
                    what = "was purged here, and forks still need some of it; it was not imported"
                    self._result.damage.append(Damage(what=what, session_id=session.source_id))
        return missing

    def _shared_prefixes(self, missing: set[str]) -> dict[tuple[str, int], RequiredEnd]:
        """Return what imported sessions share with the others, by (session, branch)."""
        numbers = {session.source_id: n for n, session in enumerate(self._family)}
        indexes: dict[tuple[str, int], int] = {}
        nodes = []
        for session in self._family:
            for branch in session.branches:
                parent = None if branch.parent is None else indexes.get(branch.parent)
                index = indexes[session.source_id, branch.number] = len(indexes)
                start = (parent, branch.fork_seq, branch.fork_record)
                nodes.append(BranchNode(index, numbers[session.source_id], *start))
        others = [
            numbers[session.source_id]
            for session in self._family
            if session.source_id not in missing
        ]
        required = required_ends(nodes, others)
        return {key: required[index] for key, index in indexes.items() if index in required}

    # --------------------------------------------------------------------- existing sessions

    def _attach_forks(self, row: SessionRow, shared: ImportedSession) -> bool:
        """Attach forks to the existing session if it has what they share; return whether it does.

        Its row is not locked: nothing is written to it, and erasures run alone.
        """
        found: dict[int, BranchRow] = {}
        known: dict[tuple[str, int], int] = {}
        for branch in shared.branches:
            stored = self._tx.branch(row.n, branch.number)
            if stored is None or stored.last_seq < branch.last_seq:
                return False
            if not has_same_start(stored, branch, ChainMap(known, self._stored.branches)):
                return False
            found[branch.number] = stored
            known[shared.source_id, branch.number] = stored.n
        if shared.demotion is not None and not self._has_every_message(shared):
            return False
        # The existing session may be one's own, or have been imported with or without trust.
        for items in (self._source.original_items, self._source.items):
            if self._has_same_entries(items(shared), shared, found):
                break
        else:
            return False
        self._stored.branches.update(known)
        return True

    def _has_same_entries(
        self,
        items: Iterable[ImportItem],
        shared: ImportedSession,
        found: Mapping[int, BranchRow],
    ) -> bool:
        """True if the store has these messages, these records and no other records among them.

        It must also have the last record that is shared, or a later one: numbers that are still
        free would be given to records that a fork then had from its parent.
        """
        coming: dict[int, dict[int, RecordIdentity]] = {number: {} for number in found}
        if first_difference(self._tx, _noting_records(items, coming), found) is not None:
            return False
        for branch in shared.branches:
            n = found[branch.number].n
            if branch.last_record and branch.last_record > self._newest_record(n):
                return False
            if coming[branch.number] != stored_records(self._tx, branch.own(n)):
                return False
        return True

    def _newest_record(self, branch: int) -> int:
        newest = self._tx.records([Segment(branch, 1, None, "")], limit=1)
        return newest[0][1].number if newest else 0

    def _has_every_message(self, shared: ImportedSession) -> bool:
        """True if the source has all that is shared.

        If not, a fork would get messages that its author need not know.
        """
        items = self._source.items(shared)
        read = sum(isinstance(item, ImportedMessage) and not item.lost for item in items)
        return read == sum(branch.last_seq - branch.fork_seq for branch in shared.branches)

    def _substitute(self, shared: ImportedSession) -> ImportedSession:
        name = self._substitutes[shared.source_id]
        what = (
            f"session {shared.source_id} has another history here; what its forks shared with it "
            f"was imported as {name}"
        )
        self._result.damage.append(Damage(what=what, session_id=shared.source_id))
        return msgspec.structs.replace(shared, row=msgspec.structs.replace(shared.row, id=name))


RecordIdentity: TypeAlias = tuple[int, str, int]


def record_identity(row: RecordRow) -> RecordIdentity:
    """Return what tells a record from another of the same number."""
    return row.seq, row.id, row.crc


def stored_records(snapshot: Snapshot, own: Segment) -> dict[int, RecordIdentity]:
    """Return the records of a branch by their numbers."""
    return {row.number: record_identity(row) for row in branch_records(snapshot, own)}


def _noting_records(
    items: Iterable[ImportItem], found: Mapping[int, dict[int, RecordIdentity]]
) -> Iterator[ImportItem]:
    """Yield the items; note their records by branch and number."""
    for item in items:
        if isinstance(item, ImportedRecord):
            found[item.branch][item.row.number] = record_identity(item.row)
        yield item


def _count_records(snapshot: Snapshot, session: int) -> int:
    """Return how many records are on the branches of a session."""
    return sum(
        1
        for row in snapshot.branches(session=session)
        for _ in branch_records(snapshot, Segment(row.n, 1, row.last_seq, row.session_id))
    )


def first_difference(
    snapshot: Snapshot, items: Iterable[ImportItem], found: Mapping[int, BranchRow]
) -> ImportedMessage | None:
    """Return the first message that differs from the stored one; `lost` ones are not compared."""
    for batch in _batches(items):
        if not isinstance(batch, EntryBatch) or not batch.messages:
            continue
        branch = found[batch.branch]
        first, last = batch.messages[0].row.seq, batch.messages[-1].row.seq
        ((_, rows),) = snapshot.messages([Segment(branch.n, first, last, "")])
        stored = {row.seq: (row.id, row.crc) for row in rows}
        for item in batch.messages:
            if not item.lost and stored.get(item.row.seq) != (item.row.id, item.row.crc):
                return item
    return None


def has_same_start(
    stored: BranchRow, branch: NewBranch, known: Mapping[tuple[str, int], int]
) -> bool:
    """True if a stored branch has the same parent and start as an imported one."""
    if (stored.fork_seq, stored.fork_record) != (branch.fork_seq, branch.fork_record):
        return False
    if branch.parent is None or stored.parent is None:
        return branch.parent is None and stored.parent is None
    return known.get(branch.parent) == stored.parent


def _stub_of(
    session: ImportedSession, required: Mapping[tuple[str, int], RequiredEnd]
) -> ImportedSession:
    """Return a stub of a session: only what its forks share."""
    parts = [
        (branch, required.get((session.source_id, branch.number))) for branch in session.branches
    ]
    branches = [
        msgspec.structs.replace(branch, last_seq=part.seq, last_record=part.record)
        for branch, part in parts
        if part is not None
    ]
    at = session.row.created_at if session.row.purged_at is None else session.row.purged_at
    row = stub_row(session.row, at)
    return msgspec.structs.replace(session, row=row, branches=tuple(branches))


def _batches(items: Iterable[ImportItem]) -> Iterator[EntryBatch | SessionItem]:
    """Yield consecutive messages and records of a branch together, other items one by one."""
    batch: EntryBatch | None = None
    for item in items:
        if batch is not None and not batch.takes(item):
            yield batch
            batch = None
        if not isinstance(item, ImportedMessage | ImportedRecord):
            yield item
            continue
        batch = batch or EntryBatch(item.branch, [], [])
        batch.add(item)
    if batch is not None:
        yield batch


def key_holder(snapshot: Snapshot, row: SessionRow) -> SessionRow | None:
    """Return the other session that has the key of this one; `None` if there is none."""
    return key_holders(snapshot, [row]).get(row.id)


def key_holders(snapshot: Snapshot, rows: Iterable[SessionRow]) -> dict[str, SessionRow]:
    """Return the other sessions that have the keys of these, by the ids of these."""
    keyed = [(row.id, row.key) for row in rows if row.key is not None and row.trashed_at is None]
    found = snapshot.sessions_by_key({key for _, key in keyed})
    return {id: found[key] for id, key in keyed if key in found and found[key].id != id}


class SessionWriter:
    """Stores one session with its contents.

    With `keep_open_turn` a turn that is open in the source stays open here, without a holder; else
    it is closed as after a crash.
    """

    def __init__(
        self,
        tx: Transaction,
        session: ImportedSession,
        source: SessionSource,
        stored: StoredFamily,
        result: ImportResult,
        *,
        keep_open_turn: bool = False,
    ) -> None:
        self._tx = tx
        self._session = session
        self._keep_open_turn = keep_open_turn
        self._source = source
        self._stored = stored
        self._result = result
        self._last_seqs = {branch.number: branch.fork_seq for branch in session.branches}
        self._newest_records: dict[int, int] = {}  # By the number of the branch.
        self._open: NewTurn | None = None
        self._usage, self._cost = Usage(), 0
        self._turns, self._queued = session.turns, 0
        self._was_system = self._was_raw = self._records = 0
        self._n = 0

    def run(self) -> None:
        """Store the row, branches and contents, then the head."""
        self._store_row_and_branches()
        for item in _batches(self._source.items(self._session)):
            if isinstance(item, EntryBatch):
                if item.messages:
                    self._store_messages(item.messages)
                if item.records:
                    self._store_records(item.records)
            elif not self._session.is_stub:
                self._store_item(item)
        for branch in self._session.branches[: None if self._session.is_stub else -1]:
            self._tx.end_branch(self._branch(branch.number), self._last_seqs[branch.number])
        if not self._session.is_stub:
            self._write_head()
            self._result.sessions.append((self._session.rank, self._n))
        if self._session.demotion is not None:
            self._record_demotion(self._session.demotion)

    def _record_demotion(self, taken: Demotion) -> None:
        """Report what was taken from the session, and record where it ends."""
        if self._session.is_stub:
            taken = Demotion(session_id=self._session.row.id)
        else:
            self._mark_end()
        demotion = msgspec.structs.replace(
            taken,
            queued=self._queued,
            system=self._was_system,
            raw=self._was_raw,
            records=self._records,
        )
        if demotion != Demotion(session_id=taken.session_id):
            self._result.demotions.append(demotion)

    def _mark_end(self) -> None:
        row, head = self._tx.session(self._n), find_head(self._tx, self._n)
        if row is not None and row.provenance is not None:
            known = codec.from_json(row.provenance, SessionProvenance)
            known = msgspec.structs.replace(known, head=to_head(head))
            self._tx.put_session(msgspec.structs.replace(row, provenance=codec.to_json(known)))

    def _branch(self, number: int) -> int:
        return self._stored.branches[self._session.source_id, number]

    def _store_row_and_branches(self) -> None:
        """Store the session's row and branches."""
        row, branches = self._with_known_parent(self._row_with_free_key()), self._session.branches
        self._n = self._tx.add_session(row, self._start(branches[0]))
        for branch in branches:
            if branch.number == 1 and not self._session.is_stub:
                first = self._tx.branch(self._n, 1)
                n = 0 if first is None else first.n
            else:
                start = self._start(branch)
                n = self._tx.add_branch(self._n, branch.number, start, branch.created_at)
            self._stored.branches[self._session.source_id, branch.number] = n

    def _row_with_free_key(self) -> SessionRow:
        """Return the session's row, without its key if another session here has it."""
        row = self._session.row
        if row.key in self._stored.free_keys:
            self._stored.free_keys.remove(row.key)
            return row
        taken = key_holder(self._tx, row)
        if taken is None:
            return row
        what = f"session {taken.id} already has its key; it was imported without a key"
        self._result.damage.append(Damage(what=what, session_id=row.id))
        return msgspec.structs.replace(row, key=None)

    def _with_known_parent(self, row: SessionRow) -> SessionRow:
        """Return the row without a parent of one's own whose history it does not share.

        A source that is not trusted may name any parent, and lists, searches and retention would
        take the session for a part of that one's lineage.
        """
        if self._session.demotion is None or row.parent is None:
            return row
        parent = self._tx.find_session(id=row.parent, stubs=True)
        shared = self._session.branches[0].parent
        if parent is None or parent.provenance is not None:
            return row
        if shared is not None and shared[0] == row.parent:
            branch = self._tx.branch(parent.n, shared[1])
            if branch is not None and branch.n == self._stored.branches[shared]:
                return row
        return msgspec.structs.replace(row, parent=None, relation=None)

    def _start(self, branch: NewBranch) -> BranchStart:
        return BranchStart(
            parent=None if branch.parent is None else self._stored.branches[branch.parent],
            fork_seq=branch.fork_seq,
            asked_seq=branch.asked_seq,
            reason=branch.reason,
            token=branch.token,
            fork_record=branch.fork_record,
        )

    # -------------------------------------------------------------------- messages and records

    def _store_messages(self, batch: Sequence[ImportedMessage]) -> None:
        """Store messages of one branch."""
        number = batch[0].branch
        branch = self._branch(number)
        batch = self._replace_refused(branch, batch)
        store_messages(self._tx, branch, batch, self._find_blob)
        for item in batch:
            if not self._session.is_stub:
                self._turns = max(self._turns, item.row.turn or 0)
        self._last_seqs[number] = batch[-1].row.seq
        self._was_system += sum(item.was_system for item in batch)
        self._was_raw += sum(item.was_raw for item in batch)
        self._result.messages += sum(not item.lost for item in batch)

    def _replace_refused(
        self, branch: int, batch: Sequence[ImportedMessage]
    ) -> list[ImportedMessage]:
        """Replace messages that must not be stored by damaged placeholders.

        They have an id that the history has already, or name a file of another session.
        """
        seen = set(self._tx.stored(branch, [item.row.id for item in batch]))
        found: list[ImportedMessage] = []
        for item in batch:
            if item.row.id in seen:
                found.append(self._placeholder(item, "has the id of another message"))
            elif any(map(self._is_of_others, item.blob_refs)):
                found.append(self._placeholder(item, "names a file whose data is not its own"))
            else:
                seen.add(item.row.id)
                found.append(item)
        return found

    def _placeholder(self, item: ImportedMessage, why: str) -> ImportedMessage:
        self._report_damage(f"message {item.row.seq} {why}", item.row.seq)
        raw = item.row.body.decode("utf-8", "backslashreplace")
        return placeholder_message(self._session.row.id, item.branch, item.row.seq, raw)

    def _is_of_others(self, sha256: str) -> bool:
        """True if a source that is not trusted names data that only this store has.

        By its hash alone it would get the data of a file that its author need not know.
        """
        if self._session.demotion is None or sha256 in self._stored.blobs:
            return False
        return self._source.blob(sha256) is None and self._tx.blob(sha256) is not None

    def _report_damage(self, what: str, seq: int | None = None) -> None:
        damage = Damage(what=what, session_id=self._session.row.id, seq=seq)
        self._result.damage.append(damage)

    def _store_records(self, batch: Sequence[ImportedRecord]) -> None:
        """Store records of one branch, with the numbers they have."""
        number = batch[0].branch
        branch = self._branch(number)
        kept = list(self._without_refused(branch, batch))
        if kept:
            uses = (use for item in kept for use in self._record_blobs(item))
            self._tx.add_records(branch, [item.row for item in kept], uses)
            self._newest_records[number] = kept[-1].row.number
        self._records += len(kept)
        self._result.records += len(kept)

    def _without_refused(
        self, branch: int, batch: Sequence[ImportedRecord]
    ) -> Iterator[ImportedRecord]:
        """Yield the records that may be stored; report the others, as with messages."""
        seen = set(self._tx.stored_records(branch, [item.row.id for item in batch]))
        for item in batch:
            row = item.row
            if item.lost:
                continue
            if row.id in seen:
                why = "has the id of another record"
            elif any(map(self._is_of_others, item.blob_refs)):
                why = "names a file whose data is not its own"
            else:
                seen.add(row.id)
                yield item
                continue
            self._report_damage(f"record {row.number} {why}; it was left out", row.seq)

    def _record_blobs(self, item: ImportedRecord) -> Iterator[BlobUse]:
        row = item.row
        for sha256, data in item.blobs:
            yield BlobUse(row.number, sha256, data)
        for sha256 in item.blob_refs:
            use = self._find_blob(row.seq, sha256)
            if use is not None:
                yield BlobUse(row.number, sha256, use.data)

    def _find_blob(self, seq: int, sha256: str) -> BlobUse | None:
        """Return a blob that a message refers to, from the source unless it is stored here."""
        data = None
        if sha256 not in self._stored.blobs and self._tx.blob(sha256) is None:
            data = self._source.blob(sha256)
            if data is None:
                self._report_damage(f"the data of a file, {sha256}, is missing", seq)
                return None
        self._stored.blobs.add(sha256)
        return BlobUse(seq, sha256, data)

    # --------------------------------------------------------- turns, usage, queue, drafts, head

    def _store_item(self, item: SessionItem) -> None:
        if isinstance(item, NewTurn):
            self._store_turn(item)
        elif isinstance(item, UsageRow):
            self._count_usage(item)
        elif isinstance(item, QueueRow):
            self._tx.add_queued(self._n, item)
            self._queued += 1
        else:
            self._store_draft(item)

    def _store_turn(self, turn: NewTurn) -> None:
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

    def _count_usage(self, row: UsageRow) -> None:
        usage, cost = self._usage + row.usage, self._cost + row.cost
        if overflows(usage, cost):
            self._report_damage("its usage adds up to more than can be stored; some was left out")
            return
        self._usage, self._cost = usage, cost
        self._store_usage(row)

    def _store_usage(self, row: UsageRow) -> None:
        self._tx.add_usage(self._n, row)

    def _store_draft(self, draft: NewDraft) -> None:
        """Store a draft of the open turn unless its message is stored already."""
        if self._open is None or self._open.row.number != draft.turn:
            return
        active = self._branch(self._session.branches[-1].number)
        if draft.message_id is None or not self._tx.stored(active, [draft.message_id]):
            self._tx.put_draft(self._n, draft.turn, draft.number, draft.chunk)

    def _preview(self, last: NewBranch, branch: int, seq: int) -> Preview:
        """Return the preview of the history, which is often that of the parent's."""
        if self._session.preview is not None:
            return self._session.preview
        shown = None if last.parent is None else self._stored.previews.get(last.parent)
        if shown is None or shown.rank != RANK_USER or shown.seq > last.fork_seq:
            shown = read_preview(self._tx, branch, seq)
        self._stored.previews[self._session.source_id, last.number] = shown
        return shown

    def _write_head(self) -> None:
        """Write the head as it was in the source."""
        last = self._session.branches[-1]
        branch, seq = self._branch(last.number), self._last_seqs[last.number]
        if self._open is not None and self._open.row.number != self._turns:
            self._close_turn()
        head = msgspec.structs.replace(
            find_head(self._tx, self._n),
            branch=branch,
            branch_no=last.number,
            seq=seq,
            turns=self._turns,
            open_turn=None if self._open is None else self._open.row.number,
            updated_at=self._session.updated_at,
            usage=self._usage,
            cost=self._cost,
            queued=self._queued,
            records=max(self._session.newest_record, self._newest_records.get(last.number, 0))
            or None,
        )
        self._tx.put_head(with_preview(head, self._preview(last, branch, seq)))
        if not self._keep_open_turn:
            require_free_head(self._tx, find_head(self._tx, self._n))
