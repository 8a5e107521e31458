"""A store, managers of it, and an agent that says what it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.adapters.hermes import SessionManager


class Agent:
    """What the manager reads of an agent."""

    model = "small-1"
    provider = "local"
    base_url = "http://127.0.0.1:1/v1"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "hermes"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        yield store


@pytest.fixture
def manager(store: Store) -> SessionManager:
    return SessionManager(store, Agent)


@pytest.fixture
def other(store: Store) -> SessionManager:
    """Return a second manager of the store, as another process has one."""
    return SessionManager(store, Agent)
