"""What other processes do, and what is left when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.testing import legality
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply
from tests.adapters.frameworks.langgraph.checkpoints import config, messages_at, put, read
from tests.adapters.frameworks.langgraph.graphs import THREAD, agent

RUN: Final = """
import asyncio, sys, time
from langchain_core.tools import tool
import holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.frameworks.langgraph.graphs import THREAD, agent

@tool
def ship(parcel: int) -> str:
    "Ship a parcel."
    print("shipping", flush=True)
    time.sleep(600)
    return "never"

with holdfast.open(sys.argv[1]) as store:
    graph = agent(HoldfastSaver(store), ship)
    question = {"messages": [("user", "Ship it.")]}
    if sys.argv[2] == "async":
        asyncio.run(graph.ainvoke(question, THREAD, durability="sync"))
    else:
        graph.invoke(question, THREAD, durability="sync")
"""

TALK: Final = """
import sys
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
import holdfast
from holdfast.adapters.langgraph import HoldfastSaver

name = sys.argv[2]

def reply(state):
    asked = state["messages"][-1].id
    return {"messages": [AIMessage(f"reply to {asked}", id=f"{asked}/reply")]}

builder = StateGraph(MessagesState)
builder.add_node("reply", reply)
builder.add_edge(START, "reply")
builder.add_edge("reply", END)
with holdfast.open(sys.argv[1], durability="process") as store:
    graph = builder.compile(checkpointer=HoldfastSaver(store))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(25):
        asked = HumanMessage(f"{name} {number}", id=f"{name}/{number}")
        graph.invoke({"messages": [asked]}, {"configurable": {"thread_id": "shared"}})
"""

REWRITE: Final = """
import os, signal, sys
from langchain_core.messages import HumanMessage
import holdfast
from holdfast import Session
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.frameworks.langgraph.checkpoints import put

replace = Session.replace

def replace_and_die(session, *arguments, **more):
    replace(session, *arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)

with holdfast.open(sys.argv[1]) as store:
    saver = HoldfastSaver(store)
    one, two = HumanMessage("1", id="1"), HumanMessage("2", id="2")
    at = put(saver, {"messages": [one, two], "plan": "p" * 500})
    saver.put_writes(at, [("plan", "written")], "task")
    Session.replace = replace_and_die
    put(saver, {"messages": [two] if sys.argv[2] == "trim" else [], "plan": "next"}, at)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_graph_that_was_killed_in_a_tool_resumes_at_the_tool(tmp_path: Path, way: str) -> None:
    path = tmp_path / "agent.db"
    with start(RUN, str(path), way) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "shipping\n"
        process.send_signal(signal.SIGKILL)
    runs = []

    @tool
    def ship(parcel: int) -> str:
        """Ship a parcel."""
        runs.append(parcel)
        return f"parcel {parcel} shipped"

    with holdfast.open(path) as store:
        graph = agent(HoldfastSaver(store), ship)
        state = graph.get_state(THREAD)
        assert state.next == ("tools",)
        assert [message.type for message in state.values["messages"]] == ["human", "ai"]
        result = graph.invoke(None, THREAD)
        assert result["messages"][-1].content == "Done: parcel 7 shipped"
        session = store.session("order-1")
        roles = [message.role for message in session.messages()]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert runs == [7]
        for provider in legality.PROVIDERS:
            window = session.window(provider=provider)
            assert legality.problems(provider, window.messages, window.system) == []
        assert store.verify() == []


def test_two_processes_on_one_thread_lose_no_message(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    names = ("one", "two", "three")
    processes = [start(TALK, str(path), name) for name in names]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    for process in processes:
        process.communicate()
    with holdfast.open(path) as store:
        found = [message.id for message in store.session("shared").messages()]
        asked = [f"{name}/{number}" for name in names for number in range(25)]
        assert Counter(found) == Counter([*asked, *(f"{id}/reply" for id in asked)])
        for id in asked:
            assert found.index(id) < found.index(f"{id}/reply")
        shown = read(HoldfastSaver(store), {"configurable": {"thread_id": "shared"}})
        listed = [message.id for message in shown.checkpoint["channel_values"]["messages"]]
        assert listed == found
        assert store.verify() == []


@pytest.mark.parametrize(("way", "left"), [("trim", ["2"]), ("clear", [])])
def test_the_state_beside_the_messages_survives_a_crash_in_a_rewrite(
    tmp_path: Path, way: str, left: list[str]
) -> None:
    path = tmp_path / "agent.db"
    with start(REWRITE, str(path), way) as process:
        assert process.wait(120) == -signal.SIGKILL
    with holdfast.open(path, durability="process") as store:
        saver = HoldfastSaver(store)
        found = read(saver, config())
        assert [one.id for one in found.checkpoint["channel_values"]["messages"]] == left
        assert found.checkpoint["channel_values"]["plan"] == "p" * 500
        assert found.pending_writes == [("task", "plan", "written")]
        whole = [message.id for message in messages_at(HoldfastSaver(store), found.config)]
        assert whole == ["1", "2"]
        rest = found.checkpoint["channel_values"]["messages"]
        put(saver, {"messages": [*rest, HumanMessage("3", id="3")], "plan": "next"}, found.config)
        after = messages_at(HoldfastSaver(store), config())
        assert [message.id for message in after] == [*left, "3"]
        store.session("t").clear()
        assert HoldfastSaver(store).get_tuple(config()) is None
        assert store.verify() == []


def test_the_half_reply_of_a_crashed_turn_comes_before_what_the_graph_says(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    crash_in_a_reply(path, "order-1")

    def ship(parcel: int) -> str:
        """Ship a parcel."""
        return "shipped"

    with holdfast.open(path, durability="process") as store:
        agent(HoldfastSaver(store), ship).invoke({"messages": [("user", "Ship it.")]}, THREAD)
        texts = [message.text for message in store.session("order-1").messages()]
    assert texts == [ASKED, HALF, "Ship it.", "", "shipped", "Done: shipped"]
