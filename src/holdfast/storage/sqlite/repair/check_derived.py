"""Derived tables, compared with what they are derived from: metadata marks and recent sessions.

Damage in them blocks no writes, because they hold nothing of their own; salvage makes them anew.
A file of an older format lacks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw

from holdfast import codec
from holdfast.storage import metadata_marks
from holdfast.storage.sqlite.metadata_table import marks_of
from holdfast.storage.sqlite.repair.check_history import FetchFirst
from holdfast.storage.sqlite.repair.check_sessions import ReportDamage
from holdfast.storage.sqlite.repair.row_scan import UNREADABLE, Value, Values, has_table

_MARKS: Final = "SELECT mark, tenant FROM metadata_marks WHERE session = ?"
_RECENT: Final = "SELECT recency, tenant, trashed, scope, agent, cwd FROM recent WHERE session = ?"
_NAMES: Final = "SELECT trashed_at IS NOT NULL, scope, agent, cwd FROM sessions WHERE n = ?"
_IN_BETWEEN: Final = (
    "SELECT 1 FROM recent WHERE tenant = ? AND trashed IN (0, 1) AND recency > ? AND recency <= ?"
)


class DerivedChecker:
    """Checks the derived tables of a store."""

    def __init__(
        self, connection: apsw.Connection, first: FetchFirst, report: ReportDamage
    ) -> None:
        """Check with `first`, which returns the first row of a query; report with `report`."""
        self._connection = connection
        self._first = first
        self._report_damage = report
        self._has_marks = has_table(connection, "metadata_marks")
        self._has_recent = has_table(connection, "recent")

    def _report(self, what: str, session: int | None = None) -> None:
        self._report_damage(what, session, blocking=False)

    def _rows(self, table: str, query: str, session: int) -> Sequence[Any] | None:
        """Return the rows of a session; `None`, with a report, if they cannot be read."""
        try:
            return self._connection.execute(query, (session,)).fetchall()
        except (*UNREADABLE, UnicodeDecodeError) as error:
            self._report(f"the table {table} cannot be read: {error}", session)
            return None

    def session(self, n: int, values: Values) -> None:
        """Compare a session's metadata with its marks."""
        metadata = values["metadata"]
        if not self._has_marks or not isinstance(metadata, str | bytes):
            return  # It is reported already.
        data = codec.encode_text(metadata) if isinstance(metadata, str) else metadata
        wanted = {(mark, values["tenant"]) for mark in marks_of(metadata_marks.pairs(data))}
        stored = self._rows("metadata_marks", _MARKS, n)
        if stored is not None and set(stored) != wanted:
            self._report("the session's metadata differs from its index entries", n)

    def head(self, n: int, values: Values) -> None:
        """Compare a session and its head with its row of recent sessions."""
        found = self._rows("recent", _RECENT, n) if self._has_recent else None
        if found is None:
            return
        names = self._first(_NAMES, n)
        wanted = [(values["tenant"], *names)] if names is not None else []
        if wanted != [tuple(stored) for _, *stored in found]:
            self._report("the session differs from its row of the table recent", n)
        elif found and not self._is_in_order(found[0][0], values):
            self._report("the session's recency and activity contradict those of others", n)

    def _is_in_order(self, recency: Value, values: Values) -> bool:
        """True if a session was written to only while it was the newest."""
        tenant, activity = values["tenant"], values["activity"]
        if not isinstance(recency, int) or not isinstance(activity, int):
            return True  # It is reported already.
        return recency <= activity and self._first(_IN_BETWEEN, tenant, recency, activity) is None

    def rest(self) -> None:
        """Check that no row belongs to a session that is missing."""
        query = "SELECT 1 FROM metadata_marks WHERE session NOT IN (SELECT n FROM sessions) LIMIT 1"
        if self._has_marks and self._first(query) is not None:
            self._report("metadata of a session that is missing is indexed")
        query = "SELECT 1 FROM recent WHERE session NOT IN (SELECT session FROM heads) LIMIT 1"
        if self._has_recent and self._first(query) is not None:
            self._report("a session that is missing is among the recent ones")
