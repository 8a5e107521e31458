"""The place in a text that shows why it was found.

A snippet is the stretch of a text in which the most different terms of a query stand close together
(of several such the first), with white space folded, cut between words where there are spaces, and
`…` where something was left out. Its marks are what matches, as ranges of its own text: whole words
as they were written, also where a prefix, a folded letter or a part of a name was looked for. Where
nothing matches (the title did, or there are no terms) it is the beginning.

A long text is looked through piece by piece, up to the first piece that has all terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.core.search.matching import frequencies
from holdfast.core.search.query import Query, Term
from holdfast.core.search.words import Span, part_spans, spans

LEFT_OUT: Final = "…"
_PIECE: Final = 4_000
_OVERLAP: Final = 400  # what stands close together is together in one piece
_ENOUGH: Final = 2_000_000  # as far as a better place is looked for
_NARROWEST: Final = 16
_LONG_WORD: Final = 24  # what is longer may be cut; there may be no spaces at all


class Snippet(msgspec.Struct, frozen=True):
    """A short text, and the ranges of it that match."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Where a term is."""

    start: int
    end: int
    term: int


def snippet(text: str, query: Query, *, width: int = 160) -> Snippet:
    """Show the best place of a text for a query in at most `width` characters (or 16)."""
    whole = " ".join(text.split())
    begin, end = _best_piece(whole, query.wanted)
    places = [
        _Place(begin + place.start, begin + place.end, place.term)
        for place in _places(whole[begin:end], query.wanted)
    ]
    return _cut(whole, places, max(width, _NARROWEST))


def marked(snippet: Snippet, before: str, after: str) -> str:
    """Write a snippet with something around each of its marks."""
    pieces, at = [], 0
    for start, end in snippet.marks:
        pieces += [snippet.text[at:start], before, snippet.text[start:end], after]
        at = end
    return "".join([*pieces, snippet.text[at:]])


# ------------------------------------------------------------------------------------ the piece


def _best_piece(text: str, terms: Sequence[Term]) -> tuple[int, int]:
    """Say between where in a text the most different terms are."""
    overlap = _OVERLAP + 2 * max((len(term.raw) for term in terms), default=0)
    best, found = (0, _PIECE + overlap), 0
    if len(text) <= _PIECE:
        return best
    for begin, end in _pieces(text, overlap):
        if begin > _ENOUGH and found:
            break
        here = sum(map(bool, frequencies(terms, text[begin:end])))
        if here > found:
            best, found = (begin, end), here
        if found == len(terms):
            break
    return best


def _pieces(text: str, overlap: int) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(text):
        yield begin, min(_word_end(text, begin + _PIECE + overlap), len(text))
        begin = _word_begin(text, begin + _PIECE)


def _word_begin(text: str, at: int) -> int:
    """Go on to where a word begins, unless there is none near."""
    if at <= 0 or at >= len(text) or text[at - 1] == " ":
        return at
    space = text.find(" ", at, at + _LONG_WORD)
    return at if space < 0 else space + 1


def _word_end(text: str, at: int) -> int:
    """Go back to where a word ends, unless there is none near."""
    if at >= len(text) or text[at] == " ":
        return at
    space = text.rfind(" ", max(at - _LONG_WORD, 0), at)
    return at if space < 0 else space


# ----------------------------------------------------------------------------------- the places


def _places(text: str, terms: Sequence[Term]) -> list[_Place]:
    """Find the terms in a text, in the order of the text."""
    if not terms:
        return []
    tokens, inner = spans(text), part_spans(text)
    found = [
        _Place(start, end, number)
        for number, term in enumerate(terms)
        for start, end in _ranges(text, term, tokens, inner)
    ]
    return sorted(found, key=lambda place: (place.start, -place.end))


def _ranges(
    text: str, term: Term, tokens: Sequence[Span], inner: Sequence[Span]
) -> Iterator[tuple[int, int]]:
    if not term.tokens:
        yield from _literally(text, " ".join(term.raw.split()))
        return
    yield from _phrases(tokens, term.tokens, prefix=term.prefix)
    yield from _phrases(inner, term.tokens, prefix=term.prefix)
    if term.parts:
        yield from _phrases(inner, term.parts, prefix=term.prefix)


def _phrases(
    found: Sequence[Span], tokens: Sequence[str], *, prefix: bool
) -> Iterator[tuple[int, int]]:
    *first, last = tokens
    for at in range(len(found) - len(first)):
        token, _, end = found[at + len(first)]
        if not (token.startswith(last) if prefix else token == last):
            continue
        if all(found[at + behind][0] == wanted for behind, wanted in enumerate(first)):
            yield found[at][1], end


def _literally(text: str, raw: str) -> Iterator[tuple[int, int]]:
    at = text.find(raw) if raw else -1
    while at >= 0:
        yield at, at + len(raw)
        at = text.find(raw, at + len(raw))


# -------------------------------------------------------------------------------------- the cut


def _cut(text: str, places: Sequence[_Place], width: int) -> Snippet:
    if len(text) <= width:
        return Snippet(text, _merged(places, 0, len(text), 0))
    room = width - 2 * len(LEFT_OUT)
    first, last = _closest(places, room)
    start = max(0, min(first - max(room - (last - first), 0) // 2, len(text) - room))
    end = start + room
    if start:
        start = min(_word_begin(text, start), max(first, start))
    end = max(_word_end(text, end), min(last, end))
    before = LEFT_OUT if start else ""
    after = LEFT_OUT if end < len(text) else ""
    shown = f"{before}{text[start:end]}{after}"
    return Snippet(shown, _merged(places, start, end, len(before) - start))


def _closest(places: Sequence[_Place], room: int) -> tuple[int, int]:
    """Say from where to where the most different terms are within a room, then the most."""
    best, best_range = (0, 0), (0, 0)
    for at, place in enumerate(places):
        together = [place]
        for other in places[at + 1 : at + 1 + room]:
            if other.start >= place.start + room:
                break
            if other.end <= place.start + room:
                together.append(other)
        worth = (len({other.term for other in together}), len(together))
        if worth > best:
            best, best_range = worth, (place.start, max(other.end for other in together))
    return best_range


def _merged(
    places: Sequence[_Place], start: int, end: int, shift: int
) -> tuple[tuple[int, int], ...]:
    """Give the ranges of the places within a cut, in the cut; those that overlap are one."""
    merged: list[tuple[int, int]] = []
    for place in places:
        left, right = max(place.start, start) + shift, min(place.end, end) + shift
        if left >= right:
            continue
        if merged and left < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], right))
        else:
            merged.append((left, right))
    return tuple(merged)
