"""The write half of the storage protocol as SQL statements. No decisions: values in, rows out.

A session's head row is locked when the session is first read, so that each writer has the session
to itself until the commit. Writes are sent and not waited for: an error of one shows at the next
read, or at the commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Generic, Protocol
from uuid import UUID

import msgspec

from holdfast.clock import Clock
from holdfast.errors import StorageError
from holdfast.storage import metadata_marks
from holdfast.storage.ancestry import Path, Segment
from holdfast.storage.postgres import conversion
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.conversion import bind, branch_number, mark, name_mark, split_branch
from holdfast.storage.postgres.head_cache import MAX_TAIL_MESSAGES, CachedHead, HeadCache
from holdfast.storage.postgres.snapshot import (
    EntryT,
    PostgresSnapshot,
    StatementExecutor,
    StatementResult,
    Tenant,
)
from holdfast.storage.postgres.statements import SQL
from holdfast.storage.postgres.tables import BRANCHES, HEADS, QUEUE, SESSIONS, TOOLS, TURNS, USAGE
from holdfast.storage.prefetch import Prefetch, PrefetchItem, StoreRecordName
from holdfast.storage.protocol import TurnRange
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
    is_summary,
)
from holdfast.storage.write_queue import CountingTransaction

# A branch, and the messages that were inserted there, or else the records.
InsertedEntries = tuple[int, Sequence[MessageRow] | Sequence[RecordRow]]
_CurrentRecord = tuple[StoreRecordRow | None, frozenset[str]]  # of a name, and its blobs
_MAX_BIGINT: Final = (1 << 63) - 1
_HAS_LISTENERS_COLUMN: Final = 3  # of the statement that begins a write
_MAX_INSERT_BYTES: Final = 500_000  # bytes
_MAX_SESSION_NUMBERS: Final = 100
_MAX_PREFETCHED_IDS: Final = 5_000  # messages or records
# Statements that do without the heads that this transaction has written; or they are not to wait.
_READ_NO_HEADS: Final = frozenset(
    {
        "put_head",
        "add_head",
        "lock_head",
        "try_lock_head",
        "try_lock_heads",
        "messages_by_id",
        "add_message",
        "add_messages",
        "add_messages_",
        "add_blob",
        "use_blob",
        "records_by_id",
        "add_record",
        "use_record_blob",
    }
)
_STORE_RECORD_STATEMENTS: Final = frozenset(
    {
        "add_store_record",
        "empty_store_record",
        "use_store_record_blob",
        "drop_store_record_blobs",
    }
)
_TENANT_STATEMENTS: Final = _STORE_RECORD_STATEMENTS | {"add_tenant", "add_blob", "note_erasure"}


class SessionLocked(Exception):
    """A session is locked by another transaction, and this one must not wait."""


class ExclusiveRequired(Exception):
    """Blobs are to be erased while others write, who may use them: it must be run exclusively."""


class WriteExecutor(StatementExecutor, Protocol):
    """Runs statements, and can send those of a large write before their results are needed."""

    def send(self) -> None:
        """Send all queued statements without waiting for their results."""
        ...


class IdLookup(Generic[EntryT]):
    """Messages or records that were looked up by session and id before they are needed."""

    def __init__(self, convert: Callable[[Sequence[Any]], EntryT]) -> None:
        self._convert: Callable[[Sequence[Any]], EntryT] = convert
        self._pending: tuple[Collection[tuple[int, str]], StatementResult] | None = None
        self._found: dict[tuple[int, str], list[tuple[int, EntryT]]] = {}

    def request(self, wanted: Collection[tuple[int, str]], answer: StatementResult) -> None:
        """Note the statement that looks them up."""
        self._pending = wanted, answer

    def expect_absent(self, wanted: Iterable[tuple[int, str]]) -> None:
        """Note that none of them is stored."""
        self._found.update((entry, []) for entry in wanted)

    def find(self, sessions: Iterable[int], ids: Sequence[str]) -> list[tuple[int, EntryT]] | None:
        """Return what is stored of these, by branch; `None` if some were not looked up."""
        self._receive()
        wanted = [(session, name) for session in sessions for name in set(ids)]
        if any(entry not in self._found for entry in wanted):
            return None
        found = [item for entry in wanted for item in self._found[entry]]
        return sorted(found, key=lambda item: (item[0], item[1].seq))

    def add(self, session: int, branch: int, rows: Iterable[EntryT]) -> None:
        """Add entries that are stored now."""
        self._receive()
        for row in rows:
            if (session, row.id) in self._found:
                self._found[session, row.id].append((branch, row))

    def clear(self) -> None:
        """Drop everything: some of it is erased now."""
        self._pending = None
        self._found.clear()

    def _receive(self) -> None:
        if self._pending is not None:
            (wanted, answer), self._pending = self._pending, None
            self.expect_absent(wanted)
            for session, number, *values in answer.fetchall():
                row = self._convert(values)
                if (session, row.id) in self._found:
                    self._found[session, row.id].append((branch_number(session, number), row))


class PostgresTransaction(PostgresSnapshot, CountingTransaction):
    """Reads and writes. `writes` counts them: a refusal before the first one changed nothing."""

    def __init__(
        self,
        statements: WriteExecutor,
        tenant: Tenant,
        clock: Clock | None,
        paths: AncestryCache,
        *,
        exclusive: bool = False,
        may_block: bool = True,
    ) -> None:
        """Write for this tenant; raise `SessionLocked` rather than wait, unless `may_block`."""
        super().__init__(statements, tenant, clock, paths)
        self._send = statements.send
        self.writes = 0
        self.xid: str | None = None  # the transaction's id, once it holds a lock
        self.assumed_head: CachedHead | None = None  # the cached head, if it was used
        self.inserted: InsertedEntries | None = None  # by which a lost commit is resolved
        self._exclusive = exclusive
        self._may_block = may_block
        self._pending_locks: tuple[Sequence[int], StatementResult] | None = None
        self._skipped: set[int] = set()
        self._messages_by_id = IdLookup(conversion.message_row)
        self._records_by_id = IdLookup(conversion.record_row)
        self._store_records: dict[StoreRecordName, _CurrentRecord] = {}
        self._store_records_by_id: dict[str, StoreRecordRow | None] = {}
        self._pending_store_records: list[StatementResult] = []
        self._pending_store_record_ids: list[StatementResult] = []
        self._store_record_locks: dict[int, StatementResult] = {}
        self._heads_before: dict[int, HeadRow] = {}
        self._heads_after: dict[int, tuple[HeadRow, StatementResult]] = {}
        self._kept_heads: dict[int, HeadRow] = {}  # those to write, the newest last
        self._added_tails: dict[int, tuple[MessageRow, ...]] = {}  # by branch
        self._new_branches: set[int] = set()
        self._first_branches: dict[int, BranchRow] = {}  # of new sessions
        self._empty_roots: set[int] = set()  # those of them without a parent or messages
        self._session_numbers: deque[int] = deque()  # taken and not yet used
        self._numbers_taken = 0
        self._locked_sessions: set[int] = set()  # including new sessions
        self._read_sessions: set[int] = set()  # whose identity was read under the lock
        self._erasure_noted = False

    def enter(self, name: str, *values: object) -> None:
        """Set the tenant; an exclusive transaction also waits here for all others to end."""
        super().enter(name, *values)
        if self._exclusive and self._entry is not None:
            self._entry_row = self._entry.fetchone()
            self.xid = None if self._entry_row is None else self._entry_row[-2]

    @property
    def has_listeners(self) -> bool:
        """Whether a process listened for writes when this began; read after the commit."""
        row = self._entry.fetchone() if self._entry is not None else None
        return row is None or bool(row[_HAS_LISTENERS_COLUMN])

    def _cache_path(self, branch: int, path: Path) -> None:
        """Cache a path, except of a new branch: after a rollback its number is used again."""
        if branch not in self._new_branches:
            super()._cache_path(branch, path)

    def update_cache(self, cache: HeadCache) -> None:
        """Cache the heads that were written, after the commit; an erasure clears the cache."""
        if self._exclusive or self._erasure_noted:
            cache.clear()
            return
        for n, (head, answer) in self._heads_after.items():
            row, before = answer.fetchone(), self._heads_before.get(n)
            if row is not None and before is not None:
                after = msgspec.structs.replace(head, activity=row[0])
                added = self._added_tails.get(head.branch, ())
                cache.record_commit(before, after, added, self._server_time, self.assumed_head)

    # --------------------------------------------------------------------------- prefetching

    def prefetch(self, *hints: Prefetch) -> None:
        """Lock the sessions of these hints, and queue the reads after the locks.

        Each statement sees what was committed before it, so a read after a lock cannot be stale.
        """
        super().prefetch(*hints)
        own = [
            (n, h)
            for h in hints
            if h.session is not None
            for n in self._paths.sessions_of(h.session)
        ]
        messages = dict.fromkeys((n, id) for n, hint in own for id in hint.ids)
        records = dict.fromkeys((n, id) for n, hint in own for id in hint.records)
        self._prefetch_ids("messages_by_id", self._messages_by_id, messages)
        self._prefetch_ids("records_by_id", self._records_by_id, records)
        if self._may_block:  # Otherwise none is read: see `_lock_store_records`.
            self._read_store_records([n for hint in hints for n in hint.store_record_names])
            self._read_store_record_ids([id for hint in hints for id in hint.store_records])

    def _prefetch_ids(
        self, name: str, lookup: IdLookup[EntryT], wanted: Collection[tuple[int, str]]
    ) -> None:
        if 0 < len(wanted) <= _MAX_PREFETCHED_IDS:
            lookup.request(wanted, self._execute(name, *conversion.entry_marks(wanted)))

    def _prefetch_heads(self, sessions: Sequence[int]) -> None:
        if self._may_block:
            self._prefetched.update((("head", n), self._execute("lock_head", n)) for n in sessions)
        else:
            self._pending_locks = (
                sessions,
                self._execute("try_lock_heads", conversion.int8_array(sessions)),
            )
        self._prefetch_root_branches(sessions)

    def _receive_locks(self) -> None:
        """Receive which of the prefetched sessions are locked now."""
        if self._pending_locks is not None:
            (sessions, answer), self._pending_locks = self._pending_locks, None
            for row in answer.fetchall():
                self._note_locked(row[2], row)
            self._skipped.update(n for n in sessions if n not in self._heads)

    def _find_messages(
        self, sessions: Sequence[int], ids: Sequence[str]
    ) -> list[tuple[int, MessageRow]]:
        found = self._messages_by_id.find(sessions, ids)
        return super()._find_messages(sessions, ids) if found is None else found

    def _find_records(
        self, sessions: Sequence[int], ids: Sequence[str]
    ) -> list[tuple[int, RecordRow]]:
        found = self._records_by_id.find(sessions, ids)
        return super()._find_records(sessions, ids) if found is None else found

    def _drop_prefetched_entries(self) -> None:
        """Drop prefetched messages and records: some are erased now."""
        self._messages_by_id.clear()
        self._records_by_id.clear()
        self._newest_records.clear()
        self._first_records.clear()
        self._tails.clear()

    def _cache_head(self, n: int, head: HeadRow | None) -> None:
        """Cache no head that was read without its lock."""

    def _session_with_head(self, row: Sequence[Any]) -> SessionRow:
        """Return a session's identity; that of a locked session cannot change any more."""
        found = super()._session_with_head(row)
        if found.n in self._locked_sessions:
            self._read_sessions.add(found.n)
        return found

    def _prefetch_turns(self, heads: Sequence[HeadRow]) -> None:
        """Prefetch no turn: it would be read before its session is locked."""

    def count_forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the forks of these sessions."""
        self._fork_counts.clear()
        return super().count_forks(ids)

    def _drop_prefetched(self, name: PrefetchItem, *values: int) -> None:
        """Drop a prefetched result: the row is changed now."""
        self._prefetched.pop((name, *values), None)

    # -------------------------------------------------------------------------------- writing

    def _write(self, name: str, *values: object) -> None:
        self._write_returning(name, *values)

    def _require_lock(self, name: str, session: object) -> None:
        """Refuse to change a session that this transaction has not locked."""
        if (
            not self._exclusive
            and name not in _TENANT_STATEMENTS
            and session not in self._locked_sessions
        ):
            raise _not_locked(session)

    def _write_returning(self, name: str, *values: object) -> StatementResult:
        self._require_lock(name, values[0])
        self.writes += 1
        return self._execute(name, *values)

    def _write_counted(self, name: str, *values: object) -> int:
        row = self._write_returning(name, *values).fetchone()
        return row[0] if row else 0

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List sessions by activity, in order; each statement here sees the newest commits."""
        self._horizon = self._read_horizon()
        return super().activity_after(number, limit)

    # ---------------------------------------------------------------------------- sessions

    def _lock_head(self, n: int) -> HeadRow | None:
        """Lock a session's head; from now on no other transaction can write to the session."""
        self._receive_locks()
        if n not in self._heads:
            row = None if n in self._skipped else self._lock_result(n).fetchone()
            # Prefetched rows of a skipped session may be stale: its writer has not committed.
            if row is None and not self._may_block and self._fetch_one("head", n) is not None:
                raise SessionLocked
            self._note_locked(n, row)
        return self._heads[n]

    def _lock_result(self, n: int) -> StatementResult:
        prefetched = self._prefetched.pop(("head", n), None)
        return prefetched or self._execute("lock_head" if self._may_block else "try_lock_head", n)

    def _note_locked(self, n: int, row: Sequence[Any] | None) -> None:
        if row is not None:
            self._refuse_newer_format(row[0])
            self.xid = row[1]
            self._locked_sessions.add(n)
            self._heads_before[n] = HEADS.row(row[2:])
        self._heads[n] = self._heads_before.get(n)

    def head(self, n: int) -> HeadRow | None:
        """Return a session's head, and lock it."""
        return self._lock_head(n)

    def heads(self, sessions: Iterable[int]) -> dict[int, HeadRow]:
        """Return the heads of sessions, all locked in one round trip."""
        wanted = sorted(sessions)
        self._prefetch_heads([n for n in wanted if n not in self._heads])
        return super().heads(wanted)

    def _session_result(self, n: int) -> StatementResult:
        """Return the result with a session's identity, and lock its head."""
        self._lock_head(n)
        self._read_sessions.add(n)
        return super()._session_result(n)

    def read_ahead(
        self,
        sessions: Collection[int] = (),
        ranges: Collection[Segment] = (),
        turns: Collection[TurnRange] = (),
    ) -> None:
        """Read nothing ahead: it would be read before its session is locked."""

    def is_trashed(self, n: int) -> bool:
        """True if a session is in the trash; its head is locked."""
        self._lock_head(n)
        return super().is_trashed(n)

    def add_session(self, row: SessionRow, start: BranchStart) -> int:
        """Insert a new session with its first branch."""
        n = self._next_session(0 if start.parent is None else split_branch(start.parent)[0])
        self._locked_sessions.add(n)
        self._read_sessions.add(n)
        self._write("add_session", *SESSIONS.values(msgspec.structs.replace(row, n=n)))
        self._add_marks(n, row)
        if row.purged_at is None:
            branch = self.add_branch(n, 1, start, row.created_at)
            self.writes += 1
            self._write_head("add_head", HeadRow.first(n, branch, start, row.created_at))
        return n

    def _next_session(self, parent: int) -> int:
        """Return the number of a new session; the more there are, the more are taken at once.

        It is higher than its parent's, which may have been created since these were taken.
        """
        while self._session_numbers and self._session_numbers[0] < parent:
            self._session_numbers.popleft()
        if not self._session_numbers:
            if not self._numbers_taken:
                self._write("add_tenant", bind(self._tenant_info.name))
            count = min(max(1, 3 * self._numbers_taken), _MAX_SESSION_NUMBERS)
            for version, xid, n in self._statements.execute("next_sessions", (count,)).fetchall():
                self._refuse_newer_format(version)
                self.xid = xid
                self._session_numbers.append(n)
            self._numbers_taken += count
        return self._session_numbers.popleft()

    def put_session(self, row: SessionRow) -> None:
        """Replace a session's identity."""
        if not self._exclusive and row.n not in self._read_sessions:
            raise _not_locked(row.n)
        self._drop_prefetched("session", row.n)
        self._drop_prefetched("trashed", row.n)
        self._write("put_session", *SESSIONS.values(row))
        self._write("drop_other_marks", row.n, _marks(row))
        self._add_marks(row.n, row)

    def _add_marks(self, session: int, row: SessionRow) -> None:
        """Insert the marks of a session's metadata that are not there."""
        wanted = _marks(row)
        if wanted:
            self._write("add_marks", session, wanted)

    def drop_session(self, n: int) -> None:
        """Erase a session's identity."""
        self._drop_prefetched("session", n)
        self._write("drop_other_marks", n, [])
        self._write("drop_session", n)

    def put_head(self, row: HeadRow) -> None:
        """Replace a session's head; its activity becomes the highest of all.

        The row is kept, since appends that share a transaction replace it again.
        """
        self._require_lock("put_head", row.session)
        self.writes += 1
        self._heads[row.session] = row
        self._kept_heads.pop(row.session, None)
        self._kept_heads[row.session] = row

    def write_out(self) -> None:
        """Send the heads that are kept: other statements may read them."""
        heads, self._kept_heads = self._kept_heads, {}
        for row in heads.values():
            self._write_head("put_head", row)

    def _execute(self, name: str, *values: object) -> StatementResult:
        if self._kept_heads and name.rstrip("12345678") not in _READ_NO_HEADS:
            self.write_out()
        return super()._execute(name, *values)

    def _list(
        self, listing: SessionFilter, before: int, limit: int, first: int = 0
    ) -> list[ListedSession]:
        self.write_out()
        return super()._list(listing, before, limit, first)

    def _write_head(self, name: str, row: HeadRow) -> None:
        lock = None if self._exclusive else self._tenant_info.activity_lock
        self._note_head_after(row, self._execute(name, *HEADS.values(row), lock))

    def _note_head_after(self, row: HeadRow, answer: StatementResult) -> None:
        self._heads[row.session] = row
        self._heads_after[row.session] = row, answer

    # ---------------------------------------------------------------------------- branches

    def add_branch(self, session: int, number: int, start: BranchStart, created_at: int) -> int:
        """Insert a new branch."""
        n = branch_number(session, number)
        row = BranchRow.create(n, session, number, start, created_at)
        self._newest_records.clear()
        self._write("add_branch", *BRANCHES.values(row))
        self._new_branches.add(n)
        if number == 1:
            self._first_branches[session] = row
            if start.parent is None:
                self._empty_roots.add(n)
        return n

    def branch(
        self, session: int, number: int | None = None, *, token: str | None = None
    ) -> BranchRow | None:
        """Return a session's branch; the first one of a new session is known."""
        known = self._first_branches.get(session) if number == 1 and token is None else None
        return known or super().branch(session, number, token=token)

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Find messages by their ids along a branch's history; that of a new root is empty."""
        return {} if branch in self._empty_roots else super().stored(branch, ids)

    def end_branch(self, n: int, last_seq: int) -> None:
        """Store where a branch that is no longer active ends."""
        self._first_branches.pop(n >> conversion.BRANCH_NUMBER_BITS, None)
        self._write("end_branch", *split_branch(n), last_seq)

    def cut_branch(self, n: int, last_seq: int | None, last_record: int = 0) -> CutResult:
        """Erase the messages and records of a branch after these, or the whole branch."""
        position, first = split_branch(n), (last_seq or 0) + 1
        cut = (*position, -1 if last_seq is None else last_seq, last_record + 1)
        self._drop_prefetched_entries()
        uses = self._write_returning("drop_blob_uses", *position, first, _MAX_BIGINT)
        # Before the records: those that are still there show what is cut off.
        record_uses = self._write_returning("cut_record_blobs", *cut)
        records = self._write_counted("cut_records", *cut)
        erased = self._write_counted("drop_messages", *position, first)
        if erased:
            self._note_erasure()
        if last_seq is None:
            self._write("drop_branch", *position)
        else:
            self.end_branch(n, last_seq)
        return CutResult(erased, _hashes(uses) | _hashes(record_uses), records)

    def drop_records(self, branch: int, numbers: Collection[int]) -> CutResult:
        """Erase records of a branch by their numbers."""
        which = (*split_branch(branch), conversion.int8_array(numbers))
        self._drop_prefetched_entries()
        uses = self._write_returning("drop_record_blobs", *which)
        return CutResult(0, _hashes(uses), self._write_counted("drop_records", *which))

    def _note_erasure(self) -> None:
        """Count a transaction that erases messages, once."""
        if not self._erasure_noted:
            self._write("note_erasure", bind(self._tenant_info.name))
            self._erasure_noted = True

    # ---------------------------------------------------------------------------- messages

    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert messages with the seqs they have, and the blobs they refer to."""
        self._insert_rows(branch, rows)
        for blob in self._add_blobs(blobs):
            self._write("use_blob", *split_branch(branch), blob.seq, blob.sha256)

    def _add_blobs(self, blobs: Iterable[BlobUse]) -> Iterator[BlobUse]:
        """Insert the data of blobs, one at a time, and yield each."""
        for blob in blobs:
            if blob.data is not None:
                self._write("add_blob", blob.sha256, blob.data)
            yield blob

    def _insert_rows(self, branch: int, rows: Sequence[MessageRow]) -> None:
        position = split_branch(branch)
        session = position[0]
        self._drop_prefetched("summary", session)
        self._tails.pop(session, None)
        self._added_tails[branch] = (*self._added_tails.get(branch, ()), *rows)[-MAX_TAIL_MESSAGES:]
        self._messages_by_id.add(session, branch, rows)
        self._empty_roots.discard(branch)
        if len(rows) == 1:
            self._write("add_message", *position, *conversion.message_values(session, rows[0]))
            return
        unrolled = f"add_messages_{len(rows)}"
        if unrolled in SQL and sum(len(row.body) for row in rows) < _MAX_INSERT_BYTES:
            values = (conversion.message_values(session, row) for row in rows)
            self._write(unrolled, *position, *chain.from_iterable(values))
            return
        for some in conversion.split_by_size(rows, _MAX_INSERT_BYTES):
            self._write("add_messages", *position, *conversion.message_columns(session, some))
            self._send()  # The server stores it while the next part is read.

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message by its tombstone; return the blobs it referred to."""
        self._drop_prefetched_entries()
        position = (*split_branch(branch), row.seq)
        uses = self._write_returning("drop_blob_uses", *position, row.seq)
        self._note_erasure()
        self._write("put_message", *position, row.crc, is_summary(row), row.body)
        return _hashes(uses)

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that nothing refers to; return their count and bytes.

        Another writer may have stored one again and not committed yet. So there must be no other.
        """
        if not blobs:
            return 0, 0
        if not self._exclusive and not self._claim_tenant():
            raise ExclusiveRequired
        self.writes += 1
        sizes = [row[0] for row in self._fetch_all("drop_unused_blobs", sorted(blobs))]
        return len(sizes), sum(sizes)

    def _claim_tenant(self) -> bool:
        """Keep all other writers of the tenant out until the end, unless there are some now."""
        lock = (self._tenant_info.write_lock,)
        return self._statements.execute("claim_tenant", lock).fetchone() == (True,)

    def drop_session_rows(self, session: int) -> SessionRowCounts:
        """Erase a session's head, turns, ledger, drafts, queue and usage."""
        for name in ("drop_head", "drop_tools", "drop_usage", "drop_queue_blobs"):
            self._write(name, session)
        self._heads[session] = None
        names = ("drop_turns", "drop_drafts", "drop_queue")
        return SessionRowCounts(*(self._write_counted(name, session) for name in names))

    # ----------------------------------------------------------------------------- records

    def add_records(
        self, branch: int, rows: Sequence[RecordRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert records with the numbers they have, and the blobs they refer to."""
        session, number = split_branch(branch)
        self._records_by_id.add(session, branch, rows)
        self._first_records.pop(branch, None)
        for row in rows:
            self._newest_records.pop((session, row.kind, row.key), None)
            self._write("add_record", session, number, *conversion.record_values(session, row))
        for blob in self._add_blobs(blobs):
            self._write("use_record_blob", session, number, blob.seq, blob.sha256)

    def store_record(self, scope: str | None, kind: str, key: str | None) -> StoreRecordRow | None:
        """Return the current record of the store with this name, and lock the name."""
        return self._current_store_record((scope, kind, key))[0]

    def _current_store_record(self, name: StoreRecordName) -> _CurrentRecord:
        self._read_store_records([name])
        for answer in self._pending_store_records:
            for blobs, *values in answer.fetchall():
                row = conversion.store_record_row(values)
                self._store_records[row.scope, row.kind, row.key] = row, frozenset(blobs)
        self._pending_store_records.clear()
        return self._store_records[name]

    def _read_store_records(self, names: Sequence[StoreRecordName]) -> None:
        """Queue a read of current records, after their locks."""
        unknown = [name for name in names if name not in self._store_records]
        if unknown:
            self._lock_store_records(unknown)
            marks = [name_mark(*name) for name in unknown]
            self._pending_store_records.append(self._execute("store_records_by_name", marks))
            self._store_records.update(dict.fromkeys(unknown, (None, frozenset[str]())))

    def _lock_store_records(self, names: Sequence[StoreRecordName]) -> None:
        """Lock names in order, so that two batches cannot deadlock; a group of writes has none."""
        wanted = {self._tenant_info.store_record_lock(name) for name in names}
        locks = sorted(wanted - self._store_record_locks.keys())
        if not locks:
            return
        if not self._may_block:
            raise SessionLocked
        answer = self._statements.execute("lock_store_records", (conversion.int8_array(locks),))
        self._store_record_locks.update(dict.fromkeys(locks, answer))

    def store_record_ids(self, ids: Sequence[str]) -> dict[str, StoreRecordRow]:
        """Find records of the store by their ids."""
        if ids and not self._may_block:
            raise SessionLocked
        self._read_store_record_ids(ids)
        for answer in self._pending_store_record_ids:
            found = map(conversion.store_record_row, answer.fetchall())
            self._store_records_by_id.update((row.id, row) for row in found)
        self._pending_store_record_ids.clear()
        rows = ((name, self._store_records_by_id[name]) for name in ids)
        return {name: row for name, row in rows if row is not None}

    def _read_store_record_ids(self, ids: Sequence[str]) -> None:
        unknown = [name for name in ids if name not in self._store_records_by_id]
        if unknown:
            marks = [mark(name) for name in unknown]
            self._pending_store_record_ids.append(self._execute("store_records_by_id", marks))
            self._store_records_by_id.update(dict.fromkeys(unknown))

    def put_store_record(
        self, row: StoreRecordRow, blobs: Iterable[BlobUse] = ()
    ) -> frozenset[str]:
        """Insert a record of the store; the one that it replaces loses its body."""
        name = (row.scope, row.kind, row.key)
        replaced, unused = self._current_store_record(name)
        self._check_store_record_lock(name)
        if row.body is not None and replaced is not None:
            emptied = StoreRecordRow.create(*name, replaced.id, None)
            self._store_records_by_id[emptied.id] = emptied
            self._write("empty_store_record", mark(replaced.id), emptied.crc)
            self._write("drop_store_record_blobs", mark(replaced.id))
        self._write("add_store_record", *conversion.store_record_values(row))
        used = frozenset(blob.sha256 for blob in self._add_blobs(blobs))
        for sha256 in used:
            self._write("use_store_record_blob", mark(row.id), sha256)
        self._store_records_by_id[row.id] = row
        if row.body is None:
            return frozenset()
        self._store_records[name] = row, used
        return unused

    def _check_store_record_lock(self, name: StoreRecordName) -> None:
        """Receive the lock of a name, with the format of the tables; refuse a newer one."""
        lock = self._tenant_info.store_record_lock(name)
        row = self._store_record_locks[lock].fetchone()
        assert row is not None  # noqa: S101 - a row for each lock
        self._refuse_newer_format(row[0])
        self.xid = row[1]

    # ------------------------------------------------------------ usage, turns, drafts, queue

    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage by day and model."""
        self._drop_prefetched("usage", session)
        self._write("add_usage", session, *USAGE.values(row))

    def put_turn(self, row: TurnRow) -> None:
        """Insert or replace a turn."""
        self._drop_prefetched("turn", row.session, row.number)
        self._write("put_turn", *TURNS.values(row))

    def put_tool(self, row: ToolRow) -> None:
        """Insert or replace a row of the tool ledger; a new one goes to its end."""
        self._drop_prefetched("tools", row.session, row.turn)
        self._write("put_tool", *TOOLS.values(row))

    def put_draft(self, session: int, turn: int, number: int, chunk: bytes) -> None:
        """Insert or replace one chunk of a draft."""
        self._drop_prefetched("opening", session, turn)
        self._drop_prefetched("draft", session, turn)
        self._write("put_draft", session, turn, number, chunk)

    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""
        self._drop_prefetched("opening", session, turn)
        self._drop_prefetched("draft", session, turn)
        self._write("drop_draft", session, turn)

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Add input to the end of the queue."""
        last = self._fetch_one("last_queued", session)
        number = (last[0] if last else 0) + 1
        stored = msgspec.structs.replace(row, number=number)
        self._write("add_queued", session, *QUEUE.values(stored))
        for position, (sha256, data) in enumerate(dict(row.blobs).items()):
            self._write("add_queue_blob", session, number, position, sha256, data)

    def drop_queued(self, session: int, number: int) -> None:
        """Remove input that became a message."""
        self._write("drop_queued", session, number)
        self._write("drop_queued_blobs", session, number)


def _hashes(uses: StatementResult) -> frozenset[str]:
    """Return the blobs whose uses were dropped."""
    return frozenset(sha256 for (sha256,) in uses.fetchall())


def _marks(row: SessionRow) -> list[UUID]:
    return conversion.metadata_uuids(metadata_marks.pairs(row.metadata))


def _not_locked(session: object) -> StorageError:
    return StorageError(
        f"a write to session number {session} was refused, because the session was not locked when "
        "it was read; nothing was stored. This is a bug in Holdfast: please report it."
    )
