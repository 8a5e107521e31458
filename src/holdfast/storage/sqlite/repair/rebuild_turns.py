"""Rebuilding what belongs to a session: its usage, turns, tools, drafts and queue.

Rows that belong to no live session are quarantined. Afterwards every head and its open turn agree,
every draft has its opening record, and every head has the right count of queued input.
"""

from __future__ import annotations

from holdfast import codec, ids
from holdfast.draft_parts import Opening
from holdfast.storage.sqlite.repair.column_rules import (
    DRAFTS,
    NOBODY,
    OWNED,
    QUEUE,
    QUEUE_BLOBS,
    RULES,
    TURNS,
    USAGE,
    is_draft_record,
    is_queued,
)
from holdfast.storage.sqlite.repair.copy_rows import Carrier, as_number
from holdfast.storage.sqlite.repair.row_scan import Gap, Owned, Value, Values, owned_rows


class Belongings:
    """Copies and repairs usage, turns, tools, drafts and queues."""

    def __init__(self, copier: Carrier) -> None:
        self._carrier = copier
        self.turns = 0

    def run(self) -> None:
        """Copy all of them, then repair what is inconsistent."""
        self._carrier.each(QUEUE_BLOBS, self._queue_blob)
        self._carrier.each(USAGE, self._usage)
        for table in OWNED:
            self._owned(table)
        self._open_turns()
        self._open_drafts()
        self._count_queues()

    def _queue_blob(self, values: Values) -> None:
        data = values["data"]
        known = self._carrier.lives(values["session"])
        if known and isinstance(data, bytes) and codec.digest(data) == values["sha256"]:
            self._carrier.carry("queue_blobs", values)
            return
        self._carrier.keep_aside("queue_blobs", "does not fit its hash, or has no session", data)
        self._carrier.tell("a file attached to queued input is damaged", values["session"])

    def _usage(self, values: Values) -> None:
        row = self._carrier.mended("usage", values)
        if self._carrier.lives(row["session"]):
            self._carrier.carry("usage", row)
        else:
            self._carrier.set_aside("usage", "belongs to no session", values)

    def _owned(self, table: Owned) -> None:
        known = self._carrier.numbers("sessions")
        for item in owned_rows(self._carrier.source, table, known):
            if isinstance(item, Gap):
                problem = f"some rows of {table.name} cannot be read: {item.why}"
                self._carrier.tell(problem, item.session)
                continue
            row = self._carrier.mended(table.name, item)
            if not self._carrier.lives(row["session"]):
                self._carrier.set_aside(table.name, "belongs to no session", item)
            elif not self._is_readable(table, row):
                self._carrier.set_aside(table.name, "cannot be read", item, row["session"])
            else:
                self.turns += self._carrier.carry(table.name, row) and table is TURNS

    def _is_readable(self, table: Owned, row: Values) -> bool:
        if table is DRAFTS:
            return is_draft_record(row)
        return table is not QUEUE or self._is_queued(row["session"], row)

    def _is_queued(self, session: Value, row: Values) -> bool:
        own = "SELECT data FROM queue_blobs WHERE session = ? AND number = ? AND sha256 = ?"
        stored = self._carrier.getter(self._carrier.tenant_of(session))

        def fetch(sha256: str) -> bytes | None:
            found = self._carrier.first(own, session, row["number"], sha256)
            return found[0] if found and isinstance(found[0], bytes) else stored(sha256)

        return is_queued(row, fetch)

    def _open_turns(self) -> None:
        """Make every head and its open turn agree."""
        own = "FROM turns WHERE session = ?"
        for session in self._carrier.numbers("sessions"):
            query = "SELECT open_turn, turns FROM heads WHERE session = ?"
            named, counted = self._carrier.first(query, session) or (None, 0)
            number = as_number(named)
            query = f"SELECT number {own} AND number = ?"
            if number and not self._carrier.number(query, session, number):
                self._new_turn(session, number)
            newest = self._carrier.number(f"SELECT max(number) {own}", session)
            if newest > int(str(counted)):
                query = "UPDATE heads SET turns = ? WHERE session = ?"
                self._carrier.execute(query, newest, session)
            query = f"SELECT max(number) {own} AND state = 'open'"
            last_open = self._carrier.number(query, session)
            if number != (last_open or None):
                self._carrier.tell("the session's head and its open turn did not agree", session)
            self._leave_open(session, last_open or None)

    def _leave_open(self, session: int, number: int | None) -> None:
        self._carrier.execute("UPDATE heads SET open_turn = ? WHERE session = ?", number, session)
        query = (
            "UPDATE turns SET state = 'interrupted' "
            "WHERE session = ? AND state = 'open' AND number IS NOT ?"
        )
        self._carrier.execute(query, session, number)

    def _new_turn(self, session: int, number: int) -> None:
        """Insert a placeholder for a lost open turn; without a holder, it can be recovered."""
        self._carrier.tell(f"the open turn {number} is lost", session)
        row: Values = dict.fromkeys(RULES["turns"], 0)
        row |= {"session": session, "number": number, "token": "", "state": "open"}
        row |= {"run_id": None, "model": None, "error": None, "ended_at": None}
        row |= {"holder": codec.to_json(NOBODY).decode(), "started_at": self._carrier.now}
        self._carrier.insert("turns", row)

    def _open_drafts(self) -> None:
        headless = (
            "SELECT DISTINCT session, turn FROM drafts d WHERE NOT EXISTS "
            "(SELECT 1 FROM drafts o WHERE o.session = d.session AND o.turn = d.turn "
            "AND o.number = 0)"
        )
        for session, turn in self._carrier.target.execute(headless).fetchall():
            opening = codec.to_json(Opening(ids.message_id(), None, self._carrier.now)).decode()
            row: Values = {"session": session, "turn": turn, "number": 0, "record": opening}
            self._carrier.insert("drafts", row)
            self._carrier.tell("the first record of a draft is lost; its text is kept", session)

    def _count_queues(self) -> None:
        waiting = "SELECT count(*) FROM queue WHERE queue.session = heads.session"
        self._carrier.execute(f"UPDATE heads SET queued = ({waiting})")  # noqa: S608 - fixed names
