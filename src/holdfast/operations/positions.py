"""Positions in a session's histories: resolving them, and the cut points at which one may branch.

A position is given by a seq of the current history, a message id or a head; the latter two reach
abandoned branches as well. A new branch does not start between a tool call and its result, unless
the caller asks for exactly that: windows then need a made-up result. So a cut moves back to before
the call.
A call that has no result and will get none is not split, and may end a history.

Histories may be long, so all reads have limits: calls are searched for at most
`_MAX_LOOKBACK_MESSAGES` before a cut, results at most `_MAX_LOOKAHEAD_MESSAGES` after it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from holdfast import validation
from holdfast.errors import BadQuery, MessageNotFound
from holdfast.ids import split_turn_id
from holdfast.operations.append import preview_of
from holdfast.operations.history import read_span, read_tools
from holdfast.operations.records import last_record
from holdfast.storage.ancestry import Path, branch_at, record_ranges
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import BranchStart, HeadRow, MessageRow
from holdfast.titles import RANK_USER, Preview, update_preview
from holdfast.values import BranchReason, Head, Message, MessageRef

_LOOKBACK_MESSAGES: Final = 64
_MAX_LOOKBACK_MESSAGES: Final = 10_000
_LOOKAHEAD_MESSAGES: Final = 256
_MAX_LOOKAHEAD_MESSAGES: Final = 2_000
_MAX_REPLY_MESSAGES: Final = 1_000
_MAX_PAGE_MESSAGES: Final = 100
_FIRST_PAGE_MESSAGES: Final = 8
_NO_PREVIEW: Final = Message(role="system")


class Position(msgspec.Struct, frozen=True):
    """A position: `seq` in the history of a branch, which goes on to `end`."""

    branch: int
    seq: int
    end: int


def check_position(target: MessageRef | None, field: str) -> MessageRef | None:
    """Validate and return a position; numbers too large for any store are clamped."""
    if isinstance(target, Head):
        branch = validation.check_number(target.branch, field)
        return Head(branch, validation.check_number(target.seq, field))
    if isinstance(target, str):
        return validation.check_name(target, field)
    return None if target is None else validation.check_number(target, field)


def resolve_position(snapshot: Snapshot, head: HeadRow, target: MessageRef | None) -> Position:
    """Return the position that is named; the end of the current history if none is."""
    if target is None:
        return Position(head.branch, head.seq, head.seq)
    if isinstance(target, Head):
        return _by_head(snapshot, head, target)
    if isinstance(target, str):
        return _by_id(snapshot, head, target)
    if target > head.seq:
        raise MessageNotFound(f"this history ends at {head.seq}; there is no message {target}.")
    return Position(head.branch, target, head.seq)


def _by_head(snapshot: Snapshot, head: HeadRow, target: Head) -> Position:
    branch = snapshot.branch(head.session, target.branch)
    if branch is None or target.seq > branch.last_seq:
        raise MessageNotFound(
            f"this session has no message {target.seq} on branch {target.branch}; "
            "session.branches() lists all branches."
        )
    return Position(branch.n, target.seq, branch.last_seq)


def _by_id(snapshot: Snapshot, head: HeadRow, message_id: str) -> Position:
    return find_message(snapshot, head, message_id)[0]


def find_message(
    snapshot: Snapshot, head: HeadRow, message_id: str
) -> tuple[Position, str, MessageRow]:
    """Return the position of a message, the id of the session that wrote it, and its row.

    The current history is searched first, then the other branches, newest first.
    """
    found = snapshot.stored(head.branch, [message_id])
    if message_id in found:
        owner, row = found[message_id]
        return Position(head.branch, row.seq, head.seq), owner, row
    for branch in reversed(snapshot.branches(session=head.session)):
        found = snapshot.stored(branch.n, [message_id])
        if message_id in found:
            owner, row = found[message_id]
            return Position(branch.n, row.seq, branch.last_seq), owner, row
    raise MessageNotFound(f"no branch of this session has a message {message_id!r}.")


def start_at(
    snapshot: Snapshot,
    head: HeadRow,
    position: Position,
    reason: BranchReason,
    token: str,
    *,
    lowest: int = 0,
) -> BranchStart:
    """Return the start of a new branch that leaves a history at this position or just before.

    The caller wants the history up to `lowest` in any case, also if that splits a tool exchange.
    """
    seq = position.seq
    if seq > lowest:
        seq = max(lowest, safe_cut(snapshot, position, awaited_calls(snapshot, head)))
    parent, record = _parent_at(snapshot, snapshot.path(position.branch, seq), seq)
    return BranchStart(
        parent=parent,
        fork_seq=seq,
        asked_seq=position.seq,
        reason=reason,
        token=token,
        fork_record=record,
    )


def _parent_at(snapshot: Snapshot, path: Path, seq: int) -> tuple[int | None, int | None]:
    """Return the branch that a new one starts on, and the number of the last record it has of it.

    That is the branch with message `seq`, or a newer one that has records behind it.
    """
    for segment in record_ranges(path, seq):
        found = last_record(snapshot, segment, seq)
        if found is not None or segment.first <= seq:
            return segment.branch, None if found is None else found.number
    return None, None


def newest_record(snapshot: Snapshot, position: Position) -> tuple[int, int] | None:
    """Return the branch and number of the newest record at a position, if there is one.

    Two histories that share a message and their newest record share all that they have before.
    """
    for segment in record_ranges(snapshot.path(position.branch), position.seq):
        found = last_record(snapshot, segment, position.seq)
        if found is not None:
            return segment.branch, found.number
    return None


def awaited_calls(snapshot: Snapshot, head: HeadRow) -> set[str]:
    """Return the ids of the open turn's calls whose results are still to come."""
    if head.open_turn is None:
        return set()
    ledger = snapshot.tools(head.session, head.open_turn)
    return {row.call_id for row in ledger if row.outcome in {"called", "running"}}


def safe_cut(snapshot: Snapshot, position: Position, awaited: Collection[str] = ()) -> int:
    """Return the last seq, at this position or before it, that separates no call and result."""
    seq = position.seq
    while seq and (seq < position.end or awaited):
        after = _read_tools_between(
            snapshot, position.branch, seq + 1, min(position.end, seq + _LOOKAHEAD_MESSAGES)
        )
        before = _read_back(snapshot, position.branch, seq, after, awaited)
        if unanswered_calls([*before, *after]):
            # Most results follow at once, some late, some never: read further only if needed.
            last = min(position.end, seq + _MAX_LOOKAHEAD_MESSAGES)
            after += _read_tools_between(snapshot, position.branch, seq + len(after) + 1, last)
        kept = safe_cut_length(before, after, awaited)
        if kept == len(before):
            return seq
        seq -= len(before) - kept
    return seq


def _read_back(
    snapshot: Snapshot,
    branch: int,
    seq: int,
    after: Sequence[Message],
    awaited: Collection[str],
) -> list[Message]:
    """Read back from `seq`, further while there are results whose calls were not read yet."""
    found: list[Message] = []
    low = seq + 1
    while low > 1 and len(found) < _MAX_LOOKBACK_MESSAGES:
        if len(found) >= _LOOKBACK_MESSAGES and not earlier_calls_answered(
            [*found, *after], awaited
        ):
            break
        high, low = low - 1, max(1, low - _LOOKBACK_MESSAGES)
        found = _read_tools_between(snapshot, branch, low, high) + found
    return found


def _read_tools_between(snapshot: Snapshot, branch: int, low: int, high: int) -> list[Message]:
    return read_tools(snapshot, snapshot.path(branch, low), (low, high)) if low <= high else []


# ---------------------------------------------------------------------------------- cut points


def safe_cut_length(
    before: Sequence[Message], after: Sequence[Message], awaited: Collection[str] = ()
) -> int:
    """Return how many of `before` may stay: none of their calls has its result after them.

    `after` holds the messages that follow directly; results of the calls in `awaited` are yet to
    come.
    """
    length = len(before)
    while True:
        answered = earlier_calls_answered([*before[length:], *after], awaited)
        split = [
            at for call, at in _unanswered_call_indexes(before[:length]).items() if call in answered
        ]
        if not split:
            return length
        length = min(split)


def earlier_calls_answered(messages: Sequence[Message], awaited: Collection[str] = ()) -> set[str]:
    """Return the ids of calls made before these messages and answered in or after them."""
    made: set[str] = set()
    earlier: set[str] = set()
    for message in messages:
        earlier.update(r.call_id for r in message.tool_results if r.call_id not in made)
        made.update(call.id for call in message.tool_calls)
    return earlier | (set(awaited) - made)


def unanswered_calls(messages: Sequence[Message]) -> set[str]:
    """Return the ids of calls made and not answered in these messages."""
    return set(_unanswered_call_indexes(messages))


def _unanswered_call_indexes(messages: Sequence[Message]) -> dict[str, int]:
    """Return the unanswered calls, each with the index of the message that made it."""
    calls: dict[str, int] = {}
    for at, message in enumerate(messages):
        for result in message.tool_results:
            calls.pop(result.call_id, None)
        for call in message.tool_calls:
            calls[call.id] = at  # A result belongs to the newest call with its id.
    return calls


# -------------------------------------------------------------------------------------- turns


def seq_before_turns(snapshot: Snapshot, head: HeadRow, turns: int) -> int:
    """Return the seq before the last `turns` turns."""
    if not head.seq:
        raise BadQuery("undo: there is nothing to undo, this history is empty")
    back, seq = _BackwardReader(snapshot, head.branch), head.seq
    for _ in range(turns):
        if not seq:
            break
        seq = _turn_start(back, seq) - 1
    return seq


class _BackwardReader:
    """Reads a history backwards, a page at a time, each larger than the one before."""

    def __init__(self, snapshot: Snapshot, branch: int) -> None:
        self._snapshot = snapshot
        self._branch = branch
        self._size = _FIRST_PAGE_MESSAGES
        self._page: dict[int, Message] = {}

    def at(self, seq: int) -> Message:
        """Return one message."""
        if seq not in self._page:
            low = max(1, seq - self._size + 1)
            path = self._snapshot.path(self._branch, low)
            self._page = dict(enumerate(read_span(self._snapshot, path, (low, seq)), low))
            self._size = min(self._size * 4, _MAX_PAGE_MESSAGES)
        return self._page[seq]

    def first_seq_of_turn(self, turn: str, last: int) -> int | None:
        """Return the first message of a turn, found by its row; `None` if it is not there."""
        session_id, number = split_turn_id(turn)
        session = self._snapshot.find_session(id=session_id, stubs=True)
        row = None if session is None else self._snapshot.turn(session.n, number)
        if row is None:
            return None
        low, high = row.first_seq + 1, min(last, row.first_seq + _LOOKAHEAD_MESSAGES)
        path = self._snapshot.path(self._branch, low)
        read = read_span(self._snapshot, path, (low, high)) if low <= high else []
        return next((seq for seq, m in enumerate(read, low) if m.turn_id == turn), None)


def _turn_start(back: _BackwardReader, last: int) -> int:
    """Return the first seq of the turn that ends at `last`; summaries count as part of it."""
    while last > 1 and back.at(last).role == "summary":
        last -= 1
    turn = back.at(last).turn_id
    return (
        _unrecorded_turn_start(back, last)
        if turn is None
        else _recorded_turn_start(back, last, turn)
    )


def _recorded_turn_start(back: _BackwardReader, last: int, turn: str) -> int:
    """Return the first seq of a recorded turn; messages of other writers may lie within it."""
    first = seq = back.first_seq_of_turn(turn, last) or last
    while seq > 1 and first - seq < _LOOKBACK_MESSAGES:
        seq -= 1
        found = back.at(seq).turn_id
        if found == turn:
            first = seq
        elif found is not None:
            break
    return first


def _unrecorded_turn_start(back: _BackwardReader, last: int) -> int:
    """Return the user message that begins an exchange without a turn.

    A reply that follows none is a turn of its own.
    """
    seq = last
    while back.at(seq).role != "user":
        seq -= 1
        if seq < 1 or last - seq > _MAX_REPLY_MESSAGES or back.at(seq).turn_id is not None:
            return last
    return seq


# ------------------------------------------------------------------------------------ previews


def read_preview(snapshot: Snapshot, branch: int, seq: int) -> Preview:
    """Return the preview of a history up to a message."""
    return continue_preview(snapshot, snapshot.path(branch), (1, seq), Preview())


def continue_preview(
    snapshot: Snapshot,
    path: Path,
    span: tuple[int, int],
    shown: Preview,
    left_out: Collection[int] = (),
) -> Preview:
    """Return the preview after the messages of `span`, of which only the first are read."""
    (low, high), size = span, _FIRST_PAGE_MESSAGES
    while low <= high and shown.rank != RANK_USER:
        page = (low, min(high, low + size - 1))
        read = enumerate(read_span(snapshot, path, page), low)
        messages = [_NO_PREVIEW if seq in left_out else message for seq, message in read]
        shown = update_preview(messages, low, shown)
        low, size = low + size, _MAX_PAGE_MESSAGES
    return shown


def preview_at(snapshot: Snapshot, head: HeadRow, start: BranchStart) -> Preview:
    """Return the preview of a branch that leaves a session's history at `start`."""
    if start.parent is None:
        return Preview()
    shown = preview_of(head)
    here = start.fork_seq <= head.seq and shown.seq <= start.fork_seq
    if (
        here
        and branch_at(snapshot.path(head.branch, start.fork_seq), start.fork_seq) == start.parent
    ):
        return shown  # The previewed message is in both histories.
    return read_preview(snapshot, start.parent, start.fork_seq)
