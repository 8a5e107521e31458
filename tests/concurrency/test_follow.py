"""Following: what other processes write arrives once and in order, whatever happens to them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import AsyncStore, Message, Session, Store
from holdfast.follow import BaseFollower
from tests.concurrency.children import Pipe, batch
from tests.concurrency.conftest import StartChild
from tests.store_urls import KINDS, place

_COUNT = 120
_LONG = 60.0


def _write(pipe: Pipe, path: Path, first: int, last: int | None = _COUNT) -> None:
    """Write batches of one to three messages; each life begins with one that may be there.

    Without a last one it writes until it is killed.
    """
    with holdfast.open(path) as store:
        session = store.session("s")
        pipe.say("ready")
        for number in count(first) if last is None else range(first, last):
            session.append(*batch(f"{number:06}", 1 + number % 3))
    pipe.say("done")


def _expected(last: int = _COUNT) -> list[str]:
    return [f"{number:06}.{part}" for number in range(last) for part in range(1 + number % 3)]


def test_a_follower_sees_another_process_write_in_order(tmp_path: Path, child: StartChild) -> None:
    """It starts before the writer does, and receives each message once."""
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        session = store.session("s")
        follower = session.follow()
        assert follower.poll() is None
        writer = child(_write, path, 0)
        seen = [_id(item) for item in islice(follower, len(_expected()))]
        assert seen == _expected()
        assert follower.poll() is None
        writer.hear()
        assert writer.hear() == "done"
        writer.join()


def test_a_follower_outlives_the_writers_death_and_its_own(
    tmp_path: Path, child: StartChild
) -> None:
    """The writer is killed three times and begins again with its last write; the follower stops
    as often and goes on at its head. It still receives each message once and in order."""
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        session = store.session("s")
        head = None
        seen: list[str] = []
        for _ in range(3):
            writer = child(_write, path, int(seen[-1][:6]) if seen else 0, None)
            writer.hear()
            follower = session.follow(head)
            seen += [_id(item) for item in islice(follower, 25)]
            writer.kill()
            seen += _rest(follower)
            head = follower.head
        first = int(seen[-1][:6])
        expected = _expected(first + _COUNT)
        child(_write, path, first, first + _COUNT)
        follower = session.follow(head)
        seen += [_id(item) for item in islice(follower, len(expected) - len(seen))]
        assert seen == expected
        assert follower.poll() is None
        assert [message.id for message in session.messages()] == seen


def _rest(follower: BaseFollower[holdfast.Message | holdfast.BranchChanged]) -> Iterator[str]:
    while (item := follower.poll()) is not None:
        yield _id(item)


def _id(item: holdfast.Message | holdfast.BranchChanged) -> str:
    assert isinstance(item, holdfast.Message)
    return item.id


def test_an_async_follower_sees_another_process_write_in_order(
    tmp_path: Path, child: StartChild
) -> None:
    """Two tasks follow the same session, one from its middle on; both receive all of theirs."""
    path = tmp_path / "store.db"
    expected = _expected()

    async def follow(store: holdfast.AsyncStore, skip: int) -> list[str]:
        session = await store.session("s")
        after = holdfast.Head(1, skip) if skip else None
        seen: list[str] = []
        async for item in session.follow(after):
            seen.append(_id(item))
            if len(seen) == len(expected) - skip:
                break
        return seen

    async def main() -> None:
        async with holdfast.open_async(path) as store:
            await store.session("s")
            tasks = [asyncio.create_task(follow(store, skip)) for skip in (0, 100)]
            await asyncio.to_thread(child, _write, path, 0)
            whole, part = await asyncio.gather(*tasks)
            assert whole == expected
            assert part == expected[100:]

    asyncio.run(main())


def test_following_the_store_names_every_session_that_was_written_to(
    tmp_path: Path, child: StartChild
) -> None:
    """The newest head of each session arrives, and numbers only grow; resuming repeats nothing."""
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        writers = [child(_write_to, path, f"s{number}") for number in range(3)]
        follower = store.follow()
        heads: dict[str, int] = {}
        numbers = [0]
        while sum(heads.values()) < 3 * 20:
            activity = next(follower)
            heads[activity.session_id] = activity.head.seq
            numbers.append(activity.number)
        assert numbers == sorted(set(numbers))
        assert {store.get(id_).key: seq for id_, seq in heads.items()} == dict.fromkeys(
            ("s0", "s1", "s2"), 20
        )
        assert store.follow(since=follower.number).poll() is None
        for writer in writers:
            writer.join()


def _write_to(pipe: Pipe, path: Path, key: str) -> None:
    with holdfast.open(path) as store:
        session = store.session(key)
        for number in range(20):
            session.append(Message.user(str(number)))
    pipe.say("done")


# --- written between a read and a sleep --------------------------------------------------------


class Meanwhile:
    """Stores a message, and notifies, right after the first read of a follower."""

    def __init__(self, patch: pytest.MonkeyPatch, store: Store, writer: Session) -> None:
        self._wait = wait = store.backend.wait
        self._told: int | None = None  # the number of changes, if it has not read since
        poll = BaseFollower.poll
        messages = iter([Message.user("hello", id="meanwhile")])

        def poll_then_write(following: BaseFollower[object]) -> object:
            item = poll(following)
            self._told = None
            for message in messages:
                seen = wait(-1, 0)
                writer.append(message)
                assert wait(seen, _LONG) != seen
            return item

        patch.setattr(BaseFollower, "poll", poll_then_write)

    def wait_awake(self, seen: int, timeout: float) -> int:
        """Wait as the backend does, but fail where that would sleep."""
        assert not timeout or self._wait(-1, 0) != seen, "it sleeps, and has not looked since"
        return self._wait(seen, timeout)

    def wait_once(self, seen: int, timeout: float) -> int:
        """Wait as the backend does, but fail if called twice without a read in between."""
        before, self._told = self._told, self._wait(seen, timeout)
        assert before != self._told, "it slept, and has not looked since"
        return self._told


@pytest.fixture(params=[*KINDS, "sqlite, another opening", "postgres, another opening"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Session]]:
    """A store with the session "s", and that session through the same or another opening."""
    kind, _, another = request.param.partition(", ")
    with ExitStack() as stack:
        url = stack.enter_context(place(kind, tmp_path))
        store = stack.enter_context(holdfast.open(url))
        store.session("s")
        writer = stack.enter_context(holdfast.open(url)) if another else store
        yield store, writer.session("s")


def test_a_follower_does_not_sleep_through_what_was_written_while_it_read(
    watched: tuple[Store, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its read was too early, and a notification before it sleeps would not wake it."""
    store, writer = watched
    meanwhile = Meanwhile(monkeypatch, store, writer)
    monkeypatch.setattr(store.backend, "wait", meanwhile.wait_awake)
    assert _id(next(store.session("s").follow())) == "meanwhile"


def test_an_async_follower_does_not_sleep_through_what_was_written_while_it_read(
    watched: tuple[Store, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads again if the number of changes differs from the one before its last read."""
    store, writer = watched
    meanwhile = Meanwhile(monkeypatch, store, writer)
    monkeypatch.setattr(store.backend, "wait", meanwhile.wait_once)

    async def follow() -> str:
        session = await AsyncStore(store).session("s")
        return _id(await anext(session.follow()))

    assert asyncio.run(follow()) == "meanwhile"


# --- idling -------------------------------------------------------------------------------------


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The SQLite statements of this process on connections opened from now on."""
    seen: list[str] = []

    def listen(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: seen.append(event["sql"]))

    apsw.connection_hooks.append(listen)
    yield seen
    apsw.connection_hooks.remove(listen)


def test_following_an_idle_session_costs_few_reads(tmp_path: Path, statements: list[str]) -> None:
    """Waiting for a message costs a handful of statements a second, none of which reads a row."""

    async def follow_for_a_while(store: holdfast.AsyncStore) -> None:
        session = await store.session("s")
        follower = session.follow(await session.head())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(follower), 0.6)

    async def main() -> tuple[int, float]:
        async with holdfast.open_async(tmp_path / "store.db") as store:
            session = await store.session("s")
            await session.append(Message.user("hello"))
            await follow_for_a_while(store)
            assert any("data_version" in sql for sql in statements)
            statements.clear()
            began = time.monotonic()
            await follow_for_a_while(store)
            return len(statements), time.monotonic() - began

    asked, seconds = asyncio.run(main())
    assert asked < 25 + 10 * seconds


def _append_later(pipe: Pipe, path: Path) -> None:
    with holdfast.open(path) as store:
        session = store.session("s")
        pipe.say("ready")
        pipe.hear()
        session.append(Message.user("at last", id="last"))


def test_a_follower_that_waits_reads_little_and_still_wakes(
    tmp_path: Path, child: StartChild, statements: list[str]
) -> None:
    """A blocked `next` polls a few times a second, and notices when another process writes."""
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        session = store.session("s")
        writer = child(_append_later, path)
        writer.hear()
        began = time.monotonic()
        # The backend's own wait: what `next` does between two reads.
        seen = store.backend.wait(-1, 0)
        statements.clear()
        store.backend.wait(seen, 0.6)
        assert 0 < len(statements) < 12 + 10 * (time.monotonic() - began)
        assert {sql for sql in statements if "data_version" not in sql} == set()
        writer.say("go")
        assert _id(next(session.follow())) == "last"
        writer.join()
