"""The sessions that searches read, kept as long as the store is unchanged.

A search reads the sessions of all its matches, often hundreds. Searches in a row read the same
ones again, so they are kept with the connection that read them, until it sees another commit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import apsw

from holdfast.storage.rows import BranchOwner

_MAX_OWNERS: Final = 20_000


class Owners(NamedTuple):
    """Sessions by their branches and by their numbers; None if one is in the trash or gone."""

    by_branch: dict[int, BranchOwner | None]
    by_session: dict[int, BranchOwner | None]

    @classmethod
    def empty(cls) -> Owners:
        """Return no sessions."""
        return cls({}, {})


class OwnerCache:
    """The sessions that were read last, by one connection at one state of the store."""

    def __init__(self) -> None:
        self._known: tuple[apsw.Connection | None, int, Owners] = (None, 0, Owners.empty())

    def current(self, connection: apsw.Connection) -> Owners:
        """Return what was read in the state that a connection is reading now; it may be empty.

        The pragma begins the read if nothing was read yet, and its number changes with every commit
        of another connection. One that reads has no commits of its own.
        """
        version = connection.execute("PRAGMA data_version").get
        known_connection, known_version, owners = self._known
        is_current = known_connection is connection and known_version == version
        if not is_current or len(owners.by_branch) + len(owners.by_session) > _MAX_OWNERS:
            owners = Owners.empty()
            self._known = connection, version, owners
        return owners
