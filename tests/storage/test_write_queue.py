"""The queue of submitted writes, by itself: each is run or refused, and none is lost."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.storage.protocol import Transaction
from holdfast.storage.write_queue import TakeBatch, Ticket, WriteQueue

_LONG = 60.0
_SHORT = 0.05


class _Interrupted(BaseException):
    """What no operation raises by itself."""


def _nothing(_: Transaction) -> str:
    """Stand in for an operation: the runner of these tests runs none."""
    return "stored"


class _Runner:
    """Runs batches, each when it is let go on."""

    def __init__(self) -> None:
        self.ran: list[Ticket[Any]] = []
        self.running = threading.Event()
        self.go_on = threading.Event()

    def run(self, take_batch: TakeBatch) -> None:
        batch = take_batch()
        self.running.set()
        assert self.go_on.wait(_LONG)
        for ticket in batch:
            self.finish(ticket)

    def finish(self, ticket: Ticket[Any]) -> None:
        self.ran.append(ticket)
        ticket.value = "stored"
        ticket.finish()


@pytest.fixture
def runner() -> Iterator[_Runner]:
    made = _Runner()
    yield made
    made.go_on.set()


def _queue(
    serve: Callable[[TakeBatch], None], deadline: float = _LONG, *, max_batch_writes: int = 64
) -> WriteQueue:
    return WriteQueue(
        serve,
        deadline=deadline,
        max_batch_writes=max_batch_writes,
        withdrawn="the write was withdrawn",
    )


def _busy(queue: WriteQueue, runner: _Runner) -> Ticket[str]:
    """Submit a write, and return once it runs: what comes now has to wait."""
    first = queue.submit(_nothing)
    assert runner.running.wait(_LONG)
    return first


def test_closing_finishes_what_was_submitted(
    runner: _Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs, and what has not started."""
    join = threading.Thread.join
    queue = _queue(runner.run)
    pending = [_busy(queue, runner), queue.submit(_nothing), queue.submit(_nothing)]

    def go_on_and_join(thread: threading.Thread, timeout: float | None = None) -> None:
        runner.go_on.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", go_on_and_join)
    queue.close()
    assert [ticket.outcome() for ticket in pending] == ["stored"] * 3


def test_closing_withdraws_what_cannot_start(runner: _Runner) -> None:
    """A write that hangs blocks no other caller; those after it are not run later on."""
    queue = _queue(runner.run, _SHORT)
    first = _busy(queue, runner)
    behind, told, done = queue.submit(_nothing), threading.Event(), threading.Event()
    first.when_done(done.set)
    behind.when_done(told.set)
    queue.close()
    assert told.is_set()
    with pytest.raises(StoreUnavailable, match="the write was withdrawn"):
        behind.outcome()
    runner.go_on.set()
    assert done.wait(_LONG)
    assert runner.ran == [first]


def test_a_closed_queue_takes_no_more(runner: _Runner) -> None:
    """A new write is refused at once; there is no thread to run it."""
    queue = _queue(runner.run)
    queue.close()
    with pytest.raises(StoreUnavailable, match="closed; nothing was stored"):
        queue.submit(_nothing)


def test_flushing_waits_for_what_runs(runner: _Runner) -> None:
    """Not only for what has not started; it says so if that takes too long."""
    queue = _queue(runner.run, _SHORT)
    _busy(queue, runner)
    with pytest.raises(StoreUnavailable, match="still waiting"):
        queue.flush()


def test_a_write_that_starts_while_it_is_looked_for_is_active(runner: _Runner) -> None:
    """It waits or it runs; whoever asks in between must not be told that it does neither."""
    queue = _queue(runner.run)

    class _Waiting(deque[Ticket[Any]]):
        def __len__(self) -> int:
            if threading.current_thread() is threading.main_thread():
                assert runner.running.wait(_LONG)
            return super().__len__()

    queue.waiting = _Waiting()
    ticket = queue.submit(_nothing)
    assert queue.active
    runner.go_on.set()
    assert ticket.result() == "stored"


def test_flushing_ends_when_the_last_write_is_withdrawn(
    runner: _Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread has to run for that: this one is started and does nothing."""
    queue = _queue(runner.run, threading.TIMEOUT_MAX)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: None)
        only = queue.submit(_nothing)
    waits = threading.Event()
    wait = threading.Condition.wait

    def wait_and_tell(condition: threading.Condition, timeout: float | None = None) -> bool:
        if timeout is not None:
            waits.set()
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", wait_and_tell)
    flushing = threading.Thread(target=queue.flush, daemon=True)
    flushing.start()
    assert waits.wait(_LONG)
    assert only.withdraw()
    flushing.join(_LONG)
    assert not flushing.is_alive()


def test_what_has_not_started_by_the_deadline_is_withdrawn(runner: _Runner) -> None:
    """Its caller gets the error, and it is never run; what runs is given as long again."""
    queue = _queue(runner.run, _SHORT)
    first, late, done = _busy(queue, runner), queue.submit(_nothing), threading.Event()
    first.when_done(done.set)
    with pytest.raises(StoreUnavailable, match="the write was withdrawn"):
        late.result()
    with pytest.raises(OutcomeUnknown, match=r"within 0.1 s and may still be stored; retry with"):
        first.result()
    runner.go_on.set()
    assert done.wait(_LONG)
    assert runner.ran == [first]


def test_withdrawing_again_is_withdrawn_still(runner: _Runner) -> None:
    """A task that is cancelled and a store that is closed may both withdraw the same write."""
    queue = _queue(runner.run)
    first, second = _busy(queue, runner), queue.submit(_nothing)
    assert [second.withdraw(), second.withdraw()] == [True, True]
    assert not first.withdraw(), "it runs"
    runner.go_on.set()
    assert first.result() == "stored"
    assert not first.withdraw(), "it is done"
    queue.close()
    assert runner.ran == [first]


def test_all_that_wait_for_a_write_are_woken(
    runner: _Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one thread may wait for the same write, and other callbacks with them."""
    queue = _queue(runner.run, threading.TIMEOUT_MAX)
    first, called = _busy(queue, runner), threading.Event()
    first.when_done(called.set)
    arrived = threading.Semaphore(0)
    when_done = Ticket.when_done

    def arrive(ticket: Ticket[Any], call: Callable[[], None]) -> None:
        when_done(ticket, call)
        arrived.release()

    monkeypatch.setattr(Ticket, "when_done", arrive)
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(first.result()), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
        assert arrived.acquire(timeout=_LONG)
    runner.go_on.set()
    for thread in threads:
        thread.join(_LONG)
    assert results == ["stored"] * 3
    assert called.is_set()


def test_a_callback_runs_once_whoever_comes_first(runner: _Runner) -> None:
    """One that is added while the write ends is run by this thread or by the writer."""
    runner.go_on.set()
    queue = _queue(runner.run)
    calls: list[int] = []
    for number in range(500):
        queue.submit(_nothing).when_done(partial(calls.append, number))
    queue.flush()
    queue.close()
    assert sorted(calls) == list(range(500))


def test_a_write_that_is_queued_as_the_thread_falls_asleep_is_run(runner: _Runner) -> None:
    """It is seen before the thread sleeps, or wakes it; no third write is needed for that."""
    runner.go_on.set()
    queue = _queue(runner.run)
    for _ in range(2000):
        assert queue.submit(_nothing).result() == "stored"
    queue.close()


def test_a_write_that_is_queued_while_the_queue_is_closed_is_refused_or_run(
    runner: _Runner,
) -> None:
    """It is never left behind, with a caller that waits."""
    runner.go_on.set()
    for _ in range(200):
        queue = _queue(runner.run)
        queue.submit(_nothing)
        closing = threading.Thread(target=queue.close)
        closing.start()
        try:
            ticket = queue.submit(_nothing)
        except StoreUnavailable:
            pass
        else:
            assert ticket.result() == "stored"
        closing.join()
        assert not queue.active


def test_a_batch_is_bounded_and_in_order(runner: _Runner) -> None:
    """The rest is run in the batches that follow."""
    sizes: list[int] = []

    def serve(take_batch: TakeBatch) -> None:
        def take_and_count() -> Sequence[Ticket[Any]]:
            batch = take_batch()
            sizes.append(len(batch))
            return batch

        runner.run(take_and_count)

    queue = _queue(serve, max_batch_writes=2)
    pending = [_busy(queue, runner), *(queue.submit(_nothing) for _ in range(5))]
    runner.go_on.set()
    queue.close()
    assert runner.ran == pending
    assert sizes == [1, 2, 2, 1]


def test_what_was_reported_before_a_batch_is_interrupted_stays_true(runner: _Runner) -> None:
    """The outcome of the others is unknown, and reported so; the queue goes on."""

    def interrupted(take_batch: TakeBatch) -> None:
        batch = take_batch()
        runner.run(lambda: batch[:1])
        if len(batch) > 1:
            raise _Interrupted

    queue = _queue(interrupted)
    first = _busy(queue, runner)
    reported, unreported = queue.submit(_nothing), queue.submit(_nothing)
    runner.go_on.set()
    with pytest.raises(OutcomeUnknown, match="was interrupted"):
        unreported.result()
    assert (first.result(), reported.result()) == ("stored", "stored")
    assert queue.submit(_nothing).result() == "stored"
    queue.close()


def test_an_error_before_a_batch_is_taken_is_reported(runner: _Runner) -> None:
    """No caller waits forever, and the thread does not try without end."""

    def broken(_: TakeBatch) -> None:
        raise _Interrupted

    queue = _queue(broken)
    with pytest.raises(OutcomeUnknown, match="was interrupted"):
        queue.submit(_nothing).result()
    queue.flush()
    queue.close()


def test_a_thread_that_cannot_be_started_costs_one_write(
    runner: _Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller gets "nothing was stored"; the next one starts the thread."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue = _queue(runner.run)
    runner.go_on.set()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(StoreUnavailable, match="no thread can be started"):
        queue.submit(_nothing)
    monkeypatch.undo()
    second = queue.submit(_nothing)
    assert second.result() == "stored"
    assert runner.ran == [second]
    queue.close()
