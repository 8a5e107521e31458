"""A query, as it is asked of the tables of an index.

A statement is put together from named pieces. A term is a needle in what is said, in the parts of
names, or in what is thought, each word between spaces of its own, just as in
`core.search.matching`; the engine counts how often it is there. Its index of lexemes tells in which
messages the words may be, block by block of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast.backends.statements import load
from holdfast.core.search.matching import count_of
from holdfast.core.search.query import Query, Term
from holdfast.index.kept import ROLES, Bounds, Chunk, Entry

SQL: Final = load(__package__)
CHUNK: Final = 1000
PROBED: Final = 100  # messages that tell whether words are common
_LAST: Final = (1 << 63) - 1
_FEW_TERMS: Final = 6  # whose counts have columns of their own
_MOST_PROBED_TERMS: Final = 4
_MOST_PHRASES: Final = 5
_MOST_LEXEMES: Final = 48  # of a query; what it says beside them is looked at in what is found
_MOST_OF_A_TERM: Final = 8


class Statement:
    """A statement that is put together from pieces, and its values."""

    def __init__(self, name: str, *first: object) -> None:
        self.text = SQL[name]
        self.values: list[object] = list(first)

    def bound(self, value: object, kind: str) -> str:
        """Return what stands for a value."""
        self.values.append(value)
        return f"${len(self.values)}::{kind}"

    def piece(self, name: str, value: object, kind: str) -> str:
        """Return a piece that compares something with a value."""
        return SQL[name].format(self.bound(value, kind))

    def fill(self, **pieces: str) -> None:
        """Return what stands where the text has names."""
        self.text = self.text.format(**pieces)


class Asked:
    """A query, as it is asked of tables."""

    def __init__(self, query: Query, bounds: Bounds, code: str, *, thinking: bool) -> None:
        self.wanted = [term for term in query.wanted if term.tokens]
        self._unwanted = [term for term in query.unwanted if term.tokens]
        self._recounted = [at for at, term in enumerate(self.wanted) if _overlaps(term)]
        self._code = code
        self._thinking = thinking
        self._bounds = bounds

    def probe(self) -> Statement:
        """Ask how many of the newest messages are found."""
        asked = Statement("probe", PROBED)
        terms = sorted(self.wanted, key=_longest, reverse=True)[:_MOST_PROBED_TERMS]
        has = [self._has(asked, term) for term in terms]
        asked.fill(has=" AND ".join([*_bounds(self._bounds, asked, hidden=True), *has]))
        return asked

    def one_by_one(self) -> Statement:
        """Ask for what has the words, where each message is looked at."""
        name = "newest_matching" if self._bounds.branches is None else "matching"
        asked = Statement(name, _LAST, CHUNK)
        return self._filled(asked, [self._has(asked, term) for term in self._longest()])

    def newest(self, low: int) -> Statement:
        """Ask for what has the words from a number on, where each message is looked at."""
        asked = Statement("newest_matching", _LAST, CHUNK)
        from_there = asked.piece("from_number", low, "bigint")
        has = [self._has(asked, term) for term in self._longest()]
        return self._filled(asked, [from_there, *has], hidden=True)

    def by_lexemes(self, blocks: Sequence[int]) -> Statement:
        """Ask for what has the words by the engine's index of lexemes.

        Where words stand next to each other is not known there.
        """
        asked = Statement("matching", _LAST, CHUNK)
        lexemes = " | ".join(_lexemes(self.wanted, f"{self._code}{block:x}.") for block in blocks)
        wanted = [asked.piece("by_lexemes", lexemes, "tsquery")]
        phrases = [term for term in self.wanted if len(term.tokens) > 1][:_MOST_PHRASES]
        wanted += [self._has(asked, term) for term in phrases]
        return self._filled(asked, wanted, hidden=True)

    def _longest(self) -> list[Term]:
        """Return the term with the longest word: it tells most messages apart."""
        return [max(self.wanted, key=_longest)] if self.wanted else []

    def _has(self, asked: Statement, term: Term) -> str:
        """Say that a term is there."""
        (said,), (named,) = _needles([term])
        found = [asked.piece("is_said", said, "text")]
        if named:
            found.append(asked.piece("is_said", named, "text"))
        if self._thinking:
            found.append(asked.piece("is_thought", said, "text"))
        return f"({' OR '.join(found)})"

    def _filled(
        self, asked: Statement, wanted: Sequence[str], *, hidden: bool = False
    ) -> Statement:
        """Return what must be so, and what is to be told. `hidden`: branches name no way to go."""
        # The server looks at them in this order: what takes long comes last.
        conditions = [*_bounds(self._bounds, asked, hidden=hidden), *wanted]
        counts, often, fits = self._counted(asked)
        if self._unwanted:
            fits = f"{fits} AND {self._of_many(asked, 'has_none_of', self._unwanted)}"
        thought = "d.thought" if self._thinking else "''"
        asked.fill(
            which="".join(f"AND {condition} " for condition in conditions),
            counts=counts,
            often=often,
            fits=fits,
            texts=f"d.said, {thought}" if self._recounted else "NULL, NULL",
            length="d.length + d.thoughts" if self._thinking else "d.length",
        )
        return asked

    def _counted(self, asked: Statement) -> tuple[str, str, str]:
        """Return how the terms are counted, how that is told, and when all are there."""
        if len(self.wanted) > _FEW_TERMS:
            counts = self._of_many(asked, "counts_of_many", self.wanted)
            return f"{counts} AS c", "d.c", "concat(',', d.c, ',') NOT LIKE '%,0,%'"
        if not self.wanted:
            return "NULL AS c", "NULL", "true"
        each = [f"{self._count(asked, term)} AS c{at}" for at, term in enumerate(self.wanted)]
        names = ", ".join(f"d.c{at}" for at in range(len(each)))
        often = "d.c0" if len(each) == 1 else f"concat_ws(',', {names})"
        return ", ".join(each), often, f"least({names}) > 0"

    def _count(self, asked: Statement, term: Term) -> str:
        (said,), (named,) = _needles([term])
        count, needle = SQL["count_in"].format, asked.bound(said, "text")
        often = count(needle, "chosen.said")
        if self._thinking:
            often = f"{often} + {count(needle, 'chosen.thought')}"
        if not named:
            return often
        parts = count(asked.bound(named, "text"), "split_part(chosen.said, E'\\n', 2)")
        return f"greatest({often}, {parts})"

    def _of_many(self, asked: Statement, name: str, terms: Sequence[Term]) -> str:
        said, named = (asked.bound(needles, "text[]") for needles in _needles(terms))
        return SQL[name].format(said=said, named=named, thinking=self._thinking)

    def chunk(self, rows: Sequence[tuple[Any, ...]]) -> Chunk:
        """Return those of some rows that match."""
        if self._recounted:
            entries = [self._recount(row) for row in rows if row[7]]
        else:
            entries = [row[:6] for row in rows if row[7]]
        return Chunk(entries, _frequencies)

    def _recount(self, row: tuple[Any, ...]) -> Entry:
        """Count phrases that may overlap here: the engine does not see all of them."""
        counts = list(_frequencies(row[5]))
        for place in self._recounted:
            counts[place] = _recount(self.wanted[place], row[8], row[9] or "")
        return (*row[:5], tuple(counts))


def _longest(term: Term) -> int:
    return max(map(len, term.tokens))


def _bounds(bounds: Bounds, asked: Statement, *, hidden: bool) -> Iterator[str]:
    """Return what must be so beside the words."""
    if bounds.role is not None:
        yield asked.piece("of_role", ROLES.index(bounds.role), "bigint")
    if bounds.since is not None:
        yield asked.piece("since", bounds.since, "bigint")
    if bounds.until is not None:
        yield asked.piece("until", bounds.until, "bigint")
    if bounds.branches is not None:
        name = "if_on_branches" if hidden else "on_branches"
        yield asked.piece(name, listed(bounds.branches), "bigint[]")


def listed(numbers: Sequence[int]) -> str:
    """Write numbers as the server does: for many that is far quicker than one by one."""
    return f"{{{','.join(map(str, numbers))}}}"


def spaced(tokens: Sequence[str]) -> str:
    """Put words between spaces of their own, so that two of them never share one."""
    return f" {'  '.join(tokens)} " if tokens else ""


def _needles(terms: Sequence[Term]) -> tuple[list[str], list[str]]:
    """Return what terms are in what is said, and in the parts of names."""
    said = [_needle(term.tokens, prefix=term.prefix) for term in terms]
    named = [_needle(term.parts, prefix=term.prefix) if term.parts else "" for term in terms]
    return said, named


def _needle(tokens: Sequence[str], *, prefix: bool) -> str:
    needle = spaced(tokens)
    return needle[:-1] if prefix else needle


# ------------------------------------------------------------------------------------- counting


def _overlaps(term: Term) -> bool:
    """Return whether a phrase may begin again before it ends; the engine counts only one then."""
    return any(
        tokens[0] in tokens[1:] or (term.prefix and tokens[0].startswith(tokens[-1]))
        for tokens in (term.tokens, term.parts)
        if len(tokens) > 1
    )


def _recount(term: Term, said: str, thought: str) -> int:
    needle = _needle(term.tokens, prefix=term.prefix)
    often = count_of(said, needle) + count_of(thought, needle)
    if not term.parts:
        return often
    names = said.partition("\n")[2]
    return max(often, count_of(names, _needle(term.parts, prefix=term.prefix)))


def _frequencies(often: int | str | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return how often each term is there."""
    if isinstance(often, int):
        return (often,)
    if isinstance(often, tuple):
        return often
    return tuple(map(int, often.split(","))) if often else ()


# -------------------------------------------------------------------------------------- lexemes


def _lexemes(terms: Sequence[Term], code: str) -> str:
    """Ask for messages that may have some terms, in the engine's grammar.

    Tokens have no quotes in them. Messages with too many words to be asked for have the code alone.
    """
    room = _MOST_LEXEMES
    asked = []
    for term in sorted(terms, key=lambda term: -max(map(len, term.tokens))):
        found = _lexemes_of(term.tokens, code, prefix=term.prefix)
        if term.parts:
            found = f"({found} | {_lexemes_of(term.parts, code, prefix=term.prefix)})"
        asked.append(found)
        room -= len(term.tokens) + len(term.parts)
        if room <= 0:
            break
    return f"({' & '.join(asked)}) | '{code}'"


def _lexemes_of(tokens: Sequence[str], code: str, *, prefix: bool) -> str:
    """Ask for the words of a term; of many the longest, which are in the fewest messages."""
    marked = dict.fromkeys(tokens, "")
    if prefix and tokens.count(tokens[-1]) == 1:
        marked[tokens[-1]] = ":*"
    rarest = sorted(marked, key=len, reverse=True)[:_MOST_OF_A_TERM]
    asked = (f"'{code}{token}'{marked[token]}" for token in rarest)
    return f"({' & '.join(asked)})"
