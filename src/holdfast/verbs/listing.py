"""Which sessions there are: the list, a page at a time, and the newest one.

A list goes by activity, a number that grows with every write, so it needs no clock and a cursor
stays right while others write: it is the number where a page ended. What is written to meanwhile
moves ahead of it; every other session is met exactly once. `pinned` lists the pinned ones, then the
others; its cursor says among which of them the page ended. No other order is kept by an index, and
without one every page would have to read every session.

Scope, agent, cwd and the marks are found by indexes. Text, times and states are judged session by
session, from the newest back, until the page is full.

A session that cannot be read stands in the list, with the state `damaged`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Final, get_args

import msgspec

from holdfast import checks
from holdfast.backends.base import (
    HeadRow,
    Listed,
    Listing,
    Query,
    SessionRow,
    Snapshot,
    Unreadable,
)
from holdfast.clock import EPOCH, to_datetime
from holdfast.errors import BadQuery, Damaged
from holdfast.records import Damage, Order, Relation, SessionInfo, SessionState, Usage
from holdfast.verbs.histories import Report
from holdfast.verbs.reading import describe, read_messages

_CURSOR: Final = re.compile(r"([pu]?)([0-9]*)", re.ASCII)
_MOST_AT_ONCE: Final = 1000
_TRIED_AT_ONCE: Final = 20


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A page that is asked for: of which list, in which order, behind what."""

    listing: Listing
    state: SessionState | None = None
    order: Order = "activity"
    limit: int = 50
    cursor: str | None = None


class _Place(msgspec.Struct, frozen=True):
    """Where a page begins: among the pinned ones or not (or whichever), below an activity."""

    pinned: bool | None
    before: int | None


class _Found(msgspec.Struct, frozen=True):
    """A session of a page, and where the next one begins if the page ends with it."""

    info: SessionInfo
    place: _Place


def check_asked(asked: Asked) -> Asked:
    """Refuse what makes no sense."""
    checks.check_filter(asked.state, "state")
    if asked.state is not None and asked.state not in get_args(SessionState):
        raise BadQuery(f"state: expected one of {', '.join(get_args(SessionState))}")
    if asked.order not in get_args(Order):
        raise BadQuery(f"order: expected one of {', '.join(get_args(Order))}")
    _start(asked)
    limit = checks.check_number(asked.limit, "limit", lowest=1)
    return msgspec.structs.replace(asked, limit=limit)


def page(asked: Asked, report: Report) -> Query[tuple[tuple[SessionInfo, ...], str | None]]:
    """List sessions, and give the cursor of the next page."""
    asked = check_asked(asked)

    def run(snapshot: Snapshot) -> tuple[tuple[SessionInfo, ...], str | None]:
        found: list[_Found] = []
        for item in _walk(snapshot, asked, report):
            if len(found) == asked.limit:
                return tuple(one.info for one in found), _cursor(found[-1].place)
            found.append(item)
        return tuple(one.info for one in found), None

    return run


# ------------------------------------------------------------------------------------- cursors


def _start(asked: Asked) -> _Place:
    """Read a cursor; one of another order is none of ours."""
    sections = _sections(asked)
    if asked.cursor is None:
        return _Place(sections[0], None)
    match = _CURSOR.fullmatch(asked.cursor) if isinstance(asked.cursor, str) else None
    section = {"p": True, "u": False, "": None}[match[1]] if match else None
    if match is None or section not in sections or not (match[2] or match[1] == "u"):
        raise BadQuery("cursor: not one that a page of this list gave")
    before = checks.check_number(int(match[2][:20]), "cursor") if match[2] else None
    return _Place(section, before)


def _sections(asked: Asked) -> tuple[bool | None, ...]:
    return (None,) if asked.order == "activity" else (True, False)


def _cursor(place: _Place) -> str:
    section = {True: "p", False: "u", None: ""}[place.pinned]
    return f"{section}{place.before}"


# --------------------------------------------------------------------------------------- walking


def _walk(snapshot: Snapshot, asked: Asked, report: Report) -> Iterator[_Found]:
    """Go through the sessions that are asked for, in order."""
    start = _start(asked)
    sections = _sections(asked)
    for section in sections[sections.index(start.pinned) :]:
        before = start.before if section == start.pinned else None
        listing = _narrowed(asked, section)
        if listing is not None:
            for info, activity in _judged(snapshot, listing, before, asked, report):
                yield _Found(info, _Place(section, activity))


def _narrowed(asked: Asked, section: bool | None) -> Listing | None:  # noqa: FBT001
    """Return what to list of a section; nothing if only the other one was asked for."""
    listing = asked.listing
    if section is not None:
        if listing.pinned not in {None, section}:
            return None
        listing = msgspec.structs.replace(listing, pinned=section)
    if asked.state in {None, "damaged"}:
        return listing
    return msgspec.structs.replace(listing, busy=asked.state != "done")


def _judged(
    snapshot: Snapshot, listing: Listing, before: int | None, asked: Asked, report: Report
) -> Iterator[tuple[SessionInfo, int]]:
    """Describe what is listed, in batches, and leave out what is in another state."""
    size = min(asked.limit + 1, _MOST_AT_ONCE)  # One more tells whether there is another page.
    while True:
        found = snapshot.list_sessions(listing, before=before, limit=size)
        forks = _forks(snapshot, found, report)
        for item in found:
            info = _described(snapshot, item, forks, report)
            before = _activity(item)
            if asked.state in {None, info.state}:
                yield info, before
        if len(found) < size:
            return
        size = _MOST_AT_ONCE


def _forks(snapshot: Snapshot, found: list[Listed], report: Report) -> dict[str, int]:
    ids = [item[0].id for item in found if not isinstance(item, Unreadable)]
    try:
        return snapshot.forks(ids)
    except Damaged as error:
        report(Damage(what=str(error)))
        return {}


def _described(
    snapshot: Snapshot, item: Listed, forks: dict[str, int], report: Report
) -> SessionInfo:
    if isinstance(item, Unreadable):
        report(Damage(what=item.why, session_id=item.id))
        return _damaged(item.id, item.row, item.head)
    row, head = item
    try:
        return describe(snapshot, row, head, forks=forks.get(row.id, 0))
    except Damaged as error:
        report(Damage(what=str(error), session_id=row.id))
        return _damaged(row.id, row, head)


def _activity(item: Listed) -> int:
    return item.activity if isinstance(item, Unreadable) else item[1].activity


# --------------------------------------------------------------------------------------- damage


def _damaged(id: str | None, row: SessionRow | None, head: HeadRow | None) -> SessionInfo:
    """Tell of a session what its rows say, each value for itself; nothing vouches for them."""
    relation = getattr(row, "relation", None)
    title_by = getattr(row, "title_by", None)
    return SessionInfo(
        id=id or _text(row, "id") or "",
        key=_text(row, "key"),
        scope=_text(row, "scope"),
        title=_text(row, "title"),
        title_by=title_by if title_by in {"user", "auto"} else None,
        agent=_text(row, "agent"),
        model=_text(row, "model"),
        cwd=_text(row, "cwd"),
        state="damaged",
        created_at=_time(row, "created_at"),
        updated_at=_time(head, "updated_at"),
        turns=_count(head, "turns"),
        messages=_count(head, "seq"),
        usage=Usage(),
        cost=Decimal(0),
        preview=_text(head, "preview"),
        pinned=getattr(row, "pinned", False) is True,
        archived=getattr(row, "archived", False) is True,
        trashed=getattr(row, "trashed_at", None) is not None,
        goal=None,
        metadata={},
        parent=_text(row, "parent"),
        relation=relation if relation in get_args(Relation) else None,
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
    except OverflowError:
        return EPOCH


# --------------------------------------------------------------------------------------- latest


def latest(listing: Listing, report: Report) -> Query[SessionRow | None]:
    """Find the newest session that can be read; one that cannot is reported and passed over."""

    def run(snapshot: Snapshot) -> SessionRow | None:
        before: int | None = None
        while True:
            found = snapshot.list_sessions(listing, before=before, limit=_TRIED_AT_ONCE)
            for item in found:
                before = _activity(item)
                if isinstance(item, Unreadable):
                    report(Damage(what=item.why, session_id=item.id))
                elif (damage := _damage(snapshot, *item)) is not None:
                    report(damage)
                else:
                    return item[0]
            if not found:
                return None

    return run


def _damage(snapshot: Snapshot, row: SessionRow, head: HeadRow) -> Damage | None:
    """Try a session: who it is, and its newest message."""
    try:
        describe(snapshot, row, head, forks=0)
        read_messages(snapshot, head, (max(1, head.seq), head.seq), strict=True)
    except Damaged as error:
        return Damage(what=str(error), session_id=row.id)
    return None
