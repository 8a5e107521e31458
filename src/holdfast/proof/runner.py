"""The proof run: processes write to a store and are killed; then every message is accounted for.

Writer processes append to one shared session and to many, run turns with streamed replies and
tools, and rewind, undo, redo, clear and fork. Several times a second one of them is killed with
SIGKILL and restarted; it then retries its last writes. At the end all are killed at once, as in a
crash. Then the store is opened, open turns are recovered, and its contents, abandoned branches
included, are compared with everything that was acknowledged: by the history checker, by `verify`,
and by three rules of the run's own:

* of a streamed reply all flushed text is kept, and what is kept is a prefix of the reply;
* a tool that was started has an outcome, if only "unknown";
* a turn that was sealed is sealed, and no turn stays open.

A run without kills, without retries or without overlapping writes proves nothing, and reports that.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw
import msgspec

import holdfast
from holdfast.errors import HoldfastError, SessionBusy, StoreUnavailable
from holdfast.proof import checker, server_schema
from holdfast.proof.script import (
    MOVING,
    AnyNote,
    Flushed,
    Part,
    Replying,
    Role,
    Sealed,
    Started,
    is_reply,
    read_notes,
    stored,
    text_of,
)
from holdfast.storage import registry
from holdfast.storage.interrupts import undisturbed
from holdfast.storage.sqlite.location import filesystem_of, refuse_network
from holdfast.url import parse
from holdfast.values import Message, TurnInfo

__all__ = [
    "Found",
    "Plan",
    "Progress",
    "Report",
    "broken_notes",
    "file_system",
    "nearest_place",
    "run",
]

_ROLES: Final[tuple[Role, ...]] = (
    "shared", "shared", "turns", "moves", "turns", "shared", "moves", "spread",
)  # fmt: skip
_SESSIONS: Final[Mapping[Role, int]] = {"shared": 1, "spread": 20, "turns": 3, "moves": 3}
_LEASE: Final = 5.0  # It matters only where the store cannot detect that a process is dead.
_PAUSES: Final = (0.05, 0.45)
_BLIND: Final = 0.1  # The share of kills that may hit a writer before its first write.
_LOOK: Final = 0.1
_STARTING: Final = 30.0
_HARNESS: Final = "harness"


class Plan(msgspec.Struct, frozen=True):
    """The parameters of a run: where, for how long, with how many writers.

    `server` is the URL of a database: then the directory holds only the event files.
    """

    directory: Path
    seconds: float = 20.0
    writers: int = 8
    keep: bool = False
    server: str | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far a run has come."""

    elapsed: float
    kills: int
    writes: int
    checking: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: violations found, and how much activity was checked."""

    ok: bool
    lost: int
    duplicated: int
    reordered: int
    other: int
    failed_writers: int
    problems: tuple[str, ...]
    vacuous: tuple[str, ...]
    writers: int
    kills: int
    seconds: float
    sessions: int
    acknowledged: int
    stored: int
    sent_again: int
    stored_before: int
    overlaps: int
    reads: int
    moves: int
    branches: int
    turns: int
    interrupted: int
    partial_replies: int
    unknown_tools: int
    commits: int
    commits_per_second: float
    median_wait_ms: float
    worst_wait_ms: float
    directory: str
    kept: bool
    file_system: str
    versions: str


# --- location -----------------------------------------------------------------------------------


def nearest_place(url: str | None, environ: Mapping[str, str], here: Path) -> Path:
    """Return a writable directory on the same disk as the user's store, outside it; else `here`."""
    location = parse(url, environ)
    candidates = [here, Path(tempfile.gettempdir())]
    file = registry.file_of(location)
    if file is not None:
        home = Path(os.path.abspath(file)).parent.parent  # noqa: PTH100 - keep symlinks
        candidates[:0] = [path for path in (home, *home.parents) if path.is_dir()][:1]
    return next((path for path in candidates if os.access(path, os.W_OK | os.X_OK)), here)


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds a directory."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return "this disk"
    return filesystem_of(directory.resolve(), mounts) or "this disk"


class _Ground:
    """A directory for the event files, and a store in it or on a server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server: server_schema.Place | None = None
        self.keep = False

    @property
    def url(self) -> str:
        """The URL of the store."""
        if self.server is not None:
            return self.server.url
        return f"sqlite:///{quote(str(self.directory / 'store.db'))}?lease={_LEASE}"

    @property
    def medium(self) -> str:
        """The file system or server that the store is written to."""
        return "the server" if self.server is not None else file_system(self.directory)

    @property
    def place(self) -> str:
        """The location of the store and the event files, as shown to the user."""
        where = str(self.directory)
        return where if self.server is None else f"{where}, {self.server.shown}"

    @property
    def engine(self) -> str:
        """The database engine and its version."""
        return self.server.engine if self.server else f"SQLite {apsw.sqlite_lib_version()}"

    def clear(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.server is not None:
            self.server.remove()


@contextmanager
def _ground(plan: Plan) -> Iterator[_Ground]:
    """Create the directory and the store; remove them at the end unless `keep` is set."""
    site = _Ground(_new_directory(plan))
    try:
        if plan.server is not None:
            site.server = server_schema.Place(plan.server, _LEASE)
        yield site
    finally:
        if not site.keep:
            site.clear()


def _new_directory(plan: Plan) -> Path:
    if plan.server is None:
        refuse_network(plan.directory / "store.db")
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="holdfast-prove-", dir=plan.directory)).resolve()
    except OSError as error:
        raise StoreUnavailable(
            f"cannot use {plan.directory}: {error.strerror}; choose another directory with --dir."
        ) from error


# --- the run ------------------------------------------------------------------------------------


def run(plan: Plan, watch: Callable[[Progress], None] | None = None) -> Report:
    """Run a proof and return its report. Files are kept if `plan.keep`, or if it found problems."""
    with _ground(plan) as site:
        processes = _Crowd(site, plan.writers)
        try:
            seconds = _torment(processes, plan.seconds, watch)
        finally:
            processes.kill_all()
        report = _judge(processes, plan, seconds)
        site.keep = report.kept
        return report


def _torment(processes: _Crowd, seconds: float, watch: Callable[[Progress], None] | None) -> float:
    """Run all writers, killing one at random intervals; return the elapsed seconds."""
    tally = _Tally(processes.ground.directory)
    processes.start_all()
    _await_beginning(processes)
    began = next_kill = time.monotonic()
    while (now := time.monotonic()) < began + seconds and not processes.hopeless:
        if now >= next_kill:
            processes.kill_one()
            next_kill = now + processes.chance.uniform(*_PAUSES)
        processes.replace_the_fallen()
        if watch is not None:
            watch(Progress(now - began, processes.kills, tally.count()))
        time.sleep(max(0.0, min(_LOOK, next_kill - now, began + seconds - now)))
    took = time.monotonic() - began
    processes.kill_all()
    if watch is not None:
        watch(Progress(took, processes.kills, tally.count(), checking=True))
    return took


def _await_beginning(processes: _Crowd) -> None:
    """Wait until every writer has begun to write, so that start-up time does not count."""
    deadline = time.monotonic() + _STARTING
    while not (processes.all_write or processes.hopeless) and time.monotonic() < deadline:
        processes.replace_the_fallen()
        time.sleep(_LOOK)


class _Crowd:
    """The writer processes, and the record of which were killed."""

    def __init__(self, site: _Ground, writers: int) -> None:
        self.ground = site
        self.chance = random.Random()  # noqa: S311 - chance need not be secret
        self.kills = 0
        self.fallen: list[str] = []
        self._recorder = checker.Recorder(site.directory / f"{_HARNESS}.events.jsonl", _HARNESS)
        self._lives = dict.fromkeys(range(1, writers + 1), 0)
        self._running: dict[int, tuple[Part, subprocess.Popen[bytes]]] = {}

    @property
    def all_write(self) -> bool:
        """True if every writer has begun to write."""
        return all(_has_written(part) for part, _ in self._running.values())

    @property
    def hopeless(self) -> bool:
        """True if writers keep failing by themselves: going on would be pointless."""
        return len(self.fallen) > 2 * len(self._lives)

    def start_all(self) -> None:
        """Start every writer; they create the store themselves, concurrently."""
        for writer in self._lives:
            self._start(writer)

    def _start(self, writer: int) -> None:
        # A signal during the start would leave a process that is never ended.
        undisturbed(partial(self._launch, writer))

    def _launch(self, writer: int) -> None:
        self._lives[writer] += 1
        role = _ROLES[(writer - 1) % len(_ROLES)]
        where = self.ground.url, str(self.ground.directory)
        part = Part(*where, writer, self._lives[writer], role, _SESSIONS[role])
        command = [sys.executable, "-m", "holdfast.proof.worker"]
        with part.errors.open("wb") as errors:
            process = subprocess.Popen(
                [*command, msgspec.json.encode(part).decode()],
                stdin=subprocess.PIPE,  # At end of file when this process dies; then writers exit.
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the writers.
            )
        self._running[writer] = part, process

    def kill_one(self) -> None:
        """Kill one writer, usually one that has begun to write, and restart it."""
        writing = [w for w, (part, _) in self._running.items() if _has_written(part)]
        blind = not writing or self.chance.random() < _BLIND
        writer = self.chance.choice(list(self._running) if blind else writing)
        self._kill(writer)
        self._start(writer)

    def kill_all(self) -> None:
        """Kill all writers at once."""
        for _, process in self._running.values():
            process.kill()
        for writer in list(self._running):
            self._kill(writer)
        if self.ground.server is not None:
            self.ground.server.settle()

    def _kill(self, writer: int) -> None:
        part, process = self._running[writer]
        process.kill()
        code = self._gone(part, process)
        del self._running[writer]
        if code < 0:
            self._recorder.killed(part.name)
            self.kills += 1

    def _gone(self, part: Part, process: subprocess.Popen[bytes]) -> int:
        """Wait for a process to exit and return its code; a failure is recorded."""
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        output = part.errors.read_text(errors="replace").strip()
        if code >= 0 or output:
            last = output.splitlines()[-1] if output else f"exit code {code}"
            self.fallen.append(f"writer {part.name} failed: {last}")
        return code

    def replace_the_fallen(self) -> None:
        """Restart the writers that exited without being killed."""
        for writer, (part, process) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[writer]
                self._gone(part, process)
                self._start(writer)


def _has_written(part: Part) -> bool:
    return part.events.exists() and part.events.stat().st_size > 0


class _Tally:
    """Counts acknowledged writes during the run, reading each event file incrementally."""

    def __init__(self, directory: Path) -> None:
        self._ground = directory
        self._read: Counter[Path] = Counter()
        self._count = 0

    def count(self) -> int:
        """Return the number of writes acknowledged so far."""
        for path in self._ground.glob("w*.events.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read[path] += len(whole)
            self._count += whole.count(b'{"event":"acked"')
        return self._count


# --- the check ----------------------------------------------------------------------------------


class Found(msgspec.Struct):
    """The store's contents at the end, by session."""

    messages: dict[str, list[Message]]
    turns: dict[str, list[TurnInfo]]
    damage: list[str]
    branches: dict[str, list[checker.Branch]] = msgspec.field(default_factory=dict)
    """All branches of the sessions whose heads moved; these are not in `messages`."""


def _judge(processes: _Crowd, plan: Plan, seconds: float) -> Report:
    try:
        found = _read_all(processes.ground.url)
    except HoldfastError as error:
        found = Found({}, {}, [f"the store could not be read: {error}"])
    events = checker.load(sorted(processes.ground.directory.glob("*.events.jsonl")))
    note_files = sorted(processes.ground.directory.glob("*.notes.jsonl"))
    notes = [note for path in note_files for note in read_notes(path)]
    final = {key: [stored(m) for m in messages] for key, messages in found.messages.items()}
    replies = {note.reply for note in notes if isinstance(note, Replying)}
    verdict = checker.check(events, final, branches=found.branches, own=replies)
    problems = [*processes.fallen, *found.damage, *broken_notes(found, notes)]
    return _report(verdict, problems, _Account(events, notes, found), (processes, plan, seconds))


def _read_all(url: str) -> Found:
    found = Found({}, {}, [])
    with holdfast.open(url) as store:
        for session in _all_sessions(store):
            _recover(session)
            key = session.key or session.id
            if key.startswith(MOVING):
                found.branches[key] = _branches(session)
                continue
            found.messages[key] = session.messages()
            found.turns[key] = session.turns()
        found.damage = [f"damage: {damage.what}" for damage in store.verify()]
    return found


def _branches(session: holdfast.Session) -> list[checker.Branch]:
    """Read every branch of a session in the checker's form."""
    return [
        checker.Branch(
            branch.number,
            branch.reason,
            branch.fork_seq,
            branch.asked_seq,
            tuple(stored(message) for message in session.messages(branch=branch.number)),
        )
        for branch in session.branches()
    ]


def _all_sessions(store: holdfast.Store) -> Iterator[holdfast.Session]:
    page = store.sessions()
    while True:
        yield from [store.get(info.id) for info in page]
        if page.cursor is None:
            return
        page = store.sessions(cursor=page.cursor)


def _recover(session: holdfast.Session) -> None:
    deadline = time.monotonic() + 2 * _LEASE
    while True:
        try:
            session.recover()
        except SessionBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK)
        else:
            return


def broken_notes(found: Found, notes: Sequence[AnyNote]) -> Iterator[str]:
    """Describe the replies, tools and turns whose acknowledged state is not what is stored."""
    yield from _broken_replies(found, notes)
    yield from _broken_tools(found, notes)
    yield from _broken_turns(found, notes)


def _broken_replies(found: Found, notes: Sequence[AnyNote]) -> Iterator[str]:
    flushed: Counter[str] = Counter()
    for note in notes:
        if isinstance(note, Flushed):
            flushed[note.reply] = max(flushed[note.reply], note.length)
    kept = {m.id: m for messages in found.messages.values() for m in messages if is_reply(m.id)}
    for reply, length in flushed.items():
        if reply not in kept:
            yield f"reply {reply}: {length} characters were flushed, but nothing is stored"
    for reply, message in kept.items():
        whole = text_of(reply)
        if message.status == "complete" and message.text != whole:
            yield f"reply {reply}: marked complete, but its text is not what was written"
        elif not whole.startswith(message.text):
            yield f"reply {reply}: the stored text is not a prefix of what was written"
        elif len(message.text) < flushed[reply]:
            yield f"reply {reply}: {flushed[reply]} characters flushed, {len(message.text)} stored"


def _broken_tools(found: Found, notes: Sequence[AnyNote]) -> Iterator[str]:
    outcomes = {
        (turn.id, tool.call_id): tool.outcome
        for turns in found.turns.values()
        for turn in turns
        for tool in turn.tools
    }
    for note in notes:
        if isinstance(note, Started):
            outcome = outcomes.get((note.turn, note.call))
            if outcome not in {"done", "error", "unknown"}:
                yield f"turn {note.turn}: a tool was started, but is recorded as {outcome}"


def _broken_turns(found: Found, notes: Sequence[AnyNote]) -> Iterator[str]:
    states = {turn.id: turn.state for turns in found.turns.values() for turn in turns}
    for note in notes:
        if isinstance(note, Sealed) and states.get(note.turn) != "sealed":
            yield f"turn {note.turn} was sealed, but is recorded as {states.get(note.turn)}"
    for turn, state in states.items():
        if state == "open":
            yield f"turn {turn} is still open"


# --- the figures --------------------------------------------------------------------------------


class _Account:
    """The statistics of a run."""

    def __init__(
        self, events: Sequence[checker.Event], notes: Sequence[AnyNote], found: Found
    ) -> None:
        begun = {(e.worker, e.op): e for e in events if isinstance(e, checker.Invoked)}
        acked = [e for e in events if isinstance(e, checker.Acked)]
        waits = [(e.at - begun[e.worker, e.op].at) / 1e6 for e in acked]
        turns = [turn for turns in found.turns.values() for turn in turns]
        messages = [m for messages in found.messages.values() for m in messages]
        self.acknowledged = len({id_ for e in acked for id_ in begun[e.worker, e.op].ids})
        # Every acknowledged message, flush, tool start, and opened or sealed turn was a commit.
        self.commits = len(acked) + sum(not isinstance(note, Replying) for note in notes)
        self.median = statistics.median(waits) if waits else 0.0
        self.worst = max(waits, default=0.0)
        self.turns = len(turns)
        self.interrupted = sum(turn.state == "interrupted" for turn in turns)
        self.unknown_tools = sum(t.outcome == "unknown" for turn in turns for t in turn.tools)
        self.partial = sum(message.status == "partial" for message in messages)


_OTHER: Final = frozenset(checker.Kind) - {
    checker.Kind.LOST,
    checker.Kind.DUPLICATE,
    checker.Kind.REORDER,
}


def _report(
    verdict: checker.Verdict,
    problems: Iterable[str],
    account: _Account,
    circumstances: tuple[_Crowd, Plan, float],
) -> Report:
    processes, plan, seconds = circumstances
    counts = Counter(finding.kind for finding in verdict.findings)
    violations = (*problems, *map(str, verdict.findings))
    coverage = verdict.coverage
    return Report(
        ok=not violations and not verdict.vacuous(),
        lost=counts[checker.Kind.LOST],
        duplicated=counts[checker.Kind.DUPLICATE],
        reordered=counts[checker.Kind.REORDER],
        other=len(violations) - len(verdict.findings) + sum(counts[kind] for kind in _OTHER),
        failed_writers=len(processes.fallen),
        problems=violations,
        vacuous=tuple(verdict.vacuous()),
        writers=plan.writers,
        kills=coverage.kills,
        seconds=round(seconds, 1),
        sessions=coverage.sessions,
        acknowledged=account.acknowledged,
        stored=coverage.stored,
        sent_again=coverage.retries,
        stored_before=coverage.duplicates,
        overlaps=coverage.overlaps,
        reads=coverage.reads,
        moves=coverage.moves,
        branches=coverage.branches,
        turns=account.turns,
        interrupted=account.interrupted,
        partial_replies=account.partial,
        unknown_tools=account.unknown_tools,
        commits=account.commits,
        commits_per_second=round(account.commits / seconds, 1),
        median_wait_ms=round(account.median, 2),
        worst_wait_ms=round(account.worst, 2),
        directory=processes.ground.place,
        kept=plan.keep or bool(violations),
        file_system=processes.ground.medium,
        versions=_versions(processes.ground.engine),
    )


def _versions(engine: str) -> str:
    python = f"Python {platform.python_version()}, {platform.system()}"
    return f"holdfast {holdfast.__version__}, {engine}, {python}"
