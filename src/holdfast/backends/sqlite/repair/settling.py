"""Putting the last things right, once the messages have told how long every branch is.

A branch starts on the branch where the message lies that it starts behind. What a purge left of a
session stays so only if each of its branches is as long as others need; if the damage took those
others, it becomes a session again: what they shared is not lost with them. Where a branch is lost,
an empty one has its number, so that the others keep theirs.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.backends.sqlite.repair.carrying import Carrier
from holdfast.backends.sqlite.repair.mending import Mender
from holdfast.backends.sqlite.repair.scan import UNREADABLE
from holdfast.backends.sqlite.repair.standing import BLANK

_FEW: Final = 1_000
_FLOOR: Final = "activity of "
_MOST_ACTIVITY: Final = 1 << 53


class Settler:
    """Settles starts, husks, numbers and what the store keeps of itself."""

    def __init__(self, carrier: Carrier, mender: Mender) -> None:
        """Settle what the others have carried."""
        self._carrier = carrier
        self._mender = mender

    def run(self) -> None:
        """Settle all of it."""
        self._starts()
        self._husks()
        self._numbers()
        self._floors()

    def _starts(self) -> None:
        """Let every branch start on the one that has the message, not on one behind it."""
        query = (
            "SELECT b.n, p.parent FROM branches b JOIN branches p ON p.n = b.parent "
            "WHERE b.fork_seq <= p.fork_seq"
        )
        while found := self._carrier.all(query):
            for n, parent in found:
                self._carrier.execute("UPDATE branches SET parent = ? WHERE n = ?", parent, n)

    # ------------------------------------------------------------------------------------ husks

    def _husks(self) -> None:
        query = "SELECT n FROM sessions WHERE purged_at IS NOT NULL"
        for (session,) in self._carrier.all(query):
            self._settle_husk(session)

    def _settle_husk(self, session: int) -> None:
        query = (
            "SELECT count(*), count(*) FILTER (WHERE last_seq IS "
            "(SELECT max(fork_seq) FROM branches c WHERE c.parent = b.n)) "
            "FROM branches b WHERE session = ?"
        )
        count, needed = self._carrier.first(query, session) or (0, 0)
        if not count:
            self._carrier.tell("the session was purged, and nothing needs it any more", session)
            self._carrier.execute("DELETE FROM sessions WHERE n = ?", session)
        elif count != needed:
            self._revive(session)
        else:
            self._blank(session)

    def _revive(self, session: int) -> None:
        """Make a session of what a purge left for others that are lost."""
        query = (
            "UPDATE sessions SET purged_at = NULL, title = 'salvaged: what lost forks shared', "
            "title_by = 'auto' WHERE n = ?"
        )
        self._carrier.execute(query, session)
        query = "SELECT n, number FROM branches WHERE session = ? ORDER BY number DESC"
        newest = self._carrier.first(query, session) or (0, 0)
        self._mender.new_head(session, newest)
        end = "SELECT last_seq FROM branches WHERE n = branch"
        self._carrier.execute(f"UPDATE heads SET seq = ({end}) WHERE session = ?", session)  # noqa: S608
        self._carrier.execute("UPDATE branches SET last_seq = NULL WHERE n = ?", newest[0])
        said = "the session was purged but for what forks share; these are damaged, so it is kept"
        self._carrier.tell(said, session)

    def _blank(self, session: int) -> None:
        """Let nothing be left of a purged session but what others need."""
        names = ", ".join(BLANK)
        kept = self._carrier.first(f"SELECT {names} FROM sessions WHERE n = ?", session)  # noqa: S608
        if kept == tuple(BLANK.values()):
            return
        blank = ", ".join(f"{name} = ?" for name in BLANK)
        query = f"UPDATE sessions SET {blank} WHERE n = ?"  # noqa: S608
        self._carrier.execute(query, *BLANK.values(), session)
        self._carrier.tell("the session was purged, and something of it was still there", session)

    # ---------------------------------------------------------------------------------- numbers

    def _numbers(self) -> None:
        query = (
            "SELECT b.session, count(*), max(b.number) FROM branches b "
            "JOIN heads h ON h.session = b.session GROUP BY b.session HAVING count(*) < max(number)"
        )
        for session, count, highest in self._carrier.all(query):
            if highest - count > _FEW:
                self._close_up(session)
            else:
                self._fill_up(session, highest)

    def _fill_up(self, session: int, highest: int) -> None:
        """Put an empty branch in the place of each that is lost."""
        for number in range(1, highest):
            query = "SELECT n FROM branches WHERE session = ? AND number = ?"
            if not self._carrier.number(query, session, number):
                self._mender.new_branch(None, session, number)
                self._carrier.tell(f"branch {number} is lost", session)

    def _close_up(self, session: int) -> None:
        """Number the branches anew; a number was too wrong to be one."""
        query = "SELECT n FROM branches WHERE session = ? ORDER BY number"
        for number, (n,) in enumerate(self._carrier.all(query, session), 1):
            self._carrier.execute("UPDATE branches SET number = ? WHERE n = ?", number, n)
        query = (
            "UPDATE heads SET branch_no = (SELECT number FROM branches WHERE n = branch) "
            "WHERE session = ?"
        )
        self._carrier.execute(query, session)
        self._carrier.tell("the session's branches are numbered anew", session)

    # ------------------------------------------------------------------------------ the store's own

    def _floors(self) -> None:
        """Carry which activity numbers were given out to sessions that are purged."""
        named = "SELECT CAST(name AS BLOB), value FROM meta"
        found: list[Any] = []
        for query in (named, f"{named} INDEXED BY meta_by_value"):
            try:
                found += self._carrier.source.execute(query).fetchall()
            except (*UNREADABLE, UnicodeDecodeError) as error:
                self._carrier.tell(f"what the store kept of itself cannot be read: {error}")
        floors: dict[str, int] = {}
        for name, value in found:
            said = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
            if not said.startswith(_FLOOR):
                continue
            if isinstance(value, int) and 0 <= value < _MOST_ACTIVITY:
                floors[said] = max(value, floors.get(said, 0))
            else:
                self._carrier.tell(f"{said!r} of the store is no number")
        for said, value in floors.items():
            self._carrier.insert("meta", {"name": said, "value": value})
