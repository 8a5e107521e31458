"""Sessions are found by their metadata: what an index finds is what a plain filter finds.

The marks are derived from the sessions, so a store that lacks them gets them, and damaged ones are
reported and cost nothing but time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Message
from holdfast.ids import session_id
from holdfast.storage import metadata_marks
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.repair.verify import verify_file
from holdfast.values import JSON
from tests.model import strategies as some
from tests.store_urls import KINDS, place

_FEWER = settings(max_examples=max(20, settings().max_examples // 5), deadline=None)
_TABLE = "SELECT session, mark, tenant FROM metadata_marks ORDER BY 1, 2"


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[holdfast.Store]:
    """One store for many examples."""
    with place(request.param, tmp_path_factory.mktemp("store")) as url:
        with holdfast.open(url, durability="process") as opened:
            yield opened


# Few names and values that differ little, so that sessions share some of them.
_close = st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, "1", "", "\0", "\ud800", [], {}, [1]])
_values = _close | some.json_values.filter(lambda value: value is not None)
_names = st.sampled_from(["a", "b", "", "\0", "\ud800", "é", "e\u0301", "x" * 4096]) | some.texts
_metadata = st.dictionaries(_names, _values, max_size=4)


def _text(value: JSON) -> str:
    """JSON as another library writes it, with sorted names: equal texts are equal values."""
    return json.dumps(value, sort_keys=True)


def _plain(every: dict[str, dict[str, JSON]], wanted: dict[str, JSON]) -> set[str]:
    """The sessions that a filter over all of them finds."""
    return {
        id
        for id, metadata in every.items()
        if all(n in metadata and _text(metadata[n]) == _text(v) for n, v in wanted.items())
    }


@_FEWER
@given(st.lists(st.tuples(_metadata, _metadata), min_size=1, max_size=5), _metadata, st.data())
def test_an_index_finds_what_a_plain_filter_finds(
    store: holdfast.Store,
    given_metadata: list[tuple[dict[str, JSON], dict[str, JSON]]],
    other: dict[str, JSON],
    data: st.DataObject,
) -> None:
    """Whatever the names and values are, after updates, and for any part of what is there."""
    every: dict[str, dict[str, JSON]] = {}
    scope = session_id()
    for first, changes in given_metadata:
        session = store.create(metadata=first, scope=scope)
        every[session.id] = session.update(metadata=changes).metadata
    asked = [other, *every.values()]
    for metadata in list(every.values()):
        names = data.draw(st.sets(st.sampled_from(sorted(metadata)))) if metadata else set()
        asked.append({name: metadata[name] for name in names})
    for wanted in asked:
        found = store.sessions(metadata=wanted, scope=scope)
        assert {info.id for info in found} == _plain(every, wanted)


@_FEWER
@given(st.lists(some.names, min_size=1, max_size=6, unique=True), some.names, st.integers(1, 4))
def test_a_prefix_finds_what_a_plain_filter_finds(
    store: holdfast.Store, keys: list[str], other: str, length: int
) -> None:
    made = [store.session(key) for key in keys]
    for prefix in {other, *keys, *(key[:length] for key in keys)}:
        found = {info.key for info in store.sessions(key_prefix=prefix)}
        assert found == {key for key in keys if key.startswith(prefix)}
    for session in made:
        store.trash(session.id)


def test_a_mark_is_of_one_name_and_one_value() -> None:
    """Neither runs into the other, and the order of names in an object does not count."""
    pairs: list[tuple[str, JSON]] = [("a", "bc"), ("ab", "c"), ("a", 1), ("a", "1"), ("a1", 1)]
    pairs += [("a", {"x": 1, "y": 2}), ("a", ["x", 1]), ("", "a")]
    assert len(metadata_marks.marks(metadata_marks.pair(*pair) for pair in pairs)) == len(pairs)
    one, two = ({"x": [{"p": 1, "q": 2}], "y": 2}, {"y": 2, "x": [{"q": 2, "p": 1}]})
    assert metadata_marks.pair("a", one) == metadata_marks.pair("a", two)
    assert metadata_marks.pairs(b'{"a":1') == metadata_marks.pairs(b"[1]") == set()
    assert metadata_marks.pairs(b"[" * 100_000) == set()


# ------------------------------------------------------------------------------------- in a file


def _fill(path: Path) -> None:
    for tenant in ("default", "other"):
        with holdfast.open(path, tenant=tenant) as opened:
            for number in range(4):
                metadata: dict[str, JSON] = {"n": number, "app": "desk", "odd \ud800": "\0"}
                session = opened.session(f"k{number}", metadata=metadata)
                session.append(Message.user("x"))
            opened.session("bare")


def _marks(path: Path) -> list[Any]:
    connection = apsw.Connection(str(path))
    found = connection.execute(_TABLE).fetchall()
    connection.close()
    return found


def _run(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


# What step 6 replaced.
_BEFORE_RECENT = (
    "DROP TABLE recent",
    "CREATE UNIQUE INDEX heads_by_activity ON heads (tenant, activity)",
    *(
        f"CREATE INDEX sessions_by_{name} ON sessions (tenant, {name}) WHERE {name} IS NOT NULL"
        for name in ("scope", "agent", "cwd")
    ),
)


def _keys(opened: holdfast.Store, wanted: dict[str, JSON]) -> list[str]:
    return sorted(str(info.key) for info in opened.sessions(metadata=wanted))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "agent.db"
    _fill(found)
    return found


def test_a_store_of_an_older_format_gets_its_marks(path: Path) -> None:
    """All of them, as if they had been written with the sessions; a backup is made before."""
    before = _marks(path)
    assert len(before) == 2 * 4 * 3
    _run(path, "DROP TABLE metadata_marks", *_BEFORE_RECENT, "PRAGMA user_version=4")
    with holdfast.open(path) as opened:
        assert _keys(opened, {"n": 2}) == ["k2"]
        assert _keys(opened, {"odd \ud800": "\0"}) == ["k0", "k1", "k2", "k3"]
        assert opened.verify() == []
    assert _marks(path) == before
    copy = path.with_name(f"{path.name}.before-{max(migrations.load())}")
    assert verify_file(copy) == []
    with holdfast.open(path, tenant="other") as opened:
        assert _keys(opened, {"n": 3}) == ["k3"]


_DAMAGES = {
    "an entry is missing": "DELETE FROM metadata_marks WHERE session = 2 AND mark = "
    "(SELECT min(mark) FROM metadata_marks WHERE session = 2)",
    "all are missing": "DELETE FROM metadata_marks",
    "an entry is another's": "UPDATE metadata_marks SET session = 5 WHERE session = 2",
    "an entry is of no session": "UPDATE metadata_marks SET session = 99 WHERE session = 2",
    "a mark is another": "UPDATE metadata_marks SET mark = mark + 1 WHERE session = 2",
    "a mark is of another tenant": "UPDATE metadata_marks SET tenant = 2 WHERE session = 2",
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_marks_that_differ_from_the_metadata_are_reported_and_salvaged(
    path: Path, tmp_path: Path, damage: str
) -> None:
    """They block no write, since they are derived; salvage derives them again."""
    before = _marks(path)
    _run(path, _DAMAGES[damage])
    with holdfast.open(path) as opened:
        found = opened.verify()
        assert found
        assert not any(one.blocking for one in found)
        opened.session("k1").append(Message.user("goes on"))
        opened.salvage(tmp_path / "salvaged.db")
    assert _marks(tmp_path / "salvaged.db") == before
    assert verify_file(tmp_path / "salvaged.db") == []


def test_marks_of_no_session_are_reported(path: Path) -> None:
    _run(path, "INSERT INTO metadata_marks VALUES (99, 1, 1)")
    (found,) = verify_file(path)
    assert found.what == "metadata of a session that is missing is indexed"
    assert not found.blocking


def test_an_update_makes_marks_right(path: Path) -> None:
    _run(path, "DELETE FROM metadata_marks WHERE session = 2")
    with holdfast.open(path) as opened:
        assert _keys(opened, {"n": 1}) == []
        opened.session("k1").update(title="any")
        assert _keys(opened, {"n": 1}) == ["k1"]
        assert opened.verify() == []


def test_a_mark_that_lies_finds_no_session_that_lacks_the_metadata(path: Path) -> None:
    """Each session that is found is compared; then all are read, one by one."""
    _run(
        path,
        "INSERT INTO metadata_marks SELECT 5, mark, 1 FROM metadata_marks WHERE session = 2",
        "UPDATE metadata_marks SET tenant = 1 WHERE session > 5",
    )
    with holdfast.open(path) as opened:
        assert _keys(opened, {"n": 1}) == ["k1"]
        assert _keys(opened, {"app": "desk"}) == ["k0", "k1", "k2", "k3"]
        assert len(opened.verify()) >= 1


def test_a_damaged_session_is_listed_as_damaged_where_it_may_belong(path: Path) -> None:
    """Its metadata is compared as far as it can be read."""
    _run(path, "UPDATE sessions SET title = 'changed' WHERE n = 2")
    with holdfast.open(path) as opened:
        found = {info.key: info.state for info in opened.sessions(metadata={"app": "desk"})}
        assert found == {"k0": "done", "k1": "damaged", "k2": "done", "k3": "done"}
        assert _keys(opened, {"n": 2}) == ["k2"]


def test_purging_leaves_no_mark(path: Path) -> None:
    """Also of a session of which a fork needs messages."""
    with holdfast.open(path) as opened:
        opened.session("k0").fork(key="fork")
        for key in ("k0", "k1"):
            opened.purge(key)
    assert {session for session, _, _ in _marks(path)} == {3, 4, *range(6, 10)}
