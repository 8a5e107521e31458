"""Prune: a look first, then the trash, and only by rules; erase: one message, asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message
from holdfast.storage.protocol import Snapshot
from tests.cli.shell import HOSTILE, RAW, Ran, Shell, hostile_session
from tests.cli.test_terminal import Tmux

SECRET = "what nobody is to read any more"  # noqa: S105 - it is what a user said


def several(shell: Shell) -> list[str]:
    """Four sessions: a plain one, a pinned one, and one with a fork; gives their ids."""
    with holdfast.open(shell.store) as store:
        plain = store.session("plain", title="A plain one", scope="s")
        pinned = store.session("pinned", title="A pinned one")
        pinned.update(pinned=True)
        parent = store.session("parent", title="A parent")
        for session in (plain, pinned, parent):
            session.append(Message.user(f"{SECRET} in {session.key}"))
        fork = parent.fork(key="fork", title="A fork")
        return [session.id for session in (plain, pinned, parent, fork)]


def listed(shell: Shell, *arguments: str) -> set[Any]:
    return {info["key"] for info in shell.json("ls", "--all", *arguments)}


ALL = {"plain", "pinned", "parent", "fork"}


def test_prune_only_looks(shell: Shell) -> None:
    """A table of what would go and why, what stays and why, and nothing is changed."""
    plain, pinned, parent, fork = several(shell)
    before = shell.store.read_bytes()
    said = shell.ok("prune", "--keep-last", "1").splitlines()
    assert re.split(r"\s{2,}", said[0]) == ["ID", "ACTION", "ACTIVE", "SIZE", "WHY", "TITLE"]
    row = re.split(r"\s{2,}", said[1])
    assert (row[0], row[1], row[-1]) == (plain[:8], "trash", "A plain one")
    assert "not the most recent" in said[1]
    assert re.fullmatch(r"1 session to the trash, about \d+ bytes", said[2])
    assert set(said[3:5]) == {
        f"stays: {pinned[:8]} (A pinned one): it is pinned",
        f"stays: {parent[:8]} (A parent): session {fork} was split off it",
    }
    assert said[5] == "Preview only: add --apply to do it."
    assert shell.store.read_bytes() == before
    assert listed(shell) == ALL


def test_prune_in_json_is_the_plan(shell: Shell) -> None:
    """And the report, when it is applied."""
    plain, *_ = several(shell)
    plan = shell.json("prune", "--idle", "0h", "--scope", "s")
    [item] = plan["items"]
    assert (item["session_id"], item["action"], item["messages"]) == (plain, "trash", 1)
    assert (plan["frees"], plan["keeps"]) == (item["bytes"], None)
    report = shell.json("prune", "--idle", "0h", "--scope", "s", "--apply", "--yes")
    assert (report["trashed"], report["purged"], report["archive"]) == ([plain], [], None)
    again = shell.json("prune", "--idle", "0h", "--scope", "s", "--apply", "--yes")
    assert again["trashed"] == []


def test_prune_throws_away_and_restore_brings_back(shell: Shell) -> None:
    """A family goes together; the pinned one stays."""
    several(shell)
    said = shell.ok("prune", "--idle", "0h", "--apply", "--yes").splitlines()
    assert said == ["3 sessions in the trash; `holdfast restore` brings each back"]
    assert (listed(shell), listed(shell, "--trashed")) == ({"pinned"}, ALL - {"pinned"})
    shell.ok("restore", "plain")
    assert listed(shell) == {"pinned", "plain"}


def test_prune_archives_first(shell: Shell, tmp_path: Path) -> None:
    """The file can be imported; one that is there is not replaced, and nothing goes then."""
    several(shell)
    archive = str(tmp_path / "old.jsonl")
    said = shell.ok("prune", "--max-bytes", "0", "--archive", archive, "--apply", "--yes")
    assert re.match(rf"{archive}: 3 sessions, .* kB, read back and verified\n", said)
    other = Shell(tmp_path / "other" / "agent.db")
    other.ok("import", "--trust", archive)
    assert listed(other) == ALL - {"pinned"}
    shell.ok("restore", "plain")
    ran = shell.run("prune", "--max-bytes", "0", "--archive", archive, "--apply", "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert "old.jsonl" in ran.err
    assert "--archive" in ran.err
    assert listed(shell) == {"pinned", "plain"}


def test_prune_empties_the_trash_only_if_asked(shell: Shell) -> None:
    """Then no byte is left of it, and that is proved."""
    several(shell)
    shell.ok("trash", "plain", "fork")
    assert "No session would be removed." in shell.ok("prune", "--empty-trash", "1h")
    said = shell.ok("prune", "--empty-trash", "0h", "--apply", "--yes").splitlines()
    assert re.fullmatch(r"erased 2 sessions, about \d+ bytes", said[0])
    assert re.fullmatch(r"  proved: \d pieces? \w+ searched for in .*: nothing is left", said[1])
    assert listed(shell, "--trashed") == set()
    files = [file for file in shell.store.parent.iterdir() if file.is_file()]
    assert not any(f"{SECRET} in plain".encode() in file.read_bytes() for file in files)
    assert shell.ok("show", "--raw", "parent") == f"{SECRET} in parent\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--scope", "s"],
        ["--apply", "--yes"],
        ["--idle", "soon"],
        ["--keep-last", "0"],
        ["--max-bytes", "a lot"],
        ["--max-bytes", "-5"],
        ["--idle", "0h", "--apply"],
        ["--idle", "0h", "--apply", "--json"],
    ],
)
def test_prune_that_makes_no_sense_changes_nothing(shell: Shell, arguments: list[str]) -> None:
    """Without a rule, with one that is none, or unasked: exit code 2."""
    several(shell)
    ran = shell.run("prune", *arguments, stdin=b"y\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err
    assert listed(shell) == ALL


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1.5 MB", 1_500_000),
        ("2g", 2 * 10**9),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """As people write them."""
    from holdfast.cli.commands.prune import _parse_size  # noqa: PLC0415 - only to try many at once

    assert _parse_size(text) == size


@pytest.mark.parametrize("command", [["prune", "--idle", "1d"], ["erase", "--yes", "k", "1"]])
def test_there_must_be_a_store(shell: Shell, command: list[str]) -> None:
    """None is made."""
    ran = shell.run(*command)
    assert (ran.code, ran.out) == (3, "")
    assert not shell.store.parent.exists()


def test_prune_shows_hostile_titles_safely(shell: Shell) -> None:
    """Nothing that a terminal would obey."""
    hostile_session(shell.store)
    said = shell.ok("prune", "--max-bytes", "0")
    assert not RAW & set(said)
    assert HOSTILE not in said


def test_prune_asks_at_a_terminal(shell: Shell, tmp_path: Path) -> None:
    """It shows the plan; no is the default."""
    several(shell)
    tmux = Tmux(shell, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} prune --keep-last 1 --apply")
        said = tmux.wait_for(lambda screen: "Move these to the trash? [y/N]:" in screen)
        assert "A plain one" in said
        tmux.press("Enter")
        tmux.wait_for(lambda screen: "Nothing was changed." in screen)
        assert tmux.ended() == 1
        assert listed(shell) == ALL
        tmux.command(f"clear; {tmux.holdfast} prune --keep-last 1 --apply")
        tmux.wait_for(lambda screen: "[y/N]:" in screen)
        tmux.type("y")
        tmux.wait_for(lambda screen: "1 session in the trash" in screen)
    assert listed(shell) == ALL - {"plain"}


# -------------------------------------------------------------------------------------------- erase


def test_erase_takes_one_message_from_everybody(shell: Shell) -> None:
    """By its number; the report names whose it was, and the proof."""
    _, _, parent, fork = several(shell)
    said = shell.ok("erase", "--yes", "fork", "1").splitlines()
    assert said[0] == f"erased message 1 of fork ({fork})"
    assert said[1] == f"  gone also from {parent}"
    assert re.fullmatch(r"  proved: \d pieces? \w+ searched for in .*: nothing is left", said[2])
    for ref in ("parent", "fork"):
        [message] = shell.json("show", ref)["messages"]
        assert (message["seq"], message["status"], message["parts"]) == (1, "erased", [])
    assert shell.ok("show", "--raw", "plain") == f"{SECRET} in plain\n"
    again = shell.ok("erase", "--yes", "fork", "1")
    assert again.startswith(f"message 1 of fork ({fork}) was erased before; nothing was changed\n")


def test_erase_by_id_and_on_another_branch(talked: Shell) -> None:
    """As everywhere a message is named; in JSON it is the library's report."""
    messages = talked.json("show", "support-42")["messages"]
    report = talked.json("erase", "--yes", "support-42", messages[0]["id"])
    assert (report["seq"], report["places"], report["scan"]["found"]) == (1, 1, [])
    talked.ok("rewind", "support-42", "5")
    report = talked.json("erase", "--yes", "support-42", "7", "--branch", "1")
    assert report["message_id"] == messages[6]["id"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plain", "2"], 3),
        (["plain", "0"], 3),
        (["plain", "nobody"], 3),
        (["nobody", "1"], 3),
        (["", "1"], 2),
        (["plain", "x", "--branch", "1"], 2),
    ],
)
def test_erase_of_what_is_not_there(shell: Shell, arguments: list[str], code: int) -> None:
    """Nothing is erased."""
    several(shell)
    ran = shell.run("erase", "--yes", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert shell.ok("show", "--raw", "plain") == f"{SECRET} in plain\n"


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_erase_without_a_terminal_wants_to_be_told(shell: Shell, arguments: list[str]) -> None:
    """A pipe's yes is no yes."""
    several(shell)
    ran = shell.run("erase", *arguments, "plain", "1", stdin=b"y\n")
    assert (ran.code, ran.out) == (2, "")
    assert "nothing was erased. Pass --yes" in ran.err
    assert shell.ok("show", "--raw", "plain") == f"{SECRET} in plain\n"


def test_erase_shows_the_message_and_asks(shell: Shell, tmp_path: Path) -> None:
    """And who else may have it; no is the default."""
    several(shell)
    tmux = Tmux(shell, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} erase parent 1")
        said = tmux.wait_for(lambda screen: "Erase its content for good? [y/N]:" in screen)
        assert f"{SECRET} in parent" in said
        assert "it may be shared with 1 other session" in said
        tmux.press("Enter")
        tmux.wait_for(lambda screen: "Nothing was erased." in screen)
        assert shell.ok("show", "--raw", "parent") == f"{SECRET} in parent\n"
        tmux.command(f"clear; {tmux.holdfast} erase parent 1")
        tmux.wait_for(lambda screen: "[y/N]:" in screen)
        tmux.type("y")
        tmux.wait_for(lambda screen: "erased message 1 of parent" in screen)
    assert shell.json("show", "parent")["messages"][0]["status"] == "erased"


def test_what_is_pending_is_said_and_found(shell: Shell) -> None:
    """While somebody reads what was: no exit code for that, but it is told twice."""
    several(shell)
    with holdfast.open(shell.store) as store:
        store.session("plain").append(Message.user("another"))

        def erase(snapshot: Snapshot) -> Ran:
            assert snapshot.find_session(key="plain") is not None
            return shell.run("erase", "--yes", "plain", "1")

        ran = store.backend.read(erase)
    assert ran.code == 0
    assert "  pending: " in ran.out
    assert "  still found in: agent.db" in ran.out


@pytest.mark.parametrize(
    ("as_file", "said"),
    [(True, "  still found in: agent.db-search.2"), (False, "  not proved: ")],
)
def test_what_is_left_of_it_or_cannot_be_searched_is_a_problem(
    shell: Shell, as_file: bool, said: str
) -> None:
    """All of a file can be searched: if it was not, or something is there, scripts hear it."""
    several(shell)
    old = shell.store.with_name("agent.db-search.2")
    if as_file:
        old.write_text(f"{SECRET} in plain")
        old.chmod(0o400)
    else:
        old.mkdir()
    ran = shell.run("erase", "--yes", "plain", "1")
    assert (ran.code, said in ran.out) == (1, True), ran.out
