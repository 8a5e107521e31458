"""What a store of files loses is kept here: each test is named after what would be lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pydantic_ai import Agent, Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models.test import TestModel

from holdfast import AsyncStore, Message, Store
from holdfast.adapters.pydantic_ai import HoldfastConversationStore
from holdfast.testing.legality import PROVIDERS, problems

KEY = "support-42"


@contextmanager
def worker(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has written its first line."""
    command = [sys.executable, str(Path(__file__).parent / "worker.py"), str(path), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() in {"inside the tool\n", "loaded\n"}
            yield process
        finally:
            process.kill()


def texts(store: Store) -> list[str]:
    return [message.text for message in store.session(KEY).messages()]


async def test_what_was_said_before_the_process_was_killed_inside_a_tool(
    path: Path, store: Store, conversations: HoldfastConversationStore
) -> None:
    with worker(path, "hang") as process:
        process.kill()
    killed = await conversations.load(KEY)
    assert killed is not None
    assert texts(store) == ["Ship parcel 0.", ""]
    assert isinstance(killed.messages[-1], ModelResponse)
    assert killed.usage.requests == 1
    shipped = []
    agent = Agent(TestModel())

    @agent.tool_plain
    def ship(parcel: int) -> str:
        shipped.append(parcel)
        return "shipped"

    await conversations.save(await agent.run(conversation=killed))
    assert shipped == [0]
    assert texts(store) == ["Ship parcel 0.", "", "shipped", '{"ship":"shipped"}']
    assert len(store.session(KEY).branches()) == 1
    assert len({message.id for message in store.session(KEY).messages()}) == 4
    for provider in PROVIDERS:
        window = store.session(KEY).window(provider=provider)
        assert problems(provider, window.messages, window.system) == []


async def test_the_outcome_of_a_tool_that_another_framework_was_killed_in(
    path: Path, store: Store, conversations: HoldfastConversationStore
) -> None:
    with worker(path, "turn") as process:
        process.kill()
    killed = await conversations.load(KEY)
    assert killed is not None
    assert [turn.state for turn in store.session(KEY).turns()] == ["interrupted"]
    agent = Agent(TestModel(call_tools=[]))
    with pytest.raises(UserError, match="unprocessed tool calls"):
        await agent.run("And now?", conversation=killed)
    killed.messages = repair_messages(killed.messages, repair_last_response=True)
    await conversations.save(await agent.run("And now?", conversation=killed))
    messages = store.session(KEY).messages()
    assert [m.role for m in messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert (messages[1].text, messages[2].tool_results[0].error) == ("At once.", True)
    assert len(store.session(KEY).branches()) == 1


async def test_the_message_of_the_process_that_saved_second(
    path: Path, store: Store, conversations: HoldfastConversationStore
) -> None:
    first = [ModelRequest([UserPromptPart("one")])]
    await conversations.save(Conversation(conversation_id=KEY, messages=first))
    names = ("a", "b", "c")
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(path, "save", name)) for name in names]
        said = [process.communicate("go\n")[0] for process in processes]
    # All had loaded the same: each but the first to save had a conflict, and loaded again.
    assert sum(line == "saved after 0 conflicts\n" for line in said) == 1
    assert all(line.startswith("saved after ") for line in said)
    assert texts(store)[0] == "one"
    assert sorted(texts(store)[1:]) == [f"from {name}" for name in names]


async def test_the_messages_of_tasks_that_save_at_once(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    store.session(KEY).append(Message.user("one"))

    async def add(text: str) -> None:
        while True:
            held = await conversations.load(KEY)
            assert held is not None
            held.messages.append(ModelRequest([UserPromptPart(text)]))
            try:
                await conversations.save(held)
            except ConversationConflict:
                continue
            return

    await asyncio.gather(*(add(f"text {n}") for n in range(8)))
    assert sorted(texts(store)) == ["one", *(f"text {n}" for n in range(8))]


@pytest.mark.parametrize("steps", [0, 1, 10, 100, 1000, None])
async def test_the_half_of_a_save_that_was_cancelled(
    steps: int | None, store: Store, conversations: HoldfastConversationStore
) -> None:
    store.session(KEY)
    held = await conversations.load(KEY)
    assert held is not None
    held.messages += [ModelRequest([UserPromptPart(f"text {n}")]) for n in range(3)]
    task = asyncio.ensure_future(conversations.save(held))
    if steps is None:  # Cancelled when it is stored, before the caller knows.
        await anext(aiter((await AsyncStore(store).session(KEY)).follow()))
    for _ in range(steps or 0):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    store.flush()
    found = await conversations.load(KEY)
    assert found is not None
    assert found.messages == (held.messages if steps is None or found.messages else [])
    if not task.cancelled():
        assert found.revision == held.revision


async def test_the_branch_that_a_stale_writer_would_have_undone(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    mine = Conversation(conversation_id=KEY, messages=[ModelRequest([UserPromptPart("one")])])
    await conversations.save(mine)
    theirs = await conversations.load(KEY)
    assert theirs is not None
    theirs.messages.append(ModelRequest([UserPromptPart("two")]))
    await conversations.save(theirs)
    with pytest.raises(ConversationConflict):
        await conversations.branch(KEY, at=0, expected_revision=mine.revision)
    with pytest.raises(ConversationConflict):
        await conversations.delete_record(KEY, expected_revision=str(mine.revision))
    assert texts(store) == ["one", "two"]
