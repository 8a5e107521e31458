"""Histories that others wrote too, and which session it is."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agents import SessionSettings

import holdfast
from holdfast import File, Message, Raw, Store, Text, Thinking, ToolCall, ToolResult
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.errors import BadMessage, Damaged, SessionBusy
from holdfast.formats import kept
from holdfast.testing import legality
from holdfast.values import Provider


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def texts(items: list[dict[str, Any]]) -> list[Any]:
    return [item.get("content") for item in items]


# ------------------------------------------------------------------------ what others wrote


async def test_a_turn_of_holdfast_is_read_as_items(store: Store, session: HoldfastSession) -> None:
    own = store.session("support-42")
    with own.turn() as turn:
        turn.user("Where is it?")
        calls = [ToolCall("call-1", "track", {"id": 7}), ToolCall("call-2", "track", {"id": 8})]
        turn.assistant([Thinking("hm"), Text("Looking.")], tool_calls=calls)
        turn.tool("call-1", "Oslo")
        turn.tool("call-2", [Text("a cat"), File(name="cat.png", mime="image/png", data=b"png")])
        turn.assistant("In Oslo.")
    items = await session.get_items()
    assert items == [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": "Looking."},
        {"type": "function_call", "call_id": "call-1", "name": "track", "arguments": '{"id":7}'},
        {"type": "function_call", "call_id": "call-2", "name": "track", "arguments": '{"id":8}'},
        {"type": "function_call_output", "call_id": "call-1", "output": "Oslo"},
        {
            "type": "function_call_output",
            "call_id": "call-2",
            "output": [
                {"type": "input_text", "text": "a cat"},
                {
                    "type": "input_image",
                    "image_url": "data:image/png;base64,cG5n",
                    "detail": "auto",
                },
            ],
        },
        {"role": "assistant", "content": "In Oslo."},
    ]
    assert not legality.problems("openai-responses", items)
    assert await session.get_items(limit=4) == items[-4:]
    assert [await session.pop_item() for _ in items] == items[::-1]
    assert await session.pop_item() is None


async def test_popping_one_of_several_calls_leaves_the_others(
    store: Store, session: HoldfastSession
) -> None:
    own = store.session("support-42")
    calls = [ToolCall("call-1", "track", 1), ToolCall("call-2", "track", 2)]
    own.append(Message.user("hi"), Message.assistant("Looking.", tool_calls=calls))
    before = await session.get_items()
    assert await session.pop_item() == before[-1]
    assert await session.get_items() == before[:-1]
    assert len(own.messages(branch=1)[-1].tool_calls) == 2


@pytest.mark.parametrize(
    ("provider", "given"),
    [
        (
            "openai",
            [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "track", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "Oslo"},
            ],
        ),
        (
            "anthropic",
            [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "sig"},
                        {"type": "tool_use", "id": "call_1", "name": "track", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "call_1", "content": "Oslo"}
                    ],
                },
            ],
        ),
        (
            "openai-responses",
            [
                {"role": "user", "content": "hi"},
                {
                    "object": "response",
                    "id": "resp_000000000000000000000001",
                    "output": [
                        {
                            "type": "function_call",
                            "call_id": "call_1",
                            "name": "track",
                            "arguments": "{}",
                        }
                    ],
                },
                {"type": "function_call_output", "call_id": "call_1", "output": "Oslo"},
            ],
        ),
    ],
)
async def test_what_was_stored_from_a_provider_is_read_as_items(
    store: Store, session: HoldfastSession, provider: Provider, given: list[dict[str, Any]]
) -> None:
    store.session("support-42").append_from(provider, *given)
    assert await session.get_items() == [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "call_1", "name": "track", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Oslo"},
    ]


async def test_what_no_model_is_sent_is_no_item(store: Store, session: HoldfastSession) -> None:
    own = store.session("support-42")
    own.append(
        Message.user("one"),
        Message.assistant("(note)", metadata={"hidden": True}),
        Message.user("/help", metadata={"command": True}),
        Message.assistant(Thinking("hm")),
        Message.user("secret", id="secret"),
        Message.assistant(Raw("other", {"n": 1})),
        Message.assistant("two"),
        Message.assistant("(note)", metadata={"hidden": True}),
    )
    own.erase("secret")
    assert texts(await session.get_items()) == ["one", "two"]
    assert texts(await session.get_items(1)) == ["two"]
    assert texts(await session.get_items(2)) == ["one", "two"]
    assert texts([await session.pop_item() or {}]) == ["two"]
    assert texts(await session.get_items()) == ["one"]


async def test_files_of_several_results_in_one_message_are_read(
    store: Store, session: HoldfastSession
) -> None:
    cat = File(name="cat.png", mime="image/png", data=b"png")
    calls = [ToolCall("call-1", "look", {}), ToolCall("call-2", "look", {})]
    results = (ToolResult("call-1", (cat,)), ToolResult("call-2", "a dog"))
    own = store.session("support-42")
    own.append(Message.assistant(tool_calls=calls), Message(role="tool", parts=results))
    cats, dogs = (await session.get_items())[2:]
    assert cats["output"][0]["image_url"] == "data:image/png;base64,cG5n"
    assert dogs["output"] == "a dog"


async def test_a_row_that_is_damaged_costs_only_itself(
    store: Store, session: HoldfastSession, tmp_path: Path
) -> None:
    await session.add_items([user("one"), user("two"), user("three")])
    store.close()
    with closing(sqlite3.connect(tmp_path / "agent.db")) as database, database:
        database.execute("UPDATE messages SET body = 'x' WHERE body LIKE '%two%'")
    with holdfast.open(tmp_path / "agent.db", durability="process") as again:
        session = HoldfastSession("support-42", again)
        assert texts(await session.get_items()) == ["one", "three"]
        assert len(again.damage) == 1
        with pytest.raises(Damaged):
            await session.add_items([user("four")])


async def test_a_message_that_was_amended_is_read_as_it_is_now(
    store: Store, session: HoldfastSession
) -> None:
    item = {"type": "message", "id": "msg_" + "1" * 32, "role": "assistant", "content": "wrong"}
    await session.add_items([user("hi"), {**item, "provider_data": {"said": "wrong"}}])
    store.session("support-42").amend(item["id"], "right")
    assert texts(await session.get_items()) == ["hi", "right"]


async def test_a_reply_that_lost_a_part_is_read_from_the_others(
    store: Store, session: HoldfastSession
) -> None:
    own = store.session("support-42")
    output: list[Any] = [
        {"type": "message", "role": "assistant", "content": text * 50} for text in ("one ", "two ")
    ]
    said: dict[str, Any] = {"object": "response", "output": output, "output_text": "two " * 50}
    own.append_from("openai-responses", said)
    (message,) = own.messages()
    own.amend(message.id, [Text("one " * 50), message.parts[-1]])
    with pytest.raises(BadMessage, match="no longer holds"):
        kept(own.messages()[0], "openai-responses")
    assert texts(await session.get_items()) == ["one " * 50]


# -------------------------------------------------------------------------------- summaries


@pytest.fixture
async def summarized(store: Store, session: HoldfastSession) -> HoldfastSession:
    """A session of six items: the first four are covered by a summary that was stored before it."""
    await session.add_items([user(str(number)) for number in range(1, 6)])
    own = store.session("support-42")
    own.summarize("so far", upto=4)
    await session.add_items([user("6")])
    return session


SUMMARY = "Summary of the conversation so far:\nso far"


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 4, 100])
async def test_a_summary_stands_for_what_it_covers(
    summarized: HoldfastSession, limit: int | None
) -> None:
    expected = [SUMMARY, "5", "6"]
    assert texts(await summarized.get_items(limit)) == expected[-(limit or 3) :]


async def test_popping_goes_back_to_the_summary_and_ends_there(
    store: Store, summarized: HoldfastSession
) -> None:
    for left in ([SUMMARY, "5"], [SUMMARY], []):
        assert await summarized.pop_item() is not None
        assert texts(await summarized.get_items()) == left
    assert await summarized.pop_item() is None
    assert len(store.session("support-42").messages(branch=1)) == 7


async def test_only_the_newest_summary_counts(store: Store, summarized: HoldfastSession) -> None:
    store.session("support-42").summarize("all of it")
    await summarized.add_items([user("7")])
    newest = "Summary of the conversation so far:\nall of it"
    assert texts(await summarized.get_items()) == [newest, "7"]


# ----------------------------------------------------------------------------------- limits


async def test_a_limit_is_the_newest_items(session: HoldfastSession) -> None:
    await session.add_items([user(str(number)) for number in range(10)])
    assert texts(await session.get_items(3)) == ["7", "8", "9"]
    assert await session.get_items(0) == []
    assert len(await session.get_items(-1)) == 10
    session.session_settings = SessionSettings(limit=2)
    assert texts(await session.get_items()) == ["8", "9"]
    assert len(await session.get_items(100)) == 10


async def test_settings_are_given_as_the_sdk_takes_them(store: Store) -> None:
    assert HoldfastSession("a", store).session_settings == SessionSettings()
    given = HoldfastSession("a", store, session_settings={"limit": 1})
    assert given.session_settings == SessionSettings(limit=1)
    settings = SessionSettings(limit=3)
    assert HoldfastSession("a", store, session_settings=settings).session_settings is settings
    with pytest.raises(TypeError, match="limitt"):
        HoldfastSession("a", store, session_settings={"limitt": 1})


# -------------------------------------------------------------------------- which session


KEYS = ["a/b", "a_b", "a:b", "A", "a", "a\0", "ä", "a\u0308", "..", "@latest", "\ud800", "k" * 4096]


async def test_keys_that_files_would_confuse_are_sessions_of_their_own(store: Store) -> None:
    for key in KEYS:
        await HoldfastSession(key, store).add_items([user(key)])
    for key in KEYS:
        assert await HoldfastSession(key, store).get_items() == [user(key)]


async def test_a_session_without_a_key_is_continued_by_its_id(store: Store) -> None:
    own = store.create(title="A chat")
    own.append(Message.user("hi"))
    session = HoldfastSession(own.id, store)
    assert texts(await session.get_items()) == ["hi"]
    await session.add_items([user("again")])
    assert [message.text for message in own.messages()] == ["hi", "again"]


async def test_a_part_of_an_id_or_a_title_is_a_key_like_any_other(store: Store) -> None:
    own = store.create(title="abcdefghijklmnop")
    own.append(Message.user("hi"))
    for key in (own.id[:8], "abcdefghijklmnop", "abcdefghijklmnoq"):
        assert await HoldfastSession(key, store).get_items() == []


async def test_scope_and_agent_are_those_of_a_new_session(store: Store) -> None:
    session = HoldfastSession("one", store, scope="post", agent="parcels")
    assert await session.get_items() == []
    await session.clear_session()
    assert await session.pop_item() is None
    assert not list(store.sessions())
    await session.add_items([user("hi")])
    info = store.session("one").info()
    assert (info.key, info.scope, info.agent) == ("one", "post", "parcels")
    await HoldfastSession("one", store, scope="other").add_items([user("hi")])
    assert store.session("one").info().scope == "post"


async def test_the_session_of_a_sub_agent_is_a_delegate(
    store: Store, session: HoldfastSession
) -> None:
    for _ in range(2):
        helper = HoldfastSession("helper", store, parent=session, scope="post")
        await helper.add_items([user("count")])
    assert await session.get_items() == []
    (child,) = store.session("support-42").children()
    assert (child.key, child.relation) == ("helper", "delegate")
    assert store.session("helper").info().scope == "post"
    assert texts(await helper.get_items()) == ["count", "count"]


async def test_two_processes_may_begin_a_sub_agent_at_once(
    store: Store, session: HoldfastSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.add_items([user("go")])
    create, other = store.create, HoldfastSession("helper", store)

    def create_later(**fields: Any) -> holdfast.Session:  # noqa: ANN401 - whatever it is called with
        asyncio.run(other.add_items([user("one")]))
        return create(**fields)

    monkeypatch.setattr(store, "create", create_later)
    await HoldfastSession("helper", store, parent=session).add_items([user("two")])
    assert texts(await other.get_items()) == ["one", "two"]


async def test_the_tenant_is_that_of_the_store(store: Store, session: HoldfastSession) -> None:
    await session.add_items([user("hi")])
    with holdfast.open(store.url, tenant="other", durability="process") as other:
        assert await HoldfastSession("support-42", other).get_items() == []


async def test_clearing_keeps_the_history_on_its_branch(
    store: Store, session: HoldfastSession
) -> None:
    await session.add_items([user("one"), user("two")])
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items([user("three")])
    own = store.session("support-42")
    assert [message.text for message in own.messages(branch=1)] == ["one", "two"]


async def test_a_session_in_the_trash_is_left_there_and_its_id_begins_anew(
    store: Store, session: HoldfastSession
) -> None:
    await session.add_items([user("one")])
    trashed = store.session("support-42")
    store.trash(trashed.id)
    assert await session.get_items() == []
    await session.add_items([user("two")])
    assert texts(await session.get_items()) == ["two"]
    assert [message.text for message in trashed.messages()] == ["one"]


async def test_while_a_turn_is_open_items_are_added_and_none_is_removed(
    store: Store, session: HoldfastSession
) -> None:
    await session.add_items([user("one")])
    with store.session("support-42").turn() as turn:
        turn.user("two")
        await session.add_items([user("three")])
        for remove in (session.pop_item, session.clear_session):
            with pytest.raises(SessionBusy, match="open turn"):
                await remove()
    assert texts(await session.get_items()) == ["one", "two", "three"]
    assert texts([await session.pop_item() or {}]) == ["three"]


async def test_two_handles_are_one_session(store: Store, session: HoldfastSession) -> None:
    other = HoldfastSession("support-42", store)
    await session.add_items([user("one")])
    await other.add_items([user("two")])
    assert texts(await session.get_items()) == ["one", "two"]
    await other.clear_session()
    assert await session.get_items() == []
