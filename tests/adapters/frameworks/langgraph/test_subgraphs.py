"""Subgraphs: their messages are sessions delegated by the thread."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from holdfast import Head, Message, Record, Session, Store
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.values import SessionChanges
from tests.adapters.frameworks.langgraph.checkpoints import config, messages_at, put, read

THREAD: Any = {"configurable": {"thread_id": "t"}}


class Private(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[AnyMessage], operator.add]


def test_what_a_subgraph_says_to_itself_is_a_delegated_session(
    saver: HoldfastSaver, store: Store
) -> None:
    def think(state: Private) -> dict[str, Any]:
        return {"messages": [AIMessage("aside", id="aside")]}

    def answer(state: Private) -> dict[str, Any]:
        return {"messages": [AIMessage("answer", id="answer")]}

    sub = StateGraph(Private)
    sub.add_node("think", think)
    sub.add_node("answer", answer)
    sub.add_edge(START, "think")
    sub.add_edge("think", "answer")
    inner = sub.compile(checkpointer=True)

    def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [inner.invoke({"messages": state["messages"]})["messages"][-1]]}

    builder = StateGraph(MessagesState)
    builder.add_node("call", call)
    builder.add_edge(START, "call")
    builder.add_edge("call", END)
    graph = builder.compile(checkpointer=saver)
    for text in ("one", "two"):
        graph.invoke({"messages": [HumanMessage(text, id=text)]}, THREAD)
    assert [m.id for m in store.session("t").messages()] == ["one", "answer", "two"]
    (link,) = [link for link in store.session("t").children() if link.relation == "delegate"]
    delegated = store.get(link.session_id)
    assert delegated.info().metadata["langgraph"] == {
        "checkpoint_ns": "call",
        "channel": "messages",
    }
    assert "aside" in [message.id for message in delegated.messages()]
    assert [info.key for info in store.sessions(delegates=False)] == ["t"]


def test_a_subgraphs_checkpoints_name_what_the_conversation_has(
    saver: HoldfastSaver, store: Store
) -> None:
    shared = [HumanMessage("one", id="1"), AIMessage("two", id="2")]
    put(saver, {"messages": shared})
    own = [*shared, AIMessage("three", id="3")]
    first = put(saver, {"messages": own}, ns="sub")
    second = put(saver, {"messages": [*own, AIMessage("four", id="4")]}, first, ns="sub")
    (link,) = store.session("t").children()
    assert [message.id for message in store.get(link.session_id).messages()] == ["3", "4"]
    fresh = HoldfastSaver(store)
    assert messages_at(fresh, first) == own
    assert [message.id for message in messages_at(fresh, second)] == ["1", "2", "3", "4"]


def test_a_second_list_of_a_graph_is_a_delegated_session(
    saver: HoldfastSaver, store: Store
) -> None:
    values = {"messages": [HumanMessage("hi", id="1")], "notes": [AIMessage("note", id="2")]}
    at = put(saver, values)
    again = put(saver, {**values, "notes": [AIMessage("other", id="2")]}, at)
    assert [m.id for m in store.session("t").messages()] == ["1"]
    fresh = HoldfastSaver(store)
    assert read(fresh, at).checkpoint["channel_values"] == values
    assert read(fresh, again).checkpoint["channel_values"]["notes"][0].content == "other"


def test_a_second_list_that_is_edited_everywhere_takes_few_writes(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = HumanMessage("hi", id="1")
    notes = [AIMessage(f"note {n}", id=f"n{n}") for n in range(50)]
    at = put(saver, {"messages": [hello], "notes": notes})
    edited = [AIMessage(f"other {n}", id=f"n{n}") for n in range(50)]
    appends, append = [], Session.append

    def counted(
        session: Session, *entries: Message | Record, update: SessionChanges | None = None
    ) -> Head:
        appends.append(len(entries))
        return append(session, *entries, update=update)

    monkeypatch.setattr(Session, "append", counted)
    at = put(saver, {"messages": [hello], "notes": edited}, at)
    assert read(saver, at).checkpoint["channel_values"]["notes"] == edited
    assert len(appends) == 3  # one that is refused, the messages, the checkpoint


def test_a_list_with_another_name_is_the_conversation_if_it_is_the_only_one(
    saver: HoldfastSaver, store: Store
) -> None:
    at = put(saver, {"history": [HumanMessage("hi", id="1")]})
    put(saver, {"history": [HumanMessage("hi", id="1"), AIMessage("ho", id="2")]}, at)
    assert [m.id for m in store.session("t").messages()] == ["1", "2"]


def test_a_subgraph_goes_on_when_its_graph_trims_its_messages(saver: HoldfastSaver) -> None:
    at = put(saver, {"messages": [HumanMessage("1", id="1"), AIMessage("2", id="2")]})
    child = put(saver, {"plan": "kept"}, ns="sub")
    put(saver, {"messages": [AIMessage("2", id="2")]}, at)
    assert read(saver, config(ns="sub")).config == child
