"""Records on a server: what is compared there, what is locked, and what no tenant sees of another.

What every store promises of records is in the conformance suite.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import psycopg
import pytest
from psycopg import sql

import holdfast
from holdfast import File, Message, Record, Session, Store, codec
from holdfast.errors import Conflict, IdConflict, SchemaTooNew
from holdfast.operations.append import append
from holdfast.operations.records import put_store_record
from holdfast.session import number_of
from holdfast.storage.postgres.connection import Connection, PendingResult
from holdfast.storage.postgres.statements import SQL
from holdfast.storage.protocol import Operation, Transaction
from tests.postgres.conftest import OpenStore, through
from tests.postgres.older_stores import make_older
from tests.postgres.pauses import LONG, await_waiting, in_a_thread, under_way
from tests.postgres.proxy import Failure, Proxy
from tests.servers import OWNER, Postgres, as_user
from tests.store_urls import with_options

_TABLES = ("records", "record_blobs", "store_records", "store_record_blobs")
_LARGE = b"of a file " * 500
_FAILURES: list[Failure] = ["before the commit", "after the commit", "no answer", "late"]


def _files(data: bytes = _LARGE) -> dict[str, File]:
    return {"state": File(data=data)}


def _encode(record: Record) -> codec.EncodedRecord:
    return codec.encode_record(record, datetime.now(UTC))


def _steady(store: Store) -> Session:
    """A session whose head is cached: the next append reads nothing."""
    session = store.session("s")
    for number in range(4):
        session.append(Message.user(str(number)), Record("k", data=number))
    return session


def _rows(admin: psycopg.Connection, table: str) -> int:
    row = admin.execute(
        sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("holdfast", table))
    ).fetchone()
    return 0 if row is None else row[0]


_Sent = tuple[str, Sequence[object]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[_Sent]:
    """Every statement that is sent, with its values, which it then drops."""
    found: list[_Sent] = []
    send = Connection._send  # noqa: SLF001 - what is recorded here

    def recording(connection: Connection, answer: PendingResult) -> None:
        found.append((answer.text, answer.values))
        send(connection, answer)

    monkeypatch.setattr(Connection, "_send", recording)
    return found


# ------------------------------------------------------------------------- optimistic appends


def test_a_record_that_is_there_is_stored_once(open_store: OpenStore) -> None:
    """Also by one who reads nothing first; another body under its id is refused."""
    session = _steady(open_store())
    first = session.append(Record("k", data="one", id="one"))
    session.append(Message.user("more"))
    session.append(Record("k", data="two"))
    assert session.append(Record("k", data="one", id="one")) == first
    for _ in range(3):
        session.append(Record("k", data="two"))
    with pytest.raises(IdConflict):
        session.append(Record("k", data="another", id="one"))
    assert [r.data for r in session.records("k")] == [0, 1, 2, 3, "one", "two", "two", "two", "two"]


def test_a_fork_has_the_records_it_inherited(open_store: OpenStore) -> None:
    """Their ids are there already, and those that the parent stored later are not."""
    session = _steady(open_store())
    inherited = session.records("k")[1]
    fork = session.fork()
    session.append(Record("k", data="not in the fork", id="later"))
    assert fork.record("k") == session.records("k")[3]
    for number in range(4):
        fork.append(Record("mine", data=number))
    fork.append(Record("k", data=1, id=inherited.id))
    for number in range(4):
        fork.append(Record("mine", data=number))
    fork.append(Record("k", data="mine", id="later"))
    assert [r.data for r in fork.records("k")] == [0, 1, 2, 3, "mine"]


def test_what_others_stored_meanwhile_is_numbered_before(open_store: OpenStore) -> None:
    """A record does not move the head that callers see; the server compares more of it."""
    here = _steady(open_store())
    there = open_store().get(here.id)
    there.append(Record("k", data="theirs"))
    here.append(Record("k", data="mine"))
    assert [r.data for r in there.records("k")] == [0, 1, 2, 3, "theirs", "mine"]


def test_a_session_that_others_put_in_the_trash_gets_no_record(open_store: OpenStore) -> None:
    """Moving it there does not change its head."""
    session = _steady(open_store())
    open_store().trash(session.id)
    with pytest.raises(Conflict, match="trash"):
        session.append(Record("k", data="in the trash"))
    assert len(session.records("k")) == 4


@pytest.mark.parametrize("failure", _FAILURES)
def test_a_record_whose_connection_fails_is_stored_once(
    open_store: OpenStore, proxy: Proxy, url: str, failure: Failure
) -> None:
    """Without a message, and of the store: a condition that it broke itself is no conflict."""
    behind = through(proxy, url, deadline=60, answer=0.5, idle=1, connect=30)
    store = open_store(url=behind)
    session = _steady(store)
    head = session.head()
    proxy.failures.append(failure)
    assert session.append(Record("k", data="mine")) == head
    proxy.failures.append(failure)
    session.append(Record("k", data="next", id="next", after=session.records("k")[-1].id))
    proxy.failures.append(failure)
    assert store.put_record(Record("app", data=1, after=None)).data == 1
    assert proxy.happened == [failure] * 3
    found = open_store()
    assert [r.data for r in found.get(session.id).records("k")] == [0, 1, 2, 3, "mine", "next"]
    assert found.verify() == []


def test_a_lost_record_is_not_brought_back(open_store: OpenStore, proxy: Proxy, url: str) -> None:
    """It was stored, and others went back to before it: it is not stored once more."""
    session = _steady(open_store(url=through(proxy, url, deadline=60, answer=30, idle=3)))
    there = open_store().get(session.id)
    proxy.failures.append("after the commit")
    proxy.meanwhile = lambda: there.rewind(2)
    session.append(Record("k", data="mine"))
    assert proxy.happened == ["after the commit"]
    assert [r.data for r in there.records("k")] == [0, 1]


def test_records_that_are_queued_together_come_after_each_other(open_store: OpenStore) -> None:
    """What was prefetched for all of them is not compared with what the first ones stored."""
    store = open_store()
    session = store.session("s")
    ids = [None, *map(str, range(10))]
    batch = [Record("k", id=one, after=before) for before, one in pairwise(ids) if one is not None]
    held = threading.Event()
    store.backend.submit(lambda _: held.wait(LONG))
    waiting = [
        store.backend.submit(append(number_of(session), [], [_encode(record)])) for record in batch
    ]
    held.set()
    for one in waiting:
        one.result()
    assert [record.id for record in session.records("k")] == ids[1:]


# ------------------------------------------------------------------------------------- moves


def test_the_state_of_a_branch_that_was_left_comes_back(open_store: OpenStore) -> None:
    """The head shows only whether its own branch has records."""
    session = _steady(open_store())
    session.undo()
    assert [r.data for r in session.records("k")] == [0, 1, 2]
    session.redo()
    assert [r.data for r in session.records("k")] == [0, 1, 2, 3]
    session.rewind(1)
    session.redo()
    assert [r.data for r in session.fork().records("k")] == [0, 1, 2, 3]


def test_moves_without_records_read_none(open_store: OpenStore, sent: list[_Sent]) -> None:
    """They take no more round trips than before there were records."""
    session = open_store().session("s")
    for number in range(4):
        session.append(Message.user(str(number)))
    head = session.head()
    sent.clear()
    session.rewind(2)
    session.redo()
    session.undo()
    session.rewind(head)
    session.fork(at=head)
    session.clear()
    texts = [text for text, _ in sent]
    assert not {SQL[name] for name in ("first_record", "records")} & set(texts)


# ---------------------------------------------------------------------- records of the store


def test_four_workers_count_to_four_hundred(open_store: OpenStore) -> None:
    """Each reads a number and stores the next one if nobody else has."""
    workers, each = 4, 100

    def count(store: Store) -> None:
        for _ in range(each):
            while True:
                last = store.record("counter", "n")
                number = 0 if last is None else last.data
                assert isinstance(number, int)
                after = None if last is None else last.id
                try:
                    store.put_record(Record("counter", key="n", data=number + 1, after=after))
                except Conflict:
                    continue
                break

    stores = [open_store() for _ in range(workers)]
    threads = [threading.Thread(target=count, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stores[0].record("counter", "n")
    assert found is not None
    assert found.data == workers * each


def test_names_are_locked_in_one_order(open_store: OpenStore, sent: list[_Sent]) -> None:
    """Two batches with the same names do not wait for each other."""
    store = open_store()
    names = [str(number) for number in range(20)]
    locks = []
    for order in (names, names[::-1]):
        sent.clear()
        store.session(order[0]).append(*(Record("app", key=key, scope=None) for key in order))
        ((taken,),) = (values for text, values in sent if text == SQL["lock_store_records"])
        locks.append(taken)
    assert locks[0] == locks[1] == sorted(locks[0])  # type: ignore[call-overload]


def test_who_reads_a_record_to_replace_it_waits(
    open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """What a transaction under way stores is seen: the condition is compared after its commit."""
    store, other = open_store(), open_store()
    with under_way(other, put_store_record(_encode(Record("app", data=1, scope=None)))):
        mine = Record("app", data=2, after=None)
        stored = in_a_thread(lambda: store.put_record(mine))
        await_waiting(postgres_admin)
        waits = postgres_admin.execute(
            "SELECT wait_event FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        assert waits.fetchall() == [("advisory",)]  # before it reads, not where rows collide
    with pytest.raises(Conflict):
        stored()
    found = store.record("app", None)
    assert found is not None
    assert found.data == 1


def test_a_new_name_is_stored_once(open_store: OpenStore) -> None:
    """Writers that are queued together, of different sessions, with one id."""
    store = open_store()
    record = Record("app", data=1, id="one", scope=None)
    waiting = [
        store.backend.submit(append(number_of(store.session(str(n))), [], [_encode(record)]))
        for n in range(10)
    ]
    for one in waiting:
        one.result()
    assert len(list(store.backend.read(lambda snapshot: list(snapshot.store_records())))) == 1


def test_a_blob_that_others_store_meanwhile_is_kept(
    open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """A record with it is replaced while another write with it is not committed yet."""
    store, other = open_store(), open_store()
    session = other.session("s")
    store.put_record(Record("app", files=_files()))
    message = codec.encode(Message.user([File(data=_LARGE)]), datetime.now(UTC))
    with under_way(other, _flushed(append(number_of(session), [message]), session)):
        stored = in_a_thread(lambda: store.put_record(Record("app", data="without files")))
        await_waiting(postgres_admin)
    assert stored().data == "without files"
    assert store.verify() == []
    assert store.stats().blobs == 1


def _flushed(operation: Operation[object], session: Session) -> Operation[object]:
    """An operation whose writes have reached the server when it returns."""

    def run(tx: Transaction) -> None:
        operation(tx)
        tx.usage(session=number_of(session))

    return run


@pytest.mark.parametrize("first", ["session", "store"])
def test_a_blob_is_gone_with_the_last_record_that_had_it(
    open_store: OpenStore, postgres_admin: psycopg.Connection, first: str
) -> None:
    store = open_store()
    store.put_record(Record("app", files=_files()))
    store.session("s").append(Record("k", files=_files()))
    store.session("t").append(Record("k", files=_files()))
    drops: list[Callable[[], object]] = [
        lambda: store.purge("s"),
        lambda: store.purge("t"),
        lambda: store.put_record(Record("app")),
    ]
    for drop in drops if first == "session" else drops[::-1]:
        assert store.stats().blobs == 1
        drop()
    assert store.stats().blobs == 0
    assert _rows(postgres_admin, "store_record_blobs") == 0


# ----------------------------------------------------------------------------------- erasing


def test_a_purge_leaves_no_row(open_store: OpenStore, postgres_admin: psycopg.Connection) -> None:
    """Of none of the session's branches, nor of their files."""
    store = open_store()
    session = _steady(store)
    session.append(Record("k", data="large", files=_files()))
    session.rewind(2)
    session.append(Record("k", data="elsewhere", files=_files(_LARGE + b"!")))
    store.purge(session.id)
    assert [_rows(postgres_admin, table) for table in (*_TABLES, "blobs")] == [0] * 5


# ---------------------------------------------------------------------------------- tenants


def test_tenants_with_the_same_names_have_their_own(open_store: OpenStore) -> None:
    """Not by name, nor by id, nor by the hash of a file."""
    one, two = open_store(tenant="A"), open_store(tenant="B")
    record = Record("app", key="k", data="of A", id="same", files=_files())
    one.put_record(record)
    one.session("s").append(Record("k", data="of A", id="same", files=_files()))
    assert two.record("app", "k") is None
    assert two.put_record(Record("app", key="k", data="of B", id="same", after=None)).data == "of B"
    two.session("s").append(Record("k", data="of B", id="same"))
    stored = one.record("app", "k")
    assert stored is not None
    assert stored.data == "of A"
    with pytest.raises(holdfast.HoldfastError, match="not in this store"):
        two.put_record(Record("app", files=stored.files))
    assert two.stats().blobs == 0
    two.purge("s")
    assert one.session("s").records("k")[0].data == "of A"
    assert one.verify() == two.verify() == []


# ------------------------------------------------------------------------- names and damage


def test_names_may_be_longer_than_an_entry_of_an_index(open_store: OpenStore) -> None:
    """And differ in their last letter, or hold what text of the server cannot."""
    store = open_store()
    session = store.session("s")
    keys = [chr(0x1F600 + n % 80) * 1_000 + end for n, end in enumerate(("a", "b", "\0", "\ud800"))]
    for key in keys:
        session.append(Record(key, key=key, data=key[-1]))
        store.put_record(Record(key, key=key, data=key[-1]), scope=key)
    for key in keys:
        for found in (session.record(key, key), store.record(key, key, scope=key)):
            assert found is not None
            assert found.data == key[-1]
        assert [r.data for r in session.records(key, prefix=key[:-1])] == [key[-1]]


@pytest.mark.parametrize("table", ["record_blobs", "store_record_blobs"])
def test_a_missing_blob_of_a_record_is_reported(
    open_store: OpenStore, postgres_admin: psycopg.Connection, table: str
) -> None:
    store = open_store()
    session = store.session("s")
    if table == "record_blobs":
        session.append(Message.user("x"), Record("k", files=_files()))
    else:
        store.put_record(Record("k", files=_files()))
    assert store.verify() == []
    postgres_admin.execute("DELETE FROM holdfast.blobs")
    (damage,) = store.verify()
    assert damage.what.endswith("is missing")
    assert not damage.blocking
    where = (session.id, 1) if table == "record_blobs" else (None, None)
    assert (damage.session_id, damage.seq) == where


def test_the_size_of_a_session_counts_its_records(open_store: OpenStore) -> None:
    store = open_store()
    session = store.session("s")
    session.append(Record("k", data="x" * 3_000, files=_files()))
    found = store.backend.read(lambda snapshot: snapshot.session_size(number_of(session)))
    assert found.messages == 0
    assert len(_LARGE) + 3_000 < found.bytes < len(_LARGE) + 3_500


# -------------------------------------------------------------------------------- migration


def _put(store: Store) -> object:
    return store.put_record(Record("app", data=1))


def _append(store: Store) -> object:
    return store.session("s").append(Record("k", data=1))


@pytest.mark.parametrize("write", [_put, _append])
def test_records_are_not_stored_in_newer_tables(
    open_store: OpenStore, postgres_admin: psycopg.Connection, write: Callable[[Store], object]
) -> None:
    store = open_store()
    store.session("s")
    postgres_admin.execute("UPDATE holdfast.meta SET value = value + 1 WHERE name = 'version'")
    try:
        with pytest.raises(SchemaTooNew, match="nothing was stored"):
            write(store)
    finally:
        postgres_admin.execute("UPDATE holdfast.meta SET value = value - 1 WHERE name = 'version'")
    assert [_rows(postgres_admin, table) for table in _TABLES] == [0] * 4


@pytest.fixture
def before(postgres: Postgres) -> str:
    """A store as a version without records left it, for its owner."""
    database = postgres.bare_database("before", f"OWNER {OWNER}")
    bare = as_user(database, OWNER)
    url = with_options(bare, schema="one")
    with holdfast.open(url) as store:
        session = store.session("s")
        session.append(*(Message.user(str(number)) for number in range(4)))
        session.fork(key="fork").append(Message.user("of the fork"))
        session.rewind(2)
    make_older(url, database, "one", steps=3)
    return url


def test_a_store_of_before_has_its_messages_and_takes_records(before: str) -> None:
    with holdfast.open(before) as store:
        session, fork = store.session("s"), store.session("fork")
        assert [m.text for m in session.messages()] == ["0", "1"]
        assert [m.text for m in fork.messages()] == ["0", "1", "2", "3", "of the fork"]
        session.redo()
        session.append(Record("k", data="new"))
        assert session.fork().record("k") == session.record("k")
        assert fork.record("k") is None
        store.put_record(Record("app", data="new"))
        assert store.verify() == []
