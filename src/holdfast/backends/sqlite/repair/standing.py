"""Who the sessions are and how their branches hang together: what `verify` asks of these rows.

A session that lives has a head, on the branch with the highest number of its own; its numbers run
from 1 without a gap; every other branch says where it ended. A *husk*, what a purge left because
forks share it, has no head, no name and nothing of its own; each of its branches goes exactly as
far as another starts on it.

A branch starts behind a message that lies on an older branch of the same tenant, or at nothing. The
session that one names as its parent need not be there: that is only a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from holdfast.backends.sqlite.repair.histories import LAST_OF_BRANCH, First
from holdfast.backends.sqlite.repair.rules import owner_of
from holdfast.backends.sqlite.repair.scan import BadText, Value, Values

# What is left of a husk's row, column by column; id, parent, relation and times stay.
BLANK: Final[Values] = {
    "key": None,
    "scope": None,
    "agent": None,
    "title": None,
    "title_by": None,
    "model": None,
    "cwd": None,
    "pinned": 0,
    "archived": 0,
    "trashed_at": None,
    "goal": None,
    "metadata": "{}",
}
IS_PURGED: Final = "SELECT purged_at IS NOT NULL FROM sessions WHERE n = ?"
NEEDED: Final = "SELECT max(fork_seq) FROM branches WHERE parent = ?"
_TENANT_OF_BRANCH: Final = (
    "SELECT s.tenant FROM branches b JOIN sessions s ON s.n = b.session WHERE b.n = ?"
)


class Report(Protocol):
    """Says what is damaged, of which session."""

    def __call__(self, what: str, session: Value = None) -> None:
        """Say it."""
        ...


class Standing:
    """Checks the rows of sessions, heads and branches against each other."""

    def __init__(self, first: First, report: Report) -> None:
        """Ask with `first`, which gives the first row of a query, and say with `report`."""
        self._first = first
        self._report = report

    def _there(self, query: str, *values: Value) -> bool:
        return self._first(query, *values) is not None

    # --------------------------------------------------------------------------------- sessions

    def session(self, n: int, values: Values) -> None:
        """Check a session's row."""
        headed = self._there("SELECT 1 FROM heads WHERE session = ?", n)
        if values["purged_at"] is None and not headed:
            self._report("the session's head is missing", n)
        if values["purged_at"] is not None:
            self._husk(n, values, headed=headed)
        if not self._there("SELECT 1 FROM tenants WHERE n = ?", values["tenant"]):
            self._report("the session's tenant is missing", n)
        if not self._indexed(n, values):
            self._report("the session's id or key differs from what was indexed", n)

    def _husk(self, n: int, values: Values, *, headed: bool) -> None:
        if headed:
            self._report("the session was purged and has a head", n)
        for column in (name for name, blank in BLANK.items() if values[name] != blank):
            self._report(f"the session was purged and its {column} is still there", n)
        if not self._there("SELECT 1 FROM branches WHERE session = ?", n):
            self._report("the session was purged, and no fork needs anything of it", n)

    def _indexed(self, n: int, values: Values) -> bool:
        """Compare with the index, which holds the same bytes a second time."""
        tenant, name, key = values["tenant"], values["id"], values["key"]
        if isinstance(name, BadText) or isinstance(key, BadText):
            return True  # It is reported already, and is no text to search for.
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
        by_activity = (
            "SELECT session FROM heads INDEXED BY heads_by_activity "
            "WHERE tenant = ? AND activity = ?"
        )
        if self._first(by_activity, values["tenant"], values["activity"]) != (n,):
            self._report("the session's activity differs from what was indexed", n)

    def _numbers(self, n: int, active: Value) -> None:
        query = "SELECT count(*), max(number) FROM branches WHERE session = ?"
        count, highest = self._first(query, n) or (0, None)
        if not isinstance(highest, int) or not isinstance(active, int):
            return  # It is reported already.
        if highest != count:
            self._report(f"the session has {count!r} branches, numbered up to {highest}", n)
        if highest > active:
            self._report(f"the session stands on branch {active} and has a branch {highest}", n)

    # --------------------------------------------------------------------------------- branches

    def branch(self, n: int, values: Values) -> None:
        """Check whose a branch is, where it starts and where it ends."""
        session = owner_of("branches", values)
        by_number = (
            "SELECT n FROM branches INDEXED BY branches_by_number WHERE session = ? AND number = ?"
        )
        if self._first(by_number, values["session"], values["number"]) != (n,):
            self._report(f"branch {n} differs from what was indexed", session)
        purged = self._first(IS_PURGED, session)
        if purged is None:
            self._report(f"branch {n} belongs to session number {session!r}, which is missing")
        for said in (*self._start(n, values), *self._end(n, values, husk=purged == (1,))):
            self._report(f"branch {values['number']!r} {said}", session)

    def _start(self, n: int, values: Values) -> Iterator[str]:
        parent, fork_seq = values["parent"], values["fork_seq"]
        if parent is None:
            if fork_seq != 0:
                yield "has lost what it starts from"
            return
        begin = self._first("SELECT fork_seq FROM branches WHERE n = ?", parent)
        end = self._first(LAST_OF_BRANCH, parent)
        if not isinstance(parent, int) or parent >= n or not _within(begin, fork_seq, end):
            yield "starts where no history is"
        elif self._first(_TENANT_OF_BRANCH, parent) != self._first(_TENANT_OF_BRANCH, n):
            yield "starts on a branch of another tenant"

    def _end(self, n: int, values: Values, *, husk: bool) -> Iterator[str]:
        end = values["last_seq"]
        active = self._there("SELECT 1 FROM heads WHERE session = ? AND branch = ?",
                             values["session"], n)  # fmt: skip
        if active and end is not None:
            yield "is the active one and says that it has ended"
        elif not active and end is None:
            yield "was left and does not say where it ended"
        needed = self._first(NEEDED, n)
        if husk and end is not None and needed != (end,):
            yield "is of a purged session, and is not as long as others need it"


def _within(begin: tuple[Value, ...] | None, seq: Value, end: tuple[Value, ...] | None) -> bool:
    """Return whether a message lies behind the start of a branch and not behind its end."""
    if begin is None or end is None:
        return False
    low, high = begin[0], end[0]
    known = isinstance(low, int) and isinstance(seq, int) and isinstance(high, int)
    return known and low < seq <= high  # type: ignore[operator]
