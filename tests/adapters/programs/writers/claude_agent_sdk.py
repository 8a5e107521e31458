"""Claude Agent SDK: a turn is one `append`; the SDK repeats a batch that may have been stored.

Its package has no store but one in memory.
"""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_OID, uuid5

from holdfast import Store
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of

_SESSION: Any = {"project_key": "parcels", "session_id": KEY}
_REPEATED = 5


def _entries_of(turn: Turn) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": turn.call_id, "name": TOOL, "input": turn.arguments}
    result = {"type": "tool_result", "tool_use_id": turn.call_id, "content": turn.result}
    said: list[tuple[str, Any]] = [
        ("user", turn.user),
        ("assistant", [call]),
        ("user", [result]),
        ("assistant", [{"type": "text", "text": turn.reply}]),
    ]
    return [
        {
            "type": role,
            "uuid": str(uuid5(NAMESPACE_OID, turn.id(number))),
            "parentUuid": None,
            "sessionId": KEY,
            "timestamp": "2026-01-02T03:04:05.678Z",
            "message": {"role": role, "content": content},
        }
        for number, (role, content) in enumerate(said)
    ]


class _Writer:
    def __init__(self, store: Store) -> None:
        self._store = HoldfastSessionStore(store)

    async def add(self, turn: Turn) -> int:
        await self._store.append(_SESSION, _entries_of(turn))
        if turn.number % _REPEATED:
            return 0
        await self._store.append(_SESSION, _entries_of(turn))
        return 1

    async def marks(self) -> list[Mark | None]:
        return [mark_of(entry) for entry in await self._store.load(_SESSION) or []]


def ours(store: Store) -> _Writer:
    return _Writer(store)
