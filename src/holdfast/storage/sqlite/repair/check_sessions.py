"""Session check: the rules that `verify` applies to sessions, heads and branches.

A live session has a head on the branch with the highest number; its branch numbers run from 1
without a gap; every other branch records its last seq. A *stub*, which a purge leaves because forks
share its messages, has no head, no name and no data of its own; each of its branches ends exactly
where the last fork that needs it starts. Until its purge is finished a stub is in the trash, has
the choice for its forks as its key, and may have more messages.

A branch starts after a message on an older branch of the same tenant, or without a parent at the
first message. The older branch may start there itself if it has records behind that message. A
session may name a parent session that no longer exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol, get_args

from holdfast.storage.sqlite.repair.check_history import LAST_SEQ_QUERY, FetchFirst
from holdfast.storage.sqlite.repair.column_rules import RULES, session_of
from holdfast.storage.sqlite.repair.row_scan import BadText, Value, Values
from holdfast.values import Forks

# A purge keeps these of a session's row; the rest is blank.
_STUB_COLUMNS: Final = {"n", "tenant", "id", "created_at", "parent", "relation", "purged_at"}
STUB_VALUES: Final[Values] = {
    name: rule.default() for name, rule in RULES["sessions"].items() if name not in _STUB_COLUMNS
}
IS_PURGED: Final = "SELECT purged_at IS NOT NULL FROM sessions WHERE n = ?"
_IS_FINISHED_STUB: Final = f"{IS_PURGED} AND purged_at IS NOT NULL AND trashed_at IS NULL"
_UNFINISHED_COLUMNS: Final = ("key", "trashed_at")
NEEDED_SEQ_QUERY: Final = "SELECT max(fork_seq) FROM branches WHERE parent = ?"
# A record that a branch has of its parent, and that the head there does not count, or that lies
# behind a later message. It may have been dropped.
_LACKED_RECORD: Final = (
    "SELECT 1 FROM heads WHERE branch = ?1 AND ?2 > coalesce(records, 0) "
    "UNION ALL SELECT 1 FROM records WHERE place = (?1 << 32) + ?2 AND seq > ?3"
)
_TENANT_OF_BRANCH: Final = (
    "SELECT s.tenant FROM branches b JOIN sessions s ON s.n = b.session WHERE b.n = ?"
)


class ReportDamage(Protocol):
    """A function that reports damage."""

    def __call__(
        self, what: str, session: Value = None, seq: int | None = None, *, blocking: bool = True
    ) -> None:
        """Report damage, in this session and at this message if they are known."""
        ...


class SessionChecker:
    """Checks the rows of sessions, heads and branches against each other."""

    def __init__(self, first: FetchFirst, report: ReportDamage) -> None:
        """Check with `first`, which returns the first row of a query; report with `report`."""
        self._first = first
        self._report = report

    def _exists(self, query: str, *values: Value) -> bool:
        return self._first(query, *values) is not None

    # --------------------------------------------------------------------------------- sessions

    def session(self, n: int, values: Values) -> None:
        """Check a session's row."""
        headed = self._exists("SELECT 1 FROM heads WHERE session = ?", n)
        if values["purged_at"] is None and not headed:
            self._report("the session's head is missing", n)
        if values["purged_at"] is not None:
            self._stub(n, values, headed=headed)
        if not self._exists("SELECT 1 FROM tenants WHERE n = ?", values["tenant"]):
            self._report("the session's tenant is missing", n)
        if not self._indexed(n, values):
            self._report("the session's id or key differs from its index entry", n)

    def _stub(self, n: int, values: Values, *, headed: bool) -> None:
        if headed:
            self._report("the session was purged but has a head", n)
        unfinished = values["trashed_at"] is not None and values["key"] in get_args(Forks)
        blank = STUB_VALUES | (
            {name: values[name] for name in _UNFINISHED_COLUMNS} if unfinished else {}
        )
        for column in (name for name, value in blank.items() if values[name] != value):
            self._report(f"the session was purged but its {column} is still there", n)
        if not unfinished and not self._exists("SELECT 1 FROM branches WHERE session = ?", n):
            self._report("the session was purged, and no fork shares any of its messages", n)

    def _indexed(self, n: int, values: Values) -> bool:
        """True if a row agrees with the indexes, which hold the same bytes a second time."""
        tenant, name, key = values["tenant"], values["id"], values["key"]
        if isinstance(name, BadText) or isinstance(key, BadText):
            return True  # It is reported already, and cannot be bound as text.
        by_id = "SELECT n FROM sessions INDEXED BY sessions_by_id WHERE tenant = ? AND id = ?"
        by_key = (
            "SELECT n FROM sessions INDEXED BY sessions_by_key "
            "WHERE tenant = ? AND key = ? AND trashed_at IS NULL"
        )
        trashed = values["trashed_at"] is not None
        return self._first(by_id, tenant, name) == (n,) and (
            key is None or trashed or self._first(by_key, tenant, key) == (n,)
        )

    # ------------------------------------------------------------------------------------ heads

    def head(self, n: int, values: Values) -> None:
        """Check a head against its session and the branch it names."""
        owner = self._first("SELECT tenant FROM sessions WHERE n = ?", n)
        if owner is None:
            self._report(f"a head belongs to session number {n}, which is missing")
        elif owner[0] != values["tenant"]:
            self._report("the session and its head name different tenants", n)
        branch = "SELECT session, number FROM branches WHERE n = ?"
        if self._first(branch, values["branch"]) != (n, values["branch_no"]):
            self._report("the session's active branch is missing, or another session's", n)
        self._numbers(n, values["branch_no"])

    def _numbers(self, n: int, active: Value) -> None:
        query = "SELECT count(*), max(number) FROM branches WHERE session = ?"
        count, highest = self._first(query, n) or (0, None)
        if not isinstance(highest, int) or not isinstance(active, int):
            return  # It is reported already.
        if highest != count:
            self._report(f"the session has {count!r} branches, numbered up to {highest}", n)
        if highest > active:
            self._report(f"the session's head is on branch {active}, not on branch {highest}", n)

    # --------------------------------------------------------------------------------- branches

    def branch(self, n: int, values: Values) -> None:
        """Check a branch's session, start and end."""
        session = session_of("branches", values)
        by_number = (
            "SELECT n FROM branches INDEXED BY branches_by_number WHERE session = ? AND number = ?"
        )
        if self._first(by_number, values["session"], values["number"]) != (n,):
            self._report(f"branch {n} differs from its index entry", session)
        purged = self._first(IS_PURGED, session)
        if purged is None:
            self._report(f"branch {n} belongs to session number {session!r}, which is missing")
        stub = self._exists(_IS_FINISHED_STUB, session)
        for problem in (*self._start(n, values), *self._end(n, values, stub=stub)):
            self._report(f"branch {values['number']!r} {problem}", session)

    def _start(self, n: int, values: Values) -> Iterator[str]:
        parent, fork_seq, fork_record = values["parent"], values["fork_seq"], values["fork_record"]
        if parent is None:
            if fork_seq != 0 or fork_record is not None:
                yield f"starts after message {fork_seq!r} but names no parent"
            return
        begin = self._first("SELECT fork_seq FROM branches WHERE n = ?", parent)
        end = self._first(LAST_SEQ_QUERY, parent)
        is_within = _within(begin, fork_seq, end, or_at_start=fork_record is not None)
        if not isinstance(parent, int) or parent >= n or not is_within:
            yield "starts at a message that its parent does not have"
        elif fork_record is not None and self._exists(
            _LACKED_RECORD, parent, fork_record, fork_seq
        ):
            yield "starts at a record that its parent does not have there"
        elif self._first(_TENANT_OF_BRANCH, parent) != self._first(_TENANT_OF_BRANCH, n):
            yield "starts on a branch of another tenant"

    def _end(self, n: int, values: Values, *, stub: bool) -> Iterator[str]:
        end = values["last_seq"]
        active = self._exists("SELECT 1 FROM heads WHERE session = ? AND branch = ?",
                             values["session"], n)  # fmt: skip
        if active and end is not None:
            yield "is active, but its end is recorded"
        elif not active and end is None:
            yield "is not active, but its end is not recorded"
        needed = self._first(NEEDED_SEQ_QUERY, n)
        if stub and end is not None and needed != (end,):
            yield "belongs to a purged session, but is not exactly as long as its forks need"


def _within(
    begin: tuple[Value, ...] | None,
    seq: Value,
    end: tuple[Value, ...] | None,
    *,
    or_at_start: bool,
) -> bool:
    """True if a message is after the start of a branch, or there, and not after its end."""
    if begin is None or end is None:
        return False
    low, high = begin[0], end[0]
    known = isinstance(low, int) and isinstance(seq, int) and isinstance(high, int)
    return known and low - or_at_start < seq <= high  # type: ignore[operator]
