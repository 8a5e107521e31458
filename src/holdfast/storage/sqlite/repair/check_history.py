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
    Hole,
    Item,
    Row,
    Stray,
    Value,
    Values,
)
from holdfast.storage.sqlite.transaction import place

SEQ_BITS: Final = 32
SEQ_MASK: Final = (1 << SEQ_BITS) - 1
SMALLEST_MESSAGE: Final = 16
_ONE_BY_ONE: Final = 256
_GROWTH: Final = 8
LAST_OF_BRANCH: Final = (
    "SELECT iif(h.branch = b.n, h.seq, b.last_seq) FROM branches b "
    "LEFT JOIN heads h ON h.session = b.session WHERE b.n = ?"
)


First: TypeAlias = Callable[..., tuple[Value, ...] | None]


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a branch, as the walk needs it. A branch without a row has no session."""

    number: int
    session: int | None = None
    session_id: str | None = None
    tenant: int | None = None
    fork_seq: int = 0
    last: int | None = None


class Found(msgspec.Struct, frozen=True):
    """A message at its position; its content is not checked here."""

    branch: Branch
    seq: int
    row: Row


class Missing(msgspec.Struct, frozen=True):
    """Missing messages, from first to last.

    At the end of a branch (`tail`) they are `lost` only if their keys cannot be read; else the
    head may just count too many.
    """

    branch: Branch
    first: int
    last: int
    tail: bool = False
    lost: bool = True


class Longer(msgspec.Struct, frozen=True):
    """A history that continues beyond its head."""

    branch: Branch
    last: int


class Misplaced(msgspec.Struct, frozen=True):
    """A message at a position that cannot be its own."""

    key: int
    values: Values


Finding: TypeAlias = Found | Missing | Longer | Misplaced | Hole


class _Ahead:
    """Scanned items with one row of lookahead; other items are yielded on the way to it."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self.row: Row | None = None
        self.holes: list[Hole] = []

    def advance(self) -> Iterator[Finding]:
        """Advance to the next row, yielding misplaced messages and unreadable ranges before it."""
        self.row = None
        for item in self._items:
            if isinstance(item, Row):
                self.row = item
                return
            if isinstance(item, Stray):
                yield Misplaced(item.key, item.values)
            else:
                self.holes.append(item)
                yield item

    def lost(self, first: int, last: int) -> bool:
        """True if any of these keys could not be read."""
        return any(hole.first <= last and first <= hole.last for hole in self.holes)


def walk(items: Iterator[Item], known: Iterator[Branch], capacity: int) -> Iterator[Finding]:
    """Compare messages with the branches they belong to, both in file order; yield the findings.

    `capacity` is how many messages the file can hold. A wider gap is not taken for missing
    messages but for one message with a wrong number.
    """
    ahead = _Ahead(items)
    yield from ahead.advance()
    branch = next(known, None)
    while ahead.row is not None or branch is not None:
        number = None if ahead.row is None else ahead.row.key >> SEQ_BITS
        if branch is not None and (number is None or branch.number <= number):
            yield from _history(branch, ahead, capacity)
            branch = next(known, None)
        elif number is not None:
            yield from _history(Branch(number=number), ahead, capacity)


def _history(branch: Branch, ahead: _Ahead, capacity: int) -> Iterator[Finding]:
    expected = branch.fork_seq + 1
    while (row := ahead.row) is not None and row.key >> SEQ_BITS == branch.number:
        yield from ahead.advance()
        seq = row.key & SEQ_MASK
        followed = ahead.row is not None and ahead.row.key == row.key + 1
        if not _believable(branch, seq, expected, capacity, followed=followed):
            yield Misplaced(row.key, row.values)
            continue
        if seq > expected:
            yield Missing(branch, expected, seq - 1)
        yield Found(branch, seq, row)
        expected = seq + 1
    yield from _end(branch, expected - 1, ahead)


def _believable(branch: Branch, seq: int, expected: int, capacity: int, *, followed: bool) -> bool:
    """False for a lone message beyond the head: it was not written there, its number changed."""
    if seq == expected and branch.number > 0:
        return True
    if branch.number < 1 or seq < expected or seq - expected > capacity:
        return False
    return branch.last is None or seq <= branch.last or followed


def _end(branch: Branch, reached: int, ahead: _Ahead) -> Iterator[Finding]:
    if branch.last is None:
        return
    if reached < branch.last:
        first, last = place(branch.number, reached + 1), place(branch.number, branch.last)
        lost = ahead.lost(first, last)
        yield Missing(branch, reached + 1, branch.last, tail=True, lost=lost)
    elif reached > branch.last:
        yield Longer(branch, reached)


def next_try(first: First, key: int) -> int:
    """Return the next key after `key` worth probing where the table cannot be read.

    A readable page may begin with any message. So each of a branch's first messages is probed, then
    ever fewer of them, and then the first message of the next branch.
    """
    number, seq = key >> SEQ_BITS, key & SEQ_MASK
    begin, end = _ends(first, number)
    if seq < begin <= end:
        return place(number, begin)
    if seq < end:
        away = seq - begin + 1
        return min(key + (1 if away < _ONE_BY_ONE else away // _GROWTH), place(number, end))
    following = first("SELECT min(n) FROM branches WHERE n > ?", number)
    if following is None or not isinstance(following[0], int):
        return LAST_KEY
    return min(place(following[0], max(1, _ends(first, following[0])[0])), LAST_KEY)


def _ends(first: First, branch: int) -> tuple[int, int]:
    """Return the first and last seq of a branch, as far as they are known."""
    start = first("SELECT fork_seq FROM branches WHERE n = ?", branch)
    last = first(LAST_OF_BRANCH, branch)
    low = start[0] if start and isinstance(start[0], int) else 0
    high = last[0] if last and isinstance(last[0], int) else 0
    return low + 1, min(high, SEQ_MASK)


def capacity(connection: apsw.Connection) -> int:
    """Return how many messages a file of this size could hold at most."""
    try:
        pages = connection.execute("PRAGMA page_count").get
        size = connection.execute("PRAGMA page_size").get
    except UNREADABLE:
        return 0
    return int(pages) * int(size) // SMALLEST_MESSAGE
