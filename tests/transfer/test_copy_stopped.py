"""A copy that is stopped leaves each family complete or absent; the next copy finishes it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

import holdfast
from holdfast import File, Message, Store, Usage, url
from holdfast.clock import SystemClock
from holdfast.errors import OutcomeUnknown, StorageError, StoreFull
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.protocol import Operation, PendingWrite
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.testing.faults import failing_disk
from holdfast.transfer import copy, store_source
from holdfast.url import Location
from tests.concurrency.children import Child, Pipe
from tests.store_urls import Kind, await_the_end_of, place
from tests.transfer.views import listed, shown

T = TypeVar("T")
_LINUX = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells a process's peak"
)


def _copy(pipe: Pipe, source: str, target: str) -> None:
    """Copy in small batches and pages, and wait for a line of input at each step."""

    def tell(done: int, total: int) -> None:
        pipe.say((done, total))
        pipe.hear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy, "_PROGRESS_MESSAGES", 20)
        patch.setattr(copy, "_MAX_BATCH_MESSAGES", 250)
        patch.setattr(store_source, "_PAGE_MESSAGES", 25)
        with holdfast.open(source, readonly=True) as one, holdfast.open(target) as two:
            one.copy(two, progress=tell)


def _fill(store: Store, families: int, messages: int) -> None:
    for number in range(families):
        session = store.session(f"k{number}")
        session.append(*[Message.user(f"{number}.{n} " + "x" * 200) for n in range(messages)])
        session.append(Message.user(["see", File(name="f", data=b"%d" % number * 999)]))
        fork = session.fork(messages // 2, key=f"f{number}")
        fork.append(Message.user("forked"))
        fork.enqueue("waits")


@pytest.fixture(
    params=[
        "sqlite sqlite",
        "sqlite postgres",
        pytest.param("postgres sqlite", marks=pytest.mark.long),
    ]
)
def ways(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URLs of two empty stores, in a file or on a server."""
    kinds: list[Kind] = request.param.split()
    first, second = kinds
    with place(first, tmp_path) as source, place(second, tmp_path) as target:
        yield source, target


def _kill_after(source: str, target: str, steps: int) -> None:
    """Copy in a child process, and kill it after this many steps."""
    child = Child(_copy, source, target)
    try:
        for _ in range(steps - 1):
            child.hear()
            child.say("go on")
        child.hear()
    finally:
        child.clear_away()
    await_the_end_of(target)


def test_killed_in_the_middle(ways: tuple[str, str]) -> None:
    """Killed repeatedly, in every pass, on one target: each copy resumes, the last is correct."""
    path, to = ways
    with holdfast.open(path, durability="process") as source:
        _fill(source, families=8, messages=100)
        whole = shown(source)
    counts = []
    for steps in (3, 12, 30, 45, 60):
        _kill_after(path, to, steps)
        with holdfast.open(to) as target:
            assert target.verify() == []
            there = shown(target)["each"]
        counts.append(len(there))
        for session in there:
            assert there[session]["histories"] == whole["each"][session]["histories"]
            assert there[session]["queued"] == whole["each"][session]["queued"]
        assert len(there) % 2 == 0, "a fork comes with its parent"
        if steps == 30:  # The source is written to meanwhile.
            with holdfast.open(path) as source:
                source.session("later").append(Message.user("newer"))
                source.session("later").fork(key="and a fork")
                whole = shown(source)
    assert counts == [0, 4, 12, 18, 18]
    with holdfast.open(path) as source, holdfast.open(to) as target:
        report = source.copy(target)
        assert report.same
        assert report.source.sessions == 18
        assert shown(target) == whole
        assert target.verify() == []
        assert source.copy(target).unchanged == 18


def test_ctrl_c_ends_a_copy_in_the_middle_of_a_family(ways: tuple[str, str]) -> None:
    """Both stores are usable right after."""
    sent: list[int] = []

    def interrupt(done: int, total: int) -> None:
        if done > total * 2 // 5 and not sent:
            sent.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    with (
        holdfast.open(ways[0], durability="process") as source,
        holdfast.open(ways[1]) as target,
    ):
        source.session("k").append(*[Message.user("x" * 500) for _ in range(4_000)])
        with pytest.raises(KeyboardInterrupt):
            source.copy(target, progress=interrupt)
        assert sent
        assert listed(target) == []
        assert target.verify() == []
        target.session("still").append(Message.user("works"))
        source.session("still there").append(Message.user("works"))
        assert source.copy(target).same


def test_both_stores_are_in_use_meanwhile(ways: tuple[str, str]) -> None:
    """Writers of either store are not blocked, and a few more copies complete it."""
    with (
        holdfast.open(ways[0], durability="process") as source,
        holdfast.open(ways[1], durability="process") as target,
    ):
        _fill(source, families=10, messages=300)
        ends = threading.Event()
        sessions = [source.session("k3"), source.session("own"), target.session("mine")]
        written = [0, 0, 0]

        def write() -> None:
            while not ends.is_set():
                for number, session in enumerate(sessions):
                    session.append(Message.user("meanwhile"))
                    written[number] += 1
                time.sleep(0.001)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            report = source.copy(target)
        finally:
            ends.set()
            thread.join()
        assert (report.differs, report.damage) == ((), ())
        assert set(report.changed) <= {sessions[0].id, sessions[1].id}
        again = source.copy(target)
        assert (again.same, again.others) == (True, 1)
        assert [len(s.messages()) for s in sessions] == [301 + written[0], *written[1:]]
        assert target.verify() == source.verify() == []


class _Again(MemoryBackend):
    """Runs each operation twice, as a group commit may: after itself, or after a rollback."""

    undone = False

    def submit(self, verb: Operation[T]) -> PendingWrite[T]:
        if self.undone:
            with pytest.raises(ZeroDivisionError):
                self.write(lambda tx: (verb(tx), 1 // 0))
        else:
            self.write(verb)
        return super().submit(verb)


@pytest.mark.parametrize("undone", [False, True])
def test_a_verb_that_runs_twice(undone: bool) -> None:
    """Each session is copied once, counted as added, and updated once."""
    location = url.parse_url("memory:", {})
    backend = _Again(location, tenant="default", readonly=False, clock=SystemClock())
    backend.undone = undone
    with holdfast.open("memory:") as source, Store(backend) as target:
        _fill(source, families=2, messages=5)
        source.purge("k1")
        assert source.copy(target).added == 3
        source.session("k0").append(Message.assistant("x", usage=Usage(1, 2)))
        source.session("k0").fork().append(Message.user("y"))
        report = source.copy(target)
        assert (report.same, report.added) == (True, 1)
        assert shown(target) == shown(source)


# ------------------------------------------------------------------------------------------- disks


def test_a_full_disk_stops_it_and_space_lets_it_go_on(tmp_path: Path) -> None:
    """Wherever the disk fills up, earlier families stay, and no session is incomplete."""
    with holdfast.open("memory:") as source:
        _fill(source, families=6, messages=500)
        whole = shown(source)
        met = 0
        for number, at in enumerate((1, 60, 250, 400)):
            location = Location("sqlite", str(tmp_path / f"{number}.db"))
            with failing_disk() as disk:
                backend = SQLiteBackend(location, durability="process", vfs=disk.name)
                with Store(backend) as target:
                    disk.fail("write", at=at, lasting=True, error=apsw.FullError, log_only=True)
                    with pytest.raises(StorageError) as caught:
                        source.copy(target)
                    assert isinstance(caught.value, StoreFull | OutcomeUnknown)
                    met += disk.met
                    disk.heal()
                    there = shown(target)["each"]
                    assert len(there) % 2 == 0
                    assert len(there) < 12
                    for session in there:
                        expected = whole["each"][session]["histories"]
                        assert there[session]["histories"] == expected
                    report = source.copy(target)
                    assert report.same
                    assert (report.unchanged, report.added) == (len(there), 12 - len(there))
                    assert shown(target) == whole
                    assert target.verify() == []
        assert met == 4


# ------------------------------------------------------------------------------------------ memory

_MEASURED = """
import sys, holdfast

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])

with holdfast.open(sys.argv[1], readonly=True) as source, holdfast.open(sys.argv[2]) as target:
    source.sessions()
    before = peak()
    assert source.copy(target).same
    print(peak() - before)
"""


def _grown(source: str, target: str) -> int:
    """Copy in a child process; return by how many kilobytes its memory grew at most."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, source, target],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@_LINUX
def test_memory_does_not_grow_with_the_history(ways: tuple[str, str]) -> None:
    """Copying thirty megabytes of messages in one session takes only a few megabytes."""
    with holdfast.open(ways[0], durability="process") as store:
        session = store.session("k")
        for n in range(15):
            session.append(*[Message.user(f"{n} " + "x" * 4_000) for _ in range(500)])
    assert _grown(*ways) < 20 * 1024


@_LINUX
def test_files_pass_one_by_one(ways: tuple[str, str]) -> None:
    """Forty files of a megabyte are never in memory together, nor are queued files."""
    with holdfast.open(ways[0], durability="process") as store:
        session = store.session("k")
        for n in range(40):
            session.append(Message.user([File(data=bytes([n]) * (1 << 20))]))
    assert _grown(*ways) < 30 * 1024
