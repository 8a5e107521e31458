"""The read half of the storage protocol as SQL statements. No decisions: values in, rows out.

Statements are queued in a pipeline and results are waited for only where they are needed, so the
beginning of a transaction is sent together with its first query.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeVar
from uuid import UUID

from holdfast.clock import Clock, SystemClock
from holdfast.errors import Damaged, SchemaTooNew
from holdfast.storage.ancestry import Path, PathBranch, Segment, is_on_path, join_path, ranges
from holdfast.storage.postgres import conversion
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.conversion import bind, branch_number, mark, split_branch, text_of
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
from holdfast.storage.prefetch import Prefetch, PrefetchItem
from holdfast.storage.protocol import SessionField, Snapshot
from holdfast.storage.rows import (
    BranchOwner,
    BranchRow,
    HeadRow,
    ListedSession,
    MessageRow,
    QueueRow,
    SessionFilter,
    SessionRow,
    SessionSize,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
    sort_usage,
)
from holdfast.titles import normalize_title

T = TypeVar("T")

_MAX_BIGINT: Final = (1 << 63) - 1
_TEXT_PAGE_ROWS: Final = 500
_HASH_LENGTH: Final = 64
_MAX_MARKS_PER_STATEMENT: Final = 5_000
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
        self._entry: StatementResult | None = None
        self._entry_row: tuple[Any, ...] | None = None
        self._server_time: tuple[int, int] | None = None
        self._heads: dict[int, HeadRow | None] = {}
        self._prefetched: dict[tuple[str, *tuple[int, ...]], StatementResult] = {}
        self._root_branches: StatementResult | None = None
        self._tails: dict[int, tuple[int, StatementResult]] = {}
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
        self._prefetch_heads(list(dict.fromkeys(hint.session for hint in hints)))
        for hint in hints:
            n = hint.session
            if hint.newest:
                self._tails[n] = hint.newest, self._execute("tail", n, hint.newest)
            for name in hint.items:
                values = (n, hint.turn) if name in _TURN_SCOPED else (n,)
                self._prefetched[name, *values] = self._execute(name, *values)

    def _prefetch_heads(self, sessions: Sequence[int]) -> None:
        self._prefetched.update((("head", n), self._execute("head", n)) for n in sessions)
        self._prefetch_root_branches(sessions)

    def _prefetch_root_branches(self, sessions: Sequence[int]) -> None:
        unknown = [n for n in sessions if not self._paths.has_session(n)]
        if unknown:
            self._root_branches = self._execute("root_branches", conversion.int8_array(unknown))

    def _result(self, name: PrefetchItem | Literal["head"], *values: int) -> StatementResult:
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
        text = _sessions_by(by, trashed=trashed, stubs=stubs)
        values = (self._tenant, limit, *_sought(by, str(value)))
        found = self._statements.execute_sql(text, values).fetchall()
        convert = self._session_with_head if by in {"id", "key"} else SESSIONS.row
        return [convert(row) for row in found]

    def _session_result(self, n: int) -> StatementResult:
        return self._result("session", n)

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
        if listing.text is None:
            return self._list(listing, before, limit)
        return list(islice(self._list_by_text(listing, before), limit))

    def _list(self, listing: SessionFilter, before: int | None, limit: int) -> list[ListedSession]:
        values: list[object] = [self._tenant, _MAX_BIGINT if before is None else before, limit]
        conditions = _conditions(listing, values)
        text = "\n".join((SQL["list"], *conditions, SQL["list_end"]))
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

    def _list_by_text(self, listing: SessionFilter, before: int | None) -> Iterator[ListedSession]:
        """List the sessions that show a text, page by page.

        The server does not fold letters as Python does, so they are compared here.
        """
        while True:
            page = self._list(listing, before, _TEXT_PAGE_ROWS)
            readable = [item for item in page if not isinstance(item, UnreadableSession)]
            yield from (pair for pair in readable if listing.matches(*pair))
            if len(page) < _TEXT_PAGE_ROWS:
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
        steps = self._fetch_all("path", *split_branch(branch), low)
        if not steps or (steps[-1][2] is not None and steps[-1][3] >= low):
            raise Damaged(f"branch {branch} is missing; run store.verify().")
        found = join_path(
            PathBranch(branch_number(session, number), fork_seq, text_of(id))
            for session, number, _, fork_seq, id in steps
        )
        if steps[-1][2] is None or not steps[-1][3]:
            self._cache_path(branch, found)
        return found

    def _prefetched_path(self, branch: int) -> Path | None:
        """Receive the prefetched root branches; return the path if it is cached then."""
        answer, self._root_branches = self._root_branches, None
        for session, number, id in [] if answer is None else answer.fetchall():
            root = branch_number(session, number)
            self._cache_path(root, join_path([PathBranch(root, 0, text_of(id))]))
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
            found = self._fetch_all("branches", session)
        return [branch_row(row) for row in found]

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
        values = (*split_branch(span.branch), span.first, span.last or 0)
        return [conversion.message_row(row) for row in self._fetch_all("messages", *values)]

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
            for at, row in self._find_by_ids(sorted(sessions), ids)
            if is_on_path(path, at, row.seq)
        }

    def stored_in_sessions(
        self, sessions: Collection[int], ids: Sequence[str]
    ) -> list[tuple[int, MessageRow]]:
        """Find messages by their ids on all branches of sessions."""
        return self._find_by_ids(sorted(sessions), ids) if sessions and ids else []

    def _find_by_ids(
        self, sessions: Sequence[int], ids: Sequence[str]
    ) -> list[tuple[int, MessageRow]]:
        wanted, searched = set(ids), set(sessions)
        marks = [conversion.message_mark(session, name) for session in sessions for name in wanted]
        found: list[tuple[int, MessageRow]] = []
        for first in range(0, len(marks), _MAX_MARKS_PER_STATEMENT):
            some = marks[first : first + _MAX_MARKS_PER_STATEMENT]
            for session, number, *values in self._fetch_all("messages_by_id", some):
                row = conversion.message_row(values)
                if row.id in wanted and session in searched:
                    found.append((branch_number(session, number), row))
        return sorted(found, key=lambda item: (item[0], item[1].seq))

    def session_size(self, session: int) -> SessionSize:
        """Count the messages on a session's own branches, and the bytes of them and their blobs."""
        messages, size = self._fetch_one("size_of_messages", session) or (0, 0)
        blobs = self._fetch_one("size_of_blobs", session) or (0,)
        return SessionSize(messages, size + blobs[0])

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

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Return the tool ledger of a turn, in call order."""
        return [TOOLS.row(row) for row in self._result("tools", session, turn).fetchall()]

    def draft(self, session: int, turn: int, *, limit: int | None = None) -> list[bytes]:
        """Return the records of an open draft."""
        found = self._result("opening" if limit == 1 else "draft", session, turn).fetchall()
        return [row[0] for row in found][:limit]

    def queue(self, session: int) -> list[QueueRow]:
        """Return queued input in order."""
        waiting = self._execute("queue", session)
        blobs: dict[int, list[tuple[str, bytes]]] = {}
        for number, sha256, data in self._fetch_all("queue_blobs", session):
            blobs.setdefault(number, []).append((sha256, data))
        return [QUEUE.row(row, tuple(blobs.get(row[0], ()))) for row in waiting.fetchall()]

    def usage(
        self, *, session: int | None = None, model: str | None = None, limit: int | None = None
    ) -> list[UsageRow]:
        """Return usage by day and model: of a session, or the newest of a model."""
        if session is not None:
            found = self._result("usage", session).fetchall()
            return sort_usage(map(USAGE.row, found))[:limit]
        found = self._fetch_all("usage_of_model", conversion.model_mark(model), limit)
        return [USAGE.row(row) for row in found]

    def stored_blob(self, sha256: str) -> bytes | None:
        """Return the data of a blob as it is stored."""
        if not is_hash(sha256):
            return None
        row = self._fetch_one("blob", sha256)
        return None if row is None else row[0]

    def erasures(self) -> int:
        """Return how many transactions have erased messages."""
        row = self._fetch_one("erasures")
        return row[0] if row else 0


def is_hash(text: str) -> bool:
    """True if a text can be a hash; others may hold characters that the server refuses."""
    return len(text) == _HASH_LENGTH and text.isascii() and text.isalnum()


def _is_found(row: SessionRow, *, trashed: bool | None, stubs: bool) -> bool:
    return (stubs or row.purged_at is None) and trashed in {None, row.trashed_at is not None}


@cache
def _sessions_by(by: SessionField, *, trashed: bool | None, stubs: bool) -> str:
    """Return the statement that finds sessions by a field."""
    pieces = [SQL[f"sessions_by_{by}"]]
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
    if by in {"id", "parent"}:
        return (bind(value),)
    name = normalize_title(value) if by == "title_any_case" else value
    return mark(name), bind(name)


def _conditions(listing: SessionFilter, values: list[object]) -> list[str]:
    """Return the conditions of a listing as SQL; append the values they bind to `values`."""
    conditions = []

    def bound(value: object) -> str:
        values.append(value)
        return f"${len(values)}"

    for name in ("scope", "agent", "cwd"):
        text = getattr(listing, name)
        if text is not None:
            conditions.append(f"AND s.{name}_mark = {bound(mark(text))}")
            conditions.append(f"AND s.{name} = {bound(bind(text))}")
    if listing.since is not None:
        conditions.append(f"AND h.updated_at >= {bound(listing.since)}")
    if listing.until is not None:
        conditions.append(f"AND h.updated_at < {bound(listing.until)}")
    # As literal text, not bound: a partial index is used only where the text has its condition.
    for name, flag in (("pinned", listing.pinned), ("archived", listing.archived)):
        if flag is not None:
            conditions.append(f"AND {'' if flag else 'NOT '}s.{name}")
    conditions.append(f"AND s.trashed_at IS {'NOT ' if listing.trashed else ''}NULL")
    if listing.busy is not None:
        conditions.append(f"AND h.open_turn IS {'NOT ' if listing.busy else ''}NULL")
    if not listing.delegates:
        conditions.append("AND s.relation IS DISTINCT FROM 'delegate'")
    return conditions
