"""PraisonAI: a turn is four `add_message`. Its default keeps 100 messages; here it keeps all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from praisonaiagents.session import (
    DefaultSessionStore,
    HierarchicalSessionStore,
)

from bench.peers.turns import TOOL, Mark, Turn, recognise

Row = dict[str, Any]


class Peer:
    """`DefaultSessionStore`: a file for each session, which every message writes anew."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._store = DefaultSessionStore(self._directory, retention="keep_all")

    def messages(self, turn: Turn) -> list[Row]:
        """Return the arguments of four calls."""
        function = {"name": TOOL, "arguments": json.dumps(turn.arguments)}
        call = {"id": turn.call_id, "type": "function", "function": function}
        return [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": turn.result, "tool_call_id": turn.call_id},
            {"role": "assistant", "content": turn.reply},
        ]

    def open(self, key: str) -> None:
        """Do nothing: a session is a file that is read by each call."""

    def append(self, key: str, messages: list[Row]) -> None:
        """Store a turn."""
        for message in messages:
            if not self._store.add_message(key, **message):
                raise OSError("add_message returned False")

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store all turns at once."""
        rows = [row for turn in turns for row in self.messages(turn)]
        assert self._store.set_chat_history(key, rows)

    def last(self, key: str, limit: int) -> int:
        """Read the newest messages."""
        return len(self._store.get_chat_history(key, max_messages=limit))

    def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all messages."""
        return [_mark(message) for message in self._store.get_chat_history(key)]

    def sessions(self, limit: int) -> int:
        """List the newest sessions."""
        return len(self._store.list_sessions(limit=limit))

    def search(self, text: str, limit: int) -> int:
        """Find sessions, each with the messages around its best match."""
        return len(self._store.search(text, limit=limit))

    def fork(self, key: str) -> None:
        """Copy a session with the store that has forks."""
        HierarchicalSessionStore(self._directory, retention="keep_all").fork_session(key)

    def close(self) -> None:
        """Do nothing: the files are closed."""


def _mark(message: Row) -> Mark | None:
    if message.get("tool_calls"):
        (call,) = message["tool_calls"]
        return recognise(call["id"], json.loads(call["function"]["arguments"]))
    return recognise(message["content"])
