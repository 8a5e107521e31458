"""nanobot: a turn is four messages added to a session, then one `save`, as its loop does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nanobot.session

from holdfast import Store
from holdfast.adapters.nanobot import SessionManager
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of


def _messages_of(turn: Turn) -> list[dict[str, Any]]:
    function = {"name": TOOL, "arguments": json.dumps(turn.arguments)}
    call = {"id": turn.call_id, "type": "function", "function": function}
    return [
        {"role": "user", "content": turn.user},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": turn.result, "tool_call_id": turn.call_id, "name": TOOL},
        {"role": "assistant", "content": turn.reply},
    ]


class _Writer:
    def __init__(self, manager: nanobot.session.SessionManager) -> None:
        self._manager = manager

    async def add(self, turn: Turn) -> int:
        session = self._manager.get_or_create(KEY)
        for message in _messages_of(turn):
            session.add_message(**message)
        self._manager.save(session)
        return 0

    async def marks(self) -> list[Mark | None]:
        return [mark_of(message) for message in self._manager.get_or_create(KEY).messages]


def own(folder: Path) -> _Writer:
    manager = nanobot.session.SessionManager(
        folder / "workspace", sessions_root=folder / "sessions"
    )
    return _Writer(manager)


def ours(store: Store) -> _Writer:
    return _Writer(SessionManager(Path("workspace"), store))
