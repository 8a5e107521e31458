"""A search request: the parsed query text, the arguments and the cursor.

Filters in the text and filters passed as arguments are combined. A cursor has the last hit of a
page and the time of the first page, so that hits have the same scores on all pages.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Final, get_args
from zlib import crc32

import msgspec

from holdfast import validation
from holdfast.clock import to_datetime, to_micros
from holdfast.errors import AmbiguousRef, BadQuery, BadRef, Damaged, NotFound
from holdfast.operations import resolve
from holdfast.search.protocol import Bounds
from holdfast.search.query import Query, parse
from holdfast.search.time_filter import parse_time
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import BranchOwner, SessionRow
from holdfast.values import Role, SearchOptions

MAX_HITS: Final = 1000
_MAX_AROUND: Final = 100


class Rank(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The sort key of a hit: titles before messages, then by score, then newest first."""

    kind: int
    score: float  # negated, as are time and position, so that the best sorts first
    at: int
    branch: int
    seq: int


class SearchCursor(msgspec.Struct, frozen=True, array_like=True):
    """The time of the first page, a checksum of the request, and the rank of the last hit."""

    now: int
    fingerprint: int
    rank: Rank


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A validated search request."""

    query: Query
    now: datetime
    after: Rank | None
    fingerprint: int
    bounds: Bounds
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    cwds: tuple[str, ...]
    session: str | None
    thinking: bool
    all_branches: bool
    around: int
    limit: int

    @property
    def filters_sessions(self) -> bool:
        """True if sessions are filtered by their scope, agent or directory."""
        return bool(self.scopes or self.agents or self.cwds)

    @property
    def is_contradictory(self) -> bool:
        """True if two filters contradict each other, so that nothing can match."""
        role = self.query.filters.role
        return role is not None and self.bounds.role not in (None, role)

    def cursor(self, rank: Rank) -> str:
        """Return the cursor of the page after a hit."""
        cursor = SearchCursor(to_micros(self.now), self.fingerprint, rank)
        return urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")

    def accepts(self, session: SessionRow | BranchOwner) -> bool:
        """True if a session passes the filters, apart from that on titles."""
        return (
            all(scope == session.scope for scope in self.scopes)
            and all(agent == session.agent for agent in self.agents)
            and all(cwd == session.cwd for cwd in self.cwds)
        )

    def resolve_session(self, snapshot: Snapshot) -> tuple[bool, SessionRow | None]:
        """Return True if one session is to be searched, and which; None if nothing can match.

        An unknown session raises if it is an argument; in the query text it matches nothing.
        """
        in_text = self.query.filters.session
        if self.session is None and in_text is None:
            return False, None
        found = [] if self.session is None else [resolve.find(self.session)(snapshot)]
        if in_text is not None:
            try:
                found.append(resolve.find(in_text)(snapshot))
            except (NotFound, AmbiguousRef, BadRef):
                return True, None
        same = all(row.n == found[0].n for row in found)
        return True, found[0] if same and found[0].trashed_at is None else None


def parse_request(text: str, options: SearchOptions, now: datetime) -> SearchRequest:
    """Return a validated request; raise `BadQuery` if an argument is invalid."""
    if not isinstance(text, str):
        raise BadQuery("text: expected a string")
    scope, agent, session = options.get("scope"), options.get("agent"), options.get("session")
    cwd = options.get("cwd")
    for field, value in (("scope", scope), ("agent", agent), ("cwd", cwd), ("session", session)):
        validation.check_filter(value, field)
    literal, thinking = options.get("literal", False), options.get("thinking", False)
    all_branches = options.get("all_branches", False)
    for field, flag in (
        ("literal", literal),
        ("thinking", thinking),
        ("all_branches", all_branches),
    ):
        validation.check_flag(flag, field, optional=False)
    role, since, until = options.get("role"), options.get("since"), options.get("until")
    if role is not None and role not in get_args(Role):
        raise BadQuery(f"role: must be one of {', '.join(get_args(Role))}")
    fingerprint = crc32(
        repr(
            (text, scope, agent, cwd, role, since, until, session, literal, thinking, all_branches)
        ).encode("utf-8", "surrogatepass")
    )
    cursor = options.get("cursor")
    resumed = None if cursor is None else _read_cursor(cursor, fingerprint)
    now = now if resumed is None else to_datetime(resumed.now)
    query = parse(text, literal=literal, now=now)
    filters = query.filters
    around, limit = options.get("around", 0), options.get("limit", 20)
    return SearchRequest(
        query=query,
        now=now,
        after=None if resumed is None else resumed.rank,
        fingerprint=fingerprint,
        bounds=Bounds(
            role=role or filters.role,
            since=_latest(filters.since, parse_time(since, "since", now)),
            until=_earliest(filters.until, parse_time(until, "until", now)),
        ),
        scopes=_both(scope, filters.scope),
        agents=_both(agent, filters.agent),
        cwds=_both(cwd),
        session=session,
        thinking=thinking,
        all_branches=all_branches,
        around=_check_highest(_MAX_AROUND, validation.check_number(around, "around"), "around"),
        limit=_check_highest(MAX_HITS, validation.check_number(limit, "limit", lowest=1), "limit"),
    )


def _check_highest(highest: int, value: int, field: str) -> int:
    if value > highest:
        raise BadQuery(f"{field}: must be at most {highest}, got {value}")
    return value


def _both(*values: str | None) -> tuple[str, ...]:
    return tuple(value for value in values if value is not None)


def _latest(*times: datetime | None) -> int | None:
    return max(_micros(times), default=None)


def _earliest(*times: datetime | None) -> int | None:
    return min(_micros(times), default=None)


def _micros(times: Sequence[datetime | None]) -> list[int]:
    return [to_micros(time) for time in times if time is not None]


def _read_cursor(cursor: str, fingerprint: int) -> SearchCursor:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        decoded = msgspec.json.decode(urlsafe_b64decode(padded), type=SearchCursor)
        to_datetime(decoded.now)
    except (ValueError, TypeError, AttributeError, Damaged, msgspec.DecodeError) as error:
        raise BadQuery("cursor: invalid; pass Page.cursor unchanged") from error
    if decoded.fingerprint != fingerprint:
        raise BadQuery("cursor: belongs to another search; pass the same text and filters with it")
    return decoded
