"""The append path, and `store_messages`, which stores every message: an import ends there, too.

An append checks the expected head, drops messages whose ids are already stored, inserts the rest
after the head and advances the head row. That row carries counts, usage, preview and activity, so
they change together with the messages and lists never have to count.

An id that the history already has is not stored again, which makes a retry safe. The same id with
another body is refused. Equal texts under two ids are two messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from holdfast import titles
from holdfast.codec import (
    EncodedMessage,
    EncodedRecord,
    decode,
    is_same_body,
)
from holdfast.cost import to_pico
from holdfast.errors import (
    HeadMoved,
    IdConflict,
    Invalid,
    SessionNotFound,
    TooLarge,
    TurnLost,
)
from holdfast.ids import turn_id
from holdfast.operations.file_refs import check_file_refs
from holdfast.operations.history import read_row
from holdfast.operations.records import (
    NO_RECORDS,
    NewRecords,
    new_records,
    prefetch_records,
    read_record,
    store_records,
)
from holdfast.operations.session_changes import SessionUpdate, put_update, updated_row
from holdfast.operations.token_calibration import (
    LOOKBACK_MESSAGES,
    compare_reply_tokens,
    reported_usage,
)
from holdfast.storage.ancestry import Segment
from holdfast.storage.prefetch import Prefetch, Prefetched, PrefetchItem
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import BlobUse, HeadRow, MessageRow, ToolRow, TurnRow, UsageRow
from holdfast.values import Head, Message, Record, ToolResult, Usage

_MAX_INT64: Final = 2**63 - 1
_DAY_US: Final = 86_400_000_000


def append(
    session: int,
    batch: Sequence[EncodedMessage],
    records: Sequence[EncodedRecord] = (),
    *,
    expect: Head | None = None,
    update: SessionUpdate | None = None,
) -> Operation[Head]:
    """Store a batch after the head, with an update: all of it or nothing, and each id once.

    A batch whose ids are all stored already is a retry of a write that succeeded: it returns the
    head of that write and updates nothing, whatever is expected.
    """

    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)
        stored = tx.stored(head.branch, names)
        fresh = drop_stored(tx, head, batch, stored)
        state = new_records(tx, head, records) if records else NO_RECORDS
        if (batch or records) and not fresh and not state:
            return Head(head.branch_no, _last_stored_seq(tx, head, stored, records))
        if expect is not None:
            check_expected_head(expect, to_head(head))
        updated = None if update is None else updated_row(tx, session, update)
        moved = head
        if fresh or state:
            moved = insert_messages(tx, head, fresh, state=state, among=batch)
        if updated is not None:
            put_update(tx, update, updated, alone=moved is head)
        return Head(moved.branch_no, moved.seq)

    names = tuple([item.id for item in batch])
    newest = max([LOOKBACK_MESSAGES for item in batch if item.message.usage], default=0)
    # Reading the session's row also keeps PostgreSQL from deciding by a cached head alone.
    items: tuple[PrefetchItem, ...] = () if update is None else ("session",)
    hint = Prefetch(session, names, newest, items)
    if records:
        hint = prefetch_records(hint, records)
    return Prefetched(run, hint, None if update is None else update.forget)


def _last_stored_seq(
    tx: Transaction,
    head: HeadRow,
    stored: Mapping[str, tuple[str, MessageRow]],
    records: Sequence[EncodedRecord],
) -> int:
    """Return the seq of the newest of a batch's stored messages, or that its records lie behind."""
    seqs = [row.seq for _, row in stored.values()]
    if records:
        found = tx.stored_records(head.branch, [item.id for item in records])
        seqs += [row.seq for row in found.values()]
    return max(seqs, default=head.seq)


def append_in_turn(session: int, item: EncodedMessage, turn: int) -> Operation[Message]:
    """Store one message of a turn and return it as stored, also if it was stored before."""

    def run(tx: Transaction) -> Message:
        head = fenced_head(tx, session, turn)
        stored = tx.stored(head.branch, [item.id])
        if drop_stored(tx, head, [item], stored):
            insert_messages(tx, head, [item], tx.turn(session, turn))
            stored = tx.stored(head.branch, [item.id])
        owner, row = stored[item.id]
        name = None if row.turn is None else turn_id(owner, row.turn)
        return decode(row.body, id=item.id, seq=row.seq, turn_id=name, blob=tx.blob)

    newest = LOOKBACK_MESSAGES if item.message.usage else 0
    return Prefetched(run, Prefetch(session, (item.id,), newest, ("turn", "tools"), turn))


def record_in_turn(session: int, item: EncodedRecord, turn: int) -> Operation[Record]:
    """Store one record of a turn and return it as stored, also if it was stored before."""

    def run(tx: Transaction) -> Record:
        head = fenced_head(tx, session, turn)
        state = new_records(tx, head, [item])
        if state:
            insert_messages(tx, head, (), state=state)
        return read_record(tx, tx.stored_records(head.branch, [item.id])[item.id])

    return Prefetched(run, prefetch_records(Prefetch(session), [item]))


# --------------------------------------------------------------------------------- the head


def find_head(tx: Snapshot, session: int) -> HeadRow:
    """Return the head row of a session; raise `SessionNotFound` if there is none."""
    head = tx.head(session)
    if head is None:
        raise SessionNotFound("this session is no longer in the store; nothing was stored.")
    return head


def fenced_head(tx: Transaction, session: int, turn: int) -> HeadRow:
    """Return the head row of a session; raise `TurnLost` unless this turn is open: the fence."""
    head = find_head(tx, session)
    if head.open_turn != turn:
        raise turn_lost_error(tx, session, turn)
    return head


def turn_lost_error(tx: Transaction, session: int, turn: int) -> TurnLost:
    """Return the error that says why a turn is no longer open."""
    row, owner = tx.turn(session, turn), tx.session(session)
    name = turn_id(owner.id if owner else "?", turn)
    if row is None or row.state == "interrupted":
        return TurnLost(name, "was taken over: its lease had run out or its process seemed dead")
    return TurnLost(name, f"is over: it was {row.state}")


def to_head(row: HeadRow) -> Head:
    """Return the head as callers see it."""
    return Head(row.branch_no, row.seq)


def check_expected_head(expect: Head | None, actual: Head) -> None:
    """Raise `HeadMoved` unless `expect` is the current head, or `None`."""
    if expect is None:
        return
    if not isinstance(expect, Head):
        raise Invalid("expect: pass a Head, such as session.head() returns; nothing was stored.")
    if expect != actual:
        raise HeadMoved(expect, actual)


# ----------------------------------------------------------------------- ids already stored


def drop_stored(
    tx: Transaction,
    head: HeadRow,
    batch: Sequence[EncodedMessage],
    stored: Mapping[str, tuple[str, MessageRow]],
) -> list[EncodedMessage]:
    """Return a batch without the messages that are stored; see `new_messages`.

    Queued input has its id already, so another body under that id is refused as well.
    """
    if head.queued:
        refuse_queued_conflict(tx, head, batch)
    return new_messages(batch, {name: (row.seq, row.body) for name, (_, row) in stored.items()})


def refuse_queued_conflict(tx: Transaction, head: HeadRow, batch: Sequence[EncodedMessage]) -> None:
    """Raise `IdConflict` if queued input has an id of the batch with another body."""
    if head.queued:
        new_messages(batch, {row.id: (0, row.body) for row in tx.queue(head.session)})


def new_messages(
    batch: Sequence[EncodedMessage], known: Mapping[str, tuple[int, bytes]]
) -> list[EncodedMessage]:
    """Return the messages whose ids are not known, in order, each id once.

    `known` maps ids to the seq and body stored for them (seq 0: queued, not stored yet). A known
    id with another body raises `IdConflict`.
    """
    fresh: dict[str, EncodedMessage] = {}
    for item in batch:
        if item.id in known:
            seq, body = known[item.id]
            if not is_same_body(body, item.body):
                raise IdConflict(item.id, seq)
        elif item.id not in fresh:
            fresh[item.id] = item
        elif not is_same_body(fresh[item.id].body, item.body):
            raise IdConflict(item.id, 0)
    return list(fresh.values())


def messages_after(
    tx: Transaction, branch: int | None, seq: int, batch: Sequence[EncodedMessage]
) -> list[EncodedMessage]:
    """Return a batch without the messages that a branch's history has up to `seq`.

    See `new_messages`. Without a branch, or up to 0, the history is empty.
    """
    if branch is None or not seq or not batch:
        return new_messages(batch, {})
    stored = tx.stored(branch, [item.id for item in batch])
    known = {name: (row.seq, row.body) for name, (_, row) in stored.items() if row.seq <= seq}
    return new_messages(batch, known)


def known_ids(tx: Transaction, head: HeadRow, names: Sequence[str]) -> dict[str, MessageRow]:
    """Return the stored rows of ids, from all branches of a session and what it inherited."""
    found: dict[str, MessageRow] = {}
    first = tx.branch(head.session, 1)
    if first is not None and first.parent is not None:
        found.update((name, row) for name, (_, row) in tx.stored(first.n, names).items())
    found.update((row.id, row) for _, row in tx.stored_in_sessions([head.session], names))
    return found


# --------------------------------------------------------------------------------- storing


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to store: its row, its own blobs, and the hashes of those it only refers to."""

    row: MessageRow
    blobs: tuple[tuple[str, bytes], ...] = ()
    blob_refs: tuple[str, ...] = ()


def store_messages(
    tx: Transaction,
    branch: int,
    messages: Sequence[NewMessage],
    find_blob: Callable[[int, str], BlobUse | None] = BlobUse,
) -> None:
    """Store messages with the seqs they have. Nothing else stores a message.

    `find_blob` takes a seq and the hash of a blob that this message only refers to, and returns
    `None` if the blob is missing. By default all of them are stored (`check_file_refs`).
    """
    rows = [message.row for message in messages]
    with_blobs = [message for message in messages if message.blobs or message.blob_refs]
    tx.add_messages(branch, rows, _blob_uses(with_blobs, find_blob) if with_blobs else ())


def _blob_uses(
    messages: Iterable[NewMessage], find_blob: Callable[[int, str], BlobUse | None]
) -> Iterator[BlobUse]:
    for message in messages:
        for sha256, data in message.blobs:
            yield BlobUse(message.row.seq, sha256, data)
        for sha256 in message.blob_refs:
            found = find_blob(message.row.seq, sha256)
            if found is not None:
                yield found


def insert_messages(
    tx: Transaction,
    head: HeadRow,
    batch: Sequence[EncodedMessage],
    turn: TurnRow | None = None,
    *,
    stored_turns: Mapping[str, int | None] | None = None,
    state: NewRecords = NO_RECORDS,
    among: Sequence[EncodedMessage] = (),
) -> HeadRow:
    """Insert a batch after the head and return the new head row. All its ids must be new here.

    `stored_turns` maps ids that another branch of the session has to their turns: their usage is
    not charged twice. The records of `state` are stored with it; they came `among` messages of
    which the batch has those that are new.
    """
    messages = [item.message for item in batch]
    turns = stored_turns or {}
    charged = [m for m in messages if m.usage is not None or m.cost is not None]
    if charged:
        charged = _newly_charged(tx, head, charged, turns)
    moved = _advance_head(head, messages, charged, tx.now())
    check_file_refs(tx, [item for item in batch if item.blob_refs])
    earlier = _calibration_messages(tx, head, charged) if charged else []
    number = None if turn is None else turn.number
    fresh = [
        NewMessage(
            MessageRow.create(seq, item.id, number or turns.get(item.id), item.body),
            item.blobs,
            item.blob_refs,
        )
        for seq, item in enumerate(batch, head.seq + 1)
    ]
    if fresh:
        store_messages(tx, head.branch, fresh)
    if state:
        newest = store_records(tx, head, among, batch, state)
        moved = msgspec.structs.replace(moved, records=newest)
    if turn:
        _update_ledger(tx, turn, messages)
    if charged:
        _add_usage(tx, moved, [*earlier, *messages], charged, turn)
    tx.put_head(moved)
    return moved


def _advance_head(
    head: HeadRow, messages: Sequence[Message], charged: Sequence[Message], now: int
) -> HeadRow:
    """Return the head row after these messages; raise `TooLarge` if a sum exceeds 64 bits."""
    usage, cost = head.usage, head.cost
    for message in charged:
        usage, cost = usage + (message.usage or Usage()), cost + to_pico(message.cost)
    if charged and overflows(usage, cost):
        raise TooLarge("usage: the sums of this session would overflow; nothing was stored.")
    moved = msgspec.structs.replace(
        head, seq=head.seq + len(messages), updated_at=now, usage=usage, cost=cost
    )
    if head.preview_rank == titles.RANK_USER:
        return moved
    shown = titles.update_preview(messages, head.seq + 1, preview_of(head))
    return moved if shown.seq == head.preview_seq else with_preview(moved, shown)


def overflows(usage: Usage, cost: int) -> bool:
    """True if a sum of usage and cost does not fit in 64 bits, as a store has them."""
    return any(total > _MAX_INT64 for total in (cost, *msgspec.structs.astuple(usage)))


def preview_of(head: HeadRow) -> titles.Preview:
    """Return the preview that lists show for a session."""
    return titles.Preview(head.preview, head.preview_rank, head.preview_seq)


def with_preview(head: HeadRow, shown: titles.Preview) -> HeadRow:
    """Return the head row with another preview."""
    return msgspec.structs.replace(
        head, preview=shown.text, preview_rank=shown.rank, preview_seq=shown.seq
    )


# ------------------------------------------------------------------------- usage and tokens


def _newly_charged(
    tx: Transaction, head: HeadRow, messages: Sequence[Message], stored: Mapping[str, int | None]
) -> list[Message]:
    """Return those of messages with usage or cost that were not charged to this session before."""
    costly = [message for message in messages if message.id not in stored]
    if not costly or head.branch_no == 1:
        return costly
    known = known_ids(tx, head, [message.id for message in costly])
    return [message for message in costly if message.id not in known]


def _calibration_messages(
    tx: Transaction, head: HeadRow, charged: Sequence[Message]
) -> list[Message]:
    """Return the stored messages that reported token counts are compared with: on this branch only.

    They only calibrate estimates, so missing or damaged ones do not fail the append.
    """
    if not head.seq or not any(usage.input for usage in map(reported_usage, charged) if usage):
        return []
    last = Segment(head.branch, max(1, head.seq - LOOKBACK_MESSAGES + 1), head.seq, "")
    return [read_row(tx, "", row) for _, rows in tx.messages([last]) for row in rows]


def _add_usage(
    tx: Transaction,
    head: HeadRow,
    history: Sequence[Message],
    charged: Sequence[Message],
    turn: TurnRow | None,
) -> None:
    """Add the usage of `charged` to the sums by day and model, and to those of their turn.

    They are the last messages of `history`; the ones before them show how well their tokens were
    estimated.
    """
    total, price = Usage(), 0
    positions = {message.id: at for at, message in enumerate(history)}
    for message in charged:
        spent, cost = message.usage or Usage(), to_pico(message.cost)
        total, price = total + spent, price + cost
        day = head.updated_at // _DAY_US
        at = positions[message.id]
        measured = compare_reply_tokens(message, history[max(0, at - LOOKBACK_MESSAGES) : at])
        tx.add_usage(head.session, UsageRow(day, message.model, spent, cost, measured))
    if turn:
        tx.put_turn(msgspec.structs.replace(turn, usage=turn.usage + total, cost=turn.cost + price))


# -------------------------------------------------------------------------- the tool ledger


def _update_ledger(tx: Transaction, turn: TurnRow, messages: Sequence[Message]) -> None:
    """Record tool calls in the turn's ledger, and close those whose results are here."""
    if not any(message.role in {"assistant", "tool"} for message in messages):
        return
    calls = [call for message in messages for call in message.tool_calls]
    results = [result for message in messages for result in message.tool_results]
    if not calls and not results:
        return
    known = {row.call_id: row for row in tx.tools(turn.session, turn.number)}
    for call in calls:
        row = known.get(call.id)
        if row is None:
            row = new_tool_row(turn, call.id, call.name)
        elif row.name is None:
            row = msgspec.structs.replace(row, name=call.name)
        else:
            continue
        known[call.id] = row
        tx.put_tool(row)
    for result in results:
        row = known.get(result.call_id) or new_tool_row(turn, result.call_id, result.name)
        tx.put_tool(_with_result(row, result, tx.now()))


def _with_result(row: ToolRow, result: ToolResult, now: int) -> ToolRow:
    return msgspec.structs.replace(row, outcome="error" if result.error else "done", ended_at=now)


def new_tool_row(turn: TurnRow, call_id: str, name: str | None) -> ToolRow:
    """Return the ledger row of a call that has not started."""
    return ToolRow(
        session=turn.session,
        turn=turn.number,
        call_id=call_id,
        name=name,
        outcome="called",
        started_at=None,
        ended_at=None,
    )
