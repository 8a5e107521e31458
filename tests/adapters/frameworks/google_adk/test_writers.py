"""Several writers of one session lose nothing, with session objects that are long out of date."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import holdfast
from holdfast import Message, Record
from holdfast.adapters.google_adk import HoldfastSessionService
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply
from tests.adapters.frameworks.google_adk.events import ONE, START, noted, said

WRITER = Path(__file__).with_name("writer.py")


async def _loaded(service: BaseSessionService) -> Session:
    found = await service.get_session(**ONE)
    assert found is not None
    return found


def _compaction(start: float, end: float) -> Event:
    content = types.Content(role="model", parts=[types.Part(text="so far")])
    compaction = EventCompaction(
        start_timestamp=start, end_timestamp=end, compacted_content=content
    )
    return noted(timestamp=START + 90, actions=EventActions(compaction=compaction))


def _write_at_once(path: Path, names: str, count: int) -> None:
    """Run a process for each name, all from when the last one has read the session."""
    writers = [
        subprocess.Popen(
            [sys.executable, str(WRITER), str(path), name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for one in writers:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in writers:
        one.communicate()
    assert [one.returncode for one in writers] == [0] * len(names)


async def test_four_processes_lose_nothing(tmp_path: Path) -> None:
    path, names, count = tmp_path / "agent.db", "abcd", 25
    with holdfast.open(path, durability="process") as store:
        service = HoldfastSessionService(store)
        await service.create_session(**ONE)
        _write_at_once(path, names, count)
        found = await _loaded(service)
    ids = [event.id for event in found.events]
    for name in names:
        own = [id for id in ids if id.startswith(name)]
        assert own == [f"{name}-{number}" for number in range(count)]
    assert len(ids) == len(names) * count
    scopes = {"app:": 1, "user:": 2, "": 3}
    assert found.state == {scope + id: value for scope, value in scopes.items() for id in ids}


@pytest.mark.parametrize("name", ["sqlite", "database"])
async def test_a_second_writer_is_not_refused_as_by_adks_services(
    services: dict[str, BaseSessionService], name: str
) -> None:
    for service, refused in ((services[name], True), (services["holdfast"], False)):
        await service.create_session(**ONE)
        first, second = await _loaded(service), await _loaded(service)
        await service.append_event(first, said("one", id="e1", timestamp=START))
        event = said("two", id="e2", timestamp=START + 1)
        if refused:
            with pytest.raises(StaleSessionError):
                await service.append_event(second, event)
        else:
            await service.append_event(second, event)
            await service.append_event(first, said("three", id="e3", timestamp=START + 2))
            ids = [event.id for event in (await _loaded(service)).events]
            assert ids == ["e1", "e2", "e3"]


async def test_a_compaction_does_not_hide_what_its_writer_has_not_seen(
    service: HoldfastSessionService,
) -> None:
    """ADK leaves out of a prompt all that was said in the time that a compaction covers."""
    session = await service.create_session(**ONE)
    await service.append_event(session, said("one", timestamp=START))
    other = await _loaded(service)
    await service.append_event(session, said("two", timestamp=START + 2))
    await service.append_event(other, said("in between", timestamp=START + 1))
    with pytest.raises(StaleSessionError):
        await service.append_event(session, _compaction(START, START + 2))
    assert len((await _loaded(service)).events) == 3
    await service.append_event(session, _compaction(START, START))
    whole = await _loaded(service)
    await service.append_event(whole, _compaction(START, START + 2))
    assert len((await _loaded(service)).events) == 5


async def test_a_compaction_is_compared_with_what_is_stored_meanwhile(
    service: HoldfastSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await service.create_session(**ONE)
    await service.append_event(session, said("one", timestamp=START))
    read = holdfast.Session.messages

    def read_and_write(stored: holdfast.Session, **options: object) -> list[Message]:
        found = read(stored, **options)  # type: ignore[arg-type]
        monkeypatch.setattr(holdfast.Session, "messages", read)
        at = datetime.fromtimestamp(START, UTC)
        stored.append(Message.user("just now", created_at=at))
        return found

    monkeypatch.setattr(holdfast.Session, "messages", read_and_write)
    with pytest.raises(StaleSessionError):
        await service.append_event(session, _compaction(START, START))


@pytest.mark.parametrize("limit", [None, 3])
async def test_a_session_is_read_as_of_one_moment(
    service: HoldfastSessionService,
    store: holdfast.Store,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
) -> None:
    """Events that are stored while it is read are all there, or only the first of them."""
    session = await service.create_session(**ONE)
    for event in (said("a", id="e1"), noted(id="e2"), noted(id="e3")):
        await service.append_event(session, event)
    read = holdfast.Session.records

    def write_and_read(stored: holdfast.Session, kind: str, limit: int | None) -> list[Record]:
        monkeypatch.setattr(holdfast.Session, "records", read)
        writing = HoldfastSessionService(store)
        for event in (noted(id="e4"), said("b", id="e5"), noted(id="e6"), noted(id="e7")):
            asyncio.run(writing.append_event(session, event))
        return read(stored, kind, limit=limit)

    monkeypatch.setattr(holdfast.Session, "records", write_and_read)
    config = GetSessionConfig(num_recent_events=limit)
    found = await service.get_session(**ONE, config=config)
    assert found is not None
    ids = [event.id for event in found.events]
    assert ids == (["e1", "e2", "e3", "e4"] if limit is None else ["e5", "e6", "e7"])


async def test_a_session_that_is_rewound_while_it_is_read_is_read_again(
    service: HoldfastSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await service.create_session(**ONE)
    for event in (said("a", id="e1"), noted(id="e2"), said("b", id="e3"), noted(id="e4")):
        await service.append_event(session, event)
    read = holdfast.Session.records

    def rewind_and_read(stored: holdfast.Session, kind: str, limit: int | None) -> list[Record]:
        monkeypatch.setattr(holdfast.Session, "records", read)
        stored.rewind("e1")
        return read(stored, kind, limit=limit)

    monkeypatch.setattr(holdfast.Session, "records", rewind_and_read)
    assert [event.id for event in (await _loaded(service)).events] == ["e1", "e2"]


async def test_a_session_that_was_deleted_and_created_again_is_another(
    service: HoldfastSessionService,
) -> None:
    event = said("one", id="e1", actions=EventActions(state_delta={"app:n": 1}))
    session = await service.create_session(**ONE)
    await service.append_event(session, event)
    await service.delete_session(**ONE)
    again = await service.create_session(**ONE, state={"app:n": 2})
    await service.append_event(again, event)
    found = await _loaded(service)
    assert ([one.id for one in found.events], found.state) == (["e1"], {"app:n": 1})


async def test_the_half_reply_of_a_crashed_turn_comes_before_the_next_event(tmp_path: Path) -> None:
    key = "/".join([ONE["app_name"], ONE["user_id"], ONE["session_id"]])
    crash_in_a_reply(tmp_path / "agent.db", key)
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        service = HoldfastSessionService(store)
        await service.append_event(await _loaded(service), said("And now?"))
        assert [m.text for m in store.session(key).messages()] == [ASKED, HALF, "And now?"]
