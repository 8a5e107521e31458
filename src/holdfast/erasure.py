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

from holdfast.context import Runtime
from holdfast.operations.residue import thinned
from holdfast.operations.tombstone import MOST_FRAGMENTS, Changed, sample
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Query, Verb
from holdfast.values import Scan

T = TypeVar("T")
Doomed = Sequence[Segment] | None
_ATTEMPTS: Final = 8


class Erasure:
    """One or more erasures that are wiped and verified together."""

    def __init__(self, context: Runtime) -> None:
        self._runtime = context
        self._backend = context.backend
        self._pieces: list[bytes] = []

    def write(self, plan: Query[list[Segment]], erase: Callable[[Doomed], Verb[T]]) -> T:
        """Run the operation `erase` makes for the messages that `plan` returns.

        If that would erase other messages it raises `StaleErasurePlan`, and both are tried again.
        After several attempts it runs without a plan, which drops all derived data.
        """
        for _ in range(_ATTEMPTS):
            planned = self._backend.read(plan)
            fragments = self._backend.read(sample(planned))
            try:
                with self._runtime.erasing(planned):
                    done = self._backend.write(erase(planned), alone=True)
            except Changed:
                continue
            self._pieces += fragments
            return done
        with self._runtime.erasing(None):
            return self._backend.write(erase(None), alone=True)

    def settle(self) -> tuple[tuple[str, ...], Scan]:
        """Wipe the bytes of erased messages; return what is still pending, and the scan."""
        # Wiping clears the store's note that it is pending, also one by another thread: so no
        # thread may be between its erasure and the clean-up of the index.
        with self._runtime.between_erasures():
            pending = self._backend.scrub()
        return pending, self._backend.scan(thinned(self._pieces, MOST_FRAGMENTS))
