"""One small workload for every store, healthy or broken, recorded for the history checker.

Several threads append batches to one session in rounds: in each round all of them have begun
before any of them writes, so that writes overlap. They retry, compare heads, read, and repeat equal
texts. One worker is killed during a write, and its next life retries it; a holder loses its turn
and tries to write. At the end the store is reopened, as after a crash, and its histories are
compared with what was recorded.

`Log` is a store as the workload sees it. A mutant is a `Log` with one thing wrong.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from holdfast.errors import Conflict, OutcomeUnknown
from holdfast.proof.checker import Invoked, Recorder, Stored, Verdict, check, digest, load, now
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance import SetClock
from holdfast.turn import Turn
from holdfast.values import Head, Message
from tests import store_urls

ROUNDS = 12
WORKERS = 3
SESSION = "the session"
_LEASE = 600.0
_WAIT = 60.0


class Log:
    """A healthy store, in memory unless it is created `at` a URL.

    A mutant overrides what it gets wrong.
    """

    url = "memory:"

    def __init__(self) -> None:
        self.clock = SetClock()
        self.store = self.open()

    def open(self) -> Store:
        """Open the store."""
        return Store(store_urls.backend(self.url, self.clock, lease=_LEASE), self.clock)

    @classmethod
    def at(cls, url: str) -> Self:
        """Create one at a URL."""
        elsewhere: type[Self] = type(cls.__name__, (cls,), {"url": url})
        return elsewhere()

    def session(self) -> Session:
        """The session that all workers write to."""
        return self.store.session(SESSION)

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        """Store a batch; return the seq of its last message."""
        return self.session().append(*messages, expect=expect).seq

    def head(self) -> Head:
        """The seq of the head."""
        return self.session().head()

    def read(self) -> list[Message]:
        """The whole history."""
        return self.session().messages()

    def hold(self) -> tuple[int, Turn]:
        """Open a turn; return its fence and the turn."""
        turn = self.session().turn().__enter__()
        return int(turn.id.rpartition(".")[2]), turn

    def add(self, turn: Turn, message: Message) -> int:
        """Store a message of a turn."""
        return turn.add(message).seq or 0

    def expire(self) -> None:
        """Expire the lease of the session's holder."""
        self.clock.advance(_LEASE + 1)

    def crash(self) -> None:
        """Simulate a crash and a restart; what is in memory only is lost.

        A store in memory stays, so that there is something to check.
        """
        if self.url != Log.url:
            self.store.close()
            self.store = self.open()

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class Worker:
    """Writes to a log and records its calls and their results."""

    def __init__(self, log: Log, folder: Path, name: str) -> None:
        self.log = log
        self.recorder = Recorder(folder / f"{name}.jsonl", name)

    def begin(self, messages: Sequence[Message], *, expect: Head | None = None) -> Invoked:
        """Record that a write begins."""
        return self.recorder.invoked(
            SESSION,
            [message.id for message in messages],
            [digest(message.text) for message in messages],
            expect=None if expect is None else expect.seq,
        )

    def end(self, write: Invoked, call: Callable[[], int]) -> None:
        """Run the call, and record how it ended."""
        try:
            last = call()
        except Conflict as error:
            self.recorder.refused(write, type(error).__name__)
        except OutcomeUnknown:
            self.recorder.unknown(write)
        else:
            self.recorder.acked(write, last=last)

    def append(self, *messages: Message, expect: Head | None = None) -> None:
        """Write a batch."""
        write = self.begin(messages, expect=expect)
        self.end(write, lambda: self.log.append(*messages, expect=expect))

    def add(self, fence: int, turn: Turn, message: Message) -> None:
        """Write a message of a turn."""
        ids, digests = [message.id], [digest(message.text)]
        write = self.recorder.invoked(SESSION, ids, digests, fence=fence)
        self.end(write, lambda: self.log.add(turn, message))

    def read(self) -> None:
        """Read everything."""
        began = now()
        self.recorder.read(SESSION, began, stored(self.log.read()), complete=True)


def stored(messages: Sequence[Message]) -> list[Stored]:
    """Return messages as the checker compares them."""
    return [Stored(m.id, m.seq or 0, digest(m.text)) for m in messages]


def run(log: Log, folder: Path) -> Verdict:
    """Run the whole workload and check the result."""
    _write_together(log, folder)
    _fall_silent(log, folder)
    _take_over(log, folder)
    log.crash()
    return _judge(log, folder)


def run_calmly(log: Log, folder: Path) -> Verdict:
    """Write a little, sequentially: no race, retry or kill occurs."""
    worker = Worker(log, folder, "calm")
    for n in range(3):
        worker.append(Message.user(str(n)))
        worker.read()
    worker.recorder.close()
    return _judge(log, folder)


def _judge(log: Log, folder: Path) -> Verdict:
    return check(load(sorted(folder.glob("*.jsonl"))), {SESSION: stored(log.read())})


def _write_together(log: Log, folder: Path) -> None:
    gate = threading.Barrier(WORKERS)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        worker = Worker(log, folder, f"w{number}")
        try:
            for n in range(ROUNDS):
                _round(worker, gate, number, n)
        except BaseException as error:
            failed.append(error)
            gate.abort()
            raise
        finally:
            worker.recorder.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT)
    if failed:
        raise failed[0]


def _round(worker: Worker, gate: threading.Barrier, number: int, n: int) -> None:
    # "yes" is written repeatedly, with a new id each time; the spaces are intended.
    batch = [Message.user("yes"), Message.assistant(f" {number} said e\u0301 {n} ")]
    gate.wait(_WAIT)
    expect = worker.log.head() if n % 4 == 3 else None
    write = worker.begin(batch, expect=expect)
    gate.wait(_WAIT)
    worker.end(write, lambda: worker.log.append(*batch, expect=expect))
    if n % 3 == 1:
        worker.append(*batch, expect=expect)
    worker.read()


def _fall_silent(log: Log, folder: Path) -> None:
    """Be killed after a write whose result is not recorded; a second life retries it."""
    harness = Recorder(folder / "harness.jsonl", "harness")
    victim, successor = Worker(log, folder, "victim"), Worker(log, folder, "successor")
    batch = [Message.user("last words"), Message.user("of a victim")]
    victim.begin(batch)
    log.append(*batch)
    harness.killed("victim")
    successor.append(*batch)
    successor.append(Message.user("life goes on"))
    successor.read()
    for recorder in (victim.recorder, successor.recorder, harness):
        recorder.close()


def _take_over(log: Log, folder: Path) -> None:
    """Lose a turn and try to write; the new holder writes in between."""
    old, new = Worker(log, folder, "old holder"), Worker(log, folder, "new holder")
    old_fence, old_turn = log.hold()
    old.add(old_fence, old_turn, Message.user("mine"))
    log.expire()
    new_fence, new_turn = log.hold()
    new.recorder.fenced(SESSION, new_fence)
    old.add(old_fence, old_turn, Message.assistant("still mine?"))
    new.add(new_fence, new_turn, Message.assistant("no longer"))
    old.add(old_fence, old_turn, Message.assistant("really?"))
    new.read()
    new_turn.cancel()
    old.recorder.close()
    new.recorder.close()
