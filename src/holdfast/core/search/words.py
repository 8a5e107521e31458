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
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, islice
from typing import Final, TypeAlias

from holdfast.core.search.folding import (
    JOINED,
    folded,
    folded_in_case,
    folded_sign,
    folded_sign_in_case,
)

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
# A small letter before a capital or a digit, a digit before a letter, a capital before a digit or a
# capitalised word. Each has a capital or a digit, and few words have: so these are looked for.
_SEAM: Final = re.compile(
    f"[{_UPPER}0-9](?:(?<=[{_OTHER}][{_UPPER}0-9])|(?<=[0-9])[{_UPPER}{_OTHER}]"
    f"|(?<=[{_UPPER}])(?:[0-9]|[{_UPPER}][{_OTHER}]))"
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
_LONE_SIGNS: Final = re.compile(rf"(?<![^ ])[{_SIGNS}]+(?![^ ])")
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
    return _tokens(_separated(folded(text), _WORDS))


def _tokens(separated: str) -> list[str]:
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
    names = _names(_separated(folded_in_case(text), _NAMES))
    return [piece for _, name in names for piece, _, _ in _pieces(name)]


def _names(separated: str) -> Iterator[tuple[int, str]]:
    """Give what may have parts, and where it is: most words have no seam, and are jumped over."""
    seam = _SEAM.search(separated)
    while seam is not None:
        start = separated.rfind(" ", 0, seam.start()) + 1
        end = separated.find(" ", seam.end())
        end = end if end >= 0 else len(separated)
        if end - start <= LONGEST:
            yield start, separated[start:end]
        seam = _SEAM.search(separated, end)


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
    return traced_words(text).spans()


def part_spans(text: str) -> list[Span]:
    """Give the parts of names as `parts` does, each with where it begins and ends."""
    return traced_parts(text).spans()


def traced_words(text: str) -> Traced:
    """Give the tokens of a text with a way back to it."""
    separated = _separated(folded(text), _WORDS)
    if _has_signs(separated):
        separated = _LONE_SIGNS.sub(_spaces, separated)
    tokens = _tokens(separated)
    return Traced(text, tokens, _places(tokens, separated), folded_sign)


def _places(tokens: Iterable[str], separated: str) -> Iterator[tuple[int, int]]:
    """Say where tokens are between which there are only spaces."""
    end = 0
    for token in tokens:
        start = separated.index(token, end)
        end = start + len(token)
        yield start, end


def traced_parts(text: str) -> Traced:
    """Give the parts of names in a text with a way back to it."""
    found = [
        (piece, at + start, at + end)
        for at, name in _names(_separated(folded_in_case(text), _NAMES))
        for piece, start, end in _pieces(name)
    ]
    places = ((start, end) for _, start, end in found)
    return Traced(text, [piece for piece, _, _ in found], places, folded_sign_in_case)


class Traced:
    """Tokens, and where in their text they came from.

    To find that out takes longer than to find the tokens, most of all where the text is not ASCII:
    it is done only for what is asked for, and up to there.
    """

    def __init__(
        self,
        text: str,
        tokens: list[str],
        places: Iterator[tuple[int, int]],
        fold: Callable[[str], str],
    ) -> None:
        """Take tokens with their places in the folded text, and what folds a sign of the text."""
        self.tokens = tokens
        self._text = text
        self._places = places
        self._placed: list[tuple[int, int]] = []
        self._fold = fold
        self._signs: list[str] = []
        self._ends: list[int] = []  # of each sign in the text, and folded
        self._folded_ends: list[int] = []

    def spans(self) -> list[Span]:
        """Give the tokens with their places."""
        return [(token, *self.place(at, at)) for at, token in enumerate(self.tokens)]

    def place(self, first: int, last: int) -> tuple[int, int]:
        """Say from where to where in the text two tokens are, and what is between them."""
        self._placed.extend(islice(self._places, max(last + 1 - len(self._placed), 0)))
        start, end = self._placed[first][0], self._placed[last][1]
        if self._text.isascii():
            return start, end
        if not self._signs:
            self._trace()
        return self._start(start), self._end(end)

    def _trace(self) -> None:
        fold = self._fold
        self._signs = _CHARACTER.findall(self._text)
        self._ends = list(accumulate(map(len, self._signs)))
        lengths = [len(sign if sign.isascii() else fold(sign)) for sign in self._signs]
        self._folded_ends = list(accumulate(lengths))

    def _start(self, at: int) -> int:
        sign = bisect_right(self._folded_ends, at)
        if self._signs[sign].isascii():
            return self._ends[sign] - (self._folded_ends[sign] - at)
        return self._ends[sign] - len(self._signs[sign])

    def _end(self, at: int) -> int:
        sign = bisect_right(self._folded_ends, at - 1)
        end = self._folded_ends[sign]
        if at < end and self._signs[sign].isascii():
            return self._ends[sign] - (end - at)
        # An accent belongs to what it is on: it is folded to nothing, so it ends where that does.
        return self._ends[bisect_right(self._folded_ends, end) - 1]
