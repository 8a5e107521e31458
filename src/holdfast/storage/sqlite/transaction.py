"""Snapshot and transaction of the storage protocol, as SQL statements without decisions.

Every row gets a checksum when it is written (see `tables`). Rows that locate a history and
control who may write to it (sessions, heads, branches, turns) are checked whenever they are read: a
mismatch raises `Damaged` and never yields a shorter history. A stranger may have made a file with
right checksums, so rows are also refused that no store writes: values that their column cannot
hold, a branch that starts on a younger one, a row that is not what its index says it is. What reads
a row through this module can rely on that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

import apsw
import msgspec

from holdfast.clock import Clock
from holdfast.errors import Damaged
from holdfast.storage import metadata_marks
from holdfast.storage.ancestry import (
    Path,
    PathBranch,
    Segment,
    join_path,
    ranges,
    refuse_lacking_parent,
)
from holdfast.storage.columns import RowT
from holdfast.storage.prefetch import Prefetch
from holdfast.storage.protocol import SessionField
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
    SessionFilter,
    SessionRow,
    SessionRowCounts,
    SessionSize,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
    sort_usage,
)
from holdfast.storage.sqlite.list_filters import (
    IN_TRASH,
    IndexLookup,
    conditions,
    filter_values,
    folded,
    index_lookups,
    ordered_names,
)
from holdfast.storage.sqlite.metadata_table import marks_of
from holdfast.storage.sqlite.owner_cache import OwnerCache, Owners
from holdfast.storage.sqlite.recent_table import recent_values
from holdfast.storage.sqlite.record_tables import RecordSnapshot, RecordTransaction
from holdfast.storage.sqlite.statements import SQL, json_array, with_parameters, with_rows
from holdfast.storage.sqlite.tables import (
    BOUNDS,
    BRANCHES,
    DRAFTS,
    HEADS,
    INVALID_CRC,
    QUEUE,
    SEQ_BITS,
    SEQ_MASK,
    SESSIONS,
    TOOLS,
    TURNS,
    USAGE,
    DraftChunkRow,
    Table,
    bind,
    bind_json,
    message_rowid,
    row_check,
    unbind,
)
from holdfast.titles import normalize_title

ValueT = TypeVar("ValueT")
_, _MAX_SEQ = BOUNDS["seq"]
_MAX_ACTIVITY: Final = (1 << 63) - 1
_ACTIVITY_LIMIT: Final = 1 << 53
_ACTIVITY_GAP_BITS: Final = 32
_AFTER_GENERATED_IDS: Final = "1"  # in statements, too
_MAX_CACHED_SEGMENTS: Final = 64
_MAX_CACHED_HEADS: Final = 1000
_MAX_ROWS_PER_STATEMENT: Final = 64
_IDS_PER_QUERY: Final = 64
_OWNERS_PER_QUERY: Final = 250
_FEW_SESSIONS: Final = 2000  # in statements, too
_NO_LIMIT: Final = -1
_NO_TENANT: Final = -1
_MIN_MESSAGE_BYTES: Final = 16
_MAX_UNCHECKED: Final = 100_000  # messages or turns that are read, or missed, in no time
_ROWS_MISSING: Final = "a session's rows are missing, or differ from their index entries"
_COMPARED_FIELDS: Final = frozenset({"n", "id", "key", "title", "parent"})


@cache
def _session_query(by: SessionField, trashed: bool | None) -> str:  # noqa: FBT001 - a key of the cache
    """Return the statement that finds sessions by a field, in the trash or not."""
    return f"{SQL[f'sessions_by_{by}']} {IN_TRASH[trashed]} ORDER BY s.n"


def message_capacity(size: int) -> int:
    """Return how many messages a file of this many bytes could hold at most."""
    return size // _MIN_MESSAGE_BYTES


def message_values(row: MessageRow) -> tuple[str | bytes | int | None, ...]:
    """Return the columns of a message as they are stored, without its rowid."""
    name = row.id if row.id.isascii() and "\0" not in row.id else bind(row.id)
    return name, row.turn, row.crc, bind_json(row.body)


class SQLiteSnapshot(RecordSnapshot):
    """Reads on one connection, within one SQLite transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        tenant: int | None,
        clock: Clock,
        paths: dict[int, Path],
        owners: OwnerCache | None = None,
    ) -> None:
        """Read a tenant's rows; `paths` caches ancestry for all snapshots and is only added to.

        Only snapshots of connections that never write may share `owners`.
        """
        self._execute = connection.execute
        self._connection = connection
        self._tenant = _NO_TENANT if tenant is None else tenant
        self._clock = clock
        self._paths = paths
        self._owner_cache = owners

    def _fetch(self, table: Table[RowT], name: str, session: int, *values: object) -> list[RowT]:
        """Return the rows of a session that a statement reads."""
        try:
            found: list[Any] = self._execute(SQL[name], values).fetchall()
        except UnicodeDecodeError as error:
            raise self._checksum_error(session) from error
        return [self._checked(table, row, session) for row in found]

    def _possible(
        self, table: Table[RowT], row: Sequence[Any], session: int, *derived: object
    ) -> RowT:
        """Return a row whose checksum is not verified; raise `Damaged` if it cannot be."""
        if not table.is_possible(*row):
            raise self._checksum_error(session)
        return self._decoded(table, row, session, *derived)

    def _checked(
        self, table: Table[RowT], row: Sequence[Any], session: int | None, *derived: object
    ) -> RowT:
        """Return a row that was read; raise `Damaged` if it does not match its checksum."""
        if not table.is_intact(row):
            raise self._checksum_error(session)
        return self._decoded(table, row, session, *derived)

    def _decoded(
        self, table: Table[RowT], row: Sequence[Any], session: int | None, *derived: object
    ) -> RowT:
        try:
            return table.row(row, *derived)
        except ValueError as error:  # JSON of another type
            raise self._checksum_error(session) from error

    def _checksum_error(self, session: int | None) -> Damaged:
        return Damaged(
            f"the rows of {self._describe_session(session)} do not match their checksum, or are "
            "not what a store writes; nothing was changed. "
            "Run store.verify() to list the damage, and store.salvage(to) to copy everything "
            "readable into a new store."
        )

    def _describe_session(self, session: int | None) -> str:
        row = None if session is None else self._first("id_of_session", session)
        return f"session {row[0].decode('utf-8', 'backslashreplace')}" if row else "a session"

    def _session_id(self, value: object) -> str:
        """Return the id of a session that was read beside a row of another table."""
        if not _id_check()(value):
            raise self._checksum_error(None)
        return str(unbind(value))

    def now(self) -> int:
        """Return the time in microseconds, from this host's clock."""
        return self._clock.micros()

    def monotonic(self) -> int:
        """Return the monotonic time of this host."""
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
        """Return sessions by one field, by number; each row is checked before it is left out."""
        if by == "title_any_case":
            self._connection.create_scalar_function(
                "loose", _normalize_or_none, 1, deterministic=True
            )
        found: list[SessionRow] = []
        try:
            for row in self._execute(_session_query(by, trashed), self._search_values(by, value)):
                session = self._checked(SESSIONS, row, row[1])
                if by in _COMPARED_FIELDS and getattr(session, by) != value:
                    raise self._checksum_error(session.n)
                if stubs or session.purged_at is None:
                    found.append(session)
                if len(found) == limit:
                    break
        except UnicodeDecodeError as error:
            raise self._checksum_error(value if isinstance(value, int) else None) from error
        return found

    def _search_values(self, by: SessionField, value: str | int) -> tuple[object, ...]:
        if isinstance(value, int):
            return self._tenant, value
        if by == "id_prefix":
            # Ids are lower-case base32, so "~" sorts after every continuation.
            return self._tenant, bind(value), bind(value + "~")
        if by == "title_any_case":
            folded = normalize_title(value)
            return self._tenant, bind(folded), *_title_ranges(folded)
        return self._tenant, bind(value)

    def owners(self, branches: Collection[int]) -> dict[int, BranchOwner]:
        """Return the sessions that own these branches."""
        return self._owners("owners", branches, self._known_owners().by_branch)

    def _known_owners(self) -> Owners:
        """Return the sessions that earlier reads of this state found."""
        cache = self._owner_cache
        return Owners.empty() if cache is None else cache.current(self._connection)

    def _owners(
        self, statement: str, numbers: Collection[int], known: dict[int, BranchOwner | None]
    ) -> dict[int, BranchOwner]:
        """Return the sessions with these numbers, or on these branches; read those not known."""
        unknown = [number for number in numbers if number not in known]
        for start in range(0, len(unknown), _OWNERS_PER_QUERY):
            some = unknown[start : start + _OWNERS_PER_QUERY]
            rows = self._execute(with_parameters(statement, len(some)), (*some, self._tenant))
            found = {number: _owner(row) for number, *row in rows if _is_owner(row)}
            known.update((number, found.get(number)) for number in some)  # All were read by now.
        return {number: owner for number in numbers if (owner := known[number]) is not None}

    def titled(self, words: Sequence[str]) -> list[BranchOwner]:
        """Return sessions whose title may contain all these words.

        SQLite folds only ASCII letters, so every title with other letters is returned.
        """
        plain = [word for word in words if word.isascii()]
        conditions = " AND ".join(["instr(lower(title), ?)"] * len(plain)) or "TRUE"
        text = SQL["titled"].replace("(…)", f"({conditions})")
        rows = self._execute(text, (self._tenant, *plain))
        numbers = sorted(n for (n,) in rows)
        owners = self._owners("owning_sessions", numbers, self._known_owners().by_session)
        return list(owners.values())

    def count_forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Return how many sessions were forked from each of these."""
        counts: dict[str, int] = {}
        for start in range(0, len(ids), _IDS_PER_QUERY):
            names = [bind(name) for name in ids[start : start + _IDS_PER_QUERY]]
            try:
                found: list[Any] = self._execute(
                    with_parameters("count_forks", len(names)), (self._tenant, *names)
                ).fetchall()
            except (apsw.CorruptError, UnicodeDecodeError) as error:
                raise Damaged(
                    f"the forks of a session cannot be read ({type(error).__name__}); run "
                    "store.verify()."
                ) from error
            counts |= {unbind(parent): count for parent, count in found}
        return counts

    def descendants(self, id: str) -> list[SessionRow]:
        """Return the sessions that come from one, in one statement."""
        try:
            rows = self._execute(SQL["descendants"], (self._tenant, bind(id)))
            return [self._checked(SESSIONS, row, row[1]) for row in rows]
        except UnicodeDecodeError as error:
            raise self._checksum_error(None) from error

    def head(self, n: int) -> HeadRow | None:
        """Return a session's head row."""
        found = self._fetch(HEADS, "head", n, n, self._tenant)
        if not found:
            return None
        self._refuse_beyond_capacity(n, found[0].seq, found[0].turns)
        return found[0]

    def _refuse_beyond_capacity(self, session: int, messages: int, turns: int = 0) -> None:
        """Raise `Damaged` for more messages or turns than the file has room for.

        Whatever goes through a history page by page then ends, even if nothing of it is there.
        """
        if messages <= _MAX_UNCHECKED and turns <= _MAX_UNCHECKED:
            return
        pages = self._connection.execute("PRAGMA page_count").get
        size = pages * self._connection.execute("PRAGMA page_size").get
        if max(messages, turns) > message_capacity(size):
            raise self._checksum_error(session)

    def list_sessions(
        self, listing: SessionFilter, *, before: int | None, limit: int
    ) -> list[ListedSession]:
        """Return sessions by activity; they are read one by one if a row is damaged."""
        newest = _MAX_ACTIVITY if before is None else before
        try:
            return self._list(listing, newest, limit)
        except (apsw.CorruptError, UnicodeDecodeError, Damaged):
            return list(islice(self._list_one_by_one(listing, newest), limit))

    def _list(self, listing: SessionFilter, before: int, limit: int) -> list[ListedSession]:
        """Return a page of sessions; raise `Damaged` for rows that contradict each other."""
        lookups = index_lookups(listing)
        wanted, values = conditions(listing), filter_values(listing)
        values |= {"tenant": self._tenant, "before": before, "limit": limit}
        for lookup in lookups:
            wanted.append(lookup.condition)
            values |= lookup.values
        if listing.text is not None:
            self._connection.create_scalar_function("folded", folded, 1, deterministic=True)
        source = self._source(listing, lookups, values)
        text = "\n".join((SQL["list_columns"], source, *wanted, SQL["list_end"]))
        return self._listed(self._execute(text, values).fetchall(), listing, before)

    def _listed(
        self, rows: Sequence[Sequence[Any]], listing: SessionFilter, before: int
    ) -> list[ListedSession]:
        """Return the sessions and heads of rows in the order of a list."""
        width = 1 + len(SESSIONS.selected)
        sessions, heads = [row[1:width] for row in rows], [row[width:] for row in rows]
        if not (SESSIONS.are_intact(sessions) and HEADS.are_intact(heads)):
            raise self._checksum_error(None)
        found: list[ListedSession] = []
        for row, session, head in zip(
            rows, map(SESSIONS.row, sessions), map(HEADS.row, heads), strict=True
        ):
            self._refuse_beyond_capacity(session.n, head.seq, head.turns)
            in_order = row[0] <= head.activity < before
            if not (in_order and listing.matches_names(session)):
                raise self._checksum_error(session.n)
            before = row[0]
            found.append((session, head))
        return found

    def _source(
        self, listing: SessionFilter, lookups: Sequence[IndexLookup], values: dict[str, Any]
    ) -> str:
        """Return where to read a page from: what an index finds, if that is little, or in order.

        Of several indexes the one that finds least counts; all filters are conditions, too. Few
        sessions are pinned.
        """
        if listing.pinned:
            return SQL["list_found"].replace("(…)", f"({SQL['find_pinned']})")
        if lookups:
            count, query = min(self._count_few(lookup.query, values) for lookup in lookups)
            if count < _FEW_SESSIONS:
                return SQL["list_found"].replace("(…)", f"({query})")
        names = ordered_names(listing)
        if len(names) > 1:
            names = [min(names, key=lambda name: self._count_few(SQL[f"find_of_{name}"], values))]
        return SQL[f"list_of_{names[0]}" if names else "list_all"]

    def _count_few(self, query: str, values: dict[str, Any]) -> tuple[int, str]:
        """Return how many sessions a look-up finds, up to `_FEW_SESSIONS`, and the look-up."""
        return self._execute(SQL["count_few"].replace("(…)", f"({query})"), values).get, query

    def _list_one_by_one(self, listing: SessionFilter, before: int) -> Iterator[ListedSession]:
        """Yield sessions one by one, with an `UnreadableSession` for each damaged one; slow."""
        numbers: list[Any] = self._execute(SQL["list_numbers"], (self._tenant, before)).fetchall()
        for n, recency in numbers:
            found: ListedSession
            try:
                row, head = self.session(n), self.head(n)
            except (Damaged, apsw.CorruptError, UnicodeDecodeError) as error:
                found = self._unreadable(n, recency, _damage_reason(error))
            else:
                if head is not None and recency < before <= head.activity:
                    continue  # It was written to since the page before.
                found = (
                    (row, head)
                    if row and head and recency <= head.activity
                    else self._unreadable(n, recency, _ROWS_MISSING)
                )
            if _is_listed(found, listing):
                yield found

    def _unreadable(self, n: int, activity: int, why: str) -> UnreadableSession:
        """Return the rows of a damaged session as they are, unchecked."""
        row = self._unchecked(SESSIONS, "sessions_by_n", self._tenant, n)
        head = self._unchecked(HEADS, "head", n, self._tenant)
        return UnreadableSession(activity, why, self._id_of(n), row, head)

    def _unchecked(self, table: Table[RowT], name: str, *values: object) -> RowT | None:
        try:
            row = self._first(name, *values)
            return None if row is None else table.row(row)
        except (apsw.CorruptError, UnicodeDecodeError, TypeError, ValueError):
            return None

    def _id_of(self, n: int) -> str | None:
        try:
            row = self._first("id_of_session", n)
            return None if row is None else row[0].decode("utf-8")
        except (apsw.CorruptError, UnicodeDecodeError, AttributeError):
            return None

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """Return the sessions written to after an activity number, in order."""
        rows = self._execute(SQL["activity_after"], (self._tenant, number, limit))
        found = []
        for id, *columns in rows:
            head = self._checked(HEADS, columns, columns[1])
            if head.activity <= number:
                raise self._checksum_error(head.session)
            number = head.activity
            found.append((number, self._session_id(id), head.branch_no, head.seq))
        return found

    # ---------------------------------------------------------------------------- messages

    def path(self, branch: int, low: int = 1) -> Path:
        """Return a branch's ancestry; branches never move, so a short one is cached."""
        known = self._paths.get(branch)
        if known is not None:
            return known
        steps: list[PathBranch] = []
        current: int | None = branch
        while current is not None and current not in self._paths:
            step, parent = self._step(current)
            if steps:
                child = steps[-1]
                refuse_lacking_parent(step.fork_seq, child.fork_seq, child.fork_record)
            steps.append(step)
            if step.fork_seq < low and parent is not None and low > 1:
                return join_path(steps)
            current = parent
        found = join_path(steps, () if current is None else self._paths[current])
        self._cache_path(branch, found)
        return found

    def _step(self, branch: int) -> tuple[PathBranch, int | None]:
        """Return one step of a branch's ancestry, and the branch it starts on."""
        row = self._first("branch_step", branch, self._tenant)
        if row is None:
            raise Damaged(f"branch {branch} is missing; run store.verify().")
        session_id, *columns = row
        found = self._checked(BRANCHES, columns, columns[2], self._session_id(session_id), None)
        _refuse_impossible_start(found)
        step = PathBranch(branch, found.fork_seq, found.session_id, found.fork_record)
        return step, found.parent

    def _cache_path(self, branch: int, path: Path) -> None:
        if len(path) <= _MAX_CACHED_SEGMENTS:
            self._paths[branch] = path

    def branches(
        self,
        *,
        n: int | None = None,
        session: int | None = None,
        number: int | None = None,
        token: str | None = None,
        parent: int | None = None,
    ) -> list[BranchRow]:
        """Return branches, oldest first: by number, of a session, or those that start on one."""
        if n is not None:
            rows = self._execute(SQL["branch_by_n"], (self._tenant, n))
        elif parent is not None:
            rows = self._execute(SQL["branches_from"], (self._tenant, parent))
        elif number is not None:
            rows = self._execute(SQL["branch_by_number"], (self._tenant, session, number))
        elif token is not None:
            rows = self._execute(SQL["branch_by_token"], (self._tenant, session, bind(token)))
        else:
            rows = self._execute(SQL["branches_of_session"], (self._tenant, session))
        found = [self._branch_row(row) for row in rows]
        given = {"n": n, "session": session, "number": number, "token": token, "parent": parent}
        wanted = [(field, value) for field, value in given.items() if value is not None]
        for row in found:
            if any(getattr(row, field) != value for field, value in wanted):
                raise self._checksum_error(row.session)
        return found

    def forked_branches(self, branches: Collection[int]) -> set[int]:
        """Return those of these branches on which others start, in one statement."""
        return {n for (n,) in self._execute(SQL["forked_branches"], (json_array(branches),))}

    def branches_below(self, branches: Iterable[int]) -> list[BranchRow]:
        """Return these branches and their descendants, in one statement."""
        rows = self._execute(SQL["branches_below"], (self._tenant, json_array(branches)))
        return [self._branch_row(row) for row in rows]

    def _branch_row(self, row: Sequence[Any]) -> BranchRow:
        session_id, purged_at, active, active_number, head_seq, *columns = row
        if not BRANCHES.is_intact(columns):
            raise self._checksum_error(columns[2])
        if columns[1] == active:
            columns[BRANCHES.selected.index("last_seq")] = head_seq
        found = BRANCHES.row(columns, self._session_id(session_id), purged_at is not None)
        _refuse_impossible_start(found)
        ends = type(found.last_seq) is int and found.fork_seq <= found.last_seq <= _MAX_SEQ
        self._refuse_beyond_capacity(found.session, found.last_seq if ends else 0)
        is_open = found.last_seq is None and self._is_new_branch(found.n)
        if not (ends or is_open) or (found.n == active and found.number != active_number):
            raise Damaged(
                f"branch {found.number} of session {found.session_id} does not end where its "
                "session's head says; run store.verify()."
            )
        return found

    def _is_new_branch(self, n: int) -> bool:  # noqa: ARG002
        """True if this transaction has added the branch: its end may not be written yet."""
        return False

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Return the messages of these ranges in order, each range with its session's id."""
        found = []
        for segment in ranges:
            ends = (
                message_rowid(segment.branch, segment.first),
                message_rowid(segment.branch, segment.last or 0),
            )
            rows: Iterable[Any] = self._execute(SQL["messages"], ends)
            messages = [
                MessageRow(seq, id if type(id) is str else unbind(id), turn, crc, body)
                for seq, id, turn, crc, body in rows
            ]
            found.append((segment.session_id, messages))
        return found

    def stored_part(self, segment: Segment) -> Segment | None:
        """Return a range without messages that are missing at its ends; two look-ups."""
        ends = (
            message_rowid(segment.branch, segment.first),
            message_rowid(segment.branch, segment.last or 0),
        )
        first, last = self._first("stored_ends", *ends) or (None, None)
        if first is None:
            return None
        return msgspec.structs.replace(segment, first=first & SEQ_MASK, last=last & SEQ_MASK)

    def newest_summary(self, path: Path, last: int) -> int | None:
        """Return the seq of the last summary along a path; only the index is read."""
        for segment in reversed(ranges(path, 1, last)):
            ends = (
                message_rowid(segment.branch, segment.first),
                message_rowid(segment.branch, segment.last or 0),
            )
            row = self._first("newest_summary", *ends)
            if row is not None and row[0] is not None:
                seq: int = row[0]
                return seq
        return None

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Return the messages of a branch's history that have these ids."""
        found: dict[str, tuple[str, MessageRow]] = {}
        for start in range(0, len(ids), _IDS_PER_QUERY):
            names = [bind(name) for name in ids[start : start + _IDS_PER_QUERY]]
            for segment in self._segments_of_ids("rowids_of_ids", branch, names):
                last = SEQ_MASK if segment.last is None else segment.last
                ends = (
                    message_rowid(segment.branch, segment.first),
                    message_rowid(segment.branch, last),
                )
                rows = self._execute(with_parameters("messages_by_id", len(names)), (*ends, *names))
                for row in map(_message_row, rows):
                    found[row.id] = (segment.session_id, row)
        return found

    def stored_in_sessions(
        self, sessions: Collection[int], ids: Sequence[str]
    ) -> list[tuple[int, MessageRow]]:
        """Return the messages with these ids on all branches of sessions, with their branch."""
        found: list[tuple[int, MessageRow]] = []
        for start in range(0, len(ids), _IDS_PER_QUERY):
            names = [bind(name) for name in ids[start : start + _IDS_PER_QUERY]]
            rows = self._execute(
                with_parameters("messages_by_id_in_sessions", len(names)),
                (*names, json_array(sessions)),
            )
            found.extend((branch, _message_row(row)) for branch, *row in rows)
        return sorted(found, key=lambda item: (item[0], item[1].seq))

    def session_size(self, session: int) -> SessionSize:
        """Return the count of messages on a session's own branches, and the bytes of everything."""
        messages, size = self._first("size_of_messages", session) or (0, 0)
        records, blobs = self._first("size_of_records_and_blobs", session) or (0, 0)
        return SessionSize(messages, int(size + records + blobs))

    # ------------------------------------------------------------- turns, drafts, queue, blobs

    def turns(
        self, session: int, *, number: int | None = None, limit: int | None = None
    ) -> list[TurnRow]:
        """Return one turn, or the newest ones, oldest first."""
        if number is not None:
            return self._fetch(TURNS, "turn", session, session, number)
        limit = _NO_LIMIT if limit is None else limit
        return self._fetch(TURNS, "turns", session, session, limit)[::-1]

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Return the tool ledger of a turn, in call order."""
        rows = self._execute(SQL["tools"], (session, turn))
        return [self._possible(TOOLS, row, session) for row in rows]

    def draft(self, session: int, turn: int, *, limit: int | None = None) -> list[bytes]:
        """Return the chunks of an open draft."""
        values = (session, turn, _NO_LIMIT if limit is None else limit)
        return [row[0] for row in self._execute(SQL["draft"], values)]

    def queue(self, session: int) -> list[QueueRow]:
        """Return queued input in order."""
        rows: list[Any] = self._execute(SQL["queue"], (session,)).fetchall()
        number = QUEUE.selected.index("number")
        return [
            self._possible(QUEUE, row, session, self._queue_blobs(session, row[number]))
            for row in rows
        ]

    def _queue_blobs(self, session: int, number: int) -> tuple[tuple[str, bytes], ...]:
        rows = self._execute(SQL["queue_blobs"], (session, number))
        return tuple((sha256, data) for sha256, data in rows)

    def usage(
        self, *, session: int | None = None, model: str | None = None, limit: int | None = None
    ) -> list[UsageRow]:
        """Return usage by day and model: of a session, or the newest of a model."""
        if session is not None:
            rows = self._execute(SQL["usage_of_session"], (session,))
            return sort_usage(self._possible(USAGE, row, session) for row in rows)[:limit]
        values = (bind(model), self._tenant, _NO_LIMIT if limit is None else limit)
        rows = self._execute(SQL["usage_of_model"], values)
        owner = USAGE.selected.index("session")
        return [self._possible(USAGE, row, row[owner]) for row in rows]

    def stored_blob(self, sha256: str) -> bytes | None:
        """Return a blob's data as it is stored."""
        row = self._first("blob", self._tenant, bind(sha256))
        return None if row is None else row[0]

    def stored_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """Return the data of those of these blobs that are stored."""
        found: dict[str, bytes] = {}
        for start in range(0, len(hashes), _IDS_PER_QUERY):
            names = [bind(name) for name in hashes[start : start + _IDS_PER_QUERY]]
            found.update(
                self._execute(with_parameters("blobs", len(names)), (self._tenant, *names))
            )
        return found

    def erasures(self) -> int:
        """Return how many transactions have erased messages."""
        row = self._first("erasures", self._tenant)
        count = row[0] if row else 0
        if not isinstance(count, int):
            raise Damaged("the store's count of erasures is not a number; run store.verify().")
        return count


class SQLiteTransaction(SQLiteSnapshot, RecordTransaction):
    """Reads and writes.

    One object serves all transactions of a connection, one after the other. As long as no other
    connection commits (`forget`), what it has written or read need not be read again: heads, the
    newest session, and the greatest generated id. So an append to a session that was written to
    before reads nothing.

    Messages and heads are kept until another statement needs them, or until the end (`write_out`):
    then those of many appends are a few statements, and a session has one new head.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        tenant: int,
        clock: Clock,
        paths: dict[int, Path],
        wipe_note: str,
    ) -> None:
        """Write a tenant's rows; an erasure inserts `wipe_note` into the table `meta`."""
        super().__init__(connection, tenant, clock, paths)
        self._execute = self._execute_after_appends
        self.writes = 0
        self._wipe_note = wipe_note
        self.forget()

    def reset(self) -> None:
        """Start another transaction: the previous one was committed, and no other one since."""
        self._first_new_branch: int | None = None
        self._erased = False
        self._absent_ids: set[str] = set()

    def forget(self) -> None:
        """Forget what was read and written: it was rolled back, or another process has written."""
        self.reset()
        self._heads: dict[int, HeadRow] = {}
        self._newest: tuple[int, int] | None = None
        self._greatest_id: object = None
        self._new_messages: list[tuple[Any, ...]] = []
        self._new_heads: dict[int, HeadRow] = {}
        self._new_recency: dict[int, int] = {}

    def prefetch(self, hints: Sequence[Prefetch]) -> None:
        """Read what several writes need in a few statements: their heads, and which ids are new."""
        wanted = {hint.session for hint in hints if hint.session is not None} - self._heads.keys()
        for block in _blocks(sorted(wanted)):
            values = (*block, self._tenant)
            for row in self._execute(with_parameters("heads", len(block)), values).fetchall():
                if HEADS.is_intact(row):  # The error of another one is that of its write.
                    self._keep_head(HEADS.row(row))
        given = dict.fromkeys(id for hint in hints for id in hint.ids if not self._is_new(id))
        names = [name for name in given if bind(name) == name]
        for some in _blocks(names):
            rows = self._execute(with_parameters("known_ids", len(some)), some)
            self._absent_ids.update(set(some) - {name for (name,) in rows})

    def _execute_after_appends(self, text: str, values: Any = ()) -> apsw.Cursor:  # noqa: ANN401 - whatever can be bound
        if self._new_messages or self._new_heads:
            self.write_out()
        return self._connection.execute(text, values)

    def write_out(self) -> None:
        """Execute what was kept: the messages, heads and places in lists that appends write.

        What fails stays kept: the error may be taken for one of the read before which it came, but
        the transaction must not be committed without these rows.
        """
        self._write_messages()
        if self._new_recency:
            recency = msgspec.json.encode(self._new_recency).decode()
            self._connection.execute(SQL["put_recency"], (recency,))
            self._new_recency = {}
        if self._new_heads:
            rows = [HEADS.values(row, self._tenant) for row in self._new_heads.values()]
            self._write_rows("put_heads", rows)
            self._new_heads = {}

    def _write_messages(self) -> None:
        if self._new_messages:
            self._write_rows("add_messages", self._new_messages)
            self._new_messages = []

    def _write_rows(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for many rows, in blocks of 64, 32, 16, … so that it is few texts."""
        at, columns = 0, len(rows[0])
        while at < len(rows):
            count = min(_MAX_ROWS_PER_STATEMENT, 1 << (len(rows) - at).bit_length() - 1)
            values = [value for row in rows[at : at + count] for value in row]
            self._connection.execute(with_rows(name, count, columns), values)
            at += count

    def _cache_path(self, branch: int, path: Path) -> None:
        """Cache a path, except for a new branch: a rollback would free its number for another."""
        if not self._is_new_branch(branch):
            super()._cache_path(branch, path)

    def add_session(self, row: SessionRow, start: BranchStart) -> int:
        """Insert a session with its first branch and head; return its number."""
        n = self._insert_returning("add_session", *SESSIONS.values(row, self._tenant))
        for mark in marks_of(metadata_marks.pairs(row.metadata)):
            self._write("add_mark", n, mark, self._tenant)
        if row.purged_at is None:
            branch = self.add_branch(n, 1, start, row.created_at)
            _, number = self._next_activity(n)
            head = HeadRow.first(n, branch, start, row.created_at)
            head = msgspec.structs.replace(head, activity=number)
            self._write("add_head", *HEADS.values(head, self._tenant))
            self._write("add_recent", n, self._tenant, number, *recent_values(row))
            self._keep_head(head)
        return n

    def add_branch(self, session: int, number: int, start: BranchStart, created_at: int) -> int:
        """Insert a branch; return its number."""
        row = BranchRow.create(0, session, number, start, created_at)
        n = self._insert_returning("add_branch", *BRANCHES.values(row, None))
        self._first_new_branch = self._first_new_branch or n
        return n

    def _is_new_branch(self, n: int) -> bool:
        """True if this transaction has added the branch."""
        return self._first_new_branch is not None and n >= self._first_new_branch

    def end_branch(self, n: int, last_seq: int) -> None:
        """Record the last seq of a branch that is no longer active."""
        row = self.find_branch(n)
        if row is not None:
            *_, crc = BRANCHES.values(row, last_seq)
            self._write("put_branch", n, last_seq, crc)

    def put_session(self, row: SessionRow) -> None:
        """Replace a session's identity row."""
        self._write("put_session", *SESSIONS.values(row, self._tenant), row.n)
        self._write("put_recent", row.n, *recent_values(row))
        stored = {mark for (mark,) in self._execute(SQL["marks"], (row.n,))}
        wanted = marks_of(metadata_marks.pairs(row.metadata))
        for mark in stored - wanted:
            self._write("drop_mark", row.n, mark)
        for mark in wanted - stored:
            self._write("add_mark", row.n, mark, self._tenant)

    # ----------------------------------------------------------------------- heads and ids

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Return the messages of a branch's history that have these ids.

        Generated ids begin with the time. One that is greater than all that are stored is new.
        """
        for name in ids:
            if not self._is_new(name):
                return super().stored(branch, ids)
        return {}

    def _is_new(self, name: str) -> bool:
        """True if an id is certainly not stored."""
        if self._greatest_id is None:
            self._greatest_id = self._read_greatest_id()
        greatest = self._greatest_id
        is_text = name.isascii() and "\0" not in name
        return (
            is_text and type(greatest) is str and greatest < name < _AFTER_GENERATED_IDS
        ) or name in self._absent_ids

    def _read_greatest_id(self) -> object:
        """Return the greatest of the ids that begin as generated ones do; no text if damaged."""
        try:
            row = self._first("greatest_own_id")
        except UnicodeDecodeError:  # No id is certainly new then.
            return b""
        return "" if row is None else row[0]

    def head(self, n: int) -> HeadRow | None:
        """Return a session's head row."""
        known = self._heads.get(n)
        if known is not None:
            return known
        found = super().head(n)
        if found is not None:
            self._keep_head(found)
        return found

    def _keep_head(self, row: HeadRow) -> None:
        if len(self._heads) >= _MAX_CACHED_HEADS:
            self._heads.clear()
        self._heads[row.session] = row

    def put_head(self, row: HeadRow) -> None:
        """Replace a session's head; its activity number becomes the tenant's highest."""
        self.writes += 1
        newest, number = self._next_activity(row.session)
        if newest != row.session:
            self._new_recency[row.session] = number
        row = msgspec.structs.replace(row, activity=number)
        self._new_heads[row.session] = row
        self._keep_head(row)

    def _next_activity(self, session: int) -> tuple[int, int]:
        """Return the newest session and the next activity number; it is this session's from now."""
        newest, last = self._newest or self._read_newest()
        self._newest = session, last + 1
        return newest, last + 1

    def _read_newest(self) -> tuple[int, int]:
        """Return the newest session of the tenant and the last activity number; 0 if none is."""
        heads: list[Any] = self._execute(SQL["newest"], (self._tenant,)).fetchall()
        floor = self._first("activity_floor", self._tenant)
        last = floor[0] if floor else 0
        if not isinstance(last, int) or not all(map(HEADS.is_intact, heads)):
            return 0, self._past_damage()
        rows = [HEADS.row(row) for row in heads]
        newest = max(rows, key=lambda row: row.activity, default=None)
        if newest is None:
            return 0, last
        return newest.session, max(last, newest.activity)

    def _past_damage(self) -> int:
        """Return a number that is above every activity number, where a damaged row hides the last.

        A follower of the log must not miss what is written next.
        """
        found = self._first("highest_activity", self._tenant, _ACTIVITY_LIMIT)
        highest: int = found[0] or 0 if found else 0
        return (highest >> _ACTIVITY_GAP_BITS) + 1 << _ACTIVITY_GAP_BITS

    def cut_branch(self, n: int, last_seq: int | None, last_record: int = 0) -> CutResult:
        """Erase a branch's messages and records after these, or the whole branch."""
        records = self._cut_records(n, last_seq, last_record)
        ends = (message_rowid(n, (last_seq or 0) + 1), message_rowid(n, SEQ_MASK))
        blobs = frozenset(row[0] for row in self._execute(SQL["blobs_of_messages"], ends))
        self._write("drop_blob_uses", *ends)
        self._write("drop_messages", *ends)
        erased = self._connection.changes()
        if erased:
            self._note_erasure()
        if last_seq is None:
            self._write("drop_branch", n)
        else:
            self.end_branch(n, last_seq)
        return CutResult(erased, blobs | records.blobs, records.records)

    def _note_erasure(self) -> None:
        """Count this transaction, once, as one that erases messages."""
        if not self._erased:
            self._write("note_erasure", self._tenant)
            self._erased = True

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a message by its tombstone; return the blobs that it referenced."""
        rowid = message_rowid(branch, row.seq)
        blobs = frozenset(
            found[0] for found in self._execute(SQL["blobs_of_messages"], (rowid, rowid))
        )
        self._write("add_wipe_note", self._wipe_note)
        self._note_erasure()
        self._write("drop_blob_uses", rowid, rowid)
        self._write("put_message", rowid, row.crc, bind_json(row.body))
        return blobs

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Delete those of these blobs that nothing references; return their count and bytes."""
        sizes = []
        for sha256 in sorted(blobs):
            row = self._first("unused_blob", self._tenant, sha256)
            if row is not None:
                self._write("drop_blob", row[0])
                sizes.append(row[1])
        return len(sizes), sum(sizes)

    def drop_session_rows(self, session: int) -> SessionRowCounts:
        """Delete a session's head, turns, drafts and queue; its activity number stays used up."""
        self._write("raise_activity", session, self._tenant)
        self._write("add_wipe_note", self._wipe_note)
        for name in (
            "drop_head",
            "drop_recent",
            "drop_tools",
            "drop_usage",
            "drop_all_queue_blobs",
        ):
            self._write(name, session)
        self._heads.pop(session, None)
        self._newest = None
        counts = []
        for name in ("drop_turns", "drop_drafts", "drop_queue"):
            self._write(name, session)
            counts.append(self._connection.changes())
        return SessionRowCounts(*counts)

    def drop_session(self, n: int) -> None:
        """Delete a session's identity row."""
        self._write("drop_marks", n)
        self._write("drop_session", n, self._tenant)

    def add_messages(
        self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
    ) -> None:
        """Insert messages with the seqs they have, and the blobs they refer to."""
        self.writes += 1
        base = branch << SEQ_BITS
        self._new_messages += [(base | row.seq, *message_values(row)) for row in rows]
        if len(self._new_messages) >= _MAX_ROWS_PER_STATEMENT:  # More would only take memory.
            self._write_messages()
        greatest = self._greatest_id
        if type(greatest) is str:
            for row in rows:
                if greatest < row.id < _AFTER_GENERATED_IDS:
                    greatest = row.id
            self._greatest_id = greatest
        if self._absent_ids:
            self._absent_ids.difference_update([row.id for row in rows])
        for blob in blobs:
            self._write("use_blob", base | blob.seq, self._blob_number(blob))

    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage of a day and model."""
        found = self._first("find_usage", session, row.day, bind(row.model))
        if found is None:
            self._write("add_usage", *USAGE.values(row, session))
            return
        rowid, *stored = found
        *values, crc = USAGE.values(USAGE.row(stored) + row, session)
        self._write("put_usage", *values, crc if USAGE.is_intact(stored) else INVALID_CRC, rowid)

    def put_turn(self, row: TurnRow) -> None:
        """Insert or replace a turn."""
        self._write("put_turn", *TURNS.values(row))

    def put_tool(self, row: ToolRow) -> None:
        """Insert or replace a row of the tool ledger; a new one is appended."""
        found = self._first("tool", row.session, row.turn, bind(row.call_id))
        if found is None:
            counted = self._first("count_tools", row.session, row.turn)
            position, intact = counted[0] if counted else 0, True
        else:
            position, *stored = found
            intact = TOOLS.is_intact(stored)
        *values, crc = TOOLS.values(row, position)
        self._write("put_tool", *values, crc if intact else INVALID_CRC)

    def put_draft(self, session: int, turn: int, number: int, chunk: bytes) -> None:
        """Insert or replace one chunk of a draft."""
        self._write("put_draft", *DRAFTS.values(DraftChunkRow(session, turn, number, chunk)))

    def drop_draft(self, session: int, turn: int) -> None:
        """Delete a draft that became a message."""
        self._write("drop_draft", session, turn)

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Append input to the queue."""
        last = self._first("last_queued", session)
        number = (last[0] if last else 0) + 1
        self._write(
            "add_queued", *QUEUE.values(msgspec.structs.replace(row, number=number), session)
        )
        for sha256, data in row.blobs:
            self._write("add_queue_blob", session, number, sha256, data)

    def drop_queued(self, session: int, number: int) -> None:
        """Delete queued input that became a message."""
        self._write("drop_queued", session, number)
        self._write("drop_queue_blobs", session, number)


# ------------------------------------------------------------------------------- rows and values


def _refuse_impossible_start(row: BranchRow) -> None:
    """Raise `Damaged` for a branch that starts neither on an older one nor with message 1.

    Its path would have no start.
    """
    if row.parent is None and (row.fork_seq != 0 or row.fork_record is not None):
        raise Damaged(
            f"branch {row.n} starts after message {row.fork_seq} but names no parent; run "
            "store.verify()."
        )
    if row.parent is not None and row.parent >= row.n:
        raise Damaged(f"branch {row.n} names a parent that is not older; run store.verify().")


def _blocks(values: Sequence[ValueT]) -> Iterator[list[ValueT]]:
    """Split values into blocks for statements, the last one repeated up to a power of two.

    So there are few texts of statements, which are prepared once.
    """
    for start in range(0, len(values), _MAX_ROWS_PER_STATEMENT):
        block = list(values[start : start + _MAX_ROWS_PER_STATEMENT])
        yield block + block[-1:] * ((1 << (len(block) - 1).bit_length()) - len(block))


def _damage_reason(error: Exception) -> str:
    damaged = isinstance(error, Damaged)
    return str(error) if damaged else f"a session cannot be read: {type(error).__name__}"


def _is_listed(found: ListedSession, listing: SessionFilter) -> bool:
    """True if a session belongs in a list; a damaged one is matched by its unchecked rows.

    Without rows it is in every list that `SessionFilter.includes_damaged` describes.
    """
    if not isinstance(found, UnreadableSession):
        return listing.matches(*found)
    if found.row is None or found.head is None:
        return listing.includes_damaged
    try:
        return listing.matches(found.row, found.head)
    except (TypeError, AttributeError):  # values of the wrong type
        return listing.includes_damaged


def _normalize_or_none(*values: Any) -> Any:  # noqa: ANN401 - whatever the column holds
    """Normalize a title for comparison; `None` for a value that is not text."""
    title = unbind(values[0])
    return bind(normalize_title(title)) if isinstance(title, str) else None


def _title_ranges(normalized: str) -> tuple[str, str, str, str]:
    """Return the index ranges of titles that may fold to this one and start with an ASCII letter.

    The index orders titles by their bytes. Titles that start with another letter are read in any
    case. A title that folds to a non-ASCII first letter may start with any ASCII letter, followed
    by a combining accent.
    """
    first = normalized[:1]
    if not first.isascii():
        return "", "\x80", "", ""
    upper = first.upper() if first.isalpha() else ""
    return first, _next(first), upper, _next(upper)


def _next(first: str) -> str:
    return chr(ord(first) + 1) if first else ""


@cache
def _id_check() -> Callable[..., bool]:
    return row_check([column for column in SESSIONS.columns if column.name == "id"])


def _is_owner(row: Sequence[Any]) -> bool:
    return _owner_check()(*row)


@cache
def _owner_check() -> Callable[..., bool]:
    columns = {column.name: column for column in (*HEADS.columns, *SESSIONS.columns)}
    return row_check([columns[name] for name in BranchOwner.__struct_fields__])


def _owner(row: Sequence[Any]) -> BranchOwner:
    if bytes in map(type, row):
        row = [unbind(value) for value in row]
    return BranchOwner(*row)


def _message_row(row: Sequence[Any]) -> MessageRow:
    seq, name, turn, crc, body = row
    return MessageRow(seq, name if isinstance(name, str) else unbind(name), turn, crc, body)
