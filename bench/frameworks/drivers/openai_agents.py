"""OpenAI Agents: `SQLiteSession` and `HoldfastSession`. A run begins by reading all items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.frameworks.drivers.store import open_store
from bench.peers.drivers.openai_agents import Peer
from holdfast.adapters.openai_agents import HoldfastSession


class Own(Peer):
    """`SQLiteSession`."""

    async def resume(self, key: str) -> int:
        """Read what a run begins with."""
        return len(await self._sessions[key].get_items())


class Adapter(Own):
    """`HoldfastSession`, in a store with its default settings."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._store = open_store(directory)

    def _session(self, key: str) -> Any:  # noqa: ANN401 - as in the class it replaces
        return HoldfastSession(key, self._store)

    def close(self) -> None:
        """Close the store."""
        self._store.close()
