"""Items come back as they were given, and are messages that others read."""

from __future__ import annotations

import copy
import random
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import pytest
from agents import SQLiteSession, UserError

from holdfast import File, Message, Store, Text, Thinking, ToolCall, ToolResult
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.errors import TooLarge

PNG: Final = "data:image/png;base64," + b64encode(b"\x89PNG" + bytes(100)).decode()
ITEMS: Final[dict[str, dict[str, Any]]] = {
    "text": {"role": "user", "content": "Where is it?"},
    "system": {"role": "system", "content": "Be brief."},
    "developer": {"type": "message", "role": "developer", "content": "Be brief."},
    "empty text": {"role": "user", "content": ""},
    "no pieces": {"role": "user", "content": []},
    "pieces": {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
    "image": {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": PNG, "detail": "high"},
            {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        ],
    },
    "file": {
        "role": "user",
        "content": [
            {
                "type": "input_file",
                "filename": "a.pdf",
                "file_data": "data:application/pdf;base64,AAAA",
            }
        ],
    },
    "reply": {
        "id": "msg_00000000000000000000000000000001",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {
                "type": "output_text",
                "text": "In Oslo.",
                "annotations": [{"type": "url_citation", "url": "x", "start_index": 0}],
                "logprobs": [],
            },
            {"type": "refusal", "refusal": "no"},
        ],
        "provider_data": {"model": "m", "n": 1.0},
    },
    "call": {
        "id": "fc_000000000000000000000000000000001",
        "type": "function_call",
        "call_id": "call_1",
        "name": "track",
        "arguments": '{"id" :  17, "id": 18}',
        "status": "completed",
    },
    "broken arguments": {
        "type": "function_call",
        "call_id": "call_1",
        "name": "track",
        "arguments": "{",
    },
    "result": {"type": "function_call_output", "call_id": "call_1", "output": "Oslo"},
    "result of pieces": {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG}],
    },
    "custom call": {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"},
    "custom result": {"type": "custom_tool_call_output", "call_id": "c", "output": "a b"},
    "reasoning": {
        "id": "rs_000000000000000000000000000000001",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "They want it."}],
        "encrypted_content": "c2VhbGVk",
    },
    "reasoning without id": {"type": "reasoning", "summary": [], "content": None},
    "web search": {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    },
    "approval": {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": True,
    },
    "compaction": {"id": "cmp_1", "type": "compaction", "encrypted_content": "c2VhbGVk"},
    "reference": {"type": "item_reference", "id": "msg_1"},
    "envelope": {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": "gAAAA"},
    "unknown role": {"role": "tool", "content": "x"},
    "unknown type": {"type": "hologram", "depth": [1, 1.0, True, None], "$": {"$": []}},
    "a whole reply": {"object": "response", "id": "resp_1", "output": []},
    "no content": {"role": "user"},
    "nothing": {},
    "lone surrogate": {"role": "user", "content": "a\ud800b"},
    "NUL": {"role": "user", "content": "a\0b\r\n"},
    "deep": {"role": "user", "content": "x", "provider_data": {"a": {"b": [[[{"c": 0.1}]]]}}},
    "long": {"role": "user", "content": "long " * 40_000},
}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
async def test_an_item_comes_back_as_it_was_given(
    session: HoldfastSession, item: dict[str, Any]
) -> None:
    given = copy.deepcopy(item)
    await session.add_items([given])
    assert given == item
    (found,) = await session.get_items()
    assert _exactly(found) == _exactly(item)
    assert _exactly(await session.pop_item()) == _exactly(item)
    assert await session.get_items() == []


def _exactly(value: object) -> object:
    """Return a value in which 1, 1.0 and True are different; the order of names does not count."""
    if isinstance(value, dict):
        return {key: _exactly(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_exactly(inner) for inner in value]
    return type(value), value


async def test_all_kinds_of_items_keep_their_order(session: HoldfastSession, store: Store) -> None:
    await session.add_items([copy.deepcopy(item) for item in ITEMS.values()])
    assert await session.get_items() == list(ITEMS.values())
    assert len(store.session("support-42").messages()) == len(ITEMS)


@pytest.mark.parametrize("seed", range(10))
async def test_any_sequence_of_calls_returns_what_the_sdks_own_session_returns(
    store: Store, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    theirs = SQLiteSession("one", tmp_path / "theirs.db")
    ours = HoldfastSession("one", store)
    for step in range(40):
        method = chance.choice(["add_items"] * 4 + ["pop_item", "get_items", "clear_session"])
        arguments: list[Any] = []
        if method == "add_items":
            arguments = [[_random_item(chance, step) for _ in range(chance.randrange(5))]]
        elif method == "get_items":
            arguments = [chance.choice([None, -1, 0, 1, 2, 5, 2_147_483_647])]
        elif method == "clear_session" and chance.random() < 0.8:
            continue
        one = await getattr(theirs, method)(*copy.deepcopy(arguments))
        two = await getattr(ours, method)(*copy.deepcopy(arguments))
        assert one == two
        assert await theirs.get_items() == await ours.get_items()
    theirs.close()


def _random_item(chance: random.Random, step: int) -> dict[str, Any]:
    item = copy.deepcopy(chance.choice(list(ITEMS.values())))
    if "id" in item:
        item["id"] = chance.choice(
            ["__fake_id__", "1", f"{item['id']}-{step}-{chance.getrandbits(60):020x}"]
        )
    return item


async def test_items_are_messages_that_are_read_and_found(
    session: HoldfastSession, store: Store
) -> None:
    names = ["text", "reasoning", "call", "result", "reply", "file"]
    await session.add_items([ITEMS[name] for name in names])
    messages = store.session("support-42").messages()
    roles = ["user", "assistant", "assistant", "tool", "assistant", "user"]
    assert [message.role for message in messages] == roles
    kinds = [Text, Thinking, ToolCall, ToolResult, Text, File]
    for message, kind in zip(messages, kinds, strict=True):
        assert isinstance(message.parts[0], kind)
    assert messages[2].tool_calls[0].name == "track"
    (hit,) = store.search("Oslo role:assistant")
    assert hit.message_id == ITEMS["reply"]["id"]
    assert store.session("support-42").info().preview == "Where is it?"


@pytest.mark.parametrize("name", ["text", "reply", "result", "unknown type", "envelope"])
async def test_a_text_is_stored_once(store: Store, tmp_path: Path, name: str) -> None:
    text = "".join(random.Random(name).choices("abcdefgh", k=10_000))
    await HoldfastSession("one", store).add_items([_with_text(ITEMS[name], text)])
    store.close()
    stored = (tmp_path / "agent.db").read_bytes()
    assert (stored.count(text[:200].encode()), stored.count(text[-200:].encode())) == (1, 1)


def _with_text(item: dict[str, Any], text: str) -> dict[str, Any]:
    for field in ("content", "output", "payload"):
        if field in item:
            pieces = item[field]
            return {
                **item,
                field: text if isinstance(pieces, str) else [{**pieces[0], "text": text}],
            }
    return {**item, "content": text}


# --------------------------------------------------------------------------------------- ids


async def test_the_id_of_an_item_is_that_of_its_message(
    session: HoldfastSession, store: Store
) -> None:
    await session.add_items([ITEMS["text"], ITEMS["call"], ITEMS["reply"]])
    ids = [message.id for message in store.session("support-42").messages()]
    assert ids[1:] == [ITEMS["call"]["id"], ITEMS["reply"]["id"]]


@pytest.mark.parametrize("id", ["__fake_id__", "1", ""])
async def test_replies_whose_provider_gives_them_all_one_id_are_not_lost(
    session: HoldfastSession, id: str
) -> None:
    yes = {**ITEMS["reply"], "id": id}
    for _ in range(3):
        await session.add_items([yes])
    assert await session.get_items() == [yes, yes, yes]


async def test_a_retried_batch_is_stored_once(session: HoldfastSession) -> None:
    await session.add_items([ITEMS["text"]])
    batch = [ITEMS["call"], ITEMS["result"], ITEMS["reply"]]
    for _ in range(3):
        await session.add_items(copy.deepcopy(batch))
    assert await session.get_items() == [ITEMS["text"], *batch]


async def test_an_item_that_comes_again_later_is_in_its_place(session: HoldfastSession) -> None:
    again = [ITEMS["text"], ITEMS["reply"], ITEMS["text"], ITEMS["reply"]]
    await session.add_items(again[:2])
    await session.add_items(again[2:])
    assert await session.get_items() == again[:2]  # A retry: the history ends with it.
    await session.add_items([ITEMS["text"]])
    await session.add_items(again[:2])
    assert await session.get_items() == [*again[:2], ITEMS["text"], *again[:2]]


async def test_an_id_with_another_text_is_another_item(session: HoldfastSession) -> None:
    other = {**ITEMS["call"], "arguments": "{}"}
    await session.add_items([ITEMS["call"]])
    await session.add_items([other])
    await session.add_items([ITEMS["call"], other])
    assert len(await session.get_items()) == 2  # The second batch is what the history ends with.
    await session.add_items([other, ITEMS["call"]])
    found = await session.get_items()
    assert found == [ITEMS["call"], other, other, ITEMS["call"]]


async def test_a_popped_item_can_be_put_back(session: HoldfastSession, store: Store) -> None:
    await session.add_items([ITEMS["text"], ITEMS["reply"]])
    assert await session.pop_item() == ITEMS["reply"]
    await session.add_items([ITEMS["reply"]])
    assert await session.get_items() == [ITEMS["text"], ITEMS["reply"]]
    assert store.session("support-42").messages()[-1].id == ITEMS["reply"]["id"]


async def test_the_id_of_queued_input_is_not_taken_from_it(
    session: HoldfastSession, store: Store
) -> None:
    store.session("support-42").enqueue(Message.user("later", id=ITEMS["reply"]["id"]))
    await session.add_items([ITEMS["reply"]])
    assert await session.get_items() == [ITEMS["reply"]]


# --------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("item", [{"content": object()}, {"n": float("nan")}, "text", None, b"x"])
async def test_what_is_no_item_is_refused_by_its_index_and_nothing_is_stored(
    session: HoldfastSession, store: Store, item: object
) -> None:
    batch: list[Any] = [ITEMS["text"], item]
    with pytest.raises(UserError, match=r"items\[1\]"):
        await session.add_items(batch)
    assert await session.get_items() == []
    assert not list(store.sessions())
    await session.add_items([ITEMS["text"]])
    assert await session.get_items() == [ITEMS["text"]]


async def test_a_batch_over_the_limit_is_refused_whole(session: HoldfastSession) -> None:
    with pytest.raises(TooLarge, match="10001"):
        await session.add_items([ITEMS["text"]] * 10_001)
    assert await session.get_items() == []
