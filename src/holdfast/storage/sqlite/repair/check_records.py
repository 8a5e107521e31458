"""Record check: the rules that `verify` applies to records.

A record lies behind a message of its branch, or behind the one that the branch starts after. Along
a branch the numbers of records grow, and the messages that they lie behind never go back. The head
of a session counts the records of its active branch. Each record matches its checksum, can be
decoded, and refers to exactly the blobs that are recorded for it. Of a scope, kind and key of the
store one record is current: only that one has a body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.storage.sqlite.repair.check_history import LAST_SEQ_QUERY, FetchFirst
from holdfast.storage.sqlite.repair.check_sessions import ReportDamage
from holdfast.storage.sqlite.repair.column_rules import (
    blobs_of_record,
    written_record,
    written_store_record,
)
from holdfast.storage.sqlite.repair.row_scan import Value, Values
from holdfast.storage.sqlite.tables import SEQ_BITS, SEQ_MASK

BRANCH_OF_RECORDS: Final = (
    "SELECT b.session, s.tenant, b.fork_seq, iif(h.branch = b.n, coalesce(h.records, 0), NULL) "
    "FROM branches b LEFT JOIN sessions s ON s.n = b.session "
    "LEFT JOIN heads h ON h.session = b.session WHERE b.n = ?"
)
_REPLACED: Final = (
    "SELECT 1 FROM store_records INDEXED BY store_records_by_key WHERE tenant = ? AND kind = ? "
    "AND key IS ? AND scope IS ? AND body IS NOT NULL AND n > ?"
)


class RecordChecker:
    """Checks records, given in the order of their places, against their branches and blobs."""

    def __init__(
        self,
        first: FetchFirst,
        report: ReportDamage,
        blobs: Callable[[int | None], codec.BlobReader],
    ) -> None:
        """Check with `first`, which returns the first row of a query; report with `report`.

        `blobs` returns a reader of a tenant's blobs.
        """
        self._first = first
        self._report = report
        self._blobs = blobs
        self._branch = 0
        self._owner: tuple[Value, ...] | None = None
        self._previous = self._last = 0

    def record(self, place: int, values: Values) -> None:
        """Check one record."""
        if place >> SEQ_BITS != self._branch:
            self._enter(place >> SEQ_BITS)
        session, tenant, _, counted = self._owner or (None, None, None, None)
        number, seq = place & SEQ_MASK, values["seq"]
        behind = seq if isinstance(seq, int) else None
        try:
            row = written_record(values)
            needed = blobs_of_record(row, self._blobs(tenant if isinstance(tenant, int) else None))
        except Damaged as error:
            self._report(f"record {number} {error}", session, behind, blocking=error.blocking)
            return
        if self._owner is not None and not self._previous <= row.seq <= self._last:
            problem = f"record {number} lies behind a message that is not on its branch, or earlier"
            self._report(f"{problem} than that of the record before it", session, behind)
        self._previous = max(self._previous, row.seq)
        if isinstance(counted, int) and number > counted:
            problem = f"record {number} is beyond the head, which counts {counted} records"
            self._report(problem, session, behind)
        if not self._has_exactly("record_blobs WHERE place = ?", place, needed, tenant):
            problem = f"the blobs recorded for record {number} are not those that it references"
            self._report(problem, session, behind)

    def _enter(self, branch: int) -> None:
        """Read the branch of the next records."""
        self._branch = branch
        self._owner = self._first(BRANCH_OF_RECORDS, branch)
        if self._owner is None:
            self._report(f"records belong to branch {branch}, which is missing")
            return
        last = (self._first(LAST_SEQ_QUERY, branch) or (None,))[0]
        start = self._owner[2]
        self._previous = start if isinstance(start, int) else 0
        self._last = last if isinstance(last, int) else SEQ_MASK

    def store_record(self, n: int, values: Values) -> None:
        """Check one record of the store."""
        tenant = values["tenant"]
        try:
            row = written_store_record(values)
            needed = blobs_of_record(row, self._blobs(tenant if isinstance(tenant, int) else None))
        except Damaged as error:
            self._report(f"record {n} of the store {error}", blocking=error.blocking)
            return
        if self._first("SELECT 1 FROM tenants WHERE n = ?", tenant) is None:
            self._report(f"the tenant of record {n} of the store is missing")
        name = (tenant, values["kind"], values["key"], values["scope"])
        if row.body is not None and self._first(_REPLACED, *name, n) is not None:
            self._report(f"record {n} of the store was replaced, but has a body")
        if not self._has_exactly("store_record_blobs WHERE record = ?", n, needed, tenant):
            problem = f"the blobs recorded for record {n} of the store"
            self._report(f"{problem} are not those that it references")

    def _has_exactly(self, uses: str, key: int, needed: Collection[str], tenant: Value) -> bool:
        """True if those of the blobs that a record needs are recorded for it that are stored."""
        stored = [
            sha256
            for sha256 in needed
            if self._first("SELECT 1 FROM blobs WHERE tenant = ? AND sha256 = ?", tenant, sha256)
        ]
        recorded = (self._first(f"SELECT count(*) FROM {uses}", key) or (None,))[0]  # noqa: S608
        query = f"SELECT 1 FROM blobs, {uses} AND n = blob AND sha256 = ?"  # noqa: S608
        return recorded == len(stored) and all(
            self._first(query, key, sha256) is not None for sha256 in stored
        )
