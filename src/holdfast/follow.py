"""Followers: iterators over everything written later, once and in order, by any process.

A follower keeps the position up to which it has delivered, reads what comes after it, and sleeps
until something is written. When the session moves to another branch, a follower first delivers the
rest of its current branch, then a `BranchChanged` with the point where the new one starts. It ends
when its store is closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from msgspec.structs import astuple

from holdfast import validation
from holdfast.context import StoreContext
from holdfast.errors import BadQuery, StoreUnavailable
from holdfast.operations import queries
from holdfast.operations.delivery import Delivered, deliveries_after
from holdfast.values import Activity, Head

T = TypeVar("T")
_POLL_INTERVAL_S = 5.0
_PAGE_MESSAGES = 500
_MAX_DIGITS = 18


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


class Follower(BaseFollower[T]):
    """Follows one session's history across branches, with its records if asked to.

    It starts after the head or cursor `after`, or with the first message of the current history.
    """

    def __init__(
        self, context: StoreContext, session: int, after: Head | str | None, *, records: bool
    ) -> None:
        super().__init__(context)
        validation.check_flag(records, "records", optional=False)
        self._delivered = _check_after(after) or Delivered(
            Head(context.backend.read(queries.head(session)).branch, 0)
        )
        self._session = session
        self._records = records
        self._ahead: list[Delivered] = []  # of each item in the buffer

    @property
    def head(self) -> Head:
        """The message up to which it has delivered."""
        return self._delivered.head

    @property
    def cursor(self) -> str:
        """The position up to which it has delivered, records included, as text for `after`."""
        return ".".join(map(str, (*astuple(self.head), *(self._delivered.record or ()))))

    def _read(self) -> list[T]:
        query = deliveries_after(
            self._session,
            self._delivered,
            _PAGE_MESSAGES,
            self._context.report,
            records=self._records,
        )
        found = self._context.backend.read(query)
        self._ahead = [delivered for _, delivered in reversed(found)]
        # There is a record among them only if the caller follows records.
        return cast("list[T]", [item for item, _ in found])

    def _advance(self, item: T) -> None:  # noqa: ARG002 - its position was read with it
        self._delivered = self._ahead.pop()


def _check_after(after: Head | str | None) -> Delivered | None:
    if after is None:
        return None
    if isinstance(after, Head):
        branch = validation.check_number(after.branch, "after")
        return Delivered(Head(branch, validation.check_number(after.seq, "after")))
    parts = after.split(".") if isinstance(after, str) else []
    numbers = [int(part) for part in parts if part.isdecimal() and len(part) <= _MAX_DIGITS]
    if len(numbers) == len(parts) and len(parts) in {2, 4}:
        branch, seq, *record = numbers
        return Delivered(Head(branch, seq), (record[0], record[1]) if record else None)
    raise BadQuery(
        "after: expected a Head, such as session.head() returns, or a cursor of a follower"
    )


class StoreFollower(BaseFollower[Activity]):
    """Follows which sessions are written to; `number` is the last activity it delivered."""

    def __init__(self, context: StoreContext, since: int) -> None:
        super().__init__(context)
        self.number = since

    def _read(self) -> list[Activity]:
        return self._context.backend.read(queries.activity(self.number))

    def _advance(self, item: Activity) -> None:
        self.number = item.number
