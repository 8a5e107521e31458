"""Google ADK: a turn is four `append_event`; one on a stale session is repeated on a fresh one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from holdfast import Store
from holdfast.adapters.google_adk import HoldfastSessionService
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of

_WHO: Final[dict[str, Any]] = {"app_name": "desk", "user_id": "ada", "session_id": KEY}


def _events_of(turn: Turn) -> list[Event]:
    call = types.FunctionCall(id=turn.call_id, name=TOOL, args=turn.arguments)
    result = types.FunctionResponse(id=turn.call_id, name=TOOL, response={"result": turn.result})
    parts = [
        ("user", types.Part(text=turn.user)),
        ("model", types.Part(function_call=call)),
        ("user", types.Part(function_response=result)),
        ("model", types.Part(text=turn.reply)),
    ]
    return [
        Event(
            author="agent" if number else "user",
            invocation_id=f"e-{turn.call_id}",
            id=turn.id(number),
            content=types.Content(role=role, parts=[part]),
        )
        for number, (role, part) in enumerate(parts)
    ]


class _Writer:
    def __init__(self, service: BaseSessionService) -> None:
        self._service = service
        self._session: Session | None = None

    async def add(self, turn: Turn) -> int:
        retries = 0
        session = self._session or await self._loaded()
        for event in _events_of(turn):
            while True:
                try:
                    await self._service.append_event(session, event)
                except StaleSessionError:
                    retries += 1
                    session = await self._loaded()
                else:
                    break
        self._session = session
        return retries

    async def _loaded(self) -> Session:
        found = await self._service.get_session(**_WHO)
        if found is None:
            try:
                return await self._service.create_session(**_WHO)
            except AlreadyExistsError:  # Another writer was first.
                return await self._loaded()
        return found

    async def marks(self) -> list[Mark | None]:
        return [mark_of(event.content) for event in (await self._loaded()).events]


def own(folder: Path) -> _Writer:
    return _Writer(SqliteSessionService(str(folder / "session.db")))


def ours(store: Store) -> _Writer:
    return _Writer(HoldfastSessionService(store))
