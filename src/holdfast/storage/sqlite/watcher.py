"""Notification of commits, by this process or another.

A commit of this process wakes waiters at once. Commits of other processes change `PRAGMA
data_version`, which reads shared memory and costs microseconds. It is polled while a thread waits,
less and less often the longer nothing changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import apsw

_MIN_POLL_INTERVAL_S = 0.02
_MAX_POLL_INTERVAL_S = 0.25


class SQLiteWatcher:
    """Counts the changes that were noticed, and lets threads wait for the next one."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        """Poll on a connection of its own, made by `connect`, which never writes."""
        self._connect = connect
        self._connection: apsw.Connection | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._data_version = -1
        self._change_count = 0
        self._closed = False

    def notify(self) -> None:
        """Count a commit of this process and wake all waiters."""
        with self._lock:
            self._change_count += 1
            if self._waiting:
                self._changed.notify_all()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the change count is not `seen`, or for `timeout` seconds; return the count."""
        deadline = time.monotonic() + timeout
        pause = _MIN_POLL_INTERVAL_S
        with self._lock:
            while not self._closed:
                self._poll()
                remaining = deadline - time.monotonic()
                if self._change_count != seen or remaining <= 0:
                    break
                self._waiting += 1
                try:
                    self._changed.wait(min(pause, remaining))
                finally:
                    self._waiting -= 1
                pause = min(pause * 1.5, _MAX_POLL_INTERVAL_S)
            return self._change_count

    def _poll(self) -> None:
        if self._connection is None:
            self._connection = self._connect()
        version: int = self._connection.execute("PRAGMA data_version").get
        if version != self._data_version:
            self._data_version = version
            self._change_count += 1

    def close(self) -> None:
        """Stop watching and wake all waiters."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            self._changed.notify_all()
        if connection is not None:
            connection.close(force=True)

    def pause(self) -> None:
        """Before a fork: close the connection and keep other threads from opening another."""
        self._lock.acquire()
        connection, self._connection = self._connection, None
        self._data_version = -1
        if connection is not None:
            connection.close(force=True)

    def resume(self) -> None:
        """After a fork, in the parent: let threads wait again."""
        self._lock.release()

    def reset_after_fork(self) -> None:
        """After a fork, in the child: make new locks; the parent's threads do not exist here."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
