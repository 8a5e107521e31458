"""The cost of a reply, from a built-in price table and the user's own prices.

The table is dated and part of the program; a model that is not in it has no price, rather than a
guess. The cost is computed when a reply is stored, and stored with it, so that a later table does
not change the history. Amounts are exact decimals.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from holdfast.agent.settings import Prices
from holdfast.errors import BadConfig
from holdfast.values import Usage

_MILLION: Final = Decimal(1_000_000)
_MAX_PRICE: Final = Decimal(1_000_000)  # dollars for a million tokens
# Suffixes of a name that do not make it another model.
_SAME_MODEL: Final = re.compile(r"(-chat)?(-latest|[-@]\d{4}[-\d]*)", re.ASCII)


class LongContextFactors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors on the price of a request with more than `over` input tokens."""

    over: int
    input: Decimal
    output: Decimal


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a million tokens; cache prices default to the input price."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    long: LongContextFactors | None = None

    def __post_init__(self) -> None:
        """Raise `BadConfig` unless all prices are amounts of money."""
        for name in ("input", "output", "cache_read", "cache_write"):
            amount = getattr(self, name)
            if amount is not None and not (amount.is_finite() and 0 <= amount <= _MAX_PRICE):
                raise BadConfig(f"{name}: must be a price per million tokens, 0 or more")


class DatedPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices as of a date."""

    date: date
    prices: dict[str, Price]


@cache
def price_table() -> DatedPrices:
    """Return the built-in price table."""
    text = resources.files("holdfast.agent").joinpath("prices.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text, parse_float=Decimal), DatedPrices)


def cost_function(overrides: Mapping[str, Price] | None = None) -> Prices:
    """Return a function that computes the cost of a reply; `overrides` precede the table."""
    own = dict(overrides or {})

    def compute(model: str, usage: Usage) -> Decimal | None:
        price = find_price(model, own) or find_price(model, price_table().prices)
        return None if price is None else cost(price, usage)

    return compute


def find_price(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return a model's price, by the longest matching name; `None` if there is none.

    A router's prefix (`openai/gpt-5`) is ignored, unless the prefixed name has a price.
    """
    known = prices.get(model)
    if known is not None:
        return known
    name = model.lower().rpartition("/")[2]
    fitting = [key for key in prices if name.startswith(key) and _is_same(name[len(key) :])]
    return prices[max(fitting, key=len)] if fitting else None


def _is_same(rest: str) -> bool:
    return not rest or _SAME_MODEL.fullmatch(rest) is not None


def cost(price: Price, usage: Usage) -> Decimal:
    """Return the cost of a reply; cached tokens are counted in `usage.input`."""
    times, out = Decimal(1), Decimal(1)
    if price.long is not None and usage.input > price.long.over:
        times, out = price.long.input, price.long.output
    read = price.input if price.cache_read is None else price.cache_read
    write = price.input if price.cache_write is None else price.cache_write
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    sent = fresh * price.input + usage.cache_read * read + usage.cache_write * write
    return (sent * times + usage.output * price.output * out) / _MILLION
