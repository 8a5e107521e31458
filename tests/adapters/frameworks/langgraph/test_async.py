"""The methods for asyncio do what the others do; a cancelled task tears nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from holdfast import Store
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.frameworks.langgraph.checkpoints import checkpoint, config, messages_at, put

METADATA: Any = {"source": "loop", "step": 1, "parents": {}, "run_id": "r"}


async def test_both_see_the_same(saver: HoldfastSaver, store: Store) -> None:
    value, versions = [HumanMessage("a", id="a")], {"messages": "1"}
    at = await saver.aput(config(), checkpoint({"messages": value}, versions), METADATA, versions)
    await saver.aput_writes(at, [("plan", 1)], "task", "~path")
    for one in (saver, HoldfastSaver(store)):
        assert await one.aget_tuple(config()) == one.get_tuple(config())
        listed = [found async for found in one.alist(config(), limit=3)]
        assert listed == [*one.list(config(), limit=3)]
    await saver.acopy_thread("t", "copy")
    assert messages_at(saver, config("copy")) == value
    second = put(saver, {"messages": [*value, AIMessage("b", id="b")]}, at)
    await saver.aprune(["t"])
    assert [one.config async for one in saver.alist(config())] == [second]
    await saver.adelete_for_runs(["r"])
    await saver.adelete_thread("t")
    assert await saver.aget_tuple(config()) is None


async def test_a_cancelled_write_is_whole_when_the_task_ends(
    saver: HoldfastSaver, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()
    original = HoldfastSaver.put

    def slow(self: HoldfastSaver, given: Any, made: Any, metadata: Any, new: Any) -> Any:  # noqa: ANN401 - as the method has them
        started.set()
        go_on.wait(60)
        return original(self, given, made, metadata, new)

    monkeypatch.setattr(HoldfastSaver, "put", slow)
    versions = {"messages": "1"}
    made = checkpoint({"messages": [HumanMessage("a", id="a")]}, versions)
    task = asyncio.create_task(saver.aput(config(), made, METADATA, versions))
    await asyncio.to_thread(started.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [message.id for message in messages_at(saver, config())] == ["a"]


async def test_many_threads_at_once(saver: HoldfastSaver, store: Store) -> None:
    async def talk(thread_id: str) -> None:
        at = config(thread_id)
        value: list[Any] = []
        for number in range(5):
            value = [*value, HumanMessage(f"{number}", id=f"{number}")]
            versions = {"messages": f"{number + 1}"}
            made = checkpoint({"messages": value}, versions)
            at = await saver.aput(at, made, METADATA, versions)
            await saver.aput_writes(at, [("plan", number)], f"task{number}")

    await asyncio.gather(*(talk(f"t{number}") for number in range(20)))
    for number in range(20):
        assert [m.id for m in store.session(f"t{number}").messages()] == list("01234")
