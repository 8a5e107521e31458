"""Converting between values of the tables and those of the storage protocol.

Text is stored as its exact bytes. A *mark* is a 16-byte hash that stands for a name in an index,
because names may be longer than an index entry. What is found by a mark is compared by its name as
well.

The protocol's number of a branch is composed of its session's number and its number within the
session, so the session of a branch is known without a query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from psycopg.types.numeric import Int8

from holdfast import codec
from holdfast.errors import Damaged, StorageError
from holdfast.storage import metadata_marks
from holdfast.storage.postgres.arrays import (
    BigintArray,
    BinaryArray,
    UuidArray,
    bigints,
    booleans,
    byteas,
    uuids,
)
from holdfast.storage.rows import (
    BranchOwner,
    MessageRow,
    RecordRow,
    StoreRecordRow,
    is_summary,
)

BRANCH_NUMBER_BITS: Final = 24
KEY_START_BYTES: Final = 256  # in a migration, too
_NUMBER_MASK: Final = (1 << BRANCH_NUMBER_BITS) - 1
_ROW_OVERHEAD_BYTES: Final = 500  # columns other than the body
_UUID7: Final = re.compile("([0-9a-f]{8})-([0-9a-f]{4})-7")


def bind(text: str | None) -> bytes | None:
    """Encode text as its exact bytes, surrogates included."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def unbind(data: bytes | None) -> str | None:
    """Decode text from its exact bytes."""
    return None if data is None else text_of(data)


def text_of(data: bytes) -> str:
    """Decode text that is never NULL; raise `Damaged` if it is not valid UTF-8."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Damaged(
            "the store contains text that is not valid UTF-8; nothing was changed. Run "
            "store.verify() to list the damage."
        ) from error


def readable_text(data: bytes) -> str:
    """Decode text, with escapes in place of what is not valid UTF-8."""
    try:
        return text_of(data)
    except Damaged:
        return data.decode("utf-8", "backslashreplace")


def mark(text: str) -> UUID:
    """Return the hash that stands for a name in an index."""
    return UUID(bytes=sha256(codec.encode_text(text)).digest()[:16])


@lru_cache(1024)  # Each entry is looked up, and stored a moment later.
def entry_mark(session: int, id: str) -> UUID:
    """Return the mark of a session's message or record.

    Marks of a session are adjacent, and those of ids with a time (UUIDv7) are in order of time:
    then an append touches one page of the index, and not one for each message.
    """
    return UUID(bytes=_entry_mark_bytes(session, id))


def _entry_mark_bytes(session: int, id: str) -> bytes:
    prefix = session.to_bytes(8, "big")
    digest = sha256(prefix + codec.encode_text(id)).digest()
    timed = _UUID7.match(id)
    order = bytes.fromhex(timed[1] + timed[2]) if timed else digest[6:12]
    return prefix[4:] + order + digest[:6]


def entry_marks(entries: Iterable[tuple[int, str]]) -> tuple[BigintArray, UuidArray]:
    """Return the sessions and the marks of messages or records, one array for each column."""
    found = list(entries)
    marks = uuids([entry_mark(*entry).bytes for entry in found])
    return bigints([session for session, _ in found]), marks


def key_start(key: str | None) -> bytes | None:
    """Return as much of the beginning of a key as an index entry has room for."""
    return None if key is None else codec.encode_text(key)[:KEY_START_BYTES]


def metadata_uuids(pairs: Iterable[metadata_marks.Pair]) -> list[UUID]:
    """Return the marks of pairs of metadata, sorted."""
    return sorted(UUID(bytes=found) for found in metadata_marks.marks(pairs))


def mark_or_none(text: str | None) -> UUID | None:
    """Return the mark of a name, or `None` for `None`."""
    return None if text is None else mark(text)


def int8_array(values: Iterable[int]) -> list[Int8]:
    """Return integers as an array of bigint; the driver derives the type from the first."""
    return [Int8(value) for value in values]


def mark_or_zero(text: str | None) -> UUID:
    """Return the mark of a name; zero, which no name has, if there is none."""
    return UUID(int=0) if text is None else mark(text)


def name_mark(*names: str | None) -> UUID:
    """Return the mark of several names together."""
    marks = (mark_or_zero(name).bytes for name in names)
    return UUID(bytes=sha256(b"".join(marks)).digest()[:16])


def branch_number(session: int, number: int) -> int:
    """Return the protocol's number of a session's branch."""
    if number > _NUMBER_MASK:
        raise StorageError(f"a session has at most {_NUMBER_MASK} branches; nothing was stored.")
    return session << BRANCH_NUMBER_BITS | number


def split_branch(n: int) -> tuple[int, int]:
    """Return the session of a branch, and its number within the session."""
    return n >> BRANCH_NUMBER_BITS, n & _NUMBER_MASK


def owner(row: Sequence[Any]) -> BranchOwner:
    """Convert the columns of a session that a search reads."""
    n, id, scope, agent, cwd, title, parent, relation, branch, updated_at = row
    return BranchOwner(
        n, text_of(id), unbind(scope), unbind(agent), unbind(cwd), unbind(title), unbind(parent),
        relation, branch_number(n, branch), updated_at,
    )  # fmt: skip


def message_row(row: Sequence[Any]) -> MessageRow:
    """Convert a message; with an id that is not valid UTF-8 it does not match its checksum."""
    seq, id, turn, crc, body = row
    return MessageRow(seq, readable_text(id), turn, crc, body)


def message_values(session: int, row: MessageRow) -> tuple[object, ...]:
    """Return the column values of a message, without its branch."""
    return (
        row.seq, bind(row.id), entry_mark(session, row.id), row.turn, row.crc, is_summary(row),
        row.body,
    )  # fmt: skip


def message_columns(session: int, found: Sequence[MessageRow]) -> tuple[BinaryArray, ...]:
    """Return the values of many messages, one array for each column."""
    ids = [row.id for row in found]
    marks = uuids([_entry_mark_bytes(session, id) for id in ids])
    return (
        bigints([row.seq for row in found]), byteas([codec.encode_text(id) for id in ids]),
        marks, bigints([row.turn for row in found]),
        bigints([row.crc for row in found]), booleans([is_summary(row) for row in found]),
        byteas([row.body for row in found]),
    )  # fmt: skip


def split_by_size(messages: Sequence[MessageRow], max_bytes: int) -> Iterator[list[MessageRow]]:
    """Divide messages into parts of about `max_bytes`."""
    part: list[MessageRow] = []
    size = 0
    for row in messages:
        part.append(row)
        size += len(row.body) + _ROW_OVERHEAD_BYTES
        if size >= max_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def record_row(row: Sequence[Any]) -> RecordRow:
    """Convert a record; with text that is not valid UTF-8 it does not match its checksum."""
    number, seq, id, kind, key, crc, body = row
    key = None if key is None else readable_text(key)
    return RecordRow(number, seq, readable_text(id), readable_text(kind), key, crc, body)


def record_values(session: int, row: RecordRow) -> tuple[object, ...]:
    """Return the column values of a record, without its branch."""
    return (
        row.number, row.seq, bind(row.id), entry_mark(session, row.id), bind(row.kind),
        mark(row.kind), bind(row.key), mark_or_zero(row.key), row.crc, row.body,
    )  # fmt: skip


def store_record_row(row: Sequence[Any]) -> StoreRecordRow:
    """Convert a record of the store, as `record_row` does."""
    scope, kind, key, id, crc, body = row
    scope, key = (None if name is None else readable_text(name) for name in (scope, key))
    return StoreRecordRow(scope, readable_text(kind), key, readable_text(id), crc, body)


def store_record_values(row: StoreRecordRow) -> tuple[object, ...]:
    """Return the column values of a record of the store."""
    return (
        bind(row.scope), bind(row.kind), bind(row.key), name_mark(row.scope, row.kind, row.key),
        bind(row.id), mark(row.id), row.crc, row.body,
    )  # fmt: skip
