"""Matching and scoring: the rule that every index has to agree with.

A term matches where its tokens are adjacent and in order among the words of a text, or among the
parts of its names; the last token of a prefix term matches the beginning of a word. A term that is
a name itself also matches by its parts. A term without tokens matches where its characters occur
literally. All wanted terms must match and no unwanted one; so a query without terms matches
everything.

Thinking is searched only on request: its words, not the parts of its names. No term spans text and
thinking.

A score is bm25 with a fixed average length instead of that of the corpus, so that it depends on the
message only, multiplied by a factor for its age: 1 for a message of today, 3/4 for one of a month
ago, never less than 1/2. So age decides between messages that match about equally well, and never
hides one that matches twice as well.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.search.document import Document
from holdfast.search.query import Query, Term
from holdfast.search.tokenize import parts, words

_SATURATION: Final = 1.2  # k1 of bm25: how much repetitions of a term add
_LENGTH_WEIGHT: Final = 0.5  # b of bm25: how much the length of a message matters
_AVERAGE_LENGTH: Final = 150.0
_MIN_RECENCY: Final = 0.5  # the factor that the oldest messages approach
_RECENCY_SCALE_DAYS: Final = 30.0


class Match(msgspec.Struct, frozen=True, gc=False):
    """The frequency of each wanted term, in their order, and the total number of words."""

    frequencies: tuple[int, ...]
    length: int


def matches(query: Query, document: Document, *, thinking: bool = False) -> Match | None:
    """Return how a document matches a query; None if it does not. Filters are ignored."""
    return _match(query.wanted, query.unwanted, _Content(document, thinking=thinking))


def fits_title(query: Query, title: str | None) -> bool:
    """True if the title of a session passes the query's filter on titles."""
    terms = query.filters.title
    wanted = [term for term in terms if not term.excluded]
    unwanted = [term for term in terms if term.excluded]
    return match_title(wanted, unwanted, title or "") is not None


def match_title(wanted: Iterable[Term], unwanted: Iterable[Term], title: str) -> Match | None:
    """Return how a title matches terms; None if it does not."""
    return _match(wanted, unwanted, _title_content(title))


def frequencies(terms: Iterable[Term], text: str) -> tuple[int, ...]:
    """Return how often each of some terms occurs in a text."""
    content = _Content(Document(text), thinking=False)
    return tuple(content.frequency(term) for term in terms)


def count_present(terms: Iterable[Term], text: str) -> int:
    """Return how many of some terms occur in a text."""
    content = _Content(Document(text), thinking=False)
    return sum(content.has(term) for term in terms)


def score(frequencies: Sequence[int], length: int, age_days: float) -> float:
    """Return the score of a match; higher is better."""
    relative = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * length / _AVERAGE_LENGTH
    relevance = sum(
        often * (_SATURATION + 1) / (often + _SATURATION * relative) for often in frequencies
    )
    return (relevance if frequencies else 1.0) * _recency(age_days)


def _recency(age_days: float) -> float:
    age = max(age_days, 0.0)  # another machine's clock may be ahead
    return _MIN_RECENCY + (1 - _MIN_RECENCY) / (1 + age / _RECENCY_SCALE_DAYS)


def _match(wanted: Iterable[Term], unwanted: Iterable[Term], content: _Content) -> Match | None:
    if any(content.frequency(term) for term in unwanted):
        return None
    frequencies: list[int] = []
    for term in wanted:
        often = content.frequency(term)
        if not often:
            return None
        frequencies.append(often)
    return Match(tuple(frequencies), content.length)


class _Content:
    """A document in the forms in which terms are counted: tokens joined by single spaces."""

    __slots__ = ("_known_parts", "_known_plain", "_texts", "_words", "length")

    def __init__(self, document: Document, *, thinking: bool) -> None:
        self._texts = [document.text]
        if thinking and document.thinking:
            self._texts.append(document.thinking)
        tokens = [words(text) for text in self._texts]
        self.length = sum(map(len, tokens))
        self._words = [_joined(found) for found in tokens]
        self._known_parts: str | None = None
        self._known_plain: list[str] | None = None

    def frequency(self, term: Term) -> int:
        """Return how often a term occurs."""
        if not term.tokens:
            literally = _literal_needle(term.raw)
            return sum(text.count(literally) for text in self._plain)
        needle = _needle(term.tokens, prefix=term.prefix)
        often = count_overlapping(self._parts, needle)
        for text in self._words:
            often += count_overlapping(text, needle)
        if not term.parts:
            return often
        return max(often, count_overlapping(self._parts, _needle(term.parts, prefix=term.prefix)))

    def has(self, term: Term) -> bool:
        """True if a term occurs. Words come first: the parts of names are slow to compute."""
        if term.tokens:
            needle = _needle(term.tokens, prefix=term.prefix)
            if any(needle in text for text in self._words):
                return True
        return self.frequency(term) > 0

    @property
    def _parts(self) -> str:
        if self._known_parts is None:
            self._known_parts = _joined(parts(self._texts[0]))
        return self._known_parts

    @property
    def _plain(self) -> list[str]:
        if self._known_plain is None:
            self._known_plain = [_literal(text) for text in self._texts]
        return self._known_plain


@lru_cache(maxsize=65_536)
def _title_content(title: str) -> _Content:
    """Return the content of a title; searches in a row compare the same titles."""
    return _Content(Document(title), thinking=False)


def _joined(tokens: Sequence[str]) -> str:
    return f" {' '.join(tokens)} "


def _needle(tokens: Sequence[str], *, prefix: bool) -> str:
    return f" {' '.join(tokens)}" if prefix else f" {' '.join(tokens)} "


def count_overlapping(text: str, needle: str) -> int:
    """Return how often a needle occurs in a text, overlaps included."""
    often, at = 0, text.find(needle)
    while at >= 0:
        often += 1
        at = text.find(needle, at + 1)
    return often


class _Decomposed(dict[int, str]):
    """The decomposition of each character, computed when first needed."""

    def __missing__(self, code: int) -> str:
        self[code] = found = unicodedata.normalize("NFKD", chr(code))
        return found


_DECOMPOSED: Final = _Decomposed()


def _literal(text: str) -> str:
    """Return a text for literal comparison: compatible forms and cases become equal.

    Each character is decomposed by itself: putting a long run of accents into Unicode's order takes
    quadratic time.
    """
    return text.casefold() if text.isascii() else text.translate(_DECOMPOSED).casefold()


_literal_needle: Final = lru_cache(maxsize=64)(_literal)
