"""Decode the lines of sessions in an import file into rows of a store.

Rows are validated like input from a caller. Where a message is missing or cannot be read, a
placeholder takes its seq and holds the unreadable line, so that every other message keeps its seq.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from holdfast import codec, ids, validation
from holdfast.clock import EPOCH, to_datetime, to_micros
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.errors import Invalid, StoreUnavailable
from holdfast.operations.session_fields import check_fields, to_row
from holdfast.operations.session_import import (
    ImportedMessage,
    ImportedRecord,
    ImportedSession,
    ImportItem,
    NewBranch,
    NewDraft,
    NewTurn,
    imported_message,
    placeholder_message,
)
from holdfast.storage.rows import QueueRow, RecordRow, SessionRow, ToolRow, TurnRow, UsageRow
from holdfast.transfer.demotion import (
    demote_message,
    demote_parts,
    demote_record,
    demote_session,
    import_provenance,
)
from holdfast.transfer.format import (
    AnyLine,
    BadLine,
    BlobLine,
    BranchLine,
    DraftLine,
    EndLine,
    MessageLine,
    QueuedLine,
    RecordLine,
    SessionLine,
    StoreRecordLine,
    TurnLine,
    UsageLine,
    decode_line,
    from_money,
    to_message,
    to_record,
)
from holdfast.transfer.import_file import ImportFile, RawLine
from holdfast.transfer.survey import Section, Survey
from holdfast.values import Damage, Holder, MeasuredTokens, Message, Record, Usage

T = TypeVar("T")
L = TypeVar("L", EndLine, SessionLine, StoreRecordLine)
C = TypeVar("C", Usage, MeasuredTokens)
_UNKNOWN_HOLDER: Final = Holder("?", 0, "", "", "")
_MIN_TIME_US: Final = -50_000_000_000_000_000  # Microseconds; in the year 385.
_MAX_BAD_LINE_BYTES: Final = 64 * 1024 * 1024
_MAX_TOKEN_LENGTH: Final = 100


class NotImportable(Exception):
    """A session cannot be imported because its branches are lost or invalid."""


# ------------------------------------------------------------------------ fields and branches


def read_session(
    source: ImportFile, section: Section, report: Callable[[Damage], None], *, trust: bool
) -> ImportedSession:
    """Return the fields and branches of a session; raise `NotImportable` if the latter are lost.

    Without `trust` its fields are demoted.
    """
    end = None if section.end_at is None else read_line(source, section.end_at, EndLine)
    session_line = section.identity
    if session_line is None and section.identity_at is not None:
        session_line = read_line(source, section.identity_at, SessionLine)
    lines = section.branches
    if end is not None:
        session_line = session_line or end.identity
        lines = {branch.number: branch for branch in end.branches}
    branches = [_branch(section.id, lines[number]) for number in sorted(lines)]
    if not branches:
        raise NotImportable("all of its branches are missing")
    try:
        row = _session_row(section.id, session_line, branches[0].created_at)
    except (BadLine, Invalid) as error:
        what = f"its title and other fields were lost: {error}"
        report(Damage(what=what, session_id=section.id))
        row = _session_row(section.id, None, branches[0].created_at)
    else:
        if session_line is None:
            what = "its title and other fields were lost: its line is damaged"
            report(Damage(what=what, session_id=section.id))
    _check_numbers(branches, is_stub=row.purged_at is not None)
    demotion = None
    if not trust:
        row, demotion = demote_session(row, source.name)
    return ImportedSession(
        source_id=section.id,
        row=row,
        branches=tuple(branches),
        turns=0 if end is None else min(end.turns, source.size),
        updated_at=_updated_at(end, branches),
        rank=0 if end is None else end.rank,
        newest_record=0 if end is None else end.newest_record,
        demotion=demotion,
    )


def _updated_at(end: EndLine | None, branches: Sequence[NewBranch]) -> int:
    """Return when a session was last written to; the newest branch's start if unknown."""
    newest = max(branch.created_at for branch in branches)
    updated_at = None if end is None else end.updated_at
    return newest if updated_at is None else max(_MIN_TIME_US, to_micros(updated_at))


def read_line(source: ImportFile, offset: int, kind: type[L]) -> L:
    """Decode again a line that was valid in the first pass."""
    found = source.line_at(offset)
    if not isinstance(found, kind):
        raise StoreUnavailable(f"{source.path} was changed while it was read; import it again.")
    return found


def _session_row(name: str, line: SessionLine | None, created_at: int) -> SessionRow:
    if line is None:
        line = SessionLine(session=name, created_at=to_datetime(created_at))
    elif line.session != name:
        raise BadLine("its line belongs to another session")
    metadata = {key: value for key, value in line.metadata.items() if value is not None}
    fields = msgspec.structs.asdict(line) | {"id": name, "metadata": metadata}
    check_fields(fields)
    for time in (line.created_at, line.trashed_at, line.purged_at):
        _optional(_micros, time)
    if line.title is None:
        fields["title_by"] = None
    if line.parent is None or line.relation is None:
        fields["parent"] = fields["relation"] = None
    return to_row(fields)


def _branch(session: str, line: BranchLine) -> NewBranch:
    if line.session != session:
        raise NotImportable(f"its branch {line.number} belongs to another session")
    at_start = line.fork_seq == 0 and line.fork_record is None
    consistent = (line.parent is None) == (line.parent_id is None) == at_start
    if not consistent or line.seq < line.fork_seq:
        raise NotImportable(f"its branch {line.number} has an invalid start")
    parent = None
    if line.parent is not None and line.parent_id is not None:
        parent = (line.parent_id, line.parent)
    try:
        created_at = _micros(line.created_at)
    except BadLine as error:
        raise NotImportable(f"its branch {line.number} {error}") from None
    return NewBranch(
        number=line.number,
        parent=parent,
        fork_seq=line.fork_seq,
        asked_seq=line.asked_seq,
        last_seq=line.seq,
        reason=line.reason,
        created_at=created_at,
        token=_check_token(line.token),
        fork_record=line.fork_record,
    )


def _check_numbers(branches: list[NewBranch], *, is_stub: bool) -> None:
    numbers = [branch.number for branch in branches]
    if not is_stub and numbers != list(range(1, len(numbers) + 1)):
        raise NotImportable("some of its branches are missing")


def check_branch_starts(session: ImportedSession, known: Mapping[str, ImportedSession]) -> None:
    """Raise `NotImportable` unless each branch starts on an earlier one, in what that one has.

    That is one of its messages or, with a `fork_record`, its own start.
    """
    own: dict[int, NewBranch] = {}
    for branch in session.branches:
        if branch.parent is not None:
            name, number = branch.parent
            others = known[name].branches if name in known else ()
            parent = own.get(number) if name == session.source_id else _find_branch(others, number)
            before = branch.fork_seq + (branch.fork_record is not None)
            if parent is None or not (
                parent.fork_seq < before and branch.fork_seq <= parent.last_seq
            ):
                raise NotImportable(
                    f"its branch {branch.number} starts at a message that does not exist"
                )
        own[branch.number] = branch


def _find_branch(branches: Iterable[NewBranch], number: int) -> NewBranch | None:
    return next((branch for branch in branches if branch.number == number), None)


def with_newest_records(sessions: Sequence[ImportedSession]) -> list[ImportedSession]:
    """Return the sessions with every number taken up to which a branch has records of them.

    A record stored later on such a branch must not become one that another has from it.
    """
    shared: dict[tuple[str, int], int] = {}
    for branch in (branch for session in sessions for branch in session.branches):
        if branch.parent is not None:
            known = shared.get(branch.parent, 0)
            shared[branch.parent] = max(known, branch.fork_record or 0)
    return [
        msgspec.structs.replace(
            session,
            newest_record=max(
                session.newest_record,
                shared.get((session.source_id, session.branches[-1].number), 0),
            ),
        )
        for session in sessions
    ]


def missing_parents(sessions: Sequence[ImportedSession]) -> list[ImportedSession]:
    """Return stubs for the missing sessions that these were forked from."""
    known = {session.source_id for session in sessions}
    reach: dict[str, dict[int, int]] = {}
    oldest: dict[str, int] = {}
    for session in sessions:
        for branch in session.branches:
            if branch.parent is None or branch.parent[0] in known:
                continue
            name, number = branch.parent
            ends = reach.setdefault(name, {})
            ends[number] = max(branch.fork_seq, ends.get(number, 0))
            oldest[name] = min(session.row.created_at, oldest.get(name, session.row.created_at))
    return [_parent_stub(name, ends, oldest[name]) for name, ends in reach.items()]


def _parent_stub(name: str, ends: Mapping[int, int], created_at: int) -> ImportedSession:
    """Return a stub that has these branches, up to these seqs."""
    row = _session_row(name, SessionLine(session=name, created_at=EPOCH), 0)
    row = msgspec.structs.replace(
        row, id=ids.session_id(), created_at=created_at, purged_at=created_at
    )
    branches = tuple(
        NewBranch(
            number=number,
            parent=None,
            fork_seq=0,
            asked_seq=0,
            last_seq=last,
            reason="start",
            created_at=created_at,
            token="",
        )
        for number, last in sorted(ends.items())
    )
    return ImportedSession(
        source_id=name, row=row, branches=branches, turns=0, updated_at=created_at, rank=0
    )


# -------------------------------------------------------------------------------- the content


class FileSource:
    """The sessions of a file as the source of an import; their content is read on demand.

    Without `trust` it is demoted.
    """

    def __init__(
        self, source: ImportFile, survey: Survey, step: Callable[[int], None], *, trust: bool
    ) -> None:
        """Read from `source`; `step` is called with the number of bytes read."""
        self._trust = trust
        self._source = source
        self._survey = survey
        self._step = step
        self.damaged: dict[int, Damage] = {}  # By the number of the line.
        self.missing: dict[tuple[str, int, int], Damage] = {}  # By session, branch and seq.

    def blob(self, sha256: str) -> bytes | None:
        """Return a blob; `None` if the file does not have it."""
        place = self._survey.blobs.get(bytes.fromhex(sha256))
        if place is None:
            return None
        found = self._source.line_at(place[0])
        fits = isinstance(found, BlobLine) and codec.sha256_hex(found.data) == sha256
        return found.data if isinstance(found, BlobLine) and fits else None

    def blob_size(self, sha256: str) -> int | None:
        """Return the size of a blob; `None` if the file does not have it."""
        found = self._survey.blobs.get(bytes.fromhex(sha256))
        return None if found is None else found[1]

    def items(self, session: ImportedSession) -> Iterator[ImportItem]:
        """Return the content of a session, in the order of the file."""
        return self._items(session, _RowDecoder(self.blob, self.blob_size, trust=self._trust))

    def original_items(self, session: ImportedSession) -> Iterator[ImportItem]:
        """Return the content of a session as it was exported."""
        return self._items(session, _RowDecoder(self.blob, self.blob_size, trust=True))

    def _items(self, session: ImportedSession, reader: _RowDecoder) -> Iterator[ImportItem]:
        section = self._survey.sections.get(session.source_id)
        filler = _GapFiller(session, self.damaged, self.missing)
        if section is not None:
            for line in self._source.lines(section.start, section.stop, section.first_line):
                self._step(line.length)
                yield from self._decode_item(section.id, line, reader, filler)
        if section is None or not section.truncated:
            yield from filler.finish()

    def _decode_item(
        self, session: str, line: RawLine, reader: _RowDecoder, filler: _GapFiller
    ) -> Iterator[ImportItem]:
        found: AnyLine | None = None
        try:
            found = decode_line(line.data)
            if isinstance(found, BlobLine | StoreRecordLine) or found.session != session:
                return
            if isinstance(found, MessageLine):
                yield from filler.message(reader.message(found))
            elif isinstance(found, RecordLine):
                yield from filler.record(reader.record(found))
            elif isinstance(found, BranchLine):
                yield from filler.advance_to(found.number)
            elif isinstance(found, TurnLine | UsageLine | QueuedLine | DraftLine):
                yield from filler.finish()
                yield reader.other_row(found)
        except (BadLine, Invalid) as error:
            if found is not None:
                what = f"line {line.number} {error}"
                self.damaged[line.number] = Damage(what=what, session_id=session)
            filler.keep_bad_line(line)


class _GapFiller:
    """Passes on messages in order of seq, and inserts placeholders for missing ones.

    Records are passed on behind their messages, in order of their numbers, which may have gaps.
    """

    def __init__(
        self,
        session: ImportedSession,
        damaged: dict[int, Damage],
        missing: dict[tuple[str, int, int], Damage],
    ) -> None:
        self._name = session.row.id
        self._damaged = damaged
        self._missing = missing
        self._branches = {branch.number: branch for branch in session.branches}
        self._open_branches = list(session.branches)
        self._bad_lines: list[RawLine] = []
        self._bad_bytes = 0
        self._next_seq = 1 if not session.branches else session.branches[0].fork_seq + 1
        self._last_record = 0

    def keep_bad_line(self, line: RawLine) -> None:
        """Keep a line that cannot be read: it may be the next message that is missing."""
        self._bad_bytes += len(line.data)
        keep = line.data if self._bad_bytes <= _MAX_BAD_LINE_BYTES else b""
        self._bad_lines.append(msgspec.structs.replace(line, data=keep))

    def advance_to(self, number: int) -> Iterator[ImportedMessage]:
        """Advance to a branch, with placeholders for what is missing of those before it."""
        while self._open_branches and self._open_branches[0].number < number:
            yield from self._fill(self._open_branches[0].last_seq)
            self._open_branches.pop(0)
            self._last_record = 0
            self._next_seq = self._open_branches[0].fork_seq + 1 if self._open_branches else 0

    def message(self, item: ImportedMessage) -> Iterator[ImportedMessage]:
        """Return a message, after placeholders for those missing before it."""
        branch, seq = self._branches.get(item.branch), item.row.seq
        if branch is None or seq > branch.last_seq:
            return  # Beyond what the branches of the file use.
        yield from self.advance_to(item.branch)
        if not self._is_current(branch) or seq < self._next_seq:
            raise BadLine("is out of order")
        yield from self._fill(seq - 1)
        self._drop_bad_lines()
        self._next_seq = seq + 1
        yield item

    def record(self, item: ImportedRecord) -> Iterator[ImportedMessage | ImportedRecord]:
        """Return a record, after placeholders for the messages missing before it."""
        branch, row = self._branches.get(item.branch), item.row
        if branch is None or row.seq > branch.last_seq:
            return
        if branch.last_record is not None and row.number > branch.last_record:
            return
        yield from self.advance_to(item.branch)
        is_next = row.seq >= self._next_seq - 1 and row.number > self._last_record
        if not self._is_current(branch) or not is_next:
            raise BadLine("is out of order")
        yield from self._fill(row.seq)
        self._drop_bad_lines()
        self._last_record = row.number
        yield item

    def _is_current(self, branch: NewBranch) -> bool:
        return bool(self._open_branches) and self._open_branches[0].number == branch.number

    def finish(self) -> Iterator[ImportedMessage]:
        """Return placeholders for what is missing of the remaining branches."""
        if self._open_branches:
            yield from self.advance_to(self._open_branches[-1].number + 1)

    def _drop_bad_lines(self) -> None:
        """Drop the unreadable lines kept so far: no message is missing where they were."""
        self._bad_lines, self._bad_bytes = [], 0

    def _fill(self, last: int) -> Iterator[ImportedMessage]:
        """Return placeholders up to `last`, holding the unreadable lines read before it."""
        number = self._open_branches[0].number
        first = self._next_seq
        raw = iter(self._bad_lines)
        for seq in range(first, last + 1):
            line = next(raw, None)
            text = None
            if line is not None:
                text = line.data.decode("utf-8", "backslashreplace").removesuffix("\n")
            yield placeholder_message(self._name, number, seq, text)
        self._report(first, last)
        self._next_seq = max(self._next_seq, last + 1)

    def _report(self, first: int, last: int) -> None:
        if last < first:
            return
        for seq, line in zip(range(first, last + 1), self._bad_lines, strict=False):
            what = f"line {line.number} cannot be read; a placeholder replaces message {seq}"
            self._damaged[line.number] = Damage(what=what, session_id=self._name, seq=seq)
        missing = first + len(self._bad_lines)
        if missing <= last:
            what = f"messages {missing} to {last} are missing in the file"
            damage = Damage(what=what, session_id=self._name, seq=missing)
            self._missing[self._name, self._open_branches[0].number, missing] = damage
        self._drop_bad_lines()


class _RowDecoder:
    """Decodes lines into rows, with the validation that input from a caller gets."""

    def __init__(
        self, blob: codec.BlobReader, blob_size: Callable[[str], int | None], *, trust: bool
    ) -> None:
        self._blob = blob
        self._blob_size = blob_size
        self._trust = trust

    def message(self, line: MessageLine) -> ImportedMessage:
        """Return the row of a message."""
        given = to_message(line, line.id)
        if self._trust:
            return imported_message(self._encode(given), line.branch, line.seq, line.turn)
        demoted = demote_message(given, line.session)
        found = imported_message(self._encode(demoted), line.branch, line.seq, line.turn)
        return msgspec.structs.replace(
            found, was_system=given.role == "system", was_raw=given.parts != demoted.parts
        )

    def record(self, line: RecordLine) -> ImportedRecord:
        """Return the row of a record."""
        record = to_record(line)
        item = encode_record(record if self._trust else demote_record(record), self._blob_size)
        name = item.record.kind, item.record.key
        return ImportedRecord(
            branch=line.branch,
            row=RecordRow.create(line.number, line.seq, item.id, name, item.body),
            blobs=item.blobs,
            blob_refs=item.blob_refs,
        )

    def other_row(self, line: TurnLine | UsageLine | QueuedLine | DraftLine) -> ImportItem:
        """Return the row of a turn, usage, queued message or draft."""
        if isinstance(line, TurnLine):
            return _new_turn(line)
        if isinstance(line, UsageLine):
            measured = line.measured if self._trust else MeasuredTokens()
            return _usage_row(line, measured)
        if isinstance(line, QueuedLine):
            return self._queued(line)
        return _new_draft(line if self._trust else _demoted_draft(line), trust=self._trust)

    def _queued(self, line: QueuedLine) -> QueueRow:
        message = to_message(line.message, line.id)
        item = self._encode(message if self._trust else demote_message(message, line.session))
        blobs = dict(item.blobs)
        for sha256 in line.blobs:
            data = self._blob(sha256) if validation.is_sha256(sha256) else None
            if data is None:
                raise BadLine("needs a blob that is missing")
            blobs[sha256] = data
        held = (line.held or not self._trust) or None
        at = _micros(line.created_at)
        return QueueRow(0, item.id, at, item.body, tuple(blobs.items()), held)

    def _encode(self, message: Message) -> codec.EncodedMessage:
        """Validate and encode a message like one that is appended."""
        item = codec.encode(message, EPOCH, limit=None, known=True)
        codec.check_part_count(message)
        codec.check_file_sizes(message, self._blob_size)
        return item


def encode_record(record: Record, blob_size: Callable[[str], int | None]) -> codec.EncodedRecord:
    """Validate and encode a record like one that is appended."""
    item = codec.encode_record(record, EPOCH)
    codec.check_file_sizes(record, blob_size)
    return item


def _usage_row(line: UsageLine, measured: MeasuredTokens) -> UsageRow:
    day = (line.day - EPOCH.date()).days
    if day < 0:
        raise BadLine("has a day before 1970")
    cost = from_money(line.cost)
    return UsageRow(day, line.model, _check_counts(line.usage), cost, _check_counts(measured))


def _new_turn(line: TurnLine) -> NewTurn:
    for field, name in (("run_id", line.run_id), ("model", line.model)):
        if name is not None:
            validation.check_name(name, field)
    row = TurnRow(
        session=0,
        number=line.number,
        token=_check_token(line.token),
        state=line.state,
        run_id=line.run_id,
        model=line.model,
        holder=_UNKNOWN_HOLDER,
        lease_until=0,
        first_seq=line.first_seq,
        started_at=_micros(line.started_at),
        ended_at=_optional(_micros, line.ended_at),
        usage=_check_counts(line.usage),
        cost=from_money(line.cost),
        error=line.error,
    )
    tools = tuple(
        ToolRow(
            session=0,
            turn=line.number,
            call_id=tool.call_id,
            name=tool.name,
            outcome=tool.outcome,
            started_at=_optional(_micros, tool.started_at),
            ended_at=_optional(_micros, tool.ended_at),
        )
        for tool in line.tools
    )
    return NewTurn(row, tools)


def _demoted_draft(line: DraftLine) -> DraftLine:
    return msgspec.structs.replace(line, deltas=demote_parts(line.deltas))


def _new_draft(line: DraftLine, *, trust: bool) -> NewDraft:
    if line.number == 0:
        if line.id is None or line.at is None:
            raise BadLine("opens a draft without an id or a time")
        name = validation.check_name(line.id, "id")
        provenance = None if trust else import_provenance(line.session)
        opening = DraftOpening(name, line.model, _micros(line.at), provenance)
        return NewDraft(line.turn, 0, codec.to_json(opening), line.id)
    for number, delta in enumerate(line.deltas):
        validation.check_part(delta, number)
    if line.usage is not None:
        validation.check_usage(line.usage)
    if line.cost is not None:
        validation.to_cost(line.cost)
    chunk = DraftChunk(line.deltas, line.usage, line.cost)
    return NewDraft(line.turn, line.number, codec.to_json(chunk), None)


# --------------------------------------------------------------------------------------- values


def _micros(time: datetime) -> int:
    micros = to_micros(time)
    if micros < _MIN_TIME_US:
        raise BadLine("has a time that is out of range")
    return micros


def _optional(convert: Callable[[datetime], T], value: datetime | None) -> T | None:
    return None if value is None else convert(value)


def _check_counts(counts: C) -> C:
    if not all(0 <= count <= 2**63 - 1 for count in msgspec.structs.astuple(counts)):
        raise BadLine("has counts that are negative or out of range")
    return counts


def _check_token(text: str) -> str:
    """Return the token; empty if no store could have written it."""
    fits = len(text) <= _MAX_TOKEN_LENGTH and text.isascii() and text.isprintable()
    return text if fits else ""
