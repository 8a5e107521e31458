"""What other processes do, and what is left when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from agents import Runner

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.testing import legality
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply
from tests.adapters.frameworks.openai_agents.scripted import agent, reply

RUN: Final = """
import asyncio, sys, time
import holdfast
from agents import Runner, function_tool, set_tracing_disabled
from holdfast.adapters.openai_agents import HoldfastSession
from tests.adapters.frameworks.openai_agents.scripted import agent, call, reply

set_tracing_disabled(True)

@function_tool
def quick() -> str:
    return "found it"

@function_tool
def ship() -> str:
    print("shipping", flush=True)
    time.sleep(600)
    return "shipped"

async def main(store):
    parcels = agent(
        [call("quick")], [call("ship")], [reply("Shipped.")], tools=[quick, ship]
    )
    await Runner.run(parcels, "Ship it.", session=HoldfastSession("order-1", store))

with holdfast.open(sys.argv[1]) as store:
    asyncio.run(main(store))
"""
ADD: Final = """
import asyncio, sys
import holdfast
from holdfast.adapters.openai_agents import HoldfastSession

async def main(store, name):
    session = HoldfastSession("shared", store)
    for number in range(40):
        batch = [{"role": "user", "content": f"{name} {number} {part}"} for part in range(3)]
        batch.append({
            "id": f"msg_{name}{number:040}", "type": "message", "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": f"{name} {number} 3", "annotations": []}],
        })
        await session.add_items(batch)
        if number % 4 == 0:
            await session.get_items(limit=5)

sys.stdin.readline()
with holdfast.open(sys.argv[1], durability="process") as store:
    asyncio.run(main(store, sys.argv[2]))
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_a_run_that_was_killed_inside_a_tool_is_continued(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with start(RUN, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "shipping\n"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL

    with holdfast.open(path) as store:
        session = HoldfastSession("order-1", store)
        left = await session.get_items()
        # The SDK stores a step when its tools have ended: the second call was not stored.
        types = [item.get("type", item.get("role")) for item in left]
        assert types == ["user", "function_call", "function_call_output"]
        assert left[2]["output"] == "found it"
        parcels = agent([reply("Nothing was shipped yet.")])
        await Runner.run(parcels, "What happened?", session=session)
        assert parcels.model.inputs[0] == [*left, {"role": "user", "content": "What happened?"}]
        items = await session.get_items()
        assert items[:3] == left
        assert len(items) == 5
        ids = [message.id for message in store.session("order-1").messages()]
        assert len(set(ids)) == 5
        assert not legality.problems("openai-responses", items)
        assert not store.verify()


async def test_items_that_two_processes_add_at_once_are_all_there_and_whole(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "agent.db")
    with start(ADD, path, "left") as left, start(ADD, path, "right") as right:
        for process in (left, right):
            process.communicate("go\n", timeout=120)
    assert (left.returncode, right.returncode) == (0, 0)

    with holdfast.open(path) as store:
        messages = store.session("shared").messages()
        said = [message.text.split() for message in messages]
        assert len(said) == 2 * 40 * 4
        for name in ("left", "right"):
            own = [(int(number), int(part)) for who, number, part in said if who == name]
            assert own == [(number, part) for number in range(40) for part in range(4)]
        for at in range(0, len(said), 4):
            assert len({(who, number) for who, number, _ in said[at : at + 4]}) == 1
        assert [message.seq for message in messages] == list(range(1, len(said) + 1))
        assert not store.verify()


@pytest.mark.parametrize("by_id", [False, True])
async def test_half_of_a_reply_that_a_crash_cut_off_stays_before_what_is_added(
    tmp_path: Path, *, by_id: bool
) -> None:
    path = tmp_path / "agent.db"
    with holdfast.open(path, durability="process") as store:
        id = store.session("support-42").id
        crash_in_a_reply(path, "support-42")
        session = HoldfastSession(id if by_id else "support-42", store)
        await session.add_items([{"role": "user", "content": "And?"}])
        store.session("support-42").recover()
        items = await session.get_items()
    assert [item["content"] for item in items] == [ASKED, HALF, "And?"]
