"""The tests that LangGraph publishes for savers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver


async def test_it_passes_all_tests_for_savers(tmp_path: Path) -> None:
    @checkpointer_test(name="HoldfastSaver")
    async def saver() -> AsyncIterator[BaseCheckpointSaver[str]]:
        with holdfast.open(tmp_path / "agent.db", durability="process") as store:
            yield HoldfastSaver(store)

    report = await validate(saver)
    failed = [name for result in report.results.values() for name in result.failures or ()]
    assert failed == []
    assert sum(result.tests_passed for result in report.results.values()) == 81
