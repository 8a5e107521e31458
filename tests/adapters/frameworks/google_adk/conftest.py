"""A store, the service of it, and ADK's own services, which the same is asked of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from google.adk.sessions import BaseSessionService, InMemorySessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

import holdfast
from holdfast import Store
from holdfast.adapters.google_adk import HoldfastSessionService

SERVICES = ("holdfast", "memory", "sqlite", "database")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        yield store


@pytest.fixture
def service(store: Store) -> HoldfastSessionService:
    return HoldfastSessionService(store)


@pytest.fixture
async def services(
    service: HoldfastSessionService,
) -> AsyncIterator[dict[str, BaseSessionService]]:
    sqlite = SqliteSessionService(":memory:")
    database = DatabaseSessionService("sqlite+aiosqlite:///:memory:")
    yield {
        "holdfast": service,
        "memory": InMemorySessionService(),
        "sqlite": sqlite,
        "database": database,
    }
    await sqlite.close()
    await database.close()


@pytest.fixture(params=SERVICES)
def any_service(
    request: pytest.FixtureRequest, services: dict[str, BaseSessionService]
) -> BaseSessionService:
    """Each service in turn: what is stated of the interface is true of ADK's own, too."""
    return services[request.param]
