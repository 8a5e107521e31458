"""hermes-agent: a turn is four `append_message`, as its agent saves the messages of a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hermes_state

from holdfast import Store
from holdfast.adapters.hermes_db import SessionDB
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of


def _messages_of(turn: Turn) -> list[dict[str, Any]]:
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


class _Writer:
    def __init__(self, database: hermes_state.SessionDB | SessionDB) -> None:
        self._database = database
        database.create_session(KEY, "cli")

    async def add(self, turn: Turn) -> int:
        for message in _messages_of(turn):
            self._database.append_message(KEY, **message)
        return 0

    async def marks(self) -> list[Mark | None]:
        found = self._database.get_messages_as_conversation(KEY)
        return [mark_of(message) for message in found]


def own(folder: Path) -> _Writer:
    return _Writer(hermes_state.SessionDB(folder / "state.db"))


def ours(store: Store) -> _Writer:
    return _Writer(SessionDB(store))
