"""Putting messages at the end of a history: the one place where a message is stored.

With the messages the session's head row moves: counts, usage, preview and activity are right in
the same transaction, so lists and resuming never have to count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.backends.base import (
    HeadRow,
    MessageRow,
    Snapshot,
    ToolRow,
    Transaction,
    TurnRow,
    UsageRow,
)
from holdfast.codec import Encoded, checksum
from holdfast.core import titles
from holdfast.core.appending import new_messages
from holdfast.core.branches import Segment
from holdfast.core.measuring import REACH, measure, reported
from holdfast.core.spending import to_pico
from holdfast.errors import BadMessage, SessionNotFound, TooLarge, TurnLost
from holdfast.ids import turn_id
from holdfast.records import Head, Message, ToolResult, Usage
from holdfast.verbs.histories import read_row

_MOST: Final = 2**63 - 1
_DAY: Final = 86_400_000_000


def find_head(tx: Snapshot, session: int) -> HeadRow:
    """Read the head of a session that must exist."""
    head = tx.head(session)
    if head is None:
        raise SessionNotFound("this session is no longer in the store; nothing was stored.")
    return head


def held_head(tx: Transaction, session: int, turn: int) -> HeadRow:
    """Read the head of a session whose open turn must be this one: the fence."""
    head = find_head(tx, session)
    if head.open_turn != turn:
        raise lost(tx, session, turn)
    return head


def lost(tx: Transaction, session: int, turn: int) -> TurnLost:
    """Return what became of a turn that is not open any more."""
    row, owner = tx.turn(session, turn), tx.session(session)
    name = turn_id(owner.id if owner else "?", turn)
    if row is None or row.state == "interrupted":
        return TurnLost(name, "was taken over: its lease had run out or its process seemed dead")
    return TurnLost(name, f"is over: it was {row.state}")


def head_of(row: HeadRow) -> Head:
    """Return the head as callers see it."""
    return Head(row.branch_no, row.seq)


def place(
    tx: Transaction,
    head: HeadRow,
    batch: Sequence[Encoded],
    turn: TurnRow | None = None,
    *,
    again: Mapping[str, int | None] | None = None,
) -> HeadRow:
    """Store a batch behind the head and give the new head. Its ids are known to be new here.

    `again` names those that another branch has, with their turns: these are not charged twice.
    """
    messages = [item.message for item in batch]
    turns = again or {}
    charged = _uncharged(tx, head, messages, turns)
    moved = _advanced(head, messages, charged, tx.now())
    check_files(tx, batch)
    earlier = _earlier(tx, head, charged)
    rows = [
        _row(seq, item, turns.get(item.id) if turn is None else turn.number)
        for seq, item in enumerate(batch, head.seq + 1)
    ]
    tx.add_messages(head.branch, rows)
    for seq, item in enumerate(batch, head.seq + 1):
        for sha256, data in item.blobs:
            tx.add_blob(head.branch, seq, sha256, data)
        for sha256 in item.refers:
            tx.refer_blob(head.branch, seq, sha256)
    if turn:
        _note_tools(tx, turn, messages)
    if charged:
        _spend(tx, moved, [*earlier, *messages], charged, turn)
    tx.put_head(moved)
    return moved


def _row(seq: int, item: Encoded, turn: int | None) -> MessageRow:
    return MessageRow(seq, item.id, turn, checksum(item.id, turn, item.body), item.body)


def _uncharged(
    tx: Transaction, head: HeadRow, messages: Sequence[Message], again: Mapping[str, int | None]
) -> list[Message]:
    """Pick the messages that cost something and were not charged to this session before."""
    costly = [m for m in messages if m.usage is not None or m.cost is not None]
    costly = [message for message in costly if message.id not in again]
    if not costly or head.branch_no == 1:
        return costly
    known = known_ids(tx, head, [message.id for message in costly])
    return [message for message in costly if message.id not in known]


def known_ids(tx: Transaction, head: HeadRow, names: Sequence[str]) -> dict[str, MessageRow]:
    """Look ids up on all branches of a session, and in what it inherited."""
    found: dict[str, MessageRow] = {}
    first = tx.branch(head.session, 1)
    if first is not None and first.parent is not None:
        found.update((name, row) for name, (_, row) in tx.stored(first.n, names).items())
    found.update((row.id, row) for _, row in tx.placed(head.session, names))
    return found


def _advanced(
    head: HeadRow, messages: Sequence[Message], charged: Sequence[Message], now: int
) -> HeadRow:
    """Return the head behind these messages; refuse sums that no database can count in."""
    usage, cost = head.usage, head.cost
    for message in charged:
        usage, cost = usage + (message.usage or Usage()), cost + to_pico(message.cost)
    if charged and max(cost, *msgspec.structs.astuple(usage)) > _MOST:
        raise TooLarge("usage: the sums of this session would overflow; nothing was stored.")
    shown = titles.preview(messages, head.seq + 1, preview_of(head))
    moved = msgspec.structs.replace(
        head, seq=head.seq + len(messages), updated_at=now, usage=usage, cost=cost
    )
    return moved if shown.seq == head.preview_seq else show_preview(moved, shown)


def preview_of(head: HeadRow) -> titles.Preview:
    """Return what stands for a session in lists."""
    return titles.Preview(head.preview, head.preview_rank, head.preview_seq)


def show_preview(head: HeadRow, shown: titles.Preview) -> HeadRow:
    """Return the head with another preview."""
    return msgspec.structs.replace(
        head, preview=shown.text, preview_rank=shown.rank, preview_seq=shown.seq
    )


def _spend(
    tx: Transaction,
    head: HeadRow,
    said: Sequence[Message],
    charged: Sequence[Message],
    turn: TurnRow | None,
) -> None:
    """Add what messages used to the sums by day and model, and to those of their turn.

    They are the last of what was `said`, which tells how well their tokens were estimated.
    """
    total, price = Usage(), 0
    places = {message.id: at for at, message in enumerate(said)}
    for message in charged:
        spent, cost = message.usage or Usage(), to_pico(message.cost)
        total, price = total + spent, price + cost
        day = head.updated_at // _DAY
        at = places[message.id]
        measured = measure(message, said[max(0, at - REACH) : at])
        tx.add_usage(head.session, UsageRow(day, message.model, spent, cost, measured))
    if turn:
        tx.put_turn(msgspec.structs.replace(turn, usage=turn.usage + total, cost=turn.cost + price))


def _earlier(tx: Transaction, head: HeadRow, charged: Sequence[Message]) -> list[Message]:
    """Read what a reply may be compared with that is stored already: on this branch, and no more.

    Nothing depends on it, so what is missing or damaged there stops nobody.
    """
    if not head.seq or not any(usage.input for usage in map(reported, charged) if usage):
        return []
    last = Segment(head.branch, max(1, head.seq - REACH + 1), head.seq, "")
    return [read_row(tx, "", row) for _, rows in tx.messages([last]) for row in rows]


def _note_tools(tx: Transaction, turn: TurnRow, messages: Sequence[Message]) -> None:
    """Write the ledger: calls are noted when made, and closed by their results."""
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
            row = new_tool(turn, call.id, call.name)
        elif row.name is None:
            row = msgspec.structs.replace(row, name=call.name)
        else:
            continue
        known[call.id] = row
        tx.put_tool(row)
    for result in results:
        row = known.get(result.call_id) or new_tool(turn, result.call_id, result.name)
        tx.put_tool(_answered(row, result, tx.now()))


def _answered(row: ToolRow, result: ToolResult, now: int) -> ToolRow:
    return msgspec.structs.replace(row, outcome="error" if result.error else "done", ended_at=now)


def new_tool(turn: TurnRow, call_id: str, name: str | None) -> ToolRow:
    """Make the ledger's line for a call."""
    return ToolRow(
        session=turn.session,
        turn=turn.number,
        call_id=call_id,
        name=name,
        outcome="called",
        started_at=None,
        ended_at=None,
    )


def refuse_waiting(tx: Transaction, head: HeadRow, batch: Sequence[Encoded]) -> None:
    """Refuse another body for an id that waits in the queue."""
    if head.queued:
        new_messages(batch, {row.id: (0, row.body) for row in tx.queue(head.session)})


def check_files(tx: Transaction, batch: Sequence[Encoded]) -> None:
    """Refuse files given by hash alone whose data is not stored."""
    for item in batch:
        for sha256 in item.refers:
            if tx.blob(sha256) is None:
                raise BadMessage(
                    f"a file names data {sha256} that is not in this store; nothing was stored. "
                    "Give it with data=…"
                )
