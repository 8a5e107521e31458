"""Resolving a reference to a session, for the API and the command alike.

A reference is, in this order, a built-in one (`@latest`, `@latest:SCOPE`, `@pinned`), an id, a key,
a prefix of an id (4 characters or more), a run id, a title, a title ignoring case. The first kind
that matches counts, so kinds that identify one session come before those that may match several. If
several sessions match, none is guessed: `AmbiguousRef` lists them.

The author of a file that was imported chose the ids, run ids and titles in it, so those sessions
are found only by what matches none of the others, until they were continued here.

A session in the trash is found by its id; `find_in_trash` and `find_anywhere` also find it by the
key or title it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from holdfast import validation
from holdfast.clock import EPOCH, to_datetime
from holdfast.errors import AmbiguousRef, Damaged, MessageNotFound, SessionNotFound
from holdfast.operations import refs
from holdfast.operations.history import DamageCallback
from holdfast.operations.listing import is_uncontinued_import, latest
from holdfast.storage.ancestry import is_on_path
from holdfast.storage.protocol import Query, Snapshot
from holdfast.storage.rows import SessionFilter, SessionRow, UnreadableSession
from holdfast.values import Candidate, Damage

_MIN_PREFIX_LENGTH: Final = 4
_MAX_CANDIDATES: Final = 20
_MAX_NAMED_CANDIDATES: Final = 5


def ignore_damage(damage: Damage) -> None:
    """Discard the damage that `@latest` passed over."""


def find(ref: str, report: DamageCallback = ignore_damage) -> Query[SessionRow]:
    """Return the session that a reference names."""
    given = refs.parse_builtin(refs.check_ref(ref))

    def run(snapshot: Snapshot) -> SessionRow:
        if given is not None:
            return _require_one(snapshot, ref, _find_builtin(snapshot, given, report))
        kinds = chain(_iter_matches(snapshot, ref), _iter_titles_any_case(snapshot, ref))
        return _require_one(snapshot, ref, _own_first(snapshot, kinds))

    return run


def find_in_trash(ref: str, report: DamageCallback = ignore_damage) -> Query[SessionRow]:
    """Return a session in the trash, also by the key or title it had; failing that, any session."""
    given = refs.parse_builtin(refs.check_ref(ref))
    if given is not None:
        return find(ref, report)

    def run(snapshot: Snapshot) -> SessionRow:
        matches = _find_matches(snapshot, ref)
        found = (
            [row for row in matches if row.trashed_at is not None]
            or _find_trashed(snapshot, ref)
            or _find_by_title_any_case(snapshot, ref, trashed=True)
            or matches
            or _find_by_title_any_case(snapshot, ref)
        )
        return _require_one(snapshot, ref, found)

    return run


def find_anywhere(ref: str, report: DamageCallback = ignore_damage) -> Query[SessionRow]:
    """Return a session, in the trash or not; if both have a match, `AmbiguousRef` is raised."""
    given = refs.parse_builtin(refs.check_ref(ref))
    if given is not None:
        return find(ref, report)

    def run(snapshot: Snapshot) -> SessionRow:
        exact = snapshot.find_session(id=ref)
        if exact is not None:
            return exact
        found = _find_matches(snapshot, ref) + _find_trashed(snapshot, ref)
        if not found:
            found = [
                *_find_by_title_any_case(snapshot, ref),
                *_find_by_title_any_case(snapshot, ref, trashed=True),
            ]
        return _require_one(snapshot, ref, list({row.id: row for row in found}.values()))

    return run


def find_by_id(session_id: str) -> Query[SessionRow]:
    """Return a session by its whole id."""

    def run(snapshot: Snapshot) -> SessionRow:
        found = snapshot.find_session(id=session_id)
        return _require_one(snapshot, session_id, [] if found is None else [found])

    return run


def find_by_key(key: str) -> Query[SessionRow | None]:
    """Return a session by its key; `None` if there is none."""
    validation.check_name(key, "key")
    return lambda snapshot: snapshot.find_session(key=key)


def find_by_message(message_id: str) -> Query[SessionRow]:
    """Return the session that a message belongs to: the one that wrote it, if it is not trashed.

    Otherwise it belongs to a fork that shares it. A fork may have written it once more, with
    `replace`: then it is still its parent's.
    """
    validation.check_name(message_id, "id")

    def run(snapshot: Snapshot) -> SessionRow:
        owners = _own_first(snapshot, _iter_owners(snapshot, message_id))
        found = _without_descendants(snapshot, owners)
        if not found:
            raise MessageNotFound(f"no session has a message {message_id!r}.")
        if len(found) > 1:
            what = f"several sessions have a message {message_id!r}"
            raise _ambiguous(snapshot, what, found, "read it with store.get(…).message(…)")
        return found[0]

    return run


def _iter_owners(snapshot: Snapshot, message_id: str) -> Iterator[list[SessionRow]]:
    """Yield the sessions that wrote a message; then those that share it with others."""
    yield snapshot.sessions("message_id", message_id, trashed=False, limit=_MAX_CANDIDATES)
    yield _find_sharing(snapshot, message_id)


def _find_sharing(snapshot: Snapshot, message_id: str) -> list[SessionRow]:
    """Return the sessions whose histories share a message of one that is trashed or purged."""
    writers = snapshot.sessions("message_id", message_id, stubs=True, limit=_MAX_CANDIDATES)
    at = snapshot.stored_in_sessions([row.n for row in writers], [message_id])
    below = snapshot.branches_below({branch for branch, _ in at})
    owners = snapshot.owners([branch.n for branch in below])
    sharing = {
        owner.n
        for n, owner in owners.items()
        if any(is_on_path(snapshot.path(n), branch, row.seq) for branch, row in at)
    }
    found = (snapshot.session(n) for n in sorted(sharing)[:_MAX_CANDIDATES])
    return [row for row in found if row is not None]


def _without_descendants(snapshot: Snapshot, found: list[SessionRow]) -> list[SessionRow]:
    """Return sessions without those that were forked from another one of them."""
    if len(found) <= 1:
        return found
    ids = {row.id for row in found}
    return [row for row in found if ids.isdisjoint(_ancestor_ids(snapshot, row))]


def _ancestor_ids(snapshot: Snapshot, row: SessionRow) -> Iterator[str]:
    """Yield the ids of the sessions that a session was forked from or continues."""
    seen = {row.id}
    current: SessionRow | None = row
    while current is not None and current.relation in {"fork", "continue"}:
        parent = current.parent
        if parent is None or parent in seen:
            return
        yield parent
        seen.add(parent)
        current = snapshot.find_session(id=parent, stubs=True)


# ------------------------------------------------------------------------------------ matches


def _find_builtin(
    snapshot: Snapshot, name: refs.BuiltinRef, report: DamageCallback
) -> list[SessionRow]:
    if name.kind == "latest":
        found = latest(SessionFilter(scope=name.scope, delegates=False), report)(snapshot)
        return [] if found is None else [found]
    pinned = snapshot.list_sessions(SessionFilter(pinned=True), before=None, limit=_MAX_CANDIDATES)
    readable = [item for item in pinned if not isinstance(item, UnreadableSession)]
    for item in pinned:
        if isinstance(item, UnreadableSession):
            report(Damage(what=item.why, session_id=item.id))
    return [row for row, _ in readable]


def _find_matches(snapshot: Snapshot, ref: str) -> list[SessionRow]:
    return _own_first(snapshot, _iter_matches(snapshot, ref))


def _iter_matches(snapshot: Snapshot, ref: str) -> Iterator[list[SessionRow]]:
    """Yield the matches of each kind; one is read only if those before it were not enough."""
    yield snapshot.sessions("id", ref)
    yield snapshot.sessions("key", ref, trashed=False)
    if len(ref) >= _MIN_PREFIX_LENGTH:
        yield snapshot.sessions("id_prefix", ref, limit=_MAX_CANDIDATES)
    yield snapshot.sessions("run_id", ref, trashed=False, limit=_MAX_CANDIDATES)
    yield snapshot.sessions("title", ref, trashed=False, limit=_MAX_CANDIDATES)


def _iter_titles_any_case(snapshot: Snapshot, ref: str) -> Iterator[list[SessionRow]]:
    yield _find_by_title_any_case(snapshot, ref)


def _own_first(snapshot: Snapshot, kinds: Iterable[list[SessionRow]]) -> list[SessionRow]:
    """Return the first matches without those that are only imported; failing that, with them."""
    imported: list[SessionRow] = []
    for found in kinds:
        own = [row for row in found if not _is_only_imported(snapshot, row)]
        if own:
            return own
        imported = imported or found
    return imported


def _is_only_imported(snapshot: Snapshot, row: SessionRow) -> bool:
    if row.provenance is None:
        return False
    try:
        head = snapshot.head(row.n)
        return head is None or is_uncontinued_import(row, head)
    except Damaged:  # It is not known to be one's own.
        return True


def _find_by_title_any_case(
    snapshot: Snapshot, ref: str, *, trashed: bool = False
) -> list[SessionRow]:
    return snapshot.sessions("title_any_case", ref, trashed=trashed, limit=_MAX_CANDIDATES)


def _find_trashed(snapshot: Snapshot, ref: str) -> list[SessionRow]:
    by_key = snapshot.sessions("key", ref, trashed=True, limit=_MAX_CANDIDATES)
    return by_key or snapshot.sessions("title", ref, trashed=True, limit=_MAX_CANDIDATES)


# ----------------------------------------------------------------------------- exactly one


def _require_one(snapshot: Snapshot, ref: str, found: list[SessionRow]) -> SessionRow:
    if not found:
        raise SessionNotFound(f"no session matches {ref!r}; store.sessions() lists them.")
    if len(found) == 1:
        return found[0]
    raise _ambiguous(snapshot, f"{ref!r} matches several sessions", found, "name one by its id")


def _ambiguous(snapshot: Snapshot, what: str, found: list[SessionRow], hint: str) -> AmbiguousRef:
    candidates = [_candidate(snapshot, row) for row in found]
    candidates.sort(key=lambda candidate: candidate.updated_at, reverse=True)
    names = ", ".join(candidate.id for candidate in candidates[:_MAX_NAMED_CANDIDATES])
    more = " and more" if len(found) > _MAX_NAMED_CANDIDATES else ""
    return AmbiguousRef(f"{what}: {names}{more}; {hint}.", tuple(candidates))


def _candidate(snapshot: Snapshot, row: SessionRow) -> Candidate:
    try:
        head = snapshot.head(row.n)
    except Damaged:  # It is still a match.
        head = None
    return Candidate(
        id=row.id,
        key=row.key,
        title=row.title,
        preview=None if head is None else head.preview,
        updated_at=EPOCH if head is None else to_datetime(head.updated_at),
        trashed=row.trashed_at is not None,
    )
