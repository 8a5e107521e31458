"""What is no message: values of channels, pending writes, and what a retry stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

import holdfast
from holdfast import Store
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.frameworks.langgraph.checkpoints import (
    checkpoint,
    config,
    messages_at,
    put,
    read,
)

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}


def test_a_value_that_does_not_change_is_stored_once(saver: HoldfastSaver, store: Store) -> None:
    long, versions = os.urandom(500).hex(), {"long": "1", "step": "1"}
    at = saver.put(config(), checkpoint({"long": long, "step": 0}, versions), METADATA, versions)
    for number in range(1, 20):
        versions = {**versions, "step": str(number + 1)}
        made = checkpoint({"long": long, "step": number}, versions)
        at = saver.put(at, made, METADATA, {"step": versions["step"]})
    assert read(saver, at).checkpoint["channel_values"] == {"long": long, "step": 19}
    records = msgspec.json.encode(store.session("t").records())
    assert records.count(long.encode()) == 1


def test_what_is_json_is_stored_as_json(saver: HoldfastSaver, store: Store) -> None:
    value = {"a": [1, 2.5, True, None, {"b": "\x00"}]}
    put(saver, {"plan": value})
    (record,) = store.session("t").records("langgraph.checkpoint")
    data: Any = record.data
    assert data["channels"]["plan"] == {"json": value}
    assert data["metadata"] == {"json": METADATA}


@pytest.mark.parametrize(
    "value", [b"\x00\xff", {1: "a"}, {"x"}, 2**62, Path("a"), float("inf"), [], {}, None, ""]
)
def test_a_value_comes_back_equal(saver: HoldfastSaver, value: object) -> None:
    at = put(saver, {"value": value})
    back = read(saver, at).checkpoint["channel_values"]["value"]
    assert (type(back), back) == (type(value), value)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agent.db") as store:
        saver = HoldfastSaver(store)
        with pytest.raises(TypeError):
            put(saver, {"value": object()})
        assert saver.get_tuple(config()) is None


def test_a_serializer_of_ones_own_is_all_that_writes(tmp_path: Path) -> None:
    class Cipher:
        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "xor", bytes(byte ^ 0x5A for byte in plaintext)

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            assert ciphername == "xor"
            return bytes(byte ^ 0x5A for byte in ciphertext)

    with holdfast.open(tmp_path / "agent.db") as store:
        saver = HoldfastSaver(store, serde=EncryptedSerializer(Cipher()))
        values = {"messages": [HumanMessage("my secret", id="a")], "plan": "another secret"}
        at = put(saver, values, metadata={"source": "loop", "step": 1, "note": "third secret"})
        saver.put_writes(at, [("plan", "fourth secret")], "task")
        back = read(saver, at)
        assert back.checkpoint["channel_values"] == values
        assert back.pending_writes == [("task", "plan", "fourth secret")]
        assert [one.metadata["note"] for one in saver.list(config())] == ["third secret"]
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()


def test_a_retry_of_a_checkpoint_stores_nothing(saver: HoldfastSaver, store: Store) -> None:
    versions = {"messages": "1", "blob": "1"}
    values = {"messages": [HumanMessage("a"), AIMessage("b", id="b")], "blob": os.urandom(1000)}
    first = put(saver, {"messages": [HumanMessage("0", id="0")]})
    made = checkpoint(
        {**values, "messages": [HumanMessage("0", id="0"), *values["messages"]]}, versions
    )
    second = saver.put(first, made, METADATA, versions)
    before = store.session("t").records(all_branches=True)
    for one in (saver, HoldfastSaver(store)):
        assert one.put(first, made, METADATA, versions) == second
    third = put(saver, {"messages": [*made["channel_values"]["messages"], AIMessage("c")]}, second)
    for one in (saver, HoldfastSaver(store)):
        one.put(first, made, METADATA, versions)
    assert [m.text for m in store.session("t").messages()] == ["0", "a", "b", "c"]
    assert len(store.session("t").records(all_branches=True)) == len(before) + 1
    assert len(store.session("t").branches()) == 1
    assert read(HoldfastSaver(store), config()).config == third


def test_a_retry_of_writes_stores_nothing(saver: HoldfastSaver, store: Store) -> None:
    at = put(saver, {"plan": 1})
    for one in (saver, saver, HoldfastSaver(store)):
        one.put_writes(at, [("plan", 2), ("messages", HumanMessage("a"))], "task", "~path")
        one.put_writes(at, [("__error__", "failed")], "other")
    assert len(store.session("t").records("langgraph.writes")) == 2
    assert len(read(saver, at).pending_writes) == 3


def test_the_first_write_of_a_task_counts_and_the_last_special_one(saver: HoldfastSaver) -> None:
    at = put(saver, {"plan": 1})
    saver.put_writes(at, [("plan", "first")], "task")
    saver.put_writes(at, [("plan", "second"), ("more", "third")], "task")
    for value in ("a", "b", "a"):
        saver.put_writes(at, [("__resume__", value)], "task")
    assert read(saver, at).pending_writes == [
        ("task", "__resume__", "a"),
        ("task", "plan", "first"),
        ("task", "more", "third"),
    ]


def test_writes_come_in_the_order_of_their_tasks_paths(saver: HoldfastSaver) -> None:
    at = put(saver, {"plan": 1})
    for task, path in (("1", "~b"), ("2", "~a"), ("3", "")):
        saver.put_writes(at, [("plan", task)], task, path)
    assert [task for task, _, _ in read(saver, at).pending_writes] == ["3", "2", "1"]


def test_a_write_that_comes_before_its_checkpoint_is_kept(
    saver: HoldfastSaver, store: Store
) -> None:
    first = put(saver, {"messages": [HumanMessage("a", id="a"), AIMessage("b", id="b")]})
    made = checkpoint({"messages": [HumanMessage("c", id="c")]}, {"messages": "2"})
    saver.put_writes(config(id=made["id"]), [("plan", "early")], "task")
    saver.put(first, made, METADATA, {"messages": "2"})
    assert len(store.session("t").branches()) == 2
    for one in (saver, HoldfastSaver(store)):
        assert read(one, config()).pending_writes == [("task", "plan", "early")]
        assert read(one, config(id=made["id"])).pending_writes == [("task", "plan", "early")]


def test_a_large_value_is_a_file_of_the_store(saver: HoldfastSaver, store: Store) -> None:
    value = os.urandom(300_000)
    at = put(saver, {"blob": value})
    saver.put_writes(at, [("blob", value)], "task")
    back = read(saver, at)
    assert back.checkpoint["channel_values"]["blob"] == back.pending_writes[0][2] == value
    assert store.stats().blob_bytes < 310_000


def test_checkpoints_are_listed_newest_first_and_filtered(saver: HoldfastSaver) -> None:
    at: Any = None
    for number in range(6):
        metadata: Any = {"source": "input" if number % 2 else "loop", "step": number, "parents": {}}
        at = put(saver, {"plan": number}, at, metadata=metadata)
    put(saver, {"plan": 9}, thread_id="other")
    steps = [one.metadata["step"] for one in saver.list(config(), filter={"source": "input"})]
    assert steps == [5, 3, 1]
    assert [one.metadata["step"] for one in saver.list(config(), limit=2)] == [5, 4]
    assert [one.metadata["step"] for one in saver.list(config(), before=at, limit=1)] == [4]
    assert len([*saver.list(None)]) == 7
    assert [*saver.list(config(), limit=0)] == []
    assert messages_at(saver, put(saver, {"messages": []})) == []
