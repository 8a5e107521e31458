"""Final repairs, once the messages show how long every branch is.

- A branch starts on the branch that holds the message before its first one.
- A stub stays a stub only if each of its branches is exactly as long as its forks need. If the
  damage took those forks, it becomes a session again, so that the shared messages stay reachable.
- An empty branch takes the number of a lost one, so that the others keep theirs.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.storage.sqlite.repair.check_sessions import BLANK
from holdfast.storage.sqlite.repair.copy_rows import Carrier
from holdfast.storage.sqlite.repair.rebuild_sessions import Mender
from holdfast.storage.sqlite.repair.row_scan import UNREADABLE

_FEW: Final = 1_000
_FLOOR: Final = "activity of "
_MOST_ACTIVITY: Final = 1 << 53


class Settler:
    """Repairs branch starts, stubs, branch numbers and the table `meta`."""

    def __init__(self, copier: Carrier, rebuilder: Mender) -> None:
        self._carrier = copier
        self._mender = rebuilder

    def run(self) -> None:
        """Repair all of them."""
        self._starts()
        self._husks()
        self._numbers()
        self._floors()

    def _starts(self) -> None:
        """Make every branch start on the branch that has the message, not on a later one."""
        query = (
            "SELECT b.n, p.parent FROM branches b JOIN branches p ON p.n = b.parent "
            "WHERE b.fork_seq <= p.fork_seq"
        )
        while found := self._carrier.all(query):
            for n, parent in found:
                self._carrier.execute("UPDATE branches SET parent = ? WHERE n = ?", parent, n)

    # ------------------------------------------------------------------------------------ stubs

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
            problem = "the session was purged, and no fork shares its messages any more"
            self._carrier.tell(problem, session)
            self._carrier.execute("DELETE FROM sessions WHERE n = ?", session)
        elif count != needed:
            self._revive(session)
        else:
            self._blank(session)

    def _revive(self, session: int) -> None:
        """Turn a stub whose forks are lost into a session."""
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
        problem = (
            "the session was purged except for messages shared with forks; the forks are damaged, "
            "so it is kept as a session"
        )
        self._carrier.tell(problem, session)

    def _blank(self, session: int) -> None:
        """Clear every column of a stub that forks do not need."""
        names = ", ".join(BLANK)
        found = self._carrier.first(f"SELECT {names} FROM sessions WHERE n = ?", session)  # noqa: S608
        if found == tuple(BLANK.values()):
            return
        blank = ", ".join(f"{name} = ?" for name in BLANK)
        query = f"UPDATE sessions SET {blank} WHERE n = ?"  # noqa: S608
        self._carrier.execute(query, *BLANK.values(), session)
        self._carrier.tell("the session was purged, but some of its data was still there", session)

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
        """Insert an empty branch for each that is lost."""
        for number in range(1, highest):
            query = "SELECT n FROM branches WHERE session = ? AND number = ?"
            if not self._carrier.number(query, session, number):
                self._mender.new_branch(None, session, number)
                self._carrier.tell(f"branch {number} is lost", session)

    def _close_up(self, session: int) -> None:
        """Renumber the branches: a damaged number was too high to fill all below it."""
        query = "SELECT n FROM branches WHERE session = ? ORDER BY number"
        for number, (n,) in enumerate(self._carrier.all(query, session), 1):
            self._carrier.execute("UPDATE branches SET number = ? WHERE n = ?", number, n)
        query = (
            "UPDATE heads SET branch_no = (SELECT number FROM branches WHERE n = branch) "
            "WHERE session = ?"
        )
        self._carrier.execute(query, session)
        self._carrier.tell("the session's branches are renumbered", session)

    # ------------------------------------------------------------------------------------- meta

    def _floors(self) -> None:
        """Copy the activity floors: the numbers used up by purged sessions, which stay unused.

        The index has every value a second time, so both are read.
        """
        query = "SELECT CAST(name AS BLOB), value FROM meta"
        found: list[Any] = []
        for source in (query, f"{query} INDEXED BY meta_by_value"):
            try:
                found += self._carrier.source.execute(source).fetchall()
            except (*UNREADABLE, UnicodeDecodeError) as error:
                self._carrier.tell(f"the table meta cannot be read: {error}")
        floors: dict[str, int] = {}
        for data, value in found:
            name = data.decode("utf-8", "replace") if isinstance(data, bytes) else ""
            if not name.startswith(_FLOOR):
                continue
            if isinstance(value, int) and 0 <= value < _MOST_ACTIVITY:
                floors[name] = max(value, floors.get(name, 0))
            else:
                self._carrier.tell(f"the value of {name!r} in meta is not a valid number")
        for name, value in floors.items():
            self._carrier.insert("meta", {"name": name, "value": value})
