"""A text as a reader of it would see it: escapes decoded, invisible characters left out.

A secret may be cut by characters that nobody sees (zero-width spaces, soft hyphens, colours of a
terminal), or be escaped for JSON, a URL or HTML, also several times over. The detectors scan the
decoded text too, and its offsets lead back to the original.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from html import unescape
from typing import Final

_COLOUR: Final = r"\x1b\[[0-9;]{0,16}[A-Za-z]"
_ESCAPE: Final = (
    rf"{_COLOUR}|\\{{1,8}}(?:u[0-9A-Fa-f]{{4}}|x[0-9A-Fa-f]{{2}}|/)|%[2-7][0-9A-Fa-f]"
    r"|&(?:quot|amp|apos|lt|gt|\#(?:x[0-9A-Fa-f]{1,4}|\d{1,5}));"
)
# Format characters, variation selectors, fillers and tags.
_INVISIBLE: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff"
)
_ASCII_ESCAPE: Final = re.compile(_ESCAPE)
_ANY_ESCAPE: Final = re.compile(rf"[{_INVISIBLE}]|{_ESCAPE}")
_HIDDEN: Final = re.compile(rf"[{_INVISIBLE}]")
_ESCAPE_MARKS: Final = ("\\", "%", "&", "\x1b")


class DecodedText:
    """A decoded text, and where its characters are in the original."""

    def __init__(self, text: str, escapes: list[tuple[int, int, str]]) -> None:
        """Decode `escapes`: start, end and what they stand for."""
        pieces: list[str] = []
        self._at: list[int] = [0]  # Offsets in the decoded text where a piece begins, …
        self._from: list[tuple[int, int]] = [(0, 0)]  # … and in the original: start, fixed end.
        done = length = 0
        for start, end, char in escapes:
            length += start - done
            pieces += [text[done:start], char]
            if char:
                self._add(length, start, end)
            length += len(char)
            self._add(length, end, 0)
            done = end
        self.text = "".join([*pieces, text[done:]])

    def _add(self, at: int, start: int, end: int) -> None:
        if self._at[-1] == at:
            self._from[-1] = start, end
        else:
            self._at.append(at)
            self._from.append((start, end))

    def start(self, offset: int) -> int:
        """Return where a span that starts here starts in the original."""
        piece = bisect_right(self._at, offset) - 1
        return self._from[piece][0] + offset - self._at[piece]

    def end(self, offset: int) -> int:
        """Return where a span that ends here ends in the original."""
        piece = bisect_right(self._at, offset - 1) - 1
        start, end = self._from[piece]
        return end or start + offset - self._at[piece]


def decode(text: str) -> DecodedText | None:
    """Return a text without escapes and invisible characters; `None` if it has none."""
    ascii_only = text.isascii()
    if ascii_only and not any(mark in text for mark in _ESCAPE_MARKS):
        return None
    pattern = _ASCII_ESCAPE if ascii_only else _ANY_ESCAPE
    escapes = [
        (*match.span(), char)
        for match in pattern.finditer(text)
        if (char := _decode_escape(match[0])) is not None
    ]
    return DecodedText(text, escapes) if escapes else None


def _decode_escape(escape: str) -> str | None:
    """Return the character that an escape stands for, or `""`; `None` if it is left as it is."""
    if escape[0] == "%":
        char = chr(int(escape[1:], 16))
    elif escape[0] == "&":
        char = unescape(escape)
    elif escape[0] == "\\":
        name = escape.lstrip("\\")
        char = chr(int(name[1:], 16)) if name[0] in "ux" else name
    else:
        return ""
    if _HIDDEN.fullmatch(char):
        return ""
    return char if char.isascii() and char.isprintable() else None
