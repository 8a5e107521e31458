"""A lock that is never released: a clear error, nothing stored, and normal operation afterwards.

Each holder is a process that took one of the locks a write needs and then only waits for the test,
so the writer's result does not depend on getting the lock.
"""

import asyncio
import fcntl
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message
from holdfast.errors import StoreUnavailable
from holdfast.storage.protocol import Transaction
from tests.concurrency.children import Child, Pipe
from tests.concurrency.conftest import StartChild


def _url(path: Path) -> str:
    """A URL with a short busy timeout, which is only reached where a lock is held."""
    return f"sqlite:///{path}?deadline=0.2"


def _hold_file(pipe: Pipe, path: Path, suffix: str) -> None:
    with path.with_name(path.name + suffix).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        pipe.say("held")
        pipe.hear()


def _hold_lock(pipe: Pipe, path: Path) -> None:
    _hold_file(pipe, path, "-lock")


def _hold_queue(pipe: Pipe, path: Path) -> None:
    _hold_file(pipe, path, "-queue")


def _hold_database(pipe: Pipe, path: Path) -> None:
    """Write to the database without Holdfast's locks, as a foreign program would."""
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN IMMEDIATE")
    pipe.say("held")
    pipe.hear()
    connection.execute("ROLLBACK")
    connection.close()


def _hold_from_inside(pipe: Pipe, path: Path) -> None:
    """Block inside a transaction of the store."""

    def stand_still(_: Transaction) -> None:
        pipe.say("held")
        pipe.hear()

    with holdfast.open(path) as store:
        store.backend.write(stand_still)


_HOLDERS = [_hold_lock, _hold_queue, _hold_database, _hold_from_inside]


@pytest.fixture(params=_HOLDERS, ids=lambda holder: str(holder.__name__).strip("_"))
def hold(request: pytest.FixtureRequest) -> Callable[[Pipe, Path], None]:
    holder: Callable[[Pipe, Path], None] = request.param
    return holder


def _stuck(child: StartChild, hold: Callable[[Pipe, Path], None], path: Path) -> Child:
    holder = child(hold, path)
    assert holder.hear() == "held"
    return holder


def _let_go(holder: Child) -> None:
    holder.say("let go")
    holder.join()


def test_a_stuck_lock_is_an_error_and_nothing_is_stored(
    tmp_path: Path, child: StartChild, hold: Callable[[Pipe, Path], None]
) -> None:
    """Writers get `StoreUnavailable`, readers read on; what was refused does not turn up later."""
    path = tmp_path / "store.db"
    with holdfast.open(_url(path)) as store:
        session = store.session("s")
        before = session.append(Message.user("before", id="before"))
        holder = _stuck(child, hold, path)
        for attempt in range(2):
            with pytest.raises(StoreUnavailable, match="nothing was stored"):
                session.append(Message.user("refused", id=f"refused {attempt}"))
            assert session.head() == before
        _let_go(holder)
        session.append(Message.user("after", id="after"))
        store.flush()
        assert [message.id for message in session.messages()] == ["before", "after"]
        assert store.verify() == []


def test_a_stuck_lock_is_an_error_for_tasks_too(
    tmp_path: Path, child: StartChild, hold: Callable[[Pipe, Path], None]
) -> None:
    """Twenty tasks get the error each; afterwards the same ids are stored as if never tried."""
    path = tmp_path / "store.db"
    messages = [Message.user("x", id=f"m{number:02}") for number in range(20)]

    async def main() -> None:
        async with holdfast.open_async(_url(path)) as store:
            session = await store.session("s")
            holder = await asyncio.to_thread(_stuck, child, hold, path)
            tasks = [session.append(message) for message in messages]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {StoreUnavailable}
            assert await session.messages() == []
            await asyncio.to_thread(_let_go, holder)
            for message in messages:
                await session.append(message)
            stored = [message.id for message in await session.messages()]
            assert stored == [message.id for message in messages]

    asyncio.run(main())


def test_an_open_store_can_be_opened_and_read_while_the_lock_is_stuck(
    tmp_path: Path, child: StartChild, hold: Callable[[Pipe, Path], None]
) -> None:
    """Reading needs no lock: neither of a handle that is open nor of a new one."""
    path = tmp_path / "store.db"
    with holdfast.open(_url(path)) as store:
        store.session("s").append(Message.user("hello", id="hello"))
        holder = _stuck(child, hold, path)
        assert [message.id for message in store.session("s").messages()] == ["hello"]
        with holdfast.open(_url(path)) as other:
            assert [message.id for message in other.get("s").messages()] == ["hello"]
        with holdfast.open(_url(path), readonly=True) as reader:
            assert [message.id for message in reader.get("s").messages()] == ["hello"]
        _let_go(holder)


def test_a_killed_lock_holder_is_no_obstacle(
    tmp_path: Path, child: StartChild, hold: Callable[[Pipe, Path], None]
) -> None:
    """The system releases what a dead process held; the next write goes through."""
    path = tmp_path / "store.db"
    with holdfast.open(_url(path)) as store:
        session = store.session("s")
        holder = _stuck(child, hold, path)
        holder.kill()
        session.append(Message.user("hello", id="hello"))
        assert [message.id for message in session.messages()] == ["hello"]
        assert store.verify() == []
