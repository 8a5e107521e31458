"""What PraisonAI's adapter, bots and managed agents do, ours do on a store."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from praisonai.db import PraisonDB
from praisonai.integrations.db_session_adapter import (
    DbSessionAdapter as TheirAdapter,
)
from praisonai.integrations.managed_local import (
    LocalManagedAgent as TheirAgent,
)
from praisonai_bot.bots._session import (
    BotSessionManager as TheirManager,
)
from praisonaiagents.agent.protocols import ManagedBackendProtocol
from praisonaiagents.bots.agent_reply import AgentReply
from praisonaiagents.bots.presentation import MessagePresentation
from praisonaiagents.lite import LiteAgent
from praisonaiagents.session.store import DefaultSessionStore as TheirStore

from holdfast import Store
from holdfast.adapters.praisonai import (
    BotRunTimeout,
    BotSessionManager,
    DbSessionAdapter,
    LocalManagedAgent,
)

# -------------------------------------------------------------------------------- DbSessionAdapter


@pytest.fixture
def adapters(store: Store, tmp_path: Path) -> tuple[DbSessionAdapter, Any]:
    return DbSessionAdapter(store), TheirAdapter(PraisonDB(database_url=str(tmp_path / "p.db")))


def test_an_adapter_has_the_methods_of_theirs(adapters: tuple[Any, Any]) -> None:
    for name, theirs in inspect.getmembers(TheirAdapter, inspect.isfunction):
        if not name.startswith("_"):
            given = [*inspect.signature(getattr(DbSessionAdapter, name)).parameters]
            wanted = [*inspect.signature(theirs).parameters]
            assert given[: len(wanted)] == wanted, name


def test_an_adapter_returns_what_theirs_does(adapters: tuple[Any, Any]) -> None:
    found = []
    for one in adapters:
        seen = [one.session_exists("s"), one.get_session("s"), one.get_metadata("s")]
        seen += [one.add_message("s", "user", "one"), one.add_message("s", "assistant", "two")]
        seen += [one.add_message("s", "user", "three", {"lang": "en"}), one.session_exists("s")]
        seen += [one.get_chat_history("s"), one.get_chat_history("s", 2)]
        seen += [one.set_metadata("s", {"a": 1}), one.get_metadata("s")]
        one.update_session_metadata("s", b=[2], a=None)
        seen += [one.get_metadata("s"), one.get_session("s").metadata]
        seen += [one.clear_session("s"), one.get_chat_history("s"), one.get_metadata("s")]
        seen += [one.delete_session("s"), one.session_exists("s"), one.get_session("s")]
        found.append(seen)
    assert found[0] == found[1]


def test_a_result_of_a_tool_without_its_call(adapters: tuple[Any, Any]) -> None:
    for one in adapters:
        assert one.add_message("s", "tool", "2", {"tool_name": "add", "args": {"a": 1}})
        assert one.get_chat_history("s") == [{"role": "tool", "content": "2"}]


# ------------------------------------------------------------------------------- BotSessionManager


@pytest.fixture
def bots(store: Store, tmp_path: Path) -> tuple[BotSessionManager, Any]:
    theirs = TheirManager(store=TheirStore(str(tmp_path / "bots")), platform="telegram")
    return BotSessionManager(store, platform="telegram"), theirs


def test_a_bot_manager_has_the_signatures_of_theirs() -> None:
    for name in ("reset", "reset_all", "reap_stale", "record_passive", "export_history"):
        ours = inspect.signature(getattr(BotSessionManager, name))
        assert [*ours.parameters] == [*inspect.signature(getattr(TheirManager, name)).parameters]
    chats = [[*inspect.signature(one.chat).parameters] for one in (BotSessionManager, TheirManager)]
    assert chats[0][: len(chats[1])] == chats[1]


async def test_bots_answer_as_theirs(bots: tuple[Any, Any], scripted: Callable[[], Any]) -> None:
    found = []
    for one in bots:
        agent = scripted()
        seen = [await one.chat(agent, "u1", "hello"), await one.chat(agent, "u2", "and I")]
        seen += [await one.chat(agent, "u1", "again"), agent.chat_history, agent.asked_with]
        seen += [one.active_sessions, sorted(one.get_user_ids())]
        seen += [one.export_history("u1"), one.export_history("nobody")]
        seen += [one.record_passive("u2", "overheard", "Ann"), one.record_passive("u2", "")]
        seen += [await one.chat(agent, "u2", "well?"), one.export_history("u2")]
        seen += [one.reset("u1"), one.export_history("u1")]
        one.seed_history("u3", [{"role": "user", "content": "from elsewhere"}])
        seen += [one.export_history("u3"), one.cancel_run("u1"), one.get_active_runs()]
        seen += [one.pop_last_presentation("u1"), one.reap_stale(0), one.reap_stale(3600)]
        one.reset_all()
        seen += [one.export_history("u2"), one.active_sessions]
        found.append(seen)
    for ours, theirs in zip(*found, strict=True):
        assert ours == theirs


async def test_the_keys_of_sessions_are_theirs(store: Store, tmp_path: Path) -> None:
    class Resolver:
        def resolve(self, platform: str, user_id: str) -> str:
            return f"person-{user_id}"

    for options in (
        {},
        {"platform": "slack"},
        {"platform": "slack", "identity_resolver": Resolver()},
        {"platform": "slack", "session_scope": "per_chat"},
    ):
        ours, theirs = BotSessionManager(store, **options), TheirManager(**options)
        for route in ({}, {"chat_id": "C1", "thread_id": "7"}, {"chat_id": "C1", "account": "a"}):
            key = theirs._session_key("u", chat_type="group", **route)  # noqa: SLF001 - compared
            ours.record_passive("u", "hello", chat_type="group", **route)
            assert store.session(key, create=False).messages()[0].text == "hello"
            ours.reset("u", chat_type="group", **route)


async def test_an_interactive_reply_is_kept_for_the_channel(
    bots: tuple[Any, Any], scripted: Callable[..., Any]
) -> None:
    shown = MessagePresentation.question("Which?", ["a", "b"])

    class Agent(type(scripted())):  # type: ignore[misc]
        def chat(self, prompt: str) -> AgentReply:
            return AgentReply(text="Which one?", presentation=shown)

    for one in bots:
        assert await one.chat(Agent(), "u", "choose") == "Which one?"
        assert one.pop_last_presentation("u") is shown
        assert one.pop_last_presentation("u") is None


async def test_an_interactive_reply_in_a_chat_of_several_is_for_its_user(
    store: Store, scripted: Callable[..., Any]
) -> None:
    shown = MessagePresentation.question("Which?", ["a", "b"])

    class Agent(type(scripted())):  # type: ignore[misc]
        def chat(self, prompt: str) -> AgentReply:
            return AgentReply(text=prompt, presentation=shown)

    one = BotSessionManager(store, platform="slack", session_scope="per_chat")
    where: dict[str, Any] = {"chat_id": "C1", "user_name": "Ann\nLee"}
    assert await one.chat(Agent(), "u", "choose", chat_type="group", **where) == "[Ann Lee] choose"
    assert one.pop_last_presentation("u") is shown
    assert await one.chat(Agent(), "u", "choose", chat_type="direct", **where) == "choose"


async def test_tools_are_those_of_the_policy_for_one_run(
    bots: tuple[Any, Any], scripted: Callable[[], Any]
) -> None:
    class Policy:
        def filter_tools(self, tools: list[str]) -> list[str]:
            return [tool for tool in tools if tool != "delete"]

    for one in bots:
        agent = scripted()
        await one.chat(agent, "u", "look", tool_policy=Policy())
        await one.chat(agent, "u", "look")
        assert agent.tools_seen == [["look"], ["look", "delete"]]


async def test_the_events_of_an_agent_reach_the_callback(
    bots: tuple[Any, Any], scripted: Callable[..., Any]
) -> None:
    class Emitter:
        def __init__(self) -> None:
            self.callbacks: list[Callable[[object], object]] = []
            self.add_callback = self.callbacks.append
            self.remove_callback = self.callbacks.remove

    class Agent(type(scripted())):  # type: ignore[misc]
        stream_emitter = Emitter()

        def chat(self, prompt: str) -> str:
            for callback in self.stream_emitter.callbacks:
                callback("token")
            return "done"

    seen: asyncio.Queue[object] = asyncio.Queue()
    for callback in (seen.put_nowait, seen.put):
        assert await bots[0].chat(Agent(), "u", "go", stream_callback=callback) == "done"
        assert await asyncio.wait_for(seen.get(), 60) == "token"
    assert Agent.stream_emitter.callbacks == []


async def test_a_run_that_takes_too_long_is_named_so_and_the_question_is_stored(
    store: Store, scripted: Callable[..., Any]
) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def never(prompt: str) -> Iterator[str]:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        yield "late"

    one = BotSessionManager(store, run_timeout=0.05)
    with pytest.raises(BotRunTimeout):
        await one.chat(scripted(never), "u", "hello")
    release.set()
    assert one.export_history("u") == [{"role": "user", "content": "hello"}]
    assert [turn.state for turn in store.session("bot_u").turns()] == ["failed"]


async def test_a_light_agent_of_praisonai_answers(store: Store) -> None:
    agent = LiteAgent(llm_fn=lambda messages: f"I was sent {len(messages)}.")
    one = BotSessionManager(store)
    assert await one.chat(agent, "u", "one") == "I was sent 2."
    assert await one.chat(agent, "u", "two") == "I was sent 4."
    managed = LocalManagedAgent(store, agent)
    assert await managed.execute("one") == "I was sent 2."


# ------------------------------------------------------------------------------- LocalManagedAgent


@pytest.fixture
def managed(
    store: Store, tmp_path: Path, scripted: Callable[[], Any]
) -> tuple[LocalManagedAgent, Any]:
    theirs = TheirAgent(session_store=TheirStore(str(tmp_path / "managed")))
    theirs._inner_agent = scripted()  # noqa: SLF001 - theirs makes one of its own, for the network
    return LocalManagedAgent(store, scripted()), theirs


def test_a_managed_agent_is_what_agents_delegate_to(managed: tuple[Any, Any]) -> None:
    assert isinstance(managed[0], ManagedBackendProtocol)


async def test_managed_agents_answer_as_theirs(managed: tuple[Any, Any]) -> None:
    found = []
    for one in managed:
        seen = [one.retrieve_session(), one.list_sessions(), one.session_id]
        seen += [await one.execute("one"), [chunk async for chunk in one.stream("two")]]
        shown = one.retrieve_session()
        assert shown.pop("id") == one.session_id == one.managed_session_id
        shown.pop("title")
        seen += [shown, one.total_input_tokens, one.total_output_tokens]
        first = one.session_id
        one.reset_session()
        seen += [one.session_id, await one.execute("three")]
        listed = one.list_sessions()
        assert [item.pop("id") for item in listed] == [first, one.session_id]
        assert {type(item.pop("created_at")) for item in listed} == {float}
        seen += [listed, len(one.list_sessions(limit=1))]
        ids = one.save_ids()
        assert ids.keys() == {"agent_id", "agent_version", "environment_id", "session_id"}
        one.resume_session(first)
        seen.append(await one.execute("four"))
        one.reset_all()
        seen += [one.save_ids()]
        one.restore_ids(ids)
        assert one.save_ids() == ids
        found.append(seen)
    for ours, theirs in zip(*found, strict=True):
        assert ours == theirs


async def test_a_resumed_session_has_its_configuration(
    store: Store, scripted: Callable[[], Any]
) -> None:
    one = LocalManagedAgent(store, scripted, config={"model": "small-1", "system": "Be brief."})
    await one.execute("one")
    ids = one.save_ids()
    again = LocalManagedAgent(store, scripted)
    again.resume_session(ids["session_id"])
    assert again.save_ids() == ids
    assert await again.execute("two") == "2: two!"
    session = store.session(ids["session_id"])
    assert [turn.model for turn in session.turns()] == ["small-1", "small-1"]
    again.update_agent(system="Be kind.")
    assert again.agent_version == 2
    assert LocalManagedAgent(store, scripted).list_sessions() == again.list_sessions()
