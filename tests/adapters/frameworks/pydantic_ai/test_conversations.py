"""Conversations with an agent: continued, listed, kept apart, shared with other programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic_ai import Agent, Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests

import holdfast
from holdfast import Message, Store
from holdfast.adapters.pydantic_ai import HoldfastConversationStore
from holdfast.errors import SessionBusy
from holdfast.testing.legality import PROVIDERS, problems
from holdfast.values import JSON


def said(text: str, id: str = "c") -> Conversation:
    return Conversation(conversation_id=id, messages=[ModelRequest([UserPromptPart(text)])])


def prompts(conversation: Conversation | None) -> list[object]:
    assert conversation is not None
    return [part.content for m in conversation.messages for part in m.parts]


async def test_an_agent_continues_what_another_process_stored(path: Path) -> None:
    agent = Agent(TestModel(), system_prompt="Be nice.")
    agent.tool_plain(ship)
    with holdfast.open(path, durability="process") as store:
        conversations = HoldfastConversationStore(store)
        result = await agent.run("one", conversation=Conversation(conversation_id="c"))
        await conversations.save(result)
        assert await conversations.save(result) == []
    with holdfast.open(path, durability="process") as store:
        conversations = HoldfastConversationStore(store)
        first = await conversations.load("c")
        assert first is not None
        assert first.messages == result.all_messages()
        assert first.usage == result.usage
        second = await agent.run("two", conversation=first)
        entries = await conversations.save(second)
        assert [entry.message for entry in entries] == second.new_messages()
        stored = store.session("c").messages()
        assert [m.text for m in stored if m.role == "user"] == ["one", "two"]
        assert len(store.session("c").branches()) == 1


def ship(parcel: int) -> str:
    return f"shipped {parcel}"


async def test_tool_calls_that_wait_for_approval_are_answered_after_a_restart(path: Path) -> None:
    agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])
    agent.tool_plain(ship, requires_approval=True)
    with holdfast.open(path, durability="process") as store:
        result = await agent.run("Ship it.", conversation=Conversation(conversation_id="c"))
        await HoldfastConversationStore(store).save(result)
    with holdfast.open(path, durability="process") as store:
        conversations = HoldfastConversationStore(store)
        paused = await conversations.load("c")
        assert paused is not None
        assert paused.deferred_tool_requests == result.output
        approved = paused.deferred_tool_requests.build_results(approve_all=True)
        done = await agent.run(conversation=paused, deferred_tool_results=approved)
        await conversations.save(done)
        assert "shipped 0" in [m.text for m in store.session("c").messages()]
        after = await conversations.load("c")
        assert after is not None
        assert after.deferred_tool_requests is None


async def test_a_conversation_that_another_framework_began_is_continued(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    session = store.session("c", scope="support")
    session.append_from(
        "openai",
        {"role": "system", "content": "Be nice."},
        {"role": "user", "content": "Where is parcel 7?"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call-1",
                    "type": "function",
                    "function": {"name": "find", "arguments": '{"parcel": 7}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "In Bern."},
        {"role": "assistant", "content": "It is in Bern."},
    )
    seen: list[list[ModelMessage]] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(messages)
        return ModelResponse([TextPart("On Monday.")])

    begun = await conversations.load("c")
    assert begun is not None
    result = await Agent(FunctionModel(reply)).run("And when is it here?", conversation=begun)
    entries = await conversations.save(result)
    parts = [part for message in seen[0] for part in message.parts]
    assert [part.part_kind for part in parts] == [
        "system-prompt",
        "user-prompt",
        "tool-call",
        "tool-return",
        "text",
        "user-prompt",
    ]
    assert (parts[3].tool_name, parts[3].content) == ("find", "In Bern.")
    messages = session.messages()
    assert len(messages) == 7
    assert [entry.id for entry in entries] == [message.id for message in messages[5:]]
    assert session.info().scope == "support"
    for provider in PROVIDERS:
        window = session.window(provider=provider)
        assert problems(provider, window.messages, window.system) == []


async def test_what_another_program_wrote_meanwhile_is_a_conflict(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    session = store.session("c")
    mine = said("one")
    with pytest.raises(ConversationConflict):  # The session is there, and was not loaded.
        await conversations.save(mine)

    def undo_and_redo() -> None:
        session.undo()
        session.redo()

    changes: list[Callable[[], object]] = [
        lambda: session.append(Message.user("two")),
        lambda: session.amend(1, "three"),
        lambda: session.rewind(1),
        lambda: session.append(Message.user("four")),
        session.undo,
        undo_and_redo,
        session.clear,
    ]
    for change in changes:
        held = await conversations.load("c")
        assert held is not None
        held.messages.append(ModelRequest([UserPromptPart("mine")]))
        await conversations.save(held)
        change()
        held.messages.append(ModelRequest([UserPromptPart("lost?")]))
        before = session.messages()
        with pytest.raises(ConversationConflict):
            await conversations.save(held)
        assert session.messages() == before


async def test_a_session_without_a_key_is_a_conversation_of_its_id(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    session = store.create(entries=[Message.user("one")])
    found = await conversations.load(session.id)
    assert prompts(found) == ["one"]
    assert found is not None
    found.messages.append(ModelRequest([UserPromptPart("two")]))
    await conversations.save(found)
    assert prompts(await conversations.load(session.id)) == ["one", "two"]
    assert [r.conversation_id for r in await conversations.list_conversations()] == [session.id]
    store.trash(session.id)
    assert await conversations.load(session.id) is None


async def test_a_session_is_not_found_by_its_title_or_a_part_of_its_id(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    session = store.session("key", title="a title of many.")
    for id in ("a title of many.", session.id, session.id[:6], "@latest"):
        assert await conversations.load(id) is None


async def test_messages_with_the_same_ids_in_other_sessions_do_not_mix(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    for key in ("a", "b"):
        store.session(key).append(Message.user(f"one of {key}", id="event-1"))
    await conversations.fork("a", new_conversation_id="c")
    assert prompts(await conversations.load("a")) == ["one of a"]
    assert prompts(await conversations.load("b")) == ["one of b"]
    assert prompts(await conversations.load("c")) == ["one of a"]


async def test_a_rewritten_history_stays_readable_on_its_branch(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    conversation = said("one")
    conversation.messages.append(ModelRequest([UserPromptPart("two")]))
    await conversations.save(conversation)
    conversation.messages[1:] = [ModelRequest([UserPromptPart("other")])]
    conversation.new_message_index = None
    await conversations.save(conversation)
    assert prompts(await conversations.load("c")) == ["one", "other"]
    session = store.session("c")
    assert [m.text for m in session.messages(branch=1)] == ["one", "two"]
    (tip,) = (await conversations.list_conversations())[0].branches
    back = await conversations.branch("c", from_entry=tip, expected_revision=conversation.revision)
    assert prompts(back) == ["one", "two"]


async def test_a_fork_shares_what_it_began_with_and_outlives_its_origin(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    await conversations.save(said("one"), scope="user-1")
    fork = await conversations.fork("c", new_conversation_id="d")
    assert store.stats().messages == 1
    await conversations.delete("c")
    fork.messages.append(ModelRequest([UserPromptPart("two")]))
    await conversations.save(fork)
    assert prompts(await conversations.load("d", scope="user-1")) == ["one", "two"]
    again = await conversations.fork("d", at=1, new_conversation_id="e")
    assert prompts(again) == ["one"]


async def test_a_fork_in_the_middle_of_a_tool_exchange_is_exact(
    conversations: HoldfastConversationStore,
) -> None:
    conversation = said("one")
    conversation.messages += [
        ModelResponse([ToolCallPart("ship", {"parcel": 1}, "call-1")]),
        ModelRequest([ToolReturnPart("ship", "shipped", "call-1")]),
    ]
    await conversations.save(conversation)
    fork = await conversations.fork("c", at=2)
    assert fork.messages == conversation.messages[:2]
    loaded = await conversations.load(fork.conversation_id)
    assert loaded is not None
    assert loaded.messages == conversation.messages[:2]


async def test_a_deleted_conversation_is_in_the_trash_and_its_id_is_free(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    first = said("one")
    await conversations.save(first)
    id = store.session("c").id
    await conversations.delete("c")
    assert await conversations.load("c") is None
    with pytest.raises(ConversationConflict):
        await conversations.save(first)
    await conversations.save(said("two"))
    assert prompts(await conversations.load("c")) == ["two"]
    await conversations.delete("c")
    store.restore(id)
    assert prompts(await conversations.load("c")) == ["one"]


async def test_a_store_of_one_scope_has_no_other_conversations(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    mine = HoldfastConversationStore(store, scope="user-1")
    await conversations.save(said("theirs", "a"), scope="user-2")
    await mine.save(said("mine", "b"))
    assert await mine.load("a") is None
    assert [r.conversation_id for r in await mine.list_conversations()] == ["b"]
    assert await mine.list_conversations(scope="user-2") == []
    assert (await conversations.list_conversations(scope="user-1"))[0].conversation_id == "b"
    with pytest.raises(ConversationConflict):
        await mine.save(said("taken", "a"))
    with pytest.raises(UserError, match="scope 'user-1', not of 'user-2'"):
        await mine.save(said("other", "d"), scope="user-2")
    await mine.delete("a")
    assert prompts(await conversations.load("a")) == ["theirs"]


async def test_a_store_of_one_scope_reads_no_entry_of_another(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    mine = HoldfastConversationStore(store, scope="user-1")
    (theirs,) = await conversations.save(said("theirs", "a"), scope="user-2")
    (own,) = await mine.save(said("mine", "b"))
    with pytest.raises(KeyError):
        await mine.read_entry(theirs.id)
    with pytest.raises(KeyError):
        await mine.read_history(theirs.id)
    assert await mine.read_entry(own.id) == await conversations.read_entry(own.id) == own


@pytest.mark.parametrize("state", [{"usage": "x"}, {"revision": 5}, {"branches": None}, 7])
async def test_a_state_that_a_stranger_made_up_hides_no_conversation(
    store: Store, conversations: HoldfastConversationStore, state: JSON
) -> None:
    await conversations.save(said("one", "a"))
    store.create(key="b", metadata={"pydantic_ai": state}, entries=[Message.user("two")])
    assert {r.conversation_id for r in await conversations.list_conversations()} == {"a", "b"}
    found = await conversations.load("b")
    assert prompts(found) == ["two"]
    found.messages.append(ModelRequest([UserPromptPart("three")]))
    await conversations.save(found)
    assert prompts(await conversations.load("b")) == ["two", "three"]


async def test_tenants_are_apart(path: Path) -> None:
    with holdfast.open(path, tenant="a") as a, holdfast.open(path, tenant="b") as b:
        await HoldfastConversationStore(a).save(said("of a"))
        assert await HoldfastConversationStore(b).load("c") is None
        await HoldfastConversationStore(b).save(said("of b"))
        assert prompts(await HoldfastConversationStore(a).load("c")) == ["of a"]


async def test_the_one_saved_last_is_listed_first_though_it_said_nothing_new(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    for id in ("a", "b", "c"):
        await conversations.save(said("one", id))
    again = await conversations.load("a")
    assert again is not None
    await conversations.save(again)
    store.create(key="sub", parent=store.session("a"), relation="delegate")
    listed = [r.conversation_id for r in await conversations.list_conversations()]
    assert listed == ["a", "c", "b"]
    assert len(await conversations.list_conversations(limit=2)) == 2


async def test_a_turn_that_is_open_blocks_branching_and_nothing_else(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    await conversations.save(said("one"))
    with store.session("c").turn() as turn:
        turn.user("two")
        held = await conversations.load("c")
        assert held is not None
        with pytest.raises(SessionBusy, match="open turn"):
            await conversations.branch("c", at=0, expected_revision=held.revision)
        held.messages.append(ModelRequest([UserPromptPart("three")]))
        await conversations.save(held)
    assert prompts(await conversations.load("c")) == ["one", "two", "three"]


async def test_ids_and_texts_are_compared_byte_by_byte(
    conversations: HoldfastConversationStore,
) -> None:
    ids = ["a/b", "a_b", "A", "a", "é", "e\u0301", "nul \0", "half \ud800", "k" * 4096]
    for id in ids:
        await conversations.save(said(f"of {id}", id))
    for id in ids:
        assert prompts(await conversations.load(id)) == [f"of {id}"]


@pytest.mark.parametrize("id", ["", "k" * 4097])
async def test_an_id_that_no_session_can_have_is_the_frameworks_error(
    id: str, conversations: HoldfastConversationStore
) -> None:
    with pytest.raises(UserError, match="must be 1 to 4096 bytes"):
        await conversations.save(said("one", id))


async def test_an_entry_after_one_that_is_gone_is_a_conflict(
    store: Store, conversations: HoldfastConversationStore
) -> None:
    await conversations.save(said("one"))
    record = await conversations.read_record("c")
    assert record is not None
    new = ConversationEntry(parent_id="nowhere", message=ModelRequest([UserPromptPart("two")]))
    record.head_id = new.id
    with pytest.raises(ConversationConflict):
        await conversations.write_record(
            record, new_entries=[new], expected_revision=record.revision
        )
    with pytest.raises(KeyError):
        await conversations.read_entry("nowhere")
    assert [m.text for m in store.session("c").messages()] == ["one"]


def test_without_the_package_the_import_names_the_extra() -> None:
    program = "import sys; sys.modules['pydantic_ai'] = None; import holdfast.adapters.pydantic_ai"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "pip install 'holdfast[pydantic-ai]'" in run.stderr
