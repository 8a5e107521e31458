"""hermes-agent: a turn is four `append_message`, as its agent saves the messages of a turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_state import SessionDB

from bench.peers.turns import TOOL, Mark, Turn, recognise

Row = dict[str, Any]


class Peer:
    """`SessionDB`: a file with the messages of all sessions, and two search indexes."""

    def __init__(self, directory: Path) -> None:
        self._db = SessionDB(directory / "state.db")

    def messages(self, turn: Turn) -> list[Row]:
        """Return the arguments of four calls."""
        function = {"name": TOOL, "arguments": json.dumps(turn.arguments)}
        call = {"id": turn.call_id, "type": "function", "function": function}
        return [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "tool_calls": [call]},
            {
                "role": "tool",
                "content": turn.result,
                "tool_call_id": turn.call_id,
                "tool_name": TOOL,
            },
            {"role": "assistant", "content": turn.reply},
        ]

    def open(self, key: str) -> None:
        """Open a session, or create it."""
        if self._db.get_session(key) is None:
            self._db.create_session(key, "cli")

    def append(self, key: str, messages: list[Row]) -> None:
        """Store a turn."""
        for message in messages:
            self._db.append_message(key, **message)

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store many turns in one transaction, as its transcript is rewritten."""
        rows = [row for turn in turns for row in self.messages(turn)]
        self._db.replace_messages(key, rows)

    def last(self, key: str, limit: int) -> int:
        """Read the newest messages: by their offset, which needs their number."""
        offset = max(self._db.message_count(key) - limit, 0)
        return len(self._db.get_messages(key, limit=limit, offset=offset))

    def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all messages."""
        return [_mark(row) for row in self._db.get_messages(key)]

    def sessions(self, limit: int) -> int:
        """List the newest sessions."""
        return len(self._db.list_sessions_rich(limit=limit, order_by_last_active=True))

    def search(self, text: str, limit: int) -> int:
        """Find messages, with snippets."""
        return len(self._db.search_messages(text, limit=limit))

    def fork(self, key: str) -> None:
        """Copy a session message by message, as its command `/branch` does."""
        name = f"{key}-fork-{self._db.session_count()}"
        self._db.create_session(name, "cli", parent_session_id=key)
        for row in self._db.get_messages_as_conversation(key):
            fields = ("role", "content", "tool_name", "tool_calls", "tool_call_id")
            self._db.append_message(name, **{field: row.get(field) for field in fields})

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _mark(row: Row) -> Mark | None:
    if row.get("tool_calls"):
        (call,) = row["tool_calls"]
        return recognise(call["id"], json.loads(call["function"]["arguments"]))
    return recognise(row["content"])
