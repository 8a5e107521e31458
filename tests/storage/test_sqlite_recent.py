"""The table of recent sessions, and what a writer need not read again."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import holdfast
from holdfast import Head, Message, Store, codec
from holdfast.errors import IdConflict
from holdfast.operations import append
from holdfast.session import number_of
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation, PendingWrite, Transaction
from holdfast.storage.rows import SessionFilter
from holdfast.storage.sqlite import statements, transaction
from holdfast.storage.sqlite.repair.salvage import salvage
from holdfast.storage.sqlite.repair.verify import verify_file
from holdfast.url import Durability


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with holdfast.open(path) as opened:
        yield opened


def _rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def _activity(path: Path, key: str) -> int:
    query = f"SELECT activity FROM heads JOIN sessions ON n = session WHERE key = '{key}'"  # noqa: S608
    ((number,),) = _rows(path, query)
    assert isinstance(number, int)
    return number


def _written_after(store: Store, number: int) -> list[tuple[int, str, int, int]]:
    return store.backend.read(lambda at: at.activity_after(number, 10))


def _keys(store: Store, **asked: str) -> list[str | None]:
    return [info.key for info in store.sessions(limit=100, **asked)]  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- order


def test_a_session_that_is_written_to_again_keeps_its_recency(store: Store, path: Path) -> None:
    """Only the head row changes; both numbers stay in the order of the writes."""
    one, two = store.session("one"), store.session("two")
    for _ in range(3):
        one.append(Message.user("again"))
    numbers = "SELECT recency, activity FROM recent JOIN heads USING (session) ORDER BY recency"
    (_, last), (first, activity) = _rows(path, numbers)
    assert isinstance(first, int)
    assert activity == first + 2
    assert isinstance(last, int)
    assert last < first
    two.append(Message.user("now the other"))
    assert _keys(store) == ["two", "one"]


@pytest.mark.parametrize("seed", range(5))
def test_lists_have_the_order_of_the_last_writes(store: Store, path: Path, seed: int) -> None:
    """Whatever is written to in which order, by which process, in the trash or not."""
    chance = random.Random(seed)
    order: list[str] = []
    serial = count()
    with holdfast.open(path) as other:
        for _ in range(60):
            key = f"k{chance.randrange(6)}"
            scope = ("even", "odd")[int(key[1]) % 2]
            session = chance.choice((store, other)).session(key, scope=scope)
            if key not in order or chance.random() < 0.7:
                session.append(*[Message.user(f"{next(serial)}")] * chance.randrange(1, 3))
                order = [one for one in order if one != key] + [key]
            else:
                store.trash(session.id)
                store.restore(session.id)
            assert _keys(store) == order[::-1]
            for name in ("even", "odd"):
                wanted = [one for one in order[::-1] if ("even", "odd")[int(one[1]) % 2] == name]
                assert _keys(store, scope=name) == wanted
    assert store.verify() == []


def test_a_follower_misses_no_write_to_the_newest_session(store: Store) -> None:
    """The recency of such a session is before the follower's number, its activity is after it."""
    session = store.session("k")
    store.session("older").append(Message.user("a"))
    session.append(Message.user("a"))
    number = _written_after(store, 0)[-1][0]
    for _ in range(3):
        session.append(Message.user("b"))
        ((later, id, _, seq),) = _written_after(store, number)
        assert (id, seq) == (session.id, session.head().seq)
        assert later > number
        number = later
    store.trash(session.id)
    assert _written_after(store, number - 1)[-1][1] == session.id


def test_numbers_are_not_given_again(store: Store) -> None:
    """Not even those of the newest session, after it was purged."""
    store.session("older").append(Message.user("a"))
    session = store.session("k")
    session.append(Message.user("a"), Message.user("b"))
    session.append(Message.user("c"))
    number = _written_after(store, 0)[-1][0]
    store.trash(session.id)
    store.purge(session.id)
    store.session("older").append(Message.user("b"))
    ((later, *_),) = _written_after(store, 0)
    assert later > number


def test_a_page_goes_on_where_the_last_one_ended(store: Store) -> None:
    """A session that is written to between two pages is not listed again."""
    for n in range(6):
        store.session(f"k{n}").append(Message.user("a"))
    first = store.sessions(limit=2)
    assert [info.key for info in first] == ["k5", "k4"]
    store.session("k5").append(Message.user("b"))
    store.session("k4").append(Message.user("b"))
    rest = store.sessions(limit=10, cursor=first.cursor)
    assert [info.key for info in rest] == ["k3", "k2", "k1", "k0"]


def test_a_changed_name_is_found_at_once(store: Store) -> None:
    session = store.session("k", scope="a", agent="b", cwd="/c")
    session.update(scope="x", cwd=None)
    assert (_keys(store, scope="a"), _keys(store, scope="x")) == ([], ["k"])
    assert (_keys(store, cwd="/c"), _keys(store, agent="b")) == ([], ["k"])
    store.trash(session.id)
    assert _keys(store, agent="b") == []
    store.restore(session.id)
    assert _keys(store, agent="b") == ["k"]
    assert store.verify() == []


# ---------------------------------------------------------------------------------- damage


_DAMAGES = {
    "one is missing": "DELETE FROM recent WHERE session = 2",
    "one is of no session": "INSERT INTO recent VALUES (99, 1, 99, 0, NULL, NULL, NULL)",
    "a scope is another": "UPDATE recent SET scope = 'other' WHERE session = 2",
    "one is in the trash": "UPDATE recent SET trashed = 1 WHERE session = 2",
    "one is of another tenant": "UPDATE recent SET tenant = 2 WHERE session = 2",
    "one is too new": "UPDATE recent SET recency = recency + 100 WHERE session = 2",
    "one is too old": "UPDATE recent SET recency = 0 WHERE session = 2",
}


@pytest.mark.parametrize("what", _DAMAGES)
def test_recent_sessions_that_differ_are_reported_and_salvaged(path: Path, what: str) -> None:
    """They block nothing: everything in the table is somewhere else, too."""
    with holdfast.open(path) as store:
        for key in ("a", "b", "c"):
            store.session(key, scope="s").append(Message.user(key))
    connection = apsw.Connection(str(path))
    connection.execute(_DAMAGES[what])
    connection.close()
    found = verify_file(path)
    assert found
    assert not any(damage.blocking for damage in found)
    salvage(path, path.with_name("b.db"))
    with holdfast.open(path.with_name("b.db")) as salvaged:
        assert salvaged.verify() == []
        assert _keys(salvaged, scope="s") == ["c", "b", "a"]


def test_a_damaged_head_does_not_stop_the_others(path: Path) -> None:
    """The number of the newest session is lost; the next one is above whatever it was."""
    with holdfast.open(path) as store:
        for key in ("a", "b"):
            store.session(key).append(Message.user(key))
        number = _written_after(store, 0)[-1][0]
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE heads SET activity = 1 WHERE session = 2")
    connection.close()
    with holdfast.open(path) as store:
        store.session("a").append(Message.user("goes on"))
        assert _activity(path, "a") > number
        assert [m.text for m in store.session("a").messages()] == ["a", "goes on"]


@pytest.mark.parametrize(
    "activity", ["1", "(SELECT max(activity) FROM heads)", "9223372036854775807"]
)
def test_salvage_gives_each_session_an_activity_number_of_its_own(
    path: Path, activity: str
) -> None:
    """A damaged one may be that of another session, or the last that there is."""
    keys = ["a", "b", "c", "d"]
    with holdfast.open(path) as store:
        for key in keys:
            store.session(key).append(Message.user(key))
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE heads SET activity = {activity} WHERE session IN (2, 3)")  # noqa: S608
    connection.close()
    report = salvage(path, path.with_name("b.db"))
    assert any("new activity number" in damage.what for damage in report.damage)
    with holdfast.open(path.with_name("b.db")) as salvaged:
        assert salvaged.verify() == []
        assert sorted(map(str, _keys(salvaged))) == keys
        for key in keys:
            salvaged.session(key).append(Message.user("goes on"))
            assert _keys(salvaged)[0] == key
            assert [m.text for m in salvaged.session(key).messages()] == [key, "goes on"]
        assert salvaged.verify() == []


def test_an_id_that_cannot_be_read_does_not_stop_other_sessions(path: Path) -> None:
    """Although it is the greatest one, by which new ids are known to be new."""
    with holdfast.open(path) as store:
        for key in ("a", "b"):
            store.session(key).append(Message.user(key))
    connection = apsw.Connection(str(path))
    last = "(SELECT max(place) FROM messages)"
    connection.execute(f"UPDATE messages SET id = CAST(x'307aff' AS TEXT) WHERE place = {last}")  # noqa: S608
    connection.close()
    with holdfast.open(path) as store:
        message = Message.user("goes on")
        for _ in range(2):
            store.session("a").append(message)
        assert [m.text for m in store.session("a").messages()] == ["a", "goes on"]


# ------------------------------------------------------------------- what is not read again


@pytest.mark.parametrize("durability", ["power", "process"])
def test_what_another_process_wrote_is_not_missed(path: Path, durability: Durability) -> None:
    """Its head and its ids, also after it started a new log."""
    with (
        holdfast.open(path, durability=durability) as one,
        holdfast.open(path, durability=durability) as two,
    ):
        mine, theirs = one.session("k"), two.session("k")
        for turn in range(30):
            mine.append(Message.user(f"mine {turn}"))
            message = Message.user("x" * 200_000 if turn % 5 == 0 else f"theirs {turn}")
            head = theirs.append(message)
            assert mine.append(message) == head, "an id is stored once"
            with pytest.raises(IdConflict):
                mine.append(Message.user("another body", id=message.id))
        assert [m.seq for m in mine.messages()] == list(range(1, 61))
        assert one.verify() == []


def test_what_was_rolled_back_is_not_known(store: Store) -> None:
    """Neither the head that a failed write put, nor the ids that it stored."""
    session = store.session("k")
    session.append(Message.user("a"))
    message = Message.user("b")

    class _Stop(Exception):
        pass

    def fail(tx: Transaction) -> None:
        head = tx.head(1)
        assert head is not None
        tx.put_head(msgspec.structs.replace(head, seq=head.seq + 5))
        raise _Stop

    before = session.head()
    for _ in range(2):
        with pytest.raises(_Stop):
            store.backend.write(fail)
    assert session.append(message).seq == before.seq + 1
    assert session.append(message).seq == before.seq + 1
    assert store.verify() == []


@pytest.mark.parametrize(
    "name",
    ["0", "00000000", "0\0", "0\ud800", "1", "zz", "ÿ", "é0", "\0", "0199" * 9, "~", "\U0010ffff"],
)
def test_an_id_is_stored_once_whatever_it_is_made_of(store: Store, name: str) -> None:
    """Above, below and between the generated ones."""
    session = store.session("k")
    session.append(Message.user("before"))
    head = session.append(Message.user("a", id=name))
    session.append(Message.user("after"))
    assert session.append(Message.user("a", id=name)) == head
    with pytest.raises(IdConflict):
        session.append(Message.user("b", id=name))
    with pytest.raises(IdConflict):
        session.append(Message.user("new"), Message.user("b", id=name))
    assert len(session.messages()) == 3


def test_an_older_id_is_stored_once(store: Store) -> None:
    """A message that was made earlier than one that is stored is looked up."""
    session = store.session("k")
    messages = [Message.user(f"{n}") for n in range(4)]
    for message in reversed(messages):
        session.append(message)
    for message in messages:
        session.append(message)
    assert [m.text for m in session.messages()] == ["3", "2", "1", "0"]


# ------------------------------------------------------------------------------------------ batches


def _submit_together(store: Store, operations: list[Operation[Any]]) -> list[PendingWrite[Any]]:
    """Run operations in one transaction: they wait until all are queued."""
    held = threading.Event()
    store.backend.submit(lambda _: held.wait(60))
    pending = [store.backend.submit(operation) for operation in operations]
    held.set()
    return pending


def _encoded(*messages: Message) -> list[codec.EncodedMessage]:
    return codec.encode_batch(messages, datetime.now(UTC))[0]


def test_writes_of_one_batch_see_each_other(store: Store) -> None:
    """A retry, a conflict, a fork and a look at the history, right behind what was appended."""
    session = store.session("k")
    n = number_of(session)
    one, two = Message.user("one"), Message.user("two")
    read: list[list[str]] = []

    def look(tx: Transaction) -> None:
        head = tx.head(n)
        assert head is not None
        span = Segment(head.branch, 1, head.seq, "")
        read.append([row.id for _, rows in tx.messages([span]) for row in rows])

    first, retry, conflict, later, _, last = _submit_together(
        store,
        [
            append.append(n, _encoded(one)),
            append.append(n, _encoded(one)),
            append.append(n, _encoded(Message.user("other", id=one.id))),
            append.append(n, _encoded(two)),
            look,
            append.append(n, _encoded(Message.user("three"))),
        ],
    )
    assert first.result() == retry.result() == Head(1, 1)
    with pytest.raises(IdConflict):
        conflict.result()
    assert (later.result(), last.result()) == (Head(1, 2), Head(1, 3))
    assert read == [[one.id, two.id]]
    assert [m.text for m in session.messages()] == ["one", "two", "three"]
    assert store.verify() == []


def test_an_error_that_looks_like_damage_of_a_read_loses_no_other_write(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One write has kept rows; another one reads, and takes the error for its own."""
    session = store.session("k")
    session.append(Message.user("before"))
    with_rows, failures = statements.with_rows, iter([True])

    def fail_once(name: str, count: int, columns: int) -> str:
        if name == "put_heads" and next(failures, False):
            raise apsw.CorruptError("a page cannot be read")
        return with_rows(name, count, columns)

    def look(tx: Transaction) -> int:
        return len(tx.list_sessions(SessionFilter(), before=None, limit=10))

    monkeypatch.setattr(transaction, "with_rows", fail_once)
    said, looked = _submit_together(
        store, [append.append(number_of(session), _encoded(Message.user("kept"))), look]
    )
    assert said.result() == session.head() == Head(1, 2)
    assert looked.result() == 1
    assert next(failures, None) is None
    assert [m.text for m in session.messages()] == ["before", "kept"]
    assert store.verify() == []


@pytest.mark.parametrize("sessions", [1, 3, 70])
def test_a_batch_is_few_statements(store: Store, sessions: int) -> None:
    """However many appends it has: their messages and heads are written together."""
    numbers = [number_of(store.session(f"k{n}")) for n in range(sessions)]
    for n in numbers:
        store.backend.write(append.append(n, _encoded(Message.user("first"))))
    statements: list[str] = []
    apsw.connection_hooks.append(lambda made: _trace(made, statements))
    appends = [append.append(n, _encoded(*[Message.user("x") for _ in range(2)])) for n in numbers]
    with holdfast.open(store.backend.url) as other:
        for pending in _submit_together(other, [*appends]):
            pending.result()
    apsw.connection_hooks.pop()
    written = [text for text in statements if not text.startswith(("SELECT", "PRAGMA", "BEGIN"))]
    rows = 2 * sessions
    blocks = rows // 64 + (rows % 64).bit_count() + sessions // 64 + (sessions % 64).bit_count()
    assert len([text for text in written if text.startswith(("INSERT", "REPLACE"))]) <= blocks + 1
    assert len([text for text in written if text.startswith("UPDATE recent")]) <= 1
    assert store.verify() == []


def _trace(connection: apsw.Connection, statements: list[str]) -> None:
    def note(_: apsw.Cursor, text: str, __: object) -> bool:
        statements.append(text)
        return True

    connection.exec_trace = note
