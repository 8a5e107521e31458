"""What ADK's interface of session services promises, asked of this service and of ADK's own."""

from __future__ import annotations

from typing import Any, Final

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import EventActions
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig

from tests.adapters.frameworks.google_adk.events import ONE, START, noted, said

APP: Final[dict[str, Any]] = {"app_name": "desk", "user_id": "ada"}


async def _reloaded(service: BaseSessionService, **config: float) -> Session:
    found = await service.get_session(**ONE, config=GetSessionConfig(**config))
    assert found is not None
    return found


async def _of_five(service: BaseSessionService) -> Session:
    session = await service.create_session(**ONE)
    for number in range(5):
        event = said(str(number), id=f"event-{number}", timestamp=START + number)
        await service.append_event(session, event)
    return session


def _ids(session: Session) -> list[str]:
    return [event.id for event in session.events]


async def test_a_session_is_created_with_a_generated_id(any_service: BaseSessionService) -> None:
    made = await any_service.create_session(**APP)
    assert made.id
    assert (made.app_name, made.user_id, made.events, made.state) == ("desk", "ada", [], {})
    assert made.last_update_time > 0
    again = await any_service.get_session(**APP, session_id=made.id)
    assert again == made


async def test_an_id_is_taken_once(any_service: BaseSessionService) -> None:
    await any_service.create_session(**ONE, state={"kept": 1})
    with pytest.raises(AlreadyExistsError):
        await any_service.create_session(**ONE, state={"kept": 2})
    assert (await _reloaded(any_service)).state == {"kept": 1}


async def test_a_refused_creation_changes_no_state(any_service: BaseSessionService) -> None:
    await any_service.create_session(**ONE, state={"app:a": 1, "user:u": 1})
    with pytest.raises(AlreadyExistsError):
        await any_service.create_session(**ONE, state={"app:a": 2, "user:u": 2})
    assert (await _reloaded(any_service)).state == {"app:a": 1, "user:u": 1}


async def test_what_is_not_there_is_none(any_service: BaseSessionService) -> None:
    assert await any_service.get_session(**ONE) is None
    await any_service.delete_session(**ONE)
    assert (await any_service.list_sessions(app_name="desk")).sessions == []
    assert await any_service.get_user_state(**APP) == {}


async def test_an_event_for_a_deleted_session_is_refused(any_service: BaseSessionService) -> None:
    session = await any_service.create_session(**ONE)
    await any_service.delete_session(**ONE)
    with pytest.raises(SessionNotFoundError):
        await any_service.append_event(session, said("hello"))
    assert session.events == []


async def test_state_goes_where_its_prefix_says(any_service: BaseSessionService) -> None:
    state = {"app:theme": "dark", "user:name": "Ada", "cart": [1], "temp:token": "secret"}
    made = await any_service.create_session(**ONE, state=state)
    stored = {"app:theme": "dark", "user:name": "Ada", "cart": [1]}
    assert made.state == stored
    other = await any_service.create_session(app_name="desk", user_id="bob")
    assert other.state == {"app:theme": "dark"}
    elsewhere = await any_service.create_session(app_name="shop", user_id="ada")
    assert elsewhere.state == {}
    assert await any_service.get_user_state(**APP) == {"name": "Ada"}


async def test_an_event_changes_the_state(any_service: BaseSessionService) -> None:
    session = await any_service.create_session(**ONE, state={"cart": [1], "kept": {"a": 1}})
    delta = {"app:n": 1, "user:n": 2, "cart": None, "new": {"x": 1}, "temp:t": 3}
    event = await any_service.append_event(
        session, said("hi", actions=EventActions(state_delta=delta))
    )
    assert session.state["temp:t"] == 3
    assert "temp:t" not in event.actions.state_delta
    reloaded = await _reloaded(any_service)
    assert reloaded.state == {
        "app:n": 1,
        "user:n": 2,
        "cart": None,
        "new": {"x": 1},
        "kept": {"a": 1},
    }
    assert reloaded.events[0].actions.state_delta == event.actions.state_delta


async def test_a_nested_value_is_replaced_not_merged(any_service: BaseSessionService) -> None:
    session = await any_service.create_session(**ONE, state={"app:d": {"a": 1}, "d": {"a": 1}})
    delta = {"app:d": {"b": 2}, "d": {"b": 2}}
    await any_service.append_event(session, noted(actions=EventActions(state_delta=delta)))
    assert (await _reloaded(any_service)).state == {"app:d": {"b": 2}, "d": {"b": 2}}


async def test_a_partial_event_is_not_stored(any_service: BaseSessionService) -> None:
    session = await any_service.create_session(**ONE)
    delta = EventActions(state_delta={"a": 1})
    event = said("hel", "bot", partial=True, actions=delta)
    assert await any_service.append_event(session, event) is event
    assert session.events == []
    reloaded = await _reloaded(any_service)
    assert (reloaded.events, reloaded.state) == ([], {})


async def test_the_session_object_follows_its_events(any_service: BaseSessionService) -> None:
    session = await _of_five(any_service)
    assert session == await _reloaded(any_service)
    assert session.last_update_time == START + 4


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_recent_events": 2}, ["event-3", "event-4"]),
        ({"num_recent_events": 9}, [f"event-{number}" for number in range(5)]),
        ({"num_recent_events": 0}, []),
        ({"after_timestamp": START + 3}, ["event-3", "event-4"]),
        ({"after_timestamp": START + 99}, []),
        ({"after_timestamp": 0.0}, [f"event-{number}" for number in range(5)]),
        ({"after_timestamp": START + 1, "num_recent_events": 3}, ["event-2", "event-3", "event-4"]),
    ],
)
async def test_as_many_events_are_read_as_asked_for(
    any_service: BaseSessionService, config: dict[str, float], expected: list[str]
) -> None:
    session = await _of_five(any_service)
    await any_service.append_event(
        session, noted(id="quiet", timestamp=START + 4, actions=EventActions(state_delta={"a": 1}))
    )
    await any_service.delete_session(**ONE)
    await _of_five(any_service)
    found = await _reloaded(any_service, **config)
    assert _ids(found) == expected
    assert found.last_update_time == START + 4


async def test_sessions_are_listed_without_events_the_newest_last(
    any_service: BaseSessionService,
) -> None:
    for number, (user, name) in enumerate([("ada", "one"), ("bob", "two"), ("ada", "three")]):
        session = await any_service.create_session(
            app_name="desk", user_id=user, session_id=name, state={"user:n": user, "s": name}
        )
        event = said("hello", timestamp=START - number)
        await any_service.append_event(session, event)
    await any_service.create_session(app_name="shop", user_id="ada")
    listed = (await any_service.list_sessions(app_name="desk")).sessions
    assert [one.id for one in listed] == ["three", "two", "one"]
    assert [one.user_id for one in listed] == ["ada", "bob", "ada"]
    assert [one.events for one in listed] == [[], [], []]
    assert [one.last_update_time for one in listed] == [START - 2, START - 1, START]
    assert listed[1].state == {"user:n": "bob", "s": "two"}
    own = (await any_service.list_sessions(**APP)).sessions
    assert [one.id for one in own] == ["three", "one"]


async def test_a_deleted_session_leaves_the_state_of_its_user(
    any_service: BaseSessionService,
) -> None:
    await any_service.create_session(**ONE, state={"user:n": 1, "app:n": 2, "n": 3})
    await any_service.delete_session(**ONE)
    assert await any_service.get_session(**ONE) is None
    assert (await any_service.list_sessions(**APP)).sessions == []
    again = await any_service.create_session(**ONE)
    assert again.state == {"user:n": 1, "app:n": 2}


async def test_names_that_look_alike_are_not_the_same(any_service: BaseSessionService) -> None:
    names = [
        ("a/b", "c", "d"),
        ("a", "b/c", "d"),
        ("a", "b", "c/d"),
        ("a_b", "c", "d"),
        ("A", "b", "c"),
        ("a", "b", "c"),
        ("a%2Fb", "c", "d"),
        ("a%252Fb", "c", "d"),
        ("ä", "%", "/"),
        ("a", "", "b/c"),
        ("", "a", "b"),
        ("a\n", "b", "c"),
        ("..", "..", "x"),
    ]
    for number, (app, user, name) in enumerate(names):
        made = await any_service.create_session(
            app_name=app, user_id=user, session_id=name, state={"user:n": number, "n": number}
        )
        assert (made.app_name, made.user_id, made.id) == (app, user, name)
    for number, (app, user, name) in enumerate(names):
        found = await any_service.get_session(app_name=app, user_id=user, session_id=name)
        assert found is not None
        assert found.state["n"] == number
        listed = (await any_service.list_sessions(app_name=app, user_id=user)).sessions
        wanted = sorted(one[2] for one in names if one[:2] == (app, user))
        assert sorted(one.id for one in listed) == wanted
    assert len((await any_service.list_sessions(app_name="a")).sessions) == 4


@pytest.mark.parametrize("name", ["holdfast", "memory", "sqlite"])
async def test_spaces_around_an_id_do_not_count(
    services: dict[str, BaseSessionService], name: str
) -> None:
    service = services[name]
    made = await service.create_session(**APP, session_id="  one ")
    assert made.id == "one"
    assert await service.get_session(**APP, session_id=" one") is not None
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**APP, session_id="one ")
    assert (await service.create_session(**APP, session_id="  ")).id.strip()
    await service.delete_session(**APP, session_id=" one ")
    assert await service.get_session(**ONE) is None


@pytest.mark.parametrize("name", ["holdfast", "memory"])
async def test_an_event_that_is_delivered_again_is_stored_once(
    services: dict[str, BaseSessionService], name: str
) -> None:
    service = services[name]
    session = await service.create_session(**ONE)
    delta = EventActions(state_delta={"n": 1, "app:n": 1, "user:n": 1})
    event = said("once", actions=delta)
    for _ in range(3):
        assert await service.append_event(session, event) is event
    assert _ids(session) == [event.id]
    assert _ids(await _reloaded(service)) == [event.id]
