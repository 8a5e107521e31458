"""`-m … STORE KEY`: an agent that goes on with the conversation, prints what its model was sent."""

from __future__ import annotations

import asyncio
import json
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast import Store
from holdfast.adapters.pydantic_ai import HoldfastConversationStore


def weigh_then_tell(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    part = messages[-1].parts[-1]
    if part.part_kind == "tool-return":
        return ModelResponse([TextPart(f"Not yet. {part.content}")])
    return ModelResponse([ToolCallPart("weigh", {"parcel": 7}, tool_call_id="weigh-1")])


async def main(store: Store, key: str) -> None:
    conversations = HoldfastConversationStore(store)
    conversation = await conversations.load(key)
    assert conversation is not None
    agent = Agent(FunctionModel(weigh_then_tell))

    @agent.tool_plain
    def weigh(parcel: int) -> str:
        """Weigh a parcel."""
        return f"Parcel {parcel} weighs 2 kg."

    result = await agent.run("Was it shipped?", conversation=conversation)
    assert await conversations.save(result)
    assert await conversations.save(result) == []
    seen = [part.part_kind for message in conversation.messages for part in message.parts]
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as _store:
        asyncio.run(main(_store, sys.argv[2]))
