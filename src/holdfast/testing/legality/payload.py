"""What the checkers share: published rules, violations of them, and reading a payload.

A payload is read without assumptions about its shape. The source of a published rule is a page of
the provider's documentation (by its title), the request types of the provider's own Python package,
or the text of the API's error, as users report it. Where the sources differ in strictness, the
stricter one counts: a window has to suit every model of its provider. Rules marked "ours" go beyond
what is published, and state why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from holdfast.values import JSON

JSONObject: TypeAlias = Mapping[str, JSON]


class Rule(msgspec.Struct, frozen=True):
    """A rule of one provider: its name in sentences, what it requires, and its source."""

    provider: str
    name: str
    says: str
    source: str


def rules_of(provider: str, *rows: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Return the rules of a provider, each given by its name, what it requires, and its source."""
    return tuple(Rule(provider, *row) for row in rows)


class RuleViolations:
    """The sentences found so far."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def add(self, rule: str, where: str, what: str) -> None:
        """Record that a rule is broken, and where."""
        self.sentences.append(f"{where}: {what} ({rule})")


def is_list(value: object) -> bool:
    """True if the value is a JSON array: a list, or a tuple used as one."""
    return isinstance(value, list | tuple)


def items_of(value: object) -> Sequence[object]:
    """Return the items of an array; for anything else an empty sequence."""
    return value if isinstance(value, list | tuple) else ()


def as_object(value: object) -> JSONObject:
    """Return the value if it is a JSON object; for anything else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects_in(value: object) -> list[tuple[int, JSONObject]]:
    """Return the objects of an array with their indexes in it."""
    return [(at, item) for at, item in enumerate(items_of(value)) if isinstance(item, Mapping)]


def is_text(value: object) -> bool:
    """True if the value is text with at least one character."""
    return isinstance(value, str) and value != ""


def text_field(thing: JSONObject, field: str) -> str:
    """Return a text field; anything but text counts as the empty text."""
    value = thing.get(field)
    return value if isinstance(value, str) else ""


def matches(pattern: re.Pattern[str], value: object) -> bool:
    """True if the value is text and the pattern matches all of it."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def format_value(value: object) -> str:
    """Format a value for a sentence, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a terminal
