"""`holdfast doctor --fix`: only what cannot lose anything, and every bit of it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.storage.sqlite import migrations
from tests.cli.shell import Shell, crash


def _flip(store: Path) -> None:
    """Change bytes in the file behind everybody's back."""
    data = store.read_bytes()
    assert b'"in Oslo"' in data
    store.write_bytes(data.replace(b'"in Oslo"', b'"in 0slo"', 1))


def _files(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.parent.glob(f"{store.name}*")}


def test_a_sound_store_is_left_alone(talked: Shell) -> None:
    """There is nothing to fix, and nothing is said to be fixed."""
    before = talked.store.read_bytes()
    assert "FIXED" not in talked.ok("doctor", "--fix")
    assert talked.json("doctor", "--fix")["fixed"] == []
    assert talked.store.read_bytes() == before


def test_without_a_store_there_is_nothing_to_fix(shell: Shell) -> None:
    """And none is made."""
    shell.ok("doctor", "--fix")
    assert not shell.store.parent.exists()


def test_turns_that_a_crash_left_open_are_closed(crashed: Shell) -> None:
    """All of them, with what was kept; then all is well."""
    crash(crashed.store, "second")
    ran = crashed.run("doctor", "--fix")
    assert ran.code == 0
    closed = "is closed, with 3 messages; the outcome of 1 tool call is unknown"
    assert f"FIXED  turn 3 of support-42 {closed}\n" in ran.out
    assert f"FIXED  turn 1 of second {closed}\n" in ran.out
    assert ran.out.endswith("\nNo problems found\n")
    partial = crashed.json("show", "second")["messages"][-1]
    assert (partial["status"], partial["parts"][0]["text"]) == ("partial", "It is alrea")


def test_a_turn_in_the_trash_is_closed_as_well(crashed: Shell) -> None:
    """What comes out of the trash is whole."""
    with holdfast.open(crashed.store) as store:
        store.trash("support-42")
    assert crashed.run("doctor").code == 1
    ran = crashed.run("doctor", "--fix")
    assert ran.code == 0
    assert "FIXED  turn 3 of support-42 is closed" in ran.out


def test_a_living_turn_is_left_alone(crashed: Shell) -> None:
    """Its holder may still be streaming."""
    with holdfast.open(crashed.store) as store, store.session("held").turn() as turn:
        turn.user("I am at work")
        finding = json.loads(crashed.run("doctor", "--fix", "--json").out)
        assert store.session("held").info().state == "open"
    assert [fix["what"].split(" is closed")[0] for fix in finding["fixed"]] == [
        "turn 3 of support-42"
    ]
    assert finding["ok"] is True


def test_permissions_are_taken_from_others(talked: Shell) -> None:
    """From the files to read, from the directory to write; the owner's own stay."""
    talked.store.chmod(0o664)
    talked.store.parent.chmod(0o777)
    ran = talked.run("doctor", "--fix")
    assert ran.code == 0
    assert f"FIXED  permissions of {talked.store} are 600 now: no other user may read it" in ran.out
    assert f"FIXED  permissions of {talked.store.parent} are 755 now: no other user may" in ran.out
    assert talked.store.stat().st_mode & 0o777 == 0o600
    assert talked.store.parent.stat().st_mode & 0o777 == 0o755


def test_a_sticky_directory_is_left_alone(talked: Shell) -> None:
    """A directory such as /tmp is meant for everybody; it is the store that has to move."""
    talked.store.parent.chmod(0o1777)
    ran = talked.run("doctor", "--fix", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["fixed"] == []
    assert talked.store.parent.stat().st_mode & 0o7777 == 0o1777


def test_a_damaged_store_is_copied_and_never_changed(crashed: Shell) -> None:
    """Its open turn is closed in the copy; the damage stays a problem until somebody switches."""
    with holdfast.open(crashed.store):
        pass  # What the crash left in the log comes into the file.
    _flip(crashed.store)
    before = crashed.store.read_bytes()
    ran = crashed.run("doctor", "--fix")
    new = crashed.store.with_name("agent.salvaged.db")
    assert ran.code == 1
    assert f"could be read and were copied into {new}; {crashed.store} was not changed" in ran.out
    assert "FIXED  turn 3 of support-42 is closed, with 3 messages" in ran.out
    assert ran.out.endswith("\n2 problems found\n")
    assert crashed.store.read_bytes() == before
    assert new.stat().st_mode & 0o777 == 0o600
    messages = crashed.json("show", "support-42", "--store", str(new))["messages"]
    assert len(messages) == 10
    assert [m["seq"] for m in messages if m["status"] == "damaged"] == [3]
    assert crashed.run("doctor", "--store", str(new)).code == 0


@pytest.mark.parametrize(
    ("at", "wreck"),
    [(0, bytes(4096)), (63, bytes([max(migrations.load()) ^ 16])), (68, b"\0")],
    ids=["page", "format", "application id"],
)
def test_a_store_whose_header_is_damaged_is_copied_whole(
    talked: Shell, at: int, wreck: bytes
) -> None:
    """All of the first page, the number of the format, and the application id."""
    with holdfast.open(talked.store):
        pass
    before = talked.json("show", "support-42")["messages"]
    data = bytearray(talked.store.read_bytes())
    data[at : at + len(wreck)] = wreck
    talked.store.write_bytes(data)
    assert talked.run("doctor", "--fix").code == 1
    assert talked.store.read_bytes() == data
    new = str(talked.store.with_name("agent.salvaged.db"))
    assert talked.json("show", "support-42", "--store", new)["messages"] == before
    assert talked.run("doctor", "--store", new).code == 0


def test_a_second_copy_does_not_replace_the_first(talked: Shell) -> None:
    """Each has a name of its own, which nothing else has."""
    _flip(talked.store)
    talked.store.with_name("agent.salvaged1.db").mkdir()
    for name in ("agent.salvaged.db", "agent.salvaged2.db", "agent.salvaged3.db"):
        finding = json.loads(talked.run("doctor", "--fix", "--json").out)
        assert f"/{name};" in finding["fixed"][0]["what"]
        assert talked.store.with_name(name).exists()


def test_the_way_to_switch_works_as_written(talked: Shell, tmp_path: Path) -> None:
    """In a shell, also in a directory whose name needs quoting; nothing is thrown away."""
    odd = tmp_path / "it's a $HOME"
    talked.store.parent.rename(odd)
    shell = Shell(odd / "agent.db")
    _flip(shell.store)
    damaged = shell.store.read_bytes()
    finding = json.loads(shell.run("doctor", "--fix", "--json").out)
    look, _, switch = finding["fixed"][0]["next"]
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    for line in (look.partition("  ")[2], switch):
        subprocess.run(["/bin/sh", "-c", line], env={**shell.environment, "PATH": path}, check=True)
    shell.ok("doctor")
    assert len(shell.json("show", "support-42")["messages"]) == 7
    assert (odd / "agent.damaged" / "agent.db").read_bytes() == damaged


@pytest.mark.parametrize("what", ["garbage", "empty"])
def test_what_cannot_be_fixed_is_said(talked: Shell, what: str) -> None:
    """Where nothing can be read, a backup is the only help; the file stays as it is."""
    wreck = b"" if what == "empty" else b"not a database " * 500
    talked.store.write_bytes(wreck)
    before = _files(talked.store)
    ran = talked.run("doctor", "--fix")
    assert ran.code == 1
    assert ran.err == ""
    assert "NOT FIXED  " in ran.out
    assert _files(talked.store)[talked.store.name] == before[talked.store.name]
    assert not list(talked.store.parent.glob("*salvaged*"))
    finding = json.loads(talked.run("doctor", "--fix", "--json").out)
    assert [fix["ok"] for fix in finding["fixed"]] == [False]
