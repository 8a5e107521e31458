"""The seam: what one database needs to implement.

A *verb* is a function over a `Transaction`: it reads, decides, and only then writes. A *query* is a
function over a `Snapshot`. A backend runs them; it does not know what they mean. Verbs may be run
again from the start (after a failed batch, after a lost connection), so each is idempotent by the
ids it was made with.

A backend keeps four promises. A write that returned is durable. Verbs see each other's effects one
after the other, from whatever thread or process they come. A verb that raises leaves nothing
behind. A snapshot sees every write that was acknowledged before it began.

Sessions and branches are numbered by the backend; these numbers never leave the library.
"""

from __future__ import annotations

import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.core.branches import Path, Segment
from holdfast.records import (
    BackupReport,
    BranchReason,
    Damage,
    Holder,
    Measured,
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
At = TypeVar("At")

MEASURED_ROWS: Final = 64


class SessionRow(msgspec.Struct, frozen=True):
    """Who a session is. `goal` and `metadata` are JSON, times microseconds.

    One with `purged_at` is what a purge left of a session because a fork shares its messages: it
    is known by its id to whoever reads along those, and cannot be found by any other way.
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
    """Where a session stands: the row that every append reads and rewrites.

    `open_turn` is the number of the open turn and the fence of its holder: turns are numbered
    upwards, so whoever comes later has the higher number, and a write by anybody else is refused.
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


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a new branch starts: behind message `fork_seq`, which lies on branch `parent`."""

    parent: int | None = None
    fork_seq: int = 0
    asked_seq: int = 0
    reason: BranchReason = "start"
    token: str


class BranchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A branch; `last_seq` is where it ends now, `purged` whether its session is."""

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


class Owner(msgspec.Struct, frozen=True, gc=False):
    """What a search asks of a session first: who it is, and which branch it is on.

    It is read for many at once and its checksum is not checked: what is shown in the end is.
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


class Cut(msgspec.Struct, frozen=True):
    """What was cut off a branch: how many messages, and the blobs these needed."""

    messages: int
    blobs: frozenset[str]


class Belongings(msgspec.Struct, frozen=True):
    """What went with a session."""

    turns: int
    drafts: int
    queued: int


class Weight(msgspec.Struct, frozen=True):
    """How many messages a session wrote, and about how many bytes they and their files take."""

    messages: int
    bytes: int


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """A stored message: its place, and its bytes."""

    seq: int
    id: str
    turn: int | None
    crc: int
    body: bytes


class TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    """A turn. `token` is its holder's own mark, `first_seq` the head it began behind."""

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
    """A line of the tool ledger."""

    session: int
    turn: int
    call_id: str
    name: str | None
    outcome: ToolOutcome
    started_at: int | None
    ended_at: int | None


class QueueRow(msgspec.Struct, frozen=True):
    """Input that waits."""

    number: int
    id: str
    created_at: int
    body: bytes
    blobs: tuple[tuple[str, bytes], ...]


class UsageRow(msgspec.Struct, frozen=True):
    """What one model used in a session on one day (days since 1970, UTC)."""

    day: int
    model: str | None
    usage: Usage
    cost: int
    measured: Measured = Measured()


def in_order(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """Sort usage by day and model, that of no model first."""
    return sorted(rows, key=lambda row: (row.day, row.model is not None, row.model or ""))


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list: those equal in every field that is not `None`.

    `since` (included) and `until` (not) are bounds of when a session was written to last, `busy`
    is whether it has an open turn.
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
        wanted = (
            (self.scope, row.scope),
            (self.agent, row.agent),
            (self.cwd, row.cwd),
            (self.pinned, row.pinned),
            (self.archived, row.archived),
            (self.busy, head.open_turn is not None),
        )
        return (
            all(value is None or value == there for value, there in wanted)
            and self.trashed == (row.trashed_at is not None)
            and (self.delegates or row.relation != "delegate")
            and (self.since is None or head.updated_at >= self.since)
            and (self.until is None or head.updated_at < self.until)
            and (self.text is None or _shows(self.text, row.title, head.preview, row.key))
        )

    @property
    def open_to_all(self) -> bool:
        """Whether nothing is asked for that only a few have: then what cannot be read is in it."""
        wanted = (self.scope, self.agent, self.cwd, self.text, self.since, self.until, self.busy)
        return all(value is None for value in wanted) and not (
            self.pinned or self.archived or self.trashed
        )


def _shows(text: str, *shown: str | None) -> bool:
    return any(text.lower() in (value or "").lower() for value in shown)


class Unreadable(msgspec.Struct, frozen=True):
    """Stands in a list for a session whose rows cannot be read.

    It has what could be found out: its id, and its rows as they are, which nothing vouches for.
    """

    activity: int
    why: str
    id: str | None = None
    row: SessionRow | None = None
    head: HeadRow | None = None


Listed: TypeAlias = tuple[SessionRow, HeadRow] | Unreadable


class Snapshot(Protocol):
    """Reads, all of one moment."""

    def now(self) -> int:
        """Tell the database's time in microseconds."""
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
        """Find sessions, in the trash or not, whose title is this but for case; up to 20.

        Two titles are alike if `core.titles.loose` gives the same of both.
        """
        ...

    def forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the sessions outside the trash that were split off these (fork, continue).

        Those without any are left out.
        """
        ...

    def owners(self, branches: Collection[int]) -> dict[int, Owner]:
        """Tell whose these branches are; those of sessions in the trash or purged are left out."""
        ...

    def titled(self, words: Sequence[str]) -> list[Owner]:
        """Find sessions, but for those in the trash, whose title may hold all these words.

        Words are in lower case and without accents. Titles that hold none of them may be among
        what is found, those that hold all of them are.
        """
        ...

    def relative(self, id: str) -> SessionRow | None:
        """Read a session's identity by its id, also of what a purge left."""
        ...

    def children(self, id: str) -> list[SessionRow]:
        """Read the sessions that name this one as their parent, oldest first, as `relative`."""
        ...

    def find_run(self, run_id: str) -> list[SessionRow]:
        """Find the sessions, but for those in the trash, that have a turn of this run."""
        ...

    def session(self, n: int) -> SessionRow | None:
        """Read a session's identity."""
        ...

    def head(self, n: int) -> HeadRow | None:
        """Read where a session stands."""
        ...

    def list_sessions(self, listing: Listing, *, before: int | None, limit: int) -> list[Listed]:
        """List by activity, newest first, those with a lower activity number than `before`."""
        ...

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List what was written to: (activity, session id, branch number there, seq), in order."""
        ...

    def path(self, branch: int, low: int = 1) -> Path:
        """Return the way a branch's history runs, as far back as message `low` at least."""
        ...

    def branch(self, session: int, number: int) -> BranchRow | None:
        """Read a session's branch by its number there."""
        ...

    def branch_by_token(self, session: int, token: str) -> BranchRow | None:
        """Read the branch of a session that this write made."""
        ...

    def find_branch(self, n: int) -> BranchRow | None:
        """Read a branch."""
        ...

    def branches(self, session: int) -> list[BranchRow]:
        """Read a session's branches, by number."""
        ...

    def branches_from(self, n: int) -> list[BranchRow]:
        """Read the branches that start on this one, whosever they are, oldest first."""
        ...

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Read ranges, in order; each with the id of the session that wrote it."""
        ...

    def newest_summary(self, path: Path, last: int) -> int | None:
        """Find the last summary along a path, up to a seq."""
        ...

    def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
        """Look ids up along a branch's history; each with the id of the session that wrote it."""
        ...

    def placed(self, session: int, ids: Sequence[str]) -> list[tuple[int, MessageRow]]:
        """Look ids up on all branches of a session; each with its branch, the oldest first."""
        ...

    def count_of_turn(self, branch: int, turn: TurnRow) -> int:
        """Count the messages of a turn on the branch where it was opened."""
        ...

    def weigh(self, session: int) -> Weight:
        """Count the messages on a session's own branches, and the bytes of them and their blobs."""
        ...

    def turn(self, session: int, number: int) -> TurnRow | None:
        """Read one turn."""
        ...

    def turns(self, session: int, limit: int | None) -> list[TurnRow]:
        """Read the newest turns, oldest first."""
        ...

    def tools(self, session: int, turn: int) -> list[ToolRow]:
        """Read the ledger of a turn, in call order."""
        ...

    def draft(self, session: int, turn: int) -> list[bytes]:
        """Read the records of an open draft: the opening, then the chunks."""
        ...

    def opening(self, session: int, turn: int) -> bytes | None:
        """Read the first record of an open draft."""
        ...

    def queue(self, session: int) -> list[QueueRow]:
        """Read waiting input in order."""
        ...

    def usage(self, session: int) -> list[UsageRow]:
        """Read usage by day and model."""
        ...

    def measured(self, model: str) -> Measured:
        """Sum up how well replies of a model were estimated, in its newest rows of usage.

        These are `MEASURED_ROWS`, by day and then by session.
        """
        ...

    def blob(self, sha256: str) -> bytes | None:
        """Read a blob."""
        ...

    def erasures(self) -> int:
        """Tell how many transactions erased messages; whatever was derived before is outdated."""
        ...


class Transaction(Snapshot, Protocol):
    """Reads and writes that happen together or not at all."""

    def add_session(self, row: SessionRow, start: Start) -> int:
        """Store a new session with its first branch; give its number (`row.n` is ignored).

        Its head stands where the branch starts. A session with `purged_at` has none.
        """
        ...

    def put_session(self, row: SessionRow) -> None:
        """Replace a session's identity."""
        ...

    def put_head(self, row: HeadRow) -> None:
        """Replace a session's head; its activity becomes the highest, whatever `row` says."""
        ...

    def add_branch(self, session: int, number: int, start: Start, created_at: int) -> int:
        """Store a new branch; give what the backend calls it."""
        ...

    def end_branch(self, n: int, last_seq: int) -> None:
        """Note where a branch that is left ends."""
        ...

    def cut_branch(self, n: int, last_seq: int) -> Cut:
        """Erase the messages of a branch behind `last_seq`, where it ends from now on."""
        ...

    def drop_branch(self, n: int) -> None:
        """Erase a branch without messages."""
        ...

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message, the only way there is to; give the blobs it needed."""
        ...

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that no message needs; say how many, and their bytes."""
        ...

    def drop_belongings(self, session: int) -> Belongings:
        """Erase a session's head, turns, ledger, drafts, queue and usage."""
        ...

    def drop_session(self, n: int) -> None:
        """Erase a session's identity."""
        ...

    def add_messages(self, branch: int, rows: Sequence[MessageRow]) -> None:
        """Store messages at their places."""
        ...

    def add_blob(self, branch: int, seq: int, sha256: str, data: bytes) -> None:
        """Store a blob once, and that this message needs it."""
        ...

    def refer_blob(self, branch: int, seq: int, sha256: str) -> bool:
        """Note that a message needs a stored blob; false if there is none."""
        ...

    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage by day and model."""
        ...

    def put_turn(self, row: TurnRow) -> None:
        """Store or replace a turn."""
        ...

    def put_tool(self, row: ToolRow) -> None:
        """Store or replace a line of the ledger."""
        ...

    def put_draft(self, session: int, turn: int, number: int, record: bytes) -> None:
        """Store or replace one record of a draft."""
        ...

    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""
        ...

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Put input at the end of the queue (`row.number` is ignored)."""
        ...

    def drop_queued(self, session: int, number: int) -> None:
        """Remove input that became a message."""
        ...


Verb: TypeAlias = Callable[[Transaction], T]
Query: TypeAlias = Callable[[Snapshot], T]


Look: TypeAlias = Literal["session", "usage", "summary", "turn", "tools", "draft", "opening"]


class Foresight(msgspec.Struct, frozen=True):
    """What a verb or a query will look at, known before it runs.

    A database that is far away can be asked for all of it in one go, and for that of many verbs at
    once. It is a hint: a backend may ignore it, and whoever gave it may look at other things, too.
    """

    session: int  # its head
    ids: tuple[str, ...] = ()  # messages that are looked up along its history
    newest: int = 0  # messages at the end of its history
    looks: tuple[Look, ...] = ()  # what else of the session, and of this turn
    turn: int = 0


class Foreseen(Generic[At, T]):
    """A verb or a query that says what it will look at, if that is known.

    It does nothing else, so a query of this kind may be run again from the start, as verbs may.
    """

    def __init__(self, run: Callable[[At], T], sight: Foresight | None = None) -> None:
        """Say so of this one."""
        self._run = run
        self.sight = sight

    def __call__(self, at: At) -> T:
        """Run it."""
        return self._run(at)


def sight_of(run: object) -> Foresight | None:
    """Tell what a verb or a query will look at, if it says so."""
    return run.sight if isinstance(run, Foreseen) else None


class Pending(Protocol[T_co]):
    """A write that was handed over."""

    def result(self) -> T_co:
        """Wait for it; give its result or raise its error."""
        ...

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this from the writer's thread once it is done, or at once if it is."""
        ...

    def outcome(self) -> T_co:
        """Return the result of what is done, or raise its error."""
        ...

    def give_up(self) -> bool:
        """Withdraw it if it has not begun; false if it has."""
        ...


class Check(msgspec.Struct, frozen=True):
    """One line of a health report."""

    name: str
    value: str
    ok: bool = True
    hint: str | None = None


class Rows(Protocol):
    """What a statement gives, once it is asked for."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Wait for it, and give all rows."""
        ...


class TableLink(Protocol):
    """A connection to the tables of a search index. Its errors are those of the store.

    The tables of the log are in the same database, so who reads from the index can look at the log
    as it was at the same moment.
    """

    def begin_reading(self) -> None:
        """Begin to read what is there at one moment; it is sent with the first question."""
        ...

    def begin_writing(self, patience: float) -> None:
        """Begin to write, alone; wait so long for others that do, with the first answer."""
        ...

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Ask a statement and wait for its answer."""
        ...

    def send(self, text: str, values: Sequence[object] = ()) -> Rows:
        """Send a statement; what it gives, or what goes wrong with it, shows later."""
        ...

    def commit(self) -> None:
        """Keep what was written."""
        ...

    def roll_back(self) -> None:
        """Undo what was written, and end what was read."""
        ...

    def close(self) -> None:
        """Let go of the connection, in whatever state it is."""
        ...

    def foresee(self, places: Sequence[Segment], titles: Sequence[str] | None = None) -> None:
        """Ask the log for messages and titles that will be looked at, and how far it is."""
        ...

    def log(self) -> Snapshot:
        """Return the log, as of the moment that is read."""
        ...

    def log_activity(self) -> int:
        """Tell the highest activity of the log, whoever is still to commit a lower one."""
        ...

    def branches_of(
        self, scopes: Sequence[str], agents: Sequence[str], *, all_branches: bool
    ) -> list[int]:
        """Name the branches of the log that sessions of these scopes and agents may show."""
        ...


class Tables(Protocol):
    """Tables of a database that the search index of one tenant may be kept in.

    `code` is put before its words, so that they are apart from those of others.
    """

    shown: str
    code: str

    def connect(self) -> TableLink:
        """Return a connection; it is made when it is needed."""
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
        """Run a query on a snapshot."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Open a snapshot for a `with` block; a backend with an `index_path` has to have this."""
        raise NotImplementedError

    def index_path(self) -> pathlib.Path | None:
        """Name the file that a search index of this tenant's messages may be kept in.

        A backend without a place for it gives none: searches then read the messages themselves.
        """
        return None

    def index_tables(self) -> Tables | None:
        """Name the tables that a search index may be kept in, where there is no file for it."""
        return None

    @abstractmethod
    def write(self, verb: Verb[T], *, alone: bool = False) -> T:
        """Run a verb; durable when this returns.

        A verb that looks at many sessions before it erases asks for being `alone`: nobody else's
        verb is under way while it runs. All others only write to sessions whose row or head they
        have read.
        """

    @abstractmethod
    def submit(self, verb: Verb[T]) -> Pending[T]:
        """Hand a verb over and go on."""

    @abstractmethod
    def wait(self, seen: int, timeout: float) -> int:
        """Wait until something was written since `seen`; give the number of now.

        Start with `seen=-1`, which returns at once. A backend that was closed returns at once.
        """

    @abstractmethod
    def scrub(self) -> tuple[str, ...]:
        """Make the bytes of what was erased go; say what still holds some, and what to do."""

    @abstractmethod
    def scan(self, fragments: Sequence[bytes]) -> Scan:
        """Search everything that is kept for pieces of what was erased, freed space included.

        One that is part of something that is still stored, whosever it is, is not found.
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
    def health(self) -> list[Check]:
        """Return how the database is set up, for `doctor`."""

    @abstractmethod
    def flush(self) -> None:
        """Wait for all writes that were handed over."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def close(self) -> None:
        """Finish what was handed over and let go of the database."""
