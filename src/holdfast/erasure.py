"""Carrying out an erasure: foretold, written, wiped, and proved.

First it is asked what will go, and pieces of it are remembered. The write happens while whoever
keeps something derived from these messages stands by (`Runtime.erasing`); if something came in
between and other messages would go, it is asked again. Then the bytes that the engine left behind
are overwritten, and all files are searched for the pieces. Wiping and searching read the whole
store, so that several erasures are settled together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from holdfast.backends.base import Query, Verb
from holdfast.core.branches import Segment
from holdfast.core.fragments import thinned
from holdfast.records import Scan
from holdfast.runtime import Runtime
from holdfast.verbs.burying import MOST_FRAGMENTS, Changed, sample

T = TypeVar("T")
Doomed = Sequence[Segment] | None
_ATTEMPTS: Final = 8


class Erasure:
    """One or more erasures that are settled together."""

    def __init__(self, runtime: Runtime) -> None:
        """Erase in this store."""
        self._runtime = runtime
        self._backend = runtime.backend
        self._pieces: list[bytes] = []

    def write(self, foretell: Query[list[Segment]], verb: Callable[[Doomed], Verb[T]]) -> T:
        """Run the verb that erases what is foretold."""
        for _ in range(_ATTEMPTS):
            doomed = self._backend.read(foretell)
            pieces = self._backend.read(sample(doomed))
            try:
                with self._runtime.erasing(doomed):
                    done = self._backend.write(verb(doomed), alone=True)
            except Changed:
                continue
            self._pieces += pieces
            return done
        with self._runtime.erasing(None):
            return self._backend.write(verb(None), alone=True)

    def settle(self) -> tuple[tuple[str, ...], Scan]:
        """Wipe what was left behind; say what could not be yet, and what the search found."""
        # The note that wiping is owed goes with this: also that of another thread, whose words may
        # still be in the index.
        with self._runtime.between_erasures():
            pending = self._backend.scrub()
        return pending, self._backend.scan(thinned(self._pieces, MOST_FRAGMENTS))
