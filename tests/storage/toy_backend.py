"""A backend as another package would write it: a store is a folder, with a file for each tenant.

The file has the number of a commit, a checksum, and all tables, pickled. A write takes the tenant's
lock, which excludes the writes of all threads and processes, and runs its operation on a copy of
the tables. A commit writes the copy to a second file, syncs it and renames it over the first. So a
reader needs no lock: the file that it opens is one whole commit, and stays so while it is read.

Rows are frozen and tables are flat dicts, so copying the dicts copies everything. A commit takes as
long as the store is large, and pickle trusts what it reads: this is an example, not for use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple, replace

from holdfast import codec, errors
from holdfast.clock import Clock
from holdfast.storage import protocol
from holdfast.storage.ancestry import Segment
from holdfast.storage.rows import (
    BlobUse,
    BranchRow,
    BranchStart,
    CutResult,
    HeadRow,
    ListedSession,
    MessageRow,
    QueueRow,
    RecordRow,
    SessionFilter,
    SessionRow,
    SessionRowCounts,
    StoreRecordRow,
    ToolRow,
    TurnRow,
    UsageRow,
    sort_usage,
)  # fmt: skip
from holdfast.titles import normalize_title
from holdfast.url import Durability, Location
from holdfast.values import Damage

T = TypeVar("T")
V = TypeVar("V")
KeyT = TypeVar("KeyT", bound=tuple[object, ...])
_POLL_INTERVAL_S: Final = 0.005
_NUMBER_BYTES: Final = 8
_HEADER_BYTES: Final = _NUMBER_BYTES + sha256().digest_size


class Tables(msgspec.Struct):
    """All rows of a tenant. `last` is the last number that was assigned, to a row of any kind."""

    commit: int = 0
    last: int = 0
    sessions: dict[int, SessionRow] = {}
    heads: dict[int, HeadRow] = {}  # by session
    branches: dict[int, BranchRow] = {}
    messages: dict[tuple[int, int], MessageRow] = {}  # by branch and seq
    records: dict[tuple[int, int], RecordRow] = {}  # by branch and number
    store_records: dict[int, StoreRecordRow] = {}  # in the order in which they were put
    blobs: dict[str, bytes] = {}
    blob_uses: dict[tuple[int, int, str], None] = {}  # by branch, seq and hash
    record_blobs: dict[tuple[int, int, str], None] = {}  # by branch, number and hash
    store_record_blobs: dict[tuple[int, str], None] = {}  # by number and hash
    turns: dict[tuple[int, int], TurnRow] = {}  # by session first, as all below
    tools: dict[tuple[int, int, str], ToolRow] = {}
    drafts: dict[tuple[int, int, int], bytes] = {}
    queue: dict[tuple[int, int], QueueRow] = {}
    usage: dict[tuple[int, int, str | None], UsageRow] = {}

    def copy(self) -> Tables:
        """Return a copy that can be changed independently."""
        return Tables(*map(copy, astuple(self)))


def _keys(table: dict[KeyT, V], *start: int) -> list[KeyT]:
    """Return the keys that start with these numbers, in order of insertion."""
    return [key for key in table if key[: len(start)] == start]


def _rows(table: dict[KeyT, V], *start: int) -> list[V]:
    """Return the rows whose keys start with these numbers."""
    return [table[key] for key in _keys(table, *start)]


def _drop(table: dict[KeyT, V], *start: int) -> list[KeyT]:
    """Drop the rows whose keys start with these numbers; return the keys."""
    keys = _keys(table, *start)
    for key in keys:
        del table[key]
    return keys


class ToySnapshot(protocol.Snapshot):
    """Reads of the tables of one commit."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def now(self) -> int:
        return self._clock.micros()

    def monotonic(self) -> int:
        return self._clock.monotonic()

    def sessions(
        self,
        by: protocol.SessionField,
        value: str | int,
        *,
        trashed: bool | None = None,
        stubs: bool = False,
        limit: int | None = None,
    ) -> list[SessionRow]:
        found = (
            row
            for row in self._tables.sessions.values()
            if self._matches(row, by, value)
            and trashed in {None, row.trashed_at is not None}
            and (stubs or row.purged_at is None)
        )
        return list(islice(found, limit))

    def _matches(self, row: SessionRow, by: protocol.SessionField, value: str | int) -> bool:
        if by == "id_prefix":
            return row.id.startswith(str(value))
        if by == "title_any_case":
            return normalize_title(row.title or "") == normalize_title(str(value))
        if by == "run_id":
            return any(turn.run_id == value for turn in self.turns(row.n))
        if by == "message_id":
            own = {branch.n for branch in self.branches(session=row.n)}
            stored = self._tables.messages.items()
            return any(at in own and found.id == value for (at, _), found in stored)
        return bool(getattr(row, by) == value)

    def head(self, n: int) -> HeadRow | None:
        return self._tables.heads.get(n)

    def list_sessions(
        self, listing: SessionFilter, *, before: int | None, limit: int
    ) -> list[ListedSession]:
        heads = (row for row in reversed(self._heads()) if before is None or row.activity < before)
        pairs = ((self._tables.sessions[head.session], head) for head in heads)
        return list(islice((pair for pair in pairs if listing.matches(*pair)), limit))

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        heads = (row for row in self._heads() if row.activity > number)
        return [
            (head.activity, self._tables.sessions[head.session].id, head.branch_no, head.seq)
            for head in islice(heads, limit)
        ]

    def _heads(self) -> list[HeadRow]:
        return sorted(self._tables.heads.values(), key=lambda row: row.activity)

    def branches(self, **wanted: str | int | None) -> list[BranchRow]:
        fields = [(name, value) for name, value in wanted.items() if value is not None]
        return [
            self._completed(row)
            for row in self._tables.branches.values()
            if all(getattr(row, name) == value for name, value in fields)
        ]

    def _completed(self, row: BranchRow) -> BranchRow:
        """Return a branch with the fields that other rows determine."""
        session, head = self._tables.sessions[row.session], self.head(row.session)
        return replace(
            row,
            session_id=session.id,
            purged=session.purged_at is not None,
            last_seq=row.last_seq if head is None or head.branch != row.n else head.seq,
        )

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        return [(segment.session_id, list(self._messages(segment))) for segment in ranges]

    def _messages(self, segment: Segment) -> Iterator[MessageRow]:
        last = segment.last
        if last is None:
            (branch,) = self.branches(n=segment.branch)
            last = branch.last_seq
        for seq in range(segment.first, last + 1):
            if (segment.branch, seq) in self._tables.messages:
                yield self._tables.messages[segment.branch, seq]

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        history = self.messages(self.path(branch))
        return {row.id: (owner, row) for owner, rows in history for row in rows if row.id in ids}

    def records(
        self,
        ranges: Iterable[Segment],
        *,
        kind: str | None = None,
        key: str | UnsetType | None = UNSET,
        prefix: str | None = None,
        limit: int | None = None,
    ) -> list[tuple[str, RecordRow]]:
        found = (
            (segment.session_id, row)
            for segment in ranges
            for row in reversed(_rows(self._tables.records, segment.branch))
            if segment.first - 1 <= row.seq
            and (segment.last is None or row.seq <= segment.last)
            and (segment.last_record is None or row.number <= segment.last_record)
            and (kind is None or row.kind == kind)
            and (key is UNSET or row.key == key)
            and (prefix is None or (row.key or "").startswith(prefix))
        )
        return list(islice(found, limit))

    def store_records(self) -> list[StoreRecordRow]:
        return list(self._tables.store_records.values())

    def stored_blob(self, sha256: str) -> bytes | None:
        return self._tables.blobs.get(sha256)

    def turns(
        self, session: int, *, number: int | None = None, limit: int | None = None
    ) -> list[TurnRow]:
        rows = sorted(_rows(self._tables.turns, session), key=lambda row: row.number)
        found = [row for row in rows if number in {None, row.number}]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        return _rows(self._tables.tools, session, turn)

    def draft(self, session: int, turn: int, *, limit: int | None = None) -> list[bytes]:
        keys = sorted(_keys(self._tables.drafts, session, turn))
        return [self._tables.drafts[key] for key in keys[:limit]]

    def queue(self, session: int) -> list[QueueRow]:
        return _rows(self._tables.queue, session)

    def usage(
        self, *, session: int | None = None, model: str | None = None, limit: int | None = None
    ) -> list[UsageRow]:
        if session is not None:
            return sort_usage(_rows(self._tables.usage, session))[:limit]
        newest = sorted(self._tables.usage.items(), key=lambda item: (item[1].day, item[0][0]))
        return [row for _, row in reversed(newest) if row.model == model][:limit]


class ToyTransaction(ToySnapshot, protocol.Transaction):
    """Writes to tables that no reader has."""

    def _assign_number(self) -> int:
        self._tables.last += 1
        return self._tables.last

    def add_session(self, row: SessionRow, start: BranchStart) -> int:
        n = self._assign_number()
        self._tables.sessions[n] = replace(row, n=n)
        if row.purged_at is None:
            branch = self.add_branch(n, 1, start, row.created_at)
            self.put_head(HeadRow.first(n, branch, start, row.created_at))
        return n

    def put_session(self, row: SessionRow) -> None:
        self._tables.sessions[row.n] = row

    def drop_session(self, n: int) -> None:
        del self._tables.sessions[n]

    def drop_session_rows(self, session: int) -> SessionRowCounts:
        tables = self._tables
        tables.heads.pop(session, None)
        _drop(tables.tools, session)
        _drop(tables.usage, session)
        return SessionRowCounts(
            turns=len(_drop(tables.turns, session)),
            drafts=len(_drop(tables.drafts, session)),
            queued=len(_drop(tables.queue, session)),
        )

    def put_head(self, row: HeadRow) -> None:
        self._tables.heads[row.session] = replace(row, activity=self._assign_number())

    def add_branch(self, session: int, number: int, start: BranchStart, created_at: int) -> int:
        n = self._assign_number()
        self._tables.branches[n] = BranchRow.create(n, session, number, start, created_at)
        return n

    def end_branch(self, n: int, last_seq: int) -> None:
        self._tables.branches[n] = replace(self._tables.branches[n], last_seq=last_seq)

    def cut_branch(self, n: int, last_seq: int | None, last_record: int = 0) -> CutResult:
        cut = [key for key in _keys(self._tables.messages, n) if key[1] > (last_seq or 0)]
        blobs: set[str] = set()
        for key in cut:
            del self._tables.messages[key]
            blobs |= self._drop_blob_uses(*key)
        records = self.drop_records(
            n,
            [
                row.number
                for row in _rows(self._tables.records, n)
                if last_seq is None or row.seq > last_seq or row.number > last_record
            ],
        )
        if last_seq is None:
            del self._tables.branches[n]
        else:
            self.end_branch(n, last_seq)
        return CutResult(len(cut), records.blobs | blobs, records.records)

    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        self._tables.messages.update(((branch, row.seq), row) for row in rows)
        for use in blobs:
            self._tables.blob_uses[branch, use.seq, use.sha256] = None
            self._put_blob(use)

    def _put_blob(self, use: BlobUse) -> None:
        if use.data is not None:
            self._tables.blobs[use.sha256] = use.data

    def add_records(
        self, branch: int, rows: Sequence[RecordRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        self._tables.records.update(((branch, row.number), row) for row in rows)
        for use in blobs:
            self._tables.record_blobs[branch, use.seq, use.sha256] = None
            self._put_blob(use)

    def drop_records(self, branch: int, numbers: Collection[int]) -> CutResult:
        dropped = [key for number in numbers for key in _drop(self._tables.records, branch, number)]
        uses = [use for key in dropped for use in _drop(self._tables.record_blobs, *key)]
        return CutResult(0, frozenset(use[2] for use in uses), len(dropped))

    def put_store_record(
        self, row: StoreRecordRow, blobs: Iterable[BlobUse] = ()
    ) -> frozenset[str]:
        tables, unused = self._tables, list[tuple[int, str]]()
        for number, old in tables.store_records.items():
            same = (old.scope, old.kind, old.key) == (row.scope, row.kind, row.key)
            if same and old.body is not None and row.body is not None:
                emptied = StoreRecordRow.create(old.scope, old.kind, old.key, old.id, None)
                tables.store_records[number] = emptied
                unused += _drop(tables.store_record_blobs, number)
        number = self._assign_number()
        tables.store_records[number] = row
        for use in blobs:
            tables.store_record_blobs[number, use.sha256] = None
            self._put_blob(use)
        return frozenset(use[1] for use in unused)

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        self._tables.messages[branch, row.seq] = row
        return self._drop_blob_uses(branch, row.seq)

    def _drop_blob_uses(self, branch: int, seq: int) -> frozenset[str]:
        return frozenset(key[2] for key in _drop(self._tables.blob_uses, branch, seq))

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        tables = self._tables
        uses = (*tables.blob_uses, *tables.record_blobs, *tables.store_record_blobs)
        unused = set(blobs) - {use[-1] for use in uses}
        sizes = [len(self._tables.blobs.pop(name)) for name in unused & self._tables.blobs.keys()]
        return len(sizes), sum(sizes)

    def add_usage(self, session: int, row: UsageRow) -> None:
        key = (session, row.day, row.model)
        old = self._tables.usage.get(key)
        self._tables.usage[key] = row if old is None else old + row

    def put_turn(self, row: TurnRow) -> None:
        self._tables.turns[row.session, row.number] = row

    def put_tool(self, row: ToolRow) -> None:
        self._tables.tools[row.session, row.turn, row.call_id] = row

    def put_draft(self, session: int, turn: int, number: int, chunk: bytes) -> None:
        self._tables.drafts[session, turn, number] = chunk

    def drop_draft(self, session: int, turn: int) -> None:
        _drop(self._tables.drafts, session, turn)

    def add_queued(self, session: int, row: QueueRow) -> None:
        number = self._assign_number()
        self._tables.queue[session, number] = replace(row, number=number)

    def drop_queued(self, session: int, number: int) -> None:
        _drop(self._tables.queue, session, number)


class ToyBackend(protocol.Backend):
    """The store in a folder, opened for one tenant."""

    def __init__(
        self,
        location: Location,
        *,
        tenant: str,
        durability: Durability,
        readonly: bool,
        clock: Clock,
    ) -> None:
        super().__init__(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
        folder = Path(location.address)
        self._file = folder / sha256(codec.encode_text(tenant)).hexdigest()
        self._power_safe = durability == "power"
        self._clock = clock
        self._known = Tables()
        if not readonly:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sync(folder.parent)
        elif not folder.exists():
            raise errors.StoreUnavailable(f"there is no store at {self.url}.")

    @classmethod
    def exists(cls, location: Location) -> bool:
        return Path(location.address).exists()

    def read(self, query: protocol.Query[T]) -> T:
        return query(ToySnapshot(self._load(), self._clock))

    def write(self, operation: protocol.Operation[T], *, exclusive: bool = False) -> T:
        if self.readonly:
            raise errors.ReadOnly("this store was opened for reading only; nothing was stored.")
        with self._locked():
            tables = self._load().copy()
            result = operation(ToyTransaction(tables, self._clock))
            self._commit(tables)
        return result

    def wait(self, seen: int, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self._last_commit() == seen and not self.closed and time.monotonic() < end:
            time.sleep(_POLL_INTERVAL_S)
        return self._last_commit()

    def verify(self) -> list[Damage]:
        try:
            self._load()
            self._known = Tables()  # so that the file is read again
            return super().verify()
        except errors.Damaged as error:
            return [Damage(what=str(error))]

    def close(self) -> None:
        self.closed = True

    # ------------------------------------------------------------------------------- the file

    def _last_commit(self) -> int:
        """Return the number of the last commit; 0 before the first."""
        try:
            with self._file.open("rb") as file:
                return int.from_bytes(file.read(_NUMBER_BYTES))
        except FileNotFoundError:
            return 0

    def _load(self) -> Tables:
        """Return the tables of the last commit."""
        if self.closed:
            raise errors.StoreUnavailable("the store is closed; open it again.")
        known, last = self._known, self._last_commit()
        if last < known.commit:
            raise errors.StoreMoved(f"the files of {self.url} were removed or replaced.")
        if last > known.commit:
            known = self._known = _unpack(self._file.read_bytes())
        return known

    def _commit(self, tables: Tables) -> None:
        tables.commit += 1
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(_pack(tables))
            self._sync(new)
            new.replace(self._file)
        except OSError as error:
            raise _translate(error) from error
        try:
            self._sync(self._file.parent)
        except OSError as error:
            raise errors.OutcomeUnknown(f"retry with the same ids: {error}") from error
        self._known = tables

    def _sync(self, path: Path) -> None:
        """Make a file, or the names in a folder, survive a power cut."""
        if self._power_safe:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the tenant's lock; raise `StoreUnavailable` if it is not free by the deadline."""
        end = time.monotonic() + self.deadline
        try:
            file = self._file.with_suffix(".lock").open("ab")
        except OSError as error:
            raise _translate(error) from error
        with file:
            while not _try_lock(file.fileno()):
                if time.monotonic() >= end:
                    raise errors.StoreUnavailable("the store is locked; nothing was stored.")
                time.sleep(_POLL_INTERVAL_S)
            try:
                yield
            finally:
                # Closing the file does not suffice: a process forked meanwhile has it open, too.
                fcntl.flock(file, fcntl.LOCK_UN)


def _translate(error: OSError) -> errors.StorageError:
    """Return the error of a commit that did not happen."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    kind = errors.StoreFull if full else errors.StoreUnavailable
    return kind(f"nothing was stored: {error}")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pack(tables: Tables) -> bytes:
    number, data = tables.commit.to_bytes(_NUMBER_BYTES), pickle.dumps(tables)
    return number + sha256(number + data).digest() + data


def _unpack(file: bytes) -> Tables:
    """Return the tables of a file; raise `Damaged` if it does not match its checksum."""
    number, data = file[:_NUMBER_BYTES], file[_HEADER_BYTES:]
    if sha256(number + data).digest() != file[_NUMBER_BYTES:_HEADER_BYTES]:
        raise errors.Damaged("the file does not match its checksum; restore it from a backup.")
    tables: Tables = pickle.loads(data)  # noqa: S301 - see the top
    return tables
