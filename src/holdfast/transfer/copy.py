"""Copy a whole store into another one, of any backend.

Four passes over the sessions, in batches of families (sessions that share messages), and behind
them over the records of the store:

1. Compare: sessions that the target already has are compared. If one is neither identical nor an
   earlier copy, the copy is refused and the target is unchanged.
2. Copy: what is missing is inserted, each family in one transaction, from one snapshot of the
   source. A session is therefore copied completely or not at all, whatever stops the copy, and
   running it again resumes where it stopped.
3. Reorder: lists in the target show the sessions in the order of the source.
4. Verify: everything is read again on both sides and compared.

The source may be written to during the copy. Sessions that changed after they were copied are
found in the last pass and reported; copying again brings the changes.

The target is used inside reads of the source, so each store's errors are tagged: an error of one
must not be handled as an error of the other.
Memory grows with the number of sessions and files, not with their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from holdfast import codec
from holdfast.errors import Damaged, Diverged, HoldfastError, Invalid, ReadOnly
from holdfast.operations.history import DamageCallback
from holdfast.operations.record_import import (
    ImportedStoreRecord,
    copy_store_records,
    refuse_diverged_records,
)
from holdfast.operations.session_copy import (
    CopyResult,
    CopySource,
    copy_sessions,
    drop_gone_records,
    gone_records,
    refuse_diverged,
)
from holdfast.operations.session_import import ImportedSession, NewBranch, restore_list_order
from holdfast.storage.protocol import Backend, Query, Snapshot
from holdfast.transfer.export import ExportPlan, Progress, readable_sessions
from holdfast.transfer.import_ import ProgressMeter, run_without_deadline
from holdfast.transfer.store_source import SessionDigest, StoreSource
from holdfast.values import CopyReport, Damage, StoreContents

T = TypeVar("T")
_MESSAGE_PASSES: Final = 3  # Those that read messages: compare, copy, verify.
_PROGRESS_MESSAGES: Final = 1_000
_MAX_BATCH_FAMILIES: Final = 100
_MAX_BATCH_MESSAGES: Final = 2_000
_REORDER_BATCH_SESSIONS: Final = 500
_BATCH_STORE_RECORDS: Final = 100


def copy(
    source: Backend, target: Backend, *, progress: Progress | None, report: DamageCallback
) -> CopyReport:
    """Copy every session of `source` into `target`, then compare both stores."""
    if source is target:
        raise Invalid("a store cannot be copied into itself; nothing was copied.")
    if target.readonly:
        raise ReadOnly("the target was opened for reading only; nothing was copied.")
    try:
        return _Copy(source, target, progress, report).run()
    except _TargetFailed as failed:
        raise failed.error from failed.error.__cause__


class Batch(msgspec.Struct):
    """Families that are copied together: their session ids, and about how many messages."""

    families: list[list[str]]
    messages: int = 0

    @property
    def ids(self) -> list[str]:
        """The ids of all sessions in the batch."""
        return [id for family in self.families for id in family]

    def has_room(self, messages: int) -> bool:
        """True if a family with this many messages still fits into the batch."""
        few = len(self.families) < _MAX_BATCH_FAMILIES
        return few and self.messages + messages <= _MAX_BATCH_MESSAGES


class DigestPair(NamedTuple):
    """The digests of one session in the source and in the target, if it is there."""

    source: SessionDigest
    target: SessionDigest | None


class _Copy:
    """One run of `copy`."""

    def __init__(
        self, source: Backend, target: Backend, progress: Progress | None, report: DamageCallback
    ) -> None:
        self._source = source
        self._target = target
        self._report = report
        self._damage = dict.fromkeys(source.opening_damage)
        self._change_stamps: dict[str, int | None] = {}  # As copied, or as compared.
        self._to_drop_from: set[str] = set()
        self._added = self._renewed = self._unchanged = 0
        self._order, self._batches = source.read(self._plan)
        self._source_ids = frozenset(self._order)
        self._messages_done = 0
        total = _MESSAGE_PASSES * sum(batch.messages for batch in self._batches)
        self._meter = ProgressMeter(total, progress, _PROGRESS_MESSAGES)

    def run(self) -> CopyReport:
        """Run all passes."""
        missing: list[Batch] = []
        refused: dict[str | None, str] = {}
        for batch in self._batches:
            self._skip_damaged_families(batch, lambda some: self._compare(some, missing, refused))
            self._count_batch(batch)
        self._each_store_record(lambda rows, batch: self._compare_records(rows, batch, refused))
        if refused:
            raise Diverged(refused)
        for batch in missing:
            self._skip_damaged_families(batch, self._copy_batch)
            self._count_batch(batch)
        self._each_store_record(self._copy_records)
        self._reorder_target()
        self._meter.advance_to(
            (_MESSAGE_PASSES - 1) * sum(batch.messages for batch in self._batches)
        )
        report = self._verify()
        self._meter.finish()
        return report

    def _count_batch(self, batch: Batch) -> None:
        """Count a batch as done in the progress, even if parts of it were not read."""
        self._messages_done += batch.messages
        self._meter.advance_to(self._messages_done)

    def _record_damage(self, damage: Damage) -> None:
        """Record and report damage found in the source."""
        self._damage[damage] = None
        self._report(damage)

    def _plan(self, snapshot: Snapshot) -> tuple[list[str], list[Batch]]:
        """Return all session ids in list order, and the families grouped into batches."""
        sessions = readable_sessions(snapshot, self._record_damage)
        names = dict(sessions)
        try:
            plan = ExportPlan(snapshot, list(names))
        except Damaged:
            plan = ExportPlan(
                snapshot, [n for n in names if self._is_readable(snapshot, n, names[n])]
            )
        batches: list[Batch] = []
        for family in plan.families:
            if not batches or not batches[-1].has_room(family.messages):
                batches.append(Batch([]))
            batches[-1].families.append([names[n] for n in family.sessions if n in names])
            batches[-1].messages += family.messages
        return [id for _, id in sessions], batches

    def _is_readable(self, snapshot: Snapshot, n: int, id: str) -> bool:
        """True if the branches of a session, and their ancestors, can be read."""
        try:
            ExportPlan(snapshot, [n])
        except Damaged as error:
            self._record_skipped(id, error)
            return False
        return True

    def _record_skipped(self, id: str, error: Damaged) -> None:
        self._record_damage(Damage(what=f"it was not copied: {error}", session_id=id))

    # ------------------------------------------------------------------------- the two stores

    def _skip_damaged_families(self, batch: Batch, work: Callable[[Batch], None]) -> None:
        """Process a batch; on damage, retry family by family and skip only the damaged ones."""
        try:
            work(batch)
        except Damaged as error:
            if len(batch.families) > 1:
                for family in batch.families:
                    self._skip_damaged_families(Batch([family]), work)
                return
            for id in batch.ids:
                self._record_skipped(id, error)

    def _read_target(self, query: Query[T]) -> T:
        """Run a query on the target."""
        return _call_target(lambda: self._target.read(query))

    def _digest_both(self, batch: Batch, sound: BlobChecks) -> dict[str, DigestPair]:
        """Return the digests of a batch's sessions in the source and in the target."""
        reach: dict[str, tuple[NewBranch, ...]] = {}

        def of_source(snapshot: Snapshot) -> dict[str, SessionDigest]:
            rows = StoreSource(snapshot, self._record_damage, self._meter.advance, sound.source)
            digests = {}
            sessions = [one for family in rows.families(batch.ids) for one in family]
            rows.read_ahead(sessions)
            for session in sessions:
                reach[session.source_id] = session.branches
                digests[session.source_id] = rows.digest(session)
            return digests

        def of_target(snapshot: Snapshot) -> dict[str, SessionDigest]:
            rows = StoreSource(snapshot, _ignore_damage, _ignore_progress, sound.target)
            copies = rows.find(reach)
            rows.read_ahead(copies)
            return {one.source_id: rows.digest(one) for one in copies}

        originals = self._source.read(of_source)
        copies = self._read_target(of_target)
        return {id: DigestPair(digest, copies.get(id)) for id, digest in originals.items()}

    # ------------------------------------------------------------------------------ the passes

    def _compare(self, batch: Batch, missing: list[Batch], refused: dict[str | None, str]) -> None:
        """Compare a batch with the target; add to `missing` and `refused` what is to be done."""
        same: set[str] = set()
        pairs: dict[str, DigestPair] = {}
        if self._read_target(lambda snapshot: bool(snapshot.sessions_by_id(batch.ids))):
            pairs = self._digest_both(batch, BlobChecks({}, {}))
        for id, pair in pairs.items():
            if pair.target is not None and pair.source.digest == pair.target.digest:
                same.add(id)
                self._change_stamps[id] = pair.source.change_stamp
                self._unchanged += not pair.source.is_stub
        if same.issuperset([*batch.ids, *pairs]):
            return
        missing.append(batch)

        def check(snapshot: Snapshot) -> None:
            rows = StoreSource(snapshot, self._record_damage, self._meter.advance)
            sessions = [one for family in rows.families(batch.ids) for one in family]
            others = [session for session in sessions if session.source_id not in same]
            guarded = _source_proxy(rows)
            self._read_target(lambda target: self._check_target(target, others, guarded))

        try:
            self._source.read(check)
        except _TargetFailed as failed:
            if not isinstance(failed.error, Diverged):
                raise
            refused |= failed.error.reasons

    def _check_target(
        self, target: Snapshot, sessions: Sequence[ImportedSession], source: CopySource
    ) -> None:
        """Refuse sessions that are not earlier copies; note those with records that are gone."""
        refuse_diverged(target, sessions, source, self._is_in_source)
        there = target.sessions_by_id([one.source_id for one in sessions])
        copies = [one for one in sessions if one.source_id in there]
        self._to_drop_from.update(
            one.source_id for one in copies if gone_records(target, one, source)
        )

    def _is_in_source(self, id: str) -> bool:
        return id in self._source_ids

    def _copy_batch(self, batch: Batch) -> None:
        """Insert into the target what it lacks of these sessions."""

        def store(snapshot: Snapshot) -> tuple[CopyResult, dict[str, int | None]]:
            rows = StoreSource(snapshot, self._record_damage, self._meter.advance)
            families = rows.families(batch.ids)
            rows.read_ahead([one for family in families for one in family])
            dropped.extend(self._drop_gone_records(families, rows))
            stamps = {
                one.source_id: rows.change_stamp(one) for family in families for one in family
            }
            operation = copy_sessions(families, _source_proxy(rows), self._is_in_source)
            return _call_target(
                lambda: run_without_deadline(self._target, operation, self._meter)
            ), stamps

        dropped: list[str] = []
        brought, stamps = self._source.read(store)
        self._change_stamps |= stamps
        self._added += len(brought.added)
        self._renewed += len({*brought.renewed, *dropped})
        for damage in brought.damage:
            self._record_damage(damage)

    def _drop_gone_records(
        self, families: Sequence[Sequence[ImportedSession]], rows: StoreSource
    ) -> list[str]:
        """Drop what the source has dropped of these sessions' records; return of which."""
        sessions = [one for family in families for one in family]
        changed = [one for one in sessions if one.source_id in self._to_drop_from]
        if not changed:
            return []
        operation = drop_gone_records(changed, _source_proxy(rows), self._is_in_source)
        return _call_target(lambda: self._target.write(operation, exclusive=True))

    def _each_store_record(
        self, work: Callable[[StoreSource, list[ImportedStoreRecord]], None]
    ) -> None:
        """Process the records of the source's store in batches, all from one snapshot."""

        def run(snapshot: Snapshot) -> None:
            rows = StoreSource(snapshot, self._record_damage, self._meter.advance)
            batch: list[ImportedStoreRecord] = []
            for item in map(rows.store_record, snapshot.store_records()):
                if item is not None:
                    batch.append(item)
                if len(batch) == _BATCH_STORE_RECORDS:
                    work(rows, batch)
                    batch = []
            if batch:
                work(rows, batch)

        self._source.read(run)

    def _compare_records(
        self,
        rows: StoreSource,
        batch: list[ImportedStoreRecord],
        refused: dict[str | None, str],
    ) -> None:
        guarded = _source_proxy(rows)
        found = [item.row for item in batch]
        try:
            self._read_target(
                lambda target: refuse_diverged_records(target, found, guarded.has_store_record)
            )
        except _TargetFailed as failed:
            if not isinstance(failed.error, Diverged):
                raise
            refused |= failed.error.reasons

    def _copy_records(self, rows: StoreSource, batch: list[ImportedStoreRecord]) -> None:
        guarded = _source_proxy(rows)
        operation = copy_store_records(batch, guarded, guarded.has_store_record)
        brought = _call_target(lambda: run_without_deadline(self._target, operation, self._meter))
        for damage in brought.damage:
            self._record_damage(damage)

    def _reorder_target(self) -> None:
        """Reorder the target's sessions as in the source, unless they are already."""
        there = {
            id: n
            for n, id in self._read_target(lambda target: readable_sessions(target, _ignore_damage))
        }
        wanted = [id for id in self._order if id in there]
        if [id for id in there if id in self._source_ids] == wanted:
            return
        numbers = [there[id] for id in wanted]
        for first in range(0, len(numbers), _REORDER_BATCH_SESSIONS):
            some = numbers[first : first + _REORDER_BATCH_SESSIONS]
            run_without_deadline(self._target, restore_list_order(enumerate(some)), self._meter)

    def _verify(self) -> CopyReport:
        """Read both stores again as they are now, compare them, and return the report."""
        order, batches = self._source.read(self._plan)
        verdict = _StoreComparison(self._change_stamps)
        for batch in batches:
            self._skip_damaged_families(
                batch, lambda some: verdict.add(self._digest_both(some, verdict.blob_checks))
            )
        self._each_store_record(lambda rows, batch: self._verify_records(rows, batch, verdict))
        there = self._read_target(lambda snapshot: readable_sessions(snapshot, _ignore_damage))
        return CopyReport(
            added=self._added,
            renewed=self._renewed,
            unchanged=self._unchanged,
            changed=tuple(verdict.changed),
            differs=tuple(verdict.differs),
            interrupted=tuple(verdict.interrupted),
            others=len({id for _, id in there} - set(order)),
            damage=tuple(self._damage),
            source=verdict.source.contents(verdict.blob_checks.source),
            target=verdict.target.contents(verdict.blob_checks.target),
        )

    def _verify_records(
        self, rows: StoreSource, batch: Sequence[ImportedStoreRecord], verdict: _StoreComparison
    ) -> None:
        """Add some records of the source and what the target has of them to the totals."""

        def add_copies(snapshot: Snapshot) -> None:
            copies = StoreSource(snapshot, _ignore_damage, _ignore_progress, checks.target)
            known = snapshot.store_record_ids([item.row.id for item in batch])
            found = (known.get(item.row.id) for item in batch)
            for item in (copies.store_record(row) for row in found if row is not None):
                if item is not None:
                    verdict.target.add_record(item, copies)

        checks = verdict.blob_checks
        for item in batch:
            verdict.source.add_record(item, rows)
        checks.source.update(rows.blob_checks)
        self._read_target(add_copies)


class BlobChecks(NamedTuple):
    """The blobs read so far in both stores, by hash, and whether each matches its hash."""

    source: dict[bytes, bool]
    target: dict[bytes, bool]


class _StoreTotals:
    """Accumulates the counts and the digest of one store."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._sessions = self._messages = self._turns = self._queued = 0
        self._records = self._store_records = 0

    def add(self, id: str, session: SessionDigest) -> None:
        """Add a session."""
        self._hash.update(id.encode() + session.digest)
        self._sessions += not session.is_stub
        self._messages += session.messages
        self._records += session.records
        self._turns += session.turns
        self._queued += session.queued

    def add_record(self, item: ImportedStoreRecord, rows: StoreSource) -> None:
        """Add a record of the store, which `rows` has."""
        row = item.row
        files = [(name, rows.is_intact(name)) for name in sorted(item.blob_refs)]
        columns = (row.scope, row.kind, row.key, row.id, row.body is None, files)
        self._hash.update(codec.to_json(columns) + (row.body or b""))
        self._store_records += row.body is not None

    def contents(self, sound: dict[bytes, bool]) -> StoreContents:
        """Return the totals; `sound` are the blobs of this store."""
        return StoreContents(
            sessions=self._sessions,
            messages=self._messages,
            records=self._records,
            store_records=self._store_records,
            turns=self._turns,
            queued=self._queued,
            blobs=sum(sound.values()),
            sha256=self._hash.hexdigest(),
        )


class _StoreComparison:
    """Compares both stores session by session, and totals each."""

    def __init__(self, stamps: dict[str, int | None]) -> None:
        self._change_stamps = stamps
        self.source, self.target = _StoreTotals(), _StoreTotals()
        self.blob_checks = BlobChecks({}, {})
        self.changed: list[str] = []
        self.differs: list[str] = []
        self.interrupted: list[str] = []

    def add(self, pairs: dict[str, DigestPair]) -> None:
        """Compare some sessions and add them to the totals."""
        for id, (ours, theirs) in pairs.items():
            self.source.add(id, ours)
            if theirs is not None:
                self.target.add(id, theirs)
                if theirs.interrupted:
                    self.interrupted.append(id)
            if theirs is None or ours.digest != theirs.digest:
                (self.changed if self._changed_since_copy(id, ours) else self.differs).append(id)

    def _changed_since_copy(self, id: str, ours: SessionDigest) -> bool:
        """True if a session of the source was written to since it was copied."""
        stamp = self._change_stamps.get(id)
        return stamp is None or stamp != ours.change_stamp


# ------------------------------------------------------------------- errors of the two stores


class _TargetFailed(Exception):
    """Wraps an error of the target, to distinguish it from errors of the source."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class _SourceFailed(Exception):
    """Wraps an error of the source, so that the target does not handle it as its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _call_target(work: Callable[[], T]) -> T:
    """Call the target from inside a read of the source, tagging the target's errors."""
    try:
        return work()
    except _SourceFailed as failed:
        raise failed.error from failed.error.__cause__
    except HoldfastError as error:
        raise _TargetFailed(error) from error


class _SourceProxy:
    """Proxy for a `StoreSource` inside the target; tags the errors of the source."""

    def __init__(self, rows: StoreSource) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method, wrapped."""
        method = getattr(self._rows, name)

        def call(*args: object) -> object:
            with _tag_source_errors():
                found = method(*args)
            return _wrap_iterator(found) if isinstance(found, Iterator) else found

        return call


def _source_proxy(rows: StoreSource) -> CopySource:
    return cast("CopySource", _SourceProxy(rows))


def _wrap_iterator(items: Iterator[object]) -> Iterator[object]:
    with _tag_source_errors():  # What their user raises is not raised in here.
        yield from items


@contextmanager
def _tag_source_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _SourceFailed(error) from error


def _ignore_damage(damage: Damage) -> None:
    """Ignore damage in the target: it shows up in the comparison."""


def _ignore_progress(count: int) -> None:
    """Ignore progress: these messages were counted in the source."""
