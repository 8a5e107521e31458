"""A server with a synchronous standby that is away: nothing is acknowledged before it is back."""

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

import holdfast
from holdfast import Message, Session, Store, ids
from holdfast.operations import deletion, head_moves, sessions
from holdfast.session import number_of
from holdfast.storage.protocol import HealthCheck
from tests.postgres.conftest import own_server
from tests.servers import OWNER, OwnServer, as_user
from tests.store_urls import with_options

_LONG = 60.0
_Do = Callable[[], object]
_WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND usename = %s"


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """A server whose settings may be changed."""
    with own_server() as server:
        yield server


@pytest.fixture
def store(server: OwnServer) -> Iterator[Store]:
    """A store whose writes may wait for as long as the test takes."""
    url = with_options(as_user(server.url, OWNER), deadline=2 * _LONG, answer=_LONG)
    with holdfast.open(url) as opened:
        yield opened


class Standby:
    """The synchronous standby of a server, as the server's superuser sees it."""

    def __init__(self, server: OwnServer, admin: psycopg.Connection) -> None:
        self._server = server
        self._admin = admin

    @contextmanager
    def away(self) -> Iterator[None]:
        """Wait for a standby that is not there; without one again, all who wait go on."""
        with psycopg.connect(self._server.url) as other, ThreadPoolExecutor(1) as pool:
            until = time.monotonic() + _LONG
            self._set("SET synchronous_standby_names = 'nobody'")
            try:
                # A running server takes over a changed setting a little later.
                while not self._is_awaited_by(pool.submit(_commit, other), "postgres"):
                    assert time.monotonic() < until, "the server does not wait for a standby"
                yield
            finally:
                self._set("RESET synchronous_standby_names")

    def is_awaited_by(self, write: Future[object]) -> bool:
        """Return whether a write waits for the standby; false once it has ended."""
        return self._is_awaited_by(write, OWNER)

    def _set(self, how: str) -> None:
        self._admin.execute(f"ALTER SYSTEM {how}")
        self._admin.execute("SELECT pg_reload_conf()")

    def _is_awaited_by(self, write: Future[object], role: str) -> bool:
        until = time.monotonic() + _LONG
        while not write.done():
            if self._admin.execute(_WAITING, (role,)).fetchone() is not None:
                return True
            assert time.monotonic() < until, "it neither ends nor waits for the standby"
            time.sleep(0.005)
        return False


def _commit(connection: psycopg.Connection) -> object:
    """Commit something that waits for a synchronous standby."""
    connection.execute("SELECT pg_logical_emit_message(true, 'a test', '')")
    connection.commit()
    return None


@pytest.fixture
def standby(server: OwnServer) -> Iterator[Standby]:
    with psycopg.connect(server.url, autocommit=True) as admin:
        yield Standby(server, admin)


def _append(_: Store, session: Session) -> _Do:
    return lambda: session.append(Message.user("hello", id="once"))


def _clear(store: Store, session: Session) -> _Do:
    verb = head_moves.clear(number_of(session), token="the token", expect=None)  # noqa: S106 - a mark
    return lambda: store.backend.write(verb)


def _fork(store: Store, session: Session) -> _Do:
    origin = sessions.Origin(parent=number_of(session), relation="fork")
    verb = sessions.create(sessions.new_row(id=ids.session_id()), origin=origin)
    return lambda: store.backend.write(verb)


def _purge(store: Store, session: Session) -> _Do:
    verb = deletion.purge(number_of(session), session.id, forks="keep")
    return lambda: store.backend.write(verb, exclusive=True)


_WRITES = {"append": _append, "clear": _clear, "fork": _fork, "purge": _purge}


@pytest.mark.parametrize("what", _WRITES)
def test_a_retry_that_finds_all_done_waits_for_the_standby(
    store: Store, standby: Standby, what: str
) -> None:
    """What it finds may not be there yet: if it were acknowledged now, a failover would lose it."""
    session = store.create()
    session.append(Message.user("before"))
    write = _WRITES[what](store, session)
    write()
    with ThreadPoolExecutor(1) as pool:
        with standby.away():
            retry = pool.submit(write)
            assert standby.is_awaited_by(retry)
        retry.result(_LONG)


# -------------------------------------------------------------------------------------- doctor


@contextmanager
def _receiver(server: OwnServer, folder: Path) -> Iterator[None]:
    """Run a program that confirms what it has synced, as a standby does."""
    where = f"host={server.folder} user=postgres application_name=receiver"
    command = [str(server.programs / "pg_receivewal"), "--synchronous", "-D", str(folder)]
    with subprocess.Popen([*command, "-d", where], stderr=subprocess.DEVNULL) as program:
        try:
            yield
        finally:
            program.terminate()


def _standbys(url: str) -> HealthCheck:
    with holdfast.open(with_options(url, deadline=_LONG), readonly=True) as store:
        return {check.name: check for check in store.backend.health()}["standbys"]


def test_doctor_says_whether_commits_wait_for_a_standby(
    server: OwnServer, store: Store, tmp_path: Path
) -> None:
    """As far as the role may see it; who would wait for nobody is told."""
    owner = as_user(server.url, OWNER)
    with psycopg.connect(server.url, autocommit=True) as admin:
        assert _standbys(owner) == HealthCheck("standbys", "0 connected, commits wait for none")
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'receiver'")
        admin.execute("SELECT pg_reload_conf()")
        _await(admin, "SHOW synchronous_standby_names", "receiver")
        try:
            found = _standbys(owner)
            assert found.value == "0 connected, none synchronous; commits wait for receiver"
            assert not found.ok
            with _receiver(server, tmp_path):
                _await(admin, "SELECT max(sync_state) FROM pg_stat_replication", "sync")
                assert _standbys(server.url).value == "1 connected, synchronous: 1"
                found = _standbys(owner)
                assert found.value == "1 connected, synchronous: shown to pg_monitor only"
                assert found.ok
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
            _await(admin, "SHOW synchronous_standby_names", "")


def _await(admin: psycopg.Connection, asked: LiteralString, wanted: str) -> None:
    until = time.monotonic() + _LONG
    while admin.execute(asked).fetchone() != (wanted,):
        assert time.monotonic() < until, f"never {wanted!r}"
        time.sleep(0.01)
