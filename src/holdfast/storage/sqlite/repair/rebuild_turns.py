"""Rebuilding what belongs to a session: its usage, turns, tools, drafts and queue.

Rows that belong to no live session are quarantined. Afterwards every head and its open turn agree,
every draft has its opening, and every head has the right count of queued input.
"""

from __future__ import annotations

from holdfast import codec, ids
from holdfast.draft_parts import DraftOpening
from holdfast.storage.sqlite.repair.column_rules import (
    DRAFTS,
    QUEUE,
    QUEUE_BLOBS,
    SESSION_TABLES,
    TURNS,
    USAGE,
    default_row,
    is_draft_chunk,
    is_queued_input,
)
from holdfast.storage.sqlite.repair.copy_rows import RowCopier, as_row_number
from holdfast.storage.sqlite.repair.row_scan import (
    SessionKeyedTable,
    UnreadableRows,
    Value,
    Values,
    scan_session_rows,
)


class TurnRebuilder:
    """Copies and repairs usage, turns, tools, drafts and queues."""

    def __init__(self, copier: RowCopier) -> None:
        self._copier = copier
        self.turns = 0

    def run(self) -> None:
        """Copy all of them, then repair what is inconsistent."""
        self._copier.for_each_row(QUEUE_BLOBS, self._queue_blob)
        self._copier.for_each_row(USAGE, self._usage)
        for table in SESSION_TABLES:
            self._session_rows(table)
        self._open_turns()
        self._open_drafts()
        self._count_queues()

    def _queue_blob(self, values: Values) -> None:
        data = values["data"]
        known = self._copier.is_live(values["session"])
        if known and isinstance(data, bytes) and codec.sha256_hex(data) == values["sha256"]:
            self._copier.copy("queue_blobs", values)
            return
        self._copier.quarantine("queue_blobs", "does not match its hash, or has no session", data)
        self._copier.report("a file attached to queued input is damaged", values["session"])

    def _usage(self, values: Values) -> None:
        row = self._copier.repaired_row("usage", values)
        if self._copier.is_live(row["session"]):
            self._copier.copy("usage", row)
        else:
            self._copier.quarantine_row("usage", "belongs to no session", values)

    def _session_rows(self, table: SessionKeyedTable) -> None:
        known = self._copier.row_numbers("sessions")
        for item in scan_session_rows(self._copier.source, table, known):
            if isinstance(item, UnreadableRows):
                problem = f"some rows of {table.name} cannot be read: {item.why}"
                self._copier.report(problem, item.session)
                continue
            row = self._copier.repaired_row(table.name, item)
            if not self._copier.is_live(row["session"]):
                self._copier.quarantine_row(table.name, "belongs to no session", item)
            elif not self._is_readable(table, row):
                self._copier.quarantine_row(table.name, "cannot be read", item, row["session"])
            else:
                self.turns += self._copier.copy(table.name, row) and table is TURNS

    def _is_readable(self, table: SessionKeyedTable, row: Values) -> bool:
        if table is DRAFTS:
            return is_draft_chunk(row)
        return table is not QUEUE or self._is_queued(row["session"], row)

    def _is_queued(self, session: Value, row: Values) -> bool:
        own = "SELECT data FROM queue_blobs WHERE session = ? AND number = ? AND sha256 = ?"
        stored = self._copier.transaction(self._copier.tenant_of(session)).blob

        def fetch(sha256: str) -> bytes | None:
            found = self._copier.fetch_first(own, session, row["number"], sha256)
            return found[0] if found and isinstance(found[0], bytes) else stored(sha256)

        return is_queued_input(row, fetch)

    def _open_turns(self) -> None:
        """Make every head and its open turn agree."""
        own = "FROM turns WHERE session = ?"
        for session in self._copier.row_numbers("sessions"):
            query = "SELECT open_turn, turns FROM heads WHERE session = ?"
            named, counted = self._copier.fetch_first(query, session) or (None, 0)
            number = as_row_number(named)
            query = f"SELECT number {own} AND number = ?"
            if number and not self._copier.fetch_int(query, session, number):
                self._insert_placeholder_turn(session, number)
            newest = self._copier.fetch_int(f"SELECT max(number) {own}", session)
            if newest > int(str(counted)):
                query = "UPDATE heads SET turns = ? WHERE session = ?"
                self._copier.execute(query, newest, session)
            query = f"SELECT max(number) {own} AND state = 'open'"
            last_open = self._copier.fetch_int(query, session)
            if number != (last_open or None):
                self._copier.report("the session's head and its open turn did not agree", session)
            self._set_open_turn(session, last_open or None)

    def _set_open_turn(self, session: int, number: int | None) -> None:
        self._copier.execute("UPDATE heads SET open_turn = ? WHERE session = ?", number, session)
        query = (
            "UPDATE turns SET state = 'interrupted' "
            "WHERE session = ? AND state = 'open' AND number IS NOT ?"
        )
        self._copier.execute(query, session, number)

    def _insert_placeholder_turn(self, session: int, number: int) -> None:
        """Insert a placeholder for a lost open turn; without a holder, it can be recovered."""
        self._copier.report(f"the open turn {number} is lost", session)
        row = default_row("turns") | {
            "session": session,
            "number": number,
            "state": "open",
            "started_at": self._copier.now,
        }
        self._copier.insert("turns", row)

    def _open_drafts(self) -> None:
        headless = (
            "SELECT DISTINCT session, turn FROM drafts d WHERE NOT EXISTS "
            "(SELECT 1 FROM drafts o WHERE o.session = d.session AND o.turn = d.turn "
            "AND o.number = 0)"
        )
        for session, turn in self._copier.target.execute(headless).fetchall():
            opening = codec.to_json(DraftOpening(ids.message_id(), None, self._copier.now)).decode()
            row: Values = {"session": session, "turn": turn, "number": 0, "record": opening}
            self._copier.insert("drafts", row)
            self._copier.report("the opening of a draft is lost; its text is kept", session)

    def _count_queues(self) -> None:
        waiting = "SELECT count(*) FROM queue WHERE queue.session = heads.session"
        self._copier.execute(f"UPDATE heads SET queued = ({waiting})")  # noqa: S608 - fixed names
