"""Noticing that something was written, by this process or another.

Writes of this process wake waiters at once. Those of others show in `PRAGMA data_version`, which
reads shared memory and costs microseconds; it is looked at a few times a second while somebody
waits, and less often the longer nothing happens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import apsw

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.25


class Watcher:
    """Counts changes as they are noticed."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        """Watch through a connection of its own, which never writes."""
        self._connect = connect
        self._connection: apsw.Connection | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._seen_version = -1
        self._number = 0
        self._closed = False

    def notify(self) -> None:
        """Say that this process has committed."""
        with self._lock:
            self._number += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the number of changes is not `seen`; give the number."""
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        with self._lock:
            while not self._closed:
                self._look()
                left = deadline - time.monotonic()
                if self._number != seen or left <= 0:
                    break
                self._changed.wait(min(pause, left))
                pause = min(pause * 1.5, _LONGEST_PAUSE)
            return self._number

    def _look(self) -> None:
        if self._connection is None:
            self._connection = self._connect()
        version: int = self._connection.execute("PRAGMA data_version").get
        if version != self._seen_version:
            self._seen_version = version
            self._number += 1

    def close(self) -> None:
        """Wake everybody and stop."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            self._changed.notify_all()
        if connection is not None:
            connection.close(force=True)

    def pause(self) -> None:
        """Before a fork: let go of the connection, and let nobody open another."""
        self._lock.acquire()
        connection, self._connection = self._connection, None
        self._seen_version = -1
        if connection is not None:
            connection.close(force=True)

    def go_on(self) -> None:
        """After a fork, in the parent."""
        self._lock.release()

    def begin_anew(self) -> None:
        """After a fork, in the child: the locks are those of threads that are not here."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
