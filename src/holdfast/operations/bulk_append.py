"""Appending to many sessions in one transaction; those that do not exist are created.

It is what `append` does for each of them, with its checks before the first write: each id once, and
a stored id with another body is refused, then nothing of the transaction is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.codec import EncodedMessage, EncodedRecord
from holdfast.operations.append import drop_stored, find_head, insert_messages, new_messages
from holdfast.operations.records import NewRecords, first_records, new_records
from holdfast.storage.prefetch import Prefetched
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchStart, HeadRow, SessionRow


class SessionBatch(msgspec.Struct):
    """Messages and records for the session that has the key of a row; the row is for a new one."""

    row: SessionRow
    messages: list[EncodedMessage]
    records: list[EncodedRecord]


class AppendCounts(msgspec.Struct):
    """How many sessions were created, and how many entries were stored, or were there already."""

    sessions: int = 0
    messages: int = 0
    records: int = 0
    skipped: int = 0


class _Addition(msgspec.Struct):
    """What is new of a batch, and the head that it goes after; a new session has none."""

    batch: SessionBatch
    head: HeadRow | None
    messages: list[EncodedMessage]
    records: NewRecords


class _Attempts(msgspec.Struct):
    """What the runs of an operation stored: one that seemed to fail may have been committed.

    These are the ids of new sessions, and the keys and ids of entries.
    """

    sessions: set[str]
    entries: set[tuple[str | None, str]]

    def add(self, new: _Addition) -> None:
        """Note what is new."""
        row = new.batch.row
        if new.head is None:
            self.sessions.add(row.id)
        self.entries.update((row.key, item.id) for item in new.messages)
        records = (*new.records.own, *new.records.shared)
        self.entries.update((row.key, item.id) for item in records)

    def count(self, found: AppendCounts, batch: SessionBatch) -> None:
        """Count a batch; what an earlier run stored counts as stored by this one."""
        key, ids = batch.row.key, {item.id for item in batch.messages}
        messages = sum((key, id) in self.entries for id in ids)
        records = sum((key, id) in self.entries for id in {item.id for item in batch.records})
        found.sessions += batch.row.id in self.sessions
        found.messages += messages
        found.records += records
        found.skipped += len(batch.messages) + len(batch.records) - messages - records

    def forget(self) -> None:
        """Forget them: they were rolled back."""
        self.sessions.clear()
        self.entries.clear()


def bulk_append(batches: Sequence[SessionBatch]) -> Operation[AppendCounts]:
    """Append to sessions by their keys, each of which is given once."""
    attempts = _Attempts(set(), set())

    def run(tx: Transaction) -> AppendCounts:
        known = tx.sessions_by_key({batch.row.key for batch in batches if batch.row.key})
        heads = tx.heads(row.n for row in known.values())
        additions = []
        for batch in batches:
            row = known.get(batch.row.key or "")
            additions.append(_addition(tx, batch, None if row is None else heads.get(row.n)))
        found = AppendCounts()
        for new in additions:
            _store(tx, new)
            attempts.add(new)
            attempts.count(found, new.batch)
        return found

    return Prefetched(run, forget=attempts.forget)


def _addition(tx: Transaction, batch: SessionBatch, head: HeadRow | None) -> _Addition:
    """Return what a session does not have of a batch; raise the refusals of an append."""
    if head is None:
        start = BranchStart(token=batch.row.id)
        state = first_records(tx, start, batch.records)
        return _Addition(batch, None, new_messages(batch.messages, {}), state)
    stored = tx.stored(head.branch, [item.id for item in batch.messages])
    fresh = drop_stored(tx, head, batch.messages, stored)
    return _Addition(batch, head, fresh, new_records(tx, head, batch.records))


def _store(tx: Transaction, new: _Addition) -> None:
    head = new.head
    if head is None:
        row = msgspec.structs.replace(new.batch.row, created_at=tx.now())
        head = find_head(tx, tx.add_session(row, BranchStart(token=row.id)))
    if new.messages or new.records:
        insert_messages(tx, head, new.messages, state=new.records, among=new.batch.messages)
