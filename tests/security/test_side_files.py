"""What was erased is nowhere in the user's directories, whatever was run, or killed, before.

A canary is said in chats and runs; backups, exports, imports, salvages and restores are made, and
killed half way; then it is erased and purged, and everything on the user's disk is searched for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from holdfast.values import Scan
from tests.agent.provider import Provider
from tests.security.workplace import Workplace

CANARY = "zanzibar-quokka-8841 under the third stone"
_COPIES = {"kept.db", "kept.jsonl", "agent.salvaged.db"}
# Runs code in which one function is replaced: it reports, and waits to be killed.
_HALF_WAY = """
import importlib, sys, time
owner, name, code, *arguments = sys.argv[1:]
def wait(*_, **__):
    print("half way", file=sys.stderr, flush=True)
    time.sleep(600)
setattr(importlib.import_module(owner), name, wait)
sys.argv = ["holdfast", *arguments]
exec(code)
"""
_COMMAND = "from holdfast.__main__ import main; main()"
_SALVAGE = "import holdfast; holdfast.open(sys.argv[1], readonly=True).salvage(sys.argv[2])"


class Computer(Workplace):
    """A workplace whose commands are killed, and whose disk is searched."""

    def run(self, *arguments: str, stdin: str = "", codes: tuple[int, ...] = (0,)) -> str:
        """Run the command; it must end with one of these exit codes."""
        ran = self.holdfast(*arguments, stdin=stdin)
        assert ran.code in codes, ran.err
        return ran.out

    def kill(self, owner: str, name: str, *arguments: str, code: str = _COMMAND) -> None:
        """Kill the command with SIGKILL when it calls a function."""
        with subprocess.Popen(
            [sys.executable, "-c", _HALF_WAY, owner, name, code, *arguments],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(f"{CANARY}\n".encode())
            process.stdin.close()
            assert b"half way\n" in process.stderr
            process.send_signal(signal.SIGKILL)

    def holding(self) -> set[str]:
        """Return the files, anywhere, that have the canary in their name or content."""
        words = [word.encode() for word in (CANARY, CANARY.partition(" ")[0])]
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file()
            and any(word in os.fsencode(path.name) + path.read_bytes().lower() for word in words)
        }

    def beside(self, names: set[str]) -> set[str]:
        """Return names in the store's directory as `holding` has them."""
        return {str((self.store.parent / name).relative_to(self.root)) for name in names}


@pytest.fixture
def computer(tmp_path: Path) -> Iterator[Computer]:
    with Provider() as provider:
        yield Computer(tmp_path, provider, store="agents/agent.db")


def test_what_a_chat_and_a_run_were_told_is_gone(computer: Computer) -> None:
    with computer.chat() as chat:
        chat.wait_ready()
        chat.enter(CANARY)
        chat.wait_for(f"You said: {CANARY}")
        assert chat.leave() == 0
    computer.run("run", CANARY)
    computer.run("chat", "--new", stdin=f"{CANARY}\n")
    computer.run("prove", "--seconds", "0.2", "--writers", "2", "--keep", codes=(0, 1))
    assert computer.holding()
    with holdfast.open(computer.store) as store:
        assert store.search(CANARY).items
        for info in store.sessions():
            report = store.purge(info.id)
            assert report.scan is not None
            assert (report.pending, report.scan.found, report.scan.copies) == ((), (), ())
    assert computer.holding() == set()


@pytest.mark.parametrize(
    "command",
    [
        ("erase", "--yes", "erased", "1"),
        ("purge", "--yes", "purged"),
        ("prune", "--empty-trash", "0d", "--apply", "--yes"),
    ],
)
def test_what_was_typed_when_the_chat_kept_a_file_is_gone(
    computer: Computer, command: tuple[str, ...]
) -> None:
    """The file of earlier versions goes with the first erasure."""
    _remember(computer)
    with holdfast.open(computer.store) as store:
        store.trash("kept")
    kept = computer.state / "chat_history"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(f"# 2026-01-01\n+{CANARY}\n")
    computer.run(*command)
    assert not kept.exists()


def _remember(computer: Computer) -> None:
    """Say the canary in a message and in a session of their own, and search for it."""
    with holdfast.open(computer.store) as store:
        for name in ("erased", "purged"):
            said = Message.user(f"{name}: {CANARY}"), Message.assistant("I see.")
            store.session(name).append(*said)
        store.search("stone")
        store.session("kept").append(Message.user("something else"))


def _erase(computer: Computer) -> tuple[tuple[str, ...], Scan]:
    with holdfast.open(computer.store) as store:
        erased = store.session("erased").erase(1)
        purged = store.purge("purged")
        assert erased.scan is not None
        assert purged.scan is not None
        assert erased.scan.copies == purged.scan.copies
        return erased.pending + purged.pending, purged.scan


_KILLS = {
    "backup": ("holdfast.storage.sqlite.new_file", "_sync", "backup", "{elsewhere}/b.db"),
    "export": ("os", "fsync", "export", "--no-redact", "-o", "{elsewhere}/e.jsonl"),
    "export to a pipe": ("os", "fsync", "export", "--no-redact", "-o", "-"),
    "import": ("holdfast.transfer.import_", "import_", "import", "-"),
    "restore": ("holdfast.storage.sqlite.new_file", "_sync", "restore-backup", "--yes", "{kept}"),
    "salvage": ("holdfast.storage.sqlite.new_file", "_sync", "{store}", "{elsewhere}/s.db"),
}


@pytest.mark.parametrize("what", _KILLS)
def test_what_a_killed_process_left_is_gone(computer: Computer, what: str) -> None:
    _remember(computer)
    kept = computer.elsewhere / "kept.db"
    if what == "restore":
        computer.run("backup", str(kept))
    places = {"elsewhere": computer.elsewhere, "store": computer.store, "kept": kept}
    owner, name, *arguments = (one.format(**places) for one in _KILLS[what])
    code = _SALVAGE if what == "salvage" else _COMMAND
    before = computer.holding()
    computer.kill(owner, name, *arguments, code=code)
    left = computer.holding() - before
    # A copy that SQLite writes has a name; the others have none that a kill could leave.
    assert bool(left) == (what in {"backup", "restore", "salvage"}), left
    pending, scan = _erase(computer)
    assert (pending, scan.found, scan.copies) == ((), (), ())
    kept.unlink(missing_ok=True)  # The user's own, elsewhere.
    assert computer.holding() == set()


def test_copies_in_the_stores_directory_are_named_by_the_report(computer: Computer) -> None:
    """They are the user's: whoever deletes them, too, has deleted everything."""
    _remember(computer)
    folder = computer.store.parent
    with holdfast.open(computer.store, readonly=True) as store:
        store.backup(folder / "kept.db")
        store.export(folder / "kept.jsonl", redact=None)
        store.salvage(folder / "agent.salvaged.db")
    computer.run("restore-backup", "--yes", str(folder / "kept.db"))
    (replaced,) = (file.name for file in folder.glob("agent.db.replaced-*[0-9]"))
    (folder / "agent.damaged").mkdir()
    (folder / "agent.damaged" / "agent.db").write_bytes((folder / "kept.db").read_bytes())
    _, scan = _erase(computer)
    named = set(scan.copies)
    assert named == {*_COPIES, replaced, "agent.damaged/agent.db"}
    assert computer.holding() == computer.beside(named)
    proof = computer.run("erase", "--yes", "kept", "1")
    assert "nothing is left" not in proof
    assert "copies that still hold it: " in proof
    for name in named:
        (folder / name).unlink()
    assert computer.holding() == set()
