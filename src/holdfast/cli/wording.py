"""How times, sizes and counts are said to people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

_STEPS: Final = (
    (timedelta(days=1), timedelta(hours=1), "h"),
    (timedelta(hours=1), timedelta(minutes=1), "min"),
    (timedelta(minutes=1), timedelta(seconds=1), "s"),
)
_A_MONTH: Final = timedelta(days=30)
_KILO: Final = 1000
_A_CENT: Final = Decimal("0.01")
_SHORT_ID: Final = 8
_RELATIONS: Final = {
    "fork": "forked from",
    "continue": "continues",
    "reset": "begun anew after",
    "delegate": "delegated by",
    "import": "imported by",
}


def ago(when: datetime, now: datetime | None = None) -> str:
    """Return how long ago something was; after a month, on which day."""
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
    """Return when something was, in local time."""
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def duration(milliseconds: int) -> str:
    """Return how long something took."""
    if milliseconds < _KILO:
        return f"{milliseconds} ms"
    seconds = milliseconds / _KILO
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004


def count(number: int, what: str, several: str | None = None) -> str:
    """Return how many of something: `1 message`, `2 messages`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {several or f'{what}s'}"


def size(number: int) -> str:
    """Return how many bytes."""
    if number < _KILO:
        return count(number, "byte")
    amount = number / _KILO
    for unit in ("kB", "MB"):
        if amount < _KILO:
            return f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} GB"


def amount(number: int) -> str:
    """Say a large number in a few characters: `950`, `12.3k`, `4.0M`."""
    if number < _KILO:
        return str(number)
    scaled = number / _KILO
    for unit in ("k", "M"):
        # What would be rounded up to a thousand of this belongs to the next.
        if scaled < _KILO - 0.05:
            return f"{scaled:.1f}{unit}"
        scaled /= _KILO
    return f"{scaled:.1f}G"


def money(cost: Decimal) -> str:
    """Return what something cost, a small amount more exactly."""
    if not cost:
        return "0"
    if abs(cost) >= _A_CENT:
        return f"{cost:,.2f}"
    return f"{cost:.4f}" if abs(cost) >= _A_CENT / 100 else "<0.0001"


def short(id: str) -> str:
    """Return as much of an id as names a session."""
    return id[:_SHORT_ID]


def words(text: str, most: int = 160) -> str:
    """Say a text in one line, cut where it is long."""
    line = " ".join(text[: most * 8].split())
    cut = len(line) > most or len(text) > most * 8
    return f"{line[:most].rstrip()}…" if cut else line


def relation_to(parent: str, relation: str | None) -> str:
    """Return how a session came from another."""
    return f"{_RELATIONS.get(relation or '', 'from')} {parent}"


def moved(reason: str, seq: int) -> str:
    """Return how a session came to be on another branch: `went back to 6 (undo)`."""
    if reason == "clear" or not seq:
        return f"began anew ({reason})"
    if reason == "replace":
        return f"replaced what came behind {seq}"
    return f"{'returned' if reason == 'redo' else 'went back'} to {seq} ({reason})"
