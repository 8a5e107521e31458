"""Export sessions to a file of JSON lines.

Everything is read from one snapshot, page by page, and written as it is read, so memory does not
grow with the histories. Sessions that share messages (a *family*) are written together, a parent
before its forks, and each message once, with the session that wrote it. A parent that is not
exported itself becomes a *stub*: only the messages that its forks share are written, and it is
marked as purged, because that is its state after an import. The oldest sessions come first, so
that a later export begins with the same lines as an earlier one.

Each record follows the message that it lies behind; those of the store come last, if all sessions
are exported. A message that cannot be read is written as the placeholder that a reader would get,
and reported; a record that cannot be read is left out, and reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from holdfast import codec
from holdfast.clock import Clock, to_datetime, to_day
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.errors import Damaged, Invalid, system_errors
from holdfast.operations.history import DamageCallback, check_row, damage_of, damaged_message
from holdfast.operations.purge_rules import BranchNode, required_ends
from holdfast.operations.queue import blob_reader, queued_message
from holdfast.operations.records import branch_records, read_record
from holdfast.operations.resolve import find_anywhere
from holdfast.operations.session_fields import to_fields
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Query, Snapshot
from holdfast.storage.rows import (
    BranchRow,
    HeadRow,
    MessageRow,
    QueueRow,
    RecordRow,
    SessionRow,
    StoreRecordRow,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
)
from holdfast.transfer.export_file import atomic_file
from holdfast.transfer.format import (
    VERSION,
    AnyLine,
    BlobLine,
    BranchLine,
    DraftLine,
    EndLine,
    Header,
    LedgerEntry,
    MessageLine,
    QueuedLine,
    SessionLine,
    TurnLine,
    UsageLine,
    encode_line,
    message_content,
    message_line,
    record_line,
    store_record_line,
    to_money,
)
from holdfast.transfer.redact.export_redactor import Redactor, select_detectors
from holdfast.values import Damage, ExportReport, Message, Record, Review

Progress: TypeAlias = Callable[[int, int], None]
_PAGE_MESSAGES: Final = 200
_STORE_FILE_SUFFIXES: Final = (
    "",
    "-wal",
    "-shm",
    "-queue",
    "-lock",
    "-search",
    "-search-wal",
    "-search-shm",
)
_DECODE_ERRORS: Final = (msgspec.DecodeError, ValueError, RecursionError)


def export(
    backend: Backend,
    clock: Clock,
    to: str,
    refs: Sequence[str],
    *,
    overwrite: bool,
    redact: str | Sequence[str] | None,
    progress: Progress | None,
    report: DamageCallback,
) -> ExportReport:
    """Write the sessions that `refs` name, or all, to a new file."""
    redactor = Redactor(select_detectors(redact))
    queries = [find_anywhere(ref, report) for ref in refs]
    _refuse_store_path(backend, to)
    with atomic_file(to, overwrite=overwrite) as file:
        job = ExportJob(file, redactor, clock.micros(), progress, report)
        output = backend.read(lambda snapshot: _run(snapshot, queries, job))
    return ExportReport(
        path=to,
        sessions=output.sessions,
        messages=output.messages,
        records=output.records,
        blobs=output.blobs,
        size=output.size,
        review=redactor.review(),
    )


def review(
    backend: Backend,
    clock: Clock,
    refs: Sequence[str],
    *,
    redact: str | Sequence[str] | None,
    progress: Progress | None,
    report: DamageCallback,
) -> Review:
    """Run an export without keeping the file; return what redaction would replace."""
    redactor = Redactor(select_detectors(redact))
    queries = [find_anywhere(ref, report) for ref in refs]
    with system_errors("the export cannot be tried", "nothing was changed."):
        file = Path(os.devnull).open("wb")  # noqa: SIM115 - its errors, not those of the block
    with file:
        job = ExportJob(file, redactor, clock.micros(), progress, report)
        backend.read(lambda snapshot: _run(snapshot, queries, job))
    return redactor.review() or Review(replaced=0, left_out=0, not_looked_into=0, findings=())


class ExportJob(NamedTuple):
    """The parameters of one export."""

    file: BinaryIO
    redactor: Redactor
    now: int
    progress: Progress | None
    report: DamageCallback


def _run(snapshot: Snapshot, queries: Sequence[Query[SessionRow]], job: ExportJob) -> ExportWriter:
    if queries:
        numbers = _find_named(snapshot, queries)
    else:
        numbers = [n for n, _ in readable_sessions(snapshot, job.report)]
    plan = ExportPlan(snapshot, numbers, whole=not queries)
    output = ExportWriter(job.file, plan.messages, job.progress)
    _write(snapshot, plan, output, job)
    return output


def _refuse_store_path(backend: Backend, to: str) -> None:
    """Raise `Invalid` if the export would overwrite a file of the store itself."""
    target = os.path.realpath(to)
    if any(os.path.realpath(backend.url + suffix) == target for suffix in _STORE_FILE_SUFFIXES):
        raise Invalid(f"{to} is the store itself; nothing was exported. Choose another path.")


# -------------------------------------------------------------------------------- which sessions


def _find_named(snapshot: Snapshot, queries: Sequence[Query[SessionRow]]) -> list[int]:
    """Return the numbers of the named sessions, the least recently written first."""
    active: dict[int, int] = {}
    for query in queries:
        row = query(snapshot)
        head = snapshot.head(row.n)
        active[row.n] = 0 if head is None else head.activity
    return sorted(active, key=lambda n: active[n])


def readable_sessions(snapshot: Snapshot, report: DamageCallback) -> list[tuple[int, str]]:
    """Return number and id of all sessions, least recently written first; report unreadable ones.

    Those in the trash are among them.
    """
    active: list[tuple[int, int, str]] = []
    for item in snapshot.all_sessions():
        if isinstance(item, UnreadableSession):
            report(Damage(what=item.why))
        else:
            active.append((item[1].activity, item[1].session, item[0].id))
    return [(n, id) for _, n, id in sorted(active)]


class SessionFamily(msgspec.Struct):
    """Sessions that share messages; `stubs` are those written only for what forks share."""

    sessions: list[int]
    stubs: dict[int, str]
    messages: int = 0


class PlannedBranch(NamedTuple):
    """A branch to write, up to its `last_seq` and its record `last_record` (`None`: the last)."""

    row: BranchRow
    last_record: int | None = None

    @property
    def own(self) -> Segment:
        """What is written of its own messages and records."""
        row = self.row
        return Segment(row.n, row.fork_seq + 1, row.last_seq, row.session_id, self.last_record)


class ExportPlan:
    """Which sessions and messages are written, and in which order.

    If it is the `whole` store, its records are written as well.
    """

    def __init__(self, snapshot: Snapshot, chosen: Sequence[int], *, whole: bool = False) -> None:
        self._snapshot = snapshot
        self.whole = whole
        self.ranks = {n: rank for rank, n in enumerate(chosen, 1)}
        self._family_parents: dict[int, int] = {}  # A union-find forest.
        self._stubs: dict[int, str] = {}
        self.messages = 0
        for n in chosen:
            self._join(n)
        self.families = self._group_families()
        for family in self.families:
            family.messages = sum(
                branch.row.last_seq - branch.row.fork_seq
                for branches in self.branches(family).values()
                for branch in branches
            )
            self.messages += family.messages

    def _join(self, n: int) -> None:
        """Join a session's family with those of the sessions that its branches start in."""
        pending = self._snapshot.branches(session=n)
        seen: set[int] = set()
        while pending:
            branch = pending.pop()
            if branch.parent is None or branch.parent in seen:
                continue
            seen.add(branch.parent)
            parent = self._snapshot.find_branch(branch.parent)
            if parent is None:
                raise Damaged(f"branch {branch.parent} is missing; run store.verify().")
            if parent.session != branch.session:
                self._merge(branch.session, parent.session)
            if parent.session not in self.ranks:
                self._stubs[parent.session] = parent.session_id
                pending.append(parent)

    def _merge(self, one: int, two: int) -> None:
        first, second = self._root(one), self._root(two)
        if first != second:
            self._family_parents[max(first, second)] = min(first, second)

    def _root(self, n: int) -> int:
        while n in self._family_parents:
            self._family_parents[n] = self._family_parents.get(
                self._family_parents[n], self._family_parents[n]
            )
            n = self._family_parents[n]
        return n

    def _group_families(self) -> list[SessionFamily]:
        groups: dict[int, SessionFamily] = {}
        for n in sorted([*self.ranks, *self._stubs]):
            family = groups.setdefault(self._root(n), SessionFamily([], {}))
            family.sessions.append(n)
            if n in self._stubs:
                family.stubs[n] = self._stubs[n]
        return list(groups.values())

    def branches(self, family: SessionFamily) -> dict[int, list[PlannedBranch]]:
        """Return the branches of each session of a family, those of stubs cut to what is shared."""
        rows = {n: self._snapshot.all_branches(n) for n in family.sessions}
        found = {n: [PlannedBranch(row) for row in rows[n]] for n in family.sessions}
        if not family.stubs:
            return found
        nodes = [
            BranchNode(row.n, row.session, row.parent, row.fork_seq, row.fork_record)
            for branches in rows.values()
            for row in branches
        ]
        kept = required_ends(nodes, family.stubs)
        for n in family.stubs:
            found[n] = [
                PlannedBranch(
                    msgspec.structs.replace(row, last_seq=kept[row.n].seq), kept[row.n].record
                )
                for row in rows[n]
                if row.n in kept
            ]
        return found


# --------------------------------------------------------------------------------------- writing


class ExportWriter:
    """Writes lines to the file, and counts them."""

    def __init__(self, file: BinaryIO, total: int, progress: Progress | None) -> None:
        """Write to `file`; `progress` gets the messages written so far, and `total`."""
        self._file = file
        self._total = total
        self._progress = progress
        self._blob_hashes: set[bytes] = set()
        self.sessions = self.messages = self.records = self.blobs = self.size = 0
        self.lines = self.checksum = 0

    def begin_session(self) -> None:
        """Restart the line count and the checksum that the session's last line holds."""
        self.lines = self.checksum = 0

    def write(self, line: Header | AnyLine) -> None:
        """Write a line."""
        data = encode_line(line)
        self._file.write(data)
        self.size += len(data)
        self.lines += 1
        self.checksum = crc32(data, self.checksum)

    def report_progress(self) -> None:
        """Call `progress` with the messages written so far."""
        if self._progress is not None:
            self._progress(self.messages, self._total)

    def has_blob(self, sha256: str) -> bool:
        """True if a blob is in the file already."""
        return bytes.fromhex(sha256) in self._blob_hashes

    def write_blob(self, sha256: str, data: bytes) -> None:
        """Write a blob, unless it is in the file already."""
        if not self.has_blob(sha256):
            self.write(BlobLine(sha256=sha256, data=data))
            self._blob_hashes.add(bytes.fromhex(sha256))
            self.blobs += 1


def _write(snapshot: Snapshot, plan: ExportPlan, output: ExportWriter, job: ExportJob) -> None:
    output.write(
        Header(
            version=VERSION,
            exported_at=to_datetime(job.now),
            sessions=len(plan.ranks),
            messages=plan.messages,
            redacted=job.redactor.active,
            store_records=sum(1 for _ in snapshot.store_records()) if plan.whole else 0,
        )
    )
    for family in plan.families:
        branches = plan.branches(family)
        for n in family.sessions:
            rank = plan.ranks.get(n)
            row = (
                snapshot.session(n)
                if rank
                else snapshot.find_session(id=family.stubs[n], stubs=True)
            )
            if row is None:
                raise Damaged(f"session number {n} is missing; run store.verify().")
            _SessionExport(snapshot, output, job, row, branches[n]).write(rank)
    if plan.whole:
        for shared in snapshot.store_records():
            _Export(snapshot, output, job).write_store_record(shared)
    output.report_progress()


class _Export:
    """Writes lines with what they need: redacted, and their blobs before them."""

    def __init__(self, snapshot: Snapshot, output: ExportWriter, job: ExportJob) -> None:
        self._snapshot = snapshot
        self._output = output
        self._redactor = job.redactor
        self._report = job.report

    def write_store_record(self, row: StoreRecordRow) -> None:
        """Write a record of the store; report it if it cannot be read."""
        try:
            record = Record(row.kind, key=row.key, id=row.id)
            if row.body is not None:
                record = read_record(self._snapshot, row)
        except Damaged as error:
            self._report(Damage(what=str(error), blocking=False))
            return
        kept = self._redacted(None, msgspec.structs.replace(record, scope=row.scope), "store.")
        if kept is not None:
            self._output.write(store_record_line(kept, replaced=row.body is None))
            self._output.records += row.body is not None

    def _redacted(self, session: str | None, record: Record, where: str) -> Record | None:
        """Return a record, redacted, with its blobs written; `None` if it is left out."""
        kept, fresh = self._redactor.record(session, record, self._snapshot.blob, before=where)
        if kept is not None:
            names = [file.sha256 for file in kept.files.values() if file.sha256 is not None]
            self._write_blobs(session, record.seq, names, fresh)
        return kept

    def _write_blobs(
        self, session: str | None, seq: int | None, names: Iterable[str], own: Mapping[str, bytes]
    ) -> list[str]:
        """Write blobs, from `own` or the store; return those that exist."""
        wanted = list(dict.fromkeys(names))
        for sha256 in wanted:
            if sha256 in own:
                self._output.write_blob(sha256, own[sha256])
            else:
                self._write_stored_blob(session, seq, sha256)
        return [sha256 for sha256 in wanted if self._output.has_blob(sha256)]

    def _write_stored_blob(self, session: str | None, seq: int | None, sha256: str) -> None:
        """Write a blob of the store; report it if its data is lost (its message still names it)."""
        if self._output.has_blob(sha256):
            return
        data = self._snapshot.blob(sha256)
        if data is None:
            what = f"blob {sha256} is missing or does not match its hash"
            self._report(Damage(what=what, session_id=session, seq=seq, blocking=False))
        else:
            self._output.write_blob(sha256, data)


class _SessionExport(_Export):
    """Writes the lines of one session."""

    def __init__(
        self,
        snapshot: Snapshot,
        output: ExportWriter,
        job: ExportJob,
        row: SessionRow,
        branches: list[PlannedBranch],
    ) -> None:
        super().__init__(snapshot, output, job)
        self._row = row
        self._branches = branches

    def write(self, rank: int | None) -> None:
        """Write all lines; a session without a rank is a stub."""
        output, before = self._output, self._output.messages
        identity = self._redactor.identity(
            _session_line(self._row) if rank else _stub_line(self._row)
        )
        branches = [self._branch_line(branch.row) for branch in self._branches]
        head = self._snapshot.head(self._row.n) if rank else None
        output.begin_session()
        output.write(identity)
        for branch, line in zip(self._branches, branches, strict=True):
            output.write(line)
            self._write_entries(branch)
        if head is not None:
            self._write_turns_and_queue(head)
            output.sessions += 1
        output.write(
            EndLine(
                session=self._row.id,
                identity=identity,
                branches=tuple(branches),
                updated_at=None if head is None else to_datetime(head.updated_at),
                turns=0 if head is None else head.turns,
                rank=rank or 0,
                messages=output.messages - before,
                newest_record=0 if head is None else head.records or 0,
                lines=output.lines,
                checksum=f"{output.checksum:08x}",
            )
        )

    def _branch_line(self, row: BranchRow) -> BranchLine:
        parent = None if row.parent is None else self._snapshot.find_branch(row.parent)
        return BranchLine(
            session=self._row.id,
            number=row.number,
            parent_id=None if parent is None else parent.session_id,
            parent=None if parent is None else parent.number,
            fork_seq=row.fork_seq,
            fork_record=row.fork_record,
            asked_seq=row.asked_seq,
            seq=row.last_seq,
            reason=row.reason,
            created_at=to_datetime(row.created_at),
            token=row.token,
        )

    # -------------------------------------------------------------------- messages and records

    def _write_entries(self, branch: PlannedBranch) -> None:
        """Write the messages of a branch, and behind each its records."""
        messages = self._messages(branch.row)
        records = branch_records(self._snapshot, branch.own)
        entries: list[Iterator[MessageRow | RecordRow]] = [messages, records]
        for row in merge(*entries, key=attrgetter("seq")):
            if isinstance(row, MessageRow):
                self._output.write(self._message_line(branch.row, row))
                self._output.messages += 1
            else:
                self._write_record(branch.row, row)

    def _write_record(self, branch: BranchRow, row: RecordRow) -> None:
        try:
            record = read_record(self._snapshot, row)
        except Damaged as error:
            self._report(damage_of(error, self._row.id, row.seq))
            return
        kept = self._redacted(self._row.id, record, f"records[{row.number}].")
        if kept is not None:
            self._output.write(
                record_line(
                    session=self._row.id, branch=branch.number, number=row.number, record=kept
                )
            )
            self._output.records += 1

    def _messages(self, branch: BranchRow) -> Iterator[MessageRow]:
        """Yield the messages of a branch; raise `Damaged` if one is missing."""
        for first in range(branch.fork_seq + 1, branch.last_seq + 1, _PAGE_MESSAGES):
            last = min(branch.last_seq, first + _PAGE_MESSAGES - 1)
            span = Segment(branch.n, first, last, branch.session_id)
            for _, rows in self._snapshot.messages([span]):
                if [row.seq for row in rows] != list(range(first, last + 1)):
                    raise Damaged(
                        f"session {branch.session_id}: some of the messages {first} to {last} are "
                        "missing; nothing was exported. Run store.verify(); store.salvage(to) "
                        "writes what can be read to a new store, which can be exported."
                    )
                yield from rows
            self._output.report_progress()

    def _message_line(self, branch: BranchRow, row: MessageRow) -> MessageLine:
        try:
            message = self._decode(row)
        except Damaged as error:
            self._report(damage_of(error, self._row.id, row.seq))
            message = damaged_message(row)
        message, fresh = self._redactor.message(self._row.id, message, self._snapshot.blob)
        self._write_blobs(self._row.id, row.seq, codec.file_hashes(message), fresh)
        return message_line(
            session=self._row.id, branch=branch.number, turn=row.turn, message=message
        )

    def _decode(self, row: MessageRow) -> Message:
        check_row(row)
        return codec.decode(
            row.body, id=row.id, seq=row.seq, turn_id=None, blob=self._snapshot.blob
        )

    # ------------------------------------------------------------------- turns, queue and drafts

    def _write_turns_and_queue(self, head: HeadRow) -> None:
        snapshot, n, name = self._snapshot, self._row.n, self._row.id
        for number in range(1, head.turns + 1):  # One by one: a session may have very many.
            turn = snapshot.turn(n, number)
            if turn is not None:
                line = _turn_line(name, turn, snapshot.tools(n, number))
                self._output.write(self._redactor.turn(line))
        used = self._redactor.usage([_usage_line(name, row) for row in snapshot.usage(session=n)])
        for usage in sorted(used, key=_usage_sort_key):
            self._output.write(usage)
        for row in snapshot.queue(n):
            self._write_queued(row)
        if head.open_turn is not None:
            self._write_draft(head.open_turn)

    def _write_queued(self, row: QueueRow) -> None:
        try:
            message = queued_message(self._snapshot, row)
        except Damaged:
            what = "a queued message cannot be read"
            self._report(Damage(what=what, session_id=self._row.id))
            return
        read = blob_reader(self._snapshot, row)
        message, fresh = self._redactor.message(self._row.id, message, read, before="queued.")
        own = {name: data for name, _ in row.blobs if (data := read(name)) is not None}
        names = codec.file_hashes(message)
        blobs = self._write_blobs(self._row.id, None, names, own | fresh)
        self._output.write(
            QueuedLine(
                session=self._row.id,
                id=row.id,
                created_at=to_datetime(row.created_at),
                message=message_content(message),
                blobs=tuple(blobs),
                held=bool(row.held),
            )
        )

    def _write_draft(self, turn: int) -> None:
        lines: list[DraftLine] = []
        for number, chunk in enumerate(self._snapshot.draft(self._row.n, turn)):
            try:
                lines.append(_draft_line(self._row.id, turn, number, chunk))
            except _DECODE_ERRORS:
                what = "a chunk of a draft cannot be read"
                self._report(Damage(what=what, session_id=self._row.id))
        for line in self._redactor.draft(lines):
            self._output.write(line)


# ----------------------------------------------------------------------------------------- lines


def _usage_sort_key(line: UsageLine) -> tuple[date, str]:
    """Sort key: usage lines are in the same order whatever the backend."""
    return line.day, line.model or ""


def _usage_line(session_id: str, row: UsageRow) -> UsageLine:
    return UsageLine(
        session=session_id,
        day=to_day(row.day),
        model=row.model,
        usage=row.usage,
        cost=to_money(row.cost),
        measured=row.measured,
    )


def _session_line(row: SessionRow) -> SessionLine:
    fields = to_fields(row)
    return SessionLine(session=fields.pop("id"), **fields)


def _stub_line(row: SessionRow) -> SessionLine:
    """Return the line of a session that is written only for the messages its forks share."""
    return SessionLine(
        session=row.id,
        created_at=to_datetime(row.created_at),
        parent=row.parent,
        relation=row.relation,
        # A session that still exists here counts as purged from the start after an import.
        purged_at=to_datetime(row.created_at if row.purged_at is None else row.purged_at),
    )


def _turn_line(session_id: str, row: TurnRow, tools: Sequence[ToolRow]) -> TurnLine:
    return TurnLine(
        session=session_id,
        number=row.number,
        state=row.state,
        run_id=row.run_id,
        model=row.model,
        first_seq=row.first_seq,
        started_at=to_datetime(row.started_at),
        ended_at=None if row.ended_at is None else to_datetime(row.ended_at),
        usage=row.usage,
        cost=to_money(row.cost),
        error=row.error,
        tools=tuple(_ledger_entry(tool) for tool in tools),
        token=row.token,
    )


def _ledger_entry(row: ToolRow) -> LedgerEntry:
    return LedgerEntry(
        call_id=row.call_id,
        name=row.name,
        outcome=row.outcome,
        started_at=None if row.started_at is None else to_datetime(row.started_at),
        ended_at=None if row.ended_at is None else to_datetime(row.ended_at),
    )


def _draft_line(session_id: str, turn: int, number: int, stored: bytes) -> DraftLine:
    if number == 0:
        opening = codec.from_json(stored, DraftOpening)
        return DraftLine(
            session=session_id,
            turn=turn,
            number=0,
            id=opening.id,
            model=opening.model,
            at=to_datetime(opening.at),
        )
    chunk = codec.from_json(stored, DraftChunk)
    return DraftLine(
        session=session_id,
        turn=turn,
        number=number,
        deltas=chunk.deltas,
        usage=chunk.usage,
        cost=chunk.cost,
    )
