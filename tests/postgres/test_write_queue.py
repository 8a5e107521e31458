"""The line of writes that were handed over, by itself: each is run or refused, and none is lost."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.storage.postgres.write_queue import QueuedWrite, WriteQueue
from holdfast.storage.protocol import Transaction
from tests.postgres.pauses import LONG

_SHORT = 0.05


class _Interrupted(BaseException):
    """What no operation raises by itself."""


def _nothing(_: Transaction) -> str:
    """Stand in for an operation: the runner of these tests runs none."""
    return "stored"


class _Runner:
    """Runs batches, each when it is let go on."""

    def __init__(self) -> None:
        self.ran: list[QueuedWrite[Any]] = []
        self.running = threading.Event()
        self.go_on = threading.Event()

    def run(self, batch: Sequence[QueuedWrite[Any]]) -> None:
        self.running.set()
        assert self.go_on.wait(LONG)
        for handed in batch:
            self.ran.append(handed)
            handed.set_result("stored")


@pytest.fixture
def runner() -> Iterator[_Runner]:
    made = _Runner()
    yield made
    made.go_on.set()


def _busy(line: WriteQueue, runner: _Runner) -> QueuedWrite[str]:
    """Hand a write over, and return once it runs: what comes now has to wait."""
    first = line.submit(_nothing)
    assert runner.running.wait(LONG)
    return first


def test_closing_finishes_what_was_handed_over(
    runner: _Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs, and what has not begun."""
    join = threading.Thread.join
    line = WriteQueue(runner.run, LONG)
    pending = [_busy(line, runner), line.submit(_nothing), line.submit(_nothing)]

    def go_on_and_join(thread: threading.Thread, timeout: float | None = None) -> None:
        runner.go_on.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", go_on_and_join)
    line.close()
    assert [handed.outcome() for handed in pending] == ["stored"] * 3


def test_closing_withdraws_what_cannot_begin(runner: _Runner) -> None:
    """A write that hangs blocks no other caller; those after it are not run later on."""
    line = WriteQueue(runner.run, _SHORT)
    first = _busy(line, runner)
    behind, told, done = line.submit(_nothing), threading.Event(), threading.Event()
    first.when_done(done.set)
    behind.when_done(told.set)
    line.close()
    assert told.is_set()
    with pytest.raises(StoreUnavailable, match="withdrawn before it started; nothing was stored"):
        behind.outcome()
    runner.go_on.set()
    assert done.wait(LONG)
    assert runner.ran == [first]


def test_a_closed_line_takes_no_more(runner: _Runner) -> None:
    """A new write is refused at once; there is no thread to run it."""
    line = WriteQueue(runner.run, LONG)
    line.close()
    with pytest.raises(StoreUnavailable, match="closed; nothing was stored"):
        line.submit(_nothing)


def test_flushing_waits_for_what_runs(runner: _Runner) -> None:
    """Not only for what has not begun; it says so if that takes too long."""
    line = WriteQueue(runner.run, _SHORT)
    _busy(line, runner)
    with pytest.raises(StoreUnavailable, match="still waiting"):
        line.flush()


def test_what_was_told_before_a_batch_is_broken_off_stays_true(runner: _Runner) -> None:
    """The outcome of the others is unknown, and reported so; the queue goes on."""

    def break_off(batch: Sequence[QueuedWrite[Any]]) -> None:
        runner.run(batch[:1])
        if len(batch) > 1:
            raise _Interrupted

    line = WriteQueue(break_off, LONG)
    first = _busy(line, runner)
    told, untold = line.submit(_nothing), line.submit(_nothing)
    runner.go_on.set()
    assert (first.result(), told.result()) == ("stored", "stored")
    with pytest.raises(OutcomeUnknown, match="was interrupted"):
        untold.result()
    assert line.submit(_nothing).result() == "stored"
    line.close()


def test_a_thread_that_cannot_be_started_costs_one_write(
    runner: _Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller gets "nothing was stored"; the next one starts the thread."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    line = WriteQueue(runner.run, LONG)
    runner.go_on.set()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(StoreUnavailable, match="no thread can be started"):
        line.submit(_nothing)
    monkeypatch.undo()
    second = line.submit(_nothing)
    assert second.result() == "stored"
    assert runner.ran == [second]
    line.close()
