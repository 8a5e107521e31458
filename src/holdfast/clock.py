"""Clocks, and times as they are stored.

Times are UTC. They never order a history: order is `seq`. A wall clock can be set at any moment, so
what must not end early or late (a lease) is measured by the monotonic one where that is possible.
Code that needs the time takes a `Clock` as an argument, so that a test can set it.
"""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

from holdfast.errors import Damaged

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Clock(Protocol):
    """A wall clock and a monotonic clock, both in microseconds."""

    def micros(self) -> int:
        """Return the current time since 1970, UTC."""
        ...

    def monotonic(self) -> int:
        """Return a time that no setting of the clock changes, the same in all processes of a boot.

        Processes in another time namespace are the exception.
        """
        ...


class SystemClock:
    """The machine's clocks."""

    def micros(self) -> int:
        """Return the current time since 1970, UTC."""
        return time.time_ns() // 1_000

    def monotonic(self) -> int:
        """Return the time since boot, without what the machine was suspended."""
        return time.monotonic_ns() // 1_000


def to_datetime(micros: int) -> datetime:
    """Return stored microseconds as an aware UTC datetime, exactly.

    Raise `Damaged` for a time outside the years 1 to 9999.
    """
    try:
        return EPOCH + micros * _MICROSECOND
    except OverflowError as error:
        raise _impossible_time(micros) from error


def to_micros(value: datetime) -> int:
    """Return an aware datetime as microseconds since 1970, exactly."""
    return (value - EPOCH) // _MICROSECOND


def to_day(number: int) -> date:
    """Return the date of a number of days since 1970, by which usage is counted.

    Raise `Damaged` for a day outside the years 1 to 9999.
    """
    try:
        return EPOCH.date() + timedelta(days=number)
    except OverflowError as error:
        raise _impossible_time(number) from error


def _impossible_time(number: int) -> Damaged:
    return Damaged(f"the store contains {number} as a time, which is outside the years 1 to 9999.")
