"""The steps of an erasure: plan, write, wipe, verify.

The plan is the set of messages to erase; fragments of their text are sampled. The write runs inside
`StoreContext.erasing`, so that data derived from these messages (the search index) is dropped with
them. If a concurrent write changed which messages would be erased, the plan is made again. A purge
of many messages goes on in steps, each planned and written like an erasure of its own. Then
the bytes that the database left behind are overwritten, and all files are searched for the sampled
fragments. Wiping and searching read the whole store, so several erasures share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec

from holdfast.context import StoreContext
from holdfast.errors import Damaged, OutcomeUnknown, StoreFull, StoreUnavailable
from holdfast.operations import purge_steps
from holdfast.operations.purge_steps import StepReport, UnfinishedPurge
from holdfast.operations.record_drop import RecordDrop, StepStart, drop_step
from holdfast.operations.residue import sample_evenly
from holdfast.operations.tombstone import (
    MAX_FRAGMENTS,
    MAX_PREVIEWS,
    Dependants,
    Erased,
    StaleErasurePlan,
    in_portions,
    refresh_portion,
    sample_fragments,
)
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, Query
from holdfast.values import DropReport, Scan

T = TypeVar("T")
PlannedSegments = Sequence[Segment] | None
_MAX_ATTEMPTS: Final = 8
_MAX_INDEXED_STEPS: Final = 10


@contextmanager
def partly_erased(what_next: str, *, begun: bool = True) -> Iterator[None]:
    """Raise `OutcomeUnknown` if the store fails: what was `begun` is erased in part."""
    try:
        yield
    except (StoreUnavailable, StoreFull) as error:
        if not begun:
            raise
        raise OutcomeUnknown(
            f"the erasure began and could not be finished: {error} {what_next}."
        ) from error


class Erasure:
    """One or more erasures that are wiped and verified together."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._backend = context.backend
        self._fragments: list[bytes] = []

    def write(
        self, plan: Query[list[Segment]], erase: Callable[[PlannedSegments], Operation[T]]
    ) -> T:
        """Run the operation `erase` makes for the messages that `plan` returns.

        If that would erase other messages it raises `StaleErasurePlan`, and both are tried again.
        After several attempts it runs without a plan, which drops all derived data.
        """
        for _ in range(_MAX_ATTEMPTS):
            planned = self._backend.read(plan)
            fragments = self._backend.read(sample_fragments(planned))
            try:
                with self._context.erasing(planned):
                    done = self._backend.write(erase(planned), exclusive=True)
            except StaleErasurePlan:
                continue
            self._fragments += fragments
            return done
        with self._context.erasing(None):
            return self._backend.write(erase(None), exclusive=True)

    def sample(self, fragments: Query[list[bytes]]) -> None:
        """Search for these fragments, too, when everything is written."""
        self._fragments += self._backend.read(fragments)

    def finish_earlier_purges(self) -> StepReport:
        """Finish the purges of processes that were killed, and wipe the bytes of what that erased.

        At once, because what the caller wants to erase itself may be refused.
        """
        done = self.finish_purges()
        if done != StepReport():
            self.wipe_and_scan()
        return done

    def finish_purges(self, session: int | None = None) -> StepReport:
        """Finish the purges that have begun, step by step; return what that erased.

        Other writers get their turn after each step. Raise `Damaged` if the purge of `session`
        cannot be finished; any other such purge is left as it is.
        """
        total = StepReport()
        damaged: dict[int, Damaged] = {}
        while pending := [
            purge
            for purge in self._backend.read(purge_steps.unfinished())
            if purge.n not in damaged
        ]:
            for purge in pending:
                try:
                    for done in self._finish_purge(purge):
                        total += done
                except Damaged as error:
                    damaged[purge.n] = error
        if session in damaged:
            raise damaged[session]
        return total

    def _finish_purge(self, purge: UnfinishedPurge) -> Iterator[StepReport]:
        for branch, numbers in self._backend.read(purge_steps.record_steps(purge)):
            step_records = purge_steps.erase_records(purge, branch, numbers)
            yield self._backend.write(step_records, exclusive=True)
        steps = self._backend.read(purge_steps.steps(purge))
        if len(steps) > _MAX_INDEXED_STEPS:
            # Building the index again is faster than removing so many messages from it.
            with self._context.erasing(None):
                pass
        for step in steps:
            yield self.write(
                purge_steps.plan_step(purge, step), partial(purge_steps.erase_step, purge, step)
            )
        affected = self._backend.read(purge_steps.sharing(purge))
        refreshed = self._refresh_previews(affected, Erased(purge.n))
        shown_in = self._backend.write(purge_steps.finish(purge, refreshed), exclusive=True)
        yield StepReport(erased_in=shown_in or ())

    def hide_previews(self, plan: Query[tuple[Dependants, Erased]]) -> None:
        """Refresh the previews of many sessions before the write that erases what they show.

        Other writers get their turn in between. What the write finds to be new it does itself.
        """
        affected, erased = self._backend.read(plan)
        if len(affected.sessions) > MAX_PREVIEWS:
            self._refresh_previews(affected, erased)

    def _refresh_previews(self, affected: Dependants, erased: Erased) -> set[str]:
        """Refresh previews in short transactions; return the sessions for which that was done."""
        refreshed: set[str] = set()
        for portion in in_portions(affected):
            operation = refresh_portion(portion, erased)
            refreshed.update(self._backend.write(operation, exclusive=True))
        return refreshed

    def drop_records(self, session: int, wanted: RecordDrop) -> DropReport:
        """Drop records, step by step, and wipe their bytes; return what that erased."""
        total = DropReport(records=0, kept=0, blobs=0, blob_bytes=0)
        following: StepStart | None = StepStart()
        while following is not None:
            with partly_erased("Drop the rest again", begun=total.records > 0):
                step = self._backend.write(drop_step(session, wanted, following), exclusive=True)
            total, following = total + step.report, step.next
        return msgspec.structs.replace(total, pending=self._wipe()) if total.records else total

    def wipe_and_scan(self) -> tuple[tuple[str, ...], Scan]:
        """Wipe the bytes of erased messages; return what is still pending, and the scan."""
        pending = self._wipe()
        return pending, self._backend.scan(sample_evenly(self._fragments, MAX_FRAGMENTS))

    def _wipe(self) -> tuple[str, ...]:
        # Wiping clears the store's note that it is pending, also one by another thread: so no
        # thread may be between its erasure and the clean-up of the index.
        with self._context.between_erasures():
            return self._backend.wipe()
