"""An optimistic transaction: it reads nothing and takes one round trip.

The head is updated first, by a compare-and-swap statement that fails unless the session's head is
the expected one. All other writes are sent after it and rolled back with it. An operation that
needs to read more than the cached head gets `ReadNotAllowed`, and is run again in a transaction
that reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.storage.ancestry import Segment
from holdfast.storage.postgres import conversion
from holdfast.storage.postgres.connection import ReadNotAllowed
from holdfast.storage.postgres.conversion import split_branch
from holdfast.storage.postgres.head_cache import CachedHead
from holdfast.storage.postgres.tables import HEADS
from holdfast.storage.postgres.transaction import PostgresTransaction
from holdfast.storage.rows import BlobUse, HeadRow, MessageRow, RecordRow

_MAX_MARKS: Final = 5_000


class OptimisticTransaction(PostgresTransaction):
    """Writes to a session whose head is expected to be the cached one."""

    _cached_tail: tuple[int, tuple[MessageRow, ...]] = (0, ())  # a branch, its last messages

    def assume_head(
        self, cached: CachedHead, ids: Sequence[str], records: Sequence[str] = ()
    ) -> None:
        """Start from a cached head and its server time instead of reading them.

        Also expected, and checked by the server: neither the session nor those that it was forked
        from have messages with these ids, or records with these; one that gets records is not in
        the trash.
        """
        self.assumed_head, head = cached, cached.head
        n = head.session
        self._server_time = cached.server_time
        time = self.now() if self._clock is None else None
        path = self._paths.get(head.branch) or ()
        sessions = dict.fromkeys((n, *(split_branch(segment.branch)[0] for segment in path)))
        absent = [(session, id) for session in sessions for id in ids]
        new_records = [(session, id) for session in sessions for id in records]
        if len(absent) + len(new_records) > _MAX_MARKS:
            raise ReadNotAllowed
        expected = (head.branch_no, head.seq, head.updated_at, head.activity)
        marks = conversion.entry_marks(absent)
        values: tuple[object, ...] = (*expected, *marks, self._tenant_info.known_format, time)
        self._compare = ("cas_head", values)
        if records:
            marks = conversion.entry_marks(new_records)
            self._compare = ("cas_head_and_records", (*values, *marks))
        self._deferred: list[tuple[str, tuple[object, ...]]] | None = []
        self._heads_before[n] = self._heads[n] = head
        self._locked_sessions.add(n)
        self._messages_by_id.expect_absent(absent)
        self._records_by_id.expect_absent(new_records)
        self._cached_tail = head.branch, cached.tail

    def is_trashed(self, n: int) -> bool:
        """Return false where the server compares it."""
        return self._compare[0] != "cas_head_and_records" and super().is_trashed(n)

    def _write(self, name: str, *values: object) -> None:
        if self._deferred is None:
            super()._write(name, *values)
        else:
            self._deferred.append((name, values))

    def put_head(self, row: HeadRow) -> None:
        """Replace the head: the first time by comparing, ahead of all other writes."""
        if self._deferred is None:
            super().put_head(row)
            return
        deferred, self._deferred = self._deferred, None
        self.writes += 1
        compare, expected = self._compare
        values = (*HEADS.values(row), self._tenant_info.activity_lock, *expected)
        self._note_head_after(row, self._execute(compare, *values))
        for statement, given in deferred:
            self._write(statement, *given)

    def require_head_write(self) -> None:
        """Raise `ReadNotAllowed` unless the head was written: only that checks what is expected."""
        if self._deferred is not None:
            raise ReadNotAllowed

    def _range_from_tail(self, span: Segment) -> list[MessageRow]:
        """Return a range if the cached tail holds it."""
        branch, tail = self._cached_tail
        if branch == span.branch and tail and tail[0].seq <= span.first:
            return [row for row in tail if span.first <= row.seq <= (span.last or 0)]
        return []

    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert messages and blobs, and note the messages to resolve a lost commit by."""
        super().add_messages(branch, rows, blobs)
        self._cached_tail = (0, ())
        self.inserted = branch, rows

    def add_records(
        self, branch: int, rows: Sequence[RecordRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert records and blobs; without messages, a lost commit is resolved by them."""
        super().add_records(branch, rows, blobs)
        self.inserted = self.inserted or (branch, rows)
