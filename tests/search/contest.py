"""Two concurrent erasures: one pauses after its write until the other can get no further.

That is when the other one waits for a lock of the index, or was let in where it should have waited.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from holdfast import Store
from holdfast.search import fts5, manager
from holdfast.search.index_erasure import Eraser
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation
from holdfast.testing.conformance.fixtures import run_concurrently

T = TypeVar("T")
LONG = 60.0  # seconds


class Contest:
    """Runs two erasures at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.written = threading.Event()
        self.met = threading.Event()
        self.refused: list[Exception] = []
        """Why erasures could not lock the index."""
        prepare = Eraser.prepare

        def prepared(eraser: Eraser, doomed: Sequence[Segment] | None) -> None:
            try:
                prepare(eraser, doomed)
            except Exception as error:
                self.refused.append(error)
                raise
            finally:
                self.meet()

        monkeypatch.setattr(Eraser, "prepare", prepared)
        monkeypatch.setattr(manager, "threading", _Threading(self))
        monkeypatch.setattr(fts5, "IndexFile", _patient_file(self))

    def meet(self) -> None:
        """Note that the second one can get no further, if the first has written."""
        if self.written.is_set():
            self.met.set()

    def pause(self, store: Store) -> None:
        """Pause the next write of a store after its commit."""
        write = store.backend.write

        def paused(verb: Operation[T], *, exclusive: bool = False) -> T:
            done = write(verb, exclusive=exclusive)
            if not self.written.is_set():
                self.written.set()
                assert self.met.wait(LONG)
            return done

        self._monkeypatch.setattr(store.backend, "write", paused)

    def run(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        """Run both; the second begins when the first has written."""

        def later() -> None:
            assert self.written.wait(LONG)
            second()

        run_concurrently(first, later)


class _Threading:
    """Replaces the module `threading`, with locks that report when a thread waits for one."""

    Event = threading.Event
    Thread = threading.Thread
    current_thread = staticmethod(threading.current_thread)

    def __init__(self, contest: Contest) -> None:
        self._contest = contest

    def Lock(self) -> "_Lock":  # noqa: N802 - its name there
        return _Lock(self._contest)


class _Lock:
    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._lock = threading.Lock()

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        self._contest.meet()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _patient_file(contest: Contest) -> type[fts5.IndexFile]:
    class PatientFile(fts5.IndexFile):
        """An index for whose lock an erasure waits without a timeout."""

        def set_busy_timeout(self, seconds: float) -> None:
            super().set_busy_timeout(seconds)
            if seconds >= manager._LOCK_TIMEOUT_S:  # noqa: SLF001 - so long an erasure waits
                until = time.monotonic() + LONG
                self._connection.set_busy_handler(lambda _: self._wait(until))

        def _wait(self, until: float) -> bool:
            contest.meet()
            time.sleep(0.001)
            return time.monotonic() < until

    return PatientFile
