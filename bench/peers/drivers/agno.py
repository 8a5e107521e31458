"""Agno: a turn is a run; its agent stores the session's row, then the run's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agno.agent import Agent  # type: ignore[import-not-found]
from agno.db.base import SessionType  # type: ignore[import-not-found]
from agno.db.sqlite import SqliteDb  # type: ignore[import-not-found]
from agno.models.message import Message  # type: ignore[import-not-found]
from agno.run.agent import RunOutput  # type: ignore[import-not-found]
from agno.run.base import RunStatus  # type: ignore[import-not-found]
from agno.session.agent import AgentSession  # type: ignore[import-not-found]

from bench.peers.turns import MESSAGES_PER_TURN, TOOL, Mark, Turn, recognise


class Peer:
    """`SqliteDb`, as it comes. It cannot search messages."""

    def __init__(self, directory: Path) -> None:
        self._db = SqliteDb(db_file=str(directory / "agno.db"))
        self._sessions: dict[str, Any] = {}

    def messages(self, turn: Turn) -> Any:  # noqa: ANN401 - the package has no types here
        """Return the run of a turn."""
        function = {"name": TOOL, "arguments": json.dumps(turn.arguments)}
        call = {"id": turn.call_id, "type": "function", "function": function}
        messages = [
            Message(role="user", content=turn.user),
            Message(role="assistant", tool_calls=[call]),
            Message(role="tool", content=turn.result, tool_call_id=turn.call_id, tool_name=TOOL),
            Message(role="assistant", content=turn.reply),
        ]
        return RunOutput(
            run_id=turn.call_id,
            agent_id="bench",
            messages=messages,
            status=RunStatus.completed,
        )

    def open(self, key: str) -> None:
        """Open a session, or create it."""
        found = self._db.get_session(key, SessionType.AGENT, runs_limit=1)
        self._sessions[key] = found or self._db.upsert_session(
            AgentSession(session_id=key, agent_id="bench")
        )

    def append(self, key: str, messages: Any) -> None:  # noqa: ANN401 - as above
        """Store a turn."""
        self._db.upsert_session(self._sessions[key])
        self._db.upsert_run(messages, session_id=key)

    def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store many turns; there is no way to store several at once."""
        for turn in turns:
            self._db.upsert_run(self.messages(turn), session_id=key)

    def last(self, key: str, limit: int) -> int:
        """Read the newest messages, by the runs that have them."""
        runs = -(-limit // MESSAGES_PER_TURN)
        session = self._db.get_session(key, SessionType.AGENT, runs_limit=runs)
        return len(session.get_messages(limit=limit))

    def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all messages."""
        session = self._db.get_session(key, SessionType.AGENT)
        return [_mark(message) for run in session.runs for message in run.messages]

    def sessions(self, limit: int) -> int:
        """List the newest sessions, without their runs."""
        options = {"limit": limit, "sort_by": "updated_at", "sort_order": "desc"}
        return len(self._db.get_sessions(SessionType.AGENT, include_runs=False, **options))

    def fork(self, key: str) -> None:
        """Fork a session with the agent's method."""
        Agent(id="bench", db=self._db, telemetry=False).fork_session(source_session_id=key)

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def _mark(message: Any) -> Mark | None:  # noqa: ANN401 - as above
    if message.tool_calls:
        (call,) = message.tool_calls
        return recognise(call["id"], json.loads(call["function"]["arguments"]))
    return recognise(message.content)
