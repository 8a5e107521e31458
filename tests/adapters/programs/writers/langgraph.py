"""LangGraph: a turn is a run of a graph, whose node answers the message of the user."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from holdfast import Store
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.programs.turns import KEY, Mark, Turn, mark_of
from tests.adapters.programs.writers.langchain import messages_of

_CONFIG: Any = {"configurable": {"thread_id": KEY}}


class _Writer:
    def __init__(self, saver: BaseCheckpointSaver[str]) -> None:
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda _: {"messages": self._replies})
        builder.add_edge(START, "agent")
        self._graph = builder.compile(checkpointer=saver)
        self._replies: list[Any] = []

    async def add(self, turn: Turn) -> int:
        question, *self._replies = messages_of(turn)
        self._graph.invoke({"messages": [question]}, _CONFIG)
        return 0

    async def marks(self) -> list[Mark | None]:
        found = self._graph.get_state(_CONFIG).values.get("messages", [])
        return [mark_of(message) for message in found]


def own(folder: Path) -> _Writer:
    # As `SqliteSaver.from_conn_string` connects.
    return _Writer(SqliteSaver(sqlite3.connect(folder / "threads.db", check_same_thread=False)))


def ours(store: Store) -> _Writer:
    return _Writer(HoldfastSaver(store))
