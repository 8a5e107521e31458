"""A store: all sessions at one URL, for one tenant."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from holdfast import checks, ids, settings
from holdfast.backends.base import Backend, Listing, Query, SessionRow
from holdfast.backends.registry import open_backend
from holdfast.clock import Clock, SystemClock, to_micros
from holdfast.core import titles
from holdfast.core.moments import Bound, moment
from holdfast.core.retention import Rules, duration
from holdfast.erasure import Erasure
from holdfast.errors import SessionNotFound
from holdfast.following import StoreFollower
from holdfast.records import (
    JSON,
    BackupReport,
    CopyReport,
    Damage,
    ExportReport,
    Forks,
    Hit,
    ImportReport,
    IndexStatus,
    Order,
    Page,
    Plan,
    PurgeReport,
    Relation,
    RetentionReport,
    Review,
    Role,
    SalvageReport,
    SessionInfo,
    SessionState,
    Stats,
)
from holdfast.runtime import Runtime
from holdfast.session import Session
from holdfast.verbs import deleting, finding, listing, reading, retaining, sessions

TitleMaker: TypeAlias = Callable[[Session], str | None]


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = "default",
    durability: settings.Durability = "power",
    readonly: bool = False,
) -> Store:
    """Open a store: a path, `sqlite:///…`, `postgresql://…`, `memory:`, or `$HOLDFAST_URL`."""
    clock = SystemClock()
    backend = open_backend(
        settings.parse(url, os.environ),
        tenant=checks.check_name(tenant, "tenant"),
        durability=settings.check_durability(durability),
        readonly=readonly,
        clock=clock,
    )
    return Store(backend, clock)


class Store:
    """All sessions at one URL, for one tenant. Close it, or use it in a `with` block."""

    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        """Use an open backend; `holdfast.open` does this for you."""
        self._runtime = Runtime(backend, clock or SystemClock())
        self._read = backend.read
        self._write = backend.write
        self._backend = backend

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._backend.url

    @property
    def tenant(self) -> str:
        """Whose sessions these are."""
        return self._backend.tenant

    @property
    def backend(self) -> Backend:
        """The database behind this store."""
        return self._backend

    @property
    def damage(self) -> list[Damage]:
        """What was found unreadable since the store was opened."""
        return list(self._runtime.damage)

    # ------------------------------------------------------------------------------- sessions

    def session(
        self,
        key: str,
        *,
        create: bool = True,
        scope: str | None = None,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
        metadata: dict[str, JSON] | None = None,
    ) -> Session:
        """Open the session with this key as it was left, or make it.

        What is said beyond the key counts only when it is made.
        """
        found = self._open(finding.find_by_key(key))
        if found is not None:
            return found
        if not create:
            raise SessionNotFound(f"no session has the key {key!r}.")
        who = sessions.identity(
            id=ids.session_id(),
            key=key,
            scope=scope,
            title=title,
            agent=agent,
            model=model,
            cwd=cwd,
            metadata=metadata,
        )
        return Session(self._runtime, self._write(sessions.create(who, reuse=True)))

    def create(
        self,
        *,
        key: str | None = None,
        parent: str | Session | None = None,
        relation: Relation = "continue",
        scope: str | None = None,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
        metadata: dict[str, JSON] | None = None,
    ) -> Session:
        """Make a new session; `KeyTaken` if another has this key.

        One with a parent comes from it: `continue` and `fork` begin with its history, sharing it,
        `reset`, `delegate` and `import` begin empty.
        """
        sessions.check_relation(relation, parent=parent is not None)
        who = sessions.identity(
            id=ids.session_id(),
            key=key,
            scope=scope,
            title=title,
            agent=agent,
            model=model,
            cwd=cwd,
            metadata=metadata,
        )
        origin = None
        if parent is not None:
            origin = sessions.Origin(parent=self._number(parent), relation=relation)
        return Session(self._runtime, self._write(sessions.create(who, origin=origin)))

    def _number(self, named: str | Session) -> int:
        if isinstance(named, Session):
            return self._read(finding.find_by_id(named.id)).n
        return self._read(finding.find(named, self._runtime.report)).n

    def get(self, ref: str) -> Session:
        """Open a session by id, unique id prefix (4 characters or more), key, run id or title.

        `@latest` is the one written to last, `@latest:SCOPE` that of a scope, `@pinned` the only
        pinned one. `AmbiguousRef` has the candidates if several go by the name.
        """
        row, interrupted = self._read(reading.opened(finding.find(ref, self._runtime.report)))
        return Session(self._runtime, row, interrupted=interrupted)

    def latest(
        self, *, scope: str | None = None, agent: str | None = None, cwd: str | None = None
    ) -> Session | None:
        """Open the session that was written to last; one that cannot be read is passed over."""
        for field, value in (("scope", scope), ("agent", agent), ("cwd", cwd)):
            checks.check_filter(value, field)
        wanted = Listing(scope=scope, agent=agent, cwd=cwd, delegates=False)
        return self._open(listing.latest(wanted, self._runtime.report))

    def sessions(
        self,
        *,
        scope: str | None = None,
        agent: str | None = None,
        cwd: str | None = None,
        text: str | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
        trashed: bool = False,
        state: SessionState | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        order: Order = "activity",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[SessionInfo]:
        """List sessions by activity, newest first, a page at a time; `order="pinned"`: these first.

        `since` and `until` are about when a session was written to last: times, or texts such as
        `7d` and `2026-01-31`. One that cannot be read is listed with the state `damaged`.
        """
        for field, value in (("scope", scope), ("agent", agent), ("cwd", cwd), ("text", text)):
            checks.check_filter(value, field)
        for field, flag in (("pinned", pinned), ("archived", archived), ("trashed", trashed)):
            checks.check_flag(flag, field, optional=field != "trashed")
        wanted = Listing(
            scope=scope,
            agent=agent,
            cwd=cwd,
            text=text,
            pinned=pinned,
            archived=archived,
            trashed=trashed,
            since=self._moment(since, "since"),
            until=self._moment(until, "until"),
        )
        asked = listing.Asked(listing=wanted, state=state, order=order, limit=limit, cursor=cursor)
        return Page(*self._read(listing.page(asked, self._runtime.report)))

    def _moment(self, value: datetime | str | None, bound: Bound) -> int | None:
        """Take a bound of a list; days are those of where the program runs."""
        found = moment(value, bound, self._runtime.now().astimezone())
        return None if found is None else to_micros(found)

    def search(
        self,
        text: str,
        *,
        scope: str | None = None,
        agent: str | None = None,
        role: Role | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        session: str | None = None,
        literal: bool = False,
        thinking: bool = False,
        all_branches: bool = False,
        around: int = 0,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        """Find messages and titles by what they say, the best first, a page at a time.

        The text is words (all must be there), "phrases", beginnings*, -what must not be there, and
        filters such as `role:user since:7d`; `literal` takes it as it stands. Thinking and branches
        that were left are searched only if asked for, the trash never.
        """
        from holdfast.index import asking, searching  # noqa: PLC0415 - few callers need it

        asked = asking.request(
            text,
            now=self._runtime.now(),
            scope=scope,
            agent=agent,
            role=role,
            since=since,
            until=until,
            session=session,
            literal=literal,
            thinking=thinking,
            all_branches=all_branches,
            around=around,
            limit=limit,
            cursor=cursor,
        )
        return searching.search(self._backend, self._runtime.index, asked, self._runtime.report)

    def index_status(self) -> IndexStatus:
        """Tell what state the search index is in; searches are right in every state."""
        return self._runtime.index.status()

    def catch_up_index(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Bring the search index up to date now, however long it takes.

        Searches do so themselves, as far as it is quick, and leave the rest to the background.
        `progress` is told how many messages are done, of how many.
        """
        self._runtime.index.catch_up(progress)

    def check_index(self) -> builtins.list[str]:
        """Read all of the search index and compare it with the messages; say what is wrong."""
        return self._runtime.index.check()

    def rebuild_index(self, progress: Callable[[int, int], None] | None = None) -> IndexStatus:
        """Make the search index anew; `progress` is told how many messages are done, of how many.

        Nobody has to: an index that is missing, damaged or out of date is replaced by itself.
        """
        self._runtime.index.rebuild(progress)
        return self._runtime.index.status()

    def make_titles(self, make: TitleMaker, *, limit: int = 50) -> builtins.list[SessionInfo]:
        """Let `make` (a model, say) give titles to those of the newest sessions that have none.

        It is given each session and gives a title, or `None` to leave it without; a title is one
        line of at most 120 characters. One that the user gives, also meanwhile, is never replaced.
        """
        told = []
        for info in self.sessions(limit=limit):
            if titles.wants_one(info):
                session = self.get(info.id)
                title = titles.fold(make(session) or "")
                if title:
                    told.append(session.update(auto_title=title))
        return told

    def follow(self, since: int = 0) -> StoreFollower:
        """Iterate over which sessions are written to, as it happens."""
        return StoreFollower(self._runtime, checks.check_number(since, "since"))

    def _open(self, find: Query[SessionRow | None]) -> Session | None:
        row, interrupted = self._read(reading.opened(find))
        return None if row is None else Session(self._runtime, row, interrupted=interrupted)

    # ------------------------------------------------------------------------------- deletion

    def trash(self, ref: str) -> SessionInfo:
        """Put a session in the trash: not listed any more, its key is free, nothing is lost."""
        row = self._read(finding.find(ref, self._runtime.report))
        return self._write(deleting.trash(row.n))

    def restore(self, ref: str, *, keyless: bool = False) -> SessionInfo:
        """Take a session out of the trash; `KeyTaken` if its key is, unless it is to have none."""
        row = self._read(finding.find_in_trash(ref, self._runtime.report))
        return self._write(deleting.restore(row.n, keyless=keyless))

    def purge(self, ref: str, *, forks: Forks = "keep") -> PurgeReport:
        """Erase a session for ever: its messages, turns, drafts, files, and their bytes.

        Messages that a fork shares stay for it and go with the last one; with `forks="erase"` they
        are erased in the forks, too. `SessionBusy` while a turn is open.
        """
        deleting.check_forks(forks)
        row = self._read(finding.find_anywhere(ref, self._runtime.report))
        erasure = Erasure(self._runtime)
        report = erasure.write(
            deleting.foretell(row.n, forks=forks),
            lambda doomed: deleting.purge(row.n, row.id, forks=forks, doomed=doomed),
        )
        pending, scan = erasure.settle()
        return msgspec.structs.replace(report, pending=pending, scan=scan)

    def retention(
        self,
        *,
        older_than: timedelta | str | None = None,
        idle: timedelta | str | None = None,
        keep_last: int | None = None,
        scope: str | None = None,
        max_bytes: int | None = None,
        empty_trash: timedelta | str | None = None,
    ) -> Plan:
        """Return which sessions these rules would let go, and why; nothing is changed.

        Times are a `timedelta` or a text such as `30d`. Pinned, open and forked-from sessions
        stay, and so do the `keep_last` most recent ones. `apply` puts the others in the trash;
        with `empty_trash` what lay there for so long is erased. Without a rule nothing goes.
        """
        checks.check_filter(scope, "scope")
        rules = Rules(
            older_than=duration(older_than, "older_than"),
            idle=duration(idle, "idle"),
            keep_last=(
                None if keep_last is None else checks.check_number(keep_last, "keep_last", lowest=1)
            ),
            scope=scope,
            max_bytes=None if max_bytes is None else checks.check_number(max_bytes, "max_bytes"),
            empty_trash=duration(empty_trash, "empty_trash"),
        )
        return self._read(retaining.plan(rules))

    def apply(
        self,
        plan: Plan,
        *,
        archive: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> RetentionReport:
        """Let the sessions of a plan go, but for those that changed since it was made.

        With `archive` they are exported to this new file first, as they are, and it is verified.
        """
        from holdfast import pruning  # noqa: PLC0415 - few callers need it

        to = None if archive is None else os.fspath(archive)
        return pruning.apply(self._runtime, plan, archive=to, progress=progress)

    # ---------------------------------------------------------------------------- whole store

    def blob(self, sha256: str) -> bytes:
        """Read a file or large part by its hash."""
        return self._read(reading.blob(sha256))

    def verify(self) -> builtins.list[Damage]:
        """Read everything and report what is damaged; nothing is changed."""
        return self._backend.verify()

    def salvage(self, to: str | os.PathLike[str]) -> SalvageReport:
        """Copy everything readable into a new store; this one is not changed."""
        return self._backend.salvage(os.fspath(to))

    def backup(self, to: str | os.PathLike[str]) -> BackupReport:
        """Copy the store while it is in use, and verify the copy."""
        return self._backend.backup(os.fspath(to))

    def export(
        self,
        to: str | os.PathLike[str],
        *refs: str,
        overwrite: bool = False,
        redact: str | Sequence[str] | None = "default",
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Write sessions to a new file of lines: those named, or all, the trash included.

        Secrets that the detectors of `redact` find are not in it, and the report lists them; with
        `redact=None` it is a whole copy. `progress` is told how many messages are done, of how
        many.
        """
        from holdfast.transfer import exporting  # noqa: PLC0415 - few callers need it

        return exporting.export(
            self._backend,
            self._runtime.clock,
            os.fspath(to),
            refs,
            overwrite=overwrite,
            redact=redact,
            progress=progress,
            report=self._runtime.report,
        )

    def review(
        self,
        *refs: str,
        redact: str | Sequence[str] | None = "default",
        progress: Callable[[int, int], None] | None = None,
    ) -> Review:
        """Tell what an export would replace, leave out and not look into; nothing is written."""
        from holdfast.transfer import exporting  # noqa: PLC0415 - as above

        return exporting.review(
            self._backend,
            self._runtime.clock,
            refs,
            redact=redact,
            progress=progress,
            report=self._runtime.report,
        )

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> ImportReport:
        """Add the sessions of an exported file; those that are here already stay as they are.

        `progress` is told how many bytes are done, of how many (each is read twice), from whatever
        thread is at work; it must not use the store.
        """
        from holdfast.transfer import importing  # noqa: PLC0415 - as above

        return importing.import_(self._backend, os.fspath(path), progress)

    def copy(
        self,
        to: str | os.PathLike[str] | Store,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> CopyReport:
        """Bring every session, as it is, into another store of any kind, and compare both.

        Doing it again goes on where it was stopped, and brings what changed since. `Diverged` if
        the target has something else under the same ids. `progress` is told how much is done, of
        how much, from whatever thread is at work; it must not use either store.
        """
        from holdfast.transfer import copying  # noqa: PLC0415 - as above

        if not isinstance(to, Store):
            with open(to, tenant=self.tenant) as target:
                return self.copy(target, progress=progress)
        return copying.copy(
            self._backend, to.backend, progress=progress, report=self._runtime.report
        )

    def stats(self) -> Stats:
        """Count what the store holds."""
        return self._backend.stats()

    def flush(self) -> None:
        """Wait for everything handed over in the background."""
        self._backend.flush()

    def close(self) -> None:
        """Let go of the store. Open turns stay open until their lease runs out."""
        self._runtime.close()

    def __enter__(self) -> Self:
        """Use the store within a `with` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
