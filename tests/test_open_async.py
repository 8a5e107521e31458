"""`holdfast.open_async`: with `await` or in a block, on asyncio's event loop."""

import asyncio
import gc
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncSession, Message, Store
from holdfast.errors import HoldfastError, Invalid


def _run_without_a_loop(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine up to where it waits, as the event loop of another package would."""
    try:
        work.send(None)
    finally:
        work.close()


def test_await_opens_a_store_for_the_caller_to_close(tmp_path: Path) -> None:
    async def work() -> None:
        store = await holdfast.open_async(tmp_path / "agent.db")
        session = await store.session("k")
        await session.append(Message.user("a"))
        await store.close()
        with pytest.raises(HoldfastError, match="closed"):
            await session.append(Message.user("b"))

    asyncio.run(work())
    with holdfast.open(tmp_path / "agent.db") as store:
        assert [message.text for message in store.session("k").messages()] == ["a"]


def test_a_block_closes_its_store_after_an_error_too(tmp_path: Path) -> None:
    session: AsyncSession

    async def work() -> None:
        nonlocal session
        async with holdfast.open_async(tmp_path / "agent.db") as store:
            session = await store.session("k")
            raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(work())
    with pytest.raises(HoldfastError, match="closed"):
        asyncio.run(session.append(Message.user("b")))


def test_a_store_stays_open_when_what_opened_it_is_collected(tmp_path: Path) -> None:
    """As in a server that enters the block when it starts and keeps only the store."""

    async def work() -> None:
        opening = holdfast.open_async(tmp_path / "agent.db")
        store = await opening.__aenter__()
        del opening
        gc.collect()
        for _ in range(10):
            await asyncio.sleep(0)  # The loop would run what was scheduled on collection.
        assert (await (await store.session("k")).append(Message.user("a"))).seq == 1
        await store.close()

    asyncio.run(work())


@pytest.mark.parametrize("late", [True, False])
def test_a_store_whose_opening_is_cancelled_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """Whether it is open by then or only later: no one else could close it."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    opened: list[Store] = []

    def open_slowly(url: Path, **options: Any) -> Store:  # noqa: ANN401
        begun.set()
        assert go_on.wait(60)
        opened.append(open_store(url, **options))
        ended.set()
        return opened[-1]

    async def work() -> None:
        opening = asyncio.create_task(_open(tmp_path / "agent.db"))
        assert await asyncio.to_thread(begun.wait, 60)
        if not late:
            go_on.set()
            assert ended.wait(60)  # The loop does not run meanwhile: the task has not heard of it.
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()

    open_store = holdfast.open
    monkeypatch.setattr("holdfast.store.open", open_slowly)
    asyncio.run(work())  # Its threads end with it.
    (store,) = opened
    with pytest.raises(HoldfastError, match="closed"):
        store.session("k")


async def _open(path: Path) -> None:
    async with holdfast.open_async(path):
        pytest.fail("it was cancelled before")


def test_a_store_that_nobody_closed_warns_when_it_is_collected(tmp_path: Path) -> None:
    async def work() -> None:
        store = await holdfast.open_async(tmp_path / "agent.db")
        await store.session("k")

    def run_and_collect() -> None:
        asyncio.run(work())  # Its threads, which may hold what they returned, end with it.
        gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed store"):
        run_and_collect()


def test_without_asyncio_opening_is_refused_and_says_what_to_use(tmp_path: Path) -> None:
    async def work() -> None:
        await holdfast.open_async(tmp_path / "agent.db")

    with pytest.raises(Invalid, match=r"asyncio.*holdfast\.open.*trio\.to_thread"):
        _run_without_a_loop(work())
    assert not list(tmp_path.iterdir()), "nothing was opened"


def test_without_asyncio_a_write_is_refused_and_stores_nothing() -> None:
    with holdfast.open("memory:") as store:
        session = AsyncSession(store.session("k"))
        with pytest.raises(Invalid, match="asyncio"):
            _run_without_a_loop(session.append(Message.user("a")))
        assert store.session("k").messages() == []
