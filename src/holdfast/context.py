"""The context that a store shares with its sessions and turns."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from holdfast.clock import Clock, to_datetime
from holdfast.errors import Damaged, import_errors
from holdfast.scheduler import Scheduler
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Operation, PendingWrite
from holdfast.values import Damage

if TYPE_CHECKING:
    from holdfast.search.manager import IndexManager

T = TypeVar("T")
_log = logging.getLogger("holdfast")
_MAX_DAMAGE = 1000


class StoreContext:
    """The backend, the clock, the background scheduler, the index, and the damage found."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        self.scheduler = Scheduler()
        self.damage: list[Damage] = []
        self.refused: dict[str, Damage] = {}  # by the id of the session
        self._index_lock = threading.Lock()
        self._index: IndexManager | None = None
        for damage in backend.opening_damage:
            self.report(damage)

    def now(self) -> datetime:
        """Return the current time."""
        return to_datetime(self.clock.micros())

    def report(self, damage: Damage) -> None:
        """Record damage, once, and log where it is; its session accepts no more writes."""
        if damage.blocking and damage.session_id is not None:
            self.refused.setdefault(damage.session_id, damage)
        if damage in self.damage or len(self.damage) >= _MAX_DAMAGE:
            return
        self.damage.append(damage)
        _log.warning("damage in session %s at %s: %s", damage.session_id, damage.seq, damage.what)

    def report_verified(self, found: Iterable[Damage]) -> None:
        """Report all damage that there is; sessions that have none accept writes again."""
        self.refused = {}
        for damage in found:
            self.report(damage)

    def refuse_damaged(self, session_id: str) -> None:
        """Raise `Damaged` if damage was found in a session."""
        damage = self.refused.get(session_id)
        if damage is not None:
            raise Damaged(
                f"session {session_id} is damaged ({damage.what}) and accepts no writes; nothing "
                "was stored. A fork from before the damage does, and store.salvage(to) copies "
                "everything readable into a new store."
            )

    @property
    def index(self) -> IndexManager:
        """The search index, loaded on first use; appends do not need it."""
        with self._index_lock:
            if self._index is None:
                with import_errors():
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
        with self._index_lock:
            index = self._index
        _close(self.scheduler, index, self.backend)

    def __del__(self) -> None:
        """Close a store that was dropped without being closed, and warn about it.

        In a thread of its own: queued writes are waited for, and whatever thread the collector runs
        in may hold the lock that they wait for. A process that ends closes its files itself.
        """
        if self.backend.closed or sys.is_finalizing():
            return
        parts = (self.scheduler, self._index, self.backend)
        with suppress(RuntimeError):  # The system allows no more threads.
            threading.Thread(target=_close, args=parts, name="holdfast-close").start()
        what = f"unclosed store {self.backend.url}"
        warnings.warn(what, ResourceWarning, stacklevel=2, source=self)


def _close(scheduler: Scheduler, index: IndexManager | None, backend: Backend) -> None:
    scheduler.close()
    if index is not None:
        index.close()
    backend.close()


class GuardedWriter:
    """Writes to one session, which are refused once damage was found in it.

    Erasing it, or moving it to the trash, does not pass here.
    """

    def __init__(self, context: StoreContext, session_id: str) -> None:
        self._context = context
        self._backend = context.backend
        self._session_id = session_id
        self.deadline = context.backend.deadline

    def write(self, operation: Operation[T]) -> T:
        """Run an operation; see `Backend.write`."""
        if self._context.refused:
            self._context.refuse_damaged(self._session_id)
        return self._backend.write(operation)

    def submit(self, operation: Operation[T]) -> PendingWrite[T]:
        """Queue an operation; see `Backend.submit`."""
        if self._context.refused:
            self._context.refuse_damaged(self._session_id)
        return self._backend.submit(operation)
