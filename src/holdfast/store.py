"""A store: all sessions at one URL, for one tenant."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Self, TypeAlias, Unpack

import msgspec
from msgspec import UNSET

from holdfast import codec, ids, titles, validation
from holdfast.clock import Clock, SystemClock, to_micros
from holdfast.context import StoreContext
from holdfast.errors import BadMessage, Damaged, SessionNotFound, import_errors
from holdfast.follow import StoreFollower
from holdfast.operations import listing, queries, records, resolve, sessions
from holdfast.operations.session_changes import check_update
from holdfast.search.time_filter import Bound, parse_time
from holdfast.session import Session
from holdfast.storage.protocol import Backend, Query
from holdfast.storage.registry import open_backend
from holdfast.storage.rows import SessionFilter, SessionRow
from holdfast.url import Durability, check_durability, parse_url
from holdfast.values import (
    BackupReport,
    CopyReport,
    Damage,
    ExportReport,
    Forks,
    Head,
    Hit,
    ImportReport,
    IndexStatus,
    ListOptions,
    LoadReport,
    Message,
    NewSession,
    Page,
    Plan,
    PurgeReport,
    Record,
    Relation,
    RetentionOptions,
    RetentionReport,
    Review,
    SalvageReport,
    SearchOptions,
    SessionChanges,
    SessionFields,
    SessionInfo,
    Stats,
)

TitleMaker: TypeAlias = Callable[[Session], str | None]


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = "default",
    durability: Durability = "power",
    readonly: bool = False,
) -> Store:
    """Open a store: a path, `sqlite:///…`, `postgresql://…`, `memory:`, or `$HOLDFAST_URL`."""
    clock = SystemClock()
    backend = open_backend(
        parse_url(url, os.environ),
        tenant=validation.check_name(tenant, "tenant"),
        durability=check_durability(durability),
        readonly=readonly,
        clock=clock,
    )
    return Store(backend, clock)


class Store:
    """All sessions at one URL, for one tenant. Close it, or use it in a `with` block.

    `holdfast.open` returns these.
    """

    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        self._context = StoreContext(backend, clock or SystemClock())
        self._read = backend.read
        self._write = backend.write
        self._backend = backend

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return self._backend.url

    @property
    def tenant(self) -> str:
        """The tenant whose sessions these are."""
        return self._backend.tenant

    @property
    def backend(self) -> Backend:
        """The storage backend of this store."""
        return self._backend

    @property
    def damage(self) -> list[Damage]:
        """The damage found since the store was opened."""
        return list(self._context.damage)

    # ------------------------------------------------------------------------------- sessions

    def session(self, key: str, *, create: bool = True, **fields: Unpack[SessionFields]) -> Session:
        """Open the session with this key, or create it.

        The fields `scope`, `title`, `agent`, `model`, `cwd` and `metadata` are set only when it is
        created.
        """
        validation.check_arguments(fields, SessionFields, "Store.session")
        found = self._open_found(resolve.find_by_key(key))
        if found is not None:
            return found
        if not create:
            raise SessionNotFound(f"no session has the key {key!r}.")
        row = sessions.new_row(id=ids.session_id(), key=key, **fields)
        return Session(self._context, self._write(sessions.create(row, reuse=True)))

    def create(
        self,
        *,
        key: str | None = None,
        parent: str | Session | None = None,
        relation: Relation = "continue",
        entries: Sequence[Message | Record] = (),
        update: SessionChanges | None = None,
        **fields: Unpack[SessionFields],
    ) -> Session:
        """Create a session; `KeyTaken` if another has this key.

        With a parent, `continue` and `fork` start with its history, which both share; `reset`,
        `delegate` and `import` start empty. The fields are `scope`, `title`, `agent`, `model`,
        `cwd` and `metadata`. With the session are stored its first messages and records, `entries`,
        and the changes of `update`, as by `Session.update`.
        """
        validation.check_arguments(fields, SessionFields, "Store.create")
        sessions.check_relation(relation, parent=parent is not None)
        row = sessions.new_row(id=ids.session_id(), key=key, **fields)
        origin = None
        if parent is not None:
            origin = sessions.Origin(parent=self._session_number(parent), relation=relation)
        batch, records = codec.encode_batch(entries, self._context.now())
        operation = sessions.create(
            row, origin=origin, batch=batch, records=records, update=check_update(update)
        )
        return Session(self._context, self._write(operation))

    def _session_number(self, named: str | Session) -> int:
        if isinstance(named, Session):
            return self._read(resolve.find_by_id(named.id)).n
        return self._read(resolve.find(named, self._context.report)).n

    def get(self, ref: str) -> Session:
        """Open a session by id, unique id prefix (4 characters or more), key, run id or title.

        `@latest` is the one written to last, `@latest:SCOPE` the same within a scope, `@pinned` the
        only pinned one. `AmbiguousRef` has the candidates if several match.
        """
        row, interrupted = self._read(
            queries.find_with_interrupted(resolve.find(ref, self._context.report))
        )
        return Session(self._context, row, interrupted=interrupted)

    def message(self, id: str) -> tuple[Session, Message]:
        """Read one message by its id, and open the session that it belongs to.

        Messages that forks share belong to the session that wrote them. Sessions in the trash are
        not searched. `MessageNotFound` if there is none; `AmbiguousRef` has the candidates if
        unrelated sessions have a message with this id. The cost does not depend on how many
        messages there are.
        """
        find = resolve.find_by_message(id)
        row, interrupted, message = self._read(
            queries.find_with_message(find, id, self._context.report)
        )
        return Session(self._context, row, interrupted=interrupted), message

    def latest(
        self, *, scope: str | None = None, agent: str | None = None, cwd: str | None = None
    ) -> Session | None:
        """Open the session that was written to last; unreadable ones are skipped."""
        for field, value in (("scope", scope), ("agent", agent), ("cwd", cwd)):
            validation.check_filter(value, field)
        wanted = SessionFilter(scope=scope, agent=agent, cwd=cwd, delegates=False)
        return self._open_found(listing.latest(wanted, self._context.report))

    def sessions(self, **options: Unpack[ListOptions]) -> Page[SessionInfo]:
        """List sessions by activity, newest first, in pages; `order="pinned"` puts pinned first.

        Listed are those that match `scope`, `agent`, `cwd`, `text`, `pinned`, `archived` and
        `state`; sessions in the trash only with `trashed=True`, and none that were delegated with
        `delegates=False`. `since` and `until` bound the time of the last write: times, or texts
        such as `7d` and `2026-01-31`. A page has `limit=50` sessions, and its `cursor` gets the
        next one. Unreadable sessions are listed with the state `damaged`.

        `key_prefix` is the beginning of the key, compared byte by byte. With `metadata`, a session
        has all these names at the top level of its own, with these values: equal JSON, in which 1,
        1.0 and true are different, and the order of names in an object does not count. Both are
        looked up in an index: what other sessions have costs nothing.
        """
        validation.check_arguments(options, ListOptions, "Store.sessions")
        for field in ("scope", "agent", "cwd", "text"):
            validation.check_filter(options.get(field), field)
        for field in ("pinned", "archived"):
            validation.check_flag(options.get(field), field, optional=True)
        trashed, delegates = options.get("trashed", False), options.get("delegates", True)
        validation.check_flag(trashed, "trashed", optional=False)
        validation.check_flag(delegates, "delegates", optional=False)
        wanted = SessionFilter(
            scope=options.get("scope"),
            agent=options.get("agent"),
            cwd=options.get("cwd"),
            text=options.get("text"),
            pinned=options.get("pinned"),
            archived=options.get("archived"),
            trashed=trashed,
            delegates=delegates,
            key_prefix=listing.check_key_prefix(options.get("key_prefix")),
            metadata=listing.parse_metadata(options.get("metadata")),
            since=self._parse_bound(options.get("since"), "since"),
            until=self._parse_bound(options.get("until"), "until"),
        )
        request = listing.PageRequest(
            listing=wanted,
            state=options.get("state"),
            order=options.get("order", "activity"),
            limit=options.get("limit", 50),
            cursor=options.get("cursor"),
        )
        return Page(*self._read(listing.page(request, self._context.report)))

    def _parse_bound(self, value: datetime | str | None, bound: Bound) -> int | None:
        """Return a time bound of a list in microseconds; days are in the local time zone."""
        if value is None:
            return None
        found = parse_time(value, bound, self._context.now().astimezone())
        return None if found is None else to_micros(found)

    def search(self, text: str, **options: Unpack[SearchOptions]) -> Page[Hit]:
        """Search messages and titles, best match first, in pages.

        The text is words (all must match), "phrases", prefixes*, -excluded words, and filters such
        as `role:user since:7d`; `literal=True` disables this syntax. The filters `scope`, `agent`,
        `role`, `since`, `until` and `session` can also be passed as arguments; `cwd` only so, the
        directory that a session was started in. Thinking is searched only with `thinking=True`,
        abandoned branches with `all_branches=True`, the trash never. Each hit comes with `around=0`
        messages before and after it. A page has `limit=20` hits, and its `cursor` gets the next
        one.
        """
        with import_errors():
            from holdfast.search import engine  # noqa: PLC0415 - few callers need it
            from holdfast.search.request import parse_request  # noqa: PLC0415

        validation.check_arguments(options, SearchOptions, "Store.search")
        request = parse_request(text, options, self._context.now())
        return engine.search(self._backend, self._context.index, request, self._context.report)

    def index_status(self) -> IndexStatus:
        """Return the state of the search index; searches find all they can in every state."""
        return self._context.index.status()

    def catch_up_index(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Bring the search index up to date now, however long it takes.

        Searches do so themselves as far as it is quick; the rest is done in the background.
        `progress` is called with the number of messages done, and of all. Return True if nothing is
        missing; False if another process has the index locked, or if none can be stored.
        """
        return self._context.index.catch_up(progress)

    def check_index(self) -> builtins.list[str]:
        """Compare the whole search index with the messages; return what is wrong."""
        return self._context.index.check()

    def rebuild_index(self, progress: Callable[[int, int], None] | None = None) -> IndexStatus:
        """Rebuild the search index; `progress` is called with the number of messages done, and all.

        This is never necessary: a missing, damaged or stale index is replaced automatically.
        """
        self._context.index.rebuild(progress)
        return self._context.index.status()

    def make_titles(self, make: TitleMaker, *, limit: int = 50) -> builtins.list[SessionInfo]:
        """Set titles made by `make` (such as a model) on the newest sessions that have none.

        `make` is called with each session and returns a title, or `None` for none; a title is one
        line of at most 120 characters. A title by the user, even a concurrent one, is never
        replaced. Damaged sessions are skipped.
        """
        titled = []
        for info in self.sessions(limit=limit):
            if titles.needs_title(info):
                with suppress(Damaged):
                    session = self.get(info.id)
                    title = titles.shorten(make(session) or "")
                    if title:
                        titled.append(session.update(auto_title=title))
        return titled

    def record(
        self, kind: str, key: str | None = None, *, scope: str | None = None
    ) -> Record | None:
        """Read the current record of a kind and key beyond sessions: of a scope, or of all.

        Without a key, the one that has none.
        """
        query = queries.store_record(kind, key, scope=scope, report=self._context.report)
        return self._read(query)

    def put_record(self, record: Record, *, scope: str | None = None) -> Record:
        """Store a record beyond sessions, in place of the current one of its kind and key.

        It is of its own scope if it has one, else of this one. Return it as stored; each id once.
        """
        validation.check_record(record)
        if record.scope is UNSET:
            record = msgspec.structs.replace(record, scope=scope)
        elif scope not in {None, record.scope}:
            raise BadMessage("scope: the record has another scope than this; pass it once")
        item = codec.encode_record(record, self._context.now())
        return self._write(records.put_store_record(item))

    def follow(self, since: int = 0) -> StoreFollower:
        """Iterate over writes to any session, as they happen."""
        return StoreFollower(self._context, validation.check_number(since, "since"))

    def _open_found(self, find: Query[SessionRow | None]) -> Session | None:
        row, interrupted = self._read(queries.find_with_interrupted(find))
        return None if row is None else Session(self._context, row, interrupted=interrupted)

    # ------------------------------------------------------------------------------- deletion

    def trash(self, ref: str, *, expect: Head | None = None) -> SessionInfo:
        """Move a session to the trash: it is no longer listed, its key is free, nothing is lost.

        With `expect`, another current head raises `HeadMoved`.
        """
        with import_errors():
            from holdfast.operations import deletion  # noqa: PLC0415 - few callers need it

        row = self._read(resolve.find(ref, self._context.report))
        return self._write(deletion.trash(row.n, expect=expect))

    def restore(self, ref: str, *, keyless: bool = False) -> SessionInfo:
        """Restore a session from the trash; `KeyTaken` if its key is in use, unless `keyless`."""
        with import_errors():
            from holdfast.operations import deletion  # noqa: PLC0415 - as above

        row = self._read(resolve.find_in_trash(ref, self._context.report))
        return self._write(deletion.restore(row.n, keyless=keyless))

    def purge(self, ref: str, *, forks: Forks = "keep", expect: Head | None = None) -> PurgeReport:
        """Erase a session for ever: its messages, turns, drafts, files, and their bytes.

        Messages that a fork shares stay until the last such fork is purged; with `forks="erase"`
        they are erased in the forks, too. `SessionBusy` while a turn is open. With `expect`,
        another current head raises `HeadMoved`.
        """
        with import_errors():
            from holdfast.erasure import Erasure, partly_erased  # noqa: PLC0415 - as above
            from holdfast.operations import deletion, tombstone  # noqa: PLC0415

        deletion.check_forks(forks)
        erasure = Erasure(self._context)
        erasure.finish_earlier_purges()
        row = self._read(resolve.find_anywhere(ref, self._context.report))
        erasure.sample(tombstone.sample_session(row.n))
        report = erasure.write(
            deletion.plan_erasure(row.n, forks=forks),
            lambda planned: deletion.purge(
                row.n, row.id, forks=forks, planned=planned, expect=expect
            ),
        )
        with partly_erased("store.finish_purges() finishes it"):
            report = deletion.add_steps(report, erasure.finish_purges(row.n))
        pending, scan = erasure.wipe_and_scan()
        return msgspec.structs.replace(report, pending=pending, scan=scan)

    def finish_purges(self) -> int:
        """Finish purges that were interrupted; return how many messages that erased.

        `purge` does so, too, before it erases a session.
        """
        with import_errors():
            from holdfast.erasure import Erasure  # noqa: PLC0415 - as above

        return Erasure(self._context).finish_earlier_purges().messages

    def retention(self, **rules: Unpack[RetentionOptions]) -> Plan:
        """Return which sessions these rules would remove, and why; nothing is changed.

        Removed are sessions `older_than` a time, `idle` for one, and the least recent beyond
        `max_bytes`, of one `scope` or of all. Times are a `timedelta` or a text such as `30d`.
        Pinned, open and forked-from sessions stay, and so do the `keep_last` most recent ones.
        `apply` moves the others to the trash; with `empty_trash`, sessions in the trash for that
        long are erased. Without a rule, none is removed.
        """
        with import_errors():
            from holdfast.operations import retention, retention_rules  # noqa: PLC0415 - as above

        validation.check_arguments(rules, RetentionOptions, "Store.retention")
        return self._read(retention.plan(retention_rules.parse_rules(rules)))

    def apply(
        self,
        plan: Plan,
        *,
        archive: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> RetentionReport:
        """Remove the sessions of a plan, except those that changed since it was made.

        With `archive` they are first exported to this new file, unredacted, and it is verified.
        """
        with import_errors():
            from holdfast import prune  # noqa: PLC0415 - few callers need it

        to = None if archive is None else os.fspath(archive)
        return prune.apply_plan(self._context, plan, archive=to, progress=progress)

    # ---------------------------------------------------------------------------- whole store

    def blob(self, sha256: str) -> bytes:
        """Read a file or large part by its hash."""
        return self.blobs(sha256)[sha256]

    def blobs(self, *sha256: str) -> dict[str, bytes]:
        """Read files or large parts by their hashes, all in one read.

        `NotFound` names those that are missing. All of them are held in memory.
        """
        return self._read(queries.blobs(sha256, self._context.report))

    def verify(self) -> builtins.list[Damage]:
        """Read everything and return what is damaged; nothing is changed."""
        found = self._backend.verify()
        self._context.report_verified(found)
        return found

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
        """Export sessions to a new JSON Lines file: those given, or all, including the trash.

        With all sessions, the records of the store are exported as well. Secrets that the detectors
        of `redact` find are removed, and the report lists them; with `redact=None` it is a complete
        copy. `progress` is called with the number of messages done, and of all.
        """
        with import_errors():
            from holdfast.transfer import export  # noqa: PLC0415 - few callers need it

        return export.export(
            self._backend,
            self._context.clock,
            os.fspath(to),
            refs,
            overwrite=overwrite,
            redact=redact,
            progress=progress,
            report=self._context.report,
        )

    def review(
        self,
        *refs: str,
        redact: str | Sequence[str] | None = "default",
        progress: Callable[[int, int], None] | None = None,
    ) -> Review:
        """Return what an export would replace, leave out and not search; nothing is written."""
        with import_errors():
            from holdfast.transfer import export  # noqa: PLC0415 - as above

        return export.review(
            self._backend,
            self._context.clock,
            refs,
            redact=redact,
            progress=progress,
            report=self._context.report,
        )

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        trust: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> ImportReport:
        """Import the sessions of an exported file; those already stored stay as they are.

        A file may come from a stranger, so what it says decides nothing here: system messages
        become user messages, queued input is held, an active goal is paused, and key, scope, agent,
        cwd and pin are only kept as `SessionInfo.provenance`. A record of kind `K` becomes one of
        kind `imported:K`. The report lists all of it. With `trust`, for one's own archives,
        sessions are imported as they were exported, and so are the records of the store, where it
        has none of the same scope, kind and key.

        `progress` is called with the number of bytes done, and of all (each is read twice), in any
        thread; it must not use the store.
        """
        with import_errors():
            from holdfast.transfer import import_  # noqa: PLC0415 - as above

        return import_.import_(self._backend, os.fspath(path), progress, trust=trust)

    def load(
        self,
        sessions: Iterable[tuple[str | NewSession, Iterable[Message | Record]]],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> LoadReport:
        """Append to many sessions at once: `sessions` are pairs of a key and its messages.

        In place of the key may be a dict of it and of the fields that the session gets if it is
        created, as by `session(key, **fields)`. A key may come again: what comes with it is
        appended. Messages and records share transactions of some thousand; each id is stored once,
        so with ids of your own a repeated load continues where it was stopped. An id with another
        body raises `IdConflict`: then nothing of its transaction is stored, all before it is.
        `progress` is called with the number of messages and records done, after each transaction.
        """
        with import_errors():
            from holdfast.transfer import load  # noqa: PLC0415 - few callers need it

        return load.load(self._backend, self._context.now, sessions, progress)

    def copy(
        self,
        to: str | os.PathLike[str] | Store,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> CopyReport:
        """Copy every session and record to another store of any kind, and compare both.

        A repeated copy continues where it was stopped, and copies what changed since; records that
        were dropped since are dropped there, too. `Diverged` if the target has other content under
        the same ids. `progress` is called with the amount done, and of all, in any thread; it must
        not use either store.
        """
        with import_errors():
            from holdfast.transfer import copy  # noqa: PLC0415 - as above

        if not isinstance(to, Store):
            with open(to, tenant=self.tenant) as target:
                return self.copy(target, progress=progress)
        return copy.copy(self._backend, to.backend, progress=progress, report=self._context.report)

    def stats(self) -> Stats:
        """Return counts of what the store contains."""
        return self._backend.stats()

    def flush(self) -> None:
        """Wait for all background writes."""
        self._backend.flush()

    def close(self) -> None:
        """Close the store. Open turns stay open until their lease expires."""
        self._context.close()

    def __enter__(self) -> Self:
        """Return itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
