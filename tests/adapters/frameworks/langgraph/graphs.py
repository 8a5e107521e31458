"""Graphs whose model says what it is told to, also for processes that are started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

CALL = {"name": "ship", "args": {"parcel": 7}, "id": "call-1", "type": "tool_call"}
THREAD: dict[str, Any] = {"configurable": {"thread_id": "order-1"}}


def agent(
    saver: BaseCheckpointSaver[Any], ship: Callable[..., Any]
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return an agent that calls a tool once and then answers."""

    def model(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].type == "tool":
            return {"messages": [AIMessage(f"Done: {state['messages'][-1].content}", id="reply")]}
        return {"messages": [AIMessage("", id="asks", tool_calls=[CALL])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([ship]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)
