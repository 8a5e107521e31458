"""The branches of a session, and its lineage."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.clock import to_datetime
from holdfast.operations.queries import require_row
from holdfast.operations.session_fields import stored_json
from holdfast.storage.protocol import Query, Snapshot
from holdfast.storage.rows import BranchRow, SessionRow
from holdfast.values import BranchInfo, Link, LinkState


def branches(session: int) -> Query[list[BranchInfo]]:
    """Return a session's branches: their starts and ends, and when and why each was abandoned."""

    def run(snapshot: Snapshot) -> list[BranchInfo]:
        require_row(snapshot, session)
        rows = snapshot.all_branches(session)
        known = {row.n: row for row in rows}
        later: list[BranchRow | None] = [*rows[1:], None]
        return [
            _branch_info(row, _parent(snapshot, row, known), left_by)
            for row, left_by in zip(rows, later, strict=True)
        ]

    return run


def _parent(snapshot: Snapshot, row: BranchRow, known: dict[int, BranchRow]) -> BranchRow | None:
    """Return the branch that `row` starts on; usually it belongs to the same session."""
    if row.parent is None:
        return None
    return known.get(row.parent) or snapshot.find_branch(row.parent)


def _branch_info(row: BranchRow, parent: BranchRow | None, left_by: BranchRow | None) -> BranchInfo:
    return BranchInfo(
        number=row.number,
        parent=None if parent is None else parent.number,
        parent_id=None if parent is None else parent.session_id,
        fork_seq=row.fork_seq,
        asked_seq=row.asked_seq,
        seq=row.last_seq,
        reason=row.reason,
        created_at=to_datetime(row.created_at),
        abandoned_at=None if left_by is None else to_datetime(left_by.created_at),
        abandoned_by=None if left_by is None else left_by.reason,
    )


def lineage(session: int) -> Query[list[Link]]:
    """Return the session's ancestors, the oldest first, and the session itself."""

    def run(snapshot: Snapshot) -> list[Link]:
        return list(_ancestors(snapshot, session))[::-1]

    return run


def _ancestors(snapshot: Snapshot, session: int) -> Iterator[Link]:
    row: SessionRow | None = require_row(snapshot, session)
    seen: set[str] = set()
    while row is not None:
        yield _link(snapshot, row)
        seen.add(row.id)
        parent = row.parent
        if parent is None or parent in seen:
            return
        row = snapshot.find_session(id=parent, stubs=True)
        if row is None:
            yield _purged_link(parent)


def children(session: int) -> Query[list[Link]]:
    """Return the direct children of a session, oldest first."""

    def run(snapshot: Snapshot) -> list[Link]:
        row = require_row(snapshot, session)
        return [_link(snapshot, child) for child in snapshot.children(row.id)]

    return run


def _link(snapshot: Snapshot, row: SessionRow) -> Link:
    first = snapshot.branch(row.n, 1)
    return Link(
        session_id=row.id,
        key=row.key if row.purged_at is None else None,
        parent=row.parent,
        relation=row.relation,
        seq=0 if first is None else first.fork_seq,
        title=row.title,
        metadata=stored_json(row, "metadata"),
        created_at=to_datetime(row.created_at),
        state=_link_state(row),
    )


def _link_state(row: SessionRow) -> LinkState:
    if row.purged_at is not None:
        return "purged"
    return "live" if row.trashed_at is None else "trashed"


def _purged_link(session_id: str) -> Link:
    """Return a link to a purged session whose id is known only from its children."""
    return Link(
        session_id=session_id,
        key=None,
        parent=None,
        relation=None,
        seq=0,
        title=None,
        metadata={},
        created_at=None,
        state="purged",
    )
