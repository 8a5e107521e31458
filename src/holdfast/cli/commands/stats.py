"""`holdfast stats`: how much a store holds, how it grew, and what the models cost.

Days are drawn as a row of bars, one per day, or one per several days if the terminal is narrow.
Days are UTC, as in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

import click
import msgspec

from holdfast.cli.command import command
from holdfast.cli.output.humanize import compact_number, count, money, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, Span, TableColumn, screen
from holdfast.cli.store_access import open_readonly
from holdfast.values import DayUsage, ModelUsage, Stats, Usage

_BARS: Final = "▁▂▃▄▅▆▇█"
_EMPTY_BAR: Final = "·"
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LABEL_CELLS: Final = 11  # cells before a row of bars
_TOTAL_CELLS: Final = 16  # and after it
_BAR_CELLS: Final = 20
_MIN_BARS: Final = 7


@command(
    "holdfast stats",
    "holdfast stats --days 7",
    "holdfast stats --json",
)
@click.option(
    "--days",
    default=30,
    type=click.IntRange(min=1, max=36_500),
    show_default=True,
    help="How many days to show.",
)
def stats(*, days: int, store: str | None, as_json: bool) -> None:
    """Show how much a store holds, and what it cost.

    Growth counts the sessions created on a day, and the messages they hold now. Usage and cost are
    those of all model calls on that day, in all sessions.
    """
    with open_readonly(store) as opened:
        found = with_days_since(opened.stats(), datetime.now(UTC).date() - timedelta(days=days - 1))
        url = opened.url
    models = by_model(found.days)
    if as_json:
        print_document({"store": url, **msgspec.structs.asdict(found), "models": models})
        return
    out = screen()
    _draw_amounts(out, url, found)
    _draw_days(out, found, days)
    _draw_models(out, models)


# ------------------------------------------------------------------------------------ to count


def with_days_since(found: Stats, first: date) -> Stats:
    """Return the statistics without the days before `first`."""
    return msgspec.structs.replace(
        found,
        growth=tuple(one for one in found.growth if one.day >= first),
        days=tuple(one for one in found.days if one.day >= first),
    )


def by_model(days: Iterable[DayUsage]) -> list[ModelUsage]:
    """Return usage and cost per model, the most expensive first."""
    sums: dict[str | None, tuple[Usage, Decimal]] = {}
    for one in days:
        usage, cost = sums.get(one.model, (Usage(), Decimal(0)))
        sums[one.model] = usage + one.usage, cost + one.cost
    found = [ModelUsage(model, *spent) for model, spent in sums.items()]
    return sorted(found, key=lambda one: (-one.cost, -one.usage.total, one.model or ""))


def sparkline(values: Mapping[date, float], days: Sequence[Sequence[date]]) -> str:
    """Return a sparkline: one bar per group of days, scaled to the highest."""
    sums = [sum(values.get(day, 0) for day in group) for group in days]
    highest = max(sums)
    return "".join(
        _BARS[min(int(one / highest * len(_BARS)), len(_BARS) - 1)] if one else _EMPTY_BAR
        for one in sums
    )


def group_days(today: date, days: int, most: int) -> list[list[date]]:
    """Divide the days up to today into at most `most` groups of equal length."""
    length = -(-days // most)
    whole = -(-days // length) * length
    every = [today - timedelta(days=n) for n in reversed(range(whole))]
    return [every[n : n + length] for n in range(0, whole, length)]


def horizontal_bar(share: float, width: int = _BAR_CELLS) -> str:
    """Return a horizontal bar for a share of 1, precise to an eighth of a cell."""
    eighths = round(share * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _BLOCKS[rest]).rstrip() or "▏"


# ------------------------------------------------------------------------------------- to draw


def _draw_amounts(out: Screen, url: str, found: Stats) -> None:
    facts = [
        ("store", url),
        ("sessions", f"{found.sessions:,}{_in_parentheses(found.trashed, 'in the trash')}"),
        ("messages", f"{found.messages:,} on {count(found.branches, 'branch', 'branches')}"),
        ("turns", f"{found.turns:,}{_in_parentheses(found.open_turns, 'open')}"),
        ("blobs", f"{found.blobs:,} ({size(found.blob_bytes)})"),
    ]
    if found.file_bytes is not None:
        facts.append(("on disk", size(found.file_bytes)))
    for name, value in facts:
        out.fact(f"{name:<{_LABEL_CELLS}}", value)


def _in_parentheses(number: int, what: str) -> str:
    return f" ({number:,} {what})" if number else ""


def _draw_days(out: Screen, found: Stats, days: int) -> None:
    most = max(_MIN_BARS, out.width - _LABEL_CELLS - _TOTAL_CELLS)
    spans = group_days(datetime.now(UTC).date(), days, most)
    each = "" if len(spans[0]) == 1 else f", a bar for {len(spans[0])} days"
    out.line()
    out.line((f"{spans[0][0]} to {spans[-1][-1]}{each}", "bold"))
    sessions = {one.day: one.sessions for one in found.growth}
    messages = {one.day: one.messages for one in found.growth}
    tokens: dict[date, int] = {}
    costs: dict[date, Decimal] = {}
    for one in found.days:
        tokens[one.day] = tokens.get(one.day, 0) + one.usage.total
        costs[one.day] = costs.get(one.day, Decimal(0)) + one.cost
    _draw_row(out, "sessions", sparkline(sessions, spans), compact_number(sum(sessions.values())))
    _draw_row(out, "messages", sparkline(messages, spans), compact_number(sum(messages.values())))
    _draw_row(out, "tokens", sparkline(tokens, spans), compact_number(sum(tokens.values())))
    amounts = {day: float(cost) for day, cost in costs.items()}
    _draw_row(out, "cost", sparkline(amounts, spans), money(sum(costs.values(), Decimal(0))))


def _draw_row(out: Screen, name: str, bars: str, total: str) -> None:
    out.line((f"{name:<{_LABEL_CELLS}}", "dim"), (bars, "green"), f"  {total}")


def _draw_models(out: Screen, models: Sequence[ModelUsage]) -> None:
    if not models:
        return
    out.line()
    # If no model has a price, the bars show tokens.
    costs = [float(one.cost) for one in models]
    weights = costs if any(costs) else [float(one.usage.total) for one in models]
    highest = max(weights) or 1.0
    rows: list[tuple[Span, ...]] = [
        (
            one.model or "(no model)",
            f"{one.usage.input:,}",
            f"{one.usage.output:,}",
            money(one.cost),
            (horizontal_bar(weight / highest) if weight else "", "green"),
        )
        for one, weight in zip(models, weights, strict=True)
    ]
    columns = (
        TableColumn("MODEL"),
        TableColumn("INPUT", extra=1, right=True, whole=True),
        TableColumn("OUTPUT", extra=2, right=True, whole=True),
        TableColumn("COST", right=True, whole=True),
        TableColumn("", extra=3, whole=True),
    )
    out.table(columns, rows)
