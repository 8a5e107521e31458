"""No value of a stored message can change unnoticed, in whatever store it is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import apsw
import msgspec
import pytest

import holdfast
from holdfast import File, Message, Store
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.rows import MessageRow
from tests.store_urls import superuser

_TEXT: Final = "the second message"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """A store with a session of two turns; the second message belongs to the first of them."""
    with holdfast.open(store_url) as store:
        session = store.session("talk")
        with session.turn() as turn:
            turn.user("the first message")
            turn.assistant(_TEXT)
        with session.turn() as turn:
            turn.user("the third message")
        session.append(Message.user("of no turn"))
        yield store


# What changes, in memory and in SQL; SQLite and PostgreSQL both accept these expressions.
_CHANGES: Final[dict[str, tuple[Callable[[MessageRow], MessageRow], str]]] = {
    "its turn": (lambda row: msgspec.structs.replace(row, turn=2), "turn = 2"),
    "that it has a turn": (lambda row: msgspec.structs.replace(row, turn=None), "turn = NULL"),
    "its id": (lambda row: msgspec.structs.replace(row, id="other"), "id = 'other'"),
    "its body": (
        lambda row: msgspec.structs.replace(row, body=row.body + b" "),
        "body = body || ' '",
    ),
    "its checksum": (lambda row: msgspec.structs.replace(row, crc=row.crc + 1), "crc = crc + 1"),
}


def _change(store: Store, url: str, what: str) -> None:
    """Change the second message, as Holdfast never does."""
    in_memory, in_sql = _CHANGES[what]
    if isinstance(store.backend, MemoryBackend):
        for rows in store.backend.tables.messages.values():
            rows |= {seq: in_memory(row) for seq, row in rows.items() if _TEXT.encode() in row.body}
        return
    where = f"body LIKE '%{_TEXT}%'"
    if url.startswith("postgresql:"):
        with superuser(url) as admin:
            changed = admin.execute(f"UPDATE messages SET {in_sql} WHERE {where}")  # noqa: S608
            assert changed.rowcount == 1
        return
    connection = apsw.Connection(str(Path(url.removeprefix("sqlite://"))))
    connection.execute(f"UPDATE messages SET {in_sql} WHERE {where}")  # noqa: S608
    assert connection.changes() == 1
    connection.close()


@pytest.mark.parametrize("what", _CHANGES)
def test_a_changed_value_of_a_message_is_noticed(store: Store, store_url: str, what: str) -> None:
    """By verifying the store, and by reading the message; the others are unchanged."""
    _change(store, store_url, what)
    session = store.session("talk")
    statuses = [message.status for message in session.messages()]
    assert statuses == ["complete", "damaged", "complete", "complete"]
    for found in (store.damage, store.verify()):
        (damage,) = found
        assert (damage.session_id, damage.seq) == (session.id, 2)
        assert damage.what.endswith("does not match its checksum")


def test_data_of_a_file_or_of_a_large_part_that_is_gone_is_noticed(
    store: Store, store_url: str
) -> None:
    """Both are stored beside their message, which refers to them."""
    session = store.session("talk")
    session.append(Message.user([File(data=b"a file")]), Message.user("large " * 20_000))
    assert store.verify() == []
    if isinstance(store.backend, MemoryBackend):
        store.backend.tables.blobs.clear()
    elif store_url.startswith("postgresql:"):
        with superuser(store_url) as admin:
            admin.execute("DELETE FROM blobs")
    else:
        connection = apsw.Connection(str(Path(store_url.removeprefix("sqlite://"))))
        connection.execute("DELETE FROM blobs")
        connection.close()
    found = {damage.seq for damage in store.verify() if damage.session_id == session.id}
    assert found == {5, 6}
