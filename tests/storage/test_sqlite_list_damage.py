"""A list of sessions over a damaged file: every session is in it, sound or as damaged, or it fails.

Pages of a store are destroyed one by one. Whatever is gone, no sound session is missing from a list
that is given, none is met twice, and none is shown as something it is not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import Damaged
from holdfast.values import SessionInfo
from tests.storage.damage_cases import put

_SESSIONS = 120
_WORDS = "words that fill the pages " * 4


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store whose sessions take several pages; some are pinned, some were split."""
    path = tmp_path_factory.mktemp("sound") / "a.db"
    with holdfast.open(path, durability="process") as store:
        for n in range(_SESSIONS):
            session = store.session(f"key {n}", scope=f"scope {n % 3}", title=f"Title {n}")
            session.append(Message.user(f"{n} {_WORDS}"))
            if n % 10 == 0:
                session.update(pinned=True)
                session.fork(key=f"fork {n}", title=f"Fork {n}")
    return path.read_bytes()


@pytest.fixture(scope="module")
def truth(sound: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SessionInfo]:
    path = put(tmp_path_factory.mktemp("truth") / "a.db", sound)
    with holdfast.open(path) as store:
        return {info.id: info for info in walk(store, 500)}


def leaves(data: bytes, path: Path, name: str) -> list[int]:
    """The numbers of the leaf pages of a table or an index."""
    connection = apsw.Connection(str(put(path, data)))
    try:
        query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno"
        return [row[0] for row in connection.execute(query, (name,))]
    finally:
        connection.close()


def destroyed(data: bytes, page: int) -> bytes:
    size = int.from_bytes(data[16:18], "big") or 65536
    return data[: (page - 1) * size] + b"\xa5" * size + data[page * size :]


def walk(store: Store, limit: int, **asked: Any) -> Iterator[SessionInfo]:  # noqa: ANN401
    cursor: str | None = None
    while True:
        page = store.sessions(limit=limit, cursor=cursor, **asked)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return


@pytest.mark.parametrize("order", ["activity", "pinned"])
@pytest.mark.parametrize("table", ["sessions", "heads"])
def test_a_destroyed_page_of_sessions_hides_none(
    sound: bytes, truth: dict[str, SessionInfo], tmp_path: Path, table: str, order: str
) -> None:
    """Those on it are listed as damaged, the others as they are, in their order."""
    pages = leaves(sound, tmp_path / "a.db", table)
    assert len(pages) > 2
    for page in pages[:: max(1, len(pages) // 4)]:
        path = put(tmp_path / "a.db", destroyed(sound, page))
        with holdfast.open(path, readonly=True) as store:
            for limit in (7, 500):
                found = list(walk(store, limit, order=order))
                fine = [info for info in found if info.state != "damaged"]
                assert len(found) == len(truth)
                assert 0 < len(fine) < len(truth)
                assert all(info == truth[info.id] for info in fine)
                kept = {info.id for info in fine}
                if order == "activity":
                    assert [info.id for info in fine] == [id for id in truth if id in kept]
                named = [info.id for info in found if info.id]
                assert len(set(named)) == len(named)
                assert set(named) <= truth.keys()
            assert store.damage
            damaged = list(walk(store, 7, state="damaged"))
            assert len(damaged) == len(found) - len(fine)


@pytest.mark.parametrize("name", ["sessions_by_parent", "sessions_by_title", "sessions_pinned"])
def test_a_destroyed_page_of_an_index_hides_none(
    sound: bytes, truth: dict[str, SessionInfo], tmp_path: Path, name: str
) -> None:
    """The list goes on without it; how many forks there are may not be known, and is reported."""
    page = leaves(sound, tmp_path / "a.db", name)[0]
    path = put(tmp_path / "a.db", destroyed(sound, page))
    with holdfast.open(path, readonly=True) as store:
        for order in ("activity", "pinned"):
            found = list(walk(store, 50, order=order))
            assert [info.id for info in found if info.state != "damaged"]
            assert {info.id for info in found} == truth.keys()
        if any(info.forks != truth[info.id].forks for info in found):
            assert store.damage


def test_a_destroyed_page_of_the_order_is_an_error(sound: bytes, tmp_path: Path) -> None:
    """One index has all sessions; if it is damaged, listing fails and never returns fewer."""
    for page in leaves(sound, tmp_path / "a.db", "recent_by_recency")[:2]:
        path = put(tmp_path / "a.db", destroyed(sound, page))
        with holdfast.open(path, readonly=True) as store, pytest.raises(Damaged):
            list(walk(store, 50))
