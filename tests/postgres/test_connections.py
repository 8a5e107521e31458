"""Connections: none is leaked, and none is used again in a wrong state."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from holdfast import Message, Session, Store, Usage
from holdfast.errors import StorageError
from holdfast.session import number_of
from holdfast.storage.postgres.backend import PostgresBackend
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.registry import missing_store
from holdfast.storage.rows import UsageRow
from holdfast.url import parse_url
from tests.postgres.conftest import OpenStore
from tests.postgres.pauses import LONG, in_a_thread
from tests.store_urls import with_options

_SHORT = 60.0


class _Interrupted(BaseException):
    """What a handler of a signal raises."""


_TOO_MUCH = UsageRow(1, "m", Usage(), 1 << 62)  # Two of them are more than a column holds.


@pytest.fixture
def store(open_store: OpenStore, url: str) -> Store:
    """One whose connections go by a name; without threads it uses one and the same."""
    return open_store(url=with_options(url, pool=2, application_name="counted", deadline=2 * LONG))


def _connections(admin: psycopg.Connection) -> set[int]:
    """Return the backends of the store's connections."""
    asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'counted'"
    return {row[0] for row in admin.execute(asked).fetchall()}


def _await_none(admin: psycopg.Connection) -> None:
    """Wait until the server has none left; it ends them a little later."""
    until = time.monotonic() + _SHORT
    while _connections(admin):
        assert time.monotonic() < until, "connections are still there"
        time.sleep(0.005)


def _fail(tx: Transaction, session: Session) -> None:
    """Do something that the server refuses, and then more."""
    n = number_of(session)
    tx.head(n)
    tx.add_usage(n, _TOO_MUCH)
    tx.add_usage(n, _TOO_MUCH)
    tx.put_draft(n, 1, 1, b"never stored")
    tx.usage(session=n)


def test_a_store_that_is_closed_leaves_no_connection(
    store: Store, postgres_admin: psycopg.Connection
) -> None:
    """None that waited, wrote, read, listened or announced."""
    session = store.session("k")
    seen = store.backend.wait(-1, 0)
    session.append(Message.user("x"))
    assert store.backend.wait(seen, LONG) != seen
    store.backend.submit(lambda tx: tx.head(number_of(session))).result()
    store.close()
    _await_none(postgres_admin)


def test_what_is_lent_while_a_store_is_closed_is_closed_as_well(
    store: Store, postgres_admin: psycopg.Connection
) -> None:
    """When it is returned: nothing else would close it."""
    session = store.session("k")
    begun, go_on = threading.Event(), threading.Event()

    def query(snapshot: Snapshot) -> bool:
        found = snapshot.head(number_of(session)) is not None
        begun.set()
        return go_on.wait(LONG) and found

    read = in_a_thread(lambda: store.backend.read(query))
    assert begun.wait(LONG)
    store.close()
    go_on.set()
    assert read()
    _await_none(postgres_admin)


@contextmanager
def _interrupted() -> Iterator[None]:
    """Raise something where the main thread is, in a little while."""

    def interrupt(_: int, __: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(_Interrupted):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)


def test_who_reads_behind_an_interrupt_sees_what_is_new(
    store: Store, open_store: OpenStore, postgres_database: str
) -> None:
    """A connection whose result was not waited for is in the middle of an old transaction."""
    session = store.session("k")
    with psycopg.connect(postgres_database) as keeper:
        keeper.execute("LOCK TABLE holdfast.heads IN ACCESS EXCLUSIVE MODE")
        with _interrupted():
            session.messages()
    open_store().session("k").append(Message.user("new"))
    assert [message.text for message in session.messages()] == ["new"]


def test_a_forked_child_ends_no_connection_of_its_parent(
    store: Store, postgres_admin: psycopg.Connection
) -> None:
    """It closes them without notifying the server: neither reader nor listener is cut off."""
    session = store.session("k")
    store.backend.wait(-1, 0)
    before = _connections(postgres_admin)
    assert len(before) > 1
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert session.messages() == []
    time.sleep(0.1)  # A server that was told to end a connection has done so by now.
    assert _connections(postgres_admin) == before


def test_a_forked_child_uses_no_connection_of_its_parent(open_store: OpenStore, url: str) -> None:
    """Not even one that was idle at the fork: both go on, at the same time."""
    store = open_store(url=with_options(url, deadline=4))
    session = store.session("k")
    hear, say = os.pipe()
    heed, order = os.pipe()

    def query(snapshot: Snapshot) -> int:
        snapshot.usage(session=number_of(session))
        os.write(say, b"in the middle")
        os.read(heed, 1)
        return len(snapshot.usage(session=number_of(session)))

    child = os.fork()
    if child == 0:
        try:
            os._exit(store.backend.read(query))
        finally:
            os._exit(1)
    os.close(say)
    try:
        assert os.read(hear, 20) == b"in the middle"
        session.append(Message.user("x"))
        os.write(order, b"!")
        _, status = os.waitpid(child, 0)
        child = 0
    finally:
        for end in (hear, heed, order):
            os.close(end)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [message.text for message in session.messages()] == ["x"]


def test_looking_for_a_store_leaves_no_connection(
    url: str, postgres_admin: psycopg.Connection
) -> None:
    """Whether there is one or not."""
    for schema in ("holdfast", "elsewhere"):
        where = parse_url(with_options(url, schema=schema, application_name="counted"), {})
        assert (missing_store(where) is None) == (schema == "holdfast")
    _await_none(postgres_admin)


def test_a_missing_store_is_named_without_its_password(url: str) -> None:
    """The command tells where there is none, and its output may be kept by others."""
    whole = "postgresql://user:sEcReT@127.0.0.1/db?schema=elsewhere"
    shown = PostgresBackend.shown(parse_url(whole, {}))
    assert "sEcReT" not in shown
    assert "elsewhere" in shown
    where = parse_url(with_options(url, schema="elsewhere"), {})
    assert missing_store(where) == PostgresBackend.shown(where)


def test_a_large_question_and_a_large_answer_do_not_wait_for_each_other(url: str) -> None:
    """They take one round trip: the server reads no more until its output is read."""
    link = Connection(parse_conninfo(parse_url(url, {}), "process"))
    long = link.execute_sql("SELECT repeat('x', 4000000)")
    length = link.execute_sql("SELECT octet_length($1::bytea)", (b"y" * 1_900_000,))
    assert length.fetchall() == [(1_900_000,)]
    assert long.fetchall() == [("x" * 4_000_000,)]
    link.close()


def test_a_verb_that_passes_over_an_error_is_not_said_to_be_stored(store: Store) -> None:
    """The server rolls such a transaction back at its COMMIT."""
    session = store.session("k")

    def verb(tx: Transaction) -> None:
        with suppress(psycopg.Error):
            _fail(tx, session)

    with pytest.raises(StorageError, match="ROLLBACK"):
        store.backend.write(verb)
    assert session.usage().by_model == ()
    session.append(Message.user("stored"))
    assert [message.text for message in session.messages()] == ["stored"]


def test_what_was_asked_behind_an_error_can_be_asked_again(store: Store) -> None:
    """It was not prepared: the server skipped all that came after the error."""
    session = store.session("k")
    with pytest.raises(StorageError, match="out of range"):
        store.backend.write(lambda tx: _fail(tx, session))

    def verb(tx: Transaction) -> None:
        tx.head(number_of(session))
        tx.put_draft(number_of(session), 1, 1, b"stored")

    store.backend.write(verb)
    assert store.backend.read(lambda snapshot: snapshot.draft(number_of(session), 1)) == [b"stored"]


def test_who_comes_behind_an_error_finds_nothing_of_it(store: Store) -> None:
    """An open transaction of a connection that is returned is rolled back."""
    session = store.session("k")
    for _ in range(3):
        with pytest.raises(StorageError, match="out of range"):
            store.backend.write(lambda tx: _fail(tx, session))
        with pytest.raises(ZeroDivisionError):
            store.backend.write(lambda tx: _break_off(tx, session))
    session.append(Message.user("x"))
    assert [message.text for message in session.messages()] == ["x"]
    assert session.usage().by_model == ()


def _break_off(tx: Transaction, session: Session) -> None:
    n = number_of(session)
    tx.head(n)
    tx.add_usage(n, UsageRow(1, "m", Usage(1), 1))
    tx.usage(session=n)
    tx.put_draft(n, 1, 1, b"never sent")
    raise ZeroDivisionError
