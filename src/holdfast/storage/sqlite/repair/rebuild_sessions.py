"""Rebuilding sessions, heads and branches until they are consistent with each other.

If a session's row is lost but its head, branches or messages are not, they get a new session with a
title that says so. Every live session gets a head on its newest branch, and every branch a parent
that exists.

A stub, which a purge leaves of a session, has no head by design. If its row is damaged, its
branches show what it was: a live session has one branch whose end is not recorded.
"""

from __future__ import annotations

from holdfast import ids
from holdfast.storage.sqlite.repair.check_sessions import IS_PURGED
from holdfast.storage.sqlite.repair.column_rules import (
    BRANCHES,
    HEADS,
    SESSIONS,
    default_row,
    matches_checksum,
)
from holdfast.storage.sqlite.repair.copy_rows import RowCopier, as_row_number
from holdfast.storage.sqlite.repair.row_scan import UNREADABLE, Value, Values
from holdfast.storage.sqlite.tables import SEQ_MASK, message_rowid


class SessionRebuilder:
    """Copies and repairs sessions, heads and branches."""

    def __init__(self, copier: RowCopier) -> None:
        self._copier = copier
        self.unknown_ends: set[int] = set()  # Branches whose end only their messages can show.
        self.damaged_heads: set[int] = set()  # Sessions whose head does not match its checksum.
        self._damaged_rows: set[int] = set()  # Sessions whose row does not match, or is lost.
        self._guessed_tenants: set[int] = set()  # Those of them whose tenant is a guess.

    def run(self) -> None:
        """Copy all of them, then repair what is inconsistent."""
        self._copier.for_each_row(SESSIONS, self._session)
        self._copier.for_each_row(HEADS, self._head)
        self._copier.for_each_row(BRANCHES, self._branch)
        self._repair_stubs()
        self._recreate_lost_parents()
        self._reconcile_tenants()
        self._repair_heads()
        self._repair_ends()

    # --------------------------------------------------------------------------------- sessions

    def _session(self, values: Values) -> None:
        row = dict(self._copier.repaired_row("sessions", values, values["n"]))
        if not matches_checksum("sessions", row):
            self._damaged_rows.add(as_row_number(row["n"]) or 0)
            self._guessed_tenants.add(as_row_number(row["n"]) or 0)
        if not self._copier.fetch_int("SELECT n FROM tenants WHERE n = ?", row["tenant"]):
            row["tenant"] = self._recreate_tenant(row)
        if self._copier.insert("sessions", row):
            return
        # Its damaged id or key equals that of another session.
        row["id"], row["key"] = ids.session_id(), None
        if self._copier.copy("sessions", row):
            taken = str([values["id"], values["key"]])
            self._copier.quarantine("sessions", "id or key taken", taken)
            problem = "the session's id or key was taken by another; it has a new id"
            self._copier.report(problem, row["n"])

    def new_session(self, n: int | None, why: str, tenant: int = 0) -> int:
        """Insert a session for rows whose own is lost; return its number."""
        row = default_row("sessions") | {
            "n": n,
            "tenant": tenant or self._fallback_tenant(),
            "title": f"salvaged: {why}",
            "title_by": "auto",
            "created_at": self._copier.now,
        }
        self._copier.insert("sessions", row)
        number = self._copier.target.last_insert_rowid() if n is None else n
        self._damaged_rows.add(number)
        if not tenant:
            self._guessed_tenants.add(number)
        problem = f"the session is lost; its messages are kept in a new session ({why})"
        self._copier.report(problem, number)
        return number

    def _recreate_tenant(self, row: Values) -> int:
        """Return a lost tenant's number, inserted under a new name to keep its sessions apart."""
        n, number = as_row_number(row["n"]) or 0, as_row_number(row["tenant"]) or 0
        if n in self._damaged_rows:
            self._copier.report("the session's tenant is lost", n)
            return self._fallback_tenant()
        name = f"salvaged {number}"
        self._copier.report(f"the name of the session's tenant is lost; it is {name!r} now", n)
        query = "INSERT INTO tenants VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._copier.execute(query, number, name)
        found = self._copier.fetch_int("SELECT n FROM tenants WHERE n = ?", number)
        return found or self._fallback_tenant()

    def _fallback_tenant(self) -> int:
        """Return the tenant for a session of unknown tenant: the only one, or 'salvaged'."""
        if self._copier.fetch_int("SELECT count(*) FROM tenants") == 1:
            return self._copier.fetch_int("SELECT n FROM tenants")
        query = "INSERT INTO tenants (name) VALUES ('salvaged') ON CONFLICT DO NOTHING"
        self._copier.execute(query)
        return self._copier.fetch_int("SELECT n FROM tenants WHERE name = 'salvaged'")

    # ------------------------------------------------------------------- heads and branches

    def _head(self, values: Values) -> None:
        row = dict(self._copier.repaired_row("heads", values))
        session = as_row_number(row["session"])
        if session is None:
            self._copier.quarantine_row("heads", "belongs to no session", values)
            return
        if not matches_checksum("heads", row):
            self.damaged_heads.add(session)
        tenant = self._copier.tenant_of(session)
        if not tenant:
            self.new_session(session, "its name is lost", self._named_tenant(row))
            tenant = self._copier.tenant_of(session)
        if row["tenant"] != tenant:
            self._copier.report("the session and its head named different tenants", session)
            row["tenant"] = tenant
        elif session not in self.damaged_heads:
            self._guessed_tenants.discard(session)
        if not self._copier.insert("heads", row):
            row["activity"] = self._next_activity(tenant)
            self._copier.copy("heads", row)

    def _named_tenant(self, head: Values) -> int:
        """Return the tenant that a head names; 0 if the head is damaged or the tenant missing."""
        intact = head["session"] not in self.damaged_heads
        query = "SELECT n FROM tenants WHERE n = ? AND ?"
        return self._copier.fetch_int(query, head["tenant"], intact)

    def _next_activity(self, tenant: Value) -> int:
        return (
            self._copier.fetch_int("SELECT max(activity) FROM heads WHERE tenant = ?", tenant) + 1
        )

    def _branch(self, values: Values) -> None:
        row = dict(self._copier.repaired_row("branches", values))
        if not self._copier.has_session(row["session"]):
            named = self._copier.fetch_int("SELECT session FROM heads WHERE branch = ?", row["n"])
            lost = as_row_number(row["session"])
            row["session"] = named or self.new_session(lost, "its name is lost")
        self._repair_start(row)
        if not self._copier.insert("branches", row):
            row["number"] = self._next_branch_number(row["session"])
            self._copier.copy("branches", row)

    def _repair_start(self, row: Values) -> None:
        """Make a branch start before its first message, on an older branch or without a parent."""
        n, parent, fork_seq = row["n"], row["parent"], row["fork_seq"]
        first = self._first_seq(as_row_number(n) or 0)
        if not isinstance(parent, int) or not isinstance(n, int) or parent >= n:
            valid = parent is None and fork_seq == 0 and row["fork_record"] is None
            row["parent"], row["fork_seq"], row["fork_record"] = None, 0, None
        else:
            valid = first is None or not isinstance(fork_seq, int) or fork_seq < first
            if not valid and first is not None:
                row["fork_seq"] = first - 1
        if not valid:
            problem = f"the start of branch {row['number']!r} was wrong"
            self._copier.report(problem, row["session"])

    def _first_seq(self, branch: int) -> int | None:
        query = "SELECT min(place) FROM messages NOT INDEXED WHERE place BETWEEN ? AND ?"
        ends = (message_rowid(branch, 1), message_rowid(branch, SEQ_MASK))
        try:
            found = self._copier.source.execute(query, ends).get
        except UNREADABLE:
            return None
        return found & SEQ_MASK if isinstance(found, int) else None

    def _next_branch_number(self, session: Value) -> int:
        query = "SELECT max(number) FROM branches WHERE session = ?"
        return self._copier.fetch_int(query, session) + 1

    def new_branch(self, n: int | None, session: int, number: int = 0) -> int:
        """Insert a branch without a parent, whose end its messages will show; return its number."""
        row = default_row("branches") | {
            "n": n,
            "session": session,
            "number": number or self._next_branch_number(session),
            "last_seq": 0,
            "created_at": self._copier.now,
        }
        self._copier.insert("branches", row)
        added = self._copier.target.last_insert_rowid() if n is None else n
        self.unknown_ends.add(added)
        return added

    def _recreate_lost_parents(self) -> None:
        query = (
            "SELECT parent, max(session) FROM branches WHERE parent IS NOT NULL "
            "AND parent NOT IN (SELECT n FROM branches) GROUP BY parent"
        )
        for parent, child in self._copier.fetch_all(query):
            query = "SELECT session, branch_no FROM heads WHERE branch = ?"
            known = self._copier.fetch_first(query, parent) or self._session_of_lost_branch(parent)
            session, number = known or (self._stub_for(child), 1)
            self._copier.report(f"branch {number!r} is lost", session)
            self._insert_branch(parent, session, number)

    def _session_of_lost_branch(self, n: int) -> tuple[Value, ...] | None:
        """Return the session that a lost branch belonged to, and its number there.

        Row numbers and branch numbers both ascend. So the branch belongs to a session with a branch
        that starts on it, and with a gap between an older and a newer branch.
        """
        query = (
            "SELECT b.session, b.number - 1 FROM branches b "
            "LEFT JOIN branches a ON a.session = b.session AND a.number = b.number - 2 "
            "WHERE b.number > 1 AND b.n > ?1 AND (b.number = 2 OR a.n < ?1) "
            "AND b.session IN (SELECT session FROM branches WHERE parent = ?1) "
            "AND NOT EXISTS (SELECT 1 FROM branches c "
            "WHERE c.session = b.session AND c.number = b.number - 1)"
        )
        return self._copier.fetch_first(query, n)

    def _stub_for(self, child: int) -> int:
        """Return a stub for a lost branch that only others name, so that no list shows it."""
        query = (
            "SELECT n FROM sessions WHERE purged_at IS NOT NULL AND tenant = ? "
            "AND n NOT IN (SELECT session FROM branches)"
        )
        found = self._copier.fetch_int(query, self._copier.tenant_of(child))
        if found:
            return found
        session = self.new_session(None, "others start from it")
        query = "UPDATE sessions SET purged_at = ? WHERE n = ?"
        self._copier.execute(query, self._copier.now, session)
        return session

    def _insert_branch(self, n: int, session: Value, number: Value) -> None:
        query = "SELECT 1 FROM branches WHERE session = ? AND number = ?"
        taken = self._copier.fetch_first(query, session, number)
        self.new_branch(n, as_row_number(session) or 0, 0 if taken else as_row_number(number) or 0)

    # ------------------------------------------------------------------------ stubs and tenants

    def _repair_stubs(self) -> None:
        """Set `purged_at` of damaged rows without a head: a stub, or a session without one."""
        query = "SELECT n, purged_at FROM sessions WHERE n NOT IN (SELECT session FROM heads)"
        for n, purged_at in self._copier.fetch_all(query):
            if n in self._damaged_rows and (purged_at is None) == self._was_purged(n):
                at = self._copier.now if purged_at is None else None
                self._copier.execute("UPDATE sessions SET purged_at = ? WHERE n = ?", at, n)
        query = "SELECT n FROM sessions JOIN heads ON session = n WHERE purged_at IS NOT NULL"
        for (n,) in self._copier.fetch_all(query):
            self._copier.execute("UPDATE sessions SET purged_at = NULL WHERE n = ?", n)
            self._copier.report("the session was marked as purged, but has a head", n)

    def _was_purged(self, session: int) -> bool:
        """True if all branches of a session without a head have a recorded end and dependants."""
        query = (
            "SELECT count(*), count(last_seq), count((SELECT max(fork_seq) FROM branches c "
            "WHERE c.parent = b.n)) FROM branches b WHERE session = ?"
        )
        counts = self._copier.fetch_first(query, session) or (0,)
        return counts[0] != 0 and len(set(counts)) == 1

    def _reconcile_tenants(self) -> None:
        """Move sessions whose tenant is a guess to that of the sessions they share branches with.

        Sessions of different tenants that still share branches are separated.
        """
        if self._copier.fetch_int("SELECT count(*) FROM tenants") == 1:
            return
        query = (
            "SELECT DISTINCT p.session, b.session FROM branches b "
            "JOIN branches p ON p.n = b.parent WHERE p.session <> b.session"
        )
        edges: list[tuple[int, int]] = self._copier.fetch_all(query)
        guessed = set(self._guessed_tenants)
        while True:
            found = next(((a, b) for a, b in edges if (a in guessed) != (b in guessed)), None)
            if found is None:
                break
            guess, certain = found if found[0] in guessed else found[::-1]
            guessed.discard(guess)
            self._move_session(guess, self._copier.tenant_of(certain))
        for upper, lower in edges:
            if self._copier.tenant_of(upper) != self._copier.tenant_of(lower):
                self._detach_branches(upper, lower)

    def _move_session(self, session: int, tenant: int) -> None:
        if self._copier.tenant_of(session) == tenant:
            return
        query = "UPDATE sessions SET tenant = ?, id = ?, key = NULL WHERE n = ?"
        self._copier.execute(query, tenant, ids.session_id(), session)
        query = "UPDATE heads SET tenant = ?, activity = ? WHERE session = ?"
        self._copier.execute(query, tenant, self._next_activity(tenant), session)

    def _detach_branches(self, upper: int, lower: int) -> None:
        """Make branches of one tenant that start on another's start without a parent."""
        query = (
            "UPDATE branches SET parent = NULL, fork_seq = 0, asked_seq = 0, fork_record = NULL "
            "WHERE session = ? AND parent IN (SELECT n FROM branches WHERE session = ?)"
        )
        self._copier.execute(query, lower, upper)
        self._copier.report("the session's history started on another tenant's branch", lower)

    # ---------------------------------------------------------------------------- active branches

    def _repair_heads(self) -> None:
        """Put the head of every live session on that session's newest branch."""
        for session in self._copier.row_numbers("sessions"):
            if self._copier.fetch_int(IS_PURGED, session):
                continue
            query = "SELECT branch, branch_no FROM heads WHERE session = ?"
            head = self._copier.fetch_first(query, session)
            if head is None or not self._is_valid_head(session, head):
                self._assign_branch(session, head)

    def _is_valid_head(self, session: int, head: tuple[Value, ...]) -> bool:
        """True if a head is on a branch of its session, which is then made the newest one."""
        query = "SELECT number FROM branches WHERE session = ? AND n = ?"
        own = self._copier.fetch_int(query, session, head[0])
        newest = self._next_branch_number(session) - 1
        if not own or (own < newest and session in self.damaged_heads):
            return False
        number = self._make_newest(session, head[0], own)
        if number != head[1]:
            query = "UPDATE heads SET branch_no = ? WHERE session = ?"
            self._copier.execute(query, number, session)
            self._copier.report("the session's active branch was not its newest", session)
        return True

    def _repair_ends(self) -> None:
        """Keep the end of each active branch in its head, and of any other branch in its row."""
        active = "n IN (SELECT branch FROM heads)"
        ended = f"SELECT n FROM branches WHERE last_seq IS NULL AND NOT {active}"  # noqa: S608
        self.unknown_ends |= {n for (n,) in self._copier.fetch_all(ended)}
        query = f"UPDATE branches SET last_seq = fork_seq WHERE n IN ({ended})"  # noqa: S608
        self._copier.execute(query)
        self._copier.execute(f"UPDATE branches SET last_seq = NULL WHERE {active}")  # noqa: S608
        start = "SELECT fork_seq FROM branches WHERE n = branch"
        for branch in self.unknown_ends:
            self._copier.execute(f"UPDATE heads SET seq = ({start}) WHERE branch = ?", branch)  # noqa: S608

    def _assign_branch(self, session: int, head: tuple[Value, ...] | None) -> None:
        own = "SELECT n, number FROM branches WHERE session = ?"
        branch = (
            self._copier.fetch_first(f"{own} AND last_seq IS NULL ORDER BY number DESC", session)
            or self._reclaim_branch(session, head)
            or self._recreate_branch(session, head)
            or self._copier.fetch_first(f"{own} ORDER BY number DESC", session)
            or (self.new_branch(None, session, 1), 1)
        )
        branch = branch[0], self._make_newest(session, *branch)
        if head is None:
            self.new_head(session, branch)
            problem = "the session's head is lost; counts that its messages do not show are 0"
            self._copier.report(problem, session)
            return
        query = "UPDATE heads SET branch = ?, branch_no = ? WHERE session = ?"
        self._copier.execute(query, *branch, session)
        self._copier.report("the session's active branch was lost", session)
        if branch[0] != head[0]:
            self.unknown_ends.add(as_row_number(branch[0]) or 0)

    def _make_newest(self, session: int, n: Value, number: Value) -> Value:
        """Make a branch the highest-numbered one of its session; return its number."""
        following = self._next_branch_number(session)
        if number == following - 1:
            return number
        self._copier.execute("UPDATE branches SET number = ? WHERE n = ?", following, n)
        return following

    def _reclaim_branch(
        self, session: int, head: tuple[Value, ...] | None
    ) -> tuple[Value, ...] | None:
        """Move the branch that the head names here from a session that is not on it."""
        query = (
            "SELECT b.n FROM branches b LEFT JOIN heads h ON h.session = b.session "
            "WHERE b.n = ? AND h.branch IS NOT b.n"
        )
        found = self._copier.fetch_first(query, head[0]) if head else None
        if found is None:
            return None
        number = self._next_branch_number(session)
        query = "UPDATE branches SET session = ?, number = ? WHERE n = ?"
        self._copier.execute(query, session, number, found[0])
        return found[0], number

    def _recreate_branch(
        self, session: int, head: tuple[Value, ...] | None
    ) -> tuple[Value, ...] | None:
        """Insert the branch that the head names, if its row is lost."""
        n = as_row_number(head[0]) if head else None
        if head is None or not n or session in self.damaged_heads:
            return None
        if self._copier.fetch_int("SELECT n FROM branches WHERE n = ?", n):
            return None
        number = max(self._next_branch_number(session), as_row_number(head[1]) or 0)
        self.new_branch(n, session, number)
        self.unknown_ends.discard(n)  # Its end is in the head.
        return n, number

    def new_head(self, session: int, branch: tuple[Value, ...]) -> None:
        """Insert a head for a session whose own is lost."""
        tenant = self._copier.tenant_of(session)
        row = default_row("heads") | {
            "session": session,
            "tenant": tenant,
            "branch": branch[0],
            "branch_no": branch[1],
            "updated_at": self._copier.now,
            "activity": self._next_activity(tenant),
        }
        self._copier.insert("heads", row)
        self.unknown_ends.add(as_row_number(branch[0]) or 0)
