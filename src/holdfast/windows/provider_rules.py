"""The providers' rules for the messages they are sent, where they differ."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.values import Provider


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's rules.

    `source`: the provider whose `Raw` pieces are sent.
    `alternates_roles`: user and assistant alternate, the user begins, and tool results count as
    the user's.
    `separate_system`: instructions are sent in a field of their own, not as a message.
    `errors_in_text`: a result has no error flag, so its text must say that it is an error.
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
