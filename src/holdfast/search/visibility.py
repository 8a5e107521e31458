"""Visibility: the session in which a message is shown, of all that share it.

A message is on a branch. It is visible in a session whose history contains it: the current history,
or with `all_branches` that of any branch the session ever had. A session in the trash and a purged
one show nothing, but their forks do. Of the sessions that pass the filters, the one that wrote a
message is returned if it shows it, else the youngest fork that does.

Chains of forks may be long, so no history is read from end to start for each session of a chain:
what is known of a branch is derived from what is known of the branches that start on it, once.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterator
from typing import Final, TypeVar

from holdfast.errors import Damaged
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import BranchOwner, BranchRow, HeadRow, SessionRow

T = TypeVar("T")
Viewer = tuple[int, SessionRow]  # a session that shows a branch, after the last seq that it shows
_SHARING_RELATIONS: Final = frozenset({"fork", "continue"})
_TO_THE_END: Final = sys.maxsize


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
        self._reach: dict[int, int] | None = None
        self._children: dict[int, list[BranchRow]] = {}
        self._own_lasts: dict[int, int] = {}
        self._viewers: dict[int, list[Viewer]] = {}
        self._walked: dict[int, int] = {}
        self._wanted_cache: dict[int, bool] = {}
        self._roots: dict[int, dict[int, None]] = {}
        self._lineages: dict[str, str] = {}
        self.hidden_branches: set[int] = set()  # no wanted session shows any message of them

    def owners_on_branch(self, branches: Collection[int]) -> dict[int, BranchOwner | None]:
        """Return the sessions that show these branches completely, being on them now.

        Most sessions never moved to another branch, so one query answers this for most messages.
        The value is None for a branch whose messages need `visible_in`.
        """
        owners = self._snapshot.owners(branches)
        found: dict[int, BranchOwner | None] = dict.fromkeys(branches)
        unwanted = []
        for n, owner in owners.items():
            if owner.branch != n:
                continue
            if (self.only is None or self.only.n == owner.n) and self._is_wanted(owner):
                found[n] = owner
            else:
                unwanted.append(n)
        if unwanted and self.only is None:
            self.hidden_branches.update(set(unwanted) - self._snapshot.forked_branches(unwanted))
        return found

    def visible_in(self, branch: int, seq: int) -> SessionRow | None:
        """Return the session that shows a message; None if no wanted one does."""
        if self.only is not None:
            shows = self._is_wanted(self.only) and seq <= self.reach().get(branch, 0)
            return self.only if shows else None
        row = self.branch(branch)
        owner = None if row is None or row.purged else self.session(row.session)
        last = self._own_last(branch, owner) if owner is not None and self._is_wanted(owner) else 0
        if seq <= last:
            return owner
        viewer = None if row is None else self._youngest_viewer(branch, seq)
        if viewer is None and not last and not self._viewers.get(branch):
            self.hidden_branches.add(branch)
        return viewer

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

    def roots(self, session: SessionRow) -> Collection[int]:
        """Return the branches whose histories a session shows, newest first."""
        known = self._roots.get(session.n)
        if known is None:
            known = self._roots[session.n] = dict.fromkeys(self._find_roots(session))
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
        self._branches.update((branch.n, branch) for branch in branches)
        return [branch.n for branch in reversed(branches)]

    # ------------------------------------------------------------------------- from a session up

    def reach(self) -> dict[int, int]:
        """Return the branches that the only session shows, each with the last seq shown."""
        if self._reach is None:
            self._reach = {}
            for root in () if self.only is None else self.roots(self.only):
                for _ in self._climb(root, _TO_THE_END, self._reach):
                    pass
        return self._reach

    def root_showing(self, session: SessionRow, branch: int, seq: int) -> int | None:
        """Return the newest of a session's branches in whose history a message is."""
        walked: dict[int, int] = {}
        for root in self.roots(session):
            for row, last in self._climb(root, _TO_THE_END, walked):
                if row.n == branch and seq <= last:
                    return root
        return None

    def new_segments(self, session: SessionRow) -> Iterator[Segment]:
        """Yield the segments of a session's histories, newest first, unless yielded before."""
        for root in self.roots(session):
            for row, last in self._climb(root, self.branch_end(session, root), self._walked):
                if row.fork_seq < last:
                    yield Segment(row.n, row.fork_seq + 1, last, row.session_id)

    def _climb(
        self, branch: int, last: int, walked: dict[int, int]
    ) -> Iterator[tuple[BranchRow, int]]:
        """Yield the branches of a history, newest first, each with its last seq there.

        Stop at a branch from which a climb went on before, as far as this one: `walked` has the
        last seq of each, and is updated.
        """
        current: int | None = branch
        while current is not None and walked.get(current, 0) < last:
            walked[current] = last
            row = self.branch(current)
            if row is None:
                return
            yield row, last
            current, last = row.parent, min(last, row.fork_seq)

    # ------------------------------------------------------------------------ from a branch down

    def _own_last(self, branch: int, owner: SessionRow) -> int:
        """Return the last seq of a branch that the session it belongs to shows; 0 for none."""
        roots, known = self.roots(owner), self._own_lasts
        for n in self._unknown_below(branch, known, owner.n):
            lasts = [
                min(known[child.n], child.fork_seq)
                for child in self._children_of(n)
                if child.session == owner.n
            ]
            known[n] = _TO_THE_END if n in roots else max(lasts, default=0)
        return known[branch]

    def _youngest_viewer(self, branch: int, seq: int) -> SessionRow | None:
        """Return the youngest wanted session that shows a message."""
        for n in self._unknown_below(branch, self._viewers, None):
            self._viewers[n] = self._find_viewers(n)
        viewers = self._viewers[branch]
        count = bisect_right(viewers, -seq, key=lambda viewer: -viewer[0])
        return viewers[count - 1][1] if count else None

    def _find_viewers(self, branch: int) -> list[Viewer]:
        """Return the sessions that show a branch, each younger than all that show more of it.

        A branch starts after the start of its parent, so of all that show a child only one is
        among the viewers of its parent.
        """
        found: list[Viewer] = []
        row = self.branch(branch)
        owner = None if row is None or row.purged else self.session(row.session)
        if owner is not None and self._is_wanted(owner) and branch in self.roots(owner):
            found.append((_TO_THE_END, owner))
        for child in self._children_of(branch):
            found += [(min(last, child.fork_seq), one) for last, one in self._viewers[child.n]]
        viewers: list[Viewer] = []
        for last, session in sorted(found, key=lambda one: (one[0], one[1].n), reverse=True):
            if not viewers or session.n > viewers[-1][1].n:
                viewers.append((last, session))
        return viewers

    def _unknown_below(
        self, branch: int, known: Container[int], session: int | None
    ) -> Iterator[int]:
        """Yield a branch and its descendants that are not known, children before parents.

        With `session`, only descendants through branches of this session.
        """
        order = {branch: None} if branch not in known else {}
        pending = list(order)
        while pending:
            for child in self._children_of(pending.pop()):
                mine = session is None or child.session == session
                if mine and child.n not in known and child.n not in order:
                    order[child.n] = None
                    pending.append(child.n)
        yield from reversed(order)

    def _children_of(self, branch: int) -> list[BranchRow]:
        if branch not in self._children:
            found: list[BranchRow] = _skip_damage(
                lambda: self._snapshot.branches(parent=branch), []
            )
            self._children[branch] = found
            for child in found:
                self._branches.setdefault(child.n, child)
        return self._children[branch]

    # --------------------------------------------------------------------------------- lineages

    def lineage(self, session: SessionRow | BranchOwner) -> str:
        """Return the id of the oldest known session with which this one shares history.

        Sessions that name each other as parents are one lineage.
        """
        ancestors: dict[str, None] = {}
        row: SessionRow | BranchOwner | None = session
        root = session.id
        while row is not None:
            root = row.id
            if root in self._lineages:
                root = self._lineages[root]
                break
            if root in ancestors:
                break
            ancestors[root] = None
            if row.parent is None or row.relation not in _SHARING_RELATIONS:
                break
            root, row = row.parent, self._relative(row.parent) or self._beyond_purged_parent(row)
            if row is None:
                ancestors[root] = None
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
