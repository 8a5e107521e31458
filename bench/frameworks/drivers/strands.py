"""Strands: `FileSessionManager` and `HoldfastSessionRepository`. An agent reads all messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strands.session.repository_session_manager import (
    RepositorySessionManager,
)

from bench.frameworks.drivers.store import open_store
from bench.peers.drivers.strands import Peer
from holdfast.adapters.strands import HoldfastSessionRepository


class Own(Peer):
    """`FileSessionManager`."""

    def resume(self, key: str) -> int:
        """Return how many messages were read when the session was opened."""
        return len(self._opened[key][1].messages)


class Adapter(Own):
    """`HoldfastSessionRepository`, in a store with its default settings."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._store = open_store(directory)

    def _manager(self, key: str) -> Any:  # noqa: ANN401 - as in the class it replaces
        return RepositorySessionManager(key, HoldfastSessionRepository(self._store))

    def close(self) -> None:
        """Close the store."""
        self._store.close()
