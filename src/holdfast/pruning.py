"""Applying a plan of retention: archive first, then the trash, then what is erased.

Each session goes in a transaction of its own, if it is still as it was when the plan was made. What
is erased is wiped and proved once, at the end, for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from holdfast.erasure import Erasure
from holdfast.errors import BadQuery, Damaged
from holdfast.records import ExportReport, Plan, PlanItem, RetentionReport, Scan, Spared
from holdfast.runtime import Runtime
from holdfast.verbs import retaining

Progress: TypeAlias = Callable[[int, int], None]
_DAMAGED: Final = "it, or a session that comes from it, is damaged"


def apply(
    runtime: Runtime, plan: Plan, *, archive: str | None, progress: Progress | None
) -> RetentionReport:
    """Do what a plan says, as far as it still holds."""
    if not isinstance(plan, Plan):
        raise BadQuery("plan: expected one that store.retention() made")
    return _Application(runtime, plan, progress).run(archive)


class _Application:
    """A plan that is being applied."""

    def __init__(self, runtime: Runtime, plan: Plan, progress: Progress | None) -> None:
        self._runtime = runtime
        self._plan = plan
        self._progress = progress
        self._spared: dict[str, Spared] = {}
        self._trashed: list[str] = []
        self._purged: list[PlanItem] = []
        self._done = 0

    def run(self, archive: str | None) -> RetentionReport:
        """Do it."""
        written = None if archive is None else self._archive(archive)
        for item in self._left(self._plan.trash):
            self._trash(item)
        pending, scan = self._purge()
        return RetentionReport(
            trashed=tuple(self._trashed),
            purged=tuple(item.session_id for item in self._purged),
            spared=tuple(self._spared.values()),
            frees=sum(item.bytes for item in self._purged),
            archive=written,
            pending=pending,
            scan=scan,
        )

    def _archive(self, to: str) -> ExportReport | None:
        """Write what is to go to a file; what is not in it as it was does not go."""
        from holdfast.transfer import archiving  # noqa: PLC0415 - few callers need it

        self._spare_the_lost()
        messages = {item.session_id: item.messages for item in self._left(self._plan.items)}
        if not messages:
            return None
        written, unlike = archiving.archive(
            self._runtime.backend,
            self._runtime.clock,
            to,
            messages,
            progress=None,
            report=self._runtime.report,
        )
        for item in self._left(self._plan.items):
            if item.session_id in unlike:
                self._spare(item, unlike[item.session_id])
        return written

    def _spare_the_lost(self) -> None:
        """Leave out what is not there any more: it cannot be archived."""
        there = self._runtime.backend.read(retaining.there(self._plan.items))
        for item in self._plan.items:
            if item.session_id not in there:
                self._spare(item, retaining.GONE)

    def _left(self, items: Iterable[PlanItem]) -> list[PlanItem]:
        return [item for item in items if item.session_id not in self._spared]

    def _trash(self, item: PlanItem) -> None:
        at = self._runtime.clock.micros()
        try:
            against = self._runtime.backend.write(retaining.trash(item, at))
        except Damaged:
            against = _DAMAGED
        if against is None:
            self._trashed.append(item.session_id)
        else:
            self._spare(item, against)
        self._step()

    def _purge(self) -> tuple[tuple[str, ...], Scan | None]:
        items = self._left(self._plan.purge)
        if not items:
            return (), None
        erasure = Erasure(self._runtime)
        try:
            for item in items:
                self._purge_one(erasure, item)
        finally:
            # Also if it is stopped in between: what was erased is to be gone.
            settled = erasure.settle() if self._purged else ((), None)
        return settled

    def _purge_one(self, erasure: Erasure, item: PlanItem) -> None:
        try:
            done = erasure.write(retaining.foretell(item), retaining.purge(item))
        except Damaged:
            done = _DAMAGED
        if isinstance(done, str):
            self._spare(item, done)
        else:
            self._purged.append(item)
        self._step()

    def _spare(self, item: PlanItem, why: str) -> None:
        self._spared[item.session_id] = Spared(
            session_id=item.session_id, title=item.title, why=why
        )

    def _step(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._plan))
