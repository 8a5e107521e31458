"""What a reply cost: a table of prices, and what the user says instead.

The table has a date and is part of the program; what it does not know has no price, rather than a
guess. A cost is reckoned when a reply is stored and kept with it, so that a later table changes no
history. Amounts are decimal and exact.
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
from holdfast.records import Usage

_MILLION: Final = Decimal(1_000_000)
_MOST: Final = Decimal(1_000_000)  # dollars for a million tokens
# What may stand behind a name without making it another model.
_SAME_MODEL: Final = re.compile(r"(-chat)?(-latest|[-@]\d{4}[-\d]*)", re.ASCII)


class Long(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of more than `over` tokens costs so many times as much."""

    over: int
    input: Decimal
    output: Decimal


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a million tokens cost. Without a price of its own, the cache costs what input does."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    long: Long | None = None

    def __post_init__(self) -> None:
        """Refuse what is no amount of money."""
        for name in ("input", "output", "cache_read", "cache_write"):
            amount = getattr(self, name)
            if amount is not None and not (amount.is_finite() and 0 <= amount <= _MOST):
                raise BadConfig(f"{name}: an amount for a million tokens, 0 or more")


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices as they were at a date."""

    date: date
    prices: dict[str, Price]


@cache
def table() -> Table:
    """Return the table that is part of the program."""
    text = resources.files("holdfast.agent").joinpath("prices.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text, parse_float=Decimal), Table)


def reckoner(overrides: Mapping[str, Price] | None = None) -> Prices:
    """Return what reckons the cost of a reply; `overrides` come before the table."""
    own = dict(overrides or {})

    def reckon(model: str, usage: Usage) -> Decimal | None:
        price = find(model, own) or find(model, table().prices)
        return None if price is None else cost(price, usage)

    return reckon


def find(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Find a model's price, by the longest name that is its own.

    A router's part before the name (`openai/gpt-5`) is passed over, unless a price is given for it.
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
    """Reckon what was used; cached tokens are part of the input."""
    times, out = Decimal(1), Decimal(1)
    if price.long is not None and usage.input > price.long.over:
        times, out = price.long.input, price.long.output
    read = price.input if price.cache_read is None else price.cache_read
    write = price.input if price.cache_write is None else price.cache_write
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    sent = fresh * price.input + usage.cache_read * read + usage.cache_write * write
    return (sent * times + usage.output * price.output * out) / _MILLION
