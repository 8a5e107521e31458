"""A fair lock between processes: two files, taken one after the other.

Whoever wants to write takes the queue, then the lock, then lets go of the queue. The releaser of
the lock cannot barge in again, because the next in line already holds the queue. Nobody starves
as with SQLite's busy handler, which sleeps and guesses.

Both are `flock`s, which belong to an open file: threads of one process share them, so the caller
serialises threads first; and a forked child shares its parent's, so it must close its copies and
never unlock them.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from holdfast.backends.sqlite.place import PRIVATE_FILE, companion
from holdfast.errors import StoreUnavailable


class Turnstile:
    """The right to write to one store."""

    def __init__(self, path: Path) -> None:
        """Open the two lock files, making them if need be."""
        self._queue = _open(companion(path, "-queue"))
        try:
            self._lock = _open(companion(path, "-lock"))
        except BaseException:
            os.close(self._queue)
            raise

    def try_enter(self) -> bool:
        """Enter if nobody is there and nobody waits."""
        try:
            fcntl.flock(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        return True

    def enter(self) -> None:
        """Wait in line and enter."""
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)

    def enter_within(self, seconds: float) -> None:
        """Wait in line for so long at most; for rare work such as migrating."""
        deadline = time.monotonic() + seconds
        while not self.try_enter():
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"another process held the store's lock for {seconds:g} s; nothing was "
                    "changed. Try again, and see `holdfast doctor` if it stays so."
                )
            time.sleep(0.01)

    def leave(self) -> None:
        """Let the next one in."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files; in a forked child this leaves the parent's locks alone."""
        os.close(self._queue)
        os.close(self._lock)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, PRIVATE_FILE)
    except OSError as error:
        raise StoreUnavailable(
            f"the lock file {path} cannot be opened: {error.strerror}; nothing was stored."
        ) from error
