"""Behind a pooler: many clients on few processes of the server, each transaction on any of them."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

import holdfast
from holdfast import Message, Session, Store
from holdfast.clock import Clock
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.session import number_of
from holdfast.storage.postgres.backend import PostgresBackend
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.protocol import Backend, Snapshot, Transaction
from holdfast.testing.conformance.append_tests import AppendTests
from holdfast.testing.conformance.backend_protocol_tests import BackendProtocolTests
from holdfast.testing.conformance.follow_tests import FollowTests
from holdfast.testing.conformance.leases_tests import LeaseTests
from holdfast.testing.conformance.retries_tests import RetryTests
from holdfast.testing.conformance.store_records_tests import StoreRecordTests
from holdfast.testing.conformance.tenants_tests import TenantTests
from holdfast.url import parse_url
from tests.concurrency.children import Pipe
from tests.postgres.conftest import OpenStore, StartChild, through
from tests.postgres.pauses import LONG, Pauses
from tests.postgres.pgbouncer import Pgbouncer, socket_of
from tests.postgres.proxy import Proxy

# The same, with a pooler between the proxy and the server.
from tests.postgres.test_faults import (  # noqa: F401 - collected here
    test_a_write_that_never_gets_through_ends_and_can_be_retried,
    test_a_write_whose_connection_fails_is_stored_once,
    test_writes_handed_over_together_are_stored_once,
)
from tests.postgres.test_optimistic import (  # noqa: F401 - as well
    optimistic,
    test_a_lost_answer_is_found_by_its_message,
    test_a_steady_append_whose_connection_fails_is_stored_once,
    test_what_others_stored_under_an_id_is_not_ours,
    test_what_was_lost_behind_others_is_stored_behind_them,
)
from tests.servers import WORKER, wipe

_TENANTS = 8
_TURNS = 12
_SERVER_CONNECTIONS = 3
MakePooler = Callable[..., Pgbouncer]


@pytest.fixture
def make_pooler(postgres_admin: psycopg.Connection, postgres_url: str) -> Iterator[MakePooler]:
    """Start a pooler before an empty store; paths of sockets are short, so not in `tmp_path`."""
    server, port = socket_of(postgres_url)
    wipe(postgres_admin)
    started: list[Pgbouncer] = []
    with tempfile.TemporaryDirectory() as folder:

        def make(mode: str = "transaction", size: int = _SERVER_CONNECTIONS) -> Pgbouncer:
            place = Path(folder) / str(len(started))
            place.mkdir()
            Path(folder).chmod(0o755)
            started.append(Pgbouncer(place, server, port, mode, size))
            return started[-1]

        yield make
        for pooler in started:
            pooler.kill()


@pytest.fixture
def pooler(make_pooler: MakePooler) -> Pgbouncer:
    """A pooler in transaction mode."""
    return make_pooler()


@pytest.fixture
def url(pooler: Pgbouncer, postgres_url: str) -> str:
    """An empty store behind it."""
    return pooler.url(postgres_url, deadline=60)


def test_a_connection_that_was_interrupted_in_the_answer_to_a_rollback_is_not_used_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which results are still to come."""
    receive = Connection._next_result  # noqa: SLF001 - where a signal arrives

    def interrupted(link: Connection, timeout_s: float) -> object:
        receive(link, timeout_s)
        raise KeyboardInterrupt

    with closing(Connection(parse_conninfo(parse_url(url, {}), "process"))) as link:
        assert link.pooled
        link.begin("begin_reading")
        link.execute("prepared_names").fetchall()
        link.roll_back()
        assert link.idle
        link.execute("prepared_names")
        monkeypatch.setattr(Connection, "_next_result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            link.sync()
        link.roll_back()
        assert not link.idle


# ---------------------------------------------------------------------------------- tenants


def _work(url: str, tenant: str) -> None:
    """Write and read as a tenant does, and find nothing that another one wrote."""
    with holdfast.open(url, tenant=tenant, durability="process") as store:
        for number in range(_TURNS):
            key = str(number % 3)
            session = store.session(key, scope="shared", metadata={"tenant": tenant})
            session.append(
                Message.user(f"word of {tenant}", id=f"{tenant}-{number}"),
                holdfast.Record("note", data=tenant),
            )
            assert {m.text for m in session.messages()} == {f"word of {tenant}"}
            assert [record.data for record in session.records()] == [tenant] * len(
                session.records()
            )
            assert {i.metadata["tenant"] for i in store.sessions(scope="shared")} == {tenant}
            if number % 4 == 3:
                assert {hit.snippet for hit in store.search("word")} <= {f"word of {tenant}"}
        assert store.stats().messages == _TURNS
        assert store.verify() == []


def _work_as_all(pipe: Pipe, url: str, tenants: list[str]) -> None:
    """Work as several tenants at once, each in a thread of its own."""
    failures: list[BaseException] = []

    def work(tenant: str) -> None:
        try:
            _work(url, tenant)
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(tenant,)) for tenant in tenants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    pipe.say("done")


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_tenants_that_share_processes_of_the_server_see_no_row_of_each_other(
    make_pooler: MakePooler,
    postgres_url: str,
    postgres_admin: psycopg.Connection,
    child: StartChild,
    mode: str,
) -> None:
    """Eight of them, in threads of two processes; in session mode each connection has its own."""
    pooler = make_pooler(mode, _SERVER_CONNECTIONS if mode == "transaction" else 60)
    url = pooler.url(postgres_url, deadline=90, pool=2)
    tenants = [f"tenant {number}" for number in range(_TENANTS)]
    children = [child(_work_as_all, url, tenants[half::2]) for half in range(2)]
    assert [each.hear() for each in children] == ["done", "done"]
    rows = postgres_admin.execute(
        "SELECT t.name, count(*) FROM holdfast.messages m "
        "JOIN holdfast.tenants t USING (tenant) GROUP BY t.name ORDER BY t.name"
    ).fetchall()
    assert rows == [(tenant.encode(), _TURNS) for tenant in tenants]


# --------------------------------------------------------------------------------- settings


def _settings(store: Store) -> dict[str, str]:
    """Return all settings that a transaction of a store has."""

    def query(snapshot: Snapshot) -> dict[str, str]:
        asked = "SELECT name, setting || coalesce(unit, '') FROM pg_settings"
        return dict(cast("Any", snapshot)._statements.execute_sql(asked, ()).fetchall())  # noqa: SLF001 - what it meets there

    return store.backend.read(query)


def test_a_transaction_has_the_settings_of_a_connection_and_leaves_none(
    make_pooler: MakePooler, postgres_url: str, open_store: OpenStore
) -> None:
    """Whichever process of the server it gets; other programs get these processes, too."""
    pooler = make_pooler(size=1)
    direct = _settings(open_store(url=postgres_url, durability="power"))
    with closing(psycopg.connect(pooler.url(postgres_url), autocommit=True)) as other:
        # The pooler itself keeps the name of a client's application.
        asked = "SELECT name, setting FROM pg_settings WHERE name <> 'application_name'"
        before = other.execute(asked).fetchall()
        pooled = _settings(open_store(url=pooler.url(postgres_url), durability="power"))
        after = other.execute(asked).fetchall()
    assert after == before
    wanted = parse_conninfo(parse_url(postgres_url, {}), "power").settings
    assert {name: pooled[name] for name in wanted} == {name: direct[name] for name in wanted}
    assert pooled["plan_cache_mode"] == "force_generic_plan"


def test_a_commit_waits_for_the_disk_whatever_the_role_has(
    make_pooler: MakePooler,
    postgres_url: str,
    postgres_admin: psycopg.Connection,
    open_store: OpenStore,
) -> None:
    """The process that a pooler lends has the settings of the role, which may be others."""
    postgres_admin.execute(f"ALTER ROLE {WORKER} SET synchronous_commit = off")
    try:
        store = open_store(url=make_pooler().url(postgres_url), durability="power")
        session = store.session("k")
        seen = []

        def operation(tx: Transaction) -> None:
            assert tx.head(number_of(session)) is not None
            asked = "SELECT current_setting('synchronous_commit')"
            seen.extend(cast("Any", tx)._statements.execute_sql(asked, ()).fetchone())  # noqa: SLF001 - as above

        store.backend.write(operation)
        assert seen == ["on"]
    finally:
        postgres_admin.execute(f"ALTER ROLE {WORKER} RESET synchronous_commit")


def test_an_append_takes_no_more_round_trips(
    url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are sent with what comes next: one with a cached head, two without, two to begin."""
    made: list[Connection] = []
    real = Connection.__init__

    def counted(link: Connection, *given: object) -> None:
        real(link, *given)  # type: ignore[arg-type]
        made.append(link)

    monkeypatch.setattr(Connection, "__init__", counted)
    session = open_store(url=url).session("k")
    counts = []
    for _ in range(5):
        before = sum(link.round_trips for link in made)
        session.append(Message.user("x"))
        counts.append(sum(link.round_trips for link in made) - before)
    assert counts[0] == 2
    assert counts[-1] == 1
    assert len(made) == 1


# --------------------------------------------------------------------- prepared statements


def _names(pooler: Pgbouncer, url: str) -> list[str]:
    """Return what is prepared on the only process behind a pooler."""
    with closing(psycopg.connect(pooler.url(url), autocommit=True)) as other:
        found = other.execute("SELECT name FROM pg_prepared_statements").fetchall()
    return [name for (name,) in found]


def _take_turns(*stores: Store) -> None:
    """Write and read in stores that get the same process of the server."""
    for number in range(6):
        for store in stores:
            store.session("k").append(Message.user(str(number)))
    for store in stores:
        assert len(store.session("k").messages()) == 6 * len(stores)


def test_clients_that_meet_on_a_process_prepare_nothing_there(
    make_pooler: MakePooler, postgres_url: str, open_store: OpenStore
) -> None:
    """This pooler passes names on; only the statement that found this out is left."""
    pooler = make_pooler(size=1)
    _take_turns(*(open_store(url=pooler.url(postgres_url)) for _ in range(3)))
    assert len(_names(pooler, postgres_url)) == 1


def test_clients_that_prepare_the_same_name_find_it_out(
    make_pooler: MakePooler,
    postgres_url: str,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pooler may stop to keep track of names: then nothing is lost, and the next try succeeds."""
    pooler = make_pooler(size=1)
    stores = [open_store(url=pooler.url(postgres_url, deadline=60)) for _ in range(3)]
    for store in stores:
        cast("Any", store.backend)._pool.clear()  # noqa: SLF001 - so that they ask again
    real = Connection._has_names_tracked  # noqa: SLF001 - what is answered wrongly
    asked = iter([True] * 4)
    monkeypatch.setattr(
        Connection, "_has_names_tracked", lambda link: next(asked, False) or real(link)
    )
    _take_turns(*stores)
    assert next(asked, None) is None


# -------------------------------------------------------------------------------- following


def test_a_follower_behind_a_pooler_polls(
    url: str, postgres_url: str, open_store: OpenStore
) -> None:
    """It needs no notification, so none is sent."""
    follower, writer = open_store(url=url), open_store(url=postgres_url)
    seen = follower.backend.wait(-1, 0)
    writer.session("k").append(Message.user("x"))
    assert follower.backend.wait(seen, LONG) != seen
    assert [m.text for m in follower.session("k").messages()] == ["x"]


def test_a_follower_listens_past_the_pooler(
    pooler: Pgbouncer, postgres_url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the URL says how to reach the server; then a notification is enough."""
    monkeypatch.setattr(PostgresBackend, "_highest_activity", lambda *_: "nothing new")
    server, port = socket_of(postgres_url)
    place = f"{server.parent}:{port}"
    follower = open_store(url=pooler.url(postgres_url, listen=place))
    seen = follower.backend.wait(-1, 0)
    open_store(url=pooler.url(postgres_url)).session("k").append(Message.user("x"))
    assert follower.backend.wait(seen, LONG) != seen


# ----------------------------------------------------------------------------------- faults


def test_a_pooler_that_dies_in_the_middle_of_appends_loses_and_doubles_none(
    pooler: Pgbouncer, url: str, postgres_url: str, open_store: OpenStore
) -> None:
    """Killed again and again; each append is stored once, and in order."""
    failures: list[BaseException] = []
    progress = threading.Semaphore(0)
    count = 40

    def work(session: Session, key: str) -> None:
        try:
            for number in range(count):
                session.append(Message.user(str(number), id=f"{key} {number}"))
                progress.release()
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)
            progress.release(count)

    sessions = {key: open_store(url=url).session(key) for key in "abc"}
    threads = [
        threading.Thread(target=work, args=(session, key)) for key, session in sessions.items()
    ]
    for thread in threads:
        thread.start()
    for _ in range(4):
        for _ in range(20):
            assert progress.acquire(timeout=2 * LONG)
        pooler.kill()
        pooler.start()
    for thread in threads:
        thread.join(4 * LONG)
    assert failures == []
    store = open_store(url=postgres_url)
    for key in "abc":
        texts = [m.text for m in store.session(key).messages()]
        assert texts == [str(number) for number in range(count)]
    assert store.verify() == []


def test_a_process_that_serves_others_is_not_ended(
    make_pooler: MakePooler, postgres_url: str, open_store: OpenStore
) -> None:
    """The answer to a commit is lost; the process that gave it has another transaction by now."""
    pooler = make_pooler(size=1)
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(Path(folder), pooler.socket)
        url = through(proxy, postgres_url, deadline=60)
        session = open_store(url=url).session("k")
        other = psycopg.connect(pooler.url(postgres_url))
        pid = None

        def take_it() -> None:
            nonlocal pid
            pid = other.execute("SELECT pg_backend_pid()").fetchone()
            threading.Timer(0.5, other.rollback).start()

        for number in range(5):
            session.append(Message.user(str(number)))
        proxy.failures.append("after the commit")
        proxy.meanwhile = take_it
        session.append(Message.user("5"))
        proxy.meanwhile = None
        assert other.execute("SELECT pg_backend_pid()").fetchone() == pid
        other.close()
        assert [m.text for m in session.messages()] == [str(number) for number in range(6)]
        proxy.stop()


def test_what_a_pooler_may_still_send_on_is_not_said_to_be_lost(
    proxy: Proxy, url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the server when its writer has given up; with its id it is stored once."""
    Pauses(monkeypatch)
    where = through(proxy, url, deadline=4, answer=0.5, connect=30, idle=60)
    session = open_store(url=where).session("k")
    for number in range(5):
        session.append(Message.user(str(number)))
    proxy.failures.append("late")
    proxy.failures.extend(["before the commit"] * 1000)
    message = Message.user("5", id="once")
    with pytest.raises(OutcomeUnknown):
        session.append(message)
    proxy.failures.clear()
    session.append(message)
    assert [m.text for m in session.messages()] == [str(number) for number in range(6)]


def test_a_pooler_that_allows_no_transactions_is_refused_at_opening(
    make_pooler: MakePooler, postgres_url: str
) -> None:
    """It says what is wrong, and what to do."""
    url = make_pooler("statement").url(postgres_url)
    with pytest.raises(StoreUnavailable, match="allows no transactions") as raised:
        holdfast.open(url)
    assert "pool_mode" in str(raised.value)


# -------------------------------------------------------------------------------------- doctor


def test_doctor_names_the_pooler(
    pooler: Pgbouncer, postgres_url: str, open_store: OpenStore
) -> None:
    """And what that means for statements and followers."""

    def check(url: str) -> str:
        checks = {check.name: check for check in open_store(url=url).backend.health()}
        assert checks["pooler"].ok
        return checks["pooler"].value

    server, port = socket_of(postgres_url)
    assert check(postgres_url) == "none"
    found = check(pooler.url(postgres_url))
    assert found == "in between; statements are parsed each time; followers poll"
    found = check(pooler.url(postgres_url, listen=f"{server.parent}:{port}"))
    assert found.endswith("followers listen past it")


# --------------------------------------------------------------------------------- conformance


class TestBehindAPooler(
    BackendProtocolTests,
    AppendTests,
    RetryTests,
    FollowTests,
    LeaseTests,
    StoreRecordTests,
    TenantTests,
):
    """On two processes of the server: what takes locks, times, listeners and retries."""

    @pytest.fixture(scope="class")
    @classmethod
    def _pooler(cls, postgres_url: str) -> Iterator[Pgbouncer]:
        server, port = socket_of(postgres_url)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            found = Pgbouncer(Path(folder), server, port, "transaction", 2)
            yield found
            found.kill()

    @pytest.fixture(autouse=True)
    def _empty(
        self, postgres_admin: psycopg.Connection, postgres_url: str, _pooler: Pgbouncer
    ) -> None:
        wipe(postgres_admin)
        self.url = _pooler.url(postgres_url, lease=600, deadline=60)

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        return PostgresBackend(
            parse_url(self.url, {}),
            tenant=tenant,
            readonly=readonly,
            clock=clock,
            durability="process",
        )
