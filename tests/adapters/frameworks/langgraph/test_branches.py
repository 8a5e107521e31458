"""How a thread grows, is rewritten and goes back, and what its session shows of that."""

from __future__ import annotations

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, RemoveMessage

from holdfast import Message, Store
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.frameworks.langgraph.checkpoints import config, messages_at, put, read

ONE, TWO, THREE, FOUR = (HumanMessage(f"text {n}", id=f"m{n}") for n in range(1, 5))


def ids(store: Store, thread_id: str = "t") -> list[str]:
    return [message.id for message in store.session(thread_id).messages()]


def test_a_list_that_grows_stores_only_what_is_new(saver: HoldfastSaver, store: Store) -> None:
    at = put(saver, {"messages": [ONE]})
    at = put(saver, {"messages": [ONE, TWO]}, at)
    at = put(HoldfastSaver(store), {"messages": [ONE, TWO, THREE]}, at)
    session = store.session("t")
    assert ids(store) == ["m1", "m2", "m3"]
    assert len(session.branches()) == 1
    assert store.stats().messages == 3


def test_an_older_checkpoint_is_continued_on_a_branch(saver: HoldfastSaver, store: Store) -> None:
    first = put(saver, {"messages": [ONE]})
    second = put(saver, {"messages": [ONE, TWO]}, first)
    third = put(saver, {"messages": [ONE, TWO, THREE]}, second)
    saver.get_tuple(first)
    other = put(saver, {"messages": [ONE, FOUR]}, first)
    assert ids(store) == ["m1", "m4"]
    assert [branch.seq for branch in store.session("t").branches()] == [3, 2]
    fresh = HoldfastSaver(store)
    assert [m.id for m in messages_at(fresh, config())] == ["m1", "m4"]
    assert [m.id for m in messages_at(fresh, third)] == ["m1", "m2", "m3"]
    assert [m.id for m in messages_at(fresh, other)] == ["m1", "m4"]
    assert read(fresh, other).parent_config == first
    assert store.stats().messages == 4, "what both have is stored once"


def test_going_back_in_holdfast_goes_back_in_the_graph(saver: HoldfastSaver, store: Store) -> None:
    first = put(saver, {"messages": [ONE], "plan": "a"})
    put(saver, {"messages": [ONE, TWO, THREE], "plan": "b"}, first)
    session = store.session("t")
    session.rewind("m1")
    found = read(saver, config())
    assert found.config == first
    assert found.checkpoint["channel_values"] == {"messages": [ONE], "plan": "a"}
    put(saver, {"messages": [ONE, FOUR]}, found.config)
    assert ids(store) == ["m1", "m4"]
    assert len(session.branches()) == 2


def test_a_message_that_arrives_after_going_back_is_kept(
    saver: HoldfastSaver, store: Store
) -> None:
    at = put(saver, {"messages": [ONE, TWO]})
    put(saver, {"messages": [ONE, TWO, THREE]}, at)
    session = store.session("t")
    session.rewind("m2")
    found = read(saver, config())
    session.append(Message.user("meanwhile", id="x"))
    put(saver, {"messages": [ONE, TWO, FOUR]}, found.config)
    assert ids(store) == ["m1", "m2", "x", "m4"]


def test_an_edit_and_a_removal_are_branches_and_the_earlier_list_stays(
    saver: HoldfastSaver, store: Store
) -> None:
    edited = TWO.model_copy(update={"content": "better"})
    first = put(saver, {"messages": [ONE, TWO, THREE]})
    second = put(saver, {"messages": [ONE, edited, THREE]}, first)
    third = put(saver, {"messages": [THREE, FOUR]}, second)
    assert ids(store) == ["m3", "m4"]
    for at, value in (
        (first, [ONE, TWO, THREE]),
        (second, [ONE, edited, THREE]),
        (third, [THREE, FOUR]),
    ):
        assert messages_at(HoldfastSaver(store), at) == value
    assert len(store.session("t").branches()) == 3


def test_a_message_that_a_node_changes_in_place_is_stored(
    saver: HoldfastSaver, store: Store
) -> None:
    put(saver, {"messages": [ONE, AIMessage("draft", id="a", response_metadata={"n": [1]})]})
    found = read(saver, config())
    value = found.checkpoint["channel_values"]["messages"]
    value[1].response_metadata["n"].append(2)
    at = put(saver, {"messages": [*value]}, found.config)
    assert messages_at(HoldfastSaver(store), at)[1].response_metadata == {"n": [1, 2]}
    value[1].content = "final"
    at = put(saver, {"messages": [*value]}, at)
    assert messages_at(HoldfastSaver(store), at)[1].content == "final"
    assert store.session("t").messages()[1].text == "final"


def test_equal_ids_in_a_list_are_two_messages(saver: HoldfastSaver, store: Store) -> None:
    other = HumanMessage("another", id="m1")
    at = put(saver, {"messages": [ONE, ONE]})
    at = put(saver, {"messages": [ONE, ONE, other, HumanMessage("none"), HumanMessage("none")]}, at)
    found = messages_at(HoldfastSaver(store), at)
    assert [(m.id, m.content) for m in found[:3]] == [
        ("m1", "text 1"),
        ("m1", "text 1"),
        ("m1", "another"),
    ]
    assert [(m.id, m.content) for m in found[3:]] == [(None, "none"), (None, "none")]
    assert len(store.session("t").messages()) == 5


def test_an_id_that_another_program_took_is_no_obstacle(saver: HoldfastSaver, store: Store) -> None:
    at = put(saver, {"messages": [ONE]})
    store.session("t").append(Message.user("theirs", id="m2"))
    at = put(saver, {"messages": [ONE, TWO]}, at)
    assert messages_at(HoldfastSaver(store), at) == [ONE, TWO]
    assert [m.text for m in store.session("t").messages()] == ["text 1", "theirs", "text 2"]


def test_a_message_that_was_stored_meanwhile_is_not_stored_again(
    saver: HoldfastSaver, store: Store
) -> None:
    other = HoldfastSaver(store)
    for one in (saver, other):
        one.get_tuple(config())
    put(saver, {"messages": [ONE, TWO]})
    at = put(other, {"messages": [ONE, THREE]})
    assert ids(store) == ["m1", "m2", "m3"]
    assert messages_at(HoldfastSaver(store), at) == [ONE, THREE]
    assert messages_at(HoldfastSaver(store), config()) == [ONE, TWO, THREE]


def test_a_rewrite_keeps_what_arrived_meanwhile(saver: HoldfastSaver, store: Store) -> None:
    at = put(saver, {"messages": [ONE, TWO, THREE]})
    saver.get_tuple(config())
    store.session("t").append(Message.user("late", id="x"))
    put(saver, {"messages": [THREE, FOUR]}, at)
    assert ids(store) == ["m3", "m4", "x"]


def test_a_graph_without_messages_leaves_a_conversation_alone(
    saver: HoldfastSaver, store: Store
) -> None:
    store.session("t").append(Message.user("hello", id="u"))
    at = put(saver, {"count": 1})
    put(saver, {"count": 2}, at)
    saver.get_tuple(at)
    put(saver, {"count": 3}, at)
    assert ids(store) == ["u"]


def test_a_graph_that_trims_its_messages(saver: HoldfastSaver, store: Store) -> None:
    def reply(state: MessagesState) -> dict[str, list[object]]:
        number = len(state["messages"])
        kept = state["messages"][-2:]
        return {
            "messages": [
                RemoveMessage(id=REMOVE_ALL_MESSAGES),
                *kept,
                AIMessage(f"reply to {number}"),
            ]
        }

    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    graph = builder.compile(checkpointer=saver)
    for turn in range(4):
        graph.invoke({"messages": [("user", f"turn {turn}")]}, {"configurable": {"thread_id": "t"}})
    shown = [message.text for message in store.session("t").messages()]
    assert shown == ["reply to 4", "turn 3", "reply to 4"]
    history = [*graph.get_state_history({"configurable": {"thread_id": "t"}})]
    assert len(history) == 12
    assert {
        message.text
        for branch in store.session("t").branches()
        for message in store.session("t").messages(branch=branch.number)
    } >= {"turn 0", "turn 1", "turn 2"}


def test_time_travel_of_a_graph_is_a_branch(saver: HoldfastSaver, store: Store) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("reply", lambda state: {"messages": [AIMessage(f"{len(state['messages'])}")]})
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    graph = builder.compile(checkpointer=saver)
    thread = {"configurable": {"thread_id": "t"}}
    for text in ("one", "two"):
        graph.invoke({"messages": [("user", text)]}, thread)
    after_one = next(
        s for s in graph.get_state_history(thread) if len(s.values["messages"]) == 2 and not s.next
    )
    graph.invoke({"messages": [("user", "other")]}, after_one.config)
    assert [m.text for m in store.session("t").messages()] == ["one", "1", "other", "3"]
    texts = {
        tuple(message.text for message in store.session("t").messages(branch=branch.number))
        for branch in store.session("t").branches()
    }
    assert ("one", "1", "two", "3") in texts
    assert len([*graph.get_state_history(thread)]) == 9
