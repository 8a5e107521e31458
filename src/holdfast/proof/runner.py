"""The proof run: processes write to a store and are killed; then every message is accounted for.

Writer processes append to one shared session and to many, run turns with streamed replies and
tools, and rewind, undo, redo, clear and fork. Several times a second one of them is killed with
SIGKILL and restarted; it then retries its last writes. At the end all are killed at once, as in a
crash. Then the store is opened, open turns are recovered, and its contents, abandoned branches
included, are compared with everything that was acknowledged: by the history checker, by `verify`,
and by four rules of the run's own:

* of a streamed reply all flushed text is kept, and what is kept is a prefix of the reply;
* a tool that was started has an outcome, if only "unknown";
* a turn that was sealed is sealed, and no turn stays open;
* a history has the records that were stored with its messages, each behind its own, and no other.

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
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw
import msgspec

import holdfast
from holdfast.errors import HoldfastError, SessionBusy, StoreUnavailable
from holdfast.proof import checker, server_schema
from holdfast.proof.script import (
    MOVING_KEY_PREFIXES,
    AnyNote,
    Flushed,
    Replying,
    Sealed,
    Started,
    WriterLife,
    WriterRole,
    is_reply,
    read_notes,
    state_after,
    text_of,
    to_stored,
)
from holdfast.storage import registry
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.sqlite.location import filesystem_of, refuse_network, require_utf8
from holdfast.url import parse_url
from holdfast.values import Message, Record, TurnInfo

__all__ = [
    "FinalContents",
    "Progress",
    "ProofPlan",
    "Report",
    "file_system",
    "nearest_directory",
    "note_violations",
    "record_violations",
    "run",
]

_ROLES: Final[tuple[WriterRole, ...]] = (
    "shared", "shared", "turns", "moves", "turns", "shared", "moves", "spread",
)  # fmt: skip
_SESSIONS_PER_ROLE: Final[Mapping[WriterRole, int]] = {
    "shared": 1,
    "spread": 20,
    "turns": 3,
    "moves": 3,
}
_LEASE_S: Final = 5.0  # It matters only where the store cannot detect that a process is dead.
_KILL_INTERVAL_S: Final = (0.05, 0.45)
_ANY_WRITER_SHARE: Final = 0.1  # The share of kills that may hit a writer before its first write.
_POLL_INTERVAL_S: Final = 0.1
_START_TIMEOUT_S: Final = 30.0
_HARNESS: Final = "harness"


class ProofPlan(msgspec.Struct, frozen=True):
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


def nearest_directory(url: str | None, environ: Mapping[str, str], here: Path) -> Path:
    """Return a writable directory on the same disk as the user's store, outside it; else `here`."""
    location = parse_url(url, environ)
    candidates = [here, Path(tempfile.gettempdir())]
    file = registry.store_file(location)
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


class _ProofSite:
    """A directory for the event files, and a store in it or on a server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server: server_schema.ProofSchema | None = None
        self.keep = False

    @property
    def url(self) -> str:
        """The URL of the store."""
        if self.server is not None:
            return self.server.url
        return f"sqlite:///{quote(str(self.directory / 'store.db'))}?lease={_LEASE_S}"

    @property
    def medium(self) -> str:
        """The file system or server that the store is written to."""
        return "the server" if self.server is not None else file_system(self.directory)

    @property
    def location(self) -> str:
        """The location of the store and the event files, as shown to the user."""
        where = str(self.directory)
        return where if self.server is None else f"{where}, {self.server.label}"

    @property
    def engine(self) -> str:
        """The database engine and its version."""
        return self.server.engine if self.server else f"SQLite {apsw.sqlite_lib_version()}"

    def clear(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.server is not None:
            self.server.drop()


@contextmanager
def _proof_site(plan: ProofPlan) -> Iterator[_ProofSite]:
    """Create the directory and the store; remove them at the end unless `keep` is set."""
    site = _ProofSite(_new_directory(plan))
    try:
        if plan.server is not None:
            site.server = server_schema.ProofSchema(plan.server, _LEASE_S)
        yield site
    finally:
        if not site.keep:
            site.clear()


def _new_directory(plan: ProofPlan) -> Path:
    if plan.server is None:
        require_utf8(plan.directory.absolute())
        refuse_network(plan.directory / "store.db")
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="holdfast-prove-", dir=plan.directory)).resolve()
    except OSError as error:
        raise StoreUnavailable(
            f"cannot use {plan.directory}: {error.strerror}; choose another directory with --dir."
        ) from error


# --- the run ------------------------------------------------------------------------------------


def run(plan: ProofPlan, watch: Callable[[Progress], None] | None = None) -> Report:
    """Run a proof and return its report. Files are kept if `plan.keep`, or if it found problems."""
    with _proof_site(plan) as site:
        processes = _WriterProcesses(site, plan.writers)
        try:
            seconds = _run_writers(processes, plan.seconds, watch)
        finally:
            processes.kill_all()
        report = _check_run(processes, plan, seconds)
        site.keep = report.kept
        return report


def _run_writers(
    processes: _WriterProcesses, seconds: float, watch: Callable[[Progress], None] | None
) -> float:
    """Run all writers, killing one at random intervals; return the elapsed seconds."""
    tally = _AckCounter(processes.site.directory)
    processes.start_all()
    _wait_until_all_write(processes)
    began = next_kill = time.monotonic()
    while (now := time.monotonic()) < began + seconds and not processes.keeps_failing:
        if now >= next_kill:
            processes.kill_one()
            next_kill = now + processes.rng.uniform(*_KILL_INTERVAL_S)
        processes.restart_failed()
        if watch is not None:
            watch(Progress(now - began, processes.kills, tally.count()))
        time.sleep(max(0.0, min(_POLL_INTERVAL_S, next_kill - now, began + seconds - now)))
    took = time.monotonic() - began
    processes.kill_all()
    if watch is not None:
        watch(Progress(took, processes.kills, tally.count(), checking=True))
    return took


def _wait_until_all_write(processes: _WriterProcesses) -> None:
    """Wait until every writer has invoked to write, so that start-up time does not count."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (
        not (processes.all_have_written or processes.keeps_failing) and time.monotonic() < deadline
    ):
        processes.restart_failed()
        time.sleep(_POLL_INTERVAL_S)


class _WriterProcesses:
    """The writer processes, and the record of which were killed."""

    def __init__(self, site: _ProofSite, writers: int) -> None:
        self.site = site
        self.rng = random.Random()  # noqa: S311 - chance need not be secret
        self.kills = 0
        self.failures: list[str] = []
        self._recorder = checker.Recorder(site.directory / f"{_HARNESS}.events.jsonl", _HARNESS)
        self._lives = dict.fromkeys(range(1, writers + 1), 0)
        self._running: dict[int, tuple[WriterLife, subprocess.Popen[bytes]]] = {}

    @property
    def all_have_written(self) -> bool:
        """True if every writer has invoked to write."""
        return all(_has_written(part) for part, _ in self._running.values())

    @property
    def keeps_failing(self) -> bool:
        """True if writers keep failing by themselves: going on would be pointless."""
        return len(self.failures) > 2 * len(self._lives)

    def start_all(self) -> None:
        """Start every writer; they create the store themselves, concurrently."""
        for writer in self._lives:
            self._start(writer)

    def _start(self, writer: int) -> None:
        # A signal during the start would leave a process that is never ended.
        defer_signals(self._launch, writer)

    def _launch(self, writer: int) -> None:
        self._lives[writer] += 1
        role = _ROLES[(writer - 1) % len(_ROLES)]
        where = self.site.url, str(self.site.directory)
        part = WriterLife(*where, writer, self._lives[writer], role, _SESSIONS_PER_ROLE[role])
        command = [sys.executable, "-m", "holdfast.proof.worker"]
        with part.stderr.open("wb") as errors:
            process = subprocess.Popen(
                [*command, msgspec.json.encode(part).decode()],
                stdin=subprocess.PIPE,  # At end of file when this process dies; then writers exit.
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the writers.
            )
        self._running[writer] = part, process

    def kill_one(self) -> None:
        """Kill one writer, usually one that has invoked to write, and restart it."""
        writing = [w for w, (part, _) in self._running.items() if _has_written(part)]
        blind = not writing or self.rng.random() < _ANY_WRITER_SHARE
        writer = self.rng.choice(list(self._running) if blind else writing)
        self._kill(writer)
        self._start(writer)

    def kill_all(self) -> None:
        """Kill all writers at once."""
        for _, process in self._running.values():
            process.kill()
        for writer in list(self._running):
            self._kill(writer)
        if self.site.server is not None:
            self.site.server.wait_for_disconnects()

    def _kill(self, writer: int) -> None:
        part, process = self._running[writer]
        process.kill()
        code = self._wait_for_exit(part, process)
        del self._running[writer]
        if code < 0:
            self._recorder.killed(part.name)
            self.kills += 1

    def _wait_for_exit(self, part: WriterLife, process: subprocess.Popen[bytes]) -> int:
        """Wait for a process to exit and return its code; a failure is recorded."""
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        output = part.stderr.read_text(errors="replace").strip()
        if code >= 0 or output:
            last = output.splitlines()[-1] if output else f"exit code {code}"
            self.failures.append(f"writer {part.name} failed: {last}")
        return code

    def restart_failed(self) -> None:
        """Restart the writers that exited without being killed."""
        for writer, (part, process) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[writer]
                self._wait_for_exit(part, process)
                self._start(writer)


def _has_written(part: WriterLife) -> bool:
    return part.events.exists() and part.events.stat().st_size > 0


class _AckCounter:
    """Counts acknowledged writes during the run, reading each event file incrementally."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: Counter[Path] = Counter()
        self._count = 0

    def count(self) -> int:
        """Return the number of writes acknowledged so far."""
        for path in self._directory.glob("w*.events.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._offsets[path] += len(whole)
            self._count += whole.count(b'{"event":"acked"')
        return self._count


# --- the check ----------------------------------------------------------------------------------


class FinalContents(msgspec.Struct):
    """The store's contents at the end, by session."""

    messages: dict[str, list[Message]]
    turns: dict[str, list[TurnInfo]]
    damage: list[str]
    branches: dict[str, list[checker.Branch]] = msgspec.field(default_factory=dict)
    """All branches of the sessions whose heads moved; these are not in `messages`."""
    records: dict[str, list[Record]] = msgspec.field(default_factory=dict)


def _check_run(processes: _WriterProcesses, plan: ProofPlan, seconds: float) -> Report:
    try:
        found = _read_store(processes.site.url)
    except HoldfastError as error:
        found = FinalContents({}, {}, [f"the store could not be read: {error}"])
    events = checker.load(sorted(processes.site.directory.glob("*.events.jsonl")))
    note_files = sorted(processes.site.directory.glob("*.notes.jsonl"))
    notes = [note for path in note_files for note in read_notes(path)]
    final = {key: [to_stored(m) for m in messages] for key, messages in found.messages.items()}
    replies = {note.reply for note in notes if isinstance(note, Replying)}
    verdict = checker.check(events, final, branches=found.branches, own=replies)
    problems = [
        *processes.failures,
        *found.damage,
        *note_violations(found, notes),
        *record_violations(found, events),
    ]
    return _report(
        verdict, problems, _RunStatistics(events, notes, found), (processes, plan, seconds)
    )


def _read_store(url: str) -> FinalContents:
    found = FinalContents({}, {}, [])
    with holdfast.open(url) as store:
        for session in _all_sessions(store):
            _recover(session)
            key = session.key or session.id
            found.records[key] = session.records()
            if key.startswith(MOVING_KEY_PREFIXES):
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
            tuple(to_stored(message) for message in session.messages(branch=branch.number)),
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
    deadline = time.monotonic() + 2 * _LEASE_S
    while True:
        try:
            session.recover()
        except SessionBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_INTERVAL_S)
        else:
            return


def note_violations(found: FinalContents, notes: Sequence[AnyNote]) -> Iterator[str]:
    """Describe the replies, tools and turns whose acknowledged state is not what is stored."""
    yield from _reply_violations(found, notes)
    yield from _tool_violations(found, notes)
    yield from _turn_violations(found, notes)


def _reply_violations(found: FinalContents, notes: Sequence[AnyNote]) -> Iterator[str]:
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


def _tool_violations(found: FinalContents, notes: Sequence[AnyNote]) -> Iterator[str]:
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


def _turn_violations(found: FinalContents, notes: Sequence[AnyNote]) -> Iterator[str]:
    states = {turn.id: turn.state for turns in found.turns.values() for turn in turns}
    for note in notes:
        if isinstance(note, Sealed) and states.get(note.turn) != "sealed":
            yield f"turn {note.turn} was sealed, but is recorded as {states.get(note.turn)}"
    for turn, state in states.items():
        if state == "open":
            yield f"turn {turn} is still open"


def record_violations(found: FinalContents, events: Sequence[checker.Event]) -> Iterator[str]:
    """Describe the histories that lack a record of their messages, or have another."""
    writes = [event for event in events if isinstance(event, checker.Invoked) and event.ids]
    # A message of a turn is stored alone, also when it is retried; every other batch ends with a
    # record.
    alone = {write.ids[-1] for write in writes if write.fence is not None}
    ends = {write.ids[-1] for write in writes} - alone
    for key, records in found.records.items():
        stored = [to_stored(message) for message in found.messages.get(key, ())]
        if key in found.branches:
            stored = list(found.branches[key][-1].history)
        wanted = {f"{m.id}.state": (m.seq, state_after(m.id).data) for m in stored if m.id in ends}
        kept = {record.id: (record.seq, record.data) for record in records}
        for id_ in wanted.keys() - kept.keys():
            yield f"session {key}: record {id_} is lost, but its message is stored"
        for id_ in kept.keys() - wanted.keys():
            yield f"session {key}: record {id_} is stored, but not its message"
        for id_ in kept.keys() & wanted.keys():
            if kept[id_] != wanted[id_]:
                yield f"session {key}: record {id_} is not what was stored, or not where it was"
        if len(kept) < len(records):
            yield f"session {key}: a record is stored twice"


# --- the figures --------------------------------------------------------------------------------


class _RunStatistics:
    """The statistics of a run."""

    def __init__(
        self, events: Sequence[checker.Event], notes: Sequence[AnyNote], found: FinalContents
    ) -> None:
        invoked = {(e.worker, e.op): e for e in events if isinstance(e, checker.Invoked)}
        acked = [e for e in events if isinstance(e, checker.Acked)]
        waits = [(e.at - invoked[e.worker, e.op].at) / 1e6 for e in acked]
        turns = [turn for turns in found.turns.values() for turn in turns]
        messages = [m for messages in found.messages.values() for m in messages]
        self.acknowledged = len({id_ for e in acked for id_ in invoked[e.worker, e.op].ids})
        # Every acknowledged message, flush, tool start, and opened or sealed turn was a commit.
        self.commits = len(acked) + sum(not isinstance(note, Replying) for note in notes)
        self.median = statistics.median(waits) if waits else 0.0
        self.worst = max(waits, default=0.0)
        self.turns = len(turns)
        self.interrupted = sum(turn.state == "interrupted" for turn in turns)
        self.unknown_tools = sum(t.outcome == "unknown" for turn in turns for t in turn.tools)
        self.partial = sum(message.status == "partial" for message in messages)


_OTHER_KINDS: Final = frozenset(checker.ViolationKind) - {
    checker.ViolationKind.LOST,
    checker.ViolationKind.DUPLICATE,
    checker.ViolationKind.REORDER,
}


def _report(
    verdict: checker.Verdict,
    problems: Iterable[str],
    account: _RunStatistics,
    circumstances: tuple[_WriterProcesses, ProofPlan, float],
) -> Report:
    processes, plan, seconds = circumstances
    counts = Counter(finding.kind for finding in verdict.findings)
    violations = (*problems, *map(str, verdict.findings))
    coverage = verdict.coverage
    return Report(
        ok=not violations and not verdict.vacuous(),
        lost=counts[checker.ViolationKind.LOST],
        duplicated=counts[checker.ViolationKind.DUPLICATE],
        reordered=counts[checker.ViolationKind.REORDER],
        other=len(violations) - len(verdict.findings) + sum(counts[kind] for kind in _OTHER_KINDS),
        failed_writers=len(processes.failures),
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
        directory=processes.site.location,
        kept=plan.keep or bool(violations),
        file_system=processes.site.medium,
        versions=_versions(processes.site.engine),
    )


def _versions(engine: str) -> str:
    python = f"Python {platform.python_version()}, {platform.system()}"
    return f"holdfast {holdfast.__version__}, {engine}, {python}"
