"""A store, and nanobot's session manager over it and over its own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from nanobot.session import SessionManager as FileSessionManager

import holdfast
from holdfast import Store
from holdfast.adapters.nanobot import SessionManager

Manager: TypeAlias = Any  # nanobot has no types for mypy
Conversation: TypeAlias = Any
NewManager: TypeAlias = Callable[[], Manager]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        yield store


@pytest.fixture
def ours(tmp_path: Path, workspace: Path, store: Store) -> NewManager:
    """Return what makes managers of the store, as several processes have them."""
    return lambda: SessionManager(workspace, store, sessions_root=tmp_path / "root")


@pytest.fixture
def theirs(tmp_path: Path, workspace: Path) -> NewManager:
    """Return what makes managers of nanobot's own files."""
    return lambda: FileSessionManager(workspace, sessions_root=tmp_path / "root")


@pytest.fixture(params=["ours", "theirs"])
def new_manager(request: pytest.FixtureRequest) -> NewManager:
    """Return what makes managers: ours, then nanobot's own."""
    found: NewManager = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def manager(ours: NewManager) -> Manager:
    return ours()
