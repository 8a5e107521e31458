"""Whether a provider would accept a payload, by its published rules.

`problems(provider, messages, system)` reads nothing but the payload and returns one sentence for
every broken rule, with its location and the rule's name; an empty list means legal. The checkers
are written from what the providers publish (see `RULES`, with the source of each rule) and share no
code with what builds windows, so that the two can disagree.

What depends on more than the payload cannot be checked here: whether a signature is genuine,
whether a model accepts images or an assistant's message at the end, and which reasoning item
belongs to a Responses item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from holdfast.errors import BadQuery
from holdfast.testing.legality import (
    anthropic_rules,
    gemini_rules,
    openai_chat_rules,
    openai_responses_rules,
)
from holdfast.testing.legality.payload import RuleViolations
from holdfast.testing.legality.published_rules import RULES, Rule
from holdfast.values import JSON

__all__ = ["PROVIDERS", "RULES", "Rule", "problems"]

_Check: TypeAlias = Callable[[RuleViolations, Sequence[Mapping[str, JSON]], JSON], None]

_CHECKS: Final[Mapping[str, _Check]] = {
    "openai": openai_chat_rules.check,
    "openai-responses": openai_responses_rules.check,
    "anthropic": anthropic_rules.check,
    "gemini": gemini_rules.check,
}
PROVIDERS: Final = tuple(_CHECKS)


def problems(
    provider: str, messages: Sequence[Mapping[str, JSON]], system: JSON = None
) -> list[str]:
    """Return what the provider would refuse, one sentence each; an empty list means legal."""
    check = _CHECKS.get(provider)
    if check is None:
        raise BadQuery(f"no rules are known for {provider!r}; pass one of {', '.join(PROVIDERS)}")
    found = RuleViolations()
    check(found, messages, system)
    return found.sentences
