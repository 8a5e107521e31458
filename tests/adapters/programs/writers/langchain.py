"""LangChain: a turn is one `aadd_messages`. Its package has no history that is stored."""

from __future__ import annotations

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from holdfast import Store
from holdfast.adapters.langchain import HoldfastChatMessageHistory
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of


def messages_of(turn: Turn) -> list[BaseMessage]:
    call = {"id": turn.call_id, "name": TOOL, "args": turn.arguments, "type": "tool_call"}
    return [
        HumanMessage(turn.user, id=turn.id(0)),
        AIMessage("", tool_calls=[call], id=turn.id(1)),
        ToolMessage(turn.result, tool_call_id=turn.call_id, id=turn.id(2)),
        AIMessage(turn.reply, id=turn.id(3)),
    ]


class _Writer:
    def __init__(self, history: HoldfastChatMessageHistory) -> None:
        self._history = history

    async def add(self, turn: Turn) -> int:
        await self._history.aadd_messages(messages_of(turn))
        return 0

    async def marks(self) -> list[Mark | None]:
        return [mark_of(message) for message in await self._history.aget_messages()]


def ours(store: Store) -> _Writer:
    return _Writer(HoldfastChatMessageHistory(KEY, store))
