"""Visibility: the session in which a message is shown, of all that share it.

A message is on a branch. It is visible in a session whose history contains it: the current history,
or with `all_branches` that of any branch the session ever had. A session in the trash and a purged
one show nothing, but their forks do. Of the sessions that pass the filters, the one that wrote a
message is returned if it shows it, else the youngest fork that does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from holdfast.errors import Damaged
from holdfast.storage.ancestry import Path
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import BranchOwner, BranchRow, HeadRow, SessionRow

T = TypeVar("T")
_SHARING_RELATIONS = frozenset({"fork", "continue"})


class Visibility:
    """The messages that sessions show, in one snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        wanted: Callable[[SessionRow | BranchOwner], bool],
        *,
        all_branches: bool,
        only: SessionRow | None,
    ) -> None:
        """Consider the sessions for which `wanted` is True, or `only` one."""
        self._snapshot = snapshot
        self._passes_filters = wanted
        self._all_branches = all_branches
        self.only = only
        self._branches: dict[int, BranchRow | None] = {}
        self._sessions: dict[int, SessionRow | None] = {}
        self._heads: dict[int, HeadRow | None] = {}
        self._reach: dict[int, dict[int, int | None]] = {}
        self._forks: dict[int, list[tuple[int | None, SessionRow]]] = {}
        self._wanted_cache: dict[int, bool] = {}
        self._hidden: set[int] = set()  # Branches that no wanted session shows.
        self._roots: dict[int, list[int]] = {}
        self._lineages: dict[str, str] = {}

    def owners_on_branch(self, branches: Collection[int]) -> dict[int, BranchOwner | None]:
        """Return the sessions that show these branches completely, being on them now.

        Most sessions never moved to another branch, so one query answers this for most messages.
        The value is None for a branch whose messages need `visible_in`.
        """
        owners = self._snapshot.owners(branches)
        return {
            n: owner
            if (owner := owners.get(n)) is not None
            and owner.branch == n
            and (self.only is None or self.only.n == owner.n)
            and self._is_wanted(owner)
            else None
            for n in branches
        }

    def visible_in(self, branch: int, seq: int) -> SessionRow | None:
        """Return the session that shows a message; None if no wanted one does."""
        if self.only is not None:
            shows = self._is_wanted(self.only) and self._shows(self.only, branch, seq)
            return self.only if shows else None
        if branch in self._hidden:
            return None
        row = self.branch(branch)
        if row is None:
            return None
        owner = None if row.purged else self.session(row.session)
        wanted = owner is not None and self._is_wanted(owner)
        if owner is not None and wanted and self._shows(owner, branch, seq):
            return owner
        shown_on = self._sessions_showing(branch)
        if not wanted and not shown_on:
            self._hidden.add(branch)
        showing = [fork for upto, fork in shown_on if upto is None or seq <= upto]
        return max(showing, key=lambda fork: fork.n, default=None)

    def _is_wanted(self, session: SessionRow | BranchOwner) -> bool:
        known = self._wanted_cache.get(session.n)
        if known is None:
            known = self._wanted_cache[session.n] = self._passes_filters(session)
        return known

    def branch(self, n: int) -> BranchRow | None:
        """Return a branch; None if it is gone or damaged."""
        if n not in self._branches:
            self._branches[n] = _skip_damage(lambda: self._snapshot.find_branch(n), None)
        return self._branches[n]

    def path(self, branch: int) -> Path:
        """Return the segments of a branch's history; none if it is damaged."""
        return _skip_damage(lambda: self._snapshot.path(branch), ())

    def session(self, n: int) -> SessionRow | None:
        """Return a session that may show messages; None if it is trashed, gone or damaged."""
        if n not in self._sessions:
            row = _skip_damage(lambda: self._snapshot.session(n), None)
            head = _skip_damage(lambda: self._snapshot.head(n), None)
            live = row is not None and row.trashed_at is None and head is not None
            self._sessions[n], self._heads[n] = (row, head) if live else (None, None)
        return self._sessions[n]

    def remember(self, session: SessionRow, head: HeadRow) -> None:
        """Cache a session that was read already and is not in the trash."""
        self._sessions[session.n], self._heads[session.n] = session, head

    def branch_end(self, session: SessionRow, branch: int) -> int:
        """Return the last seq of a session's branch; its current one ends at its head."""
        head = self.head(session)
        if head is not None and head.branch == branch:
            return head.seq
        row = self.branch(branch)
        return 0 if row is None else row.last_seq

    def head(self, session: SessionRow) -> HeadRow | None:
        """Return the head of a session; None if the session shows nothing."""
        self.session(session.n)
        return self._heads[session.n]

    def _shows(self, session: SessionRow, branch: int, seq: int) -> bool:
        last = self._reach_of(session).get(branch, 0)
        return last is None or seq <= last

    def _reach_of(self, session: SessionRow) -> dict[int, int | None]:
        reach = self._reach.get(session.n)
        if reach is None:
            reach = self._reach[session.n] = self._read_reach(session)
        return reach

    def _read_reach(self, session: SessionRow) -> dict[int, int | None]:
        """Return the last seq that a session shows, by branch; None means to the end."""
        reach: dict[int, int | None] = {}
        for branch in self.roots(session):
            for segment in self.path(branch):
                far = reach.get(segment.branch, 0)
                if far is not None:
                    far = None if segment.last is None else max(far, segment.last)
                reach[segment.branch] = far
        return reach

    def roots(self, session: SessionRow) -> list[int]:
        """Return the branches whose histories a session shows, newest first."""
        known = self._roots.get(session.n)
        if known is None:
            known = self._roots[session.n] = self._find_roots(session)
        return known

    def _find_roots(self, session: SessionRow) -> list[int]:
        head = self.head(session)
        if head is None:
            return []
        if not self._all_branches:
            return [head.branch]
        branches: list[BranchRow] = _skip_damage(
            lambda: self._snapshot.branches(session=session.n), []
        )
        return [branch.n for branch in reversed(branches)]

    def _sessions_showing(self, branch: int) -> list[tuple[int | None, SessionRow]]:
        """Return the sessions that show a branch, each with the last seq that it shows."""
        known = self._forks.get(branch)
        if known is None:
            known = self._forks[branch] = list(self._walk_forks(branch))
        return known

    def _walk_forks(self, branch: int) -> Iterator[tuple[int | None, SessionRow]]:
        pending: list[tuple[int, int | None]] = [(branch, None)]
        while pending:
            n, upto = pending.pop()
            row = self.branch(n)
            session = None if row is None or row.purged else self.session(row.session)
            if session is not None and self._is_wanted(session) and n in self.roots(session):
                yield upto, session
            for child in self._children(n):
                self._branches.setdefault(child.n, child)
                far = child.fork_seq if upto is None else min(upto, child.fork_seq)
                pending.append((child.n, far))

    def _children(self, branch: int) -> list[BranchRow]:
        return _skip_damage(lambda: self._snapshot.branches(parent=branch), [])

    # --------------------------------------------------------------------------------- lineages

    def lineage(self, session: SessionRow | BranchOwner) -> str:
        """Return the id of the oldest known session with which this one shares history."""
        ancestors: list[str] = []
        row: SessionRow | BranchOwner | None = session
        root = session.id
        while row is not None:
            root = row.id
            if root in self._lineages:
                root = self._lineages[root]
                break
            ancestors.append(root)
            if row.parent is None or row.relation not in _SHARING_RELATIONS:
                break
            root, row = row.parent, self._relative(row.parent) or self._beyond_purged_parent(row)
            if row is None:
                ancestors.append(root)
        for session_id in ancestors:
            self._lineages[session_id] = root
        return root

    def _beyond_purged_parent(self, session: SessionRow | BranchOwner) -> SessionRow | None:
        """Return the session whose history this one starts with, if the one between was purged."""
        first = _skip_damage(lambda: self._snapshot.branch(session.n, 1), None)
        start = None if first is None or first.parent is None else self.branch(first.parent)
        return None if start is None else self._relative(start.session_id)

    def _relative(self, session_id: str) -> SessionRow | None:
        return _skip_damage(lambda: self._snapshot.find_session(id=session_id, stubs=True), None)


def _skip_damage(read: Callable[[], T], otherwise: T) -> T:
    """Return the result of a read, or `otherwise` if it is damaged: damage hides nothing else."""
    try:
        return read()
    except Damaged:
        return otherwise
