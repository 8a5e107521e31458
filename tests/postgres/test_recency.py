"""Activity numbers without a sequence, and the recency of sessions, by which they are listed.

A number is taken once, and a session that stays the newest keeps its recency: between the two
numbers of a session nobody else has one.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import msgspec
import psycopg
import pytest

import holdfast
from holdfast import Message, Session, Store
from holdfast.session import number_of
from holdfast.storage.protocol import Transaction
from holdfast.testing.conformance.fixtures import drain
from tests.postgres.conftest import OpenStore
from tests.postgres.older_stores import make_older
from tests.postgres.pauses import LONG, touch, under_way
from tests.servers import OWNER, Postgres, as_user
from tests.store_urls import with_options

_MANY = 150  # numbers: more than two blocks of them
_WRITERS, _ROUNDS = 8, 15
_INTERVALS = "SELECT recency, activity FROM holdfast.heads ORDER BY recency"
_UPDATES = """
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE schemaname = 'holdfast' AND relname = %s
"""


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


def _told(store: Store, since: int) -> list[tuple[int, str | None]]:
    return [(item.number, store.get(item.session_id).key) for item in drain(store.follow(since))]


def _listed(store: Store) -> list[str | None]:
    return [info.key for info in store.sessions()]


def test_a_session_that_stays_the_newest_is_not_moved_in_lists(
    store: Store, postgres_admin: psycopg.Connection
) -> None:
    """Its activity grows; the row by which it is listed is the same one."""
    other, session = store.session("other"), store.session("k")
    row = "SELECT ctid::text, xmin::text FROM holdfast.recent WHERE session = %s"
    before = postgres_admin.execute(row, (number_of(session),)).fetchone()
    since = drain(store.follow())[-1].number
    for number in range(5):
        session.append(Message.user(str(number)))
        assert [key for _, key in _told(store, since)] == ["k"]
        since = _told(store, since)[-1][0]
    assert postgres_admin.execute(row, (number_of(session),)).fetchone() == before
    other.append(Message.user("x"))
    session.append(Message.user("y"))
    assert postgres_admin.execute(row, (number_of(session),)).fetchone() != before
    assert [key for _, key in _told(store, since)] == ["other", "k"]
    assert _listed(store) == ["k", "other"]


def test_heads_are_updated_in_place(
    open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """No index has a column that changes: an append adds no entry for its head."""
    store = open_store()
    sessions = [store.session(key) for key in "ab"]
    store.close()
    before = _updates(postgres_admin, "heads", 0)
    store = open_store()
    sessions = [store.session(key) for key in "ab"]
    for number in range(10):
        for session in sessions:
            session.append(Message.user(str(number)))
    store.close()
    after = _updates(postgres_admin, "heads", before[0] + 20)
    assert after[1] - before[1] == after[0] - before[0] == 20


def _updates(admin: psycopg.Connection, table: str, wanted: int) -> tuple[int, int]:
    """How many rows were updated, and how many in place; connections report it when they end."""
    until = time.monotonic() + 60
    while True:
        row = admin.execute(_UPDATES, (table,)).fetchone()
        assert row is not None
        if row[0] >= wanted and not admin.execute(_CONNECTED).fetchall():
            return row
        assert time.monotonic() < until, row
        time.sleep(0.02)


_CONNECTED = """
SELECT FROM pg_stat_activity
WHERE application_name = 'holdfast' AND datname = current_database()
"""


def test_a_number_between_the_two_of_a_session_moves_it(store: Store) -> None:
    """Or a follower that has heard of the number in between would not hear of the session."""
    newest, between = store.session("newest"), store.session("between")
    newest.append(Message.user("x"))
    since = drain(store.follow())[-1].number
    with under_way(store, touch(between)):
        newest.append(Message.user("y"))
        assert _listed(store) == ["newest", "between"]
    told = _told(store, since)
    assert [key for _, key in told] == ["between", "newest"]
    assert _told(store, told[0][0]) == told[1:]


def test_the_number_of_a_session_never_falls(store: Store, open_store: OpenStore) -> None:
    """Another writer may have taken a higher one since this transaction took its first."""
    first, second = (store.session(key) for key in ("first", "second"))
    there = open_store().get(second.id)
    numbers: list[int] = []

    def write(tx: Transaction) -> None:
        touch(first)(tx)
        there.append(Message.user("x"))
        for _ in range(2):
            head = tx.head(number_of(second))
            assert head is not None
            numbers.append(head.activity)
            touch(second)(tx)

    since = drain(store.follow())[-1].number
    store.backend.write(write)
    told = _told(store, since)
    assert [key for _, key in told] == ["first", "second"]
    assert since < told[0][0] < numbers[0] < told[1][0]
    assert _listed(store) == ["second", "first"]


@pytest.mark.parametrize("purged", ["older", "newest"])
def test_a_number_of_a_purged_session_is_not_taken_again(store: Store, purged: str) -> None:
    sessions = {key: store.session(key) for key in ("older", "newest")}
    since = drain(store.follow())[-1].number
    store.purge(sessions[purged].id)
    (left,) = sessions.keys() - {purged}
    sessions[left].append(Message.user("x"))
    assert [key for _, key in _told(store, since)] == [left]


def test_writers_at_once_take_each_number_once(
    store: Store, postgres_admin: psycopg.Connection
) -> None:
    """Whoever writes to what: no session has a number between the two of another one."""
    keys = [f"k{number}" for number in range(5)]
    sessions = {key: store.session(key) for key in keys}

    def write(writer: int) -> None:
        for number in range(_ROUNDS):
            for _ in range(1 + (writer + number) % 3):
                sessions[keys[(writer * number) % len(keys)]].append(Message.user("x"))

    heard: list[int] = []
    with ThreadPoolExecutor(_WRITERS + 1) as pool:
        done = [pool.submit(write, writer) for writer in range(_WRITERS)]
        follower = store.follow()
        while not all(one.done() for one in done):
            heard += [item.number for item in drain(follower)]
        for one in done:
            one.result()
    heard += [item.number for item in drain(follower)]
    assert heard == sorted(set(heard))
    intervals = postgres_admin.execute(_INTERVALS).fetchall()
    assert all(first[1] < second[0] for first, second in pairwise(intervals)), intervals
    assert heard[-1] == intervals[-1][1]
    listed = postgres_admin.execute("SELECT recency FROM holdfast.recent ORDER BY recency")
    assert [row[0] for row in listed.fetchall()] == [recency for recency, _ in intervals]


def _put_all(tx: Transaction, sessions: list[Session]) -> None:
    for session in sessions:
        head = tx.head(number_of(session))
        assert head is not None
        tx.put_head(msgspec.structs.replace(head, turns=head.turns))
    tx.usage(session=number_of(sessions[0]))  # A question: what was written before is sent with it.


def test_a_write_to_very_many_sessions_holds_up_no_other(
    store: Store, postgres_admin: psycopg.Connection
) -> None:
    """It has a lock for each 64 numbers; followers wait for it, so that they miss nothing."""
    sessions = [store.session(f"s{number}") for number in range(_MANY)]
    other = store.session("other")
    since = drain(store.follow())[-1].number
    taken, done = threading.Event(), threading.Event()

    def write(tx: Transaction) -> None:
        _put_all(tx, sessions)
        taken.set()
        assert done.wait(LONG)

    thread = threading.Thread(target=lambda: store.backend.write(write))
    thread.start()
    try:
        assert taken.wait(LONG)
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
        assert postgres_admin.execute(locks).fetchone() == (3,)
        other.append(Message.user("at once"))
        assert not done.is_set()
        assert drain(store.follow(since)) == []
    finally:
        done.set()
        thread.join(LONG)
    told = [item.number for item in drain(store.follow(since))]
    assert len(told) == _MANY + 1
    assert told == sorted(set(told))


def test_a_tenant_needs_no_definition_of_its_own(
    open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """A first write creates no sequence and no other relation."""
    count = "SELECT count(*) FROM pg_class"
    before = postgres_admin.execute(count).fetchone()
    for tenant in "ABC":
        open_store(tenant=tenant).session("k").append(Message.user("x"))
    assert postgres_admin.execute(count).fetchone() == before


def test_changes_of_a_session_show_in_lists(store: Store) -> None:
    """What lists are filtered by is stored beside the recency, too."""
    for key in "ab":
        store.session(key, scope="before", agent="x", cwd="/").append(Message.user("x"))
    b = store.session("b").id
    filters: tuple[dict[str, Any], ...] = ({"scope": "before"}, {"agent": "x"}, {"cwd": "/"}, {})
    store.trash("b")
    for wanted in filters:
        assert [info.key for info in store.sessions(**wanted)] == ["a"]
    assert [info.key for info in store.sessions(trashed=True)] == ["b"]
    store.restore(b)
    for wanted in filters:
        assert [info.key for info in store.sessions(**wanted)] == ["b", "a"]
    assert store.verify() == []


@pytest.fixture
def before(postgres: Postgres) -> str:
    """A store with a sequence of numbers for each tenant, for its owner."""
    database = postgres.bare_database("sequences", f"OWNER {OWNER}")
    url = with_options(as_user(database, OWNER), schema="one")
    for tenant in ("first", "second"):
        with holdfast.open(url, tenant=tenant) as store:
            for key in "abc":
                store.session(key, scope=key).append(Message.user(tenant))
            store.trash("b")
            store.session("a").append(Message.user("again"))
    make_older(url, database, "one", steps=5)
    return url


def test_a_store_of_before_is_listed_and_followed_as_it_was(before: str) -> None:
    """All tenants' sessions are in order, and numbers go on after the highest one."""
    for tenant in ("first", "second"):
        with holdfast.open(before, tenant=tenant) as store:
            assert _listed(store) == ["a", "c"]
            assert [info.key for info in store.sessions(trashed=True)] == ["b"]
            assert [info.key for info in store.sessions(scope="c")] == ["c"]
            assert [m.text for m in store.session("a").messages()] == [tenant, "again"]
            newest = drain(store.follow())[-1]
            assert store.get(newest.session_id).key == "a"
            store.purge("a")
            store.session("c").append(Message.user("and on"))
            assert [key for _, key in _told(store, newest.number)] == ["c"]
            assert store.verify() == []
