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

import msgspec
import pytest

from holdfast import Message, Record, Usage
from holdfast.cli import program
from holdfast.proof import checker, runner
from holdfast.proof.runner import (
    FinalContents,
    ProofPlan,
    Report,
    nearest_directory,
    note_violations,
    record_violations,
)
from holdfast.proof.script import (
    AnyNote,
    Flushed,
    Sealed,
    Started,
    message_of,
    state_after,
    text_of,
)
from holdfast.values import ToolRecord, TurnInfo, TurnState

_PROVE = [sys.executable, "-m", "holdfast", "prove"]
_PATIENCE = 60.0
_LONGER = (1, 3, 9, 27)
"""So many seconds it takes on machines that are busier and busier for something to happen."""
_TRYING = 600  # seconds, for all of these together
_HAPPENS = ("kills", "sent_again", "stored_before", "overlaps", "reads", "turns", "sessions")


def _prove(*arguments: object, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_PROVE, *map(str, arguments)],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )


# --- a sound store ------------------------------------------------------------------------------


def _prove_on_a_terminal(out: Path, *arguments: object) -> tuple[int, dict[str, Any], bytes]:
    """Prove in JSON with errors on a terminal; give the exit code, the figures and the errors."""
    ours, theirs = pty.openpty()
    command = [*_PROVE, "--json", *map(str, arguments)]
    environ = os.environ | {"TERM": "xterm"}
    with (
        out.open("wb") as file,
        subprocess.Popen(command, env=environ, stdout=file, stderr=theirs) as process,
    ):
        os.close(theirs)
        shown = b"".join(_read_all(ours))
        process.wait(_PATIENCE)
    os.close(ours)
    return process.returncode, json.loads(out.read_text()), shown


def _read_all(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the last writer of a terminal is gone.
            return
        if not piece:
            return
        yield piece


def _is_sound(code: int, figures: dict[str, Any]) -> None:
    assert (code, figures["problems"], figures["vacuous"]) == (0, [], [])
    assert figures["ok"] is True
    assert [figures[name] for name in ("lost", "duplicated", "reordered", "other")] == [0] * 4
    for name in _HAPPENS:
        assert figures[name] > 0
    assert figures["moves"] > figures["branches"] > 0
    assert figures["stored"] >= figures["acknowledged"] > figures["commits"] / 2
    assert figures["kept"] is False


@pytest.mark.timeout(_TRYING)
def test_a_sound_store_passes_and_the_figures_say_what_was_tried(tmp_path: Path) -> None:
    """Exit code 0, nothing lost, and real kills, retries and overlaps; the directory is gone.

    While it runs, kills and writes are counted on the terminal.
    """
    made = tmp_path / "made"
    for seconds in _LONGER:
        code, figures, shown = _prove_on_a_terminal(
            tmp_path / "out", "--dir", made, "--writers", 4, "--seconds", seconds
        )
        assert figures["problems"] == []
        if all(figures[name] for name in (*_HAPPENS, "branches")):
            break
    _is_sound(code, figures)
    assert list(made.iterdir()) == []
    assert b"writes" in shown
    assert b"kills" in shown


@pytest.mark.long
def test_a_sound_store_passes_with_every_writer(tmp_path: Path) -> None:
    """As people run it."""
    ended = _prove("--dir", tmp_path / "made", "--json")
    _is_sound(ended.returncode, json.loads(ended.stdout))
    assert ended.stderr == ""


def test_a_run_in_which_nothing_happened_proves_nothing(tmp_path: Path) -> None:
    """Nobody is killed and back again; and nothing is left behind beside the user's store."""
    environ = {"HOLDFAST_URL": str(tmp_path / "state" / "agent.db")}
    place = nearest_directory(None, environ, Path.cwd())
    assert place == tmp_path
    report = runner.run(ProofPlan(place, seconds=0.0, writers=2))
    assert (report.ok, report.problems, report.kept) == (False, (), False)
    assert "retries" in report.vacuous
    assert list(tmp_path.iterdir()) == []


# --- what is said -------------------------------------------------------------------------------

_REPORT = Report(
    ok=True,
    lost=0,
    duplicated=0,
    reordered=0,
    other=0,
    failed_writers=0,
    problems=(),
    vacuous=(),
    writers=8,
    kills=44,
    seconds=20.0,
    sessions=9,
    acknowledged=12_345,
    stored=12_346,
    sent_again=80,
    stored_before=41,
    overlaps=5_000,
    reads=600,
    moves=700,
    branches=300,
    turns=50,
    interrupted=11,
    partial_replies=7,
    unknown_tools=3,
    commits=13_000,
    commits_per_second=650.0,
    median_wait_ms=1.5,
    worst_wait_ms=80.0,
    directory="/there/holdfast-prove-x",
    kept=False,
    file_system="ext4",
    versions="holdfast 1",
)


@pytest.fixture
def told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, ProofPlan]]:
    """Call the command; give its code, what it says of a report, and what it planned."""

    def tell(*arguments: object, **report: object) -> tuple[int, str, ProofPlan]:
        plans = []

        def run(plan: ProofPlan, watch: object) -> Report:
            assert watch is None  # Nobody looks: there is no bar.
            plans.append(plan)
            return msgspec.structs.replace(_REPORT, **report)

        monkeypatch.setattr(runner, "run", run)
        code = program.run(["prove", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert err == ""
        assert "\x1b" not in out
        return code, out, plans[0]

    return tell


Tell = Callable[..., tuple[int, str, ProofPlan]]


def test_the_verdict_is_plain_text_in_a_pipe_and_kept_files_are_named(
    told: Tell, tmp_path: Path
) -> None:
    """People are told where it ran, what was found, and where the files are that they kept."""
    code, said, plan = told(
        "--dir", tmp_path, "--writers", 3, "--seconds", 2.5, "--keep", kept=True
    )
    assert (code, plan) == (0, ProofPlan(tmp_path, 2.5, 3, keep=True))
    assert f"3 processes write to a temporary store in {tmp_path}" in said
    assert "killed at random for 2.5 s." in said
    lines = [line.split("  0  ")[0].rstrip() for line in said.splitlines()]
    for name in ("lost", "duplicated", "reordered", "anything else"):
        assert f"  {name}" in lines
    assert "44 kills; 11 of 50 turns interrupted" in said
    assert "✓ The promise held.  holdfast 1\n" in said
    assert "/there/holdfast-prove-x" in said


def test_it_runs_beside_the_users_store(
    told: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --dir it takes the disk of the store; neither the store nor its folder is made."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code, said, plan = told()
    assert (code, plan) == (0, ProofPlan(tmp_path))
    assert f"in {tmp_path}" in said
    assert "The store and the log of every write" not in said
    assert list(tmp_path.iterdir()) == []


def test_that_nothing_was_shown_is_said_with_why(told: Tell) -> None:
    """Exit code 1."""
    code, said, _ = told(ok=False, vacuous=("kills", "retries"))
    assert code == 1
    assert "✗ Inconclusive: no kills, no retries. Give it more --seconds or --writers." in said
    assert "The promise" not in said


def test_a_broken_promise_is_said_with_what_was_found(told: Tell) -> None:
    """Some of it, and how much more there is; exit code 1, also for programs."""
    found = {
        "ok": False, "lost": 2, "problems": tuple(f"LOST: no {n}" for n in range(10)), "kept": True
    }  # fmt: skip
    code, said, _ = told(**found, failed_writers=1)
    assert code == 1
    assert "  lost           2   of 12,345 acknowledged messages in 9 sessions\n" in said
    assert said.count("  ✗ LOST: no ") == 8
    assert "    and 2 more\n" in said
    assert "✗ The promise was broken." in said
    assert "The store and the log of every write: /there/holdfast-prove-x" in said
    code, said, _ = told("--json", **found)
    assert (code, json.loads(said)["lost"]) == (1, 2)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("ext4", "A kill is not a power cut"),
        ("tmpfs", "This is memory, not a disk"),
        ("the server", "depends on the server's disk"),
    ],
)
def test_what_it_cannot_show_is_said(told: Tell, where: str, words: str) -> None:
    """As far as it depends on where the store was."""
    assert words in told(file_system=where)[1]


# --- a store that is not sound ------------------------------------------------------------------

_UNSOUND = """
import sys
if "holdfast.proof.worker" in " ".join(sys.orig_argv):
    import itertools
    from holdfast.session import Session
    honest, rewound, calls = Session.append, Session.rewind, itertools.count(1)
    def append(self, *messages, **options):
        if self.key == "shared" and next(calls) % 7 == 0:
            return self.head()
        return honest(self, *messages, **options)
    def undo(self, n=1, *, expect=None):
        return self.head()
    def rewind(self, to, *, expect=None):
        return rewound(self, max(0, to - 1), expect=expect)
    Session.append, Session.undo, Session.rewind = append, undo, rewind
"""

_FAILING = """
import sys
if "holdfast.proof.worker" in " ".join(sys.orig_argv):
    from holdfast.session import Session
    def append(self, *messages, **options):
        raise RuntimeError("no pen")
    Session.append = append
"""


def _with_a_mutant(folder: Path, source: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(source)
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(folder) if path is None else f"{folder}{os.pathsep}{path}"}


@pytest.mark.timeout(_TRYING)
def test_a_store_that_forgets_or_moves_wrongly_is_found_out(tmp_path: Path) -> None:
    """Exit code 1 for whatever is acknowledged and not done.

    Every seventh append to one session is forgotten, an undo is not done, a rewind goes too far.
    """
    environ = _with_a_mutant(tmp_path / "mutant", _UNSOUND)
    wanted = {"LOST: session 'shared'", ": undo (op", ": rewind (op"}
    for seconds in _LONGER:
        arguments = ("--seconds", seconds, "--writers", 4, "--dir", tmp_path / "ground", "--json")
        ended = _prove(*arguments, **environ)
        figures = json.loads(ended.stdout)
        found = "\n".join(figures["problems"])
        if all(words in found for words in wanted):
            break
    assert [words for words in wanted if words not in found] == []
    assert ended.returncode == 1
    assert figures["lost"] > 0
    assert figures["other"] > 0
    assert figures["ok"] is False
    assert any(problem.startswith("WRONG MOVE: ") for problem in figures["problems"])
    assert Path(figures["directory"], "store.db").exists()
    assert ended.stderr == ""


@pytest.mark.timeout(_TRYING)
def test_writers_that_fail_are_told_apart_from_a_broken_promise(tmp_path: Path) -> None:
    """They are not restarted for ever; the reason is shown, and where to read all of it."""
    environ = _with_a_mutant(tmp_path / "mutant", _FAILING)
    ended = _prove("--seconds", 600, "--writers", 2, "--dir", tmp_path / "ground", **environ)
    assert ended.returncode == 1
    assert "failed: RuntimeError: no pen" in ended.stdout
    assert "✗ Writers failed, so this proves nothing." in ended.stdout
    (kept,) = (tmp_path / "ground").iterdir()
    assert str(kept) in ended.stdout
    assert any("no pen" in path.read_text() for path in kept.glob("w*.stderr"))


def test_a_place_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    """A directory below a file is trouble with the disk: exit code 5, one line, a hint."""
    (tmp_path / "file").touch()
    ended = _prove("--dir", tmp_path / "file" / "below")
    assert ended.returncode == 5
    assert "cannot use" in ended.stderr
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
    command = [*_PROVE, "--seconds", "600", "--writers", "2", "--dir", str(tmp_path)]
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


def test_a_signal_while_a_writer_is_started_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is handled when the writer is known; then all of them are ended."""
    started: list[subprocess.Popen[bytes]] = []

    class Interrupting(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupting)
    with pytest.raises(KeyboardInterrupt):
        runner.run(ProofPlan(tmp_path, seconds=1, writers=2))
    assert [process.returncode for process in started] == [-signal.SIGKILL]
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
    return bool(list(note_violations(FinalContents(messages, turns, []), [note])))


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
    found = nearest_directory(None, environ, tmp_path / "here")
    assert str(found) == expected.format(tmp_path)


_WRITTEN = checker.Invoked("w1.1", 1, "s", ("w1.1:1u", "w1.1:2a"), ("", ""), 1)
_STATE = msgspec.structs.replace(state_after("w1.1:2a"), seq=2)


@pytest.mark.parametrize(
    ("stored", "kept", "broken"),
    [
        (2, [_STATE], ""),
        (0, [], ""),
        (2, [], "is lost"),
        (1, [_STATE], "not its message"),
        (1, [], ""),  # a rewind into the batch
        (2, [msgspec.structs.replace(_STATE, seq=1)], "not where it was"),
        (2, [msgspec.structs.replace(_STATE, data={"text": ""})], "not what was stored"),
        (2, [_STATE, _STATE], "twice"),
    ],
)
def test_a_record_is_stored_with_its_batch_or_not_at_all(
    stored: int, kept: list[Record], broken: str
) -> None:
    ids = ("w1.1:1u", "w1.1:2a")[:stored]
    messages = [msgspec.structs.replace(message_of(id), seq=n) for n, id in enumerate(ids, 1)]
    found = FinalContents({"s": messages}, {}, [], records={"s": kept})
    assert broken in "; ".join(record_violations(found, [_WRITTEN]))
    assert bool(broken) == bool(list(record_violations(found, [_WRITTEN])))


def test_a_message_of_a_turn_has_no_record_also_when_it_is_retried() -> None:
    in_turn = checker.Invoked("w1.1", 1, "s", ("w1.1:1u",), ("",), 1, fence=1)
    again = checker.Invoked("w1.2", 1, "s", ("w1.1:1u",), ("",), 2)
    messages = [msgspec.structs.replace(message_of("w1.1:1u"), seq=1)]
    found = FinalContents({"s": messages}, {}, [], records={"s": []})
    assert list(record_violations(found, [in_turn, again])) == []
    assert list(record_violations(found, [again])) != []
