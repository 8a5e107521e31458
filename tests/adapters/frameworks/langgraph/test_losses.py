"""What other savers lose, these keep: a test for each."""

from __future__ import annotations

import importlib
import sys

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import holdfast
from holdfast import Store
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.errors import SessionBusy
from tests.adapters.frameworks.langgraph.checkpoints import config, messages_at, put, read


@pytest.mark.parametrize(
    "keys",
    [("a/b", "a_b"), ("A", "a"), ("a\x00b", "a\x00c"), ("é", "e\u0301"), ("\ud800", "?")],
)
def test_threads_whose_ids_are_alike_are_two(
    saver: HoldfastSaver, store: Store, keys: tuple[str, str]
) -> None:
    for key in keys:
        put(saver, {"messages": [HumanMessage(f"to {key!r}", id="m")]}, thread_id=key)
    for key in keys:
        (found,) = messages_at(saver, config(key))
        assert found.content == f"to {key!r}"
    assert len({one.config["configurable"]["thread_id"] for one in saver.list(None)}) == 2


def test_a_thread_id_may_have_4_kb(saver: HoldfastSaver) -> None:
    put(saver, {"messages": [HumanMessage("a", id="m")]}, thread_id="k" * 4096)
    assert len(messages_at(saver, config("k" * 4096))) == 1


def test_namespaces_that_begin_alike_are_two(saver: HoldfastSaver) -> None:
    first = put(saver, {"plan": 1}, ns="sub")
    put(saver, {"plan": 2}, ns="sub:1")
    put(saver, {"plan": 3}, ns="sub0:")
    assert read(saver, config(ns="sub")).config == first
    assert len([*saver.list(config(ns="sub"))]) == 1


def test_a_number_is_a_thread_id(saver: HoldfastSaver, store: Store) -> None:
    saver.put(
        {"configurable": {"thread_id": 7, "checkpoint_ns": ""}},
        {"v": 4, "id": "1f", "ts": "", "channel_values": {}, "channel_versions": {}}
        | {"versions_seen": {}, "updated_channels": None},
        {"source": "input", "step": -1, "parents": {}},
        {},
    )
    assert read(saver, {"configurable": {"thread_id": 7}}).checkpoint["id"] == "1f"
    assert store.session("7", create=False).info().messages == 0


def test_a_rewrite_while_another_program_has_a_turn_is_refused_clearly(
    saver: HoldfastSaver, store: Store
) -> None:
    one, two = HumanMessage("1", id="1"), AIMessage("2", id="2")
    at = put(saver, {"messages": [one, two]})
    with store.session("t").turn() as turn:
        turn.user("hello")
        at = put(saver, {"messages": [one, two, HumanMessage("3", id="3")]}, at)
        with pytest.raises(SessionBusy):
            put(saver, {"messages": [two]}, at)
        assert read(saver, config()).config == at
    put(saver, {"messages": [two]}, at)
    assert [m.text for m in store.session("t").messages()][:1] == ["2"]


def test_a_thread_that_another_process_deleted_begins_anew(
    saver: HoldfastSaver, store: Store
) -> None:
    at = put(saver, {"messages": [HumanMessage("1", id="1")]})
    HoldfastSaver(store).delete_thread("t")
    put(saver, {"messages": [HumanMessage("1", id="1"), AIMessage("2", id="2")]}, at)
    assert [m.id for m in store.session("t").messages()] == ["1", "2"]
    assert len(store.sessions(trashed=True)) == 1


@pytest.mark.parametrize("value", ["text", None, {"a": 1}, [1], [HumanMessage("1", id="1"), "x"]])
def test_a_channel_of_messages_that_becomes_another_value_keeps_that(
    saver: HoldfastSaver, store: Store, value: object
) -> None:
    first = put(saver, {"messages": [HumanMessage("1", id="1"), AIMessage("2", id="2")]})
    second = put(saver, {"messages": value}, first)
    third = put(saver, {"messages": value}, second)
    for one in (saver, HoldfastSaver(store)):
        for at in (second, third, config()):
            assert read(one, at).checkpoint["channel_values"] == {"messages": value}
        assert [message.id for message in messages_at(one, first)] == ["1", "2"]
    put(saver, {"messages": [AIMessage("3", id="3")]}, third)
    assert [message.id for message in messages_at(HoldfastSaver(store), config())] == ["3"]


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["x" * 1000, "\ud800"]])
def test_a_lone_surrogate_is_a_value(saver: HoldfastSaver, store: Store, value: object) -> None:
    at = put(saver, {"plan": value})
    saver.put_writes(at, [("plan", value)], "task")
    found = read(HoldfastSaver(store), at)
    assert found.checkpoint["channel_values"] == {"plan": value}
    assert found.pending_writes == [("task", "plan", value)]


def test_the_scope_is_that_of_new_threads(store: Store) -> None:
    put(HoldfastSaver(store, scope="support"), {"messages": [HumanMessage("1", id="1")]})
    assert [info.key for info in store.sessions(scope="support")] == ["t"]


def test_a_store_in_memory_will_do() -> None:
    with holdfast.open("memory:") as store:
        put(HoldfastSaver(store), {"messages": [HumanMessage("1", id="1")]})
        assert len(messages_at(HoldfastSaver(store), config())) == 1


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("holdfast.adapters.langgraph"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.base", None)
    with pytest.raises(ImportError, match=r"holdfast\[langgraph\]"):
        importlib.import_module("holdfast.adapters.langgraph")
