"""Copying rows from a damaged store into a new one, and recording what was damaged.

A row is copied as it is, with its number. An invalid value is replaced and a row that conflicts
with others is left out; either goes, with its bytes, into the new store's `quarantine`, and is
reported. Checksums are computed at the end, for all rows at once (`write_checksums`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import apsw

from holdfast import codec
from holdfast.clock import SystemClock
from holdfast.storage.sqlite.checksums import SEALED, UNFIT, covered, seal
from holdfast.storage.sqlite.repair.column_rules import RULES, faults, fits, restored, text_of
from holdfast.storage.sqlite.repair.row_scan import Row, Stray, Table, Value, Values, rows
from holdfast.storage.sqlite.transaction import bind
from holdfast.values import JSON, Damage

_BATCH: Final = 5_000


class Carrier:
    """Reads the damaged store, writes the new one, and collects the damage found."""

    def __init__(self, source: apsw.Connection, target: apsw.Connection) -> None:
        self.source = source
        self.target = target
        self.now = SystemClock().micros()
        self.quarantined = 0
        self._told: list[tuple[str, Value, int | None]] = []
        self._writes = 0

    def each(self, table: Table, use: Callable[[Values], object]) -> None:
        """Call `use` with each readable row of a table; quarantine or report the others."""
        for item in rows(self.source, table):
            if isinstance(item, Row):
                use(item.values)
            elif isinstance(item, Stray):
                self.set_aside(table.name, f"stored under a wrong number, {item.key}", item.values)
            else:
                span = f"rows {item.first} to {item.last} of {table.name}"
                self.tell(f"{span} cannot be read: {item.why}")

    def execute(self, query: str, *values: Value) -> None:
        """Run a statement that writes to the new store, committing now and then."""
        self._writes += 1
        if self._writes % _BATCH == 0:
            self.target.execute("COMMIT")
            self.target.execute("BEGIN IMMEDIATE")
        self.target.execute(query, values)

    def first(self, query: str, *values: Value) -> tuple[Value, ...] | None:
        """Return the first row of a query on the new store."""
        found: tuple[Value, ...] | None = self.target.execute(query, values).fetchone()
        return found

    def all(self, query: str, *values: Value) -> list[Any]:
        """Return all rows of a query on the new store, so that it can be written to meanwhile."""
        found: list[Any] = self.target.execute(query, values).fetchall()
        return found

    def number(self, query: str, *values: Value) -> int:
        """Return the integer that a query on the new store finds, or 0."""
        row = self.first(query, *values)
        return row[0] if row and isinstance(row[0], int) else 0

    def insert(self, table: str, values: Values) -> bool:
        """Insert a row; false if it conflicts with a stored one."""
        if table in SEALED:
            values = {**values, "crc": UNFIT}  # Until the checksums are written.
        names, marks = ", ".join(values), ", ".join("?" for _ in values)
        insert = "INSERT OR REPLACE" if table == "tenants" else "INSERT"
        query = f"{insert} INTO {table} ({names}) VALUES ({marks})"
        try:
            self.execute(query, *values.values())
        except (apsw.ConstraintError, apsw.MismatchError):
            return False
        return True

    def carry(self, table: str, values: Values) -> bool:
        """Insert a row as it was; if it conflicts with a stored one, quarantine it."""
        if self.insert(table, values):
            return True
        self.set_aside(table, "conflicts with other rows", values)
        return False

    def tell(self, what: str, session: Value = None, seq: int | None = None) -> None:
        """Record damage, in this session if its number is known."""
        self._told.append((what, session, seq))

    def told(self) -> Iterator[Damage]:
        """Yield all recorded damage, with the ids that the sessions have in the new store."""
        for what, session, seq in self._told:
            row = self.first("SELECT id FROM sessions WHERE n = ?", session)
            yield Damage(what=what, session_id=text_of(row[0]) if row else None, seq=seq)

    def keep_aside(self, origin: str, reason: str, content: Value) -> int:
        """Insert damaged content into `quarantine` as it was; return its number there."""
        self.quarantined += 1
        self.insert("quarantine", {"origin": origin, "reason": reason, "content": content})
        return self.target.last_insert_rowid()

    def set_aside(self, table: str, reason: str, values: Values, session: Value = None) -> None:
        """Insert a whole row into `quarantine`, and record the damage."""
        self.keep_aside(table, reason, _as_text(values))
        self.tell(f"a row of {table} was quarantined: {reason}", session)

    def mended(self, table: str, values: Values, session: Value = None) -> Values:
        """Return a row with repairable values restored and invalid ones replaced.

        What was replaced is quarantined. If every value is valid but the row does not match its
        checksum, the wrong one is unknown: the row is returned as it is, and a copy is quarantined.
        """
        if fits(table, values) and not faults(table, values):
            return values
        typed = _as_bound(values)
        found = None if fits(table, typed) else restored(table, typed)
        if found is not None:
            repaired: Values = {**typed, found[0]: found[1]}
            why = f"{found[0]} was damaged, and is restored"
        else:
            repaired = {**typed, **self._replaced(table, typed, session)}
            whole = fits(table, typed)
            why = "text was damaged, and is restored" if whole else "does not fit its checksum"
        if found is not None or repaired == typed:
            self.keep_aside(table, why, _as_text(values))
            self.tell(f"a row of {table}: {why}", session or repaired.get("session"))
        return repaired

    def _replaced(self, table: str, values: Values, session: Value) -> Values:
        """Return defaults for a row's invalid values, which are quarantined."""
        invalid = faults(table, values)
        for name in invalid:
            self.keep_aside(f"{table}.{name}", "cannot be read", values[name])
            problem = f"{name} of a row of {table} cannot be read"
            self.tell(problem, session or values.get("session"))
        return {name: RULES[table][name].instead() for name in invalid}

    def known(self, session: Value) -> bool:
        """True if the new store has this session, or a stub of it."""
        return self.first("SELECT 1 FROM sessions WHERE n = ?", session) is not None

    def lives(self, session: Value) -> bool:
        """True if the new store has this session, and it is not a stub that a purge left."""
        return self.first("SELECT 1 FROM heads WHERE session = ?", session) is not None

    def numbers(self, table: str) -> Iterator[int]:
        """Yield the row numbers of a table, which may be written to meanwhile."""
        query = f"SELECT n FROM {table} WHERE n > ? ORDER BY n LIMIT 1"  # noqa: S608 - fixed names
        number = self.number(query, 0)
        while number:
            yield number
            number = self.number(query, number)

    def tenant_of(self, session: Value) -> int:
        """Return the tenant of a session in the new store; 0 if the session is not there."""
        return self.number("SELECT tenant FROM sessions WHERE n = ?", session)

    def getter(self, tenant: int | None) -> codec.GetBlob:
        """Return a function that fetches a tenant's blobs from the new store."""

        def fetch(sha256: str) -> bytes | None:
            query = "SELECT data FROM blobs WHERE tenant = ? AND sha256 = ?"
            row = self.first(query, tenant, sha256)
            return row[0] if row and isinstance(row[0], bytes) else None

        return fetch

    def seal_all(self) -> None:
        """Write the checksum of every row of the new store."""
        self.target.create_scalar_function("seal", lambda *values: seal(values), -1)
        for table in SEALED:
            columns = [str(row[1]) for row in self.target.execute(f"PRAGMA table_info({table})")]
            names = ", ".join(covered(table, columns))
            self.execute(f"UPDATE {table} SET crc = seal({names})")  # noqa: S608 - fixed names


def as_number(value: Value) -> int | None:
    """Return a value if it is a valid row number, else `None`."""
    return value if isinstance(value, int) and value >= 1 else None


def _as_bound(values: Values) -> Values:
    """Return a row with text that became a blob as text again, so that lookups find it."""
    return {
        name: bind(text_of(value)) if isinstance(value, bytes) and text_of(value) else value
        for name, value in values.items()
    }


def _as_text(values: Values) -> str:
    """Return a row as readable JSON, with invalid bytes escaped."""
    plain: dict[str, JSON] = {
        name: value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }
    return codec.to_json(plain).decode()
