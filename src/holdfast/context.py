"""The context that a store shares with its sessions and turns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.clock import Clock, to_datetime
from holdfast.scheduler import Scheduler
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend
from holdfast.values import Damage

if TYPE_CHECKING:
    from holdfast.search.manager import IndexManager

_log = logging.getLogger("holdfast")
_MAX_DAMAGE = 1000


class StoreContext:
    """The backend, the clock, the background scheduler, the index, and the damage found."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        self.scheduler = Scheduler()
        self.damage: list[Damage] = []
        self._index_lock = threading.Lock()
        self._index: IndexManager | None = None

    def now(self) -> datetime:
        """Return the current time."""
        return to_datetime(self.clock.micros())

    def report(self, damage: Damage) -> None:
        """Record damage, once, and log where it is."""
        if damage in self.damage or len(self.damage) >= _MAX_DAMAGE:
            return
        self.damage.append(damage)
        _log.warning("damage in session %s at %s: %s", damage.session_id, damage.seq, damage.what)

    @property
    def index(self) -> IndexManager:
        """The search index, loaded on first use; appends do not need it."""
        with self._index_lock:
            if self._index is None:
                from holdfast.search.manager import IndexManager  # noqa: PLC0415

                self._index = IndexManager(self.backend)
            return self._index

    @contextmanager
    def erasing(self, planned: Sequence[Segment] | None) -> Iterator[None]:
        """Surround the write that erases exactly these messages.

        Data derived from their text and stored outside the log is dropped here: the text is read
        before the write, what was derived from it is dropped after. `None` means that the messages
        are not known; then all derived data is dropped.
        """
        with self.index.erasing(planned):
            yield

    @contextmanager
    def between_erasures(self) -> Iterator[None]:
        """Surround work that must not run while another thread is in the block of `erasing`."""
        with self.index.between_erasures():
            yield

    def close(self) -> None:
        """Stop background work, then close the index and the backend."""
        self.scheduler.close()
        with self._index_lock:
            if self._index is not None:
                self._index.close()
        self.backend.close()
