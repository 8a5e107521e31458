"""The same random calls have the same results as with ADK's own services."""

from __future__ import annotations

from random import Random

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig

from tests.adapters.frameworks.google_adk.events import START, EventMaker

APPS = ("desk", "de/sk")
USERS = ("ada", "bob", "%")
NAMES = ("one", "t/wo", "three")


class Client:
    """Makes random calls of a service; the same seed makes the same ones."""

    def __init__(self, service: BaseSessionService, seed: int) -> None:
        self._service = service
        self._chance = Random(seed)
        self._events = EventMaker(seed)

    async def run(self, calls: int) -> list[object]:
        """Return what each call returned, or the name of its error."""
        return [await self._call() for _ in range(calls)]

    async def _call(self) -> object:
        app, user = self._chance.choice(APPS), self._chance.choice(USERS)
        who = {"app_name": app, "user_id": user}
        one = {**who, "session_id": self._chance.choice(NAMES)}
        kind = self._chance.choice(["create", "append", "append", "append", "get", "list", "rest"])
        if kind == "create":
            return await self._create(one)
        if kind == "append":
            return await self._append(one)
        if kind == "get":
            return _shown(await self._service.get_session(**one, config=self._config()))
        if kind == "list":
            everybody = self._chance.random() < 0.5
            asked = {"app_name": app} if everybody else who
            found = await self._service.list_sessions(**asked)
            return [_shown(session) for session in found.sessions]
        if self._chance.random() < 0.3:
            return await self._service.delete_session(**one)
        return await self._service.get_user_state(**who)

    async def _create(self, one: dict[str, str]) -> object:
        try:
            return _shown(await self._service.create_session(**one, state=self._events.state()))
        except AlreadyExistsError as error:
            return str(error)

    async def _append(self, one: dict[str, str]) -> object:
        session = await self._service.get_session(**one)
        if session is None:
            return None
        returned = []
        for _ in range(self._chance.randrange(1, 5)):
            event = self._events.next()
            event.partial = self._chance.random() < 0.1 or None
            returned.append(await self._service.append_event(session, event))
        return _shown(session), [event.model_dump(mode="json") for event in returned]

    def _config(self) -> GetSessionConfig | None:
        return self._chance.choice(
            [
                None,
                GetSessionConfig(),
                GetSessionConfig(num_recent_events=self._chance.randrange(4)),
                GetSessionConfig(after_timestamp=START + self._chance.randrange(30)),
            ]
        )


def _shown(session: Session | None) -> object:
    if session is None:
        return None
    shown = session.model_dump(mode="json", exclude_none=True)
    if shown["last_update_time"] < START:
        shown["last_update_time"] = "when it was created"
    return shown


@pytest.mark.parametrize("seed", range(16))
async def test_random_calls_have_the_results_of_adks_services(
    services: dict[str, BaseSessionService], seed: int
) -> None:
    ours = await Client(services["holdfast"], seed).run(30)
    for name in ("memory", "sqlite", "database"):
        theirs = await Client(services[name], seed).run(30)
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, f"call {number} of {name}"
