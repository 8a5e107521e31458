"""LangGraph: a turn is one `update_state` of a graph of messages that has a `SqliteSaver`.

That is its shortest way to store messages; running a graph stores a state after each of its steps.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    ToolMessage,
)
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from bench.peers.turns import TOOL, Mark, Turn, recognise


class Peer:
    """A graph of one node, whose state is the messages. It cannot list or search its threads."""

    def __init__(self, directory: Path) -> None:
        # As `SqliteSaver.from_conn_string` connects.
        self._connection = sqlite3.connect(directory / "threads.db", check_same_thread=False)
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda _: {})
        builder.add_edge(START, "agent")
        self._graph = builder.compile(checkpointer=SqliteSaver(self._connection))

    def messages(self, turn: Turn) -> list[Any]:
        """Return the four messages of a turn."""
        call = {"id": turn.call_id, "name": TOOL, "args": turn.arguments}
        return [
            HumanMessage(turn.user),
            AIMessage("", tool_calls=[call]),
            ToolMessage(turn.result, tool_call_id=turn.call_id),
            AIMessage(turn.reply),
        ]

    def open(self, key: str) -> None:
        """Read the state of a thread."""
        self._graph.get_state(_config(key))

    def append(self, key: str, messages: list[Any]) -> None:
        """Store a turn."""
        self._graph.update_state(_config(key), {"messages": messages})

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store all turns in one state: many states would each have all before."""
        self.append(key, [message for turn in turns for message in self.messages(turn)])

    def last(self, key: str, limit: int) -> int:
        """Read the newest messages: the state has all of them."""
        return len(self._stored(key)[-limit:])

    def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all messages."""
        return [_mark(message) for message in self._stored(key)]

    def fork(self, key: str) -> None:
        """Continue from the state before the newest, which makes a branch of the thread."""
        *_, before = self._graph.get_state_history(_config(key), limit=2)
        self._graph.update_state(before.config, {"messages": []})

    def _stored(self, key: str) -> list[Any]:
        messages: list[Any] = self._graph.get_state(_config(key)).values.get("messages", [])
        return messages

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _config(key: str) -> dict[str, dict[str, str]]:
    return {"configurable": {"thread_id": key}}


def _mark(message: Any) -> Mark | None:  # noqa: ANN401 - the package has no types here
    if getattr(message, "tool_calls", None):
        (call,) = message.tool_calls
        return recognise(call["id"], call["args"])
    return recognise(message.content)
