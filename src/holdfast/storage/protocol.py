"""The seam: what a storage backend implements.

An *operation* is a write, as a function over a `Transaction`: it reads, decides, and only then
writes. A *query* is a read, as a function over a `Snapshot`. A backend runs them without knowing
what they mean. An operation may run again from the start (after a failed batch or a lost
connection), so each is idempotent by the ids it was created with.

A backend guarantees four things. A write that returned is durable. Operations are serializable,
from whatever thread or process they come. An operation that raises changes nothing. A snapshot
sees every write that was acknowledged before it began.

Sessions and branches are numbered by the backend; these numbers never leave the library.
"""

from __future__ import annotations

import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.codec import checksum
from holdfast.storage.ancestry import Path, Segment
from holdfast.values import (
    BackupReport,
    BranchReason,
    Damage,
    Holder,
    MeasuredTokens,
    Relation,
    SalvageReport,
    Scan,
    Stats,
    TitleBy,
    ToolOutcome,
    TurnState,
    Usage,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SnapshotT = TypeVar("SnapshotT")

MAX_MEASURED_ROWS: Final = 64


class SessionRow(msgspec.Struct, frozen=True):
    """A session's identity. `goal` and `metadata` are JSON, times are in microseconds.

    A row with `purged_at` is the stub that a purge leaves while a fork shares the session's
    messages. Reads along those messages find it by its id; nothing else does.
    """

    n: int
    id: str
    key: str | None
    scope: str | None
    agent: str | None
    title: str | None
    title_by: TitleBy | None
    model: str | None
    cwd: str | None
    created_at: int
    pinned: bool
    archived: bool
    trashed_at: int | None
    goal: bytes | None
    metadata: bytes
    parent: str | None
    relation: Relation | None
    purged_at: int | None = None


class HeadRow(msgspec.Struct, frozen=True):
    """A session's head row, which every append reads and rewrites.

    `open_turn` is the number of the open turn and its fencing token: later turns have higher
    numbers, and a write by the holder of any other turn is refused.
    """

    session: int
    branch: int
    branch_no: int
    seq: int
    turns: int
    open_turn: int | None
    updated_at: int
    activity: int
    usage: Usage
    cost: int
    preview: str | None
    preview_rank: int
    preview_seq: int
    queued: int


class BranchStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where a new branch starts: after message `fork_seq`, which is on branch `parent`."""

    parent: int | None = None
    fork_seq: int = 0
    asked_seq: int = 0
    reason: BranchReason = "start"
    token: str


class BranchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A branch. `last_seq` is where it ends now; `purged` is whether its session was purged."""

    n: int
    session: int
    session_id: str
    purged: bool
    number: int
    parent: int | None
    fork_seq: int
    asked_seq: int
    last_seq: int
    created_at: int
    reason: BranchReason
    token: str


class BranchOwner(msgspec.Struct, frozen=True, gc=False):
    """What a search reads of a session first: its identity, and its current branch.

    It is read for many sessions at once, without verifying checksums; the rows of hits that are
    shown are verified.
    """

    n: int
    id: str
    scope: str | None
    agent: str | None
    title: str | None
    parent: str | None
    relation: Relation | None
    branch: int
    updated_at: int


class CutResult(msgspec.Struct, frozen=True):
    """What `cut_branch` erased: how many messages, and the blobs they referred to."""

    messages: int
    blobs: frozenset[str]


class SessionRowCounts(msgspec.Struct, frozen=True):
    """How many rows were erased together with a session."""

    turns: int
    drafts: int
    queued: int


class SessionSize(msgspec.Struct, frozen=True):
    """How many messages a session wrote, and the approximate size of them and their files."""

    messages: int
    bytes: int


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """A stored message: its seq, id, turn, checksum and encoded body."""

    seq: int
    id: str
    turn: int | None
    crc: int
    body: bytes

    @classmethod
    def create(cls, seq: int, id: str, turn: int | None, body: bytes) -> MessageRow:
        """Return the row of a new message, with its checksum."""
        return cls(seq, id, turn, checksum(id, turn, body), body)


class BlobUse(msgspec.Struct, frozen=True, gc=False):
    """A blob that a message refers to. Without `data` it is stored; the caller has checked that."""

    seq: int
    sha256: str
    data: bytes | None = None


class TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    """A turn. `token` identifies the attempt that opened it, `first_seq` is the head's seq then."""

    session: int
    number: int
    token: str
    state: TurnState
    run_id: str | None
    model: str | None
    holder: Holder
    lease_until: int
    first_seq: int
    started_at: int
    ended_at: int | None
    usage: Usage
    cost: int
    error: str | None


class ToolRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the tool ledger: one tool call of a turn."""

    session: int
    turn: int
    call_id: str
    name: str | None
    outcome: ToolOutcome
    started_at: int | None
    ended_at: int | None


class QueueRow(msgspec.Struct, frozen=True):
    """Input queued for the next turn."""

    number: int
    id: str
    created_at: int
    body: bytes
    blobs: tuple[tuple[str, bytes], ...]


class UsageRow(msgspec.Struct, frozen=True):
    """The usage of one model in a session on one day (days since 1970, UTC)."""

    day: int
    model: str | None
    usage: Usage
    cost: int
    measured: MeasuredTokens = MeasuredTokens()


def sort_usage(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """Return usage sorted by day and model, rows without a model first."""
    return sorted(rows, key=lambda row: (row.day, row.model is not None, row.model or ""))


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list: those that match every field that is not `None`.

    `since` (inclusive) and `until` (exclusive) bound the time of the last write, `busy` is whether
    a turn is open.
    """

    scope: str | None = None
    agent: str | None = None
    cwd: str | None = None
    text: str | None = None
    pinned: bool | None = None
    archived: bool | None = None
    trashed: bool = False
    delegates: bool = True
    since: int | None = None
    until: int | None = None
    busy: bool | None = None

    def matches(self, row: SessionRow, head: HeadRow) -> bool:
        """Return whether a session belongs in the list."""
        fields = (
            (self.scope, row.scope),
            (self.agent, row.agent),
            (self.cwd, row.cwd),
            (self.pinned, row.pinned),
            (self.archived, row.archived),
            (self.busy, head.open_turn is not None),
        )
        return (
            all(wanted is None or wanted == actual for wanted, actual in fields)
            and self.trashed == (row.trashed_at is not None)
            and (self.delegates or row.relation != "delegate")
            and (self.since is None or head.updated_at >= self.since)
            and (self.until is None or head.updated_at < self.until)
            and (self.text is None or _contains(self.text, row.title, head.preview, row.key))
        )

    @property
    def includes_damaged(self) -> bool:
        """Whether no filter is set that unreadable sessions might fail: then they are listed."""
        filters = (self.scope, self.agent, self.cwd, self.text, self.since, self.until, self.busy)
        return all(value is None for value in filters) and not (
            self.pinned or self.archived or self.trashed
        )


def _contains(text: str, *shown: str | None) -> bool:
    return any(text.lower() in (value or "").lower() for value in shown)


class UnreadableSession(msgspec.Struct, frozen=True):
    """Stands in a list for a session whose rows cannot be read.

    It has what could be read: perhaps the id, and the rows without a valid checksum.
    """

    activity: int
    why: str
    id: str | None = None
    row: SessionRow | None = None
    head: HeadRow | None = None


ListedSession: TypeAlias = tuple[SessionRow, HeadRow] | UnreadableSession


class Snapshot(Protocol):
    """Consistent reads, all as of one moment."""

    def now(self) -> int:
        """Return the database's time in microseconds."""
        ...

    def find_session(self, *, key: str | None = None, id: str | None = None) -> SessionRow | None:
        """Find a session by its key or id."""
        ...

    def find_sessions(self, *, prefix: str | None, title: str | None) -> list[SessionRow]:
        """Find sessions whose id starts with `prefix`, or whose title is `title`; up to 20."""
        ...

    def find_trashed(self, *, key: str | None, title: str | None) -> list[SessionRow]:
        """Find sessions in the trash by the key or title they had; up to 20."""
        ...

    def find_titled(self, title: str, *, trashed: bool) -> list[SessionRow]:
        """Find sessions, in the trash or not, by title, ignoring case; up to 20.

        Titles are compared as `normalize_title` returns them.
        """
        ...

    def forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the forks and continuations of these sessions that are not in the trash.

        Sessions without any are omitted.
        """
        ...

    def owners(self, branches: Collection[int]) -> dict[int, BranchOwner]:
        """Return the sessions of these branches, except those in the trash or purged."""
        ...

    def title_candidates(self, words: Sequence[str]) -> list[BranchOwner]:
        """Find sessions not in the trash whose title may contain all these words.

        Words are in lower case and without accents. Every title that contains all of them is
        found; others may be, too.
        """
        ...

    def session_or_stub(self, id: str) -> SessionRow | None:
        """Read a session's identity by its id, including the stub of a purged session."""
        ...

    def children(self, id: str) -> list[SessionRow]:
        """Read the sessions with this parent, oldest first, including stubs of purged ones."""
        ...

    def find_run(self, run_id: str) -> list[SessionRow]:
        """Find the sessions not in the trash that have a turn of this run."""
        ...

    def session(self, n: int) -> SessionRow | None:
        """Read a session's identity."""
        ...

    def head(self, n: int) -> HeadRow | None:
        """Read a session's head row."""
        ...

    def list_sessions(
        self, listing: SessionFilter, *, before: int | None, limit: int
    ) -> list[ListedSession]:
        """List sessions by activity, newest first, with an activity number below `before`."""
        ...

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List sessions written to after an activity number, in order of their activity.

        Each is (activity, session id, branch number in the session, seq).
        """
        ...

    def path(self, branch: int, low: int = 1) -> Path:
        """Return the path of a branch's history, back to message `low` at least."""
        ...

    def branch(self, session: int, number: int) -> BranchRow | None:
        """Read a branch by its number within its session."""
        ...

    def branch_by_token(self, session: int, token: str) -> BranchRow | None:
        """Read the branch that the write with this token created."""
        ...

    def find_branch(self, n: int) -> BranchRow | None:
        """Read a branch."""
        ...

    def branches(self, session: int) -> list[BranchRow]:
        """Read a session's branches, by number."""
        ...

    def branches_from(self, n: int) -> list[BranchRow]:
        """Read the branches that start on this one, of any session, oldest first."""
        ...

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Read ranges, in order; each with the id of the session that wrote it."""
        ...

    def newest_summary(self, path: Path, last: int) -> int | None:
        """Return the seq of the newest summary along a path, up to `last`."""
        ...

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Find ids in a branch's history; each with the id of the session that wrote it."""
        ...

    def stored_in_session(self, session: int, ids: Sequence[str]) -> list[tuple[int, MessageRow]]:
        """Find ids on all branches of a session; each with its branch, the oldest first."""
        ...

    def count_turn_messages(self, branch: int, turn: TurnRow) -> int:
        """Count the messages of a turn on the branch where it was opened."""
        ...

    def session_size(self, session: int) -> SessionSize:
        """Count the messages on a session's own branches, and the bytes of them and their blobs."""
        ...

    def turn(self, session: int, number: int) -> TurnRow | None:
        """Read one turn."""
        ...

    def turns(self, session: int, limit: int | None) -> list[TurnRow]:
        """Read the newest turns, oldest first."""
        ...

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Read the tool ledger of a turn, in call order."""
        ...

    def draft(self, session: int, turn: int) -> list[bytes]:
        """Read the records of an open draft: the opening, then the chunks."""
        ...

    def opening(self, session: int, turn: int) -> bytes | None:
        """Read the first record of an open draft."""
        ...

    def queue(self, session: int) -> list[QueueRow]:
        """Read queued input in order."""
        ...

    def usage(self, session: int) -> list[UsageRow]:
        """Read usage by day and model."""
        ...

    def measured(self, model: str) -> MeasuredTokens:
        """Sum reported and estimated tokens over a model's newest rows of usage.

        These are at most `MAX_MEASURED_ROWS`; newest is by day, then by session.
        """
        ...

    def blob(self, sha256: str) -> bytes | None:
        """Read a blob."""
        ...

    def erasures(self) -> int:
        """Return how many transactions have erased messages.

        What was derived from messages before the latest of them is stale.
        """
        ...


class Transaction(Snapshot, Protocol):
    """Reads and writes that happen together or not at all."""

    def add_session(self, row: SessionRow, start: BranchStart) -> int:
        """Insert a session with its first branch; return its number (`row.n` is ignored).

        Its head is where the branch starts. A session with `purged_at` has no head.
        """
        ...

    def put_session(self, row: SessionRow) -> None:
        """Replace a session's identity."""
        ...

    def put_head(self, row: HeadRow) -> None:
        """Replace a session's head; its activity becomes the highest, not `row.activity`."""
        ...

    def add_branch(self, session: int, number: int, start: BranchStart, created_at: int) -> int:
        """Insert a branch; return the backend's number for it."""
        ...

    def end_branch(self, n: int, last_seq: int) -> None:
        """Record where a branch ends that its session is leaving."""
        ...

    def cut_branch(self, n: int, last_seq: int) -> CutResult:
        """Erase the messages of a branch after `last_seq`, which becomes its end."""
        ...

    def drop_branch(self, n: int) -> None:
        """Erase a branch without messages."""
        ...

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message by its tombstone; return the blobs it referred to.

        Nothing else replaces a stored message.
        """
        ...

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that no message refers to; return their count and bytes."""
        ...

    def drop_session_rows(self, session: int) -> SessionRowCounts:
        """Erase a session's head, turns, ledger, drafts, queue and usage."""
        ...

    def drop_session(self, n: int) -> None:
        """Erase a session's identity."""
        ...

    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert messages with the seqs they have, and the blobs they refer to.

        `blobs` is read once, one at a time: the files of many messages may not fit in memory.
        """
        ...

    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage by day and model."""
        ...

    def put_turn(self, row: TurnRow) -> None:
        """Insert or replace a turn."""
        ...

    def put_tool(self, row: ToolRow) -> None:
        """Insert or replace a row of the tool ledger."""
        ...

    def put_draft(self, session: int, turn: int, number: int, record: bytes) -> None:
        """Insert or replace one record of a draft."""
        ...

    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""
        ...

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Add input to the end of the queue (`row.number` is ignored)."""
        ...

    def drop_queued(self, session: int, number: int) -> None:
        """Remove input that became a message."""
        ...


Operation: TypeAlias = Callable[[Transaction], T]
Query: TypeAlias = Callable[[Snapshot], T]


PrefetchItem: TypeAlias = Literal[
    "session", "usage", "summary", "turn", "tools", "draft", "opening"
]


class Prefetch(msgspec.Struct, frozen=True):
    """Prefetch hint: what an operation or a query will read, known before it runs.

    A remote database can read all of it in one round trip, also for many operations at once. A
    backend may ignore the hint, and the operation may read other rows, too.
    """

    session: int  # its head
    ids: tuple[str, ...] = ()  # messages looked up by id in its history
    newest: int = 0  # how many messages at the end of its history
    items: tuple[PrefetchItem, ...] = ()  # what else of the session, and of this turn
    turn: int = 0


class Prefetched(Generic[SnapshotT, T]):
    """An operation or a query with a prefetch hint, if one is known.

    A query of this kind has no side effects, so it may be run again from the start, as operations
    may.
    """

    def __init__(self, run: Callable[[SnapshotT], T], prefetch: Prefetch | None = None) -> None:
        self._run = run
        self.prefetch = prefetch

    def __call__(self, at: SnapshotT) -> T:
        """Run it on a snapshot or transaction."""
        return self._run(at)


def prefetch_of(run: object) -> Prefetch | None:
    """Return the prefetch hint of an operation or a query, if it has one."""
    return run.prefetch if isinstance(run, Prefetched) else None


class PendingWrite(Protocol[T_co]):
    """A submitted write."""

    def result(self) -> T_co:
        """Wait for it; return its result or raise its error."""
        ...

    def when_done(self, call: Callable[[], None]) -> None:
        """Run `call` in the writer's thread once it is done, or at once if it is."""
        ...

    def outcome(self) -> T_co:
        """Return the result of a write that is done, or raise its error."""
        ...

    def withdraw(self) -> bool:
        """Withdraw it; false if it has started."""
        ...


class HealthCheck(msgspec.Struct, frozen=True):
    """One line of the report of `doctor`."""

    name: str
    value: str
    ok: bool = True
    hint: str | None = None


class PendingRows(Protocol):
    """The result of a statement that was sent."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Wait for it and return all rows."""
        ...


class IndexConnection(Protocol):
    """A connection to the tables of a search index. It raises the errors of the store.

    The tables of the log are in the same database, so a search can read both in one snapshot.
    """

    def begin_reading(self) -> None:
        """Begin a read transaction; it is sent with the first statement."""
        ...

    def begin_writing(self, timeout_s: float) -> None:
        """Begin an exclusive write transaction; the first result waits `timeout_s` for others."""
        ...

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        ...

    def send(self, text: str, values: Sequence[object] = ()) -> PendingRows:
        """Send a statement; its rows, or its error, come with `fetchall`."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def roll_back(self) -> None:
        """Roll back the transaction."""
        ...

    def close(self) -> None:
        """Release the connection, in whatever state it is."""
        ...

    def prefetch(self, segments: Sequence[Segment], titles: Sequence[str] | None = None) -> None:
        """Prefetch messages and titles of the log, and its highest activity."""
        ...

    def log(self) -> Snapshot:
        """Return the log, in the snapshot of this transaction."""
        ...

    def log_activity(self) -> int:
        """Return the highest activity of the log; transactions with a lower one may be open."""
        ...

    def branches_of(
        self, scopes: Sequence[str], agents: Sequence[str], *, all_branches: bool
    ) -> list[int]:
        """Return the branches of the log that sessions of these scopes and agents may show."""
        ...


class IndexTables(Protocol):
    """Tables of a database for the search index of one tenant.

    `code` is the prefix of the tenant's index terms, which keeps tenants apart.
    """

    shown: str
    code: str

    def connect(self) -> IndexConnection:
        """Return a connection, which is opened when it is first used."""
        ...


class Backend(ABC):
    """One database, opened for one tenant."""

    url: str
    tenant: str
    readonly: bool
    lease: float
    deadline: float

    @abstractmethod
    def read(self, query: Query[T]) -> T:
        """Run a query on a snapshot and return its result."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Open a snapshot for a `with` block; a backend with an `index_path` has to have this."""
        raise NotImplementedError

    def index_path(self) -> pathlib.Path | None:
        """Return the path for a search index of this tenant's messages, if it is kept in a file.

        Without a file or tables for an index, searches read the messages themselves.
        """
        return None

    def index_tables(self) -> IndexTables | None:
        """Return the tables for a search index, if it is not kept in a file."""
        return None

    @abstractmethod
    def write(self, operation: Operation[T], *, alone: bool = False) -> T:
        """Run an operation and return its result; durable when this returns.

        An operation that reads many sessions before it erases must run `alone`: no other operation
        is in progress meanwhile. All others only write to sessions whose row or head they have
        read.
        """

    @abstractmethod
    def submit(self, operation: Operation[T]) -> PendingWrite[T]:
        """Queue an operation and return without waiting for it."""

    @abstractmethod
    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the store's change number differs from `seen`; return the current one.

        Start with `seen=-1`, which returns at once. A backend that was closed returns at once.
        """

    @abstractmethod
    def wipe(self) -> tuple[str, ...]:
        """Wipe the bytes of erased messages; return what still holds some, and what to do."""

    @abstractmethod
    def scan(self, fragments: Sequence[bytes]) -> Scan:
        """Search all storage, free space included, for fragments of erased messages.

        Fragments that other stored messages contain as well are not reported.
        """

    @abstractmethod
    def verify(self) -> list[Damage]:
        """Read everything and report what is damaged."""

    @abstractmethod
    def salvage(self, to: str) -> SalvageReport:
        """Copy everything readable into a new store."""

    @abstractmethod
    def backup(self, to: str) -> BackupReport:
        """Copy the whole store while it is in use, and verify the copy."""

    @abstractmethod
    def stats(self) -> Stats:
        """Count what is there."""

    @abstractmethod
    def health(self) -> list[HealthCheck]:
        """Check how the database is set up, for `doctor`."""

    @abstractmethod
    def flush(self) -> None:
        """Wait for all submitted writes."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def close(self) -> None:
        """Finish submitted writes and release the database."""
