r"""Stored text, made safe to print.

A conversation holds text from models, tools and untrusted sources. Some characters control a
terminal (clear the screen, rewrite the line above, set the title), some reverse the reading order,
some are invisible. `sanitize` replaces each by its escape, such as `\x1b`, so that the output shows
what is stored. It escapes exactly these:

* control characters: C0, DEL, C1, and the line and paragraph separators
* lone surrogates, which no encoding can write
* everything Unicode calls default-ignorable (bidi controls, zero-width characters, tags, fillers,
  variation selectors), and the interlinear annotations

Joiners and variation selectors after a character outside ASCII stay: scripts and emoji need them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_CONTROLS: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufff9-\ufffb"
_IGNORABLE: Final = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_JOINERS: Final = frozenset({"\u200c", "\u200d", *map(chr, range(0xFE00, 0xFE10))})
_UNSAFE: Final = f"{_CONTROLS}{_IGNORABLE}\u200c\u200d\ufe00-\ufe0f"
_UNSAFE_IN_BODY: Final = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_LINE: Final = re.compile(f"[\t\n{_UNSAFE}]")
_NAMED_ESCAPES: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_EMOJI: Final = "\ufe0f"  # "show this as an emoji"
_KEYCAP: Final = "\ufe0f\u20e3"  # after a digit: a key


def sanitize(text: str, *, body: bool = False) -> str:
    """Return the text with unsafe characters escaped; a body keeps its newlines and tabs."""
    return (_UNSAFE_IN_BODY if body else _UNSAFE_IN_LINE).sub(_escape_match, text)


def split_escapes(text: str, *, body: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the sanitized text in pieces, each with True if it is an escape, for colouring."""
    end = 0
    for found in (_UNSAFE_IN_BODY if body else _UNSAFE_IN_LINE).finditer(text):
        shown = _escape_match(found)
        if shown == found[0]:
            continue
        if found.start() > end:
            yield text[end : found.start()], False
        yield shown, True
        end = found.end()
    if end < len(text):
        yield text[end:], False


def _escape_match(found: re.Match[str]) -> str:
    character = found[0]
    if character in _JOINERS and _modifies_previous(found.string, found.start()):
        return character
    return _escape(character)


def _modifies_previous(text: str, at: int) -> bool:
    """True if the joiner or variation selector at `at` follows a character it can modify."""
    if text.startswith(_KEYCAP, at):
        return True
    if text[at] == "\u200d" and text[at - 1 : at] == _EMOJI:
        at -= 1
    before = text[at - 1 : at]
    return not before.isascii() and not _UNSAFE_IN_BODY.match(before)


@lru_cache(maxsize=1_024)  # some texts consist of such characters
def _escape(character: str) -> str:
    if character in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[character]
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - two digits hold this much
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - four do
