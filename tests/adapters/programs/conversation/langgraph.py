"""`-m … STORE KEY ship`: a graph that waits inside its tool; `resume` goes on with its run."""

from __future__ import annotations

import json
import sys

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import holdfast
from holdfast import Store
from holdfast.adapters.langgraph import HoldfastSaver


def reply(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Call the tool once, then tell its result."""
    last = state["messages"][-1]
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"Done. {last.content}")]}
    call = {"name": "ship", "args": {"parcel": 7}, "id": "ship-2", "type": "tool_call"}
    return {"messages": [AIMessage("At once.", tool_calls=[call])]}


def ship(parcel: int) -> str:
    """Ship a parcel."""
    if sys.argv[3] == "ship":
        sys.stdout.write(f"shipping parcel {parcel}\n")
        sys.stdout.flush()
        sys.stdin.readline()
    return f"Parcel {parcel} is shipped."


def main(store: Store, key: str, what: str) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", reply)
    builder.add_node("tools", ToolNode([ship]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    graph = builder.compile(checkpointer=HoldfastSaver(store))
    config = {"configurable": {"thread_id": key}}
    before = graph.get_state(config)
    asked = {"messages": [("user", "Then ship it now.")]} if what == "ship" else None
    graph.invoke(asked, config, durability="sync")
    after = graph.get_state(config)
    json.dump(
        {
            "next": before.next,
            "before": [message.text for message in before.values["messages"]],
            "after": [message.text for message in after.values["messages"]],
            "calls": [
                (call["name"], call["args"])
                for message in after.values["messages"]
                for call in getattr(message, "tool_calls", ())
            ],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as _store:
        main(_store, *sys.argv[2:])
