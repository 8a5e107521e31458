"""`holdfast show`: a conversation, its folds and marks, its branches, and places in it."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import File, Message, Record, Text, Thinking, ToolCall
from holdfast.cli.commands.show import origin_marks
from holdfast.values import BranchInfo, Link
from tests.cli.shell import Shell


@pytest.fixture
def moved(talked: Shell) -> Shell:
    """The conversation, taken back by a turn, gone on with, forked, and taken back further."""
    with holdfast.open(talked.store) as store:
        session = store.session("support-42")
        session.undo()
        session.append(Message.user("Another question"), Message.assistant("Another answer"))
        fork = session.fork(key="fork")
        fork.append(Message.user("In the fork"))
        fork.fork(7, key="grandchild").append(Message.user("In the fork of the fork"))
        session.rewind(5)
        session.append(Message.user("A third way"))
    return talked


def _body(said: str) -> list[str]:
    """What is behind the heading."""
    return said.partition("\n\n")[2].splitlines()


# -------------------------------------------------------------------------------------- records


def test_records_are_listed_when_asked_for(shell: Shell) -> None:
    """A line for each, of the messages that are shown; nothing else of the program shows them."""
    with holdfast.open(shell.store) as store:
        session = store.session("a")
        session.append(
            Record("plan", data={"step": 0}, id="r0"),
            Message.user("one"),
            Record("plan", key="k", data="x" * 2000, files={"f": File(data=b"y" * 3000)}, id="r1"),
            Message.user("two"),
            Record("plan", data={"step": 2}, id="r2"),
        )
        session.rewind(1)
        session.append(Record("evil\x1b[2J", data=None, id="r3"))
    lines = shell.ok("show", "a", "--records").splitlines()
    start = lines.index("3 records")
    assert [line.split("  ")[-1] for line in lines[start + 1 :]] == ["r0", "r1", "r3"]
    assert lines[start + 1].startswith("  at the start · plan · 10 bytes · ")
    assert lines[start + 2].startswith("  behind #1 · plan · k · 5.0 kB · ")
    assert "evil\\x1b[2J" in lines[start + 3]
    old = shell.ok("show", "a", "--records", "--branch", "1", "--limit", "1").splitlines()
    assert old[-2:][0] == "1 record"
    assert old[-1].endswith("  r2")
    whole = shell.json("show", "a", "--records")
    assert [record["id"] for record in whole["records"]] == ["r0", "r1", "r3"]
    assert whole["records"][0]["data"] == {"step": 0}
    for command in (("show", "a"), ("log", "a"), ("ls",), ("tree", "a"), ("window", "a")):
        assert "plan" not in shell.ok(*command)
    assert "records" not in shell.json("show", "a")
    assert shell.run("show", "a", "--records", "--raw").code == 2


# -------------------------------------------------------------------------------------- folding


def test_tools_and_thinking_are_folded_to_a_line_each(talked: Shell) -> None:
    """With the outcome of each call, and the beginning of each answer."""
    lines = _body(talked.ok("show", "support-42"))
    assert lines[0].startswith("── turn 1 sealed · ")
    assert lines[6:14] == [
        "  thinking  Look it up.",
        "  Let me see.",
        '  → track  done  {"id": 17}',
        "  → guess  failed",
        "",
        "#3 ← track  in Oslo",
        "#4 ← guess  failed  no idea",
        "",
    ]


def test_tools_can_be_unfolded(talked: Shell) -> None:
    """Whole, with the ids of the calls."""
    said = talked.ok("show", "support-42", "--tools").splitlines()
    for line in (
        "  thinking  Look it up.",
        '  → track({"id": 17})  done  call_1',
        "  → guess()  failed  call_2",
        "  ← call_2  failed",
        "    in Oslo",
    ):
        assert line in said


def test_thinking_can_be_unfolded(talked: Shell) -> None:
    """And the tools stay folded."""
    said = talked.ok("show", "support-42", "--thinking")
    assert "  thinking:\n    Look it up.\n" in said
    assert "#3 ← track  in Oslo\n" in said


def test_a_long_answer_is_cut_and_measured(shell: Shell) -> None:
    """A fold is one line, whatever a tool printed."""
    with holdfast.open(shell.store) as store:
        call = ToolCall("c1", "cat", {"path": "x" * 500})
        store.session("a").append(
            Message.assistant([Thinking("hm\n" * 300), Text("Reading.")], tool_calls=[call]),
            Message.tool("c1", "word\n" * 1000),
        )
    said = shell.ok("show", "a")
    assert max(map(len, said.splitlines())) < 200
    [folded] = [line for line in said.splitlines() if line.startswith("#2 ← ")]
    assert folded.startswith("#2 ← cat  (1,001 lines)  word word word ")
    assert folded.endswith("…")
    assert said.count("word") < 40
    assert shell.ok("show", "a", "--tools").count("    word\n") == 1000


def test_all_that_was_said_is_shown(talked: Shell) -> None:
    """Texts, facts of turns, what failed, and foreign data."""
    said = talked.ok("show", "support-42")
    for line in (
        "  scope    telegram",
        '  metadata {"channel": 7}',
        "  holds    7 messages, 2 turns, 1,234 tokens, cost 0.01",
        "  Where is my parcel?",
        "   TimeoutError: the model did not answer",
        "── outside of a turn ──",
        '  raw telegram  {"sticker": 5}',
    ):
        assert line in said.splitlines()
    assert " · gpt-9 · run run-1 · 1,234 tokens · cost 0.01 ──" in said
    assert "── turn 2 failed · " in said


def test_what_broke_off_and_what_is_unknown_is_marked(crashed: Shell) -> None:
    """Before recovery it says what to do, after it what was kept."""
    said = crashed.ok("show", "support-42")
    assert "── turn 3 left open by a crash · " in said
    assert '  → send  started, no result  {"to": "Oslo"}' in said
    assert "holdfast recover " in said
    crashed.ok("recover", "support-42")
    said = crashed.ok("show", "support-42")
    assert "── turn 3 interrupted · " in said
    assert "PARTIAL: it was cut short\n  It is alrea\n" in said
    assert '  → send  outcome unknown  {"to": "Oslo"}' in said
    assert "  → notify  not run\n" in said
    assert "holdfast recover" not in said


def test_a_summary_says_what_it_stands_for(talked: Shell) -> None:
    """The messages it stands for are still shown."""
    with holdfast.open(talked.store) as store:
        store.session("support-42").summarize("A parcel is in Oslo.", upto=5)
    said = talked.ok("show", "support-42")
    assert "#8 summary · stands for 1 to 5 · " in said
    assert "  A parcel is in Oslo.\n" in said
    assert "  It is in Oslo.\n" in said


def test_an_erased_message_is_marked(talked: Shell) -> None:
    """What a purge took from a fork leaves its place, and nothing else."""
    with holdfast.open(talked.store) as store:
        session = store.session("support-42")
        session.fork(key="fork").append(Message.user("Still here"))
        store.purge(session.id, forks="erase")
    said = talked.ok("show", "fork")
    assert " · ERASED\n  This message was erased for good.\n" in said
    assert "Oslo" not in said
    assert "  Still here\n" in said
    erased = [m for m in talked.json("show", "fork")["messages"] if m["status"] == "erased"]
    assert [m["seq"] for m in erased] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("limit", "numbers"), [("1", [2]), ("2", [2]), ("3", [1, 2]), ("7", [1, 2]), ("50", [1, 2])]
)
def test_turns_are_those_of_the_messages_shown(
    talked: Shell, limit: str, numbers: list[int]
) -> None:
    """From the first one that is seen; older ones are not even read."""
    found = talked.json("show", "support-42", "-n", limit)
    assert [int(turn["id"].rpartition(".")[2]) for turn in found["turns"]] == numbers


# --------------------------------------------------------------------------------------- places


def test_at_shows_what_is_around_a_message(talked: Shell) -> None:
    """By its number or its id; the message is pointed at, and what is left out is counted."""
    messages = talked.json("show", "support-42")["messages"]
    for at in ("5", "#5", messages[4]["id"]):
        said = talked.ok("show", "support-42", "--at", at, "-n", "3")
        assert [line[:5].rstrip() for line in said.splitlines() if "#" in line[:3]] == [
            "#4 ←",
            "▶ #5",
            "#6 us",
        ]
        assert "… 3 earlier messages …" in said
        assert "… 1 later message …" in said
    found = talked.json("show", "support-42", "--at", "5", "-n", "3")
    assert [m["seq"] for m in found["messages"]] == [4, 5, 6]
    assert found["at"] == 5


def test_at_points_also_into_a_fold(talked: Shell) -> None:
    """A tool's answer is a message, too."""
    assert "▶ #3 ← track  in Oslo\n" in talked.ok("show", "support-42", "--at", "3")


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("99", "this history ends at 7; there is no message 99"),
        ("0", "there is no message 0"),
        ("nothing", "no branch of this session has a message 'nothing'"),
    ],
)
def test_at_a_place_that_is_not_there(talked: Shell, at: str, said: str) -> None:
    """Exit code 3, as for a session that is not there."""
    ran = talked.run("show", "support-42", "--at", at)
    assert (ran.code, ran.out) == (3, "")
    assert said in ran.err


def test_a_branch_that_was_left_can_be_shown(moved: Shell) -> None:
    """With how it was left; the current history does not have what is on it."""
    now = moved.ok("show", "support-42")
    assert "  branch   3, the current one\n" in now
    assert "A third way" in now
    assert "sticker" not in now
    assert "Another question" not in now
    first = moved.ok("show", "support-42", "--branch", "1")
    assert ", left just now by undo\n" in first or " ago by undo\n" in first
    assert "  holds    7 messages on this branch, 2 turns" in first
    assert "sticker" in first
    second = moved.json("show", "support-42", "-b", "2")
    assert second["branch"]["abandoned_by"] == "rewind"
    assert [m["seq"] for m in second["messages"]] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_at_finds_a_message_on_a_branch_that_was_left(moved: Shell) -> None:
    """By its id without saying which, by its number with the branch."""
    left = moved.json("show", "support-42", "--branch", "2")["messages"][7]
    found = moved.json("show", "support-42", "--at", left["id"])
    assert (found["branch"]["number"], found["at"]) == (2, 8)
    found = moved.json("show", "support-42", "--branch", "2", "--at", "8")
    assert found["messages"][-1]["id"] == left["id"]


def test_a_branch_that_is_not_there(moved: Shell) -> None:
    """Those that are there are named."""
    ran = moved.run("show", "support-42", "--branch", "4")
    assert (ran.code, ran.out) == (3, "")
    assert "there is no branch 4, this session has 1 to 3\n    hint: " in ran.err
    assert "this session has 1 only" in moved.run("show", "fork", "--branch", "2").err


def test_raw_takes_the_same_choices(moved: Shell) -> None:
    """The texts of a branch, or around a place, and nothing else."""
    said = moved.ok("show", "support-42", "--branch", "2", "-n", "2", "--raw")
    assert said == "Another question\nAnother answer\n"


# ---------------------------------------------------------------------------------------- marks


def test_a_mark_tells_where_the_history_went_back(moved: Shell) -> None:
    """Between what stayed and what came then."""
    lines = _body(moved.ok("show", "support-42"))
    at = lines.index("══ went back to 5 (rewind); the previous history is on branch 2 ══")
    assert "  It is in Oslo." in lines[:at]
    assert "  A third way" in lines[at:]


def test_a_mark_tells_where_the_history_left_another_session(moved: Shell) -> None:
    """Turns of the other session are told to be its own."""
    whole = moved.json("show", "support-42")["session"]["id"]
    said = moved.ok("show", "fork")
    assert f"  from     forked from {whole}\n" in said
    assert f"══ forked from {whole[:8]} at 8 ══\n\n#9 user" in said
    assert f"── turn 1 of {whole[:8]} ──" in said
    parent = moved.json("show", "fork")["session"]["id"]
    said = moved.ok("show", "grandchild")
    assert f"══ forked from {parent[:8]} at 7 ══\n\n#8 user" in said
    # It left within the history of the first session: that place is not on its way.
    assert f"forked from {whole[:8]}" not in said


def test_turns_that_were_taken_back_are_not_shown_empty(talked: Shell) -> None:
    """Their messages are on the branch that was left, and so are they."""
    with holdfast.open(talked.store) as store:
        store.session("support-42").undo(2)
    said = talked.ok("show", "support-42")
    assert "── turn 1 " in said
    assert "── turn 2 " not in said
    assert "── turn 2 failed" in talked.ok("show", "support-42", "--branch", "1")


def _branch(number: int, reason: str, **fields: object) -> BranchInfo:
    given = {
        "number": number,
        "parent": None,
        "parent_id": None,
        "fork_seq": 0,
        "asked_seq": 0,
        "seq": 9,
        "reason": reason,
        "created_at": None,
        "abandoned_at": None,
        "abandoned_by": None,
    }
    return BranchInfo(**{**given, **fields})  # type: ignore[arg-type]


def _link(
    session: str, parent: str | None = None, relation: str | None = None, seq: int = 0
) -> Link:
    return Link(
        session_id=session,
        key=None,
        parent=parent,
        relation=relation,  # type: ignore[arg-type]
        seq=seq,
        title=None,
        metadata={},
        created_at=None,
        state="live",
    )


@pytest.mark.parametrize(
    ("branches", "lineage", "expected"),
    [
        ([_branch(1, "start")], [_link("a")], {}),
        (
            [_branch(1, "start"), _branch(2, "clear", fork_seq=0)],
            [_link("a")],
            {0: ["started again (clear); the previous history is on branch 1"]},
        ),
        (
            [
                _branch(1, "start"),
                _branch(2, "undo", parent=1, parent_id="a", fork_seq=6),
                _branch(3, "redo", parent=2, parent_id="a", fork_seq=8),
            ],
            [_link("a")],
            {
                8: ["returned to 8 (redo); the previous history is on branch 2"],
                6: ["went back to 6 (undo); the previous history is on branch 1"],
            },
        ),
        (
            [_branch(1, "continue", parent=1, parent_id="b", fork_seq=5)],
            [_link("c"), _link("b", "c", "continue", 3), _link("a", "b", "continue", 5)],
            {5: ["continues b at 5"], 3: ["continues c at 3"]},
        ),
        (
            [
                _branch(1, "fork", parent=1, parent_id="b", fork_seq=5),
                _branch(2, "rewind", parent=1, parent_id="b", fork_seq=2),
            ],
            [_link("c"), _link("b", "c", "fork", 3), _link("a", "b", "fork", 5)],
            {
                2: [
                    "forked from b at 2",
                    "went back to 2 (rewind); the previous history is on branch 1",
                ]
            },
        ),
        ([_branch(1, "start")], [_link("b"), _link("a", "b", "delegate")], {}),
    ],
    ids=[
        "alone",
        "cleared",
        "undone, redone",
        "continued twice",
        "back into the parent",
        "delegate",
    ],
)
def test_marks_stand_where_a_history_came_from_elsewhere(
    branches: list[BranchInfo], lineage: list[Link], expected: dict[int, list[str]]
) -> None:
    """By the number of the last message that is shared."""
    assert origin_marks(branches[-1], branches, lineage) == expected
