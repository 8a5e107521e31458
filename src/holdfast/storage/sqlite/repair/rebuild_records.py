"""Rebuilding the records of every branch, once its messages show how long it is.

A record that cannot be read goes, with its bytes, into `quarantine`. All others keep their numbers;
one that lay behind a message that is lost lies behind the last one before it. Afterwards the head
of every session counts at least the records that its active branch has, and no branch has more
records of its parent than that counts.
"""

from __future__ import annotations

from typing import Final

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.storage.rows import BlobUse, RecordRow
from holdfast.storage.sqlite.repair.check_history import LAST_SEQ_QUERY
from holdfast.storage.sqlite.repair.check_records import BRANCH_OF_RECORDS
from holdfast.storage.sqlite.repair.column_rules import (
    RECORDS,
    STORE_RECORDS,
    blobs_of_record,
    written_record,
    written_store_record,
)
from holdfast.storage.sqlite.repair.copy_rows import RowCopier
from holdfast.storage.sqlite.repair.rebuild_sessions import SessionRebuilder
from holdfast.storage.sqlite.repair.row_scan import Value, Values
from holdfast.storage.sqlite.tables import BOUNDS, SEQ_BITS, SEQ_MASK

_MAX_COUNTED: Final = BOUNDS["number"][1] - codec.MAX_BATCH_ENTRIES
_NEWEST_NUMBER: Final = (
    "SELECT max(place) & 4294967295 FROM records WHERE place BETWEEN ?1 << 32 AND (?1 << 32) + ?2"
)

# Branches that name a record of their parent which its head does not count, or which lies behind a
# later message; and the number of the last one that they can have.
_LACKED_RECORDS: Final = (
    "SELECT b.n, b.session, b.number, coalesce(h.records, 0) FROM branches b "
    "JOIN heads h ON h.branch = b.parent WHERE b.fork_record > coalesce(h.records, 0) "
    "UNION ALL SELECT b.n, b.session, b.number, coalesce((SELECT max(place) & 4294967295 "
    "FROM records WHERE place BETWEEN b.parent << 32 AND r.place AND seq <= b.fork_seq), 0) "
    "FROM branches b JOIN records r ON r.place = (b.parent << 32) + b.fork_record "
    "WHERE r.seq > b.fork_seq"
)


class RecordRebuilder:
    """Copies and repairs records."""

    def __init__(self, copier: RowCopier, rebuilder: SessionRebuilder) -> None:
        """Fill the branches that `rebuilder` has rebuilt."""
        self._copier = copier
        self._session_rebuilder = rebuilder
        self._branch = self._previous = self._last = 0
        self._owner: tuple[Value, ...] | None = None

    def run(self) -> None:
        """Copy all records, those of the store too, and repair what counts them."""
        self._copier.for_each_row(RECORDS, self._record)
        self._copier.for_each_row(STORE_RECORDS, self._store_record)
        self.repair_counts()
        self._repair_forks()

    def _record(self, values: Values) -> None:
        place, seq = values["place"], values["seq"]
        branch = place >> SEQ_BITS if isinstance(place, int) else 0
        if branch != self._branch:
            self._enter(branch)
        if self._owner is None:
            self._quarantine(values, "belongs to a branch that is lost")
            return
        tenant = self._copier.tenant_of(self._owner[0])
        try:
            row = written_record(values)
            needed = blobs_of_record(row, self._copier.transaction(tenant).blob)
            row = self._placed(row)
        except Damaged as error:
            self._quarantine(values, str(error))
            return
        self._copier.add_record(tenant, branch, row, self._stored(tenant, needed))
        if row.seq != seq:
            problem = f"record {row.number} lay behind message {seq!r}, which is lost"
            self._copier.report(problem, self._owner[0], row.seq)

    def _enter(self, branch: int) -> None:
        """Read the branch of the next records."""
        self._branch = branch
        self._owner = self._copier.fetch_first(BRANCH_OF_RECORDS, branch)
        start = self._owner[2] if self._owner else 0
        self._previous = start if isinstance(start, int) else 0
        self._last = self._copier.fetch_int(LAST_SEQ_QUERY, branch)

    def _placed(self, row: RecordRow) -> RecordRow:
        """Return a record behind a message that its branch has."""
        if row.seq < self._previous:
            raise Damaged("lies behind an earlier message than the record before it")
        self._previous = min(row.seq, self._last)
        if self._previous == row.seq:
            return row
        name = (row.kind, row.key)
        return RecordRow.create(row.number, self._previous, row.id, name, row.body)

    def _stored(self, tenant: int, hashes: set[str]) -> list[str]:
        query = "SELECT 1 FROM blobs WHERE tenant = ? AND sha256 = ?"
        return [name for name in sorted(hashes) if self._copier.fetch_first(query, tenant, name)]

    def _quarantine(self, values: Values, why: str) -> None:
        place, seq = values["place"], values["seq"]
        number = place & SEQ_MASK if isinstance(place, int) else 0
        self._copier.quarantine("records", why, values["body"])
        session = self._owner[0] if self._owner else None
        problem = f"record {number} {why}; it was quarantined"
        self._copier.report(problem, session, seq if isinstance(seq, int) else None)

    def _store_record(self, values: Values) -> None:
        tenant = self._copier.fetch_int("SELECT n FROM tenants WHERE n = ?", values["tenant"])
        transaction = self._copier.transaction(tenant)
        try:
            row = written_store_record(values)
            needed = blobs_of_record(row, transaction.blob)
        except Damaged as error:
            self._quarantine_store_record(values["body"], str(error))
            return
        if not tenant:
            self._quarantine_store_record(values["body"], "belongs to a tenant that is lost")
            return
        replaced = row.body and transaction.store_record(row.scope, row.kind, row.key)
        if replaced:
            self._quarantine_store_record(replaced.body, "was replaced, but had a body")
        transaction.put_store_record(
            row, [BlobUse(0, sha256) for sha256 in self._stored(tenant, needed)]
        )

    def _quarantine_store_record(self, body: Value, why: str) -> None:
        self._copier.quarantine("store_records", why, body)
        self._copier.report(f"a record of the store {why}; it was quarantined")

    # ---------------------------------------------------------------------------------- counts

    def repair_counts(self) -> None:
        """Make every head count the records of its branch, or more: some may have been dropped."""
        for session, branch, counted in self._copier.fetch_all(
            "SELECT session, branch, coalesce(records, 0) FROM heads"
        ):
            newest = self._copier.fetch_int(_NEWEST_NUMBER, branch, SEQ_MASK)
            # Numbers that no store has used are damage: none would be left for new records.
            unsure = session in self._session_rebuilder.damaged_heads or counted > _MAX_COUNTED
            if newest > counted or (newest < counted and unsure):
                query = "UPDATE heads SET records = nullif(?, 0) WHERE session = ?"
                self._copier.execute(query, newest, session)
                problem = f"the session counted {counted} records and has {newest}"
                self._copier.report(problem, session)

    def _repair_forks(self) -> None:
        """Let no branch have more records of its parent than are there behind its messages."""
        for n, session, number, counted in self._copier.fetch_all(_LACKED_RECORDS):
            query = "UPDATE branches SET fork_record = nullif(?, 0) WHERE n = ?"
            self._copier.execute(query, counted, n)
            problem = f"branch {number} started at a record that its parent does not have there"
            self._copier.report(problem, session)
