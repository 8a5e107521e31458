"""Links that wait to be used again. Each is lent to one thread at a time.

Links are made as they are needed, by whoever needs one, up to a number; whoever comes then waits
for one to come back. There is no thread behind it, so a forked child simply begins with none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from holdfast.backends.postgres.link import Link
from holdfast.errors import StoreUnavailable


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
        self._returned = threading.Condition(self._guard)
        self._lent = 0

    def begin_anew(self) -> None:
        """Begin with nothing, as a forked child does: what it inherited is its parent's."""
        self._begin()
        self.clear()

    def take(self, patience: float) -> Link:
        """Lend a link; wait so long for one."""
        until = time.monotonic() + patience
        with self._guard:
            while not self._closed and self._lent >= self._size:
                if not self._returned.wait(max(0.0, until - time.monotonic())):
                    raise StoreUnavailable(
                        f"all {self._size} connections to the database were in use for "
                        f"{patience:g} s; nothing was stored. Open the store with a larger pool=…"
                    )
            if self._closed:
                raise StoreUnavailable("the store is closed; open it again.")
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except BaseException:
            self._note_return()
            raise

    def give_back(self, link: Link) -> None:
        """Take a link back; one that is in the middle of something is closed."""
        if link.pid != os.getpid():  # Lent before a fork, and given back by the child.
            link.close()
            return
        with self._guard:
            keep = link.idle and not self._closed
            if keep:
                self._idle.append(link)
        if not keep:
            link.close()
        self._note_return()

    def _note_return(self) -> None:
        with self._guard:
            self._lent -= 1
            self._returned.notify()

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
            self._returned.notify_all()
        self.clear()
