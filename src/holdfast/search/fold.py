"""Case and accent folding: characters that a search treats as equal become the same.

Folding maps every character outside ASCII, independently of its neighbours, to

- nothing: accents of Latin, Greek and Cyrillic, vowel points of Hebrew and Arabic, emoji variation
  selectors, and invisible characters (soft hyphens, joiners, direction marks);
- a space: punctuation, white space, controls, lone surrogates, private-use characters, box-drawing
  and block characters;
- itself between two spaces, so that it is a word of its own: a symbol, an emoji, any character of a
  script that is written without spaces (Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese,
  Tibetan);
- letters and digits: in lower case, without accents, ligatures and letters of other widths as the
  plain ones, all decimal digits as those of ASCII.

Only characters that form one sign together are composed first: Hangul written in jamo, and kana
followed by a voicing mark. So a text folds to the concatenation of its folded pieces, wherever it
is cut between signs.

A character that is newer than this Python's Unicode tables is a word of its own.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

# Several characters that form one sign: jamo, kana and a voicing mark, the same at half width.
JOINED: Final = (
    "[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?"
    "|[\uac00-\ud7a3][\u11a8-\u11c2]"
    "|[\u3041-\u30ff][\u3099\u309a]"
    "|[\uff66-\uff9d][\uff9e\uff9f]"
)

_DROPPED: Final = (
    (0x0300, 0x036F),
    (0x0483, 0x0489),
    (0x0591, 0x05BD),
    (0x05BF, 0x05BF),
    (0x05C1, 0x05C2),
    (0x05C4, 0x05C5),
    (0x05C7, 0x05C7),
    (0x0610, 0x061A),
    (0x0640, 0x0640),
    (0x064B, 0x065F),
    (0x0670, 0x0670),
    (0x06D6, 0x06DC),
    (0x06DF, 0x06E8),
    (0x06EA, 0x06ED),
    (0x180B, 0x180D),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x20D0, 0x20FF),
    (0x3099, 0x309A),
    (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F),
    (0xFF9E, 0xFF9F),
    (0x1F3FB, 0x1F3FF),
    (0xE0100, 0xE01EF),
)
_STANDALONE: Final = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Burmese
    (0x1100, 0x11FF),  # jamo
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3031, 0x303C),
    (0x3041, 0x31BF),  # kana, Bopomofo, jamo
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),  # Chinese characters
    (0xA960, 0xA97F),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xAC00, 0xD7FF),  # Hangul
    (0xF900, 0xFAFF),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)
_SEPARATING: Final = (
    (0x02B9, 0x02BF),  # letters by category, but look like apostrophes
    (0x02C8, 0x02C8),
    (0xA78B, 0xA78C),
    (0x2044, 0x2044),  # symbols by category, but look like `/` and `-`
    (0x2212, 0x2212),
    (0x2215, 0x2215),
    (0x2500, 0x259F),  # lines, blocks and spinners of terminals
    (0x2800, 0x28FF),
    (0xFFFD, 0xFFFD),
)
_CONTROLS: Final = frozenset({"Cc", "Cs", "Co"})
_FULL_WIDTH: Final = (0xFF01, 0xFF5E)
_COMPOSED: Final = ((0x3041, 0x30FF), (0xAC00, 0xD7FF), (0xFF66, 0xFF9F))

# Letters with strokes and ligatures that Unicode normalization does not decompose.
_BASE_LETTERS: Final = str.maketrans(
    {
        "ø": "o",
        "đ": "d",
        "ð": "d",
        "ł": "l",
        "ħ": "h",
        "ŧ": "t",
        "\u0131": "i",
        "æ": "ae",
        "œ": "oe",
    }
    | {"þ": "th", "ƀ": "b", "ɨ": "i", "ƶ": "z", "ǥ": "g"}
)
# The most common non-ASCII characters: quotes, dashes, dots, terminal lines, accented lower case.
_COMMON: Final = (
    "\u2019\u2018\u201c\u201d\u2014\u2013\u2026\u2022\u00a0\u00b7"
    "\u2500\u2502\u251c\u2514éèêàâçîôûùäöüßñáíóúãõ"
)
_MAX_CACHED_RUN: Final = (
    24  # a run of up to so many characters probably recurs: a word, a dash, an emoji
)

_JOINED: Final = re.compile(JOINED)
_OUTSIDE: Final = re.compile(r"[^\x00-\x7f]+")


def fold(text: str) -> str:
    """Return a text with all non-ASCII characters folded; ASCII stays unchanged, case included."""
    text = _fold_common(text)
    return text if text.isascii() else _OUTSIDE.sub(_lower_run, text)


def fold_preserving_case(text: str) -> str:
    """Return a text with all non-ASCII characters folded, but capitals preserved."""
    text = _fold_common(text)
    return text if text.isascii() else _OUTSIDE.sub(_cased_run, text)


def _fold_common(text: str) -> str:
    """Fold the most common characters by `replace`, which is fast: often the rest is ASCII."""
    if text.isascii():
        return text
    for character in _COMMON:
        if character in text:
            text = text.replace(character, _LOWER[ord(character)])
    return text


def _lower_run(found: re.Match[str]) -> str:
    run = found[0]
    return fold_short(run) if len(run) <= _MAX_CACHED_RUN else _fold(run, _LOWER)


def _cased_run(found: re.Match[str]) -> str:
    run = found[0]
    return fold_short_preserving_case(run) if len(run) <= _MAX_CACHED_RUN else _fold(run, _CASED)


@lru_cache(maxsize=16_384)
def fold_short(run: str) -> str:
    """Fold a short run of signs, none of them ASCII."""
    return _fold(run, _LOWER)


@lru_cache(maxsize=16_384)
def fold_short_preserving_case(run: str) -> str:
    """Fold a short run of signs, none of them ASCII, but preserve capitals."""
    return _fold(run, _CASED)


def _fold(run: str, table: dict[int, str]) -> str:
    return _JOINED.sub(_compose, run).translate(table)


def _compose(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", found[0])


class _Lower(dict[int, str]):
    """The folded form of each character, computed when first needed."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _fold_character(chr(code))
        return found


class _Cased(dict[int, str]):
    """The same, with capitals preserved."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        found = _fold_character(character)
        self[code] = found = found.upper() if character.isupper() else found
        return found


_LOWER: Final = _Lower()
_CASED: Final = _Cased()


def _fold_character(character: str) -> str:
    code, kind = ord(character), unicodedata.category(character)
    if kind == "Cf" or _in_ranges(code, _DROPPED):
        return ""
    if _FULL_WIDTH[0] <= code <= _FULL_WIDTH[1]:
        return unicodedata.normalize("NFKC", character)
    if _in_ranges(code, _SEPARATING) or kind == "Sk" or kind[0] in "PZ" or kind in _CONTROLS:
        return " "
    if kind[0] == "S" or kind == "Cn":
        return f" {character.casefold()} "
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    return _fold_letter(character)


def _fold_letter(character: str) -> str:
    if _in_ranges(ord(character), _COMPOSED):
        plain = unicodedata.normalize("NFKC", character)
    else:
        plain = _strip_accents(_strip_accents(character).casefold()).translate(_BASE_LETTERS)
    if any(_in_ranges(ord(letter), _STANDALONE) for letter in plain):
        return f" {' '.join(plain)} "
    return f" {plain} " if " " in plain else plain


def _strip_accents(text: str) -> str:
    """Decompose a text, drop its accents, and replace what cannot be in a word by a space."""
    return "".join(
        letter if letter.isascii() or _is_word_character(letter) else " "
        for letter in unicodedata.normalize("NFKD", text)
        if not _in_ranges(ord(letter), _DROPPED)
    )


def _is_word_character(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "LMN" and not _in_ranges(ord(letter), _SEPARATING)


def _in_ranges(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code <= last for first, last in ranges)
