"""Estimating tokens without a tokenizer.

A token is about four or five letters of English, two digits, one or two punctuation marks, or one
character of a script that needs several bytes. Counting characters by kind, with a weight each, is
mostly within an eighth of the common tokenizers' counts, and takes microseconds. It is made when a
window is built; stores written before that have it in their messages, where nothing reads it.

What is added to the text (images, the overhead of a message) is the same however text is counted:
the functions here take any `TokenCounter`, by default the estimate.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Final, TypeAlias

from holdfast.values import (
    WHOLE_OUTPUT,
    File,
    Message,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    is_original,
)

TokenCounter: TypeAlias = Callable[[str], int]

MESSAGE_TOKENS: Final = 4  # the overhead of a message
IMAGE_TOKENS: Final = 1_000
_FILE_TOKENS: Final = 500
_LETTERS: Final = string.ascii_letters.encode()
_DIGITS: Final = string.digits.encode()


def of_text(text: str) -> int:
    """Return the estimated tokens of a text."""
    if not text:
        return 0
    plain = text.encode("ascii", "ignore")
    foreign = 0 if text.isascii() else len(text.encode("utf-8", "surrogatepass")) - len(text)
    rest = plain.translate(None, _LETTERS)
    signs = rest.translate(None, _DIGITS)
    spaces, lines = signs.count(b" "), signs.count(b"\n")  # A run of spaces is a token or two.
    return 1 + int(
        0.22 * (len(plain) - len(rest))
        + 0.6 * (len(rest) - len(signs))
        + 0.1 * spaces
        + 0.3 * lines
        + 0.65 * (len(signs) - spaces - lines)
        + 0.4 * foreign
    )


def of_message(message: Message, count: TokenCounter = of_text) -> int:
    """Return the tokens of a message in a window."""
    return MESSAGE_TOKENS + sum(of_part(part, count) for part in message.parts)


def of_reply(message: Message) -> int:
    """Return the estimated output tokens of a reply, without its thinking."""
    return sum(of_part(part) for part in message.parts if not isinstance(part, Thinking))


def of_part(part: Part, count: TokenCounter = of_text) -> int:
    """Return the tokens of a part."""
    if isinstance(part, Text | Thinking):
        return count(part.text)
    if isinstance(part, ToolCall):
        arguments = part.arguments if isinstance(part.arguments, str) else repr(part.arguments)
        return MESSAGE_TOKENS + count(part.name) + count(arguments)
    if isinstance(part, ToolResult):
        return MESSAGE_TOKENS + _of_result(part, count)
    if isinstance(part, File):
        if part.mime == WHOLE_OUTPUT:
            return MESSAGE_TOKENS
        return IMAGE_TOKENS if (part.mime or "").startswith("image/") else _FILE_TOKENS
    return 0 if is_original(part) else count(repr(part.data))


def _of_result(result: ToolResult, count: TokenCounter) -> int:
    if isinstance(result.content, str):
        return count(result.content)
    return sum(of_part(piece, count) for piece in result.content)
