"""Who the sessions are: their rows, heads and branches, mended until they fit each other.

A session that is lost, and whose head, branch or messages are not, becomes a new one with a name of
its own; every session gets a head on a branch that is its own; every branch starts behind one that
is there.
"""

from __future__ import annotations

from holdfast import ids
from holdfast.backends.sqlite.repair.carrying import Carrier, as_number
from holdfast.backends.sqlite.repair.histories import SEQ_MASK
from holdfast.backends.sqlite.repair.rules import BRANCHES, HEADS, RULES, SESSIONS, fits
from holdfast.backends.sqlite.repair.scan import UNREADABLE, Value, Values
from holdfast.backends.sqlite.transaction import place


class Mender:
    """Carries sessions, heads and branches."""

    def __init__(self, carrier: Carrier) -> None:
        """Carry with this carrier."""
        self._carrier = carrier
        self.unsure: set[int] = set()  # Branches whose end nothing tells but their messages.
        self.doubted: set[int] = set()  # Sessions whose head does not fit its checksum.

    def run(self) -> None:
        """Carry all of them."""
        self._carrier.each(SESSIONS, self._session)
        self._carrier.each(HEADS, self._head)
        self._carrier.each(BRANCHES, self._branch)
        self._lost_parents()
        self._lost_heads()

    # --------------------------------------------------------------------------------- sessions

    def _session(self, values: Values) -> None:
        row = dict(self._carrier.mended("sessions", values, values["n"]))
        if not self._carrier.number("SELECT n FROM tenants WHERE n = ?", row["tenant"]):
            self._carrier.tell("the session's tenant is lost", row["n"])
            row["tenant"] = self._spare_tenant()
        if self._carrier.insert("sessions", row):
            return
        # Its id or key became somebody else's.
        row["id"], row["key"] = ids.session_id(), None
        if self._carrier.carry("sessions", row):
            taken = str([values["id"], values["key"]])
            self._carrier.keep_aside("sessions", "id or key taken", taken)
            self._carrier.tell("the session's id or key was another's; it has a new id", row["n"])

    def new_session(self, n: int | None, why: str) -> int:
        """Make a session for what has lost its own."""
        row: Values = {
            "n": n,
            "tenant": self._spare_tenant(),
            "id": ids.session_id(),
            "title": f"salvaged: {why}",
            "title_by": "auto",
            "created_at": self._carrier.now,
            "pinned": 0,
            "archived": 0,
            "metadata": "{}",
        }
        self._carrier.insert("sessions", row)
        number = self._carrier.target.last_insert_rowid() if n is None else n
        said = f"the session is lost; what belongs to it is kept in a new one ({why})"
        self._carrier.tell(said, number)
        return number

    def _spare_tenant(self) -> int:
        """Say whose a session is when nothing tells: with several tenants, nobody's."""
        if self._carrier.number("SELECT count(*) FROM tenants") == 1:
            return self._carrier.number("SELECT n FROM tenants")
        query = "INSERT INTO tenants (name) VALUES ('salvaged') ON CONFLICT DO NOTHING"
        self._carrier.execute(query)
        return self._carrier.number("SELECT n FROM tenants WHERE name = 'salvaged'")

    # ------------------------------------------------------------------- heads and branches

    def _head(self, values: Values) -> None:
        row = dict(self._carrier.mended("heads", values))
        session = as_number(row["session"])
        if session is None:
            self._carrier.set_aside("heads", "belongs to no session", values)
            return
        if not fits("heads", row):
            self.doubted.add(session)
        tenant = self._carrier.tenant_of(session)
        if not tenant:
            self.new_session(session, "its name is lost")
            tenant = self._carrier.tenant_of(session)
        if row["tenant"] != tenant:
            self._carrier.tell("the session's head named another tenant", session)
            row["tenant"] = tenant
        if not self._carrier.insert("heads", row):
            row["activity"] = self._next_activity(tenant)
            self._carrier.carry("heads", row)

    def _next_activity(self, tenant: Value) -> int:
        return self._carrier.number("SELECT max(activity) FROM heads WHERE tenant = ?", tenant) + 1

    def _branch(self, values: Values) -> None:
        row = dict(self._carrier.mended("branches", values))
        if not self._carrier.known(row["session"]):
            user = self._carrier.number("SELECT session FROM heads WHERE branch = ?", row["n"])
            lost = as_number(row["session"])
            row["session"] = user or self.new_session(lost, "its name is lost")
        self._mend_start(row)
        if not self._carrier.insert("branches", row):
            row["number"] = self._next_branch_number(row["session"])
            self._carrier.carry("branches", row)

    def _mend_start(self, row: Values) -> None:
        """Make a branch start where its messages do, behind an older branch or at the beginning."""
        n, parent, fork_seq = row["n"], row["parent"], row["fork_seq"]
        first = self._first_seq(as_number(n) or 0)
        if not isinstance(parent, int) or not isinstance(n, int) or parent >= n:
            sound = parent is None and fork_seq == 0
            row["parent"], row["fork_seq"] = None, 0
        else:
            sound = first is None or not isinstance(fork_seq, int) or fork_seq < first
            if not sound and first is not None:
                row["fork_seq"] = first - 1
        if not sound:
            said = f"branch {row['number']!r} did not say where it starts"
            self._carrier.tell(said, row["session"])

    def _first_seq(self, branch: int) -> int | None:
        query = "SELECT min(place) FROM messages NOT INDEXED WHERE place BETWEEN ? AND ?"
        ends = (place(branch, 1), place(branch, SEQ_MASK))
        try:
            found = self._carrier.source.execute(query, ends).get
        except UNREADABLE:
            return None
        return found & SEQ_MASK if isinstance(found, int) else None

    def _next_branch_number(self, session: Value) -> int:
        query = "SELECT max(number) FROM branches WHERE session = ?"
        return self._carrier.number(query, session) + 1

    def new_branch(self, n: int | None, session: int) -> int:
        """Make a branch from the beginning, as long as its messages will tell."""
        self._carrier.insert(
            "branches",
            {
                "n": n,
                "session": session,
                "number": self._next_branch_number(session),
                "fork_seq": 0,
                "last_seq": 0,
                "created_at": self._carrier.now,
                "reason": "salvaged",
            },
        )
        number = self._carrier.target.last_insert_rowid() if n is None else n
        self.unsure.add(number)
        return number

    def _lost_parents(self) -> None:
        query = (
            "SELECT DISTINCT parent FROM branches WHERE parent IS NOT NULL "
            "AND parent NOT IN (SELECT n FROM branches)"
        )
        for (parent,) in self._carrier.target.execute(query).fetchall():
            session = self._carrier.number("SELECT session FROM heads WHERE branch = ?", parent)
            self.new_branch(
                as_number(parent), session or self.new_session(None, "others start from it")
            )

    def _lost_heads(self) -> None:
        """Give every session a head on a branch of its own."""
        for session in self._carrier.numbers("sessions"):
            query = "SELECT branch, branch_no FROM heads WHERE session = ?"
            head = self._carrier.first(query, session)
            query = "SELECT 1 FROM branches WHERE session = ? AND n = ? AND number = ?"
            if head is None or self._carrier.first(query, session, *head) is None:
                self._give_branch(session, head)
        # The end of the active branch is in the head, that of any other in its row.
        active = "n IN (SELECT branch FROM heads)"
        ended = f"SELECT n FROM branches WHERE last_seq IS NULL AND NOT {active}"  # noqa: S608
        self.unsure |= {int(str(n)) for (n,) in self._carrier.target.execute(ended)}
        query = f"UPDATE branches SET last_seq = fork_seq WHERE n IN ({ended})"  # noqa: S608
        self._carrier.execute(query)
        self._carrier.execute(f"UPDATE branches SET last_seq = NULL WHERE {active}")  # noqa: S608

    def _give_branch(self, session: int, head: tuple[Value, ...] | None) -> None:
        own = (
            self._carrier.first(
                "SELECT n, number FROM branches WHERE session = ? "
                "ORDER BY last_seq IS NOT NULL, number DESC",
                session,
            )
            or self._take_branch(session, head)
            or self._begin_branch(session, head)
        )
        if head is None:
            self.new_head(session, own)
            said = "the session's head is lost; what its messages do not tell is 0"
            self._carrier.tell(said, session)
        else:
            query = "UPDATE heads SET branch = ?, branch_no = ? WHERE session = ?"
            self._carrier.execute(query, *own, session)
            self._carrier.tell("the session's active branch was lost", session)

    def _take_branch(
        self, session: int, head: tuple[Value, ...] | None
    ) -> tuple[Value, ...] | None:
        """Take the branch that the head names back from a session that does not use it."""
        query = (
            "SELECT b.n, ?2 FROM branches b JOIN heads h ON h.session = b.session "
            "WHERE b.n = ?1 AND h.branch <> b.n"
        )
        found = self._carrier.first(query, *head) if head else None
        if found is not None:
            query = "UPDATE branches SET session = ?, number = ? WHERE n = ?"
            self._carrier.execute(query, session, found[1], found[0])
        return found

    def _begin_branch(self, session: int, head: tuple[Value, ...] | None) -> tuple[Value, ...]:
        wanted = as_number(head[0]) if head else None
        free = wanted and not self._carrier.number("SELECT n FROM branches WHERE n = ?", wanted)
        n = self.new_branch(wanted if free else None, session)
        return n, self._carrier.number("SELECT number FROM branches WHERE n = ?", n)

    def new_head(self, session: int, branch: tuple[Value, ...]) -> None:
        """Make a head for a session that has lost its own."""
        tenant = self._carrier.tenant_of(session)
        row: Values = dict.fromkeys(RULES["heads"], 0)
        row |= {"session": session, "tenant": tenant, "branch": branch[0], "branch_no": branch[1]}
        row |= {"open_turn": None, "preview": None, "updated_at": self._carrier.now}
        row["activity"] = self._next_activity(tenant)
        self._carrier.insert("heads", row)
        self.unsure.add(as_number(branch[0]) or 0)
