"""Whatever stops an import, each session is there whole or not at all; and memory stays flat."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast import Message, Store, settings
from holdfast.backends.base import Pending, Verb
from holdfast.backends.memory import MemoryBackend
from holdfast.clock import SystemClock
from tests.places import Kind, await_the_end_of, place
from tests.transfer.showing import listed, shown

T = TypeVar("T")
_LINUX = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells a process's peak"
)


def _fill(store: Store, families: int, messages: int) -> None:
    for number in range(families):
        session = store.session(f"k{number}")
        session.append(*[Message.user(f"{number}.{n} " + "x" * 200) for n in range(messages)])
        fork = session.fork(messages // 2, key=f"f{number}")
        fork.append(Message.user("forked"))


# ------------------------------------------------------------------------------------- stopping

_CHILD = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as store:
    store.import_(sys.argv[2], progress=lambda done, total: print(done, total, flush=True))
"""


@pytest.mark.parametrize(
    ("kind", "waits"), [("sqlite", (1, 5, 9, 11, 13, 15)), ("postgres", (1, 11))]
)
def test_killed_in_the_middle(tmp_path: Path, kind: Kind, waits: tuple[int, ...]) -> None:
    """Killed at many moments: families are there whole, and doing it again completes them."""
    with holdfast.open("memory:") as source:
        _fill(source, families=12, messages=400)
        source.export(tmp_path / "out.jsonl")
        whole = shown(source)
    counts = []
    for wait in waits:
        with place(kind, tmp_path) as url:
            counts.append(_kill_and_go_on(url, tmp_path / "out.jsonl", wait, whole))
    assert counts[0] == 0
    assert any(0 < count < 24 for count in counts), counts


def _kill_and_go_on(url: str, exported: Path, wait: int, whole: dict[str, Any]) -> int:
    """Kill an import after so many lines of progress; say how many sessions were there then."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, url, exported],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    for _ in range(wait):  # each line of progress is another moment
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    await_the_end_of(url)
    with holdfast.open(url) as store:
        assert store.verify() == []
        there = shown(store)["each"]
        for session in there:
            expected = whole["each"][session]
            assert there[session]["histories"] == expected["histories"]
        assert len(there) % 2 == 0, "a fork comes with its parent"
        report = store.import_(exported)
        assert (report.sessions, len(report.skipped)) == (24 - len(there), len(there))
        assert shown(store)["each"] == whole["each"]
        assert store.verify() == []
        return len(there)


class _Again(MemoryBackend):
    """Runs each verb again, as a group commit does: behind itself, or after it was undone."""

    undone = False

    def submit(self, verb: Verb[T]) -> Pending[T]:
        if self.undone:
            with pytest.raises(ZeroDivisionError):
                self.write(lambda tx: (verb(tx), 1 // 0))
        else:
            self.write(verb)
        return super().submit(verb)


@pytest.mark.parametrize("undone", [False, True])
def test_a_verb_that_runs_twice(tmp_path: Path, undone: bool) -> None:
    """Each session comes once, and is told of as having come."""
    location = settings.parse("memory:", {})
    backend = _Again(location, tenant="default", readonly=False, clock=SystemClock())
    backend.undone = undone
    with holdfast.open("memory:") as source, Store(backend) as target:
        _fill(source, families=2, messages=5)
        source.export(tmp_path / "out.jsonl")
        report = target.import_(tmp_path / "out.jsonl")
        assert (report.sessions, report.messages, report.skipped) == (4, 12, ())
        assert shown(target) == shown(source)


def test_an_interrupt_stops_it(tmp_path: Path, shared_url: str) -> None:
    """Ctrl-C ends the import within a line; nothing of the family it was at is left."""
    with holdfast.open("memory:") as source:
        session = source.session("k")
        for _ in range(6):
            session.append(*[Message.user("x" * 500) for _ in range(5_000)])
        source.export(tmp_path / "out.jsonl")
    sent: list[int] = []

    def interrupt(done: int, total: int) -> None:
        if done > total * 3 // 5 and not sent:
            sent.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    with holdfast.open(shared_url) as store:
        with pytest.raises(KeyboardInterrupt):
            store.import_(tmp_path / "out.jsonl", progress=interrupt)
        assert listed(store) == []
        assert store.verify() == []
        store.session("still").append(Message.user("works"))


def test_others_write_before_and_after(tmp_path: Path, shared_url: str) -> None:
    """An import waits its turn like any write, and its families do not keep others out for ever."""
    with holdfast.open("memory:") as source:
        _fill(source, families=20, messages=50)
        source.export(tmp_path / "out.jsonl")
    with holdfast.open(shared_url) as store:
        session, ends = store.session("mine"), threading.Event()

        def write() -> None:
            while not ends.is_set():
                session.append(Message.user("x"))
                time.sleep(0.001)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert store.import_(tmp_path / "out.jsonl").sessions == 40
        finally:
            ends.set()
            thread.join()
        assert store.verify() == []


# --------------------------------------------------------------------------------------- memory

_MEASURED = """
import sys, holdfast

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])

with holdfast.open(sys.argv[1]) as store:
    store.sessions()
    before = peak()
    if sys.argv[2] == "export":
        store.export(sys.argv[3])
    else:
        assert store.import_(sys.argv[3]).damage == ()
    print(peak() - before)
"""


def _grown(path: Path, verb: str, file: Path) -> int:
    """Let a child do it; give by how many kilobytes it grew at most."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, path, verb, file],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@_LINUX
def test_memory_does_not_grow_with_the_history(tmp_path: Path) -> None:
    """Fifty thousand messages, 55 MB of lines, pass through a few megabytes."""
    with holdfast.open(tmp_path / "source.db", durability="process") as store:
        session = store.session("k")
        for n in range(50):
            session.append(*[Message.user(f"{n} " + "x" * 900) for _ in range(1_000)])
    file = tmp_path / "out.jsonl"
    assert _grown(tmp_path / "source.db", "export", file) < 24 * 1024
    assert file.stat().st_size > 50_000_000
    assert _grown(tmp_path / "target.db", "import", file) < 24 * 1024
    with holdfast.open(tmp_path / "target.db") as store:
        assert store.session("k").info().messages == 50_000


@_LINUX
def test_blobs_pass_one_by_one(tmp_path: Path) -> None:
    """Sixty files of a megabyte do not meet in memory."""
    with holdfast.open(tmp_path / "source.db", durability="process") as store:
        session = store.session("k")
        for n in range(60):
            session.append(Message.user([holdfast.File(data=bytes([n]) * (1 << 20))]))
    file = tmp_path / "out.jsonl"
    assert _grown(tmp_path / "source.db", "export", file) < 40 * 1024
    assert file.stat().st_size > 80_000_000
    assert _grown(tmp_path / "target.db", "import", file) < 40 * 1024
