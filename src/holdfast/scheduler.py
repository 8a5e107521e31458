"""The background scheduler of a store: it renews leases and flushes drafts while turns are open.

There is one thread per store, started when it is first needed. It holds weak references to its
tasks, so a leaked turn is not renewed and its lease expires.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
import weakref
from typing import Protocol

_log = logging.getLogger("holdfast")
_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()


class ScheduledTask(Protocol):
    """Work that the scheduler runs in the background."""

    def tick(self) -> float | None:
        """Do the work; return the seconds until the next run, or `None` to stop."""
        ...

    def on_close(self) -> None:
        """Do what must be done before the store is closed."""
        ...


class Scheduler:
    """Runs tasks when they are due, in one background thread."""

    def __init__(self) -> None:
        self.reset_after_fork()
        _schedulers.add(self)

    def reset_after_fork(self) -> None:
        """Drop all tasks and the thread; a forked child calls this."""
        self._queue: list[tuple[float, int, weakref.ref[ScheduledTask]]] = []
        # A signal handler cannot interrupt taking or releasing a plain lock.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, task: ScheduledTask, seconds: float) -> None:
        """Run `task.tick` in `seconds` seconds."""
        with self._lock:
            if self._closed:
                return
            when = time.monotonic() + seconds
            heapq.heappush(self._queue, (when, next(self._count), weakref.ref(task)))
            if self._thread is None:
                self._thread = self._start_thread()
            elif self._queue[0][0] == when:
                self._changed.notify()

    def _start_thread(self) -> threading.Thread | None:
        """Start the thread; `None` if the system allows no more, then the next task retries."""
        thread = threading.Thread(target=self._run, name="holdfast-scheduler", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("background work is delayed: no thread can be started (%s)", error)
            return None
        return thread

    def close(self) -> None:
        """Stop the thread and run `on_close` of all scheduled tasks."""
        with self._lock:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        due, self._queue = self._queue, []
        for _, _, reference in due:
            task = reference()
            if task is not None:
                task.on_close()

    def _run(self) -> None:
        while True:
            reference = self._next_due()
            if reference is None:
                return
            task = reference()
            if task is None:
                continue
            again = _run_task(task)
            if again is not None:
                self.schedule(task, again)
            # The loop's own reference must not keep a leaked turn alive until the next one.
            del task

    def _next_due(self) -> weakref.ref[ScheduledTask] | None:
        with self._lock:
            while not self._closed:
                remaining = self._queue[0][0] - time.monotonic() if self._queue else None
                if remaining is not None and remaining <= 0:
                    return heapq.heappop(self._queue)[2]
                self._changed.wait(remaining)
            return None


def _run_task(task: ScheduledTask) -> float | None:
    try:
        return task.tick()
    except Exception:  # noqa: BLE001 - see below
        # A task keeps its own errors for its owner; one that escapes must not stop the others.
        _log.exception("background work failed")
        return None


def _after_fork() -> None:
    for scheduler in list(_schedulers):
        scheduler.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
