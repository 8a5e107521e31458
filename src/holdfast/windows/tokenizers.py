"""Exact token counts, for models whose tokenizer is known and installed.

The extra `tokens` contains the tokenizers of many models; nothing is ever downloaded. A model is
recognized by the prefix of its name, without a router's prefix (`openai/gpt-4o`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

from holdfast.tokens import TokenCounter

# The first prefix that matches decides, so longer ones come first.
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


def tokenizer_for(model: str | None) -> TokenCounter | None:
    """Return the function that counts tokens as this model does; `None` if it is not known."""
    name = (model or "").lower().rpartition("/")[2]
    family = next((family for prefix, family in _FAMILIES if name.startswith(prefix)), None)
    return None if family is None else _tokenizer(family)


@cache
def _tokenizer(family: str) -> TokenCounter | None:
    try:
        from splintr import Tokenizer  # noqa: PLC0415 - an extra, and 37 MB
    except ImportError:
        return None
    encode = Tokenizer.from_pretrained(family).encode

    def count(text: str) -> int:
        # Lone surrogates are sent as replacement characters, and counted as such.
        return len(encode(text.encode("utf-8", "replace").decode("utf-8")))

    return count
