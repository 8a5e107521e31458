"""Google ADK: a turn is four `append_event`, as its runner stores an invocation's events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.base_session_service import (
    GetSessionConfig,
)
from google.adk.sessions.sqlite_session_service import (
    SqliteSessionService,
)
from google.genai import types

from bench.peers.turns import TOOL, Mark, Turn, recognise


class Peer:
    """`SqliteSessionService`, which its command line uses. It cannot search or fork."""

    def __init__(self, directory: Path) -> None:
        self._service = self._open_service(directory / "session.db")
        self._sessions: dict[str, Any] = {}

    def _open_service(self, path: Path) -> Any:  # noqa: ANN401 - the package has no types here
        return SqliteSessionService(str(path))

    def messages(self, turn: Turn) -> list[Any]:
        """Return the four events of a turn."""
        call = types.FunctionCall(id=turn.call_id, name=TOOL, args=dict(turn.arguments))
        result = types.FunctionResponse(
            id=turn.call_id, name=TOOL, response={"result": turn.result}
        )
        return [
            _event("user", turn, types.Part(text=turn.user)),
            _event("agent", turn, types.Part(function_call=call)),
            _event("agent", turn, types.Part(function_response=result)),
            _event("agent", turn, types.Part(text=turn.reply)),
        ]

    async def open(self, key: str) -> None:
        """Open a session, or create it."""
        self._sessions[key] = await self._get(key, 50) or await self._service.create_session(
            app_name="bench", user_id="bench", session_id=key
        )

    async def append(self, key: str, messages: list[Any]) -> None:
        """Store a turn."""
        for event in messages:
            await self._service.append_event(self._sessions[key], event)

    async def fill(self, key: str, turns: Iterator[Turn]) -> None:
        """Store many turns; there is no way to store several at once."""
        for turn in turns:
            await self.append(key, self.messages(turn))

    async def last(self, key: str, limit: int) -> int:
        """Read the newest events."""
        return len((await self._get(key, limit)).events)

    async def history(self, key: str) -> list[Mark | None]:
        """Return the marks of all events."""
        return [_mark(event.content.parts[0]) for event in (await self._get(key)).events]

    async def sessions(self, limit: int) -> int:
        """List all sessions, as it has no limit, and take the newest."""
        found = await self._service.list_sessions(app_name="bench", user_id="bench")
        newest = sorted(found.sessions, key=lambda session: -session.last_update_time)
        return len(newest[:limit])

    async def _get(self, key: str, limit: int | None = None) -> Any:  # noqa: ANN401 - as above
        config = GetSessionConfig(num_recent_events=limit)
        return await self._service.get_session(
            app_name="bench", user_id="bench", session_id=key, config=config
        )

    async def close(self) -> None:
        """Close the service."""
        await self._service.close()


class Database(Peer):
    """`DatabaseSessionService`, which its documentation uses."""

    def _open_service(self, path: Path) -> Any:  # noqa: ANN401 - as above
        return DatabaseSessionService(f"sqlite+aiosqlite:///{path}")


def _event(author: str, turn: Turn, part: Any) -> Any:  # noqa: ANN401 - as above
    role = "user" if author == "user" or part.function_response else "model"
    content = types.Content(role=role, parts=[part])
    return Event(author=author, invocation_id=f"e-{turn.call_id}", content=content)


def _mark(part: Any) -> Mark | None:  # noqa: ANN401 - as above
    if part.function_call:
        return recognise(part.function_call.id, part.function_call.args)
    if part.function_response:
        return recognise(part.function_response.response["result"])
    return recognise(part.text)
