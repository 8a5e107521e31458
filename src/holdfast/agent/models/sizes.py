"""How much the models of the known families take, as far as it is published.

A table like this is never complete and grows old: what it says is a first guess. The loop learns
from a provider that refuses a window, and whoever knows better says so when making the model. The
guesses for what is unknown are low, since too small a window only forgets a little earlier.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class Size(msgspec.Struct, frozen=True):
    """How many tokens fit into request and reply together, and how many of them into the reply."""

    context: int
    output: int


_UNKNOWN: Final = Size(128_000, 16_384)
# Servers on this machine give a model much less than it could take, and cut silently what is more.
_AT_HOME: Final = Size(8_192, 4_096)
_FAMILIES: Final = tuple(
    (re.compile(pattern), Size(context, output))
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


def size_of(name: str, *, at_home: bool = False) -> Size:
    """Guess the size of a model by its name; one `at_home` is served on this machine."""
    if at_home:
        return _AT_HOME
    family = _folded(name)
    return next((size for pattern, size in _FAMILIES if pattern.match(family)), _UNKNOWN)


def thinks(name: str) -> bool:
    """Return whether a model of OpenAI's thinks first, and so counts its tokens in another way."""
    return re.match(r"o\d|gpt-([5-9]|oss)|codex", _folded(name)) is not None


def _folded(name: str) -> str:
    """Fold the spellings of a name: who sells it, dots or dashes, capitals."""
    last = name.lower().rpartition("/")[2]
    return re.sub(r"^(us|eu|apac|global)?\.?anthropic\.", "", last).replace(".", "-")
