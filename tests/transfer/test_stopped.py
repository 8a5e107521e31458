"""An import that is stopped leaves each session complete or absent; its memory is bounded."""

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
from holdfast import Message, Store
from holdfast.clock import SystemClock
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.protocol import Operation, PendingWrite
from holdfast.url import parse_url
from tests.concurrency.children import Child, Pipe
from tests.store_urls import Kind, await_the_end_of, place
from tests.transfer.views import listed, shown

T = TypeVar("T")
_LINUX = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells a process's peak"
)


def _fill(store: Store, families: int, messages: int, size: int = 200) -> None:
    for number in range(families):
        session = store.session(f"k{number}")
        session.append(*[Message.user(f"{number}.{n} " + "x" * size) for n in range(messages)])
        fork = session.fork(messages // 2, key=f"f{number}")
        fork.append(Message.user("forked"))


# ------------------------------------------------------------------------------------- stopping


def _import(pipe: Pipe, url: str, exported: Path) -> None:
    """Import, and wait for a line of input at each step."""

    def tell(done: int, total: int) -> None:
        pipe.say((done, total))
        pipe.hear()

    with holdfast.open(url) as store:
        store.import_(exported, trust=True, progress=tell)


@pytest.mark.parametrize(("kind", "steps"), [("sqlite", (1, 8, 11)), ("postgres", (10,))])
def test_killed_in_the_middle(tmp_path: Path, kind: Kind, steps: tuple[int, ...]) -> None:
    """Killed at several moments: families are complete, and importing again adds the rest."""
    with holdfast.open("memory:") as source:
        _fill(source, families=12, messages=130, size=800)
        source.export(tmp_path / "out.jsonl")
        whole = shown(source)
    for step in steps:
        with place(kind, tmp_path) as url:
            count = _kill_and_go_on(url, tmp_path / "out.jsonl", step, whole)
            assert (count == 0) if step == 1 else (0 < count < 24)


def _kill_and_go_on(url: str, exported: Path, step: int, whole: dict[str, Any]) -> int:
    """Kill an import at this step of its progress; return how many sessions it had imported."""
    child = Child(_import, url, exported)
    try:
        for _ in range(step - 1):
            child.hear()
            child.say("go on")
        child.hear()
    finally:
        child.clear_away()
    await_the_end_of(url)
    with holdfast.open(url) as store:
        assert store.verify() == []
        there = shown(store)["each"]
        for session in there:
            expected = whole["each"][session]
            assert there[session]["histories"] == expected["histories"]
        assert len(there) % 2 == 0, "a fork comes with its parent"
        report = store.import_(exported, trust=True)
        assert (report.sessions, len(report.skipped)) == (24 - len(there), len(there))
        assert shown(store)["each"] == whole["each"]
        assert store.verify() == []
        return len(there)


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
def test_a_verb_that_runs_twice(tmp_path: Path, undone: bool) -> None:
    """Each session is imported once, and counted as imported."""
    location = parse_url("memory:", {})
    backend = _Again(location, tenant="default", readonly=False, clock=SystemClock())
    backend.undone = undone
    with holdfast.open("memory:") as source, Store(backend) as target:
        _fill(source, families=2, messages=5)
        source.export(tmp_path / "out.jsonl")
        report = target.import_(tmp_path / "out.jsonl", trust=True)
        assert (report.sessions, report.messages, report.skipped) == (4, 12, ())
        assert shown(target) == shown(source)


def test_an_interrupt_stops_it(tmp_path: Path, shared_url: str) -> None:
    """Ctrl-C ends the import within a line; no part of the current family remains."""
    with holdfast.open("memory:") as source:
        session = source.session("k")
        session.append(*[Message.user("x" * 2_500) for _ in range(1_200)])
        source.export(tmp_path / "out.jsonl")
    sent: list[int] = []

    def interrupt(done: int, total: int) -> None:
        if done > total * 3 // 5 and not sent:
            sent.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    with holdfast.open(shared_url) as store:
        with pytest.raises(KeyboardInterrupt):
            store.import_(tmp_path / "out.jsonl", trust=True, progress=interrupt)
        assert listed(store) == []
        assert store.verify() == []
        store.session("still").append(Message.user("works"))


def test_others_write_before_and_after(tmp_path: Path, shared_url: str) -> None:
    """An import waits its turn like any write, and other writers run between its families."""
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
            assert store.import_(tmp_path / "out.jsonl", trust=True).sessions == 40
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
        assert store.import_(sys.argv[3], trust=True).damage == ()
    print(peak() - before)
"""


def _grown(path: Path, verb: str, file: Path) -> int:
    """Run it in a child process; return by how many kilobytes its memory grew at most."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, path, verb, file],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@_LINUX
def test_memory_does_not_grow_with_the_history(tmp_path: Path) -> None:
    """Thirty megabytes of lines take only a few megabytes of memory."""
    with holdfast.open(tmp_path / "source.db", durability="process") as store:
        session = store.session("k")
        for n in range(15):
            session.append(*[Message.user(f"{n} " + "x" * 4_000) for _ in range(500)])
    file = tmp_path / "out.jsonl"
    assert _grown(tmp_path / "source.db", "export", file) < 20 * 1024
    assert file.stat().st_size > 30_000_000
    assert _grown(tmp_path / "target.db", "import", file) < 20 * 1024
    with holdfast.open(tmp_path / "target.db") as store:
        assert store.session("k").info().messages == 7_500


@_LINUX
def test_blobs_pass_one_by_one(tmp_path: Path) -> None:
    """Thirty-two files of a megabyte are never in memory together."""
    with holdfast.open(tmp_path / "source.db", durability="process") as store:
        session = store.session("k")
        for n in range(32):
            session.append(Message.user([holdfast.File(data=bytes([n]) * (1 << 20))]))
    file = tmp_path / "out.jsonl"
    assert _grown(tmp_path / "source.db", "export", file) < 25 * 1024
    assert file.stat().st_size > 40_000_000
    assert _grown(tmp_path / "target.db", "import", file) < 25 * 1024
