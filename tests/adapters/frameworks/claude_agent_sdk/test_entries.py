"""What becomes of the lines of a transcript."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import File, Message, Record, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore
from tests.adapters.frameworks.claude_agent_sdk.transcript import (
    AGENT,
    MAIN,
    PROJECT,
    SESSION,
    line,
    reply,
    said,
    text,
    whole_transcript,
)

NAME = f"{PROJECT}/{SESSION}"


def as_json(entries: object) -> str:
    return json.dumps(entries, sort_keys=True)


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_every_entry_comes_back_equal_and_in_order(
    sessions: HoldfastSessionStore, size: int
) -> None:
    entries = whole_transcript()
    for start in range(0, len(entries), size):
        await sessions.append(MAIN, entries[start : start + size])
    assert as_json(await sessions.load(MAIN)) == as_json(entries)


async def test_more_entries_than_are_stored_together_come_back(
    sessions: HoldfastSessionStore,
) -> None:
    entries: list[Any] = [{"type": "mode", "mode": number} for number in range(10_001)]
    await sessions.append(MAIN, entries)
    assert await sessions.load(MAIN) == entries


async def test_what_was_said_is_messages_and_the_rest_records(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    entries = whole_transcript()
    await sessions.append(MAIN, entries)
    session = store.get(NAME)

    by_role = [(message.role, message.text) for message in session.messages()]
    assert by_role == [
        ("user", "Where is my parcel?"),
        ("assistant", ""),
        ("assistant", "I look."),
        ("assistant", ""),
        ("tool", "parcel.txt"),
        ("assistant", "It is here."),
        ("user", "Like this?"),
        ("user", ""),
    ]
    messages = session.messages()
    assert messages[1].parts[0] == Thinking("Look.", "c2lnbmVk")
    assert messages[3].tool_calls == (ToolCall("toolu_1", "Bash", {"command": "ls"}),)
    assert messages[4].tool_results == (ToolResult("toolu_1", "parcel.txt"),)
    assert [message.id for message in messages[:2]] == [entries[2]["uuid"], entries[4]["uuid"]]
    assert f"{messages[0].created_at:%FT%T}" == entries[2]["timestamp"][:19]
    assert store.blobs(*(file.sha256 or "" for file in messages[6].files))
    title = session.record("claude_agent_sdk", "custom-title")
    assert title is not None
    assert title.data == entries[9]
    assert (session.info().title, session.info().cwd) == ("Parcels", "/home/ada/parcels")
    assert [hit.snippet for hit in store.search("here")] == ["It is here."]


async def test_the_usage_of_a_reply_of_several_entries_counts_once(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    entries = [reply(text("one")), reply(text("two")), reply(text("three"))]
    await sessions.append(MAIN, entries[:2])
    await sessions.append(MAIN, entries[2:])
    await sessions.append(MAIN, [reply(text("four"), id="msg_01ZZZZZZZZZZZZZZZZZZZZZZ")])

    one = Usage(input=123, output=7, cache_read=20, cache_write=100)
    assert store.get(NAME).usage().usage == one + one
    assert (await sessions.load(MAIN) or [])[:3] == entries


async def test_a_long_text_is_stored_once(store: Store, sessions: HoldfastSessionStore) -> None:
    words = "0123456789" * 1000
    result = {"type": "tool_result", "tool_use_id": "t", "content": words}
    output = {"stdout": words, "stderr": ""}
    entries = [
        line("user", message={"role": "user", "content": [result]}, toolUseResult=output),
        said(words),
        reply(text(words)),
    ]
    await sessions.append(MAIN, entries)
    assert as_json(await sessions.load(MAIN)) == as_json(entries)
    messages = store.get(NAME).messages()
    assert [repr(message).count(words) for message in messages] == [1, 1, 1]


async def test_what_sub_agents_said_in_between_is_not_sent_to_the_model(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    entries = [said("Go."), said("Look.", isSidechain=True)]
    await sessions.append(MAIN, entries)
    await sessions.append(AGENT, [said("Look.", isSidechain=True)])

    assert [*store.get(NAME).window()] == [{"role": "user", "content": "Go."}]
    child = store.get(f"{NAME}/{AGENT['subpath']}")
    assert [*child.window()] == [{"role": "user", "content": "Look."}]
    assert await sessions.load(MAIN) == entries


async def test_messages_of_another_program_are_entries_of_the_same_chain(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    first = said("Where is my parcel?")
    await sessions.append(MAIN, [first, {"type": "mode", "mode": "plan"}])
    store.get(NAME).append(
        Message.assistant(
            [Thinking("secret"), "I look."],
            tool_calls=[ToolCall("call_1", "look", {"where": "post"})],
            model="gpt-5",
            usage=Usage(input=10, output=2, cache_read=4),
        ),
        Message.tool("call_1", "not here", error=True),
        Message.assistant([Thinking("only thinking")]),
        Message.user(["And this?", File(mime="image/png", data=b"png")]),
        Message.user("not for models", metadata={"hidden": True}),
        Message.user("/model large", metadata={"command": True}),
        Record("other", data=1),
    )
    last = said("Thanks.")
    await sessions.append(MAIN, [last])

    found = await sessions.load(MAIN)
    assert found is not None
    assert [found[0], found[1], found[-1]] == [first, {"type": "mode", "mode": "plan"}, last]
    made = found[2:-1]
    assert [entry["type"] for entry in made] == ["assistant", "user", "user"]
    parents = [entry["parentUuid"] for entry in made]
    assert parents == [first["uuid"], made[0]["uuid"], made[1]["uuid"]]
    assert {entry["sessionId"] for entry in made} == {SESSION}
    said_by_model = made[0]["message"]
    assert said_by_model["content"] == [
        text("I look."),
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"where": "post"}},
    ]
    assert (said_by_model["model"], said_by_model["stop_reason"]) == ("gpt-5", "tool_use")
    assert said_by_model["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
    }
    result = made[1]["message"]["content"][0]
    assert (result["tool_use_id"], result["is_error"]) == ("call_1", True)
    image = made[2]["message"]["content"][1]["source"]
    assert image == {"type": "base64", "media_type": "image/png", "data": "cG5n"}


async def test_a_session_of_another_program_can_be_resumed(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    store.session(NAME).append(Message.user("Where is it?"), Message.assistant("Here."))
    found = await sessions.load(MAIN)
    assert found is not None
    assert [entry["message"]["role"] for entry in found] == ["user", "assistant"]
    assert found[1]["parentUuid"] == found[0]["uuid"]

    await sessions.append(MAIN, [said("Thanks.", parentUuid=found[1]["uuid"])])
    assert [one["session_id"] for one in await sessions.list_sessions(PROJECT)] == [SESSION]
    # A summary of the last line alone would show it as the first prompt.
    assert await sessions.list_session_summaries(PROJECT) == []


async def test_an_amended_message_comes_back_as_it_is_now(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    first, second = said("My code is 1234."), said("Go.")
    await sessions.append(MAIN, [first, second])
    store.get(NAME).amend(first["uuid"], [Text("My code is secret.")])

    found = await sessions.load(MAIN)
    assert found is not None
    assert [entry["message"]["content"] for entry in found] == ["My code is secret.", "Go."]
    assert found[0]["uuid"] == first["uuid"]


async def test_an_erased_message_keeps_its_place_in_the_chain(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    first = said("My code is 1234.")
    await sessions.append(MAIN, [first, said("Go.", parentUuid=first["uuid"])])
    store.get(NAME).erase(first["uuid"])

    found = await sessions.load(MAIN)
    assert found is not None
    assert found[0]["uuid"] == first["uuid"]
    assert found[0]["message"]["content"] == [text("[erased]")]


async def test_a_rewind_is_the_history_from_then_on(
    store: Store, sessions: HoldfastSessionStore
) -> None:
    entries = [said("one"), {"type": "mode", "mode": "a"}, said("two"), {"type": "tag", "tag": "b"}]
    await sessions.append(MAIN, entries)
    store.get(NAME).rewind(1)
    assert await sessions.load(MAIN) == entries[:2]

    store.get(NAME).clear()
    assert await sessions.load(MAIN) == []
