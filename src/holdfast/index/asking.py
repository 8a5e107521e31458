"""What a caller asks for, understood: the text, and what is said beside it.

Filters in the text and arguments both hold. A cursor says behind which hit to go on, and at which
time the first page was asked for, so that a page later the same hits have the same scores.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Final, get_args
from zlib import crc32

import msgspec

from holdfast import checks
from holdfast.backends.base import Owner, SessionRow, Snapshot
from holdfast.clock import to_datetime, to_micros
from holdfast.core.moments import When, moment
from holdfast.core.search.query import Query, parse
from holdfast.errors import AmbiguousRef, BadQuery, BadRef, NotFound
from holdfast.index.kept import Bounds
from holdfast.records import Role
from holdfast.verbs import finding

MOST: Final = 1000
_LONGEST: Final = 100_000
_MOST_AROUND: Final = 100


class Rank(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where a hit stands among all: titles before messages, then the better, then the newer."""

    kind: int
    score: float  # negative, and so is the time: what sorts first is best
    at: int
    branch: int
    seq: int


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Behind which hit a page begins, when the first one was asked for, and what was asked."""

    now: int
    asked: int
    rank: Rank


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A search, with everything that was said about it."""

    query: Query
    now: datetime
    after: Rank | None
    asked: int
    bounds: Bounds
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    session: str | None
    thinking: bool
    all_branches: bool
    around: int
    limit: int

    @property
    def impossible(self) -> bool:
        """Whether nothing can be found, because two filters contradict each other."""
        role = self.query.filters.role
        return role is not None and self.bounds.role not in (None, role)

    def cursor(self, rank: Rank) -> str:
        """Return the cursor of the page behind a hit."""
        cursor = Cursor(to_micros(self.now), self.asked, rank)
        return urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")

    def fits(self, session: SessionRow | Owner) -> bool:
        """Return whether a session is one of those asked for, its title aside."""
        return all(scope == session.scope for scope in self.scopes) and all(
            agent == session.agent for agent in self.agents
        )

    def named(self, snapshot: Snapshot) -> tuple[bool, SessionRow | None]:
        """Find the session that is asked for; say whether one is, and which."""
        said = self.query.filters.session
        if self.session is None and said is None:
            return False, None
        found = [] if self.session is None else [finding.find(self.session)(snapshot)]
        if said is not None:
            try:
                found.append(finding.find(said)(snapshot))
            except (NotFound, AmbiguousRef, BadRef):  # In a text that names nothing.
                return True, None
        same = all(row.n == found[0].n for row in found)
        return True, found[0] if same and found[0].trashed_at is None else None


def request(
    text: str,
    *,
    now: datetime,
    scope: str | None,
    agent: str | None,
    role: Role | None,
    since: When | None,
    until: When | None,
    session: str | None,
    literal: bool,
    thinking: bool,
    all_branches: bool,
    around: int,
    limit: int,
    cursor: str | None,
) -> Request:
    """Understand a search; what makes no sense is `BadQuery`."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise BadQuery(f"text: expected a text of up to {_LONGEST:,} characters")
    for field, value in (("scope", scope), ("agent", agent), ("session", session)):
        checks.check_filter(value, field)
    for field, flag in (
        ("literal", literal),
        ("thinking", thinking),
        ("all_branches", all_branches),
    ):
        checks.check_flag(flag, field, optional=False)
    if role is not None and role not in get_args(Role):
        raise BadQuery(f"role: must be one of {', '.join(get_args(Role))}")
    asked = crc32(
        repr((text, scope, agent, role, since, until, session, literal, thinking, all_branches))
        .encode("utf-8", "surrogatepass")
    )  # fmt: skip
    going_on = None if cursor is None else _read_cursor(cursor, asked)
    now = now if going_on is None else to_datetime(going_on.now)
    query = parse(text, literal=literal, now=now)
    filters = query.filters
    return Request(
        query=query,
        now=now,
        after=None if going_on is None else going_on.rank,
        asked=asked,
        bounds=Bounds(
            role=role or filters.role,
            since=_latest(filters.since, moment(since, "since", now)),
            until=_earliest(filters.until, moment(until, "until", now)),
        ),
        scopes=_both(scope, filters.scope),
        agents=_both(agent, filters.agent),
        session=session,
        thinking=thinking,
        all_branches=all_branches,
        around=_up_to(_MOST_AROUND, checks.check_number(around, "around"), "around"),
        limit=_up_to(MOST, checks.check_number(limit, "limit", lowest=1), "limit"),
    )


def _up_to(most: int, value: int, field: str) -> int:
    if value > most:
        raise BadQuery(f"{field}: expected a whole number up to {most}, got {value}")
    return value


def _both(*values: str | None) -> tuple[str, ...]:
    return tuple(value for value in values if value is not None)


def _latest(*moments: datetime | None) -> int | None:
    return max(_micros(moments), default=None)


def _earliest(*moments: datetime | None) -> int | None:
    return min(_micros(moments), default=None)


def _micros(moments: Sequence[datetime | None]) -> list[int]:
    return [to_micros(moment) for moment in moments if moment is not None]


def _read_cursor(cursor: str, asked: int) -> Cursor:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = msgspec.json.decode(urlsafe_b64decode(padded), type=Cursor)
        to_datetime(found.now)
    except (ValueError, TypeError, AttributeError, OverflowError, msgspec.DecodeError) as error:
        raise BadQuery("cursor: not one that a page gave") from error
    if found.asked != asked:
        raise BadQuery("cursor: of another search; pass it with the same text and filters")
    return found
