"""What the SDK asks of every store of sessions."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from claude_agent_sdk import (
    delete_session_via_store,
    fork_session_via_store,
    get_session_info_from_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    rename_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance

import holdfast
from holdfast import Store
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore
from tests.adapters.frameworks.claude_agent_sdk.transcript import (
    AGENT,
    MAIN,
    PROJECT,
    SESSION,
    reply,
    said,
    text,
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_keeps_the_fourteen_contracts(tmp_path: Path, backend: str) -> None:
    numbers = itertools.count()
    opened: list[Store] = []

    def make() -> HoldfastSessionStore:
        path = tmp_path / f"{next(numbers)}.db"
        opened.append(holdfast.open(path, durability="process"))
        return HoldfastSessionStore(opened[-1])

    anyio.run(run_session_store_conformance, make, backend=backend)
    assert len(opened) >= 14
    for store in opened:
        store.close()


async def test_the_sdk_lists_renames_forks_and_deletes(
    store: Store, sessions: HoldfastSessionStore, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    project = project_key_for_directory(folder)
    first = said("Where is my parcel?")
    await sessions.append(
        {"project_key": project, "session_id": SESSION},
        [first, reply(text("On its way."), parentUuid=first["uuid"])],
    )
    await rename_session_via_store(sessions, SESSION, "Parcels", directory=folder)

    (listed,) = await list_sessions_from_store(sessions, directory=folder)
    assert (listed.session_id, listed.custom_title) == (SESSION, "Parcels")
    assert store.get(f"{project}/{SESSION}").info().title == "Parcels"

    fork = await fork_session_via_store(sessions, SESSION, directory=folder)
    copied = await get_session_messages_from_store(sessions, fork.session_id, directory=folder)
    assert [message.message["content"] for message in copied] == [
        "Where is my parcel?",
        [text("On its way.")],
    ]
    await delete_session_via_store(sessions, SESSION, directory=folder)
    assert await get_session_info_from_store(sessions, SESSION, directory=folder) is None
    assert await get_session_info_from_store(sessions, fork.session_id, directory=folder)


async def test_a_transcript_of_a_sub_agent_is_a_delegate_of_its_session(
    store: Store, sessions: HoldfastSessionStore, tmp_path: Path
) -> None:
    await sessions.append(MAIN, [said("Go.")])
    await sessions.append(AGENT, [said("Look.", isSidechain=True, agentId="a1")])

    main = store.get(f"{PROJECT}/{SESSION}")
    (child,) = main.children()
    assert child.relation == "delegate"
    assert [message.text for message in store.get(child.session_id).messages(hidden=False)] == [
        "Look."
    ]
    assert store.latest().id == main.id  # type: ignore[union-attr]


async def test_a_sub_agent_may_come_before_its_session(sessions: HoldfastSessionStore) -> None:
    await sessions.append(AGENT, [said("Look.")])

    assert await sessions.load(MAIN) is None
    assert await sessions.list_sessions(PROJECT) == []
    assert await sessions.list_session_summaries(PROJECT) == []
    assert await sessions.list_subkeys(MAIN) == [AGENT["subpath"]]

    first = said("Go.")
    await sessions.append(MAIN, [first])
    assert await sessions.load(MAIN) == [first]
    assert [one["session_id"] for one in await sessions.list_sessions(PROJECT)] == [SESSION]


async def test_the_sdk_finds_sub_agents(sessions: HoldfastSessionStore, tmp_path: Path) -> None:
    main = {"project_key": project_key_for_directory(str(tmp_path)), "session_id": SESSION}
    await sessions.append(main, [said("Go.")])
    await sessions.append({**main, "subpath": "subagents/agent-a1"}, [said("Look.")])

    assert await list_subagents_from_store(sessions, SESSION, directory=str(tmp_path)) == ["a1"]


async def test_an_empty_subpath_is_refused(sessions: HoldfastSessionStore) -> None:
    with pytest.raises(ValueError, match="subpath"):
        await sessions.append({**MAIN, "subpath": ""}, [said("Go.")])


async def test_more_sessions_than_a_page_are_listed(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    store.load((f"p/{number}", [holdfast.Message.user("x")]) for number in range(1100))
    found = await sessions.list_sessions("p")
    assert {one["session_id"] for one in found} == {str(number) for number in range(1100)}


async def test_a_session_with_an_enormous_summary_is_listed_by_its_entries(
    sessions: HoldfastSessionStore,
) -> None:
    long = {"type": "last-prompt", "lastPrompt": "x" * 2_000_000}
    await sessions.append(MAIN, [long, said("Go.")])
    await sessions.append(MAIN, [{"type": "last-prompt", "lastPrompt": "short"}])

    assert len(await sessions.load(MAIN) or []) == 3
    assert [one["session_id"] for one in await sessions.list_sessions(PROJECT)] == [SESSION]
    assert await sessions.list_session_summaries(PROJECT) == []


async def test_scope_is_that_of_new_sessions(store: Store) -> None:
    await HoldfastSessionStore(store, scope="parcels").append(MAIN, [said("Go.")])
    await HoldfastSessionStore(store, scope="parcels").append(AGENT, [said("Look.")])
    latest = store.latest(scope="parcels")
    assert latest is not None
    assert latest.info().cwd == "/home/ada/parcels"
    assert len(store.sessions(scope="parcels").items) == 2


def test_without_the_sdk_the_import_names_the_extra() -> None:
    name = "claude_agent_sdk"
    code = f"import sys; sys.modules[{name!r}] = None; import holdfast.adapters.{name}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError" in run.stderr
    assert "pip install 'holdfast[claude-agent-sdk]'" in run.stderr
