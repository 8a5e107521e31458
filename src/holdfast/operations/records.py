"""Records: state that lies behind messages, and goes where the history goes.

A record lies behind the message that was newest when it was stored. Whatever keeps that message
(a fork, a rewind to it or past it) keeps the record, whatever cuts it off cuts the record off. The
newest record of a kind and key is the current one. Records never move the head.

An id is stored once, as with messages. A record may be stored on the condition that it comes
`after` another one: that is compared with the newest one of its kind and key, in the transaction
that stores it.

Records of the store lie beyond sessions: of each scope, kind and key there is one, the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from holdfast.codec import (
    EncodedMessage,
    EncodedRecord,
    decode_record,
    is_same_record,
    record_blob_hashes,
)
from holdfast.errors import Conflict, Damaged, IdConflict, PreconditionFailed
from holdfast.operations.file_refs import check_file_refs
from holdfast.operations.history import DamageCallback, damage_of
from holdfast.storage.ancestry import Path, PathBranch, Segment, join_path, record_ranges
from holdfast.storage.prefetch import Prefetch, Prefetched
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import BlobUse, BranchStart, HeadRow, RecordRow, StoreRecordRow
from holdfast.values import Record

_PAGE_RECORDS: Final = 200


class NewRecords(msgspec.Struct, frozen=True):
    """The records of a batch that are to be stored: those of the session, and of the store."""

    own: Sequence[EncodedRecord] = ()
    shared: Sequence[EncodedRecord] = ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.own or self.shared)


NO_RECORDS = NewRecords()


def new_records(tx: Transaction, head: HeadRow, batch: Sequence[EncodedRecord]) -> NewRecords:
    """Return the records whose ids are not stored, in order, each id once.

    Raise `IdConflict` for a stored id with another body, `PreconditionFailed` if one must come
    after another that is not the newest, `Conflict` if the session is in the trash, `BadMessage` if
    a file's data is not stored.
    """
    if not batch:
        return NO_RECORDS
    names = _own_ids(batch)
    found = _new_records(tx, batch, tx.stored_records(head.branch, names) if names else {})
    if found:
        _refuse_trashed(tx, head)
        _check_order(tx, lambda: record_ranges(tx.path(head.branch)), (*found.own, *found.shared))
        check_file_refs(tx, (*found.own, *found.shared))
    return found


def first_records(
    tx: Transaction, start: BranchStart, batch: Sequence[EncodedRecord]
) -> NewRecords:
    """Return the records of a new session that the history it starts with does not have.

    Raise as `new_records` does.
    """
    if not batch:
        return NO_RECORDS
    ranges = record_ranges(_inherited_path(tx, start))
    known = tx.stored_records(start.parent, _own_ids(batch)) if start.parent and ranges else {}
    # The parent may have stored one of them after the start.
    stored = {name: row for name, row in known.items() if _is_stored(tx, ranges, row)}
    found = _new_records(tx, batch, stored)
    _check_order(tx, lambda: ranges, (*found.own, *found.shared))
    check_file_refs(tx, (*found.own, *found.shared))
    return found


def records_from(tx: Transaction, head: HeadRow, first: int) -> NewRecords:
    """Return the records behind message `first` and later ones, to be placed again with these.

    Raise `Damaged` if one of them is.
    """
    found: list[RecordRow] = []
    for segment in record_ranges(tx.path(head.branch)):
        if segment.last is not None and segment.last < first:
            break
        page = _page_before(tx, segment)
        while page:
            found += [row for row in reversed(page) if row.seq >= first]
            if page[0].seq < first or len(page) < _PAGE_RECORDS:
                break
            end = msgspec.structs.replace(segment, last_record=page[0].number - 1)
            page = _page_before(tx, end)
    return NewRecords([_encoded_again(row, first) for row in reversed(found)])


def _encoded_again(row: RecordRow, first: int) -> EncodedRecord:
    """Return a stored record, to be placed again in a batch that begins with message `first`."""
    _check_row(row)
    data, files = record_blob_hashes(row.body)
    record = Record(row.kind, key=row.key, id=row.id)
    hashes = tuple(dict.fromkeys((*data, *files)))
    return EncodedRecord(row.id, record, row.body, row.seq - first + 1, (), hashes)


def _own_ids(batch: Sequence[EncodedRecord]) -> list[str]:
    return [item.id for item in batch if item.record.scope is UNSET]


def _new_records(
    tx: Transaction, batch: Sequence[EncodedRecord], stored: Mapping[str, RecordRow]
) -> NewRecords:
    own = [item for item in batch if item.record.scope is UNSET]
    shared = [item for item in batch if item.record.scope is not UNSET]
    known = tx.store_record_ids([item.id for item in shared]) if shared else {}
    return NewRecords(list(_unstored(own, stored)), list(_unstored(shared, known)))


def _inherited_path(tx: Transaction, start: BranchStart) -> Path:
    """Return the path of the history that a new branch starts with."""
    if start.parent is None:
        return ()
    new = PathBranch(0, start.fork_seq, "", start.fork_record)
    return join_path([new], tx.path(start.parent))[:-1]


def _is_stored(tx: Transaction, ranges: Sequence[Segment], row: RecordRow) -> bool:
    """True if these segments have a record."""
    return any(row.id == one.id for _, one in tx.records(ranges, kind=row.kind, key=row.key))


def prefetch_records(hint: Prefetch, batch: Sequence[EncodedRecord]) -> Prefetch:
    """Return a hint of what else is read to store records, such as those they come after."""
    if not batch:
        return hint
    own = [item.record for item in batch if item.record.scope is UNSET]
    conditional = (record for record in own if record.after is not UNSET)
    shared = [(item.record, scope) for item in batch if (scope := item.record.scope) is not UNSET]
    return msgspec.structs.replace(
        hint,
        items=hint.items if hint.session is None else (*hint.items, "trashed"),
        records=tuple(record.id for record in own),
        record_names=tuple(dict.fromkeys((record.kind, record.key) for record in conditional)),
        store_records=tuple(record.id for record, _ in shared),
        store_record_names=tuple(
            dict.fromkeys((scope, record.kind, record.key) for record, scope in shared)
        ),
    )


def _refuse_trashed(tx: Transaction, head: HeadRow) -> None:
    if tx.is_trashed(head.session):
        row = tx.session(head.session)
        raise Conflict(
            f"session {row.id if row else '?'} is in the trash and takes no records; nothing was "
            "stored. Restore it first, with store.restore(…)."
        )


def _unstored(
    batch: Sequence[EncodedRecord], stored: Mapping[str, RecordRow | StoreRecordRow]
) -> Iterator[EncodedRecord]:
    """Yield the records that are new, each id once."""
    seen = {row.id: (_name(row), row.body) for row in stored.values()}
    for item in batch:
        if item.id not in seen:
            seen[item.id] = _name(item.record), item.body
            yield item
            continue
        name, body = seen[item.id]
        # One of the store that was replaced since has no body.
        if name != _name(item.record) or not (body is None or is_same_record(body, item.body)):
            raise IdConflict(item.id, 0)


def _name(of: Record | RecordRow | StoreRecordRow) -> tuple[object, str, str | None]:
    """Return what the newest of is current: a scope (a session's record has none), kind, key."""
    return UNSET if isinstance(of, RecordRow) else of.scope, of.kind, of.key


def _check_order(
    tx: Transaction,
    ranges: Callable[[], Sequence[Segment]],
    batch: Iterable[EncodedRecord],
) -> None:
    """Raise `PreconditionFailed` if a record must come after another that is not the newest."""
    newest: dict[tuple[object, ...], str | None] = {}
    for item in batch:
        record = item.record
        name = _name(record)
        if record.after is not UNSET:
            if name not in newest:
                newest[name] = _newest_id(tx, ranges, record)
            if newest[name] != record.after:
                raise PreconditionFailed(
                    f"after: the newest record of kind {record.kind!r} and key {record.key!r} is "
                    f"{newest[name]!r}, not {record.after!r}; nothing was stored. Read it again "
                    "and repeat the change."
                )
        newest[name] = item.id


def _newest_id(
    tx: Transaction, ranges: Callable[[], Sequence[Segment]], record: Record
) -> str | None:
    if record.scope is not UNSET:
        current = tx.store_record(record.scope, record.kind, record.key)
        return None if current is None else current.id
    found = tx.records(ranges(), kind=record.kind, key=record.key, limit=1)
    return found[0][1].id if found else None


# --------------------------------------------------------------------------------- storing


def store_records(
    tx: Transaction,
    head: HeadRow,
    batch: Sequence[EncodedMessage],
    fresh: Sequence[EncodedMessage],
    records: NewRecords,
) -> int | None:
    """Store records with the messages `fresh` of a `batch`; return the newest number.

    Each lies behind the message that comes before it in the batch, or behind the head.
    """
    if records.own:
        rows = list(_rows(head, batch, fresh, records.own))
        tx.add_records(head.branch, rows, _blob_uses(zip(rows, records.own, strict=True)))
    _put_shared(tx, records.shared)
    return (head.records or 0) + len(records.own) or None


def _put_shared(tx: Transaction, records: Iterable[EncodedRecord]) -> None:
    """Store records of the store, each in place of the one it replaces."""
    unused: set[str] = set()
    for item in records:
        unused |= tx.put_store_record(_store_row(item), _uses(0, item))
    if unused:
        tx.drop_blobs(unused)


def _rows(
    head: HeadRow,
    batch: Sequence[EncodedMessage],
    fresh: Sequence[EncodedMessage],
    records: Sequence[EncodedRecord],
) -> Iterator[RecordRow]:
    seqs = {message.id: seq for seq, message in enumerate(fresh, head.seq + 1)}
    seq, passed = head.seq, 0
    for number, item in enumerate(records, (head.records or 0) + 1):
        for message in batch[passed : item.behind]:
            seq = max(seq, seqs.get(message.id, seq))
        passed = item.behind
        record = item.record
        yield RecordRow.create(number, seq, item.id, (record.kind, record.key), item.body)


def _store_row(item: EncodedRecord) -> StoreRecordRow:
    record = item.record
    scope = None if record.scope is UNSET else record.scope
    return StoreRecordRow.create(scope, record.kind, record.key, item.id, item.body)


def _blob_uses(stored: Iterable[tuple[RecordRow, EncodedRecord]]) -> Iterator[BlobUse]:
    for row, item in stored:
        yield from _uses(row.number, item)


def _uses(number: int, item: EncodedRecord) -> Iterator[BlobUse]:
    for sha256, data in item.blobs:
        yield BlobUse(number, sha256, data)
    for sha256 in item.blob_refs:
        yield BlobUse(number, sha256)


# --------------------------------------------------------------------------- records of the store


def put_store_record(item: EncodedRecord) -> Operation[Record]:
    """Store a record of the store and return it as stored, also if it was stored before."""

    def run(tx: Transaction) -> Record:
        fresh = list(_unstored([item], tx.store_record_ids([item.id])))
        _check_order(tx, list, fresh)
        check_file_refs(tx, fresh)
        _put_shared(tx, fresh)
        row = tx.store_record_ids([item.id])[item.id]
        return item.record if row.body is None else read_record(tx, row)

    return Prefetched(run, prefetch_records(Prefetch(None), [item]))


# --------------------------------------------------------------------------------- reading


def branch_records(snapshot: Snapshot, own: Segment) -> Iterator[RecordRow]:
    """Yield a branch's own records in the order of their numbers, a page at a time.

    Storage returns the newest first, so the pages are found from the last; their bodies are read
    again on the way back.
    """
    if own.last_record == 0 or not snapshot.has_records(own.branch, own.last or 0):
        return
    page, ends = _page_before(snapshot, own), [own]
    while len(page) == _PAGE_RECORDS:
        ends.append(msgspec.structs.replace(own, last_record=page[0].number - 1))
        page = _page_before(snapshot, ends[-1])
    yield from page
    for end in reversed(ends[:-1]):
        yield from _page_before(snapshot, end)


def last_record(snapshot: Snapshot, segment: Segment, seq: int) -> RecordRow | None:
    """Return the last record of a segment, if its branch has one behind `seq` or before."""
    if segment.last_record == 0 or not snapshot.has_records(segment.branch, seq):
        return None
    return next((row for _, row in snapshot.records([segment], limit=1)), None)


def _page_before(snapshot: Snapshot, own: Segment) -> list[RecordRow]:
    """Return the last records of a segment, in the order of their numbers."""
    return [row for _, row in snapshot.records([own], limit=_PAGE_RECORDS)][::-1]


def read_record(
    snapshot: Snapshot,
    row: RecordRow | StoreRecordRow,
    owner: str | None = None,
    report: DamageCallback | None = None,
) -> Record:
    """Decode one stored record of the session `owner`; raise `Damaged` if it is, and report it."""
    try:
        return _decode(snapshot, row)
    except Damaged as error:
        if report is not None:
            report(damage_of(error, owner, row.seq if isinstance(row, RecordRow) else None))
        raise


def _check_row(row: RecordRow | StoreRecordRow) -> None:
    if not row.is_intact:
        raise Damaged(f"record {row.id!r} does not match its checksum; run store.verify().")


def _decode(snapshot: Snapshot, row: RecordRow | StoreRecordRow) -> Record:
    _check_row(row)
    found = decode_record(
        row.body or b"",
        kind=row.kind,
        key=row.key,
        id=row.id,
        seq=row.seq if isinstance(row, RecordRow) else None,
        blob=snapshot.blob,
    )
    return found if isinstance(row, RecordRow) else msgspec.structs.replace(found, scope=row.scope)
