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

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, get_args

from holdfast.errors import BadQuery
from holdfast.testing.legality.payload import Rule, RuleViolations
from holdfast.values import JSON, Provider

__all__ = ["PROVIDERS", "RULES", "Rule", "problems"]

PROVIDERS: Final[tuple[Provider, ...]] = get_args(Provider)
# A provider's checker is the module of its name: `check`, and its published `RULES`.
_CHECKERS: Final = {
    provider: import_module(f"{__name__}.{provider.replace('-', '_')}_rules")
    for provider in PROVIDERS
}
RULES: Final[tuple[Rule, ...]] = tuple(
    rule for checker in _CHECKERS.values() for rule in checker.RULES
)


def problems(
    provider: str, messages: Sequence[Mapping[str, JSON]], system: JSON = None
) -> list[str]:
    """Return what the provider would refuse, one sentence each; an empty list means legal."""
    if provider not in PROVIDERS:
        raise BadQuery(f"no rules are known for {provider!r}; pass one of {', '.join(PROVIDERS)}")
    found = RuleViolations()
    _CHECKERS[provider].check(found, messages, system)
    return found.sentences
