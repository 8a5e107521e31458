"""Checkpoints as a graph makes them, without a graph."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

_NUMBERS = count(1)


def config(thread_id: str = "t", id: str | None = None, ns: str = "") -> dict[str, Any]:
    """Return a config."""
    names = {"thread_id": thread_id, "checkpoint_ns": ns}
    return {"configurable": names | ({} if id is None else {"checkpoint_id": id})}


def checkpoint(
    values: Mapping[str, Any], versions: Mapping[str, Any], number: int | None = None
) -> dict[str, Any]:
    """Return a checkpoint; each has a higher id than those before."""
    at = next(_NUMBERS) if number is None else number
    return {
        "v": 4,
        "id": f"1f000000-0000-6000-8000-{at:012x}",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions),
        "versions_seen": {"node": {"messages": "1"}},
        "updated_channels": None,
    }


def put(
    saver: BaseCheckpointSaver[Any],
    values: Mapping[str, Any],
    parent: dict[str, Any] | None = None,
    *,
    thread_id: str = "t",
    ns: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Store a checkpoint in which all channels have a new version; return its config."""
    versions = {name: saver.get_next_version(None, None) for name in values}
    made = checkpoint(values, versions)
    given = metadata or {"source": "loop", "step": 1, "parents": {}}
    return saver.put(parent or config(thread_id, ns=ns), made, given, versions)


def read(saver: BaseCheckpointSaver[Any], at: dict[str, Any]) -> CheckpointTuple:
    """Return a checkpoint that is there."""
    found = saver.get_tuple(at)
    assert found is not None
    return found


def messages_at(saver: BaseCheckpointSaver[Any], at: dict[str, Any]) -> list[Any]:
    """Return the messages of a checkpoint."""
    found: list[Any] = read(saver, at).checkpoint["channel_values"]["messages"]
    return found
