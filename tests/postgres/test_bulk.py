"""Moving much data to a server: few round trips, stored once or not at all, byte by byte."""

from collections.abc import Iterator
from uuid import UUID

import msgspec
import psycopg
import pytest

import holdfast
from bench import material
from holdfast import Message, Store, ids
from holdfast.errors import Invalid
from holdfast.operations import sessions
from holdfast.session import number_of
from holdfast.storage.postgres.arrays import bigints, booleans, byteas, uuids
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.protocol import Transaction
from holdfast.storage.rows import BranchStart, MessageRow
from tests.postgres.conftest import OpenStore, through
from tests.postgres.proxy import Failure, Proxy
from tests.postgres.test_counts import Count, count

__all__ = ["count"]  # a fixture
_CUT_WRITERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'holdfast' AND datname = current_database() AND state <> 'idle'
"""


def _pairs(number: int, turns: int = 5) -> list[tuple[str, list[Message]]]:
    return [
        (f"k{n}", [message for _ in range(turns) for message in material.turn()])
        for n in range(number)
    ]


def _texts(store: Store, number: int) -> list[list[str]]:
    return [[m.text for m in store.session(f"k{n}").messages()] for n in range(number)]


# ------------------------------------------------------------------------------------- counts


def test_a_thousand_messages_are_loaded_in_few_round_trips(
    open_store: OpenStore, count: Count
) -> None:
    """Into fifty sessions: one commit, seven statements for each, and none waits for another."""
    store = open_store()
    store.load(_pairs(1))
    count.clear()
    assert store.load(_pairs(50)[1:]).messages == 980
    assert count.commits == 1
    assert count.round_trips <= 8
    assert len(count.statements) <= 49 * 5 + 20
    count.clear()
    store.load([("long", [m for _ in range(250) for m in material.turn()])])
    assert count.commits == 1
    assert count.round_trips <= 4
    assert len(count.statements) <= 20


def test_a_thousand_messages_are_copied_in_few_round_trips(
    open_store: OpenStore, count: Count
) -> None:
    """The comparison, the copy, and the verification together; none of them counts sessions."""
    target = open_store()
    found = []
    for number in (20, 50):
        with holdfast.open("memory:") as source:
            source.load(_pairs(number))
            with source.session("k0").turn() as turn:
                for message in material.turn():
                    turn.add(message)
            count.clear()
            report = source.copy(target)
        assert report.same
        assert report.added == number
        assert count.statements.count("COMMIT") == 2  # one puts them into the order of lists
        found.append(count.round_trips)
        for n in range(number):
            target.trash(f"k{n}")
    assert found[0] <= 30
    assert found[1] <= found[0] + 3  # numbers of sessions are taken a few more times


def test_a_copy_from_a_server_reads_a_batch_at_once(open_store: OpenStore, count: Count) -> None:
    """What is in the sessions is not asked for session by session."""
    source = open_store()
    found = []
    for number in (10, 40):
        source.load(_pairs(number))
        with holdfast.open("memory:") as target:
            count.clear()
            assert source.copy(target).same
            found.append(count.round_trips)
    assert (found[1] - found[0]) / 30 <= 16  # of more sessions: their place among the families


# ------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("failure", ["before the commit", "after the commit", "late"])
def test_a_load_whose_commit_fails_is_stored_once(
    open_store: OpenStore, proxy: Proxy, url: str, failure: Failure
) -> None:
    """And reported as stored, not as skipped."""
    store = open_store(url=through(proxy, url, deadline=60, answer=0.5, idle=1, connect=30))
    store.session("before")
    proxy.failures.append(failure)
    report = store.load(_pairs(3))
    assert proxy.happened == [failure]
    assert (report.sessions, report.messages, report.skipped) == (3, 60, 0)
    assert [len(texts) for texts in _texts(open_store(), 3)] == [20, 20, 20]
    assert open_store().verify() == []


@pytest.mark.parametrize("move", ["load", "copy"])
def test_a_connection_that_is_lost_while_rows_are_sent(
    open_store: OpenStore,
    postgres_admin: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    move: str,
) -> None:
    """The server has some of the rows already: none of them stays, and all come once."""
    store = open_store()
    store.session("before")
    send = Connection.send
    cut: list[bool] = []

    def cutting_send(link: Connection) -> None:
        send(link)
        if len(cut) < 3:  # The first time, and while it is tried again.
            cut.append(bool(postgres_admin.execute(_CUT_WRITERS).fetchall()))

    monkeypatch.setattr(Connection, "send", cutting_send)
    with holdfast.open("memory:") as source:
        source.load(_pairs(4))
        if move == "load":
            pairs = [(f"k{n}", source.session(f"k{n}").messages()) for n in range(4)]
            assert store.load(pairs).messages == 80
        else:
            assert source.copy(store).same
        expected = _texts(source, 4)
    assert cut == [True] * 3
    assert _texts(store, 4) == expected
    assert store.verify() == []


def test_a_refusal_behind_rows_that_were_sent_takes_them_back(open_store: OpenStore) -> None:
    """The connection that had sent them is not used again with what it left."""
    store = open_store()

    def pairs() -> Iterator[tuple[str, list[Message]]]:
        yield from _pairs(2, turns=30)
        raise Invalid("this one")

    with pytest.raises(Invalid, match="this one"):
        store.load(pairs())
    bad = Message.user([holdfast.File(sha256="0" * 64, size=1)])
    with pytest.raises(holdfast.errors.BadMessage):
        store.load([*_pairs(2, turns=30), ("bad", [bad])])
    assert store.sessions().items == ()
    assert store.load(_pairs(2)).messages == 40


# ------------------------------------------------------------------------------------- new sessions


def _new(tx: Transaction, start: BranchStart | None = None) -> int:
    row = sessions.new_row(id=ids.session_id())
    row = msgspec.structs.replace(row, created_at=tx.now())
    return tx.add_session(row, start or BranchStart(token=row.id))


def test_what_was_just_stored_in_a_new_session_is_found(open_store: OpenStore) -> None:
    """Its branch is known to be empty only until then."""

    def run(tx: Transaction) -> None:
        branch = tx.branch(_new(tx), 1)
        assert branch is not None
        assert tx.stored(branch.n, ["m"]) == {}
        row = MessageRow.create(1, "m", None, b"{}")
        tx.add_messages(branch.n, [row])
        assert [found for _, found in tx.stored(branch.n, ["m"]).values()] == [row]

    open_store().backend.write(run)


def test_a_session_has_a_higher_number_than_its_parent(open_store: OpenStore) -> None:
    """Also if that was created behind numbers that a transaction had taken already."""
    store = open_store()
    store.session("before")

    def run(tx: Transaction) -> None:
        first = [_new(tx), _new(tx)]
        parent = number_of(open_store().create())
        branch = tx.branch(parent, 1)
        assert branch is not None
        child = _new(tx, BranchStart(parent=branch.n, token=ids.session_id()))
        assert first == sorted(first)
        assert first[-1] < parent < child

    store.backend.write(run)


# ------------------------------------------------------------------------------------- arrays


def test_arrays_are_what_the_server_reads(postgres_admin: psycopg.Connection) -> None:
    """Every type, with and without values, the largest and smallest among them."""
    lowest, highest = -(2**63), 2**63 - 1
    marks = [UUID(int=0), UUID(int=2**128 - 1)]
    columns = [
        (bigints([1, None, lowest, highest]), [1, None, lowest, highest]),
        (bigints([0, 5]), [0, 5]),
        (bigints([]), []),
        (byteas([b"", b"\0\xff", None]), [b"", b"\0\xff", None]),
        (byteas([]), []),
        (uuids([mark.bytes for mark in marks]), marks),
        (booleans([True, False]), [True, False]),
    ]
    for array, values in columns:
        cursor = psycopg.RawCursor(postgres_admin)
        assert cursor.execute("SELECT $1", (array,)).fetchone() == (values,)
