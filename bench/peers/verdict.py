"""What a store kept, compared with what it acknowledged.

A message is *lost* if its turn was acknowledged and it is not in the history. A turn is *torn* if
some of its messages are there and others are not, *interleaved* if all are there, but not one after
the other. A message that is there twice is *doubled*; one that is there, but not as it was given,
is *changed*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from bench.peers.turns import MESSAGES_PER_TURN, Mark


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what went wrong: messages lost, doubled and changed; turns torn and interleaved."""

    lost: int
    torn: int
    interleaved: int
    doubled: int
    changed: int

    @property
    def flawless(self) -> bool:
        """Whether nothing went wrong."""
        return not any(msgspec.structs.astuple(self))

    def __str__(self) -> str:
        """Return the counts that are not 0; losses and torn turns always."""
        counts = msgspec.structs.asdict(self)
        shown = {name: n for name, n in counts.items() if n or name in ("lost", "torn")}
        return ", ".join(f"{n:,} {name}" for name, n in shown.items())


def judge(acknowledged: Iterable[tuple[str, int]], history: Sequence[Mark | None]) -> Verdict:
    """Compare the turns that were acknowledged, each a writer and a number, with a history."""
    marks = [mark for mark in history if mark is not None]
    places: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for place, mark in enumerate(history):
        if mark is not None:
            places[mark.writer, mark.turn].setdefault(mark.message, place)
    whole = [found for found in places.values() if len(found) == MESSAGES_PER_TURN]
    return Verdict(
        lost=sum(MESSAGES_PER_TURN - len(places.get(turn, ())) for turn in acknowledged),
        torn=len(places) - len(whole),
        interleaved=sum(not _adjacent(found) for found in whole),
        doubled=sum(count - 1 for count in Counter(marks).values()),
        changed=len(history) - len(marks),
    )


def _adjacent(found: dict[int, int]) -> bool:
    order = [found[message] for message in range(MESSAGES_PER_TURN)]
    return all(second == first + 1 for first, second in pairwise(order))
