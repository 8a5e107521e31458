"""Records in SQLite: the reads and writes of their tables, as parts of snapshot and transaction.

A record's rowid, the column `place`, is its branch and its number there. Numbers and the seqs that
records lie behind grow together along a branch, so the records of a segment are one range of
places, found by bisection. The newest of a kind and key is found by the index `records_by_key`,
whose entries of one kind and key are in the order of seq and place. The newest of a kind, or of it
with a prefix of the key, are looked for among the last records of all kinds first: frequent ones
are there, and rare ones have few entries in the index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import apsw
from msgspec import UNSET, UnsetType

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.storage.ancestry import Path, Segment, has_record
from holdfast.storage.columns import Column
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import BlobUse, CutResult, RecordRow, StoreRecordRow, prefix_range
from holdfast.storage.sqlite.statements import SQL, json_array, with_parameters
from holdfast.storage.sqlite.tables import (
    BOUNDS,
    SEQ_BITS,
    SEQ_MASK,
    bind,
    bind_json,
    message_rowid,
    row_check,
    unbind,
)
from holdfast.storage.write_queue import CountingTransaction

_, _MAX_NUMBER = BOUNDS["number"]
_NO_LIMIT: Final = -1
_MIN_RECENT: Final = 256
_RECENT_PER_RECORD: Final = 4
_IDS_PER_QUERY: Final = 64
_MAX_ROWIDS: Final = 1000

_KIND: Final = Column("kind", "name")
_KEY: Final = Column("key", "name", optional=True)
_ID: Final = Column("id", "name")
_CRC: Final = Column("crc", "integer")
_BODY: Final = Column("body", "json")
RECORD_COLUMNS: Final = (Column("seq", "seq"), _ID, _KIND, _KEY, _CRC, _BODY)
STORE_RECORD_COLUMNS: Final = (
    Column("scope", "name", optional=True),
    _KIND,
    _KEY,
    _ID,
    _CRC,
    Column("body", "json", optional=True),
)
_is_record: Final = row_check((Column("number", "number"), *RECORD_COLUMNS))
_is_store_record: Final = row_check(STORE_RECORD_COLUMNS)


def record_values(row: RecordRow) -> tuple[str | bytes | int | None, ...]:
    """Return the columns of a record as they are stored, without its rowid."""
    return row.seq, bind(row.id), bind(row.kind), bind(row.key), row.crc, bind_json(row.body)


def store_record_values(row: StoreRecordRow) -> tuple[str | bytes | int | None, ...]:
    """Return the columns of a store record as they are stored, without its number and tenant."""
    names = (row.scope, row.kind, row.key, row.id)
    return *map(bind, names), row.crc, bind_json(row.body)


class RecordSnapshot(Snapshot):
    """The reads of records on one connection."""

    _connection: apsw.Connection
    _execute: Callable[..., apsw.Cursor]
    _tenant: int
    _paths: dict[int, Path]

    def _first(self, name: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._execute(SQL[name], values).fetchone()
        return row

    def records(
        self,
        ranges: Iterable[Segment],
        *,
        kind: str | None = None,
        key: str | UnsetType | None = UNSET,
        prefix: str | None = None,
        limit: int | None = None,
    ) -> list[tuple[str, RecordRow]]:
        """Return the records of these segments, the last first; at most `limit`."""
        found: list[tuple[str, RecordRow]] = []
        for segment in ranges:
            missing = _NO_LIMIT if limit is None else limit - len(found)
            if missing == 0:
                break
            if segment.last_record == 0:
                continue
            if kind is not None and key is not UNSET:
                rows = self._named_records(segment, kind, key, missing)
            else:
                rows = self._listed_records(segment, kind, prefix, missing)
            self._refuse_beyond_head(segment, rows)
            found += [(segment.session_id, row) for row in rows]
        return found

    def _named_records(
        self, segment: Segment, kind: str, key: str | None, limit: int
    ) -> list[RecordRow]:
        """Return the newest records of a kind and key; two or three look-ups.

        The last record of all kinds is read from the table: a damaged index must not hide it.
        """
        number = SEQ_MASK if segment.last_record is None else segment.last_record
        newest = self._record_at(segment.branch, number)
        if newest is None:
            return []
        last, last_seq, *last_name = newest
        name = (bind(kind), bind(key))
        seq = last_seq if segment.last is None else min(last_seq, segment.last)
        found: list[Any] = []
        if segment.last_record is not None:
            # What the branch stored later lies behind the same message as this one, or later ones.
            end = (seq, message_rowid(segment.branch, last))
            values = (segment.branch, *name, *end, limit)
            found += self._execute(SQL["records_behind"], values)
            seq -= 1
        if len(found) != limit:
            values = (segment.branch, *name, segment.first - 1, seq, limit - len(found))
            found += self._execute(SQL["records_by_key"], values)
        rows = [_record_row(row) for row in found]
        is_cut = segment.last is not None and last_seq > segment.last
        if tuple(last_name) == name and not is_cut and (not rows or rows[0].number != last):
            raise self._record_error(segment, "that its index does not have")
        return rows

    def _listed_records(
        self, segment: Segment, kind: str | None, prefix: str | None, limit: int
    ) -> list[RecordRow]:
        """Return the newest records of a segment, of a kind and with a prefix of their keys."""
        places = self._places(segment)
        if places is None:
            return []
        if kind is None:
            rows = self._execute(SQL["records"], (*places, limit))
            return [_record_row(row) for row in rows]
        values: tuple[object, ...] = (segment.branch, bind(kind), *places, limit)
        keys = prefix_range(codec.encode_text(prefix)) if prefix else ()
        if limit != _NO_LIMIT:
            recent = max(_MIN_RECENT, _RECENT_PER_RECORD * limit)
            statement = "recent_records_by_prefix" if prefix else "recent_records"
            rows = self._execute(SQL[statement], (*values[1:], recent, *keys))
            found = [_record_row(row) for row in rows]
            if len(found) == limit:
                return found
        statement, values = "records_by_prefix" if prefix else "records_by_kind", (*values, *keys)
        return [_record_row(row) for row in self._execute(SQL[statement], values)]

    def record_numbers(
        self,
        segment: Segment,
        kind: str,
        key: str | UnsetType | None = UNSET,
        *,
        limit: int | None = None,
    ) -> list[int]:
        """Return the numbers of a segment's records of a kind and key; only the index is read."""
        places = None if segment.last_record == 0 else self._places(segment)
        if places is None:
            return []
        statement = "numbers_by_kind" if key is UNSET else "numbers_by_key"
        name = (bind(kind),) if key is UNSET else (bind(kind), bind(key))
        values = (segment.branch, *name, *places, _NO_LIMIT if limit is None else limit)
        return [row[0] for row in self._execute(SQL[statement], values)]

    def _places(self, segment: Segment) -> tuple[int, int] | None:
        """Return the first and last place of a segment's records; `None` if it has none."""
        ends = self._first("record_ends", *_all_places(segment.branch))
        if ends is None or ends[0] is None:
            return None
        first, lowest, last, highest = ends
        numbers = range(first & SEQ_MASK, (last & SEQ_MASK) + 1)

        def seq_at(number: int) -> int:
            return self._seq_at(segment.branch, number)

        low, high = 0, len(numbers)
        if lowest < segment.first - 1:
            low = bisect_left(numbers, segment.first - 1, key=seq_at)
        if segment.last is not None and highest > segment.last:
            high = bisect_right(numbers, segment.last, key=seq_at)
        last = first + high - 1
        if segment.last_record is not None:
            last = min(last, message_rowid(segment.branch, segment.last_record))
        return (first + low, last) if first + low <= last else None

    def _seq_at(self, branch: int, number: int) -> int:
        """Return the seq of a branch's record with this number, or of the last one before it."""
        found = self._record_at(branch, number)
        return 0 if found is None else found[1]

    def _record_at(self, branch: int, number: int) -> tuple[Any, ...] | None:
        """Return number, seq, kind and key of this record, or of the last one before it."""
        start, _ = _all_places(branch)
        return self._first("record_at", start, message_rowid(branch, number))

    def _refuse_beyond_head(self, segment: Segment, rows: Sequence[RecordRow]) -> None:
        """Raise `Damaged` if the active branch has a record that its head does not count."""
        if segment.last is not None or not rows:
            return
        head = self._first("record_head", segment.branch)
        if head is not None and (rows[0].seq > head[0] or rows[0].number > (head[1] or 0)):
            raise self._record_error(segment, "beyond its head")

    def _record_error(self, segment: Segment, which: str) -> Damaged:
        return Damaged(
            f"session {segment.session_id} has a record {which}; nothing was changed. Run "
            "store.verify() to list the damage, and store.salvage(to) to copy everything readable "
            "into a new store."
        )

    def stored_records(self, branch: int, ids: Sequence[str]) -> dict[str, RecordRow]:
        """Return the records of a branch's history that have these ids."""
        found: dict[str, RecordRow] = {}
        for start in range(0, len(ids), _IDS_PER_QUERY):
            names = [bind(name) for name in ids[start : start + _IDS_PER_QUERY]]
            for segment in self._segments_of_ids("places_of_record_ids", branch, names):
                rows = self._execute(
                    with_parameters("records_by_id", len(names)),
                    (*_all_places(segment.branch), *names),
                )
                for row in map(_record_row, rows):
                    if has_record(segment, row.seq, row.number):
                        found[row.id] = row
        return found

    def _segments_of_ids(
        self, statement: str, branch: int, names: Sequence[object]
    ) -> Sequence[Segment]:
        """Return the segments of a branch's history that may contain these ids.

        New ids are in no branch, so in most cases the ancestry is not read at all.
        """
        known = self._paths.get(branch)
        if known is not None and len(known) == 1:
            return known
        query = with_parameters(statement, len(names))
        rowids = [row[0] for row in self._execute(query, tuple(names))]
        if not rowids:
            return ()
        path = self.path(branch)
        if len(rowids) > _MAX_ROWIDS:
            return path
        branches = {rowid >> SEQ_BITS for rowid in rowids}
        return [segment for segment in path if segment.branch in branches]

    def has_records(self, branch: int, seq: int) -> bool:
        """True if a branch has a record of its own behind message `seq` or before."""
        row = self._first("first_record_seq", *_all_places(branch))
        return row is not None and row[0] <= seq

    def store_record(self, scope: str | None, kind: str, key: str | None) -> StoreRecordRow | None:
        """Return the current record of the store with this scope, kind and key."""
        row = self._first("store_record", self._tenant, bind(kind), bind(key), bind(scope))
        return None if row is None else _store_record_row(row)

    def store_record_ids(self, ids: Sequence[str]) -> dict[str, StoreRecordRow]:
        """Return the records of the store that have these ids."""
        found: dict[str, StoreRecordRow] = {}
        for start in range(0, len(ids), _IDS_PER_QUERY):
            names = [bind(name) for name in ids[start : start + _IDS_PER_QUERY]]
            rows = self._execute(
                with_parameters("store_records_by_id", len(names)), (self._tenant, *names)
            )
            found |= {row.id: row for row in map(_store_record_row, rows)}
        return found

    def store_records(self) -> Iterator[StoreRecordRow]:
        """Yield all records of the store, oldest first."""
        rows = self._execute(SQL["store_records"], (self._tenant,))
        return map(_store_record_row, rows)


class RecordTransaction(RecordSnapshot, CountingTransaction):
    """The writes of records. `writes` counts the writes, so that a refusal before any is known."""

    _wipe_note: str

    def _write(self, name: str, *values: object) -> None:
        self.writes += 1
        self._execute(SQL[name], values)

    def _insert_returning(self, name: str, *values: object) -> int:
        self.writes += 1
        row = self._first(name, *values)
        assert row is not None  # noqa: S101 - INSERT … RETURNING gives its row
        number: int = row[0]
        if number > _MAX_NUMBER:
            raise _no_numbers_left()
        return number

    def _blob_number(self, blob: BlobUse) -> int:
        """Return the number of a blob, which is stored unless it is there with this data."""
        row = self._first("find_blob", self._tenant, blob.sha256, blob.data)
        if row is None:
            return self._insert_returning("add_blob", self._tenant, blob.sha256, blob.data)
        number: int = row[0]
        if row[1] == 0:
            self._write("put_blob", number, blob.data)
        return number

    def _refuse_beyond_head(self, segment: Segment, rows: Sequence[RecordRow]) -> None:
        """Refuse nothing: an operation stores its records before the head that counts them."""

    def add_records(
        self, branch: int, rows: Sequence[RecordRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert records with the numbers they have, and the blobs they refer to."""
        if any(row.number > _MAX_NUMBER for row in rows):
            raise _no_numbers_left()
        self.writes += 1
        self._connection.executemany(
            SQL["add_record"],
            [(message_rowid(branch, row.number), *record_values(row)) for row in rows],
        )
        for blob in blobs:
            place = message_rowid(branch, blob.seq)
            self._write("use_blob_in_record", place, self._blob_number(blob))

    def drop_records(self, branch: int, numbers: Collection[int]) -> CutResult:
        """Erase records of a branch by their numbers."""
        places = json_array(message_rowid(branch, number) for number in numbers)
        self._write("add_wipe_note", self._wipe_note)
        return self._drop_records("", places)

    def _cut_records(self, branch: int, last_seq: int | None, last_record: int) -> CutResult:
        """Erase a branch's records after this number and behind later messages, or all of them."""
        end = (-1, 0) if last_seq is None else (last_seq, last_record)
        last_place = message_rowid(branch, end[1])
        return self._drop_records("_after", *_all_places(branch), end[0], last_place)

    def _drop_records(self, which: str, *values: object) -> CutResult:
        """Erase the records that statements with this ending select, and what they refer to."""
        rows = self._execute(SQL[f"blobs_of_records{which}"], values)
        blobs = frozenset(row[0] for row in rows)
        if blobs:
            self._write(f"drop_record_blobs{which}", *values)
        self._write(f"drop_records{which}", *values)
        return CutResult(0, blobs, self._connection.changes())

    def put_store_record(
        self, row: StoreRecordRow, blobs: Iterable[BlobUse] = ()
    ) -> frozenset[str]:
        """Insert a record of the store; the one that it replaces loses its body."""
        unused: frozenset[str] = frozenset()
        if row.body is not None:
            name = (self._tenant, bind(row.kind), bind(row.key), bind(row.scope))
            replaced = self._first("store_record_number", *name)
            if replaced is not None:
                unused = self._empty_store_record(*replaced)
        values = store_record_values(row)
        number = self._insert_returning("add_store_record", self._tenant, *values)
        for blob in blobs:
            self._write("use_blob_in_store_record", number, self._blob_number(blob))
        return unused

    def _empty_store_record(self, number: int, *columns: object) -> frozenset[str]:
        """Erase the body of a record that is replaced; return the blobs that it referred to."""
        old = _store_record_row(columns)
        empty = StoreRecordRow.create(old.scope, old.kind, old.key, old.id, None)
        rows = self._execute(SQL["blobs_of_store_record"], (number,))
        blobs = frozenset(row[0] for row in rows)
        self._write("empty_store_record", number, empty.crc)
        if blobs:
            self._write("drop_store_record_blobs", number)
        return blobs


def _all_places(branch: int) -> tuple[int, int]:
    return message_rowid(branch, 1), message_rowid(branch, SEQ_MASK)


def _record_row(columns: Sequence[Any]) -> RecordRow:
    """Return a record that was read; raise `Damaged` if its columns cannot hold the values."""
    if not _is_record(*columns):
        raise Damaged("a record is not what a store writes; run store.verify().")
    number, seq, id, kind, key, crc, body = columns
    return RecordRow(number, seq, unbind(id), unbind(kind), unbind(key), crc, body)


def _store_record_row(columns: Sequence[Any]) -> StoreRecordRow:
    """Return a store record that was read; raise `Damaged` as `_record_row` does."""
    if not _is_store_record(*columns):
        raise Damaged("a record of the store is not what a store writes; run store.verify().")
    scope, kind, key, id, crc, body = columns
    return StoreRecordRow(unbind(scope), unbind(kind), unbind(key), unbind(id), crc, body)


def _no_numbers_left() -> Damaged:
    return Damaged("the store has no numbers left for new rows; run store.salvage(to).")
