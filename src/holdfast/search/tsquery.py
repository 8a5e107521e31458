"""SQL for a query of an index in tables.

A statement is assembled from named fragments of `tsvector.sql`. A term becomes a needle that is
searched for in the text, in the parts of names or in the thinking, with each word padded by spaces,
as in `match`; the server counts its occurrences. A `tsquery` on the index of lexemes preselects the
messages that may have the words, by blocks of message numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast.search.match import count_overlapping
from holdfast.search.protocol import ROLES, Bounds, Candidate, Chunk
from holdfast.search.query import Query, Term
from holdfast.storage.sql_files import load_statements

SQL: Final = load_statements(__package__, "tsvector.sql")
CHUNK: Final = 1000
PROBE_MESSAGES: Final = 100  # the newest messages, which show whether words are common
_MAX_NUMBER: Final = (1 << 63) - 1
_MAX_COUNT_COLUMNS: Final = 6  # beyond, the counts of all terms are one column
_MAX_PROBED_TERMS: Final = 4
_MAX_PHRASES: Final = 5
_MAX_LEXEMES: Final = 48  # per query; its other words are checked in the preselected messages
_MAX_LEXEMES_PER_TERM: Final = 8


class Statement:
    """A statement that is assembled from fragments, and its values."""

    def __init__(self, name: str, *first: object) -> None:
        self.text = SQL[name]
        self.values: list[object] = list(first)

    def bind(self, value: object, kind: str) -> str:
        """Add a value and return its placeholder."""
        self.values.append(value)
        return f"${len(self.values)}::{kind}"

    def condition(self, name: str, value: object, kind: str) -> str:
        """Return the condition of this name with a value."""
        return SQL[name].format(self.bind(value, kind))

    def fill(self, **pieces: str) -> None:
        """Replace the named fields of the text."""
        self.text = self.text.format(**pieces)


class QueryStatements:
    """The statements that run one query."""

    def __init__(self, query: Query, bounds: Bounds, code: str, *, thinking: bool) -> None:
        self.wanted = [term for term in query.wanted if term.tokens]
        self._unwanted = [term for term in query.unwanted if term.tokens]
        self._recounted = [at for at, term in enumerate(self.wanted) if _may_overlap(term)]
        self._code = code
        self._thinking = thinking
        self._bounds = bounds

    def probe(self) -> Statement:
        """Count how many of the newest messages match."""
        statement = Statement("probe", PROBE_MESSAGES)
        terms = sorted(self.wanted, key=_longest_word_length, reverse=True)[:_MAX_PROBED_TERMS]
        has = [self._occurs(statement, term) for term in terms]
        statement.fill(has=" AND ".join([*_bounds(self._bounds, statement, hidden=True), *has]))
        return statement

    def scan(self) -> Statement:
        """Select the matches by scanning each message."""
        name = "newest_matching" if self._bounds.branches is None else "matching"
        statement = Statement(name, _MAX_NUMBER, CHUNK)
        return self._fill(
            statement, [self._occurs(statement, term) for term in self._most_selective()]
        )

    def scan_from(self, low: int) -> Statement:
        """Select the matches from a number on by scanning each message."""
        statement = Statement("newest_matching", _MAX_NUMBER, CHUNK)
        from_there = statement.condition("from_number", low, "bigint")
        has = [self._occurs(statement, term) for term in self._most_selective()]
        return self._fill(statement, [from_there, *has], hidden=True)

    def by_lexemes(self, blocks: Sequence[int]) -> Statement:
        """Select the matches by the server's index of lexemes.

        It does not know which words are adjacent, so phrases are checked in the text.
        """
        statement = Statement("matching", _MAX_NUMBER, CHUNK)
        lexemes = " | ".join(_lexemes(self.wanted, f"{self._code}{block:x}.") for block in blocks)
        wanted = [statement.condition("by_lexemes", lexemes, "tsquery")]
        phrases = [term for term in self.wanted if len(term.tokens) > 1][:_MAX_PHRASES]
        wanted += [self._occurs(statement, term) for term in phrases]
        return self._fill(statement, wanted, hidden=True)

    def _most_selective(self) -> list[Term]:
        """Return the term with the longest word: it is probably the most selective one."""
        return [max(self.wanted, key=_longest_word_length)] if self.wanted else []

    def _occurs(self, statement: Statement, term: Term) -> str:
        """Return the condition that a term occurs."""
        (said,), (named,) = _needles([term])
        found = [statement.condition("in_text", said, "text")]
        if named:
            found.append(statement.condition("in_text", named, "text"))
        if self._thinking:
            found.append(statement.condition("in_thinking", said, "text"))
        return f"({' OR '.join(found)})"

    def _fill(
        self, statement: Statement, wanted: Sequence[str], *, hidden: bool = False
    ) -> Statement:
        """Fill in conditions and columns. `hidden`: branches must not be used to find the rows."""
        # The server evaluates them in this order: slow ones come last.
        conditions = [*_bounds(self._bounds, statement, hidden=hidden), *wanted]
        counts, frequencies, matches = self._count_columns(statement)
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

    def _count_columns(self, statement: Statement) -> tuple[str, str, str]:
        """Return the columns of counts, all counts as one value, and the condition on them."""
        if len(self.wanted) > _MAX_COUNT_COLUMNS:
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
        count, needle = SQL["count_in"].format, statement.bind(said, "text")
        often = count(needle, "chosen.said")
        if self._thinking:
            often = f"{often} + {count(needle, 'chosen.thought')}"
        if not named:
            return often
        parts = count(statement.bind(named, "text"), "split_part(chosen.said, E'\\n', 2)")
        return f"greatest({often}, {parts})"

    def _of_many(self, statement: Statement, name: str, terms: Sequence[Term]) -> str:
        said, named = (statement.bind(needles, "text[]") for needles in _needles(terms))
        return SQL[name].format(said=said, named=named, thinking=self._thinking)

    def chunk(self, rows: Sequence[tuple[Any, ...]]) -> Chunk:
        """Return the rows that match."""
        if self._recounted:
            entries = [self._recount(row) for row in rows if row[7]]
        else:
            entries = [row[:6] for row in rows if row[7]]
        return Chunk(entries, _frequencies)

    def _recount(self, row: tuple[Any, ...]) -> Candidate:
        """Count phrases that may overlap here: the server counts only disjoint ones."""
        counts = list(_frequencies(row[5]))
        for at in self._recounted:
            counts[at] = _recount(self.wanted[at], row[8], row[9] or "")
        return (*row[:5], tuple(counts))


def _longest_word_length(term: Term) -> int:
    return max(map(len, term.tokens))


def _bounds(bounds: Bounds, statement: Statement, *, hidden: bool) -> Iterator[str]:
    """Return the conditions apart from the words."""
    if bounds.role is not None:
        yield statement.condition("of_role", ROLES.index(bounds.role), "bigint")
    if bounds.since is not None:
        yield statement.condition("since", bounds.since, "bigint")
    if bounds.until is not None:
        yield statement.condition("until", bounds.until, "bigint")
    if bounds.branches is not None:
        name = "if_on_branches" if hidden else "on_branches"
        yield statement.condition(name, array_literal(bounds.branches), "bigint[]")


def array_literal(numbers: Sequence[int]) -> str:
    """Return numbers as an array literal: for many that is far faster than a list of values."""
    return f"{{{','.join(map(str, numbers))}}}"


def pad_tokens(tokens: Sequence[str]) -> str:
    """Pad each word with its own spaces, so that two adjacent words never share one."""
    return f" {'  '.join(tokens)} " if tokens else ""


def _needles(terms: Sequence[Term]) -> tuple[list[str], list[str]]:
    """Return the needles of terms in the text, and those in the parts of names."""
    said = [_needle(term.tokens, prefix=term.prefix) for term in terms]
    named = [_needle(term.parts, prefix=term.prefix) if term.parts else "" for term in terms]
    return said, named


def _needle(tokens: Sequence[str], *, prefix: bool) -> str:
    needle = pad_tokens(tokens)
    return needle[:-1] if prefix else needle


# ------------------------------------------------------------------------------------- counting


def _may_overlap(term: Term) -> bool:
    """True if occurrences of a phrase may overlap; the server would count only one of them."""
    return any(
        tokens[0] in tokens[1:] or (term.prefix and tokens[0].startswith(tokens[-1]))
        for tokens in (term.tokens, term.parts)
        if len(tokens) > 1
    )


def _recount(term: Term, said: str, thought: str) -> int:
    needle = _needle(term.tokens, prefix=term.prefix)
    often = count_overlapping(said, needle) + count_overlapping(thought, needle)
    if not term.parts:
        return often
    names = said.partition("\n")[2]
    return max(often, count_overlapping(names, _needle(term.parts, prefix=term.prefix)))


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
    room = _MAX_LEXEMES
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
    rarest = sorted(marked, key=len, reverse=True)[:_MAX_LEXEMES_PER_TERM]
    lexemes = (f"'{code}{token}'{marked[token]}" for token in rarest)
    return f"({' & '.join(lexemes)})"
