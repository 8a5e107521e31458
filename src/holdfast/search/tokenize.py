"""The tokenizer: splits texts and queries into words, and names into their parts.

A word is a run of letters and digits, folded (see `fold`). Everything else separates words, so
`gateway/run.py` is three and `it's` two. Exceptions, because users search for these:

- `+ # % $` are words where they touch one: `C++` is `c ++`, `50%` is `50 %`, `$5` is `$ 5`. Alone,
  as in `# Title` or `a + b`, they are ignored: a heading is found without its `#`.
- A symbol or an emoji is a word by itself, and so is every character of a script that is written
  without spaces. They are found from one character up, and as phrases.
- The `T` and the `Z` of a time are separators: `2026-01-31T10:00Z` is found by its date, and with
  or without its `Z`. So are the escape sequences by which programs colour their output.
- A run of more than 64 characters is cut into adjacent words of 64.

A query is split the same way; its words match where they are adjacent in the text, in the same
order. Tokenizing depends only on neighbouring characters, so any piece of a text that begins and
ends with whole words is found in it.

Names consist of words, too: the *parts* of `getUserName` are `get user name`, those of
`HTTPServer2` are `http server 2`. Words that `. _ - :` join to a name are parts of it: those of
`v3.14.1` are `v 3 14 1`, so that `3.14.1` finds it. Parts are stored separately from the words of a
text, in the same order, and each name ends with `NAME_END`: no phrase reaches from one into the
next. Hexadecimal digits, and strings that break into many tiny pieces (base64), do not count as
names and have none.

Tokens contain nothing but `a-z`, `0-9`, `+#%$` and characters outside ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, islice, takewhile
from typing import Final, TypeAlias

from holdfast.search.fold import (
    JOINED,
    fold,
    fold_preserving_case,
    fold_short,
    fold_short_preserving_case,
)

MAX_TOKEN_CHARS: Final = 64
# An index that was built with another version has other tokens and must be rebuilt.
VERSION: Final = f"2/{unicodedata.unidata_version}"

# The last part of every name. No text has this token: private characters separate words.
NAME_END: Final = "\ue000"

Span: TypeAlias = tuple[str, int, int]

_SYMBOLS: Final = "+#%$"
_JOINTS: Final = "._:-"  # join words to a name
_UPPER: Final = "A-Z\u0391-\u03a9\u0400-\u042f"  # Latin, Greek, Cyrillic
_OTHER: Final = "a-z\x80-\u0390\u03aa-\u03ff\u0430-\U0010ffff"

# Two patterns, because a search for one literal letter skips what has none of it.
_TIME_T: Final = re.compile("T(?<=[0-9]{2}T)(?=[0-9]{2})")
_TIME_Z: Final = re.compile(r"Z(?<=[0-9]{2}Z)(?![A-Za-z0-9\x80-\U0010ffff])")
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_TOKEN: Final = re.compile(
    rf"[a-z0-9\x80-\U0010ffff]{{1,{MAX_TOKEN_CHARS}}}|[{_SYMBOLS}]{{1,{MAX_TOKEN_CHARS}}}"
)
# A small letter before a capital or a digit, a digit before a letter, a capital before a digit or a
# capitalised word. Each starts at a capital or a digit, which few words have: that makes it fast.
_CASE_BOUNDARY: Final = re.compile(
    f"[{_UPPER}0-9](?:(?<=[{_OTHER}][{_UPPER}0-9])|(?<=[0-9])[{_UPPER}{_OTHER}]"
    f"|(?<=[{_UPPER}])(?:[0-9]|[{_UPPER}][{_OTHER}]))"
)
_PIECE: Final = re.compile(
    f"[{_UPPER}]{{2,}}s(?![{_OTHER}])"  # IDs, URLs
    f"|[{_UPPER}]+(?![{_OTHER}])|[{_UPPER}]?[{_OTHER}]+|[0-9]+"
)
_JOINED_WORD: Final = re.compile(f"[^{_JOINTS}]+")
# Hexadecimal strings that alternate between letters and digits.
_HASH: Final = r"(?:[0-9]+[{0}]+[0-9]|[{0}]+[0-9]+[{0}])[0-9{0}]*"
_NOT_A_NAME: Final = re.compile(f"{_HASH.format('a-f')}|{_HASH.format('A-F')}")
_CHARACTER: Final = re.compile(rf"[\x00-\x7f]+|{JOINED}|[\s\S]")
_LONE_SYMBOLS: Final = re.compile(rf"(?<![^ ])[{_SYMBOLS}]+(?![^ ])")
_LONG: Final = re.compile(f" [^ ]{{{MAX_TOKEN_CHARS + 1}}}")
_MAX_TINY_PIECES: Final = 3
_MAX_CACHED_CHARS: Final = 256
_MIN_AVERAGE_PIECE: Final = 2  # average length of more pieces, to be a name


def _table(kept: str, *, lower: bool) -> bytes:
    """Return a translation table for UTF-8: every ASCII byte that is not kept becomes a space."""
    inside = "".join(one if one.isalnum() or one in kept else " " for one in map(chr, range(0x80)))
    return (inside.lower() if lower else inside).encode() + bytes(range(0x80, 0x100))


_WORDS: Final = _table(_SYMBOLS, lower=True)
_NAMES: Final = _table(_JOINTS, lower=False)


def words(text: str) -> list[str]:
    """Return the tokens of a text, in order."""
    if not text:
        return []
    return _tokens(_separated(fold(text), _WORDS))


def _tokens(separated: str) -> list[str]:
    chunks = separated.split()
    if not _has_symbols(separated) and not _has_long_run(separated):
        return chunks
    found: list[str] = []
    for chunk in chunks:
        if len(chunk) <= MAX_TOKEN_CHARS and chunk.isalnum():
            found.append(chunk)
        elif chunk.strip(_SYMBOLS):
            found.extend(_TOKEN.findall(chunk))
    return found


def _has_long_run(separated: str) -> bool:
    """True if a string between spaces is too long for a token; looks from space to space."""
    at, end = 0, len(separated)
    while end - at > MAX_TOKEN_CHARS:
        space = separated.rfind(" ", at, at + MAX_TOKEN_CHARS + 1)
        if space < 0:
            return True
        at = space + 1
    return False


def _has_symbols(text: str) -> bool:
    return "+" in text or "#" in text or "%" in text or "$" in text


def _separated(text: str, table: bytes) -> str:
    # Translating bytes is much faster than translating characters, also with a few non-ASCII ones.
    return _blank_escapes(text).encode().translate(table).decode()


def _blank_escapes(text: str) -> str:
    """Replace escape sequences and the letters of times by as many spaces."""
    text = _TIME_Z.sub(" ", _TIME_T.sub(" ", text))
    return _ESCAPE.sub(_spaces, text) if "\x1b" in text else text


def _spaces(found: re.Match[str]) -> str:
    return " " * len(found[0])


def parts(text: str) -> list[str]:
    """Return the parts of the names in a text, in order; each name ends with `NAME_END`."""
    names = _names(_separated(fold_preserving_case(text), _NAMES))
    return [piece for _, name in names for piece, _, _ in _joined_pieces(name)]


def _names(separated: str) -> Iterator[tuple[int, str]]:
    """Yield the joined words that may have parts, and their positions; skip others quickly."""
    seam = _CASE_BOUNDARY.search(separated)
    while seam is not None:
        start = separated.rfind(" ", 0, seam.start()) + 1
        end = separated.find(" ", seam.end())
        end = end if end >= 0 else len(separated)
        yield start, separated[start:end]
        seam = _CASE_BOUNDARY.search(separated, end)


def _joined_pieces(joined: str) -> tuple[Span, ...]:
    """Return the parts of words that are joined; none if no word of them is a name."""
    return (_cached_pieces if len(joined) <= _MAX_CACHED_CHARS else _split_joined)(joined)


def _split_joined(joined: str) -> tuple[Span, ...]:
    words = [word for word in _JOINED_WORD.finditer(joined) if len(word[0]) <= MAX_TOKEN_CHARS]
    if not any(_pieces(word[0]) for word in words):
        return ()
    found = [
        (piece, word.start() + start, word.start() + end)
        for word in words
        for piece, start, end in _pieces(word[0]) or _whole(word[0])
    ]
    return (*found, (NAME_END, found[-1][2] - 1, found[-1][2]))


_cached_pieces = lru_cache(maxsize=16_384)(_split_joined)


def _whole(word: str) -> tuple[Span, ...]:
    """Return a word as its only part; none if it breaks into pieces without being a name."""
    return () if _CASE_BOUNDARY.search(word) else ((word.casefold(), 0, len(word)),)


@lru_cache(maxsize=1_024)
def _following_tokens(tokens: tuple[str, ...], *, prefix: bool) -> re.Pattern[str]:
    """Return a pattern for the tokens of a phrase after the first, up to the last one's end."""
    words = "".join(f" +{re.escape(token)}" for token in tokens)
    return re.compile(f"{words}[^ ]*" if prefix else f"{words}(?= )")


@lru_cache(maxsize=16_384)
def _pieces(name: str) -> tuple[Span, ...]:
    """Return the parts of a name; none if the word is not a name."""
    if not _CASE_BOUNDARY.search(name) or _NOT_A_NAME.fullmatch(name):
        return ()
    found = tuple((piece[0].casefold(), *piece.span()) for piece in _PIECE.finditer(name))
    is_name = len(found) <= _MAX_TINY_PIECES or len(name) >= _MIN_AVERAGE_PIECE * len(found)
    return found if is_name and len(found) > 1 else ()


def spans(text: str) -> list[Span]:
    """Return the tokens of a text as `words` does, each with its start and end."""
    return traced_words(text).spans()


def part_spans(text: str) -> list[Span]:
    """Return the parts of names as `parts` does, each with its start and end."""
    return traced_parts(text).spans()


def traced_words(text: str) -> TracedTokens:
    """Return the tokens of a text with their positions in it."""
    separated = _separated(fold(text), _WORDS)
    signs = _has_symbols(separated)
    if signs:
        separated = _LONE_SYMBOLS.sub(_spaces, separated)
    return TracedTokens(text, separated, _LENGTHS, whole=not signs)


def traced_parts(text: str) -> TracedTokens:
    """Return the parts of names in a text with their positions in it."""
    separated = _separated(fold_preserving_case(text), _NAMES)
    found = [
        (piece, at + start, at + end)
        for at, name in _names(separated)
        for piece, start, end in _joined_pieces(name)
    ]
    return TracedTokens(text, separated, _LENGTHS_IN_CASE, found)


class _Lengths(dict[str, int]):
    """The lengths of folded signs, computed when first needed."""

    def __init__(self, fold: Callable[[str], str]) -> None:
        super().__init__()
        self._fold = fold

    def __missing__(self, sign: str) -> int:
        if sign.isascii():  # A run of any length, which may never recur: not worth caching.
            return len(sign)
        self[sign] = length = len(self._fold(sign))
        return length


_LENGTHS: Final = _Lengths(fold_short)
_LENGTHS_IN_CASE: Final = _Lengths(fold_short_preserving_case)


class TracedTokens:
    """Tokens, and their positions in the original text.

    Positions take longer to compute than tokens, above all if the text is not ASCII, so they are
    computed only for the tokens that are searched for.
    """

    def __init__(
        self,
        text: str,
        separated: str,
        lengths: _Lengths,
        pieces: list[Span] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Take a text, its folded form with separators, and the lengths of folded signs.

        The tokens are `pieces`, or else the strings between spaces. `whole`: each such string is
        one token, unless it is too long and has to be cut.
        """
        self._text = text
        self._separated = separated
        self._lengths = lengths
        self._pieces = pieces
        self._padded = f" {separated} "
        self._whole_tokens = whole and not _LONG.search(self._padded)
        self._signs: list[str] = []
        self._ends: list[int] = []  # of each sign in the text, and folded
        self._folded_ends: list[int] = []

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens, in order."""
        if self._pieces is None:
            return _tokens(self._separated)
        return [piece for piece, _, _ in self._pieces]

    def spans(self) -> list[Span]:
        """Return the tokens with their positions."""
        return [
            (token, *self._to_text_range(start, end))
            for token, (start, end) in zip(self.tokens, self._folded_ranges, strict=True)
        ]

    @cached_property
    def _folded_ranges(self) -> list[tuple[int, int]]:
        """The ranges of the tokens in the folded text."""
        if self._pieces is not None:
            return [(start, end) for _, start, end in self._pieces]
        found, end = [], 0
        for token in self.tokens:  # Between two of them there are only spaces.
            start = self._separated.index(token, end)
            end = start + len(token)
            found.append((start, end))
        return found

    def may_be_within(self, token: str) -> bool:
        """True if a token may occur inside a longer word; False only if it certainly does not."""
        if not self._text.isascii():
            return True
        padded, size = self._padded, len(token)
        at = padded.find(token)
        while at >= 0:
            if padded[at - 1] != " " or padded[at + size] != " ":
                return True
            at = padded.find(token, at + size)
        return False

    def find(
        self, tokens: Sequence[str], *, prefix: bool, many: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Return the ranges of the text in which tokens are adjacent; `prefix`: the last is one.

        If `many` phrases will be searched for, build an index of all tokens first.
        """
        found = (
            self._find_literally(tokens, prefix=prefix)
            if self._whole_tokens and not many
            else self._find_among_tokens(tokens, prefix=prefix, many=many)
        )
        return (self._to_text_range(start, end) for start, end in found)

    def _find_literally(self, tokens: Sequence[str], *, prefix: bool) -> Iterator[tuple[int, int]]:
        """Find tokens between spaces; positions in the padded text are one too high."""
        padded, behind = self._padded, _following_tokens(tuple(tokens[1:]), prefix=prefix)
        alone = len(tokens) == 1
        needle = f" {tokens[0]}" if alone and prefix else f" {tokens[0]} "
        at = padded.find(needle)
        while at >= 0:
            end = at + 1 + len(tokens[0])
            if alone and not prefix:
                yield at, end - 1
            else:
                found = behind.match(padded, end)
                if found is not None:
                    yield at, found.end() - 1
            at = padded.find(needle, at + 1)

    def _find_among_tokens(
        self, tokens: Sequence[str], *, prefix: bool, many: bool
    ) -> Iterator[tuple[int, int]]:
        *first, last = tokens
        if prefix:
            ends = self._beginning_with(last)
        elif many:
            ends = self._index.get(last, [])
        else:
            ends = [at for at, token in enumerate(self.tokens) if token == last]
        for end in ends:
            begin = end - len(first)
            if begin >= 0 and self.tokens[begin:end] == first:
                yield self._folded_ranges[begin][0], self._folded_ranges[end][1]

    @cached_property
    def _index(self) -> dict[str, list[int]]:
        """The positions of each token in the list of all tokens."""
        found: dict[str, list[int]] = {}
        for at, token in enumerate(self.tokens):
            found.setdefault(token, []).append(at)
        return found

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._index)

    def _beginning_with(self, start: str) -> list[int]:
        first = bisect_left(self._sorted, start)
        alike = takewhile(lambda token: token.startswith(start), islice(self._sorted, first, None))
        return sorted(at for token in alike for at in self._index[token])

    def _to_text_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the text for a range of the folded text."""
        if self._text.isascii():
            return start, end
        if not self._signs:
            self._map_signs()
        return self._start(start), self._end(end)

    def _map_signs(self) -> None:
        self._signs = _CHARACTER.findall(self._text)
        self._ends = list(accumulate(map(len, self._signs)))
        self._folded_ends = list(accumulate(map(self._lengths.__getitem__, self._signs)))

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
        # An accent belongs to its letter: it is folded to nothing, so both end at one position.
        return self._ends[bisect_right(self._folded_ends, end) - 1]
