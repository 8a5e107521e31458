"""Final repairs, once the messages show how long every branch is.

- A branch starts on the branch that holds the message before its first one.
- A stub stays a stub only if each of its branches is exactly as long as its forks need. If the
  damage took those forks, it becomes a session again, so that the shared messages stay reachable.
- An empty branch takes the number of a lost one, so that the others keep theirs.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.storage.sqlite.repair.check_sessions import STUB_VALUES
from holdfast.storage.sqlite.repair.copy_rows import RowCopier
from holdfast.storage.sqlite.repair.rebuild_sessions import SessionRebuilder
from holdfast.storage.sqlite.repair.row_scan import UNREADABLE

_MAX_EMPTY_BRANCHES: Final = 1_000
_FLOOR_PREFIX: Final = "activity of "
_ACTIVITY_LIMIT: Final = 1 << 53


class Finalizer:
    """Repairs branch starts, stubs, branch and activity numbers and the table `meta`."""

    def __init__(self, copier: RowCopier, rebuilder: SessionRebuilder) -> None:
        self._copier = copier
        self._session_rebuilder = rebuilder

    def run(self) -> None:
        """Repair all of them."""
        self._repair_starts()
        self._repair_stubs()
        self._repair_branch_numbers()
        self._repair_activity()
        self._copy_activity_floors()

    def _repair_starts(self) -> None:
        """Make every branch start on the branch that has the message, not on a later one.

        A later one that has records behind the message is right.
        """
        query = (
            "SELECT b.n, b.session, b.number, p.parent, p.fork_record "
            "FROM branches b JOIN branches p ON p.n = b.parent "
            "WHERE b.fork_seq < p.fork_seq + (b.fork_record IS NULL)"
        )
        update = "UPDATE branches SET parent = ?, fork_record = ? WHERE n = ?"
        while found := self._copier.fetch_all(query):
            for n, session, number, parent, fork_record in found:
                self._copier.execute(update, parent, fork_record, n)
                problem = f"branch {number} started on one that does not have the message there"
                self._copier.report(problem, session)

    # ------------------------------------------------------------------------------------ stubs

    def _repair_stubs(self) -> None:
        # One in the trash is unfinished: the next purge erases the rest.
        query = "SELECT n FROM sessions WHERE purged_at IS NOT NULL AND trashed_at IS NULL"
        for (session,) in self._copier.fetch_all(query):
            self._repair_stub(session)

    def _repair_stub(self, session: int) -> None:
        query = (
            "SELECT count(*), count(*) FILTER (WHERE last_seq IS "
            "(SELECT max(fork_seq) FROM branches c WHERE c.parent = b.n)) "
            "FROM branches b WHERE session = ?"
        )
        count, needed = self._copier.fetch_first(query, session) or (0, 0)
        if not count:
            problem = "the session was purged, and no fork shares its messages any more"
            self._copier.report(problem, session)
            self._copier.execute("DELETE FROM sessions WHERE n = ?", session)
        elif count != needed:
            self._restore_session(session)
        else:
            self._clear_stub(session)

    def _restore_session(self, session: int) -> None:
        """Turn a stub whose forks are lost into a session."""
        query = (
            "UPDATE sessions SET purged_at = NULL, title = 'salvaged: what lost forks shared', "
            "title_by = 'auto' WHERE n = ?"
        )
        self._copier.execute(query, session)
        query = "SELECT n, number FROM branches WHERE session = ? ORDER BY number DESC"
        newest = self._copier.fetch_first(query, session) or (0, 0)
        self._session_rebuilder.new_head(session, newest)
        end = "SELECT last_seq FROM branches WHERE n = branch"
        self._copier.execute(f"UPDATE heads SET seq = ({end}) WHERE session = ?", session)  # noqa: S608
        self._copier.execute("UPDATE branches SET last_seq = NULL WHERE n = ?", newest[0])
        problem = (
            "the session was purged except for messages shared with forks; the forks are damaged, "
            "so it is kept as a session"
        )
        self._copier.report(problem, session)

    def _clear_stub(self, session: int) -> None:
        """Clear every column of a stub that forks do not need."""
        names = ", ".join(STUB_VALUES)
        found = self._copier.fetch_first(f"SELECT {names} FROM sessions WHERE n = ?", session)  # noqa: S608
        if found == tuple(STUB_VALUES.values()):
            return
        blank = ", ".join(f"{name} = ?" for name in STUB_VALUES)
        query = f"UPDATE sessions SET {blank} WHERE n = ?"  # noqa: S608
        self._copier.execute(query, *STUB_VALUES.values(), session)
        self._copier.report("the session was purged, but some of its data was still there", session)

    # ---------------------------------------------------------------------------------- numbers

    def _repair_branch_numbers(self) -> None:
        query = (
            "SELECT b.session, count(*), max(b.number) FROM branches b "
            "JOIN heads h ON h.session = b.session GROUP BY b.session HAVING count(*) < max(number)"
        )
        for session, count, highest in self._copier.fetch_all(query):
            if highest - count > _MAX_EMPTY_BRANCHES:
                self._renumber_branches(session)
            else:
                self._insert_empty_branches(session, highest)

    def _insert_empty_branches(self, session: int, highest: int) -> None:
        """Insert an empty branch for each that is lost."""
        for number in range(1, highest):
            query = "SELECT n FROM branches WHERE session = ? AND number = ?"
            if not self._copier.fetch_int(query, session, number):
                self._session_rebuilder.new_branch(None, session, number)
                self._copier.report(f"branch {number} is lost", session)

    def _renumber_branches(self, session: int) -> None:
        """Renumber the branches: a damaged number was too high to fill all below it."""
        query = "SELECT n FROM branches WHERE session = ? ORDER BY number"
        for number, (n,) in enumerate(self._copier.fetch_all(query, session), 1):
            self._copier.execute("UPDATE branches SET number = ? WHERE n = ?", number, n)
        query = (
            "UPDATE heads SET branch_no = (SELECT number FROM branches WHERE n = branch) "
            "WHERE session = ?"
        )
        self._copier.execute(query, session)
        self._copier.report("the session's branches are renumbered", session)

    def _repair_activity(self) -> None:
        """Replace activity numbers that two sessions have, or that are too high to count on."""
        query = """
            SELECT session,
              last + row_number() OVER (PARTITION BY tenant ORDER BY activity, session)
            FROM (
              SELECT session, tenant, activity,
                row_number() OVER (PARTITION BY tenant, activity ORDER BY session) AS copy,
                max(iif(activity < ?1, activity, 0)) OVER (PARTITION BY tenant) AS last
              FROM heads
            )
            WHERE copy > 1 OR activity >= ?1
        """
        for session, number in self._copier.fetch_all(query, _ACTIVITY_LIMIT):
            self._copier.execute("UPDATE heads SET activity = ? WHERE session = ?", number, session)
            self._copier.report("the session has a new activity number", session)

    # ------------------------------------------------------------------------------------- meta

    def _copy_activity_floors(self) -> None:
        """Copy the activity floors: the numbers used up by purged sessions, which stay unused.

        The index has every value a second time, so both are read.
        """
        query = "SELECT CAST(name AS BLOB), value FROM meta"
        found: list[Any] = []
        for source in (query, f"{query} INDEXED BY meta_by_value"):
            try:
                found += self._copier.source.execute(source).fetchall()
            except (*UNREADABLE, UnicodeDecodeError) as error:
                self._copier.report(f"the table meta cannot be read: {error}")
        floors: dict[str, int] = {}
        for data, value in found:
            name = data.decode("utf-8", "replace") if isinstance(data, bytes) else ""
            if not name.startswith(_FLOOR_PREFIX):
                continue
            if isinstance(value, int) and 0 <= value < _ACTIVITY_LIMIT:
                floors[name] = max(value, floors.get(name, 0))
            else:
                self._copier.report(f"the value of {name!r} in meta is not a valid number")
        for name, value in floors.items():
            self._copier.insert("meta", {"name": name, "value": value})
