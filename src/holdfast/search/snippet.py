"""The part of a text that shows why it matches.

A snippet is the part of a text in which the most different terms of a query are close together (of
several such parts the first), with white space collapsed, cut between words where there are spaces,
and `…` where something is omitted. Its marks are the matches, as ranges of its own text: whole
words as they were written, also for a prefix, a folded letter or a part of a name. Without a match
(the title matched, or there are no terms) it is the beginning of the text.

A long text is searched piece by piece, up to the first piece that has all terms together. It is
fast to determine which terms a piece has; their positions are slower, and are computed only for a
piece that may have more terms together than the best one so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec

from holdfast.search.match import count_present
from holdfast.search.query import Query, Term
from holdfast.search.tokenize import TracedTokens, traced_parts, traced_words

ELLIPSIS: Final = "…"
_PIECE: Final = 800
_OVERLAP: Final = 400  # so that terms which are close together are in one piece
_TRIES: Final = 8  # pieces that have the terms, but perhaps not close together
_MAX_SEARCHED_CHARS: Final = 2_000_000  # no better part is searched for beyond
_MAX_UNINDEXED_TERMS: Final = 12  # more terms than that are found through an index of all tokens
_MIN_WIDTH: Final = 16
_MAX_WORD_CHARS: Final = 24  # longer words may be cut: some texts have no spaces at all


class Snippet(msgspec.Struct, frozen=True):
    """A short text, and the ranges of it that match."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


class _Occurrence(msgspec.Struct, frozen=True, gc=False):
    """An occurrence of a term: its range in the text, and the number of the term."""

    start: int
    end: int
    term: int


class _Best(msgspec.Struct, frozen=True):
    """The number of different terms that are closest together, their range, and all occurrences."""

    terms: int = 0
    first: int = 0
    last: int = 0
    occurrences: Sequence[_Occurrence] = ()


def snippet(text: str, query: Query, *, width: int = 160) -> Snippet:
    """Return the best part of a text for a query, in at most `width` (at least 16) characters."""
    whole, width = " ".join(text.split()), max(width, _MIN_WIDTH)
    return _cut(whole, _best(whole, query.wanted, width), width)


def marked(snippet: Snippet, before: str, after: str) -> str:
    """Return the text of a snippet with `before` and `after` around each of its marks."""
    pieces, at = [], 0
    for start, end in snippet.marks:
        pieces += [snippet.text[at:start], before, snippet.text[start:end], after]
        at = end
    return "".join([*pieces, snippet.text[at:]])


# ------------------------------------------------------------------------------------ the piece


def _best(text: str, terms: Sequence[Term], width: int) -> _Best:
    """Return the part of a text in which the most different terms are close together."""
    best, tries = _Best(), _TRIES
    if not terms:
        return best
    overlap = max(width + _MAX_WORD_CHARS, _OVERLAP) + 2 * max(len(term.raw) for term in terms)
    for begin, end in _pieces(text, overlap):
        if begin > _MAX_SEARCHED_CHARS and best.terms:
            break
        found = _best_in_piece(text, begin, end, terms, width, known=best.terms)
        if found is None:
            continue
        best = found if found.terms > best.terms else best
        tries -= 1
        if best.terms == len(terms) or not tries:
            break
    return best


def _pieces(text: str, overlap: int) -> Iterator[tuple[int, int]]:
    begin, step = 0, max(_PIECE, overlap)
    while begin < len(text):
        end = min(_word_end(text, begin + step + overlap), len(text))
        yield begin, end
        begin = _word_begin(text, begin + step) if end < len(text) else end


def _best_in_piece(
    text: str, begin: int, end: int, terms: Sequence[Term], width: int, *, known: int
) -> _Best | None:
    """Return the best part that starts in a piece; it may extend beyond the piece.

    None if the piece has no more terms than are `known` to be together elsewhere.
    """
    if not _has_whole_words(text, begin, end) and count_present(terms, text[begin:end]) <= known:
        return None
    left = _word_begin(text, max(begin - width, 0))
    right = _word_end(text, min(end + width, len(text)))
    occurrences = [
        _Occurrence(left + occurrence.start, left + occurrence.end, occurrence.term)
        for occurrence in _find_occurrences(text[left:right], terms)
    ]
    inside = [
        occurrence
        for occurrence in occurrences
        if begin <= occurrence.start and occurrence.end <= end
    ]
    is_all = begin == 0 and end == len(text)
    if not is_all and len({occurrence.term for occurrence in inside}) <= known:
        return None
    count, first, last = _closest(inside, width - 2 * len(ELLIPSIS))
    return _Best(count, first, last, occurrences)


def _has_whole_words(text: str, begin: int, end: int) -> bool:
    """True if a piece begins and ends with whole words, so that it has no cut ones."""
    begins = begin == 0 or text[begin - 1] == " "
    return begins and (end == len(text) or text[end] == " ")


def _word_begin(text: str, at: int) -> int:
    """Return the start of the next word; `at` if none is near."""
    if at <= 0 or at >= len(text) or text[at - 1] == " ":
        return at
    space = text.find(" ", at, at + _MAX_WORD_CHARS)
    return at if space < 0 else space + 1


def _word_end(text: str, at: int) -> int:
    """Return the end of the previous word; `at` if none is near."""
    if at >= len(text) or text[at] == " ":
        return at
    space = text.rfind(" ", max(at - _MAX_WORD_CHARS, 0), at)
    return at if space < 0 else space


# ---------------------------------------------------------------------------------- occurrences


def _find_occurrences(text: str, terms: Sequence[Term]) -> list[_Occurrence]:
    """Return the occurrences of terms in a text, in the order of the text."""
    traced = _TracedText(text, many=len(terms) > _MAX_UNINDEXED_TERMS)
    found = [
        _Occurrence(start, end, number)
        for number, term in enumerate(terms)
        for start, end in traced.ranges(term)
    ]
    return sorted(found, key=lambda occurrence: (occurrence.start, -occurrence.end))


class _TracedText:
    """The words of a text, and the parts of its names, which are computed only if needed."""

    def __init__(self, text: str, *, many: bool) -> None:
        self._text = text
        self._many = many
        self._words = traced_words(text)

    @cached_property
    def _parts(self) -> TracedTokens:
        return traced_parts(self._text)

    def ranges(self, term: Term) -> Iterator[tuple[int, int]]:
        """Return the ranges of a term in the text."""
        if not term.tokens:
            yield from _find_literal(self._text, " ".join(term.raw.split()))
            return
        yield from self._words.find(term.tokens, prefix=term.prefix, many=self._many)
        if self._many or term.prefix or any(map(self._words.may_be_within, term.tokens)):
            yield from self._parts.find(term.tokens, prefix=term.prefix)
        if term.parts:
            yield from self._parts.find(term.parts, prefix=term.prefix)


def _find_literal(text: str, raw: str) -> Iterator[tuple[int, int]]:
    at = text.find(raw) if raw else -1
    while at >= 0:
        yield at, at + len(raw)
        at = text.find(raw, at + len(raw))


# -------------------------------------------------------------------------------------- the cut


def _cut(text: str, best: _Best, width: int) -> Snippet:
    if len(text) <= width:
        return Snippet(text, _merge_ranges(best.occurrences, 0, len(text), 0))
    room = width - 2 * len(ELLIPSIS)
    first, last = best.first, best.last
    start = max(0, min(first - max(room - (last - first), 0) // 2, len(text) - room))
    end = start + room
    if start:
        start = min(_word_begin(text, start), max(first, start))
    end = max(_word_end(text, end), min(last, end))
    before = ELLIPSIS if start else ""
    after = ELLIPSIS if end < len(text) else ""
    shown = f"{before}{text[start:end]}{after}"
    return Snippet(shown, _merge_ranges(best.occurrences, start, end, len(before) - start))


def _closest(occurrences: Sequence[_Occurrence], room: int) -> tuple[int, int, int]:
    """Return the largest number of different terms within `room` characters, and their range.

    Of equal ranges the one with the most occurrences is taken.
    """
    best, best_range = (0, 0), (0, 0)
    for at, occurrence in enumerate(occurrences):
        together = [occurrence]
        for other in occurrences[at + 1 : at + 1 + room]:
            if other.start >= occurrence.start + room:
                break
            if other.end <= occurrence.start + room:
                together.append(other)
        worth = (len({other.term for other in together}), len(together))
        if worth > best:
            best, best_range = worth, (occurrence.start, max(other.end for other in together))
    return best[0], *best_range


def _merge_ranges(
    occurrences: Sequence[_Occurrence], start: int, end: int, shift: int
) -> tuple[tuple[int, int], ...]:
    """Return the ranges of occurrences within a cut, shifted into it; overlapping ones merged."""
    merged: list[tuple[int, int]] = []
    for occurrence in occurrences:
        left, right = max(occurrence.start, start) + shift, min(occurrence.end, end) + shift
        if left >= right:
            continue
        if merged and left < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], right))
        else:
            merged.append((left, right))
    return tuple(merged)
