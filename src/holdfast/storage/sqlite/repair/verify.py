"""Verification: finding damage in a store's file.

The tables must be those of a store: through others nothing is read. Then SQLite checks its own
structure (pages, trees, indexes), and Holdfast's rules are checked in
one pass over all tables, in file order: every value is valid (`column_rules`), every row matches
its checksum, every message can be decoded, every history is numbered without gaps up to its head
(`check_history`), records lie where their histories are (`check_records`), sessions, heads and
branches are consistent (`check_sessions`), and every reference leads to an existing row.

An unreadable part is reported and the rest is still checked. Nothing is written, and only the
findings are held in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import apsw

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.repair.check_derived import DerivedChecker
from holdfast.storage.sqlite.repair.check_history import (
    LAST_SEQ_QUERY,
    BeyondHead,
    BranchExtent,
    HistoryFinding,
    MisplacedMessage,
    MissingMessages,
    PresentMessage,
    max_messages,
    next_probe_key,
    walk,
)
from holdfast.storage.sqlite.repair.check_records import RecordChecker
from holdfast.storage.sqlite.repair.check_sessions import IS_PURGED, SessionChecker
from holdfast.storage.sqlite.repair.column_rules import (
    BLOBS,
    BRANCHES,
    DRAFTS,
    HEADS,
    MESSAGES,
    QUARANTINE,
    QUEUE,
    QUEUE_BLOBS,
    RECORDS,
    SESSION_TABLES,
    SESSIONS,
    STORE_RECORDS,
    TENANTS,
    TURNS,
    USAGE,
    has_written_types,
    invalid_columns,
    is_draft_chunk,
    is_queued_input,
    matches_checksum,
    read_message,
    session_of,
    written_row,
)
from holdfast.storage.sqlite.repair.row_scan import (
    LAST_KEY,
    UNREADABLE,
    KeyedTable,
    MisfiledRow,
    Row,
    SessionKeyedTable,
    UnreadableRange,
    UnreadableRows,
    Value,
    Values,
    has_table,
    open_damaged,
    scan_rows,
    scan_session_rows,
)
from holdfast.storage.sqlite.tables import SEQ_BITS, SEQ_MASK
from holdfast.storage.sqlite.wal import Binding
from holdfast.storage.sqlite.wal_check import find_ignored
from holdfast.values import Damage

_log = logging.getLogger("holdfast")
MAX_STRUCTURE_LINES: Final = 100
_MAX_BLOB_USES: Final = 1000
# The tables of blob references: their keys, what these name, and what that is called.
_BLOB_USES: Final = (
    ("blob_uses", "place", "messages WHERE place", "a message"),
    ("record_blobs", "place", "records WHERE place", "a record"),
    ("store_record_blobs", "record", "store_records WHERE n", "a record of the store"),
)


def verify_file(
    path: Path, tenants: Collection[int] | None = None, steps: migrations.Steps | None = None
) -> list[Damage]:
    """Verify a file that may be too damaged to be opened as a store; see `verify`."""
    connection = open_damaged(path)
    try:
        return _verify_log(connection, path) + verify(connection, tenants, steps)
    finally:
        connection.close(force=True)


def _verify_log(connection: apsw.Connection, path: Path) -> list[Damage]:
    """Return the damage of the write-ahead log. The torn end that a crash leaves is none."""
    try:
        ignored = find_ignored(connection, path)
    except UNREADABLE:
        return []  # Reported with the file's structure.
    if ignored is None:
        return []
    if ignored.damaged:
        return [Damage(what=str(ignored))]
    _log.warning("%s: %s", path, ignored)
    return []


def verify(
    connection: apsw.Connection,
    tenants: Collection[int] | None = None,
    steps: migrations.Steps | None = None,
) -> list[Damage]:
    """Read everything and return the damage.

    With `tenants`, damage in the sessions of other tenants is left out. `steps` are for tests.
    """
    own_transaction = not connection.in_transaction
    try:
        if own_transaction:
            connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except UNREADABLE as error:
        if connection.in_transaction and own_transaction:
            connection.execute("ROLLBACK")
        return [Damage(what=f"the file cannot be read as a database: {error}")]
    try:
        return schema_damage(connection, steps) or _Verifier(connection, tenants).run()
    finally:
        if own_transaction and connection.in_transaction:
            connection.execute("ROLLBACK")


def schema_damage(
    connection: apsw.Connection, steps: migrations.Steps | None = None
) -> list[Damage]:
    """Return one damage if the tables are not those of any format."""
    try:
        if any(migrations.same_tables(connection, steps or migrations.load())):
            return []
    except (*UNREADABLE, UnicodeDecodeError) as error:
        return [Damage(what=f"the schema of the file cannot be read: {error}")]
    return [Damage(what="the schema of the file is not that of a store")]


def structure(connection: apsw.Connection) -> list[Damage]:
    """Return the damage that SQLite finds in pages, trees and indexes."""
    lines: list[str] = []
    try:
        for (text,) in connection.execute(f"PRAGMA integrity_check({MAX_STRUCTURE_LINES})"):
            lines += str(text).splitlines()
    except (*UNREADABLE, UnicodeDecodeError) as error:
        lines.append(str(error))
    found = [line for line in lines[:MAX_STRUCTURE_LINES] if line != "ok"]
    try:
        found += filter(None, [migrations.header_damage(connection, migrations.load())])
    except (*UNREADABLE, UnicodeDecodeError) as error:
        found.append(str(error))
    return [Damage(what=f"the file's structure is damaged: {line}") for line in found]


class _Verifier:
    def __init__(self, connection: apsw.Connection, tenants: Collection[int] | None) -> None:
        self._connection = connection
        self._tenants = tenants
        self._found: list[Damage] = []
        self._session_checker = SessionChecker(self._first, self._report)
        self._record_checker = RecordChecker(self._first, self._report, self._getter)
        self._noted_next = 0
        self._derived_checker = DerivedChecker(connection, self._first, self._report)

    def run(self) -> list[Damage]:
        self._found += structure(self._connection)
        self._check_table(TENANTS, lambda _, values: self._tenant(values))
        self._check_table(SESSIONS, self._session)
        self._check_table(HEADS, self._head)
        self._check_table(BRANCHES, self._branch)
        self._check_table(USAGE, lambda _, values: self._usage(values))
        self._check_table(BLOBS, self._blob)
        self._check_table(QUEUE_BLOBS, lambda _, values: self._queue_blob(values))
        self._check_table(QUARANTINE, lambda _, values: self._quarantined(values))
        self._messages()
        self._check_table(RECORDS, self._record_checker.record)
        self._check_table(STORE_RECORDS, self._record_checker.store_record)
        self._owned()
        self._check_blob_uses()
        self._derived_checker.rest()
        self._meta()
        return self._found

    # ----------------------------------------------------------------------------- reporting

    def _report(
        self,
        what: str,
        session: Value = None,
        seq: int | None = None,
        *,
        blocking: bool = True,
    ) -> None:
        """Record damage, with the session's id if its number is known."""
        name, tenant = self._identify(session)
        if self._tenants is None or tenant is None or tenant in self._tenants:
            damage = Damage(what=what, session_id=name, seq=seq, blocking=blocking)
            self._found.append(damage)

    def _identify(self, session: Value) -> tuple[str | None, int | None]:
        if session is None:
            return None, None
        row = self._first("SELECT CAST(id AS BLOB), tenant FROM sessions WHERE n = ?", session)
        if row is None or not isinstance(row[0], bytes):
            return None, None
        name = row[0].decode("utf-8", "backslashreplace")
        return name, row[1] if isinstance(row[1], int) else None

    def _first(self, query: str, *values: Value) -> tuple[Value, ...] | None:
        """Return the first row of a query; `None` if there is none or it cannot be read."""
        try:
            found: tuple[Value, ...] | None = self._connection.execute(query, values).fetchone()
        except (*UNREADABLE, UnicodeDecodeError):
            return None
        return found

    def _exists(self, query: str, *values: Value) -> bool:
        return self._first(query, *values) is not None

    # -------------------------------------------------------------------------------- tables

    def _check_table(self, table: KeyedTable, check: Callable[[int, Values], None]) -> None:
        for item in scan_rows(self._connection, table):
            if isinstance(item, Row):
                check(item.key, item.values)
            elif isinstance(item, MisfiledRow):
                self._report(f"a row of {table.name} is stored under a wrong number, {item.key}")
            else:
                self._report(f"{_describe_range(table.name, item)} cannot be read: {item.why}")

    def _check_row(self, table: str, values: Values, label: str, session: Value = None) -> None:
        """Report a row's invalid values; if all are valid, a mismatch with its checksum."""
        invalid = invalid_columns(table, values)
        for column in invalid:
            self._report(f"{column} of {label} of {table} cannot be read", session)
        if not invalid and not matches_checksum(table, values):
            self._report(f"{label} of {table} does not match its checksum", session)

    def _tenant(self, values: Values) -> None:
        if invalid_columns("tenants", values):
            self._report("the name of a tenant cannot be read")

    def _session(self, n: int, values: Values) -> None:
        self._check_row("sessions", values, "the row", n)
        self._session_checker.session(n, values)
        self._derived_checker.session(n, values)

    def _head(self, n: int, values: Values) -> None:
        self._check_row("heads", values, "the row", session_of("heads", values))
        self._session_checker.head(n, values)
        self._derived_checker.head(n, values)
        queued = self._first("SELECT count(*) FROM queue WHERE session = ?", n)
        if queued is not None and queued[0] != values["queued"]:
            counted = values["queued"]
            self._report(f"the session counts {counted!r} queued inputs and has {queued[0]!r}", n)
        self._open_turn(n, values)

    def _open_turn(self, n: int, values: Values) -> None:
        newest = self._first("SELECT max(number) FROM turns WHERE session = ?", n) or (None,)
        turns = values["turns"]
        if isinstance(newest[0], int) and isinstance(turns, int) and newest[0] > turns:
            self._report(f"the session counts {turns} turns and has a turn {newest[0]}", n)
        if values["open_turn"] is None:
            return
        state = "SELECT CAST(state AS BLOB) FROM turns WHERE session = ? AND number = ?"
        if self._first(state, n, values["open_turn"]) != (b"open",):
            self._report(f"the session's open turn {values['open_turn']!r} is missing", n)

    def _branch(self, n: int, values: Values) -> None:
        self._check_row("branches", values, f"row {n}", session_of("branches", values))
        self._session_checker.branch(n, values)

    def _quarantined(self, values: Values) -> None:
        """Check a row of the quarantine, which has what is damaged already: it blocks nothing."""
        if invalid_columns("quarantine", values) or not matches_checksum("quarantine", values):
            self._report("a row of quarantine does not match its checksum", blocking=False)

    def _blob(self, n: int, values: Values) -> None:
        data, name = values["data"], values["sha256"]
        if not isinstance(data, bytes) or codec.sha256_hex(data) != name:
            self._report(f"the data of blob {n} does not match its hash", blocking=False)

    def _queue_blob(self, values: Values) -> None:
        data, session = values["data"], values["session"]
        if not isinstance(data, bytes) or codec.sha256_hex(data) != values["sha256"]:
            self._report("a file attached to queued input does not match its hash", session)
        self._check_session("a file attached to queued input belongs", session)

    def _usage(self, values: Values) -> None:
        session = session_of("usage", values)
        self._check_row("usage", values, "a row", session)
        self._check_session("a row of usage belongs", session)

    def _check_session(self, what: str, session: Value) -> None:
        """Check that the session which a row belongs to exists and was not purged."""
        purged = self._first(IS_PURGED, session)
        if purged is None:
            self._report(f"{what} to session number {session!r}, which is missing")
        elif purged != (0,):
            self._report(f"{what} to a session that was purged", session)

    def _check_blob_uses(self) -> None:
        for table, key, owner, whose in _BLOB_USES:
            if not has_table(self._connection, table):
                continue
            query = f"SELECT {key}, blob FROM {table} u WHERE NOT EXISTS (SELECT 1 FROM {{}}) "  # noqa: S608
            for target, problem in (
                ("blobs WHERE n = u.blob", f"{whose} references blob {{!r}}, which is missing"),
                (f"{owner} = u.{key}", f"blob {{!r}} is referenced by a missing {whose[2:]}"),
            ):
                try:
                    found = self._connection.execute(
                        f"{query.format(target)} LIMIT {_MAX_BLOB_USES}"
                    ).fetchall()
                except (*UNREADABLE, UnicodeDecodeError) as error:
                    self._report(f"the table {table} cannot be read: {error}")
                    break
                for rowid, blob in found:
                    if isinstance(rowid, int):
                        self._report_use(table, problem.format(blob), rowid)

    def _report_use(self, table: str, what: str, rowid: int) -> None:
        """Record damage of a message or record that a blob is recorded for."""
        if table == "blob_uses":
            self._report_at(what, rowid)
            return
        owner = self._first("SELECT session FROM branches WHERE n = ?", rowid >> SEQ_BITS)
        self._report(what, owner[0] if owner else None)

    def _meta(self) -> None:
        """Check that the values of `meta` are numbers, and the log's binding is valid.

        A changed number shows in the structure check: the index has every value a second time.
        """
        try:
            found = self._connection.execute("SELECT name, value FROM meta").fetchall()
        except (*UNREADABLE, UnicodeDecodeError) as error:
            self._report(f"the table meta cannot be read: {error}")
            return
        for name, value in found:
            if name == "log":
                if Binding.decode(value) is None:
                    self._report("the binding of the store to its write-ahead log is damaged")
            elif not isinstance(value, int) or value < 0:
                self._report(f"the value of {name!r} in meta is not a valid number")

    def _report_at(self, what: str, rowid: int) -> None:
        """Record damage at a rowid of the table of messages."""
        owner = self._first("SELECT session FROM branches WHERE n = ?", rowid >> SEQ_BITS)
        self._report(what, owner[0] if owner else None, rowid & SEQ_MASK)

    # ------------------------------------------------------------------ turns, drafts, queues

    def _owned(self) -> None:
        for table in SESSION_TABLES:
            last: Value = None
            for item in scan_session_rows(self._connection, table, self._session_numbers()):
                if isinstance(item, UnreadableRows):
                    problem = f"some rows of {table.name} cannot be read: {item.why}"
                    self._report(problem, item.session)
                    continue
                session = session_of(table.name, item)
                if session != last:
                    self._check_session(f"a row of {table.name} belongs", session)
                last = session
                self._owned_values(table, session, item)

    def _session_numbers(self) -> Iterator[int]:
        for item in scan_rows(self._connection, SESSIONS):
            if isinstance(item, Row):
                yield item.key

    def _owned_values(self, table: SessionKeyedTable, session: Value, values: Values) -> None:
        if table is DRAFTS and not is_draft_chunk(values):
            self._report("a chunk of a draft cannot be read", session)
        elif table is QUEUE and not is_queued_input(values, self._queue_getter(session, values)):
            self._report("queued input cannot be read", session)
        else:
            self._check_row(table.name, values, "a row", session)
        if table is TURNS and values["state"] == "open":
            self._check_open_turn(session, values["number"])

    def _check_open_turn(self, session: Value, number: Value) -> None:
        head = self._first("SELECT open_turn FROM heads WHERE session = ?", session)
        if head is not None and head[0] != number:
            self._report(f"turn {number!r} is open, but the head does not name it", session)

    def _queue_getter(self, session: Value, values: Values) -> codec.BlobReader:
        own = "SELECT data FROM queue_blobs WHERE session = ? AND number = ? AND sha256 = ?"
        stored = self._getter(self._identify(session)[1])

        def fetch(sha256: str) -> bytes | None:
            row = self._first(own, session, values["number"], sha256)
            data = row[0] if row else None
            found = codec.intact(sha256, data if isinstance(data, bytes) else None)
            return stored(sha256) if found is None else found

        return fetch

    def _getter(self, tenant: int | None) -> codec.BlobReader:
        def fetch(sha256: str) -> bytes | None:
            row = self._first(
                "SELECT data FROM blobs WHERE tenant = ? AND sha256 = ?", tenant, sha256
            )
            data = row[0] if row else None
            return codec.intact(sha256, data if isinstance(data, bytes) else None)

        return fetch

    # ------------------------------------------------------------------------------ messages

    def _messages(self) -> None:
        items = scan_rows(self._connection, MESSAGES, lambda key: next_probe_key(self._first, key))
        unknown = 0
        for finding in walk(items, self._branches(), max_messages(self._connection)):
            if isinstance(finding, PresentMessage) and finding.branch.session is None:
                if unknown != finding.branch.number:
                    self._report(f"messages belong to branch {finding.branch.number}, "
                                 "which is missing")  # fmt: skip
                unknown = finding.branch.number
            self._finding(finding)

    def _finding(self, finding: HistoryFinding) -> None:
        if isinstance(finding, PresentMessage):
            self._message(finding)
        elif isinstance(finding, MissingMessages):
            span = f"messages {finding.first} to {finding.last} are missing"
            self._report(span, finding.branch.session, finding.first)
        elif isinstance(finding, BeyondHead):
            problem = f"the history continues to message {finding.last}, beyond its head"
            self._report(problem, finding.branch.session, finding.last)
        elif isinstance(finding, MisplacedMessage):
            self._report_at("a message is stored at a position outside its branch", finding.key)
        else:
            self._report(f"{_describe_range('messages', finding)} cannot be read: {finding.why}")

    def _message(self, found: PresentMessage) -> None:
        branch, seq, row = found.branch, found.seq, found.row
        if row.stored_key is not None:
            self._report("the message is stored under a wrong number", branch.session, seq)
        try:
            written = written_row(seq, row.values)
            message, needed = read_message(written, self._getter(branch.tenant))
        except Damaged as error:
            problem = f"the message {error}"
            self._report(problem, branch.session, seq, blocking=error.blocking)
            return
        if not has_written_types(written, row.values):
            self._report("the message is not stored as it was written", branch.session, seq)
        if message.status == "erased" and message.parts:
            self._report("the message was erased, but has content left", branch.session, seq)
        if message.status != "damaged":  # A placeholder keeps the blobs of the lost message.
            self._check_blobs(found, needed)

    def _check_blobs(self, found: PresentMessage, needed: Collection[str]) -> None:
        """Compare the blobs that a message references with those recorded for it."""
        branch, seq, rowid = found.branch, found.seq, found.row.key
        if not needed and rowid < self._noted_next:
            return  # Messages come in rowid order, so most of them need no query.
        query = "SELECT 1 FROM blob_uses JOIN blobs ON n = blob WHERE place = ? AND sha256 = ?"
        known = 0
        for sha256 in sorted(needed):
            recorded = self._exists(query, rowid, sha256)
            known += recorded
            if not recorded and self._getter(branch.tenant)(sha256) is not None:
                problem = "the message references a blob that is not recorded for it"
                self._report(problem, branch.session, seq)
        if self._number("SELECT count(*) FROM blob_uses WHERE place = ?", rowid) > known:
            problem = "a blob is recorded for the message, which does not reference it"
            self._report(problem, branch.session, seq)
        query = "SELECT min(place) FROM blob_uses WHERE place > ?"
        self._noted_next = self._number(query, rowid) or LAST_KEY

    def _number(self, query: str, *values: Value) -> int:
        found = self._first(query, *values)
        return found[0] if found and isinstance(found[0], int) else 0

    def _branches(self) -> Iterator[BranchExtent]:
        for item in scan_rows(self._connection, BRANCHES):
            if isinstance(item, Row):
                yield self._as_branch(item.key, item.values)

    def _as_branch(self, number: int, values: Values) -> BranchExtent:
        session, fork_seq = values["session"], values["fork_seq"]
        name, tenant = self._identify(session)
        last = (self._first(LAST_SEQ_QUERY, number) or (None,))[0]
        return BranchExtent(
            number=number,
            session=session if isinstance(session, int) else 0,
            session_id=name,
            tenant=tenant,
            fork_seq=fork_seq if isinstance(fork_seq, int) else 0,
            last=last if isinstance(last, int) else None,
        )


def _describe_range(table: str, hole: UnreadableRange) -> str:
    if table in {"messages", "records"}:
        first, last = hole.first >> SEQ_BITS, hole.last >> SEQ_BITS
        if first == last:
            return f"{table} {hole.first & SEQ_MASK} to {hole.last & SEQ_MASK} of branch {first}"
        return f"{table} of branches {first} to {last}"
    return f"rows {hole.first} to {hole.last} of {table}"
