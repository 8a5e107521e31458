"""A process of its own: it runs an agent that hangs in a tool, or saves what it loaded.

`python worker.py PATH hang` saves after every step, and writes a line when it is inside the tool.
`python worker.py PATH save NAME` loads, writes a line, waits for one, and saves until it is stored.
`python worker.py PATH turn` opens a turn of Holdfast's own, and hangs inside a tool.
"""

from __future__ import annotations

import asyncio
import sys
from copy import copy

from pydantic_ai import Agent, Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast import Store, ToolCall
from holdfast.adapters.pydantic_ai import HoldfastConversationStore

KEY = "support-42"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def hang() -> None:
    say("inside the tool")
    sys.stdin.readline()


async def run_agent(store: Store) -> None:
    conversations = HoldfastConversationStore(store)
    agent = Agent(TestModel())

    @agent.tool_plain
    def ship(parcel: int) -> str:
        hang()
        return "shipped"

    conversation = Conversation(conversation_id=KEY)
    conversation.messages.append(ModelRequest([UserPromptPart("Ship parcel 0.")]))
    await conversations.save(conversation)
    async with agent.iter(conversation=conversation) as run:
        async for _ in run:
            conversation.messages += run.all_messages()[len(conversation.messages) :]
            conversation.usage = copy(run.usage)
            await conversations.save(conversation)


async def save(store: Store, name: str) -> None:
    conversations = HoldfastConversationStore(store)
    conversation = await conversations.load(KEY)
    say("loaded")
    sys.stdin.readline()
    conflicts = 0
    while conversation is not None:
        conversation.messages.append(ModelRequest([UserPromptPart(f"from {name}")]))
        try:
            await conversations.save(conversation)
        except ConversationConflict:
            conflicts += 1
            conversation = await conversations.load(KEY)
        else:
            say(f"saved after {conflicts} conflicts")
            return


def open_turn(store: Store) -> None:
    with store.session(KEY).turn() as turn:
        turn.user("Ship parcel 0.")
        turn.assistant("At once.", tool_calls=[ToolCall("call-1", "ship", {"parcel": 0})])
        turn.tool_started("call-1")
        hang()


def main(path: str, what: str, *names: str) -> None:
    with holdfast.open(path, durability="process") as store:
        if what == "hang":
            asyncio.run(run_agent(store))
        elif what == "save":
            asyncio.run(save(store, *names))
        else:
            open_turn(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
