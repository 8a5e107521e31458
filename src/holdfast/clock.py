"""The one clock.

Times are UTC. Nothing orders a history by them: order is `seq`. Whoever needs the time takes a
`Clock` as an argument, so that a test can set it.
"""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Clock(Protocol):
    """Something that tells the time in microseconds since 1970, UTC."""

    def micros(self) -> int:
        """Return the current time."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def micros(self) -> int:
        """Return the current time."""
        return time.time_ns() // 1_000


def to_datetime(micros: int) -> datetime:
    """Turn stored microseconds into an aware UTC datetime, exactly."""
    return EPOCH + timedelta(microseconds=micros)


def to_micros(moment: datetime) -> int:
    """Turn an aware datetime into microseconds, exactly."""
    return (moment - EPOCH) // _MICROSECOND


def to_day(number: int) -> date:
    """Turn days since 1970, as usage is counted by, into a date."""
    return EPOCH.date() + timedelta(days=number)
