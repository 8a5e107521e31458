"""Where sessions stood when they were last written to from here.

A session is mostly written to by one worker for a while. That worker can say where the session
stands without asking, and write in one journey: it says what it supposes, and if that is not so the
server undoes everything, and the write is begun anew with a look. This costs a journey and a line
in the server's log. So it is supposed only of sessions that some writes in a row found as the last
one had left them, and of those that deceived somebody only after more of them. Who supposes has it
for itself: another thread looks meanwhile.

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
LONGEST: Final = 8  # messages
_HEAVIEST: Final = 32_000  # bytes
_NEEDED, _MOST_NEEDED = 2, 64


class Standing(NamedTuple):
    """How a session was left, and how often in a row it was found like that.

    `told` is a time of the server, and what the clock here said when it was heard. `needed` is how
    often it has to be found so before it is supposed to be.
    """

    head: HeadRow
    tail: tuple[MessageRow, ...]
    told: tuple[int, int] | None
    steady: int
    needed: int

    def unsure(self) -> Standing:
        """Return the same as something to be found out."""
        return self._replace(tail=(), told=None, steady=0)

    def reaches(self, newest: int) -> bool:
        """Return whether so many of the newest messages are known."""
        return len(self.tail) >= min(newest, self.head.seq)


class Standings:
    """How the sessions were left. Shared by all who write; what is supposed is always checked."""

    def __init__(self) -> None:
        """Know nothing."""
        # Each step on it is one of the interpreter's: threads need no lock.
        self._known: OrderedDict[int, Standing] = OrderedDict()

    def suppose(self, session: int, newest: int) -> Standing | None:
        """Take what is known of a session, if nobody else seems to write to it.

        So many of the newest messages must be known as well.
        """
        known = self._known.get(session)
        if known is None or known.steady < known.needed or not known.reaches(newest):
            return None
        self._known[session] = known.unsure()
        return known

    def note(
        self,
        found: HeadRow,
        left: HeadRow,
        added: Sequence[MessageRow],
        told: tuple[int, int] | None,
        supposed: Standing | None = None,
    ) -> None:
        """Remember how a session was left by somebody who had found it like this.

        It may have been what was `supposed`.
        """
        known = supposed or self._known.get(found.session)
        tail, steady, needed = tuple(added), 0, _NEEDED
        if known is not None:
            needed = known.needed if supposed is None else max(_NEEDED, known.needed - 1)
            if known.head == found:
                tail, steady = (*known.tail, *added), known.steady + 1
        tail = _end_of(tail) if found.branch == left.branch else ()
        if tail and tail[-1].seq != left.seq:
            tail = ()
        self.keep(Standing(left, tail, told, steady, needed))

    def mistrust(self, standing: Standing) -> None:
        """Return what was supposed and was not so: it will take longer to believe it again."""
        known = self._known.get(standing.head.session, standing)
        needed = min(2 * max(known.needed, standing.needed), _MOST_NEEDED)
        self.keep(standing.unsure()._replace(needed=needed))

    def keep(self, standing: Standing) -> None:
        """Keep this, or give it back."""
        self._known.pop(standing.head.session, None)
        while len(self._known) >= _MOST:
            with suppress(KeyError):  # Somebody else forgot everything.
                self._known.popitem(last=False)  # the one that was left first
        self._known[standing.head.session] = standing

    def clear(self) -> None:
        """Suppose nothing any more: it may be another server that is met next."""
        self._known.clear()


def _end_of(found: Sequence[MessageRow]) -> tuple[MessageRow, ...]:
    """The last of a branch's messages, if they are small; those before a gap are left out."""
    kept = list(found[-LONGEST:])
    weight = sum([len(row.body) for row in kept])
    while kept and (kept[-1].seq - kept[0].seq >= len(kept) or weight > _HEAVIEST):
        weight -= len(kept[0].body)
        del kept[0]
    return tuple(kept)
