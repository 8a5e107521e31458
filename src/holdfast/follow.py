"""Followers: iterators over everything written later, once and in order, by any process.

A follower keeps the position up to which it has delivered, reads what comes after it, and sleeps
until something is written. When the session moves to another branch, a follower first delivers the
rest of its current branch, then a `BranchChanged` with the point where the new one starts. It ends
when its store is closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from holdfast import validation
from holdfast.context import StoreContext
from holdfast.errors import BadQuery, StoreUnavailable
from holdfast.operations import lineage, queries
from holdfast.values import Activity, BranchChanged, Head, Message

T = TypeVar("T")
_POLL_INTERVAL_S = 5.0
_PAGE_MESSAGES = 500


class BaseFollower(ABC, Generic[T]):
    """An iterator over what is written; it ends when the store is closed."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._buffer: list[T] = []

    @abstractmethod
    def _read(self) -> list[T]:
        """Read what is new, in order."""

    @abstractmethod
    def _advance(self, item: T) -> None:
        """Advance the position past a delivered item."""

    def poll(self) -> T | None:
        """Return the next item, or `None` if there is none; never waits."""
        if not self._buffer:
            self._buffer = self._read()[::-1]
        if not self._buffer:
            return None
        item = self._buffer.pop()
        self._advance(item)
        return item

    def __iter__(self) -> Iterator[T]:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Wait for the next item."""
        backend = self._context.backend
        while not backend.closed:
            # The change number is read before polling: a write in between changes it.
            seen = backend.wait(-1, 0)
            try:
                item = self.poll()
            except StoreUnavailable:
                if backend.closed:
                    break
                raise
            if item is not None:
                return item
            backend.wait(seen, _POLL_INTERVAL_S)
        raise StopIteration


class Follower(BaseFollower[Message | BranchChanged]):
    """Follows one session's history across branches; `head` is its position.

    It starts after the head `after`, or with the first message of the current history.
    """

    def __init__(self, context: StoreContext, session: int, after: Head | None) -> None:
        super().__init__(context)
        self.head = _check_after(after) or Head(
            context.backend.read(queries.head(session)).branch, 0
        )
        self._session = session

    def _read(self) -> list[Message | BranchChanged]:
        query = lineage.updates_after(
            self._session, self.head, _PAGE_MESSAGES, self._context.report
        )
        return self._context.backend.read(query)

    def _advance(self, item: Message | BranchChanged) -> None:
        if isinstance(item, BranchChanged):
            self.head = item.head
        elif item.seq is not None:
            self.head = Head(self.head.branch, item.seq)


def _check_after(after: Head | None) -> Head | None:
    if after is None:
        return None
    if not isinstance(after, Head):
        raise BadQuery("after: expected a Head, such as session.head() returns")
    branch = validation.check_number(after.branch, "after")
    return Head(branch, validation.check_number(after.seq, "after"))


class StoreFollower(BaseFollower[Activity]):
    """Follows which sessions are written to; `number` is the last activity it delivered."""

    def __init__(self, context: StoreContext, since: int) -> None:
        super().__init__(context)
        self.number = since

    def _read(self) -> list[Activity]:
        return self._context.backend.read(queries.activity(self.number))

    def _advance(self, item: Activity) -> None:
        self.number = item.number
