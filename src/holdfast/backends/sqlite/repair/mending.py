"""Who the sessions are: their rows, heads and branches, mended until they fit each other.

A session that is lost, and whose head, branch or messages are not, becomes a new one with a name of
its own; every session that lives gets a head on its newest branch; every branch starts behind one
that is there.

What a purge left of a session (a husk) has no head by right. Where its row does not tell any more,
its branches do: those of a session that lives include one without an end.
"""

from __future__ import annotations

from holdfast import ids
from holdfast.backends.sqlite.repair.carrying import Carrier, as_number
from holdfast.backends.sqlite.repair.histories import SEQ_MASK
from holdfast.backends.sqlite.repair.rules import BRANCHES, HEADS, RULES, SESSIONS, fits
from holdfast.backends.sqlite.repair.scan import UNREADABLE, Value, Values
from holdfast.backends.sqlite.repair.standing import IS_PURGED
from holdfast.backends.sqlite.transaction import place


class Mender:
    """Carries sessions, heads and branches."""

    def __init__(self, carrier: Carrier) -> None:
        """Carry with this carrier."""
        self._carrier = carrier
        self.unsure: set[int] = set()  # Branches whose end nothing tells but their messages.
        self.doubted: set[int] = set()  # Sessions whose head does not fit its checksum.
        self._nameless: set[int] = set()  # Sessions whose row does not, or is lost.
        self._homeless: set[int] = set()  # Those of them whose tenant nothing else tells.

    def run(self) -> None:
        """Carry all of them."""
        self._carrier.each(SESSIONS, self._session)
        self._carrier.each(HEADS, self._head)
        self._carrier.each(BRANCHES, self._branch)
        self._husks()
        self._lost_parents()
        self._one_tenant_each()
        self._heads()
        self._ends()

    # --------------------------------------------------------------------------------- sessions

    def _session(self, values: Values) -> None:
        row = dict(self._carrier.mended("sessions", values, values["n"]))
        if not fits("sessions", row):
            self._nameless.add(as_number(row["n"]) or 0)
            self._homeless.add(as_number(row["n"]) or 0)
        if not self._carrier.number("SELECT n FROM tenants WHERE n = ?", row["tenant"]):
            row["tenant"] = self._lost_tenant(row)
        if self._carrier.insert("sessions", row):
            return
        # Its id or key became somebody else's.
        row["id"], row["key"] = ids.session_id(), None
        if self._carrier.carry("sessions", row):
            taken = str([values["id"], values["key"]])
            self._carrier.keep_aside("sessions", "id or key taken", taken)
            self._carrier.tell("the session's id or key was another's; it has a new id", row["n"])

    def new_session(self, n: int | None, why: str, tenant: int = 0) -> int:
        """Make a session for what has lost its own."""
        row: Values = {
            "n": n,
            "tenant": tenant or self._spare_tenant(),
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
        self._nameless.add(number)
        if not tenant:
            self._homeless.add(number)
        said = f"the session is lost; what belongs to it is kept in a new one ({why})"
        self._carrier.tell(said, number)
        return number

    def _lost_tenant(self, row: Values) -> int:
        """Name a tenant that is lost anew, so that its sessions stay together and apart."""
        n, number = as_number(row["n"]) or 0, as_number(row["tenant"]) or 0
        if n in self._nameless:
            self._carrier.tell("the session's tenant is lost", n)
            return self._spare_tenant()
        name = f"salvaged {number}"
        self._carrier.tell(f"the name of the session's tenant is lost; it is {name!r} now", n)
        query = "INSERT INTO tenants VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._carrier.execute(query, number, name)
        found = self._carrier.number("SELECT n FROM tenants WHERE n = ?", number)
        return found or self._spare_tenant()

    def _spare_tenant(self) -> int:
        """Return whose a session is when nothing tells: with several tenants, nobody's."""
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
            self.new_session(session, "its name is lost", self._named_tenant(row))
            tenant = self._carrier.tenant_of(session)
        if row["tenant"] != tenant:
            self._carrier.tell("the session's head named another tenant", session)
            row["tenant"] = tenant
        elif session not in self.doubted:
            self._homeless.discard(session)
        if not self._carrier.insert("heads", row):
            row["activity"] = self._next_activity(tenant)
            self._carrier.carry("heads", row)

    def _named_tenant(self, head: Values) -> int:
        """Return the tenant that a head names, if it can be believed."""
        sure = head["session"] not in self.doubted
        return self._carrier.number("SELECT n FROM tenants WHERE n = ? AND ?", head["tenant"], sure)

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

    def new_branch(self, n: int | None, session: int, number: int = 0) -> int:
        """Make a branch from the beginning, as long as its messages will tell."""
        self._carrier.insert(
            "branches",
            {
                "n": n,
                "session": session,
                "number": number or self._next_branch_number(session),
                "fork_seq": 0,
                "asked_seq": 0,
                "last_seq": 0,
                "created_at": self._carrier.now,
                "reason": "start",
                "token": ids.message_id(),
            },
        )
        made = self._carrier.target.last_insert_rowid() if n is None else n
        self.unsure.add(made)
        return made

    def _lost_parents(self) -> None:
        query = (
            "SELECT parent, max(session) FROM branches WHERE parent IS NOT NULL "
            "AND parent NOT IN (SELECT n FROM branches) GROUP BY parent"
        )
        for parent, child in self._carrier.all(query):
            query = "SELECT session, branch_no FROM heads WHERE branch = ?"
            home = self._carrier.first(query, parent) or self._home_of(parent)
            session, number = home or (self._stand_in_for_purged(child), 1)
            self._carrier.tell(f"branch {number!r} is lost", session)
            self._insert_branch(parent, session, number)

    def _home_of(self, n: int) -> tuple[Value, ...] | None:
        """Return whose a lost branch was, and its number there.

        Both grow, so a session that lacks a number between an older and a younger branch, and has
        one that starts on this, has lost this.
        """
        query = (
            "SELECT b.session, b.number - 1 FROM branches b "
            "LEFT JOIN branches a ON a.session = b.session AND a.number = b.number - 2 "
            "WHERE b.number > 1 AND b.n > ?1 AND (b.number = 2 OR a.n < ?1) "
            "AND b.session IN (SELECT session FROM branches WHERE parent = ?1) "
            "AND NOT EXISTS (SELECT 1 FROM branches c "
            "WHERE c.session = b.session AND c.number = b.number - 1)"
        )
        return self._carrier.first(query, n)

    def _stand_in_for_purged(self, child: int) -> int:
        """Return a branch that only others name to what a purge left: it is not listed then."""
        query = (
            "SELECT n FROM sessions WHERE purged_at IS NOT NULL AND tenant = ? "
            "AND n NOT IN (SELECT session FROM branches)"
        )
        found = self._carrier.number(query, self._carrier.tenant_of(child))
        if found:
            return found
        session = self.new_session(None, "others start from it")
        query = "UPDATE sessions SET purged_at = ? WHERE n = ?"
        self._carrier.execute(query, self._carrier.now, session)
        return session

    def _insert_branch(self, n: int, session: Value, number: Value) -> None:
        query = "SELECT 1 FROM branches WHERE session = ? AND number = ?"
        taken = self._carrier.first(query, session, number)
        self.new_branch(n, as_number(session) or 0, 0 if taken else as_number(number) or 0)

    # ------------------------------------------------------------------------ husks and tenants

    def _husks(self) -> None:
        """Tell what a purge left from sessions that have lost their heads."""
        query = "SELECT n, purged_at FROM sessions WHERE n NOT IN (SELECT session FROM heads)"
        for n, purged_at in self._carrier.all(query):
            if n in self._nameless and (purged_at is None) == self._was_purged(n):
                at = self._carrier.now if purged_at is None else None
                self._carrier.execute("UPDATE sessions SET purged_at = ? WHERE n = ?", at, n)
        query = "SELECT n FROM sessions JOIN heads ON session = n WHERE purged_at IS NOT NULL"
        for (n,) in self._carrier.all(query):
            self._carrier.execute("UPDATE sessions SET purged_at = NULL WHERE n = ?", n)
            self._carrier.tell("the session was marked as purged, and was not", n)

    def _was_purged(self, session: int) -> bool:
        """True if a session without a head has only branches that others need and that end."""
        query = (
            "SELECT count(*), count(last_seq), count((SELECT max(fork_seq) FROM branches c "
            "WHERE c.parent = b.n)) FROM branches b WHERE session = ?"
        )
        counts = self._carrier.first(query, session) or (0,)
        return counts[0] != 0 and len(set(counts)) == 1

    def _one_tenant_each(self) -> None:
        """Let sessions whose tenant is a guess belong to that of those they share branches with."""
        if self._carrier.number("SELECT count(*) FROM tenants") == 1:
            return
        query = (
            "SELECT DISTINCT p.session, b.session FROM branches b "
            "JOIN branches p ON p.n = b.parent WHERE p.session <> b.session"
        )
        edges: list[tuple[int, int]] = self._carrier.all(query)
        guessed = set(self._homeless)
        while True:
            found = next(((a, b) for a, b in edges if (a in guessed) != (b in guessed)), None)
            if found is None:
                break
            unsure, sure = found if found[0] in guessed else found[::-1]
            guessed.discard(unsure)
            self._move_session(unsure, self._carrier.tenant_of(sure))
        for upper, lower in edges:
            if self._carrier.tenant_of(upper) != self._carrier.tenant_of(lower):
                self._cut_loose(upper, lower)

    def _move_session(self, session: int, tenant: int) -> None:
        if self._carrier.tenant_of(session) == tenant:
            return
        query = "UPDATE sessions SET tenant = ?, id = ?, key = NULL WHERE n = ?"
        self._carrier.execute(query, tenant, ids.session_id(), session)
        query = "UPDATE heads SET tenant = ?, activity = ? WHERE session = ?"
        self._carrier.execute(query, tenant, self._next_activity(tenant), session)

    def _cut_loose(self, upper: int, lower: int) -> None:
        """Let branches of one tenant not start on those of another."""
        query = (
            "UPDATE branches SET parent = NULL, fork_seq = 0, asked_seq = 0 WHERE session = ? "
            "AND parent IN (SELECT n FROM branches WHERE session = ?)"
        )
        self._carrier.execute(query, lower, upper)
        self._carrier.tell("the session's history began with that of another tenant", lower)

    # ---------------------------------------------------------------------------- active branches

    def _heads(self) -> None:
        """Return every session that lives a head on the newest branch of its own."""
        for session in self._carrier.numbers("sessions"):
            if self._carrier.number(IS_PURGED, session):
                continue
            query = "SELECT branch, branch_no FROM heads WHERE session = ?"
            head = self._carrier.first(query, session)
            if head is None or not self._stands(session, head):
                self._give_branch(session, head)

    def _stands(self, session: int, head: tuple[Value, ...]) -> bool:
        """True if a head is on a branch of its own, which is made the newest by its number."""
        query = "SELECT number FROM branches WHERE session = ? AND n = ?"
        own = self._carrier.number(query, session, head[0])
        newest = self._next_branch_number(session) - 1
        if not own or (own < newest and session in self.doubted):
            return False
        number = self._newest(session, head[0], own)
        if number != head[1]:
            query = "UPDATE heads SET branch_no = ? WHERE session = ?"
            self._carrier.execute(query, number, session)
            self._carrier.tell("the session's active branch was not its newest", session)
        return True

    def _ends(self) -> None:
        """The end of the active branch is in the head, that of any other in its row."""
        active = "n IN (SELECT branch FROM heads)"
        ended = f"SELECT n FROM branches WHERE last_seq IS NULL AND NOT {active}"  # noqa: S608
        self.unsure |= {n for (n,) in self._carrier.all(ended)}
        query = f"UPDATE branches SET last_seq = fork_seq WHERE n IN ({ended})"  # noqa: S608
        self._carrier.execute(query)
        self._carrier.execute(f"UPDATE branches SET last_seq = NULL WHERE {active}")  # noqa: S608
        start = "SELECT fork_seq FROM branches WHERE n = branch"
        for branch in self.unsure:
            self._carrier.execute(f"UPDATE heads SET seq = ({start}) WHERE branch = ?", branch)  # noqa: S608

    def _give_branch(self, session: int, head: tuple[Value, ...] | None) -> None:
        own = "SELECT n, number FROM branches WHERE session = ?"
        branch = (
            self._carrier.first(f"{own} AND last_seq IS NULL ORDER BY number DESC", session)
            or self._take_branch(session, head)
            or self._begin_branch(session, head)
            or self._carrier.first(f"{own} ORDER BY number DESC", session)
            or (self.new_branch(None, session, 1), 1)
        )
        branch = branch[0], self._newest(session, *branch)
        if head is None:
            self.new_head(session, branch)
            said = "the session's head is lost; what its messages do not tell is 0"
            self._carrier.tell(said, session)
            return
        query = "UPDATE heads SET branch = ?, branch_no = ? WHERE session = ?"
        self._carrier.execute(query, *branch, session)
        self._carrier.tell("the session's active branch was lost", session)
        if branch[0] != head[0]:
            self.unsure.add(as_number(branch[0]) or 0)

    def _newest(self, session: int, n: Value, number: Value) -> Value:
        """Return a branch the highest number of its session, if it has not."""
        following = self._next_branch_number(session)
        if number == following - 1:
            return number
        self._carrier.execute("UPDATE branches SET number = ? WHERE n = ?", following, n)
        return following

    def _take_branch(
        self, session: int, head: tuple[Value, ...] | None
    ) -> tuple[Value, ...] | None:
        """Take the branch that the head names back from a session that does not use it."""
        query = (
            "SELECT b.n FROM branches b LEFT JOIN heads h ON h.session = b.session "
            "WHERE b.n = ? AND h.branch IS NOT b.n"
        )
        found = self._carrier.first(query, head[0]) if head else None
        if found is None:
            return None
        number = self._next_branch_number(session)
        query = "UPDATE branches SET session = ?, number = ? WHERE n = ?"
        self._carrier.execute(query, session, number, found[0])
        return found[0], number

    def _begin_branch(
        self, session: int, head: tuple[Value, ...] | None
    ) -> tuple[Value, ...] | None:
        """Make the branch that the head names, if nobody has it."""
        wanted = as_number(head[0]) if head else None
        if head is None or not wanted or session in self.doubted:
            return None
        if self._carrier.number("SELECT n FROM branches WHERE n = ?", wanted):
            return None
        number = max(self._next_branch_number(session), as_number(head[1]) or 0)
        self.new_branch(wanted, session, number)
        self.unsure.discard(wanted)  # Its end is in the head.
        return wanted, number

    def new_head(self, session: int, branch: tuple[Value, ...]) -> None:
        """Make a head for a session that has lost its own."""
        tenant = self._carrier.tenant_of(session)
        row: Values = dict.fromkeys(RULES["heads"], 0)
        row |= {"session": session, "tenant": tenant, "branch": branch[0], "branch_no": branch[1]}
        row |= {"open_turn": None, "preview": None, "updated_at": self._carrier.now}
        row["activity"] = self._next_activity(tenant)
        self._carrier.insert("heads", row)
        self.unsure.add(as_number(branch[0]) or 0)
