"""Finding the session that a name means: the one resolver, for the API and the command.

A name is, in this order, one that the store gives (`@latest`, `@latest:SCOPE`, `@pinned`), an id,
a key, the start of an id (4 characters or more), a run id, a title, a title but for case. The first
of these that fits counts, so what names exactly one session goes before what may name several;
where that fits several, nothing is guessed: `AmbiguousRef` has them.

A session in the trash is named by its id, or as asked for by the key or title it had.
"""

from __future__ import annotations

from typing import Final

from holdfast import checks
from holdfast.backends.base import Listing, Query, SessionRow, Snapshot, Unreadable
from holdfast.clock import EPOCH, to_datetime
from holdfast.core import refs
from holdfast.errors import AmbiguousRef, Damaged, SessionNotFound
from holdfast.records import Candidate, Damage
from holdfast.verbs.histories import Report
from holdfast.verbs.listing import latest

_SHORTEST_PREFIX: Final = 4
_MOST_CANDIDATES: Final = 20
_MOST_TOLD: Final = 5


def ignore(damage: Damage) -> None:
    """Report to nobody that `@latest` passed something over."""


def find(ref: str, report: Report = ignore) -> Query[SessionRow]:
    """Find the session that a name means."""
    given = refs.given(refs.check(ref))

    def run(snapshot: Snapshot) -> SessionRow:
        if given is not None:
            return _only(snapshot, ref, _given(snapshot, given, report))
        return _only(snapshot, ref, _found(snapshot, ref) or _loosely(snapshot, ref))

    return run


def find_in_trash(ref: str, report: Report = ignore) -> Query[SessionRow]:
    """Find a session that is in the trash, also by the key or title it had; else any."""
    given = refs.given(refs.check(ref))
    if given is not None:
        return find(ref, report)

    def run(snapshot: Snapshot) -> SessionRow:
        here = _found(snapshot, ref)
        found = (
            [row for row in here if row.trashed_at is not None]
            or _thrown_away(snapshot, ref)
            or snapshot.find_titled(ref, trashed=True)
            or here
            or _loosely(snapshot, ref)
        )
        return _only(snapshot, ref, found)

    return run


def find_anywhere(ref: str, report: Report = ignore) -> Query[SessionRow]:
    """Find a session, in the trash or not; if there is one in both, the name is ambiguous."""
    given = refs.given(refs.check(ref))
    if given is not None:
        return find(ref, report)

    def run(snapshot: Snapshot) -> SessionRow:
        exact = snapshot.find_session(id=ref)
        if exact is not None:
            return exact
        found = _found(snapshot, ref) + _thrown_away(snapshot, ref)
        if not found:
            found = _loosely(snapshot, ref) + snapshot.find_titled(ref, trashed=True)
        return _only(snapshot, ref, list({row.id: row for row in found}.values()))

    return run


def find_by_id(session_id: str) -> Query[SessionRow]:
    """Find a session by its whole id."""

    def run(snapshot: Snapshot) -> SessionRow:
        found = snapshot.find_session(id=session_id)
        return _only(snapshot, session_id, [] if found is None else [found])

    return run


def find_by_key(key: str) -> Query[SessionRow | None]:
    """Find a session by its key."""
    checks.check_name(key, "key")
    return lambda snapshot: snapshot.find_session(key=key)


# ---------------------------------------------------------------------------------- what fits


def _given(snapshot: Snapshot, name: refs.Given, report: Report) -> list[SessionRow]:
    if name.kind == "latest":
        found = latest(Listing(scope=name.scope, delegates=False), report)(snapshot)
        return [] if found is None else [found]
    pinned = snapshot.list_sessions(Listing(pinned=True), before=None, limit=_MOST_CANDIDATES)
    readable = [item for item in pinned if not isinstance(item, Unreadable)]
    for item in pinned:
        if isinstance(item, Unreadable):
            report(Damage(what=item.why, session_id=item.id))
    return [row for row, _ in readable]


def _found(snapshot: Snapshot, ref: str) -> list[SessionRow]:
    exact = snapshot.find_session(id=ref) or snapshot.find_session(key=ref)
    if exact is not None:
        return [exact]
    prefixed = len(ref) >= _SHORTEST_PREFIX and snapshot.find_sessions(prefix=ref, title=None)
    return prefixed or snapshot.find_run(ref) or snapshot.find_sessions(prefix=None, title=ref)


def _loosely(snapshot: Snapshot, ref: str) -> list[SessionRow]:
    return snapshot.find_titled(ref, trashed=False)


def _thrown_away(snapshot: Snapshot, ref: str) -> list[SessionRow]:
    by_key = snapshot.find_trashed(key=ref, title=None)
    return by_key or snapshot.find_trashed(key=None, title=ref)


# ---------------------------------------------------------------------------------- the one


def _only(snapshot: Snapshot, ref: str, found: list[SessionRow]) -> SessionRow:
    if not found:
        raise SessionNotFound(f"no session goes by {ref!r}; store.sessions() lists them.")
    if len(found) == 1:
        return found[0]
    candidates = [_candidate(snapshot, row) for row in found]
    candidates.sort(key=lambda candidate: candidate.updated_at, reverse=True)
    names = ", ".join(candidate.id for candidate in candidates[:_MOST_TOLD])
    more = " and more" if len(found) > _MOST_TOLD else ""
    raise AmbiguousRef(
        f"{ref!r} may be any of {names}{more}; name one by its id.", tuple(candidates)
    )


def _candidate(snapshot: Snapshot, row: SessionRow) -> Candidate:
    try:
        head = snapshot.head(row.n)
    except Damaged:  # It can still be meant.
        head = None
    return Candidate(
        id=row.id,
        key=row.key,
        title=row.title,
        preview=None if head is None else head.preview,
        updated_at=EPOCH if head is None else to_datetime(head.updated_at),
        trashed=row.trashed_at is not None,
    )
