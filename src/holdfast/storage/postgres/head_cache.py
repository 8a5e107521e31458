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

from holdfast.storage.rows import HeadRow, MessageRow

_MAX_SESSIONS: Final = 1_000
MAX_TAIL_MESSAGES: Final = 8  # messages
_MAX_TAIL_BYTES: Final = 32_000  # bytes
_MIN_CONFIRMATIONS, _MAX_CONFIRMATIONS = 2, 64


class CachedHead(NamedTuple):
    """A session's head after the last write from here, and how often in a row it was confirmed.

    `server_time` is a time of the server, with the local monotonic clock when it was received.
    `required` is how many confirmations in a row are needed before the entry is used.
    """

    head: HeadRow
    tail: tuple[MessageRow, ...]
    server_time: tuple[int, int] | None
    confirmations: int
    required: int

    def unconfirmed(self) -> CachedHead:
        """Return this entry without its tail and confirmations: it may not be used as it is."""
        return CachedHead(self.head, (), None, 0, self.required)

    def covers(self, newest: int) -> bool:
        """True if the tail holds the `newest` last messages, or all that the session has."""
        return len(self.tail) >= min(newest, self.head.seq)


class HeadCache:
    """Heads of the sessions written last. Shared by all writers; the server checks every use."""

    def __init__(self) -> None:
        # Each operation on it is atomic in the interpreter, so threads need no lock.
        self._entries: OrderedDict[int, CachedHead] = OrderedDict()

    def checkout(self, session: int, newest: int) -> CachedHead | None:
        """Check out a session's head, if it has been unchanged between enough writes.

        The tail must cover the `newest` last messages. Return `None` otherwise.
        """
        known = self._entries.get(session)
        if known is None or known.confirmations < known.required or not known.covers(newest):
            return None
        self._entries[session] = known.unconfirmed()
        return known

    def record_commit(
        self,
        before: HeadRow,
        after: HeadRow,
        added: Sequence[MessageRow],
        server_time: tuple[int, int] | None,
        checked_out: CachedHead | None = None,
    ) -> None:
        """Cache a session's head after a committed write, which found the head `before`.

        `checked_out` is the entry that the write used, if it was optimistic.
        """
        known = checked_out or self._entries.get(before.session)
        tail, confirmations, required = tuple(added), 0, _MIN_CONFIRMATIONS
        if known is not None:
            required = known.required
            if checked_out is not None:
                required = max(_MIN_CONFIRMATIONS, required - 1)
            if known.head == before:
                tail, confirmations = (*known.tail, *added), known.confirmations + 1
        tail = _tail_of(tail) if before.branch == after.branch else ()
        if tail and tail[-1].seq != after.seq:
            tail = ()
        self.release(CachedHead(after, tail, server_time, confirmations, required))

    def invalidate(self, entry: CachedHead) -> None:
        """Return an entry that was stale: twice as many confirmations are required from now on."""
        known = self._entries.get(entry.head.session, entry)
        required = min(2 * max(known.required, entry.required), _MAX_CONFIRMATIONS)
        self.release(CachedHead(entry.head, (), None, 0, required))

    def release(self, entry: CachedHead) -> None:
        """Add an entry, or return one that was checked out and not used."""
        self._entries.pop(entry.head.session, None)
        while len(self._entries) >= _MAX_SESSIONS:
            with suppress(KeyError):  # Another thread cleared the cache.
                self._entries.popitem(last=False)  # the least recently written
        self._entries[entry.head.session] = entry

    def clear(self) -> None:
        """Drop all entries: the next connection may reach another server."""
        self._entries.clear()


def _tail_of(messages: Sequence[MessageRow]) -> tuple[MessageRow, ...]:
    """Return the last of a branch's messages that are small enough and have no gap in between."""
    tail = list(messages[-MAX_TAIL_MESSAGES:])
    size = sum([len(row.body) for row in tail])
    while tail and (tail[-1].seq - tail[0].seq >= len(tail) or size > _MAX_TAIL_BYTES):
        size -= len(tail[0].body)
        del tail[0]
    return tuple(tail)
