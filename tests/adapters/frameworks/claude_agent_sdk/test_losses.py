"""What other stores of sessions lose or mix up, and this one does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

import holdfast
from holdfast import Message, Record, Store, Usage
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore
from holdfast.errors import BadMessage
from holdfast.values import SessionChanges
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply
from tests.adapters.frameworks.claude_agent_sdk.transcript import (
    AGENT,
    MAIN,
    PROJECT,
    SESSION,
    reply,
    said,
    text,
)

NAME: Final = f"{PROJECT}/{SESSION}"
ROOT: Final = Path(__file__).parents[4]

WRITER: Final = """
import asyncio, sys
import holdfast
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def main(sessions):
    key = {"project_key": "p", "session_id": "s"}
    for number in range(count):
        user = {"type": "user", "uuid": f"{name}-{number}", "lastPrompt": f"{name}-{number}",
                "message": {"role": "user", "content": f"{name} {number}"}}
        batch = [user, {"type": "mode", "mode": f"{name}-{number}"}]
        await sessions.append(key, batch)
        await sessions.append(key, batch)
        print(number, flush=True)

with holdfast.open(path, durability="process") as store:
    asyncio.run(main(HoldfastSessionStore(store)))
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


async def test_a_batch_that_is_sent_again_is_stored_once(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    batch = [
        {"type": "mode", "mode": "plan"},
        said("Go."),
        {"type": "mode", "mode": "plan"},
        reply(text("one")),
        reply(text("two")),
    ]
    for _ in range(3):
        await sessions.append(MAIN, batch)
    assert await sessions.load(MAIN) == batch

    await sessions.append(MAIN, [*batch[1:], said("More.")])
    found = await sessions.load(MAIN)
    assert found is not None
    assert [entry.get("uuid") for entry in found].count(batch[1]["uuid"]) == 1
    assert store.get(NAME).usage().usage == Usage(123, 7, cache_read=20, cache_write=100)


async def test_an_entry_whose_uuid_is_stored_is_left_out_and_the_others_are_stored(
    sessions: HoldfastSessionStore,
) -> None:
    first = said("Go.")
    await sessions.append(MAIN, [first])
    other, new = {**first, "gitBranch": "another"}, said("More.")
    record = {"type": "progress", "uuid": first["uuid"], "data": 1}
    await sessions.append(MAIN, [other, new])
    await sessions.append(MAIN, [record, {**record, "data": 2}])
    assert await sessions.load(MAIN) == [first, new, record]


async def test_equal_entries_without_an_id_are_as_many_as_were_sent(
    sessions: HoldfastSessionStore,
) -> None:
    mode = {"type": "mode", "mode": "plan"}
    await sessions.append(MAIN, [mode, mode])
    await sessions.append(MAIN, [mode])
    assert await sessions.load(MAIN) == [mode, mode, mode]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a/b", "c", None), ("a", "b/c", None)),
        (("a", "b", "c/d"), ("a", "b/c", "d")),
        (("a/b", "c", None), ("a%2Fb", "c", None)),
        (("a/b", "c", None), ("a_b", "c", None)),
        (("A", "b", None), ("a", "b", None)),
        (("a", "é", None), ("a", "e\u0301", None)),
        (("a", "b", "x"), ("a", "b", "X")),
        (("\ud800", "\x00", None), ("\udfff", "\x00", None)),
        (("a" * 4000, "b" * 50, "c"), ("a" * 4000, "b" * 51, "c")),
    ],
)
async def test_transcripts_with_similar_keys_are_apart(
    sessions: HoldfastSessionStore, one: tuple[str, str, str | None], other: tuple[str, str, None]
) -> None:
    keys = []
    for project, session, subpath in (one, other):
        key = {"project_key": project, "session_id": session}
        keys.append(key if subpath is None else {**key, "subpath": subpath})
    first, second = said("one"), said("other")
    await sessions.append(keys[0], [first])
    await sessions.append(keys[1], [second])

    assert await sessions.load(keys[0]) == [first]
    assert await sessions.load(keys[1]) == [second]
    for key in keys:
        if "subpath" not in key:
            listed = await sessions.list_sessions(key["project_key"])
            assert key["session_id"] in [session["session_id"] for session in listed]
    await sessions.delete(keys[0])
    assert await sessions.load(keys[1]) == [second]


async def test_a_key_that_is_too_long_is_refused(sessions: HoldfastSessionStore) -> None:
    with pytest.raises(BadMessage, match="4096"):
        await sessions.append({"project_key": "a" * 4096, "session_id": "b"}, [said("Go.")])


async def test_any_text_comes_back(sessions: HoldfastSessionStore) -> None:
    entry = said("\ud800 \x00 \u2028 é e\u0301 \U0001f4e6", cwd="\x00", gitBranch="\udfff")
    await sessions.append(MAIN, [entry, {"type": "\ud800" * 5000, "uuid": ""}])
    assert await sessions.load(MAIN) == [entry, {"type": "\ud800" * 5000, "uuid": ""}]


async def test_an_entry_that_is_not_json_is_refused_and_nothing_of_its_batch_is_stored(
    sessions: HoldfastSessionStore,
) -> None:
    for value in (float("nan"), b"bytes", {1: 2}):
        with pytest.raises(BadMessage):
            await sessions.append(MAIN, [said("Go."), {"type": "x", "value": value}])
    assert await sessions.load(MAIN) is None


async def test_a_deleted_session_is_in_the_trash_with_its_sub_agents(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    first = said("Go.")
    await sessions.append(MAIN, [first])
    await sessions.append(AGENT, [said("Look.")])
    await sessions.delete(MAIN)
    await sessions.delete(MAIN)
    assert await sessions.load(MAIN) is None
    assert await sessions.load(AGENT) is None

    trashed = [info.id for info in store.sessions(trashed=True)]
    assert len(trashed) == 2
    for id in trashed:
        store.restore(id)
    assert await sessions.load(MAIN) == [first]
    assert await sessions.list_subkeys(MAIN) == [AGENT["subpath"]]


async def test_entries_are_stored_while_another_program_has_a_turn_open(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    await sessions.append(MAIN, [said("Go.")])
    with store.get(NAME).turn() as turn:
        turn.assistant("one")
        await sessions.append(MAIN, [said("More.")])
        turn.assistant("two")
    texts = [message.text for message in store.get(NAME).messages()]
    assert texts == ["Go.", "one", "More.", "two"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_append_is_stored_whole(
    store: Store, sessions: HoldfastSessionStore, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    session_of = store.session

    def slow(*given: Any, **fields: Any) -> Any:  # noqa: ANN401 - whatever `session` takes
        begun.set()
        assert go_on.wait(60)
        return session_of(*given, **fields)

    batch = [said("one"), {"type": "mode", "mode": "plan"}, said("two")]

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(sessions.append, MAIN, batch)
            assert await anyio.to_thread.run_sync(begun.wait, 60)
            group.cancel_scope.cancel()
            go_on.set()
        assert await sessions.load(MAIN) == batch

    monkeypatch.setattr(store, "session", slow)
    anyio.run(main, backend=backend)


def test_four_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    writers = [start_writer(path, name, 12) for name in "abcd"]
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0

    with holdfast.open(path) as store:
        found = asyncio.run(
            HoldfastSessionStore(store).load({"project_key": "p", "session_id": "s"})
        )
        summaries = asyncio.run(HoldfastSessionStore(store).list_session_summaries("p"))
    assert found is not None
    for name in "abcd":
        own = [entry for entry in found if json.dumps(entry).count(f'"{name}-')]
        assert [entry["type"] for entry in own] == ["user", "mode"] * 12
        ids = [entry["uuid"] for entry in own if "uuid" in entry]
        assert ids == [f"{name}-{number}" for number in range(12)]
    last = next(entry["uuid"] for entry in reversed(found) if entry["type"] == "user")
    assert summaries[0]["data"]["last_prompt"] == last


def test_what_was_appended_before_a_kill_is_there(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    writer = start_writer(path, "a", 100_000)
    assert writer.stdout is not None
    said_so = [int(writer.stdout.readline()) for _ in range(5)]
    writer.send_signal(signal.SIGKILL)
    said_so += [int(number) for number in writer.stdout.read().splitlines()]
    writer.wait()
    writer.stdout.close()

    with holdfast.open(path) as store:
        found = asyncio.run(
            HoldfastSessionStore(store).load({"project_key": "p", "session_id": "s"})
        )
    assert found is not None
    users = [entry["uuid"] for entry in found if entry["type"] == "user"]
    assert users[: len(said_so)] == [f"a-{number}" for number in said_so]
    assert [entry["type"] for entry in found] == ["user", "mode"] * len(users)


async def test_a_damaged_message_is_reported_and_the_others_come_back(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    entries = [said("one"), said("a text to be damaged"), said("three")]
    with holdfast.open(path, durability="process") as store:
        await HoldfastSessionStore(store).append(MAIN, entries)
    data = path.read_bytes()
    assert data.count(b"a text to be damaged") == 1
    path.write_bytes(data.replace(b"a text to be damaged", b"a text that is damaged"[:20]))

    with holdfast.open(path, durability="process") as store:
        found = await HoldfastSessionStore(store).load(MAIN)
        assert store.damage
    assert found is not None
    assert [entry["uuid"] for entry in found] == [entry["uuid"] for entry in entries]
    assert found[1]["message"]["content"] == [text("[damaged]")]
    assert [found[0], found[2]] == [entries[0], entries[2]]


async def test_tenants_are_apart(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agent.db", tenant="one") as one:
        await HoldfastSessionStore(one).append(MAIN, [said("Go.")])
    with holdfast.open(tmp_path / "agent.db", tenant="other") as other:
        assert await HoldfastSessionStore(other).load(MAIN) is None
        assert await HoldfastSessionStore(other).list_sessions(PROJECT) == []


async def test_a_message_of_another_program_between_two_batches_keeps_its_place(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    first, last = said("one"), said("three")
    await sessions.append(MAIN, [first])
    store.get(NAME).append(Message.assistant("two"))
    await sessions.append(MAIN, [first, last])
    found = await sessions.load(MAIN)
    assert found is not None
    assert [found[0], found[2]] == [first, last]
    assert found[1]["message"]["content"] == [text("two")]


async def test_a_batch_that_now_says_something_else_is_not_stored_entry_by_entry(
    sessions: HoldfastSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [said(f"Step {number}.") for number in range(50)]
    await sessions.append(MAIN, batch)
    attempts = []
    append = holdfast.Session.append

    def counted(
        session: holdfast.Session,
        *entries: Message | Record,
        expect: holdfast.Head | None = None,
        update: SessionChanges | None = None,
    ) -> holdfast.Head:
        attempts.append(len(entries))
        return append(session, *entries, expect=expect, update=update)

    monkeypatch.setattr(holdfast.Session, "append", counted)
    new = said("More.")
    await sessions.append(MAIN, [*({**entry, "version": "2"} for entry in batch), new])
    assert await sessions.load(MAIN) == [*batch, new]
    assert attempts == [51, 1]


async def test_half_of_a_reply_that_a_crash_cut_off_stays_before_what_is_appended(
    store: Store, sessions: HoldfastSessionStore, tmp_path: Path
) -> None:
    crash_in_a_reply(tmp_path / "agent.db", NAME)
    found = await sessions.load(MAIN)
    assert found is not None
    assert [entry["message"]["role"] for entry in found] == ["user", "assistant"]
    crash_in_a_reply(tmp_path / "agent.db", NAME)
    await sessions.append(MAIN, [said("And?")])
    store.get(NAME).recover()
    texts = [message.text for message in store.get(NAME).messages()]
    assert texts == [ASKED, HALF, ASKED, HALF, "And?"]
