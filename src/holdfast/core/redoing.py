"""What `redo` goes back to.

Every movement of a session's head opens a new branch, numbered upwards, so the branches tell what
was done in which order. As long as nothing was appended since, the newest step back that was not
redone yet can be: its state before is where the branch before it ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Protocol, TypeVar

from holdfast.records import BranchReason

_STEPS_BACK: Final = frozenset({"undo", "rewind", "clear"})


class Step(Protocol):
    """A branch, as far as this needs it."""

    @property
    def reason(self) -> BranchReason:
        """Why it was opened."""
        ...

    @property
    def fork_seq(self) -> int:
        """Where it starts."""
        ...

    @property
    def last_seq(self) -> int:
        """Where it ends."""
        ...


S = TypeVar("S", bound=Step)


def redo_target(newest_first: Iterable[S]) -> S | None:
    """The branch whose end is to be gone back to, of those of a session, the newest first."""
    redone = 0
    for branch, before in pairwise(newest_first):
        if branch.last_seq > branch.fork_seq:
            return None
        if branch.reason == "redo":
            redone += 1
        elif branch.reason not in _STEPS_BACK:
            return None
        elif not redone:
            return before
        else:
            redone -= 1
    return None
