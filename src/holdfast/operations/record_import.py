"""Bringing the records of another store, those beyond sessions, into this one.

An import adds a record only where this store has none of its scope, kind and key: what is here
already stays. A copy also brings one that replaced the record here since an earlier copy; any other
record here under the same scope, kind and key is refused before anything is written. The ids of
records that were replaced come along, so that a retry of their writes is recognized here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from holdfast.errors import Diverged
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import BlobUse, StoreRecordRow
from holdfast.values import Damage


class ImportedStoreRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record of another store; the blobs that it only refers to are there."""

    row: StoreRecordRow
    blobs: Sequence[tuple[str, bytes]] = ()
    blob_refs: Sequence[str] = ()


class BlobSource(Protocol):
    """The store or file that records come from."""

    def blob(self, sha256: str) -> bytes | None:
        """Return a blob; `None` if the source does not have it."""
        ...


class StoreRecordResult(msgspec.Struct):
    """How many records were added, how many were left out, and the damage."""

    added: int = 0
    left_out: int = 0
    damage: list[Damage] = []


def import_store_records(
    batch: Sequence[ImportedStoreRecord], source: BlobSource
) -> Operation[StoreRecordResult]:
    """Add the records whose scope, kind and key this store has none of."""
    attempted: set[str] = set()

    def run(tx: Transaction) -> StoreRecordResult:
        result = StoreRecordResult()
        known = tx.store_record_ids([item.row.id for item in batch])
        for item in batch:
            row, stored = item.row, known.get(item.row.id)
            if stored is not None and _name(stored) == _name(row):
                # If an earlier attempt seemed to fail but was stored, its records count as added.
                result.added += row.body is not None and row.id in attempted
            elif stored is not None or (row.body is not None and _current(tx, row)):
                result.left_out += 1
            else:
                attempted.add(row.id)
                result.added += row.body is not None
                _put(tx, item, source, result)
        return result

    return run


def copy_store_records(
    batch: Sequence[ImportedStoreRecord], source: BlobSource, is_in_source: Callable[[str], bool]
) -> Operation[StoreRecordResult]:
    """Add the records that are missing here; raise `Diverged` if others are in their place.

    `is_in_source` returns for an id whether the source has that record, or had it.
    """

    def run(tx: Transaction) -> StoreRecordResult:
        result = StoreRecordResult()
        refuse_diverged_records(tx, [item.row for item in batch], is_in_source)
        known = tx.store_record_ids([item.row.id for item in batch])
        for item in batch:
            if item.row.id not in known:
                result.added += item.row.body is not None
                _put(tx, item, source, result)
        return result

    return run


def refuse_diverged_records(
    snapshot: Snapshot, rows: Sequence[StoreRecordRow], is_in_source: Callable[[str], bool]
) -> None:
    """Raise `Diverged` if a record here is none that the source had in its place before."""
    known = snapshot.store_record_ids([row.id for row in rows])
    for row in rows:
        why = _divergence(snapshot, row, known.get(row.id), is_in_source)
        if why is not None:
            raise Diverged({None: f"the record of kind {row.kind!r} and key {row.key!r} {why}"})


def _divergence(
    snapshot: Snapshot,
    row: StoreRecordRow,
    stored: StoreRecordRow | None,
    is_in_source: Callable[[str], bool],
) -> str | None:
    """Return why a record of the source cannot take its place here; `None` if it can."""
    if stored is not None and _name(stored) != _name(row):
        return "has the id of another record in the target"
    if row.body is None:
        return None
    if stored is not None and stored.body is None:
        return "was replaced in the target"
    if stored is not None:
        return None if stored.crc == row.crc else "differs from the one in the target"
    current = _current(snapshot, row)
    if current is not None and not is_in_source(current.id):
        return f"is another one in the target, {current.id}"
    return None


def _name(row: StoreRecordRow) -> tuple[str | None, str, str | None]:
    return row.scope, row.kind, row.key


def _current(snapshot: Snapshot, row: StoreRecordRow) -> StoreRecordRow | None:
    return snapshot.store_record(row.scope, row.kind, row.key)


def _put(
    tx: Transaction, item: ImportedStoreRecord, source: BlobSource, result: StoreRecordResult
) -> None:
    unused = tx.put_store_record(item.row, list(_blob_uses(tx, item, source, result)))
    if unused:
        tx.drop_blobs(unused)


def _blob_uses(
    tx: Transaction, item: ImportedStoreRecord, source: BlobSource, result: StoreRecordResult
) -> Iterator[BlobUse]:
    yield from (BlobUse(0, sha256, data) for sha256, data in item.blobs)
    for sha256 in item.blob_refs:
        is_stored = tx.blob(sha256) is not None
        data = None if is_stored else source.blob(sha256)
        if data is None and not is_stored:
            what = f"the data of a file of record {item.row.id!r}, {sha256}, is missing"
            result.damage.append(Damage(what=what, blocking=False))
        else:
            yield BlobUse(0, sha256, data)
