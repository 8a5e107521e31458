"""Group commit: writes of one process that arrive together share one transaction and one sync.

A lone caller is its own leader: it takes the locks if they are free, runs its verb and commits, in
its own thread and without a hand-over. Whoever finds them taken hands the verb over; one writer
thread runs everything that waits in a single transaction. A caller waits on its ticket with a
deadline, and withdraws a write that has not begun.

A verb that refuses (any of our errors, before it wrote) costs only itself. After any other error
the transaction is rolled back and its verbs run again one by one. A failed commit is worse: the
connection may show rows that are not on the disk, or hide rows that are. It is thrown away; a new
one commits a fence, which overwrites whatever the failed commit left behind, and then the verbs,
which are idempotent, run again: what they find or store is the truth. If even the fence fails, the
outcome is unknown, and is said to be.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from holdfast.backends.base import Transaction, Verb
from holdfast.backends.interrupts import undisturbed
from holdfast.backends.threads import start_writer
from holdfast.errors import HoldfastError, OutcomeUnknown, StorageError, StoreFull, StoreUnavailable

T = TypeVar("T")
_LARGEST_BATCH = 1024


class CommitFailed(Exception):
    """The engine could not say whether it committed, or can no longer be trusted."""

    def __init__(self, error: HoldfastError, *, attempted: bool) -> None:
        """Remember why, and whether a commit had been attempted."""
        super().__init__(str(error))
        self.error = error
        self.attempted = attempted


class CountingTransaction(Transaction, Protocol):
    """A transaction that counts what it wrote."""

    writes: int


class Engine(Protocol):
    """One connection that writes. All calls come from one thread at a time."""

    def try_enter(self) -> bool:
        """Take the lock between processes if it is free."""
        ...

    def enter(self) -> None:
        """Wait for the lock between processes."""
        ...

    def leave(self) -> None:
        """Release it."""
        ...

    def begin(self) -> CountingTransaction:
        """Begin a transaction."""
        ...

    def commit(self) -> None:
        """Commit it: durable when this returns, `CommitFailed` when that cannot be said."""
        ...

    def roll_back(self) -> None:
        """Undo it; `CommitFailed` if the connection cannot be trusted any more."""
        ...

    def translate(self, error: BaseException) -> BaseException:
        """Say an error in our words; `CommitFailed` if it ends the connection."""
        ...

    def reopen(self) -> None:
        """Throw the connection away, open a new one and commit a fence."""
        ...


class Ticket(Generic[T]):
    """A write that waits, runs, or is done."""

    __slots__ = ("_call", "_gate", "_writer", "begun", "done", "error", "value", "verb")

    def __init__(self, verb: Verb[T], writer: Writer) -> None:
        """Wrap a verb."""
        self.verb = verb
        self.begun = False
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._call: Callable[[], None] | None = None
        self._gate: threading.Lock | None = None
        self._writer = writer

    def finish(self) -> None:
        """Wake whoever waits."""
        with self._writer.guard:
            self.done = True
            call, gate = self._call, self._gate
        if gate is not None:
            gate.release()
        if call is not None:
            call()

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this once it is done; there is one who waits."""
        with self._writer.guard:
            if not self.done:
                self._call = call
                return
        call()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, so long."""
        with self._writer.guard:
            if self.done:
                return True
            if self._gate is None:
                self._gate = threading.Lock()
                self._gate.acquire()
            gate = self._gate
        return gate.acquire(timeout=seconds)

    def result(self) -> T:
        """Wait for the end, with the writer's deadline."""
        return self._writer.await_ticket(self)

    def give_up(self) -> bool:
        """Withdraw it if it has not begun."""
        return self._writer.withdraw(self)

    def outcome(self) -> T:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


class Writer:
    """Runs the verbs of one process."""

    def __init__(self, engine: Engine, *, deadline: float, committed: Callable[[], None]) -> None:
        """Write with this engine; `committed` is called after each commit."""
        self._engine = engine
        self._deadline = deadline
        self._committed = committed
        self.guard = threading.Lock()
        self._leading = threading.Lock()
        self._waiting: deque[Ticket[Any]] = deque()
        # A plain lock is taken and let go in one piece, whatever signal comes; a condition is not.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    # ------------------------------------------------------------------------------ callers

    def run(self, verb: Verb[T]) -> T:
        """Run a verb and wait for it: at once and alone if nobody else is there."""
        led = undisturbed(partial(self._try_to_lead, verb))
        return led[0] if led else self.submit(verb).result()

    def _try_to_lead(self, verb: Verb[T]) -> tuple[T] | None:
        """Run a verb here and now, if nobody holds a lock or waits for one."""
        if not self._leading.acquire(blocking=False):
            return None
        try:
            if self._waiting or self._closed or not self._engine.try_enter():
                return None
            try:
                return (self._lead(verb),)
            finally:
                self._engine.leave()
        finally:
            self._leading.release()

    def submit(self, verb: Verb[T]) -> Ticket[T]:
        """Hand a verb over to the writer thread."""
        ticket = Ticket(verb, self)
        undisturbed(partial(self._hand_over, ticket))
        return ticket

    def _hand_over(self, ticket: Ticket[Any]) -> None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed; nothing was stored. Open it again.")
            if self._thread is None:
                self._thread = start_writer(self._serve)
            self._waiting.append(ticket)
            self._changed.notify_all()

    def await_ticket(self, ticket: Ticket[T]) -> T:
        """Wait with the deadline; withdraw what has not begun by then."""
        if ticket.wait(self._deadline) or self.withdraw(ticket):
            return ticket.outcome()
        # It runs: a commit that hangs cannot be taken back.
        if ticket.wait(self._deadline):
            return ticket.outcome()
        raise OutcomeUnknown(
            f"the write did not finish within {2 * self._deadline:g} s and may still do; retry it "
            "with the same ids."
        )

    def withdraw(self, ticket: Ticket[Any]) -> bool:
        """Take back a write that has not begun; false if it has."""
        return undisturbed(partial(self._take_back, ticket))

    def _take_back(self, ticket: Ticket[Any]) -> bool:
        with self._lock:
            if ticket.begun or ticket.done:
                return False
            self._waiting.remove(ticket)
        ticket.error = StoreUnavailable(
            f"another process held the store's lock for {self._deadline:g} s; nothing was stored. "
            "Try again, and see `holdfast doctor` if it stays so."
        )
        ticket.finish()
        return True

    def flush(self) -> None:
        """Wait until everything handed over so far is done."""
        with self._lock:
            settled = self._changed.wait_for(
                lambda: not self._waiting and not self._busy, self._deadline
            )
        if not settled:
            raise StoreUnavailable(f"writes are still waiting after {self._deadline:g} s.")

    def close(self) -> None:
        """Finish what waits, then stop. A thread that waits for a stuck lock is left behind."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._deadline)
        for ticket in list(self._waiting):
            self.withdraw(ticket)

    @property
    def leading(self) -> threading.Lock:
        """Held by whoever uses the engine."""
        return self._leading

    # ----------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._busy = True
            with self._leading:
                self._serve_once()

    def _serve_once(self) -> None:
        batch: list[Ticket[Any]] = []
        try:
            self._engine.enter()
            try:
                # Nobody's write has begun while the engine is waited for: all can be withdrawn.
                tx = self._begin()
                batch = self._take_batch()
                self._run_batch(batch, tx)
            except CommitFailed as failed:
                batch = batch or self._take_batch()
                self._mend(batch, failed)
            finally:
                self._engine.leave()
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the callers
            batch = batch or self._take_batch()
            for ticket in batch:
                ticket.error = ticket.error or error
        for ticket in batch:
            ticket.finish()

    def _take_batch(self) -> list[Ticket[Any]]:
        batch: list[Ticket[Any]] = []
        with self._lock:
            while self._waiting and len(batch) < _LARGEST_BATCH:
                ticket = self._waiting.popleft()
                ticket.begun = True
                batch.append(ticket)
        return batch

    # --------------------------------------------------------------------------- transactions

    def _lead(self, verb: Verb[T]) -> T:
        try:
            return self._attempt(verb)
        except CommitFailed as failed:
            ticket = Ticket(verb, self)
            self._mend([ticket], failed)
            return ticket.outcome()

    def _run_batch(self, batch: Sequence[Ticket[Any]], tx: CountingTransaction) -> None:
        if self._run_together(batch, tx):
            return
        for ticket in batch:
            self._run_one(ticket)

    def _run_together(self, batch: Sequence[Ticket[Any]], tx: CountingTransaction) -> bool:
        """Run a batch in one transaction; false if one of them failed and nothing was kept."""
        for ticket in batch:
            before = tx.writes
            try:
                ticket.value = ticket.verb(tx)
            except BaseException as error:  # noqa: BLE001 - told apart and kept for its caller
                if not isinstance(error, HoldfastError) or tx.writes != before:
                    self._undo(error)
                    _forget(batch)
                    return False
                ticket.error = error
        self._commit()
        return True

    def _run_one(self, ticket: Ticket[Any]) -> None:
        """Run one verb in a transaction of its own, and say what became of it."""
        try:
            ticket.value = self._attempt(ticket.verb)
        except CommitFailed as failed:
            self._mend([ticket], failed)
        except BaseException as error:  # noqa: BLE001 - kept for its caller
            ticket.error = error

    def _attempt(self, verb: Verb[T]) -> T:
        """Run a verb in a transaction of its own."""
        tx = self._begin()
        try:
            value = verb(tx)
        except BaseException as error:
            said = self._undo(error)
            if said is error:
                raise
            raise said from error
        self._commit()
        return value

    def _begin(self) -> CountingTransaction:
        try:
            return self._engine.begin()
        except Exception as error:
            raise self._engine.translate(error) from error

    def _commit(self) -> None:
        self._engine.commit()
        self._committed()

    def _undo(self, error: BaseException) -> BaseException:
        self._engine.roll_back()
        return self._engine.translate(error)

    def _mend(self, batch: Sequence[Ticket[Any]], failed: CommitFailed) -> None:
        """After a failed commit: begin anew, then find out what is there."""
        _forget(batch)
        try:
            self._engine.reopen()
        except StorageError as error:
            for ticket in batch:
                ticket.error = _doubt(failed, error)
            return
        for ticket in batch:
            try:
                ticket.value = self._attempt(ticket.verb)
            except CommitFailed as again:
                ticket.error = _doubt(again, again.error)
                if not again.attempted:
                    ticket.error = again.error
            except BaseException as error:  # noqa: BLE001 - kept for its caller
                ticket.error = error


def _forget(batch: Sequence[Ticket[Any]]) -> None:
    for ticket in batch:
        ticket.value, ticket.error = None, None


def _doubt(failed: CommitFailed, later: BaseException) -> BaseException:
    if not failed.attempted or (
        # A full disk refuses the record that would have made the write count.
        isinstance(failed.error, StoreFull) and isinstance(later, StoreFull)
    ):
        return failed.error
    doubt = OutcomeUnknown(
        f"the commit failed ({failed.error}) and the store could not be asked what became of it "
        f"({later}); retry with the same ids: it will be there once."
    )
    doubt.__cause__ = failed.error
    return doubt
