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
from holdfast.agent.tools.file_tools import file_tools
from holdfast.agent.tools.function_tools import ToolError
from holdfast.agent.tools.protocol import Approver, Ask
from holdfast.errors import BadConfig
from holdfast.testing.scripted_model import ScriptedModel, calls, say
from holdfast.values import JSON
from tests.agent.tools import Desk


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


def asked(path: str, root: Path, config_file: Path | None = None, *, reads: bool = False) -> Ask:
    """Return the question for a write."""
    own = None if config_file is None else str(config_file)
    tools = file_tools(str(root), config_file=own, reads=reads)
    desk = Desk(tools, root)
    context = desk.context("write_file", {"path": path, "content": ""})
    asks = desk.tools["write_file"].asks
    assert asks is not None
    ask = asks(context, {"path": path, "content": ""})
    desk.close()
    assert isinstance(ask, Ask)
    return ask


def is_covered(ask: Ask) -> bool:
    """Return whether the rule for writes covers a call."""

    async def decided() -> bool | str:
        return await rules(writes=True)(ask)

    return asyncio.run(decided()) is True


@pytest.mark.parametrize(
    "path",
    [
        *("holdfast.toml", "./sub/../holdfast.toml", "sub/HOLDFAST.toml", "sub/x/../holdfast.toml"),
        *("holdfast.toml/", "holdfast.toml/.", "holdfast.toml/x/..", "hold\u200cfast.toml"),
        *("holdfast.toml.", "holdfast.toml ", "\uff48oldfast.toml"),
        *("HEAD", "sub/head", ".envrc", ".vscode/tasks.json", "sub/.husky/pre-commit", ".bashrc"),
        *("\u200c.gitconfig", "\u2024gitattributes", ".ssh/config", ".github/workflows/x.yml"),
    ],
)
def test_what_decides_what_runs_is_asked_for_in_any_case(tmp_path: Path, path: str) -> None:
    """Else a model could allow itself everything."""
    assert not is_covered(asked(path, tmp_path))


def test_what_holdfast_toml_leads_to_is_asked_for(tmp_path: Path) -> None:
    """The directory may be one that the user trusts."""
    work = tmp_path / "work"
    (work / "conf").mkdir(parents=True)
    (work / "conf" / "a.toml").touch()
    for folder in (work, tmp_path):
        (folder / "holdfast.toml").symlink_to(work / "conf" / "a.toml")
        assert not is_covered(asked("conf/a.toml", work))
        with pytest.raises(ToolError, match="name that file itself"):
            asked(str(folder / "holdfast.toml"), work)
        (folder / "holdfast.toml").unlink()
    assert is_covered(asked("conf/a.toml", work))


@pytest.mark.parametrize("name", [".envrc", "sub/.bashrc", ".vscode/x"])
def test_what_a_sensitive_name_leads_to_is_asked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / "plain").touch()
    (tmp_path / name).symlink_to(tmp_path / "plain")
    assert not is_covered(asked(name, tmp_path))
    assert not is_covered(asked(str(tmp_path / name), tmp_path))
    assert is_covered(asked(str(tmp_path / "plain"), tmp_path))


@pytest.mark.parametrize("path", ["config", "hooks/pre-commit", "info/attributes"])
def test_a_repository_by_any_name_is_asked_for(tmp_path: Path, path: str) -> None:
    """`git init --separate-git-dir`: git runs what its configuration names."""
    (tmp_path / "data").mkdir()
    assert is_covered(asked(f"data/{path}", tmp_path))
    (tmp_path / "data" / "HEAD").touch()
    assert not is_covered(asked(f"data/{path}", tmp_path))
    assert not is_covered(asked(path, tmp_path / "data"))
    assert is_covered(asked(path, tmp_path))


@pytest.mark.parametrize("path", ["a.key", "tls/server.pem", "id_rsa"])
def test_a_secret_is_asked_for_unless_it_may_be_read(tmp_path: Path, path: str) -> None:
    assert not is_covered(asked(path, tmp_path))
    assert is_covered(asked(path, tmp_path, reads=True))


@pytest.mark.parametrize("path", ["a.txt", "src/a.py", "a/b/c.toml", "head.py", "x/HEAD/y", "a.b"])
def test_other_files_are_covered(tmp_path: Path, path: str) -> None:
    assert is_covered(asked(path, tmp_path))


@pytest.mark.parametrize("exists", [True, False])
def test_the_users_own_configuration_is_asked_for_by_any_name(tmp_path: Path, exists: bool) -> None:
    """`$HOLDFAST_CONFIG` may name a file in the workspace, directly or through links."""
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("work")
    own = tmp_path / "link" / "mine.toml"
    (tmp_path / "named.toml").symlink_to(own)
    if exists:
        own.write_text("")
    for named in (own, tmp_path / "named.toml", tmp_path / "work" / "mine.toml"):
        for path in ("mine.toml", "sub/../mine.toml", str(tmp_path / "work" / "mine.toml")):
            assert not is_covered(asked(path, tmp_path / "work", named, reads=True))
        assert is_covered(asked("other.toml", tmp_path / "work", named))


def test_nothing_is_covered_where_the_users_home_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any file may be one that a program there is configured by."""
    (tmp_path / "home" / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert is_covered(asked("a.txt", tmp_path / "home" / "work"))
    for root in (tmp_path / "home", tmp_path, Path("/")):
        assert not is_covered(asked("a.txt", root))


def test_the_users_own_configuration_is_known_by_another_spelling(tmp_path: Path) -> None:
    """As on a file system that ignores case."""
    assert not is_covered(asked("MINE.toml", tmp_path, tmp_path / "mine.toml", reads=True))


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
