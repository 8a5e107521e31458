"""A process that is forked in the middle of a transaction: that goes on in the parent alone."""

import os
from collections.abc import Callable

import pytest

from holdfast import Message, Session, Store, Usage
from holdfast.errors import StoreUnavailable
from holdfast.session import number_of
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.rows import UsageRow
from tests.postgres.conftest import OpenStore


class _InTheChild(Exception):
    """Raised in a forked child, so that it leaves the transaction it was made in."""


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


@pytest.fixture
def session(store: Store) -> Session:
    found = store.session("k")
    found.append(Message.user("x"))
    return found


def _texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


def _fork(work: Callable[[Callable[[], None]], object], session: Session) -> None:
    """Do something that forks; the child leaves it, uses the store, and ends."""
    parent, child = os.getpid(), 0

    def fork() -> None:
        nonlocal child
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, "see what the child printed"

    try:
        work(fork)
    except (_InTheChild, StoreUnavailable):
        if os.getpid() == parent:
            raise
    finally:
        if os.getpid() != parent:
            os._exit(0 if _texts(session) == ["x"] else 1)


@pytest.mark.parametrize("leaves", ["raising", "asking", "at once"])
def test_a_read_goes_on_in_the_parent(store: Store, session: Session, leaves: str) -> None:
    """However the child leaves it, and it reads by connections of its own."""
    n, parent = number_of(session), os.getpid()

    def read(fork: Callable[[], None]) -> None:
        def query(snapshot: Snapshot) -> int:
            snapshot.usage(session=n)
            fork()
            if os.getpid() != parent and leaves == "raising":
                raise _InTheChild
            if os.getpid() != parent and leaves == "at once":
                return 0
            return len(snapshot.turns(n, limit=10)) + len(snapshot.usage(session=n))

        assert store.backend.read(query) == 0

    _fork(read, session)
    assert _texts(session) == ["x"]


@pytest.mark.parametrize("leaves", ["raising", "asking", "at once"])
def test_a_write_is_the_parents(store: Store, session: Session, leaves: str) -> None:
    """The child commits nothing of it and undoes nothing of it."""
    n, parent = number_of(session), os.getpid()

    def write(fork: Callable[[], None]) -> None:
        def verb(tx: Transaction) -> None:
            tx.head(n)
            tx.add_usage(n, UsageRow(1, "m", Usage(1), 1))
            tx.usage(session=n)
            fork()
            if os.getpid() != parent and leaves == "raising":
                raise _InTheChild
            if os.getpid() == parent or leaves == "asking":
                tx.add_usage(n, UsageRow(1, "m", Usage(10), 1))
                tx.usage(session=n)

        store.backend.write(verb)

    _fork(write, session)
    assert session.usage().usage == Usage(11)
    assert _texts(session) == ["x"]
