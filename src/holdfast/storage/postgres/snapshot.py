"""The read half of the storage protocol as SQL statements. No decisions: values in, rows out.

Statements are queued in a pipeline and results are waited for only where they are needed, so the
beginning of a transaction is sent together with its first query.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar
from uuid import UUID

from msgspec import UNSET, UnsetType
from psycopg.types.numeric import Int8

from holdfast import codec
from holdfast.clock import Clock, SystemClock
from holdfast.errors import Damaged, SchemaTooNew, StoreUnavailable
from holdfast.storage.ancestry import (
    Path,
    PathBranch,
    Segment,
    has_record,
    is_on_path,
    join_path,
    ranges,
    record_ranges,
)
from holdfast.storage.postgres import conversion
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.conversion import (
    bind,
    branch_number,
    mark,
    mark_or_zero,
    name_mark,
    split_branch,
    text_of,
)
from holdfast.storage.postgres.statements import SQL
from holdfast.storage.postgres.tables import (
    HEADS,
    QUEUE,
    SESSIONS,
    TOOLS,
    TURNS,
    USAGE,
    branch_row,
    session_and_head,
    unreadable_session,
)
from holdfast.storage.prefetch import Prefetch, PrefetchItem, StoreRecordName
from holdfast.storage.protocol import SessionField, Snapshot, TurnRange
from holdfast.storage.rows import (
    BranchOwner,
    BranchRow,
    HeadRow,
    ListedSession,
    MessageRow,
    QueueRow,
    RecordRow,
    SessionFilter,
    SessionRow,
    SessionSize,
    StoreRecordRow,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
    prefix_range,
    sort_usage,
)
from holdfast.titles import normalize_title

T = TypeVar("T")
EntryT = TypeVar("EntryT", MessageRow, RecordRow)

_MAX_BIGINT: Final = (1 << 63) - 1
_TEXT_PAGE_ROWS: Final = 500
_TEXT_PART_SESSIONS: Final = 10_000
_HASH_LENGTH: Final = 64
_MAX_INDEXED_ID_BYTES: Final = 1000  # in statements and in the index, too
_MAX_MARKS_PER_STATEMENT: Final = 5_000
_STORE_RECORDS_PAGE_ROWS: Final = 500
_STORE_RECORD_LOCKS: Final = 256  # of a tenant: a batch of many records takes no more
ReadAhead: TypeAlias = Literal[
    "head", "branches", "queue", "queue_blobs", "messages", "turns_between", "tools_between"
]
_TURN_SCOPED: Final = frozenset({"turn", "tools", "draft", "opening"})


class HorizonRequired(Exception):
    """A query reads activity: it must be run again with a horizon, which few queries need."""


class StatementResult(Protocol):
    """The result of a statement; fetching it waits for the server."""

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the first row, or `None`."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        ...


class StatementExecutor(Protocol):
    """Runs statements: a connection within a transaction."""

    def execute(self, name: str, values: Sequence[object] = ()) -> StatementResult:
        """Queue a statement by its name."""
        ...

    def execute_sql(self, text: str, values: Sequence[object]) -> StatementResult:
        """Queue a statement that is composed of named pieces."""
        ...

    def sync(self) -> None:
        """Send all queued statements, and wait for their results."""
        ...


class Tenant:
    """A tenant, with the names of its locks and of its notification channel.

    `known_format` is the highest format of the tables that this version supports.
    """

    def __init__(self, name: str, schema: str, known_format: int = 0) -> None:
        """Derive the names; `write_lock` is shared by writers and exclusive to an erasure."""
        self.known_format = known_format
        self.schema_lock = schema_lock(schema)
        self.name = name
        self.mark = mark(name)
        names = mark(f"{schema}\0{name}").bytes
        self.write_lock = int.from_bytes(names[:8], "big", signed=True)
        self.activity_lock = int.from_bytes(names[8:12], "big") >> 1
        self.channel = f"holdfast_{names.hex()}"
        records = mark(f"records of {schema}\0{name}").bytes
        self._store_record_lock = int.from_bytes(records[:8], "big", signed=True)

    def store_record_lock(self, name: StoreRecordName) -> int:
        """Return the lock of a record of the store, which its writers take; others may share it."""
        return self._store_record_lock ^ name_mark(*name).int % _STORE_RECORD_LOCKS


def schema_lock(schema: str) -> int:
    """Return the lock of a schema's tables, which a migration holds exclusively."""
    return int.from_bytes(mark(f"migrations of {schema}").bytes[:8], "big", signed=True)


class PostgresSnapshot(Snapshot):
    """Reads on one connection, within one transaction of the server."""

    def __init__(
        self,
        statements: StatementExecutor,
        tenant: Tenant,
        clock: Clock | None,
        paths: AncestryCache,
        horizon: int | None = None,
    ) -> None:
        """Read for this tenant; without a clock the time is the server's.

        `paths` is shared. `horizon` is the activity number up to which all writes were committed
        before this began.
        """
        self._statements = statements
        self._tenant: UUID = tenant.mark
        self._tenant_info = tenant
        self._clock = clock
        self._paths = paths
        self._horizon = horizon
        self.until = math.inf  # when a query that may compare all sessions gives up
        self._entry: StatementResult | None = None
        self._entry_row: tuple[Any, ...] | None = None
        self._server_time: tuple[int, int] | None = None
        self._heads: dict[int, HeadRow | None] = {}
        self._prefetched: dict[tuple[str, *tuple[int, ...]], StatementResult] = {}
        self._root_branches: StatementResult | None = None
        self._active_paths: dict[int, StatementResult] = {}
        self._tails: dict[int, tuple[int, StatementResult]] = {}
        self._first_records: dict[int, int | None] = {}  # the seq of a branch's first record
        self._newest_records: dict[tuple[int, str, str | None], tuple[int, StatementResult]] = {}
        self._fork_counts: dict[str, int] = {}
        self._open_turns: dict[tuple[int, int], TurnRow] = {}

    def enter(self, name: str, *values: object) -> None:
        """Set the tenant of the transaction; the statement also returns the server's time."""
        self._entry = self._statements.execute(name, (self._tenant, *values))

    def check_format(self) -> None:
        """Raise `SchemaTooNew` if what was read has a format that this version does not support."""
        if self._entry is not None and self._entry_row is None:
            self._entry_row = self._entry.fetchone()
            if self._entry_row is not None:
                self._refuse_newer_format(self._entry_row[-2])

    def _refuse_newer_format(self, found: int | None) -> None:
        if found is not None and found > self._tenant_info.known_format:
            raise SchemaTooNew(
                f"a newer Holdfast has migrated the store's tables to format {found}, this one "
                f"supports {self._tenant_info.known_format}; nothing was stored. Update this "
                "program."
            )

    def prefetch(self, *hints: Prefetch) -> None:
        """Queue the reads that these hints name; they are sent with the first query."""
        self._prefetch_heads([n for n in dict.fromkeys(h.session for h in hints) if n is not None])
        for hint in hints:
            n = hint.session
            if n is None:
                continue
            if hint.newest:
                self._tails[n] = hint.newest, self._execute("tail", n, hint.newest)
            for name in hint.items:
                values = (n, hint.turn) if name in _TURN_SCOPED else (n,)
                self._prefetched[name, *values] = self._execute(name, *values)
            if hint.record_names:
                if not self._paths.has_session(n):
                    self._active_paths[n] = self._execute("active_path", n)
                answer = self._execute("newest_records", n, *_name_columns(hint.record_names))
                for place, (kind, key) in enumerate(hint.record_names, 1):
                    self._newest_records[n, kind, key] = place, answer

    def _prefetch_heads(self, sessions: Sequence[int]) -> None:
        self._prefetched.update((("head", n), self._execute("head", n)) for n in sessions)
        self._prefetch_root_branches(sessions)

    def _prefetch_root_branches(self, sessions: Sequence[int]) -> None:
        unknown = [n for n in sessions if not self._paths.has_session(n)]
        if unknown:
            self._root_branches = self._execute("root_branches", conversion.int8_array(unknown))

    def _result(self, name: PrefetchItem | ReadAhead, *values: int) -> StatementResult:
        """Return the result of a statement that may have been prefetched."""
        return self._prefetched.pop((name, *values), None) or self._execute(name, *values)

    def _execute(self, name: str, *values: object) -> StatementResult:
        return self._statements.execute(name, (self._tenant, *values))

    def _fetch_one(self, name: str, *values: object) -> tuple[Any, ...] | None:
        return self._execute(name, *values).fetchone()

    def _fetch_all(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        return self._execute(name, *values).fetchall()

    def _read_horizon(self) -> int:
        row = self._fetch_one("horizon", self._tenant_info.activity_lock)
        return row[0] if row else 0

    def now(self) -> int:
        """Return the server's time: at the beginning of this, plus what has passed here since."""
        if self._clock is not None:
            return self._clock.micros()
        if self._server_time is None:
            if self._entry_row is None and self._entry is not None:
                self._entry_row = self._entry.fetchone()
            assert self._entry_row is not None  # noqa: S101 - the statement returns one row
            self._server_time = (self._entry_row[-1], time.monotonic_ns())
        server_micros, received_ns = self._server_time
        return server_micros + (time.monotonic_ns() - received_ns) // 1000

    def monotonic(self) -> int:
        """Return the monotonic time of this host."""
        return (self._clock or SystemClock()).monotonic()

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
        """Find sessions by one field; if it is the id or the key, their heads are cached."""
        if by == "n":
            read = map(SESSIONS.row, self._session_result(int(value)).fetchall())
            return [row for row in read if _is_found(row, trashed=trashed, stubs=stubs)]
        text = _sessions_by(_statement(by, str(value)), trashed=trashed, stubs=stubs)
        values = (self._tenant, limit, *_sought(by, str(value)))
        found = self._statements.execute_sql(text, values).fetchall()
        convert = self._session_with_head if by in {"id", "key"} else SESSIONS.row
        return [convert(row) for row in found]

    def sessions_by_id(self, ids: Collection[str]) -> dict[str, SessionRow]:
        """Return the sessions with these ids, in one statement; their heads are cached."""
        found = self._fetch_all("sessions_of_ids", [bind(id) for id in ids]) if ids else []
        return {row.id: row for row in map(self._session_with_head, found)}

    def sessions_by_key(self, keys: Collection[str]) -> dict[str, SessionRow]:
        """Return the sessions that have these keys, in one statement; their heads are cached."""
        found = self._fetch_all("sessions_of_keys", [mark(key) for key in keys]) if keys else []
        rows = map(self._session_with_head, found)
        return {row.key: row for row in rows if row.key is not None and row.key in keys}

    def read_ahead(
        self,
        sessions: Collection[int] = (),
        ranges: Collection[Segment] = (),
        turns: Collection[TurnRange] = (),
    ) -> None:
        """Queue what is read of sessions, messages and turns; the first that is needed waits."""
        for n in sessions:
            for name in ("branches", "usage", "queue", "queue_blobs"):
                self._prefetched[name, n] = self._execute(name, n)
        for span in ranges:
            values = _span_values(span)
            self._prefetched["messages", *values] = self._execute("messages", *values)
        for wanted in turns:
            for name in ("turns_between", "tools_between"):
                self._prefetched[name, *wanted] = self._execute(name, *wanted)

    def _session_result(self, n: int) -> StatementResult:
        return self._result("session", n)

    def is_trashed(self, n: int) -> bool:
        """True if a session is in the trash."""
        return self._result("trashed", n).fetchone() == (True,)

    def _session_with_head(self, row: Sequence[Any]) -> SessionRow:
        """Return a session's identity; its head comes along and is cached."""
        found, head = session_and_head(row)
        self._cache_head(found.n, head)
        return found

    def _cache_head(self, n: int, head: HeadRow | None) -> None:
        self._heads[n] = head

    def owners(self, branches: Collection[int]) -> dict[int, BranchOwner]:
        """Return the sessions that own these branches."""
        wanted = [split_branch(n) for n in branches]
        if not wanted:
            return {}
        columns = map(conversion.int8_array, zip(*wanted, strict=True))
        found = self._fetch_all("owners", *columns)
        return {branch_number(row[0], number): conversion.owner(row) for number, *row in found}

    def titled(self, words: Sequence[str]) -> list[BranchOwner]:
        """Find sessions whose title may contain all these words."""
        plain = [word.encode() for word in words if word.isascii()]
        return [conversion.owner(row) for row in self._fetch_all("titled", plain)]

    def count_forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the forks of these sessions; those just listed are counted already."""
        unknown = [bind(name) for name in ids if name not in self._fork_counts]
        found = self._fetch_all("count_forks", unknown) if unknown else []
        counts = {name: self._fork_counts.get(name, 0) for name in ids}
        counts.update((text_of(parent), count) for parent, count in found)
        return {name: count for name, count in counts.items() if count}

    def descendants(self, id: str) -> list[SessionRow]:
        """Return the sessions that come from one, in one statement."""
        return [SESSIONS.row(row) for row in self._fetch_all("descendants", bind(id))]

    def head(self, n: int) -> HeadRow | None:
        """Return a session's head."""
        if n not in self._heads:
            row = self._result("head", n).fetchone()
            self._heads[n] = None if row is None else HEADS.row(row)
        return self._heads[n]

    def list_sessions(
        self, listing: SessionFilter, *, before: int | None, limit: int
    ) -> list[ListedSession]:
        """List by activity, newest first."""
        before = _MAX_BIGINT if before is None else before
        if listing.text is not None:
            return list(islice(self._list_with_text(listing, before), limit))
        if listing.metadata:
            return list(islice(self._list_matching(listing, before, limit), limit))
        return self._list(listing, before, limit)

    def _list(
        self, listing: SessionFilter, before: int, limit: int, first: int = 0
    ) -> list[ListedSession]:
        """List sessions, or those with a recency of `first` or more that may have the text."""
        values: list[object] = [self._tenant, before, limit]
        conditions = _conditions(listing, values, first)
        looked_up = listing.metadata or listing.key_prefix or listing.pinned or listing.archived
        name = "list_looked_up" if looked_up else "list"
        text = "\n".join((SQL[name], *conditions, SQL[f"{name}_end"]))
        found: list[ListedSession] = []
        held: list[HeadRow] = []
        for forks, *row in self._statements.execute_sql(text, values).fetchall():
            try:
                session, head = session_and_head(row)
            except Damaged as error:
                found.append(unreadable_session(row, error))
                continue
            assert head is not None  # noqa: S101 - heads are listed
            found.append((session, head))
            self._fork_counts[session.id] = forks
            if head.open_turn is not None:
                held.append(head)
        self._prefetch_turns(held)
        return found

    def _prefetch_turns(self, heads: Sequence[HeadRow]) -> None:
        """Read the open turns of listed sessions with one statement."""
        if heads:
            columns = zip(*((head.session, head.open_turn or 0) for head in heads), strict=True)
            for row in self._fetch_all("turns_of", *map(conversion.int8_array, columns)):
                turn = TURNS.row(row)
                self._open_turns[turn.session, turn.number] = turn

    def _list_with_text(self, listing: SessionFilter, before: int) -> Iterator[ListedSession]:
        """List the sessions that show a text; raise `StoreUnavailable` at the deadline."""
        compared = 0
        while True:
            values = (before, listing.trashed, _TEXT_PART_SESSIONS)
            first, count = self._fetch_one("list_part", *values) or (None, 0)
            if count:
                yield from self._list_matching(listing, before, _TEXT_PAGE_ROWS, first)
            if count < _TEXT_PART_SESSIONS:
                return
            before, compared = first, compared + count
            if time.monotonic() > self.until:
                raise StoreUnavailable(
                    f"the newest {compared:,} sessions were compared with the text, and the "
                    "deadline has passed; nothing was changed. List fewer (by scope, agent, cwd or "
                    "since), search for the words, or raise deadline=…"
                )

    def _list_matching(
        self, listing: SessionFilter, before: int, rows: int, first: int = 0
    ) -> Iterator[ListedSession]:
        """List the sessions that show a text or have metadata, `rows` at a time.

        The server does not fold letters as Python does, and it has only marks of metadata, so they
        are compared here.
        """
        while True:
            page = self._list(listing, before, rows, first)
            readable = [item for item in page if not isinstance(item, UnreadableSession)]
            yield from (pair for pair in readable if listing.matches(*pair))
            if len(page) < rows:
                return
            last = page[-1]
            before = last.activity if isinstance(last, UnreadableSession) else last[1].activity

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List sessions by activity, up to the horizon, before which nothing more can appear."""
        if self._horizon is None:
            raise HorizonRequired
        found = self._fetch_all("activity_after", number, limit, self._horizon)
        return [(activity, text_of(id), branch, seq) for activity, id, branch, seq in found]

    # ---------------------------------------------------------------------------- messages

    def path(self, branch: int, low: int = 1) -> Path:
        """Return the path of a branch's history; it never changes, so a short one is cached."""
        known = self._paths.get(branch) or self._prefetched_path(branch)
        if known is not None:
            return known
        low = 0 if low <= 1 else low  # Records may lie before the first message.
        steps = self._fetch_all("path", *split_branch(branch), low)
        if not steps or (steps[-1][2] is not None and steps[-1][3] >= low):
            raise Damaged(f"branch {branch} is missing; run store.verify().")
        found = _join_steps(steps)
        if steps[-1][2] is None:
            self._cache_path(branch, found)
        return found

    def _prefetched_path(self, branch: int) -> Path | None:
        """Receive the prefetched paths of active branches; return this one if it is among them."""
        answer, self._root_branches = self._root_branches, None
        for session, number, id in [] if answer is None else answer.fetchall():
            root = branch_number(session, number)
            self._cache_path(root, join_path([PathBranch(root, 0, text_of(id))]))
        active = self._active_paths.pop(split_branch(branch)[0], None)
        steps = [] if active is None else active.fetchall()
        if steps and branch_number(*steps[0][:2]) == branch and steps[-1][2] is None:
            found = _join_steps(steps)
            self._cache_path(branch, found)
            return found
        return self._paths.get(branch)

    def _cache_path(self, branch: int, path: Path) -> None:
        self._paths.add(branch, path)

    def branches(
        self,
        *,
        n: int | None = None,
        session: int | None = None,
        number: int | None = None,
        token: str | None = None,
        parent: int | None = None,
    ) -> list[BranchRow]:
        """Find branches: of a session by number, of a parent by the time of their creation."""
        if parent is not None:
            found = self._fetch_all("branches_from", *split_branch(parent))
        elif token is not None:
            found = self._fetch_all("branch_by_token", session, mark(token), bind(token))
        elif n is not None or number is not None:
            position = (session, number) if n is None else split_branch(n)
            found = self._fetch_all("branch", *position)
        else:
            found = self._result("branches", session or 0).fetchall()
        rows = [(branch_row(row), seq) for *row, seq in found]
        self._first_records.update((row.n, seq) for row, seq in rows)
        return [row for row, _ in rows]

    def branches_below(self, branches: Iterable[int]) -> list[BranchRow]:
        """Return these branches and their descendants, in one statement."""
        wanted = [split_branch(n) for n in branches]
        if not wanted:
            return []
        columns = map(conversion.int8_array, zip(*wanted, strict=True))
        found = map(branch_row, self._fetch_all("branches_below", *columns))
        return sorted(found, key=lambda row: row.n)

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Return the messages of each range, in order."""
        wanted = list(ranges)
        if len(wanted) == 1:
            span = wanted[0]
            return [(span.session_id, self._range_from_tail(span) or self._read_range(span))]
        found: list[tuple[str, list[MessageRow]]] = [(span.session_id, []) for span in wanted]
        if wanted:
            spans = [(*split_branch(s.branch), s.first, s.last or 0) for s in wanted]
            columns = map(conversion.int8_array, zip(*spans, strict=True))
            for ordinal, *row in self._fetch_all("messages_of_ranges", *columns):
                found[ordinal - 1][1].append(conversion.message_row(row))
        return found

    def _range_from_tail(self, span: Segment) -> list[MessageRow]:
        """Return a range from the prefetched tail, or nothing if that does not hold all of it."""
        session, branch = split_branch(span.branch)
        newest, answer = self._tails.get(session, (0, None))
        head = self.head(session) if answer is not None else None
        if answer is None or head is None or head.branch != span.branch:
            return []
        if span.first <= head.seq - newest:
            return []
        return [
            conversion.message_row(row)
            for at, *row in answer.fetchall()
            if at == branch and span.first <= row[0] <= (span.last or 0)
        ]

    def _read_range(self, span: Segment) -> list[MessageRow]:
        found = self._result("messages", *_span_values(span)).fetchall()
        return [conversion.message_row(row) for row in found]

    def newest_summary(self, path: Path, last: int) -> int | None:
        """Find the last summary along a path; by an index, so no other message is read."""
        found = (self._newest_summary_on(span) for span in reversed(ranges(path, 1, last)))
        return next((seq for seq in found if seq is not None), None)

    def _newest_summary_on(self, span: Segment) -> int | None:
        session, branch = split_branch(span.branch)
        head = self._heads.get(session)
        if head is not None and (head.branch, head.seq) == (span.branch, span.last):
            answer = self._prefetched.pop(("summary", session), None)
        else:
            answer = None
        answer = answer or self._execute(
            "newest_summary", session, branch, span.first, span.last or 0
        )
        row = answer.fetchone()
        return None if row is None else row[0]

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Find messages by their ids along a branch's history."""
        if not ids:
            return {}
        path = self.path(branch)
        owners = {segment.branch: segment.session_id for segment in path}
        sessions = {split_branch(segment.branch)[0] for segment in path}
        return {
            row.id: (owners[at], row)
            for at, row in self._find_messages(sorted(sessions), ids)
            if is_on_path(path, at, row.seq)
        }

    def stored_in_sessions(
        self, sessions: Collection[int], ids: Sequence[str]
    ) -> list[tuple[int, MessageRow]]:
        """Find messages by their ids on all branches of sessions."""
        return self._find_messages(sorted(sessions), ids) if sessions and ids else []

    def _find_messages(
        self, sessions: Sequence[int], ids: Sequence[str]
    ) -> list[tuple[int, MessageRow]]:
        return self._find_by_ids("messages_by_id", conversion.message_row, sessions, ids)

    def _find_by_ids(
        self,
        name: str,
        convert: Callable[[Sequence[Any]], EntryT],
        sessions: Sequence[int],
        ids: Sequence[str],
    ) -> list[tuple[int, EntryT]]:
        """Find messages or records by their ids on all branches of sessions."""
        wanted, searched = set(ids), set(sessions)
        entries = [(session, name) for session in sessions for name in wanted]
        found: list[tuple[int, EntryT]] = []
        for first in range(0, len(entries), _MAX_MARKS_PER_STATEMENT):
            some = conversion.entry_marks(entries[first : first + _MAX_MARKS_PER_STATEMENT])
            for session, number, *values in self._fetch_all(name, *some):
                row = convert(values)
                if row.id in wanted and session in searched:
                    found.append((branch_number(session, number), row))
        return sorted(found, key=lambda item: (item[0], item[1].seq))

    def session_size(self, session: int) -> SessionSize:
        """Count a session's own messages, and the bytes of them, its records and their blobs."""
        messages, size = self._fetch_one("size_of_messages", session) or (0, 0)
        records = self._fetch_one("size_of_records", session) or (0,)
        blobs = self._fetch_one("size_of_blobs", session) or (0,)
        return SessionSize(messages, size + records[0] + blobs[0])

    # ----------------------------------------------------------------------------- records

    def records(
        self,
        ranges: Iterable[Segment],
        *,
        kind: str | None = None,
        key: str | UnsetType | None = UNSET,
        prefix: str | None = None,
        limit: int | None = None,
    ) -> list[tuple[str, RecordRow]]:
        """Return the records of these segments, the last first, in one statement."""
        wanted = list(ranges)
        if not wanted:
            return []
        if kind is not None and key is not UNSET and limit == 1:
            answer = self._prefetched_newest(wanted, kind, key)
            if answer is not None:
                return answer
        values = (*_range_columns(wanted), limit)
        if kind is None:
            found = self._fetch_all("records", *values)
        elif key is UNSET:
            found = self._fetch_all(
                "records_of_kind", *values, mark(kind), bind(kind), bind(prefix)
            )
        else:
            found = self._fetch_all("records_of_key", *values, *_record_name(kind, key))
        return [(wanted[place - 1].session_id, conversion.record_row(row)) for place, *row in found]

    def record_numbers(
        self,
        segment: Segment,
        kind: str,
        key: str | UnsetType | None = UNSET,
        *,
        limit: int | None = None,
    ) -> list[int]:
        """Return the numbers of a segment's records of a kind and key, the last first."""
        values = (*_range_columns([segment]), limit)
        if key is UNSET:
            found = self._fetch_all("record_numbers_of_kind", *values, mark(kind), bind(kind))
        else:
            named = _record_name(kind, key)
            found = self._fetch_all("record_numbers_of_key", *values, *named)
        return [number for (number,) in found]

    def _prefetched_newest(
        self, wanted: Sequence[Segment], kind: str, key: str | None
    ) -> list[tuple[str, RecordRow]] | None:
        """Return the prefetched newest record, if these are the segments of a whole history."""
        session, _ = split_branch(wanted[0].branch)
        place, answer = self._newest_records.get((session, kind, key), (0, None))
        head = self._heads.get(session)
        if answer is None or head is None or wanted != record_ranges(self.path(head.branch)):
            return None
        owners = {segment.branch: segment.session_id for segment in wanted}
        return [
            (owners[branch_number(owner, number)], conversion.record_row(row))
            for at, owner, number, *row in answer.fetchall()
            if at == place
        ]

    def stored_records(self, branch: int, ids: Sequence[str]) -> dict[str, RecordRow]:
        """Find records by their ids along a branch's history."""
        if not ids:
            return {}
        path = self.path(branch)
        sessions = {split_branch(segment.branch)[0] for segment in path}
        return {
            row.id: row
            for at, row in self._find_records(sorted(sessions), ids)
            if _has_record(path, at, row)
        }

    def _find_records(
        self, sessions: Sequence[int], ids: Sequence[str]
    ) -> list[tuple[int, RecordRow]]:
        return self._find_by_ids("records_by_id", conversion.record_row, sessions, ids)

    def has_records(self, branch: int, seq: int) -> bool:
        """True if a branch has a record of its own behind message `seq` or before."""
        if self._never_had_records(branch):
            return False
        if branch not in self._first_records:
            row = self._fetch_one("first_record", *split_branch(branch))
            self._first_records[branch] = None if row is None else row[0]
        first = self._first_records[branch]
        return first is not None and first <= seq

    def _never_had_records(self, branch: int) -> bool:
        """True if the head shows that no record was ever stored on its branch."""
        head = self._heads.get(split_branch(branch)[0])
        return head is not None and head.branch == branch and head.records is None

    def store_record(self, scope: str | None, kind: str, key: str | None) -> StoreRecordRow | None:
        """Return the current record of the store with this scope, kind and key."""
        found = self._fetch_all("store_records_by_name", [name_mark(scope, kind, key)])
        rows = (conversion.store_record_row(row) for _, *row in found)
        names = (scope, kind, key)
        return next((row for row in rows if (row.scope, row.kind, row.key) == names), None)

    def store_record_ids(self, ids: Sequence[str]) -> dict[str, StoreRecordRow]:
        """Find records of the store by their ids."""
        found = self._fetch_all("store_records_by_id", [mark(name) for name in ids]) if ids else []
        rows = {row.id: row for row in map(conversion.store_record_row, found)}
        return {name: rows[name] for name in ids if name in rows}

    def store_records(self) -> Iterator[StoreRecordRow]:
        """Return all records of the store, oldest first, a page at a time."""
        last = 0
        while True:
            page = self._fetch_all("store_records", last, _STORE_RECORDS_PAGE_ROWS)
            yield from (conversion.store_record_row(row) for _, *row in page)
            if len(page) < _STORE_RECORDS_PAGE_ROWS:
                return
            last = page[-1][0]

    # ------------------------------------------------------------- turns, drafts, queue, blobs

    def turns(
        self, session: int, *, number: int | None = None, limit: int | None = None
    ) -> list[TurnRow]:
        """Return the turn with this number, or the newest ones, oldest first."""
        if number is None:
            found = self._fetch_all("turns", session, limit)
            return [TURNS.row(row) for row in reversed(found)]
        if (session, number) in self._open_turns:
            return [self._open_turns[session, number]]
        return [TURNS.row(row) for row in self._result("turn", session, number).fetchall()]

    def turns_with_tools(self, wanted: TurnRange) -> list[tuple[TurnRow, list[ToolRow]]]:
        """Return the turns with these numbers, oldest first, each with its tool ledger."""
        turns = self._result("turns_between", *wanted)
        ledgers: dict[int, list[ToolRow]] = {}
        for tool in map(TOOLS.row, self._result("tools_between", *wanted).fetchall()):
            ledgers.setdefault(tool.turn, []).append(tool)
        return [(row, ledgers.get(row.number, [])) for row in map(TURNS.row, turns.fetchall())]

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Return the tool ledger of a turn, in call order."""
        return [TOOLS.row(row) for row in self._result("tools", session, turn).fetchall()]

    def draft(self, session: int, turn: int, *, limit: int | None = None) -> list[bytes]:
        """Return the chunks of an open draft."""
        found = self._result("opening" if limit == 1 else "draft", session, turn).fetchall()
        return [row[0] for row in found][:limit]

    def queue(self, session: int) -> list[QueueRow]:
        """Return queued input in order."""
        waiting = self._result("queue", session)
        blobs: dict[int, list[tuple[str, bytes]]] = {}
        for number, sha256, data in self._result("queue_blobs", session).fetchall():
            blobs.setdefault(number, []).append((sha256, data))
        return [QUEUE.row(row, tuple(blobs.get(row[0], ()))) for row in waiting.fetchall()]

    def usage(
        self, *, session: int | None = None, model: str | None = None, limit: int | None = None
    ) -> list[UsageRow]:
        """Return usage by day and model: of a session, or the newest of a model."""
        if session is not None:
            found = self._result("usage", session).fetchall()
            return sort_usage(map(USAGE.row, found))[:limit]
        found = self._fetch_all("usage_of_model", conversion.mark_or_zero(model), limit)
        return [USAGE.row(row) for row in found]

    def stored_blob(self, sha256: str) -> bytes | None:
        """Return the data of a blob as it is stored."""
        if not is_hash(sha256):
            return None
        row = self._fetch_one("blob", sha256)
        return None if row is None else row[0]

    def stored_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """Return the data of those of these blobs that are stored, in one statement."""
        wanted = [sha256 for sha256 in hashes if is_hash(sha256)]
        return dict(self._fetch_all("blobs", wanted)) if wanted else {}

    def erasures(self) -> int:
        """Return how many transactions have erased messages."""
        row = self._fetch_one("erasures")
        return row[0] if row else 0


def _join_steps(steps: Iterable[Sequence[Any]]) -> Path:
    """Return the path of branches, given newest first, as they were read."""
    return join_path(
        PathBranch(branch_number(session, number), fork_seq, text_of(id), fork_record)
        for session, number, _, fork_seq, fork_record, id in steps
    )


def is_hash(text: str) -> bool:
    """True if a text can be a hash; others may hold characters that the server refuses."""
    return len(text) == _HASH_LENGTH and text.isascii() and text.isalnum()


def _record_bounds(segment: Segment) -> tuple[int, ...]:
    """Return a segment's branch, and the bounds of its records, as statements bind them."""
    last, last_record = (
        _MAX_BIGINT if bound is None else bound for bound in (segment.last, segment.last_record)
    )
    return (*split_branch(segment.branch), segment.first - 1, last, last_record)


def _span_values(span: Segment) -> tuple[int, ...]:
    """Return the bounds of a range of messages, as the statement binds them."""
    return (*split_branch(span.branch), span.first, span.last or 0)


def _range_columns(segments: Sequence[Segment]) -> tuple[list[Int8], ...]:
    """Return the bounds of segments, one list for each column."""
    columns = zip(*map(_record_bounds, segments), strict=True)
    return tuple(map(conversion.int8_array, columns))


def _record_name(kind: str, key: str | None) -> tuple[object, ...]:
    """Return the marks and names of a kind and key, as statements bind them."""
    return mark(kind), bind(kind), mark_or_zero(key), bind(key or "")


def _has_record(path: Path, branch: int, row: RecordRow) -> bool:
    """Return whether a record of a branch is in the history along a path."""
    return any(
        segment.branch == branch and has_record(segment, row.seq, row.number) for segment in path
    )


def _name_columns(names: Sequence[tuple[str, str | None]]) -> tuple[list[object], ...]:
    """Return the marks and names of kinds and keys, one list for each column."""
    columns = zip(*(_record_name(kind, key) for kind, key in names), strict=True)
    return tuple(map(list, columns))


def _is_found(row: SessionRow, *, trashed: bool | None, stubs: bool) -> bool:
    return (stubs or row.purged_at is None) and trashed in {None, row.trashed_at is not None}


def _statement(by: SessionField, value: str) -> str:
    """Return the name of the statement that finds sessions by a value of a field."""
    long = by == "message_id" and len(codec.encode_text(value)) > _MAX_INDEXED_ID_BYTES
    return f"sessions_by_{'long_' if long else ''}{by}"


@cache
def _sessions_by(name: str, *, trashed: bool | None, stubs: bool) -> str:
    """Return the text of a statement that finds sessions."""
    pieces = [SQL[name]]
    if trashed is not None:
        pieces.append(f"AND s.trashed_at IS {'NOT ' if trashed else ''}NULL")
    if not stubs:
        pieces.append("AND s.purged_at IS NULL")
    return "\n".join((*pieces, SQL["sessions_end"]))


def _sought(by: SessionField, value: str) -> tuple[object, ...]:
    """Return the values that the statement binds which finds sessions by a field."""
    if by == "id_prefix":
        # Ids are lower-case base32, so "~" sorts after every continuation.
        return bind(value), bind(value + "~")
    if by in {"id", "parent", "message_id"}:
        return (bind(value),)
    name = normalize_title(value) if by == "title_any_case" else value
    return mark(name), bind(name)


def _conditions(listing: SessionFilter, values: list[object], first: int) -> list[str]:
    """Return the conditions of a listing as SQL; append the values they bind to `values`."""
    conditions = []

    def bound(value: object) -> str:
        values.append(value)
        return f"${len(values)}"

    for name in ("scope", "agent", "cwd"):
        text = getattr(listing, name)
        if text is not None:
            conditions.append(f"AND r.{name}_mark = {bound(mark(text))}")
            conditions.append(f"AND s.{name} = {bound(bind(text))}")
    conditions += _text_conditions(listing, first, bound)
    if listing.since is not None:
        conditions.append(f"AND h.updated_at >= {bound(listing.since)}")
    if listing.until is not None:
        conditions.append(f"AND h.updated_at < {bound(listing.until)}")
    # As literal text, not bound: a partial index is used only where the text has its condition.
    for name, flag in (("pinned", listing.pinned), ("archived", listing.archived)):
        if flag is not None:
            conditions.append(f"AND {'' if flag else 'NOT '}s.{name}")
    conditions.append(f"AND {'' if listing.trashed else 'NOT '}r.trashed")
    if listing.busy is not None:
        conditions.append(f"AND h.open_turn IS {'NOT ' if listing.busy else ''}NULL")
    if not listing.delegates:
        conditions.append("AND s.relation IS DISTINCT FROM 'delegate'")
    return conditions


def _text_conditions(
    listing: SessionFilter, first: int, bound: Callable[[object], str]
) -> Iterator[str]:
    """Return the conditions on metadata, key and text; `bound` binds a value."""
    if listing.text is not None:
        text = SQL["may_have_text"].replace("$first", bound(first))
        yield text.replace("$text", bound(bind(listing.text.lower())))
    for found in conversion.metadata_uuids(listing.metadata):
        yield SQL["is_marked"].replace("$mark", bound(found))
    if listing.key_prefix is not None:
        start = conversion.key_start(listing.key_prefix) or b""
        for column, prefix in (
            ("key_start", start),
            ("key", codec.encode_text(listing.key_prefix)),
        ):
            lowest, above = prefix_range(prefix)
            yield f"AND s.{column} >= {bound(lowest)} AND s.{column} < {bound(above)}"
