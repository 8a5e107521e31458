"""Applying a retention plan: archive first, then trash, then purge.

Each session is trashed or purged in a transaction of its own, if it is still as planned. What was
purged is wiped from the files, and its absence proved, once at the end for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from holdfast.context import StoreContext
from holdfast.erasure import Erasure
from holdfast.errors import BadQuery, Damaged, import_errors
from holdfast.operations import retention
from holdfast.values import ExportReport, Plan, PlanItem, RetentionReport, Scan, Spared

Progress: TypeAlias = Callable[[int, int], None]
_DAMAGED: Final = "it, or a session that comes from it, is damaged"


def apply_plan(
    context: StoreContext, plan: Plan, *, archive: str | None, progress: Progress | None
) -> RetentionReport:
    """Apply a plan to the sessions that are still as planned; report the others as spared."""
    if not isinstance(plan, Plan):
        raise BadQuery("plan: expected a Plan, as store.retention() returns it")
    return _PlanRunner(context, plan, progress).run(archive)


class _PlanRunner:
    """Applies one plan."""

    def __init__(self, context: StoreContext, plan: Plan, progress: Progress | None) -> None:
        self._context = context
        self._plan = plan
        self._progress = progress
        self._spared: dict[str, Spared] = {}
        self._trashed: list[str] = []
        self._purged: list[PlanItem] = []
        self._done = 0

    def run(self, archive: str | None) -> RetentionReport:
        """Archive, trash and purge; return what was done."""
        written = None if archive is None else self._archive(archive)
        for item in self._remaining(self._plan.trash):
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
        """Export the sessions of the plan to a file; spare those that it does not hold whole."""
        with import_errors():
            from holdfast.transfer.archive import archive as write_archive  # noqa: PLC0415 - few callers need it

        self._spare_missing()
        messages = {item.session_id: item.messages for item in self._remaining(self._plan.items)}
        if not messages:
            return None
        written, incomplete = write_archive(
            self._context.backend,
            self._context.clock,
            to,
            messages,
            progress=None,
            report=self._context.report,
        )
        for item in self._remaining(self._plan.items):
            if item.session_id in incomplete:
                self._spare(item, incomplete[item.session_id])
        return written

    def _spare_missing(self) -> None:
        """Spare sessions that no longer exist: they cannot be archived."""
        existing = self._context.backend.read(retention.existing_ids(self._plan.items))
        for item in self._plan.items:
            if item.session_id not in existing:
                self._spare(item, retention.NO_LONGER_EXISTS)

    def _remaining(self, items: Iterable[PlanItem]) -> list[PlanItem]:
        return [item for item in items if item.session_id not in self._spared]

    def _trash(self, item: PlanItem) -> None:
        at = self._context.clock.micros()
        try:
            reason = self._context.backend.write(retention.trash(item, at))
        except Damaged:
            reason = _DAMAGED
        if reason is None:
            self._trashed.append(item.session_id)
        else:
            self._spare(item, reason)
        self._report_progress()

    def _purge(self) -> tuple[tuple[str, ...], Scan | None]:
        items = self._remaining(self._plan.purge)
        if not items:
            return (), None
        erasure = Erasure(self._context)
        erasure.finish_earlier_purges()
        try:
            for item in items:
                self._purge_one(erasure, item)
                erasure.finish_purges()
        finally:
            # Also after an interruption: what was purged must not stay in the files.
            settled = erasure.wipe_and_scan() if self._purged else ((), None)
        return settled

    def _purge_one(self, erasure: Erasure, item: PlanItem) -> None:
        try:
            erasure.sample(retention.sample_session(item))
            done = erasure.write(retention.plan_erasure(item), retention.purge(item))
        except Damaged:
            done = _DAMAGED
        if isinstance(done, str):
            self._spare(item, done)
        else:
            self._purged.append(item)
        self._report_progress()

    def _spare(self, item: PlanItem, why: str) -> None:
        self._spared[item.session_id] = Spared(
            session_id=item.session_id, title=item.title, why=why
        )

    def _report_progress(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._plan))
