"""Export sessions to a file of JSON lines.

Everything is read from one snapshot, page by page, and written as it is read, so memory does not
grow with the histories. Sessions that share messages (a *family*) are written together, a parent
before its forks, and each message once, with the session that wrote it. A parent that is not
exported itself becomes a *stub*: only the messages that its forks share are written, and it is
marked as purged, because that is its state after an import. The oldest sessions come first, so
that a later export begins with the same lines as an earlier one.

A message that cannot be read is written as the placeholder that a reader would get, and reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from holdfast import codec
from holdfast.clock import Clock, to_datetime, to_day
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.errors import Damaged, Invalid, system_errors
from holdfast.operations.history import DamageCallback, check_row, damage_of, damaged_message
from holdfast.operations.purge_rules import BranchNode as Stretch
from holdfast.operations.purge_rules import required_seqs
from holdfast.operations.queue import blob_reader, queued_message
from holdfast.operations.resolve import find_anywhere
from holdfast.operations.session_fields import to_fields
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Query, Snapshot
from holdfast.storage.rows import (
    BranchRow,
    HeadRow,
    MessageRow,
    QueueRow,
    SessionRow,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
)
from holdfast.transfer.export_file import atomic_file
from holdfast.transfer.format import (
    VERSION,
    BlobLine,
    BranchLine,
    DraftLine,
    EndLine,
    Header,
    LedgerEntry,
    MessageLine,
    QueuedLine,
    Record,
    SessionLine,
    TurnLine,
    UsageLine,
    encode_line,
    message_content,
    message_line,
    to_money,
)
from holdfast.transfer.redact.export_redactor import Redactor, select_detectors
from holdfast.values import Damage, ExportReport, Message, Review

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
    plan = ExportPlan(snapshot, numbers)
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


class ExportPlan:
    """Which sessions and messages are written, and in which order."""

    def __init__(self, snapshot: Snapshot, chosen: Sequence[int]) -> None:
        self._snapshot = snapshot
        self.ranks = {n: rank for rank, n in enumerate(chosen, 1)}
        self._family_parents: dict[int, int] = {}  # A union-find forest.
        self._stubs: dict[int, str] = {}
        self.messages = 0
        for n in chosen:
            self._join(n)
        self.families = self._group_families()
        for family in self.families:
            family.messages = sum(
                branch.last_seq - branch.fork_seq
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

    def branches(self, family: SessionFamily) -> dict[int, list[BranchRow]]:
        """Return the branches of each session of a family, those of stubs cut to what is shared."""
        found = {n: self._snapshot.all_branches(n) for n in family.sessions}
        stretches = [
            Stretch(row.n, row.session, row.parent, row.fork_seq)
            for rows in found.values()
            for row in rows
        ]
        kept = required_seqs(stretches, family.stubs)
        for n in family.stubs:
            found[n] = [
                msgspec.structs.replace(row, last_seq=kept[row.n])
                for row in found[n]
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
        self.sessions = self.messages = self.blobs = self.size = 0
        self.lines = self.checksum = 0

    def begin_session(self) -> None:
        """Restart the line count and the checksum that the session's last line holds."""
        self.lines = self.checksum = 0

    def write(self, record: Header | Record) -> None:
        """Write a line."""
        line = encode_line(record)
        self._file.write(line)
        self.size += len(line)
        self.lines += 1
        self.checksum = crc32(line, self.checksum)

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
            _SessionExport(snapshot, output, row, branches[n], job).write(rank)
    output.report_progress()


class _SessionExport:
    """Writes the lines of one session."""

    def __init__(
        self,
        snapshot: Snapshot,
        output: ExportWriter,
        row: SessionRow,
        branches: list[BranchRow],
        job: ExportJob,
    ) -> None:
        self._snapshot = snapshot
        self._output = output
        self._row = row
        self._branches = branches
        self._redactor = job.redactor
        self._report = job.report

    def write(self, rank: int | None) -> None:
        """Write all lines; a session without a rank is a stub."""
        output, before = self._output, self._output.messages
        identity = self._redactor.identity(
            _session_line(self._row) if rank else _stub_line(self._row)
        )
        branches = [self._branch_line(row) for row in self._branches]
        head = self._snapshot.head(self._row.n) if rank else None
        output.begin_session()
        output.write(identity)
        for row, line in zip(self._branches, branches, strict=True):
            output.write(line)
            self._write_messages(row)
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
            asked_seq=row.asked_seq,
            seq=row.last_seq,
            reason=row.reason,
            created_at=to_datetime(row.created_at),
            token=row.token,
        )

    # ------------------------------------------------------------------------------- messages

    def _write_messages(self, branch: BranchRow) -> None:
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
                for row in rows:
                    self._output.write(self._message_line(branch, row))
                    self._output.messages += 1
            self._output.report_progress()

    def _message_line(self, branch: BranchRow, row: MessageRow) -> MessageLine:
        try:
            message = self._decode(row)
        except Damaged as error:
            self._report(damage_of(error, self._row.id, row.seq))
            message = damaged_message(row)
        message, fresh = self._redactor.message(self._row.id, message, self._snapshot.blob)
        self._write_blobs(row.seq, message, fresh)
        return message_line(
            session=self._row.id, branch=branch.number, turn=row.turn, message=message
        )

    def _decode(self, row: MessageRow) -> Message:
        check_row(row)
        return codec.decode(
            row.body, id=row.id, seq=row.seq, turn_id=None, blob=self._snapshot.blob
        )

    def _write_blobs(
        self, seq: int | None, message: Message, own: Mapping[str, bytes]
    ) -> list[str]:
        """Write the blobs of a message, from `own` or the store; return those that exist."""
        names = list(dict.fromkeys(codec.file_hashes(message)))
        for sha256 in names:
            if sha256 in own:
                self._output.write_blob(sha256, own[sha256])
            else:
                self._write_stored_blob(seq, sha256)
        return [sha256 for sha256 in names if self._output.has_blob(sha256)]

    def _write_stored_blob(self, seq: int | None, sha256: str) -> None:
        """Write a blob of the store; report it if its data is lost (the message still names it)."""
        if self._output.has_blob(sha256):
            return
        data = self._snapshot.blob(sha256)
        if data is None:
            what = f"blob {sha256} is missing or does not match its hash"
            damage = Damage(what=what, session_id=self._row.id, seq=seq, blocking=False)
            self._report(damage)
        else:
            self._output.write_blob(sha256, data)

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
        blobs = self._write_blobs(None, message, own | fresh)
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
        for number, record in enumerate(self._snapshot.draft(self._row.n, turn)):
            try:
                lines.append(_draft_line(self._row.id, turn, number, record))
            except _DECODE_ERRORS:
                what = "a record of a draft cannot be read"
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


def _draft_line(session_id: str, turn: int, number: int, record: bytes) -> DraftLine:
    if number == 0:
        opening = codec.from_json(record, DraftOpening)
        return DraftLine(
            session=session_id,
            turn=turn,
            number=0,
            id=opening.id,
            model=opening.model,
            at=to_datetime(opening.at),
        )
    chunk = codec.from_json(record, DraftChunk)
    return DraftLine(
        session=session_id,
        turn=turn,
        number=number,
        deltas=chunk.deltas,
        usage=chunk.usage,
        cost=chunk.cost,
    )
