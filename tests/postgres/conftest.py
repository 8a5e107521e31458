"""Stores on PostgreSQL, emptied for each test, and a proxy before the server."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
import pytest

import holdfast
from holdfast.storage.postgres.conninfo import ConnInfo
from holdfast.storage.postgres.snapshot import Tenant
from tests.concurrency.children import Child
from tests.postgres.proxy import Proxy
from tests.servers import OWNER, OwnServer, wipe

OpenStore = Callable[..., holdfast.Store]
StartChild = Callable[..., Child]
WHOSE = Tenant("default", "holdfast")


def apply_settings(connection: psycopg.Connection, conninfo: ConnInfo, **others: str) -> None:
    """Let a connection of the driver have the settings of a store's, and find its tables."""
    for name, value in {**conninfo.settings, "search_path": conninfo.schema, **others}.items():
        psycopg.ClientCursor(connection).execute("SELECT set_config(%s, %s, false)", (name, value))


@pytest.fixture
def url(postgres_admin: psycopg.Connection, postgres_url: str) -> str:
    """An empty store, for a role that owns nothing."""
    wipe(postgres_admin)
    return postgres_url


@pytest.fixture
def open_store(url: str) -> Iterator[OpenStore]:
    """Open the store; it is closed when the test is over."""
    opened: list[holdfast.Store] = []

    def start(**options: object) -> holdfast.Store:
        where = str(options.pop("url", url))
        durability = options.pop("durability", "process")
        opened.append(holdfast.open(where, durability=durability, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for store in opened:
        store.close()


@pytest.fixture
def outsider(url: str) -> Iterator[psycopg.Connection]:
    """A connection that receives notifications without holding the listener lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'LISTEN "{WHOSE.channel}"')
        yield connection


def told(outsider: psycopg.Connection) -> int:
    """Count the notifications since the last call; this wakes listeners, too."""
    outsider.execute(f"NOTIFY \"{WHOSE.channel}\", 'the end'")
    for number, notice in enumerate(outsider.notifies(timeout=30)):
        if notice.payload == "the end":
            return number
    raise AssertionError("not even the end was heard")


@pytest.fixture
def nobody_ends(postgres_admin: psycopg.Connection) -> Iterator[None]:
    """Let roles end no connection, not even their own."""
    name = "pg_terminate_backend(integer, bigint)"
    postgres_admin.execute(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")
    yield
    postgres_admin.execute(f"GRANT EXECUTE ON FUNCTION {name} TO PUBLIC")


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """A proxy before the server; paths of sockets are short, so it is not in the test's folder."""
    query = dict(parse_qsl(urlsplit(url).query))
    if "host" not in query:
        pytest.skip("needs a server that listens on a socket of this machine")
    with tempfile.TemporaryDirectory() as folder:
        server = Path(query["host"]) / f".s.PGSQL.{query.get('port', 5432)}"
        found = Proxy(Path(folder), server)
        yield found
        found.stop()


def through(proxy: Proxy, url: str, **options: object) -> str:
    """Return the URL of a store behind a proxy."""
    parts = urlsplit(url)
    query = {
        **dict(parse_qsl(parts.query)),
        "host": str(proxy.folder),
        "port": str(proxy.port),
        **{name: str(value) for name, value in options.items()},
    }
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))


@pytest.fixture
def child() -> Iterator[StartChild]:
    """Start a process that runs a function."""
    started: list[Child] = []

    def start(target: Callable[..., None], *arguments: object, stoppable: bool = False) -> Child:
        started.append(Child(target, *arguments, stoppable=stoppable))
        return started[-1]

    yield start
    for each in started:
        each.clear_away()


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Start a server with a role that may own a store, and end it."""
    server = OwnServer()
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {OWNER} LOGIN")
        admin.execute(f"GRANT CREATE ON DATABASE postgres TO {OWNER}")
    yield server
    server.end()


@pytest.fixture
def own() -> Iterator[OwnServer]:
    """A server that may be killed."""
    with own_server() as server:
        yield server
