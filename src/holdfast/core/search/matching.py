"""Deciding whether a message is found, and how well: the rule that every index has to keep.

A term is found where its tokens stand next to each other in the words of a text, or in the parts of
its names, each in their own order; the last token of a prefix is the beginning of one there. A term
that is a name itself is also found by its parts. A term without tokens is found where it stands
literally. All wanted terms must be found and no unwanted one; so a query without terms finds
everything.

Thinking counts only when it is asked for: its words, not the parts of its names. No term spans from
the text into it.

A score weighs how often the terms are there against how long the message is (as bm25 does, with a
fixed average in place of the corpus's, so that a score depends on nothing but the message), then
how old it is: a message of today counts 1, one of a month ago 3/4, and none less than 1/2. So age
decides between messages that are about equally good, and never hides one that is twice as good.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast.core.search.documents import Document
from holdfast.core.search.query import Query, Term
from holdfast.core.search.words import parts, words

_SATURATION: Final = 1.2  # how much a word says that comes again and again
_LENGTH_WEIGHT: Final = 0.5  # how much a long message has to say it more often
_AVERAGE_LENGTH: Final = 150.0
_OLD: Final = 0.5  # what is left of a message's weight, however old it is
_FADING_DAYS: Final = 30.0


class Match(msgspec.Struct, frozen=True, gc=False):
    """How often each wanted term is there, in their order, and how many words there are in all."""

    frequencies: tuple[int, ...]
    length: int


def matches(query: Query, document: Document, *, thinking: bool = False) -> Match | None:
    """Return how a document fits a query, or that it does not. Filters are not looked at."""
    return _match(query.wanted, query.unwanted, _Content(document, thinking=thinking))


def fits_title(query: Query, title: str | None) -> bool:
    """Return whether the title of a session is one that the query asks for."""
    terms = query.filters.title
    wanted = [term for term in terms if not term.excluded]
    unwanted = [term for term in terms if term.excluded]
    return _match(wanted, unwanted, _Content(Document(title or ""), thinking=False)) is not None


def frequencies(terms: Iterable[Term], text: str) -> tuple[int, ...]:
    """Count in a text where each of some terms is found."""
    content = _Content(Document(text), thinking=False)
    return tuple(content.frequency(term) for term in terms)


def how_many(terms: Iterable[Term], text: str) -> int:
    """Count which of some terms are found in a text at all."""
    content = _Content(Document(text), thinking=False)
    return sum(content.has(term) for term in terms)


def score(frequencies: Sequence[int], length: int, age_days: float) -> float:
    """Weigh a match: more is better."""
    relative = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * length / _AVERAGE_LENGTH
    said = sum(
        often * (_SATURATION + 1) / (often + _SATURATION * relative) for often in frequencies
    )
    return (said if frequencies else 1.0) * _recency(age_days)


def _recency(age_days: float) -> float:
    age = max(age_days, 0.0)  # a clock may be ahead of ours
    return _OLD + (1 - _OLD) / (1 + age / _FADING_DAYS)


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
    """A document in the forms in which terms are counted: tokens between single spaces."""

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
        """Count where a term is found."""
        if not term.tokens:
            literally = _plain(term.raw)
            return sum(text.count(literally) for text in self._plain)
        needle = _needle(term.tokens, prefix=term.prefix)
        often = sum(count_of(text, needle) for text in self._words) + count_of(self._parts, needle)
        if not term.parts:
            return often
        return max(often, count_of(self._parts, _needle(term.parts, prefix=term.prefix)))

    def has(self, term: Term) -> bool:
        """Return whether a term is found: often the words say so, and no parts are needed."""
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
            self._known_plain = [_plain(text) for text in self._texts]
        return self._known_plain


def _joined(tokens: Sequence[str]) -> str:
    return f" {' '.join(tokens)} "


def _needle(tokens: Sequence[str], *, prefix: bool) -> str:
    return f" {' '.join(tokens)}" if prefix else f" {' '.join(tokens)} "


def count_of(text: str, needle: str) -> int:
    """Count a needle; two may share a space, or overlap."""
    often, at = 0, text.find(needle)
    while at >= 0:
        often += 1
        at = text.find(needle, at + 1)
    return often


def _plain(text: str) -> str:
    """Return a text in which marks are compared: compatible forms and cases are the same."""
    return text.casefold() if text.isascii() else unicodedata.normalize("NFKD", text).casefold()
