"""Copying rows from a damaged store into a new one, and recording what was damaged.

A row is copied as it is, with its number. An invalid value is replaced and a row that conflicts
with others is left out; either goes, with its bytes, into the new store's `quarantine`, and is
reported. Checksums are computed at the end, for all rows at once (`write_checksums`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import apsw

from holdfast.clock import SystemClock
from holdfast.storage.rows import BlobUse, MessageRow, RecordRow
from holdfast.storage.sqlite.repair.column_rules import (
    RULES,
    find_flipped_bit,
    invalid_columns,
    matches_checksum,
    row_as_json,
    text_of,
)
from holdfast.storage.sqlite.repair.row_scan import (
    KeyedTable,
    MisfiledRow,
    Row,
    Value,
    Values,
    scan_rows,
)
from holdfast.storage.sqlite.tables import INVALID_CRC, TABLES, bind
from holdfast.storage.sqlite.transaction import SQLiteTransaction
from holdfast.values import Damage

_BATCH: Final = 5_000


class RowCopier:
    """Reads the damaged store, writes the new one, and collects the damage found."""

    def __init__(
        self, source: apsw.Connection, target: apsw.Connection, *, capacity: int, collected: bool
    ) -> None:
        """Copy from `source`, a store or rows that were `collected` from one.

        `capacity` is how many messages the store may have had.
        """
        self.source = source
        self.capacity = capacity
        self.collected = collected
        self.target = target
        self.now = SystemClock().micros()
        self.quarantined = 0
        self._damage: list[tuple[str, Value, int | None]] = []
        self._writes = 0

    def for_each_row(self, table: KeyedTable, use: Callable[[Values], object]) -> None:
        """Call `use` with each readable row of a table; quarantine or report the others."""
        for item in scan_rows(self.source, table):
            if isinstance(item, Row):
                use(item.values)
            elif isinstance(item, MisfiledRow):
                self.quarantine_row(
                    table.name, f"stored under a wrong number, {item.key}", item.values
                )
            else:
                span = f"rows {item.first} to {item.last} of {table.name}"
                self.report(f"{span} cannot be read: {item.why}")

    def execute(self, query: str, *values: Value) -> None:
        """Run a statement that writes to the new store, committing now and then."""
        self._count_write()
        self.target.execute(query, values)

    def _count_write(self) -> None:
        self._writes += 1
        if self._writes % _BATCH == 0:
            self.target.execute("COMMIT")
            self.target.execute("BEGIN IMMEDIATE")

    def transaction(self, tenant: int | None) -> SQLiteTransaction:
        """Return a transaction that reads and writes the rows of a tenant in the new store."""
        return SQLiteTransaction(self.target, tenant or 0, SystemClock(), {}, wipe_note="")

    def add_message(
        self, tenant: int | None, branch: int, row: MessageRow, blobs: Iterable[str]
    ) -> None:
        """Insert a message that refers to these stored blobs, unless its seq is taken."""
        self._count_write()
        with suppress(apsw.ConstraintError):
            transaction = self.transaction(tenant)
            transaction.add_messages(branch, [row], [BlobUse(row.seq, sha256) for sha256 in blobs])
            transaction.write_out()

    def add_record(
        self, tenant: int | None, branch: int, row: RecordRow, blobs: Iterable[str]
    ) -> None:
        """Insert a record that refers to these stored blobs."""
        self._count_write()
        self.transaction(tenant).add_records(
            branch, [row], [BlobUse(row.number, sha256) for sha256 in blobs]
        )

    def fetch_first(self, query: str, *values: Value) -> tuple[Value, ...] | None:
        """Return the first row of a query on the new store."""
        found: tuple[Value, ...] | None = self.target.execute(query, values).fetchone()
        return found

    def fetch_all(self, query: str, *values: Value) -> list[Any]:
        """Return all rows of a query on the new store, so that it can be written to meanwhile."""
        found: list[Any] = self.target.execute(query, values).fetchall()
        return found

    def fetch_int(self, query: str, *values: Value) -> int:
        """Return the integer that a query on the new store finds, or 0."""
        row = self.fetch_first(query, *values)
        return row[0] if row and isinstance(row[0], int) else 0

    def insert(self, table: str, values: Values) -> bool:
        """Insert a row; false if it conflicts with a stored one."""
        if table in TABLES:
            values = {**values, "crc": INVALID_CRC}  # Until the checksums are written.
        names, marks = ", ".join(values), ", ".join("?" for _ in values)
        insert = "INSERT OR REPLACE" if table == "tenants" else "INSERT"
        query = f"{insert} INTO {table} ({names}) VALUES ({marks})"
        try:
            self.execute(query, *values.values())
        except (apsw.ConstraintError, apsw.MismatchError):
            return False
        return True

    def copy(self, table: str, values: Values) -> bool:
        """Insert a row as it was; if it conflicts with a stored one, quarantine it."""
        if self.insert(table, values):
            return True
        self.quarantine_row(table, "conflicts with other rows", values)
        return False

    def report(self, what: str, session: Value = None, seq: int | None = None) -> None:
        """Record damage, in this session if its number is known."""
        self._damage.append((what, session, seq))

    def damage(self) -> Iterator[Damage]:
        """Yield all recorded damage, with the ids that the sessions have in the new store."""
        for what, session, seq in self._damage:
            row = self.fetch_first("SELECT id FROM sessions WHERE n = ?", session)
            yield Damage(what=what, session_id=text_of(row[0]) if row else None, seq=seq)

    def quarantine(self, origin: str, reason: str, content: Value) -> int:
        """Insert damaged content into `quarantine` as it was; return its number there."""
        self.quarantined += 1
        self.insert("quarantine", {"origin": origin, "reason": reason, "content": content})
        return self.target.last_insert_rowid()

    def quarantine_row(
        self, table: str, reason: str, values: Values, session: Value = None
    ) -> None:
        """Insert a whole row into `quarantine`, and record the damage."""
        self.quarantine(table, reason, row_as_json(values))
        self.report(f"a row of {table} was quarantined: {reason}", session)

    def repaired_row(self, table: str, values: Values, session: Value = None) -> Values:
        """Return a row with repairable values restored and invalid ones replaced.

        What was replaced is quarantined. If every value is valid but the row does not match its
        checksum, the wrong one is unknown: the row is returned as it is, and a copy is quarantined.
        """
        typed = _with_text_types(values)
        valid = matches_checksum(table, values) and not invalid_columns(table, values)
        if valid and typed == values:
            return values
        found = None if matches_checksum(table, typed) else find_flipped_bit(table, typed)
        if found is not None:
            repaired: Values = {**typed, found[0]: found[1]}
            why = f"{found[0]} was damaged, and is restored"
        else:
            repaired = {**typed, **self._defaults(table, typed, session)}
            whole = matches_checksum(table, typed)
            why = "text was damaged, and is restored" if whole else "does not match its checksum"
        if found is not None or repaired == typed:
            self.quarantine(table, why, row_as_json(values))
            self.report(f"a row of {table}: {why}", session or repaired.get("session"))
        return repaired

    def _defaults(self, table: str, values: Values, session: Value) -> Values:
        """Return defaults for a row's invalid values, which are quarantined."""
        invalid = invalid_columns(table, values)
        for name in invalid:
            self.quarantine(f"{table}.{name}", "cannot be read", values[name])
            problem = f"{name} of a row of {table} cannot be read"
            self.report(problem, session or values.get("session"))
        return {name: RULES[table][name].default() for name in invalid}

    def has_session(self, session: Value) -> bool:
        """True if the new store has this session, or a stub of it."""
        return self.fetch_first("SELECT 1 FROM sessions WHERE n = ?", session) is not None

    def is_live(self, session: Value) -> bool:
        """True if the new store has this session, and it is not a stub that a purge left."""
        return self.fetch_first("SELECT 1 FROM heads WHERE session = ?", session) is not None

    def row_numbers(self, table: str) -> Iterator[int]:
        """Yield the row numbers of a table, which may be written to meanwhile."""
        query = f"SELECT n FROM {table} WHERE n > ? ORDER BY n LIMIT 1"  # noqa: S608 - fixed names
        number = self.fetch_int(query, 0)
        while number:
            yield number
            number = self.fetch_int(query, number)

    def tenant_of(self, session: Value) -> int:
        """Return the tenant of a session in the new store; 0 if the session is not there."""
        return self.fetch_int("SELECT tenant FROM sessions WHERE n = ?", session)

    def write_checksums(self) -> None:
        """Write the checksum of every row of the new store."""
        for table in TABLES.values():
            self.target.create_scalar_function(
                "row_checksum", lambda *values, known=table: known.checksum(values), -1
            )
            names = ", ".join(table.covered)
            self.execute(f"UPDATE {table.name} SET crc = row_checksum({names})")  # noqa: S608 - fixed names


def as_row_number(value: Value) -> int | None:
    """Return a value if it is a valid row number, else `None`."""
    return value if isinstance(value, int) and value >= 1 else None


def _with_text_types(values: Values) -> Values:
    """Return a row with each text as a store writes it, so that lookups find it.

    Damage makes a blob of a text, or puts a NUL into one, which only a blob can hold.
    """
    return {
        name: bind(text_of(value)) if isinstance(value, str | bytes) and text_of(value) else value
        for name, value in values.items()
    }
