"""A fair lock between processes, made of two lock files.

A writer locks the queue file, then the lock file, then unlocks the queue file. A process that just
released the lock cannot overtake the others, because the next waiter already holds the queue. No
writer starves, as one may with SQLite's busy handler, which sleeps and polls.

Both locks are `flock`s, which belong to an open file. Threads of one process share them, so the
caller must serialise its threads first. A forked child shares them with its parent, so it must
close its copies and never unlock them.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from holdfast.errors import StoreUnavailable, system_error, system_errors
from holdfast.storage.sqlite.location import PRIVATE_FILE, companion

_NOT_LOCKED: Final = "the store cannot be locked"
_NOT_STORED: Final = "nothing was stored."


class ProcessLock:
    """The lock that a process holds while it writes to one store."""

    def __init__(self, path: Path) -> None:
        """Open the store's two lock files, creating them if missing."""
        self._queue = _open(companion(path, "-queue"))
        try:
            self._lock = _open(companion(path, "-lock"))
        except BaseException:
            os.close(self._queue)
            raise

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free and no other process waits; true if it was acquired."""
        try:
            fcntl.flock(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                fcntl.flock(self._queue, fcntl.LOCK_UN)
        except BlockingIOError:
            return False
        except OSError as error:
            raise system_error(error, _NOT_LOCKED, _NOT_STORED) from error
        return True

    def acquire(self) -> None:
        """Acquire the lock, waiting in turn for as long as it takes."""
        with system_errors(_NOT_LOCKED, _NOT_STORED):
            fcntl.flock(self._queue, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            finally:
                fcntl.flock(self._queue, fcntl.LOCK_UN)

    def acquire_within(self, seconds: float) -> None:
        """Acquire the lock by polling, for rare work such as a migration.

        Raises `StoreUnavailable` if it is not free within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"another process held the store's lock for {seconds:g} s; nothing was "
                    "changed. Try again; if this persists, run `holdfast doctor`."
                )
            time.sleep(0.01)

    def release(self) -> None:
        """Release the lock to the next waiter."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock files; in a forked child the parent's locks stay held."""
        os.close(self._queue)
        os.close(self._lock)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, PRIVATE_FILE)
    except OSError as error:
        raise system_error(error, "the lock file cannot be opened", _NOT_STORED) from error
