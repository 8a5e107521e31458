"""What each provider demands of the messages it is sent, as far as the providers differ."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.records import Provider


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's rules.

    `alternate`: user and assistant take turns, tool results are the user's, and the user begins.
    `system_apart`: instructions are not among the messages.
    """

    alternate: bool
    system_apart: bool
    call_id: re.Pattern[str]
    name: re.Pattern[str]
    longest_name: int


_WORD: Final = re.compile(r"[a-zA-Z0-9_-]+")

RULES: Final[dict[Provider, Rules]] = {
    "openai": Rules(
        alternate=False,
        system_apart=False,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,40}"),
        name=_WORD,
        longest_name=64,
    ),
    "openai-responses": Rules(
        alternate=False,
        system_apart=False,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=_WORD,
        longest_name=64,
    ),
    "anthropic": Rules(
        alternate=True,
        system_apart=True,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=_WORD,
        longest_name=128,
    ),
    "gemini": Rules(
        alternate=True,
        system_apart=True,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]*"),
        longest_name=64,
    ),
}
