"""`holdfast prove` finds what is wrong, nothing where nothing is, and leaves nothing behind."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, Usage
from holdfast.records import ToolRecord, TurnInfo, TurnState
from holdfast.testing.proof import Found, broken_notes, nearest_place
from holdfast.testing.proof_script import AnyNote, Flushed, Sealed, Started, text_of

_PROVE = [sys.executable, "-m", "holdfast", "prove"]
_PATIENCE = 60.0


def _prove(*arguments: object, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_PROVE, *map(str, arguments)],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def _prove_well(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Prove for as many seconds as it takes on a busy machine for something to happen."""
    for seconds in (3, 6, 12, 24):
        ended = _prove("--seconds", seconds, *arguments)
        if "Nothing was shown" not in ended.stdout and not _is_vacuous(ended.stdout):
            break
    return ended


def _is_vacuous(text: str) -> bool:
    return text.startswith("{") and bool(json.loads(text)["vacuous"])


# --- a sound store ------------------------------------------------------------------------------


def test_a_sound_store_passes_and_the_figures_say_what_was_tried(tmp_path: Path) -> None:
    """Exit code 0, nothing lost, and real kills, retries and overlaps; the directory is gone."""
    ended = _prove_well("--dir", tmp_path / "made", "--json")
    figures: dict[str, Any] = json.loads(ended.stdout)
    assert (ended.returncode, figures["problems"], figures["vacuous"]) == (0, [], [])
    assert figures["ok"] is True
    assert [figures[name] for name in ("lost", "duplicated", "reordered", "other")] == [0] * 4
    for name in ("kills", "sent_again", "stored_before", "overlaps", "reads", "turns", "sessions"):
        assert figures[name] > 0
    assert figures["moves"] > figures["branches"] > 0
    assert figures["stored"] >= figures["acknowledged"] > figures["commits"] / 2
    assert figures["kept"] is False
    assert list((tmp_path / "made").iterdir()) == []
    assert ended.stderr == ""


def test_the_verdict_is_plain_text_in_a_pipe_and_kept_files_are_named(tmp_path: Path) -> None:
    """People are told where it ran, what was found, and where the files are that they kept."""
    ended = _prove_well("--dir", tmp_path, "--writers", 3, "--keep")
    assert ended.returncode == 0, ended.stdout
    *_, kept = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    for words in (f"3 processes write to a temporary store in {tmp_path}", str(kept), "kills"):
        assert words in ended.stdout
    for name in ("lost", "duplicated", "reordered", "anything else"):
        assert any(line.split("   ")[0].startswith(f"  {name}") for line in _lines(ended.stdout))
    assert "✓ The promise held." in ended.stdout
    assert "\x1b" not in ended.stdout + ended.stderr
    with holdfast.open(kept / "store.db", readonly=True) as store:
        assert store.session("shared", create=False).head().seq > 0


def _lines(text: str) -> list[str]:
    return text.splitlines()


def test_it_runs_beside_the_users_store_and_leaves_that_alone(tmp_path: Path) -> None:
    """Without --dir it takes the disk of the store; neither the store nor its folder is made."""
    home = tmp_path / "state"
    ended = _prove("--seconds", 0.1, XDG_STATE_HOME=str(home))
    assert f"in {tmp_path}" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_which_nothing_happened_proves_nothing(tmp_path: Path) -> None:
    """In a tenth of a second nobody is killed and back again: exit code 1, and why."""
    ended = _prove("--seconds", 0.1, "--dir", tmp_path)
    assert ended.returncode == 1
    assert "✗ Nothing was shown: no " in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    """While it runs, kills and writes are counted on the terminal."""
    ours, theirs = pty.openpty()
    command = [*_PROVE, "--seconds", "1", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b"".join(_read_all(ours))
        process.wait(_PATIENCE)
    os.close(ours)
    assert b"writes" in shown
    assert b"kills" in shown


def _read_all(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the last writer of a terminal is gone.
            return
        if not piece:
            return
        yield piece


# --- a store that is not ------------------------------------------------------------------------

_FORGETFUL = """
import sys
if "holdfast.testing.proof_worker" in " ".join(sys.orig_argv):
    import itertools
    from holdfast.session import Session
    honest, calls = Session.append, itertools.count(1)
    def append(self, *messages, **options):
        if next(calls) % 7 == 0:
            return self.head()
        return honest(self, *messages, **options)
    Session.append = append
"""

_UNMOVED = """
import sys
if "holdfast.testing.proof_worker" in " ".join(sys.orig_argv):
    from holdfast.session import Session
    def undo(self, n=1, *, expect=None):
        return self.head()
    Session.undo = undo
"""

_TOO_FAR = """
import sys
if "holdfast.testing.proof_worker" in " ".join(sys.orig_argv):
    from holdfast.session import Session
    honest = Session.rewind
    def rewind(self, to, *, expect=None):
        return honest(self, max(0, to - 1), expect=expect)
    Session.rewind = rewind
"""

_FAILING = """
import sys
if "holdfast.testing.proof_worker" in " ".join(sys.orig_argv):
    from holdfast.session import Session
    def append(self, *messages, **options):
        raise RuntimeError("no pen")
    Session.append = append
"""


def _with_a_mutant(folder: Path, source: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(source)
    return {"PYTHONPATH": str(folder)}


def test_a_store_that_forgets_is_found_out(tmp_path: Path) -> None:
    """Writers whose every seventh append is acknowledged and not stored: LOST, exit code 1."""
    environ = _with_a_mutant(tmp_path / "mutant", _FORGETFUL)
    ended = _prove("--seconds", 3, "--dir", tmp_path / "ground", "--json", **environ)
    figures = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert figures["lost"] > 0
    assert figures["ok"] is False
    assert any(problem.startswith("LOST: ") for problem in figures["problems"])
    assert Path(figures["directory"], "store.db").exists()


@pytest.mark.parametrize("mutant", [_UNMOVED, _TOO_FAR], ids=["unmoved", "too-far"])
def test_a_store_that_moves_wrongly_is_found_out(tmp_path: Path, mutant: str) -> None:
    """An undo that is acknowledged and not done, a rewind that goes too far: exit code 1."""
    environ = _with_a_mutant(tmp_path / "mutant", mutant)
    ended = _prove("--seconds", 4, "--dir", tmp_path / "ground", "--json", **environ)
    figures = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert figures["other"] > 0
    assert any(problem.startswith("WRONG MOVE: ") for problem in figures["problems"])


def test_writers_that_fail_are_told_apart_from_a_broken_promise(tmp_path: Path) -> None:
    """They are not restarted for ever; the reason is shown, and where to read all of it."""
    environ = _with_a_mutant(tmp_path / "mutant", _FAILING)
    ended = _prove("--seconds", 3, "--dir", tmp_path / "ground", **environ)
    assert ended.returncode == 1
    assert "stopped by itself: RuntimeError: no pen" in ended.stdout
    assert "✗ Writers failed, so this proves nothing." in ended.stdout
    (kept,) = (tmp_path / "ground").iterdir()
    assert str(kept) in ended.stdout
    assert "no pen" in (kept / "w1.1.stderr").read_text()


def test_a_place_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    """A directory below a file is trouble with the disk: exit code 5, one line, a hint."""
    (tmp_path / "file").touch()
    ended = _prove("--dir", tmp_path / "file" / "below")
    assert ended.returncode == 5
    assert "cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr


# --- being ended --------------------------------------------------------------------------------


def _processes_of(folder: Path) -> list[int]:
    """Find processes that were given this folder on their command line."""
    name = str(folder).encode()
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and name in _command_line(entry)
    ]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def running(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A proof whose writers are writing, in `tmp_path`."""
    command = [*_PROVE, "--seconds", "600", "--dir", str(tmp_path)]
    silence = subprocess.DEVNULL
    with subprocess.Popen(
        command, start_new_session=True, stdout=silence, stderr=silence
    ) as process:
        _await(lambda: any(tmp_path.glob("*/w*.events.jsonl")), "nobody writes")
        yield process
        process.kill()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="asks /proc who is running")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ending_it_ends_the_writers_and_removes_the_directory(
    running: "subprocess.Popen[bytes]", tmp_path: Path, number: int, code: int
) -> None:
    """Ctrl-C and a polite signal leave no process and no file behind."""
    running.send_signal(number)
    assert running.wait(_PATIENCE) == code
    assert _processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="asks /proc who is running")
def test_writers_do_not_outlive_whoever_started_them(
    running: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """Killed itself, it can clean up nothing; its writers notice and end."""
    running.kill()
    running.wait(_PATIENCE)
    _await(lambda: _processes_of(tmp_path) == [], "writers are still running")


# --- its own rules ------------------------------------------------------------------------------

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_REPLY = "0195a0c0-0000-7000-8000-000000000000"


def _turn(state: TurnState, *tools: ToolRecord) -> TurnInfo:
    return TurnInfo(
        id="s.1",
        state=state,
        run_id=None,
        model=None,
        started_at=_NOW,
        ended_at=None,
        latency_ms=None,
        usage=Usage(),
        cost=Decimal(0),
        error=None,
        tools=tools,
    )


def _tool(outcome: str) -> ToolRecord:
    return ToolRecord(call_id="c", name="t", outcome=outcome, started_at=None, ended_at=None)  # type: ignore[arg-type]


def _reply(text: str, status: str) -> Message:
    return Message.assistant(text, id=_REPLY, status=status)  # type: ignore[arg-type]


def _broken(note: AnyNote, *, reply: Message | None = None, turn: TurnInfo | None = None) -> bool:
    messages = {"s": [] if reply is None else [reply]}
    turns = {"s": [] if turn is None else [turn]}
    return bool(list(broken_notes(Found(messages, turns, []), [note])))


@pytest.mark.parametrize(
    ("kept", "status", "broken"),
    [
        (None, "", True),
        (5, "partial", True),
        (10, "partial", False),
        (11, "partial", False),
        (11, "complete", True),
        (-1, "complete", False),
    ],
)
def test_what_was_flushed_must_be_kept(kept: int | None, status: str, broken: bool) -> None:
    """Ten characters were flushed: fewer are too few, and `complete` means all of them."""
    whole = text_of(_REPLY)
    text = None if kept is None else whole if kept == -1 else whole[:kept]
    reply = None if text is None else _reply(text, status)
    assert _broken(Flushed("s", _REPLY, 10), reply=reply) is broken


def test_what_is_kept_must_be_how_the_reply_began() -> None:
    """Twelve characters, but not the first twelve."""
    reply = _reply(text_of(_REPLY)[1:13], "partial")
    assert _broken(Flushed("s", _REPLY, 10), reply=reply)


@pytest.mark.parametrize(
    ("outcome", "broken"),
    [
        ("done", False),
        ("error", False),
        ("unknown", False),
        ("not_run", True),
        ("running", True),
        (None, True),
    ],
)
def test_a_started_tool_must_have_an_outcome(outcome: str | None, broken: bool) -> None:
    """A tool that may have had its effect is never recorded as one that did not run."""
    tools = () if outcome is None else (_tool(outcome),)
    assert _broken(Started("s", "s.1", "c"), turn=_turn("interrupted", *tools)) is broken


@pytest.mark.parametrize(
    ("state", "broken"), [("sealed", False), ("interrupted", True), ("open", True)]
)
def test_a_sealed_turn_must_be_sealed(state: TurnState, broken: bool) -> None:
    """And a turn that is open in the end was forgotten by recovery."""
    assert _broken(Sealed("s", "s.1"), turn=_turn(state)) is broken


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("{}/there/below/store.db", "{}/there"),
        ("{}/there/not/yet/store.db", "{}/there"),
        ("{}/there/store.db", "{}"),
        ("sqlite:///{}/there/below/store.db?lease=3", "{}/there"),
        ("memory:", "{}/here"),
    ],
)
def test_the_place_is_on_the_disk_of_the_store(tmp_path: Path, url: str, expected: str) -> None:
    """The nearest directory that exists above the store's own; elsewhere the current one."""
    (tmp_path / "there" / "below").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    environ = {"HOLDFAST_URL": url.format(tmp_path)}
    found = nearest_place(None, environ, tmp_path / "here")
    assert str(found) == expected.format(tmp_path)
