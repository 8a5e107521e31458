"""The steps of an erasure: plan, write, wipe, verify.

The plan is the set of messages to erase; fragments of their text are sampled. The write runs inside
`StoreContext.erasing`, so that data derived from these messages (the search index) is dropped with
them. If a concurrent write changed which messages would be erased, the plan is made again. Then
the bytes that the database left behind are overwritten, and all files are searched for the sampled
fragments. Wiping and searching read the whole store, so several erasures share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from holdfast.context import StoreContext
from holdfast.operations.residue import sample_evenly
from holdfast.operations.tombstone import MAX_FRAGMENTS, StaleErasurePlan, sample_fragments
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, Query
from holdfast.values import Scan

T = TypeVar("T")
PlannedSegments = Sequence[Segment] | None
_MAX_ATTEMPTS: Final = 8


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

    def wipe_and_scan(self) -> tuple[tuple[str, ...], Scan]:
        """Wipe the bytes of erased messages; return what is still pending, and the scan."""
        # Wiping clears the store's note that it is pending, also one by another thread: so no
        # thread may be between its erasure and the clean-up of the index.
        with self._context.between_erasures():
            pending = self._backend.wipe()
        return pending, self._backend.scan(sample_evenly(self._fragments, MAX_FRAGMENTS))
