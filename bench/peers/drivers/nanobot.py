"""nanobot: a turn is four messages added to a session, then one `save`, as its loop does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from nanobot.session import SessionManager

from bench.peers.turns import TOOL, Mark, Turn, recognise

Row = dict[str, Any]


class Peer:
    """`SessionManager`: a file for each session, which every save writes anew. No search."""

    def __init__(self, directory: Path) -> None:
        self._manager = SessionManager(
            directory / "workspace", sessions_root=directory / "sessions"
        )
        self._names = count()

    def messages(self, turn: Turn) -> list[Row]:
        """Return the arguments of four calls."""
        function = {"name": TOOL, "arguments": json.dumps(turn.arguments)}
        call = {"id": turn.call_id, "type": "function", "function": function}
        return [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": turn.result, "tool_call_id": turn.call_id, "name": TOOL},
            {"role": "assistant", "content": turn.reply},
        ]

    def open(self, key: str) -> None:
        """Open a session, or create it."""
        self._manager.get_or_create(key)

    def append(self, key: str, messages: list[Row]) -> None:
        """Store a turn."""
        session = self._manager.get_or_create(key)
        for message in messages:
            session.add_message(**message)
        self._manager.save(session)

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store all turns with one save."""
        self.append(key, [row for turn in turns for row in self.messages(turn)])

    def last(self, key: str, limit: int) -> int:
        """Return the newest messages, from a user's message on."""
        return len(self._manager.get_or_create(key).get_history(max_messages=limit))

    def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all messages."""
        return [_mark(message) for message in self._manager.get_or_create(key).messages]

    def sessions(self, limit: int) -> int:
        """List all sessions, as it has no limit."""
        return len(self._manager.list_sessions()[:limit])

    def fork(self, key: str) -> None:
        """Copy a session up to its end."""
        messages = self._manager.get_or_create(key).messages
        users = sum(message["role"] == "user" for message in messages)
        name = f"{key}-fork-{next(self._names)}"
        assert self._manager.fork_session_before_user_index(key, name, users)

    def close(self) -> None:
        """Save what is cached, as at its end."""
        self._manager.flush_all()


def _mark(message: Row) -> Mark | None:
    if message.get("tool_calls"):
        (call,) = message["tool_calls"]
        return recognise(call["id"], json.loads(call["function"]["arguments"]))
    return recognise(message["content"])
