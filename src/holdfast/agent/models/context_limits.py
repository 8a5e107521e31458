"""Context limits of the known model families, as far as they are published.

Such a table is never complete and becomes outdated: its values are a first guess. The loop lowers
them when a provider rejects a window, and callers can pass exact ones to the model. Guesses for
unknown models are low, since too small a window only forgets a little earlier.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class ContextLimits(msgspec.Struct, frozen=True):
    """The most tokens that request and reply may have together, and the reply alone."""

    context: int
    output: int


_UNKNOWN: Final = ContextLimits(128_000, 16_384)
# Local servers give a model much less context than it supports, and truncate silently.
_LOCAL_SERVER: Final = ContextLimits(8_192, 4_096)
_FAMILIES: Final = tuple(
    (re.compile(pattern), ContextLimits(context, output))
    for pattern, context, output in (
        # OpenAI
        (r"gpt-[5-9].*-chat", 128_000, 16_384),
        (r"gpt-5-[4-9]-(mini|nano)", 400_000, 128_000),
        (r"gpt-(5-[4-9]|[6-9])", 1_050_000, 128_000),
        (r"gpt-5", 400_000, 128_000),
        (r"gpt-4-1(?!106)", 1_047_576, 32_768),
        (r"gpt-4o|chatgpt-4o|gpt-audio", 128_000, 16_384),
        (r"gpt-4-(turbo|1106|0125|vision)", 128_000, 4_096),
        (r"gpt-4-32k", 32_768, 4_096),
        (r"gpt-4", 8_192, 4_096),
        (r"gpt-3-5", 16_385, 4_096),
        (r"gpt-oss", 131_072, 32_768),
        (r"o1-(mini|preview)", 128_000, 32_768),
        (r"o\d|codex-mini", 200_000, 100_000),
        # Anthropic
        (r"claude-(opus|sonnet)-4-[6-9]", 1_000_000, 64_000),
        (r"claude-(opus|sonnet|fable|mythos)-([5-9]|preview)", 1_000_000, 128_000),
        (r"claude-opus-4-5|claude-(sonnet|haiku)-[4-9]|claude-3-7", 200_000, 64_000),
        (r"claude-opus-4|claude-4-opus", 200_000, 32_000),
        (r"claude-4-sonnet", 200_000, 64_000),
        (r"claude-3-5", 200_000, 8_192),
        (r"claude-(3|2-1)", 200_000, 4_096),
        (r"claude-(2|instant)", 100_000, 4_096),
        (r"claude", 200_000, 32_000),
        # Others
        (r"gemini-1-5", 1_048_576, 8_192),
        (r"gemini", 1_048_576, 65_536),
        (r"deepseek", 128_000, 8_192),
        (r"(kimi|glm|grok|qwen3|minimax)", 128_000, 16_384),
        (r"(llama-?3-[1-9]|mistral|ministral|codestral|command)", 128_000, 8_192),
        (r"(llama|gemma|phi|qwen)", 8_192, 4_096),
    )
)


def limits_for(name: str, *, is_local: bool = False) -> ContextLimits:
    """Guess the limits of a model by its name; `is_local`: it is served on this machine."""
    if is_local:
        return _LOCAL_SERVER
    family = _normalized_name(name)
    return next((size for pattern, size in _FAMILIES if pattern.match(family)), _UNKNOWN)


def is_reasoning_model(name: str) -> bool:
    """True for OpenAI's reasoning models, which take another name for the output limit."""
    return re.match(r"o\d|gpt-([5-9]|oss)|codex", _normalized_name(name)) is not None


def _normalized_name(name: str) -> str:
    """Return a model's name without a vendor's prefix, in lower case, with dashes for dots."""
    last = name.lower().rpartition("/")[2]
    return re.sub(r"^(us|eu|apac|global)?\.?anthropic\.", "", last).replace(".", "-")
