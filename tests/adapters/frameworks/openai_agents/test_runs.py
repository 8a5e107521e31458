"""Runs of agents with a session in a store, and the wrappers of the SDK around it."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import agents
import pytest
from agents import Runner, SessionSettings, function_tool
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession, Session

import holdfast
from holdfast import Message, Store, ToolCall
from holdfast.adapters import openai_agents
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.errors import SessionBusy
from holdfast.testing import legality
from tests.adapters.frameworks.openai_agents.scripted import agent, call, reasoning, reply


@function_tool
def track(number: int) -> str:
    """Return where a parcel is."""
    return f"parcel {number} is in Oslo"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_it_is_a_session_of_the_sdk(session: HoldfastSession) -> None:
    assert isinstance(session, Session)


async def test_a_run_is_stored_and_the_next_one_continues_it(
    store: Store, session: HoldfastSession
) -> None:
    thought, calls = (
        reasoning("hm"),
        [call("track", '{"number": 7}'), call("track", '{"number":8}')],
    )
    first = agent([thought, *calls], [reply("Both in Oslo.")], tools=[track])
    assert (await Runner.run(first, "Where?", session=session)).final_output == "Both in Oslo."
    second = agent([reply("Yes.")])
    await Runner.run(second, "Sure?", session=HoldfastSession("support-42", store))
    types = [item.get("type", item.get("role")) for item in second.model.inputs[0]]
    pairs = ["function_call"] * 2 + ["function_call_output"] * 2
    assert types == ["user", "reasoning", *pairs, "message", "user"]
    assert len(await session.get_items()) == 9
    messages = store.session("support-42").messages()
    assert [m.text for m in messages if m.role == "assistant" and m.text] == [
        "Both in Oslo.",
        "Yes.",
    ]
    assert [m.tool_calls[0].name for m in messages[2:4]] == ["track", "track"]
    assert messages[4].text == "parcel 7 is in Oslo"
    for provider in legality.PROVIDERS:
        window = store.session("support-42").window(provider=provider)
        assert not legality.problems(provider, window.messages, window.system)
        assert window.messages


async def test_a_streamed_run_is_stored(session: HoldfastSession) -> None:
    result = Runner.run_streamed(
        agent([call("track", '{"number": 7}')], [reply("In Oslo.")], tools=[track]),
        "Where?",
        session=session,
    )
    assert [event async for event in result.stream_events()]
    assert [item.get("type") for item in await session.get_items()] == [
        None,
        "function_call",
        "function_call_output",
        "message",
    ]


def test_a_run_without_a_loop_is_stored(session: HoldfastSession) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    for number in range(2):
        Runner.run_sync(agent([reply(str(number))]), "hi", session=session)
    assert len(loop.run_until_complete(session.get_items())) == 4
    loop.close()


async def test_runs_at_once_lose_nothing(store: Store) -> None:
    runs = (
        Runner.run(
            agent([call("track", '{"number": 1}')], [reply(f"done {n}")], tools=[track]),
            f"go {n}",
            session=HoldfastSession("one", store),
        )
        for n in range(8)
    )
    await asyncio.gather(*runs)
    said = [message.text for message in store.session("one").messages()]
    for n in range(8):
        assert said.count(f"go {n}") == said.count(f"done {n}") == 1
        assert said.index(f"go {n}") < said.index(f"done {n}")
    assert len(said) == 8 * 4


async def test_a_call_that_a_crash_left_without_a_result_is_not_sent(
    store: Store, session: HoldfastSession
) -> None:
    own = store.session("support-42")
    own.append(Message.user("Where?"), Message.assistant(tool_calls=[ToolCall("call-1", "track")]))
    parcels = agent([reply("I do not know.")])
    await Runner.run(parcels, "And now?", session=session)
    assert parcels.model.inputs == [[user("Where?"), user("And now?")]]
    assert len(await session.get_items()) == 4


# ---------------------------------------------------------------------------- cancellation


class Gate:
    """Holds back, in its thread, who looks for a session, until it is opened."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        find = store.session

        def find_later(key: str, *, create: bool = True) -> holdfast.Session:
            self.reached.set()
            assert self.opened.wait(60)
            return find(key, create=create)

        monkeypatch.setattr(store, "session", find_later)


async def test_a_cancelled_add_has_ended_when_the_task_has(
    store: Store, session: HoldfastSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.add_items([user("before")])
    gate = Gate(store, monkeypatch)
    adding = asyncio.create_task(session.add_items([user("one"), user("two")]))
    await asyncio.to_thread(gate.reached.wait, 60)
    for _ in range(3):
        adding.cancel()
        await asyncio.sleep(0)
        assert not adding.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert await session.get_items() == [user("before"), user("one"), user("two")]


async def test_a_cancelled_pop_removes_one_item(
    store: Store, session: HoldfastSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.add_items([user("one"), user("two")])
    gate = Gate(store, monkeypatch)
    popping = asyncio.create_task(session.pop_item())
    await asyncio.to_thread(gate.reached.wait, 60)
    popping.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await popping
    assert await session.get_items() == [user("one")]


async def test_an_error_after_a_cancellation_is_its_cause(
    store: Store, session: HoldfastSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(store, monkeypatch)
    adding = asyncio.create_task(session.add_items([user("one")]))
    await asyncio.to_thread(gate.reached.wait, 60)
    adding.cancel()
    store.close()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await adding
    assert cancelled.value.__cause__ is not None


# ---------------------------------------------------------------------------- its wrappers


class Compactor:
    """Stands for the server: returns a summary; what others do in the meantime happens first."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.responses = self
        self.inputs: list[list[dict[str, Any]]] = []
        self._meanwhile = meanwhile

    async def compact(self, *, model: str, input: list[dict[str, Any]]) -> SimpleNamespace:
        """Return a summary of the input."""
        self.inputs.append(input)
        self._meanwhile()
        output = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VhbGVk"}]
        return SimpleNamespace(output=output, usage=None)


def compacting(
    session: HoldfastSession | EncryptedSession,
    client: Compactor,
    mode: Literal["input", "previous_response_id"] = "input",
) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession(
        "support-42",
        session,
        client=client,
        compaction_mode=mode,
        should_trigger_compaction=lambda _: True,
    )


SUMMARY = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VhbGVk"}


@pytest.mark.parametrize(
    ("version", "move"), [(agents.__version__, "replace"), ("0.23.1", "clear"), ("1.0.0", "clear")]
)
async def test_a_compacted_history_stays_on_its_branch_with_the_hooks_and_without(
    store: Store, monkeypatch: pytest.MonkeyPatch, version: str, move: str
) -> None:
    session = adapter_for(version, monkeypatch).HoldfastSession("support-42", store)
    wrapper = compacting(session, Compactor())
    await Runner.run(agent([reply("one")]), "first", session=wrapper)
    assert await session.get_items() == [SUMMARY]
    own = store.session("support-42")
    assert [message.text for message in own.messages(branch=1)] == ["first", "one"]
    assert [branch.reason for branch in own.branches()] == ["start", move]


def adapter_for(version: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the adapter as it is with this version of the SDK."""
    monkeypatch.setattr(agents, "__version__", version)
    spec = importlib.util.spec_from_file_location("adapter", openai_agents.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_compaction_drops_nothing_that_came_meanwhile(
    store: Store, session: HoldfastSession
) -> None:
    def another_process() -> None:
        store.session("support-42").append(Message.user("wait"))

    await Runner.run(
        agent([reply("one")]), "first", session=compacting(session, Compactor(another_process))
    )
    assert [item.get("content") for item in await session.get_items()][::2] == ["first", "wait"]


async def test_a_run_does_not_fail_because_a_turn_is_open_when_it_compacts(
    store: Store, session: HoldfastSession
) -> None:
    with store.session("support-42").turn():
        wrapper = compacting(session, Compactor())
        result = await Runner.run(agent([reply("one")]), "first", session=wrapper)
        assert result.final_output == "one"
        with pytest.raises(SessionBusy):
            await wrapper.run_compaction({"force": True})
    assert [item.get("role") for item in await session.get_items()] == ["user", "assistant"]


async def test_a_compaction_replaces_the_end_and_keeps_the_rest(
    store: Store, session: HoldfastSession
) -> None:
    own = store.session("support-42")
    own.append(*(Message.user(str(number)) for number in range(6)))
    client = Compactor()
    session.session_settings = SessionSettings(limit=2)
    await Runner.run(agent([reply("one")]), "first", session=compacting(session, client))
    assert [item.get("content") for item in client.inputs[0]][:3] == ["4", "5", "first"]
    kept = await session.get_items(limit=100)
    assert kept == [*(user(str(number)) for number in range(4)), SUMMARY]
    assert own.messages()[0].seq == own.messages(branch=1)[0].seq


async def test_a_chain_of_replies_that_is_not_all_read_is_not_compacted(
    session: HoldfastSession,
) -> None:
    await session.add_items([user(str(number)) for number in range(6)])
    session.session_settings = SessionSettings(limit=2)
    client = Compactor()
    wrapper = compacting(session, client, "previous_response_id")
    await Runner.run(agent([reply("one")]), "first", session=wrapper)
    assert client.inputs == []
    assert len(await session.get_items(limit=100)) == 8


async def test_a_forced_compaction_is_one_write(store: Store, session: HoldfastSession) -> None:
    await session.add_items([user("one"), user("two")])
    await compacting(session, Compactor()).run_compaction({"force": True})
    assert await session.get_items() == [SUMMARY]
    reasons = [branch.reason for branch in store.session("support-42").branches()]
    assert reasons == ["start", "replace"]


async def test_the_hooks_do_not_bypass_a_subclass(store: Store) -> None:
    class Shouting(HoldfastSession):
        async def add_items(self, items: list[Any]) -> None:
            await super().add_items([{**item, "shouted": True} for item in items])

    session = Shouting("support-42", store)
    await session.add_items([user("one")])
    for work in (
        compacting(session, Compactor()).run_compaction({"force": True}),
        Runner.run(agent([reply("one")]), "two", session=compacting(session, Compactor())),
    ):
        await work
        assert all(item["shouted"] for item in await session.get_items())


async def test_an_encrypted_session_is_read_with_its_key_only(
    store: Store, session: HoldfastSession
) -> None:
    encrypted = EncryptedSession("support-42", session, encryption_key="a" * 32)
    await Runner.run(agent([reply("In Oslo.")]), "Where is the parcel?", session=encrypted)
    items = await encrypted.get_items()
    assert items[0] == {**user("Where is the parcel?")}
    wrong = EncryptedSession("support-42", session, encryption_key="b" * 32)
    assert await wrong.get_items() == []
    own = store.session("support-42")
    assert [message.text for message in own.messages()] == ["", ""]
    assert not own.window(provider="openai").messages
    assert await encrypted.pop_item() == items[1]
    assert await encrypted.get_items() == items[:1]


async def test_expired_envelopes_leave_with_a_compaction(
    store: Store, session: HoldfastSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("cryptography.fernet.time.time", lambda: clock[0])
    monkeypatch.setattr("agents.extensions.memory.encrypt_session.time.time", lambda: clock[0])
    encrypted = EncryptedSession("support-42", session, encryption_key="a" * 32, ttl=10)
    await encrypted.add_items([user("old")] * 9)
    clock[0] += 11
    await Runner.run(agent([reply("one")]), "first", session=compacting(encrypted, Compactor()))
    assert await encrypted.get_items() == [SUMMARY]
    assert len(await session.get_items()) == 1
    assert len(store.session("support-42").messages(branch=1)) == 11


# ------------------------------------------------------------------------- without the SDK


def test_without_the_package_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['agents'] = None; import holdfast.adapters.openai_agents"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "ImportError" in ended.stderr
    assert "pip install 'holdfast[openai-agents]'" in ended.stderr
