"""The file that says what is allowed: no rule and no "always" lets a model change it."""

from pathlib import Path

import pytest

from tests.security.agent_program import AgentProgram, write


@pytest.fixture
def own(program: AgentProgram) -> Path:
    """The user's own file, in the workspace, by a name of its own, and links to it."""
    own = program.work / "mine.toml"
    (program.work / "sub").mkdir()
    (program.work / "link.txt").symlink_to("mine.toml")
    (program.work / "folder").symlink_to(".")
    (program.config.parent / "named.toml").symlink_to(own)
    program.environment["HOLDFAST_CONFIG"] = str(program.config.parent / "named.toml")
    return own


def test_a_rule_for_writes_does_not_cover_it(program: AgentProgram, own: Path) -> None:
    text = "[approve]\nwrites = true\n"
    own.write_text(text)
    (program.work / "holdfast.toml").write_text("")
    attempts = (
        *("mine.toml", "sub/../mine.toml", str(own), "link.txt", "folder/mine.toml"),
        *("holdfast.toml", "./holdfast.toml", "HOLDFAST.TOML", "sub/holdfast.toml"),
        "folder/holdfast.toml",
    )
    said = program.run(*(write(path, "[approve]\ncommands = ['sh']\n") for path in attempts))
    assert all("not run" in one or "leads to" in one for one in said)
    assert own.read_text() == text
    assert (program.work / "holdfast.toml").read_text() == ""
    assert program.run(write("notes.toml")) == ["created notes.toml (8 bytes)."]


def test_always_does_not_cover_it(program: AgentProgram, own: Path) -> None:
    own.write_text("")
    with program.chat() as chat:
        chat.wait_ready()
        chat.enter('call write_file {"path": "a.txt", "content": "x"}')
        chat.wait_for("create a.txt", "a always: changes to files")
        chat.type("a\r")
        chat.wait_for("The tool said: created a.txt")
        chat.wait_ready()
        chat.enter('call write_file {"path": "b.txt", "content": "x"}')
        chat.wait_for("The tool said: created b.txt")
        for name in ("mine.toml", "holdfast.toml"):
            chat.wait_ready()
            chat.enter(f'call write_file {{"path": "{name}", "content": "x"}}')
            chat.wait_for(f" {name}\n")
            chat.wait_until(lambda: "allow it? y yes · n no" in chat.bottom(6), "asked")
            chat.type("always\r")
            chat.wait_until(lambda: "say something" in chat.bottom(6), "refused")
        assert chat.leave() == 0
    assert own.read_text() == ""
    assert not (program.work / "holdfast.toml").exists()
