"""LangGraph: `SqliteSaver` and `HoldfastSaver`, called as a graph calls them.

A graph reads the newest checkpoint when a run begins, and has its state in memory from then on; the
checkpoint of each step has the whole list of messages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from bench.frameworks.drivers.store import open_store
from bench.peers.drivers.langgraph import Peer
from bench.peers.turns import Turn
from holdfast.adapters.langgraph import HoldfastSaver

_TURNS_OF_CHECKPOINT = 25


class Own(Peer):
    """`SqliteSaver`, on a connection as its `from_conn_string` makes one."""

    def __init__(self, directory: Path) -> None:
        self._saver = self._open_saver(directory)
        self._states: dict[str, tuple[Any, int, str | None, list[Any]]] = {}

    def _open_saver(self, directory: Path) -> Any:  # noqa: ANN401 - the package has no types here
        self._connection = sqlite3.connect(directory / "threads.db", check_same_thread=False)
        return SqliteSaver(self._connection)

    def messages(self, turn: Turn) -> list[Any]:
        """Return the four messages of a turn, with the ids that a graph gives them."""
        return [one.model_copy(update={"id": str(uuid4())}) for one in super().messages(turn)]

    def open(self, key: str) -> None:
        """Read the newest checkpoint of a thread, as a run of its graph does."""
        config = {"configurable": {"thread_id": key, "checkpoint_ns": ""}}
        found = self._saver.get_tuple(config)
        if found is None:
            self._states[key] = config, -1, None, []
        else:
            checkpoint = found.checkpoint
            version = checkpoint["channel_versions"]["messages"]
            values = checkpoint["channel_values"]["messages"]
            self._states[key] = found.config, found.metadata["step"], version, values

    def append(self, key: str, messages: list[Any]) -> None:
        """Store the checkpoint of a step that added messages."""
        config, step, version, before = self._states[key]
        step += 1
        version = self._saver.get_next_version(version, None)
        values = [*before, *messages]
        checkpoint = {
            "v": 4,
            "ts": datetime.now(UTC).isoformat(),
            "id": str(uuid6(clock_seq=step)),
            "channel_values": {"messages": values},
            "channel_versions": {"messages": version},
            "versions_seen": {},
        }
        metadata = {"source": "loop", "step": step, "parents": {}}
        config = self._saver.put(config, checkpoint, metadata, {"messages": version})
        self._states[key] = config, step, version, values

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store many turns, some in a checkpoint: each has all messages before."""
        while batch := list(islice(turns, _TURNS_OF_CHECKPOINT)):
            self.append(key, [message for turn in batch for message in self.messages(turn)])

    def last(self, key: str, limit: int) -> int:
        """Read the newest checkpoint, which has all messages."""
        return len(self._stored(key)[-limit:])

    def resume(self, key: str) -> int:
        """Return how many messages were read when the thread was opened."""
        return len(self._states[key][-1])

    def _stored(self, key: str) -> list[Any]:
        found = self._saver.get_tuple({"configurable": {"thread_id": key}})
        messages: list[Any] = found.checkpoint["channel_values"]["messages"]
        return messages


class Adapter(Own):
    """`HoldfastSaver`, in a store with its default settings."""

    def _open_saver(self, directory: Path) -> Any:  # noqa: ANN401 - as in the class it replaces
        self._store = open_store(directory)
        return HoldfastSaver(self._store)

    def close(self) -> None:
        """Close the store."""
        self._store.close()
