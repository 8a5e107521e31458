"""What PraisonAI's own stores lose, and these keep; each test is named after a loss."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from praisonaiagents.agent.interrupt import InterruptController

import holdfast
from holdfast import File, Message, Store, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.praisonai import (
    BotRunTimeout,
    BotSessionManager,
    DbSessionAdapter,
    DefaultSessionStore,
    LocalManagedAgent,
)
from holdfast.clock import SystemClock
from holdfast.errors import BadMessage, SessionBusy, StorageError, StoreUnavailable
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.testing.faults import FailingDisk, failing_disk
from holdfast.testing.legality import problems
from holdfast.url import Location

ROOT = Path(__file__).parents[4]


def contents(found: list[dict[str, Any]]) -> list[str]:
    return [item["content"] for item in found]


def texts(store: Store, session_id: str) -> list[str]:
    return [message.text for message in store.session(session_id, create=False).messages()]


def store_on(disk: FailingDisk, path: Path) -> Store:
    return Store(SQLiteBackend(Location("sqlite", os.fspath(path)), vfs=disk.name), SystemClock())


def killed(path: Path, program: str) -> None:
    """Run a program until it says that it is ready, then kill it."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import sys, holdfast\npath = {os.fspath(path)!r}\n{program}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        child.kill()


# ------------------------------------------------------------------------------- two writers


def test_two_writers_that_append(path: Path, store: Store) -> None:
    with holdfast.open(path, durability="process") as elsewhere:
        stores = [DefaultSessionStore(store), DefaultSessionStore(elsewhere)]

        def write(one: DefaultSessionStore, name: str) -> None:
            for number in range(25):
                one.add_user_message("s", f"{name} {number}")

        threads = [
            threading.Thread(target=write, args=(one, name))
            for one, name in zip(stores, "ab", strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = texts(store, "s")
    for name in "ab":
        assert [text for text in found if text.startswith(name)] == [
            f"{name} {number}" for number in range(25)
        ]


def test_two_writers_that_set_the_whole_history(store: Store) -> None:
    one, another = DefaultSessionStore(store), DefaultSessionStore(store)
    one.add_user_message("s", "first")
    mine, theirs = one.get_chat_history("s"), another.get_chat_history("s")
    theirs.append({"role": "assistant", "content": "theirs"})
    another.set_chat_history("s", theirs)
    mine.append({"role": "assistant", "content": "mine"})
    one.set_chat_history("s", mine)
    assert texts(store, "s") == ["first", "mine", "theirs"]
    mine.append({"role": "user", "content": "more of mine"})
    one.set_chat_history("s", mine)
    assert texts(store, "s") == ["first", "mine", "more of mine", "theirs"]
    assert contents(one.get_chat_history("s")) == texts(store, "s")


def test_a_history_that_is_set_shares_what_was_stored(store: Store) -> None:
    one = DefaultSessionStore(store)
    one.add_user_message("s", "first")
    history = [*one.get_chat_history("s"), {"role": "assistant", "content": "second"}]
    one.set_chat_history("s", history)
    assert len(store.session("s").branches()) == 1
    one.set_chat_history("s", history[1:])
    session = store.session("s")
    assert texts(store, "s") == ["second"]
    assert [message.text for message in session.messages(branch=1)] == ["first", "second"]


def test_metadata_by_keyword(path: Path, store: Store) -> None:
    """PraisonAI's adapter keeps it in memory, and its store rewrites what others set meanwhile."""
    with holdfast.open(path, durability="process") as elsewhere:
        one, another = DbSessionAdapter(store), DbSessionAdapter(elsewhere)
        one.update_session_metadata("s", model="small-1", cost=None)
        another.update_session_metadata("s", total_tokens=7)
        one.set_metadata("s", {"compute": {"id": 1}})
        assert DbSessionAdapter(elsewhere).get_metadata("s") == {
            "model": "small-1",
            "total_tokens": 7,
            "compute": {"id": 1},
        }


def test_entries_of_one_map_by_two_writers(store: Store) -> None:
    stores = [DefaultSessionStore(store), DefaultSessionStore(store)]

    def merge(one: DefaultSessionStore, name: str) -> None:
        for number in range(20):
            one.merge_session_metadata_map("s", "map", {f"{name}{number}": number})

    threads = [threading.Thread(target=merge, args=pair) for pair in zip(stores, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores[0].get_session("s").metadata["map"]) == 40


async def test_what_came_while_a_bot_answered(store: Store, scripted: Callable[..., Any]) -> None:
    one, another = BotSessionManager(store), BotSessionManager(store)

    def reply(prompt: str) -> Iterator[str]:
        another.record_passive("u", "meanwhile")
        yield f"re: {prompt}"

    await one.chat(scripted(reply), "u", "hello")
    assert contents(one.export_history("u")) == ["hello", "meanwhile", "re: hello"]


async def test_two_processes_that_answer_one_user(
    path: Path, store: Store, scripted: Callable[..., Any]
) -> None:
    with holdfast.open(path, durability="process") as elsewhere:
        agents = scripted(), scripted()
        one, another = BotSessionManager(store), BotSessionManager(elsewhere)
        await asyncio.gather(one.chat(agents[0], "u", "a"), another.chat(agents[1], "u", "b"))
    found = contents(one.export_history("u"))
    assert sorted(found[::2]) == ["a", "b"]
    assert found[1::2] == [f"0: {found[0]}!", f"2: {found[2]}!"]


# -------------------------------------------------------------------------------- crashes


def test_a_crash_in_mid_turn(path: Path, store: Store) -> None:
    killed(
        path,
        """
import asyncio
from holdfast.adapters.praisonai import BotSessionManager
class Agent:
    chat_history = []
    def chat(self, prompt):
        print("ready", flush=True)
        sys.stdin.read()
asyncio.run(BotSessionManager(holdfast.open(path)).chat(Agent(), "u", "Delete it", message_id="7"))
""",
    )
    assert contents(BotSessionManager(store).export_history("u")) == ["Delete it"]


async def test_a_message_that_is_delivered_again_after_a_crash_is_answered_once(
    path: Path, store: Store, scripted: Callable[..., Any]
) -> None:
    program = """
import asyncio
from holdfast.adapters.praisonai import BotSessionManager
class Agent:
    chat_history = []
    def chat(self, prompt):
        print("ready", flush=True)
        sys.stdin.read()
asyncio.run(BotSessionManager(holdfast.open(path)).chat(Agent(), "u", "hello", message_id="7"))
"""
    await asyncio.to_thread(killed, path, program)
    one = BotSessionManager(store)
    assert await one.chat(scripted(), "u", "hello", message_id="7") == "0: hello!"
    assert await one.chat(scripted(), "u", "hello", message_id="7") == ""
    assert await one.chat(scripted(), "u", "hello", message_id="8") == "2: hello!"
    assert contents(one.export_history("u")) == ["hello", "0: hello!", "hello", "2: hello!"]
    assert one.reset("u")
    assert await one.chat(scripted(), "u", "hello", message_id="7") == ""


async def test_a_message_that_is_delivered_to_two_processes_is_answered_once(
    path: Path, store: Store, scripted: Callable[..., Any]
) -> None:
    with holdfast.open(path, durability="process") as elsewhere:
        bots = BotSessionManager(store), BotSessionManager(elsewhere)
        replies = await asyncio.gather(
            *(bot.chat(scripted(), "u", "hello", message_id="7") for bot in bots)
        )
    assert sorted(replies) == ["", "0: hello!"]
    assert contents(bots[0].export_history("u")) == ["hello", "0: hello!"]


async def test_a_result_whose_call_is_beyond_the_limit(
    store: Store, scripted: Callable[..., Any]
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    agent, bot = scripted(), BotSessionManager(store, max_history=2)
    bot.seed_history(
        "u",
        [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "assistant", "content": "It is 2."},
        ],
    )
    await bot.chat(agent, "u", "Thanks")
    assert [item["role"] for item in agent.asked_with[0]] == ["assistant"]


def test_a_reply_that_was_being_streamed_to_the_store(path: Path, store: Store) -> None:
    killed(
        path,
        """
from holdfast.adapters.praisonai import DefaultSessionStore
store = holdfast.open(path)
one = DefaultSessionStore(store)
one.add_user_message("s", "Tell me")
text = ""
for number in range(2000):
    text += f"word {number} "
    one.upsert_partial_assistant_message("s", text)
print("ready", flush=True)
sys.stdin.read()
""",
    )
    one = DefaultSessionStore(store)
    found = one.get_session("s").messages
    assert [message.role for message in found] == ["user", "assistant"]
    assert found[1].content.startswith("word 0 word 1 ")
    assert len(found[1].content) > 4096
    assert found[1].metadata == {"partial": True}
    one.upsert_partial_assistant_message("s", "the whole reply", finalize=True)
    assert texts(store, "s") == ["Tell me", "the whole reply"]


def test_a_streamed_reply_is_in_the_history_of_others_as_it_was_left(store: Store) -> None:
    one = DefaultSessionStore(store)
    one.upsert_partial_assistant_message("s", "Hel")
    assert one.get_session("s").messages[0].metadata == {"partial": True}
    assert contents(one.get_chat_history("s")) == ["Hel"]
    one.add_user_message("s", "stop")
    messages = store.session("s").messages()
    assert [(m.text, m.status) for m in messages] == [("Hel", "partial"), ("stop", "complete")]
    one.upsert_partial_assistant_message("s", "Bye")
    one.upsert_partial_assistant_message("s", "Not so")
    one.upsert_partial_assistant_message("s", "Not so fast", finalize=True)
    assert texts(store, "s") == ["Hel", "stop", "Not so fast"]
    assert store.session("s").info().state == "done"


def test_a_reply_that_two_processes_stream_to_one_session(path: Path, store: Store) -> None:
    with holdfast.open(path, durability="process") as elsewhere:
        one, another = DefaultSessionStore(store), DefaultSessionStore(elsewhere)
        one.upsert_partial_assistant_message("s", "mine")
        with pytest.raises(SessionBusy, match="has an open turn"):
            another.upsert_partial_assistant_message("s", "theirs")
        another.add_assistant_message("s", "theirs, whole")
        one.upsert_partial_assistant_message("s", "mine, whole", finalize=True)
    assert sorted(texts(store, "s")) == ["mine, whole", "theirs, whole"]


# ------------------------------------------------------------------------------- streams


async def test_a_stream_that_its_consumer_left(store: Store, scripted: Callable[..., Any]) -> None:
    """PraisonAI's agent stores what was read until then, or nothing."""
    left, done = threading.Event(), threading.Event()

    def reply(prompt: str) -> Iterator[str]:
        yield "one "
        assert left.wait(60)
        yield "two "
        yield "three"
        done.set()

    managed = LocalManagedAgent(store, scripted(reply))
    async with aclosing(managed.stream("count")) as stream:
        async for chunk in stream:
            assert chunk == "one "
            break
    left.set()
    assert await asyncio.to_thread(done.wait, 60)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert texts(store, managed.session_id or "") == ["count", "one two three"]
    info = store.session(managed.session_id or "").info()
    assert (info.state, info.usage.total) == ("done", 5)


def test_a_stream_that_was_left_when_the_loop_ends(
    store: Store, scripted: Callable[..., Any]
) -> None:
    managed = LocalManagedAgent(store, scripted())

    async def main() -> None:
        async for _ in managed.stream("hello"):
            break

    asyncio.run(main())
    assert texts(store, managed.session_id or "") == ["hello", "0: hello!"]


def test_a_stream_that_was_left_by_a_loop_that_is_closed(
    store: Store, scripted: Callable[..., Any]
) -> None:
    closed = threading.Event()

    def reply(prompt: str) -> Iterator[str]:
        yield "one "
        assert closed.wait(60)
        yield "two"

    managed = LocalManagedAgent(store, scripted(reply))

    async def main() -> None:
        async with aclosing(managed.stream("count")) as stream:
            await anext(stream)

    loop = asyncio.new_event_loop()
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    loop.run_until_complete(main())
    loop.close()
    closed.set()
    executor.shutdown()
    assert texts(store, managed.session_id or "") == ["count", "one two"]


async def test_a_run_that_was_interrupted(store: Store, scripted: Callable[..., Any]) -> None:
    def reply(prompt: str) -> Iterator[str]:
        yield "one "
        managed.interrupt()
        yield "two "
        yield "three"

    managed = LocalManagedAgent(store, scripted(reply))
    assert await managed.execute("count") == "one two "
    session = store.session(managed.session_id or "")
    assert [(m.text, m.status) for m in session.messages()] == [
        ("count", "complete"),
        ("one two ", "partial"),
    ]
    assert [turn.state for turn in session.turns()] == ["cancelled"]
    managed = LocalManagedAgent(store, scripted())
    managed.resume_session(session.key or "")
    assert await managed.execute("go on") == "2: go on!"


async def test_a_run_that_took_too_long_is_kept_as_far_as_it_came(
    store: Store, scripted: Callable[..., Any]
) -> None:
    late = threading.Event()

    def reply(prompt: str) -> Iterator[str]:
        yield "one "
        assert late.wait(60)
        yield "two "
        yield "three"

    managed = LocalManagedAgent(store, scripted(reply))
    with pytest.raises(TimeoutError):
        await managed.execute("count", timeout=0.05)
    late.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    session = store.session(managed.session_id or "")
    prompt, partial = session.messages()
    assert (prompt.text, partial.status) == ("count", "partial")
    assert partial.text in {"one ", "one two "}
    assert session.turns()[-1].state == "cancelled"


async def test_a_run_that_failed(store: Store, scripted: Callable[..., Any]) -> None:
    """PraisonAI's stream ends as if the reply was whole."""

    def reply(prompt: str) -> Iterator[str]:
        yield "one "
        raise ConnectionError("the model is gone")

    managed, bot = LocalManagedAgent(store, scripted(reply)), BotSessionManager(store)
    with pytest.raises(ConnectionError, match="the model is gone"):
        await managed.execute("count")
    with pytest.raises(ConnectionError, match="the model is gone"):
        await bot.chat(scripted(reply), "u", "count")
    for id, expected in ((managed.session_id or "", ["count", "one "]), ("bot_u", ["count"])):
        session = store.session(id, create=False)
        assert [message.text for message in session.messages()] == expected
        assert session.turns()[-1].error == "ConnectionError: the model is gone"


async def test_what_the_tools_of_an_agent_did(store: Store, scripted: Callable[..., Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    used = [
        {"role": "assistant", "content": "Let me add. ", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]

    class Agent(type(scripted())):  # type: ignore[misc]
        def _pieces(self, prompt: str) -> Iterator[str]:
            self.chat_history += [{"role": "user", "content": prompt}, *used]
            yield from ("Let me add. ", "It is 2.")
            self.chat_history.append({"role": "assistant", "content": "It is 2."})

    managed, bot = LocalManagedAgent(store, Agent()), BotSessionManager(store)
    await managed.execute("1 + 1?")
    session = store.session(managed.session_id or "")
    assert [m.role for m in session.messages()] == ["user", "assistant", "tool", "assistant"]
    assert session.messages()[-1].text == "Let me add. It is 2."
    await bot.chat(Agent(), "u", "1 + 1?")
    assert [item["role"] for item in bot.export_history("u")] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    for one in (session, store.session("bot_u")):
        for provider in ("openai", "anthropic", "gemini"):
            window = one.window(provider=provider)
            assert problems(provider, window.messages, window.system) == []


# ---------------------------------------------------------------------------- names and texts


@pytest.mark.parametrize(
    ("one", "another"),
    [("a/b", "a_b"), ("A", "a"), ("x" * 4096, "x" * 4095), (os.fsdecode(b"\xff"), "\ufffd")],
    ids=["path", "case", "long", "byte"],
)
def test_colliding_keys(store: Store, one: str, another: str) -> None:
    """PraisonAI's store gives two ids one file, and cannot open that of a long one."""
    sessions = DefaultSessionStore(store)
    for id in (one, another):
        sessions.add_user_message(id, f"of {id}")
    assert contents(sessions.get_chat_history(one)) == [f"of {one}"]
    assert contents(sessions.get_chat_history(another)) == [f"of {another}"]


def test_bytes_that_are_not_utf_8(store: Store) -> None:
    text = "half a \ud83d, a \0 and " + os.fsdecode(b"caf\xe9")
    sessions = DefaultSessionStore(store)
    assert sessions.add_user_message("s", text, {"path": text})
    assert contents(DefaultSessionStore(store).get_chat_history("s")) == [text]
    assert sessions.get_session("s").messages[0].metadata == {"path": text}


async def test_two_sessions_of_one_second(store: Store, scripted: Callable[..., Any]) -> None:
    agents = [LocalManagedAgent(store, scripted()) for _ in range(10)]
    await asyncio.gather(*(agent.execute("hello") for agent in agents))
    assert len({agent.session_id for agent in agents}) == 10
    assert len(agents[0].list_sessions()) == 10


def test_messages_beyond_the_limit(store: Store) -> None:
    """PraisonAI's store puts a summary in place of all but the last hundred."""
    sessions = DefaultSessionStore(store)
    for number in range(130):
        sessions.add_user_message("s", f"{number}")
    assert len(sessions.get_chat_history("s")) == 130
    assert contents(sessions.get_working_history("s")) == [f"{n}" for n in range(30, 130)]


async def test_messages_beyond_the_limit_of_a_bot(
    store: Store, scripted: Callable[..., Any]
) -> None:
    agent, bot = scripted(), BotSessionManager(store, max_history=4)
    for number in range(5):
        await bot.chat(agent, "u", f"{number}")
    assert [len(history) for history in agent.asked_with] == [0, 2, 4, 4, 4]
    assert len(bot.export_history("u")) == 10


# ------------------------------------------------------------------------ what the store promises


def test_a_text_is_stored_once(store: Store) -> None:
    text = "a long answer " * 700
    DefaultSessionStore(store).add_assistant_message("s", text, {"lang": "en"})
    message = store.session("s").messages()[0]
    assert msgspec.json.encode(message).count(text.encode()) == 1


def test_deleted_sessions_are_in_the_trash_and_cleared_messages_on_their_branch(
    store: Store,
) -> None:
    sessions = DefaultSessionStore(store)
    sessions.add_user_message("s", "one")
    sessions.clear_session("s")
    sessions.add_user_message("s", "two")
    assert [message.text for message in store.session("s").messages(branch=1)] == ["one"]
    sessions.delete_session("s")
    assert not sessions.session_exists("s")
    store.restore("s")
    assert contents(sessions.get_chat_history("s")) == ["two"]


def test_a_session_that_cannot_be_read_is_not_an_empty_one(store: Store) -> None:
    sessions = DefaultSessionStore(store)
    sessions.add_user_message("s", "one")
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: sessions.get_chat_history("s"),
        lambda: sessions.session_exists("s"),
        lambda: sessions.add_user_message("s", "two"),
        sessions.list_sessions,
        lambda: sessions.get_session_model("s"),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            call()


def test_what_is_no_message_is_refused_and_nothing_is_stored(store: Store) -> None:
    sessions = DefaultSessionStore(store)
    sessions.add_user_message("s", "one")
    with pytest.raises(BadMessage, match="narrator"):
        sessions.add_message("s", "narrator", "Meanwhile")
    with pytest.raises(BadMessage, match="not JSON"):
        sessions.add_user_message("s", "two", {"when": object()})
    with pytest.raises(BadMessage, match="narrator"):
        sessions.set_chat_history("s", [{"role": "narrator", "content": "Meanwhile"}])
    assert texts(store, "s") == ["one"]


async def test_a_head_move_is_refused_while_another_turn_is_open(store: Store) -> None:
    sessions, bot = DefaultSessionStore(store), BotSessionManager(store)
    bot.record_passive("u", "one")
    with store.session("bot_u").turn() as turn:
        turn.user("from elsewhere")
        moves: list[Callable[[], object]] = [
            lambda: bot.reset("u"),
            lambda: sessions.clear_session("bot_u"),
            lambda: sessions.set_chat_history("bot_u", []),
        ]
        for move in moves:
            with pytest.raises(SessionBusy, match="has an open turn"):
                move()
    assert texts(store, "bot_u") == ["one", "from elsewhere"]


def test_what_another_program_wrote_is_continued(store: Store) -> None:
    session = store.session("chat", title="A chat", model="large-2")
    session.append(
        Message.user("Look"),
        Message.assistant(
            [Thinking("so", "sig")], tool_calls=[ToolCall("c1", "see", {"a": 1})], usage=Usage(5, 3)
        ),
        Message(role="tool", parts=(ToolResult("c1", "red"), ToolResult("c2", "blue"))),
        Message.user(["And this?", File("dot.png", "image/png", b"png")]),
    )
    session.summarize("They looked.")
    sessions = DefaultSessionStore(store)
    found = sessions.get_chat_history("chat")
    assert [item["role"] for item in found] == ["user", "assistant", "tool", "tool", "user"]
    assert found[1]["tool_calls"][0]["function"] == {"name": "see", "arguments": '{"a":1}'}
    assert [item.get("tool_call_id") for item in found[2:4]] == ["c1", "c2"]
    assert found[4]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert sessions.get_working_history("chat") == [{"role": "system", "content": "They looked."}]
    assert sessions.get_session("chat").metadata == {"title": "A chat"}
    assert sessions.get_session_model("chat") == "large-2"
    sessions.add_assistant_message("chat", "A dot.")
    assert session.messages()[-1].text == "A dot."
    window = session.window(provider="anthropic")
    assert problems("anthropic", window.messages, window.system) == []


def test_scopes_and_tenants_are_apart(path: Path) -> None:
    with holdfast.open(path, tenant="a") as one, holdfast.open(path, tenant="b") as another:
        work, play = DefaultSessionStore(one, scope="work"), DefaultSessionStore(one, scope="play")
        work.add_user_message("s", "secret")
        assert [item["id"] for item in work.list_sessions()] == ["s"]
        assert play.list_sessions() == []
        assert play.search("secret") == []
        assert not DefaultSessionStore(another).session_exists("s")
        bots = BotSessionManager(one, scope="work"), BotSessionManager(one, scope="play")
        bots[0].record_passive("u", "hello")
        assert (bots[1].reset_all(), bots[0].reset_all()) == (0, 1)


# ------------------------------------------------------------------- one agent, several users


class SlowAgent:
    """An agent that waits before it adds to its history; `begun` and `go` are of each prompt."""

    def __init__(self, *slow: str) -> None:
        self.chat_history: list[dict[str, Any]] = []
        self.begun = {prompt: threading.Event() for prompt in slow}
        self.go = {prompt: threading.Event() for prompt in slow}

    def chat(self, prompt: str) -> str:
        """Return a reply, when it may."""
        if prompt in self.go:
            self.begun[prompt].set()
            assert self.go[prompt].wait(60)
        for role, text in (("user", prompt), ("assistant", f"re: {prompt}")):
            self.chat_history.append({"role": role, "content": text})
        return f"re: {prompt}"


@pytest.mark.parametrize("run_timeout", [None, 0.05])
async def test_what_one_user_said_is_not_in_the_history_of_the_next(
    store: Store, run_timeout: float | None
) -> None:
    """The run of the first goes on, though nobody waits for it any more."""
    agent, bots = SlowAgent("of Ann", "of Bob"), BotSessionManager(store)
    hasty = BotSessionManager(store, run_timeout=run_timeout) if run_timeout else bots
    hasty._agent_locks = bots._agent_locks  # noqa: SLF001 - they are one manager's, but for the time
    ann = asyncio.create_task(hasty.chat(agent, "ann", "of Ann"))
    await asyncio.to_thread(agent.begun["of Ann"].wait, 60)
    if run_timeout is None:
        ann.cancel()
    with pytest.raises((asyncio.CancelledError, BotRunTimeout)):
        await ann
    bob = asyncio.create_task(bots.chat(agent, "bob", "of Bob"))
    await asyncio.sleep(0)
    agent.go["of Ann"].set()
    await asyncio.to_thread(agent.begun["of Bob"].wait, 60)
    agent.go["of Bob"].set()
    assert await bob == "re: of Bob"
    assert contents(bots.export_history("bob")) == ["of Bob", "re: of Bob"]
    assert contents(bots.export_history("ann")) == ["of Ann"]
    assert agent.chat_history == []


async def test_a_run_that_was_left_is_not_in_the_next_session(store: Store) -> None:
    agent = SlowAgent("first")
    managed = LocalManagedAgent(store, agent)
    left = asyncio.create_task(managed.execute("first"))
    await asyncio.to_thread(agent.begun["first"].wait, 60)
    first = managed.session_id or ""
    left.cancel()
    managed.reset_session()
    next_run = asyncio.create_task(managed.execute("second"))
    await asyncio.wait([next_run], timeout=0.1)
    agent.go["first"].set()
    assert await next_run == "re: second"
    await asyncio.get_running_loop().shutdown_default_executor()
    assert texts(store, first) == ["first", "re: first"]
    assert texts(store, managed.session_id or "") == ["second", "re: second"]
    assert contents(agent.chat_history) == ["second", "re: second"]


# --------------------------------------------------------------------------- delivered again


async def test_a_message_whose_chat_and_thread_look_like_anothers(
    store: Store, scripted: Callable[..., Any]
) -> None:
    bot, agent = BotSessionManager(store), scripted()
    for prompt, chat, thread in (("one", "a:b", "c"), ("two", "a", "b:c")):
        found = await bot.chat(agent, "u", prompt, chat_id=chat, thread_id=thread, message_id="1")
        assert found.endswith(f"{prompt}!")


async def test_a_message_that_failed_is_answered_after_a_later_one(
    store: Store, scripted: Callable[..., Any]
) -> None:
    def fail(prompt: str) -> Iterator[str]:
        raise ConnectionError("the model is gone")
        yield prompt

    bot = BotSessionManager(store)
    with pytest.raises(ConnectionError):
        await bot.chat(scripted(fail), "u", "seven", message_id="7")
    assert await bot.chat(scripted(), "u", "eight", message_id="8") == "1: eight!"
    assert await bot.chat(scripted(), "u", "seven", message_id="7") == "0: seven!"
    assert await bot.chat(scripted(), "u", "seven", message_id="7") == ""


async def test_an_answer_of_which_only_the_call_was_stored(
    path: Path, store: Store, scripted: Callable[..., Any]
) -> None:
    """What is said beside a call is no answer: that is whole with its last message."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Let me see", "tool_calls": [call]}
    ]
    said.append({"role": "tool", "tool_call_id": "c1", "content": "rain"})
    said.append({"role": "assistant", "content": object()})

    class Agent(SlowAgent):
        def chat(self, prompt: str) -> str:
            self.chat_history += [{"role": "user", "content": prompt}, *said]
            return "It rains"

    bot = BotSessionManager(store)
    with pytest.raises(BadMessage):
        await bot.chat(Agent(), "u", "Weather?", message_id="7")
    assert contents(bot.export_history("u")) == ["Weather?", "Let me see", "rain"]
    said[-1]["content"] = "It rains"
    assert await bot.chat(Agent(), "u", "Weather?", message_id="7") == "It rains"


def test_a_text_that_was_streamed_while_the_disk_was_full(path: Path) -> None:
    with failing_disk() as disk, store_on(disk, path) as store:
        one = DefaultSessionStore(store)
        one.add_user_message("s", "hello")
        one.upsert_partial_assistant_message("s", "one ")
        disk.fail("write", lasting=True)
        text = "one " + "x" * 1_000_000
        for _ in range(2):
            with pytest.raises(StorageError):
                one.upsert_partial_assistant_message("s", text)
        disk.heal()
        one.upsert_partial_assistant_message("s", f"{text} end", finalize=True)
        assert contents(one.get_chat_history("s")) == ["hello", f"{text} end"]


# -------------------------------------------------------------------------- rewritten histories


def test_what_was_said_after_another_writer_rewrote_the_history(store: Store) -> None:
    one, another = DefaultSessionStore(store), DefaultSessionStore(store)
    for text in ("a", "b", "c"):
        one.add_user_message("s", text)
    history = one.get_chat_history("s")
    another.set_chat_history("s", [{"role": "user", "content": "a to c"}])
    another.add_user_message("s", "after it")
    one.set_chat_history("s", history[1:])
    assert texts(store, "s") == ["b", "c", "a to c", "after it"]


def test_two_writers_that_change_one_history_store_no_message_twice(store: Store) -> None:
    one, another = DefaultSessionStore(store), DefaultSessionStore(store)
    for text in ("a", "b", "b", "c"):
        one.add_user_message("s", text)
    histories = [each.get_chat_history("s")[1:] for each in (one, another)]
    for name, each, history in zip(("one", "two"), (one, another), histories, strict=True):
        each.set_chat_history("s", [{"role": "user", "content": f"{name}'s a"}, *history])
    assert texts(store, "s") == ["two's a", "b", "b", "c", "one's a"]


def test_a_history_that_is_set_is_not_behind_the_summary_of_another_writer(store: Store) -> None:
    one, another = DefaultSessionStore(store), DefaultSessionStore(store)
    one.add_user_message("s", "a")
    history = one.get_chat_history("s")
    another.append_compaction_checkpoint("s", "a was said")
    one.set_chat_history("s", [{"role": "user", "content": "instead"}])
    assert texts(store, "s") == ["instead"]
    assert history == [{"role": "user", "content": "a"}]


def test_a_run_after_an_interrupt_that_came_between_two(store: Store) -> None:
    class Agent(SlowAgent):
        def __init__(self) -> None:
            super().__init__()
            self.interrupt_controller = InterruptController()

    agent = Agent()
    managed = LocalManagedAgent(store, agent)
    asyncio.run(managed.execute("one"))
    managed.interrupt()
    assert not agent.interrupt_controller.is_set()
