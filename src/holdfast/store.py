"""A store: all sessions at one URL, for one tenant."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from holdfast import checks, ids, settings
from holdfast.backends.base import Backend, Listing, SessionRow
from holdfast.backends.registry import open_backend
from holdfast.clock import Clock, SystemClock
from holdfast.errors import SessionNotFound
from holdfast.following import StoreFollower
from holdfast.records import (
    JSON,
    BackupReport,
    Damage,
    ExportReport,
    Forks,
    ImportReport,
    Page,
    PurgeReport,
    Relation,
    SalvageReport,
    SessionInfo,
    Stats,
)
from holdfast.runtime import Runtime
from holdfast.session import Session
from holdfast.verbs import deleting, reading, sessions


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = "default",
    durability: settings.Durability = "power",
    readonly: bool = False,
) -> Store:
    """Open a store: a path, `sqlite:///…`, `memory:`, or where `$HOLDFAST_URL` says."""
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
        row = self._read(reading.find_by_key(key))
        if row is not None:
            return self._open(row)
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
            return self._read(reading.find_by_id(named.id)).n
        return self._read(reading.find(named)).n

    def get(self, ref: str) -> Session:
        """Open a session by id, unique id prefix (4 characters or more), key, run id or title."""
        return self._open(self._read(reading.find(ref)))

    def latest(
        self, *, scope: str | None = None, agent: str | None = None, cwd: str | None = None
    ) -> Session | None:
        """Open the session that was written to last; one that cannot be read is passed over."""
        for field, value in (("scope", scope), ("agent", agent), ("cwd", cwd)):
            checks.check_filter(value, field)
        listing = Listing(scope=scope, agent=agent, cwd=cwd, delegates=False)
        row = self._read(reading.latest(listing, self._runtime.report))
        return None if row is None else self._open(row)

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
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[SessionInfo]:
        """List sessions by activity, newest first, a page at a time."""
        for field, value in (("scope", scope), ("agent", agent), ("cwd", cwd), ("text", text)):
            checks.check_filter(value, field)
        for field, flag in (("pinned", pinned), ("archived", archived), ("trashed", trashed)):
            checks.check_flag(flag, field, optional=field != "trashed")
        listing = Listing(
            scope=scope,
            agent=agent,
            cwd=cwd,
            text=text,
            pinned=pinned,
            archived=archived,
            trashed=trashed,
        )
        query = reading.page(listing, limit=limit, cursor=cursor, report=self._runtime.report)
        return Page(*self._read(query))

    def follow(self, since: int = 0) -> StoreFollower:
        """Iterate over which sessions are written to, as it happens."""
        return StoreFollower(self._runtime, checks.check_number(since, "since"))

    def _open(self, row: SessionRow) -> Session:
        interrupted = self._read(reading.is_interrupted(row.n))
        return Session(self._runtime, row, interrupted=interrupted)

    # ------------------------------------------------------------------------------- deletion

    def trash(self, ref: str) -> SessionInfo:
        """Put a session in the trash: not listed any more, its key is free, nothing is lost."""
        row = self._read(reading.find(ref))
        return self._write(deleting.trash(row.n))

    def restore(self, ref: str, *, keyless: bool = False) -> SessionInfo:
        """Take a session out of the trash; `KeyTaken` if its key is, unless it is to have none."""
        row = self._read(reading.find_in_trash(ref))
        return self._write(deleting.restore(row.n, keyless=keyless))

    def purge(self, ref: str, *, forks: Forks = "keep") -> PurgeReport:
        """Erase a session for ever: its messages, turns, drafts, files, and their bytes.

        Messages that a fork shares stay for it and go with the last one; with `forks="erase"` they
        are erased in the forks, too. `SessionBusy` while a turn is open.
        """
        deleting.check_forks(forks)
        row = self._read(reading.find_anywhere(ref))
        report = self._write(deleting.purge(row.n, row.id, forks=forks))
        return msgspec.structs.replace(report, pending=self._backend.scrub())

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
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Write sessions to a new file of lines: those named, or all, the trash included.

        `progress` is told how many messages are done, of how many.
        """
        from holdfast.transfer import exporting  # noqa: PLC0415 - few callers need it

        return exporting.export(
            self._backend,
            self._runtime.clock,
            os.fspath(to),
            refs,
            overwrite=overwrite,
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
