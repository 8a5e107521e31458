"""How the checkers read a payload: nothing about its shape is taken for granted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from holdfast.records import JSON

Object: TypeAlias = Mapping[str, JSON]


class Findings:
    """The sentences found so far."""

    def __init__(self) -> None:
        """Begin with none: what is not found broken is legal."""
        self.sentences: list[str] = []

    def add(self, rule: str, where: str, what: str) -> None:
        """Note that a rule is broken, and where."""
        self.sentences.append(f"{where}: {what} ({rule})")


def is_list(value: object) -> bool:
    """Tell whether it is a JSON array: a list, or the tuple a program may have made of it."""
    return isinstance(value, list | tuple)


def items_of(value: object) -> Sequence[object]:
    """Return the items of an array; of anything else none."""
    return value if isinstance(value, list | tuple) else ()


def as_object(value: object) -> Object:
    """Return a JSON object; of anything else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects_in(value: object) -> list[tuple[int, Object]]:
    """Return the objects of an array with their places in it."""
    return [(at, item) for at, item in enumerate(items_of(value)) if isinstance(item, Mapping)]


def is_text(value: object) -> bool:
    """Tell whether it is text with at least one character."""
    return isinstance(value, str) and value != ""


def word(thing: Object, field: str) -> str:
    """Read a field that holds one of some words; what is no text counts as the empty one."""
    value = thing.get(field)
    return value if isinstance(value, str) else ""


def matches(pattern: re.Pattern[str], value: object) -> bool:
    """Tell whether it is text that fits a pattern from its first to its last character."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def shown(value: object) -> str:
    """Show a value in a sentence, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a terminal
