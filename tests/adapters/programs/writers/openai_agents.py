"""OpenAI Agents: a turn is one `add_items`, as its runner saves a turn's items."""

from __future__ import annotations

import json
from pathlib import Path

from agents import SQLiteSession

from holdfast import Store
from holdfast.adapters.openai_agents import HoldfastSession
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of


class _Writer:
    def __init__(self, session: SQLiteSession | HoldfastSession) -> None:
        self._session = session

    async def add(self, turn: Turn) -> int:
        call = {"call_id": turn.call_id, "name": TOOL, "arguments": json.dumps(turn.arguments)}
        await self._session.add_items(
            [
                {"role": "user", "content": turn.user},
                {"type": "function_call", **call},
                {
                    "type": "function_call_output",
                    "call_id": turn.call_id,
                    "output": turn.result,
                },
                {"role": "assistant", "content": turn.reply},
            ]
        )
        return 0

    async def marks(self) -> list[Mark | None]:
        return [mark_of(item) for item in await self._session.get_items()]


def own(folder: Path) -> _Writer:
    return _Writer(SQLiteSession(KEY, folder / "sessions.db"))


def ours(store: Store) -> _Writer:
    return _Writer(HoldfastSession(KEY, store))
