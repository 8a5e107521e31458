"""Moving a session's head: rewind, undo, redo, replace, clear; and summaries.

Each move leaves the current branch as it is and opens a new one that starts at the target position.
Nothing is copied or changed, and branch numbers only grow: no head occurs twice, so a write that
expects an older head is refused. A move is idempotent by its `token`.

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
from holdfast.errors import BadMessage, BadQuery, MessageNotFound
from holdfast.operations.append import (
    check_expected_head,
    find_head,
    insert_messages,
    new_messages,
    refuse_queued_conflict,
    to_head,
    with_preview,
)
from holdfast.operations.history import read_span
from holdfast.operations.positions import (
    Position,
    awaited_calls,
    check_position,
    preview_at,
    resolve_position,
    safe_cut,
    seq_before_turns,
    start_at,
)
from holdfast.operations.turns import require_free_head
from holdfast.storage.ancestry import branch_at, ranges
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchStart, HeadRow
from holdfast.values import BranchReason, Head, Message, MessageRef, Text

_PAGE_MESSAGES: Final = 500
_REDOABLE_REASONS: Final = frozenset({"undo", "rewind", "clear"})
ChooseStart: TypeAlias = Callable[[Transaction, HeadRow], BranchStart | None]


def rewind(session: int, to: MessageRef, *, token: str, expect: Head | None) -> Operation[Head]:
    """Move the head to a position, which may be on an abandoned branch."""
    target = check_position(to, "to")
    if target is None:
        raise BadQuery("to: expected a seq, a message's id or a head")

    def decide(tx: Transaction, head: HeadRow) -> BranchStart | None:
        position = resolve_position(tx, head, target)
        if position.seq == head.seq and _is_in_history(tx, head, position):
            return None
        return start_at(tx, head, position, "rewind", token)

    return _move(session, decide, token, expect)


def undo(session: int, turns: int, *, token: str, expect: Head | None) -> Operation[Head]:
    """Move the head to before the last `turns` turns."""
    turns = validation.check_number(turns, "n", lowest=1)

    def decide(tx: Transaction, head: HeadRow) -> BranchStart | None:
        position = Position(head.branch, seq_before_turns(tx, head, turns), head.seq)
        return start_at(tx, head, position, "undo", token)

    return _move(session, decide, token, expect)


def redo(session: int, *, token: str, expect: Head | None) -> Operation[Head]:
    """Move the head to where it was before the last undo, rewind or clear."""

    def decide(tx: Transaction, head: HeadRow) -> BranchStart | None:
        numbers = range(head.branch_no, 0, -1)
        newest_first = (tx.branch(session, number) for number in numbers)
        target = redo_target(branch for branch in newest_first if branch is not None)
        if target is None:
            raise BadQuery("redo: there is nothing to redo, or something was appended since")
        position = Position(target.n, target.last_seq, target.last_seq)
        return start_at(tx, head, position, "redo", token)

    return _move(session, decide, token, expect)


def clear(session: int, *, token: str, expect: Head | None) -> Operation[Head]:
    """Move the head to an empty history."""

    def decide(_: Transaction, head: HeadRow) -> BranchStart | None:
        return BranchStart(reason="clear", token=token) if head.seq else None

    return _move(session, decide, token, expect)


def _move(session: int, decide: ChooseStart, token: str, expect: Head | None) -> Operation[Head]:
    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)  # First: it waits for an earlier attempt.
        done = tx.branch(session, token=token)
        if done is not None:
            return Head(done.number, done.fork_seq)
        head = _check_movable(tx, head, expect)
        start = decide(tx, head)
        return to_head(head if start is None else _open_branch(tx, head, start))

    return run


def _check_movable(tx: Transaction, head: HeadRow, expect: Head | None) -> HeadRow:
    """Compare the head with `expect`, recover or refuse an open turn, and return the head."""
    check_expected_head(expect, to_head(head))
    return require_free_head(tx, head)


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
    )
    moved = with_preview(moved, shown)
    tx.put_head(moved)
    return moved


def _is_in_history(tx: Transaction, head: HeadRow, position: Position) -> bool:
    """True if a position is in the current history."""
    there, here = tx.path(position.branch, position.seq), tx.path(head.branch, position.seq)
    return position.seq <= head.seq and branch_at(there, position.seq) == branch_at(
        here, position.seq
    )


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
    session: int, batch: Sequence[EncodedMessage], *, token: str, expect: Head | None
) -> Operation[Head]:
    """Make these messages the history. A prefix that it has already is shared, not stored again.

    If the history only grows, it does so on its branch. Then there is no new branch with the token,
    and a retry is recognized by its messages, all stored after the expected head.
    """

    def run(tx: Transaction) -> Head:
        items = new_messages(batch, {})
        head = find_head(tx, session)  # First, as in `_move`.
        done = tx.branch(session, token=token)
        if done is not None:
            return Head(done.number, len(items))
        if expect is not None and _is_appended(tx, head, items, expect):
            return Head(head.branch_no, len(items))
        head = _check_movable(tx, head, expect)
        refuse_queued_conflict(tx, head, items)
        same = _shared_prefix_length(tx, head, items)
        if same < head.seq:
            position = Position(head.branch, same, head.seq)
            start = start_at(tx, head, position, "replace", token)
            return _open_branch_with(tx, head, start, items[start.fork_seq :])
        if same < len(items):
            return to_head(
                insert_messages(
                    tx, head, items[same:], stored_turns=_stored_turns(tx, head, items[same:])
                )
            )
        return to_head(head)

    return run


def _is_appended(
    tx: Transaction, head: HeadRow, items: Sequence[EncodedMessage], seen: Head
) -> bool:
    """True if the history has all these messages now, and had not when its head was `seen`."""
    if not isinstance(seen, Head) or seen.branch != head.branch_no or len(items) <= seen.seq:
        return False
    return _shared_prefix_length(tx, head, items) == len(items)


def _shared_prefix_length(tx: Transaction, head: HeadRow, items: Sequence[EncodedMessage]) -> int:
    """Return how many of these messages the history begins with."""
    same, path = 0, tx.path(head.branch)
    while same < min(len(items), head.seq):
        last = min(same + _PAGE_MESSAGES, len(items), head.seq)
        for _, rows in tx.messages(ranges(path, same + 1, last)):
            for row in rows:
                item = items[same]
                if row.seq != same + 1 or row.id != item.id:
                    return same
                # The caller passed back a damaged message: its body never equals the stored one.
                if item.message.status != "damaged" and not codec.is_same_body(row.body, item.body):
                    return same
                same += 1
        if same < last:
            return same
    return same


def _open_branch_with(
    tx: Transaction, head: HeadRow, start: BranchStart, rest: Sequence[EncodedMessage]
) -> Head:
    """Open a branch and insert messages, some of which other branches may have."""
    again = _stored_turns(tx, head, rest)
    moved = _open_branch(tx, head, start)
    return to_head(insert_messages(tx, moved, rest, stored_turns=again) if rest else moved)


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


# ------------------------------------------------------------------------------------ summarize


def summarize(
    session: int,
    text: str,
    upto: MessageRef | None,
    *,
    message_id: str,
    now: datetime,
    expect: Head | None,
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
        position = resolve_position(tx, head, last)
        if not _is_in_history(tx, head, position):
            raise MessageNotFound("upto: that message is not in the current history")
        last_covered = Position(head.branch, position.seq, head.seq)
        covered = safe_cut(tx, last_covered, awaited_calls(tx, head))
        if not covered:
            raise BadQuery("upto: there are no messages before it for a summary to cover")
        (newest,) = read_span(tx, tx.path(head.branch, covered), (covered, covered))
        summary = Message(id=message_id, role="summary", parts=(Text(text),), covers=newest.id)
        return to_head(insert_messages(tx, head, [codec.encode(summary, now, known=True)]))

    return run
