"""Activity numbers come from a sequence of each tenant, which no role may use or see."""

import threading

import msgspec
import psycopg
import pytest

from holdfast import Message, Session, Store
from holdfast.session import number_of
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.protocol import Transaction
from holdfast.testing.conformance.fixtures import drain
from tests.postgres.conftest import OpenStore

_LONG = 30.0
_MANY = 100
_ATTACK = """
CREATE TEMP TABLE bait (tenant text);
CREATE TRIGGER bait AFTER DELETE ON bait FOR EACH ROW EXECUTE FUNCTION holdfast.keep_numbers();
"""


def _sequence(tenant: str) -> str:
    return f"holdfast.activity_{Tenant(tenant, 'holdfast').mark.hex}"


def _put_all(tx: Transaction, sessions: list[Session]) -> None:
    for session in sessions:
        head = tx.head(number_of(session))
        assert head is not None
        tx.put_head(msgspec.structs.replace(head, turns=head.turns))
    tx.usage(session=number_of(sessions[0]))  # A question: what was written before is sent with it.


def test_a_write_to_very_many_sessions_holds_up_no_other(open_store: OpenStore) -> None:
    """Neither for a number nor in an index; followers wait for it, so that they miss nothing."""
    store: Store = open_store()
    sessions = [store.session(f"s{number}") for number in range(_MANY)]
    other = store.session("other")
    since = drain(store.follow())[-1].number
    taken, done = threading.Event(), threading.Event()

    def write(tx: Transaction) -> None:
        _put_all(tx, sessions)
        taken.set()
        assert done.wait(_LONG)

    thread = threading.Thread(target=lambda: store.backend.write(write))
    thread.start()
    try:
        assert taken.wait(_LONG)
        other.append(Message.user("at once"))
        assert not done.is_set()
        assert drain(store.follow(since)) == []
    finally:
        done.set()
        thread.join(_LONG)
    told = [item.number for item in drain(store.follow(since))]
    assert len(told) == _MANY + 1
    assert told == sorted(set(told))


def test_numbers_are_kept_from_whoever_writes(open_store: OpenStore, url: str) -> None:
    """The worker's role takes numbers of the tenant that it has set, and can do nothing else."""
    open_store(tenant="A").session("k")
    open_store(tenant="B").session("k")
    with psycopg.connect(url, autocommit=True) as worker:
        for text in (
            f"TABLE {_sequence('A')}",
            f"SELECT nextval('{_sequence('A')}')",
            f"SELECT setval('{_sequence('A')}', 1)",
            f"DROP SEQUENCE {_sequence('A')}",
            _ATTACK,
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(text)
        seen = worker.execute(
            "SELECT last_value FROM pg_sequences WHERE sequencename LIKE 'activity%'"
        ).fetchall()
        assert set(seen) == {(None,)}


def test_a_sequence_of_somebody_elses_making_is_not_used(open_store: OpenStore, url: str) -> None:
    """One that lies nearer, in the caller's own place for tables, would give any number."""
    store = open_store()
    store.session("k")
    name = _sequence("default").partition(".")[2]
    mark = str(Tenant("default", "holdfast").mark)
    with psycopg.connect(url) as worker:
        worker.execute(f"CREATE TEMP SEQUENCE {name} START 1000000")
        worker.execute("SELECT set_config('holdfast.tenant', %s, true)", (mark,))
        worker.execute("SELECT set_config('search_path', 'pg_temp', true)")
        row = worker.execute("SELECT holdfast.take_activity(NULL)").fetchone()
    assert row is not None
    assert row[0] < 1000


def test_a_tenants_sequence_goes_with_it(
    open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """Nothing is left of a tenant whose rows are gone."""
    open_store(tenant="gone").session("k")
    found = "SELECT to_regclass(%s) IS NOT NULL"
    assert postgres_admin.execute(found, (_sequence("gone"),)).fetchone() == (True,)
    mark = Tenant("gone", "holdfast").mark
    postgres_admin.execute("DELETE FROM holdfast.tenants WHERE tenant = %s", (mark,))
    assert postgres_admin.execute(found, (_sequence("gone"),)).fetchone() == (False,)


def test_numbers_go_on_where_rows_were_put_back(
    open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """A tenant whose row comes back behind its sessions' gets no number that one of them has."""
    store = open_store()
    for key in "abc":
        store.session(key).append(Message.user("x"))
    since = drain(store.follow())[-1].number
    postgres_admin.execute("CREATE TEMP TABLE kept AS SELECT * FROM holdfast.tenants")
    postgres_admin.execute("DELETE FROM holdfast.tenants")
    postgres_admin.execute("INSERT INTO holdfast.tenants SELECT * FROM kept")
    postgres_admin.execute("DROP TABLE kept")
    store.session("a").append(Message.user("y"))
    assert [item.number for item in drain(store.follow(since))] == [since + 1]
    assert [info.key for info in store.sessions()] == ["a", "c", "b"]
