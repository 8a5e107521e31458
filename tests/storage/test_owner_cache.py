"""The sessions that searches read: once while the store is unchanged, again after each commit."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.storage.protocol import Snapshot
from holdfast.storage.sqlite.owner_cache import OwnerCache


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """One store, opened twice: what the second commits, the first sees from outside."""
    path = tmp_path / "s.db"
    with ExitStack() as opened:
        one, two = (opened.enter_context(holdfast.open(path)) for _ in range(2))
        one.create(title="parcel").append(Message.user("parcel lost"))
        yield one, two


def _titles(store: Store) -> list[str | None]:
    return [hit.title for hit in store.search("lost")]


def test_a_commit_elsewhere_is_seen(stores: tuple[Store, Store]) -> None:
    """A new title, the trash and its restoration: each search shows the session as it is now."""
    one, two = stores
    session = two.get(one.sessions().items[0].id)
    assert _titles(one) == _titles(one) == ["parcel"]
    for title in ("found", "sent"):
        session.update(title=title)
        assert _titles(one) == [title]
        assert [hit.title for hit in one.search(title)] == [title]
    two.trash(session.id)
    assert _titles(one) == []
    two.restore(session.id)
    assert _titles(one) == ["sent"]


def test_own_commits_are_seen(stores: tuple[Store, Store]) -> None:
    """Also those of the store that searches: it reads with other connections than it writes."""
    one, _ = stores
    session = one.get(one.sessions().items[0].id)
    for title in ("found", "sent"):
        session.update(title=title)
        assert _titles(one) == [title]


def test_an_unchanged_store_is_read_once(stores: tuple[Store, Store]) -> None:
    """The second read of the same sessions takes nothing from the tables."""
    one, two = stores

    def count(read: Callable[[Snapshot], object]) -> int:
        seen: list[str] = []

        def query(snapshot: Snapshot) -> None:
            connection: apsw.Connection = snapshot._connection  # type: ignore[attr-defined]  # noqa: SLF001
            connection.exec_trace = lambda _, text, __: not seen.append(text)  # type: ignore[func-returns-value]
            try:
                read(snapshot)
            finally:
                connection.exec_trace = None

        one.backend.read(query)
        return len([text for text in seen if "heads" in text])

    def owners(snapshot: Snapshot) -> object:
        return snapshot.owners([1])

    def titled(snapshot: Snapshot) -> object:
        return snapshot.titled(["parcel"])

    assert [count(owners), count(owners), count(titled), count(titled)] == [1, 0, 1, 0]
    two.create(title="another parcel")
    assert [count(owners), count(owners), count(titled), count(titled)] == [1, 0, 1, 0]


def test_sessions_are_kept_by_connection(tmp_path: Path) -> None:
    """Two connections count commits differently, so neither takes over what the other read."""
    connections = [apsw.Connection(str(tmp_path / "s.db")) for _ in range(2)]
    cache = OwnerCache()
    first = cache.current(connections[0])
    assert cache.current(connections[0]) is first
    assert cache.current(connections[1]) is not first
    for connection in connections:
        connection.close()
