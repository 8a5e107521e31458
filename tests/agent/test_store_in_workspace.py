"""A store inside the workspace: tools keep away from it, so that its locks stay."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.agent import Agent
from holdfast.agent.approval import allow_everything
from holdfast.agent.tools.builtin import workspace_tools
from holdfast.testing.scripted_model import ScriptedModel, call, say

_opened: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def _watch() -> None:
    """Note every file that Python opens; a hook cannot be taken out again."""

    def note(event: str, details: tuple[object, ...]) -> None:
        if event == "open":
            _opened.append(str(details[0]))

    sys.addaudithook(note)


def answer(store: Store, name: str, arguments: dict[str, holdfast.values.JSON]) -> str:
    session = store.create()
    root = str(Path.cwd())
    model = ScriptedModel(call(name, arguments), say("ok"))
    tools = workspace_tools(root)
    with Agent(model, tools=tools, approve=allow_everything, titles=False) as agent:
        result = agent.run(session, "go")
    (told,) = [part for message in result.messages for part in message.tool_results]
    return told.text


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("the parcel is here")
    return tmp_path


def test_the_locks_of_an_open_store_are_not_lost_to_a_tool_that_reads_it(place: Path) -> None:
    """Closing any descriptor of the file would drop them, and another process could go wrong."""
    with holdfast.open(place / "agent.db") as store:
        store.session("talk").append(holdfast.Message.user("the parcel"))
        os.link(place / "agent.db", place / "alias.txt")
        _opened.clear()
        for name in ("agent.db", "alias.txt"):
            assert "in use" in answer(store, "read_file", {"path": name})
            assert "in use" in answer(store, "write_file", {"path": name, "content": "x"})
        assert "notes.txt" in answer(store, "search_files", {"text": "parcel"})
    assert any(name.endswith("notes.txt") for name in _opened)
    assert not [name for name in _opened if "agent.db" in name or "alias" in name]
    with holdfast.open(place / "agent.db") as store:
        assert store.verify() == []
