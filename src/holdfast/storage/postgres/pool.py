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
from holdfast.storage.postgres.connection import Link

_A_MOMENT: Final = 0.05


class Loan:
    """A connection's share of the pool, while it is lent."""


class Place:
    """A thread that waits for a connection; it holds none meanwhile."""

    def __init__(self) -> None:
        self._called = threading.Lock()
        self._called.acquire()

    def wait(self, seconds: float) -> None:
        """Wait to be woken, at most this long."""
        self._called.acquire(timeout=seconds)

    def call(self) -> None:
        """Wake the thread: a slot may be free."""
        with suppress(RuntimeError):  # It was woken already.
            self._called.release()


class Pool:
    """Lends connections."""

    def __init__(self, connect: Callable[[], Link], size: int) -> None:
        """Open connections with `connect`, at most `size`."""
        self._connect = connect
        self._size = size
        self._idle: list[Link] = []
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._line: deque[weakref.ref[Place]] = deque()
        self._loans: weakref.WeakSet[object] = weakref.WeakSet()

    def begin_anew(self) -> None:
        """Start empty in a forked child: the inherited connections belong to the parent."""
        self._begin()
        self.clear()

    def take(self, timeout_s: float) -> Link:
        """Lend a connection; wait for one at most this long, behind earlier callers."""
        slot = Loan()
        waiter: Place | None = None
        until = time.monotonic() + timeout_s
        try:
            while not self._enter(slot, waiter):
                if waiter is None:
                    waiter = self._queue_up()
                    continue
                if time.monotonic() >= until:
                    raise StoreUnavailable(
                        f"all {self._size} connections to the database were in use for "
                        f"{timeout_s:g} s; nothing was stored. Open the store with a larger pool=…"
                    )
                # Poll, since a slot that is dropped wakes no waiter.
                waiter.wait(min(_A_MOMENT, max(0.0, until - time.monotonic())))
        finally:
            if waiter is not None:
                self._leave(waiter)
        try:
            connection = self._idle_one() or self._connect()
        except BaseException:
            self._end(slot)
            raise
        connection.loan = slot
        return connection

    def _enter(self, slot: Loan, waiter: Place | None) -> bool:
        """Reserve a slot if one is free and no other waiter comes first."""
        with self._guard:
            if self._closed:
                raise StoreUnavailable("the store is closed; open it again.")
            free = len(self._loans) < self._size and self._first() is waiter
            if free:
                self._loans.add(slot)
            return free

    def _first(self) -> Place | None:
        """Return the waiter that came first; those that were dropped are removed."""
        while self._line:
            waiter = self._line[0]()
            if waiter is not None:
                return waiter
            self._line.popleft()
        return None

    def _queue_up(self) -> Place:
        waiter = Place()
        with self._guard:
            self._line.append(weakref.ref(waiter))
        return waiter

    def _leave(self, waiter: Place) -> None:
        with self._guard:
            if (mine := weakref.ref(waiter)) in self._line:
                self._line.remove(mine)
            self._call_the_next()

    def _call_the_next(self) -> None:
        waiter = self._first()
        if waiter is not None:
            waiter.call()

    def _idle_one(self) -> Link | None:
        with self._guard:
            return self._idle.pop() if self._idle else None

    def give_back(self, connection: Link) -> None:
        """Return a connection; one with an open transaction is closed."""
        if connection.pid != os.getpid():  # Lent before a fork, and returned by the child.
            connection.close()
            return
        slot, connection.loan = connection.loan, None
        with self._guard:
            keep = connection.idle and not self._closed
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        self._end(slot)

    def _end(self, slot: object) -> None:
        with self._guard:
            self._loans.discard(slot)
            self._call_the_next()

    def clear(self) -> None:
        """Close idle connections: their server is gone."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close idle connections; those that are lent are closed when they are returned."""
        with self._guard:
            self._closed = True
            for reference in self._line:
                waiter = reference()
                if waiter is not None:
                    waiter.call()
        self.clear()
