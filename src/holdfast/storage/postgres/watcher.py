"""Noticing commits, of this process and of others.

Commits of this process wake its waiters at once. Those of others are announced by `NOTIFY`, for
which a thread listens once a caller waits for the first time.

A notification is a hint. Another thread sends it after the commit, one for all commits of a few
milliseconds, because a commit that notifies makes all others wait for its sync. While no process
listens, none is sent: each listener holds a shared lock, which writers test. A write that began
before that is not announced, and a notification may be lost with its sender, so a listener also
polls, soon at first and then every two seconds. What was written is read from the log, which has
no gaps.

A pooler does not pass notifications on. Behind one, where the URL does not say how to reach the
server itself (`listen`), the listener only polls, twice a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final

import psycopg

from holdfast.errors import HoldfastError
from holdfast.ids import message_id
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import ConnInfo
from holdfast.storage.postgres.pool import Pool

_FIRST_POLL_S: Final = 0.1
_MAX_POLL_S: Final = 2.0
_POOLED_POLL_S: Final = 0.5  # without notifications
_RECONNECT_PAUSE_S: Final = 0.5
_NOTIFY_DELAY_S: Final = 0.003


class NotificationWatcher:
    """Counts the changes that are noticed, and wakes the threads that wait for one."""

    def __init__(
        self,
        pool: Pool,
        conninfo: ConnInfo,
        newest: Callable[[Connection], Any],
        channel: str,
        listener_lock: int,
    ) -> None:
        """Listen on `channel`, holding `listener_lock`; every write changes what `newest` reads.

        `conninfo` is where to listen; notifications are sent on connections of the pool.
        """
        self._pool = pool
        self._conninfo = conninfo
        self._newest = newest
        self._channel = channel
        self._listener_lock = listener_lock
        self._number = 0
        self._closed = False
        self._listener: Connection | None = None
        self._reset()

    def _reset(self) -> None:
        self._sender_id = message_id()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready = threading.Event()
        self._notify_requested = threading.Event()
        self._unsent = False
        self._listener_thread: threading.Thread | None = None
        self._notifier_thread: threading.Thread | None = None

    def announce(self, *, has_listeners: bool = True) -> None:
        """Wake the waiters of this process after a commit, and notify other processes.

        This never fails, since the commit is done.
        """
        self.count_change()
        if has_listeners:
            self._unsent = True
            self._notify_requested.set()
            if not _is_alive(self._notifier_thread):
                self._start_notifier()

    def _start_notifier(self) -> None:
        with self._lock:
            if not _is_alive(self._notifier_thread) and not self._closed:
                self._notifier_thread = _start_thread(self._send_notifications, "holdfast-speaker")

    def _send_notifications(self) -> None:
        """Send notifications, one for all commits since the last."""
        while True:
            self._notify_requested.wait()
            if not self._closed:
                time.sleep(
                    _NOTIFY_DELAY_S
                )  # More commits may come, and the connection is returned to the pool.
            self._notify_requested.clear()
            if self._unsent:
                self._unsent = False
                self._notify()
            if self._closed:
                return

    def _notify(self) -> None:
        with suppress(psycopg.Error, HoldfastError):
            connection = self._pool.acquire(_RECONNECT_PAUSE_S)
            try:
                connection.execute("announce", (self._channel, self._sender_id)).fetchall()
            except psycopg.Error:
                connection.close()
            finally:
                self._pool.release(connection)

    def count_change(self) -> None:
        """Count a change, and wake all waiters."""
        with self._lock:
            self._number += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the number of changes differs from `seen`; return the number."""
        self._ensure_listening()
        with self._lock:
            self._changed.wait_for(lambda: self._number != seen or self._closed, timeout)
            return self._number

    # ----------------------------------------------------------------------------- the thread

    def _ensure_listening(self) -> None:
        """Start the listener if it does not run, and wait until it listens or has failed to.

        A failure is not reported: callers also poll from time to time.
        """
        with self._lock:
            if not _is_alive(self._listener_thread) and not self._closed:
                self._ready.clear()
                self._listener_thread = _start_thread(self._serve, "holdfast-listener")
            running = self._listener_thread is not None
        if running:
            self._ready.wait(_MAX_POLL_S)

    def _serve(self) -> None:
        try:
            while not self._closed:
                try:
                    with closing(Connection(self._conninfo)) as listener:
                        self._listener = listener
                        self._listen_on(listener)
                except (psycopg.Error, OSError):
                    # Notifications were missed meanwhile.
                    self._ready.set()
                    self.count_change()
                    self._pause()
                finally:
                    self._listener = None
        finally:
            self._ready.set()

    def _listen_on(self, listener: Connection) -> None:
        """Listen until the store is closed or the connection is lost; only poll behind a pooler."""
        if not listener.pooled:
            listener.execute("hold_listener_lock", (self._listener_lock,)).fetchall()
            listener.execute_unprepared(f'LISTEN "{self._channel}"').fetchall()
        newest = self._newest(listener)
        self.count_change()  # There may have been writes before this listened.
        self._ready.set()
        interval_s = _FIRST_POLL_S
        while not self._closed:
            newest = self._wait_for_notification(listener, newest, interval_s)
            interval_s = min(2 * interval_s, _POOLED_POLL_S if listener.pooled else _MAX_POLL_S)

    def _wait_for_notification(
        self, listener: Connection, newest: object, interval_s: float
    ) -> object:
        """Wait for a notification of another process; at the end of the interval, poll."""
        payloads = listener.notifications(interval_s)
        if payloads:
            if any(payload != self._sender_id for payload in payloads):
                self.count_change()
            return newest
        now = self._newest(listener)
        if now != newest:
            self.count_change()
        return now

    def _pause(self) -> None:
        until = time.monotonic() + _RECONNECT_PAUSE_S
        while not self._closed and time.monotonic() < until:
            time.sleep(_RECONNECT_PAUSE_S / 10)

    def close(self) -> None:
        """Wake all waiters and stop the threads."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread, listener, notifier = (
                self._listener_thread,
                self._listener,
                self._notifier_thread,
            )
        self._notify_requested.set()
        if notifier is not None and notifier is not threading.current_thread():
            notifier.join(_MAX_POLL_S)
        if listener is not None:
            listener.interrupt()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_MAX_POLL_S)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: it has no threads, and the connection belongs to the parent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._reset()


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()


def _start_thread(work: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a thread; `None` if that fails, as when the interpreter is about to exit."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
