"""Running verbs: in a transaction, again when that is right, and with an end.

A verb that is written runs in the caller's thread, on a link of its own. Before the commit was sent
every failure means that nothing was stored; the verb is run again as long as the deadline allows,
on a new link if the old one was lost. After the commit was sent and before it was answered nobody
knows. Then the server's side of the lost link is ended, and the verb is run again all the same: it
is idempotent by its ids, so it finds what it stored before, or stores it now. If the deadline ends
this, the outcome is unknown, and is said to be.

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
from typing import Any, Final, Generic, TypeVar

import psycopg

from holdfast.backends.base import Verb
from holdfast.backends.interrupts import undisturbed
from holdfast.backends.postgres.failures import is_again, is_lost, translate
from holdfast.backends.postgres.link import Link
from holdfast.backends.postgres.pool import Pool
from holdfast.backends.postgres.snapshot import Paths, Tenant
from holdfast.backends.postgres.transaction import HeldByOthers, PostgresTransaction
from holdfast.backends.postgres.watcher import Watcher
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")
_NOT_STORED: Final = "nothing was stored."
_LARGEST_BATCH: Final = 64
_MOST_COLLISIONS: Final = 20
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5


class Lost(Exception):
    """The link was lost; `attempted` says whether a commit may have been received."""

    def __init__(
        self, error: HoldfastError, *, attempted: bool = False, served_by: int | None = None
    ) -> None:
        """Remember why, and who served the link."""
        super().__init__(str(error))
        self.error = error
        self.attempted = attempted
        self.served_by = served_by


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

    def run(self, verb: Verb[T], *, alone: bool = False, orphan: int | None = None) -> T:
        """Run a verb until it is known what became of it, or the deadline has passed.

        `orphan` names who served a link that was lost before, and may hold what this needs.
        """
        return self._persist(partial(self._attempt, verb, alone=alone), orphan)

    def _persist(self, attempt: Callable[[int | None], T], orphan: int | None) -> T:
        until = time.monotonic() + self._deadline
        doubt: HoldfastError | None = None
        pause, collisions = _FIRST_PAUSE, 0
        while True:
            try:
                return attempt(orphan)
            except Lost as lost:
                error = lost.error
                orphan = lost.served_by or orphan
                doubt = doubt or (lost.error if lost.attempted else None)
                self._pool.clear()
            except Again as again:
                error = again.error
                collisions += 1
            if time.monotonic() + pause > until or collisions > _MOST_COLLISIONS:
                raise _last_word(error, doubt) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _attempt(self, verb: Verb[T], orphan: int | None, *, alone: bool) -> T:
        """Run a verb in a transaction of its own; first end what a lost link left behind."""
        with self._link(self._longest if alone else self._answer) as link:
            if orphan is not None:
                self._end_orphan(link, orphan)
            tx = self._begin(link, alone=alone)
            try:
                value = verb(tx)
            except BaseException as error:
                self._undo(link, error)
                raise
            self._commit(link, tx)
            return value

    def _end_orphan(self, link: Link, orphan: int) -> None:
        """End the server's side of a lost link: its commit has arrived by now, or never will.

        It may have ended long ago, and another have its number: that one loses its connection,
        which harms nobody.
        """
        try:
            link.ask("end_orphan", (orphan,)).fetchall()
        except psycopg.Error as error:
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

    def _begin(self, link: Link, *, alone: bool = False, waits: bool = True) -> PostgresTransaction:
        tx = PostgresTransaction(
            link, self._tenant, self._clock, self._paths, alone=alone, waits=waits
        )
        try:
            link.begin("begin_writing")
            whose = self._tenant
            tx.enter("enter_alone" if alone else "enter_writing", whose.lock, whose.store_lock)
        except psycopg.Error as error:
            self._undo(link, error)
            raise
        return tx

    def _undo(self, link: Link, error: BaseException) -> None:
        """Roll back; raise what the error means unless it is the verb's own."""
        if is_lost(error):
            assert isinstance(error, psycopg.Error)  # noqa: S101 - so says is_lost
            link.close()
            raise Lost(translate(error, _NOT_STORED), served_by=link.served_by) from error
        try:
            link.roll_back()
        except psycopg.Error as second:
            link.close()
            if not isinstance(error, psycopg.Error):
                return  # The verb's own error counts; the server undoes what it does not hear of.
            raise Lost(translate(second, _NOT_STORED), served_by=link.served_by) from second
        if is_again(error):
            assert isinstance(error, psycopg.Error)  # noqa: S101 - so says is_again
            raise Again(translate(error, _NOT_STORED)) from error
        if isinstance(error, psycopg.Error):
            raise translate(error, _NOT_STORED) from error

    def _commit(self, link: Link, tx: PostgresTransaction) -> None:
        try:
            link.commit()
        except psycopg.Error as error:
            if not is_lost(error):
                # An answer: something that was sent before the commit was refused.
                self._undo(link, error)
            link.close()
            said = translate(error, "it may be stored.")
            raise Lost(said, attempted=True, served_by=link.served_by) from error
        except BaseException:
            link.close()
            raise
        if tx.writes:
            self._watcher.announce()

    # ------------------------------------------------------------------------- several at once

    def run_batch(self, batch: Sequence[Handed[Any]]) -> None:
        """Run verbs in order, as many as possible in one transaction."""
        waiting = deque(batch)
        while waiting:
            done, orphan = self._run_together(waiting)
            for _ in range(done):
                waiting.popleft()
            if waiting:
                self._run_one(waiting.popleft(), orphan)

    def _run_together(self, batch: Sequence[Handed[Any]]) -> tuple[int, int | None]:
        """Run verbs in one transaction, up to the first that cannot be; say how many were run.

        After any trouble none of them was, and the first is run by itself. If the link was lost,
        say who served it.
        """
        if len(batch) == 1:
            return 0, None
        done: list[Callable[[], None]] = []
        try:
            with self._link(self._answer) as link:
                tx = self._begin(link, waits=False)
                try:
                    self._gather(tx, batch, done)
                except Exception as error:  # noqa: BLE001 - each verb's own will be met again
                    self._undo(link, error)
                    return 0, None
                self._commit(link, tx)
        except Lost as lost:
            return 0, lost.served_by
        except (HoldfastError, Again):
            return 0, None
        for tell in done:
            tell()
        return len(done), None

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

    def _run_one(self, handed: Handed[Any], orphan: int | None) -> None:
        try:
            value = self.run(handed.verb, orphan=orphan)
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
            handed.fail(error)
        else:
            handed.succeed(value)


def _last_word(error: HoldfastError, doubt: HoldfastError | None) -> HoldfastError:
    if doubt is None:
        return error
    return OutcomeUnknown(
        f"the connection was lost while the write was committed ({doubt}) and the database could "
        f"not be asked what became of it ({error}); retry with the same ids: it will be there once."
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
            self._waiting.append(handed)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="holdfast-writer", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

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
            self._runner.run_batch(batch)

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
