"""The agent for programs without asyncio: threads, Ctrl-C, and the way home."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Session
from holdfast.agent import Agent
from holdfast.agent.events import TextDelta
from holdfast.errors import Invalid
from holdfast.testing.scripted_model import ScriptedModel, call, say

_INTERRUPTED = """
import sys, holdfast
from holdfast.agent import Agent
from holdfast.agent.models.protocol import ReplyText
from holdfast.testing.scripted_model import Pause, ScriptedModel

with holdfast.open(sys.argv[1]) as store:
    agent = Agent(ScriptedModel([ReplyText("Once upon"), Pause(60.0)]), titles=False)
    try:
        for event in agent.stream(store.session("talk"), "tell"):
            print(type(event).__name__, flush=True)
    except KeyboardInterrupt:
        print("interrupted", store.session("talk").turns()[0].state, flush=True)
    agent.close()
    print("closed", flush=True)
"""


@pytest.fixture
def session() -> Iterator[Session]:
    with holdfast.open("memory:") as store:
        yield store.session("talk")


def test_ctrl_c_ends_the_turn_and_keeps_what_was_said(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(tmp_path / "a.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    for line in program.stdout:
        if line.strip() == "TextDelta":
            program.send_signal(signal.SIGINT)
            break
    rest, errors = program.communicate(timeout=60)
    assert (rest.split(), errors) == (["interrupted", "cancelled", "closed"], "")
    assert program.returncode == 0
    with holdfast.open(tmp_path / "a.db") as store:
        said = [(m.text, m.status) for m in store.session("talk").messages()]
    assert said == [("tell", "complete"), ("Once upon", "partial")]


def test_a_tool_may_cancel_the_turn_it_runs_in(session: Session) -> None:
    async def stop() -> str:
        """Stop."""
        assert agent.cancel("the tool said so")
        return "stopped"

    agent = Agent(ScriptedModel(call("stop"), say("never")), tools=[stop], titles=False)
    with agent:
        result = agent.run(session, "go")
    assert (result.state, result.error) == ("cancelled", "the tool said so")


def test_an_agent_that_would_wait_for_itself_says_so(session: Session) -> None:
    async def ask_itself() -> str:
        """Ask."""
        with pytest.raises(Invalid, match="wait for itself"):
            agent.run(session, "again")
        return "asked"

    agent = Agent(ScriptedModel(call("ask_itself"), say("ok")), tools=[ask_itself], titles=False)
    with agent:
        assert agent.run(session, "go").text == "ok"


def test_threads_share_an_agent(session: Session) -> None:
    with holdfast.open("memory:") as store:
        model = ScriptedModel(*[say("ok")] * 8)
        with Agent(model, titles=False) as agent:
            answers: list[str] = []

            def talk(n: int) -> None:
                answers.append(agent.run(store.session(f"s{n}"), "hi").text)

            threads = [threading.Thread(target=talk, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert answers == ["ok"] * 8


def test_no_thread_is_left_behind(session: Session) -> None:
    before = set(threading.enumerate())
    with Agent(ScriptedModel(say("ok")), titles=False) as agent:
        agent.run(session, "hi")
    for thread in set(threading.enumerate()) - before:
        if thread.name != "holdfast-keeper":  # That of the store, which is still open.
            thread.join(60)  # Its reader threads have been asked to stop.
            assert not thread.is_alive(), thread
    agent.close()  # Closing twice is closing once.


def test_it_can_be_used_again_after_a_stream_was_left(session: Session) -> None:
    with Agent(ScriptedModel(say("a", "b"), say("c")), titles=False) as agent:
        for event in agent.stream(session, "one"):
            if isinstance(event, TextDelta):
                break
        assert agent.run(session, "two").text == "c"
