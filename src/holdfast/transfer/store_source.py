"""The sessions of one store as the source of a copy, row by row.

It implements the same protocol as an import file. Rows are decoded only to check that they can be:
the bytes of a message, a record, a draft or a queued message are copied as they were stored. A
message that cannot be read becomes the placeholder that a reader would get, and is reported; a
record is left out, and reported. An open turn is copied without its lease, which stays with the
holder in the source store.

A `SessionDigest` identifies the content of a session in any store: equal sessions have equal
digests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate, islice, takewhile
from typing import Final
from zlib import crc32

import msgspec

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.operations import residue
from holdfast.operations.append import preview_of
from holdfast.operations.history import DamageCallback, check_row, damage_of, damaged_message
from holdfast.operations.queue import blob_reader, queued_message
from holdfast.operations.record_import import ImportedStoreRecord
from holdfast.operations.records import branch_records, read_record
from holdfast.operations.session_copy import without_lease
from holdfast.operations.session_import import (
    ImportedMessage,
    ImportedRecord,
    ImportedSession,
    ImportItem,
    NewBranch,
    NewDraft,
    NewTurn,
    imported_message,
)
from holdfast.operations.sessions import stub_row
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Snapshot, TurnRange
from holdfast.storage.rows import (
    BranchRow,
    HeadRow,
    MessageRow,
    QueueRow,
    RecordRow,
    SessionRow,
    StoreRecordRow,
    UsageRow,
)
from holdfast.transfer.export import ExportPlan, PlannedBranch
from holdfast.values import Damage

_PAGE_MESSAGES: Final = 200
_PAGE_TURNS: Final = 50
_MAX_AHEAD_MESSAGES: Final = 2_000
_BLOB_FIELD: Final = b'"sha256"'
# Part of every digest, and thus of what a copy reports: they stay when a class is renamed.
_DIGEST_TAGS: Final[Mapping[type, str]] = {
    NewTurn: "NewTurn",
    UsageRow: "UsageRow",
    NewDraft: "NewDraft",
}


class SessionDigest(msgspec.Struct, frozen=True, kw_only=True):
    """The digest and counts of a session; a different `change_stamp` means it was written to."""

    is_stub: bool
    digest: bytes
    messages: int
    records: int
    turns: int
    queued: int
    interrupted: bool
    change_stamp: int | None


class StoreSource:
    """The sessions of one snapshot, as the source of a copy."""

    def __init__(
        self,
        snapshot: Snapshot,
        report: DamageCallback,
        step: Callable[[int], None],
        sound: dict[bytes, bool] | None = None,
    ) -> None:
        """Read from `snapshot`; `step` is called with the number of messages read.

        `sound` caches, by hash, whether a blob is intact; it is updated.
        """
        self._snapshot = snapshot
        self._report = report
        self._step = step
        self._branches: dict[tuple[str, int], BranchRow] = {}
        self.blob_checks: dict[bytes, bool] = {} if sound is None else sound

    # ------------------------------------------------------------------------- fields and branches

    def families(self, ids: Iterable[str]) -> list[list[ImportedSession]]:
        """Return the sessions that exist, grouped with those they share messages with.

        Parents come first. A stub has only the messages that its forks share.
        """
        found = self._snapshot.sessions_by_id(list(ids)).values()
        numbers = [row.n for row in found if row.purged_at is None]
        self._snapshot.read_ahead(numbers)
        plan = ExportPlan(self._snapshot, numbers)
        families = []
        for family in plan.families:
            branches = plan.branches(family)
            rows = [
                self._snapshot.find_session(id=family.stubs[n], stubs=True)
                if n in family.stubs
                else self._snapshot.session(n)
                for n in family.sessions
            ]
            families.append([self.imported_session(row, branches[row.n]) for row in rows if row])
        return families

    def read_ahead(self, sessions: Sequence[ImportedSession]) -> None:
        """Prepare to read the first messages and turns of sessions, all at once."""
        spans = [span for session in sessions for _, span in self._spans(session)]
        messages = accumulate((span.last or 0) - span.first + 1 for span in spans)
        few = takewhile(lambda total: total <= _MAX_AHEAD_MESSAGES, messages)
        ranges = [span for span, _ in zip(spans, few, strict=False)]
        turns = [found for session in sessions for found in islice(_turn_ranges(session), 1)]
        self._snapshot.read_ahead((), ranges, turns)

    def _spans(self, session: ImportedSession) -> Iterator[tuple[int, Segment]]:
        """Return the messages of each branch in pages, with its number."""
        for branch in session.branches:
            n = self._branches[session.source_id, branch.number].n
            for first in range(branch.fork_seq + 1, branch.last_seq + 1, _PAGE_MESSAGES):
                last = min(branch.last_seq, first + _PAGE_MESSAGES - 1)
                yield branch.number, Segment(n, first, last, session.source_id)

    def imported_session(
        self, row: SessionRow, branches: Sequence[PlannedBranch]
    ) -> ImportedSession:
        """Return the fields and branches of a session, as an import takes them."""
        head = self._snapshot.head(row.n)
        self._branches |= {(row.id, branch.row.number): branch.row for branch in branches}
        return ImportedSession(
            source_id=row.id,
            row=row,
            branches=tuple(self._branch(branch) for branch in branches),
            turns=0 if head is None else head.turns,
            updated_at=row.created_at if head is None else head.updated_at,
            rank=0,
            newest_record=0 if head is None else head.records or 0,
            preview=None if head is None else preview_of(head),
        )

    def _branch(self, branch: PlannedBranch) -> NewBranch:
        row = branch.row
        parent = None if row.parent is None else self._snapshot.find_branch(row.parent)
        return NewBranch(
            number=row.number,
            parent=None if parent is None else (parent.session_id, parent.number),
            fork_seq=row.fork_seq,
            asked_seq=row.asked_seq,
            last_seq=row.last_seq,
            reason=row.reason,
            created_at=row.created_at,
            token=row.token,
            fork_record=row.fork_record,
            last_record=branch.last_record,
        )

    def find(self, reach: Mapping[str, Sequence[NewBranch]]) -> list[ImportedSession]:
        """Find sessions by id; a stub is limited to these branches and where they end."""
        rows = self._snapshot.sessions_by_id(reach.keys())
        self._snapshot.read_ahead([row.n for row in rows.values()])
        return [self._limited_session(rows[id], reach[id]) for id in reach if id in rows]

    def _limited_session(self, row: SessionRow, reach: Sequence[NewBranch]) -> ImportedSession:
        branches = [PlannedBranch(branch) for branch in self._snapshot.all_branches(row.n)]
        if row.purged_at is not None:
            ends = {branch.number: branch for branch in reach}
            branches = [
                _limited(branch.row, ends[branch.row.number])
                for branch in branches
                if branch.row.number in ends
            ]
        return self.imported_session(row, branches)

    # ------------------------------------------------------------------------------- the content

    def items(self, session: ImportedSession) -> Iterator[ImportItem]:
        """Return the content of a session, in the order of an import."""
        yield from self.messages(session)
        yield from self.records(session)
        if not session.is_stub:
            yield from self.turns(session)
            yield from self.usage(session)
            yield from self.queue(session)
            yield from self._drafts(session)

    def blob(self, name: str) -> bytes | None:
        """Return a blob; `None` if it is missing or does not match its hash."""
        return self._snapshot.blob(name)

    def messages(self, session: ImportedSession) -> Iterator[ImportedMessage]:
        """Return the messages of each branch, up to its `last_seq`."""
        for branch, span in self._spans(session):
            ((_, rows),) = self._snapshot.messages([span])
            if [row.seq for row in rows] != list(range(span.first, (span.last or 0) + 1)):
                raise Damaged(
                    f"session {session.source_id}: some of the messages {span.first} to "
                    f"{span.last} are missing"
                )
            self._step(len(rows))
            yield from [self._message(session, branch, row) for row in rows]

    def _message(self, session: ImportedSession, branch: int, row: MessageRow) -> ImportedMessage:
        try:
            return ImportedMessage(branch=branch, row=row, blob_refs=self._blob_names(row))
        except Damaged as error:
            self._report(damage_of(error, session.source_id, row.seq))
        item = codec.encode_unchecked(damaged_message(row))
        return imported_message(item, branch, row.seq, row.turn, lost=True)

    def _blob_names(self, row: MessageRow) -> tuple[str, ...]:
        """Return the hashes of a message's blobs; raise `Damaged` if it cannot be read."""
        check_row(row)
        if _BLOB_FIELD not in row.body:
            return ()
        message = codec.decode(row.body, id=row.id, seq=row.seq, turn_id=None, blob=self.blob)
        # A large part is a blob itself: the files it names are not in the body.
        return tuple(dict.fromkeys([*residue.blob_hashes(row.body), *codec.file_hashes(message)]))

    def records(self, session: ImportedSession) -> Iterator[ImportedRecord]:
        """Return the records of each branch, up to its ends; those that cannot be read as lost."""
        for branch in session.branches:
            n = self._branches[session.source_id, branch.number].n
            for row in branch_records(self._snapshot, branch.own(n)):
                yield self._record(session, branch.number, row)

    def _record(self, session: ImportedSession, branch: int, row: RecordRow) -> ImportedRecord:
        try:
            read_record(self._snapshot, row)
        except Damaged as error:
            self._report(damage_of(error, session.source_id, row.seq))
            return ImportedRecord(branch=branch, row=row, lost=True)
        return ImportedRecord(branch=branch, row=row, blob_refs=_record_blobs(row))

    def has_store_record(self, id: str) -> bool:
        """True if the store has a record of its own with this id, or had it."""
        return bool(self._snapshot.store_record_ids([id]))

    def store_record(self, row: StoreRecordRow) -> ImportedStoreRecord | None:
        """Return a record of the store as an import takes it; `None` if it cannot be read."""
        if row.body is None:
            return ImportedStoreRecord(row=row)
        try:
            read_record(self._snapshot, row)
        except Damaged as error:
            self._report(Damage(what=str(error), blocking=False))
            return None
        return ImportedStoreRecord(row=row, blob_refs=_record_blobs(row))

    def turns(self, session: ImportedSession) -> Iterator[NewTurn]:
        """Return the turns, read in pages because there may be very many."""
        for wanted in _turn_ranges(session):
            for row, tools in self._snapshot.turns_with_tools(wanted):
                yield NewTurn(
                    without_lease(row),
                    tuple(msgspec.structs.replace(tool, session=0) for tool in tools),
                )

    def usage(self, session: ImportedSession) -> list[UsageRow]:
        """Return the usage by day and model."""
        return self._snapshot.usage(session=session.row.n)

    def queue(self, session: ImportedSession) -> Iterator[QueueRow]:
        """Return queued messages, with the data of all their files."""
        for row in self._snapshot.queue(session.row.n):
            try:
                named = codec.file_hashes(queued_message(self._snapshot, row))
            except Damaged:
                what = "a queued message cannot be read"
                self._report(Damage(what=what, session_id=session.source_id))
                continue
            read = blob_reader(self._snapshot, row)
            names = sorted({*named, *(name for name, _ in row.blobs)})
            blobs = tuple((name, data) for name in names if (data := read(name)) is not None)
            if not {name for name, _ in row.blobs} <= {name for name, _ in blobs}:
                what = "a file of a queued message does not match its hash"
                self._report(Damage(what=what, session_id=session.source_id))
            yield msgspec.structs.replace(row, number=0, blobs=blobs)

    def has_message(self, session: ImportedSession, id: str) -> bool:
        """True if any branch of the session has a message with this id."""
        return bool(self._snapshot.stored_in_sessions([session.row.n], [id]))

    def _drafts(self, session: ImportedSession) -> Iterator[NewDraft]:
        head = self._snapshot.head(session.row.n)
        if head is None or head.open_turn is None:
            return
        for number, chunk in enumerate(self._snapshot.draft(session.row.n, head.open_turn)):
            yield NewDraft(head.open_turn, number, chunk, None)

    # --------------------------------------------------------------------------------- digests

    def digest(self, session: ImportedSession) -> SessionDigest:
        """Read all of a session, including its files, and return its digest."""
        head = self._snapshot.head(session.row.n)
        digest = sha256()
        # The time of a purge differs between stores, and so does whether it is finished.
        row = stub_row(session.row, purged_at=0) if session.is_stub else session.row
        row = msgspec.structs.replace(row, n=0)
        digest.update(
            codec.to_json((row, session.branches, None if head is None else _head_state(head)))
        )
        counts: Counter[type] = Counter()
        items = (
            item
            for item in self.items(session)
            if not (isinstance(item, ImportedRecord) and item.lost)
        )
        while page := list(islice(items, _PAGE_MESSAGES)):
            counts.update(map(type, page))
            digest.update(codec.to_json([self._digest_input(item) for item in page]))
            entries = (item for item in page if isinstance(item, ImportedMessage | ImportedRecord))
            digest.update(b"".join([item.row.body for item in entries]))
        return SessionDigest(
            is_stub=session.is_stub,
            digest=digest.digest(),
            messages=counts[ImportedMessage],
            records=counts[ImportedRecord],
            turns=counts[NewTurn],
            queued=counts[QueueRow],
            interrupted=head is not None and head.open_turn is not None,
            change_stamp=self.change_stamp(session),
        )

    def change_stamp(self, session: ImportedSession) -> int | None:
        """Return a checksum that changes with each write; `None` while a turn is open.

        Not every write to an open turn changes the rows that it is computed from.
        """
        head = self._snapshot.head(session.row.n)
        if head is not None and head.open_turn is not None:
            return None
        return crc32(codec.to_json((0 if head is None else head.activity, session.row)))

    def _digest_input(self, item: ImportItem) -> object:
        """Return an item without message bodies and file data, for the digest."""
        if isinstance(item, ImportedMessage):
            row, files = item.row, []
            if item.blobs or item.blob_refs:
                own = dict(item.blobs)
                names = sorted({*own, *item.blob_refs})
                files = [(name, name in own or self.is_intact(name)) for name in names]
            return ("message", item.branch, row.seq, row.id, row.turn, len(row.body), files)
        if isinstance(item, ImportedRecord):
            kept = item.row
            columns = (item.branch, kept.number, kept.seq, kept.id, kept.kind, kept.key)
            files = [(name, self.is_intact(name)) for name in sorted(item.blob_refs)]
            return ("record", *columns, len(kept.body), files)
        if isinstance(item, QueueRow):
            attached = [name for name, _ in item.blobs]
            return ("queued", item.id, item.created_at, item.body, attached, item.held)
        return (_DIGEST_TAGS[type(item)], item)

    def is_intact(self, name: str) -> bool:
        """True if a blob exists and matches its hash; each is read only once."""
        key = bytes.fromhex(name)
        if key not in self.blob_checks:
            self.blob_checks[key] = self.blob(name) is not None
        return self.blob_checks[key]


def _limited(row: BranchRow, end: NewBranch) -> PlannedBranch:
    """Return a branch of a stub that ends where another one does, or earlier."""
    last_seq = min(row.last_seq, end.last_seq)
    return PlannedBranch(msgspec.structs.replace(row, last_seq=last_seq), end.last_record)


def _turn_ranges(session: ImportedSession) -> Iterator[TurnRange]:
    """Return the numbers of a session's turns in pages."""
    for first in range(1, session.turns + 1, _PAGE_TURNS):
        last = min(session.turns, first + _PAGE_TURNS - 1)
        yield TurnRange(session.row.n, first, last)


def _record_blobs(row: RecordRow | StoreRecordRow) -> tuple[str, ...]:
    """Return the hashes of a record's blobs, each once."""
    data, files = codec.record_blob_hashes(row.body or b"")
    return tuple(dict.fromkeys((*data, *files)))


def _head_state(head: HeadRow) -> tuple[object, ...]:
    """Return the fields of a head that do not depend on the store's row numbers."""
    return (
        head.branch_no,
        head.seq,
        head.turns,
        head.open_turn,
        head.updated_at,
        head.usage,
        head.cost,
        preview_of(head),
        head.queued,
        *(() if head.records is None else (head.records,)),
    )
