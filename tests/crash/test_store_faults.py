"""The store in a child process that is killed, or whose disk fails, at the Nth write or sync.

The child runs a script with every kind of write (see `_story`). Whatever happens, it ends normally,
with Holdfast errors or none; and once the faults are over the store opens, is intact, has all that
was acknowledged once and in order, nothing that was refused, and accepts the same script again with
the same ids, after which each message is stored once. The history checker compares.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Session, Store
from holdfast.proof.checker import Recorder, Stored, Verdict, check, digest, load
from holdfast.testing.faults import Outcome, Shim, every
from holdfast.testing.faults.shim import FaultKind, ShimOperation
from tests.crash._messages import looks, message
from tests.crash._story import (
    GAVE_UP,
    NEXT_VERSION,
    REPLY,
    STEPS,
    Teller,
    open_store,
    steps_to_next,
)

ROOT = Path(__file__).parents[2]
STORE = "store.db"
CHILD = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.crash._story import main; "
LEFT = ["user-1", "call-x"]
TYPED = {"Damaged", "OutcomeUnknown", "ReadOnly", "StoreFull", "StoreUnavailable"}


@dataclass(frozen=True)
class Fault:
    """The fault, the kind of operation, once or from then on."""

    kind: FaultKind
    on: ShimOperation
    sticky: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{self.on}{'-sticky' if self.sticky else ''}"


KILLS = [
    Fault("kill", "write"),
    Fault("tear", "write"),
    Fault("kill", "sync"),
    Fault("kill_after", "sync"),
]
ONCE = [
    Fault("eio", "write"),
    Fault("enospc", "write"),
    Fault("short", "write"),
    Fault("eio", "sync"),
]
STICKY = [
    Fault("eio", "write", sticky=True),
    Fault("enospc", "write", sticky=True),
    Fault("eio", "sync", sticky=True),
]
# What differs little from the above is left to the long tests.
ALL_KILLS = [*KILLS, Fault("kill_after", "write")]
ALL_ONCE = [*ONCE, Fault("enospc", "sync")]
ALL_STICKY = [*STICKY, Fault("short", "write", sticky=True)]


# ------------------------------------------------------------------------------------ the visits


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was made and never written to."""
    path = tmp_path_factory.mktemp("empty") / STORE
    holdfast.open(path).close()
    return path


@dataclass(frozen=True)
class Visit:
    """One kind of fault, at one operation after the other, in one mode of the script."""

    shim: Shim
    fault: Fault
    under: Path
    mode: str = "story"
    base: Path | None = None

    def outcomes(self, *, first: int, step: int) -> Iterator[Outcome]:
        """Run the child with the fault at each operation."""
        fault = self.fault
        reached = 0
        for outcome in every(
            self.shim,
            self._argv,
            kind=fault.kind,
            on=fault.on,
            sticky=fault.sticky,
            under=self.under,
            first=first,
            step=step,
        ):
            _must_have_ended_in_order(outcome)
            reached += outcome.reached
            yield outcome
        assert reached >= 5, "too few faults were met to prove anything"

    def _argv(self, directory: Path) -> list[str]:
        if self.base is not None:
            shutil.copy(self.base, directory / STORE)
        words = [sys.executable, "-c", CHILD + "main()", str(ROOT), self.mode]
        return [*words, str(directory / STORE), str(_events(directory))]


def _events(directory: Path, worker: str = "child") -> Path:
    """Return the path of an event file, outside of the path where faults strike."""
    return directory.parent / f"events-{worker}-{directory.name}.jsonl"


def _must_have_ended_in_order(outcome: Outcome) -> None:
    assert not outcome.stderr, outcome.command + outcome.stderr
    if outcome.killed:
        assert outcome.reached, outcome.command
        return
    assert outcome.returncode in {0, GAVE_UP}, outcome.command
    assert _errors(outcome) <= TYPED, outcome.command


def _errors(outcome: Outcome) -> set[str]:
    """Return the errors that the child received."""
    lines = outcome.stdout.splitlines()
    return {line.split()[-1] for line in lines if line.startswith("error ")}


def _places(on: ShimOperation, *, long: bool) -> dict[str, int]:
    """Return which operations to test: all of them, or the first and then some."""
    if long:
        return {"first": 20, "step": 1}
    return {"first": 2, "step": 61} if on == "write" else {"first": 2, "step": 6}


# ------------------------------------------------------------------------------------- the check


def _judge(outcome: Outcome) -> Verdict:
    """Compare the store with what was acknowledged to the child; then run the script again."""
    worker = Recorder(_events(outcome.directory, "again"), "again")
    try:
        with open_store(outcome.directory / STORE) as store:
            assert store.verify() == [], outcome.command
            _settle(store)
            _must_have_kept_its_word(store, outcome)
            _compare(store, outcome, "child")
            again = Teller(worker, lambda _: None)
            assert again.tell(store, STEPS) == [], outcome.command
            assert store.verify() == [], outcome.command
            return _compare(store, outcome, "child", "again")
    finally:
        worker.close()


def _settle(store: Store) -> None:
    """Recover every session and take all input that waits, so that histories show everything."""
    for info in store.sessions():
        session = store.get(info.id)
        session.recover()
        assert session.recover() is None
        with session.turn() as turn:
            turn.take_queued()


def _compare(store: Store, outcome: Outcome, *workers: str) -> Verdict:
    files = [_events(outcome.directory, worker) for worker in workers]
    own: set[str] = set()
    final = {}
    for info in store.sessions():
        session = store.get(info.id)
        final[str(info.key)] = [_stored(found, own) for found in session.messages()]
    verdict = check(load(file for file in files if file.exists()), final, own=own)
    assert verdict.ok, f"{outcome.command}\n{verdict}"
    return verdict


def _stored(found: Message, own: set[str]) -> Stored:
    """Return a message in the checker's form. A partial reply must be a prefix of the whole one."""
    assert found.seq is not None
    if found.status != "partial":
        return Stored(found.id, found.seq, digest(looks(found)))
    assert REPLY.startswith(found.text)
    own.add(found.id)
    whole = Message.assistant(REPLY, id=found.id)
    return Stored(found.id, found.seq, digest(looks(whole)))


def _must_have_kept_its_word(store: Store, outcome: Outcome) -> None:
    """Check everything that was acknowledged to the child and is no message."""
    sessions = {str(info.key): store.get(info.id) for info in store.sessions()}
    for session in sessions.values():
        ended = {turn.state for turn in session.turns()}
        assert ended <= {"sealed", "failed", "interrupted"}, outcome.command
    for line in outcome.stdout.splitlines():
        assert _is_true(line.split(), sessions), f"{line}\n{outcome.command}"
    info = sessions["talk"].info() if "talk" in sessions else None
    if info is not None:
        named = (info.title, info.metadata.get("topic"))
        assert named in {(None, None), ("a title", "a topic")}, outcome.command


def _is_true(words: list[str], sessions: dict[str, Session]) -> bool:
    match words:
        case ["made", key]:
            return key in sessions
        case ["flushed", id, length]:
            texts = [found.text for found in sessions["turn"].messages() if found.id == id]
            return len(texts) == 1 and len(texts[0]) >= int(length)
        case ["started", number]:
            tools = sessions["turn"].turns()[int(number) - 1].tools
            return [(tool.call_id, tool.outcome in {"done", "unknown"}) for tool in tools] == [
                ("x", True)
            ]
        case ["sealed", number]:
            return sessions["turn"].turns()[int(number) - 1].state == "sealed"
        case ["failed", number]:
            return sessions["failing"].turns()[int(number) - 1].state == "failed"
        case ["named"]:
            return sessions["talk"].info().title == "a title"
        case _:
            return words[0] in {"took", "error"}


# ---------------------------------------------------------------------------------- the story


def _tell_and_die(visit: Visit, *, long: bool) -> None:
    kills = retries = 0
    for outcome in visit.outcomes(**_places(visit.fault.on, long=long)):
        assert outcome.killed == outcome.reached, outcome.command
        if not outcome.reached:
            assert outcome.returncode == 0, outcome.command
        coverage = _judge(outcome).coverage
        kills += outcome.killed
        retries += coverage.retries
    assert kills
    assert retries


@pytest.mark.parametrize("fault", KILLS, ids=str)
def test_a_kill_loses_nothing(shim: Shim, empty: Path, tmp_path: Path, fault: Fault) -> None:
    """Killed at the Nth write or sync, the child has lost nothing that was acknowledged."""
    _tell_and_die(Visit(shim, fault, tmp_path, base=empty), long=False)


@pytest.mark.long
@pytest.mark.parametrize("fault", ALL_KILLS, ids=str)
def test_a_kill_anywhere_loses_nothing(
    shim: Shim, empty: Path, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    _tell_and_die(Visit(shim, fault, tmp_path, base=empty), long=True)


def _tell_with_one_fault(visit: Visit, *, long: bool) -> None:
    for outcome in visit.outcomes(**_places(visit.fault.on, long=long)):
        assert outcome.returncode == 0, outcome.command + outcome.stdout
        _judge(outcome)


@pytest.mark.parametrize("fault", ONCE, ids=str)
def test_one_error_loses_nothing(shim: Shim, empty: Path, tmp_path: Path, fault: Fault) -> None:
    """A disk that fails once: every error is a true Holdfast error, and a retry succeeds."""
    _tell_with_one_fault(Visit(shim, fault, tmp_path, base=empty), long=False)


@pytest.mark.long
@pytest.mark.parametrize("fault", ALL_ONCE, ids=str)
def test_one_error_anywhere_loses_nothing(
    shim: Shim, empty: Path, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    _tell_with_one_fault(Visit(shim, fault, tmp_path, base=empty), long=True)


def _tell_with_lasting_fault(visit: Visit, *, long: bool) -> None:
    errors: set[str] = set()
    for outcome in visit.outcomes(**_places(visit.fault.on, long=long)):
        errors |= _errors(outcome)
        _judge(outcome)
    assert errors, "no fault was felt"
    if visit.fault.kind != "eio":
        assert "StoreFull" in errors


@pytest.mark.parametrize("fault", STICKY, ids=str)
def test_lasting_errors_lose_nothing(shim: Shim, empty: Path, tmp_path: Path, fault: Fault) -> None:
    """A disk that fails from then on: every error is a true Holdfast error."""
    _tell_with_lasting_fault(Visit(shim, fault, tmp_path, base=empty), long=False)


@pytest.mark.long
@pytest.mark.parametrize("fault", ALL_STICKY, ids=str)
def test_lasting_errors_anywhere_lose_nothing(
    shim: Shim, empty: Path, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    _tell_with_lasting_fault(Visit(shim, fault, tmp_path, base=empty), long=True)


# --------------------------------------------------------------- crashes on the way to a new store


def _make(visit: Visit, *, long: bool) -> Iterator[Outcome]:
    """Run the script without a store; afterwards there is a whole one or none."""
    places = {"first": 40, "step": 1} if long else {"first": 2, "step": 23}
    if visit.fault.on == "sync" and not long:
        places["step"] = 2
    made = {"write": 160, "sync": 12}[visit.fault.on]
    for outcome in visit.outcomes(**places):
        _must_be_no_half_made_store(outcome)
        yield outcome
        if outcome.at >= made:
            return  # The store exists by then; the rest of the script is tested elsewhere.


def _must_be_no_half_made_store(outcome: Outcome) -> None:
    path = outcome.directory / STORE
    if path.exists():
        with holdfast.open(path, readonly=True) as store:
            assert store.verify() == [], outcome.command
    else:
        assert "made talk" not in outcome.stdout, outcome.command
    known = {STORE, *(f"{STORE}{suffix}" for suffix in ("-wal", "-shm", "-queue", "-lock"))}
    others = {file.name for file in outcome.directory.iterdir()} - known
    # Only a killed process leaves something behind, under a name that is never opened.
    assert all(name.startswith(f".{STORE}.") and ".new" in name for name in others)
    assert outcome.killed or not others, outcome.command


@pytest.mark.parametrize("fault", [Fault("kill", "write"), Fault("kill", "sync")], ids=str)
def test_a_kill_while_a_store_is_made_is_harmless(shim: Shim, tmp_path: Path, fault: Fault) -> None:
    """There is a whole store or none, and leftovers do not stop the next process."""
    outcomes = list(_make(Visit(shim, fault, tmp_path), long=False))
    assert any(not (outcome.directory / STORE).exists() for outcome in outcomes)
    for outcome in outcomes:
        _judge(outcome)


@pytest.mark.long
@pytest.mark.parametrize("fault", ALL_KILLS, ids=str)
def test_a_kill_anywhere_while_a_store_is_made_is_harmless(
    shim: Shim, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    for outcome in _make(Visit(shim, fault, tmp_path), long=True):
        _judge(outcome)


@pytest.mark.parametrize(
    "fault", [Fault("enospc", "write", sticky=True), Fault("eio", "sync")], ids=str
)
def test_an_error_while_a_store_is_made_is_harmless(
    shim: Shim, tmp_path: Path, fault: Fault
) -> None:
    """It is a Holdfast error, nothing is left behind, and a retry succeeds."""
    for outcome in _make(Visit(shim, fault, tmp_path), long=False):
        assert outcome.returncode == 0 or fault.sticky, outcome.command
        _judge(outcome)


@pytest.mark.long
@pytest.mark.parametrize("fault", [*ALL_ONCE, *ALL_STICKY], ids=str)
def test_an_error_anywhere_while_a_store_is_made_is_harmless(
    shim: Shim, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    for outcome in _make(Visit(shim, fault, tmp_path), long=True):
        assert outcome.returncode == 0 or fault.sticky, outcome.command
        _judge(outcome)


# ------------------------------------------------------- crashes during recovery and migration


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose writer was killed in the middle of a turn."""
    directory = tmp_path_factory.mktemp("left")
    words = [sys.executable, "-c", CHILD + "main()", str(ROOT), "leave", str(directory / STORE)]
    ended = subprocess.run([*words, str(directory / "events")], check=False)
    assert ended.returncode == -signal.SIGKILL
    # Only a checkpoint: the file alone is the store, and the turn in it is still open.
    connection = apsw.Connection(str(directory / STORE))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return directory / STORE


def _places_of(fault: Fault, *, long: bool) -> dict[str, int]:
    if long:
        return {"first": 20, "step": 1}
    return {"first": 2, "step": 9} if fault.on == "write" else {"first": 6, "step": 2}


def _must_be_recovered(store: Store, outcome: Outcome) -> None:
    """The partial reply, the tool and the turn are as the crash left them, each once."""
    session = store.session("left", create=False)
    session.recover()
    assert session.recover() is None, outcome.command
    [turn] = session.turns()
    assert turn.state == "interrupted", outcome.command
    assert [(tool.call_id, tool.outcome) for tool in turn.tools] == [("x", "unknown")]
    found = session.messages()
    assert [item.text for item in found if item.status == "partial"] == ["so far"], outcome.command
    said = [item.id for item in found if item.status == "complete"]
    acked = '"acked"' in _events(outcome.directory).read_text()
    assert said in [LEFT, [*LEFT, "user-2"]][acked:], outcome.command
    session.append(message("user-2"))
    assert [item.id for item in session.messages() if item.id == "user-2"] == ["user-2"]


def _recover_with(visit: Visit, *, long: bool) -> None:
    for outcome in visit.outcomes(**_places_of(visit.fault, long=long)):
        assert outcome.killed or outcome.returncode == 0, outcome.command
        with open_store(outcome.directory / STORE) as store:
            assert store.verify() == [], outcome.command
            _must_be_recovered(store, outcome)
            assert store.verify() == [], outcome.command


@pytest.mark.parametrize("fault", [KILLS[0], KILLS[2], ONCE[3]], ids=str)
def test_a_crash_during_recovery_is_recovered(
    shim: Shim, left: Path, tmp_path: Path, fault: Fault
) -> None:
    """A second crash, while the first is recovered, changes nothing of the outcome."""
    _recover_with(Visit(shim, fault, tmp_path, "recover", left), long=False)


@pytest.mark.long
@pytest.mark.parametrize("fault", [*ALL_KILLS, *ALL_ONCE], ids=str)
def test_a_crash_anywhere_during_recovery_is_recovered(
    shim: Shim, left: Path, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    _recover_with(Visit(shim, fault, tmp_path, "recover", left), long=True)


def _migrate_with(visit: Visit, *, long: bool) -> None:
    made = 0
    for outcome in visit.outcomes(**_places_of(visit.fault, long=long)):
        assert outcome.killed or outcome.returncode == 0, outcome.command
        made += _must_be_a_good_backup(outcome)
        _must_be_old_or_new(outcome)
        with open_store(outcome.directory / STORE, steps_to_next()) as store:
            assert store.verify() == [], outcome.command
            _must_be_recovered(store, outcome)
    assert made


def _must_be_old_or_new(outcome: Outcome) -> None:
    connection = apsw.Connection(str(outcome.directory / STORE), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        version: int = connection.execute("PRAGMA user_version").get
        flavours = connection.table_exists(None, "flavours")
    finally:
        connection.close()
    old, new = NEXT_VERSION - 1, NEXT_VERSION
    assert (version, flavours) in {(old, False), (new, True)}, outcome.command
    assert version == new or "migrated" not in outcome.stdout, outcome.command


def _must_be_a_good_backup(outcome: Outcome) -> bool:
    """Check a copy of the backup, so that nothing is changed; it is whole or absent."""
    backup = outcome.directory / f"{STORE}.before-{NEXT_VERSION}"
    if not backup.exists():
        assert "migrated" not in outcome.stdout, outcome.command
        return False
    copy = outcome.directory / "copy-of-the-backup"
    shutil.copy(backup, copy)
    with holdfast.open(copy) as store:
        assert store.verify() == [], outcome.command
        found = store.session("left", create=False).messages()
        assert [item.id for item in found] == LEFT, outcome.command
    return True


@pytest.mark.parametrize(
    "fault",
    [KILLS[2], ONCE[1]],
    ids=str,
)
def test_a_crash_during_migration_is_survived(
    shim: Shim, left: Path, tmp_path: Path, fault: Fault
) -> None:
    """The store is of the old format or of the new one; its backup is whole or absent."""
    _migrate_with(Visit(shim, fault, tmp_path, "migrate", left), long=False)


@pytest.mark.long
@pytest.mark.parametrize("fault", [*ALL_KILLS, *ALL_ONCE], ids=str)
def test_a_crash_anywhere_during_migration_is_survived(
    shim: Shim, left: Path, tmp_path: Path, fault: Fault
) -> None:
    """The same at every single write and sync."""
    _migrate_with(Visit(shim, fault, tmp_path, "migrate", left), long=True)
