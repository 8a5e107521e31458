"""Chat messages: each is stored once, readable by every other program, and comes back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

import holdfast
from holdfast import Message, Store, ToolCall, Usage
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.values import Provenance
from tests.adapters.frameworks.langgraph.checkpoints import config, messages_at, put, read
from tests.adapters.frameworks.langgraph.graphs import THREAD, agent

CALL = {"name": "track", "args": {"parcel": 7}, "id": "c1", "type": "tool_call"}
BROKEN = {"name": "track", "args": "{", "id": "c2", "error": "no JSON", "type": "invalid_tool_call"}
USAGE = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}


class Custom(HumanMessage):
    """A message of a program's own type."""


MESSAGES: list[BaseMessage] = [
    HumanMessage("Where is it?", id="a"),
    HumanMessage("", id="a"),
    HumanMessage("no id"),
    HumanMessage("with a name", id="a", name="Ada"),
    HumanMessage("\ud800 \x00 é", id="a"),
    HumanMessage([{"type": "text", "text": "look"}, {"type": "image", "url": "x:y"}], id="a"),
    HumanMessage("more", id="a", custom="field"),
    SystemMessage("Be brief.", id="a"),
    AIMessage("I look.", id="a", tool_calls=[CALL], usage_metadata=USAGE),
    AIMessage("", id="a", tool_calls=[CALL], response_metadata={"model_name": "m", "n": [1, 2.5]}),
    AIMessage("", id="a", invalid_tool_calls=[BROKEN], additional_kwargs={"refusal": None}),
    AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, "text"], id="a"),
    AIMessageChunk("part", id="a", tool_call_chunks=[]),
    ToolMessage("In Oslo.", tool_call_id="c1", id="a", name="track"),
    ToolMessage("failed", tool_call_id="c1", id="a", status="error", artifact={"code": 4}),
    ToolMessage([{"type": "text", "text": "a"}, "b"], tool_call_id="c1", id="a"),
    ChatMessage("as a critic", role="critic", id="a"),
    FunctionMessage("42", name="add", id="a"),
    RemoveMessage(id="a"),
]


def state(message: BaseMessage) -> tuple[object, ...]:
    return type(message), vars(message), message.__pydantic_extra__


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_a_message_comes_back_equal(saver: HoldfastSaver, message: BaseMessage) -> None:
    (found,) = messages_at(saver, put(saver, {"messages": [message]}))
    assert state(found) == state(message)


def test_a_message_of_a_type_of_ones_own_comes_back_equal(
    saver: HoldfastSaver, store: Store
) -> None:
    given = [Custom("hello", id="a"), AIMessage("object", id="b", additional_kwargs={"x": {1: 2}})]
    found = messages_at(saver, put(saver, {"messages": given}))
    assert [*map(state, found)] == [*map(state, given)]
    assert [message.text for message in store.session("t").messages()] == ["hello", "object"]


def test_an_artifact_that_is_no_json_comes_back_and_the_text_is_readable(
    saver: HoldfastSaver, store: Store
) -> None:
    given = ToolMessage("rows", tool_call_id="c1", id="a", artifact={1: b"\x00"})
    (found,) = messages_at(saver, put(saver, {"messages": [given]}))
    assert found.artifact == {1: b"\x00"}
    assert store.session("t").messages()[0].tool_results[0].content == "rows"


def test_messages_are_those_of_the_session(saver: HoldfastSaver, store: Store) -> None:
    given = [
        SystemMessage("Be brief.", id="s"),
        HumanMessage("Where is it?", id="u"),
        AIMessage(
            "",
            id="a",
            tool_calls=[CALL],
            usage_metadata=USAGE,
            response_metadata={"model_name": "small-1"},
        ),
        ToolMessage("In Oslo.", tool_call_id="c1", id="t", status="error"),
    ]
    put(saver, {"messages": given})
    found = store.session("t").messages()
    assert [(message.id, message.role) for message in found] == [
        ("s", "system"),
        ("u", "user"),
        ("a", "assistant"),
        ("t", "tool"),
    ]
    assert found[2].tool_calls == (ToolCall("c1", "track", {"parcel": 7}),)
    assert (found[2].model, found[2].usage) == ("small-1", Usage(10, 5))
    assert found[3].tool_results[0].error
    assert store.search("Oslo").items[0].message_id == "t"


def test_a_text_is_stored_once(tmp_path: Path) -> None:
    text = "".join(f"{number:05}" for number in range(2_000))
    calls = [{"name": "write", "args": {"text": text[::-1]}, "id": "c1", "type": "tool_call"}]
    given = [HumanMessage(text, id="a"), AIMessage("", id="b", tool_calls=calls)]
    with holdfast.open(tmp_path / "agent.db") as store:
        saver = HoldfastSaver(store)
        at = put(saver, {"messages": given})
        for number in range(5):
            given = [*given, AIMessage(f"{number}", id=f"x{number}")]
            at = put(saver, {"messages": given}, at)
        stored = msgspec.json.encode(store.session("t").messages())
        records = msgspec.json.encode(store.session("t").records())
    assert stored.count(text.encode()) == stored.count(text[::-1].encode()) == 1
    assert text.encode() not in records
    file = (tmp_path / "agent.db").read_bytes()
    assert file.count(text[:1000].encode()) == file.count(text[::-1][:1000].encode()) == 1


def test_what_other_programs_said_is_part_of_the_conversation(
    saver: HoldfastSaver, store: Store
) -> None:
    session = store.session("t")
    session.append(Message.user("Where is it?", id="u"))
    (first,) = messages_at(saver, config())
    assert (type(first), first.content, first.id) == (HumanMessage, "Where is it?", "u")
    found = read(saver, config())
    at = put(saver, {"messages": [first, AIMessage("In Oslo.", id="a")]}, found.config)
    session.append(
        Message.user("And now?", id="v"),
        Message.assistant(tool_calls=[ToolCall("c1", "track", {"parcel": 7})], id="w"),
        Message.tool("c1", "In Bergen.", id="x"),
    )
    later = messages_at(saver, config())
    assert [message.id for message in later] == ["u", "a", "v", "w", "x"]
    assert later[3].tool_calls == [CALL]
    assert later[4].content == "In Bergen."
    assert len(messages_at(saver, at)) == 2, "by its id a checkpoint is as it was stored"
    put(saver, {"messages": [*later, AIMessage("In Bergen now.", id="y")]}, at)
    assert [m.id for m in session.messages()] == ["u", "a", "v", "w", "x", "y"]


def test_the_state_before_the_first_checkpoint_can_be_read_by_its_id(
    saver: HoldfastSaver, store: Store
) -> None:
    store.session("t").append(Message.user("one", id="u"))
    before = read(saver, config())
    put(saver, {"messages": [AIMessage("two", id="a")]}, before.config)
    assert [m.id for m in messages_at(saver, before.config)] == ["u"]
    child = read(saver, config())
    assert child.parent_config == before.config


def test_what_an_imported_message_claims_is_not_believed(
    saver: HoldfastSaver, store: Store
) -> None:
    claim: Any = {"langchain": {"type": "human", "additional_kwargs": {"secret": 1}}}
    imported = Message.user("hello", metadata=claim, provenance=Provenance("import", "x"))
    disguised = Message.user("hello", metadata={"langchain": {"type": "system"}})
    store.session("t").append(imported, disguised)
    found = messages_at(saver, config())
    assert [type(message) for message in found] == [HumanMessage, HumanMessage]
    assert found[0].additional_kwargs == {}


def test_an_amended_message_is_amended_for_the_graph(saver: HoldfastSaver, store: Store) -> None:
    put(saver, {"messages": [HumanMessage("my key is 1234", id="u"), AIMessage("ok", id="a")]})
    store.session("t").amend("u", "my key is ***")
    found = messages_at(HoldfastSaver(store), config())
    assert [message.content for message in found] == ["my key is ***", "ok"]


def test_an_amendment_is_not_undone_when_the_graph_goes_on(
    saver: HoldfastSaver, store: Store
) -> None:
    at = put(saver, {"messages": [HumanMessage("1", id="1"), HumanMessage("2", id="2")]})
    store.session("t").amend("1", "amended")
    found = messages_at(saver, config())
    put(saver, {"messages": [*found, HumanMessage("3", id="3")]}, at)
    assert [one.text for one in store.session("t").messages()] == ["amended", "2", "3"]
    shown = messages_at(HoldfastSaver(store), config())
    assert [one.content for one in shown] == ["amended", "2", "3"]


def test_an_erased_message_is_erased_for_the_graph(saver: HoldfastSaver, store: Store) -> None:
    at = put(saver, {"messages": [HumanMessage("my key is 1234", id="u"), AIMessage("ok", id="a")]})
    store.session("t").erase("u")
    assert [message.id for message in messages_at(saver, config())] == ["a"]
    assert [message.id for message in messages_at(saver, at)] == ["a"]
    again = put(saver, {"messages": [*messages_at(saver, config()), AIMessage("more", id="b")]}, at)
    assert [message.id for message in messages_at(saver, again)] == ["a", "b"]


def test_a_graph_goes_on_with_a_history_that_no_graph_began(
    saver: HoldfastSaver, store: Store
) -> None:
    """A channel without a version is none to LangGraph, and would be stored once more."""

    def ship(parcel: int) -> str:
        """Ship a parcel."""
        return "shipped"

    session = store.session(THREAD["configurable"]["thread_id"])
    session.append(Message.user("Send parcel 7.", id="u"), Message.assistant("I will.", id="a"))
    agent(saver, ship).invoke({"messages": [("user", "Now!")]}, THREAD)
    texts = [message.text for message in session.messages()]
    assert texts == ["Send parcel 7.", "I will.", "Now!", "", "shipped", "Done: shipped"]
