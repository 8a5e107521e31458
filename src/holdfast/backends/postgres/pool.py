"""Links that wait to be used again. Each is lent to one thread at a time.

Links are made as they are needed, by whoever needs one, up to a number; whoever comes then waits in
line for one to come back. There is no thread behind it, so a forked child simply begins with none.

What is lent is known by its loan, which goes with the link, and who waits by its place in the line.
What is dropped, as by Ctrl-C in a moment when nobody could give it back, takes these along.
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

from holdfast.backends.postgres.link import Link
from holdfast.errors import StoreUnavailable

_A_MOMENT: Final = 0.05


class Loan:
    """Stands for a link that is lent."""


class Place:
    """A place in the line of those who wait; nobody holds anything while it waits there."""

    def __init__(self) -> None:
        """Stand there."""
        self._called = threading.Lock()
        self._called.acquire()

    def wait(self, seconds: float) -> None:
        """Wait to be called, so long at most."""
        self._called.acquire(timeout=seconds)

    def call(self) -> None:
        """Say that it may be its turn."""
        with suppress(RuntimeError):  # It was called already.
            self._called.release()


class Pool:
    """Lends links."""

    def __init__(self, connect: Callable[[], Link], size: int) -> None:
        """Make links with `connect`, at most so many."""
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
        """Begin with nothing, as a forked child does: what it inherited is its parent's."""
        self._begin()
        self.clear()

    def take(self, patience: float) -> Link:
        """Lend a link; wait so long for one, behind whoever came before."""
        loan = Loan()
        place: Place | None = None
        until = time.monotonic() + patience
        try:
            while not self._enter(loan, place):
                if place is None:
                    place = self._queue_up()
                    continue
                if time.monotonic() >= until:
                    raise StoreUnavailable(
                        f"all {self._size} connections to the database were in use for "
                        f"{patience:g} s; nothing was stored. Open the store with a larger pool=…"
                    )
                # Not for longer: what is dropped tells nobody.
                place.wait(min(_A_MOMENT, max(0.0, until - time.monotonic())))
        finally:
            if place is not None:
                self._leave(place)
        try:
            link = self._idle_one() or self._connect()
        except BaseException:
            self._end(loan)
            raise
        link.loan = loan
        return link

    def _enter(self, loan: Loan, place: Place | None) -> bool:
        """Note a loan if there is room for one and nobody is to be served before."""
        with self._guard:
            if self._closed:
                raise StoreUnavailable("the store is closed; open it again.")
            free = len(self._loans) < self._size and self._first() is place
            if free:
                self._loans.add(loan)
            return free

    def _first(self) -> Place | None:
        """Return whose turn it is; who was dropped where it stood is passed over."""
        while self._line:
            place = self._line[0]()
            if place is not None:
                return place
            self._line.popleft()
        return None

    def _queue_up(self) -> Place:
        place = Place()
        with self._guard:
            self._line.append(weakref.ref(place))
        return place

    def _leave(self, place: Place) -> None:
        with self._guard:
            if (mine := weakref.ref(place)) in self._line:
                self._line.remove(mine)
            self._call_the_next()

    def _call_the_next(self) -> None:
        place = self._first()
        if place is not None:
            place.call()

    def _idle_one(self) -> Link | None:
        with self._guard:
            return self._idle.pop() if self._idle else None

    def give_back(self, link: Link) -> None:
        """Take a link back; one that is in the middle of something is closed."""
        if link.pid != os.getpid():  # Lent before a fork, and given back by the child.
            link.close()
            return
        loan, link.loan = link.loan, None
        with self._guard:
            keep = link.idle and not self._closed
            if keep:
                self._idle.append(link)
        if not keep:
            link.close()
        self._end(loan)

    def _end(self, loan: object) -> None:
        with self._guard:
            self._loans.discard(loan)
            self._call_the_next()

    def clear(self) -> None:
        """Close what is idle: the server went away, and these are of before."""
        with self._guard:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def close(self) -> None:
        """Close what is idle; what is lent closes when it comes back."""
        with self._guard:
            self._closed = True
            for waiting in self._line:
                place = waiting()
                if place is not None:
                    place.call()
        self.clear()
