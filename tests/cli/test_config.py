"""`holdfast config`: what is in force and from where; every command knows the configured store."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.config import schema
from tests.cli.shell import HOSTILE, RAW, Shell


@pytest.fixture
def own(shell: Shell, tmp_path: Path) -> Path:
    """The user's own file, in a shell that stands in a workspace."""
    file = tmp_path / "config" / "holdfast.toml"
    file.parent.mkdir()
    file.write_text("")
    shell.environment["HOLDFAST_CONFIG"] = str(file)
    return file


def test_all_keys_are_shown(shell: Shell, own: Path) -> None:
    own.write_text("[retry]\nattempts = 3\n[session]\nscope = 'work'\n")
    said = shell.ok("config")
    assert all(key in said for key in schema.all_keys())
    [line] = [line for line in said.splitlines() if line.startswith("retry.attempts")]
    assert line.split(maxsplit=2) == ["retry.attempts", "3", f"{own}, line 2"]
    [line] = [line for line in said.splitlines() if line.startswith("retry.base")]
    assert line.split() == ["retry.base", "0.5", "default"]


def test_programs_are_told_too(shell: Shell, own: Path) -> None:
    own.write_text("[window]\nthreshold = 0.5\n[prices.x]\ninput = 0.1\noutput = 2\n")
    shell.environment["HOLDFAST_MODEL"] = "openai:gpt-9"
    told = shell.json("config", "--store", "x.db")
    assert told["user"] == str(own)
    assert told["workspace"] is None
    assert told["problems"] == []
    settings = told["settings"]
    assert settings.keys() == schema.all_keys().keys()
    assert settings["window.threshold"] == {
        "value": 0.5, "from": "user", "where": str(own), "line": 2
    }  # fmt: skip
    assert settings["model.name"]["where"] == "$HOLDFAST_MODEL"
    assert settings["session.store"] == {
        "value": "x.db", "from": "option", "where": "--store", "line": None
    }  # fmt: skip
    assert settings["prices"]["value"]["x"]["input"] == "0.1"


def test_some_keys_can_be_asked_for(shell: Shell, own: Path) -> None:
    told = shell.json("config", "retry", "window.threshold")
    assert [*told["settings"]][-1] == "window.threshold"
    assert {key.partition(".")[0] for key in told["settings"]} == {"retry", "window"}
    ran = shell.run("config", "retyr")
    assert ran.code == 2
    assert "Did you mean retry?" in ran.err


def test_what_is_wrong_is_told_and_the_rest_shown(shell: Shell, own: Path) -> None:
    own.write_text("[retry]\natempts = 3\nbase = 2\n")
    ran = shell.run("config")
    assert ran.code == 1
    assert "retry.base" in ran.out
    assert f"{own}, line 2: unknown key retry.atempts; did you mean attempts?" in ran.err
    checked = shell.run("config", "--check")
    assert (checked.code, checked.out, checked.err) == (1, "", ran.err)
    own.write_text("[retry]\nattempts = 3\n")
    assert shell.ok("config", "--check") == f"no problems in {own}\n"


def test_what_is_ignored_of_a_workspace_is_shown_and_is_no_problem(
    shell: Shell, own: Path, tmp_path: Path
) -> None:
    own.write_text("[model]\nname = 'local'\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "holdfast.toml").write_text(
        "[model]\nname = 'openai:gpt-9'\n[limits]\nrounds = 1_000_000\n"
    )
    ran = [
        subprocess.run(
            [sys.executable, "-m", "holdfast", "config", *options],
            cwd=tmp_path / "work", env=shell.environment, check=True, timeout=60,
            capture_output=True, text=True,
        ).stdout
        for options in ((), ("--json",))
    ]  # fmt: skip
    assert "line 2: model.name is ignored: a workspace may only choose another model" in ran[0]
    assert "line 4: limits.rounds is ignored: a workspace may only lower" in ran[0]
    told = json.loads(ran[1])
    assert [one["key"] for one in told["ignored"]] == ["model.name", "limits.rounds"]
    assert told["settings"]["model.name"]["value"] == "local"
    assert told["settings"]["limits.rounds"] == {
        "value": 50, "from": "default", "where": None, "line": None
    }  # fmt: skip


def test_the_path_can_be_used_in_a_script(shell: Shell, own: Path, tmp_path: Path) -> None:
    assert shell.ok("config", "--path") == f"{own}\n"
    assert shell.json("config", "--path") == {"path": str(own)}
    shell.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    del shell.environment["HOLDFAST_CONFIG"]
    assert shell.ok("config", "--path") == f"{tmp_path}/holdfast/holdfast.toml\n"


def test_nothing_of_a_file_reaches_the_terminal_as_it_is(shell: Shell, own: Path) -> None:
    bad = "".join(f"\\U{ord(c):08x}" for c in HOSTILE if c != "\ud800")
    own.write_text(f'[session]\nscope = "{bad}"\n"{bad}" = 1\n["{bad}"]\n')
    ran = shell.run("config")
    assert r"\x1b[2J" in ran.out
    assert ran.err.count(r"\x1b[2J") >= 2
    assert not RAW & set(ran.out + ran.err)


def test_the_configured_store_is_every_commands(shell: Shell, own: Path, tmp_path: Path) -> None:
    """So that `ls` lists what `chat` wrote; the environment and the option come first."""
    del shell.environment["HOLDFAST_URL"]
    own.write_text("[session]\nstore = 'mine.db'\n")
    shell.ok("append", "a", "hello")
    with holdfast.open(own.parent / "mine.db", readonly=True) as store:
        assert store.get("a").info().messages == 1
    assert [info["key"] for info in shell.json("ls")] == ["a"]
    assert shell.ok("__complete", "zsh", "show", "a").splitlines()[1:] == ["a\thello"]
    assert shell.json("ls", "--store", str(tmp_path / "other.db")) == []
    shell.environment["HOLDFAST_URL"] = str(tmp_path / "third.db")
    assert shell.json("ls") == []


def test_a_store_that_cannot_be_known_is_not_guessed(shell: Shell, own: Path) -> None:
    del shell.environment["HOLDFAST_URL"]
    own.write_text("[session]\nstore = 'mine.db\n")
    ran = shell.run("append", "a", "hello")
    assert ran.code == 2
    assert str(own) in ran.err
    own.write_text("[retry]\nnonsense = 1\n")
    assert shell.run("ls").code == 0


def test_a_directory_that_is_gone_does_not_matter(shell: Shell, own: Path, tmp_path: Path) -> None:
    del shell.environment["HOLDFAST_URL"]
    own.write_text("[session]\nstore = 'mine.db'\n")
    for command in ("append a hello", "show --raw a", "config session.store"):
        line = f'mkdir gone && cd gone && rmdir ../gone && "{sys.executable}" -m holdfast {command}'
        ran = subprocess.run(
            ["/bin/sh", "-c", line], cwd=tmp_path, env=shell.environment, check=False, timeout=60,
            capture_output=True,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, b"")
