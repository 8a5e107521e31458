"""Carrying rows from a damaged store into a new one: reading, writing, and telling what was lost.

A row is carried as it is, with its number. A value that cannot be right is replaced, a row that
contradicts others is left out; either goes with its bytes into the new store's `quarantine`, and
is told. Checksums are made at the end, for everything at once (`seal_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import apsw

from holdfast import codec
from holdfast.backends.sqlite.repair.rules import RULES, faults, fits, restored, text_of
from holdfast.backends.sqlite.repair.scan import Row, Stray, Table, Value, Values, rows
from holdfast.backends.sqlite.seals import SEALED, UNFIT, covered, seal
from holdfast.backends.sqlite.transaction import bind
from holdfast.clock import SystemClock
from holdfast.records import JSON, Damage

_BATCH: Final = 5_000


class Carrier:
    """Reads from one store, writes to the other, and keeps account."""

    def __init__(self, source: apsw.Connection, target: apsw.Connection) -> None:
        """Carry from `source` to `target`."""
        self.source = source
        self.target = target
        self.now = SystemClock().micros()
        self.quarantined = 0
        self._told: list[tuple[str, Value, int | None]] = []
        self._writes = 0

    def each(self, table: Table, use: Callable[[Values], object]) -> None:
        """Go through a table of the damaged store."""
        for item in rows(self.source, table):
            if isinstance(item, Row):
                use(item.values)
            elif isinstance(item, Stray):
                self.set_aside(table.name, f"filed under a wrong number, {item.key}", item.values)
            else:
                said = f"rows {item.first} to {item.last} of {table.name} cannot be read"
                self.tell(f"{said}: {item.why}")

    def execute(self, query: str, *values: Value) -> None:
        """Write to the new store."""
        self._writes += 1
        if self._writes % _BATCH == 0:
            self.target.execute("COMMIT")
            self.target.execute("BEGIN IMMEDIATE")
        self.target.execute(query, values)

    def first(self, query: str, *values: Value) -> tuple[Value, ...] | None:
        """Return the first row of a query to the new store."""
        found: tuple[Value, ...] | None = self.target.execute(query, values).fetchone()
        return found

    def all(self, query: str, *values: Value) -> list[Any]:
        """Return the rows of a query to the new store, which may be written to meanwhile."""
        found: list[Any] = self.target.execute(query, values).fetchall()
        return found

    def number(self, query: str, *values: Value) -> int:
        """Return the number that a query to the new store finds, or 0."""
        row = self.first(query, *values)
        return row[0] if row and isinstance(row[0], int) else 0

    def insert(self, table: str, values: Values) -> bool:
        """Store a row; false if its values contradict what is there already."""
        if table in SEALED:
            values = {**values, "crc": UNFIT}  # Until everything is sealed.
        names, marks = ", ".join(values), ", ".join("?" for _ in values)
        verb = "INSERT OR REPLACE" if table == "tenants" else "INSERT"
        query = f"{verb} INTO {table} ({names}) VALUES ({marks})"
        try:
            self.execute(query, *values.values())
        except (apsw.ConstraintError, apsw.MismatchError):
            return False
        return True

    def carry(self, table: str, values: Values) -> bool:
        """Store a row as it was, or set it aside."""
        if self.insert(table, values):
            return True
        self.set_aside(table, "contradicts other rows", values)
        return False

    def tell(self, what: str, session: Value = None, seq: int | None = None) -> None:
        """Report what was found, of this session if its number is known."""
        self._told.append((what, session, seq))

    def told(self) -> Iterator[Damage]:
        """Return all that was reported, with the ids that the sessions have now."""
        for what, session, seq in self._told:
            row = self.first("SELECT id FROM sessions WHERE n = ?", session)
            yield Damage(what=what, session_id=text_of(row[0]) if row else None, seq=seq)

    def keep_aside(self, origin: str, reason: str, content: Value) -> int:
        """Put what makes no sense into quarantine, as it was."""
        self.quarantined += 1
        self.insert("quarantine", {"origin": origin, "reason": reason, "content": content})
        return self.target.last_insert_rowid()

    def set_aside(self, table: str, reason: str, values: Values, session: Value = None) -> None:
        """Put a whole row into quarantine, and say so."""
        self.keep_aside(table, reason, _as_text(values))
        self.tell(f"a row of {table} is kept aside: {reason}", session)

    def mended(self, table: str, values: Values, session: Value = None) -> Values:
        """Put right what can be, and replace the values that cannot be right, keeping them aside.

        If all may be right and yet do not fit the checksum, it is unknown which one is not: a copy
        of the row is kept aside, and it goes on as it is.
        """
        if fits(table, values) and not faults(table, values):
            return values
        sound = _as_bound(values)
        found = None if fits(table, sound) else restored(table, sound)
        if found is not None:
            mended: Values = {**sound, found[0]: found[1]}
            why = f"{found[0]} was damaged, and is restored"
        else:
            mended = {**sound, **self._replaced(table, sound, session)}
            whole = fits(table, sound)
            why = "text was damaged, and is restored" if whole else "does not fit its checksum"
        if found is not None or mended == sound:
            self.keep_aside(table, why, _as_text(values))
            self.tell(f"a row of {table}: {why}", session or mended.get("session"))
        return mended

    def _replaced(self, table: str, values: Values, session: Value) -> Values:
        """Return what stands in for values that cannot be right."""
        wrong = faults(table, values)
        for name in wrong:
            self.keep_aside(f"{table}.{name}", "cannot be read", values[name])
            said = f"{name} of a row of {table} cannot be read"
            self.tell(said, session or values.get("session"))
        return {name: RULES[table][name].instead() for name in wrong}

    def known(self, session: Value) -> bool:
        """Return whether the new store has this session."""
        return self.first("SELECT 1 FROM sessions WHERE n = ?", session) is not None

    def lives(self, session: Value) -> bool:
        """Return whether it is a session in the new store, and not what a purge left of one."""
        return self.first("SELECT 1 FROM heads WHERE session = ?", session) is not None

    def numbers(self, table: str) -> Iterator[int]:
        """Go through the numbers of a table that is written to meanwhile."""
        query = f"SELECT n FROM {table} WHERE n > ? ORDER BY n LIMIT 1"  # noqa: S608 - our names
        number = self.number(query, 0)
        while number:
            yield number
            number = self.number(query, number)

    def tenant_of(self, session: Value) -> int:
        """Return whose a session of the new store is; 0 if it is not there."""
        return self.number("SELECT tenant FROM sessions WHERE n = ?", session)

    def getter(self, tenant: int | None) -> codec.GetBlob:
        """Return what finds a tenant's blobs in the new store."""

        def fetch(sha256: str) -> bytes | None:
            query = "SELECT data FROM blobs WHERE tenant = ? AND sha256 = ?"
            row = self.first(query, tenant, sha256)
            return row[0] if row and isinstance(row[0], bytes) else None

        return fetch

    def seal_all(self) -> None:
        """Return every row of the new store its checksum."""
        self.target.create_scalar_function("seal", lambda *values: seal(values), -1)
        for table in SEALED:
            columns = [str(row[1]) for row in self.target.execute(f"PRAGMA table_info({table})")]
            names = ", ".join(covered(table, columns))
            self.execute(f"UPDATE {table} SET crc = seal({names})")  # noqa: S608 - our names


def as_number(value: Value) -> int | None:
    """Return a value if it can be the number of something."""
    return value if isinstance(value, int) and value >= 1 else None


def _as_bound(values: Values) -> Values:
    """Return text that became a blob back as text; else nobody would find what it names."""
    return {
        name: bind(text_of(value)) if isinstance(value, bytes) and text_of(value) else value
        for name, value in values.items()
    }


def _as_text(values: Values) -> str:
    """Write a row down, readable, whatever is in it."""
    plain: dict[str, JSON] = {
        name: value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }
    return codec.to_json(plain).decode()
