"""The table of queries, asked of stores: in memory by scanning, in a file by its index."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store
from tests.search.table import ROWS, Row


@pytest.fixture(scope="module", params=["memory", "sqlite", "readonly"])
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, dict[str, str]]]:
    """A store with each text of the table in a session of its own, and their ids."""
    path = tmp_path_factory.mktemp("told") / "agent.db"
    url: str | Path = "memory:" if request.param == "memory" else path
    store = holdfast.open(url)
    ids = {}
    for row in ROWS:
        session = store.create()
        session.append(Message.user(row.text))
        ids[row.name] = session.id
    if request.param == "readonly":
        store.close()
        store = holdfast.open(path, readonly=True)
    yield store, ids
    store.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_the_table(told: tuple[Store, dict[str, str]], row: Row) -> None:
    store, ids = told
    found = [hit.session_id for hit in store.search(row.query, limit=1000)]
    assert len(found) == len(set(found))
    assert (ids[row.name] in found) is row.hit


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_the_table_within_one_session(told: tuple[Store, dict[str, str]], row: Row) -> None:
    store, ids = told
    hits = store.search(row.query, session=ids[row.name]).items
    assert [hit.session_id for hit in hits] == [ids[row.name]] * row.hit
