"""A text as its words: what is compared when something is looked for.

A word is a run of letters and digits, folded (see `folding`). Everything else separates words, so
`gateway/run.py` is three and `it's` two. Exceptions, because people look for these things:

- `+ # % $` are words where they touch one: `C++` is `c ++`, `50%` is `50 %`, `$5` is `$ 5`. Alone,
  as in `# Title` or `a + b`, they are nothing: a heading is found without its marks.
- A symbol or an emoji is a word by itself, and so is every character of a script that is written
  without spaces. They are found from one character up, and as phrases.
- The `T` between day and hour separates: `2026-01-31T10:00` is found by its date. So do the escape
  sequences by which programs colour what they print.
- A run of more than 64 characters is cut into words of 64, which stand next to each other.

What is looked for is cut the same way, and stands in the text next to each other in the same order.
Nothing depends on what is further away than the neighbouring character, so any piece of a text that
begins and ends with whole words is found in it.

Names are made of words, too: the *parts* of `getUserName` are `get user name`, and `http server 2`
those of `HTTPServer2`. They are kept beside the words of a text, in the same order, and only of
words that have parts. Hexadecimal digits, and what else breaks into many tiny pieces (base64), are
no names and have none.

Tokens hold nothing but `a-z`, `0-9`, `+#%$` and characters outside ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final, TypeAlias

from holdfast.core.search.folding import JOINED, folded, folded_in_case

LONGEST: Final = 64
# An index that was made with another version holds other tokens: it has to be made again.
VERSION: Final = f"1/{unicodedata.unidata_version}"

Span: TypeAlias = tuple[str, int, int]

_SIGNS: Final = "+#%$"
_UPPER: Final = "A-Z\u0391-\u03a9\u0400-\u042f"  # Latin, Greek, Cyrillic
_OTHER: Final = "a-z\x80-\u0390\u03aa-\u03ff\u0430-\U0010ffff"

_HOUR: Final = re.compile(r"T(?<=[0-9]{2}T)(?=[0-9]{2})")
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_TOKEN: Final = re.compile(rf"[a-z0-9\x80-\U0010ffff]{{1,{LONGEST}}}|[{_SIGNS}]{{1,{LONGEST}}}")
_SEAM: Final = re.compile(
    f"[{_OTHER}][{_UPPER}0-9]|[0-9][{_UPPER}{_OTHER}]|[{_UPPER}](?:[0-9]|[{_UPPER}][{_OTHER}])"
)
_PIECE: Final = re.compile(
    f"[{_UPPER}]{{2,}}s(?![{_OTHER}])"  # IDs, URLs
    f"|[{_UPPER}]+(?![{_OTHER}])|[{_UPPER}]?[{_OTHER}]+|[0-9]+"
)
# The end of an ISO time, and hexadecimal digits that change between letters and digits again.
_TIME: Final = r"[0-9]+Z"
_HASH: Final = r"(?:[0-9]+[{0}]+[0-9]|[{0}]+[0-9]+[{0}])[0-9{0}]*"
_NO_NAME: Final = re.compile(f"{_TIME}|{_HASH.format('a-f')}|{_HASH.format('A-F')}")
_CHARACTER: Final = re.compile(rf"[\x00-\x7f]+|{JOINED}|[\s\S]")
_CHUNK: Final = re.compile(rf"[A-Za-z0-9{_SIGNS}\x80-\U0010ffff]+")
_NAME: Final = re.compile(r"[A-Za-z0-9\x80-\U0010ffff]+")
_FEW_PIECES: Final = 3
_MANY_PIECES_LENGTH: Final = 2  # on average, to be a name


def _table(kept: str, *, lower: bool) -> bytes:
    """Give what each byte of UTF-8 becomes: a space, unless it is of something that is kept."""
    inside = "".join(one if one.isalnum() or one in kept else " " for one in map(chr, range(0x80)))
    return (inside.lower() if lower else inside).encode() + bytes(range(0x80, 0x100))


_WORDS: Final = _table(_SIGNS, lower=True)
_NAMES: Final = _table("", lower=False)


def words(text: str) -> list[str]:
    """Give the tokens of a text, in order."""
    separated = _separated(folded(text), _WORDS)
    chunks = separated.split()
    if max(map(len, chunks), default=0) <= LONGEST and not _has_signs(separated):
        return chunks
    found: list[str] = []
    for chunk in chunks:
        if len(chunk) <= LONGEST and chunk.isalnum():
            found.append(chunk)
        elif chunk.strip(_SIGNS):
            found.extend(_TOKEN.findall(chunk))
    return found


def _has_signs(text: str) -> bool:
    return "+" in text or "#" in text or "%" in text or "$" in text


def _separated(text: str, table: bytes) -> str:
    # Bytes are translated at the speed of memory, also where a few of them are not ASCII.
    return _without_marks(text).encode().translate(table).decode()


def _without_marks(text: str) -> str:
    """Put as many spaces where letters are no words."""
    return _ESCAPE.sub(_spaces, _HOUR.sub(" ", text))


def _spaces(found: re.Match[str]) -> str:
    return " " * len(found[0])


def parts(text: str) -> list[str]:
    """Give the parts of the names in a text, in order."""
    names = _separated(folded_in_case(text), _NAMES).split()
    return [
        piece
        for name in names
        if not (name.isalpha() and name[1:].islower()) and len(name) <= LONGEST  # most are plain
        for piece, _, _ in _pieces(name)
    ]


@lru_cache(maxsize=16_384)
def _pieces(name: str) -> tuple[Span, ...]:
    """Take a name apart; what is none gives nothing."""
    if not _SEAM.search(name) or _NO_NAME.fullmatch(name):
        return ()
    found = tuple((piece[0].casefold(), *piece.span()) for piece in _PIECE.finditer(name))
    is_name = len(found) <= _FEW_PIECES or len(name) >= _MANY_PIECES_LENGTH * len(found)
    return found if is_name and len(found) > 1 else ()


def spans(text: str) -> list[Span]:
    """Give the tokens of a text as `words` does, each with where it begins and ends."""
    plain = _Traced(text, in_case=False)
    return [
        (token[0], *plain.place(chunk.start(), *token.span()))
        for chunk in _CHUNK.finditer(plain.text)
        if chunk[0].strip(_SIGNS)
        for token in _TOKEN.finditer(chunk[0].casefold())
    ]


def part_spans(text: str) -> list[Span]:
    """Give the parts of names as `parts` does, each with where it begins and ends."""
    cased = _Traced(text, in_case=True)
    return [
        (piece, *cased.place(name.start(), start, end))
        for name in _NAME.finditer(cased.text)
        if len(name[0]) <= LONGEST
        for piece, start, end in _pieces(name[0])
    ]


class _Traced:
    """A folded text that knows where each of its characters came from."""

    def __init__(self, text: str, *, in_case: bool) -> None:
        self._starts: list[int] | None = None
        self._ends: list[int] = []
        plain = text if text.isascii() else self._trace(text, in_case=in_case)
        self.text = _without_marks(plain)

    def place(self, base: int, start: int, end: int) -> tuple[int, int]:
        """Say where in the text the characters from `start` to `end` behind `base` are."""
        if self._starts is None:
            return base + start, base + end
        return self._starts[base + start], self._ends[base + end - 1]

    def _trace(self, text: str, *, in_case: bool) -> str:
        fold = folded_in_case if in_case else folded
        self._starts, pieces, seen = [], [], 0
        for sign in _CHARACTER.finditer(text):
            start, end = sign.span()
            if sign[0].isascii():
                pieces.append(sign[0])
                self._starts.extend(range(start, end))
                self._ends.extend(range(start + 1, end + 1))
                seen = 1
                continue
            piece = fold(sign[0])
            if not piece:  # an accent belongs to what it is on
                self._ends[len(self._ends) - seen :] = [end] * seen
                continue
            pieces.append(piece)
            self._starts.extend([start] * len(piece))
            self._ends.extend([end] * len(piece))
            seen = len(piece)
        return "".join(pieces)
