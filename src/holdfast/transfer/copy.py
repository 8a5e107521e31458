"""Copy a whole store into another one, of any backend.

Four passes over the sessions, in batches of families (sessions that share messages):

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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from holdfast.errors import Damaged, Diverged, HoldfastError, Invalid, ReadOnly
from holdfast.operations.history import Report
from holdfast.operations.session_copy import Brought, Original, bring, refuse_unlike
from holdfast.operations.session_import import in_order
from holdfast.storage.protocol import Backend, Query, Snapshot
from holdfast.transfer.export import Plan, Progress, every_session
from holdfast.transfer.import_ import Meter, patiently
from holdfast.transfer.store_source import Print, Rows
from holdfast.values import Contents, CopyReport, Damage

T = TypeVar("T")
_PASSES: Final = 3  # Those that read messages: compare, copy, verify.
_PACE: Final = 1_000
_FAMILIES_AT_ONCE: Final = 50
_MESSAGES_AT_ONCE: Final = 2_000
_HEADS_AT_ONCE: Final = 500
_END: Final = object()


def copy(
    source: Backend, target: Backend, *, progress: Progress | None, report: Report
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
        few = len(self.families) < _FAMILIES_AT_ONCE
        return few and self.messages + messages <= _MESSAGES_AT_ONCE


class Pair(NamedTuple):
    """The digests of one session in the source and in the target, if it is there."""

    ours: Print
    theirs: Print | None


class _Copy:
    """One run of `copy`."""

    def __init__(
        self, source: Backend, target: Backend, progress: Progress | None, report: Report
    ) -> None:
        self._source = source
        self._target = target
        self._report = report
        self._damage: dict[Damage, None] = {}
        self._stamps: dict[str, int | None] = {}  # As copied, or as compared.
        self._added = self._renewed = self._unchanged = 0
        self._order, self._batches = source.read(self._plan)
        self._coming = frozenset(self._order)
        self._done = 0
        total = _PASSES * sum(batch.messages for batch in self._batches)
        self._meter = Meter(total, progress, _PACE)

    def run(self) -> CopyReport:
        """Run all passes."""
        missing: list[Batch] = []
        refused: dict[str, str] = {}
        for batch in self._batches:
            self._sparing(batch, lambda some: self._compare(some, missing, refused))
            self._pass(batch)
        if refused:
            raise Diverged(refused)
        for batch in missing:
            self._sparing(batch, self._bring)
            self._pass(batch)
        self._put_in_order()
        self._meter.go_to((_PASSES - 1) * sum(batch.messages for batch in self._batches))
        report = self._verify()
        self._meter.finish()
        return report

    def _pass(self, batch: Batch) -> None:
        """Count a batch as done in the progress, even if parts of it were not read."""
        self._done += batch.messages
        self._meter.go_to(self._done)

    def _note(self, damage: Damage) -> None:
        """Record and report damage found in the source."""
        self._damage[damage] = None
        self._report(damage)

    def _plan(self, snapshot: Snapshot) -> tuple[list[str], list[Batch]]:
        """Return all session ids in list order, and the families grouped into batches."""
        sessions = every_session(snapshot, self._note)
        names = dict(sessions)
        try:
            plan = Plan(snapshot, list(names))
        except Damaged:
            plan = Plan(snapshot, [n for n in names if self._is_readable(snapshot, n, names[n])])
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
            Plan(snapshot, [n])
        except Damaged as error:
            self._leave_out(id, error)
            return False
        return True

    def _leave_out(self, id: str, error: Damaged) -> None:
        self._note(Damage(what=f"it was not copied: {error}", session_id=id))

    # ------------------------------------------------------------------------- the two stores

    def _sparing(self, batch: Batch, work: Callable[[Batch], None]) -> None:
        """Process a batch; on damage, retry family by family and skip only the damaged ones."""
        try:
            work(batch)
        except Damaged as error:
            if len(batch.families) > 1:
                for family in batch.families:
                    self._sparing(Batch([family]), work)
                return
            for id in batch.ids:
                self._leave_out(id, error)

    def _ask(self, query: Query[T]) -> T:
        """Run a query on the target."""
        return _of_target(lambda: self._target.read(query))

    def _pairs(self, batch: Batch, sound: Sound) -> dict[str, Pair]:
        """Return the digests of a batch's sessions in the source and in the target."""
        reach: dict[str, dict[int, int]] = {}

        def of_source(snapshot: Snapshot) -> dict[str, Print]:
            rows = Rows(snapshot, self._note, self._meter.step, sound.ours)
            digests = {}
            for session in (one for family in rows.families(batch.ids) for one in family):
                reach[session.name] = {one.number: one.last_seq for one in session.branches}
                digests[session.name] = rows.summed_up(session)
            return digests

        def of_target(snapshot: Snapshot) -> dict[str, Print]:
            rows = Rows(snapshot, _nobody, _nothing, sound.theirs)
            copies = {id: rows.there(id, last_seqs) for id, last_seqs in reach.items()}
            return {id: rows.summed_up(one) for id, one in copies.items() if one is not None}

        originals = self._source.read(of_source)
        copies = self._ask(of_target)
        return {id: Pair(digest, copies.get(id)) for id, digest in originals.items()}

    # ------------------------------------------------------------------------------ the passes

    def _compare(self, batch: Batch, missing: list[Batch], refused: dict[str, str]) -> None:
        """Compare a batch with the target; add to `missing` and `refused` what is to be done."""
        same: set[str] = set()
        pairs: dict[str, Pair] = {}
        if self._ask(lambda snapshot: any(snapshot.relative(id) for id in batch.ids)):
            pairs = self._pairs(batch, Sound({}, {}))
        for id, pair in pairs.items():
            if pair.theirs is not None and pair.ours.digest == pair.theirs.digest:
                same.add(id)
                self._stamps[id] = pair.ours.stamp
                self._unchanged += not pair.ours.husk
        if same.issuperset([*batch.ids, *pairs]):
            return
        missing.append(batch)

        def check(snapshot: Snapshot) -> None:
            rows = Rows(snapshot, self._note, self._meter.step)
            sessions = [one for family in rows.families(batch.ids) for one in family]
            others = [session for session in sessions if session.name not in same]
            guarded = _guarded(rows)
            self._ask(lambda target: refuse_unlike(target, others, guarded, self._is_coming))

        try:
            self._source.read(check)
        except _TargetFailed as failed:
            if not isinstance(failed.error, Diverged):
                raise
            refused |= failed.error.reasons

    def _is_coming(self, id: str) -> bool:
        return id in self._coming

    def _bring(self, batch: Batch) -> None:
        """Insert into the target what it lacks of these sessions."""

        def store(snapshot: Snapshot) -> tuple[Brought, dict[str, int | None]]:
            rows = Rows(snapshot, self._note, self._meter.step)
            families = rows.families(batch.ids)
            stamps = {one.name: rows.stamp(one) for family in families for one in family}
            operation = bring(families, _guarded(rows), self._is_coming)
            return _of_target(lambda: patiently(self._target, operation, self._meter)), stamps

        brought, stamps = self._source.read(store)
        self._stamps |= stamps
        self._added += len(brought.added)
        self._renewed += len(brought.renewed)
        for damage in brought.damage:
            self._note(damage)

    def _put_in_order(self) -> None:
        """Reorder the target's sessions as in the source, unless they are already."""
        there = {id: n for n, id in self._ask(lambda target: every_session(target, _nobody))}
        wanted = [id for id in self._order if id in there]
        if [id for id in there if id in self._coming] == wanted:
            return
        numbers = [there[id] for id in wanted]
        for first in range(0, len(numbers), _HEADS_AT_ONCE):
            some = numbers[first : first + _HEADS_AT_ONCE]
            patiently(self._target, in_order(enumerate(some)), self._meter)

    def _verify(self) -> CopyReport:
        """Read both stores again as they are now, compare them, and return the report."""
        order, batches = self._source.read(self._plan)
        verdict = _Verdict(self._stamps)
        for batch in batches:
            self._sparing(batch, lambda some: verdict.add(self._pairs(some, verdict.sound)))
        there = self._ask(lambda snapshot: every_session(snapshot, _nobody))
        return CopyReport(
            added=self._added,
            renewed=self._renewed,
            unchanged=self._unchanged,
            changed=tuple(verdict.changed),
            differs=tuple(verdict.differs),
            interrupted=tuple(verdict.interrupted),
            others=len({id for _, id in there} - set(order)),
            damage=tuple(self._damage),
            source=verdict.ours.contents(verdict.sound.ours),
            target=verdict.theirs.contents(verdict.sound.theirs),
        )


class Sound(NamedTuple):
    """The blobs read so far in both stores, by hash, and whether each matches its hash."""

    ours: dict[bytes, bool]
    theirs: dict[bytes, bool]


class _Sum:
    """Accumulates the counts and the digest of one store."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._sessions = self._messages = self._turns = self._queued = 0

    def add(self, id: str, session: Print) -> None:
        """Add a session."""
        self._hash.update(id.encode() + session.digest)
        self._sessions += not session.husk
        self._messages += session.messages
        self._turns += session.turns
        self._queued += session.queued

    def contents(self, sound: dict[bytes, bool]) -> Contents:
        """Return the totals; `sound` are the blobs of this store."""
        return Contents(
            sessions=self._sessions,
            messages=self._messages,
            turns=self._turns,
            queued=self._queued,
            blobs=sum(sound.values()),
            sha256=self._hash.hexdigest(),
        )


class _Verdict:
    """Compares both stores session by session, and totals each."""

    def __init__(self, stamps: dict[str, int | None]) -> None:
        self._stamps = stamps
        self.ours, self.theirs = _Sum(), _Sum()
        self.sound = Sound({}, {})
        self.changed: list[str] = []
        self.differs: list[str] = []
        self.interrupted: list[str] = []

    def add(self, pairs: dict[str, Pair]) -> None:
        """Compare some sessions and add them to the totals."""
        for id, (ours, theirs) in pairs.items():
            self.ours.add(id, ours)
            if theirs is not None:
                self.theirs.add(id, theirs)
                if theirs.interrupted:
                    self.interrupted.append(id)
            if theirs is None or ours.digest != theirs.digest:
                (self.changed if self._went_on(id, ours) else self.differs).append(id)

    def _went_on(self, id: str, ours: Print) -> bool:
        """True if a session of the source was written to since it was copied."""
        stamp = self._stamps.get(id)
        return stamp is None or stamp != ours.stamp


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


def _of_target(work: Callable[[], T]) -> T:
    """Call the target from inside a read of the source, tagging the target's errors."""
    try:
        return work()
    except _SourceFailed as failed:
        raise failed.error from failed.error.__cause__
    except HoldfastError as error:
        raise _TargetFailed(error) from error


class _Guard:
    """Proxy for a `StoreSource` inside the target; tags the errors of the source."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method, wrapped."""
        method = getattr(self._rows, name)

        def call(*args: object) -> object:
            with _marked():
                found = method(*args)
            return _each(found) if isinstance(found, Iterator) else found

        return call


def _guarded(rows: Rows) -> Original:
    return cast("Original", _Guard(rows))


def _each(items: Iterator[object]) -> Iterator[object]:
    while True:
        with _marked():
            item = next(items, _END)
        if item is _END:
            return
        yield item


@contextmanager
def _marked() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _SourceFailed(error) from error


def _nobody(damage: Damage) -> None:
    """Ignore damage in the target: it shows up in the comparison."""


def _nothing(count: int) -> None:
    """Ignore progress: these messages were counted in the source."""
