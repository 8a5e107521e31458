"""Tenants are isolated by the server itself, whatever condition a statement lacks."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast import File, Message, Record, Store, Usage
from holdfast.errors import SessionNotFound
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.protocol import Snapshot
from holdfast.url import parse_url
from tests.postgres.conftest import OpenStore
from tests.store_urls import with_options

_TABLES = (
    "tenants", "sessions", "heads", "branches", "messages", "turns", "tools", "drafts", "queue",
    "queue_blobs", "usage", "blobs", "blob_uses", "records", "record_blobs", "store_records",
    "store_record_blobs", "metadata_marks",
)  # fmt: skip
_A, _B = Tenant("A", "holdfast"), Tenant("B", "holdfast")


@pytest.fixture
def link(url: str, open_store: OpenStore) -> Iterator[Connection]:
    """A connection as the pool has them, in a store with something of A in every table."""
    store = open_store(tenant="A")
    session = store.session("k", metadata={"user": "42"})
    turn = session.turn(run_id="r")
    turn.__enter__()
    turn.tool_started("c")
    turn.assistant("x" * 100_000, usage=Usage(1))
    files = {"f": File(data=b"x" * 2_000)}
    session.append(Record("k", files=files), Record("k", scope=None, files=files))
    reply = turn.stream()
    reply.write("it is")
    reply.flush()
    session.enqueue("waiting " * 10_000)
    found = Connection(parse_conninfo(parse_url(url, {}), "process"))
    assert {t for t in _TABLES if not _count(found, t, _A)} == set()
    yield found
    found.close()


def _count(link: Connection, table: str, whose: Tenant) -> int:
    link.begin("begin_reading")
    link.execute("enter_reading", (whose.mark,))
    row = link.execute_sql(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - a name of ours
    link.roll_back()
    return 0 if row is None else int(row[0])


@pytest.mark.parametrize("table", _TABLES)
def test_a_statement_without_a_tenant_sees_nothing_of_others(link: Connection, table: str) -> None:
    """Even a statement without a condition; and without a tenant there is an error."""
    assert _count(link, table, _B) == 0
    for _ in range(2):  # before a tenant was set, and after
        link.begin("begin_reading")
        with pytest.raises(psycopg.Error):
            link.execute_sql(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - as above
        link.roll_back()
        _count(link, table, _A)


def test_every_table_forces_its_policy(postgres_admin: psycopg.Connection) -> None:
    """On its owner as well; a table that is new must not be forgotten."""
    rows = postgres_admin.execute(
        "SELECT relname, relrowsecurity AND relforcerowsecurity FROM pg_class "
        "WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r' ORDER BY relname"
    ).fetchall()
    # The index is read through a view of the owner's with the same condition (test_search.py).
    assert {name for name, forced in rows if not forced} == {"meta", "indexed_rows"}
    assert {name for name, forced in rows if forced} >= set(_TABLES)


def test_nothing_is_written_for_another_tenant(link: Connection) -> None:
    """A row of another tenant is refused, not only hidden."""
    link.begin("begin_writing")
    link.execute("enter_writing", (_B.mark, _B.write_lock, _B.schema_lock))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        link.execute("add_tenant", (_A.mark, b"A")).fetchall()
    link.roll_back()


class _Thrown(Exception):
    """Thrown in the middle of everything."""


def _throw(tx: Snapshot) -> None:
    tx.head(1)
    raise _Thrown


def test_exceptions_in_between_leak_nothing(url: str, open_store: OpenStore) -> None:
    """Two tenants with the same names, errors between all that they do: each sees its own."""
    stores = {name: open_store(tenant=name, url=with_options(url, pool=2)) for name in "AB"}
    for name, store in stores.items():
        store.session("k", title="t").append(Message.user(f"said by {name}"))
    operations: list[Callable[[Store], object]] = [
        lambda store: [m.text for m in store.session("k").messages()],
        lambda store: [hit.snippet for hit in store.search("said")],
        lambda store: [info.preview for info in store.sessions()],
        lambda store: store.get("t").info().preview,
        lambda store: store.stats().messages,
        lambda store: len(store.verify()),
    ]
    for operation in operations:
        for name, store in stores.items():
            with pytest.raises(_Thrown):
                store.backend.write(_throw)
            with pytest.raises(_Thrown):
                store.backend.read(_throw)
            other = "B" if name == "A" else "A"
            assert f"by {other}" not in str(operation(store))
            with pytest.raises(SessionNotFound):
                store.get(stores[other].session("k").id)
