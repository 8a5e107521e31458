"""`holdfast log`: also when a session goes to another branch while somebody looks."""

from __future__ import annotations

import json

import holdfast
from holdfast import Message, ToolCall
from tests.cli.shell import Shell


def test_programs_are_told_that_the_branch_changed(talked: Shell) -> None:
    """In its place among the messages, with how much is still in view."""
    with talked.start("log", "-f", "-n", "1", "support-42", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["seq"] == 7
        with holdfast.open(talked.store) as store:
            session = store.get("support-42")
            session.undo()
            session.append(Message.user("instead"))
        change = json.loads(process.stdout.readline())
        assert change == {"head": {"branch": 2, "seq": 6}, "kept": 6, "reason": "undo"}
        message = json.loads(process.stdout.readline())
        assert (message["seq"], message["parts"][0]["text"]) == (7, "instead")
        process.terminate()


def test_the_newest_messages_are_those_of_the_current_branch(talked: Shell) -> None:
    """What was left is not the newest any more."""
    with holdfast.open(talked.store) as store:
        store.get("support-42").undo()
    lines = talked.ok("log", "-n", "2", "support-42", "--json").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [5, 6]


def test_tools_are_folded_and_can_be_unfolded(shell: Shell) -> None:
    """As `show` does it; the name of the tool is known from its call."""
    with holdfast.open(shell.store) as store:
        store.session("a").append(
            Message.assistant("Looking.", tool_calls=[ToolCall("c1", "look")]),
            Message.tool("c1", "one\ntwo"),
            Message.assistant("Seen."),
        )
    said = shell.ok("log", "a")
    assert "  → look\n\n#2 ← look  (2 lines)  one two\n\n#3 assistant" in said
    assert "  ← c1\n    one\n    two\n" in shell.ok("log", "--tools", "a")
