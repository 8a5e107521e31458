"""Activity numbers: taken without waiting for each other, read without missing any."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from holdfast import Message, Session, Store
from holdfast.session import number_of
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import HeadRow
from holdfast.testing.conformance.fixtures import drain
from tests.postgres.conftest import OpenStore

_LONG = 30.0


class _GaveUp(Exception):
    """Raised by an operation that has taken an activity number."""


@contextmanager
def _under_way(store: Store, session: Session, *, fails: bool = False) -> Iterator[None]:
    """Keep a transaction open that has taken a number, until the block is over."""
    taken, done = threading.Event(), threading.Event()

    def verb(tx: Transaction) -> None:
        head = tx.head(number_of(session))
        assert head is not None
        tx.put_head(msgspec.structs.replace(head, turns=head.turns))
        tx.usage(session=head.session)  # A question: what was written before is sent with it.
        taken.set()
        assert done.wait(_LONG)
        if fails:
            raise _GaveUp

    def write() -> None:
        if fails:
            with pytest.raises(_GaveUp):
                store.backend.write(verb)
        else:
            store.backend.write(verb)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert taken.wait(_LONG)
        yield
    finally:
        done.set()
        thread.join(_LONG)


def _looking(session: Session) -> Operation[HeadRow | None]:
    return lambda tx: tx.head(number_of(session))


def _names(store: Store, since: int) -> list[str | None]:
    return [store.get(item.session_id).key for item in drain(store.follow(since))]


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


def test_what_commits_first_is_not_told_before_what_has_a_lower_number(store: Store) -> None:
    """A follower that went past it would never hear of the other; lists show it at once."""
    sessions = {key: store.session(key) for key in "ab"}
    since = drain(store.follow())[-1].number
    with _under_way(store, sessions["a"]):
        sessions["b"].append(Message.user("acknowledged"))
        assert _names(store, since) == []
        assert [info.key for info in store.sessions()] == ["b", "a"]
        assert [hit.session_id for hit in store.search("acknowledged")] == [sessions["b"].id]
    assert _names(store, since) == ["a", "b"]


def test_a_number_that_was_given_up_holds_nobody_up(store: Store) -> None:
    """And leaves no gap that a follower would wait for."""
    sessions = {key: store.session(key) for key in "ab"}
    since = drain(store.follow())[-1].number
    with _under_way(store, sessions["a"], fails=True):
        sessions["b"].append(Message.user("x"))
        assert _names(store, since) == []
    assert _names(store, since) == ["b"]


def test_another_tenants_transaction_holds_nobody_up(open_store: OpenStore, store: Store) -> None:
    """Its numbers are its own."""
    theirs = open_store(tenant="another")
    session, other = store.session("a"), theirs.session("theirs")
    since = drain(store.follow())[-1].number
    with _under_way(theirs, other):
        session.append(Message.user("x"))
        assert _names(store, since) == ["a"]


def test_a_session_that_is_held_holds_up_no_other(store: Store) -> None:
    """Writers to other sessions go through, alone and in batches, which never wait."""
    sessions = {key: store.session(key) for key in "abc"}
    with _under_way(store, sessions["a"]):
        sessions["b"].append(Message.user("x"))
        pending = [store.backend.submit(_looking(sessions[key])) for key in "bcbc"]
        assert [one.result() is not None for one in pending] == [True] * 4
    assert sessions["b"].head().seq == 1


def test_numbers_of_what_was_erased_are_not_given_again(store: Store) -> None:
    """A follower that has read past them would miss the next session."""
    sessions = [store.session(key) for key in "abc"]
    newest = drain(store.follow())[-1].number
    for session in sessions:
        store.purge(session.id)
    store.session("d")
    assert _names(store, newest) == ["d"]
