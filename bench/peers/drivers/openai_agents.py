"""OpenAI Agents: a turn is one `add_items` of four items, as its runner saves a turn's items."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

from bench.peers.turns import TOOL, Mark, Turn, recognise

Item = dict[str, Any]


class Peer:
    """`SQLiteSession`, one object for each session of a file. It cannot list, search or fork."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "sessions.db"
        self._sessions: dict[str, Any] = {}

    def _session(self, key: str) -> Any:  # noqa: ANN401 - the package has no types here
        return SQLiteSession(key, self._path)

    def messages(self, turn: Turn) -> list[Item]:
        """Return the four items of a turn."""
        arguments = json.dumps(turn.arguments)
        return [
            {"role": "user", "content": turn.user},
            {
                "type": "function_call",
                "call_id": turn.call_id,
                "name": TOOL,
                "arguments": arguments,
            },
            {"type": "function_call_output", "call_id": turn.call_id, "output": turn.result},
            {"role": "assistant", "content": turn.reply},
        ]

    def open(self, key: str) -> None:
        """Open a session, or create it."""
        self._sessions[key] = self._session(key)

    async def append(self, key: str, messages: list[Item]) -> None:
        """Store a turn."""
        await self._sessions[key].add_items(messages)

    async def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store many turns, 250 in one call."""
        while batch := [item for turn in islice(turns, 250) for item in self.messages(turn)]:
            await self._sessions[key].add_items(batch)

    async def last(self, key: str, limit: int) -> int:
        """Read the newest items."""
        return len(await self._sessions[key].get_items(limit=limit))

    async def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all items."""
        return [_mark(item) for item in await self._sessions[key].get_items()]

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions.values():
            session.close()


class Advanced(Peer):
    """`AdvancedSQLiteSession`, which knows turns and branches."""

    def _session(self, key: str) -> Any:  # noqa: ANN401 - as above
        return AdvancedSQLiteSession(session_id=key, db_path=self._path, create_tables=True)

    async def fork(self, key: str) -> None:
        """Branch off before the last turn, and return to the main branch."""
        session = self._sessions[key]
        turns = await session.get_conversation_turns()
        await session.create_branch_from_turn(turns[-1]["turn"])
        await session.switch_to_branch("main")


def _mark(item: Item) -> Mark | None:
    if item.get("type") == "function_call":
        return recognise(item["call_id"], json.loads(item["arguments"]))
    return recognise(item.get("output") or item.get("content"))
