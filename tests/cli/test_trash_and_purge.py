"""Trash, restore, purge: changing one's mind, and being asked before it is too late."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import File, Message
from tests.cli.shell import Shell, hostile_session
from tests.cli.test_terminal import Tmux, look

CANARY = "canary-in-a-coal-mine"


def keys(shell: Shell, *arguments: str) -> list[Any]:
    return [info["key"] for info in shell.json("ls", *arguments)]


def id_of(shell: Shell, ref: str = "support-42") -> str:
    found = shell.json("show", ref)["session"]["id"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("command", [["trash"], ["restore"], ["purge", "--yes"]])
def test_deleting_makes_no_store(shell: Shell, command: list[str]) -> None:
    """Where there is none yet there is nothing to delete."""
    ran = shell.run(*command, "support-42")
    assert (ran.code, ran.out) == (3, "")
    assert not shell.store.parent.exists()


@pytest.mark.parametrize("command", [["trash"], ["restore"], ["purge", "--yes"]])
def test_a_wrong_name_deletes_nothing(talked: Shell, command: list[str]) -> None:
    """Also an empty one, which fits everything."""
    for ref, code in (("nobody", 3), ("", 2)):
        ran = talked.run(*command, ref)
        assert (ran.code, ran.out) == (code, "")
    assert keys(talked) == ["support-42"]


# ----------------------------------------------------------------------------------- trash, restore


def test_trash_says_how_to_restore_and_restore_brings_all_back(talked: Shell) -> None:
    """By the key it had, its messages as they were."""
    id, before = id_of(talked), talked.json("show", "support-42")["messages"]
    said = talked.ok("trash", "support-42")
    assert said == f"support-42 ({id}): in the trash; restore: holdfast restore support-42\n"
    assert talked.json("ls") == []
    assert talked.run("show", "support-42").code == 3
    said = talked.ok(*said.rpartition("holdfast ")[2].split())
    assert said == f"support-42 ({id}): restored\n"
    assert talked.json("show", "support-42")["messages"] == before


@pytest.mark.parametrize("by", ["key", "title", "id", "prefix"])
def test_the_trash_is_found_by_any_name(talked: Shell, by: str) -> None:
    """As everything is."""
    id = id_of(talked)
    ref = {"key": "support-42", "title": "A parcel", "id": id, "prefix": id[:6]}[by]
    thrown = talked.json("trash", ref)
    assert [(info["id"], info["trashed"]) for info in thrown] == [(id, True)]
    assert talked.json("restore", ref)["trashed"] is False


def test_trash_and_restore_can_be_repeated(talked: Shell) -> None:
    """A script need not look first."""
    for _ in range(2):
        assert "in the trash" in talked.ok("trash", "support-42")
    talked.ok("restore", "support-42")
    assert talked.ok("restore", "support-42").endswith(": is not in the trash\n")


def test_a_key_in_the_trash_is_free_and_restore_says_when_it_is_taken(talked: Shell) -> None:
    """The one in the trash is meant, and stays there; the hint is a line that works."""
    old = id_of(talked)
    talked.ok("trash", "support-42")
    new = talked.json("append", "support-42", "A new one")["session"]
    ran = talked.run("restore", "support-42")
    assert (ran.code, ran.out) == (4, "")
    [what, hint] = ran.err.splitlines()
    assert what == f"holdfast: session {new} now has this session's key; nothing was restored"
    assert hint == "    hint: holdfast restore support-42 --keyless"
    said = talked.ok(*hint.rpartition("holdfast ")[2].split())
    assert said == f"{old}: restored, without its key support-42\n"
    assert sorted(keys(talked), key=str) == [None, "support-42"]


# -------------------------------------------------------------------------------------------- purge


def family(shell: Shell) -> tuple[str, str]:
    """A session with a file, a fork of it, and a fork of that; gives the forks' ids."""
    with holdfast.open(shell.store) as store:
        session = store.session("a", title="To be erased")
        session.append(Message.user(f"{CANARY} one"), Message.assistant(f"{CANARY} two"))
        fork = session.fork(1, title="Kept")
        session.append(Message.user([File("f.txt", "text/plain", CANARY.encode() * 9000)]))
        return fork.id, fork.fork(1).id


def either(text: str, one: str, other: str) -> set[str]:
    """Both ways to name two sessions: no order is promised."""
    return {text.format(one, other), text.format(other, one)}


def holds_canary(shell: Shell) -> bool:
    files = (file for file in shell.store.parent.iterdir() if file.is_file())
    return any(CANARY.encode() in file.read_bytes() for file in files)


def test_purge_erases_and_says_what(shell: Shell) -> None:
    """Messages, files, and what forks still need."""
    child, grandchild = family(shell)
    assert holds_canary(shell)
    id = id_of(shell, "a")
    [erased, kept, proved] = shell.ok("purge", "--yes", "a").splitlines()
    assert erased == f"erased a ({id}): 2 messages, 0 turns, 1 file (189.0 kB)"
    assert kept in either("  kept for {}, {}: 1 message", child, grandchild)
    assert re.fullmatch(
        r"  proved: \d+ pieces were searched for in \d files, .*: nothing is left", proved
    )
    assert shell.ok("show", "--raw", child) == f"{CANARY} one\n"
    reports = shell.json("purge", "--yes", child, grandchild)
    assert [(report["messages"], report["kept"]) for report in reports] == [(0, 0), (1, 0)]
    assert not holds_canary(shell)


def test_purge_can_erase_in_forks_too(shell: Shell) -> None:
    """They keep the place, not the words."""
    child, grandchild = family(shell)
    said = shell.ok("purge", "--yes", "--forks", "erase", "a")
    assert said.splitlines()[1] in either("  erased also in {}, {}", child, grandchild)
    assert not holds_canary(shell)
    [message] = shell.json("show", child)["messages"]
    assert (message["status"], message["parts"]) == ("erased", [])


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--forks", "erase"]])
def test_purge_without_a_terminal_wants_to_be_told(talked: Shell, arguments: list[str]) -> None:
    """Exit code 2, nothing on standard output, and nothing is changed; a pipe's yes is no yes."""
    before = talked.store.read_bytes()
    ran = talked.run("purge", *arguments, "support-42", stdin=b"y\n")
    assert (ran.code, ran.out) == (2, "")
    assert "nothing was erased. Pass --yes" in ran.err
    assert talked.store.read_bytes() == before


def test_purge_erases_none_if_one_name_is_wrong(talked: Shell) -> None:
    """All are found before the first goes."""
    ran = talked.run("purge", "--yes", "support-42", "nobody")
    assert (ran.code, ran.out) == (3, "")
    assert keys(talked) == ["support-42"]


def test_purge_does_not_guess_between_a_session_and_the_trash(talked: Shell) -> None:
    """A key that was thrown away and taken again names two; each goes by its id."""
    old = id_of(talked)
    talked.ok("trash", "support-42")
    new = talked.json("append", "support-42", "A new one")["session"]
    ran = talked.run("purge", "--yes", "support-42")
    assert (ran.code, ran.out) == (3, "")
    assert old in ran.err
    assert new in ran.err
    talked.ok("purge", "--yes", old)
    assert talked.run("restore", old).code == 3
    assert keys(talked) == ["support-42"]


def test_purge_leaves_a_living_turn_alone(talked: Shell) -> None:
    """It names who holds it."""
    with holdfast.open(talked.store) as store, store.session("support-42").turn():
        ran = talked.run("purge", "--yes", "support-42")
    assert (ran.code, ran.out) == (4, "")
    assert f"held by pid {os.getpid()}" in ran.err
    assert keys(talked) == ["support-42"]


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_purge_tells_what_it_erased_before_one_that_is_busy(
    talked: Shell, arguments: list[str]
) -> None:
    """What is gone is said, whatever happens next."""
    id = id_of(talked)
    with holdfast.open(talked.store) as store, store.session("held").turn():
        ran = talked.run("purge", "--yes", *arguments, "support-42", "held")
    assert ran.code == 4
    assert id in ran.out
    assert f"held by pid {os.getpid()}" in ran.err
    assert keys(talked) == ["held"]


def test_purge_says_no_more_than_it_did(talked: Shell) -> None:
    """In JSON it is the library's report."""
    id = id_of(talked)
    [report] = talked.json("purge", "--yes", "support-42")
    scan = report.pop("scan")
    assert (scan["found"], scan["problem"], scan["fragments"] > 0) == ([], None, True)
    assert [report] == [
        {
            "session_id": id,
            "messages": 7,
            "records": 0,
            "kept": 0,
            "kept_for": [],
            "erased_in": [],
            "turns": 2,
            "drafts": 0,
            "queued": 0,
            "blobs": 0,
            "blob_bytes": 0,
            "pending": [],
        }
    ]


# --------------------------------------------------------------------------------- at a terminal


def test_purge_shows_what_will_go_and_asks(shell: Shell, tmp_path: Path) -> None:
    """Title, messages, forks; no is the default, and yes erases."""
    child, grandchild = family(shell)
    id = id_of(shell, "a")
    tmux = Tmux(shell, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} purge a")
        said = tmux.wait_for(lambda screen: "Erase it for good? [y/N]:" in screen)
        lines = [line.rstrip() for line in said.splitlines()]
        at = lines.index("To be erased")
        assert lines[at + 1] == f"  a ({id})"
        assert lines[at + 2].startswith("  3 messages, 0 turns, active ")
        asked = "  2 forks will keep what is shared: {}, {}"
        assert lines[at + 3] in either(asked, child, grandchild)
        tmux.press("Enter")
        tmux.wait_for(lambda screen: "Nothing was erased." in screen)
        assert tmux.ended() == 1
        assert keys(shell, "--text", "To be erased") == ["a"]
        tmux.command(f"clear; {tmux.holdfast} purge a")
        tmux.wait_for(lambda screen: "[y/N]:" in screen)
        tmux.type("y")
        tmux.wait_for(lambda screen: f"erased a ({id}): 2 messages" in screen)
        assert tmux.ended() == 0
    assert shell.run("show", id).code == 3


def test_ctrl_c_at_the_question_erases_nothing(talked: Shell, tmp_path: Path) -> None:
    """Exit code 130, as everywhere."""
    talked.ok("trash", "support-42")
    tmux = Tmux(talked, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} purge --forks erase support-42")
        said = tmux.wait_for(lambda screen: "[y/N]:" in screen)
        assert "), in the trash" in said
        tmux.press("C-c")
        assert tmux.ended() == 130
    talked.ok("restore", "support-42")


def test_purge_with_yes_does_not_ask_at_a_terminal(talked: Shell) -> None:
    """Nor does it show what it would have asked."""
    said = look(talked, "purge", "--yes", "support-42")
    assert "[y/N]" not in said
    assert "erased" in said


def test_the_question_shows_a_hostile_title_as_it_is_stored(shell: Shell, tmp_path: Path) -> None:
    """It cannot fake another session, or the answer."""
    id = hostile_session(shell.store)
    tmux = Tmux(shell, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} purge {id}")
        said = tmux.wait_for(lambda screen: "[y/N]:" in screen)
        assert r"\x1b[2J\x1b]0;owned\x07\r" in said
        tmux.type("n")
        tmux.wait_for(lambda screen: "Nothing was erased." in screen)
    assert shell.json("show", id)["session"]["id"] == id
