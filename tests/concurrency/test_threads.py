"""One process: threads and tasks on one session, tasks that are cancelled, an impatient Ctrl-C."""

import asyncio
import fcntl
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import holdfast
from holdfast import AsyncSession, Message, Session
from holdfast.aio import AsyncStore
from holdfast.errors import StoreUnavailable
from holdfast.proof import checker
from tests.concurrency.children import Pipe, append, batch, begin, judge
from tests.concurrency.conftest import StartChild
from tests.store_urls import with_options

_THREADS = 4
_TASKS = 12
_ROUNDS = 25
_BATCH = 3
_INTERRUPTS = 80


# --- threads and tasks --------------------------------------------------------------------------


def _write_in_thread(folder: Path, session: Session, name: str, start: threading.Barrier) -> None:
    recorder = checker.Recorder(folder / f"{name}.jsonl", name)
    start.wait(60)
    for number in range(_ROUNDS):
        append(recorder, session, batch(f"{name}-{number}", _BATCH))
        if number % 5 == 0:
            _read(recorder, session)
    recorder.close()


def _read(recorder: checker.Recorder, session: Session) -> None:
    began = checker.now()
    seen = [
        checker.Stored(m.id, m.seq or 0, checker.digest(m.text))
        for m in session.messages(limit=100)
    ]
    recorder.read(session.id, began, seen, complete=False)


async def _write_in_task(folder: Path, session: Session, name: str) -> None:
    twin = AsyncSession(session)
    recorder = checker.Recorder(folder / f"{name}.jsonl", name)
    for number in range(_ROUNDS):
        messages = batch(f"{name}-{number}", _BATCH)
        write = begin(recorder, session, messages)
        recorder.acked(write, last=(await twin.append(*messages)).seq)
    recorder.close()


def test_threads_and_tasks_of_one_process_share_a_session(tmp_path: Path, shared_url: str) -> None:
    """Four threads and twelve tasks write to one history through one store: the order holds."""

    async def main(session: Session) -> None:
        start = threading.Barrier(_THREADS + 1)
        with ThreadPoolExecutor(_THREADS) as pool:
            threads = [
                pool.submit(_write_in_thread, tmp_path, session, f"thread{number}", start)
                for number in range(_THREADS)
            ]
            await asyncio.to_thread(start.wait, 60)
            await asyncio.gather(
                *(_write_in_task(tmp_path, session, f"task{number}") for number in range(_TASKS))
            )
            for thread in threads:
                await asyncio.wrap_future(thread)

    with holdfast.open(shared_url) as store:
        session = store.session("s")
        asyncio.run(main(session))
        verdict = judge(tmp_path, session, happened=["overlaps", "reads"])
        assert verdict.coverage.stored == (_THREADS + _TASKS) * _ROUNDS * _BATCH
        assert store.verify() == []


def test_several_stores_of_one_process_on_one_file(tmp_path: Path, shared_url: str) -> None:
    """Independent handles, each with its own thread, keep one order."""
    stores = [holdfast.open(shared_url) for _ in range(_THREADS)]
    start = threading.Barrier(_THREADS)
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, store in enumerate(stores):
            session = store.session("s")
            pool.submit(_write_in_thread, tmp_path, session, f"store{number}", start)
    judge(tmp_path, stores[0].session("s"), happened=["overlaps", "reads"])
    assert stores[0].verify() == []
    for store in stores:
        store.close()


# --- cancelled tasks ----------------------------------------------------------------------------


async def _append_and_record(
    recorder: checker.Recorder, session: Session, messages: list[Message]
) -> None:
    write = begin(recorder, session, messages)
    try:
        head = await AsyncSession(session).append(*messages)
    except asyncio.CancelledError:
        recorder.unknown(write)
        raise
    recorder.acked(write, last=head.seq)


def test_cancelled_tasks_never_tear_a_write(tmp_path: Path, shared_url: str) -> None:
    """Of a batch whose task was cancelled all is stored or nothing, and a retry completes it.

    Some four hundred tasks are cancelled at random moments.
    """
    chance = random.Random(7)

    async def main(session: Session) -> int:
        recorders = [
            checker.Recorder(tmp_path / f"task{number}.jsonl", f"task{number}")
            for number in range(8)
        ]
        cancelled: list[tuple[int, list[Message]]] = []
        for number in range(50):
            batches = [batch(f"{number}-{worker}", 4) for worker in range(8)]
            tasks = [
                asyncio.create_task(_append_and_record(recorders[worker], session, each))
                for worker, each in enumerate(batches)
            ]
            for task in chance.sample(tasks, len(tasks)):
                # Sometimes immediately, when it has hardly begun.
                await asyncio.sleep(chance.choice([0, chance.uniform(0, 0.001)]))
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled += [
                (worker, batches[worker])
                for worker, result in enumerate(results)
                if isinstance(result, asyncio.CancelledError)
            ]
        for worker, messages in cancelled[::2]:
            await _append_and_record(recorders[worker], session, messages)
        return len(cancelled)

    with holdfast.open(shared_url) as store:
        session = store.session("s")
        cancelled = asyncio.run(main(session))
        store.flush()
        assert cancelled > 0
        judge(tmp_path, session, happened=["overlaps", "unknown", "retries", "acked"])
        assert store.verify() == []


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the store's lock, as another process would."""
    with path.with_name(path.name + "-lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        fcntl.flock(file, fcntl.LOCK_UN)


def test_a_cancelled_write_that_had_not_begun_is_never_stored(tmp_path: Path) -> None:
    """While another process holds the lock no write can begin, so a cancelled one is dropped."""
    path = tmp_path / "store.db"

    async def main() -> None:
        async with holdfast.open_async(path) as store:
            session = await store.session("s")
            with _locked(path):
                tasks = [
                    asyncio.create_task(session.append(*batch(str(number), 2)))
                    for number in range(20)
                ]
                await asyncio.sleep(0.05)
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.wait(tasks[::2])
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(isinstance(r, asyncio.CancelledError) for r in results) == 10
            stored = [message.id for message in await session.messages()]
            assert stored == [f"{number}.{part}" for number in range(1, 20, 2) for part in (0, 1)]

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_opens_a_turn_does_not_keep_it(shared_url: str) -> None:
    """Whenever the cancellation comes, the next turn can be opened without waiting for a lease."""
    chance = random.Random(11)

    async def take_a_turn(session: AsyncSession) -> None:
        async with session.turn() as turn:
            await turn.user("hello")

    async def main() -> None:
        async with holdfast.open_async(shared_url) as store:
            session = await store.session("s")
            cancelled = 0
            for _ in range(100):
                task = asyncio.create_task(take_a_turn(session))
                await asyncio.sleep(chance.choice([0, chance.uniform(0, 0.003)]))
                cancelled += task.cancel()
                await asyncio.wait([task])
                async with session.turn():
                    pass
            assert cancelled > 0
            assert {turn.state for turn in await session.turns()} <= {"sealed", "cancelled"}

    asyncio.run(main())


def test_a_cancelled_turn_keeps_what_was_said(shared_url: str) -> None:
    """Cancelled in the middle of a reply: the reply is kept in part, the turn is `cancelled`."""

    async def reply_for_ever(session: AsyncSession, begun: asyncio.Event) -> None:
        async with session.turn() as turn:
            await turn.user("hello")
            async with turn.stream() as reply:
                await reply.write("well")
                begun.set()
                await asyncio.sleep(600)

    async def main() -> None:
        async with holdfast.open_async(shared_url) as store:
            session = await store.session("s")
            begun = asyncio.Event()
            task = asyncio.create_task(reply_for_ever(session, begun))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            said = [(message.text, message.status) for message in await session.messages()]
            assert said == [("hello", "complete"), ("well", "partial")]
            assert [turn.state for turn in await session.turns()] == ["cancelled"]

    asyncio.run(main())


def test_closing_the_store_answers_every_task_that_waits(shared_url: str) -> None:
    """A write that waits when the store is closed succeeds or is refused; none hangs."""

    async def main() -> set[str]:
        with holdfast.open(shared_url) as store:
            twin = await AsyncStore(store).session("s")
            tasks = [asyncio.create_task(twin.append(*batch(str(n), 2))) for n in range(50)]
            await asyncio.sleep(0)
            await asyncio.to_thread(store.close)
            results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [r for r in results if isinstance(r, BaseException)]
        assert {type(error) for error in refused} <= {StoreUnavailable}
        return {f"{n}.{part}" for n, r in enumerate(results) if r not in refused for part in (0, 1)}

    promised = asyncio.run(main())
    with holdfast.open(shared_url) as store:
        assert {message.id for message in store.session("s").messages()} == promised


# --- Ctrl-C -------------------------------------------------------------------------------------


class _Impatience:
    """Raises KeyboardInterrupt once in each block that allows it, and nowhere else."""

    def __init__(self) -> None:
        self._armed = False
        self._before = signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def over(self) -> None:
        signal.signal(signal.SIGINT, self._before)


def _press_ctrl_c(pipe: Pipe, pid: int) -> None:
    chance = random.Random(5)
    pipe.say("pressing")
    while not pipe.has_news():
        time.sleep(chance.uniform(0, 0.003))
        os.kill(pid, signal.SIGINT)
    pipe.say("tired")


@pytest.fixture
def impatience(child: StartChild) -> Iterator[_Impatience]:
    """A process that sends SIGINT a few hundred times a second while the test runs."""
    made = _Impatience()
    presser = child(_press_ctrl_c, os.getpid())
    presser.hear()
    yield made
    presser.say("enough")
    presser.hear()
    presser.join()
    made.over()


# An interrupt during garbage collection is not raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_the_middle_of_a_write_breaks_nothing(
    tmp_path: Path, shared_url: str, impatience: _Impatience
) -> None:
    """Ctrl-C at any time of an append: batches stay whole, and the store stays usable.

    By this process and by the next: no lock and no transaction is left open.
    """
    recorder = checker.Recorder(tmp_path / "w.jsonl", "w")
    url = with_options(shared_url, deadline=60)
    with holdfast.open(url) as store:
        session = store.session("s")
        interrupted = count = 0
        while interrupted < _INTERRUPTS:
            messages = batch(str(count), _BATCH)
            count += 1
            write = begin(recorder, session, messages)
            try:
                with impatience.allowed():
                    head = session.append(*messages)
            except KeyboardInterrupt:
                interrupted += 1
                recorder.unknown(write)
                append(recorder, session, messages)
            else:
                recorder.acked(write, last=head.seq)
        with holdfast.open(url) as other:
            append(recorder, other.session("s"), batch("other", _BATCH))
        judge(tmp_path, session, happened=["unknown", "retries"])
        assert len(session.messages()) == (count + 1) * _BATCH
        assert store.verify() == []
    recorder.close()
