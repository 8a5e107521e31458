"""What other histories of messages lose or mix up, and this one does not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import holdfast
from holdfast import Message, Store
from holdfast.adapters.langchain import HoldfastChatMessageHistory
from holdfast.errors import IdConflict, SessionBusy
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply

ROOT: Final = Path(__file__).parents[4]

WRITER: Final = """
import sys
import holdfast
from langchain_core.messages import AIMessage, HumanMessage
from holdfast.adapters.langchain import HoldfastChatMessageHistory

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with holdfast.open(path, durability="process") as store:
    history = HoldfastChatMessageHistory("shared", store)
    for number in range(count):
        pair = [HumanMessage(f"ask {name} {number}", id=f"ask-{name}-{number}"),
                AIMessage(f"answer {name} {number}", id=f"answer-{name}-{number}")]
        history.add_messages(pair)
        history.add_messages(pair)
        print(number, flush=True)
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_messages_that_are_added_again_are_stored_once(history: HoldfastChatMessageHistory) -> None:
    pair = [HumanMessage("Where?", id="1"), AIMessage("There.", id="2")]
    history.add_messages(pair)
    history.add_messages(pair)
    history.add_messages([*pair, HumanMessage("And now?", id="3")])
    assert [message.id for message in history.messages] == ["1", "2", "3"]


def test_equal_messages_without_ids_are_as_many_as_were_added(
    history: HoldfastChatMessageHistory,
) -> None:
    again = HumanMessage("Again.")
    history.add_messages([again, again])
    history.add_message(again)
    assert history.messages == [again] * 3
    assert again.id is None


def test_another_message_under_a_stored_id_is_refused(history: HoldfastChatMessageHistory) -> None:
    history.add_message(HumanMessage("one", id="1"))
    with pytest.raises(IdConflict):
        history.add_messages([HumanMessage("two", id="2"), HumanMessage("another", id="1")])
    assert history.messages == [HumanMessage("one", id="1")]


def test_four_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    writers = [start_writer(path, name, 12) for name in "abcd"]
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0

    with holdfast.open(path) as store:
        found = [str(one.content) for one in HoldfastChatMessageHistory("shared", store).messages]
    assert len(found) == 4 * 12 * 2
    for name in "abcd":
        own = [text for text in found if f" {name} " in text]
        expected = [f"{what} {name} {number}" for number in range(12) for what in ("ask", "answer")]
        assert own == expected
    for ask, answer in zip(found[::2], found[1::2], strict=True):
        assert ask.removeprefix("ask") == answer.removeprefix("answer")


def test_what_was_added_before_a_kill_is_there(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    writer = start_writer(path, "a", 100_000)
    assert writer.stdout is not None
    added = [int(writer.stdout.readline()) for _ in range(5)]
    writer.send_signal(signal.SIGKILL)
    added += [int(number) for number in writer.stdout.read().splitlines()]
    writer.wait()
    writer.stdout.close()

    with holdfast.open(path) as store:
        found = [str(one.content) for one in HoldfastChatMessageHistory("shared", store).messages]
    assert len(found) % 2 == 0
    assert len(found) // 2 in {len(added), len(added) + 1}
    assert found[: 2 * len(added) : 2] == [f"ask a {number}" for number in added]


def test_clearing_under_another_programs_turn_is_refused(
    store: Store, history: HoldfastChatMessageHistory
) -> None:
    history.add_user_message("one")
    with store.session("support-42").turn() as turn:
        turn.assistant("two")
        with pytest.raises(SessionBusy):
            history.clear()
        with pytest.raises(SessionBusy):
            asyncio.run(history.aclear())
        history.add_user_message("three")
    assert [str(message.content) for message in history.messages] == ["one", "two", "three"]


async def test_cancelled_messages_are_stored_whole_or_not_at_all(
    store: Store, history: HoldfastChatMessageHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.add_user_message("zero")
    for steps in range(12):
        pair = [HumanMessage("one", id=f"one-{steps}"), AIMessage("two", id=f"two-{steps}")]
        task = asyncio.create_task(history.aadd_messages(pair))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await history.aadd_messages(pair)
    ids = [message.id for message in await history.aget_messages()]
    pairs = [f"{name}-{number}" for number in range(12) for name in ("one", "two")]
    assert ids == [None, *pairs]


@pytest.mark.parametrize(
    ("one", "other"),
    [("a/b", "a_b"), ("A", "a"), ("a", "a\x00"), ("\ud800", "\udfff"), ("é", "e\u0301")],
)
def test_histories_with_similar_ids_are_apart(store: Store, one: str, other: str) -> None:
    HoldfastChatMessageHistory(one, store).add_user_message("one")
    HoldfastChatMessageHistory(other, store).add_user_message("other")
    assert HoldfastChatMessageHistory(one, store).messages == [HumanMessage("one")]
    HoldfastChatMessageHistory(one, store).clear()
    assert HoldfastChatMessageHistory(other, store).messages == [HumanMessage("other")]


def test_an_id_of_four_kilobytes_is_a_key(store: Store) -> None:
    HoldfastChatMessageHistory("x" * 4096, store).add_user_message("one")
    assert HoldfastChatMessageHistory("x" * 4096, store).messages == [HumanMessage("one")]


def test_a_reply_that_a_crash_cut_off_is_there(store: Store) -> None:
    history = HoldfastChatMessageHistory("support-42", store)
    history.add_user_message("Where?")
    store.session("support-42").append(Message.assistant("It is at th", status="partial"))
    assert [str(message.content) for message in history.messages] == ["Where?", "It is at th"]


def test_tenants_are_apart(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agent.db", tenant="one") as one:
        HoldfastChatMessageHistory("x", one).add_user_message("secret")
    with holdfast.open(tmp_path / "agent.db", tenant="other") as other:
        assert HoldfastChatMessageHistory("x", other).messages == []


def test_threads_lose_and_double_nothing(history: HoldfastChatMessageHistory) -> None:
    def write(name: str) -> None:
        for number in range(20):
            history.add_messages([HumanMessage(f"{name} {number}"), AIMessage(f"{name} {number}")])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: list[Any] = [message.content for message in history.messages]
    assert found[::2] == found[1::2]
    for name in "abcd":
        own = [text for text in found[::2] if text.startswith(name)]
        assert own == [f"{name} {number}" for number in range(20)]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_half_of_a_reply_that_a_crash_cut_off_stays_before_what_is_added(
    store: Store, history: HoldfastChatMessageHistory, tmp_path: Path, *, asynchronous: bool
) -> None:
    crash_in_a_reply(tmp_path / "agent.db", "support-42")
    if asynchronous:
        await history.aadd_messages([HumanMessage("And?")])
    else:
        history.add_messages([HumanMessage("And?")])
    store.session("support-42").recover()
    assert [message.text for message in store.session("support-42").messages()] == [
        ASKED,
        HALF,
        "And?",
    ]


async def test_half_of_a_reply_that_a_crash_cut_off_is_read(tmp_path: Path) -> None:
    crash_in_a_reply(tmp_path / "agent.db", "one")
    crash_in_a_reply(tmp_path / "agent.db", "two")
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        read = HoldfastChatMessageHistory("one", store).messages
        also = await HoldfastChatMessageHistory("two", store).aget_messages()
    assert [m.content for m in read] == [m.content for m in also] == [ASKED, HALF]
