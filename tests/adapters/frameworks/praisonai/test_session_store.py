"""What PraisonAI's store of JSON files does, ours does on a store."""

from __future__ import annotations

import inspect
import random
from pathlib import Path
from typing import Any

import pytest
from praisonaiagents.session.protocols import IncrementalSessionStoreProtocol, SessionStoreProtocol
from praisonaiagents.session.store import DefaultSessionStore as Theirs
from praisonaiagents.session.store import SessionData

from holdfast import Store
from holdfast.adapters.praisonai import DefaultSessionStore

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
# What is for files, mirrors of them, and for moving them: `holdfast export` does that.
NOT_OURS = {
    "close_mirror",
    "export_all",
    "export_session",
    "flush_mirror",
    "import_sessions",
}
Stores = tuple[DefaultSessionStore, Theirs]


@pytest.fixture
def stores(store: Store, tmp_path: Path) -> Stores:
    theirs = Theirs(str(tmp_path / "sessions"), retention="keep_all")
    return DefaultSessionStore(store), theirs


def test_every_public_method_has_the_signature_of_theirs() -> None:
    for name, theirs in inspect.getmembers(Theirs, inspect.isfunction):
        if not name.startswith("_") and name not in NOT_OURS:
            given = inspect.signature(getattr(DefaultSessionStore, name)).parameters
            assert [*given] == [*inspect.signature(theirs).parameters], name


def test_it_is_what_agents_look_for(stores: Stores) -> None:
    assert isinstance(stores[0], SessionStoreProtocol)
    assert isinstance(stores[0], IncrementalSessionStoreProtocol)


def plain(data: SessionData) -> dict[str, Any]:
    """Return a session as a dict without times."""
    found = data.to_dict()
    for name in ("created_at", "updated_at"):
        assert isinstance(found.pop(name), str)
    for message in found["messages"]:
        assert isinstance(message.pop("timestamp"), float)
    if "last_compaction" in found:
        assert isinstance(found["last_compaction"].pop("timestamp"), float)
    return found


def test_a_conversation_with_tools_is_the_same(stores: Stores) -> None:
    for one in stores:
        assert one.add_user_message("s", "What is 1 + 1?", {"lang": "en"})
        assert one.add_message("s", "assistant", "", tool_calls=[CALL])
        assert one.add_message("s", "tool", "2", tool_call_id="c1")
        assert one.add_assistant_message("s", "It is 2.")
    ours, theirs = stores
    for limit in (None, 0, 1, 2, 3, 4, 9):
        assert ours.get_chat_history("s", limit) == theirs.get_chat_history("s", limit), limit
        assert ours.get_working_history("s", limit) == theirs.get_working_history("s", limit)
    assert plain(ours.get_session("s")) == plain(theirs.get_session("s"))


def test_what_is_not_there_is_as_there(stores: Stores) -> None:
    for one in stores:
        assert one.get_chat_history("nothing") == []
        assert one.get_working_history("nothing") == []
        assert not one.session_exists("nothing")
        assert one.delete_session("nothing") is True
        assert one.get_by_gateway_session("nothing") is None
        assert one.get_session_model("nothing") is None
        assert one.list_sessions_by_agent("nobody") == []
        assert one.append_compaction_checkpoint("nothing", "  ") is False
        assert one.search("nothing") == []
        assert one.window("nothing") == []
        assert plain(one.get_session("nothing"))["messages"] == []
        assert one.clear_session("cleared") is True
        assert one.session_exists("cleared")


def test_a_compaction_is_the_same(stores: Stores) -> None:
    for one in stores:
        for number in range(6):
            one.add_message("s", ("user", "assistant")[number % 2], f"{number}")
        assert one.append_compaction_checkpoint(
            "s", "what was", tokens_before=90, tokens_after=9, metadata={"by": "test"}
        )
        one.add_user_message("s", "next")
    ours, theirs = stores
    assert ours.get_working_history("s") == theirs.get_working_history("s")
    assert ours.get_chat_history("s") == theirs.get_chat_history("s")
    assert plain(ours.get_session("s")) == plain(theirs.get_session("s"))
    for one in stores:
        one.set_chat_history("s", [{"role": "user", "content": "anew"}])
    assert plain(ours.get_session("s")) == plain(theirs.get_session("s"))


@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_random_calls_have_the_results_of_theirs(stores: Stores, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(200):
        name, args, named = call(chance, number)
        if name == "append_compaction_checkpoint" and not stores[1].get_chat_history(*args[:1]):
            continue  # There is nothing to summarise: ours says so.
        ours, theirs = (getattr(one, name)(*args, **named) for one in stores)
        assert ours == theirs, (number, name)
        for id in ("a", "b"):
            one, another = (plain(store.get_session(id)) for store in stores)
            assert one == another, (number, name)


def call(chance: random.Random, number: int) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return a method, and what it is called with."""
    id, text = chance.choice("ab"), f"text {number}"
    role = chance.choice(["user", "assistant", "system"])
    history = [{"role": "user", "content": f"h {n}"} for n in range(number % 4)]
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("add_message", (id, role, text), {"metadata": {"n": number}}),
        ("add_message", (id, role, ""), {}),
        ("set_chat_history", (id, history), {}),
        ("clear_session", (id,), {}),
        ("delete_session", (id,), {}),
        ("session_exists", (id,), {}),
        ("get_chat_history", (id, number % 5), {}),
        ("get_working_history", (id,), {"max_messages": number % 7}),
        ("upsert_partial_assistant_message", (id, text), {}),
        ("upsert_partial_assistant_message", (id, text), {"finalize": True}),
        ("upsert_partial_assistant_message", (id, ""), {"finalize": True}),
        ("discard_partial_assistant_message", (id,), {}),
        ("update_session_metadata", (id,), {"model": text, "cost": number, "none": None}),
        ("update_session_metadata", (id,), {"agent_name": f"agent {number % 3}"}),
        ("merge_session_metadata_map", (id, "map", {text: 1}), {"defaults": {"d": 0}}),
        ("rename_session", (id, chance.choice([text, " ", ""])), {}),
        ("set_agent_info", (id, f"agent {number % 3}", "user"), {}),
        ("set_gateway_info", (id, f"gateway {number % 3}", "agent"), {}),
        ("append_compaction_checkpoint", (id, text), {}),
        ("set_runtime_state", (id, f"r{number % 2}", f"t{number % 3}", {"n": number}), {}),
        ("get_runtime_state", (id, "r1"), {}),
        ("get_runtime_state", (id, "r1", "t1"), {}),
        ("clear_runtime_state", (id, chance.choice([None, "r0"])), {}),
        ("get_session_model", (id,), {}),
        ("get_session_reasoning_effort", (id,), {}),
    ]
    return chance.choice(calls)


def test_lists_have_the_items_of_theirs(stores: Stores) -> None:
    for one in stores:
        one.add_user_message("first", "one")
        one.set_agent_info("first", "writer", "u")
        one.update_session_metadata("first", model="m", cost=1.5, total_tokens=9, source="chat")
        one.add_user_message("second", "two")
        one.rename_session("second", "The second")
        one.set_gateway_info("second", "g", "reader")
        one.add_user_message("third", "three")
        one.update_session_metadata("third", agent_name="writer")
    listed = []
    for one in stores:
        found = one.list_sessions()
        assert [item["session_id"] for item in found] == ["third", "second", "first"]
        times = [(item.pop("created_at"), item.pop("updated_at")) for item in found]
        assert all(isinstance(time, str) for pair in times for time in pair)
        listed.append(found)
    assert listed[0] == listed[1]
    ours, theirs = stores
    assert {*ours.list_sessions_by_agent("writer")} == {*theirs.list_sessions_by_agent("writer")}
    assert ours.list_sessions_by_gateway_agent("reader") == ["second"]
    for one in stores:
        linked = one.get_by_gateway_session("g")
        assert linked is not None
        assert linked.session_id == "second"
        assert len(one.list_sessions(limit=2)) == 2
        assert [summary.session_id for summary in one.recent(limit=1)] == ["third"]
    combined = [
        sorted(str(item) for item in one.get_agent_chat_history("writer")) for one in stores
    ]
    assert combined[0] == combined[1]


def test_a_search_finds_the_message_in_its_session(stores: Stores) -> None:
    found = []
    for one in stores:
        for number in range(9):
            one.add_message("s", ("user", "assistant")[number % 2], f"number {number}")
        one.add_user_message("s", "where the parcel is")
        one.add_user_message("t", "nothing of this")
        hits = one.search("parcel", window=1)
        assert [hit.session_id for hit in hits] == ["s"]
        window = one.window("s", str(hits[0].anchor_index), window=1)
        found.append([(item["index"], item["content"], item["archived"]) for item in window])
        found.append([item["content"] for item in hits[0].messages])
        found.append([item["content"] for item in hits[0].bookends["opening"]])
        found.append([item["content"] for item in hits[0].bookends["closing"]])
    assert found[:4] == found[4:]
