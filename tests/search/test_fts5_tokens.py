"""Tokens in SQLite: a full-text table of them finds what `match` finds.

A contentless table of FTS5, with the tokens of a text between spaces, cuts them at the spaces and
nowhere else, and compares them byte by byte. So an index needs no tokenizer of ours inside it.
"""

from collections.abc import Iterator

import apsw
import pytest
from hypothesis import HealthCheck, given, settings

from holdfast.search.document import Document
from holdfast.search.match import matches
from holdfast.search.query import Query, Term, parse
from holdfast.search.tokenize import parts, words
from tests.search.material import NOW, texts
from tests.search.table import ROWS, Row

_TABLE = """
    CREATE VIRTUAL TABLE found USING fts5(
        text, parts, content = '', detail = full, columnsize = 0,
        tokenize = "ascii tokenchars '+#%$'"
    )
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    connection.execute(_TABLE)
    yield connection
    connection.close()


def _phrase(tokens: tuple[str, ...], *, prefix: bool) -> str:
    return f'"{" ".join(tokens)}"{" *" * prefix}'


def _expression(term: Term) -> str:
    found = _phrase(term.tokens, prefix=term.prefix)
    if not term.parts:
        return f"({found})"
    return f"({found} OR parts : {_phrase(term.parts, prefix=term.prefix)})"


def _engine_finds(engine: apsw.Connection, text: str, query: Query) -> bool:
    row = (" ".join(words(text)), " ".join(parts(text)))
    engine.execute("INSERT INTO found (rowid, text, parts) VALUES (1, ?, ?)", row)
    try:
        return all(
            bool(
                list(
                    engine.execute(
                        "SELECT rowid FROM found WHERE found MATCH ?", (_expression(term),)
                    )
                )
            )
            is not term.excluded
            for term in query.terms
        )
    finally:
        engine.execute(
            "INSERT INTO found (found, rowid, text, parts) VALUES ('delete', 1, ?, ?)", row
        )


_INDEXED = [row for row in ROWS if not parse(row.query, now=NOW).needs_scan]


@pytest.mark.parametrize("row", _INDEXED, ids=lambda row: row.name.replace(" ", "-"))
def test_the_table_of_queries(engine: apsw.Connection, row: Row) -> None:
    assert _engine_finds(engine, row.text, parse(row.query, now=NOW)) is row.hit


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(text=texts, query=texts)
def test_the_engine_and_the_rule_agree(engine: apsw.Connection, text: str, query: str) -> None:
    for asked in (parse(query, now=NOW), parse(text[: len(query)], now=NOW)):
        if not asked.needs_scan:
            expected = matches(asked, Document(text)) is not None
            assert _engine_finds(engine, text, asked) is expected
