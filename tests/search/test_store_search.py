"""The table of queries on stores: in memory by scanning, on the others by their index.

Without an index all of them go through their messages one by one, as the rule does that
`test_table.py` compares with every row; so there a part of the rows must do.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast import Message, Store
from holdfast.search.document import Document
from holdfast.search.match import matches, score
from holdfast.search.query import parse
from tests.search.table import ROWS, Row
from tests.store_urls import Kind, place

_CASES: list[tuple[Kind, bool]] = [
    ("memory", False), ("sqlite", False), ("sqlite", True), ("postgres", False), ("postgres", True),
]  # fmt: skip
_PART = 12


class Told(NamedTuple):
    """A store with each text of the table in its own session, their ids, and the queries."""

    store: Store
    ids: dict[str, str]
    asked: list[Row]


@pytest.fixture(
    scope="module",
    params=_CASES,
    ids=lambda case: f"{case[0]}{'-readonly' if case[1] else ''}",
)
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    kind, readonly = request.param
    with place(kind, tmp_path_factory.mktemp("told")) as url:
        store = holdfast.open(url, durability="process")
        ids = {}
        for row in ROWS:
            session = store.create()
            session.append(Message.user(row.text))
            ids[row.name] = session.id
        if readonly:
            store.close()
            store = holdfast.open(url, readonly=True)
        scans = readonly or kind == "memory"
        yield Told(store, ids, ROWS[::_PART] if scans else ROWS)
        state = store.index_status().state
        assert state == ("none" if kind == "memory" else "missing" if readonly else "ready")
        store.close()


def test_the_table(told: Told) -> None:
    """No session is found twice, and each row is found if it should be."""
    wrong = []
    for row in told.asked:
        found = [hit.session_id for hit in told.store.search(row.query, limit=1000)]
        if len(found) != len(set(found)) or (told.ids[row.name] in found) is not row.hit:
            wrong.append(row.name)
    assert wrong == []


def test_the_table_within_one_session(told: Told) -> None:
    wrong = []
    for row in told.asked:
        id = told.ids[row.name]
        found = [hit.session_id for hit in told.store.search(row.query, session=id)]
        if found != [id] * row.hit:
            wrong.append(row.name)
    assert wrong == []


def test_two_words_are_scored_by_their_own_counts(tmp_path: Path) -> None:
    """By index as by the rule: twice one word and once the other, in either order; three words."""
    now = datetime.now(UTC)
    texts = [
        "red red blue",
        "red blue blue blue",
        "red blue",
        "red blue green green",
        "getRed blue",
    ]
    with holdfast.open(tmp_path / "s.db") as store:
        for text in texts:
            store.create().append(Message.user(text))
        store.catch_up_index()
        for asked in ("red blue", "blue red", "red blue green", "getRed", "red", "blue getRed"):
            query = parse(asked, now=now)
            found = {hit.snippet: hit.score for hit in store.search(asked)}
            expected = {
                text: score(match.frequencies, match.length, 0.0)
                for text in texts
                if (match := matches(query, Document(text))) is not None
            }
            assert found == pytest.approx(expected, rel=0.001), asked
