"""What each provider demands of the messages it is sent, as far as the providers differ."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.records import Provider


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's rules.

    `source`: whose own pieces (`Raw`) are sent.
    `alternate`: user and assistant take turns, tool results are the user's, and the user begins.
    `system_apart`: instructions are not among the messages.
    `marks_errors`: a result cannot say that it is an error but in its words.
    """

    source: Provider
    alternate: bool
    system_apart: bool
    marks_errors: bool
    call_id: re.Pattern[str]
    name: re.Pattern[str]
    longest_name: int


_WORD: Final = re.compile(r"[a-zA-Z0-9_-]+")

RULES: Final[dict[Provider, Rules]] = {
    "openai": Rules(
        source="openai",
        alternate=False,
        system_apart=False,
        marks_errors=True,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,40}"),
        name=_WORD,
        longest_name=64,
    ),
    "openai-responses": Rules(
        source="openai-responses",
        alternate=False,
        system_apart=False,
        marks_errors=True,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=_WORD,
        longest_name=64,
    ),
    "anthropic": Rules(
        source="anthropic",
        alternate=True,
        system_apart=True,
        marks_errors=False,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=_WORD,
        longest_name=128,
    ),
    "gemini": Rules(
        source="gemini",
        alternate=True,
        system_apart=True,
        marks_errors=False,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]*"),
        longest_name=64,
    ),
}
