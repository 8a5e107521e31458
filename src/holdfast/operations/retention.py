"""Retention: planning which sessions to trash or purge, and applying the plan to each.

A plan is made from one snapshot and changes nothing. Time passes before it is applied, so every
session is checked again in the transaction that trashes or purges it: one that was written to,
pinned, opened, forked, restored or erased meanwhile stays as it is, and the reason is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.clock import to_datetime, to_micros
from holdfast.operations import deletion, tombstone
from holdfast.operations.append import find_head
from holdfast.operations.listing import is_uncontinued_import
from holdfast.operations.retention_rules import (
    RetentionCandidate,
    RetentionRules,
    RetentionVerdict,
    decide,
    remaining_bytes,
)
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, Query, Snapshot, Transaction
from holdfast.storage.rows import (
    HeadRow,
    SessionRow,
    SessionSize,
    UnreadableSession,
)
from holdfast.values import Head, Plan, PlanItem, PurgeReport, Spared

NO_LONGER_EXISTS: Final = "it is not there any more"
_SHARING: Final = frozenset({"fork", "continue"})
_RowsById = dict[str, tuple[SessionRow, HeadRow]]


def plan(rules: RetentionRules) -> Query[Plan]:
    """Return a plan: which sessions the rules would trash or purge, and why."""
    return lambda snapshot: _Planner(snapshot, rules).plan()


class _Planner:
    """Builds a plan from one snapshot."""

    def __init__(self, snapshot: Snapshot, rules: RetentionRules) -> None:
        self._snapshot = snapshot
        self._rules = rules
        self._known: _RowsById = {}
        self._unreadable: dict[str | None, str] = {}
        self._sizes: dict[str, SessionSize] = {}

    def plan(self) -> Plan:
        self._read_all()
        now = self._snapshot.now()
        candidates = [self._candidate(*rows) for rows in self._known.values()]
        verdicts = decide(self._rules, candidates, now)
        items = tuple(self._item(verdict) for verdict in verdicts if verdict.action is not None)
        spared = [self._spared(verdict) for verdict in verdicts if verdict.action is None]
        limited = self._rules.max_bytes is not None
        return Plan(
            made_at=to_datetime(now),
            items=items,
            spared=(*spared, *self._damaged()),
            frees=sum(item.bytes for item in items),
            keeps=remaining_bytes(candidates, verdicts, self._rules.scope) if limited else None,
        )

    def _read_all(self) -> None:
        for item in self._snapshot.all_sessions():
            if isinstance(item, UnreadableSession):
                self._unreadable[item.id] = item.why
            else:
                self._known[item[0].id] = item

    def _candidate(self, row: SessionRow, head: HeadRow) -> RetentionCandidate:
        shares = row.relation in _SHARING
        return RetentionCandidate(
            id=row.id,
            parent=row.parent if shares else None,
            scope=row.scope,
            created_at=row.created_at,
            active_at=head.updated_at,
            activity=head.activity,
            trashed_at=row.trashed_at,
            blocked=_reason_to_keep(row, head),
            bytes=self._size(row).bytes if self._rules.max_bytes is not None else 0,
            own=not is_uncontinued_import(row, head),
        )

    def _size(self, row: SessionRow) -> SessionSize:
        if row.id not in self._sizes:
            self._sizes[row.id] = self._snapshot.session_size(row.n)
        return self._sizes[row.id]

    def _item(self, verdict: RetentionVerdict) -> PlanItem:
        row, head = self._known[verdict.id]
        size = self._size(row)
        assert verdict.action is not None  # noqa: S101 - callers pass only these
        return PlanItem(
            session_id=row.id,
            title=row.title or head.preview,
            action=verdict.action,
            why=verdict.why,
            bytes=size.bytes,
            messages=size.messages,
            created_at=to_datetime(row.created_at),
            last_activity=to_datetime(head.updated_at),
            trashed_at=None if row.trashed_at is None else to_datetime(row.trashed_at),
            head=Head(head.branch_no, head.seq),
        )

    def _spared(self, verdict: RetentionVerdict) -> Spared:
        row, head = self._known[verdict.id]
        return Spared(session_id=row.id, title=row.title or head.preview, why=verdict.why)

    def _damaged(self) -> Iterator[Spared]:
        if self._rules == RetentionRules(scope=self._rules.scope):
            return
        for id, why in self._unreadable.items():
            yield Spared(session_id=id, title=None, why=f"it cannot be read: {why}")


def _reason_to_keep(row: SessionRow, head: HeadRow) -> str | None:
    """Return why a session must stay whatever the rules; `None` if it need not."""
    if row.pinned:
        return "it is pinned"
    if head.open_turn is not None:
        return "a turn is open in it"
    return None


# ---------------------------------------------------------------------------------------- applying


def existing_ids(items: Sequence[PlanItem]) -> Query[set[str]]:
    """Return the ids of those of these sessions that still exist."""

    def run(snapshot: Snapshot) -> set[str]:
        ids = (item.session_id for item in items)
        return {id for id in ids if snapshot.find_session(id=id) is not None}

    return run


def trash(item: PlanItem, at: int) -> Operation[str | None]:
    """Trash a session if it is as planned; else return why not."""

    def run(tx: Transaction) -> str | None:
        row = _lock_row(tx, item)
        if row is not None and row.trashed_at == at:
            return None  # An earlier attempt of this write did it.
        reason = _change_since_plan(tx, item, row)
        if reason is not None or row is None:
            return reason
        tx.put_session(msgspec.structs.replace(row, trashed_at=at))
        return None

    return run


def plan_erasure(item: PlanItem) -> Query[list[Segment]]:
    """Return which messages a purge of this session erases."""

    def run(snapshot: Snapshot) -> list[Segment]:
        row = snapshot.find_session(id=item.session_id)
        return [] if row is None else deletion.plan_erasure(row.n, forks="keep")(snapshot)

    return run


def sample_session(item: PlanItem) -> Query[list[bytes]]:
    """Return fragments of what this session has besides messages."""

    def run(snapshot: Snapshot) -> list[bytes]:
        row = snapshot.find_session(id=item.session_id)
        return [] if row is None else tombstone.sample_session(row.n)(snapshot)

    return run


def purge(
    item: PlanItem,
) -> Callable[[Sequence[Segment] | None], Operation[PurgeReport | str]]:
    """Purge a session of the trash if it is as planned; else return why not."""

    def erase(to_erase: Sequence[Segment] | None) -> Operation[PurgeReport | str]:
        def run(tx: Transaction) -> PurgeReport | str:
            row = _lock_row(tx, item)
            reason = _change_since_plan(tx, item, row)
            if reason is not None or row is None:
                return reason or ""
            return deletion.purge(row.n, row.id, forks="keep", planned=to_erase)(tx)

        return run

    return erase


def _lock_row(tx: Transaction, item: PlanItem) -> SessionRow | None:
    """Find a session, lock its row and return it as it is once locked."""
    found = tx.find_session(id=item.session_id)
    return None if found is None else tx.session(found.n)


def _change_since_plan(tx: Transaction, item: PlanItem, row: SessionRow | None) -> str | None:
    """Return what changed about a session since the plan; `None` if nothing did."""
    if row is None:
        return NO_LONGER_EXISTS
    was = None if item.trashed_at is None else to_micros(item.trashed_at)
    if row.trashed_at != was:
        return "it was restored" if row.trashed_at is None else "it is in the trash already"
    head = find_head(tx, row.n)
    moved = Head(head.branch_no, head.seq) != item.head
    if moved or head.updated_at != to_micros(item.last_activity):
        return "it was written to since"
    return _reason_to_keep(row, head) or _dependent_fork(tx, row)


def _dependent_fork(tx: Transaction, row: SessionRow) -> str | None:
    """Return a reason if a fork needs this session; a trashed fork needs only a trashed parent."""
    for child in tx.children(row.id):
        only_child_trashed = child.trashed_at is not None and row.trashed_at is None
        if child.relation in _SHARING and child.purged_at is None and not only_child_trashed:
            return f"session {child.id} was split off it"
    return None
