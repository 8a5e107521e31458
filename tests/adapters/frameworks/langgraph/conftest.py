"""Every test has a store of its own, in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.adapters.langgraph import HoldfastSaver


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as opened:
        yield opened


@pytest.fixture
def saver(store: Store) -> HoldfastSaver:
    return HoldfastSaver(store)
