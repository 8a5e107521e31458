"""Time filters: a `datetime`, or a text such as `7d`, `2026-01-31`, `2026-01-31T18:00`.

The texts are those that a search query accepts. `since` is the start of the day, month or year that
is named, `until` its end: `until=2026-01` includes January 31st.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, TypeAlias

from holdfast.errors import BadQuery

TimeBound: TypeAlias = datetime | str
Bound: TypeAlias = Literal["since", "until"]


def parse_time(value: TimeBound | None, bound: Bound, now: datetime) -> datetime | None:
    """Return a bound in UTC; a text is relative to `now` and means days of its time zone."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise BadQuery(f"{bound}: has no time zone; use datetime.now(UTC)")
        return value.astimezone(UTC)
    found = _parse_text(value, bound, now) if isinstance(value, str) else None
    if found is None:
        raise BadQuery(
            f"{bound}: expected a time such as 7d, 12h, 2026-01, 2026-01-31 or 2026-01-31T18:00"
        )
    return found.astimezone(UTC)


def _parse_text(text: str, bound: Bound, now: datetime) -> datetime | None:
    from holdfast.search.query import parse  # noqa: PLC0415 - few lists are bounded by texts

    if any(character.isspace() or character == '"' for character in text):
        return None
    filters = parse(f"{bound}:{text}", now=now).filters
    return filters.since if bound == "since" else filters.until
