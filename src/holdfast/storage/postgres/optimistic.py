"""An optimistic transaction: it reads nothing and takes one round trip.

The head is updated first, by a compare-and-swap statement that fails unless the session's head is
the expected one. All other writes are sent behind it and rolled back with it. An operation that
needs to read more than the cached head gets `ReadNotAllowed`, and is run again in a transaction
that reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.storage.ancestry import Segment
from holdfast.storage.postgres import rows
from holdfast.storage.postgres.connection import Withheld
from holdfast.storage.postgres.head_cache import Standing
from holdfast.storage.postgres.rows import split_branch
from holdfast.storage.postgres.transaction import PostgresTransaction
from holdfast.storage.protocol import HeadRow, MessageRow

_MOST_PLACES: Final = 5_000


class SupposingTransaction(PostgresTransaction):
    """Writes to a session whose head is expected to be the cached one."""

    _end: tuple[int, tuple[MessageRow, ...]] = (0, ())  # a branch, its last messages

    def suppose(self, standing: Standing, ids: Sequence[str]) -> None:
        """Start from a cached head and its server time instead of reading them.

        Also expected, and checked by the server: neither the session nor those that it was forked
        from have messages with these ids.
        """
        self.supposed, head = standing, standing.head
        n = head.session
        self._began = standing.told
        time = self.now() if self._clock is None else None
        path = self._paths.get(head.branch) or ()
        sessions = dict.fromkeys((n, *(split_branch(segment.branch)[0] for segment in path)))
        absent = [(session, id) for session in sessions for id in ids]
        if len(absent) > _MOST_PLACES:
            raise Withheld
        marks = [rows.place_mark(*message) for message in absent]
        expected = (head.branch_no, head.seq, head.updated_at, head.activity)
        self._said = (*expected, marks, self._whose.known, time)
        self._behind: list[tuple[str, tuple[object, ...]]] | None = []
        self._found[n] = self._heads[n] = head
        self._own.add(n)
        self._looked.update((message, []) for message in absent)
        self._end = head.branch, standing.tail

    def _write(self, name: str, *values: object) -> None:
        if self._behind is None:
            super()._write(name, *values)
        else:
            self._behind.append((name, values))

    def _put_head(self, name: str, row: HeadRow) -> None:
        if self._behind is None:
            super()._put_head(name, row)
            return
        deferred, self._behind = self._behind, None
        self._steps += 1
        self.writes += 1
        values = (*rows.head_values(row), self._whose.activity_lock, *self._said)
        self._note_left(row, self._ask("cas_head", row.session, *values))
        for statement, given in deferred:
            self._write(statement, *given)

    def finish(self) -> None:
        """Raise `ReadNotAllowed` unless the head was written: only that checks what is expected."""
        if self._behind is not None:
            raise Withheld

    def _at_the_end(self, span: Segment) -> list[MessageRow]:
        """Return a range if the cached tail holds it."""
        branch, tail = self._end
        if branch == span.branch and tail and tail[0].seq <= span.first:
            return [row for row in tail if span.first <= row.seq <= (span.last or 0)]
        return []

    def add_messages(self, branch: int, rows_: Sequence[MessageRow]) -> None:
        """Insert messages at their positions, and note them to resolve a lost commit by."""
        super().add_messages(branch, rows_)
        self._end = (0, ())
        self.trace = branch, rows_
