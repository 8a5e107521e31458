"""Moving a session's head: rewind, undo, redo, replace, clear; and summaries.

Each movement leaves the branch the session is on, where it is, and opens a new one that starts at
the place it goes to. Nothing is copied or changed, branch numbers only grow, so no head ever comes
twice and whoever compares with an older one is refused. Each is made once per `token`.

An open turn stops a movement while its holder lives; one that a crash left open is recovered first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from holdfast import checks, codec
from holdfast.backends.base import HeadRow, Start, Transaction, Verb
from holdfast.codec import Encoded
from holdfast.core.branches import holder, ranges
from holdfast.core.redoing import redo_target
from holdfast.errors import BadMessage, BadQuery, MessageNotFound
from holdfast.records import Head, Message, Place, Text
from holdfast.verbs.appending import (
    compare,
    find_head,
    head_of,
    new_messages,
    place,
    refuse_waiting,
    show_preview,
)
from holdfast.verbs.histories import read_span
from holdfast.verbs.places import (
    Spot,
    awaited_calls,
    back_by_turns,
    check_place,
    locate,
    preview_at,
    start_at,
    whole,
)
from holdfast.verbs.turns import free_head

_PAGE: Final = 500
Decide: TypeAlias = Callable[[Transaction, HeadRow], Start | None]


def rewind(session: int, to: Place, *, token: str, expect: Head | None) -> Verb[Head]:
    """Go back to a place, or over to one on an abandoned branch; it is the newest message then."""
    place = check_place(to, "to")
    if place is None:
        raise BadQuery("to: expected a seq, a message's id or a head")

    def decide(tx: Transaction, head: HeadRow) -> Start | None:
        spot = locate(tx, head, place)
        if spot.seq == head.seq and _is_on(tx, head, spot):
            return None
        return start_at(tx, head, spot, "rewind", token)

    return _move(session, decide, token, expect)


def undo(session: int, turns: int, *, token: str, expect: Head | None) -> Verb[Head]:
    """Take back the last turns."""
    turns = checks.check_number(turns, "n", lowest=1)

    def decide(tx: Transaction, head: HeadRow) -> Start | None:
        spot = Spot(head.branch, back_by_turns(tx, head, turns), head.seq)
        return start_at(tx, head, spot, "undo", token)

    return _move(session, decide, token, expect)


def redo(session: int, *, token: str, expect: Head | None) -> Verb[Head]:
    """Go back to what the last undo, rewind or clear left."""

    def decide(tx: Transaction, head: HeadRow) -> Start | None:
        numbers = range(head.branch_no, 0, -1)
        newest_first = (tx.branch(session, number) for number in numbers)
        target = redo_target(branch for branch in newest_first if branch is not None)
        if target is None:
            raise BadQuery("redo: there is nothing to redo, or something was appended since")
        spot = Spot(target.n, target.last_seq, target.last_seq)
        return start_at(tx, head, spot, "redo", token)

    return _move(session, decide, token, expect)


def clear(session: int, *, token: str, expect: Head | None) -> Verb[Head]:
    """Begin with an empty history."""

    def decide(_: Transaction, head: HeadRow) -> Start | None:
        return Start(reason="clear", token=token) if head.seq else None

    return _move(session, decide, token, expect)


def _move(session: int, decide: Decide, token: str, expect: Head | None) -> Verb[Head]:
    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)  # First: an earlier try may still be under way until then.
        done = tx.branch_by_token(session, token)
        if done is not None:
            return Head(done.number, done.fork_seq)
        head = _movable(tx, head, expect)
        start = decide(tx, head)
        return head_of(head if start is None else _leave(tx, head, start))

    return run


def _movable(tx: Transaction, head: HeadRow, expect: Head | None) -> HeadRow:
    """Return the head of a session that may be moved; its expected place is compared first."""
    compare(expect, head_of(head))
    return free_head(tx, head)


def _leave(tx: Transaction, head: HeadRow, start: Start) -> HeadRow:
    """Leave the branch the session is on, and start another."""
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
    moved = show_preview(moved, shown)
    tx.put_head(moved)
    return moved


def _is_on(tx: Transaction, head: HeadRow, spot: Spot) -> bool:
    """Return whether a place is in the current history."""
    there, here = tx.path(spot.branch, spot.seq), tx.path(head.branch, spot.seq)
    return spot.seq <= head.seq and holder(there, spot.seq) == holder(here, spot.seq)


# ------------------------------------------------------------------------------------- replace


def replace(
    session: int, batch: Sequence[Encoded], *, token: str, expect: Head | None
) -> Verb[Head]:
    """Make these messages the history. What it begins with already is shared, not stored again.

    If the history only grows, it does so on its branch. That this was done before is known then by
    its messages, which are all there behind the head that was expected.
    """

    def run(tx: Transaction) -> Head:
        wanted = new_messages(batch, {})
        head = find_head(tx, session)  # First, as above.
        done = tx.branch_by_token(session, token)
        if done is not None:
            return Head(done.number, len(wanted))
        if expect is not None and _has_grown(tx, head, wanted, expect):
            return Head(head.branch_no, len(wanted))
        head = _movable(tx, head, expect)
        refuse_waiting(tx, head, wanted)
        same = _shared(tx, head, wanted)
        if same < head.seq:
            spot = Spot(head.branch, same, head.seq)
            start = start_at(tx, head, spot, "replace", token)
            return _fill(tx, head, start, wanted[start.fork_seq :])
        if same < len(wanted):
            return head_of(place(tx, head, wanted[same:], again=_known(tx, head, wanted[same:])))
        return head_of(head)

    return run


def _has_grown(tx: Transaction, head: HeadRow, wanted: Sequence[Encoded], seen: Head) -> bool:
    """Return whether the history has all this already, and had not when its head was `seen`."""
    if not isinstance(seen, Head) or seen.branch != head.branch_no or len(wanted) <= seen.seq:
        return False
    return _shared(tx, head, wanted) == len(wanted)


def _shared(tx: Transaction, head: HeadRow, wanted: Sequence[Encoded]) -> int:
    """Count the messages with which the history begins already."""
    same, path = 0, tx.path(head.branch)
    while same < min(len(wanted), head.seq):
        last = min(same + _PAGE, len(wanted), head.seq)
        for _, rows in tx.messages(ranges(path, same + 1, last)):
            for row in rows:
                item = wanted[same]
                if row.seq != same + 1 or row.id != item.id:
                    return same
                # One that could not be read was given back as it was.
                if item.message.status != "damaged" and not codec.same_body(row.body, item.body):
                    return same
                same += 1
        if same < last:
            return same
    return same


def _fill(tx: Transaction, head: HeadRow, start: Start, rest: Sequence[Encoded]) -> Head:
    """Start a branch with messages, some of which may be on others."""
    again = _known(tx, head, rest)
    moved = _leave(tx, head, start)
    return head_of(place(tx, moved, rest, again=again) if rest else moved)


def _known(tx: Transaction, head: HeadRow, batch: Sequence[Encoded]) -> dict[str, int | None]:
    """Find those that the session has or inherited, and to which of its turns they belong."""
    names = [item.id for item in batch]
    inherited = dict.fromkeys(tx.stored(head.branch, names))
    return {**inherited, **{row.id: row.turn for _, row in tx.placed(head.session, names)}}


# ------------------------------------------------------------------------------------ summarize


def summarize(
    session: int,
    text: str,
    upto: Place | None,
    *,
    message_id: str,
    now: datetime,
    expect: Head | None,
) -> Verb[Head]:
    """Append a summary that stands for the history up to a message; what comes later stays."""
    if not checks.check_text(text, "text").strip():
        raise BadMessage("text: a summary has to say something")
    last = check_place(upto, "upto")

    def run(tx: Transaction) -> Head:
        head = find_head(tx, session)
        stored = tx.stored(head.branch, [message_id])
        if message_id in stored:
            return Head(head.branch_no, stored[message_id][1].seq)
        compare(expect, head_of(head))
        spot = locate(tx, head, last)
        if not _is_on(tx, head, spot):
            raise MessageNotFound("upto: that message is not in the current history")
        here = Spot(head.branch, spot.seq, head.seq)
        covered = whole(tx, here, awaited_calls(tx, head))
        if not covered:
            raise BadQuery("upto: there is nothing before it that a summary could stand for")
        (newest,) = read_span(tx, tx.path(head.branch, covered), (covered, covered))
        summary = Message(id=message_id, role="summary", parts=(Text(text),), covers=newest.id)
        return head_of(place(tx, head, [codec.encode(summary, now, known=True)]))

    return run
