"""The index in tables: whatever happens to it, a search finds what is there."""

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

import holdfast
from holdfast import Message, Store, Text, Thinking, ToolCall
from holdfast.search import tsquery, tsvector
from holdfast.search.protocol import Bounds, IndexInvalid, IndexUnavailable
from holdfast.search.query import parse
from holdfast.search.tsvector import IndexTable, IndexTableLocation
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.search_tables import PostgresIndexTables
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.protocol import Operation, Transaction
from holdfast.url import parse_url
from tests.cli.nursery import Nursery
from tests.cli.shell import Shell
from tests.search.corpora import NOW, QUERIES, live, message
from tests.servers import OWNER, as_user
from tests.store_urls import place, superuser

T = TypeVar("T")
_TALKS = 4
_CANARY = "Qzxcanary"
_DIES = """
import os, signal, sys, holdfast
from holdfast.search.index_erasure import Eraser
store = holdfast.open(sys.argv[1])
Eraser.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
store.purge("doomed")
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An empty store in a schema of its own, for a role that owns nothing."""
    with place("postgres", tmp_path) as url:
        yield url


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection]:
    """One who may do anything there, as damage does."""
    with superuser(url) as admin:
        yield admin


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store with an index that has everything."""
    with holdfast.open(url, durability="process") as store:
        rnd = random.Random(5)
        for number in range(_TALKS):
            session = store.session(f"talk-{number}")
            session.append(*(message(rnd) for _ in range(5)), Message.user(f"needle n{number}"))
        assert len(store.search("needle")) == _TALKS
        store.catch_up_index()
        assert store.index_status().state == "ready"
        yield store


def _must_find(store: Store, talks: int = _TALKS) -> None:
    assert len(store.search("needle", limit=1000)) == talks
    for number in range(talks):
        (hit,) = store.search(f"needle n{number}")
        assert store.get(hit.session_id).key == f"talk-{number}"


def _must_go_on(store: Store) -> None:
    """Search, append, search: and by then there is a sound index again."""
    _must_find(store)
    store.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
    _must_find(store, _TALKS + 1)
    store.catch_up_index()
    assert store.index_status().state == "ready"
    assert store.check_index() == []


def _index(url: str, tenant: str = "default") -> IndexTable:
    found = IndexTableLocation(_tables(url, tenant)).open()
    assert found is not None
    return found


def _tables(url: str, tenant: str = "default") -> PostgresIndexTables:
    where = parse_conninfo(parse_url(url, {}), "process")
    return PostgresIndexTables(where, Tenant(tenant, where.schema))


# ------------------------------------------------------------------------------- it is used


def test_the_index_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked through that the index has."""
    monkeypatch.setattr("holdfast.search.scan.find_in_segment", None)
    _must_find(store)


def test_a_rare_word_reads_few_rows(store: Store, url: str, admin: psycopg.Connection) -> None:
    """The planner goes by the index of lexemes, for a role to which the policy applies, too."""
    admin.execute(
        "INSERT INTO indexed_rows SELECT tenant, n + 1000 * g, branch + 1000 * g, seq, role, at, "
        "length, thoughts, mark, weight, said, thought, hash FROM indexed_rows, "
        "generate_series(1, 400) g"
    )
    admin.execute("UPDATE indexed_rows SET said = ' rareword ' WHERE n = 3")
    admin.execute("VACUUM ANALYZE indexed_rows")
    index = _index(url)
    asked: list[tuple[str, list[object]]] = []
    with index.reading():
        real = index._connection.rows  # noqa: SLF001 - to hear what is asked
        index._connection.rows = lambda text, values=(): (  # type: ignore[method-assign]  # noqa: SLF001
            asked.append((text, list(values))) or real(text, values)  # type: ignore[func-returns-value]
        )
        query = parse("rareword", now=NOW)
        found = [entry for chunk in index.matching(query, Bounds(), thinking=False)
                 for entry in chunk.candidates]  # fmt: skip
        assert len(found) == 1
        text, values = asked[-1]
        plan = "\n".join(row[0] for row in real(f"EXPLAIN {text}", values))
    index.close()
    assert "indexed_by_lexeme" in plan
    assert "Seq Scan" not in plan


def test_the_same_hits_as_in_a_file(url: str, tmp_path: Path) -> None:
    """With the same scores, snippets and counts."""
    stores = [holdfast.open(url, durability="process"), holdfast.open(tmp_path / "agent.db")]
    rnd = random.Random(11)
    said = [[message(rnd) for _ in range(12)] for _ in range(10)]
    said[0] += [
        Message.user("red red red red green red red", created_at=NOW),
        Message.user("getUserName userName user name username", created_at=NOW),
        Message.assistant([Text("red"), Thinking("red red courier courier")], created_at=NOW),
    ]
    queries = (
        *QUERIES,
        '"red red"',
        '"red red"*',
        '"re re"*',
        "userName",
        "username",
        '"name user"',
    )
    found = []
    for store in stores:
        with store:
            for number, messages in enumerate(said):
                store.session(f"talk-{number}", title=f"red {number}").append(*messages)
            store.catch_up_index()
            assert store.check_index() == []
            asked = zip(queries, cycle((False, True)), strict=False)
            found.append([_shown(store, text, thinking) for text, thinking in asked])
            assert store.index_status().state == "ready"
    assert found[0] == found[1]


def _shown(store: Store, text: str, thinking: bool) -> list[str]:
    hits = store.search(text, limit=1000, thinking=thinking)
    everywhere = [
        (
            store.get(hit.session_id).key,
            hit.seq,
            round(hit.score, 3),
            hit.snippet,
            hit.marks,
            hit.more,
        )
        for hit in hits
    ]
    inside = store.search(text, session="talk-0", limit=1000, thinking=thinking)
    return sorted(map(repr, [*everywhere, *((hit.seq, round(hit.score, 3)) for hit in inside)]))


def test_messages_with_more_words_than_a_vector_holds(store: Store, url: str) -> None:
    """They are found by every word, and by phrases at their end."""
    session = store.session("talk-0")
    session.append(Message.user(" ".join(f"w{number}" for number in range(80_000)) + " the end"))
    session.append(Message.user("again " * 40_000 + "at last"))
    store.catch_up_index()
    for text, seqs in (
        ("w79999", [7]), ('"w79998 w79999 the end"', [7]), ('"w79999 w79998"', []),
        ("again last", [8]), ('"again at last"', [8]), ("w7 -end", []), ("w7777*", [7]),
    ):  # fmt: skip
        found = store.search(text, session="talk-0")
        assert [hit.seq for hit in found] == seqs, text
    assert [hit.seq for hit in store.search("w79999")] == [7]
    assert store.check_index() == []
    assert store.index_status().state == "ready"
    index = _index(url)
    with index.reading():
        query = parse("again", now=NOW)
        chunks = index.matching(query, Bounds(), thinking=False)
        assert [chunk.frequencies(entry[5]) for chunk in chunks for entry in chunk.candidates] == [
            (40_000,)
        ]
    index.close()


def _spread(admin: psycopg.Connection) -> None:
    """Number the messages of an index so that they are in many blocks."""
    admin.execute("UPDATE indexed_rows SET n = -n")
    admin.execute("UPDATE indexed_rows SET n = -n * 5000")
    admin.execute("UPDATE indexes SET newest = newest * 5000")


def test_the_same_hits_however_they_are_looked_for(
    url: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, by the index of lexemes, block by block and page by page."""
    with holdfast.open(url, durability="process") as store:
        for _ in live(store, random.Random(3), 60):
            pass
        store.catch_up_index()
        expected = _all_hits(store)
        _spread(admin)
        assert _all_hits(store) == expected
        monkeypatch.setattr(tsvector, "_FEW_MESSAGES", 0)
        for module in (tsvector, tsquery):
            monkeypatch.setattr(module, "CHUNK", 3)
        monkeypatch.setattr(tsquery, "_MAX_COUNT_COLUMNS", 1)
        for probed, uncommon in ((1_000_000, 1), (0, 2), (0, 1_000_000)):
            monkeypatch.setattr(tsvector, "PROBE_MESSAGES", probed)
            monkeypatch.setattr(tsvector, "_SCAN_END_RATIO", uncommon)
            assert _all_hits(store) == expected
        assert store.index_status().state == "ready"
        monkeypatch.setattr("holdfast.search.scan.find_in_segment", None)
        store.search("red")


def _all_hits(store: Store) -> list[list[tuple[object, ...]]]:
    return [
        [
            (hit.session_id, hit.message_id, hit.snippet, hit.marks, round(hit.score, 3), hit.more)
            for hit in store.search(text, limit=1000, thinking=thinking, all_branches=thinking)
        ]
        for text, thinking in zip(
            (*QUERIES, '"red green"* -blue', "red green blue letter courier parcel todo"),
            cycle((False, True)),
            strict=False,
        )
    ]


# ---------------------------------------------------------------------------------- round trips


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each round trip to the server."""
    made: list[int] = []
    sync = Connection.sync

    def counting(link: Connection) -> None:
        if link._queue:  # noqa: SLF001 - what is counted here
            made.append(len(made))
        sync(link)

    monkeypatch.setattr(Connection, "sync", counting)
    return made


def _round_trips(made: list[int], store: Store, text: str, hits: int) -> int:
    made.clear()
    assert len(store.search(text)) == hits
    return len(made)


def test_a_search_is_two_round_trips(
    store: Store, round_trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """State, checks, titles and words; then visibility, with the messages that are shown.

    In an index with many messages there is one more, to find out whether the words are common.
    """
    for most, expected in ((tsvector._FEW_MESSAGES, 2), (0, 3)):  # noqa: SLF001 - what makes many
        monkeypatch.setattr(tsvector, "_FEW_MESSAGES", most)
        for text in ("needle", "needle n3", '"needle n3"', "need*", "needle n3 -nothing"):
            hits = _TALKS if text in {"needle", "need*"} else 1
            assert _round_trips(round_trips, store, text, hits) == expected, text
    assert _round_trips(round_trips, store, "nowhere", 0) <= 3


def test_nobody_is_asked_for_one_by_one(store: Store, round_trips: list[int]) -> None:
    """Sessions that went back or were forked, those in the trash, and those of other scopes."""
    for number in range(4):
        store.session(f"plain {number}").append(Message.user("needle"))
    for text in ("needle scope:mail", "needle"):
        made = []
        for number in range(6):
            session = store.session(f"{text} {number}", scope="mail")
            session.append(Message.user("needle"), Message.user("hay"), Message.user("needle"))
            session.fork(3)
            session.rewind(2)
            store.session(f"gone {text} {number}").append(Message.user("needle"))
            store.trash(f"gone {text} {number}")
            if number in {1, 5}:
                store.search(text)
                store.search(text)
                round_trips.clear()
                store.search(text)
                made.append(len(round_trips))
        assert made[0] == made[1] <= 8, text


def test_what_is_not_caught_up_is_few_round_trips(store: Store, round_trips: list[int]) -> None:
    """The same for whatever else there is."""
    made = []
    for number in range(3):
        store.session("talk-0").append(Message.user("needle again"))
        made.append(_round_trips(round_trips, store, "again needle", 1))
        store.session(f"more {number}").append(*(Message.user("something") for _ in range(50)))
        store.catch_up_index()
        store.search("again")
    assert made[0] == made[1] == made[2] <= 16


# ------------------------------------------------------------------------------ damage, versions


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM indexes",
        "DELETE FROM indexes; DELETE FROM indexed_rows",
        "UPDATE indexes SET stamp = '0 of long ago'",
        "UPDATE indexes SET stamp = ''",
        "UPDATE indexes SET anchor_crc = anchor_crc + 1",
        "UPDATE indexes SET anchor_branch = 7, anchor_seq = 7",
        "UPDATE indexes SET erasures = 7",
        "UPDATE indexes SET newest = 3",
    ],
)
def test_it_is_made_anew(store: Store, url: str, admin: psycopg.Connection, damage: str) -> None:
    """Under a running process, and by one that is opened then."""
    admin.execute(damage)
    _must_go_on(store)
    admin.execute(damage)
    store.session("talk-0").append(Message.user("one more"))
    with holdfast.open(url, durability="process") as other:
        assert len(other.search('"one more"')) == 1
        _must_find(other, _TALKS + 1)
        other.catch_up_index()
        assert other.index_status().state == "ready"
        assert other.check_index() == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM indexed_rows WHERE n = 3",
        "UPDATE indexed_rows SET said = ' something  else ' WHERE n = 3",
        "UPDATE indexed_rows SET thought = ' something ' WHERE n = 3",
    ],
)
def test_damage_that_only_a_check_can_find(
    store: Store, admin: psycopg.Connection, damage: str
) -> None:
    admin.execute(damage)
    assert store.check_index() != []
    assert store.rebuild_index().state == "ready"
    assert store.check_index() == []
    _must_find(store)


def test_the_log_put_back_to_an_earlier_state(store: Store, admin: psycopg.Connection) -> None:
    """An index that knows more than the log is of no use."""
    names = ("sessions", "heads", "recent", "branches", "messages", "tenants")
    for name in names:
        admin.execute(f"CREATE TEMP TABLE earlier_{name} AS SELECT * FROM {name}")  # noqa: S608 - a name of ours
    store.session("talk-0").append(Message.user("needle that will not have been"))
    assert len(store.search('"will not have been"')) == 1
    store.catch_up_index()
    for name in names:
        admin.execute(f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM earlier_{name}")  # noqa: S608 - a name of ours
    assert len(store.search('"will not have been"')) == 0
    store.session("talk-0").append(Message.user("something else"))
    assert len(store.search("something")) == 1
    _must_go_on(store)


def test_of_a_newer_version(store: Store, admin: psycopg.Connection) -> None:
    """It stays with the version that made it: two versions at once do not take it in turns."""
    admin.execute("UPDATE indexes SET stamp = '99 99/99'")
    _must_find(store)
    store.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
    _must_find(store, _TALKS + 1)
    assert admin.execute("SELECT stamp FROM indexes").fetchall() == [("99 99/99",)]
    assert admin.execute("SELECT count(*) FROM indexed_rows").fetchall() == [(_TALKS * 6,)]


def test_half_removed(store: Store, url: str, admin: psycopg.Connection) -> None:
    """An index of which only rows remain goes with the next erasure of any process, too."""
    with holdfast.open(url, durability="process") as other:
        for number, by in ((1, store), (2, other)):
            admin.execute("DELETE FROM indexes")
            by.purge(f"talk-{_TALKS - number}")
            assert admin.execute("SELECT count(*) FROM indexed_rows").fetchall() == [(0,)]
            _must_find(store, _TALKS - number)
            store.catch_up_index()


# --------------------------------------------------------------------- where none can be kept


@pytest.mark.parametrize(
    ("forbid", "state"),
    [
        ("REVOKE ALL ON indexed, indexes FROM holdfast_worker", "none"),
        ("REVOKE INSERT, UPDATE, DELETE ON indexed FROM holdfast_worker", "behind"),
        ("ALTER VIEW indexed RENAME TO elsewhere", "none"),
    ],
)
def test_the_tables_cannot_be_used(
    store: Store, url: str, admin: psycopg.Connection, forbid: str, state: str
) -> None:
    admin.execute(forbid)
    try:
        with holdfast.open(url, durability="process") as other:
            for opened in (store, other):
                _must_find(opened)
            other.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
            for opened in (store, other):
                _must_find(opened, _TALKS + 1)
            assert other.index_status().state == state
            other.purge(f"talk-{_TALKS}")
            _must_find(other)
    finally:
        admin.execute("GRANT ALL ON ALL TABLES IN SCHEMA " + _schema(admin) + " TO holdfast_worker")
        if "elsewhere" in forbid:
            admin.execute("ALTER VIEW elsewhere RENAME TO indexed")
    _must_go_on(store)


def _schema(admin: psycopg.Connection) -> str:
    row = admin.execute("SELECT current_schema()").fetchone()
    assert row is not None
    return str(row[0])


def test_a_read_only_store_is_searched(store: Store, url: str, admin: psycopg.Connection) -> None:
    """With the index that is there, and without."""
    for there in (True, False):
        if not there:
            admin.execute("DELETE FROM indexes; DELETE FROM indexed_rows")
        with holdfast.open(url, readonly=True) as other:
            _must_find(other)
            assert other.index_status().state == ("ready" if there else "missing")


@pytest.mark.parametrize("error", [IndexUnavailable, IndexInvalid, OSError])
def test_the_engine_fails_while_it_adds(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    real: Callable[..., None] = IndexTable.add

    def fail(self: IndexTable, docs: object) -> None:
        raise error

    monkeypatch.setattr(IndexTable, "add", fail)
    store.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
    _must_find(store, _TALKS + 1)
    monkeypatch.setattr(IndexTable, "add", real)
    store.rebuild_index()
    _must_find(store, _TALKS + 1)
    assert store.index_status().state == "ready"


def test_connections_are_lost(store: Store, admin: psycopg.Connection) -> None:
    for _ in range(2):
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE usename = 'holdfast_worker' AND datname = current_database()"
        )
        _must_find(store)
    _must_go_on(store)


# ------------------------------------------------------------------------------------ at once


def test_while_somebody_else_indexes(store: Store, url: str) -> None:
    """What is not indexed is scanned; no search waits for long."""
    other = _index(url)
    with other.writing():
        store.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
        _must_find(store, _TALKS + 1)
    other.close()
    _must_find(store, _TALKS + 1)
    store.catch_up_index()
    assert store.index_status().state == "ready"


def test_what_was_acknowledged_before_an_earlier_number_is_found(store: Store, url: str) -> None:
    """A writer has taken a number and not committed yet: those with later ones are found."""
    taken, go = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        row = tx.find_session(key="talk-1")
        head = None if row is None else tx.head(row.n)
        assert head is not None
        tx.put_head(head)
        tx.find_session(key="talk-1")  # All that was sent before is done by now.
        taken.set()
        go.wait(20)

    with holdfast.open(url, durability="process") as other:
        thread = threading.Thread(target=lambda: other._backend.write(slow))  # noqa: SLF001 - slow
        thread.start()
        try:
            assert taken.wait(20)
            store.session(f"talk-{_TALKS}").append(Message.user(f"needle n{_TALKS}"))
            _must_find(store, _TALKS + 1)
        finally:
            go.set()
            thread.join()
    _must_find(store, _TALKS + 1)
    store.catch_up_index()
    assert store.index_status().state == "ready"


# ------------------------------------------------------------------------------------ tenants


def test_tenants_are_apart(store: Store, url: str, admin: psycopg.Connection) -> None:
    """By the view, for the owner of the tables as well; and by the policy for all other roles."""
    with holdfast.open(url, tenant="them", durability="process") as theirs:
        theirs.session("talk-0").append(Message.user("needle of theirs"))
        (hit,) = theirs.search("needle")
        assert hit.snippet == "needle of theirs"
        theirs.catch_up_index()
        _must_find(store)
        schema = _schema(admin)
        plain = url.partition("&schema=")[0]
        for user, names in (
            (None, ("indexed", "indexed_rows", "indexes")),
            (OWNER, ("indexed", "indexes")),
        ):
            with psycopg.connect(
                as_user(plain, user), autocommit=True, options=f"-c search_path={schema}"
            ) as somebody:
                for name in names:
                    _must_be_theirs(somebody, name)
        theirs.rebuild_index()
        _must_find(store)
        assert store.index_status().state == theirs.index_status().state == "ready"
        assert store.index_status().messages == _TALKS * 6
        assert store.index_status().path != theirs.index_status().path


def _must_be_theirs(somebody: psycopg.Connection, name: str) -> None:
    them, us = str(Tenant("them", "").mark), str(Tenant("default", "").mark)
    with pytest.raises(psycopg.Error), somebody.transaction():
        somebody.execute(f"SELECT * FROM {name}")  # noqa: S608 - a name of ours
    with somebody.transaction():
        somebody.execute("SELECT set_config('holdfast.tenant', %s, true)", (them,))
        assert somebody.execute(f"SELECT DISTINCT tenant::text FROM {name}").fetchall() == [(them,)]  # noqa: S608 - a name of ours
        assert somebody.execute(f"DELETE FROM {name} WHERE tenant = %s", (us,)).rowcount == 0  # noqa: S608 - a name of ours
    with pytest.raises(psycopg.Error), somebody.transaction():
        somebody.execute("SELECT set_config('holdfast.tenant', %s, true)", (them,))
        somebody.execute(f"UPDATE {name} SET tenant = %s", (us,))  # noqa: S608 - a name of ours


# ------------------------------------------------------------------------------------ erasure


@pytest.fixture
def doomed(store: Store) -> Store:
    """A store in whose index the words of a doomed session are."""
    session = store.session("doomed")
    for number in range(30):
        session.append(_doomed(number))
    store.catch_up_index()
    return store


def _doomed(number: int) -> Message:
    name = f"{_CANARY}{number}"
    return Message.assistant(
        [Text(f"{name} and {_CANARY}IsSaid"), Thinking(f"{name}thought {_CANARY}")],
        tool_calls=[ToolCall("call", f"{name}_tool", {name: [name]})],
        id=f"message-{number}",
    )


def _holding(admin: psycopg.Connection) -> set[str]:
    """Name the tables that hold a canary, in whatever column."""
    names = admin.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relkind = 'r' "
        "AND c.relnamespace = current_schema()::regnamespace"
    ).fetchall()
    text, data = _CANARY[1:].lower(), _CANARY[1:].encode().hex()
    return {
        name
        for (name,) in names
        if admin.execute(
            f"SELECT 1 FROM {name} t WHERE strpos(lower(t::text), %s) > 0 "  # noqa: S608 - a name of ours
            "OR strpos(t::text, %s) > 0 LIMIT 1",
            (text, data),
        ).fetchone()
    }


def _must_be_gone(store: Store, admin: psycopg.Connection) -> None:
    assert _holding(admin) == set()
    for text in (_CANARY, f"{_CANARY}IsSaid", "zxcanary*", f"{_CANARY}*"):
        for thinking in (False, True):
            assert len(store.search(text, thinking=thinking, all_branches=True)) == 0
    assert _holding(admin) == set()
    assert store.index_status().state == "ready"
    assert store.check_index() == []


def test_a_purge(doomed: Store, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the index stays, however much is purged: nothing is rebuilt."""
    monkeypatch.setattr("holdfast.search.index_erasure._MAX_MESSAGES", 3)
    assert _holding(admin) == {"heads", "messages", "indexed_rows"}
    before = doomed.index_status()
    doomed.purge("doomed")
    assert _holding(admin) == set()
    after = doomed.index_status()
    assert (after.state, after.messages) == ("ready", before.messages - 30)
    assert 0 < after.text < before.text
    _must_be_gone(doomed, admin)
    _must_find(doomed)


def test_one_message(doomed: Store, admin: psycopg.Connection) -> None:
    session, before = doomed.get("doomed"), doomed.index_status().messages
    for number in range(30):
        session.erase(f"message-{number}")
    _must_be_gone(doomed, admin)
    assert doomed.index_status().messages == before


def test_a_purge_that_leaves_something_to_forks(doomed: Store, admin: psycopg.Connection) -> None:
    """It is found there, and goes with the last of them."""
    fork = doomed.get("doomed").fork(20)
    doomed.search("red")
    doomed.purge("doomed")
    (hit,) = doomed.search(f"{_CANARY}IsSaid")
    assert (hit.session_id, hit.more) == (fork.id, 19)
    doomed.purge(fork.id)
    _must_be_gone(doomed, admin)


def test_by_a_process_that_does_not_search(
    doomed: Store, url: str, admin: psycopg.Connection
) -> None:
    """Nor is what it appended in the index yet."""
    with holdfast.open(url, durability="process") as other:
        other.get("doomed").append(_doomed(1000))
        other.purge("doomed")
    assert _holding(admin) == set()
    _must_be_gone(doomed, admin)


def test_while_somebody_else_holds_the_index(
    doomed: Store, url: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge goes through, and what is left of it goes with the next search."""
    monkeypatch.setattr("holdfast.search.manager._LOCK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(tsvector, "_REMOVE_TIMEOUT_S", 0.1)
    other = _index(url)
    with other.writing():
        doomed.purge("doomed")
        assert len(doomed.search(f"{_CANARY}*")) == 0
    other.close()
    _must_find(doomed)
    doomed.catch_up_index()
    _must_be_gone(doomed, admin)


def test_somebody_else_erases_who_cannot_have_the_index(
    doomed: Store, url: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has it notices, and drops the whole index."""
    monkeypatch.setattr("holdfast.search.manager._LOCK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(tsvector, "_REMOVE_TIMEOUT_S", 0.1)
    write = doomed.backend.write
    doomed.session("talk-0").append(_doomed(1000))
    doomed.catch_up_index()
    with holdfast.open(url, durability="process") as other:

        def beside(verb: Operation[T], *, exclusive: bool = False) -> T:
            other.session("talk-0").erase("message-1000")
            return write(verb, exclusive=exclusive)

        monkeypatch.setattr(doomed.backend, "write", beside)
        doomed.purge("doomed")
    assert "indexed_rows" not in _holding(admin)
    doomed.catch_up_index()
    _must_be_gone(doomed, admin)


def test_killed_before_the_index_forgets(
    doomed: Store, url: str, admin: psycopg.Connection
) -> None:
    done = subprocess.run([sys.executable, "-c", _DIES, url], check=False)
    assert done.returncode == -signal.SIGKILL
    assert "indexed_rows" in _holding(admin)
    with holdfast.open(url, readonly=True) as other:
        assert len(other.search(f"{_CANARY}*")) == 0
    _must_find(doomed)
    doomed.catch_up_index()
    _must_be_gone(doomed, admin)


def test_killed_before_the_index_forgets_and_somebody_else_erases(
    doomed: Store, url: str, admin: psycopg.Connection
) -> None:
    """A process that has the store open removes the words with its next erasure of anything."""
    done = subprocess.run([sys.executable, "-c", _DIES, url], check=False)
    assert done.returncode == -signal.SIGKILL
    doomed.session("talk-0").erase(1)
    assert "indexed_rows" not in _holding(admin)


def test_refused(doomed: Store) -> None:
    """A purge that does not happen changes nothing."""
    session = doomed.get("doomed")
    with session.turn(), pytest.raises(holdfast.errors.SessionBusy):
        doomed.purge("doomed")
    assert len(doomed.search(f"{_CANARY}*")) == 1
    assert doomed.index_status().state == "ready"


# ---------------------------------------------------------------------------------- the shell


@pytest.mark.usefixtures("store")
def test_in_the_shell(url: str) -> None:
    with Nursery(Shell(Path(url)).environment) as nursery:
        shell = Shell(Path(), nursery)
        shell.environment["HOLDFAST_URL"] = url
        said = shell.ok("index")
        assert "ready" in said
        assert str(_TALKS * 6) in said
        assert "ready" in shell.ok("index", "rebuild")
        assert "needle n3" in shell.ok("search", "n3")
        assert "search index: ready" in shell.run("doctor").out
