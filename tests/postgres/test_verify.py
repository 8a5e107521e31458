"""Damage in the tables is reported: it is never a raw error, and never takes for ever to find."""

import psycopg
import pytest

import holdfast
from holdfast import File, Message, Record
from holdfast.errors import Damaged
from holdfast.session import number_of
from tests.postgres.conftest import OpenStore

_LARGE = "of a large part " * 5_000


@pytest.fixture
def store(open_store: OpenStore) -> holdfast.Store:
    """A store with two sessions: of one, everything occurs; the other is a fork of it."""
    store = open_store()
    session = store.session("a", title="Parcel", metadata={"user": "42", "n": 1})
    session.append(Message.user(_LARGE), Message.user([File(data=b"of a file")]))
    session.append(Record("k", key="x", files={"state": File(data=_LARGE[::-1].encode())}))
    session.enqueue([File(data=b"of queued input")])
    session.fork(key="fork").append(Message.user("x"))
    store.session("whole").append(Message.user("x"))
    return store


def _damage(admin: psycopg.Connection, statement: str, *values: object) -> None:
    changed = admin.execute(statement.encode(), values).rowcount
    assert changed > 0


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE holdfast.sessions SET title = '\\xff' WHERE n = %s", "not valid UTF-8"),
        ("DELETE FROM holdfast.heads WHERE session = %s", "has no head"),
        (
            "UPDATE holdfast.heads SET seq = (1::bigint << 60) WHERE session = %s",
            "messages 3 to 1152921504606846976 are missing",
        ),
        (
            "UPDATE holdfast.messages SET id = '\\xff' WHERE session = %s AND seq = 1",
            "does not match its checksum",
        ),
        (
            "UPDATE holdfast.queue_blobs SET data = 'wrong' WHERE session = %s",
            "does not match its hash",
        ),
        ("DELETE FROM holdfast.queue_blobs WHERE session = %s", "queued input is missing"),
        ("DELETE FROM holdfast.queue WHERE session = %s", "counts 1 queued inputs and has 0"),
        ("DELETE FROM holdfast.blob_uses WHERE session = %s", "not recorded for it"),
        (
            "UPDATE holdfast.records SET key = '\\xff' WHERE session = %s",
            "does not match its checksum",
        ),
        ("UPDATE holdfast.heads SET records = NULL WHERE session = %s", "not counted by the head"),
        ("DELETE FROM holdfast.record_blobs WHERE session = %s", "not recorded for it"),
    ],
)
def test_a_damaged_row_is_reported_and_costs_only_its_session(
    store: holdfast.Store, postgres_admin: psycopg.Connection, statement: str, found: str
) -> None:
    session = store.session("a")
    _damage(postgres_admin, statement, number_of(session))
    damage = store.verify()
    assert any(found in one.what for one in damage)
    assert {one.session_id for one in damage} - {None} == {session.id}
    whole = store.session("whole")
    assert whole.id in {info.id for info in store.sessions()}
    whole.append(Message.user("goes on"))
    assert [m.text for m in whole.messages()] == ["x", "goes on"]
    with pytest.raises(Damaged):
        session.append(Message.user("x"))


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM holdfast.metadata_marks WHERE session = %s", {"a"}),
        ("UPDATE holdfast.metadata_marks SET session = session + 1 WHERE session = %s",
         {"a", "fork"}),
        ("UPDATE holdfast.metadata_marks SET mark = md5(mark::text)::uuid WHERE session = %s",
         {"a"}),
        ("UPDATE holdfast.metadata_marks SET session = 1000000 WHERE session = %s", {"a", None}),
    ],
)  # fmt: skip
def test_marks_that_differ_from_the_metadata_are_reported_and_stop_nothing(
    store: holdfast.Store,
    postgres_admin: psycopg.Connection,
    statement: str,
    found: set[str | None],
) -> None:
    """What they find is compared with the metadata; an update makes them right."""
    session = store.session("a")
    _damage(postgres_admin, statement, number_of(session))
    names = {info.id: info.key for info in store.sessions()}
    damage = store.verify()
    assert {names.get(one.session_id or "") for one in damage} == found
    assert not any(one.blocking for one in damage)
    assert store.sessions(metadata={"user": "42"}).items == ()
    session.update(metadata={"n": 2})
    assert [info.key for info in store.sessions(metadata={"user": "42"})] == ["a"]
    assert "a" not in {names.get(one.session_id or "") for one in store.verify()}


def test_a_session_whose_title_is_not_text_is_listed_as_damaged(
    store: holdfast.Store, postgres_admin: psycopg.Connection
) -> None:
    session = store.session("a")
    _damage(
        postgres_admin,
        "UPDATE holdfast.sessions SET title = '\\xff' WHERE n = %s",
        number_of(session),
    )
    listed = {info.id: info.state for info in store.sessions()}
    assert listed[session.id] == "damaged"
    assert len(listed) == 3
    assert store.sessions(text="x").items
    with pytest.raises(Damaged):
        store.get(session.id)


def test_a_damaged_blob_is_reported_even_if_no_message_refers_to_it(
    store: holdfast.Store, postgres_admin: psycopg.Connection
) -> None:
    postgres_admin.execute(
        "INSERT INTO holdfast.blobs (tenant, sha256, data)"
        " SELECT tenant, repeat('a', 64), 'wrong' FROM holdfast.blobs LIMIT 1"
    )
    (damage,) = store.verify()
    assert (damage.session_id, damage.blocking) == (None, False)
    store.session("a").append(Message.user("goes on"))
