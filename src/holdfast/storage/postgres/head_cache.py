"""A cache of session heads, so that an append to a session written before takes one round trip.

A session is mostly written to by one worker for a while. That worker need not read the head again:
it sends the head that it expects together with the write. If the head has moved, the server rolls
everything back, and the write is run again after reading the head. A miss costs a round trip and a
line in the server's log.

So a cached head is used only after N consecutive writes found the session unchanged; each miss
doubles N. One thread at a time may check out an entry; others read the head from the server.

The last messages of the session are cached with its head, if they are small: token estimates of a
reply are calibrated by the messages before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from holdfast.storage.protocol import HeadRow, MessageRow

_MOST: Final = 1_000
LONGEST: Final = 8  # messages
_HEAVIEST: Final = 32_000  # bytes
_NEEDED, _MOST_NEEDED = 2, 64


class Standing(NamedTuple):
    """A session's head after the last write from here, and how often in a row it was confirmed.

    `server_time` is a time of the server, with the local monotonic clock when it was received.
    `required` is how many confirmations in a row are needed before the entry is used.
    """

    head: HeadRow
    tail: tuple[MessageRow, ...]
    told: tuple[int, int] | None
    steady: int
    needed: int

    def unsure(self) -> Standing:
        """Return this entry without its tail and confirmations: it may not be used as it is."""
        return Standing(self.head, (), None, 0, self.needed)

    def reaches(self, newest: int) -> bool:
        """True if the tail holds the `newest` last messages, or all that the session has."""
        return len(self.tail) >= min(newest, self.head.seq)


class Standings:
    """Heads of the sessions written last. Shared by all writers; the server checks every use."""

    def __init__(self) -> None:
        # Each operation on it is atomic in the interpreter, so threads need no lock.
        self._known: OrderedDict[int, Standing] = OrderedDict()

    def suppose(self, session: int, newest: int) -> Standing | None:
        """Check out a session's head, if it has been unchanged between enough writes.

        The tail must cover the `newest` last messages. Return `None` otherwise.
        """
        known = self._known.get(session)
        if known is None or known.steady < known.needed or not known.reaches(newest):
            return None
        self._known[session] = known.unsure()
        return known

    def note(
        self,
        before: HeadRow,
        after: HeadRow,
        added: Sequence[MessageRow],
        server_time: tuple[int, int] | None,
        checked_out: Standing | None = None,
    ) -> None:
        """Cache a session's head after a committed write, which found the head `before`.

        `checked_out` is the entry that the write used, if it was optimistic.
        """
        known = checked_out or self._known.get(before.session)
        tail, steady, needed = tuple(added), 0, _NEEDED
        if known is not None:
            needed = known.needed if checked_out is None else max(_NEEDED, known.needed - 1)
            if known.head == before:
                tail, steady = (*known.tail, *added), known.steady + 1
        tail = _end_of(tail) if before.branch == after.branch else ()
        if tail and tail[-1].seq != after.seq:
            tail = ()
        self.keep(Standing(after, tail, server_time, steady, needed))

    def mistrust(self, standing: Standing) -> None:
        """Return an entry that was stale: twice as many confirmations are required from now on."""
        known = self._known.get(standing.head.session, standing)
        needed = min(2 * max(known.needed, standing.needed), _MOST_NEEDED)
        self.keep(Standing(standing.head, (), None, 0, needed))

    def keep(self, standing: Standing) -> None:
        """Add an entry, or return one that was checked out and not used."""
        self._known.pop(standing.head.session, None)
        while len(self._known) >= _MOST:
            with suppress(KeyError):  # Another thread cleared the cache.
                self._known.popitem(last=False)  # the least recently written
        self._known[standing.head.session] = standing

    def clear(self) -> None:
        """Drop all entries: the next connection may reach another server."""
        self._known.clear()


def _end_of(messages: Sequence[MessageRow]) -> tuple[MessageRow, ...]:
    """Return the last of a branch's messages that are small enough and have no gap in between."""
    tail = list(messages[-LONGEST:])
    size = sum([len(row.body) for row in tail])
    while tail and (tail[-1].seq - tail[0].seq >= len(tail) or size > _HEAVIEST):
        size -= len(tail[0].body)
        del tail[0]
    return tuple(tail)
