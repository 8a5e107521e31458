"""Import sessions from a file of JSON lines.

Two passes. The first (`survey`) reads and checks the whole file without storing anything; an
invalid file is refused there. The second reads it again, family by family: sessions that share
messages are imported in one transaction, so that a session is imported completely or not at all,
whatever stops the import. Running it again resumes where it stopped, because sessions that exist
already are skipped.

Both passes stream the lines, so memory does not grow with the histories.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from holdfast import ids
from holdfast.errors import Invalid, ReadOnly
from holdfast.operations.record_import import (
    ImportedStoreRecord,
    StoreRecordResult,
    import_store_records,
)
from holdfast.operations.session_import import (
    ImportedSession,
    ImportResult,
    import_sessions,
    restore_list_order,
)
from holdfast.storage.protocol import Backend, Operation
from holdfast.storage.rows import StoreRecordRow
from holdfast.transfer.export import Progress
from holdfast.transfer.format import BadLine, StoreRecordLine, to_record
from holdfast.transfer.import_file import ImportFile
from holdfast.transfer.session_reader import (
    FileSource,
    NotImportable,
    check_branch_starts,
    encode_record,
    missing_parents,
    read_line,
    read_session,
    with_newest_records,
)
from holdfast.transfer.survey import Section, Survey, Surveyor
from holdfast.validation import check_name
from holdfast.values import Damage, ImportReport

T = TypeVar("T")
_PROGRESS_BYTES: Final = 256 * 1024
_REORDER_BATCH_SESSIONS: Final = 500
_BATCH_STORE_RECORDS: Final = 100


def import_(backend: Backend, path: str, progress: Progress | None, *, trust: bool) -> ImportReport:
    """Import the sessions of a file that the store does not have; without `trust`, demoted."""
    if backend.readonly:
        raise ReadOnly("this store was opened for reading only; nothing was imported.")
    with ImportFile(path) as source:
        meter = ProgressMeter(2 * source.size, progress)
        surveyor = Surveyor(source)
        for line in source.lines():
            surveyor.add(line)
            meter.advance(line.length)
        return _Import(backend, source, surveyor.finish(), meter, trust=trust).run()


class _Cancelled(Exception):
    """The caller was interrupted and no longer waits."""


class ProgressMeter:
    """Reports progress; raises in the worker once the caller no longer waits."""

    def __init__(self, total: int, progress: Progress | None, pace: int = _PROGRESS_BYTES) -> None:
        """Call `progress` each time another `pace` of `total` is done."""
        self._total = total
        self._progress = progress
        self._interval = pace
        self._done = self._reported = 0
        self.stopped = False

    def advance(self, size: int) -> None:
        """Count `size` as done."""
        if self.stopped:
            raise _Cancelled
        self._done += size
        if self._progress is not None and self._done - self._reported >= self._interval:
            self._reported = self._done
            self._progress(min(self._done, self._total), self._total)

    def advance_to(self, done: int) -> None:
        """Set how much is done."""
        self._done = done

    def finish(self) -> None:
        """Report that all is done."""
        if self._progress is not None:
            self._progress(self._total, self._total)


def run_without_deadline(backend: Backend, operation: Operation[T], meter: ProgressMeter) -> T:
    """Run an operation; the deadline covers only its wait in the queue, not its run."""
    pending, done = backend.submit(operation), threading.Event()
    pending.when_done(done.set)
    try:
        if not done.wait(backend.deadline) and not pending.withdraw():
            done.wait()
    except BaseException:
        meter.stopped = True
        if not pending.withdraw():
            done.wait()
        raise
    return pending.outcome()


class _Import:
    """The second pass of an import."""

    def __init__(
        self,
        backend: Backend,
        source: ImportFile,
        survey: Survey,
        meter: ProgressMeter,
        *,
        trust: bool,
    ) -> None:
        self._backend = backend
        self._trust = trust
        self._source = source
        self._survey = survey
        self._meter = meter
        self._damage = dict(survey.damage)
        self._other_damage = list(survey.other_damage)
        self._result = ImportResult()
        self._store_records = StoreRecordResult()

    def run(self) -> ImportReport:
        """Import family after family, set the order in which lists show them, then the records."""
        total = self._result
        for family in _families(self._survey.sections):
            self._import_family(family)
            self._meter.advance_to(self._source.size + max(section.stop for section in family))
        sessions = sorted(total.sessions)
        for first in range(0, len(sessions), _REORDER_BATCH_SESSIONS):
            run_without_deadline(
                self._backend,
                restore_list_order(sessions[first : first + _REORDER_BATCH_SESSIONS]),
                self._meter,
            )
        self._import_store_records()
        self._meter.finish()
        damage = [self._damage[number] for number in sorted(self._damage)]
        return ImportReport(
            sessions=len(sessions),
            messages=total.messages,
            records=total.records,
            skipped=tuple(total.skipped),
            damage=(*damage, *self._other_damage, *total.damage),
            store_records=self._store_records.added,
            records_left_out=self._store_records.left_out,
            redacted=self._survey.header.redacted,
            trusted=self._trust,
            demotions=tuple(total.demotions),
        )

    def _import_family(self, sections: Sequence[Section]) -> None:
        content = FileSource(self._source, self._survey, self._meter.advance, trust=self._trust)
        sessions = self._read_sessions(sections)
        operation = import_sessions(sessions, content, ids.session_id)
        imported = run_without_deadline(self._backend, operation, self._meter)
        total = self._result
        total.sessions += imported.sessions
        total.messages += imported.messages
        total.records += imported.records
        total.skipped += imported.skipped
        total.damage += imported.damage
        total.demotions += imported.demotions
        self._damage |= content.damaged
        self._other_damage += content.missing.values()

    def _read_sessions(self, sections: Sequence[Section]) -> list[ImportedSession]:
        """Return the sessions to import, parents first; report and skip those without a history."""
        known: dict[str, ImportedSession] = {}
        for section in sections:
            try:
                known[section.id] = read_session(
                    self._source, section, self._other_damage.append, trust=self._trust
                )
            except NotImportable as error:
                self._record_skipped(section.id, error)
        found = {session.source_id: session for session in missing_parents(list(known.values()))}
        for name in found:
            what = "the session is not in the file, but forks in the file start from it"
            self._other_damage.append(Damage(what=what, session_id=name))
        for session in known.values():
            try:
                check_branch_starts(session, found)
            except NotImportable as error:
                self._record_skipped(session.source_id, error)
            else:
                found[session.source_id] = session
        return with_newest_records(list(found.values()))

    def _import_store_records(self) -> None:
        """Import the records of the store; of a file that is not trusted, count them."""
        lines = self._survey.store_records
        if not self._trust:
            found = (self._store_record_line(offset) for _, offset in lines)
            self._store_records.left_out = sum(not line.replaced for line in found)
            return
        source = FileSource(self._source, self._survey, self._meter.advance, trust=True)
        for first in range(0, len(lines), _BATCH_STORE_RECORDS):
            batch = list(
                self._read_store_records(lines[first : first + _BATCH_STORE_RECORDS], source)
            )
            imported = run_without_deadline(
                self._backend, import_store_records(batch, source), self._meter
            )
            self._store_records.added += imported.added
            self._store_records.left_out += imported.left_out
            self._other_damage += imported.damage

    def _read_store_records(
        self, lines: Sequence[tuple[int, int]], source: FileSource
    ) -> Iterator[ImportedStoreRecord]:
        for number, offset in lines:
            try:
                yield _store_record(self._store_record_line(offset), source)
            except (BadLine, Invalid) as error:
                self._damage[number] = Damage(what=f"line {number} {error}", blocking=False)

    def _store_record_line(self, offset: int) -> StoreRecordLine:
        return read_line(self._source, offset, StoreRecordLine)

    def _record_skipped(self, name: str, why: NotImportable) -> None:
        what = f"the session was not imported: {why}"
        self._other_damage.append(Damage(what=what, session_id=name))


def _store_record(line: StoreRecordLine, source: FileSource) -> ImportedStoreRecord:
    """Return the row of a record of the store; raise `Invalid` or `BadLine` if it is not valid."""
    item = encode_record(to_record(line), source.blob_size)
    if line.scope is not None:
        check_name(line.scope, "scope")
    if line.at is None and not line.replaced:
        raise BadLine("has no time")
    body = None if line.replaced else item.body
    row = StoreRecordRow.create(line.scope, line.kind, line.key, line.id, body)
    if line.replaced:
        return ImportedStoreRecord(row=row)
    return ImportedStoreRecord(row=row, blobs=item.blobs, blob_refs=item.blob_refs)


def _families(sections: dict[str, Section]) -> Iterator[list[Section]]:
    """Return groups of sessions that share messages, each with parents first."""
    parents: dict[str, str] = {}  # A union-find forest.

    def root(name: str) -> str:
        while name in parents:
            parents[name] = parents.get(parents[name], parents[name])
            name = parents[name]
        return name

    for section in sections.values():
        for parent in section.parents:
            if parent in sections and root(parent) != root(section.id):
                parents[root(section.id)] = root(parent)
    groups: dict[str, list[Section]] = {}
    for section in sections.values():
        groups.setdefault(root(section.id), []).append(section)
    for group in groups.values():
        yield _parents_first(group)


def _parents_first(group: list[Section]) -> list[Section]:
    """Sort a group so that parents come first, as an export has it already."""
    ordered: dict[str, Section] = {}
    names = {section.id for section in group}
    waiting = group
    while waiting:
        before = len(ordered)
        for section in waiting:
            if all(parent in ordered or parent not in names for parent in section.parents):
                ordered[section.id] = section
        if len(ordered) == before:  # A cycle, which no store writes: any order will do.
            ordered.update({section.id: section for section in waiting})
        waiting = [section for section in waiting if section.id not in ordered]
    return list(ordered.values())
