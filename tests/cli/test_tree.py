"""`holdfast tree`: the family of a session, and its branches."""

from __future__ import annotations

import re

import pytest

import holdfast
from holdfast import Message, ToolCall
from holdfast.cli.commands.tree import TreeNode, tree_lines
from tests.cli.shell import Shell
from tests.cli.test_terminal import look

_TIME = re.compile(r"just now|\d+ (s|min) ago")


@pytest.fixture
def family(shell: Shell) -> Shell:
    """A session with three branches, and one session of each kind that came from it."""
    with holdfast.open(shell.store) as store:
        session = store.session("root", title="A parcel")
        session.append(Message.user("one"), Message.user("two"), Message.assistant("three"))
        session.append(Message.user("four"))
        session.undo()
        session.append(Message.user("instead of four"))
        fork = session.fork(3, key="fork", title="Another try")
        fork.append(Message.user("in the fork"))
        fork.fork(key="deeper", title="Deeper")
        session.rewind(2)
        for relation in ("continue", "delegate", "reset"):
            store.create(parent=session, relation=relation, key=relation)
        store.trash("reset")
    return shell


def _tree(shell: Shell, ref: str) -> str:
    """The drawing, with names in the place of ids, and without times."""
    said = shell.ok("tree", ref)
    for one in shell.json("tree", ref)["family"]:
        said = said.replace(one["id"], f"<{one['key']}>")
    return _TIME.sub("T", said)


def test_the_family_is_drawn_with_the_branches_of_the_session(family: Shell) -> None:
    """What was left, when and how; every session under the one it came from, and how it did."""
    assert _tree(family, "root") == (
        "▶ <root>  root  A parcel  2 messages · 3 branches · T\n"
        "├─ branch 1  left T by undo  #1 to #4  one\n"
        "│  ├─ branch 2  left T by rewind  undo at 3  #4  instead of four\n"
        "│  └─ branch 3  current  rewind at 2  nothing of its own\n"
        "├─ fork at 3  <fork>  fork  Another try  4 messages · T\n"
        "│  ↳ fork at 4  <deeper>  deeper  Deeper  4 messages · T\n"
        "├─ continue at 2  <continue>  continue  one  2 messages · T\n"
        "├─ delegate  <delegate>  delegate  0 messages · T\n"
        "└─ reset  <reset>  trashed  reset  0 messages · T\n"
    )


def test_the_family_is_the_same_from_every_member(family: Shell) -> None:
    """Only the mark moves, and the branches are those of the one that was asked for."""
    said = _tree(family, "deeper")
    assert said.startswith("<root>  root  A parcel  ")
    assert "│  ↳ ▶ fork at 4  <deeper>" in said or "↳ ▶ fork at 4  <deeper>" in said
    assert "branch 1" not in said
    assert len(said.splitlines()) == 6


def test_json_tells_the_family_and_the_branches(family: Shell) -> None:
    """Flat, parents first, so that any depth can be read."""
    found = family.json("tree", "root")
    assert [(one["key"], one["relation"], one["at"]) for one in found["family"]] == [
        ("root", None, 0),
        ("fork", "fork", 3),
        ("deeper", "fork", 4),
        ("continue", "continue", 2),
        ("delegate", "delegate", 0),
        ("reset", "reset", 0),
    ]
    assert found["session"] == found["family"][0]["id"] == found["family"][1]["parent"]
    assert [(b["number"], b["reason"], b["abandoned_by"]) for b in found["branches"]] == [
        (1, "start", "undo"),
        (2, "undo", "rewind"),
        (3, "rewind", None),
    ]


def test_a_session_alone_is_one_line(shell: Shell) -> None:
    """It has one branch, which is not worth a line."""
    shell.ok("append", "a", "hello")
    assert _TIME.sub("T", shell.ok("tree", "a")).endswith("  a  hello  1 message · T\n")
    assert len(shell.ok("tree", "a").splitlines()) == 1


def test_a_purged_parent_still_holds_the_family_together(family: Shell) -> None:
    """Of it only its id is told."""
    with holdfast.open(family.store) as store:
        store.purge("root")
    said = _tree(family, "fork")
    assert said.splitlines()[0] == "<None>  purged"
    assert "├─ ▶ fork at 3  <fork>" in said
    assert "A parcel" not in said
    assert {one["key"] for one in family.json("tree", "fork")["family"]} == {
        None,
        "fork",
        "deeper",
        "continue",
        "delegate",
        "reset",
    }


def test_a_move_out_of_a_tool_exchange_is_told(shell: Shell) -> None:
    """Where it was to go, and where it went."""
    with holdfast.open(shell.store) as store:
        session = store.session("a")
        call = ToolCall("c", "look")
        session.append(Message.user("one"), Message.assistant("", tool_calls=[call]))
        session.append(Message.tool("c", "seen"), Message.assistant("two"))
        session.rewind(2)
    assert "  current  rewind at 1 (requested: 2)  nothing of its own\n" in shell.ok("tree", "a")


def test_a_work_of_many_runs_runs_straight_down(shell: Shell) -> None:
    """A thousand runs are a thousand lines, none of them indented; in JSON, too."""
    with holdfast.open(shell.store, durability="process") as store:
        session = store.create(key="run 0")
        for n in range(1, 1100):
            session = store.create(parent=session, key=f"run {n}")
    lines = shell.ok("tree", "run 500").splitlines()
    assert len(lines) == 1100
    assert all(line.startswith("↳ continue  ") for line in lines[1:500])
    assert lines[500].startswith("↳ ▶ continue  ")
    assert len(shell.json("tree", "run 500")["family"]) == 1100


@pytest.mark.parametrize("columns", [80, 40])
def test_a_line_is_never_broken(family: Shell, columns: int) -> None:
    """What does not fit is cut: a tree with broken lines is none."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", look(family, "tree", "root", columns=columns))
    lines = said.splitlines()
    assert len(lines) == 9
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("▶ ")
    assert "  current" in lines[3]


def test_strokes_lead_to_the_right_twigs() -> None:
    """Only children run straight on, others hang from strokes that end with the last."""

    def twig(name: str, *below: TreeNode) -> TreeNode:
        return TreeNode([name], list(below))

    root = twig("a", twig("b", twig("c", twig("d"), twig("e"))), twig("f", twig("g")))
    assert [before + str(spans[0]) for before, spans in tree_lines(root)] == [
        "a",
        "├─ b",
        "│  ↳ c",
        "│  ├─ d",
        "│  └─ e",
        "└─ f",
        "   ↳ g",
    ]
