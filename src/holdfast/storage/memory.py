"""The reference backend: a store in the memory of this process.

A table is a dict, a row is a frozen value. Each `open` creates an empty store, for one tenant. One
lock serializes operations and queries. A transaction changes dicts only through `_set` and `_drop`,
which record how to undo the change before they make it; an operation that raises is undone, last
change first.

Undoing puts a dropped row back at the end of its dict. So no result takes its order from a dict
from which single rows are dropped: those rows are sorted by number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.clock import Clock
from holdfast.errors import ReadOnly, StoreUnavailable
from holdfast.storage.ancestry import Segment, has_record, is_on_path
from holdfast.storage.audit import find_damage
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.protocol import (
    Backend,
    HealthCheck,
    Operation,
    Query,
    SessionField,
    Snapshot,
    Transaction,
)
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
)
from holdfast.titles import normalize_title
from holdfast.url import Durability, Location
from holdfast.values import Damage, Scan

T = TypeVar("T")
K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")


class MemoryTables(msgspec.Struct):
    """All tables of a store."""

    numbers: dict[str, int] = {}  # the last one assigned, by what it counts
    sessions: dict[int, SessionRow] = {}
    by_id: dict[str, int] = {}
    by_key: dict[str, int] = {}  # without sessions in the trash
    heads: dict[int, HeadRow] = {}
    branches: dict[int, BranchRow] = {}  # last_seq is valid once the branch is abandoned
    messages: dict[int, dict[int, MessageRow]] = {}  # branch: seq
    positions: dict[str, tuple[tuple[int, int], ...]] = {}  # message id: (branch, seq)
    records: dict[int, dict[int, RecordRow]] = {}  # branch: number
    store_records: dict[int, StoreRecordRow] = {}  # in the order in which they were put
    turns: dict[int, dict[int, TurnRow]] = {}  # session: number
    tools: dict[tuple[int, int], dict[str, ToolRow]] = {}  # (session, turn): call id, in call order
    drafts: dict[tuple[int, int], dict[int, bytes]] = {}  # (session, turn): number
    queue: dict[int, dict[int, QueueRow]] = {}  # session: number
    usage: dict[int, dict[tuple[int, str | None], UsageRow]] = {}  # session: (day, model)
    blobs: dict[str, bytes] = {}  # by SHA-256
    blob_uses: dict[tuple[int, int, str], None] = {}  # (branch, seq, SHA-256)
    record_blobs: dict[tuple[int, int, str], None] = {}  # (branch, number, SHA-256)
    store_record_blobs: dict[tuple[int, str], None] = {}  # (number, SHA-256)


class MemorySnapshot(Snapshot):
    """Reads of the tables; consistent while the backend's lock is held."""

    def __init__(self, tables: MemoryTables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def now(self) -> int:
        """Return the time of this process's clock, which is the store's."""
        return self._clock.micros()

    def monotonic(self) -> int:
        """Return the monotonic time of this process's clock."""
        return self._clock.monotonic()

    # ---------------------------------------------------------------------------- sessions

    def sessions(
        self,
        by: SessionField,
        value: str | int,
        *,
        trashed: bool | None = None,
        stubs: bool = False,
        limit: int | None = None,
    ) -> list[SessionRow]:
        """Find sessions by one field."""
        if by == "key" and trashed is False:
            by, value = "n", self._tables.by_key.get(str(value), 0)
        found = [
            row
            for row in self._sessions(by, value)
            if (trashed is None or trashed == (row.trashed_at is not None))
            and (stubs or row.purged_at is None)
        ]
        return found[:limit]

    def _sessions(self, by: SessionField, value: str | int) -> list[SessionRow]:
        tables = self._tables
        if by == "id":
            value = tables.by_id.get(str(value), 0)
        if by in {"n", "id"}:
            row = tables.sessions.get(int(value))
            return [] if row is None else [row]
        matches = _matcher(by, str(value), tables)
        return [row for row in _by_number(tables.sessions) if matches(row)]

    def head(self, n: int) -> HeadRow | None:
        """Return a session's head row."""
        return self._tables.heads.get(n)

    def list_sessions(
        self, listing: SessionFilter, *, before: int | None, limit: int
    ) -> list[ListedSession]:
        """List by activity, newest first."""
        found = (
            (self._tables.sessions[head.session], head)
            for head in reversed(self._by_activity())
            if before is None or head.activity < before
        )
        return list(islice((pair for pair in found if listing.matches(*pair)), limit))

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List sessions written to after an activity number, in order of their activity."""
        newer = [head for head in self._by_activity() if head.activity > number]
        return [
            (head.activity, self._tables.sessions[head.session].id, head.branch_no, head.seq)
            for head in newer[:limit]
        ]

    def _by_activity(self) -> list[HeadRow]:
        return sorted(self._tables.heads.values(), key=lambda head: head.activity)

    # ---------------------------------------------------------------------------- messages

    def branches(
        self,
        *,
        n: int | None = None,
        session: int | None = None,
        number: int | None = None,
        token: str | None = None,
        parent: int | None = None,
    ) -> list[BranchRow]:
        """Find branches."""
        wanted = [
            (name, value)
            for name, value in (
                ("session", session),
                ("number", number),
                ("token", token),
                ("parent", parent),
            )
            if value is not None
        ]
        rows = self._tables.branches
        found = (rows[key] for key in (sorted(rows) if n is None else (n,)) if key in rows)
        return [
            self._completed(row)
            for row in found
            if all(getattr(row, name) == value for name, value in wanted)
        ]

    def _completed(self, row: BranchRow) -> BranchRow:
        """Return a branch with what other rows determine; the active one ends at the head."""
        session, head = self._tables.sessions[row.session], self._tables.heads.get(row.session)
        return msgspec.structs.replace(
            row,
            session_id=session.id,
            purged=session.purged_at is not None,
            last_seq=head.seq if head is not None and head.branch == row.n else row.last_seq,
        )

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Return the messages of each range, in order."""
        return [(segment.session_id, self._range(segment)) for segment in ranges]

    def _range(self, segment: Segment) -> list[MessageRow]:
        rows = self._tables.messages.get(segment.branch, {})
        seqs = range(segment.first, (segment.last or 0) + 1)
        if len(seqs) > len(rows):  # A damaged head may be very far away.
            return [rows[seq] for seq in sorted(rows) if seq in seqs]
        return [rows[seq] for seq in seqs if seq in rows]

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Find ids in a branch's history."""
        path = self.path(branch)
        owners = {segment.branch: segment.session_id for segment in path}
        found: dict[str, tuple[str, MessageRow]] = {}
        for message_id in ids:
            for at, seq in self._tables.positions.get(message_id, ()):
                if is_on_path(path, at, seq):
                    found[message_id] = (owners[at], self._tables.messages[at][seq])
        return found

    # ------------------------------------------------------------------------------- records

    def records(
        self,
        ranges: Iterable[Segment],
        *,
        kind: str | None = None,
        key: str | UnsetType | None = UNSET,
        prefix: str | None = None,
        limit: int | None = None,
    ) -> list[tuple[str, RecordRow]]:
        """Return the records of these segments, the last first."""
        found = (
            (segment.session_id, row)
            for segment in ranges
            for row in reversed(_by_number(self._tables.records.get(segment.branch, {})))
            if has_record(segment, row.seq, row.number)
            and (kind is None or row.kind == kind)
            and (key is UNSET or row.key == key)
            and (prefix is None or (row.key or "").startswith(prefix))
        )
        return list(islice(found, limit))

    def store_records(self) -> list[StoreRecordRow]:
        """Return all records of the store, oldest first."""
        return _by_number(self._tables.store_records)

    # ------------------------------------------------------------- turns, drafts, queue, blobs

    def turns(
        self, session: int, *, number: int | None = None, limit: int | None = None
    ) -> list[TurnRow]:
        """Return the newest turns, oldest first."""
        turns = self._tables.turns.get(session, {})
        if number is not None:
            return [turns[number]] if number in turns else []
        newest = _by_number(turns)[::-1]
        return newest[:limit][::-1]

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Return the tool ledger of a turn, in call order."""
        return list(self._tables.tools.get((session, turn), {}).values())

    def draft(self, session: int, turn: int, *, limit: int | None = None) -> list[bytes]:
        """Return the chunks of an open draft."""
        return _by_number(self._tables.drafts.get((session, turn), {}))[:limit]

    def queue(self, session: int) -> list[QueueRow]:
        """Return queued input in order."""
        return _by_number(self._tables.queue.get(session, {}))

    def usage(
        self, *, session: int | None = None, model: str | None = None, limit: int | None = None
    ) -> list[UsageRow]:
        """Return usage by day and model, of a session or of a model."""
        if session is not None:
            return sort_usage(self._tables.usage.get(session, {}).values())[:limit]
        found = [
            (row.day, n, row)
            for n, rows in self._tables.usage.items()
            for row in rows.values()
            if row.model == model
        ]
        return [row for _, _, row in sorted(found, key=lambda item: item[:2], reverse=True)][:limit]

    def stored_blob(self, sha256: str) -> bytes | None:
        """Return the data of a blob as it is stored."""
        return self._tables.blobs.get(sha256)


class MemoryTransaction(MemorySnapshot, Transaction):
    """Reads and writes; keeps an undo log of its changes."""

    def __init__(self, tables: MemoryTables, clock: Clock) -> None:
        super().__init__(tables, clock)
        self._undo: list[Callable[[], object]] = []

    @property
    def wrote(self) -> bool:
        """Whether there is anything to undo."""
        return bool(self._undo)

    def undo(self) -> None:
        """Undo everything, the last change first."""
        while self._undo:
            self._undo.pop()()

    # ------------------------------------------------------------------ the only ways to change

    def _set(self, table: dict[K, V], key: K, value: V) -> None:
        self._record_undo(table, key)
        table[key] = value

    def _drop(self, table: dict[K, V], key: K) -> None:
        if key in table:
            self._record_undo(table, key)
            del table[key]

    def _record_undo(self, table: dict[K, V], key: K) -> None:
        """Record how to undo a change. This comes first: an interrupt may arrive in between."""
        if key in table:
            self._undo.append(partial(table.__setitem__, key, table[key]))
        else:
            self._undo.append(partial(table.pop, key, None))

    def _inner_table(self, table: dict[K, dict[K2, V]], key: K) -> dict[K2, V]:
        """Return the rows stored under a key, inserting an empty dict if there are none."""
        if key not in table:
            self._set(table, key, {})
        return table[key]

    def _next_number(self, what: str) -> int:
        """Return the next number of a sequence, which no committed transaction has returned."""
        number = self._tables.numbers.get(what, 0) + 1
        self._set(self._tables.numbers, what, number)
        return number

    # ---------------------------------------------------------------------------- sessions

    def add_session(self, row: SessionRow, start: BranchStart) -> int:
        """Insert a session with its first branch."""
        tables = self._tables
        if row.id in tables.by_id:
            raise _in_use_error(f"session id {row.id!r}")
        n = self._next_number("session")
        self._set(tables.sessions, n, msgspec.structs.replace(row, n=n))
        self._set(tables.by_id, row.id, n)
        self._update_key(None, msgspec.structs.replace(row, n=n))
        if row.purged_at is None:
            branch = self.add_branch(n, 1, start, row.created_at)
            head = HeadRow.first(n, branch, start, row.created_at)
            self._set(tables.heads, n, self._newest(head))
        return n

    def add_branch(self, session: int, number: int, start: BranchStart, created_at: int) -> int:
        """Insert a branch."""
        n = self._next_number("branch")
        row = BranchRow.create(n, session, number, start, created_at)
        self._set(self._tables.branches, n, row)
        return n

    def end_branch(self, n: int, last_seq: int) -> None:
        """Record where a branch ends that its session is leaving."""
        row = self._tables.branches[n]
        self._set(self._tables.branches, n, msgspec.structs.replace(row, last_seq=last_seq))

    def cut_branch(self, n: int, last_seq: int | None, last_record: int = 0) -> CutResult:
        """Erase the messages and records of a branch after these, or the whole branch."""
        messages = self._tables.messages.get(n, {})
        end = -1 if last_seq is None else last_seq
        records = self.drop_records(
            n,
            [
                row.number
                for row in self._tables.records.get(n, {}).values()
                if row.seq > end or row.number > last_record
            ],
        )
        dropped = [row for seq, row in sorted(messages.items()) if seq > (last_seq or 0)]
        blobs = [self._drop_blob_uses(n, row.seq) for row in dropped]
        for row in dropped:
            self._drop(messages, row.seq)
            self._drop_position(row.id, n, row.seq)
        if last_seq is None:
            self._drop(self._tables.branches, n)
            self._drop(self._tables.messages, n)
            self._drop(self._tables.records, n)
        else:
            self.end_branch(n, last_seq)
        return CutResult(len(dropped), records.blobs.union(*blobs), records.records)

    def drop_records(self, branch: int, numbers: Collection[int]) -> CutResult:
        """Erase records of a branch by their numbers."""
        rows, uses = self._tables.records.get(branch, {}), self._tables.record_blobs
        dropped = [number for number in numbers if number in rows]
        wanted = {(branch, number) for number in dropped}
        unused = [use for use in uses if use[:2] in wanted]
        for number in dropped:
            self._drop(rows, number)
        for use in unused:
            self._drop(uses, use)
        return CutResult(0, frozenset(use[2] for use in unused), len(dropped))

    def _drop_position(self, message_id: str, branch: int, seq: int) -> None:
        positions = self._tables.positions
        others = tuple(at for at in positions.get(message_id, ()) if at != (branch, seq))
        if others:
            self._set(positions, message_id, others)
        else:
            self._drop(positions, message_id)

    def _drop_blob_uses(self, branch: int, seq: int) -> frozenset[str]:
        uses = self._tables.blob_uses
        dropped = [use for use in uses if use[:2] == (branch, seq)]
        for use in dropped:
            self._drop(uses, use)
        return frozenset(sha256 for _, _, sha256 in dropped)

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message by its tombstone; return the blobs it referred to."""
        self._set(self._tables.messages[branch], row.seq, row)
        return self._drop_blob_uses(branch, row.seq)

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that nothing refers to; return their count and bytes."""
        tables = self._tables
        uses = (*tables.blob_uses, *tables.record_blobs, *tables.store_record_blobs)
        used = {use[-1] for use in uses}
        dropped = [sha256 for sha256 in sorted(blobs) if sha256 not in used]
        size = sum(len(self._tables.blobs[sha256]) for sha256 in dropped)
        for sha256 in dropped:
            self._drop(self._tables.blobs, sha256)
        return len(dropped), size

    def drop_session_rows(self, session: int) -> SessionRowCounts:
        """Erase a session's head, turns, ledger, drafts, queue and usage."""
        tables = self._tables
        turns = len(tables.turns.get(session, {}))
        queued = len(tables.queue.get(session, {}))
        drafts = [key for key in tables.drafts if key[0] == session]
        chunks = sum(len(tables.drafts[key]) for key in drafts)
        for key in drafts:
            self._drop(tables.drafts, key)
        for ledger in [key for key in tables.tools if key[0] == session]:
            self._drop(tables.tools, ledger)
        self._drop(tables.heads, session)
        self._drop(tables.turns, session)
        self._drop(tables.queue, session)
        self._drop(tables.usage, session)
        return SessionRowCounts(turns, chunks, queued)

    def drop_session(self, n: int) -> None:
        """Erase a session's identity."""
        old = self._tables.sessions[n]
        self._drop(self._tables.sessions, n)
        self._drop(self._tables.by_id, old.id)
        key = _live_key(old)
        if key is not None:
            self._drop(self._tables.by_key, key)

    def put_session(self, row: SessionRow) -> None:
        """Replace a session's identity."""
        old = self._tables.sessions.get(row.n)
        if old is None:
            return
        self._set(self._tables.sessions, row.n, row)
        self._update_key(old, row)

    def _update_key(self, old: SessionRow | None, new: SessionRow) -> None:
        """Update the index of keys; a session in the trash does not occupy its key."""
        before, after = _live_key(old), _live_key(new)
        if before == after:
            return
        if after is not None and after in self._tables.by_key:
            raise _in_use_error("this key")
        if before is not None:
            self._drop(self._tables.by_key, before)
        if after is not None:
            self._set(self._tables.by_key, after, new.n)

    def put_head(self, row: HeadRow) -> None:
        """Replace a session's head; its activity becomes the highest of all."""
        if row.session in self._tables.heads:
            self._set(self._tables.heads, row.session, self._newest(row))

    def _newest(self, row: HeadRow) -> HeadRow:
        return msgspec.structs.replace(row, activity=self._next_number("activity"))

    # ---------------------------------------------------------------------------- messages

    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert messages with the seqs they have, and the blobs they refer to."""
        tables = self._tables
        messages, positions = self._inner_table(tables.messages, branch), tables.positions
        for row in rows:
            if row.seq in messages:
                raise _in_use_error(f"seq {row.seq}")
            self._set(messages, row.seq, row)
            self._set(positions, row.id, (*positions.get(row.id, ()), (branch, row.seq)))
        for use in blobs:
            self._set_blob(use)
            self._set(tables.blob_uses, (branch, use.seq, use.sha256), None)

    def _set_blob(self, use: BlobUse) -> None:
        if use.data is not None and self._tables.blobs.get(use.sha256) != use.data:
            self._set(self._tables.blobs, use.sha256, use.data)

    def add_records(
        self, branch: int, rows: Sequence[RecordRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert records with the numbers they have, and the blobs they refer to."""
        records = self._inner_table(self._tables.records, branch)
        for row in rows:
            if row.number in records:
                raise _in_use_error(f"record {row.number}")
            self._set(records, row.number, row)
        for use in blobs:
            self._set_blob(use)
            self._set(self._tables.record_blobs, (branch, use.seq, use.sha256), None)

    def put_store_record(
        self, row: StoreRecordRow, blobs: Iterable[BlobUse] = ()
    ) -> frozenset[str]:
        """Insert a record of the store; the one that it replaces loses its body."""
        rows, uses = self._tables.store_records, self._tables.store_record_blobs
        replaced = [
            number
            for number, old in rows.items()
            if row.body is not None
            and old.body is not None
            and (old.scope, old.kind, old.key) == (row.scope, row.kind, row.key)
        ]
        unused = [use for use in uses if use[0] in replaced]
        for number in replaced:
            old = rows[number]
            gone = StoreRecordRow.create(old.scope, old.kind, old.key, old.id, None)
            self._set(rows, number, gone)
        for use in unused:
            self._drop(uses, use)
        number = self._next_number("store record")
        self._set(rows, number, row)
        for blob in blobs:
            self._set_blob(blob)
            self._set(uses, (number, blob.sha256), None)
        return frozenset(use[1] for use in unused)

    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage by day and model."""
        rows = self._inner_table(self._tables.usage, session)
        key = (row.day, row.model)
        self._set(rows, key, rows[key] + row if key in rows else row)

    # -------------------------------------------------------------------- turns, drafts, queue

    def put_turn(self, row: TurnRow) -> None:
        """Insert or replace a turn."""
        self._set(self._inner_table(self._tables.turns, row.session), row.number, row)

    def put_tool(self, row: ToolRow) -> None:
        """Insert or replace a row of the tool ledger; replacing keeps the order."""
        self._set(self._inner_table(self._tables.tools, (row.session, row.turn)), row.call_id, row)

    def put_draft(self, session: int, turn: int, number: int, chunk: bytes) -> None:
        """Insert or replace one chunk of a draft."""
        self._set(self._inner_table(self._tables.drafts, (session, turn)), number, chunk)

    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""
        self._drop(self._tables.drafts, (session, turn))

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Add input to the end of the queue."""
        waiting = self._inner_table(self._tables.queue, session)
        number = max(waiting, default=0) + 1
        self._set(waiting, number, msgspec.structs.replace(row, number=number))

    def drop_queued(self, session: int, number: int) -> None:
        """Remove input that became a message."""
        self._drop(self._tables.queue.get(session, {}), number)


class MemoryBackend(Backend):
    """A store in memory, empty when it is opened, for one tenant."""

    def __init__(
        self,
        location: Location,
        *,
        tenant: str,
        durability: Durability = "process",
        readonly: bool,
        clock: Clock,
    ) -> None:
        super().__init__(
            location, tenant=tenant, durability=durability, readonly=readonly, clock=clock
        )
        self.tables = MemoryTables()
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._commits = 0

    # --------------------------------------------------------------------- reading and writing

    def read(self, query: Query[T]) -> T:
        """Run a query under the lock."""
        with self._lock:
            self._refuse_closed()
            return query(MemorySnapshot(self.tables, self._clock))

    def write(self, operation: Operation[T], *, exclusive: bool = False) -> T:  # noqa: ARG002 - all are
        """Run an operation, and undo it if it raises."""
        return defer_signals(self._write, operation)

    def _write(self, operation: Operation[T]) -> T:
        with self._lock:
            self._refuse_write()
            tx = MemoryTransaction(self.tables, self._clock)
            try:
                result = operation(tx)
            except BaseException:
                tx.undo()
                raise
            if tx.wrote:
                self._commits += 1
                self._changed.notify_all()
            return result

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until something was written since `seen`."""
        with self._lock:
            self._changed.wait_for(lambda: self._commits != seen or self.closed, timeout)
            return self._commits

    def _refuse_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable(
                "the store is closed and its contents, which were in memory, are gone; open a new "
                "one."
            )

    def _refuse_write(self) -> None:
        self._refuse_closed()
        if self.readonly:
            raise ReadOnly("this store was opened for reading only; nothing was stored.")

    # ----------------------------------------------------------------------------- whole store

    def wipe(self) -> tuple[str, ...]:
        """Do nothing: erased messages leave no bytes behind."""
        self._refuse_write()
        return super().wipe()

    def scan(self, fragments: Sequence[bytes]) -> Scan:
        """Report a clean scan: there are no files, only the tables."""
        self._refuse_closed()
        return Scan(files=0, bytes=0, fragments=len(fragments))

    def verify(self) -> list[Damage]:
        """Read everything and report what is damaged, references to missing blobs too."""
        return self.read(
            lambda snapshot: list(
                dict.fromkeys(
                    (
                        *find_damage(snapshot, self._recorded, self._recorded_for_record),
                        *self._missing_blobs(snapshot),
                    )
                )
            )
        )

    def _recorded(self, branch: int, seq: int) -> list[str]:
        return [use[2] for use in self.tables.blob_uses if use[:2] == (branch, seq)]

    def _recorded_for_record(self, branch: int, number: int) -> list[str]:
        return [use[2] for use in self.tables.record_blobs if use[:2] == (branch, number)]

    def _missing_blobs(self, snapshot: Snapshot) -> list[Damage]:
        tables = self.tables
        uses = [*tables.blob_uses]
        uses += [
            (branch, tables.records[branch][number].seq, sha256)
            for branch, number, sha256 in tables.record_blobs
        ]
        lost = [use for use in uses if use[2] not in tables.blobs]
        owners = {n: branch.session_id for n, _, _ in lost for branch in snapshot.branches(n=n)}
        return [
            Damage(
                what=f"blob {sha256} is missing",
                session_id=owners.get(n),
                seq=seq,
                blocking=False,
            )
            for n, seq, sha256 in lost
        ]

    def health(self) -> list[HealthCheck]:
        """Report that nothing here outlives the process."""
        self._refuse_closed()
        return [
            HealthCheck("backend", "memory"),
            HealthCheck("durability", "none: nothing survives this process"),
        ]

    def close(self) -> None:
        """Drop all tables and wake all threads in `wait`."""
        with self._lock:
            self.closed = True
            self.tables = MemoryTables()
            self._changed.notify_all()


# ------------------------------------------------------------------------------- rows and values


def _by_number(rows: dict[int, V]) -> list[V]:
    return [rows[number] for number in sorted(rows)]


def _matcher(by: SessionField, value: str, tables: MemoryTables) -> Callable[[SessionRow], bool]:
    """Return the test that a session found by this field passes."""
    if by == "id_prefix":
        return lambda row: row.id.startswith(value)
    if by == "title_any_case":
        folded = normalize_title(value)
        return lambda row: row.title is not None and normalize_title(row.title) == folded
    if by == "run_id":
        turns = tables.turns
        return lambda row: any(t.run_id == value for t in turns.get(row.n, {}).values())
    if by == "message_id":
        branches = [tables.branches[branch] for branch, _ in tables.positions.get(value, ())]
        owners = {branch.session for branch in branches}
        return lambda row: row.n in owners
    return lambda row: getattr(row, by) == value


def _live_key(row: SessionRow | None) -> str | None:
    return None if row is None or row.trashed_at is not None else row.key


def _in_use_error(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} is already in use; nothing was stored.")
