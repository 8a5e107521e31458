"""Whatever happens to the index, searches find all messages and appends succeed."""

import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.search import index_file
from holdfast.search.fts5 import IndexFile, index_errors
from tests.search.corpora import message

_TALKS = 12


def _fill(store: Store) -> None:
    rnd = random.Random(5)
    for number in range(_TALKS):
        session = store.session(f"talk-{number}")
        session.append(*(message(rnd) for _ in range(10)), Message.user(f"needle n{number}"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a complete index."""
    path = tmp_path_factory.mktemp("base") / "agent.db"
    with holdfast.open(path) as store:
        _fill(store)
        assert len(store.search("needle")) == _TALKS
        assert store.index_status().state == "ready"
    return path


@pytest.fixture
def path(base: Path, tmp_path: Path) -> Path:
    """That store, to be damaged."""
    for file in base.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    return tmp_path / "agent.db"


def _index(path: Path) -> Path:
    return path.with_name("agent.db-search")


def _must_find(store: Store, talks: int = _TALKS) -> None:
    assert len(store.search("needle", limit=1000)) == talks
    for number in range(talks):
        (hit,) = store.search(f"needle n{number}")
        assert store.get(hit.session_id).key == f"talk-{number}"


def _must_go_on(store: Store) -> None:
    """Search, append, search: then there is a sound index again."""
    _must_find(store)
    store.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
    _must_find(store, _TALKS + 1)
    assert store.index_status().state == "ready"


def test_the_index_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message that is indexed is scanned."""
    monkeypatch.setattr("holdfast.search.scan.find_in_segment", None)
    with holdfast.open(path) as store:
        _must_find(store)


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_byte_is_noticed(path: Path, seed: int) -> None:
    """Every page has a checksum, so no hit is lost silently."""
    rnd, index = random.Random(seed), _index(path)
    data = bytearray(index.read_bytes())
    place = rnd.randrange(len(data)) if seed else 0
    data[place] ^= 1 << rnd.randrange(8)
    index.write_bytes(data)
    with holdfast.open(path) as store:
        _must_go_on(store)


def test_damage_that_only_a_search_meets(path: Path) -> None:
    """It is replaced, although there was nothing to add to it."""
    data = bytearray(_index(path).read_bytes())
    for place in range(3 * 4096, len(data), 4096):
        data[place + 50] ^= 1
    _index(path).write_bytes(data)
    with holdfast.open(path) as store:
        assert store.check_index() != []
        _must_find(store)
        assert store.check_index() == []
        assert store.index_status().state == "ready"


@pytest.mark.parametrize("readonly", [False, True])
def test_every_page_overwritten(path: Path, readonly: bool) -> None:
    index = _index(path)
    index.write_bytes(bytes(len(index.read_bytes())))
    with holdfast.open(path, readonly=readonly) as store:
        _must_find(store)
        if not readonly:
            _must_go_on(store)


@pytest.mark.parametrize("content", [b"", b"x", b"no database at all" * 1000])
def test_something_else_in_its_place(path: Path, content: bytes) -> None:
    _index(path).write_bytes(content)
    with holdfast.open(path) as store:
        _must_go_on(store)


def test_cut_off(path: Path) -> None:
    for size in (100, 4096, 10_000, 40_960):
        with _index(path).open("r+b") as file:
            file.truncate(size)
        with holdfast.open(path) as store:
            _must_find(store)
            assert store.index_status().state == "ready"


def test_deleted_under_a_running_process(path: Path) -> None:
    with holdfast.open(path) as store:
        _must_find(store)
        for file in path.parent.glob("agent.db-search*"):
            file.unlink()
        _must_go_on(store)
        assert _index(path).exists()


def test_replaced_under_a_running_process_by_one_of_another_store(path: Path) -> None:
    with holdfast.open(path.with_name("other.db")) as other:
        other.session("talk-0").append(Message.user("needle of another store"))
        assert len(other.search("needle")) == 1
    with holdfast.open(path) as store:
        _must_find(store)
        path.with_name("other.db-search").rename(_index(path))
        _must_go_on(store)
        assert len(store.search('"another store"')) == 0


def test_the_log_put_back_to_an_earlier_state(path: Path) -> None:
    """An index with more messages than the log is discarded."""
    earlier = path.read_bytes()
    with holdfast.open(path) as store:
        store.session("talk-0").append(Message.user("needle that will not have been"))
        assert len(store.search('"will not have been"')) == 1
    path.write_bytes(earlier)
    with holdfast.open(path) as store:
        assert len(store.search('"will not have been"')) == 0
        _must_find(store)
        store.session("talk-0").append(Message.user("something else"))
        assert len(store.search("something")) == 1
        _must_go_on(store)


def test_of_another_version(path: Path) -> None:
    file = IndexFile(_index(path))
    with file.writing():
        file.put_meta(stamp="0 of long ago")
    file.close()
    with holdfast.open(path) as store:
        assert store.index_status().state == "damaged"
        _must_go_on(store)


def test_a_symbolic_link_is_not_followed(path: Path) -> None:
    """Nor is what it points to touched."""
    target = path.with_name("precious")
    target.write_bytes(b"precious")
    _index(path).unlink()
    _index(path).symlink_to(target)
    with holdfast.open(path) as store:
        _must_find(store)
        assert store.index_status().state == "damaged"
    assert target.read_bytes() == b"precious"
    assert _index(path).is_symlink()


def test_the_index_is_private(path: Path) -> None:
    _index(path).unlink()
    before = os.umask(0)
    try:
        with holdfast.open(path) as store:
            _must_find(store)
            for file in path.parent.glob("agent.db-search*"):
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        os.umask(before)


# --------------------------------------------------------------------- where none can be kept


def test_a_read_only_store_is_searched(path: Path) -> None:
    """With an existing index, and without one."""
    for there in (True, False):
        if not there:
            _index(path).unlink()
        with holdfast.open(path, readonly=True) as store:
            _must_find(store)
        assert _index(path).exists() is there


def test_no_index_can_be_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    _index(path).unlink()
    monkeypatch.setattr(index_file, "create", refuse)
    with holdfast.open(path) as store:
        _must_find(store)
        store.session("talk-0").append(Message.user("more"))
        assert store.index_status().state == "missing"


@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError, apsw.NoMemError])
def test_the_engine_fails_while_it_adds(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: type[apsw.Error]
) -> None:
    """A full disk affects only the index, and only while it is full."""
    real: Callable[..., None] = IndexFile.add

    def fail(self: IndexFile, docs: object) -> None:
        with index_errors():
            raise error

    with holdfast.open(path) as store:
        monkeypatch.setattr(IndexFile, "add", fail)
        store.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
        _must_find(store, _TALKS + 1)
        monkeypatch.setattr(IndexFile, "add", real)
    with holdfast.open(path) as store:
        _must_find(store, _TALKS + 1)
        assert store.index_status().state == "ready"


def test_the_engine_fails_while_it_searches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the index that is damaged, not the store."""

    def fail(api: object, *_: object) -> None:
        raise apsw.CorruptError

    monkeypatch.setattr("holdfast.search.fts5._count_phrases", fail)
    with holdfast.open(path) as store:
        _must_find(store)
        store.session("talk-0").append(Message.user("more"))
        assert store.damage == []


def test_an_append_knows_nothing_of_the_index(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of it is opened, nothing of it is imported, nothing of it changes."""
    before = {file.name: file.stat().st_mtime_ns for file in path.parent.glob("agent.db-search*")}
    monkeypatch.setattr(index_file, "connect", None)
    monkeypatch.setattr(index_file, "exists", None)
    with holdfast.open(path) as store:
        session = store.session("talk-0")
        for number in range(5):
            session.append(Message.user(f"more {number}"))
        with session.turn() as turn:
            turn.user("in a turn")
        assert store._context._index is None  # noqa: SLF001 - that is the test
    after = {file.name: file.stat().st_mtime_ns for file in path.parent.glob("agent.db-search*")}
    assert before == after


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE heads SET seq = seq + 1 WHERE session = 3",
        "UPDATE heads SET branch = 7 WHERE session = 3",
        "UPDATE sessions SET title = 'x' WHERE n = 3",
        "UPDATE branches SET fork_seq = 2 WHERE session = 3",
        "DELETE FROM heads WHERE session = 3",
        "DELETE FROM branches WHERE session = 3",
        "UPDATE messages SET body = '{' WHERE place >> 32 = 3",
    ],
)
@pytest.mark.parametrize("indexed", [True, False])
def test_a_damaged_session_hides_no_other(path: Path, damage: str, indexed: bool) -> None:
    """Whether it is indexed or has to be scanned."""
    if not indexed:
        _index(path).unlink()
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    connection.close()
    with holdfast.open(path) as store:
        for all_branches in (False, True):
            hits = store.search("needle", limit=1000, all_branches=all_branches).items
            found = {hit.snippet for hit in hits}
            others = {f"needle n{number}" for number in range(_TALKS) if number != 2}
            assert found - {"needle n2"} == others
