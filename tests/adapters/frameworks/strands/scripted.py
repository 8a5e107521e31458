"""A model that says what a test tells it to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

from strands.models import Model

Event: TypeAlias = dict[str, Any]


class ScriptedModel(Model):
    """A model of Strands whose replies are lists of blocks; `seen` has what it was sent."""

    def __init__(self, *replies: list[dict[str, Any]]) -> None:
        self._replies = list(replies)
        self.seen: list[list[Any]] = []

    def update_config(self, **config: object) -> None:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *args: object, **options: object) -> object:
        raise NotImplementedError

    async def stream(
        self, messages: list[Any], *args: object, **options: object
    ) -> AsyncIterator[Event]:
        self.seen.append(json.loads(json.dumps(messages)))
        reply = self._replies.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        for block in reply:
            for event in _events_of(block):
                yield event
        reason = "tool_use" if any("toolUse" in block for block in reply) else "end_turn"
        yield {"messageStop": {"stopReason": reason}}
        usage = {"inputTokens": 10, "outputTokens": 4, "totalTokens": 14}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def _events_of(block: dict[str, Any]) -> Iterator[Event]:
    if "redact" in block:
        yield {"redactContent": {"redactUserContentMessage": block["redact"]}}
        return
    start: dict[str, Any] = {}
    delta: dict[str, Any] = {"text": block.get("text")}
    if "toolUse" in block:
        call = block["toolUse"]
        start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
        delta = {"toolUse": {"input": json.dumps(call["input"])}}
    yield {"contentBlockStart": {"start": start}}
    yield {"contentBlockDelta": {"delta": delta}}
    yield {"contentBlockStop": {}}
