"""Deleting, pruning and copying."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from holdfast import Message, Store
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.errors import BadQuery, KeyTaken
from tests.adapters.frameworks.langgraph.checkpoints import config, messages_at, put, read

ONE, TWO, THREE = (HumanMessage(f"text {n}", id=f"m{n}") for n in range(1, 4))


def run(id: str) -> dict[str, Any]:
    return {"source": "loop", "step": 1, "parents": {}, "run_id": id}


def ids(store: Store, thread_id: str = "t") -> list[str]:
    return [message.id for message in store.session(thread_id).messages()]


def test_a_deleted_thread_is_in_the_trash(saver: HoldfastSaver, store: Store) -> None:
    at = put(saver, {"messages": [ONE]})
    put(saver, {"messages": [ONE, TWO]}, ns="sub")
    saver.delete_thread("t")
    assert saver.get_tuple(at) is None
    assert len(store.sessions()) == 0
    trashed = store.sessions(trashed=True)
    assert sorted(info.messages for info in trashed) == [1, 1]
    put(saver, {"messages": [THREE]})
    assert ids(store) == ["m3"]
    assert messages_at(saver, config()) == [THREE]


def test_the_messages_of_a_deleted_run_are_left_on_a_branch(
    saver: HoldfastSaver, store: Store
) -> None:
    first = put(saver, {"messages": [ONE]}, metadata=run("a"))
    second = put(saver, {"messages": [ONE, TWO], "plan": "x" * 500}, first, metadata=run("b"))
    saver.put_writes(second, [("plan", 1)], "task")
    store.session("t").append(Message.user("from elsewhere", id="x"))
    saver.delete_for_runs(["b"])
    assert ids(store) == ["m1", "x"]
    assert saver.get_tuple(second) is None
    newest = read(saver, config())
    assert newest.config == first
    assert [m.id for m in newest.checkpoint["channel_values"]["messages"]] == ["m1", "x"]
    kinds = {record.kind for record in store.session("t").records(all_branches=True)}
    assert kinds == {"langgraph.checkpoint"}
    again = put(saver, {"messages": [ONE, THREE]}, first, metadata=run("c"))
    assert messages_at(HoldfastSaver(store), again) == [ONE, THREE]


def test_what_later_runs_have_stays_when_a_run_is_deleted(
    saver: HoldfastSaver, store: Store
) -> None:
    value = "x" * 500
    first = put(saver, {"messages": [ONE], "plan": value}, metadata=run("a"))
    second = put(saver, {"messages": [ONE, TWO], "plan": value}, first, metadata=run("b"))
    saver.delete_for_runs(["a", "unknown"])
    assert ids(store) == ["m1", "m2"]
    found = read(HoldfastSaver(store), second)
    assert found.checkpoint["channel_values"] == {"messages": [ONE, TWO], "plan": value}


def test_pruning_keeps_the_newest_of_each_namespace_and_all_messages(
    saver: HoldfastSaver, store: Store
) -> None:
    at: Any = None
    for number in range(4):
        value = [HumanMessage(f"{n}", id=f"{n}") for n in range(number + 1)]
        at = put(saver, {"messages": value, "plan": f"{number}" * 500, "same": "s" * 500}, at)
        saver.put_writes(at, [("plan", number)], "task")
    child = put(saver, {"plan": "child"}, ns="sub")
    before = read(saver, at)
    saver.prune(["t", "unknown"])
    fresh = HoldfastSaver(store)
    assert [one.config for one in fresh.list({"configurable": {"thread_id": "t"}})] == [child, at]
    after = read(fresh, at)
    assert after.checkpoint == before.checkpoint
    assert after.pending_writes == before.pending_writes
    assert len(store.session("t").records("langgraph.value")) == 2
    assert ids(store) == ["0", "1", "2", "3"]
    with pytest.raises(BadQuery):
        saver.prune(["t"], strategy="other")
    saver.prune(["t"], strategy="delete")
    assert saver.get_tuple(config()) is None


def test_pruning_keeps_what_a_delta_channel_is_rebuilt_from(saver: HoldfastSaver) -> None:
    at = put(saver, {"log": ["seed"]})
    for number in range(1, 4):
        saver.put_writes(at, [("log", number)], "task")
        metadata = {"source": "loop", "step": number, "parents": {}}
        counters = {"counters_since_delta_snapshot": {"log": (number, number)}}
        at = put(saver, {}, at, metadata={**metadata, **counters})
    before = saver.get_delta_channel_history(config=at, channels=["log"])
    assert [value for _, _, value in before["log"]["writes"]] == [1, 2, 3]
    saver.prune(["t"])
    assert saver.get_delta_channel_history(config=at, channels=["log"]) == before


def test_a_copy_has_all_checkpoints_and_copies_no_message(
    saver: HoldfastSaver, store: Store
) -> None:
    first = put(saver, {"messages": [ONE]})
    left = put(saver, {"messages": [ONE, TWO], "plan": b"\x00" * 500}, first)
    saver.put_writes(left, [("plan", 1)], "task")
    child = put(saver, {"messages": [ONE, TWO, THREE]}, ns="sub")
    saver.get_tuple(first)
    newest = put(saver, {"messages": [ONE, THREE]}, first)
    messages = store.stats().messages
    saver.copy_thread("t", "copy")
    assert store.stats().messages == messages
    for one in (saver, HoldfastSaver(store)):
        for at in (first, left, child, newest):
            names = {**at["configurable"], "thread_id": "copy"}
            original, copied = read(one, at), read(one, {"configurable": names})
            assert copied.checkpoint == original.checkpoint
            assert copied.metadata == original.metadata
            assert copied.pending_writes == original.pending_writes
        assert read(one, config("copy")).checkpoint["id"] == newest["configurable"]["checkpoint_id"]
        sub = read(one, config("copy", ns="sub"))
        assert sub.checkpoint["id"] == child["configurable"]["checkpoint_id"]
    with pytest.raises(KeyTaken):
        saver.copy_thread("t", "copy")


def test_a_copy_and_its_original_go_on_apart(saver: HoldfastSaver, store: Store) -> None:
    at = put(saver, {"messages": [ONE]}, metadata=run("a"))
    saver.copy_thread("t", "copy")
    saver.get_tuple(config("copy"))
    put(saver, {"messages": [ONE, TWO]}, config("copy", at["configurable"]["checkpoint_id"]))
    put(saver, {"messages": [ONE, THREE]}, at)
    assert (ids(store), ids(store, "copy")) == (["m1", "m3"], ["m1", "m2"])
    store.purge(store.session("t").id)
    fresh = HoldfastSaver(store)
    assert messages_at(fresh, config("copy")) == [ONE, TWO]
    inherited = config("copy", at["configurable"]["checkpoint_id"])
    assert messages_at(fresh, inherited) == [ONE]
    put(fresh, {"messages": [THREE]}, inherited)
    assert messages_at(fresh, inherited) == [ONE]


def test_a_copy_keeps_its_further_lists_when_the_original_is_deleted(
    saver: HoldfastSaver, store: Store
) -> None:
    at = put(saver, {"messages": [ONE], "notes": [TWO]})
    original = store.session("t").id
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    store.purge(original)
    fresh = HoldfastSaver(store)
    copied = read(fresh, config("copy", at["configurable"]["checkpoint_id"]))
    assert copied.checkpoint["channel_values"] == {"messages": [ONE], "notes": [TWO]}
    put(fresh, {"messages": [ONE], "notes": [TWO, THREE]}, copied.config)
    found = read(HoldfastSaver(store), config("copy"))
    assert found.checkpoint["channel_values"]["notes"] == [TWO, THREE]


def test_a_run_is_deleted_in_copies_too(saver: HoldfastSaver, store: Store) -> None:
    first = put(saver, {"messages": [ONE]}, metadata=run("a"))
    second = put(saver, {"messages": [ONE, TWO]}, first, metadata=run("b"))
    saver.copy_thread("t", "copy")
    saver.delete_for_runs(["b"])
    for thread_id in ("t", "copy"):
        assert ids(store, thread_id) == ["m1"]
        found = read(HoldfastSaver(store), config(thread_id))
        assert (
            found.config["configurable"]["checkpoint_id"] == first["configurable"]["checkpoint_id"]
        )
        names = {**second["configurable"], "thread_id": thread_id}
        assert saver.get_tuple({"configurable": names}) is None
        assert len([*saver.list(config(thread_id))]) == 1


def test_a_fork_of_the_session_is_a_thread(saver: HoldfastSaver, store: Store) -> None:
    first = put(saver, {"messages": [ONE]})
    put(saver, {"messages": [ONE, AIMessage("b", id="b")]}, first)
    store.session("t").fork("m1", key="fork")
    found = read(saver, config("fork"))
    assert found.checkpoint["id"] == first["configurable"]["checkpoint_id"]
    put(saver, {"messages": [ONE, TWO]}, found.config)
    assert (ids(store, "fork"), ids(store)) == (["m1", "m2"], ["m1", "b"])
