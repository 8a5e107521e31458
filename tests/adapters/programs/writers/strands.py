"""Strands: a turn is four messages of an agent, each stored by its session manager's hooks."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# The model of an agent is made with it, though never called here.
os.environ |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}

from strands import Agent
from strands.session.file_session_manager import FileSessionManager
from strands.session.repository_session_manager import RepositorySessionManager
from strands.types.exceptions import SessionException

from holdfast import Store
from holdfast.adapters.strands import HoldfastSessionRepository
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of

_AGENT: Final = "desk"
_MAX_ATTEMPTS: Final = 10


def _messages_of(turn: Turn) -> list[Any]:
    call = {"toolUseId": turn.call_id, "name": TOOL, "input": turn.arguments}
    result = {"toolUseId": turn.call_id, "status": "success", "content": [{"text": turn.result}]}
    return [
        {"role": "user", "content": [{"text": turn.user}]},
        {"role": "assistant", "content": [{"toolUse": call}]},
        {"role": "user", "content": [{"toolResult": result}]},
        {"role": "assistant", "content": [{"text": turn.reply}]},
    ]


class _Writer:
    def __init__(self, make: Callable[[], RepositorySessionManager]) -> None:
        self._manager = make()
        self._agent = Agent(agent_id=_AGENT, session_manager=self._manager, callback_handler=None)

    async def add(self, turn: Turn) -> int:
        for message in _messages_of(turn):
            self._agent.messages.append(message)
            self._manager.append_message(message, self._agent)
            self._manager.sync_agent(self._agent)
        return 0

    async def marks(self) -> list[Mark | None]:
        found = self._manager.session_repository.list_messages(KEY, _AGENT)
        return [mark_of(message.message) for message in found]


def _opened(make: Callable[[], RepositorySessionManager]) -> _Writer:
    """Return a writer; of processes that create a session or an agent at once, one is refused."""
    for _ in range(_MAX_ATTEMPTS - 1):
        with suppress(SessionException):
            return _Writer(make)
    return _Writer(make)


def own(folder: Path) -> _Writer:
    return _opened(lambda: FileSessionManager(KEY, storage_dir=str(folder)))


def ours(store: Store) -> _Writer:
    return _opened(lambda: RepositorySessionManager(KEY, HoldfastSessionRepository(store)))
