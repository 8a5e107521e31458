"""The table of queries, asked of stores: in memory by scanning, of others by their index."""

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Message, Store
from tests.places import Kind, place
from tests.search.table import ROWS, Row

_CASES: list[tuple[Kind, bool]] = [
    ("memory", False), ("sqlite", False), ("sqlite", True), ("postgres", False), ("postgres", True),
]  # fmt: skip


@pytest.fixture(
    scope="module",
    params=_CASES,
    ids=lambda case: f"{case[0]}{'-readonly' if case[1] else ''}",
)
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, dict[str, str]]]:
    """A store with each text of the table in a session of its own, and their ids."""
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
        yield store, ids
        state = store.index_status().state
        assert state == ("none" if kind == "memory" else "missing" if readonly else "ready")
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
