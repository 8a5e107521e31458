"""Load sessions and messages from any iterable, such as the rows of an application's old table.

The entries are appended to sessions by their keys, in batches. Those of a batch share a
transaction, so that many small sessions do not take a commit each, and are bounded in number and
size, so that memory is, too. A batch is stored completely or not at all. A repeated load continues,
since an id that the history has already is not stored again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast import codec, ids, validation
from holdfast.codec import EncodedRecord
from holdfast.errors import BadMessage, Invalid, ReadOnly
from holdfast.operations import sessions
from holdfast.operations.bulk_append import AppendCounts, SessionBatch, bulk_append
from holdfast.storage.protocol import Backend
from holdfast.storage.rows import SessionRow
from holdfast.transfer.import_ import ProgressMeter, run_without_deadline
from holdfast.values import LoadReport, Message, NewSession, Record, SessionFields

_MAX_BATCH_ENTRIES: Final = 2_000
_MAX_BATCH_SESSIONS: Final = 200
_MAX_BATCH_BYTES: Final = 4_000_000

LoadedSession = tuple[str | NewSession, Iterable[Message | Record]]
LoadProgress = Callable[[int], None]


def load(
    backend: Backend,
    now: Callable[[], datetime],
    given: Iterable[LoadedSession],
    progress: LoadProgress | None,
) -> LoadReport:
    """Append entries to sessions by key, and create those that do not exist."""
    if backend.readonly:
        raise ReadOnly("this store was opened for reading only; nothing was stored.")
    total, meter = AppendCounts(), ProgressMeter(0, None)
    for batch in _batches(given, now):
        stored = run_without_deadline(backend, bulk_append(batch), meter)
        total.sessions += stored.sessions
        total.messages += stored.messages
        total.records += stored.records
        total.skipped += stored.skipped
        if progress is not None:
            progress(total.messages + total.records + total.skipped)
    return LoadReport(
        sessions=total.sessions,
        messages=total.messages,
        records=total.records,
        skipped=total.skipped,
    )


class _Batch:
    """The entries of one transaction, by the key of their session."""

    def __init__(self) -> None:
        self._sessions: dict[str | None, SessionBatch] = {}
        self._entries = self._size = 0

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def sessions(self) -> list[SessionBatch]:
        """The sessions, in the order in which they were given."""
        return list(self._sessions.values())

    @property
    def is_full(self) -> bool:
        """True if nothing more may be added."""
        return (
            self._entries >= _MAX_BATCH_ENTRIES
            or self._size >= _MAX_BATCH_BYTES
            or len(self._sessions) >= _MAX_BATCH_SESSIONS
        )

    def session(self, row: SessionRow) -> SessionBatch:
        """Return the entries for a session, which it may have some of already."""
        return self._sessions.setdefault(row.key, SessionBatch(row, [], []))

    def add(self, row: SessionRow, entry: Message | Record, now: datetime) -> None:
        """Validate, encode and add an entry."""
        session = self.session(row)
        if isinstance(entry, Record):
            found = codec.encode_record(entry, now, len(session.messages))
            session.records.append(found)
            self._count(found)
        else:
            item = codec.encode(entry, now)
            session.messages.append(item)
            self._count(item)

    def _count(self, item: codec.EncodedMessage | EncodedRecord) -> None:
        self._entries += 1
        self._size += len(item.body) + sum(len(data) for _, data in item.blobs)


def _batches(
    given: Iterable[LoadedSession], now: Callable[[], datetime]
) -> Iterator[list[SessionBatch]]:
    batch = _Batch()
    for row, entries in map(_parse, given):
        if batch.is_full:
            yield batch.sessions
            batch = _Batch()
        batch.session(row)
        for entry in entries:
            if batch.is_full:
                yield batch.sessions
                batch = _Batch()
            batch.add(row, entry, now())
    if batch:
        yield batch.sessions


def _parse(item: LoadedSession) -> tuple[SessionRow, Iterable[Message | Record]]:
    """Return the row of a session, if it is to be created, and its entries."""
    if not isinstance(item, tuple) or len(item) != 2:  # noqa: PLR2004 - a pair
        raise Invalid("sessions: expected pairs of a key and its messages")
    named, entries = item
    if not isinstance(entries, Iterable):
        raise BadMessage("entries: expected messages and records")
    if not isinstance(named, str | Mapping):
        raise Invalid(
            "sessions: expected a key, or a dict with the key and the fields of a session"
        )
    fields: dict[str, Any] = {"key": named} if isinstance(named, str) else dict(named)
    key = validation.check_name(fields.pop("key", None), "key")
    validation.check_arguments(fields, SessionFields, "Store.load")
    return sessions.new_row(id=ids.session_id(), key=key, **fields), entries
