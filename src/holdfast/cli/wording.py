"""How times, sizes and counts are said to people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_STEPS: Final = (
    (timedelta(days=1), timedelta(hours=1), "h"),
    (timedelta(hours=1), timedelta(minutes=1), "min"),
    (timedelta(minutes=1), timedelta(seconds=1), "s"),
)
_A_MONTH: Final = timedelta(days=30)
_KILO: Final = 1000


def ago(when: datetime, now: datetime | None = None) -> str:
    """Say how long ago something was; after a month, on which day."""
    passed = (now or datetime.now(UTC)) - when
    if passed >= _A_MONTH:
        return f"{when.astimezone():%Y-%m-%d}"
    if passed >= timedelta(days=1):
        return f"{passed.days} d ago"
    for limit, unit, name in reversed(_STEPS):
        if timedelta(seconds=1) <= passed < limit:
            return f"{passed // unit} {name} ago"
    return "just now"


def moment(when: datetime) -> str:
    """Say when something was, in local time."""
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def duration(milliseconds: int) -> str:
    """Say how long something took."""
    if milliseconds < _KILO:
        return f"{milliseconds} ms"
    seconds = milliseconds / _KILO
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004


def count(number: int, what: str) -> str:
    """Say how many of something: `1 message`, `2 messages`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def size(number: int) -> str:
    """Say how many bytes."""
    if number < _KILO:
        return count(number, "byte")
    amount = number / _KILO
    for unit in ("kB", "MB"):
        if amount < _KILO:
            return f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} GB"
