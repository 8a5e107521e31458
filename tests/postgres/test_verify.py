"""Damage in the tables is reported: it is never a raw error, and never takes for ever to find."""

import psycopg
import pytest

import holdfast
from holdfast import File, Message
from holdfast.errors import Damaged
from holdfast.session import number_of
from tests.postgres.conftest import OpenStore

_LARGE = "of a large part " * 5_000


@pytest.fixture
def store(open_store: OpenStore) -> holdfast.Store:
    """A store with two sessions: of one, everything occurs; the other is a fork of it."""
    store = open_store()
    session = store.session("a", title="Parcel")
    session.append(Message.user(_LARGE), Message.user([File(data=b"of a file")]))
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
