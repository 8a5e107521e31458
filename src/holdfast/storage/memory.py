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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import msgspec

from holdfast import codec
from holdfast.clock import Clock, to_day
from holdfast.cost import sum_by_day
from holdfast.errors import Damaged, Invalid, ReadOnly, StoreUnavailable
from holdfast.storage.ancestry import Path, PathBranch, Segment, is_on_path, join_path, ranges
from holdfast.storage.interrupts import defer_signals
from holdfast.storage.protocol import (
    MAX_MEASURED_ROWS,
    Backend,
    BlobUse,
    BranchOwner,
    BranchRow,
    BranchStart,
    CutResult,
    HeadRow,
    HealthCheck,
    ListedSession,
    MessageRow,
    Operation,
    PendingWrite,
    Query,
    QueueRow,
    SessionFilter,
    SessionRow,
    SessionRowCounts,
    SessionSize,
    ToolRow,
    TurnRow,
    UsageRow,
    sort_usage,
)
from holdfast.storage.write_queue import Ticket
from holdfast.titles import normalize_title
from holdfast.url import Location
from holdfast.values import (
    BackupReport,
    Damage,
    Growth,
    MeasuredTokens,
    SalvageReport,
    Scan,
    Stats,
    Usage,
)

T = TypeVar("T")
K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")
_MAX_MATCHES: Final = 20


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
    turns: dict[int, dict[int, TurnRow]] = {}  # session: number
    tools: dict[tuple[int, int], dict[str, ToolRow]] = {}  # (session, turn): call id, in call order
    drafts: dict[tuple[int, int], dict[int, bytes]] = {}  # (session, turn): number
    queue: dict[int, dict[int, QueueRow]] = {}  # session: number
    usage: dict[int, dict[tuple[int, str | None], UsageRow]] = {}  # session: (day, model)
    blobs: dict[str, bytes] = {}  # by SHA-256
    blob_uses: dict[tuple[int, int, str], None] = {}  # (branch, seq, SHA-256)


class MemorySnapshot:
    """Reads of the tables; consistent while the backend's lock is held."""

    def __init__(self, tables: MemoryTables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def now(self) -> int:
        """Return the time of this process's clock, which is the store's."""
        return self._clock.micros()

    # ---------------------------------------------------------------------------- sessions

    def find_session(self, *, key: str | None = None, id: str | None = None) -> SessionRow | None:
        """Find a session by its key or id; one in the trash has no key."""
        tables = self._tables
        n = tables.by_id.get(id or "") if key is None else tables.by_key.get(key)
        return None if n is None else self.session(n)

    def owners(self, branches: Collection[int]) -> dict[int, BranchOwner]:
        """Return the sessions of these branches."""
        rows = {n: self._tables.branches[n] for n in branches if n in self._tables.branches}
        found = {n: self._owner(row.session) for n, row in rows.items()}
        return {n: owner for n, owner in found.items() if owner is not None}

    def _owner(self, n: int) -> BranchOwner | None:
        row, head = self._tables.sessions[n], self._tables.heads.get(n)
        if head is None or row.trashed_at is not None:
            return None
        return BranchOwner(
            n, row.id, row.scope, row.agent, row.title, row.parent, row.relation, head.branch,
            head.updated_at,
        )  # fmt: skip

    def title_candidates(self, words: Sequence[str]) -> list[BranchOwner]:  # noqa: ARG002 - any title may match
        """Find sessions whose title may contain all these words: all that have a title."""
        found = (self._owner(row.n) for row in _by_number(self._tables.sessions) if row.title)
        return [owner for owner in found if owner is not None]

    def session_or_stub(self, id: str) -> SessionRow | None:
        """Read a session's identity by its id, including the stub of a purged session."""
        n = self._tables.by_id.get(id)
        return None if n is None else self._tables.sessions[n]

    def children(self, id: str) -> list[SessionRow]:
        """Read the sessions with this parent, oldest first."""
        found = [row for row in self._tables.sessions.values() if row.parent == id]
        return sorted(found, key=lambda row: (row.created_at, row.n))

    def find_sessions(self, *, prefix: str | None, title: str | None) -> list[SessionRow]:
        """Find sessions whose id starts with `prefix`, or whose title is `title`."""
        rows = [row for row in self._tables.sessions.values() if row.purged_at is None]
        if prefix is not None:
            found = sorted((r for r in rows if r.id.startswith(prefix)), key=lambda r: r.id)
        else:
            found = sorted((r for r in rows if _is_titled(r, title)), key=lambda r: r.n)
        return found[:_MAX_MATCHES]

    def find_trashed(self, *, key: str | None, title: str | None) -> list[SessionRow]:
        """Find sessions in the trash by the key or title they had."""
        trash = [r for r in _by_number(self._tables.sessions) if r.trashed_at is not None]
        if key is not None:
            return [row for row in trash if row.key == key][:_MAX_MATCHES]
        return [row for row in trash if row.title == title][:_MAX_MATCHES]

    def find_titled(self, title: str, *, trashed: bool) -> list[SessionRow]:
        """Find sessions by title, ignoring case."""
        normalized = normalize_title(title)
        found = (
            row
            for row in _by_number(self._tables.sessions)
            if row.title is not None
            and normalize_title(row.title) == normalized
            and row.purged_at is None
        )
        matching = (row for row in found if (row.trashed_at is not None) == trashed)
        return list(islice(matching, _MAX_MATCHES))

    def forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the forks and continuations of these sessions."""
        counts = dict.fromkeys(ids, 0)
        for row in self._tables.sessions.values():
            listed = row.trashed_at is None and row.purged_at is None
            if listed and row.parent in counts and row.relation in {"fork", "continue"}:
                counts[row.parent] += 1
        return {id: count for id, count in counts.items() if count}

    def find_run(self, run_id: str) -> list[SessionRow]:
        """Find the sessions that have a turn of this run."""
        found = (
            n
            for n, turns in sorted(self._tables.turns.items())
            if self._tables.sessions[n].trashed_at is None
            and any(turn.run_id == run_id for turn in turns.values())
        )
        return [self._tables.sessions[n] for n in islice(found, _MAX_MATCHES)]

    def session(self, n: int) -> SessionRow | None:
        """Read a session's identity."""
        row = self._tables.sessions.get(n)
        return None if row is None or row.purged_at is not None else row

    def head(self, n: int) -> HeadRow | None:
        """Read a session's head row."""
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

    def path(self, branch: int, low: int = 1) -> Path:  # noqa: ARG002 - all of it is in memory
        """Return the path of a branch's history."""
        chain: list[BranchRow] = []
        current: int | None = branch
        while current is not None:
            row = self.find_branch(current)
            if row is None:
                raise Damaged(f"branch {current} is missing; run store.verify().")
            chain.append(row)
            current = row.parent
        return join_path(PathBranch(row.n, row.fork_seq, row.session_id) for row in chain)

    def branch(self, session: int, number: int) -> BranchRow | None:
        """Read a branch by its number within its session."""
        return next((row for row in self.branches(session) if row.number == number), None)

    def branch_by_token(self, session: int, token: str) -> BranchRow | None:
        """Read the branch that the write with this token created."""
        return next((row for row in self.branches(session) if row.token == token), None)

    def find_branch(self, n: int) -> BranchRow | None:
        """Read a branch; a session's current branch ends at its head."""
        row = self._tables.branches.get(n)
        if row is None:
            return None
        head = self._tables.heads.get(row.session)
        last = head.seq if head is not None and head.branch == n else row.last_seq
        purged = self._tables.sessions[row.session].purged_at is not None
        return msgspec.structs.replace(row, last_seq=last, purged=purged)

    def branches(self, session: int) -> list[BranchRow]:
        """Read a session's branches, by number."""
        return self._branches(lambda row: row.session == session)

    def branches_from(self, n: int) -> list[BranchRow]:
        """Read the branches that start on this one, oldest first."""
        return self._branches(lambda row: row.parent == n)

    def _branches(self, matches: Callable[[BranchRow], bool]) -> list[BranchRow]:
        found = (self.find_branch(n) for n in sorted(self._tables.branches))
        return [row for row in found if row is not None and matches(row)]

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Read ranges, in order."""
        return [(segment.session_id, self._range(segment)) for segment in ranges]

    def _range(self, segment: Segment) -> list[MessageRow]:
        rows = self._tables.messages.get(segment.branch, {})
        seqs = range(segment.first, (segment.last or 0) + 1)
        return [rows[seq] for seq in seqs if seq in rows]

    def newest_summary(self, path: Path, last: int) -> int | None:
        """Return the seq of the newest summary along a path."""
        found = (row for segment in ranges(path, 1, last) for row in self._range(segment))
        seqs = [row.seq for row in found if row.body.startswith(b'{"role":"summary"')]
        return max(seqs, default=None)

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

    def stored_in_session(self, session: int, ids: Sequence[str]) -> list[tuple[int, MessageRow]]:
        """Find ids on all branches of a session."""
        branches = {n for n, row in self._tables.branches.items() if row.session == session}
        positions = sorted({at for id in ids for at in self._tables.positions.get(id, ())})
        return [(n, self._tables.messages[n][seq]) for n, seq in positions if n in branches]

    def count_turn_messages(self, branch: int, turn: TurnRow) -> int:
        """Count the messages of a turn on the branch where it was opened."""
        rows = self._tables.messages.get(branch, {}).values()
        return sum(row.turn == turn.number and row.seq > turn.first_seq for row in rows)

    def session_size(self, session: int) -> SessionSize:
        """Count the messages on a session's own branches, and their bytes."""
        tables = self._tables
        own = {n for n, row in tables.branches.items() if row.session == session}
        rows = [row for n in own for row in tables.messages.get(n, {}).values()]
        blobs = {sha256 for n, _, sha256 in tables.blob_uses if n in own}
        size = sum(len(row.body) + len(codec.encode_text(row.id)) for row in rows)
        return SessionSize(len(rows), size + sum(len(tables.blobs[sha256]) for sha256 in blobs))

    # ------------------------------------------------------------- turns, drafts, queue, blobs

    def turn(self, session: int, number: int) -> TurnRow | None:
        """Read one turn."""
        return self._tables.turns.get(session, {}).get(number)

    def turns(self, session: int, limit: int | None) -> list[TurnRow]:
        """Read the newest turns, oldest first."""
        newest = _by_number(self._tables.turns.get(session, {}))[::-1]
        return newest[:limit][::-1]

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Read the tool ledger of a turn, in call order."""
        return list(self._tables.tools.get((session, turn), {}).values())

    def draft(self, session: int, turn: int) -> list[bytes]:
        """Read the records of an open draft."""
        return _by_number(self._tables.drafts.get((session, turn), {}))

    def opening(self, session: int, turn: int) -> bytes | None:
        """Read the first record of an open draft."""
        records = self.draft(session, turn)
        return records[0] if records else None

    def queue(self, session: int) -> list[QueueRow]:
        """Read queued input in order."""
        return _by_number(self._tables.queue.get(session, {}))

    def usage(self, session: int) -> list[UsageRow]:
        """Read usage by day and model, rows without a model first."""
        return sort_usage(self._tables.usage.get(session, {}).values())

    def measured(self, model: str) -> MeasuredTokens:
        """Sum reported and estimated tokens over a model's newest rows of usage."""
        found = [
            (day, session, row.measured)
            for session, rows in self._tables.usage.items()
            for (day, row_model), row in rows.items()
            if row_model == model
        ]
        newest = sorted(found, key=lambda row: row[:2], reverse=True)[:MAX_MEASURED_ROWS]
        return sum((measured for *_, measured in newest), MeasuredTokens())

    def all_usage(self) -> list[UsageRow]:
        """Read the usage of every session, by day and model."""
        return sort_usage(row for rows in self._tables.usage.values() for row in rows.values())

    def blob(self, sha256: str) -> bytes | None:
        """Read a blob."""
        return self._tables.blobs.get(sha256)

    def erasures(self) -> int:
        """Return how many transactions have erased messages."""
        return self._tables.numbers.get("erasures", 0)


class MemoryTransaction(MemorySnapshot):
    """Reads and writes; keeps an undo log of its changes."""

    def __init__(self, tables: MemoryTables, clock: Clock) -> None:
        super().__init__(tables, clock)
        self._undo: list[Callable[[], object]] = []
        self._erased = False

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
            activity = self._next_number("activity")
            head = _first_head(n, branch, start.fork_seq, activity, row.created_at)
            self._set(tables.heads, n, head)
        return n

    def add_branch(self, session: int, number: int, start: BranchStart, created_at: int) -> int:
        """Insert a branch."""
        n = self._next_number("branch")
        row = BranchRow(
            n=n,
            session=session,
            session_id=self._tables.sessions[session].id,
            purged=False,
            number=number,
            parent=start.parent,
            fork_seq=start.fork_seq,
            asked_seq=start.asked_seq,
            last_seq=start.fork_seq,
            created_at=created_at,
            reason=start.reason,
            token=start.token,
        )
        self._set(self._tables.branches, n, row)
        return n

    def end_branch(self, n: int, last_seq: int) -> None:
        """Record where a branch ends that its session is leaving."""
        row = self._tables.branches[n]
        self._set(self._tables.branches, n, msgspec.structs.replace(row, last_seq=last_seq))

    def cut_branch(self, n: int, last_seq: int) -> CutResult:
        """Erase the messages of a branch after `last_seq`, which becomes its end."""
        messages = self._tables.messages.get(n, {})
        dropped = [row for seq, row in sorted(messages.items()) if seq > last_seq]
        blobs = [self._drop_blob_uses(n, row.seq) for row in dropped]
        for row in dropped:
            self._drop(messages, row.seq)
            self._drop_position(row.id, n, row.seq)
        if dropped:
            self._count_erasure()
        self.end_branch(n, last_seq)
        return CutResult(len(dropped), frozenset().union(*blobs))

    def _count_erasure(self) -> None:
        """Count this transaction among those that erase messages, once."""
        if not self._erased:
            self._next_number("erasures")
            self._erased = True

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

    def drop_branch(self, n: int) -> None:
        """Erase a branch without messages."""
        self._drop(self._tables.branches, n)
        self._drop(self._tables.messages, n)

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message by its tombstone; return the blobs it referred to."""
        self._count_erasure()
        self._set(self._tables.messages[branch], row.seq, row)
        return self._drop_blob_uses(branch, row.seq)

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that no message refers to; return their count and bytes."""
        used = {sha256 for _, _, sha256 in self._tables.blob_uses}
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
        records = sum(len(tables.drafts[key]) for key in drafts)
        for key in drafts:
            self._drop(tables.drafts, key)
        for ledger in [key for key in tables.tools if key[0] == session]:
            self._drop(tables.tools, ledger)
        self._drop(tables.heads, session)
        self._drop(tables.turns, session)
        self._drop(tables.queue, session)
        self._drop(tables.usage, session)
        return SessionRowCounts(turns, records, queued)

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
            newest = msgspec.structs.replace(row, activity=self._next_number("activity"))
            self._set(self._tables.heads, row.session, newest)

    # ---------------------------------------------------------------------------- messages

    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert messages with the seqs they have, and the blobs they refer to."""
        messages, positions = (
            self._inner_table(self._tables.messages, branch),
            self._tables.positions,
        )
        for row in rows:
            if row.seq in messages:
                raise _in_use_error(f"seq {row.seq}")
            self._set(messages, row.seq, row)
            self._set(positions, row.id, (*positions.get(row.id, ()), (branch, row.seq)))
        for blob in blobs:
            if blob.data is not None and blob.sha256 not in self._tables.blobs:
                self._set(self._tables.blobs, blob.sha256, blob.data)
            self._set(self._tables.blob_uses, (branch, blob.seq, blob.sha256), None)

    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage by day and model."""
        rows = self._inner_table(self._tables.usage, session)
        key = (row.day, row.model)
        if key in rows:
            so_far = rows[key]
            row = UsageRow(
                *key,
                so_far.usage + row.usage,
                so_far.cost + row.cost,
                so_far.measured + row.measured,
            )
        self._set(rows, key, row)

    # -------------------------------------------------------------------- turns, drafts, queue

    def put_turn(self, row: TurnRow) -> None:
        """Insert or replace a turn; its token, holder, start and first seq never change."""
        turns = self._inner_table(self._tables.turns, row.session)
        if row.number in turns:
            old = turns[row.number]
            row = msgspec.structs.replace(
                row,
                token=old.token,
                holder=old.holder,
                first_seq=old.first_seq,
                started_at=old.started_at,
            )
        self._set(turns, row.number, row)

    def put_tool(self, row: ToolRow) -> None:
        """Insert or replace a row of the tool ledger; replacing keeps the order."""
        self._set(self._inner_table(self._tables.tools, (row.session, row.turn)), row.call_id, row)

    def put_draft(self, session: int, turn: int, number: int, record: bytes) -> None:
        """Insert or replace one record of a draft."""
        self._set(self._inner_table(self._tables.drafts, (session, turn)), number, record)

    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""
        self._drop(self._tables.drafts, (session, turn))

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Add input to the end of the queue."""
        waiting = self._inner_table(self._tables.queue, session)
        number = max(waiting, default=0) + 1
        blobs = tuple(dict(row.blobs).items())
        self._set(waiting, number, QueueRow(number, row.id, row.created_at, row.body, blobs))

    def drop_queued(self, session: int, number: int) -> None:
        """Remove input that became a message."""
        self._drop(self._tables.queue.get(session, {}), number)


class MemoryBackend(Backend):
    """A store in memory, empty when it is opened, for one tenant."""

    def __init__(self, location: Location, *, tenant: str, readonly: bool, clock: Clock) -> None:
        self.url = f"{location.scheme}:{location.address}"
        self.tenant = tenant
        self.readonly = readonly
        self.lease = location.lease
        self.deadline = location.deadline
        self.tables = MemoryTables()
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._commits = 0
        self._closed = False

    # --------------------------------------------------------------------- reading and writing

    def read(self, query: Query[T]) -> T:
        """Run a query under the lock."""
        with self._lock:
            self._refuse_closed()
            return query(MemorySnapshot(self.tables, self._clock))

    def write(self, operation: Operation[T], *, alone: bool = False) -> T:  # noqa: ARG002 - all are
        """Run an operation, and undo it if it raises."""
        return defer_signals(partial(self._write, operation))

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

    def submit(self, operation: Operation[T]) -> PendingWrite[T]:
        """Run an operation at once, since it waits for no disk."""
        self._refuse_write()
        ticket = Ticket(operation, self.deadline, withdraw=lambda _: False)
        defer_signals(partial(ticket.run, self._write))
        ticket.finish()
        return ticket

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until something was written since `seen`."""
        with self._lock:
            self._changed.wait_for(lambda: self._commits != seen or self._closed, timeout)
            return self._commits

    def flush(self) -> None:
        """Do nothing: submitted writes are done."""

    def _refuse_closed(self) -> None:
        if self._closed:
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
        return ()

    def scan(self, fragments: Sequence[bytes]) -> Scan:
        """Report a clean scan: there are no files, only the tables."""
        self._refuse_closed()
        return Scan(files=0, bytes=0, fragments=len(fragments))

    def verify(self) -> list[Damage]:
        """Read everything and report what is damaged."""
        with self._lock:
            self._refuse_closed()
            return list(_find_damage(self.tables, MemorySnapshot(self.tables, self._clock)))

    def salvage(self, to: str) -> SalvageReport:
        """Raise `Invalid`: there is no file that could be damaged."""
        raise _no_file_error("salvage", to)

    def backup(self, to: str) -> BackupReport:
        """Raise `Invalid`: there is no file to copy."""
        raise _no_file_error("back up", to)

    def stats(self) -> Stats:
        """Count what is there."""
        with self._lock:
            self._refuse_closed()
            tables, snapshot = self.tables, MemorySnapshot(self.tables, self._clock)
            return Stats(
                sessions=sum(row.purged_at is None for row in tables.sessions.values()),
                trashed=sum(row.trashed_at is not None for row in tables.sessions.values()),
                branches=len(tables.branches),
                messages=sum(map(len, tables.messages.values())),
                turns=sum(head.turns for head in tables.heads.values()),
                open_turns=sum(head.open_turn is not None for head in tables.heads.values()),
                blobs=len(tables.blobs),
                blob_bytes=sum(len(data) for data in tables.blobs.values()),
                file_bytes=0,
                growth=_growth(tables, snapshot),
                days=sum_by_day(_usage_by_day(snapshot)),
            )

    def health(self) -> list[HealthCheck]:
        """Report that nothing here outlives the process."""
        self._refuse_closed()
        return [
            HealthCheck("backend", "memory"),
            HealthCheck("durability", "none: nothing survives this process"),
        ]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Drop all tables and wake all threads in `wait`."""
        with self._lock:
            self._closed = True
            self.tables = MemoryTables()
            self._changed.notify_all()


# ------------------------------------------------------------------------------- rows and values


def _first_head(n: int, branch: int, seq: int, activity: int, created_at: int) -> HeadRow:
    return HeadRow(
        session=n,
        branch=branch,
        branch_no=1,
        seq=seq,
        turns=0,
        open_turn=None,
        updated_at=created_at,
        activity=activity,
        usage=Usage(),
        cost=0,
        preview=None,
        preview_rank=0,
        preview_seq=0,
        queued=0,
    )


def _growth(tables: MemoryTables, snapshot: MemorySnapshot) -> tuple[Growth, ...]:
    """Count sessions by the day they were created, and the messages they hold."""
    days: dict[int, tuple[int, int]] = {}
    for n in tables.heads:
        held = sum(row.last_seq - row.fork_seq for row in snapshot.branches(n))
        day = tables.sessions[n].created_at // 86_400_000_000
        sessions, messages = days.get(day, (0, 0))
        days[day] = (sessions + 1, messages + held)
    return tuple(Growth(to_day(day), *counts) for day, counts in sorted(days.items()))


def _usage_by_day(snapshot: MemorySnapshot) -> list[tuple[int, str | None, Usage, int]]:
    rows = snapshot.all_usage()
    return [(row.day, row.model, row.usage, row.cost) for row in rows]


def _by_number(rows: dict[int, V]) -> list[V]:
    return [rows[number] for number in sorted(rows)]


def _is_titled(row: SessionRow, title: str | None) -> bool:
    return title is not None and row.title == title and row.trashed_at is None


def _live_key(row: SessionRow | None) -> str | None:
    return None if row is None or row.trashed_at is not None else row.key


def _in_use_error(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} is already in use; nothing was stored.")


def _no_file_error(what: str, to: str) -> Invalid:
    return Invalid(
        f"cannot {what} an in-memory store to {to!r}: it has no file; nothing was written. Open a "
        "store in a file from the start, for example holdfast.open('agent.db')."
    )


# ------------------------------------------------------------------------------------ verifying


def _find_damage(tables: MemoryTables, snapshot: MemorySnapshot) -> Iterator[Damage]:
    for n in sorted(tables.branches):
        branch = snapshot.find_branch(n)
        if branch is not None:
            yield from _find_branch_damage(tables, branch)
    for sha256, data in tables.blobs.items():
        if codec.sha256_hex(data) != sha256:
            yield Damage(what=f"blob {sha256} does not match its hash")
    for n, seq, sha256 in tables.blob_uses:
        if sha256 not in tables.blobs:
            owner = tables.sessions[tables.branches[n].session].id
            yield Damage(what=f"blob {sha256} is missing", session_id=owner, seq=seq)


def _find_branch_damage(tables: MemoryTables, branch: BranchRow) -> Iterator[Damage]:
    owner, rows = branch.session_id, tables.messages.get(branch.n, {})
    for seq in range(branch.fork_seq + 1, branch.last_seq + 1):
        row = rows.get(seq)
        if row is None:
            yield Damage(what=f"message {seq} is missing", session_id=owner, seq=seq)
        elif codec.checksum(row.id, row.turn, row.body) != row.crc:
            what = f"message {seq} does not match its checksum"
            yield Damage(what=what, session_id=owner, seq=seq)
