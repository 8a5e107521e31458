"""The async twin of `holdfast.store`: each method is documented at `Store`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias, Unpack

from holdfast import store, titles
from holdfast.aio.completion_queue import running_loop
from holdfast.aio.follow import AsyncStoreFollower
from holdfast.aio.session import AsyncSession, sync_of
from holdfast.storage.protocol import Backend
from holdfast.store import Store
from holdfast.url import Durability
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

AsyncTitleMaker: TypeAlias = Callable[[AsyncSession], Awaitable[str | None]]


class AsyncStore:
    """The async twin of `Store`, for asyncio; `holdfast.open_async` returns these."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return self._store.url

    @property
    def tenant(self) -> str:
        """The tenant whose sessions these are."""
        return self._store.tenant

    @property
    def backend(self) -> Backend:
        """The storage backend of this store."""
        return self._store.backend

    @property
    def damage(self) -> list[Damage]:
        """The damage found since the store was opened."""
        return self._store.damage

    async def session(
        self, key: str, *, create: bool = True, **fields: Unpack[SessionFields]
    ) -> AsyncSession:
        """Open the session with this key, or create it."""
        found = await asyncio.to_thread(self._store.session, key, create=create, **fields)
        return AsyncSession(found)

    async def create(
        self,
        *,
        key: str | None = None,
        parent: str | AsyncSession | None = None,
        relation: Relation = "continue",
        entries: Sequence[Message | Record] = (),
        update: SessionChanges | None = None,
        **fields: Unpack[SessionFields],
    ) -> AsyncSession:
        """Create a session; `KeyTaken` if another has this key."""
        from_ = sync_of(parent) if isinstance(parent, AsyncSession) else parent
        made = await asyncio.to_thread(
            self._store.create,
            key=key,
            parent=from_,
            relation=relation,
            entries=entries,
            update=update,
            **fields,
        )
        return AsyncSession(made)

    async def get(self, ref: str) -> AsyncSession:
        """Open a session by id, unique id prefix, key, run id, title, `@latest` or `@pinned`."""
        return AsyncSession(await asyncio.to_thread(self._store.get, ref))

    async def message(self, id: str) -> tuple[AsyncSession, Message]:
        """Read one message by its id, and open the session that it belongs to."""
        session, message = await asyncio.to_thread(self._store.message, id)
        return AsyncSession(session), message

    async def latest(
        self, *, scope: str | None = None, agent: str | None = None, cwd: str | None = None
    ) -> AsyncSession | None:
        """Open the session that was written to last."""
        found = await asyncio.to_thread(self._store.latest, scope=scope, agent=agent, cwd=cwd)
        return None if found is None else AsyncSession(found)

    async def sessions(self, **options: Unpack[ListOptions]) -> Page[SessionInfo]:
        """List sessions by activity, newest first, in pages; see `Store.sessions`."""
        return await asyncio.to_thread(self._store.sessions, **options)

    async def search(self, text: str, **options: Unpack[SearchOptions]) -> Page[Hit]:
        """Search messages and titles, best match first, in pages; see `Store.search`."""
        return await asyncio.to_thread(self._store.search, text, **options)

    async def index_status(self) -> IndexStatus:
        """Return the state of the search index."""
        return await asyncio.to_thread(self._store.index_status)

    async def catch_up_index(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Bring the search index up to date now; `progress` is called in another thread."""
        return await asyncio.to_thread(self._store.catch_up_index, progress)

    async def check_index(self) -> list[str]:
        """Compare the whole search index with the messages; return what is wrong."""
        return await asyncio.to_thread(self._store.check_index)

    async def rebuild_index(
        self, progress: Callable[[int, int], None] | None = None
    ) -> IndexStatus:
        """Rebuild the search index; `progress` is called in another thread."""
        return await asyncio.to_thread(self._store.rebuild_index, progress)

    async def make_titles(self, make: AsyncTitleMaker, *, limit: int = 50) -> list[SessionInfo]:
        """Set titles made by `make` on the newest sessions that have none."""
        titled = []
        for info in await self.sessions(limit=limit):
            if titles.needs_title(info):
                session = await self.get(info.id)
                title = titles.shorten(await make(session) or "")
                if title:
                    titled.append(await session.update(auto_title=title))
        return titled

    async def record(
        self, kind: str, key: str | None = None, *, scope: str | None = None
    ) -> Record | None:
        """Read the current record of a kind and key beyond sessions: of a scope, or of all."""
        return await asyncio.to_thread(self._store.record, kind, key, scope=scope)

    async def put_record(self, record: Record, *, scope: str | None = None) -> Record:
        """Store a record beyond sessions, in place of the current one of its kind and key."""
        return await asyncio.to_thread(self._store.put_record, record, scope=scope)

    def follow(self, since: int = 0) -> AsyncStoreFollower:
        """Iterate over writes to any session, as they happen."""
        return AsyncStoreFollower(self._store.backend, self._store.follow(since))

    async def trash(self, ref: str, *, expect: Head | None = None) -> SessionInfo:
        """Move a session to the trash."""
        return await asyncio.to_thread(self._store.trash, ref, expect=expect)

    async def restore(self, ref: str, *, keyless: bool = False) -> SessionInfo:
        """Restore a session from the trash."""
        return await asyncio.to_thread(self._store.restore, ref, keyless=keyless)

    async def purge(
        self, ref: str, *, forks: Forks = "keep", expect: Head | None = None
    ) -> PurgeReport:
        """Erase a session for ever."""
        return await asyncio.to_thread(self._store.purge, ref, forks=forks, expect=expect)

    async def finish_purges(self) -> int:
        """Finish purges that were interrupted; return how many messages that erased."""
        return await asyncio.to_thread(self._store.finish_purges)

    async def retention(self, **rules: Unpack[RetentionOptions]) -> Plan:
        """Return which sessions these rules would remove, and why; see `Store.retention`."""
        return await asyncio.to_thread(self._store.retention, **rules)

    async def apply(
        self,
        plan: Plan,
        *,
        archive: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> RetentionReport:
        """Remove the sessions of a plan; `progress` is called in another thread."""
        return await asyncio.to_thread(self._store.apply, plan, archive=archive, progress=progress)

    async def blob(self, sha256: str) -> bytes:
        """Read a file or large part by its hash."""
        return await asyncio.to_thread(self._store.blob, sha256)

    async def blobs(self, *sha256: str) -> dict[str, bytes]:
        """Read files or large parts by their hashes, all in one read."""
        return await asyncio.to_thread(self._store.blobs, *sha256)

    async def verify(self) -> list[Damage]:
        """Read everything and return what is damaged."""
        return await asyncio.to_thread(self._store.verify)

    async def salvage(self, to: str | os.PathLike[str]) -> SalvageReport:
        """Copy everything readable into a new store."""
        return await asyncio.to_thread(self._store.salvage, to)

    async def backup(self, to: str | os.PathLike[str]) -> BackupReport:
        """Copy the store while it is in use, and verify the copy."""
        return await asyncio.to_thread(self._store.backup, to)

    async def export(
        self,
        to: str | os.PathLike[str],
        *refs: str,
        overwrite: bool = False,
        redact: str | Sequence[str] | None = "default",
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Export sessions to a new JSON Lines file; `progress` is called in another thread."""
        return await asyncio.to_thread(
            self._store.export, to, *refs, overwrite=overwrite, redact=redact, progress=progress
        )

    async def review(
        self,
        *refs: str,
        redact: str | Sequence[str] | None = "default",
        progress: Callable[[int, int], None] | None = None,
    ) -> Review:
        """Return what an export would replace, leave out and not search; nothing is written."""
        return await asyncio.to_thread(self._store.review, *refs, redact=redact, progress=progress)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        trust: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> ImportReport:
        """Import the sessions of an exported file; with `trust`, exactly as they were exported.

        `progress` is called in another thread. See `Store.import_`.
        """
        return await asyncio.to_thread(self._store.import_, path, trust=trust, progress=progress)

    async def load(
        self,
        sessions: Iterable[tuple[str | NewSession, Iterable[Message | Record]]],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> LoadReport:
        """Append to many sessions at once; `sessions` is read, and `progress` called, in a thread.

        See `Store.load`.
        """
        return await asyncio.to_thread(self._store.load, sessions, progress=progress)

    async def copy(
        self,
        to: str | os.PathLike[str] | AsyncStore,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> CopyReport:
        """Copy every session to another store; `progress` is called in another thread."""
        target = to._store if isinstance(to, AsyncStore) else to  # noqa: SLF001 - one of ours
        return await asyncio.to_thread(self._store.copy, target, progress=progress)

    async def stats(self) -> Stats:
        """Return counts of what the store contains."""
        return await asyncio.to_thread(self._store.stats)

    async def flush(self) -> None:
        """Wait for all background writes."""
        await asyncio.to_thread(self._store.flush)

    async def close(self) -> None:
        """Close the store."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> Self:
        """Return itself, to be closed at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()


class StoreOpening:
    """A store that `await` opens, and an `async with` block opens and closes.

    The store belongs to the caller: it stays open when this object is gone.
    """

    def __init__(self, open: Callable[[], Store]) -> None:
        self._open = open
        self._opened: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        """Open the store; close it with `await store.close()`."""
        return self._open_in_thread().__await__()

    async def _open_in_thread(self) -> AsyncStore:
        running_loop()
        opened: Future[Store] = Future()
        try:
            return AsyncStore(await asyncio.to_thread(self._open_into, opened))
        except asyncio.CancelledError:
            # The thread goes on, and what it opens has no caller to close it.
            opened.add_done_callback(lambda late: late.result().close())
            raise

    def _open_into(self, opened: Future[Store]) -> Store:
        store = self._open()
        opened.set_result(store)
        return store

    async def __aenter__(self) -> AsyncStore:
        """Open the store, to be closed at the end of the block."""
        self._opened = await self
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        if self._opened is not None:
            await self._opened.close()


def open_async(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = "default",
    durability: Durability = "power",
    readonly: bool = False,
) -> StoreOpening:
    """Open a store with `await`, or in an `async with` block; see `holdfast.open`.

    The async API is asyncio's; `Invalid` is raised where no loop of asyncio is running.
    """
    return StoreOpening(
        partial(store.open, url, tenant=tenant, durability=durability, readonly=readonly)
    )
