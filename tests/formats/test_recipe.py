"""A provider format is two new files and a name in `values.Provider`: AGENTS.md, Recipes.

A copy of the package gets the two files of `tests/formats/teletype` and that name, and nothing
else. Programs that run with the copy then know the format everywhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast

PACKAGE: Final = Path(holdfast.__file__).parent
TOY: Final = Path(__file__).with_name("teletype")

_STORY: Final = """
import sys
import holdfast
from holdfast import Message, ToolCall
from holdfast.formats import anthropic

with holdfast.open(sys.argv[1]) as store:
    store.session("desk").append(
        Message.user("Where is my parcel?"),
        anthropic.decode({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Look.", "signature": "c2ln"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "CALL:1", "name": "track", "input": {"id": 17}},
        ]}),
        Message.tool("CALL:1", "no such parcel", error=True),
        Message.assistant("It is lost.", tool_calls=[ToolCall("c2", "apologize", {})]),
        Message.user("Oh."),
    )
"""
_WINDOWS: Final = """
import json, sys
import holdfast
from holdfast.formats.registry import format_of
from holdfast.testing.legality import PROVIDERS, RULES, problems

with holdfast.open(sys.argv[1]) as store:
    session = store.get("desk")
    made = {name: session.window(provider=name, system="Be brief.") for name in PROVIDERS}
    again = store.session("again")
    again.append(*map(format_of("teletype").decode, made["teletype"].messages))
    print(json.dumps({
        "package": holdfast.__file__,
        "window": made["teletype"].messages,
        "again": again.window(provider="teletype").messages,
        "problems": {name: problems(name, w.messages, w.system) for name, w in made.items()},
        "cut": problems("teletype", made["teletype"].messages[:-2]),
        "rules": sum(rule.provider == "teletype" for rule in RULES),
    }))
"""


class _Program:
    """Python with the copy of the package, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = str(folder / "store.db")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "HOLDFAST_URL": self.store},
            capture_output=True,
            text=True,
            check=False,
        )

    def window(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "holdfast", "window", "desk", *options)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> _Program:
    """Return a program whose package has the format, and a conversation in its store."""
    folder = tmp_path_factory.mktemp("recipe")
    copy = folder / "holdfast"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOY / "teletype.py", copy / "formats")
    shutil.copy(TOY / "teletype_rules.py", copy / "testing" / "legality")
    values = (copy / "values.py").read_text(encoding="utf-8")
    before, found, after = values.partition("Provider: TypeAlias = Literal[")
    assert found
    (copy / "values.py").write_text(f'{before}{found}"teletype", {after}', encoding="utf-8")
    made = _Program(folder)
    said = made.run("-c", _STORY, made.store)
    assert said.returncode == 0, said.stderr
    return made


@pytest.fixture(scope="module")
def facts(program: _Program) -> dict[str, Any]:
    """Return what the copy makes of the conversation."""
    done = program.run("-c", _WINDOWS, program.store)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert Path(found["package"]).is_relative_to(program.folder)
    return found


def test_a_session_makes_windows_in_the_new_format(facts: dict[str, Any]) -> None:
    """By its own rules: the host's line, errors in words, its alphabet of ids."""
    call = facts["window"][3]["call"]
    other = facts["window"][6]["call"]
    assert facts["window"] == [
        {"speaker": "host", "text": "Be brief."},
        {"speaker": "guest", "text": "Where is my parcel?"},
        {"speaker": "model", "text": "Let me see."},
        {"speaker": "model", "text": '{"id":17}', "call": call, "name": "track"},
        {"speaker": "tool", "text": "[error] no such parcel", "answers": call},
        {"speaker": "model", "text": "It is lost."},
        {"speaker": "model", "text": "{}", "call": other, "name": "apologize"},
        {
            "speaker": "tool",
            "text": "[interrupted: the outcome of this call is unknown]",
            "answers": other,
        },
        {"speaker": "guest", "text": "Oh."},
    ]
    assert (call.startswith("call_"), other) == (True, "c2")


def test_the_new_checker_finds_them_legal_and_cut_ones_not(facts: dict[str, Any]) -> None:
    assert set(facts["problems"]) == {
        "teletype",
        "openai",
        "openai-responses",
        "anthropic",
        "gemini",
    }
    assert not any(facts["problems"].values())
    assert facts["cut"] == ["messages: no answer to c2 (call-answered)"]
    assert facts["rules"] > 0


def test_what_is_decoded_from_it_is_sent_again(facts: dict[str, Any]) -> None:
    assert facts["again"] == facts["window"]


def test_the_command_takes_shows_and_lists_the_new_format(
    program: _Program, facts: dict[str, Any]
) -> None:
    shown = program.window("--provider", "teletype", "--system", "Be brief.")
    assert "for teletype" in shown.stdout
    assert "9 lines" in shown.stdout
    assert "track" in shown.stdout
    payload = json.loads(program.window("-p", "teletype", "--system", "Be brief.", "--json").stdout)
    assert payload["messages"] == facts["window"]
    unknown = program.window("--provider", "teletyp")
    assert unknown.returncode == 2
    assert "'teletype'" in unknown.stderr
