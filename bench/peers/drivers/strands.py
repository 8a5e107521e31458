"""Strands: a turn is four messages added to an agent, each stored by its session manager."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

# The model of an agent is made with it, though never called here.
os.environ |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}

from strands import Agent
from strands.session.file_session_manager import (
    FileSessionManager,
)
from strands.types.session import SessionMessage

from bench.peers.turns import TOOL, Mark, Turn, recognise

_AGENT = "bench"


class Peer:
    """`FileSessionManager`: a directory for each session. It cannot list, search or fork."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: dict[str, tuple[Any, Any]] = {}

    def _manager(self, key: str) -> Any:  # noqa: ANN401 - the package has no types here
        return FileSessionManager(key, storage_dir=str(self._directory))

    def messages(self, turn: Turn) -> list[Any]:
        """Return the four messages of a turn."""
        call = {"toolUseId": turn.call_id, "name": TOOL, "input": turn.arguments}
        result = {
            "toolUseId": turn.call_id,
            "status": "success",
            "content": [{"text": turn.result}],
        }
        return [
            {"role": "user", "content": [{"text": turn.user}]},
            {"role": "assistant", "content": [{"toolUse": call}]},
            {"role": "user", "content": [{"toolResult": result}]},
            {"role": "assistant", "content": [{"text": turn.reply}]},
        ]

    def open(self, key: str) -> None:
        """Make an agent that continues a session, which reads all its messages."""
        manager = self._manager(key)
        agent = Agent(agent_id=_AGENT, session_manager=manager, callback_handler=None)
        self._opened[key] = manager, agent

    def append(self, key: str, messages: list[Any]) -> None:
        """Store a turn, as the agent's hooks do when a message is added."""
        manager, agent = self._opened[key]
        for message in messages:
            agent.messages.append(message)
            manager.append_message(message, agent)
            manager.sync_agent(agent)

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store many turns, and open the session again."""
        manager, _ = self._opened[key]
        numbers = count()
        for turn in turns:
            for message in self.messages(turn):
                stored = SessionMessage.from_message(message, next(numbers))
                manager.session_repository.create_message(key, _AGENT, stored)
        self.open(key)

    def last(self, key: str, limit: int) -> int:
        """Return the newest of the messages that were read when the session was opened."""
        return len(self._opened[key][1].messages[-limit:])

    def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all messages."""
        manager, _ = self._opened[key]
        stored = manager.session_repository.list_messages(key, _AGENT)
        return [_mark(found.message) for found in stored]

    def close(self) -> None:
        """Do nothing: each message is a file that is closed."""


def _mark(message: Any) -> Mark | None:  # noqa: ANN401 - the package has no types here
    (part,) = message["content"]
    if "toolUse" in part:
        return recognise(part["toolUse"]["toolUseId"], part["toolUse"]["input"])
    if "toolResult" in part:
        (part,) = part["toolResult"]["content"]
    return recognise(part["text"])
