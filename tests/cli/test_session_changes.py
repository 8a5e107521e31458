"""Making sessions, changing who they are, and moving about in their histories."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCall
from tests.cli.shell import RAW, Shell, crash, hostile_session

_NEEDS_A_SESSION = [
    ["set", "{ref}", "--title", "x"],
    ["rename", "{ref}", "x"],
    ["pin", "{ref}"],
    ["archive", "{ref}"],
    ["fork", "{ref}"],
    ["rewind", "{ref}", "1"],
    ["undo", "{ref}"],
    ["redo", "{ref}"],
    ["clear", "{ref}"],
    ["summarize", "{ref}", "x"],
    ["new", "--parent", "{ref}"],
]


def filled(command: list[str], ref: str) -> list[str]:
    return [part.format(ref=ref) for part in command]


def info(shell: Shell, ref: str = "support-42") -> Any:  # noqa: ANN401 - it is whatever was printed
    return shell.json("show", ref)["session"]


def numbers(shell: Shell, ref: str = "support-42") -> list[int]:
    return [message["seq"] for message in shell.json("show", ref)["messages"]]


@pytest.mark.parametrize("command", _NEEDS_A_SESSION, ids=lambda command: command[0])
def test_changing_makes_no_store(shell: Shell, command: list[str]) -> None:
    """Where there is none yet there is nothing to change."""
    ran = shell.run(*filled(command, "support-42"))
    assert (ran.code, ran.out) == (3, "")
    assert "there is no store at" in ran.err
    assert not shell.store.parent.exists()


@pytest.mark.parametrize("command", _NEEDS_A_SESSION, ids=lambda command: command[0])
def test_a_wrong_name_changes_nothing(talked: Shell, command: list[str]) -> None:
    """It is an error with a hint, for people and for programs."""
    before = talked.json("show", "support-42")
    ran = talked.run(*filled(command, "nobody"))
    assert (ran.code, ran.out) == (3, "")
    assert "no session matches 'nobody'" in ran.err
    assert "hint: " in ran.err
    assert talked.json("show", "support-42") == before
    assert len(talked.json("ls")) == 1


# ------------------------------------------------------------------------------------------- new


def test_new_prints_the_id_and_nothing_else(shell: Shell) -> None:
    """So that it can be used in the next line."""
    made = shell.ok("new")
    assert len(made) == 17
    shell.ok("append", "--no-create", made.strip(), "hello")
    assert [s["id"] for s in shell.json("ls")] == [made.strip()]


def test_new_takes_all_a_session_can_be(shell: Shell, tmp_path: Path) -> None:
    """A directory is kept in full, metadata as text unless it says that it is JSON."""
    words = (
        "new --key k --title T --scope s --agent a --model m --cwd . "
        "--meta version=1.10 --meta zip=0047 --meta n:=7 --meta list:=[1,null]"
    )
    made = shell.json(*shlex.split(words))
    wanted = {"key": "k", "title": "T", "scope": "s", "agent": "a", "model": "m"}
    assert {name: made[name] for name in wanted} == wanted
    assert made["cwd"] == str(Path.cwd())
    assert made["metadata"] == {"version": "1.10", "zip": "0047", "n": 7, "list": [1, None]}
    assert made["messages"] == 0


def test_new_refuses_a_key_that_is_taken(talked: Shell) -> None:
    """And leaves the other session alone."""
    ran = talked.run("new", "--key", "support-42", "--title", "mine")
    assert (ran.code, ran.out) == (4, "")
    assert "already has this key; nothing was stored" in ran.err
    assert "hint: choose another key" in ran.err
    assert info(talked)["title"] == "A parcel"


@pytest.mark.parametrize(
    ("relation", "shared"),
    [(None, 7), ("continue", 7), ("fork", 7), ("reset", 0), ("delegate", 0), ("import", 0)],
)
def test_new_can_come_from_another_session(
    talked: Shell, relation: str | None, shared: int
) -> None:
    """With its history or without, linked to it."""
    how = [] if relation is None else ["--relation", relation]
    made = talked.json("new", "--parent", "A parcel", *how)
    assert made["parent"] == info(talked)["id"]
    assert (made["relation"], made["messages"]) == (relation or "continue", shared)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--relation", "fork"], "--relation needs a --parent"),
        (["--relation", "friend", "--parent", "x"], "'friend' is not one of"),
        (["--meta", "x"], "expected NAME=TEXT or NAME:=JSON"),
        (["--meta", "=x"], "expected NAME=TEXT or NAME:=JSON"),
        (["--meta", ":=x"], "expected NAME=TEXT or NAME:=JSON"),
        (["--meta", "x:={"], "--meta 'x:={'"),
        (["--meta", "x:=NaN"], "--meta 'x:=NaN'"),
        (["--meta", "x:=null"], "null cannot be stored"),
        (["--meta", "x=1", "--meta", "x:=2"], "'x' is given twice"),
        (["--key", ""], "1 to 4096 bytes"),
        (["--title", os.fsdecode(b"caf\xe9")], "this is not UTF-8"),
    ],
)
def test_new_refuses_what_makes_no_sense(shell: Shell, arguments: list[str], said: str) -> None:
    """No session and no text is half made."""
    ran = shell.run("new", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert shell.json("ls") == []


# ------------------------------------------------------------------------------------ set, rename


def test_set_changes_what_is_named_and_says_what_it_was(talked: Shell) -> None:
    """What is not named stays, metadata included."""
    id = info(talked)["id"]
    said = talked.ok("set", "support-42", "--title", "Lost", "--model", "gpt-9", "--meta", "a=b")
    assert said == (
        f"support-42 ({id}):\n"
        "  title   A parcel → Lost\n"
        "  model   nothing → gpt-9\n"
        '  meta a  nothing → "b"\n'
    )
    now = info(talked)
    assert (now["title"], now["model"], now["scope"]) == ("Lost", "gpt-9", "telegram")
    assert now["metadata"] == {"channel": 7, "a": "b"}
    assert now["messages"] == 7


def test_set_takes_away(talked: Shell) -> None:
    """An empty text removes a field, --unset a name of the metadata; once more is no error."""
    for expected in ("  scope         telegram → nothing\n  meta channel  7 → nothing\n", ""):
        said = talked.ok("set", "support-42", "--scope", "", "--unset", "channel")
        assert said.partition("\n")[2] == expected
    assert said.endswith("): nothing to change\n")
    now = info(talked)
    assert (now["scope"], now["metadata"]) == (None, {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Nothing to change"),
        (["--meta", "a=1", "--unset", "a"], "'a' is named by both"),
        (["--title", "x" * 5000], "1 to 4096 bytes"),
    ],
)
def test_set_refuses_what_makes_no_sense(talked: Shell, arguments: list[str], said: str) -> None:
    """And changes nothing, also of what would make sense."""
    before = info(talked)
    ran = talked.run("set", "support-42", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert info(talked) == before


def test_rename_gives_a_title(talked: Shell) -> None:
    """The session goes by it from then on; an empty one takes it away."""
    assert "A parcel → Lost and found" in talked.ok("rename", "support-42", "Lost and found")
    assert info(talked, "Lost and found")["key"] == "support-42"
    assert talked.json("rename", "support-42", "")["title"] is None


# ------------------------------------------------------------------------------------ pin, archive


@pytest.mark.parametrize(("command", "field"), [("pin", "pinned"), ("archive", "archived")])
def test_pin_and_archive_mark_and_unmark(talked: Shell, command: str, field: str) -> None:
    """Several at once; a session that is named twice is told once."""
    other = talked.ok("new").strip()
    said = talked.ok(command, "support-42", other, "A parcel").splitlines()
    assert [line.rpartition(": ")[2] for line in said] == [field, field]
    marked = talked.json(command, "support-42", other)
    assert [(s["id"] == other, s[field]) for s in marked] == [(False, True), (True, True)]
    assert talked.ok(command, "--off", "support-42").endswith(f": no longer {field}\n")
    assert [info(talked, ref)[field] for ref in ("support-42", other)] == [False, True]


@pytest.mark.parametrize("command", ["pin", "archive", "trash"])
def test_one_wrong_name_among_several_changes_none(talked: Shell, command: str) -> None:
    """All are found before the first is changed."""
    ran = talked.run(command, "support-42", "nobody")
    assert (ran.code, ran.out) == (3, "")
    now = info(talked)
    assert (now["pinned"], now["archived"], now["trashed"]) == (False, False, False)


# -------------------------------------------------------------------------------------------- fork


def test_fork_shares_the_history_and_says_how_to_take_it_back(talked: Shell) -> None:
    """The original stays as it is; what is said works."""
    said = talked.ok("fork", "support-42", "--at", "5", "--key", "again", "--title", "Again")
    made = info(talked, "again")
    assert said == (
        f"new session again ({made['id']}) forked from support-42 at 5; "
        "to take it back: holdfast trash again\n"
    )
    assert (made["title"], made["messages"], made["scope"]) == ("Again", 5, "telegram")
    assert numbers(talked) == [1, 2, 3, 4, 5, 6, 7]
    talked.ok(*said.rpartition("holdfast ")[2].split())
    assert [s["key"] for s in talked.json("ls")] == ["support-42"]


def test_fork_inside_a_tool_call_starts_before_it(talked: Shell) -> None:
    """And says so."""
    assert " at 1 (3 is inside a tool call); " in talked.ok("fork", "support-42", "--at", "3")
    made = talked.json("fork", "support-42", "--at", "2")
    assert (made["asked"], made["head"]) == (2, {"branch": 1, "seq": 1})
    assert made["parent"] == info(talked)["id"]


def test_fork_reaches_what_was_left(talked: Shell) -> None:
    """By branch and number, or by a message's id."""
    id = talked.json("show", "support-42")["messages"][5]["id"]
    talked.ok("rewind", "support-42", "1")
    at = ["--at", "6", "--branch", "1"]
    assert talked.json("fork", "support-42", *at)["head"]["seq"] == 6
    assert talked.json("fork", "support-42", "--at", id)["head"]["seq"] == 6
    ran = talked.run("fork", "support-42", "--branch", "1")
    assert (ran.code, "--branch needs --at" in ran.err) == (2, True)


# -------------------------------------------------------------------- rewind, undo, redo, clear


def test_rewind_goes_back_and_redo_returns(talked: Shell) -> None:
    """In one line each, with the line that goes back; those lines work."""
    said = talked.ok("rewind", "support-42", "5")
    assert said == "rewound to 5; redo: holdfast redo support-42\n"
    assert numbers(talked) == [1, 2, 3, 4, 5]
    said = talked.ok(*said.rpartition("holdfast ")[2].split())
    back = "holdfast rewind support-42 5 --branch 2"
    assert said == f"redone, the history ends at 7; undo: {back}\n"
    assert numbers(talked) == [1, 2, 3, 4, 5, 6, 7]
    talked.ok(*back.split()[1:])
    assert numbers(talked) == [1, 2, 3, 4, 5]


def test_rewind_inside_a_tool_call_goes_before_it(talked: Shell) -> None:
    """And says so."""
    said = talked.ok("rewind", "support-42", "3")
    assert said == "rewound to 1 (3 is inside a tool call); redo: holdfast redo support-42\n"
    talked.ok("redo", "support-42")
    moved = talked.json("rewind", "support-42", "2")
    assert (moved["moved"], moved["asked"], moved["head"]["seq"]) == (True, 2, 1)
    assert moved["left"] == {"branch": 3, "seq": 7}


def test_rewind_takes_an_id_also_one_that_looks_like_a_number(shell: Shell) -> None:
    """`id:` says that it is one."""
    for number in ("30", "20", "10"):
        shell.ok("append", "a", "text", "--id", number)
    assert shell.json("rewind", "a", "id:20")["head"]["seq"] == 2
    assert shell.json("rewind", "a", "1")["head"]["seq"] == 1
    ran = shell.run("rewind", "a", "20")
    assert (ran.code, "this history ends at 1" in ran.err) == (3, True)


def test_rewind_to_where_it_is_does_nothing(talked: Shell) -> None:
    """And says that."""
    assert talked.ok("rewind", "support-42", "7") == "it ends at 7 already\n"
    assert talked.json("rewind", "support-42", "7")["moved"] is False
    assert talked.json("show", "support-42")["head"] == {"branch": 1, "seq": 7}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["8"], 3, "there is no message 8"),
        (["9" * 30], 3, "no branch of this session has a message"),
        (["no-such-id"], 3, "no branch of this session has a message 'no-such-id'"),
        (["7", "--branch", "2"], 3, "no message 7 on branch 2"),
        (["some-id", "--branch", "1"], 2, "--branch needs a message's number"),
        (["7", "--branch", "0"], 2, "0 is not in the range"),
        ([], 2, "Missing argument 'MESSAGE'"),
    ],
)
def test_rewind_to_nowhere_changes_nothing(
    talked: Shell, arguments: list[str], code: int, said: str
) -> None:
    """It is an error that tells where to look."""
    ran = talked.run("rewind", "support-42", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert talked.json("show", "support-42")["head"] == {"branch": 1, "seq": 7}


def test_undo_takes_back_turns_and_redo_brings_them(talked: Shell) -> None:
    """One by one, and more than there are takes all."""
    again = "redo: holdfast redo support-42\n"
    said = talked.ok("undo", "support-42")
    assert said == f"undone message 7, the history ends at 6; {again}"
    said = talked.ok("undo", "support-42", "-n", "9")
    assert said == f"undone messages 1 to 6, the history is empty; {again}"
    assert numbers(talked) == []
    talked.ok("redo", "support-42")
    assert len(numbers(talked)) == 6
    talked.ok("redo", "support-42")
    assert len(numbers(talked)) == 7


@pytest.mark.parametrize("command", ["undo", "redo"])
def test_nothing_to_undo_or_redo_is_said(shell: Shell, command: str) -> None:
    """With what helps."""
    made = shell.ok("new").strip()
    ran = shell.run(command, made)
    assert (ran.code, ran.out) == (2, "")
    assert f"{command}: there is nothing to {command}" in ran.err
    assert f"holdfast tree {made}" in ran.err


def test_redo_ends_when_something_is_appended(talked: Shell) -> None:
    """The hint shows the way that is left, and it works."""
    talked.ok("undo", "support-42")
    talked.ok("append", "support-42", "Something else")
    ran = talked.run("redo", "support-42")
    assert ran.code == 2
    assert "something was appended since" in ran.err
    assert "holdfast tree support-42" in ran.err
    talked.ok("rewind", "support-42", "7", "--branch", "1")
    assert talked.json("show", "support-42")["messages"][-1]["parts"][0]["type"] == "raw"


def test_clear_begins_again(talked: Shell) -> None:
    """Nothing is lost by it."""
    said = talked.ok("clear", "support-42")
    assert said == "cleared 7 messages; redo: holdfast redo support-42\n"
    assert talked.ok("clear", "support-42") == "it is empty already\n"
    talked.ok("redo", "support-42")
    assert len(numbers(talked)) == 7


@pytest.mark.parametrize("command", [["undo"], ["redo"], ["clear"], ["rewind", "1"]])
def test_a_living_turn_is_not_moved_away(talked: Shell, command: list[str]) -> None:
    """Exit code 4 names who holds it; forking goes on."""
    with holdfast.open(talked.store) as store, store.session("support-42").turn():
        ran = talked.run(command[0], "support-42", *command[1:])
        talked.ok("fork", "support-42")
    assert (ran.code, ran.out) == (4, "")
    assert f"held by pid {os.getpid()}" in ran.err


def test_undo_after_a_crash_keeps_what_was_streamed(crashed: Shell) -> None:
    """The open turn is recovered first, then taken back; redo shows it."""
    assert crashed.ok("undo", "support-42").startswith("undone messages 8 to 10, ")
    crashed.ok("redo", "support-42")
    assert crashed.json("show", "support-42")["messages"][-1]["status"] == "partial"


def test_the_line_to_go_back_names_the_store_and_quotes(shell: Shell, tmp_path: Path) -> None:
    """It works as it is printed, whatever the key and the store are called."""
    other = tmp_path / "my store.db"
    shell.ok("append", "it's mine", "one", "--store", str(other))
    said = shell.ok("clear", "it's mine", "--store", str(other))
    line = shlex.split(said.partition("redo: ")[2])
    assert line == ["holdfast", "redo", "it's mine", "--store", str(other)]
    shell.ok(*line[1:])


@pytest.mark.parametrize("key", ["-dashed", "esc\x1b[2Japed", "new\nline"])
def test_the_line_to_go_back_uses_the_id_where_a_key_cannot_be_typed(
    shell: Shell, key: str
) -> None:
    """Nothing that acts on a terminal is printed, and what is printed works."""
    with holdfast.open(shell.store) as store:
        session = store.session(key)
        session.append(Message.user("one"))
    said = shell.ok("clear", session.id)
    assert said == f"cleared 1 message; redo: holdfast redo {session.id}\n"


# --------------------------------------------------------------------------------------- summarize


def test_summarize_adds_a_summary_and_keeps_the_messages(talked: Shell) -> None:
    """By argument or standard input, for all or up to a message."""
    ids = [message["id"] for message in talked.json("show", "support-42")["messages"]]
    said = talked.ok("summarize", "support-42", stdin=b"In Oslo.\n")
    assert said == "summary of support-42 stored as message 8\n"
    second = talked.json("summarize", "support-42", "It was asked.", "--upto", "1")
    assert second["covers"] == ids[0]
    messages = talked.json("show", "support-42")["messages"]
    assert [m["id"] for m in messages[:7]] == ids
    assert [(m["role"], m["parts"][0]["text"]) for m in messages[7:]] == [
        ("summary", "In Oslo."),
        ("summary", "It was asked."),
    ]


def test_summarize_refuses_to_store_nothing(talked: Shell) -> None:
    """An empty pipe is a mistake upstream."""
    ran = talked.run("summarize", "support-42", stdin=b"\n")
    assert (ran.code, "The text is empty" in ran.err) == (2, True)
    assert len(numbers(talked)) == 7


# ----------------------------------------------------------------------------------- hostile names


@pytest.mark.parametrize(
    "command",
    [
        ["set", "{ref}", "--title", "x", "--scope", "", "--meta", "a=b"],
        ["rename", "{ref}", "x"],
        ["pin", "{ref}"],
        ["archive", "{ref}"],
        ["fork", "{ref}", "--at", "1"],
        ["rewind", "{ref}", "1"],
        ["undo", "{ref}"],
        ["clear", "{ref}"],
        ["summarize", "{ref}", "x"],
        ["trash", "{ref}"],
        ["restore", "{ref}"],
        ["purge", "--yes", "{ref}"],
    ],
    ids=lambda command: command[0],
)
def test_nothing_hostile_is_printed(shell: Shell, command: list[str]) -> None:
    """Whatever a session is called: people see escapes, programs see plain ASCII."""
    id = hostile_session(shell.store)
    shell.ok("trash" if command[0] == "restore" else "pin", id)
    copy = shell.store.with_name("copy.db")
    shell.ok("backup", str(copy))
    assert not RAW & set(shell.ok(*filled(command, id)))
    machine = shell.ok(*filled(command, id), "--json", "--store", str(copy))
    assert all(c.isascii() and (c.isprintable() or c == "\n") for c in machine)
    json.loads(machine)


# --------------------------------------------------------------------------------------- both ends


def test_every_move_is_found_again(shell: Shell) -> None:
    """Whatever is undone, cleared, rewound and forked, each text stays readable on its branch."""
    with holdfast.open(shell.store) as store:
        session = store.session("a")
        session.append(Message.user("one"), Message.assistant(tool_calls=[ToolCall("c", "t")]))
        session.append(Message.tool("c", "done"), Message.assistant("two"))
    shell.ok("undo", "a")
    shell.ok("append", "a", "three")
    shell.ok("clear", "a")
    shell.ok("append", "a", "four")
    shell.ok("rewind", "a", "4", "--branch", "1")
    with holdfast.open(shell.store, readonly=True) as store:
        session = store.get("a")
        texts = [
            [message.text for message in session.messages(branch=branch.number)]
            for branch in session.branches()
        ]
    assert texts == [["one", "", "done", "two"], ["three"], ["four"], ["one", "", "done", "two"]]


def test_moving_waits_for_no_dead_process(talked: Shell) -> None:
    """A crash in another session is nothing to this one."""
    crash(talked.store, "other")
    talked.ok("undo", "support-42")
    assert info(talked, "other")["interrupted"] is True
