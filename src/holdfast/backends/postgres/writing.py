"""Running verbs: in a transaction, again when that is right, and with an end.

A verb that is written runs in the caller's thread, on a link of its own. Before the commit was sent
every failure means that nothing was stored; the verb is run again as long as the deadline allows,
on a new link if the old one was lost. After the commit was sent and before it was answered nobody
knows. Then the server is asked what became of the transaction, by its number: once it is known to
be stored, what the verb gave then is the answer; once it is known to be undone, the verb is run
again. A server that lived on cannot forget a number; one that crashed or was replaced meanwhile may
mean another's. Then the verb is run again all the same: it is idempotent by its ids, so it finds
what it stored before, or stores it now, and if it is refused, that may be because of itself.
Whatever ends this, the outcome is then unknown, and is said to be.

Verbs that are handed over are run in order by one thread, as many as wait in one transaction. Such
a transaction waits for no lock: two of them, holding many sessions each, would wait for each other.
A verb that finds a session held by somebody else ends it, and is run by itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
import psycopg

from holdfast.backends.base import Verb, sight_of
from holdfast.backends.interrupts import undisturbed
from holdfast.backends.postgres.failures import is_again, is_lost, translate
from holdfast.backends.postgres.link import Birth, Link
from holdfast.backends.postgres.pool import Pool
from holdfast.backends.postgres.snapshot import Paths, Tenant
from holdfast.backends.postgres.transaction import HeldByOthers, PostgresTransaction
from holdfast.backends.postgres.watcher import Watcher
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")
Fate = Literal["stored", "undone", "unknown"]
_NOT_STORED: Final = "nothing was stored."
_LARGEST_BATCH: Final = 64
_MOST_COLLISIONS: Final = 20
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5
_FATES: Final[dict[str | None, Fate | None]] = {
    "committed": "stored",
    "aborted": "undone",
    "in progress": None,
}


class Receipt(msgspec.Struct, frozen=True):
    """What a transaction gave whose commit was sent, and by what it can be asked for.

    `undone` is what is said if it turns out that it was not received.
    """

    number: str | None
    value: Any
    undone: HoldfastError


class Lost(Exception):
    """The link was lost. With a receipt, its commit was sent and may have been received."""

    def __init__(
        self, error: HoldfastError, born: Birth | None = None, receipt: Receipt | None = None
    ) -> None:
        """Remember why, and who served the link."""
        super().__init__(str(error))
        self.error = error
        self.born = born
        self.receipt = receipt


class Again(Exception):
    """The transaction was undone because of what others did; nothing was stored."""

    def __init__(self, error: HoldfastError) -> None:
        """Remember why."""
        super().__init__(str(error))
        self.error = error


class Runner:
    """Runs one verb at a time, for as many threads as there are links."""

    def __init__(
        self,
        pool: Pool,
        tenant: Tenant,
        clock: Clock | None,
        paths: Paths,
        *,
        deadline: float,
        answer: float,
        longest: float,
        watcher: Watcher,
    ) -> None:
        """Write on links of this pool; the watcher is told of each commit."""
        self._pool = pool
        self._tenant = tenant
        self._clock = clock
        self._paths = paths
        self._deadline = deadline
        self._answer = answer
        self._longest = longest
        self._watcher = watcher

    def run(
        self,
        verb: Verb[T],
        *,
        alone: bool = False,
        orphan: Birth | None = None,
        doubt: HoldfastError | None = None,
    ) -> T:
        """Run a verb until it is known what became of it, or the deadline has passed.

        `orphan` names who served a link that was lost before, and may hold what this needs. With a
        `doubt` it may have been stored before.
        """
        until = time.monotonic() + self._deadline
        pause, collisions = _FIRST_PAUSE, 0
        while True:
            try:
                return self._attempt(verb, orphan, alone=alone)
            except Lost as lost:
                error, orphan = lost.error, lost.born or orphan
                self._pool.clear()
                if lost.receipt is not None:
                    fate = self._fate(lost, until)
                    if fate == "stored":
                        self._watcher.announce()
                        value: T = lost.receipt.value
                        return value
                    if fate == "undone":
                        error = lost.receipt.undone
                    else:
                        doubt = doubt or lost.error
            except Again as again:
                error = again.error
                collisions += 1
            except HoldfastError as refusal:
                raise _last_word(refusal, doubt) from refusal
            if time.monotonic() + pause > until or collisions > _MOST_COLLISIONS:
                raise _last_word(error, doubt) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _attempt(self, verb: Verb[T], orphan: Birth | None, *, alone: bool) -> T:
        """Run a verb in a transaction of its own; first end what a lost link left behind."""
        with self._link(self._longest if alone else self._answer) as link:
            if orphan is not None:
                self._end_orphan(link, orphan)
            tx = self._begin(link, [verb], alone=alone)
            try:
                value = verb(tx)
            except BaseException as error:
                self._undo(link, error)
                raise
            self._commit(link, tx, value)
            return value

    # --------------------------------------------------------------------- after a lost commit

    def _fate(self, lost: Lost, until: float) -> Fate:
        """Find out what became of a commit whose answer was lost; unknown by the deadline."""
        pause, error = _FIRST_PAUSE, lost.error
        while True:
            try:
                with self._link(self._answer) as link:
                    fate = self._ask_fate(link, lost)
                if fate is not None:
                    return fate
            except Lost as again:
                error = again.error
                self._pool.clear()
            except HoldfastError as other:
                raise _last_word(other, lost.error) from other
            if time.monotonic() + pause > until:
                raise _last_word(error, lost.error) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _ask_fate(self, link: Link, lost: Lost) -> Fate | None:
        """Ask what became of a transaction; nothing while it is under way."""
        if lost.born is None or lost.receipt is None:
            return "unknown"
        self._end_orphan(link, lost.born)
        if lost.receipt.number is None or link.birth.life != lost.born.life:
            return "unknown"
        try:
            row = link.ask("fate", (lost.receipt.number,)).fetchone()
            told = _FATES.get(row[0] if row else None, "unknown")
            if told == "stored":
                self._put_up_a_fence(link)
        except psycopg.Error as error:
            if is_lost(error):
                self._undo(link, error)
            link.roll_back()
            return "unknown"
        return told

    def _put_up_a_fence(self, link: Link) -> None:
        """Commit something that waits for the disk and for standbys, behind what is asked about.

        Ending who served the lost link ended its waiting for a standby, too.
        """
        link.begin("begin_writing")
        link.ask("fence")
        link.commit()

    def _end_orphan(self, link: Link, orphan: Birth) -> None:
        """End the server's side of a lost link: its commit has arrived by now, or never will.

        If it cannot be ended it ends by itself, when it has been idle for too long.
        """
        try:
            link.ask("end_orphan", (orphan.process, orphan.since)).fetchall()
        except psycopg.Error as error:
            if is_lost(error):
                self._undo(link, error)

    @contextmanager
    def _link(self, patience: float) -> Iterator[Link]:
        """Lend a link for one attempt; not getting one is like losing it."""
        try:
            link = self._pool.take(self._deadline)
        except psycopg.Error as error:
            raise Lost(translate(error, _NOT_STORED)) from error
        try:
            link.patience = patience
            yield link
        finally:
            self._pool.give_back(link)

    def _begin(
        self,
        link: Link,
        verbs: Sequence[Verb[Any]],
        *,
        alone: bool = False,
        waits: bool = True,
    ) -> PostgresTransaction:
        """Begin a transaction for these; what they say they will look at is asked for at once."""
        sights = [sight for sight in map(sight_of, verbs) if sight is not None]
        tx = PostgresTransaction(
            link, self._tenant, self._clock, self._paths, alone=alone, waits=waits
        )
        try:
            link.begin("begin_writing")
            whose = self._tenant
            tx.enter("enter_alone" if alone else "enter_writing", whose.lock, whose.store_lock)
            if sights:
                tx.foresee(*sights)
        except psycopg.Error as error:
            self._undo(link, error)
            raise
        return tx

    def _undo(self, link: Link, error: BaseException) -> None:
        """Roll back; raise what the error means unless it is the verb's own."""
        if is_lost(error):
            assert isinstance(error, psycopg.Error)  # noqa: S101 - so says is_lost
            link.close()
            raise Lost(translate(error, _NOT_STORED), link.birth) from error
        link.roll_back()
        if is_again(error):
            assert isinstance(error, psycopg.Error)  # noqa: S101 - so says is_again
            raise Again(translate(error, _NOT_STORED)) from error
        if isinstance(error, psycopg.Error):
            raise translate(error, _NOT_STORED) from error

    def _commit(self, link: Link, tx: PostgresTransaction, value: object) -> None:
        try:
            link.commit()
        except psycopg.Error as error:
            if not is_lost(error):
                # An answer: something that was sent before the commit was refused.
                self._undo(link, error)
            link.close()
            receipt = Receipt(tx.number, value, translate(error, _NOT_STORED))
            raise Lost(translate(error, "it may be stored."), link.birth, receipt) from error
        except BaseException:
            link.close()
            raise
        if tx.writes:
            self._watcher.announce(heard=tx.heard)

    # ------------------------------------------------------------------------- several at once

    def run_batch(self, batch: Sequence[Handed[Any]]) -> None:
        """Run verbs in order, as many as possible in one transaction."""
        waiting = deque(batch)
        while waiting:
            ended, orphan = self._run_together(waiting)
            for _ in range(ended):
                waiting.popleft()
            if waiting:
                self._run_one(waiting.popleft(), orphan=orphan)

    def _run_together(self, batch: Sequence[Handed[Any]]) -> tuple[int, Birth | None]:
        """Run verbs in one transaction, up to the first that cannot be; say how many were ended.

        After any trouble none of them was, and the first is run by itself. If the link was lost,
        say who served it.
        """
        if len(batch) == 1:
            return 0, None
        done: list[Callable[[], None]] = []
        try:
            with self._link(self._answer) as link:
                tx = self._begin(link, [handed.verb for handed in batch], waits=False)
                try:
                    self._gather(tx, batch, done)
                except Exception as error:  # noqa: BLE001 - each verb's own will be met again
                    self._undo(link, error)
                    return 0, None
                self._commit(link, tx, None)
        except Lost as lost:
            self._pool.clear()
            ended = 0 if lost.receipt is None else self._settle(batch, done, lost)
            return ended, lost.born
        except (HoldfastError, Again):
            return 0, None
        for tell in done:
            tell()
        return len(done), None

    def _settle(
        self, batch: Sequence[Handed[Any]], done: Sequence[Callable[[], None]], lost: Lost
    ) -> int:
        """End those whose common commit was not answered; say how many were ended."""
        together = [batch[place] for place in range(len(done))]
        try:
            fate = self._fate(lost, time.monotonic() + self._deadline)
        except HoldfastError as unknown:
            for handed in together:
                handed.fail(unknown)
            return len(done)
        if fate == "undone":
            return 0
        if fate == "stored":
            self._watcher.announce()
            for tell in done:
                tell()
        else:
            for handed in together:
                self._run_one(handed, doubt=lost.error)
        return len(done)

    def _gather(
        self,
        tx: PostgresTransaction,
        batch: Sequence[Handed[Any]],
        done: list[Callable[[], None]],
    ) -> None:
        for handed in batch:
            before = tx.writes
            try:
                value = handed.verb(tx)
            except HeldByOthers:
                if tx.writes != before:
                    raise
                return
            except HoldfastError as error:
                if tx.writes != before:
                    raise
                done.append(partial(handed.fail, error))
            else:
                done.append(partial(handed.succeed, value))

    def _run_one(
        self,
        handed: Handed[Any],
        *,
        orphan: Birth | None = None,
        doubt: HoldfastError | None = None,
    ) -> None:
        try:
            value = self.run(handed.verb, orphan=orphan, doubt=doubt)
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
            handed.fail(error)
        else:
            handed.succeed(value)


def _last_word(error: HoldfastError, doubt: HoldfastError | None) -> HoldfastError:
    if doubt is None:
        return error
    # What they say of being stored was meant for one attempt.
    first, then = (str(one).partition(";")[0] for one in (doubt, error))
    return OutcomeUnknown(
        f"the connection was lost while the write was committed ({first}), and what became of it "
        f"could not be found out ({then}); retry with the same ids: it will be there once."
    )


class Handed(Generic[T]):
    """A write that waits, runs, or is done."""

    def __init__(self, verb: Verb[T], deadline: float) -> None:
        """Wrap a verb."""
        self.verb = verb
        self._deadline = deadline
        self._future: Future[T] = Future()

    def begin(self) -> bool:
        """Say that it runs now; false if it was withdrawn."""
        return self._future.set_running_or_notify_cancel()

    def succeed(self, value: T) -> None:
        """Say what it gave."""
        self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Say what went wrong."""
        self._future.set_exception(error)

    def fail_if_open(self, error: BaseException) -> None:
        """Say that it is not known what became of it, unless it was said."""
        if not self._future.done():
            unknown = OutcomeUnknown(
                f"the write was broken off ({error!r}) and may be stored; retry with the same ids."
            )
            unknown.__cause__ = error
            self._future.set_exception(unknown)

    def result(self) -> T:
        """Wait for the end; withdraw it if it has not begun by the deadline."""
        try:
            return self._future.result(self._deadline)
        except TimeoutError:
            if self._future.done() or self.give_up():
                return self.outcome()
        except CancelledError:
            return self.outcome()
        try:
            return self._future.result(self._deadline)
        except TimeoutError:
            if self._future.done():
                return self.outcome()
            raise OutcomeUnknown(
                f"the write did not finish within {2 * self._deadline:g} s and may still do; retry "
                "it with the same ids."
            ) from None

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this once it is done, or at once if it is."""
        self._future.add_done_callback(lambda _: call())

    def outcome(self) -> T:
        """Give the result of what is done, or raise its error."""
        try:
            return self._future.result(0)
        except CancelledError:
            raise StoreUnavailable(
                "the write was withdrawn before it began; nothing was stored. Try again, and see "
                "`holdfast doctor` if it stays so."
            ) from None

    def give_up(self) -> bool:
        """Withdraw it if it has not begun."""
        return self._future.cancel()


class Line:
    """Verbs that were handed over, and the thread that runs them in order."""

    def __init__(self, runner: Runner, deadline: float) -> None:
        """Run them with this."""
        self._runner = runner
        self._deadline = deadline
        self._waiting: deque[Handed[Any]] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    @property
    def moving(self) -> bool:
        """Whether something waits or runs; whoever comes then gets in line."""
        return self._busy or bool(self._waiting)

    def submit(self, verb: Verb[T]) -> Handed[T]:
        """Hand a verb over."""
        handed = Handed(verb, self._deadline)
        undisturbed(partial(self._hand_over, handed))
        return handed

    def _hand_over(self, handed: Handed[Any]) -> None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed; nothing was stored. Open it again.")
            if self._thread is None:
                self._thread = self._started()
            self._waiting.append(handed)
            self._changed.notify_all()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._serve, name="holdfast-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(
                f"no thread can be started for writing ({error}); nothing was stored. Close some, "
                "or allow the process more of them."
            ) from error
        return thread

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._busy = True
                batch = self._take_batch()
            try:
                self._runner.run_batch(batch)
            except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
                for handed in batch:
                    handed.fail_if_open(error)

    def _take_batch(self) -> list[Handed[Any]]:
        batch: list[Handed[Any]] = []
        while self._waiting and len(batch) < _LARGEST_BATCH:
            handed = self._waiting.popleft()
            if handed.begin():
                batch.append(handed)
        return batch

    def flush(self) -> None:
        """Wait until everything handed over so far is done."""
        with self._lock:
            settled = self._changed.wait_for(lambda: not self.moving, self._deadline)
        if not settled:
            raise StoreUnavailable(f"writes are still waiting after {self._deadline:g} s.")

    def close(self) -> None:
        """Finish what waits, then stop; a thread that is stuck is left behind."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._deadline)
        while self._waiting:
            self._waiting.popleft().give_up()
