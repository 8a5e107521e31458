"""Google ADK: `SqliteSessionService` and `HoldfastSessionService`. A run reads all events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.frameworks.drivers.store import open_store
from bench.peers.drivers.adk import Peer
from holdfast.adapters.google_adk import HoldfastSessionService


class Own(Peer):
    """`SqliteSessionService`."""

    async def open(self, key: str) -> None:
        """Open a session with all its events, as a runner does, or create it."""
        self._sessions[key] = await self._get(key) or await self._service.create_session(
            app_name="bench", user_id="bench", session_id=key
        )

    def resume(self, key: str) -> int:
        """Return how many events were read when the session was opened."""
        return len(self._sessions[key].events)


class Adapter(Own):
    """`HoldfastSessionService`, in a store with its default settings."""

    def _open_service(self, path: Path) -> Any:  # noqa: ANN401 - as in the class it replaces
        self._store = open_store(path.parent)
        return HoldfastSessionService(self._store)

    async def close(self) -> None:
        """Close the store."""
        self._store.close()
