"""Noticing that something was written, by this process or another.

Writes of this process wake waiters at once. Those of others are announced by `NOTIFY`, for which a
thread listens from the first time somebody waits. An announcement is a hint: another thread sends
it behind the commit, one for all commits of a moment, because a commit that announces makes all
others wait for its sync. Mostly nobody listens, and then none is sent: who listens holds a lock, by
which writers know. A write that began before that is not announced, and an announcement may be lost
with its sender, so who listens also looks by itself, soon at first and then from time to time. What
was written is read from the log, which has no gaps.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg

from holdfast.backends.postgres.link import Listener
from holdfast.backends.postgres.pool import Pool
from holdfast.backends.postgres.statements import SQL
from holdfast.errors import HoldfastError
from holdfast.ids import message_id

_LOOK_FIRST: Final = 0.1
_LOOK_AGAIN: Final = 2.0
_PAUSE: Final = 0.5
_BREATH: Final = 0.003


class Watcher:
    """Counts changes as they are noticed."""

    def __init__(
        self,
        pool: Pool,
        connect: Callable[[], Listener],
        newest: Callable[[Listener], Any],
        channel: str,
        ear: int,
    ) -> None:
        """Listen on this channel, holding this lock; `newest` gives what every write changes."""
        self._pool = pool
        self._connect = connect
        self._newest = newest
        self._channel = channel
        self._ear = ear
        self._number = 0
        self._closed = False
        self._listener: Listener | None = None
        self._begin()

    def _begin(self) -> None:
        self._me = message_id()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready = threading.Event()
        self._news = threading.Event()
        self._unsaid = False
        self._thread: threading.Thread | None = None
        self._speaker: threading.Thread | None = None

    def announce(self, *, heard: bool = True) -> None:
        """Say that this process has committed: to those who wait here, and to all who hear it.

        What was committed stays so: this never fails.
        """
        self.note()
        if heard:
            self._unsaid = True
            self._news.set()
            if not _lives(self._speaker):
                self._start_to_speak()

    def _start_to_speak(self) -> None:
        with self._lock:
            if not _lives(self._speaker) and not self._closed:
                self._speaker = _started(self._speak, "holdfast-speaker")

    def _speak(self) -> None:
        """Announce what was committed, once for all that was meanwhile."""
        while True:
            self._news.wait()
            if not self._closed:
                time.sleep(_BREATH)  # Others may commit meanwhile, and the link comes back.
            self._news.clear()
            if self._unsaid:
                self._unsaid = False
                self._say()
            if self._closed:
                return

    def _say(self) -> None:
        with suppress(psycopg.Error, HoldfastError):
            link = self._pool.take(_PAUSE)
            try:
                link.ask("announce", (self._channel, self._me)).fetchall()
            except psycopg.Error:
                link.close()
            finally:
                self._pool.give_back(link)

    def note(self) -> None:
        """Say that something was written."""
        with self._lock:
            self._number += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the number of changes is not `seen`; give the number."""
        self._listen()
        with self._lock:
            self._changed.wait_for(lambda: self._number != seen or self._closed, timeout)
            return self._number

    # ----------------------------------------------------------------------------- the thread

    def _listen(self) -> None:
        """See that somebody listens, if that can be; what is written from now on is heard.

        Whoever waits looks by itself from time to time, so it need not be heard that nobody can.
        """
        with self._lock:
            if not _lives(self._thread) and not self._closed:
                self._ready.clear()
                self._thread = _started(self._serve, "holdfast-listener")
            begun = self._thread is not None
        if begun:
            self._ready.wait(_LOOK_AGAIN)

    def _serve(self) -> None:
        try:
            while not self._closed:
                try:
                    with self._connect() as listener:
                        self._listener = listener
                        self._attend(listener)
                except (psycopg.Error, OSError):
                    # Whatever was announced meanwhile was not heard.
                    self._ready.set()
                    self.note()
                    self._pause()
                finally:
                    self._listener = None
        finally:
            self._ready.set()

    def _attend(self, listener: Listener) -> None:
        """Listen until the store is closed or the connection is lost."""
        listener.execute(SQL["hold_listener_lock"], (self._ear,))
        listener.execute(f'LISTEN "{self._channel}"')
        newest = self._newest(listener)
        self.note()  # Whatever was written while nobody listened.
        self._ready.set()
        patience = _LOOK_FIRST
        while not self._closed:
            newest = self._hear(listener, newest, patience)
            patience = min(2 * patience, _LOOK_AGAIN)

    def _hear(self, listener: Listener, newest: object, patience: float) -> object:
        """Wait for an announcement of others, or until it is time to look."""
        for notice in listener.notifies(timeout=patience, stop_after=1):
            if notice.payload != self._me:
                self.note()
            return newest
        now = self._newest(listener)
        if now != newest:
            self.note()
        return now

    def _pause(self) -> None:
        until = time.monotonic() + _PAUSE
        while not self._closed and time.monotonic() < until:
            time.sleep(_PAUSE / 10)

    def close(self) -> None:
        """Wake everybody and stop."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread, listener, speaker = self._thread, self._listener, self._speaker
        self._news.set()
        if speaker is not None and speaker is not threading.current_thread():
            speaker.join(_LOOK_AGAIN)
        if listener is not None:
            with suppress(OSError, psycopg.Error), _socket_of(listener) as line:
                line.shutdown(socket.SHUT_RDWR)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LOOK_AGAIN)

    def begin_anew(self) -> None:
        """After a fork, in the child: the thread is not here, and what it used is the parent's."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.disown()
        self._begin()


def _socket_of(listener: Listener) -> socket.socket:
    """Return the socket of a connection, to end it from another thread."""
    return socket.socket(fileno=os.dup(listener.fileno()))


def _lives(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()


def _started(work: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a thread; none if there is no room for one, or the interpreter is about to end."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
