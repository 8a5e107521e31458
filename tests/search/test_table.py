"""The table of queries, against the rule that every index has to agree with."""

from datetime import UTC, datetime

import pytest

from holdfast.search.document import document
from holdfast.search.match import matches
from holdfast.search.query import parse
from holdfast.values import Message
from tests.search.table import ROWS, Row

_NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_the_table(row: Row) -> None:
    found = matches(parse(row.query, now=_NOW), document(Message.user(row.text)))
    assert (found is not None) is row.hit


def test_the_table_is_complete() -> None:
    """Names are unique, no query has a filter, and hits and misses are balanced."""
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) >= 120
    assert sum(not row.hit for row in ROWS) > len(ROWS) // 5
    without = parse("", now=_NOW).filters
    assert [row.name for row in ROWS if parse(row.query, now=_NOW).filters != without] == []
