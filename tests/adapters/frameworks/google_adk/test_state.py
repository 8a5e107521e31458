"""State is stored with its event, in one write, and nothing of it is lost to another writer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import EventActions
from google.adk.sessions import Session

import holdfast
from holdfast import Record, Store, errors
from holdfast.adapters.google_adk import HoldfastSessionService
from tests.adapters.frameworks.google_adk.events import KEY, ONE, START, noted, said


async def _loaded(service: HoldfastSessionService) -> Session:
    found = await service.get_session(**ONE)
    assert found is not None
    return found


async def test_temporary_state_is_nowhere_in_the_store(
    store: Store, service: HoldfastSessionService
) -> None:
    session = await service.create_session(**ONE, state={"temp:a": "swordfish"})
    changes = EventActions(state_delta={"temp:b": "swordfish", "kept": 1})
    await service.append_event(session, said("one", actions=changes))
    changes = EventActions(state_delta={"temp:b": "swordfish"})
    await service.append_event(session, noted(actions=changes))
    assert session.state == {"temp:b": "swordfish", "kept": 1}
    stored = store.session(KEY, create=False)
    assert "swordfish" not in f"{stored.messages()} {stored.records()}"
    assert (await _loaded(service)).state == {"kept": 1}


async def test_an_event_that_is_refused_changes_no_state(service: HoldfastSessionService) -> None:
    session = await service.create_session(**ONE)
    changes = {"app:a": 1, "user:u": 1, "s": 1, "temp:t": 1}
    first = said("one", id="e1", actions=EventActions(state_delta=changes))
    await service.append_event(session, first)
    changes = {"app:a": 2, "user:u": 2, "s": 2, "temp:t": 2}
    other = said("two", id="e1", actions=EventActions(state_delta=changes))
    with pytest.raises(AlreadyExistsError):
        await service.append_event(session, other)
    assert session.state == {"app:a": 1, "user:u": 1, "s": 1, "temp:t": 1}
    assert (await _loaded(service)).state == {"app:a": 1, "user:u": 1, "s": 1}


async def test_a_retry_does_not_undo_what_was_changed_since(
    service: HoldfastSessionService,
) -> None:
    session = await service.create_session(**ONE)
    changes = {"app:a": 1, "user:u": 1, "s": 1}
    first = said("one", timestamp=START, actions=EventActions(state_delta=changes))
    await service.append_event(session, first)
    changes = {"app:a": 2, "user:u": 2, "s": 2}
    later = await _loaded(service)
    await service.append_event(later, said("two", actions=EventActions(state_delta=changes)))
    await service.append_event(session, first)
    found = await _loaded(service)
    assert (len(found.events), found.state) == (2, changes)


async def test_a_long_sessions_state_is_read_from_a_few_records(
    store: Store, service: HoldfastSessionService
) -> None:
    """Now and then a record holds the whole state; the sum is the same wherever reading ends."""
    session = await service.create_session(**ONE, state={"first": "kept"})
    expected: dict[str, Any] = {"first": "kept"}
    for number in range(300):
        change = {f"k{number % 9}": number, "n": number}
        expected |= change
        event = noted(id=f"e{number}", actions=EventActions(state_delta=change))
        await service.append_event(session, event)
    assert (await _loaded(service)).state == session.state == expected
    records = store.session(KEY, create=False).records("google_adk.state")
    data: list[Any] = [record.data for record in records]
    whole = [one["values"] for one in data if one["whole"]]
    assert len(whole) > 4
    assert whole[-1]["first"] == "kept"


async def test_state_without_any_whole_record_is_read_to_its_beginning(
    store: Store, service: HoldfastSessionService
) -> None:
    await service.create_session(**ONE)
    session = store.session(KEY, create=False)
    for number in range(150):
        data: Any = {"values": {f"k{number}": number}, "whole": False}
        session.append(Record("google_adk.state", data=data))
    assert (await _loaded(service)).state == {f"k{number}": number for number in range(150)}


async def test_many_tasks_change_the_state_of_an_app(service: HoldfastSessionService) -> None:
    """Each sets its own key: a state that is read and written without comparing loses some."""

    async def change(number: int) -> None:
        name = f"session-{number}"
        who = {"app_name": "desk", "user_id": f"user-{number % 3}"}
        created = {f"app:c{number}": number}
        session = await service.create_session(**who, session_id=name, state=created)
        changed = {f"app:k{number}": number, f"user:k{number}": number}
        event = noted(actions=EventActions(state_delta=changed))
        await service.append_event(session, event)

    await asyncio.gather(*(change(number) for number in range(30)))
    found = await service.create_session(app_name="desk", user_id="user-1")
    assert found.state == {
        **{f"app:c{number}": number for number in range(30)},
        **{f"app:k{number}": number for number in range(30)},
        **{f"user:k{number}": number for number in range(30) if number % 3 == 1},
    }


async def test_a_cancelled_append_is_whole_or_not_there(service: HoldfastSessionService) -> None:
    session = await service.create_session(**ONE)
    for number in range(40):
        changes = EventActions(state_delta={f"k{number}": 1, f"app:k{number}": 1})
        event = said(str(number), id=f"e{number}", actions=changes)
        task = asyncio.create_task(service.append_event(session, event))
        for _ in range(number % 20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if number % 2:
            await service.append_event(session, event)
    found = await _loaded(service)
    stored = {event.id.removeprefix("e") for event in found.events}
    assert stored >= {str(number) for number in range(1, 40, 2)}
    assert len(found.events) == len(stored)
    assert set(found.state) == {f"{scope}k{one}" for one in stored for scope in ("", "app:")}


async def test_what_cannot_be_stored_is_not_in_the_session_object(
    store: Store, service: HoldfastSessionService, tmp_path: Path
) -> None:
    session = await service.create_session(**ONE)
    changes = EventActions(state_delta={"temp:t": 1, "s": 1})
    event = said("one", actions=changes)
    with holdfast.open(tmp_path / "agent.db", readonly=True) as readonly:
        with pytest.raises(errors.ReadOnly):
            await HoldfastSessionService(readonly).append_event(session, event)
    assert (session.events, session.state) == ([], {})
    await service.append_event(session, event)
    assert session.state == {"temp:t": 1, "s": 1}
