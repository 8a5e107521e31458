"""What is checked before a store on a server is used, and what is refused."""

import threading
from collections.abc import Iterator

import msgspec
import psycopg
import pytest

import holdfast
from holdfast.errors import SchemaTooNew, StoreUnavailable, UnknownBackend
from holdfast.session import number_of
from holdfast.storage.postgres import migrations, server_checks
from holdfast.storage.postgres.backend import PostgresBackend
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.transaction import PostgresTransaction
from holdfast.storage.protocol import Transaction
from holdfast.url import parse_url
from holdfast.values import JSON
from tests.postgres.conftest import OpenStore
from tests.postgres.older_stores import make_older
from tests.servers import OWNER, WORKER, Postgres, as_user
from tests.store_urls import with_options

_NEXT = max(migrations.load()) + 1


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> str:
    """A database without a store, for a superuser."""
    return postgres.bare_database("bare", f"OWNER {OWNER}")


@pytest.fixture(scope="module")
def bare(database: str) -> str:
    """The same for its owner."""
    return as_user(database, OWNER)


@pytest.fixture
def schema(bare: str) -> Iterator[str]:
    """The URL of a schema where a store may be created; it is dropped afterwards."""
    yield with_options(bare, schema="one")
    with psycopg.connect(bare, autocommit=True) as owner:
        owner.execute("DROP SCHEMA IF EXISTS one CASCADE")


def test_a_store_is_made_where_there_is_none(schema: str) -> None:
    """By a role that may; afterwards it is there for all."""
    with holdfast.open(schema) as store:
        store.session("k").append(holdfast.Message.user("a"))
    with holdfast.open(schema, readonly=True) as store:
        assert [m.text for m in store.session("k").messages()] == ["a"]


def test_reading_makes_nothing(schema: str, bare: str) -> None:
    """A missing store is not created by reading."""
    with pytest.raises(StoreUnavailable, match="has no store"):
        holdfast.open(schema, readonly=True)
    with psycopg.connect(bare) as owner:
        found = owner.execute("SELECT to_regnamespace('one')").fetchone()
    assert found == (None,)


def test_a_role_that_may_not_make_a_store_is_told_so(bare: str) -> None:
    """And nothing is left behind."""
    with pytest.raises(StoreUnavailable, match="has the grants"):
        holdfast.open(with_options(as_user(bare, WORKER), schema="two"))


def test_a_newer_format_is_refused_untouched(schema: str) -> None:
    """Before anything is written: two versions of the program at once are safe."""
    holdfast.open(schema).close()
    newer = {**migrations.load(), _NEXT: "CREATE TABLE news (n integer);"}
    PostgresBackend(parse_url(schema, {}), steps=newer).close()
    with pytest.raises(SchemaTooNew, match=f"format {_NEXT}"):
        holdfast.open(schema)
    with pytest.raises(SchemaTooNew):
        holdfast.open(schema, readonly=True)


def test_a_store_of_an_older_format_is_searched_by_all_that_it_has(
    schema: str, database: str
) -> None:
    """Metadata, keys and ids of messages, of every tenant, whatever text is in them."""
    odd: dict[str, JSON] = {"odd \ud800": "\0", "n": 1, "deep": {"b": [1.0], "a": True}}
    key = "k\ud800" + "é" * 200
    for tenant in ("one", "two"):
        with holdfast.open(schema, tenant=tenant) as store:
            store.session(key, metadata=odd).append(holdfast.Message.user("x", id=tenant))
            store.session("bare")
    make_older(schema, database, "one", steps=4)
    for tenant in ("one", "two"):
        with holdfast.open(schema, tenant=tenant) as store:
            for name, value in odd.items():
                assert [info.key for info in store.sessions(metadata={name: value})] == [key]
            assert [info.key for info in store.sessions(key_prefix=key[:-1])] == [key]
            assert store.message(tenant)[0].key == key
            assert store.verify() == []


def test_a_store_whose_tables_were_changed_is_left_alone(schema: str) -> None:
    """In a process that has it open the next write is refused, and nothing of it is stored."""
    newer = {**migrations.load(), _NEXT: "CREATE TABLE news (n integer);"}
    with holdfast.open(schema) as store:
        session = store.session("k")
        session.append(holdfast.Message.user("before"))
        later = PostgresBackend(parse_url(schema, {}), steps=newer)
        for write in (
            lambda: session.append(holdfast.Message.user("behind")),
            store.create,
            lambda: store.purge("k"),
            session.messages,
        ):
            with pytest.raises(SchemaTooNew, match="nothing was stored"):
                write()
        with holdfast.Store(later) as newest:
            assert [m.text for m in newest.session("k").messages()] == ["before"]
            assert len(newest.sessions()) == 1


def test_nobody_writes_while_the_tables_are_changed(schema: str) -> None:
    """A migration waits for writers: they are done before it, or refused after it."""
    newer = {**migrations.load(), _NEXT: "CREATE TABLE news (n integer);"}
    seen: list[object] = []
    with holdfast.open(schema) as store:
        session = store.session("k")
        begun, never = threading.Event(), threading.Event()

        def verb(tx: Transaction) -> None:
            assert isinstance(tx, PostgresTransaction)
            head = tx.head(number_of(session))
            assert head is not None
            begun.set()
            never.wait(0.4)  # time enough to change the tables, without the lock
            seen.append(tx._statements.execute_sql("SELECT to_regclass('one.news')", ()).fetchone())  # noqa: SLF001 - what it would meet
            tx.put_head(head)

        writer = threading.Thread(target=lambda: store.backend.write(verb))
        writer.start()
        assert begun.wait(30)
        PostgresBackend(parse_url(schema, {}), steps=newer).close()
        writer.join(30)
        assert seen == [(None,)]
        with pytest.raises(SchemaTooNew):
            session.append(holdfast.Message.user("behind"))


def test_a_step_that_fails_leaves_the_store_as_it_was(schema: str) -> None:
    """All steps are taken together or none."""
    with holdfast.open(schema) as store:
        store.session("k").append(holdfast.Message.user("a"))
    bad = {
        **migrations.load(),
        _NEXT: "CREATE TABLE news (n integer);",
        _NEXT + 1: "SELECT nonsense;",
    }
    with pytest.raises(holdfast.HoldfastError, match="brought up to date"):
        PostgresBackend(parse_url(schema, {}), steps=bad)
    with holdfast.open(schema) as store:
        assert [m.text for m in store.session("k").messages()] == ["a"]


def test_what_the_server_is_like_is_reported(open_store: OpenStore) -> None:
    """`doctor` shows it, and what is wrong has a hint."""
    checks = {check.name: check for check in open_store().backend.health()}
    assert checks["backend"].value == "postgresql"
    assert checks["role"].ok
    assert checks["fsync"].ok
    assert not checks["standby"].value.startswith("yes")


def test_a_superuser_is_reported(postgres_database: str) -> None:
    """Row-level security does not hold for it."""
    with holdfast.open(postgres_database) as store:
        checks = {check.name: check for check in store.backend.health()}
    assert not checks["role"].ok


_SOUND = server_checks.ServerInfo(
    160000, "16.0", "on", "on", "on", is_standby=False, bypasses_rls=False, role="r"
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fsync": "off"}, "fsync = off"),
        ({"full_page_writes": "off"}, "full_page_writes = off"),
        ({"is_standby": True}, "is a standby"),
        ({"version_number": 140000, "version": "14.9"}, "needs 15 or newer"),
    ],
)
def test_a_server_that_would_break_the_promise_is_refused(
    changes: dict[str, object], said: str
) -> None:
    """With what to do; one that is sound is not."""
    where = parse_conninfo(parse_url("postgresql://h/d", {}), "power")
    server_checks.require_supported(_SOUND, where, readonly=False)
    unfit = server_checks.ServerInfo(
        **{**{f: getattr(_SOUND, f) for f in _SOUND.__struct_fields__}, **changes}
    )
    with pytest.raises(StoreUnavailable, match=said):
        server_checks.require_supported(unfit, where, readonly=False)


def test_settings_of_a_url(postgres_url: str) -> None:
    """Ours are taken, the driver's go on, and a password is never shown."""
    url = "postgresql://me:secret@h:1/d?lease=5&deadline=2&pool=3&schema=x&sslmode=disable"
    found = parse_conninfo(parse_url(url, {}), "power")
    assert (found.schema, found.pool, found.deadline, found.answer) == ("x", 3, 2.0, 1.0)
    assert found.url == "postgresql://me:secret@h:1/d?sslmode=disable"
    assert found.redacted_url == "postgresql://me@h:1/d?sslmode=disable"
    assert found.settings["statement_timeout"] == "60000"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:nowhere",
        "postgresql://h/d?deadline=soon",
        "postgresql://h/d?pool=none",
        "postgresql://h/d?schema=a b",
        "postgresql://h/d?schema=X",
        "postgresql://h/d?answer=-1",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    """Before any connection is made."""
    with pytest.raises(UnknownBackend):
        holdfast.open(url)


def test_nobody_listens_there() -> None:
    """It is said at once, in our words."""
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        holdfast.open("postgresql://nobody@127.0.0.1:1/nothing?deadline=1")


def test_settings_that_did_not_arrive_are_noticed(url: str) -> None:
    """A pooler in between may drop the settings of a connection: then no commit waits."""
    asked = parse_conninfo(parse_url(url, {}), "power")
    link = Connection(asked)
    found = server_checks.read_server_info(link)
    link.close()
    server_checks.require_supported(found, asked, readonly=False)
    dropped = msgspec.structs.replace(found, synchronous_commit="off")
    with pytest.raises(StoreUnavailable, match="synchronous_commit = off"):
        server_checks.require_supported(dropped, asked, readonly=False)
