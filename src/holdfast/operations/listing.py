"""Listing sessions a page at a time, and finding the newest one.

A list is ordered by activity, a number that grows with every write, so it needs no clock. A cursor
is the activity at which a page ended, so it stays valid under concurrent writes: a session written
to meanwhile moves ahead of it, every other one is listed exactly once. The order `pinned` lists the
pinned sessions, then the others; its cursor also records in which of these sections the page ended.
No other order has an index, and without one every page would have to read every session.

Scope, agent, cwd, metadata, the beginning of a key and the marks are filtered by indexes. Text,
times and states are filtered session by session, from the newest back, until the page is full.

A session that cannot be read is listed with the state `damaged`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Final, TypeAlias, get_args

import msgspec

from holdfast import codec, validation
from holdfast.clock import EPOCH, to_datetime
from holdfast.errors import BadMessage, BadQuery, Damaged
from holdfast.operations.history import DamageCallback, damage_of
from holdfast.operations.queries import describe, read_messages
from holdfast.operations.session_fields import readable_fields
from holdfast.storage import metadata_marks
from holdfast.storage.protocol import Query, Snapshot
from holdfast.storage.rows import (
    HeadRow,
    ListedSession,
    SessionFilter,
    SessionRow,
    UnreadableSession,
)
from holdfast.values import (
    Damage,
    Head,
    Order,
    SessionInfo,
    SessionProvenance,
    SessionState,
    Usage,
)

_CURSOR: Final = re.compile(r"([pu]?)([0-9]*)", re.ASCII)
_SECTION_NAMES: Final = {True: "p", False: "u", None: ""}
_MAX_BATCH_SESSIONS: Final = 1000
_LATEST_BATCH_SESSIONS: Final = 20
_MAX_PAIRS: Final = 32  # of metadata in one list


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page: filters, order, size and where to continue."""

    listing: SessionFilter
    state: SessionState | None = None
    order: Order = "activity"
    limit: int = 50
    cursor: str | None = None


class _PageStart(msgspec.Struct, frozen=True):
    """Where a page begins: in which section (`None`: all in one), and below which activity."""

    pinned: bool | None
    before: int | None


_Entry: TypeAlias = tuple[SessionInfo, bool | None, int]  # with its section and activity


def check_page_request(request: PageRequest) -> PageRequest:
    """Return a validated request; raise `BadQuery` if a field is invalid."""
    validation.check_filter(request.state, "state")
    if request.state is not None and request.state not in get_args(SessionState):
        raise BadQuery(f"state: expected one of {', '.join(get_args(SessionState))}")
    if request.order not in get_args(Order):
        raise BadQuery(f"order: expected one of {', '.join(get_args(Order))}")
    _page_start(request)
    limit = validation.check_number(request.limit, "limit", lowest=1)
    return msgspec.structs.replace(request, limit=limit)


def check_key_prefix(prefix: object) -> str | None:
    """Return the validated beginning of a key."""
    if prefix is None:
        return None
    try:
        return validation.check_name(prefix, "key_prefix")
    except BadMessage as error:
        raise BadQuery(str(error)) from error


def parse_metadata(wanted: object) -> frozenset[metadata_marks.Pair]:
    """Return the pairs of metadata to find; raise `BadQuery` if a value cannot be one."""
    if wanted is None:
        return frozenset()
    try:
        given = validation.check_json_object(wanted, "metadata")
    except BadMessage as error:
        raise BadQuery(str(error)) from error
    if len(given) > _MAX_PAIRS:
        raise BadQuery(f"metadata: {len(given)} names are over the limit of {_MAX_PAIRS}")
    for name, value in given.items():
        if value is None:
            raise BadQuery(f"metadata: {name!r} is null, which no update stores")
    return frozenset(metadata_marks.pair(name, value) for name, value in given.items())


def page(
    request: PageRequest, report: DamageCallback
) -> Query[tuple[tuple[SessionInfo, ...], str | None]]:
    """Return a page of sessions, and the cursor of the next page if there is one."""
    request = check_page_request(request)

    def run(snapshot: Snapshot) -> tuple[tuple[SessionInfo, ...], str | None]:
        found: list[_Entry] = []
        for entries in _iter_batches(snapshot, request, report):
            found += entries
            if len(found) > request.limit:
                del found[request.limit :]
                _, section, activity = found[-1]
                return tuple([info for info, _, _ in found]), _cursor(section, activity)
        return tuple([info for info, _, _ in found]), None

    return run


# ------------------------------------------------------------------------------------- cursors


def _page_start(request: PageRequest) -> _PageStart:
    """Return where the page begins; raise `BadQuery` for a cursor of another order."""
    sections = _sections(request)
    if request.cursor is None:
        return _PageStart(sections[0], None)
    match = _CURSOR.fullmatch(request.cursor) if isinstance(request.cursor, str) else None
    section = {"p": True, "u": False, "": None}[match[1]] if match else None
    if match is None or section not in sections or not (match[2] or match[1] == "u"):
        raise BadQuery("cursor: invalid for this list; pass the cursor of its last page unchanged")
    before = validation.check_number(int(match[2][:20]), "cursor") if match[2] else None
    return _PageStart(section, before)


def _sections(request: PageRequest) -> tuple[bool | None, ...]:
    return (None,) if request.order == "activity" else (True, False)


def _cursor(section: bool | None, activity: int) -> str:  # noqa: FBT001
    return f"{_SECTION_NAMES[section]}{activity}"


# --------------------------------------------------------------------------------------- walking


def _iter_batches(
    snapshot: Snapshot, request: PageRequest, report: DamageCallback
) -> Iterator[list[_Entry]]:
    """Yield the sessions of the list from the cursor on, in order, as they are read."""
    start = _page_start(request)
    sections = _sections(request)
    for section in sections[sections.index(start.pinned) :]:
        before = start.before if section == start.pinned else None
        listing = _section_listing(request, section)
        if listing is not None:
            for found in _iter_sessions(snapshot, listing, before, request.limit):
                entries = _describe_all(snapshot, found, section, report)
                wanted = request.state
                yield [one for one in entries if wanted is None or one[0].state == wanted]


def _section_listing(request: PageRequest, section: bool | None) -> SessionFilter | None:  # noqa: FBT001
    """Return the filters for a section; `None` if the request excludes the section."""
    listing = request.listing
    if section is not None:
        if listing.pinned not in {None, section}:
            return None
        listing = msgspec.structs.replace(listing, pinned=section)
    if request.state in {None, "damaged"}:
        return listing
    return msgspec.structs.replace(listing, busy=request.state != "done")


def _iter_sessions(
    snapshot: Snapshot, listing: SessionFilter, before: int | None, limit: int
) -> Iterator[list[ListedSession]]:
    """Yield the sessions of a section in batches."""
    size = min(limit + 1, _MAX_BATCH_SESSIONS)  # One more shows if another page follows.
    while True:
        found = snapshot.list_sessions(listing, before=before, limit=size)
        yield found
        if len(found) < size:
            return
        before = _activity(found[-1])
        size = _MAX_BATCH_SESSIONS


def _describe_all(
    snapshot: Snapshot,
    found: list[ListedSession],
    section: bool | None,  # noqa: FBT001
    report: DamageCallback,
) -> list[_Entry]:
    """Return the descriptions of sessions, those of damaged ones with the state `damaged`."""
    ids = [item[0].id for item in found if isinstance(item, tuple)]
    try:
        forks = snapshot.count_forks(ids)
    except Damaged as error:
        report(Damage(what=str(error)))
        forks = {}
    entries: list[_Entry] = []
    for item in found:
        if isinstance(item, UnreadableSession):
            report(Damage(what=item.why, session_id=item.id))
            info = _describe_damaged(item.id, item.row, item.head)
            entries.append((info, section, item.activity))
            continue
        row, head = item
        try:
            info = describe(snapshot, row, head, forks=forks.get(row.id, 0))
        except Damaged as error:
            report(damage_of(error, row.id))
            info = _describe_damaged(row.id, row, head)
        entries.append((info, section, head.activity))
    return entries


def _activity(item: ListedSession) -> int:
    return item.activity if isinstance(item, UnreadableSession) else item[1].activity


# --------------------------------------------------------------------------------------- damage


def _describe_damaged(id: str | None, row: SessionRow | None, head: HeadRow | None) -> SessionInfo:
    """Describe a damaged session: each value of its rows that has the right type, unverified."""
    fields = readable_fields(row)
    return SessionInfo(
        **(fields | {"id": id or fields["id"] or ""}),
        state="damaged",
        updated_at=_time(head, "updated_at"),
        turns=_count(head, "turns"),
        messages=_count(head, "seq"),
        usage=Usage(),
        cost=Decimal(0),
        preview=_text(head, "preview"),
        trashed=getattr(row, "trashed_at", None) is not None,
        branches=max(1, _count(head, "branch_no")),
        forks=0,
        interrupted=False,
    )


def _text(row: SessionRow | HeadRow | None, field: str) -> str | None:
    value = getattr(row, field, None)
    return value if isinstance(value, str) else None


def _count(row: HeadRow | None, field: str) -> int:
    value = getattr(row, field, None)
    return value if isinstance(value, int) and value > 0 else 0


def _time(row: SessionRow | HeadRow | None, field: str) -> datetime:
    value = getattr(row, field, None)
    try:
        return to_datetime(value) if isinstance(value, int) else EPOCH
    except Damaged:
        return EPOCH


# --------------------------------------------------------------------------------------- latest


def latest(listing: SessionFilter, report: DamageCallback) -> Query[SessionRow | None]:
    """Return the newest readable session; damaged ones are reported and skipped.

    Imported ones that were not continued here come after all others.
    """

    def run(snapshot: Snapshot) -> SessionRow | None:
        before: int | None = None
        size, imported = _LATEST_BATCH_SESSIONS, None
        while True:
            found = snapshot.list_sessions(listing, before=before, limit=size)
            size = _MAX_BATCH_SESSIONS
            for item in found:
                before = _activity(item)
                if isinstance(item, UnreadableSession):
                    report(Damage(what=item.why, session_id=item.id))
                elif (damage := _find_damage(snapshot, *item)) is not None:
                    report(damage)
                elif is_uncontinued_import(*item):
                    imported = imported or item[0]
                else:
                    return item[0]
            if not found:
                return imported

    return run


def is_uncontinued_import(row: SessionRow, head: HeadRow) -> bool:
    """True if a session that was imported still ends where it did then."""
    if row.provenance is None:
        return False
    try:
        came_with = codec.from_json(row.provenance, SessionProvenance).head
    except ValueError:  # No store writes it: it is not known to be one's own.
        return True
    return came_with == Head(head.branch_no, head.seq)


def _find_damage(snapshot: Snapshot, row: SessionRow, head: HeadRow) -> Damage | None:
    """Return the damage of a session, if its description or newest message cannot be read."""
    try:
        describe(snapshot, row, head, forks=0)
        read_messages(snapshot, head, (max(1, head.seq), head.seq), strict=True)
    except Damaged as error:
        return damage_of(error, row.id)
    return None
