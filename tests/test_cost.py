"""Money and tokens are counted exactly, in whatever order they come."""

from datetime import date
from decimal import Decimal
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cost import from_pico, sum_by_day, to_pico
from holdfast.values import DayUsage, Usage

_spent = st.tuples(
    st.integers(0, 3),
    st.none() | st.sampled_from(["large", "small"]),
    st.builds(Usage, *[st.integers(0, 2**40)] * 5),
    st.integers(0, 10**18),
)


@pytest.mark.parametrize(
    ("cost", "pico"),
    [
        (None, 0),
        (Decimal(0), 0),
        (Decimal("0.000000000001"), 1),
        (Decimal("1E-12"), 1),
        (Decimal("0.10"), 10**11),
        (Decimal(10_000), 10**16),
    ],
)
def test_money_is_counted_in_whole_units(cost: Decimal | None, pico: int) -> None:
    """One unit is a millionth of a millionth."""
    assert to_pico(cost) == pico
    assert from_pico(pico) == (cost or 0)


@given(st.integers(0, 10**16))
def test_no_unit_is_lost(pico: int) -> None:
    """Conversion round-trips, for every cost that one message may have."""
    assert to_pico(from_pico(pico)) == pico


@given(st.lists(_spent, max_size=20), st.randoms())
def test_sums_by_day_are_exact_in_any_order(
    spent: list[tuple[int, str | None, Usage, int]], chance: Random
) -> None:
    """One row for each day and model, with the sum."""
    found = sum_by_day(spent)
    for each in found:
        mine = [s for s in spent if (date(1970, 1, 1 + s[0]), s[1]) == (each.day, each.model)]
        assert mine
        assert each.usage == sum((usage for _, _, usage, _ in mine), Usage())
        assert each.cost == from_pico(sum(cost for *_, cost in mine))
    assert len({(each.day, each.model) for each in found}) == len(found)
    assert len(found) == len({(day, model) for day, model, _, _ in spent})
    shuffled = list(spent)
    chance.shuffle(shuffled)
    assert set(sum_by_day(shuffled)) == set(found)


def test_days_come_in_order() -> None:
    """Sorted by day and model, rows without a model first, for any order of the input."""
    spent = [(1, "m", Usage(9), 0), (1, None, Usage(1), 5), (0, "m", Usage(2), 0)]
    spent.append((1, None, Usage(3), 10**12))
    assert sum_by_day(spent) == (
        DayUsage(date(1970, 1, 1), "m", Usage(2), Decimal(0)),
        DayUsage(date(1970, 1, 2), None, Usage(4), Decimal("1.000000000005")),
        DayUsage(date(1970, 1, 2), "m", Usage(9), Decimal(0)),
    )
