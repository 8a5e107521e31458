"""The table of recent sessions: the order of lists, and the names that lists are filtered by.

A session's recency is the activity number with which it became the newest one of its tenant. While
it stays the newest, its activity grows and its recency does not; so an append to it changes one row
of `heads` and no index. Between its two numbers no other session was written to, so recency and
activity give the same order.

All of this is derived from `sessions` and `heads`: salvage makes it anew.
"""

from __future__ import annotations

from typing import Final

import apsw

from holdfast.storage.rows import SessionRow
from holdfast.storage.sqlite.tables import HEADS, bind

# A copied head's activity is its recency, too: the numbers of others do not lie in between.
_FILL: Final = """
INSERT INTO recent
SELECT h.session, h.tenant, h.activity, s.trashed_at IS NOT NULL, s.scope, s.agent, s.cwd
FROM heads h CROSS JOIN sessions s ON s.n = h.session
"""


def recent_values(row: SessionRow) -> tuple[str | bytes | int | None, ...]:
    """Return what the table repeats of a session, as it is stored."""
    return row.trashed_at is not None, bind(row.scope), bind(row.agent), bind(row.cwd)


def cover_activity(connection: apsw.Connection) -> None:
    """Make the checksums of heads cover the activity; a damaged row keeps one that is wrong."""
    columns = ", ".join(HEADS.covered)
    rows = connection.execute(f"SELECT session, crc, {columns} FROM heads").fetchall()  # noqa: S608
    connection.executemany(
        "UPDATE heads SET crc = ? WHERE session = ?",
        (
            (HEADS.checksum(covered), session)
            for session, crc, *covered in rows
            if HEADS.matches_any_format(covered, crc)
        ),
    )


def fill_recent(connection: apsw.Connection) -> None:
    """Insert all sessions into the table, which is empty."""
    connection.execute(_FILL)
