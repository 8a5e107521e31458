"""Input queued for the next turn of a session.

A user may send input while a turn is open. It is stored at once, in a queue beside the history, and
the next turn moves it into the history with `take_queued`. Input that came with an import is
*held*: it can be read, and no turn takes it until the user queues it again.
"""

from __future__ import annotations

import msgspec

from holdfast.codec import BlobReader, EncodedMessage, decode, file_hashes, intact
from holdfast.errors import Damaged
from holdfast.operations.append import (
    drop_stored,
    fenced_head,
    find_head,
    insert_messages,
    known_ids,
    new_messages,
)
from holdfast.operations.file_refs import check_file_refs
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import HeadRow, QueueRow
from holdfast.values import Message


def enqueue(session: int, item: EncodedMessage, now: int) -> Operation[tuple[Message, QueueRow]]:
    """Add input to the queue, unless its id is queued or was taken already; return the entry.

    Held input with this id is replaced by it, and waits for the next turn from now on.
    """

    def run(tx: Transaction) -> tuple[Message, QueueRow]:
        head = find_head(tx, session)
        stored = tx.stored(head.branch, [item.id])
        waiting = {row.id: row for row in tx.queue(session)}
        known = waiting.get(item.id)
        if drop_stored(tx, head, [item], stored) and (known is None or known.held):
            _refuse_conflict_on_branches(tx, head, item)
            check_file_refs(tx, [item])
            added = QueueRow(0, item.id, now, item.body, _all_blobs(tx, item))
            if known is not None:
                tx.drop_queued(session, known.number)
            tx.add_queued(session, added)
            queued = head.queued + 1 if known is None else head.queued
            tx.put_head(msgspec.structs.replace(head, queued=queued, updated_at=now))
        taken = QueueRow(0, item.id, now, item.body, item.blobs)
        row = next((row for row in tx.queue(session) if row.id == item.id), taken)
        return queued_message(tx, row), row

    return run


def _refuse_conflict_on_branches(tx: Transaction, head: HeadRow, item: EncodedMessage) -> None:
    """Raise `IdConflict` if any branch has the id with another body.

    Returning to that branch would otherwise lose the input.
    """
    known = known_ids(tx, head, [item.id])
    new_messages([item], {name: (row.seq, row.body) for name, row in known.items()})


def _all_blobs(tx: Transaction, item: EncodedMessage) -> tuple[tuple[str, bytes], ...]:
    """Return all blobs of queued input: those it only refers to could be erased before its turn."""
    named = ((sha256, tx.blob(sha256)) for sha256 in item.blob_refs)
    return (*item.blobs, *((sha256, data) for sha256, data in named if data is not None))


def take_queued(session: int, turn: int) -> Operation[list[Message]]:
    """Move queued input into the history, in order; return the new messages."""

    def run(tx: Transaction) -> list[Message]:
        head = fenced_head(tx, session, turn)
        queue = tx.queue(session)
        waiting = [row for row in queue if not row.held]
        batch = [encode_queued(tx, row) for row in waiting]
        stored = tx.stored(head.branch, [item.id for item in batch])
        fresh = [item for item in batch if item.id not in stored]
        if waiting:
            left = msgspec.structs.replace(head, queued=len(queue) - len(waiting))
            insert_messages(tx, left, fresh, tx.turn(session, turn))
        for row in waiting:
            tx.drop_queued(session, row.number)
        return [
            msgspec.structs.replace(item.message, seq=seq)
            for seq, item in enumerate(fresh, head.seq + 1)
        ]

    return run


def queued_message(tx: Snapshot, row: QueueRow) -> Message:
    """Return the message of queued input; raise `Damaged` if it cannot be decoded."""
    return decode(row.body, id=row.id, seq=None, turn_id=None, blob=blob_reader(tx, row))


def blob_reader(tx: Snapshot, row: QueueRow) -> BlobReader:
    """Return a reader of the blobs of queued input: those of its entry, then those of the store."""
    own = dict(row.blobs)

    def read(sha256: str) -> bytes | None:
        found = intact(sha256, own.get(sha256))
        return tx.blob(sha256) if found is None else found

    return read


def encode_queued(tx: Snapshot, row: QueueRow) -> EncodedMessage:
    """Return queued input encoded for `insert_messages`; raise `Damaged` if a blob of it is."""
    message, read = queued_message(tx, row), blob_reader(tx, row)
    own = {sha256: read(sha256) for sha256, _ in row.blobs}
    blobs = tuple((sha256, data) for sha256, data in own.items() if data is not None)
    if len(blobs) < len(own):
        raise Damaged(
            f"a file of queued input {row.id!r} does not match its hash; nothing was changed. Run "
            "store.verify()."
        )
    refers = tuple(sha256 for sha256 in file_hashes(message) if sha256 not in own)
    return EncodedMessage(row.id, message, row.body, blobs, refers)
