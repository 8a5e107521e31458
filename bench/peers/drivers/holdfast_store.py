"""Holdfast: a turn is one `append` of four messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import holdfast
from bench.peers.turns import TOOL, Mark, Turn, recognise
from holdfast import Message, Session, ToolCall


class Peer:
    """A store with its default settings: durable on power loss."""

    def __init__(self, directory: Path) -> None:
        self._store = holdfast.open(directory / "store.db")
        self._sessions: dict[str, Session] = {}

    def messages(self, turn: Turn) -> list[Message]:
        """Return the four messages of a turn."""
        call = ToolCall(turn.call_id, TOOL, dict(turn.arguments))
        return [
            Message.user(turn.user),
            Message.assistant(tool_calls=[call]),
            Message.tool(turn.call_id, turn.result),
            Message.assistant(turn.reply),
        ]

    def open(self, key: str) -> None:
        """Open a session, or create it."""
        self._sessions[key] = self._store.session(key)

    def append(self, key: str, messages: list[Message]) -> None:
        """Store a turn."""
        self._sessions[key].append(*messages)

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store many turns, 250 in one append."""
        while batch := [m for turn in islice(turns, 250) for m in self.messages(turn)]:
            self._sessions[key].append(*batch)

    def last(self, key: str, limit: int) -> int:
        """Read the newest messages."""
        return len(self._sessions[key].messages(limit=limit))

    def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all messages."""
        return [_mark(message) for message in self._sessions[key].messages()]

    def sessions(self, limit: int) -> int:
        """List the newest sessions."""
        return len(self._store.sessions(limit=limit).items)

    def search(self, text: str, limit: int) -> int:
        """Find messages, with snippets."""
        return len(self._store.search(text, limit=limit).items)

    def fork(self, key: str) -> None:
        """Fork a session at its end."""
        self._sessions[key].fork()

    def catch_up(self) -> None:
        """Bring the search index up to date."""
        self._store.catch_up_index()

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _mark(message: Message) -> Mark | None:
    for call in message.tool_calls:
        assert isinstance(call.arguments, dict)
        return recognise(call.id, {name: str(text) for name, text in call.arguments.items()})
    for result in message.tool_results:
        return recognise(result.text)
    return recognise(message.text)
