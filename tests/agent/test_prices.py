"""What a reply cost: the table, the user's own prices, and exact sums."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest

from holdfast.agent import prices
from holdfast.agent.models.model_choice import DEFAULTS
from holdfast.agent.prices import LongContextFactors, Price
from holdfast.errors import BadConfig
from holdfast.values import Usage

_PRICES = {
    "some": Price(input=Decimal(1), output=Decimal(2)),
    "some-mini": Price(input=Decimal(3), output=Decimal(4)),
    "router/some": Price(input=Decimal(5), output=Decimal(6)),
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("some", "some"),
        ("some-2026-01-31", "some"),
        ("some-20260131", "some"),
        ("some@20260131", "some"),
        ("some-latest", "some"),
        ("some-chat-latest", "some"),
        ("Some-2026-01-31", "some"),
        ("some-mini", "some-mini"),
        ("some-mini-2026-01-31", "some-mini"),
        ("other/some-mini", "some-mini"),
        ("router/some", "router/some"),
        ("some-pro", None),
        ("some-5", None),
        ("some5", None),
        ("awesome", None),
        ("", None),
    ],
)
def test_a_price_is_for_a_name_and_its_dates(name: str, found: str | None) -> None:
    """Another variant may cost much more: it has a price of its own, or none."""
    assert prices.find_price(name, _PRICES) == (None if found is None else _PRICES[found])


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(), "0"),
        (Usage(input=1_000_000), "2"),
        (Usage(output=1_000_000), "8"),
        (Usage(input=1, output=1), "0.00001"),
        (Usage(input=1000, cache_read=600, cache_write=300), "0.001145"),
        (Usage(output=1000, reasoning=900), "0.008"),
        (Usage(input=10, cache_read=20), "0.000004"),
    ],
)
def test_costs_are_exact(usage: Usage, cost: str) -> None:
    """Cached tokens are part of the input and have a price of their own; thoughts are output."""
    price = Price(
        input=Decimal(2), output=Decimal(8), cache_read=Decimal("0.2"), cache_write=Decimal("2.75")
    )
    assert prices.cost(price, usage) == Decimal(cost)


def test_without_a_price_of_its_own_the_cache_costs_what_input_does() -> None:
    """No discount is guessed."""
    price = Price(input=Decimal(2), output=Decimal(8))
    assert prices.cost(price, Usage(input=1000, cache_read=600)) == Decimal("0.002")


def test_a_long_request_costs_more() -> None:
    """All of it, once it is over the limit."""
    price = Price(
        input=Decimal(2),
        output=Decimal(8),
        long=LongContextFactors(1000, Decimal(2), Decimal("1.5")),
    )
    assert prices.cost(price, Usage(input=1000, output=10)) == Decimal("0.00208")
    assert prices.cost(price, Usage(input=1001, output=10)) == Decimal("0.004124")


def test_the_users_prices_come_first() -> None:
    """By the same rules; what neither knows has no cost."""
    reckon = prices.cost_function({"gpt-4o": Price(input=Decimal(0), output=Decimal(1))})
    used = Usage(input=1_000_000, output=1_000_000)
    assert reckon("gpt-4o-2024-11-20", used) == 1
    assert reckon("gpt-4o-mini", used) == Decimal("0.75")
    assert reckon("SmolLM2-135M-Instruct.Q4_1", used) is None


@pytest.mark.parametrize("amount", ["-1", "NaN", "Infinity", "1000001"])
def test_what_is_no_price_is_refused(amount: str) -> None:
    """Wherever it comes from."""
    with pytest.raises(BadConfig, match="cache_read: must be a price"):
        Price(input=Decimal(1), output=Decimal(1), cache_read=Decimal(amount))


def test_the_table_is_sound() -> None:
    """It has a date; no price is zero, output costs more than input, and a cache hit less."""
    table = prices.price_table()
    assert table.date.year >= 2026
    for name, price in table.prices.items():
        assert name == name.lower()
        assert 0 < price.input < price.output, name
        assert price.cache_read is None or price.cache_read < price.input, name
        assert price.cache_write is None or price.cache_write > price.input, name


def test_the_default_models_have_a_price() -> None:
    """Whoever has only a key sees what it costs."""
    for name in DEFAULTS.values():
        assert prices.find_price(name, prices.price_table().prices) is not None


def test_a_key_that_is_unknown_is_refused() -> None:
    """A table with a misspelt key would be silently wrong."""
    with pytest.raises(msgspec.ValidationError, match="cache_raed"):
        msgspec.convert({"input": 1, "output": 1, "cache_raed": 1}, Price)
