"""Every test has a store of its own, in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import set_tracing_disabled

import holdfast
from holdfast import Store
from holdfast.adapters.openai_agents import HoldfastSession

set_tracing_disabled(disabled=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> HoldfastSession:
    return HoldfastSession("support-42", store)
