"""The providers' rules for the messages they are sent, where they differ."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.values import Provider


class ProviderRules(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's rules.

    `source`: the provider whose `Raw` pieces are sent.
    `alternates_roles`: user and assistant alternate, the user begins, and tool results count as
    the user's.
    `separate_system`: instructions are sent in a field of their own, not as a message.
    `errors_in_text`: a result has no error flag, so its text must say that it is an error.
    """

    source: Provider
    alternates_roles: bool
    separate_system: bool
    errors_in_text: bool
    call_id: re.Pattern[str]
    name: re.Pattern[str]
    max_name_chars: int


_WORD: Final = re.compile(r"[a-zA-Z0-9_-]+")

RULES: Final[dict[Provider, ProviderRules]] = {
    "openai": ProviderRules(
        source="openai",
        alternates_roles=False,
        separate_system=False,
        errors_in_text=True,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,40}"),
        name=_WORD,
        max_name_chars=64,
    ),
    "openai-responses": ProviderRules(
        source="openai-responses",
        alternates_roles=False,
        separate_system=False,
        errors_in_text=True,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=_WORD,
        max_name_chars=64,
    ),
    "anthropic": ProviderRules(
        source="anthropic",
        alternates_roles=True,
        separate_system=True,
        errors_in_text=False,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=_WORD,
        max_name_chars=128,
    ),
    "gemini": ProviderRules(
        source="gemini",
        alternates_roles=True,
        separate_system=True,
        errors_in_text=False,
        call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]*"),
        max_name_chars=64,
    ),
}
