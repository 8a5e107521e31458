"""Where sessions stood when they were last written to from here.

A session is mostly written to by one worker for a while. That worker can say where the session
stands without asking, and write in one journey: it says what it supposes, and if that is not so the
server undoes everything, and the write is begun anew with a look. This costs a journey and a line
in the server's log. So it is supposed only of sessions that some writes in a row found as the last
one had left them; where several write at once, nobody supposes anything.

The messages that were added last are kept with it, if they are small: replies are measured by what
came before them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from holdfast.backends.base import HeadRow, MessageRow

_MOST: Final = 1_000
_LONGEST: Final = 8  # messages
_HEAVIEST: Final = 32_000  # bytes
_STEADY: Final = 2


class Standing(NamedTuple):
    """How a session was left, and how often in a row it was found like that.

    `told` is a time of the server, and what the clock here said when it was heard.
    """

    head: HeadRow
    tail: tuple[MessageRow, ...]
    told: tuple[int, int] | None
    steady: int

    def reaches(self, newest: int) -> bool:
        """Say whether so many of the newest messages are known."""
        return len(self.tail) >= min(newest, self.head.seq)


class Standings:
    """How the sessions were left. Shared by all who write; what is supposed is always checked."""

    def __init__(self) -> None:
        """Know nothing."""
        # Each step on it is one of the interpreter's: threads need no lock.
        self._known: OrderedDict[int, Standing] = OrderedDict()

    def suppose(self, session: int) -> Standing | None:
        """Say where a session stands, if nobody else seems to write to it."""
        known = self._known.get(session)
        return None if known is None or known.steady < _STEADY else known

    def note(
        self,
        found: HeadRow,
        left: HeadRow,
        added: Sequence[MessageRow],
        told: tuple[int, int] | None,
    ) -> None:
        """Remember how a session was left by somebody who had found it like this."""
        known = self._known.pop(found.session, None)
        tail, steady = tuple(added), 0
        if known is not None and known.head == found:
            tail, steady = (*known.tail, *added), known.steady + 1
        while len(self._known) >= _MOST:
            with suppress(KeyError):  # Somebody else forgot everything.
                self._known.popitem(last=False)  # the one that was left first
        kept = end_of(tail, left.seq) if found.branch == left.branch else ()
        self._known[found.session] = Standing(left, kept, told, steady)

    def forget(self, session: int) -> None:
        """Suppose nothing of a session: somebody else writes to it."""
        self._known.pop(session, None)

    def clear(self) -> None:
        """Suppose nothing any more: it may be another server that is met next."""
        self._known.clear()


def end_of(found: Sequence[MessageRow], last: int) -> tuple[MessageRow, ...]:
    """Give those of a branch's messages that are kept: up to the last one, without gaps."""
    kept: list[MessageRow] = []
    weight = 0
    for row in reversed(found):
        weight += len(row.body)
        if row.seq != last - len(kept) or len(kept) == _LONGEST or weight > _HEAVIEST:
            break
        kept.append(row)
    return tuple(reversed(kept))
