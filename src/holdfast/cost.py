"""Sums of cost and usage.

Costs are integers in units of 10⁻¹², so that sums are exact and do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from holdfast.clock import to_day
from holdfast.validation import MONEY_CONTEXT, to_cost
from holdfast.values import DayUsage, Usage


def to_pico(cost: Decimal | None) -> int:
    """Return a cost in units of 10⁻¹²; 0 for `None`."""
    return 0 if cost is None else int(to_cost(cost).scaleb(12, MONEY_CONTEXT))


def from_pico(cost: int) -> Decimal:
    """Return a cost in units of 10⁻¹² as a decimal number."""
    return MONEY_CONTEXT.normalize(Decimal(cost).scaleb(-12, MONEY_CONTEXT)) if cost else Decimal(0)


def sum_by_day(spent: Iterable[tuple[int, str | None, Usage, int]]) -> tuple[DayUsage, ...]:
    """Return sums of (day, model, usage, cost) by day and model, those without a model first."""
    sums: dict[tuple[int, str | None], tuple[Usage, int]] = {}
    for day, model, usage, cost in spent:
        so_far, price = sums.get((day, model), (Usage(), 0))
        sums[day, model] = (so_far + usage, price + cost)
    return tuple(
        DayUsage(to_day(day), model, usage, from_pico(cost))
        for (day, model), (usage, cost) in sorted(sums.items(), key=_sort_key)
    )


def _sort_key(summed: tuple[tuple[int, str | None], object]) -> tuple[int, bool, str]:
    day, model = summed[0]
    return day, model is not None, model or ""
