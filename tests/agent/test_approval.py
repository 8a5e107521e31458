"""Who may say yes: rules by words, never what a shell could take for more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import ToolCall, ToolResult
from holdfast.agent import Agent
from holdfast.agent.approval import (
    NO_USER_PRESENT,
    allow_everything,
    is_plain,
    refuse_everything,
    rules,
)
from holdfast.agent.tools.builtin import workspace_tools
from holdfast.agent.tools.protocol import Approver, Ask
from holdfast.errors import BadConfig
from holdfast.testing.scripted_model import ScriptedModel, calls, say
from holdfast.values import JSON


def decide(approver: Approver, name: str, arguments: JSON) -> bool | str:
    async def asked() -> bool | str:
        return await approver(Ask(ToolCall("c1", name, arguments), "what"))

    return asyncio.run(asked())


def allows(command: str, *allowed: str) -> bool:
    said = decide(rules(commands=allowed), "run_command", {"command": command})
    assert said in {True, NO_USER_PRESENT}
    return said is True


def test_everybody_and_nobody() -> None:
    assert decide(allow_everything, "run_command", {"command": "rm -rf /"}) is True
    assert decide(refuse_everything, "read_file", {}) == NO_USER_PRESENT
    assert decide(rules(), "write_file", {}) == NO_USER_PRESENT


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("git status", True),
        ("git status --short -b", True),
        ("  git   status  ", True),
        ("ls", True),
        ("ls -la src/a.py", True),
        ("git", False),
        ("git push", False),
        ("git statusx", False),
        ("lsof", False),
        ("sudo ls", False),
        ("/bin/ls", False),
        ("./ls", False),
        ("FOO=1 ls", False),
        ("", False),
        (" ", False),
    ],
)
def test_commands_are_allowed_by_their_words(command: str, allowed: bool) -> None:
    assert allows(command, "git status", "ls") is allowed


@pytest.mark.parametrize("sign", [*";&|<>$`\\\"'()[]{}*?~!#^\n\r\t\0\v\f\u2028\u00a0"])
def test_a_command_with_a_sign_of_the_shell_is_never_allowed_by_a_rule(sign: str) -> None:
    for command in (f"ls {sign}", f"ls{sign}rm x", f"{sign}ls", f"ls a{sign}b"):
        assert not allows(command, "ls"), command
        assert not is_plain(command)
    with pytest.raises(BadConfig, match="plain words"):
        rules(commands=[f"ls {sign}"])


def test_the_arguments_may_be_text_as_the_loop_reads_it() -> None:
    approver = rules(commands=["ls"])
    assert decide(approver, "run_command", '{"command": "ls -l"}') is True
    nonsense: list[JSON] = ["ls", "{", None, 3, [], {}, {"command": ["ls"]}, '{"command": "ls;x"}']
    for arguments in nonsense:
        assert decide(approver, "run_command", arguments) == NO_USER_PRESENT


def test_rules_for_commands_are_for_commands_only() -> None:
    assert decide(rules(commands=["ls"]), "other_tool", {"command": "ls"}) == NO_USER_PRESENT
    assert decide(rules(writes=True), "run_command", {"command": "ls"}) == NO_USER_PRESENT


def test_writes_can_be_allowed() -> None:
    approver = rules(writes=True)
    assert decide(approver, "write_file", {"path": "a", "content": ""}) is True
    assert decide(approver, "edit_file", '{"path": "a"}') is True
    assert decide(rules(), "edit_file", {"path": "a"}) == NO_USER_PRESENT


@pytest.mark.parametrize(
    "path",
    [
        *("holdfast.toml", "./sub/../holdfast.toml", "sub/HOLDFAST.toml", "/w/holdfast.toml"),
        *("holdfast.toml/", "holdfast.toml/.", "holdfast.toml/x/..", "hold\u200cfast.toml"),
    ],
)
def test_what_says_what_is_allowed_is_asked_for_in_any_case(path: str) -> None:
    """Else a model could allow itself everything."""
    assert decide(rules(writes=True), "write_file", {"path": path}) == NO_USER_PRESENT


def test_others_are_asked_where_no_rule_fits() -> None:
    seen: list[str] = []

    async def user(ask: Ask) -> bool | str:
        seen.append(ask.call.name)
        return "not today"

    approver = rules(commands=["ls"], writes=True, otherwise=user)
    assert decide(approver, "run_command", {"command": "ls"}) is True
    assert decide(approver, "run_command", {"command": "rm x"}) == "not today"
    assert decide(approver, "third", {}) == "not today"
    assert seen == ["run_command", "third"]


@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_a_link_does_not_lead_around_the_question(tmp_path: Path, tool: str) -> None:
    """A repository may hold a link by a harmless name: what is allowed stays what it was."""
    config = tmp_path / "holdfast.toml"
    config.write_text("# mine\n")
    (tmp_path / "notes.txt").symlink_to("holdfast.toml")
    (tmp_path / "other.txt").write_text("# mine\n")
    (tmp_path / "link.txt").symlink_to("other.txt")
    new = "[approve]\ncommands = ['sh']\n"

    def arguments(path: str) -> dict[str, JSON]:
        if tool == "write_file":
            return {"path": path, "content": new}
        return {"path": path, "old": "# mine\n", "new": new}

    asked: list[str] = []

    async def user(ask: Ask) -> bool | str:
        asked.append(ask.what)
        return False

    wanted = calls(
        ("c1", tool, arguments("notes.txt")),
        ("c2", tool, arguments("holdfast.toml")),
        ("c3", tool, arguments("link.txt")),
    )
    agent = Agent(
        ScriptedModel(wanted, say("ok")),
        tools=workspace_tools(str(tmp_path)),
        approve=rules(writes=True, otherwise=user),
        titles=False,
    )
    with holdfast.open("memory:") as store, agent:
        said = agent.run(store.session("a", cwd=str(tmp_path)), "go").messages
    assert config.read_text() == "# mine\n"
    assert (tmp_path / "other.txt").read_text() == new
    answers = {m.parts[0].call_id: m.text for m in said if isinstance(m.parts[0], ToolResult)}
    assert "leads to holdfast.toml" in answers["c1"]
    assert len(asked) == 1
    assert "holdfast.toml" in asked[0]
