"""Transactions that are held open in the middle, and waiting until another one is blocked."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import psycopg
import pytest

from holdfast import Session, Store
from holdfast.session import number_of
from holdfast.storage.protocol import Operation, Transaction

T = TypeVar("T")
LONG = 30.0
_WAITING = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def touch(session: Session) -> Operation[None]:
    """Return an operation that has taken an activity number when it returns."""

    def verb(tx: Transaction) -> None:
        head = tx.head(number_of(session))
        assert head is not None
        tx.put_head(msgspec.structs.replace(head, turns=head.turns))
        tx.usage(session=head.session)  # A question: what was written before is sent with it.

    return verb


@contextmanager
def under_way(store: Store, verb: Operation[object]) -> Iterator[Callable[[], None]]:
    """Keep a transaction open after an operation, until the block ends or it is resumed."""
    done, commit = threading.Event(), threading.Event()

    def paused(tx: Transaction) -> None:
        verb(tx)
        done.set()
        assert commit.wait(LONG)

    def go_on() -> None:
        commit.set()
        thread.join(LONG)

    thread = threading.Thread(target=lambda: store.backend.write(paused))
    thread.start()
    try:
        assert done.wait(LONG)
        yield go_on
    finally:
        go_on()


def in_a_thread(work: Callable[[], T]) -> Callable[[], T]:
    """Begin something; what is given waits for what it gives."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
            found.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()

    def ended() -> T:
        thread.join(LONG)
        return found.result(0)

    return ended


class Pauses:
    """The time of whoever tries to write again and again: a second passes with each pause.

    So a deadline is a number of attempts, and the same on every machine.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        monkeypatch.setattr("holdfast.storage.postgres.retry.time", self)

    def monotonic(self) -> float:
        return float(self.made)

    def sleep(self, _: float) -> None:
        self.made += 1
        time.sleep(0.01)


def await_waiting(admin: psycopg.Connection, count: int = 1) -> None:
    """Wait until so many connections wait for a lock."""
    until = time.monotonic() + LONG
    while len(admin.execute(_WAITING).fetchall()) < count:
        assert time.monotonic() < until, "nobody waits"
        time.sleep(0.005)
