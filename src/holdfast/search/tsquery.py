"""SQL for a query of an index in tables.

A statement is assembled from named fragments of `tsvector.sql`. A term becomes a needle that is
searched for in the text, in the parts of names or in the thinking, with each word padded by spaces,
as in `match`; the server counts its occurrences. A `tsquery` on the index of lexemes preselects the
messages that may have the words, by blocks of message numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast.search.match import count_of
from holdfast.search.protocol import ROLES, Bounds, Chunk, Entry
from holdfast.search.query import Query, Term
from holdfast.storage.sql_files import load

SQL: Final = load(__package__, "tsvector.sql")
CHUNK: Final = 1000
PROBED: Final = 100  # the newest messages, which show whether words are common
_LAST: Final = (1 << 63) - 1
_FEW_TERMS: Final = 6  # beyond, the counts of all terms are one column
_MOST_PROBED_TERMS: Final = 4
_MOST_PHRASES: Final = 5
_MOST_LEXEMES: Final = 48  # per query; its other words are checked in the preselected messages
_MOST_OF_A_TERM: Final = 8


class Statement:
    """A statement that is assembled from fragments, and its values."""

    def __init__(self, name: str, *first: object) -> None:
        self.text = SQL[name]
        self.values: list[object] = list(first)

    def bound(self, value: object, kind: str) -> str:
        """Add a value and return its placeholder."""
        self.values.append(value)
        return f"${len(self.values)}::{kind}"

    def piece(self, name: str, value: object, kind: str) -> str:
        """Return the condition of this name with a value."""
        return SQL[name].format(self.bound(value, kind))

    def fill(self, **pieces: str) -> None:
        """Replace the named fields of the text."""
        self.text = self.text.format(**pieces)


class Asked:
    """The statements that run one query."""

    def __init__(self, query: Query, bounds: Bounds, code: str, *, thinking: bool) -> None:
        self.wanted = [term for term in query.wanted if term.tokens]
        self._unwanted = [term for term in query.unwanted if term.tokens]
        self._recounted = [at for at, term in enumerate(self.wanted) if _overlaps(term)]
        self._code = code
        self._thinking = thinking
        self._bounds = bounds

    def probe(self) -> Statement:
        """Count how many of the newest messages match."""
        statement = Statement("probe", PROBED)
        terms = sorted(self.wanted, key=_longest, reverse=True)[:_MOST_PROBED_TERMS]
        has = [self._has(statement, term) for term in terms]
        statement.fill(has=" AND ".join([*_bounds(self._bounds, statement, hidden=True), *has]))
        return statement

    def one_by_one(self) -> Statement:
        """Select the matches by scanning each message."""
        name = "newest_matching" if self._bounds.branches is None else "matching"
        statement = Statement(name, _LAST, CHUNK)
        return self._filled(statement, [self._has(statement, term) for term in self._longest()])

    def newest(self, low: int) -> Statement:
        """Select the matches from a number on by scanning each message."""
        statement = Statement("newest_matching", _LAST, CHUNK)
        from_there = statement.piece("from_number", low, "bigint")
        has = [self._has(statement, term) for term in self._longest()]
        return self._filled(statement, [from_there, *has], hidden=True)

    def by_lexemes(self, blocks: Sequence[int]) -> Statement:
        """Select the matches by the server's index of lexemes.

        It does not know which words are adjacent, so phrases are checked in the text.
        """
        statement = Statement("matching", _LAST, CHUNK)
        lexemes = " | ".join(_lexemes(self.wanted, f"{self._code}{block:x}.") for block in blocks)
        wanted = [statement.piece("by_lexemes", lexemes, "tsquery")]
        phrases = [term for term in self.wanted if len(term.tokens) > 1][:_MOST_PHRASES]
        wanted += [self._has(statement, term) for term in phrases]
        return self._filled(statement, wanted, hidden=True)

    def _longest(self) -> list[Term]:
        """Return the term with the longest word: it is probably the most selective one."""
        return [max(self.wanted, key=_longest)] if self.wanted else []

    def _has(self, statement: Statement, term: Term) -> str:
        """Return the condition that a term occurs."""
        (said,), (named,) = _needles([term])
        found = [statement.piece("in_text", said, "text")]
        if named:
            found.append(statement.piece("in_text", named, "text"))
        if self._thinking:
            found.append(statement.piece("in_thinking", said, "text"))
        return f"({' OR '.join(found)})"

    def _filled(
        self, statement: Statement, wanted: Sequence[str], *, hidden: bool = False
    ) -> Statement:
        """Fill in conditions and columns. `hidden`: branches must not be used to find the rows."""
        # The server evaluates them in this order: slow ones come last.
        conditions = [*_bounds(self._bounds, statement, hidden=hidden), *wanted]
        counts, frequencies, matches = self._counted(statement)
        if self._unwanted:
            matches = f"{matches} AND {self._of_many(statement, 'has_none_of', self._unwanted)}"
        thought = "d.thought" if self._thinking else "''"
        statement.fill(
            conditions="".join(f"AND {condition} " for condition in conditions),
            counts=counts,
            frequencies=frequencies,
            matches=matches,
            texts=f"d.said, {thought}" if self._recounted else "NULL, NULL",
            length="d.length + d.thoughts" if self._thinking else "d.length",
        )
        return statement

    def _counted(self, statement: Statement) -> tuple[str, str, str]:
        """Return the columns of counts, all counts as one value, and the condition on them."""
        if len(self.wanted) > _FEW_TERMS:
            counts = self._of_many(statement, "counts_of_many", self.wanted)
            return f"{counts} AS c", "d.c", "concat(',', d.c, ',') NOT LIKE '%,0,%'"
        if not self.wanted:
            return "NULL AS c", "NULL", "true"
        each = [f"{self._count(statement, term)} AS c{at}" for at, term in enumerate(self.wanted)]
        names = ", ".join(f"d.c{at}" for at in range(len(each)))
        often = "d.c0" if len(each) == 1 else f"concat_ws(',', {names})"
        return ", ".join(each), often, f"least({names}) > 0"

    def _count(self, statement: Statement, term: Term) -> str:
        (said,), (named,) = _needles([term])
        count, needle = SQL["count_in"].format, statement.bound(said, "text")
        often = count(needle, "chosen.said")
        if self._thinking:
            often = f"{often} + {count(needle, 'chosen.thought')}"
        if not named:
            return often
        parts = count(statement.bound(named, "text"), "split_part(chosen.said, E'\\n', 2)")
        return f"greatest({often}, {parts})"

    def _of_many(self, statement: Statement, name: str, terms: Sequence[Term]) -> str:
        said, named = (statement.bound(needles, "text[]") for needles in _needles(terms))
        return SQL[name].format(said=said, named=named, thinking=self._thinking)

    def chunk(self, rows: Sequence[tuple[Any, ...]]) -> Chunk:
        """Return the rows that match."""
        if self._recounted:
            entries = [self._recount(row) for row in rows if row[7]]
        else:
            entries = [row[:6] for row in rows if row[7]]
        return Chunk(entries, _frequencies)

    def _recount(self, row: tuple[Any, ...]) -> Entry:
        """Count phrases that may overlap here: the server counts only disjoint ones."""
        counts = list(_frequencies(row[5]))
        for at in self._recounted:
            counts[at] = _recount(self.wanted[at], row[8], row[9] or "")
        return (*row[:5], tuple(counts))


def _longest(term: Term) -> int:
    return max(map(len, term.tokens))


def _bounds(bounds: Bounds, statement: Statement, *, hidden: bool) -> Iterator[str]:
    """Return the conditions apart from the words."""
    if bounds.role is not None:
        yield statement.piece("of_role", ROLES.index(bounds.role), "bigint")
    if bounds.since is not None:
        yield statement.piece("since", bounds.since, "bigint")
    if bounds.until is not None:
        yield statement.piece("until", bounds.until, "bigint")
    if bounds.branches is not None:
        name = "if_on_branches" if hidden else "on_branches"
        yield statement.piece(name, listed(bounds.branches), "bigint[]")


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as an array literal: for many that is far faster than a list of values."""
    return f"{{{','.join(map(str, numbers))}}}"


def spaced(tokens: Sequence[str]) -> str:
    """Pad each word with its own spaces, so that two adjacent words never share one."""
    return f" {'  '.join(tokens)} " if tokens else ""


def _needles(terms: Sequence[Term]) -> tuple[list[str], list[str]]:
    """Return the needles of terms in the text, and those in the parts of names."""
    said = [_needle(term.tokens, prefix=term.prefix) for term in terms]
    named = [_needle(term.parts, prefix=term.prefix) if term.parts else "" for term in terms]
    return said, named


def _needle(tokens: Sequence[str], *, prefix: bool) -> str:
    needle = spaced(tokens)
    return needle[:-1] if prefix else needle


# ------------------------------------------------------------------------------------- counting


def _overlaps(term: Term) -> bool:
    """True if occurrences of a phrase may overlap; the server would count only one of them."""
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
    """Return how often each term occurs."""
    if isinstance(often, int):
        return (often,)
    if isinstance(often, tuple):
        return often
    return tuple(map(int, often.split(","))) if often else ()


# -------------------------------------------------------------------------------------- lexemes


def _lexemes(terms: Sequence[Term], code: str) -> str:
    """Return a `tsquery` for the messages that may have these terms.

    Tokens never contain quotes. A message with too many words to index has only the code as lexeme.
    """
    room = _MOST_LEXEMES
    clauses = []
    for term in sorted(terms, key=lambda term: -max(map(len, term.tokens))):
        found = _lexemes_of(term.tokens, code, prefix=term.prefix)
        if term.parts:
            found = f"({found} | {_lexemes_of(term.parts, code, prefix=term.prefix)})"
        clauses.append(found)
        room -= len(term.tokens) + len(term.parts)
        if room <= 0:
            break
    return f"({' & '.join(clauses)}) | '{code}'"


def _lexemes_of(tokens: Sequence[str], code: str, *, prefix: bool) -> str:
    """Return a `tsquery` for the words of a term; of many the longest, probably the rarest."""
    marked = dict.fromkeys(tokens, "")
    if prefix and tokens.count(tokens[-1]) == 1:
        marked[tokens[-1]] = ":*"
    rarest = sorted(marked, key=len, reverse=True)[:_MOST_OF_A_TERM]
    lexemes = (f"'{code}{token}'{marked[token]}" for token in rarest)
    return f"({' & '.join(lexemes)})"
