"""Moving a session's head: rewind, pop, undo, redo, replace, amend, clear; and summaries.

Each move leaves the current branch as it is and opens a new one that starts at the target position.
Nothing is copied or changed, and branch numbers only grow: no head occurs twice, so a write that
expects an older head is refused. A move is idempotent by its `token`, which its branch has: run
again, it returns its first result and makes its `update` no second time. One that opens no branch,
because the head is where it should be, is an update and nothing else.

An open turn blocks a move while its holder is alive; one that a crash left open is recovered first.

Branches are numbered in the order of the moves that opened them, so they are the undo history: as
long as nothing was appended since, `redo` returns to the end of the branch before the newest undo,
rewind or clear that was not redone yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast import codec, validation
from holdfast.codec import EncodedMessage
from holdfast.errors import BadMessage, BadQuery, Damaged, MessageNotFound
from holdfast.operations.append import (
    check_expected_head,
    find_head,
    insert_messages,
    messages_after,
    refuse_queued_conflict,
    to_head,
    with_preview,
)
from holdfast.operations.history import read_span
from holdfast.operations.positions import (
    Position,
    awaited_calls,
    check_position,
    newest_record,
    preview_at,
    resolve_position,
    safe_cut,
    seq_before_turns,
    start_at,
)
from holdfast.operations.records import NO_RECORDS, NewRecords, records_from
from holdfast.operations.session_changes import SessionUpdate, put_update, updated_row
from holdfast.operations.turns import require_free_head
from holdfast.storage.ancestry import branch_at, ranges
from holdfast.storage.prefetch import Prefetch, Prefetched
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchRow, BranchStart, HeadRow
from holdfast.values import BranchReason, Head, Message, MessageRef, Part, Text

_PAGE_MESSAGES: Final = 500
_REDOABLE_REASONS: Final = frozenset({"undo", "rewind", "clear"})
ChooseStart: TypeAlias = Callable[[Transaction, HeadRow], BranchStart | None]


def rewind(
    session: int,
    to: MessageRef,
    *,
    token: str,
    expect: Head | None,
    exact: bool = False,
    update: SessionUpdate | None = None,
) -> Operation[Head]:
    """Move the head to a position, which may be on an abandoned branch.

    Unless it is `exact`, a position inside a tool exchange becomes the one before it.
    """
    validation.check_flag(exact, "exact", optional=False)
    target = check_position(to, "to")
    if target is None:
        raise BadQuery("to: expected a seq, a message's id or a head")

    def decide(tx: Transaction, head: HeadRow) -> BranchStart | None:
        position = resolve_position(tx, head, target)
        if _is_current(tx, head, position):
            return None
        lowest = position.seq if exact else 0
        return start_at(tx, head, position, "rewind", token, lowest=lowest)

    return _move(session, decide, token, expect, update)


def undo(
    session: int,
    turns: int,
    *,
    token: str,
    expect: Head | None,
    update: SessionUpdate | None = None,
) -> Operation[Head]:
    """Move the head to before the last `turns` turns."""
    turns = validation.check_number(turns, "n", lowest=1)

    def decide(tx: Transaction, head: HeadRow) -> BranchStart | None:
        position = Position(head.branch, seq_before_turns(tx, head, turns), head.seq)
        return start_at(tx, head, position, "undo", token)

    return _move(session, decide, token, expect, update)


def redo(
    session: int, *, token: str, expect: Head | None, update: SessionUpdate | None = None
) -> Operation[Head]:
    """Move the head to where it was before the last undo, rewind, pop or clear."""

    def decide(tx: Transaction, head: HeadRow) -> BranchStart | None:
        numbers = range(head.branch_no, 0, -1)
        newest_first = (tx.branch(session, number) for number in numbers)
        target = redo_target(branch for branch in newest_first if branch is not None)
        if target is None:
            raise BadQuery("redo: there is nothing to redo, or something was appended since")
        position = Position(target.n, target.last_seq, target.last_seq)
        return start_at(tx, head, position, "redo", token)

    return _move(session, decide, token, expect, update)


def clear(
    session: int, *, token: str, expect: Head | None, update: SessionUpdate | None = None
) -> Operation[Head]:
    """Move the head to an empty history."""

    def decide(tx: Transaction, head: HeadRow) -> BranchStart | None:
        here = Position(head.branch, head.seq, head.seq)
        if not head.seq and newest_record(tx, here) is None:
            return None
        return BranchStart(reason="clear", token=token)

    return _move(session, decide, token, expect, update)


def pop(session: int, *, token: str, expect: Head | None) -> Operation[Message | None]:
    """Move the head to before the newest message and return that; `None` if there is none."""

    def run(tx: Transaction) -> Message | None:
        head = find_head(tx, session)  # First, as in `_move`.
        done = tx.branch(session, token=token)
        if done is not None:
            left = _branch_left_for(tx, done)
            return _read_messages(tx, left.n, (left.last_seq, left.last_seq))[0]
        check_expected_head(expect, to_head(head))
        head = require_free_head(tx, head)
        if not head.seq:
            return None
        (newest,) = _read_messages(tx, head.branch, (head.seq, head.seq))
        position = Position(head.branch, head.seq - 1, head.seq)
        start = start_at(tx, head, position, "rewind", token, lowest=position.seq)
        _open_branch(tx, head, start)
        return newest

    return Prefetched(run, Prefetch(session, newest=1))


def _branch_left_for(tx: Transaction, opened: BranchRow) -> BranchRow:
    """Return the branch that was the current one before a move opened this one."""
    left = tx.branch(opened.session, opened.number - 1)
    if left is None:
        raise Damaged("a branch of a session is missing; nothing was changed. Run store.verify().")
    return left


def _read_messages(tx: Transaction, branch: int, span: tuple[int, int]) -> list[Message]:
    """Read the messages of `span`; raise `Damaged` if one cannot be read."""
    found = read_span(tx, tx.path(branch, span[0]), span)
    damaged = [message.seq for message in found if message.status == "damaged"]
    if damaged:
        raise Damaged(
            f"message {damaged[0]} cannot be read; nothing was changed. Run store.verify(), and "
            "store.salvage(to) to keep what can be read."
        )
    return found


def _move(
    session: int,
    decide: ChooseStart,
    token: str,
    expect: Head | None,
    update: SessionUpdate | None,
) -> Operation[Head]:
    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)  # First: it waits for an earlier attempt.
        done = tx.branch(session, token=token)
        if done is not None:
            return Head(done.number, done.fork_seq)
        check_expected_head(expect, to_head(head))
        updated = updated_row(tx, session, update)
        head = require_free_head(tx, head)
        start = decide(tx, head)
        moved = head if start is None else _open_branch(tx, head, start)
        put_update(tx, update, updated, alone=start is None)
        return to_head(moved)

    return Prefetched(run, forget=None if update is None else update.forget)


def _open_branch(tx: Transaction, head: HeadRow, start: BranchStart) -> HeadRow:
    """End the current branch, open a new one at `start` and return the moved head."""
    now = tx.now()
    shown = preview_at(tx, head, start)
    tx.end_branch(head.branch, head.seq)
    number = head.branch_no + 1
    moved = msgspec.structs.replace(
        head,
        branch=tx.add_branch(head.session, number, start, now),
        branch_no=number,
        seq=start.fork_seq,
        updated_at=now,
        records=None,
    )
    moved = with_preview(moved, shown)
    tx.put_head(moved)
    return moved


def _is_in_history(tx: Transaction, head: HeadRow, position: Position) -> bool:
    """True if a position is in the current history."""
    if position.branch == head.branch:
        return position.seq <= head.seq
    there, here = tx.path(position.branch, position.seq), tx.path(head.branch, position.seq)
    return position.seq <= head.seq and branch_at(there, position.seq) == branch_at(
        here, position.seq
    )


def _is_current(tx: Transaction, head: HeadRow, position: Position) -> bool:
    """True if the current history ends at a position, with the same records."""
    if position.seq != head.seq or not _is_in_history(tx, head, position):
        return False
    here = Position(head.branch, head.seq, head.seq)
    return position.branch == head.branch or newest_record(tx, position) == newest_record(tx, here)


# ---------------------------------------------------------------------------------------- redo


class BranchStep(Protocol):
    """The part of a branch that `redo_target` reads."""

    @property
    def reason(self) -> BranchReason:
        """The kind of move that opened it."""
        ...

    @property
    def fork_seq(self) -> int:
        """The last seq it shares with its parent."""
        ...

    @property
    def last_seq(self) -> int:
        """Its last seq."""
        ...


S = TypeVar("S", bound=BranchStep)


def redo_target(newest_first: Iterable[S]) -> S | None:
    """Return the branch whose end a redo goes to; `None` if there is nothing to redo."""
    redone = 0
    for branch, before in pairwise(newest_first):
        if branch.last_seq > branch.fork_seq:
            return None
        if branch.reason == "redo":
            redone += 1
        elif branch.reason not in _REDOABLE_REASONS:
            return None
        elif not redone:
            return before
        else:
            redone -= 1
    return None


# ------------------------------------------------------------------------------------- replace


def replace(
    session: int,
    batch: Sequence[EncodedMessage],
    *,
    token: str,
    expect: Head | None,
    keep: MessageRef | None = None,
    update: SessionUpdate | None = None,
) -> Operation[Head]:
    """Make these messages the history, or what follows the message `keep`, which is not read.

    What follows there already is shared, not stored again. If the history only grows, it does so on
    its branch. Then there is no new branch with the token, and a retry is recognized by its
    messages, all stored after the expected head, or after an earlier run of this write.
    """
    kept = check_position(keep, "keep")
    grown = False

    def run(tx: Transaction) -> Head:
        nonlocal grown
        head = find_head(tx, session)  # First, as in `_move`.
        done = tx.branch(session, token=token)
        if done is not None:
            return _head_after(tx, done, batch)
        if grown or expect not in (None, to_head(head)):
            end = _grown_head(tx, head, kept, batch, expect)
            if end is not None:
                return end
        check_expected_head(expect, to_head(head))
        updated = updated_row(tx, session, update)
        head = require_free_head(tx, head)
        base = _base(tx, head, kept)
        items = messages_after(tx, base.branch, base.seq, batch)
        refuse_queued_conflict(tx, head, items)
        moved = _replace_tail(tx, head, base, items, token=token)
        put_update(tx, update, updated, alone=moved is head)
        grown = moved.branch == head.branch and moved.seq > head.seq
        return to_head(moved)

    return Prefetched(run, forget=None if update is None else update.forget)


def _base(tx: Transaction, head: HeadRow, kept: MessageRef | None) -> Position:
    """Return the position after which a history is replaced."""
    return Position(head.branch, 0, head.seq) if kept is None else resolve_position(tx, head, kept)


def _head_after(tx: Transaction, branch: BranchRow, batch: Sequence[EncodedMessage]) -> Head:
    """Return the head after the write that opened a branch and inserted this batch."""
    stored = tx.stored(branch.n, [item.id for item in batch])
    return Head(branch.number, max([branch.fork_seq, *(row.seq for _, row in stored.values())]))


def _grown_head(
    tx: Transaction,
    head: HeadRow,
    kept: MessageRef | None,
    batch: Sequence[EncodedMessage],
    seen: Head | None,
) -> Head | None:
    """Return the head after these messages if the history has them all now, but not at `seen`."""
    if seen is not None and not (isinstance(seen, Head) and seen.branch == head.branch_no):
        return None
    base = _base(tx, head, kept)
    items = messages_after(tx, base.branch, base.seq, batch)
    end = base.seq + len(items)
    if (seen is not None and end <= seen.seq) or not _is_in_history(tx, head, base):
        return None
    is_stored = _shared_length(tx, base, items) == len(items)
    return Head(head.branch_no, end) if is_stored else None


def _replace_tail(
    tx: Transaction,
    head: HeadRow,
    base: Position,
    items: Sequence[EncodedMessage],
    *,
    token: str,
    state: NewRecords = NO_RECORDS,
) -> HeadRow:
    """Make these messages what follows `base`, with their records, and return the new head row."""
    same = _shared_length(tx, base, items)
    end = Position(base.branch, base.seq + same, base.end)
    if not _is_current(tx, head, end):
        start = start_at(tx, head, end, "replace", token, lowest=base.seq)
        return _open_branch_with(tx, head, start, items[start.fork_seq - base.seq :], state)
    rest = items[same:]
    if not rest:
        return head
    return insert_messages(tx, head, rest, stored_turns=_stored_turns(tx, head, rest))


def _shared_length(tx: Transaction, base: Position, items: Sequence[EncodedMessage]) -> int:
    """Return how many of these messages follow `base` already."""
    same, path = 0, tx.path(base.branch, base.seq + 1)
    most = min(len(items), base.end - base.seq)
    while same < most:
        last = min(same + _PAGE_MESSAGES, most)
        for _, rows in tx.messages(ranges(path, base.seq + same + 1, base.seq + last)):
            for row in rows:
                item = items[same]
                if row.seq != base.seq + same + 1 or row.id != item.id:
                    return same
                # The caller passed back a damaged message: its body never equals the stored one.
                if item.message.status != "damaged" and not codec.is_same_body(row.body, item.body):
                    return same
                same += 1
        if same < last:
            return same
    return same


def _open_branch_with(
    tx: Transaction,
    head: HeadRow,
    start: BranchStart,
    rest: Sequence[EncodedMessage],
    state: NewRecords,
) -> HeadRow:
    """Open a branch and insert messages, some of which other branches may have."""
    again = _stored_turns(tx, head, rest)
    moved = _open_branch(tx, head, start)
    if not rest:
        return moved
    return insert_messages(tx, moved, rest, stored_turns=again, state=state, among=rest)


def _stored_turns(
    tx: Transaction, head: HeadRow, batch: Sequence[EncodedMessage]
) -> dict[str, int | None]:
    """Return the ids that the session stored or inherited, each with its turn if it has one."""
    names = [item.id for item in batch]
    inherited = dict.fromkeys(tx.stored(head.branch, names))
    return {
        **inherited,
        **{row.id: row.turn for _, row in tx.stored_in_sessions([head.session], names)},
    }


# ---------------------------------------------------------------------------------------- amend


def amend(
    session: int,
    message: MessageRef,
    parts: Sequence[Part],
    *,
    token: str,
    now: datetime,
    expect: Head | None,
) -> Operation[Head]:
    """Replace the parts of a message, on a new branch where what follows it is placed again.

    So are the records behind it and later ones. Everything else of it stays: id, role, time, turn,
    metadata, and usage, which is not charged again. The earlier version stays on its branch.
    """
    target = check_position(message, "message")
    if target is None:
        raise BadQuery("message: pass the id or seq of the message to amend")

    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)  # First, as in `_move`.
        done = tx.branch(session, token=token)
        if done is not None:
            return Head(done.number, _branch_left_for(tx, done).last_seq)
        check_expected_head(expect, to_head(head))
        head = require_free_head(tx, head)
        position = resolve_position(tx, head, target)
        if not position.seq or not _is_in_history(tx, head, position):
            raise MessageNotFound("message: that message is not in the current history")
        first, *tail = _read_messages(tx, head.branch, (position.seq, head.seq))
        _check_amendable(first)
        amended = msgspec.structs.replace(first, parts=tuple(parts))
        items = codec.encode_history([amended, *tail], now)
        state = records_from(tx, head, position.seq)
        base = Position(head.branch, position.seq - 1, head.seq)
        return to_head(_replace_tail(tx, head, base, items, token=token, state=state))

    return run


def _check_amendable(message: Message) -> None:
    if message.status == "erased":
        raise BadQuery(f"message: message {message.seq} was erased and has no content to amend")
    if message.role == "summary":
        raise BadQuery(
            f"message: message {message.seq} is a summary; write another with session.summarize()"
        )


# ------------------------------------------------------------------------------------ summarize


def summarize(
    session: int,
    text: str,
    upto: MessageRef | None,
    *,
    message_id: str,
    now: datetime,
    expect: Head | None,
    update: SessionUpdate | None = None,
) -> Operation[Head]:
    """Append a summary that covers the history up to a message; later messages stay in view."""
    if not validation.check_text(text, "text").strip():
        raise BadMessage("text: a summary must not be empty")
    last = check_position(upto, "upto")

    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)
        stored = tx.stored(head.branch, [message_id])
        if message_id in stored:
            return Head(head.branch_no, stored[message_id][1].seq)
        check_expected_head(expect, to_head(head))
        updated = updated_row(tx, session, update)
        position = resolve_position(tx, head, last)
        if not _is_in_history(tx, head, position):
            raise MessageNotFound("upto: that message is not in the current history")
        last_covered = Position(head.branch, position.seq, head.seq)
        covered = safe_cut(tx, last_covered, awaited_calls(tx, head))
        if not covered:
            raise BadQuery("upto: there are no messages before it for a summary to cover")
        (newest,) = read_span(tx, tx.path(head.branch, covered), (covered, covered))
        summary = Message(id=message_id, role="summary", parts=(Text(text),), covers=newest.id)
        moved = insert_messages(tx, head, [codec.encode(summary, now, known=True)])
        put_update(tx, update, updated, alone=False)
        return to_head(moved)

    return run
