"""Every test has a store of its own, in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.adapters.pydantic_ai import HoldfastConversationStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with holdfast.open(path, durability="process") as opened:
        yield opened


@pytest.fixture
def conversations(store: Store) -> HoldfastConversationStore:
    return HoldfastConversationStore(store)
