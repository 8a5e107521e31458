"""PraisonAI: a turn is four `add_message`; one that returns False is repeated.

Its own store keeps all messages here; by default it has 100 of them in view.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from praisonaiagents import session

from holdfast import Store
from holdfast.adapters.praisonai import DefaultSessionStore
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of

_MAX_ATTEMPTS: Final = 50


def _messages_of(turn: Turn) -> list[dict[str, Any]]:
    function = {"name": TOOL, "arguments": json.dumps(turn.arguments)}
    call = {"id": turn.call_id, "type": "function", "function": function}
    return [
        {"role": "user", "content": turn.user},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": turn.result, "tool_call_id": turn.call_id},
        {"role": "assistant", "content": turn.reply},
    ]


class _Writer:
    def __init__(self, store: session.DefaultSessionStore | DefaultSessionStore) -> None:
        self._store = store

    async def add(self, turn: Turn) -> int:
        return sum(self._add(message) for message in _messages_of(turn))

    def _add(self, message: dict[str, Any]) -> int:
        for retries in range(_MAX_ATTEMPTS):
            if self._store.add_message(KEY, **message):
                return retries
        raise OSError("add_message returned False")

    async def marks(self) -> list[Mark | None]:
        return [mark_of(message) for message in self._store.get_chat_history(KEY)]


def own(folder: Path) -> _Writer:
    return _Writer(session.DefaultSessionStore(str(folder), retention="keep_all"))


def ours(store: Store) -> _Writer:
    return _Writer(DefaultSessionStore(store))
