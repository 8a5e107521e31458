"""Turns: opening, holding and ending them.

A session's head row has the number of its open turn. That number is the fencing token of the
holder: each of its writes compares it with the head row in the same transaction. However a turn
ends, one transaction settles it: a draft becomes a partial message, open tool calls get their
outcome, and the session is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast import codec
from holdfast.clock import to_datetime
from holdfast.draft_parts import DraftChunk, DraftOpening, merge_deltas
from holdfast.errors import SessionBusy, TooLarge
from holdfast.ids import message_id, turn_id
from holdfast.operations.append import (
    fenced_head,
    find_head,
    insert_messages,
    new_messages,
    new_tool_row,
    turn_lost_error,
)
from holdfast.operations.leases import final_outcome, lease_end, may_take_over
from holdfast.operations.token_calibration import LOOKBACK_MESSAGES
from holdfast.processes import has_given_up, has_same_monotonic_clock, is_alive
from holdfast.storage.ancestry import Segment
from holdfast.storage.prefetch import Prefetch, Prefetched
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import HeadRow, ToolRow, TurnRow
from holdfast.values import JSON, Holder, Lease, Message, Part, Raw, Recovered, Usage

Ending = Literal["sealed", "cancelled", "failed", "interrupted"]


class OpenedTurn(msgspec.Struct, frozen=True):
    """A turn that was opened, and what was recovered first."""

    number: int
    started_at: int
    recovered: Recovered | None


class TurnClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A request to open a turn: its holder, and for how many seconds each lease lasts."""

    session: int
    token: str
    holder: Holder
    lease: float
    run_id: str | None
    model: str | None


def open_turn(claim: TurnClaim) -> Operation[OpenedTurn | None]:
    """Open a turn, first recovering one that a crash left open; `SessionBusy` while one is held.

    Run again after it was stored, it returns what was recovered then. `None` means that it only
    shortened the lease of the turn in its way, and must be run again.
    """
    recovered: Recovered | None = None

    def run(tx: Transaction) -> OpenedTurn | None:
        nonlocal recovered
        head = find_head(tx, claim.session)
        current = None if head.open_turn is None else tx.turn(claim.session, head.open_turn)
        if current is not None and current.token == claim.token:
            return OpenedTurn(current.number, current.started_at, recovered)
        recovered = None
        if current is not None and _shorten_lease(tx, current, claim.lease):
            return None
        if head.open_turn is not None:
            recovered = _take_over(tx, head, current)
            head = find_head(tx, claim.session)
        row = _renewed(tx, _new_turn(claim, head, tx.now()), claim.lease)
        tx.put_turn(row)
        tx.put_head(
            msgspec.structs.replace(
                head, turns=row.number, open_turn=row.number, updated_at=row.started_at
            )
        )
        return OpenedTurn(row.number, row.started_at, recovered)

    return Prefetched(run, Prefetch(claim.session))


def _new_turn(claim: TurnClaim, head: HeadRow, now: int) -> TurnRow:
    return TurnRow(
        session=claim.session,
        number=head.turns + 1,
        token=claim.token,
        state="open",
        run_id=claim.run_id,
        model=claim.model,
        holder=claim.holder,
        lease_until=now,
        first_seq=head.seq,
        started_at=now,
        ended_at=None,
        usage=Usage(),
        cost=0,
        error=None,
    )


def renew(session: int, turn: int, lease: float) -> Operation[None]:
    """Extend the lease of an open turn."""

    def run(tx: Transaction) -> None:
        fenced_head(tx, session, turn)
        tx.put_turn(_renewed(tx, _require_turn(tx, session, turn), lease))

    return Prefetched(run, Prefetch(session, items=("turn",), turn=turn))


def _renewed(tx: Transaction, row: TurnRow, seconds: float) -> TurnRow:
    """Return a turn that its holder, this process, holds for so many seconds from now."""
    lease = Lease(seconds, lease_end(tx.monotonic(), seconds))
    holder = msgspec.structs.replace(row.holder, lease=lease)
    return msgspec.structs.replace(row, holder=holder, lease_until=lease_end(tx.now(), seconds))


def _shorten_lease(tx: Transaction, row: TurnRow, seconds: float) -> bool:
    """Shorten a lease that ends later than it can; return whether it did: the clock was set back.

    A holder that is alive renews it soon. `seconds` is the length of a lease that does not say.
    """
    latest = lease_end(tx.now(), row.holder.lease.seconds if row.holder.lease else seconds)
    if row.lease_until <= latest:
        return False
    tx.put_turn(msgspec.structs.replace(row, lease_until=latest))
    return True


def start_tool(session: int, turn: int, call_id: str) -> Operation[None]:
    """Record that a tool starts now, before it can have an effect."""

    def run(tx: Transaction) -> None:
        fenced_head(tx, session, turn)
        known = {row.call_id: row for row in tx.tools(session, turn)}
        row = known.get(call_id) or new_tool_row(_require_turn(tx, session, turn), call_id, None)
        if row.outcome == "called":
            tx.put_tool(msgspec.structs.replace(row, outcome="running", started_at=tx.now()))

    return Prefetched(run, Prefetch(session, items=("turn", "tools"), turn=turn))


def end_turn(session: int, turn: int, state: Ending, error: str | None = None) -> Operation[None]:
    """End a turn for its holder. Ending it again with the same state changes nothing."""

    def run(tx: Transaction) -> None:
        head = find_head(tx, session)
        if head.open_turn != turn:
            row = tx.turn(session, turn)
            if row is None or row.state != state:
                raise turn_lost_error(tx, session, turn)
            return
        _settle(tx, head, _require_turn(tx, session, turn), state, error)

    return Prefetched(
        run, Prefetch(session, items=("turn", "draft", "tools", "session"), turn=turn)
    )


def cancel_unheld(claim: TurnClaim) -> Operation[None]:
    """Cancel a turn whose opening was interrupted, if it was opened: it has no holder."""

    def run(tx: Transaction) -> None:
        head = tx.head(claim.session)
        if head is None or head.open_turn is None:
            return
        row = tx.turn(claim.session, head.open_turn)
        if row is not None and row.token == claim.token:
            _settle(tx, head, row, "cancelled", None)

    return run


def recover(session: int) -> Operation[Recovered | None]:
    """Close a turn that a crash left open; `None` if none is, `SessionBusy` while it is held."""

    def run(tx: Transaction) -> Recovered | None:
        head = find_head(tx, session)
        if head.open_turn is None:
            return None
        return _take_over(tx, head, tx.turn(session, head.open_turn))

    return run


def require_free_head(tx: Transaction, head: HeadRow) -> HeadRow:
    """Return the head after closing a turn that a crash left open; `SessionBusy` while held."""
    if head.open_turn is None:
        return head
    _take_over(tx, head, tx.turn(head.session, head.open_turn))
    return find_head(tx, head.session)


def _take_over(tx: Transaction, head: HeadRow, turn: TurnRow | None) -> Recovered:
    if turn is None:
        turn = _placeholder_turn(tx, head)
    elif not is_abandoned(tx, turn):
        owner = tx.session(turn.session)
        since = to_datetime(turn.started_at)
        raise SessionBusy(owner.id if owner else "?", turn.holder, since)
    return _settle(tx, head, turn, "interrupted", None)


def is_abandoned(snapshot: Snapshot, turn: TurnRow) -> bool:
    """Return whether an open turn may be taken over: its holder is dead or its lease expired."""
    holder = turn.holder
    alive = False if has_given_up(holder, turn.token) else is_alive(holder)
    until, now = turn.lease_until, snapshot.now
    if holder.lease is not None and has_same_monotonic_clock(holder):
        until, now = holder.lease.until, snapshot.monotonic
    return may_take_over(alive=alive, lease_until=until, now=now())


def _placeholder_turn(tx: Transaction, head: HeadRow) -> TurnRow:
    """Return a row for a turn whose own is missing in a damaged store: it has no holder."""
    unknown = Holder("?", 0, "", "", "")
    claim = TurnClaim(
        session=head.session, token="", holder=unknown, lease=0.0, run_id=None, model=None
    )
    return msgspec.structs.replace(_new_turn(claim, head, tx.now()), number=head.open_turn)


def _require_turn(tx: Transaction, session: int, number: int) -> TurnRow:
    row = tx.turn(session, number)
    if row is None:
        raise turn_lost_error(tx, session, number)
    return row


# ------------------------------------------------------------------------------------- settling


def _settle(
    tx: Transaction, head: HeadRow, turn: TurnRow, state: Ending, error: str | None
) -> Recovered:
    """End a turn: keep its draft, close its tool ledger, free the session."""
    partial = draft_message(tx, turn)
    if partial is not None:
        head = _store_partial_draft(tx, head, turn)
        turn = tx.turn(turn.session, turn.number) or turn
    closed = _close_tools(tx, turn)
    now = tx.now()
    tx.put_turn(msgspec.structs.replace(turn, state=state, ended_at=now, error=error))
    tx.put_head(msgspec.structs.replace(head, open_turn=None, updated_at=now))
    owner = tx.session(turn.session)
    name = turn_id(owner.id if owner else "?", turn.number)
    return Recovered(
        turn_id=name,
        messages=_count_messages(tx, head, turn) if state == "interrupted" else 0,
        partial=partial and _as_stored(partial, head.seq, name),
        unknown_tools=tuple(row.call_id for row in closed if row.outcome == "unknown"),
        not_run_tools=tuple(row.call_id for row in closed if row.outcome == "not_run"),
        since=to_datetime(turn.started_at),
    )


def _count_messages(tx: Transaction, head: HeadRow, turn: TurnRow) -> int:
    """Count the messages of a turn on the branch where it was opened."""
    since = Segment(head.branch, turn.first_seq + 1, head.seq, "")
    return sum(row.turn == turn.number for _, rows in tx.messages([since]) for row in rows)


def _store_partial_draft(tx: Transaction, head: HeadRow, turn: TurnRow) -> HeadRow:
    """Store the draft as a partial message unless it is empty, and drop it."""
    partial = draft_message(tx, turn)
    if partial is not None:
        head = _insert_partial(tx, head, partial, turn)
    tx.drop_draft(turn.session, turn.number)
    return head


def _insert_partial(tx: Transaction, head: HeadRow, partial: Message, turn: TurnRow) -> HeadRow:
    """Store a partial reply, without its usage if the sums would overflow.

    Nothing may stop a recovery.
    """
    at = to_datetime(turn.started_at)
    try:
        return insert_messages(tx, head, [codec.encode(partial, at, limit=None)], turn)
    except TooLarge:
        plain = msgspec.structs.replace(partial, usage=None, cost=None)
        return insert_messages(tx, head, [codec.encode(plain, at, limit=None)], turn)


def _as_stored(partial: Message, seq: int, turn: str) -> Message:
    return msgspec.structs.replace(partial, seq=seq, turn_id=turn)


def _close_tools(tx: Transaction, turn: TurnRow) -> list[ToolRow]:
    closed = []
    for row in tx.tools(turn.session, turn.number):
        outcome = final_outcome(row.outcome)
        if outcome != row.outcome:
            done = msgspec.structs.replace(row, outcome=outcome)
            tx.put_tool(done)
            closed.append(done)
    return closed


# --------------------------------------------------------------------------------------- drafts


def flush_draft(
    session: int, turn: int, opening: DraftOpening, chunks: Sequence[tuple[int, DraftChunk]]
) -> Operation[bool]:
    """Store chunks of a draft, after its opening; false if the draft was already closed."""

    def run(tx: Transaction) -> bool:
        head = fenced_head(tx, session, turn)
        if tx.stored(head.branch, [opening.id]):
            return False
        stored = tx.draft(session, turn, limit=1)
        current = _decode_opening(stored[0]) if stored else None
        if stored and current != opening:
            if current is not None and current.at > opening.at:
                return False
            # An older reply was never closed: it becomes a partial message.
            _store_partial_draft(tx, head, _require_turn(tx, session, turn))
            stored = []
        if not stored:
            tx.put_draft(session, turn, 0, codec.to_json(opening))
        for number, chunk in chunks:
            tx.put_draft(session, turn, number, codec.to_json(chunk))
        return True

    return Prefetched(run, Prefetch(session, (opening.id,), items=("opening",), turn=turn))


def _decode_opening(chunk: bytes) -> DraftOpening | None:
    try:
        return codec.from_json(chunk, DraftOpening)
    except (msgspec.DecodeError, ValueError):
        return None


def close_draft(session: int, turn: int, item: codec.EncodedMessage) -> Operation[int]:
    """Store the finished reply as a message, once, and drop its draft; return its seq."""

    def run(tx: Transaction) -> int:
        head = fenced_head(tx, session, turn)
        stored = tx.stored(head.branch, [item.id])
        if not new_messages([item], {n: (r.seq, r.body) for n, (_, r) in stored.items()}):
            return stored[item.id][1].seq
        moved = insert_messages(tx, head, [item], tx.turn(session, turn))
        tx.drop_draft(session, turn)
        return moved.seq

    newest = LOOKBACK_MESSAGES if item.message.usage else 0
    return Prefetched(run, Prefetch(session, (item.id,), newest, ("turn", "tools"), turn))


def draft_message(tx: Transaction, turn: TurnRow) -> Message | None:
    """Return the stored draft as a partial message; `None` if there is none or it is empty."""
    stored = tx.draft(turn.session, turn.number)
    if not stored:
        return None
    opening, chunks, parts = _decode_draft(stored, turn)
    if not parts:
        return None
    return Message(
        id=opening.id,
        role="assistant",
        parts=parts,
        created_at=to_datetime(opening.at),
        status="partial",
        model=opening.model or turn.model,
        usage=next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None),
        cost=next((chunk.cost for chunk in reversed(chunks) if chunk.cost is not None), None),
        provenance=opening.provenance,
    )


def _decode_draft(
    stored: list[bytes], turn: TurnRow
) -> tuple[DraftOpening, list[DraftChunk], tuple[Part, ...]]:
    """Decode a draft; an unreadable one is kept as a raw part: nothing may stop a recovery."""
    try:
        opening = codec.from_json(stored[0], DraftOpening)
        chunks = [codec.from_json(chunk, DraftChunk) for chunk in stored[1:]]
    except (msgspec.DecodeError, ValueError):
        kept: list[JSON] = [chunk.decode("utf-8", "backslashreplace") for chunk in stored]
        opening = DraftOpening(message_id(), turn.model, turn.started_at)
        return opening, [], (Raw("damaged draft", kept),)
    return opening, chunks, merge_deltas(delta for chunk in chunks for delta in chunk.deltas)
