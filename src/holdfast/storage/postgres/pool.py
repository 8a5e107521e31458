"""A pool of connections. Each is lent to one thread at a time.

Connections are opened on demand, by the thread that needs one, up to the pool's size; further
threads wait in order. The pool has no thread of its own, so a forked child just starts empty.

A lent connection carries its slot, and a waiting thread is known by its waiter. The pool refers to
both weakly: if either is dropped by Ctrl-C before it could be returned, it is freed all the same.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres.connection import Connection

_WAKEUP_INTERVAL_S: Final = 0.05


class PoolSlot:
    """A connection's share of the pool, while it is lent."""


class PoolWaiter:
    """A thread that waits for a connection; it holds none meanwhile."""

    def __init__(self) -> None:
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def wait(self, seconds: float) -> None:
        """Wait to be woken, at most this long."""
        self._wakeup.acquire(timeout=seconds)

    def wake(self) -> None:
        """Wake the thread: a slot may be free."""
        with suppress(RuntimeError):  # It was woken already.
            self._wakeup.release()


class Pool:
    """Lends connections."""

    def __init__(self, connect: Callable[[], Connection], size: int) -> None:
        """Open connections with `connect`, at most `size`."""
        self._connect = connect
        self._size = size
        self._idle: list[Connection] = []
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiters: deque[weakref.ref[PoolWaiter]] = deque()
        self._slots: weakref.WeakSet[object] = weakref.WeakSet()

    def reset_after_fork(self) -> None:
        """Start empty in a forked child: the inherited connections belong to the parent."""
        self._reset()
        self.clear()

    def acquire(self, timeout_s: float) -> Connection:
        """Lend a connection; wait for one at most this long, after earlier callers."""
        slot = PoolSlot()
        waiter: PoolWaiter | None = None
        until = time.monotonic() + timeout_s
        try:
            while not self._try_reserve(slot, waiter):
                if waiter is None:
                    waiter = self._add_waiter()
                    continue
                if time.monotonic() >= until:
                    raise StoreUnavailable(
                        f"all {self._size} connections to the database were in use for "
                        f"{timeout_s:g} s; nothing was stored. Open the store with a larger pool=…"
                    )
                # Poll, since a slot that is dropped wakes no waiter.
                waiter.wait(min(_WAKEUP_INTERVAL_S, max(0.0, until - time.monotonic())))
        finally:
            if waiter is not None:
                self._remove_waiter(waiter)
        try:
            connection = self._pop_idle() or self._connect()
        except BaseException:
            self._free_slot(slot)
            raise
        connection.slot = slot
        return connection

    def _try_reserve(self, slot: PoolSlot, waiter: PoolWaiter | None) -> bool:
        """Reserve a slot if one is free and no other waiter comes first."""
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed; open it again.")
            free = len(self._slots) < self._size and self._next_waiter() is waiter
            if free:
                self._slots.add(slot)
            return free

    def _next_waiter(self) -> PoolWaiter | None:
        """Return the waiter that came first; those that were dropped are removed."""
        while self._waiters:
            waiter = self._waiters[0]()
            if waiter is not None:
                return waiter
            self._waiters.popleft()
        return None

    def _add_waiter(self) -> PoolWaiter:
        waiter = PoolWaiter()
        with self._lock:
            self._waiters.append(weakref.ref(waiter))
        return waiter

    def _remove_waiter(self, waiter: PoolWaiter) -> None:
        with self._lock:
            if (mine := weakref.ref(waiter)) in self._waiters:
                self._waiters.remove(mine)
            self._wake_next()

    def _wake_next(self) -> None:
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.wake()

    def _pop_idle(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def release(self, connection: Connection) -> None:
        """Return a connection; one with an open transaction is closed."""
        if connection.pid != os.getpid():  # Lent before a fork, and returned by the child.
            connection.close()
            return
        slot, connection.slot = connection.slot, None
        with self._lock:
            keep = connection.idle and not self._closed
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        self._free_slot(slot)

    def _free_slot(self, slot: object) -> None:
        with self._lock:
            self._slots.discard(slot)
            self._wake_next()

    def clear(self) -> None:
        """Close idle connections: their server is gone."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close idle connections; those that are lent are closed when they are returned."""
        with self._lock:
            self._closed = True
            for reference in self._waiters:
                waiter = reference()
                if waiter is not None:
                    waiter.wake()
        self.clear()
