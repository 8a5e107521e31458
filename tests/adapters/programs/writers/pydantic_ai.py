"""Pydantic AI: a turn is one `save`; on a conflict, the conversation is loaded again.

Its package has no store but one in memory.
"""

from __future__ import annotations

from pydantic_ai import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import Store
from holdfast.adapters.pydantic_ai import HoldfastConversationStore
from tests.adapters.programs.turns import KEY, TOOL, Mark, Turn, mark_of


def _messages_of(turn: Turn) -> list[ModelMessage]:
    return [
        ModelRequest([UserPromptPart(turn.user)]),
        ModelResponse([ToolCallPart(TOOL, turn.arguments, tool_call_id=turn.call_id)]),
        ModelRequest([ToolReturnPart(TOOL, turn.result, tool_call_id=turn.call_id)]),
        ModelResponse([TextPart(turn.reply)]),
    ]


class _Writer:
    def __init__(self, store: Store) -> None:
        self._conversations = HoldfastConversationStore(store)
        self._conversation = Conversation(conversation_id=KEY)

    async def add(self, turn: Turn) -> int:
        retries = 0
        while True:
            self._conversation.messages += _messages_of(turn)
            try:
                await self._conversations.save(self._conversation)
            except ConversationConflict:
                retries += 1
                await self._load()
            else:
                return retries

    async def _load(self) -> None:
        found = await self._conversations.load(KEY)
        assert found is not None
        self._conversation = found

    async def marks(self) -> list[Mark | None]:
        await self._load()
        return [mark_of(message) for message in self._conversation.messages]


def ours(store: Store) -> _Writer:
    return _Writer(store)
