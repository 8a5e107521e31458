"""Running verbs: in a transaction, again when that is right, and with an end.

A verb that is written runs in the caller's thread, on a link of its own. Before the commit was sent
every failure means that nothing was stored; the verb is run again as long as the deadline allows,
on a new link if the old one was lost. After the commit was sent and before it was answered nobody
knows. Then the server is asked what became of the transaction (`doubts.py`): once it is known to be
stored, what the verb gave then is the answer; once it is known to be undone, the verb is run again.
If nobody can tell, the verb is run again all the same: it is idempotent by its ids, so it finds
what it stored before, or stores it now, and if it is refused, that may be because of itself.
Whatever ends this, the outcome is then unknown, and is said to be.

Messages are mostly appended to a session by somebody who wrote to it last, and knows where it
stands (`standing.py`). Then the verb is run without asking anything, and all of it is one journey.

Verbs that are handed over (`handing.py`) are run in order, as many as wait in one transaction. Such
a transaction waits for no lock: two of them, holding many sessions each, would wait for each other.
A verb that finds a session held by somebody else ends it, and is run by itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import psycopg

from holdfast.backends.base import Verb, sight_of
from holdfast.backends.postgres.doubts import Fate, Lost, Receipt, end_orphan, fate_of
from holdfast.backends.postgres.failures import is_again, is_lost, translate
from holdfast.backends.postgres.handing import Handed
from holdfast.backends.postgres.link import Birth, Link, Withheld
from holdfast.backends.postgres.paths import Paths
from holdfast.backends.postgres.pool import Pool
from holdfast.backends.postgres.snapshot import Tenant
from holdfast.backends.postgres.standing import Standings
from holdfast.backends.postgres.supposing import SupposingTransaction
from holdfast.backends.postgres.transaction import HeldByOthers, PostgresTransaction
from holdfast.backends.postgres.watcher import Watcher
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown

T = TypeVar("T")
_NOT_STORED: Final = "nothing was stored."
_MOST_COLLISIONS: Final = 20
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5


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
        self._standings = Standings()

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
                self._forget_server()
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
                _give_up(refusal, doubt)
            if time.monotonic() + pause > until or collisions > _MOST_COLLISIONS:
                _give_up(error, doubt)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _forget_server(self) -> None:
        """Begin anew with all that is known of a server that was lost."""
        self._pool.clear()
        self._standings.clear()

    def _attempt(self, verb: Verb[T], orphan: Birth | None, *, alone: bool = False) -> T:
        """Run a verb in a transaction of its own; first end what a lost link left behind."""
        with self._link(self._longest if alone else self._answer) as link:
            if orphan is not None:
                self._end_orphan(link, orphan)
            elif not alone and (done := self._run_supposing(link, verb)) is not None:
                return done[0]
            tx = self._begin(link, [verb], alone=alone)
            try:
                value = verb(tx)
            except BaseException as error:
                self._undo(link, error)
                raise
            self._commit(link, tx, value)
            return value

    def _run_supposing(self, link: Link, verb: Verb[T]) -> tuple[T] | None:
        """Run a verb that only appends in one journey, if it is known where its session stands.

        Give nothing if it is not known, or was not so: nothing was stored then.
        """
        sight = sight_of(verb)
        if sight is None or not sight.ids or sight.looks:
            return None
        standing = self._standings.suppose(sight.session, sight.newest)
        if standing is None:
            return None
        tx = SupposingTransaction(link, self._tenant, self._clock, self._paths)
        try:
            link.listen()  # A commit that goes nowhere could not be told from one that arrives.
            with link.withheld():
                self._enter(link, tx, "enter_writing")
                tx.suppose(standing, sight.ids)
                value = verb(tx)
                tx.finish()
        except (Withheld, HoldfastError):
            self._standings.keep(standing)
            return None
        except psycopg.Error as error:
            self._fail(link, error)
        try:
            self._commit(link, tx, value)
        except (Again, HoldfastError):
            self._standings.mistrust(standing)
            return None  # Nothing was stored; a look tells why.
        return (value,)

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
                self._forget_server()
            except HoldfastError as other:
                _give_up(other, lost.error)
            if time.monotonic() + pause > until:
                _give_up(error, lost.error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _ask_fate(self, link: Link, lost: Lost) -> Fate | None:
        try:
            return fate_of(link, self._tenant, lost)
        except psycopg.Error as error:
            self._fail(link, error)

    def _end_orphan(self, link: Link, orphan: Birth) -> None:
        try:
            end_orphan(link, orphan)
        except psycopg.Error as error:
            self._fail(link, error)

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
            self._enter(link, tx, "enter_alone" if alone else "enter_writing")
            if sights:
                tx.foresee(*sights)
        except psycopg.Error as error:
            self._fail(link, error)
        return tx

    def _enter(self, link: Link, tx: PostgresTransaction, name: str) -> None:
        link.begin("begin_writing")
        tx.enter(name, self._tenant.lock, self._tenant.store_lock)

    def _undo(self, link: Link, error: BaseException) -> None:
        """Roll back; raise what the error means unless it is the verb's own."""
        if isinstance(error, psycopg.Error):
            self._fail(link, error)
        link.roll_back()

    def _fail(self, link: Link, error: psycopg.Error) -> NoReturn:
        """Roll back, and raise what the server's error means."""
        if is_lost(error):
            link.close()
            raise Lost(translate(error, _NOT_STORED), link.birth) from error
        link.roll_back()
        if is_again(error):
            raise Again(translate(error, _NOT_STORED)) from error
        raise translate(error, _NOT_STORED) from error

    def _commit(self, link: Link, tx: PostgresTransaction, value: object) -> None:
        if not tx.writes:
            link.ask("fence")  # What it found done may be on its way to a standby still.
        try:
            link.commit()
        except psycopg.Error as error:
            if not is_lost(error):
                # An answer: something that was sent before the commit was refused.
                self._fail(link, error)
            link.close()
            undone = translate(error, _NOT_STORED)
            receipt = Receipt(tx.number, tx.trace, value, undone)
            raise Lost(translate(error, "it may be stored."), link.birth, receipt) from error
        except BaseException:
            link.close()
            raise
        tx.note(self._standings)
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
            self._forget_server()
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


def _give_up(error: HoldfastError, doubt: HoldfastError | None) -> NoReturn:
    """Return how it ended: what went wrong last, unless it may have been stored before."""
    if doubt is None:
        raise error
    # What they say of being stored was meant for one attempt.
    first, then = (str(one).partition(";")[0] for one in (doubt, error))
    raise OutcomeUnknown(
        f"the connection was lost while the write was committed ({first}), and what became of it "
        f"could not be found out ({then}); retry with the same ids: it will be there once."
    ) from error
