"""A load that is stopped leaves whole transactions; the next load continues."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import holdfast
from holdfast import File, Message, Store
from holdfast.clock import SystemClock
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.protocol import Operation, PendingWrite
from holdfast.transfer import load
from holdfast.url import parse_url
from holdfast.values import LoadReport
from tests.concurrency.children import Child, Pipe
from tests.store_urls import Kind, await_the_end_of, place

T = TypeVar("T")
_SESSIONS, _EACH, _BATCH = 40, 10, 30


def _pairs() -> Iterator[tuple[str, list[Message]]]:
    """Return sessions of text, surrogates and files; a batch ends in the middle of some."""
    for n in range(_SESSIONS):
        file = File(name="f", data=b"%d" % n * 3_000)
        messages = [Message.user(f"{at} \ud800", id=f"{n}.{at}") for at in range(_EACH - 1)]
        yield f"k{n}", [*messages, Message.user(["see", file], id=f"{n}.file")]


def _load(pipe: Pipe, url: str) -> None:
    """Load in small batches, and wait for a line of input after each."""

    def tell(done: int) -> None:
        pipe.say(done)
        pipe.hear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_MAX_BATCH_ENTRIES", _BATCH)
        with holdfast.open(url) as store:
            store.load(_pairs(), progress=tell)


def _ids(store: Store) -> list[str]:
    """Return the ids of all messages that are stored, session by session."""
    keys = [key for key, _ in _pairs() if any(info.key == key for info in store.sessions(limit=99))]
    return [m.id or "" for key in keys for m in store.session(key, create=False).messages()]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_in_the_middle(kind: Kind, tmp_path: Path) -> None:
    """Killed again and again: what was reported is stored, once and in order."""
    expected = [m.id for _, messages in _pairs() for m in messages]
    with place(kind, tmp_path) as url:
        for steps in (1, 3, 8):
            child = Child(_load, url)
            try:
                for _ in range(steps - 1):
                    child.hear()
                    child.say("go on")
                done = child.hear()
            finally:
                child.clear_away()
            await_the_end_of(url)
            with holdfast.open(url) as store:
                stored = _ids(store)
                assert stored == expected[: len(stored)]
                assert len(stored) >= done == steps * _BATCH
                assert store.verify() == []
        with holdfast.open(url) as store:
            report = store.load(_pairs())
            assert report.messages == len(expected) - len(stored)
            assert report.skipped == len(stored)
            assert _ids(store) == expected
            assert store.verify() == []


class _Again(MemoryBackend):
    """Runs each operation twice, as if the answer to the first commit had been lost."""

    undone = False

    def submit(self, operation: Operation[T]) -> PendingWrite[T]:
        if self.undone:
            with pytest.raises(ZeroDivisionError):
                self.write(lambda tx: (operation(tx), 1 // 0))
        else:
            self.write(operation)
        return super().submit(operation)


@pytest.mark.parametrize("undone", [False, True])
def test_an_operation_that_runs_twice_stores_and_counts_once(*, undone: bool) -> None:
    """What the first run stored is not reported as skipped."""
    location = parse_url("memory:", {})
    backend = _Again(location, tenant="default", readonly=False, clock=SystemClock())
    backend.undone = undone
    with Store(backend) as store:
        found = store.load(_pairs())
        assert found == LoadReport(
            sessions=_SESSIONS, messages=_SESSIONS * _EACH, records=0, skipped=0
        )
        assert len(_ids(store)) == _SESSIONS * _EACH


_MEASURED = """
import sys, holdfast
from holdfast import File, Message

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])

with holdfast.open(sys.argv[1], durability="process") as store:
    store.load([("first", [Message.user("x")])])
    before = peak()
    store.load([("text", (Message.user("y" * 4_000) for _ in range(20_000)))])
    store.load([("files", (Message.user([File(data=bytes([n]) * (1 << 20))]) for n in range(60)))])
    print(peak() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells a process's peak"
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_memory_does_not_grow_with_what_is_loaded(kind: Kind, tmp_path: Path) -> None:
    """Eighty megabytes of messages and sixty of files take the memory of a few batches."""
    with place(kind, tmp_path) as url:
        command = [sys.executable, "-c", _MEASURED, url]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 60 * 1024
