"""Tools work where the user stands; a directory that is stored with a session needs a yes."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Message
from holdfast.agent import Agent
from holdfast.agent.tools.builtin import workspace_tools
from holdfast.testing.scripted_model import ScriptedModel, call, say
from tests.security.workplace import Workplace

_LIST = "call list_files {}"
_WORK_THERE = "work there? y yes"


@pytest.fixture(autouse=True)
def _begun_elsewhere(user: Workplace) -> None:
    """A session of the user's own, `a`, was started in another directory."""
    (user.work / "here.txt").write_text("x")
    (user.elsewhere / "there.txt").write_text("x")
    with holdfast.open(user.store) as store:
        store.session("a", cwd=str(user.elsewhere)).append(Message.user("hello"))


def test_run_works_where_one_stands_and_says_how_to_work_there(user: Workplace) -> None:
    ran = user.holdfast("run", "--session", "a", _LIST, "--yes")
    assert "here.txt" in ran.out
    assert "there.txt" not in ran.out
    assert f"tools work in {user.work}; this session was started in {user.elsewhere}" in ran.err
    ran = user.holdfast("run", "--session", "a", _LIST, "--yes", cwd=user.elsewhere)
    assert "there.txt" in ran.out
    assert "tools work in" not in ran.err


@pytest.mark.parametrize("cwd", ["/", "..", "/proc/self/cwd/..", "a\0b"])
def test_no_stored_directory_is_read_without_a_yes(user: Workplace, cwd: str) -> None:
    with holdfast.open(user.store) as store:
        for key in ("b", "c"):
            store.session(key, cwd=cwd).append(Message.user("hello"))
    for ran in (
        user.holdfast("run", "--session", "b", _LIST),
        user.holdfast("chat", "--fork", "c", stdin=f"{_LIST}\n"),
    ):
        assert ran.code == 0, ran.err
        assert "here.txt" in ran.out
        assert "own.db" not in ran.out


def test_the_chat_asks_once_for_each_session(user: Workplace) -> None:
    with holdfast.open(user.store) as store:
        store.session("b", cwd=str(user.elsewhere)).append(Message.user("hello"))
    with user.chat("--resume", "a") as chat:
        chat.wait_for("it was started in", _WORK_THERE)
        chat.type("y\r")
        chat.wait_for("  tools work in\n")
        chat.wait_ready()
        chat.enter(_LIST)
        chat.wait_for("The tool said: there.txt")
        chat.wait_ready()
        chat.enter("/fork")  # It goes on where its parent does.
        chat.wait_for("forked")
        chat.wait_ready()
        chat.enter("/status")
        chat.wait_for("works in")
        chat.wait_ready()
        chat.enter("/resume b")  # What was said for one session says nothing for another.
        chat.wait_until(lambda: _WORK_THERE in chat.bottom(6), "the question for b")
        chat.type("\r")
        chat.wait_for("cd there to work there")
        chat.wait_ready()
        chat.enter(_LIST)
        chat.wait_for("The tool said: here.txt")
        chat.wait_ready()
        chat.enter("/resume a")
        chat.wait_for("continuing 'A title by the model'")  # Nothing is asked again.
        assert chat.leave() == 0


def test_an_agent_of_a_program_works_where_its_tools_were_made(user: Workplace) -> None:
    model = ScriptedModel(call("list_files"), say("Done"))
    with (
        holdfast.open(user.store) as store,
        Agent(model, tools=workspace_tools(str(user.work)), titles=False) as agent,
    ):
        result = agent.run(store.get("a"), "Look")
    assert "here.txt" in result.messages[2].text
