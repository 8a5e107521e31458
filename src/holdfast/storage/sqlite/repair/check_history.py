"""History check: which messages of each branch are present, missing or misplaced.

Messages and their branches are both read in file order, so one pass over the two compares them.
`verify` reports the findings; `salvage` repairs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import apsw
import msgspec

from holdfast.storage.sqlite.repair.row_scan import (
    LAST_KEY,
    UNREADABLE,
    Item,
    MisfiledRow,
    Row,
    UnreadableRange,
    Value,
    Values,
)
from holdfast.storage.sqlite.tables import SEQ_BITS, SEQ_MASK, message_rowid
from holdfast.storage.sqlite.transaction import message_capacity

_LINEAR_PROBES: Final = 256
_STEP_DIVISOR: Final = 8
LAST_SEQ_QUERY: Final = (
    "SELECT iif(h.branch = b.n, h.seq, b.last_seq) FROM branches b "
    "LEFT JOIN heads h ON h.session = b.session WHERE b.n = ?"
)


FetchFirst: TypeAlias = Callable[..., tuple[Value, ...] | None]


class BranchExtent(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a branch, as the walk needs it. A branch without a row has no session."""

    number: int
    session: int | None = None
    session_id: str | None = None
    tenant: int | None = None
    fork_seq: int = 0
    last: int | None = None


class PresentMessage(msgspec.Struct, frozen=True):
    """A message at its position; its content is not checked here."""

    branch: BranchExtent
    seq: int
    row: Row


class MissingMessages(msgspec.Struct, frozen=True):
    """Missing messages, from first to last.

    At the end of a branch (`tail`) they are `lost` only if their keys cannot be read; else the
    head may just count too many.
    """

    branch: BranchExtent
    first: int
    last: int
    tail: bool = False
    lost: bool = True


class BeyondHead(msgspec.Struct, frozen=True):
    """A history that continues beyond its head."""

    branch: BranchExtent
    last: int


class MisplacedMessage(msgspec.Struct, frozen=True):
    """A message at a position that cannot be its own."""

    key: int
    values: Values


HistoryFinding: TypeAlias = (
    PresentMessage | MissingMessages | BeyondHead | MisplacedMessage | UnreadableRange
)


class _Lookahead:
    """Scanned items with one row of lookahead; other items are yielded on the way to it."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self.row: Row | None = None
        self.holes: list[UnreadableRange] = []

    def advance(self) -> Iterator[HistoryFinding]:
        """Advance to the next row, yielding misplaced messages and unreadable ranges before it."""
        self.row = None
        for item in self._items:
            if isinstance(item, Row):
                self.row = item
                return
            if isinstance(item, MisfiledRow):
                yield MisplacedMessage(item.key, item.values)
            else:
                self.holes.append(item)
                yield item

    def lost(self, first: int, last: int) -> bool:
        """True if any of these keys could not be read."""
        return any(hole.first <= last and first <= hole.last for hole in self.holes)


def walk(
    items: Iterator[Item], known: Iterator[BranchExtent], capacity: int
) -> Iterator[HistoryFinding]:
    """Compare messages with the branches they belong to, both in file order; yield the findings.

    `capacity` is how many messages the file can hold. A wider gap is not taken for missing
    messages but for one message with a wrong number.
    """
    ahead = _Lookahead(items)
    yield from ahead.advance()
    branch = next(known, None)
    while ahead.row is not None or branch is not None:
        number = None if ahead.row is None else ahead.row.key >> SEQ_BITS
        if branch is not None and (number is None or branch.number <= number):
            yield from _history(branch, ahead, capacity)
            branch = next(known, None)
        elif number is not None:
            yield from _history(BranchExtent(number=number), ahead, capacity)


def _history(branch: BranchExtent, ahead: _Lookahead, capacity: int) -> Iterator[HistoryFinding]:
    expected = branch.fork_seq + 1
    while (row := ahead.row) is not None and row.key >> SEQ_BITS == branch.number:
        yield from ahead.advance()
        seq = row.key & SEQ_MASK
        followed = ahead.row is not None and ahead.row.key == row.key + 1
        if not _is_plausible(branch, seq, expected, capacity, followed=followed):
            yield MisplacedMessage(row.key, row.values)
            continue
        if seq > expected:
            yield MissingMessages(branch, expected, seq - 1)
        yield PresentMessage(branch, seq, row)
        expected = seq + 1
    yield from _end(branch, expected - 1, ahead)


def _is_plausible(
    branch: BranchExtent, seq: int, expected: int, capacity: int, *, followed: bool
) -> bool:
    """False for a lone message beyond the head: it was not written there, its number changed."""
    if seq == expected and branch.number > 0:
        return True
    if branch.number < 1 or seq < expected or seq - expected > capacity:
        return False
    return branch.last is None or seq <= branch.last or followed


def _end(branch: BranchExtent, reached: int, ahead: _Lookahead) -> Iterator[HistoryFinding]:
    if branch.last is None:
        return
    if reached < branch.last:
        first, last = (
            message_rowid(branch.number, reached + 1),
            message_rowid(branch.number, branch.last),
        )
        lost = ahead.lost(first, last)
        yield MissingMessages(branch, reached + 1, branch.last, tail=True, lost=lost)
    elif reached > branch.last:
        yield BeyondHead(branch, reached)


def next_probe_key(first: FetchFirst, key: int) -> int:
    """Return the next key after `key` worth probing where the table cannot be read.

    A readable page may begin with any message. So each of a branch's first messages is probed, then
    ever fewer of them, and then the first message of the next branch.
    """
    number, seq = key >> SEQ_BITS, key & SEQ_MASK
    begin, end = _ends(first, number)
    if seq < begin <= end:
        return message_rowid(number, begin)
    if seq < end:
        away = seq - begin + 1
        return min(
            key + (1 if away < _LINEAR_PROBES else away // _STEP_DIVISOR),
            message_rowid(number, end),
        )
    following = first("SELECT min(n) FROM branches WHERE n > ?", number)
    if following is None or not isinstance(following[0], int):
        return LAST_KEY
    return min(message_rowid(following[0], max(1, _ends(first, following[0])[0])), LAST_KEY)


def _ends(first: FetchFirst, branch: int) -> tuple[int, int]:
    """Return the first and last seq of a branch, as far as they are known."""
    start = first("SELECT fork_seq FROM branches WHERE n = ?", branch)
    last = first(LAST_SEQ_QUERY, branch)
    low = start[0] if start and isinstance(start[0], int) else 0
    high = last[0] if last and isinstance(last[0], int) else 0
    return low + 1, min(high, SEQ_MASK)


def max_messages(connection: apsw.Connection) -> int:
    """Return how many messages a file of this size could hold at most."""
    try:
        pages = connection.execute("PRAGMA page_count").get
        size = connection.execute("PRAGMA page_size").get
    except UNREADABLE:
        return 0
    return message_capacity(int(pages) * int(size))
