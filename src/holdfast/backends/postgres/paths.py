"""The ways along which histories run, remembered: finding one out is a journey to the server."""

from __future__ import annotations

from typing import Final

from holdfast.backends.postgres.rows import split_branch
from holdfast.core.branches import Path

_LONGEST_KEPT: Final = 64
_MOST_PATHS: Final = 100_000


class Paths:
    """The ways back that are known, by their branch, and the sessions they are of.

    Shared by all who read and write. Branches never move, so what is known stays right.
    """

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[int, Path] = {}
        self._sessions: set[int] = set()

    def get(self, branch: int) -> Path | None:
        """Return the way back from a branch, if it is known."""
        return self._known.get(branch)

    def keep(self, branch: int, path: Path) -> None:
        """Remember the way back from a branch, if it is short."""
        if len(path) <= _LONGEST_KEPT:
            if len(self._known) >= _MOST_PATHS:
                self._known.clear()
                self._sessions.clear()
            self._known[branch] = path
            self._sessions.add(split_branch(branch)[0])

    def knows(self, session: int) -> bool:
        """Return whether the way back from one of a session's branches is known."""
        return session in self._sessions
