"""What a store shares with its sessions and turns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.backends.base import Backend
from holdfast.clock import Clock, to_datetime
from holdfast.core.branches import Segment
from holdfast.keeper import Keeper
from holdfast.records import Damage

if TYPE_CHECKING:
    from holdfast.index.keeping import Index

_log = logging.getLogger("holdfast")
_MOST_DAMAGE = 1000


class Runtime:
    """The backend, the clock, the background, and what was found damaged."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        """Share these."""
        self.backend = backend
        self.clock = clock
        self.keeper = Keeper()
        self.damage: list[Damage] = []
        self._making_index = threading.Lock()
        self._index: Index | None = None

    def now(self) -> datetime:
        """Tell the time."""
        return to_datetime(self.clock.micros())

    def report(self, damage: Damage) -> None:
        """Remember damage, once, and log where it is."""
        if damage in self.damage or len(self.damage) >= _MOST_DAMAGE:
            return
        self.damage.append(damage)
        _log.warning("damage in session %s at %s: %s", damage.session_id, damage.seq, damage.what)

    @property
    def index(self) -> Index:
        """The search index; it is loaded by whoever needs it first, and appends do not."""
        with self._making_index:
            if self._index is None:
                from holdfast.index.keeping import Index  # noqa: PLC0415

                self._index = Index(self.backend)
            return self._index

    @contextmanager
    def erasing(self, doomed: Sequence[Segment] | None) -> Iterator[None]:
        """Surround the write that erases these messages, and those only.

        Whatever was derived from their text and is kept beside the log goes here: read the text
        before the write, drop what came from it after. `None` means that nobody could say which.
        """
        with self.index.erasing(doomed):
            yield

    @contextmanager
    def between_erasures(self) -> Iterator[None]:
        """Surround what must not happen while a thread is in the block of `erasing`."""
        with self.index.between_erasures():
            yield

    def close(self) -> None:
        """Stop the background, then the backend."""
        self.keeper.close()
        with self._making_index:
            if self._index is not None:
                self._index.close()
        self.backend.close()
