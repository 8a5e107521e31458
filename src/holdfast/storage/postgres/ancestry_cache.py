"""A cache of branch ancestry: finding out the path of a history takes a round trip."""

from __future__ import annotations

from typing import Final

from holdfast.storage.ancestry import Path
from holdfast.storage.postgres.conversion import split_branch

_MAX_SEGMENTS: Final = 64
_MAX_PATHS: Final = 100_000


class AncestryCache:
    """Paths from a branch back to the start of its history, and the sessions they belong to.

    Shared by all readers and writers. Branches never move, so entries do not become stale.
    """

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}
        self._sessions: dict[int, frozenset[int]] = {}

    def get(self, branch: int) -> Path | None:
        """Return the path of a branch, if it is cached."""
        return self._paths.get(branch)

    def add(self, branch: int, path: Path) -> None:
        """Cache the path of a branch, if it is short; a full cache is cleared first."""
        if len(path) <= _MAX_SEGMENTS:
            if len(self._paths) >= _MAX_PATHS:
                self._paths.clear()
                self._sessions.clear()
            self._paths[branch] = path
            session = split_branch(branch)[0]
            found = frozenset(split_branch(segment.branch)[0] for segment in path)
            self._sessions[session] = self.sessions_of(session) | found

    def sessions_of(self, session: int) -> frozenset[int]:
        """Return a session, and those whose messages its cached paths run through."""
        return self._sessions.get(session, frozenset((session,)))

    def has_session(self, session: int) -> bool:
        """True if the path of one of a session's branches is cached."""
        return session in self._sessions
