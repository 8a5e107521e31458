"""Notifications of commits: sent only while a process listens, and never delaying a write."""

import threading

import psycopg
import pytest

from holdfast import Message, Store
from holdfast.storage.postgres import connection
from holdfast.storage.postgres.backend import PostgresBackend
from holdfast.storage.postgres.conninfo import ConnInfo
from tests.postgres.conftest import OpenStore, told

_LONG = 30.0
_start = threading.Thread.start


def _write(open_store: OpenStore, times: int = 3) -> None:
    """Write something; all that is to be announced of it is, when this returns."""
    store = open_store()
    for number in range(times):
        store.session(str(number)).append(Message.user("x"))
    store.close()


def test_nothing_is_announced_where_nobody_listens(
    open_store: OpenStore, outsider: psycopg.Connection
) -> None:
    """That would be one more transaction for each write, and no listener."""
    _write(open_store)
    assert told(outsider) == 0


def test_whoever_waits_is_told_until_it_is_gone(
    open_store: OpenStore, outsider: psycopg.Connection
) -> None:
    """From the first time that a process waits, until its store is closed."""
    listening = open_store()
    seen = listening.backend.wait(-1, 0)
    _write(open_store)
    assert listening.backend.wait(seen, _LONG) != seen
    assert told(outsider) > 0
    listening.close()
    _write(open_store)
    assert told(outsider) == 0


def test_another_tenants_listener_is_told_nothing(
    open_store: OpenStore, outsider: psycopg.Connection
) -> None:
    """Nor is anything announced because of it."""
    open_store(tenant="another").backend.wait(-1, 0)
    _write(open_store)
    assert told(outsider) == 0


def _refuse(thread: threading.Thread) -> None:
    if thread.name.startswith("holdfast-"):
        raise RuntimeError("can't start new thread")
    _start(thread)


def test_a_thread_that_cannot_be_started_breaks_no_write(
    open_store: OpenStore, outsider: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored write does not fail; the next one that needs the thread tries again."""
    open_store().backend.wait(-1, 0)
    store: Store = open_store()
    session = store.session("k")
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    session.append(Message.user("stored"))
    seen = store.backend.wait(-1, 0)
    assert store.backend.wait(seen, 0.01) == seen
    monkeypatch.undo()
    session.append(Message.user("told"))
    next(outsider.notifies(timeout=_LONG, stop_after=1))
    seen = store.backend.wait(-1, 0)
    _write(open_store)
    assert store.backend.wait(seen, _LONG) != seen
    assert [message.text for message in session.messages()] == ["stored", "told"]


def test_an_announcement_is_enough(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener need not poll, which it does every two seconds at most."""
    monkeypatch.setattr(PostgresBackend, "_highest_activity", lambda *_: "nothing new")
    listening = open_store()
    seen = listening.backend.wait(-1, 0)
    _write(open_store, times=1)
    assert listening.backend.wait(seen, _LONG) != seen


def test_whoever_cannot_listen_is_woken_from_time_to_time(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no notifications, so it polls whenever it has failed to listen."""
    connect = connection.open_driver

    def refuse(target: ConnInfo) -> psycopg.Connection:
        if threading.current_thread().name == "holdfast-listener":
            raise psycopg.OperationalError("too many connections")
        return connect(target)

    monkeypatch.setattr(connection, "open_driver", refuse)
    deaf = open_store()
    seen = deaf.backend.wait(-1, 0)
    _write(open_store, times=1)
    assert deaf.backend.wait(seen, _LONG) != seen
