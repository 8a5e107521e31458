"""Events are real messages, and come back exactly; what other programs say is an event."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import holdfast
from holdfast import File, Message, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.google_adk import HoldfastSessionService
from tests.adapters.frameworks.google_adk.events import KEY, ONE, START, EventMaker, noted, said


async def _loaded(service: HoldfastSessionService) -> Session:
    found = await service.get_session(**ONE)
    assert found is not None
    return found


def _json(event: Event) -> object:
    return event.model_dump(mode="json", exclude_none=True)


async def _stored(service: HoldfastSessionService, *events: Event) -> None:
    session = await service.create_session(**ONE)
    for event in events:
        await service.append_event(session, event)


async def test_events_with_content_are_messages(
    store: Store, service: HoldfastSessionService
) -> None:
    call = types.Part(function_call=types.FunctionCall(id="c1", name="look", args={"at": "sky"}))
    answer = types.Part(
        function_response=types.FunctionResponse(id="c1", name="look", response={"result": "blue"})
    )
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=9, candidates_token_count=4, thoughts_token_count=2
    )
    await _stored(
        service,
        said("What colour?", id="e1"),
        Event(
            id="e2",
            author="helper",
            content=types.Content(role="model", parts=[types.Part(text="hm", thought=True), call]),
            usage_metadata=usage,
            model_version="gemini-9",
        ),
        Event(id="e3", author="helper", content=types.Content(role="user", parts=[answer])),
        said("Blue.", "helper", id="e4"),
    )
    messages = store.session(KEY, create=False).messages()
    assert [(one.id, one.role, one.name) for one in messages] == [
        ("e1", "user", None),
        ("e2", "assistant", "helper"),
        ("e3", "tool", None),
        ("e4", "assistant", "helper"),
    ]
    assert isinstance(messages[1].parts[0], Thinking)
    assert messages[1].tool_calls == (ToolCall("c1", "look", {"at": "sky"}),)
    assert (messages[1].model, messages[1].usage) == ("gemini-9", Usage(9, 6, reasoning=2))
    assert messages[2].tool_results == (ToolResult("c1", "blue", name="look"),)
    assert [hit.message_id for hit in store.search("blue role:assistant")] == ["e4"]


async def test_every_event_comes_back_as_it_was(service: HoldfastSessionService) -> None:
    maker = EventMaker(7)
    session = await service.create_session(**ONE)
    for _ in range(120):
        await service.append_event(session, maker.next())
    found = (await _loaded(service)).events
    assert [_json(event) for event in found] == [_json(event) for event in session.events]
    assert any(event.content is None for event in found)


async def test_what_json_cannot_hold_is_null_as_in_adk(service: HoldfastSessionService) -> None:
    part = types.Part(function_call=types.FunctionCall(id="c", name="f", args={"x": float("nan")}))
    event = Event(
        author="bot",
        content=types.Content(role="model", parts=[part]),
        avg_logprobs=float("-inf"),
        actions=EventActions(state_delta={"x": float("inf"), "f": print}),
    )
    await _stored(service, event)
    found = await _loaded(service)
    assert found.events[0].avg_logprobs is None
    assert found.events[0].content.parts[0].function_call.args == {"x": None}
    assert found.state == {"x": None, "f": repr(print)}


async def test_a_nul_and_half_a_character_cut_nothing(service: HoldfastSessionService) -> None:
    """ADK's SQLite service loses what follows a NUL, and fails at half a character."""
    text = "a\0b \ud83d c"
    event = said(text, actions=EventActions(state_delta={"a\0b": text, "app:a\0b": [text]}))
    await _stored(service, event)
    found = await _loaded(service)
    assert found.events[0].content.parts[0].text == text
    assert found.state == {"a\0b": text, "app:a\0b": [text]}


async def test_a_key_with_half_a_character_is_refused(service: HoldfastSessionService) -> None:
    session = await service.create_session(**ONE)
    with pytest.raises(InputValidationError):
        await service.append_event(session, noted(actions=EventActions(state_delta={"\ud83d": 1})))
    with pytest.raises(InputValidationError):
        await service.create_session(app_name="a", user_id="b", state={"\ud83d": 1})
    assert session.events == (await _loaded(service)).events == []


async def test_names_are_kept_byte_by_byte(service: HoldfastSessionService) -> None:
    names = ["a\0b", "a", "\ud83d", "É", "E\u0301", "n" * 1300, "n" * 1301]
    for number, name in enumerate(names):
        who = {"app_name": name, "user_id": name}
        await service.create_session(**who, session_id=name, state={"app:n": number, "n": number})
    for number, name in enumerate(names):
        who = {"app_name": name, "user_id": name}
        found = await service.get_session(**who, session_id=name)
        assert found is not None
        assert found.state == {"app:n": number, "n": number}
        listed = await service.list_sessions(**who)
        assert [one.id for one in listed.sessions] == [name]


async def test_names_that_are_too_long_are_refused(service: HoldfastSessionService) -> None:
    long = {**ONE, "session_id": "n" * 5000}
    with pytest.raises(InputValidationError, match="4096 bytes"):
        await service.create_session(**long)
    with pytest.raises(InputValidationError):
        await service.get_session(**long)


async def test_a_long_text_is_stored_once(tmp_path: Path) -> None:
    text = "0123456789abcdef" * 640
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        event = said(text, "bot", custom_metadata={"copy": text}, output=text)
        await _stored(HoldfastSessionService(store), event)
        [message] = store.session(KEY, create=False).messages()
        assert msgspec.json.encode(message).count(text.encode()) == 1
        assert (await _loaded(HoldfastSessionService(store))).events[0].output == text


async def test_a_file_is_stored_by_its_hash(store: Store, service: HoldfastSessionService) -> None:
    data = bytes(range(256)) * 50
    part = types.Part.from_bytes(data=data, mime_type="image/png")
    event = Event(author="user", content=types.Content(role="user", parts=[part]))
    await _stored(service, event)
    [message] = store.session(KEY, create=False).messages()
    assert [store.blob(file.sha256 or "") for file in message.files] == [data]
    assert _json((await _loaded(service)).events[0]) == _json(event)


async def test_a_content_without_a_role_is_its_authors(
    store: Store, service: HoldfastSessionService
) -> None:
    def content(*parts: types.Part) -> types.Content:
        return types.Content(parts=[*parts])

    answer = types.Part.from_function_response(name="look", response={"result": "blue"})
    events = [
        Event(author="user", content=content(types.Part(text="a"))),
        Event(author="bot", content=content(types.Part(text="b"))),
        Event(author="bot", content=content(answer)),
        Event(author="bot", content=types.Content(role="narrator", parts=[types.Part(text="c")])),
    ]
    await _stored(service, *events)
    roles = [one.role for one in store.session(KEY, create=False).messages()]
    assert roles == ["user", "assistant", "tool", "assistant"]
    found = (await _loaded(service)).events
    assert [_json(event) for event in found] == [_json(event) for event in events]


async def test_another_event_under_an_id_is_refused(service: HoldfastSessionService) -> None:
    session = await service.create_session(**ONE)
    for make in (said, lambda text, **fields: noted(custom_metadata={"a": text}, **fields)):
        id = Event.new_id()
        await service.append_event(session, make("one", id=id, timestamp=START))
        with pytest.raises(AlreadyExistsError, match=id):
            await service.append_event(session, make("two", id=id, timestamp=START))
    assert len(session.events) == len((await _loaded(service)).events) == 2


async def test_what_another_program_said_is_an_event(store: Store) -> None:
    service = HoldfastSessionService(store, agent="root")
    await _stored(service, said("Look at this.", id="e1"))
    session = store.session(KEY, create=False)
    image = File(name="sky.png", mime="image/png", data=b"\x89PNG")
    session.append(
        Message.system("Be brief."),
        Message.user([Text("And this?"), image], id="u1"),
        Message.assistant(Thinking("hm", signature="s"), id="only-thinking"),
        Message.assistant("I look.", tool_calls=[ToolCall("c1", "look", {"at": 1})], id="a1"),
        Message.tool("c1", [Text("blue"), image], id="t1"),
        Message.assistant("(not for models)", metadata={"hidden": True}),
        Message.assistant("Blue.", id="a2"),
    )
    events = (await _loaded(service)).events
    assert [event.author for event in events] == ["user", "user", "user", "root", "root", "root"]
    assert [event.id for event in events[2:]] == ["u1", "a1", "t1", "a2"]
    assert events[2].content.parts[1].inline_data.data == b"\x89PNG"
    [call] = events[3].get_function_calls()
    assert (call.id, call.name, call.args) == ("c1", "look", {"at": 1})
    [response] = events[4].get_function_responses()
    assert (response.id, response.name, response.response) == ("c1", "look", {"output": "blue"})
    assert events[5].content.parts[0].text == "Blue."
    assert all(event.invocation_id and event.timestamp for event in events)


async def test_an_amended_event_says_what_it_was_amended_to(
    store: Store, service: HoldfastSessionService
) -> None:
    await _stored(service, said("My password is hunter2.", id="e1"), said("Thanks.", "bot"))
    store.session(KEY, create=False).amend("e1", "My password is (removed).")
    events = (await _loaded(service)).events
    assert [event.content.parts[0].text for event in events] == [
        "My password is (removed).",
        "Thanks.",
    ]
    assert [event.author for event in events] == ["user", "bot"]
    assert "hunter2" not in str(events)


async def test_an_original_that_no_longer_fits_is_not_used(
    store: Store, service: HoldfastSessionService
) -> None:
    parts = [
        types.Part(text="kept"),
        types.Part(text="removed since, with what repeats it elsewhere"),
    ]
    content = types.Content(role="model", parts=parts)
    await _stored(service, Event(id="e1", author="bot", content=content, output=parts[1].text))
    session = store.session(KEY, create=False)
    [message] = session.messages()
    session.amend("e1", [message.parts[0], message.parts[-1]])
    [event] = (await _loaded(service)).events
    assert [part.text for part in event.content.parts] == ["kept"]
    assert (event.author, event.output) == ("bot", None)


async def test_an_erased_event_is_gone(store: Store, service: HoldfastSessionService) -> None:
    await _stored(service, said("secret", id="e1"), said("Thanks.", "bot", id="e2"))
    store.session(KEY, create=False).erase("e1")
    assert [event.id for event in (await _loaded(service)).events] == ["e2"]


async def test_going_back_in_holdfast_goes_back_in_adk(
    store: Store, service: HoldfastSessionService
) -> None:
    def change(value: int) -> EventActions:
        return EventActions(state_delta={"n": value})

    await _stored(
        service,
        said("one", id="e1", actions=change(1)),
        noted(id="e2", actions=change(2)),
        said("three", id="e3", actions=change(3)),
        noted(id="e4", actions=change(4)),
    )
    session = store.session(KEY, create=False)
    session.rewind("e1")
    back = await _loaded(service)
    assert ([event.id for event in back.events], back.state) == (["e1", "e2"], {"n": 2})
    await service.append_event(back, said("another", id="e5"))
    fork = session.fork(at="e1", key="desk/ada/two")
    assert fork.record("google_adk.state") is not None
    copy = await service.get_session(**{**ONE, "session_id": "two"})
    assert copy is not None
    assert ([event.id for event in copy.events], copy.state) == (["e1", "e2"], {"n": 2})
    assert [event.id for event in (await _loaded(service)).events] == ["e1", "e2", "e5"]


async def test_recent_events_are_the_last_ones_stored(service: HoldfastSessionService) -> None:
    maker, session = EventMaker(3), await service.create_session(**ONE)
    for _ in range(40):
        await service.append_event(session, maker.next())
    for limit in range(1, 45):
        config = GetSessionConfig(num_recent_events=limit)
        found = await service.get_session(**ONE, config=config)
        assert found is not None
        assert [one.id for one in found.events] == [one.id for one in session.events[-limit:]]


async def test_a_deleted_session_can_be_restored(
    store: Store, service: HoldfastSessionService
) -> None:
    await _stored(service, said("kept", id="e1"))
    await service.delete_session(**ONE)
    assert await service.get_session(**ONE) is None
    [trashed] = store.sessions(trashed=True)
    store.restore(trashed.id)
    assert [event.id for event in (await _loaded(service)).events] == ["e1"]


async def test_events_are_stored_while_another_program_has_a_turn(
    store: Store, service: HoldfastSessionService
) -> None:
    session = await service.create_session(**ONE)
    with store.session(KEY, create=False).turn() as turn:
        turn.user("from a chat", id="u1")
        await service.append_event(session, said("from ADK", id="e1"))
        turn.assistant("answer", id="a1")
    assert [event.id for event in (await _loaded(service)).events] == ["u1", "e1", "a1"]


async def test_sessions_of_other_programs_are_not_listed(
    store: Store, service: HoldfastSessionService
) -> None:
    for key in ("desk/ada", "desk/ada/one/more", "desk/ada/50%", "desk"):
        store.create(key=key)
    await service.create_session(**ONE)
    listed = await service.list_sessions(app_name="desk")
    assert [session.id for session in listed.sessions] == ["one"]


async def test_a_damaged_session_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        for name in ("one", "two"):
            who = {**ONE, "session_id": name}
            await HoldfastSessionService(store).create_session(**who)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE sessions SET title = 'damaged' WHERE key = ?", [KEY])
    with holdfast.open(path) as store:
        listed = await HoldfastSessionService(store).list_sessions(app_name="desk")
        assert [session.id for session in listed.sessions] == ["two"]
        assert store.damage


async def test_all_pages_are_listed(store: Store, service: HoldfastSessionService) -> None:
    store.load((f"desk/ada/{number:03}", [Message.user("hi")]) for number in range(210))
    listed = await service.list_sessions(app_name="desk", user_id="ada")
    assert sorted(one.id for one in listed.sessions) == [f"{number:03}" for number in range(210)]


async def test_scope_and_agent_are_those_of_the_service(store: Store) -> None:
    await HoldfastSessionService(store, scope="web", agent="root").create_session(**ONE)
    [info] = store.sessions(scope="web")
    assert (info.key, info.scope, info.agent) == (KEY, "web", "root")


async def test_recent_events_are_counted_without_what_is_hidden_from_models(
    store: Store, service: HoldfastSessionService
) -> None:
    await _stored(service, *(said(text, id=text, timestamp=START) for text in "abc"))
    session = store.session(KEY, create=False)
    session.append(*(Message.user("hidden", metadata={"hidden": True}) for _ in range(4)))
    found = await service.get_session(**ONE, config=GetSessionConfig(num_recent_events=2))
    assert found is not None
    assert [event.id for event in found.events] == ["b", "c"]
    assert found.last_update_time == START
    await service.append_event(found, noted(id="d"))
    found = await service.get_session(**ONE, config=GetSessionConfig(num_recent_events=2))
    assert found is not None
    assert [event.id for event in found.events] == ["c", "d"]


@pytest.mark.parametrize("time", [1.7e12, -1e12, 1e300, float("inf"), float("nan")])
async def test_a_time_that_is_not_one_is_refused(
    service: HoldfastSessionService, time: float
) -> None:
    session = await service.create_session(**ONE)
    with pytest.raises(InputValidationError, match="timestamp of event e1"):
        await service.append_event(session, said("hello", id="e1", timestamp=time))
    assert (await _loaded(service)).events == []
