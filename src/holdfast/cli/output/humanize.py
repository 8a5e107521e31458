"""Times, sizes, counts and costs as short texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

_STEPS: Final = (
    (timedelta(days=1), timedelta(hours=1), "h"),
    (timedelta(hours=1), timedelta(minutes=1), "min"),
    (timedelta(minutes=1), timedelta(seconds=1), "s"),
)
_ONE_MONTH: Final = timedelta(days=30)
_KILO: Final = 1000
_ONE_CENT: Final = Decimal("0.01")
_SHORT_ID_CHARS: Final = 8
_RELATIONS: Final = {
    "fork": "forked from",
    "continue": "continues",
    "reset": "started again after",
    "delegate": "delegated by",
    "import": "imported by",
}


def ago(when: datetime, now: datetime | None = None) -> str:
    """Return how long ago something happened, such as `5 min ago`; after a month, the date."""
    passed = (now or datetime.now(UTC)) - when
    if passed >= _ONE_MONTH:
        return f"{_local(when):%Y-%m-%d}"
    if passed >= timedelta(days=1):
        return f"{passed.days} d ago"
    for limit, unit, name in reversed(_STEPS):
        if timedelta(seconds=1) <= passed < limit:
            return f"{passed // unit} {name} ago"
    return "just now"


def local_time(when: datetime) -> str:
    """Return a date and time in the local time zone."""
    return f"{_local(when):%Y-%m-%d %H:%M:%S}"


def _local(when: datetime) -> datetime:
    try:
        return when.astimezone()
    except OverflowError:  # on the first day of the year 1, or the last of 9999
        return when


def duration(milliseconds: int) -> str:
    """Return a duration: `350 ms`, `2.5 s`, `1.2 min`."""
    if milliseconds < _KILO:
        return f"{milliseconds} ms"
    seconds = milliseconds / _KILO
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004


def count(number: int, what: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 message`, `2 messages`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {several or f'{what}s'}"


def size(number: int) -> str:
    """Return a size in bytes with a decimal unit: `1 byte`, `2.5 MB`."""
    if number < _KILO:
        return count(number, "byte")
    amount = number / _KILO
    for unit in ("kB", "MB"):
        if amount < _KILO:
            return f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} GB"


def compact_number(number: int) -> str:
    """Return a large number in a few characters: `950`, `12.3k`, `4.0M`."""
    if number < _KILO:
        return str(number)
    scaled = number / _KILO
    for unit in ("k", "M"):
        # A value that would be rounded up to 1000.0 takes the next unit.
        if scaled < _KILO - 0.05:
            return f"{scaled:.1f}{unit}"
        scaled /= _KILO
    return f"{scaled:.1f}G"


def money(cost: Decimal) -> str:
    """Return a cost with two decimals, or four if it is less than a cent."""
    if not cost:
        return "0"
    if abs(cost) >= _ONE_CENT:
        return f"{cost:,.2f}"
    return f"{cost:.4f}" if abs(cost) >= _ONE_CENT / 100 else "<0.0001"


def short_id(id: str) -> str:
    """Return the first characters of an id, enough to identify a session."""
    return id[:_SHORT_ID_CHARS]


def shorten(text: str, most: int = 160) -> str:
    """Return a text in one line, truncated to `most` characters."""
    line = " ".join(text[: most * 8].split())
    cut = len(line) > most or len(text) > most * 8
    return f"{line[:most].rstrip()}…" if cut else line


def describe_relation(parent: str, relation: str | None) -> str:
    """Return how a session is related to its parent: `forked from 7f3a`."""
    return f"{_RELATIONS.get(relation or '', 'from')} {parent}"


def describe_move(reason: str, seq: int) -> str:
    """Return what opened a branch: `went back to 6 (undo)`."""
    if reason == "clear" or not seq:
        return f"started again ({reason})"
    if reason == "replace":
        return f"replaced what came after {seq}"
    return f"{'returned' if reason == 'redo' else 'went back'} to {seq} ({reason})"
