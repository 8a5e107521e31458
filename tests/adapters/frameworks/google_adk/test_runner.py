"""A runner keeps its conversations in a store: killed, resumed, rewound, with sub-agents."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.models import LlmRequest
from google.adk.sessions import BaseSessionService, Session
from google.genai import types

import holdfast
from holdfast import Message, Store
from holdfast.adapters.google_adk import HoldfastSessionService
from holdfast.testing.legality import PROVIDERS, problems
from tests.adapters.frameworks.google_adk.agent import (
    INSIDE,
    WHO,
    ScriptedModel,
    ask,
    runner_of,
    texts_of,
    weigh_then_tell,
)
from tests.adapters.frameworks.google_adk.events import KEY, ONE

AGENT = Path(__file__).with_name("agent.py")


async def _loaded(service: BaseSessionService) -> Session:
    found = await service.get_session(**ONE)
    assert found is not None
    return found


def _shown(events: list[Event]) -> list[Any]:
    """Return events without what is random in them."""
    names: dict[str, str] = {}
    shown = []
    for event in events:
        data = event.model_dump(mode="json", exclude_none=True, exclude={"id", "timestamp"})
        shown.append(_renamed(data, names))
    return shown


def _renamed(value: object, names: dict[str, str]) -> object:
    if isinstance(value, dict):
        return {key: _renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    if isinstance(value, str) and value.startswith(("e-", "adk-")):
        return names.setdefault(value, f"name {len(names)}")
    return value


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the store of a process that was killed inside a tool."""
    path = tmp_path / "killed.db"
    command = [sys.executable, str(AGENT), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == INSIDE + "\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return path


async def test_a_run_that_was_killed_inside_a_tool_is_resumed(killed: Path) -> None:
    with holdfast.open(killed) as store:
        service = HoldfastSessionService(store)
        before = await _loaded(service)
        assert [bool(event.get_function_calls()) for event in before.events] == [False, True]
        run = before.events[-1].invocation_id
        await ask(runner_of(service), None, invocation_id=run)
        after = await _loaded(service)
        assert _shown(after.events)[:2] == _shown(before.events)
        assert after.state == {"weighed": 1, "user:last": "the cat", "answer": "It weighs 2 kg."}
        messages = store.session(KEY, create=False).messages()
        assert [one.role for one in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[1].tool_calls[0].id == messages[2].tool_results[0].call_id
        assert {event.invocation_id for event in after.events} == {run}


async def test_a_run_that_was_killed_is_followed_by_another(killed: Path) -> None:
    """Its history is valid for every provider, and what was said is there once."""
    with holdfast.open(killed) as store:
        await ask(runner_of(HoldfastSessionService(store)), "the dog")
        session = store.session(KEY, create=False)
        texts = [one.text for one in session.messages(role=["user", "assistant"])]
        assert texts == ["the cat", "", "the dog", "", "It weighs 2 kg."]
        for provider in PROVIDERS:
            window = session.window(provider=provider)
            assert problems(provider, window.messages, window.system) == []
            sources = [id for ids in window.sources for id in ids]
            assert len(sources) == len(set(sources)) == 6
        assert session.info().usage.total == 13 * 3


async def test_a_runners_conversation_is_as_with_adks_services(
    services: dict[str, BaseSessionService],
) -> None:
    seen: dict[str, Any] = {}
    for name, service in services.items():
        runner = runner_of(service)
        for text in ("the cat", "the dog"):
            await ask(runner, text, state_delta={"app:scales": "new", "note": text})
        found = await _loaded(service)
        seen[name] = (_shown(found.events), found.state)
    assert seen["holdfast"] == seen["memory"] == seen["sqlite"] == seen["database"]
    assert seen["holdfast"][1]["weighed"] == 2


async def test_a_rewound_run_is_not_shown_to_the_model(
    services: dict[str, BaseSessionService],
) -> None:
    seen: dict[str, Any] = {}
    for name, service in services.items():
        requests: list[list[str]] = []

        def say(request: LlmRequest, kept: list[list[str]] = requests) -> types.Part:
            kept.append(texts_of(request))
            return weigh_then_tell(request)

        runner = runner_of(service, say)
        await ask(runner, "the cat")
        [event, *_] = await ask(runner, "the dog")
        await runner.rewind_async(**WHO, rewind_before_invocation_id=event.invocation_id)
        rewound = await _loaded(service)
        assert rewound.state["weighed"] == 1
        await ask(runner, "the hen")
        assert "the dog" not in requests[-1]
        assert requests[-1][:2] == ["the cat", "It weighs 2 kg."]
        found = await _loaded(service)
        seen[name] = (_shown(found.events), found.state, requests)
    assert seen["holdfast"] == seen["memory"] == seen["sqlite"] == seen["database"]


async def test_sub_agents_are_told_apart(store: Store, service: HoldfastSessionService) -> None:
    def transfer(request: LlmRequest) -> types.Part:
        return types.Part.from_function_call(
            name="transfer_to_agent", args={"agent_name": "helper"}
        )

    model = ScriptedModel(say=lambda request: types.Part(text="I am the helper."))
    helper = LlmAgent(name="helper", model=model)
    runner = runner_of(service, transfer, agents=(helper,))
    await ask(runner, "Who are you?")
    found = await _loaded(service)
    assert [event.author for event in found.events if event.content] == [
        "user",
        "root",
        "root",
        "helper",
    ]
    [said] = store.session(KEY, create=False).messages(role="assistant", limit=1)
    assert (said.name, said.text) == ("helper", "I am the helper.")
    helper = LlmAgent(name="helper", model=model)
    again = await ask(runner_of(service, transfer, agents=(helper,)), "Still?")
    assert [event.author for event in again if event.content] == ["helper"]


async def test_a_runner_goes_on_with_what_another_program_began(store: Store) -> None:
    service = HoldfastSessionService(store, agent="root")
    session = store.create(key=KEY)
    session.append_from(
        "openai",
        {"role": "user", "content": "My cat is called Tom."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "9 kg"},
        {"role": "assistant", "content": "Tom weighs 9 kg."},
    )
    requests: list[LlmRequest] = []

    def say(request: LlmRequest) -> types.Part:
        requests.append(request)
        return types.Part(text="Yes.")

    await ask(runner_of(service, say), "Is he heavy?")
    [request] = requests
    roles = [content.role for content in request.contents]
    assert roles == ["user", "model", "user", "model", "user"]
    assert request.contents[1].parts[0].function_call.name == "weigh"
    assert request.contents[2].parts[0].function_response.response == {"output": "9 kg"}
    session.append(Message.user("And from a chat: thanks."))
    texts = [one.text for one in session.messages(limit=3)]
    assert texts == ["Is he heavy?", "Yes.", "And from a chat: thanks."]
