"""The seam: what a storage backend implements.

An *operation* is a write, as a function over a `Transaction`: it reads, decides, and only then
writes. A *query* is a read, as a function over a `Snapshot`. A backend runs them without knowing
what they mean. An operation may run again from the start (after a failed batch or a lost
connection), so each is idempotent by the ids it was created with.

A backend guarantees four things. A write that returned is durable. Operations are serializable,
from whatever thread or process they come. An operation that raises changes nothing. A snapshot
sees every write that was acknowledged before it began.

A backend implements the abstract methods. All others are derived from them here, and a backend
overrides one where its database can do better. A search index of its own is optional too
(`index_tables`), and so are prefetch hints (`prefetch`).

Sessions and branches are numbered by the backend; these numbers never leave the library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path as FilePath
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import codec
from holdfast.clock import Clock
from holdfast.errors import Damaged, Invalid
from holdfast.storage.ancestry import (
    Path,
    PathBranch,
    Segment,
    join_path,
    ranges,
    record_ranges,
)
from holdfast.storage.audit import count_rows, find_damage, own_messages, own_records
from holdfast.storage.rows import (
    BlobUse,
    BranchOwner,
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
    SessionSize,
    StoreRecordRow,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
    is_summary,
)
from holdfast.url import Durability, Location, without_password
from holdfast.values import BackupReport, Damage, SalvageReport, Scan, Stats

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SessionField: TypeAlias = Literal[
    "n", "id", "id_prefix", "key", "title", "title_any_case", "parent", "run_id", "message_id"
]

_PAGE_ROWS: Final = 500


class TurnRange(NamedTuple):
    """The turns of a session from one number to another, both included."""

    session: int
    first: int
    last: int


class Snapshot(ABC):
    """Consistent reads, all as of one moment."""

    @abstractmethod
    def now(self) -> int:
        """Return the database's time in microseconds: its own, or that of the backend's clock."""

    @abstractmethod
    def monotonic(self) -> int:
        """Return the monotonic time of the backend's clock, in microseconds: this host's."""

    # ---------------------------------------------------------------------------- sessions

    @abstractmethod
    def sessions(
        self,
        by: SessionField,
        value: str | int,
        *,
        trashed: bool | None = None,
        stubs: bool = False,
        limit: int | None = None,
    ) -> list[SessionRow]:
        """Find sessions by one field, in order of their numbers.

        `n` is the backend's number, `id_prefix` the beginning of the id, `run_id` the run of one of
        the turns, `message_id` the id of a message on one of the session's own branches;
        `title_any_case` compares what `normalize_title` returns for title and value.
        With `trashed` only those in the trash, or only the others, are found. Stubs of purged
        sessions are found only with `stubs`.
        """

    def session(self, n: int) -> SessionRow | None:
        """Return a session's identity."""
        return _first(self.sessions("n", n))

    def is_trashed(self, n: int) -> bool:
        """True if a session is in the trash."""
        row = self.session(n)
        return row is not None and row.trashed_at is not None

    def find_session(
        self, *, id: str | None = None, key: str | None = None, stubs: bool = False
    ) -> SessionRow | None:
        """Return the session with this id, or the one that has this key and is not in the trash."""
        if key is not None:
            return _first(self.sessions("key", key, trashed=False))
        return _first(self.sessions("id", id or "", stubs=stubs))

    def sessions_by_id(self, ids: Collection[str]) -> dict[str, SessionRow]:
        """Return the sessions with these ids, stubs of purged ones included."""
        found = ((id, self.find_session(id=id, stubs=True)) for id in ids)
        return {id: row for id, row in found if row is not None}

    def sessions_by_key(self, keys: Collection[str]) -> dict[str, SessionRow]:
        """Return the sessions that have these keys and are not in the trash."""
        found = ((key, self.find_session(key=key)) for key in keys)
        return {key: row for key, row in found if row is not None}

    def read_ahead(  # noqa: B027 - a database that is near has nothing to prepare
        self,
        sessions: Collection[int] = (),
        ranges: Collection[Segment] = (),
        turns: Collection[TurnRange] = (),
    ) -> None:
        """Prepare to read the branches, usage and queue of sessions, messages, and turns.

        A remote database is asked for all of it at once, in a snapshot that is only read.
        """

    def children(self, id: str) -> list[SessionRow]:
        """Return the sessions with this parent, oldest first, including stubs of purged ones."""
        return sorted(self.sessions("parent", id, stubs=True), key=lambda row: row.created_at)

    def descendants(self, id: str) -> list[SessionRow]:
        """Return the children of a session, their children and so on, stubs of purged ones too."""
        found: dict[str, SessionRow] = {}
        pending = [id]
        while pending:
            for child in self.children(pending.pop()):
                if child.id not in found and child.id != id:
                    found[child.id] = child
                    pending.append(child.id)
        return sorted(found.values(), key=lambda row: row.n)

    @abstractmethod
    def head(self, n: int) -> HeadRow | None:
        """Return a session's head row."""

    @abstractmethod
    def list_sessions(
        self, listing: SessionFilter, *, before: int | None, limit: int
    ) -> list[ListedSession]:
        """List sessions by activity, newest first, with an activity number below `before`.

        `SessionFilter.matches` says which. A session whose rows cannot be read is listed as
        `UnreadableSession` if `SessionFilter.includes_damaged`.
        """

    @abstractmethod
    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List sessions written to after an activity number, in order of their activity.

        Each is (activity, session id, branch number in the session, seq). Those in the trash are
        listed, too.
        """

    def count_forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the forks and continuations of these sessions that are not in the trash.

        Sessions without any are omitted.
        """
        children = {id: self.sessions("parent", id, trashed=False) for id in ids}
        counts = {
            id: sum(row.relation in {"fork", "continue"} for row in rows)
            for id, rows in children.items()
        }
        return {id: count for id, count in counts.items() if count}

    def owners(self, branches: Collection[int]) -> dict[int, BranchOwner]:
        """Return the sessions of these branches, except those in the trash or purged."""
        found = ((n, self.find_branch(n)) for n in branches)
        owned = ((n, self._owner(row.session)) for n, row in found if row is not None)
        return {n: owner for n, owner in owned if owner is not None}

    def _owner(self, session: int) -> BranchOwner | None:
        row, head = self.session(session), self.head(session)
        if row is None or head is None or row.trashed_at is not None:
            return None
        return BranchOwner.of(row, head)

    def titled(self, words: Sequence[str]) -> list[BranchOwner]:  # noqa: ARG002 - all titles are returned
        """Return sessions not in the trash whose title may contain all these words.

        Words are in lower case and without accents. Every title that contains all of them is
        returned; others may be, too.
        """
        listed = self._pages(SessionFilter())
        found = (item for item in listed if not isinstance(item, UnreadableSession))
        return [BranchOwner.of(row, head) for row, head in found if row.title]

    def all_sessions(self) -> Iterator[ListedSession]:
        """Return all sessions, newest first, and then those in the trash; each once."""
        yield from self._pages(SessionFilter())
        yield from self._pages(SessionFilter(trashed=True))

    def _pages(self, listing: SessionFilter) -> Iterator[ListedSession]:
        before: int | None = None
        while True:
            page = self.list_sessions(listing, before=before, limit=_PAGE_ROWS)
            yield from page
            if len(page) < _PAGE_ROWS:
                return
            last = page[-1]
            before = last.activity if isinstance(last, UnreadableSession) else last[1].activity

    # ---------------------------------------------------------------------------- branches

    @abstractmethod
    def branches(
        self,
        *,
        n: int | None = None,
        session: int | None = None,
        number: int | None = None,
        token: str | None = None,
        parent: int | None = None,
    ) -> list[BranchRow]:
        """Find branches, oldest first.

        By the backend's number `n`; by `session`, also with the `number` in the session or the
        `token` of the write that created it; or by the branch on which they start, `parent`, in any
        session.
        """

    def find_branch(self, n: int) -> BranchRow | None:
        """Return a branch."""
        return _first(self.branches(n=n))

    def branch(
        self, session: int, number: int | None = None, *, token: str | None = None
    ) -> BranchRow | None:
        """Return a session's branch, by its number there or the token of the write."""
        return _first(self.branches(session=session, number=number, token=token))

    def all_branches(self, session: int) -> list[BranchRow]:
        """Return the branches of a session; raise `Damaged` if one is missing.

        They are numbered from 1. Of a purged session only those are left that a fork shares.
        """
        found = self.branches(session=session)
        whole = found and [row.number for row in found] == list(range(1, len(found) + 1))
        if not whole and not any(row.purged for row in found) and self.session(session):
            raise Damaged("a branch of a session is missing; run store.verify().")
        return found

    def forked_branches(self, branches: Collection[int]) -> set[int]:
        """Return those of these branches on which others start."""
        return {n for n in branches if self.branches(parent=n)}

    def branches_below(self, branches: Iterable[int]) -> list[BranchRow]:
        """Return these branches and their descendants, the branches that start on one of them."""
        found: dict[int, BranchRow] = {}
        pending = [row for n in branches for row in self.branches(n=n)]
        while pending:
            row = pending.pop()
            if row.n not in found:
                found[row.n] = row
                pending += self.branches(parent=row.n)
        return sorted(found.values(), key=lambda row: row.n)

    def path(self, branch: int, low: int = 1) -> Path:
        """Return the path of a branch's history, back to message `low` at least."""
        steps: list[PathBranch] = []
        current: int | None = branch
        while current is not None:
            row = self.find_branch(current)
            if row is None:
                raise Damaged(f"branch {current} is missing; run store.verify().")
            steps.append(PathBranch(row.n, row.fork_seq, row.session_id, row.fork_record))
            current = row.parent if row.fork_seq >= low or low <= 1 else None
        return join_path(steps)

    # ---------------------------------------------------------------------------- messages

    @abstractmethod
    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Return the messages of each range, in order, with the id of the session in the range.

        Each range has its last message set. Missing messages are omitted: the caller counts them.
        """

    def stored_part(self, segment: Segment) -> Segment | None:
        """Return a range without messages that are missing at its ends; `None` if all are.

        A search skips these. A backend whose heads cannot be wrong need not look for them.
        """
        return segment if segment.first <= (segment.last or 0) else None

    @abstractmethod
    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Find ids in the history along a branch's path; each with the id of the path's session."""

    def stored_in_sessions(
        self, sessions: Collection[int], ids: Sequence[str]
    ) -> list[tuple[int, MessageRow]]:
        """Find ids on all branches of these sessions; each with its branch, the oldest first."""
        branches = (branch for n in sessions for branch in self.branches(session=n))
        return [
            (branch.n, row)
            for branch in sorted(branches, key=lambda branch: branch.n)
            for _, row in sorted(self.stored(branch.n, ids).values(), key=lambda item: item[1].seq)
            if row.seq > branch.fork_seq
        ]

    def newest_summary(self, path: Path, last: int) -> int | None:
        """Return the seq of the newest summary along a path, up to `last`."""
        for segment in reversed(ranges(path, 1, last)):
            for _, rows in self.messages([segment]):
                seqs = [row.seq for row in rows if is_summary(row)]
                if seqs:
                    return seqs[-1]
        return None

    # ----------------------------------------------------------------------------- records

    @abstractmethod
    def records(
        self,
        ranges: Iterable[Segment],
        *,
        kind: str | None = None,
        key: str | UnsetType | None = UNSET,
        prefix: str | None = None,
        limit: int | None = None,
    ) -> list[tuple[str, RecordRow]]:
        """Return the records of these segments, the last first, each with its segment's session id.

        Segments are as `record_ranges` returns them, the newest first. Only records of this kind
        and key (`None`: without a key), or whose key begins with `prefix`, and `limit` at most, are
        returned; `key` and `prefix` need a kind. The newest one of a kind and key is found by an
        index, however many there are.
        """

    def record_numbers(
        self,
        segment: Segment,
        kind: str,
        key: str | UnsetType | None = UNSET,
        *,
        limit: int | None = None,
    ) -> list[int]:
        """Return the numbers of a segment's records of a kind and key, the last first.

        They are what `records` returns, without reading the records.
        """
        found = self.records([segment], kind=kind, key=key, limit=limit)
        return [row.number for _, row in found]

    def stored_records(self, branch: int, ids: Sequence[str]) -> dict[str, RecordRow]:
        """Find records by id in the history along a branch's path."""
        wanted, history = set(ids), self.records(record_ranges(self.path(branch)))
        return {row.id: row for _, row in history if row.id in wanted}

    def has_records(self, branch: int, seq: int) -> bool:
        """True if a branch has a record of its own behind message `seq` or before."""
        return bool(self.records([Segment(branch, 1, seq, "")], limit=1))

    def store_record(self, scope: str | None, kind: str, key: str | None) -> StoreRecordRow | None:
        """Return the current record of the store with this scope, kind and key."""
        current = (row for row in self.store_records() if row.body is not None)
        name = (scope, kind, key)
        return next((row for row in current if (row.scope, row.kind, row.key) == name), None)

    def store_record_ids(self, ids: Sequence[str]) -> dict[str, StoreRecordRow]:
        """Find records of the store by id, those that were replaced included."""
        wanted = set(ids)
        return {row.id: row for row in self.store_records() if row.id in wanted}

    @abstractmethod
    def store_records(self) -> Iterable[StoreRecordRow]:
        """Return all records of the store, those that were replaced included, oldest first."""

    # --------------------------------------------------------------------- sizes, blobs, erasures

    def session_size(self, session: int) -> SessionSize:
        """Count the messages on a session's own branches, and the bytes of what is on them.

        These are the bytes of messages, records and their blobs.
        """
        count = size = 0
        blobs: set[str] = set()
        for branch in self.branches(session=session):
            for row in own_messages(self, branch):
                count += 1
                size += len(row.body) + len(codec.encode_text(row.id))
                blobs.update(chain(*codec.blob_hashes(row.body)))
            for record in own_records(self, branch):
                size += len(record.body) + len(codec.encode_text(record.id))
                blobs.update(chain(*codec.record_blob_hashes(record.body)))
        return SessionSize(count, size + sum(len(self.stored_blob(name) or b"") for name in blobs))

    @abstractmethod
    def stored_blob(self, sha256: str) -> bytes | None:
        """Return the data of a blob as it is stored, damaged or not."""

    def stored_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """Return the data of those of these blobs that are stored, damaged or not."""
        found = ((sha256, self.stored_blob(sha256)) for sha256 in hashes)
        return {sha256: data for sha256, data in found if data is not None}

    def blob(self, sha256: str) -> bytes | None:
        """Return the data of a blob; `None` if it is missing or does not match its hash."""
        return codec.intact(sha256, self.stored_blob(sha256))

    def erasures(self) -> int:
        """Return how many transactions have erased messages.

        What was derived from messages before the latest of them is stale. Only a backend that has a
        place for a search index needs to count them.
        """
        return 0

    # ------------------------------------------------------------- turns, drafts, queue, usage

    @abstractmethod
    def turns(
        self, session: int, *, number: int | None = None, limit: int | None = None
    ) -> list[TurnRow]:
        """Return a session's turns, or the one with this number; the newest ones, oldest first."""

    def turn(self, session: int, number: int) -> TurnRow | None:
        """Return one turn."""
        return _first(self.turns(session, number=number))

    def turns_with_tools(self, wanted: TurnRange) -> list[tuple[TurnRow, list[ToolRow]]]:
        """Return the turns with these numbers, oldest first, each with its tool ledger."""
        found = (self.turn(wanted.session, n) for n in range(wanted.first, wanted.last + 1))
        return [(row, self.tools(row.session, row.number)) for row in found if row is not None]

    @abstractmethod
    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Return the tool ledger of a turn, in the order in which its rows were first put."""

    @abstractmethod
    def draft(self, session: int, turn: int, *, limit: int | None = None) -> list[bytes]:
        """Return the chunks of an open draft; the first is its opening."""

    @abstractmethod
    def queue(self, session: int) -> list[QueueRow]:
        """Return queued input in order."""

    @abstractmethod
    def usage(
        self, *, session: int | None = None, model: str | None = None, limit: int | None = None
    ) -> list[UsageRow]:
        """Return usage by day and model: of a session, or of one model in all sessions.

        Rows of a session are as `sort_usage` sorts them; those of a model come newest first, by day
        and then by session, `limit` at most.
        """


def _first(rows: Sequence[T]) -> T | None:
    return rows[0] if rows else None


class Transaction(Snapshot):
    """Reads and writes that happen together or not at all."""

    def heads(self, sessions: Iterable[int]) -> dict[int, HeadRow]:
        """Return the heads of sessions that are to be written, locked in order of their numbers.

        So transactions that write to the same sessions do not deadlock.
        """
        found = ((n, self.head(n)) for n in sorted(sessions))
        return {n: head for n, head in found if head is not None}

    @abstractmethod
    def add_session(self, row: SessionRow, start: BranchStart) -> int:
        """Insert a session with its first branch; return its number (`row.n` is ignored).

        Its head is `HeadRow.first`. A stub, with `purged_at`, has neither branch nor head.
        """

    @abstractmethod
    def put_session(self, row: SessionRow) -> None:
        """Replace a session's identity."""

    @abstractmethod
    def drop_session(self, n: int) -> None:
        """Erase a session's identity."""

    @abstractmethod
    def drop_session_rows(self, session: int) -> SessionRowCounts:
        """Erase a session's head, turns, ledger, drafts, queue and usage."""

    @abstractmethod
    def put_head(self, row: HeadRow) -> None:
        """Replace a session's head; its activity becomes the highest, not `row.activity`."""

    @abstractmethod
    def add_branch(self, session: int, number: int, start: BranchStart, created_at: int) -> int:
        """Insert a branch; return the backend's number for it."""

    @abstractmethod
    def end_branch(self, n: int, last_seq: int) -> None:
        """Record where a branch ends that its session is leaving."""

    @abstractmethod
    def cut_branch(self, n: int, last_seq: int | None, last_record: int = 0) -> CutResult:
        """Erase the messages of a branch after `last_seq`, which becomes its end.

        Its records behind those messages and those after number `last_record` are erased as well.
        With `None` the branch itself is erased, too.
        """

    @abstractmethod
    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert messages with the seqs they have, and the blobs they refer to.

        A blob that is stored with other data than this is damaged: the data replaces it. `blobs` is
        read once, one at a time: the files of many messages may not fit in memory.
        """

    @abstractmethod
    def add_records(
        self, branch: int, rows: Sequence[RecordRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert records with the numbers they have, and blobs as `add_messages` does."""

    @abstractmethod
    def drop_records(self, branch: int, numbers: Collection[int]) -> CutResult:
        """Erase records of a branch by their numbers."""

    @abstractmethod
    def put_store_record(
        self, row: StoreRecordRow, blobs: Iterable[BlobUse] = ()
    ) -> frozenset[str]:
        """Insert a record of the store; the one that it replaces loses its body.

        Return the blobs that the replaced one referred to. A row without a body is inserted as one
        that was replaced.
        """

    @abstractmethod
    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message by its tombstone; return the blobs it referred to.

        Nothing else replaces a stored message.
        """

    @abstractmethod
    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that nothing refers to; return their count and bytes."""

    @abstractmethod
    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage by day and model."""

    @abstractmethod
    def put_turn(self, row: TurnRow) -> None:
        """Insert or replace a turn."""

    @abstractmethod
    def put_tool(self, row: ToolRow) -> None:
        """Insert or replace a row of the tool ledger."""

    @abstractmethod
    def put_draft(self, session: int, turn: int, number: int, chunk: bytes) -> None:
        """Insert or replace one chunk of a draft."""

    @abstractmethod
    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""

    @abstractmethod
    def add_queued(self, session: int, row: QueueRow) -> None:
        """Add input to the end of the queue (`row.number` is ignored)."""

    @abstractmethod
    def drop_queued(self, session: int, number: int) -> None:
        """Remove input that became a message."""


Operation: TypeAlias = Callable[[Transaction], T]
Query: TypeAlias = Callable[[Snapshot], T]


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


class FinishedWrite(Generic[T]):
    """A write that ran when it was submitted."""

    def __init__(self, run: Callable[[], T]) -> None:
        self._error: Exception | None = None
        try:
            self._value = run()
        except Exception as error:  # noqa: BLE001 - kept for its caller
            self._error = error

    def result(self) -> T:
        """Return its result or raise its error."""
        if self._error is not None:
            raise self._error
        return self._value

    outcome = result

    def when_done(self, call: Callable[[], None]) -> None:
        """Run `call` at once."""
        call()

    def withdraw(self) -> bool:
        """Return false: it is done."""
        return False


class HealthCheck(msgspec.Struct, frozen=True):
    """One line of the report of `doctor`."""

    name: str
    value: str
    ok: bool = True
    hint: str | None = None


class Backend(ABC):
    """One database, opened for one tenant.

    `opening_damage` is what was found when it was opened, read-only, although it is damaged.
    """

    opening_damage: tuple[Damage, ...] = ()

    def __init__(
        self,
        location: Location,
        *,
        tenant: str,
        durability: Durability,  # noqa: ARG002 - for subclasses
        readonly: bool,
        clock: Clock,  # noqa: ARG002 - for subclasses
    ) -> None:
        """Open the store at a location.

        If there is none it is created, or, with `readonly`, `StoreUnavailable` is raised. A tenant
        that has written nothing has an empty store. A write is safe from the end of the process,
        with `durability="power"` also from a power cut.
        """
        self.url = self.shown(location)
        self.tenant = tenant
        self.readonly = readonly
        self.lease = location.lease
        self.deadline = location.deadline
        self.closed = False

    @classmethod
    def exists(cls, location: Location) -> bool:  # noqa: ARG003 - for subclasses
        """Return whether there is a store at a location; creates nothing."""
        return True

    @classmethod
    def shown(cls, location: Location) -> str:
        """Return a location as messages show it: without a password before an @.

        A backend whose URLs have one elsewhere leaves that out.
        """
        return f"{location.scheme}:{without_password(location.address)}"

    @classmethod
    def store_file(cls, location: Location) -> FilePath | None:  # noqa: ARG003 - for subclasses
        """Return the path of a store's file; `None` if it is not kept in a local file."""
        return None

    def identity(self) -> str | None:
        """Return what tells this store from another in a file of the same path, if it can tell."""
        return None

    @abstractmethod
    def read(self, query: Query[T]) -> T:
        """Run a query on a snapshot and return its result.

        Raise `StoreUnavailable` if the backend was closed, as all other methods do.
        """

    @abstractmethod
    def write(self, operation: Operation[T], *, exclusive: bool = False) -> T:
        """Run an operation and return its result; durable when this returns.

        Raise what the operation raises; `ReadOnly` if the backend was opened for reading only;
        `StoreUnavailable` (after `deadline` seconds of waiting, too) or `StoreFull` if nothing was
        stored; `OutcomeUnknown` if the write may have been stored.

        An operation that reads many sessions before it erases must be `exclusive`: no other
        operation is in progress meanwhile. All others only write to sessions whose row or head they
        have read.
        """

    def submit(self, operation: Operation[T]) -> PendingWrite[T]:
        """Queue an operation and return without waiting for it.

        Here it is run at once, which an asynchronous caller waits for.
        """
        return FinishedWrite(lambda: self.write(operation))

    def flush(self) -> None:  # noqa: B027 - here none is waiting
        """Wait for all submitted writes."""

    @abstractmethod
    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the store's change number differs from `seen`; return the current one.

        Start with `seen=-1`, which returns at once. A backend that was closed returns at once.
        """

    def verify(self) -> list[Damage]:
        """Read everything and report what is damaged."""
        return self.read(lambda snapshot: list(find_damage(snapshot)))

    def stats(self) -> Stats:
        """Count what is there."""
        return self.read(count_rows)

    @abstractmethod
    def close(self) -> None:
        """Finish submitted writes, release the database and set `closed`; again, do nothing."""

    def wipe(self) -> tuple[str, ...]:
        """Wipe the bytes of erased messages; return what still holds some, and what to do."""
        return ()

    def scan(self, fragments: Sequence[bytes]) -> Scan:
        """Search all storage, free space included, for fragments of erased messages.

        Fragments that other stored messages contain as well are not reported. A backend that cannot
        search its storage reports that.
        """
        why = "this kind of store cannot be searched for what was erased"
        return Scan(files=0, bytes=0, fragments=len(fragments), problem=why, searchable=False)

    def salvage(self, to: str) -> SalvageReport:
        """Copy everything readable into a new store."""
        raise self._unsupported("salvage", to)

    def backup(self, to: str) -> BackupReport:
        """Copy the whole store while it is in use, and verify the copy."""
        raise self._unsupported("back up", to)

    def _unsupported(self, action: str, to: str) -> Invalid:
        return Invalid(
            f"cannot {action} {self.url} to {to!r}: this kind of store has no file; nothing was "
            "written. store.copy(…) copies its sessions into another store."
        )

    def health(self) -> list[HealthCheck]:
        """Check how the database is set up, for `doctor`."""
        return [HealthCheck("backend", type(self).__name__)]
