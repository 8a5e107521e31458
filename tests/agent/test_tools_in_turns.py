"""The built-in tools in the hands of a real agent, over a real store in the same folder."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.agent import Agent, Limits
from holdfast.agent.approval import rules
from holdfast.agent.events import ToolEnded, TurnEnded
from holdfast.agent.tools.builtin import workspace_tools
from holdfast.agent.tools.goal_tools import goal_tools
from holdfast.agent.tools.protocol import Approver, Ask
from holdfast.agent.tools.session_tools import session_tools
from holdfast.aio import AsyncStore
from holdfast.testing.scripted_model import ScriptedModel, call, calls, say

_PATIENCE = 30.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("def one():\n    return 2\n")
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with holdfast.open(root / "agent.db", durability="process") as opened:
        yield opened


def agent_of(
    model: ScriptedModel, store: Store, root: Path, approve: Approver | None = None
) -> Agent:
    tools = (
        *workspace_tools(str(root), output=2_000),
        *session_tools(AsyncStore(store), output=2_000),
        *goal_tools(),
    )
    limits = Limits(tool_output=2_000)
    return Agent(model, tools=tools, approve=approve, limits=limits, titles=False)


def test_an_agent_works_on_files_with_commands_and_long_outputs(store: Store, root: Path) -> None:
    asked: list[str] = []

    async def user(ask: Ask) -> bool | str:
        asked.append(ask.what)
        return True if ask.call.name == "edit_file" else "rather not"

    model = ScriptedModel(
        calls(
            ("c1", "search_files", {"text": "return"}),
            ("c2", "read_file", {"path": "agent.db"}),
            ("c3", "read_file", {"path": "../x"}),
        ),
        calls(
            ("c4", "edit_file", {"path": "a.py", "old": "return 2", "new": "return 1"}),
            ("c5", "run_command", {"command": "rm -rf ."}),
            ("c6", "run_command", {"command": "seq 20000"}),
        ),
        say("Done"),
    )
    session = store.create(cwd=str(root))
    with agent_of(model, store, root, rules(commands=["seq"], otherwise=user)) as agent:
        result = agent.run(session, "Mend one()")
    assert result.state == "sealed"
    assert (root / "a.py").read_text() == "def one():\n    return 1\n"
    assert [what.partition("\n")[0] for what in asked] == ["edit a.py", f"run in {root}"]
    assert {tool.call_id: tool.outcome for tool in session.turns()[0].tools} == {
        "c1": "done",
        "c2": "error",
        "c3": "error",
        "c4": "done",
        "c5": "error",
        "c6": "done",
    }
    said = {r.call_id: r for message in session.messages() for r in message.tool_results}
    assert said["c1"].text.split("\n")[0] == "a.py:2: return 2"
    assert "in use by this program" in said["c2"].text
    assert "outside the workspace" in said["c3"].text
    assert "rather not" in said["c5"].text
    assert said["c6"].text.endswith("20000\n[exit code 0]")
    assert "10000\n" not in json.dumps([*model.requests[-1].window])


def test_what_was_left_out_is_read_by_its_handle(store: Store, root: Path) -> None:
    session = store.create(cwd=str(root))
    model = ScriptedModel(call("run_command", {"command": "seq 20000"}), say("Long."))
    with agent_of(model, store, root, rules(commands=["seq"])) as agent:
        agent.run(session, "Count")
        shown = session.messages()[2].text
        found = re.search(r'handle="(\w+)", offset=(\d+)', shown)
        assert found
        handle, offset = found[1], int(found[2])
        model.add(call("read_output", {"handle": handle, "offset": offset}), say("Ah."))
        agent.run(session, "Read on")
    head = shown.partition("\n[… ")[0]
    read = session.messages()[-2].text
    quoted = re.search(r"<(quoted-\w+)>\n(.*)\n</\1>", read, re.DOTALL)
    assert quoted
    whole = "".join(f"{n}\n" for n in range(1, 20_001))
    assert whole.startswith(head)
    assert whole[offset:].startswith(quoted[2])
    assert len(quoted[2]) == 1_000


def test_a_cancel_ends_the_command_that_runs(store: Store, root: Path) -> None:
    session = store.create(cwd=str(root))
    command = "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done"
    model = ScriptedModel(call("run_command", {"command": command}, id="c1"))
    with agent_of(model, store, root, rules(otherwise=_yes)) as agent:

        def cancel() -> None:
            deadline = time.monotonic() + _PATIENCE
            while not ((root / "pid").exists() and (root / "pid").read_text().strip()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            agent.cancel("enough")

        thread = threading.Thread(target=cancel)
        thread.start()
        events = list(agent.stream(session, "Wait"))
        thread.join()
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].state == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(int((root / "pid").read_text()), 0)
    assert session.turns()[0].tools[0].outcome == "unknown"


async def _yes(_ask: Ask) -> bool | str:
    return True


def test_a_model_that_writes_its_calls_as_words_works_too(store: Store, root: Path) -> None:
    model = ScriptedModel(
        say('I look.\n```json\n{"name": "read_file", "arguments": {"path": "a.py",},}\n```'),
        say('<tool_call>{"name": "destroy", "arguments": {}}</tool_call>'),
        say("It returns 2."),
        tools="text",
    )
    session = store.create(cwd=str(root))
    with agent_of(model, store, root) as agent:
        events = list(agent.stream(session, "What does it return?"))
    ended = [event for event in events if isinstance(event, ToolEnded)]
    assert [(event.call.name, event.error) for event in ended] == [
        ("read_file", False),
        ("destroy", True),
    ]
    assert ended[0].message.text == "def one():\n    return 2\n"
    assert "there is no tool 'destroy'" in ended[1].message.text
    assert "- read_file: " in json.dumps([*model.requests[0].window])


def test_a_goal_is_set_and_ended_by_the_model(store: Store, root: Path) -> None:
    model = ScriptedModel(
        call("create_goal", {"objective": "All is well."}),
        call("complete_goal", {"recap": "It is."}),
        say("Done."),
    )
    session = store.create(cwd=str(root))
    with agent_of(model, store, root) as agent:
        events = list(agent.stream(session, "See that all is well"))
    goal = session.info().goal
    assert goal is not None
    assert (goal.objective, goal.state, goal.recap) == ("All is well.", "completed", "It is.")
    assert goal.started_at is not None
    assert goal.ended_at is not None
    assert [event.error for event in events if isinstance(event, ToolEnded)] == [False, False]
