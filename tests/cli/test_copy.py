"""`holdfast copy`: what it says, and what it answers with."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message
from tests.cli.shell import RAW, Shell, hostile_session


@pytest.fixture
def there(tmp_path: Path) -> str:
    """Where to copy to."""
    return str(tmp_path / "there.db")


def test_a_copy_tells_that_both_are_the_same(talked: Shell, there: str) -> None:
    """And does so again, when there is nothing to do."""
    first = talked.ok("copy", str(talked.store), there).splitlines()
    assert first[0] == f"{there}: 1 session added"
    assert "the same on both sides (sha256 " in first[1]
    again = talked.ok("copy", str(talked.store), there).splitlines()
    assert again == [f"{there}: 0 sessions added, 1 there already", first[1]]
    assert talked.json("ls", "--store", there) == talked.json("ls")
    assert os.stat(there).st_mode & 0o777 == 0o600  # noqa: PTH116


def test_json_has_counts_and_hashes_of_both(talked: Shell, there: str) -> None:
    """For programs."""
    found = talked.json("copy", str(talked.store), there)
    assert (found["same"], found["added"], found["differs"]) == (True, 1, [])
    assert found["source"] == found["target"]
    assert len(found["source"]["sha256"]) == 64
    assert found["source"]["messages"] > 0


def test_an_open_turn_is_told(crashed: Shell, there: str) -> None:
    """It is nobody's there, and `recover` closes it."""
    said = crashed.ok("copy", str(crashed.store), there)
    assert "1 session with an open turn, which no process holds there" in said
    (id,) = crashed.json("copy", str(crashed.store), there)["interrupted"]
    crashed.ok("recover", id, "--store", there)
    with holdfast.open(there) as store:
        assert store.get(id).messages()[-1].text == "It is alrea"


def test_another_history_is_refused(talked: Shell, there: str) -> None:
    """Exit code 4, and the target is as it was."""
    talked.ok("copy", str(talked.store), there)
    talked.ok("append", "support-42", "mine", "--store", there)
    before = talked.ok("show", "support-42", "--json", "--store", there)
    ran = talked.run("copy", str(talked.store), there)
    assert ran.code == 4
    assert "other content under the same ids" in ran.err
    assert "hint: copy to another store" in ran.err
    assert talked.ok("show", "support-42", "--json", "--store", there) == before


def test_damage_is_told_and_the_rest_comes(talked: Shell, there: str) -> None:
    """Exit code 1."""
    connection = apsw.Connection(str(talked.store))
    connection.execute("UPDATE messages SET body = body || ' ' WHERE place & 0xffffffff = 2")
    connection.close()
    ran = talked.run("copy", str(talked.store), there)
    assert ran.code == 1
    assert "does not match its checksum" in ran.err
    assert "1 part of FROM could not be read; all the rest was copied" in ran.err
    assert "the same on both sides" not in ran.out


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["copy"], 2, "FROM"),
        (["copy", "a.db"], 2, "TO"),
        (["copy", "{store}", "{store}"], 2, "the same store"),
        (["copy", "{store}", "sqlite:///{store}"], 2, "the same store"),
        (["copy", "{store}", "x.db", "--store", "y.db"], 2, "omit --store"),
        (["copy", "nothing-here.db", "x.db"], 3, "there is no store at nothing-here.db"),
        (["copy", "{store}", "odd://x"], 2, "no backend for 'odd'"),
    ],
)
def test_what_makes_no_sense(
    talked: Shell, elsewhere: Path, arguments: list[str], code: int, said: str
) -> None:
    """It says so, and leaves nothing behind."""
    ran = talked.run(*(part.format(store=talked.store) for part in arguments))
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert list(elsewhere.iterdir()) == []


def test_killed_and_called_again(shell: Shell, tmp_path: Path, there: str) -> None:
    """The command line of everybody: it is stopped, typed again, and done."""
    with holdfast.open(shell.store, durability="process") as store:
        for n in range(8):
            store.session(f"k{n}").append(*[Message.user("x" * 400) for _ in range(800)])
    process = shell.start("copy", str(shell.store), there)
    while not Path(there).exists():
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = shell.json("copy", str(shell.store), there)
    assert (done["same"], done["added"] + done["unchanged"]) == (True, 8)


def test_a_terminal_sees_that_it_goes_on(talked: Shell, there: str) -> None:
    """After a second, on standard error; here another one keeps the target busy till it is seen."""
    reader, writer = pty.openpty()
    seen, shown = threading.Event(), b""
    with holdfast.open(there) as busy:
        holder = threading.Thread(target=busy.backend.write, args=(lambda _: seen.wait(60.0),))
        holder.start()
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "copy", str(talked.store), there],
            env=talked.environment | {"TERM": "xterm", "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=writer,
        )
        os.close(writer)
        with contextlib.suppress(OSError):  # The other end is closed.
            while piece := os.read(reader, 4096):
                shown += piece
                if b"copying to " in shown:
                    seen.set()
        os.close(reader)
        out, _ = process.communicate()
        holder.join()
    assert process.returncode == 0
    assert b"the same on both sides" in out
    assert f"copying to {there} … ".encode() in shown


def test_nothing_hostile_is_printed(shell: Shell, there: str) -> None:
    """Whatever is stored."""
    hostile_session(shell.store)
    said = shell.ok("copy", str(shell.store), there)
    assert not RAW & set(said)
    assert shell.ok("copy", str(shell.store), there, "--json").isascii()
