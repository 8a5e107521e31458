"""Following: everything written later, once, in order, as others write it.

A follower knows how far it has delivered, reads what lies behind that, and sleeps until something
was written. When the session goes to another branch, a follower first delivers the rest of the one
it is on, then says where the next one left it. It ends when its store is closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from holdfast import checks
from holdfast.errors import BadQuery, StoreUnavailable
from holdfast.records import Activity, BranchChanged, Head, Message
from holdfast.runtime import Runtime
from holdfast.verbs import browsing, reading

T = TypeVar("T")
_LOOK_AGAIN = 5.0
_PAGE = 500


class Following(ABC, Generic[T]):
    """An endless iterator over what is written."""

    def __init__(self, runtime: Runtime) -> None:
        """Follow this store."""
        self._runtime = runtime
        self._ready: list[T] = []

    @abstractmethod
    def _read(self) -> list[T]:
        """Read what is new, in order."""

    @abstractmethod
    def _passed(self, item: T) -> None:
        """Note that an item is delivered."""

    def poll(self) -> T | None:
        """Return the next item if there is one; never waits."""
        if not self._ready:
            self._ready = self._read()[::-1]
        if not self._ready:
            return None
        item = self._ready.pop()
        self._passed(item)
        return item

    def __iter__(self) -> Iterator[T]:
        """Follow."""
        return self

    def __next__(self) -> T:
        """Wait for the next item."""
        backend = self._runtime.backend
        while not backend.closed:
            # The number is taken before looking: what is written meanwhile changes it.
            seen = backend.wait(-1, 0)
            try:
                item = self.poll()
            except StoreUnavailable:
                if backend.closed:
                    break
                raise
            if item is not None:
                return item
            backend.wait(seen, _LOOK_AGAIN)
        raise StopIteration


class Follower(Following[Message | BranchChanged]):
    """Follows one session's history from branch to branch; `head` is how far it has come."""

    def __init__(self, runtime: Runtime, session: int, after: Head | None) -> None:
        """Start behind `after`, or at the beginning of the current history."""
        super().__init__(runtime)
        self.head = _checked(after) or Head(runtime.backend.read(reading.head(session)).branch, 0)
        self._session = session

    def _read(self) -> list[Message | BranchChanged]:
        query = browsing.news(self._session, self.head, _PAGE, self._runtime.report)
        return self._runtime.backend.read(query)

    def _passed(self, item: Message | BranchChanged) -> None:
        if isinstance(item, BranchChanged):
            self.head = item.head
        elif item.seq is not None:
            self.head = Head(self.head.branch, item.seq)


def _checked(after: Head | None) -> Head | None:
    if after is None:
        return None
    if not isinstance(after, Head):
        raise BadQuery("after: expected a head, as session.head() gives it")
    branch = checks.check_number(after.branch, "after")
    return Head(branch, checks.check_number(after.seq, "after"))


class StoreFollower(Following[Activity]):
    """Follows which sessions are written to; `number` is how far it has come."""

    def __init__(self, runtime: Runtime, since: int) -> None:
        """Start behind the activity with this number."""
        super().__init__(runtime)
        self.number = since

    def _read(self) -> list[Activity]:
        return self._runtime.backend.read(reading.activity(self.number))

    def _passed(self, item: Activity) -> None:
        self.number = item.number
