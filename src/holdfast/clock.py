"""Clocks, and times as they are stored.

Times are UTC. They never order a history: order is `seq`. Code that needs the time takes a `Clock`
as an argument, so that a test can set it.
"""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Clock(Protocol):
    """A source of the time in microseconds since 1970, UTC."""

    def micros(self) -> int:
        """Return the current time."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def micros(self) -> int:
        """Return the current time."""
        return time.time_ns() // 1_000


def to_datetime(micros: int) -> datetime:
    """Return stored microseconds as an aware UTC datetime, exactly."""
    return EPOCH + timedelta(microseconds=micros)


def to_micros(value: datetime) -> int:
    """Return an aware datetime as microseconds since 1970, exactly."""
    return (value - EPOCH) // _MICROSECOND


def to_day(number: int) -> date:
    """Return the date of a number of days since 1970, by which usage is counted."""
    return EPOCH.date() + timedelta(days=number)
