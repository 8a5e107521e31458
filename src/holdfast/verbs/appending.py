"""Append, and input that waits for its turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.backends.base import (
    Foreseen,
    Foresight,
    HeadRow,
    MessageRow,
    QueueRow,
    Snapshot,
    Transaction,
    Verb,
)
from holdfast.codec import Encoded, decode, files_named
from holdfast.core.appending import compare, new_messages
from holdfast.core.measuring import REACH
from holdfast.ids import turn_id
from holdfast.records import Head, Message
from holdfast.verbs.placing import (
    check_files,
    find_head,
    head_of,
    held_head,
    known_ids,
    place,
    refuse_waiting,
)


def append(session: int, batch: Sequence[Encoded], *, expect: Head | None = None) -> Verb[Head]:
    """Store a batch behind the head: all of it or nothing, and each id once.

    A batch whose ids are all there already gives the receipt of then, whatever `expect` says: it
    is a retry of a write that went through.
    """

    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)
        stored = tx.stored(head.branch, [item.id for item in batch])
        fresh = _new(tx, head, batch, stored)
        if not batch:
            compare(expect, head_of(head))
        if not fresh:
            newest = max((row.seq for _, row in stored.values()), default=head.seq)
            return Head(head.branch_no, newest)
        compare(expect, head_of(head))
        return head_of(place(tx, head, fresh))

    newest = REACH if any(item.message.usage for item in batch) else 0
    return Foreseen(run, Foresight(session, tuple(item.id for item in batch), newest))


def add(session: int, item: Encoded, turn: int) -> Verb[Message]:
    """Store one message of a turn and give it as it is stored, also if it was there before."""

    def run(tx: Transaction) -> Message:
        head = held_head(tx, session, turn)
        stored = tx.stored(head.branch, [item.id])
        if _new(tx, head, [item], stored):
            place(tx, head, [item], tx.turn(session, turn))
            stored = tx.stored(head.branch, [item.id])
        owner, row = stored[item.id]
        name = None if row.turn is None else turn_id(owner, row.turn)
        return decode(row.body, id=item.id, seq=row.seq, turn_id=name, blob=tx.blob)

    newest = REACH if item.message.usage else 0
    return Foreseen(run, Foresight(session, (item.id,), newest, ("turn", "tools"), turn))


def _new(
    tx: Transaction,
    head: HeadRow,
    batch: Sequence[Encoded],
    stored: Mapping[str, tuple[str, MessageRow]],
) -> list[Encoded]:
    """Pick what is not stored. Input that waits has its id already: no other body may take it."""
    refuse_waiting(tx, head, batch)
    return new_messages(batch, {name: (row.seq, row.body) for name, (_, row) in stored.items()})


def enqueue(session: int, item: Encoded, now: int) -> Verb[tuple[Message, QueueRow]]:
    """Put input in the queue; an id that waits there, or was taken, is not put in again."""

    def run(tx: Transaction) -> tuple[Message, QueueRow]:
        head = find_head(tx, session)
        stored = tx.stored(head.branch, [item.id])
        waiting = {row.id for row in tx.queue(session)}
        if _new(tx, head, [item], stored) and item.id not in waiting:
            _refuse_left_behind(tx, head, item)
            check_files(tx, [item])
            tx.add_queued(session, QueueRow(0, item.id, now, item.body, _blobs(tx, item)))
            tx.put_head(msgspec.structs.replace(head, queued=head.queued + 1, updated_at=now))
        gone = QueueRow(0, item.id, now, item.body, item.blobs)
        row = next((row for row in tx.queue(session) if row.id == item.id), gone)
        return queued_message(tx, row), row

    return run


def _refuse_left_behind(tx: Transaction, head: HeadRow, item: Encoded) -> None:
    """Refuse an id that a branch has with another body: going back there would lose the input."""
    known = known_ids(tx, head, [item.id])
    new_messages([item], {name: (row.seq, row.body) for name, row in known.items()})


def _blobs(tx: Transaction, item: Encoded) -> tuple[tuple[str, bytes], ...]:
    """Return all blobs of waiting input: those it only names could be erased before its turn."""
    named = ((sha256, tx.blob(sha256)) for sha256 in item.refers)
    return (*item.blobs, *((sha256, data) for sha256, data in named if data is not None))


def take_queued(session: int, turn: int) -> Verb[list[Message]]:
    """Move waiting input into the history, in order; give the new messages."""

    def run(tx: Transaction) -> list[Message]:
        head = held_head(tx, session, turn)
        waiting = tx.queue(session)
        batch = [queued_item(tx, row) for row in waiting]
        stored = tx.stored(head.branch, [item.id for item in batch])
        fresh = [item for item in batch if item.id not in stored]
        if waiting:
            place(tx, msgspec.structs.replace(head, queued=0), fresh, tx.turn(session, turn))
        for row in waiting:
            tx.drop_queued(session, row.number)
        return [
            msgspec.structs.replace(item.message, seq=seq)
            for seq, item in enumerate(fresh, head.seq + 1)
        ]

    return run


def queued_message(tx: Snapshot, row: QueueRow) -> Message:
    """Read the message of waiting input; its blobs wait with it."""
    own = dict(row.blobs)
    return decode(
        row.body, id=row.id, seq=None, turn_id=None, blob=lambda sha: own.get(sha) or tx.blob(sha)
    )


def queued_item(tx: Snapshot, row: QueueRow) -> Encoded:
    """Make waiting input ready to be stored."""
    message = queued_message(tx, row)
    own = {sha256 for sha256, _ in row.blobs}
    refers = tuple(sha256 for sha256 in files_named(message) if sha256 not in own)
    return Encoded(row.id, message, row.body, row.blobs, refers)
