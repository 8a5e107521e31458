"""Counting tokens exactly, where the tokenizer of a model is known and at hand.

The extra `tokens` brings the tokenizers of many models with it; nothing is ever downloaded. A model
is known by the beginning of its name, behind whatever a router puts before it (`openai/gpt-4o`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

from holdfast.tokens import Count

# The first beginning that fits decides, so the longer ones come first.
_FAMILIES: Final = (
    ("gpt-oss", "gpt-oss"),
    ("gpt-4o", "o200k_base"),
    ("gpt-4.", "o200k_base"),
    ("gpt-4", "cl100k_base"),
    ("gpt-3.5", "cl100k_base"),
    ("gpt-", "o200k_base"),
    ("chatgpt-", "o200k_base"),
    ("o1", "o200k_base"),
    ("o3", "o200k_base"),
    ("o4", "o200k_base"),
    ("llama-3", "llama3"),
    ("llama3", "llama3"),
    ("deepseek-v3", "deepseek_v3"),
    ("deepseek-r1", "deepseek_v3"),
    ("deepseek-chat", "deepseek_v3"),
    ("deepseek-reasoner", "deepseek_v3"),
    ("qwen2.5", "qwen2.5"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("gemma-2", "gemma2"),
    ("gemma2", "gemma2"),
    ("gemma-3", "gemma3"),
    ("gemma3", "gemma3"),
    ("kimi-k2", "kimi_k2"),
    ("phi-4", "phi4"),
    ("phi4", "phi4"),
)


def exact(model: str | None) -> Count | None:
    """Return what counts the tokens of a text as this model does; `None` if that is not known."""
    name = (model or "").lower().rpartition("/")[2]
    family = next((family for start, family in _FAMILIES if name.startswith(start)), None)
    return None if family is None else _tokenizer(family)


@cache
def _tokenizer(family: str) -> Count | None:
    try:
        from splintr import Tokenizer  # noqa: PLC0415 - an extra, and 37 MB
    except ImportError:
        return None
    encode = Tokenizer.from_pretrained(family).encode

    def count(text: str) -> int:
        # What is not Unicode is sent as a mark.
        return len(encode(text.encode("utf-8", "replace").decode("utf-8")))

    return count
