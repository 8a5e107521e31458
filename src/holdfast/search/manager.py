"""The lifecycle of a store's index: open it, bring it up to date, discard and rebuild it.

A failing index never fails a search or an append. The search that finds it unusable reads the log
instead and the index is discarded; the next search starts a new one. Where no index can be stored
(a read-only store, a full disk), every search reads the log. The backend determines whether it is
in a file or in tables.

There are two connections, a reader and a writer, so that searches continue while a background
thread catches up. The thread is started by a search that finds the index far behind, and ends when
the index is complete; appends never start it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

from holdfast.errors import HoldfastError
from holdfast.search import indexer
from holdfast.search.fts5 import FilePlace
from holdfast.search.index_erasure import Eraser
from holdfast.search.indexer import Outdated
from holdfast.search.protocol import BUSY, Gone, Hindered, Kept, Lost, Place, Wanted
from holdfast.search.tsvector import TablePlace
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Snapshot
from holdfast.values import IndexStatus

T = TypeVar("T")
_log = logging.getLogger("holdfast")
_live: weakref.WeakSet[Index] = weakref.WeakSet()
_forking: list[Index] = []
_BRIEFLY: Final = 0.25  # how long a search may bring the index up to date before it queries it
_PATIENCE: Final = 5.0  # how long an erasure waits for other writers, and a fork for searches
_MOST_FAILURES: Final = 3
_NO_GOOD: Final = (Lost, Hindered, Outdated, OSError)


class NoUsableIndex(Exception):
    """There is no index that a search could use, or it failed while the search read it."""


class SearchSnapshot(NamedTuple):
    """The index and the log during one search; `behind`: the log has messages the index lacks."""

    storage: Kept
    log: Snapshot
    behind: bool


def place_of(backend: Backend) -> Place | None:
    """Return the file or the tables for a backend's index; None if it has neither (yet)."""
    path = backend.index_path()
    if path is not None:
        return FilePlace(path)
    tables = backend.index_tables()
    return None if tables is None else TablePlace(tables)


class Index:
    """The search index of a store, in whatever state it is."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._begin()
        _live.add(self)

    def _begin(self) -> None:
        self._found: Place | None = None
        self._reader: Kept | None = None
        self._writer: Kept | None = None
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failures = 0
        self._suspect = False
        self._paused: list[threading.Lock] = []

    @property
    def place(self) -> Place | None:
        """The file or the tables of the index; None if the backend has neither (yet)."""
        if self._found is None:
            self._found = place_of(self._backend)
        return self._found

    # ------------------------------------------------------------------------------- searching

    @contextmanager
    def snapshot(self, prefetch: Wanted) -> Iterator[SearchSnapshot]:
        """Open the index and the log together for one search.

        Raise `NoUsableIndex` if there is no index or it is stale, or if it fails inside the block.
        """
        with self._reading:
            try:
                index = self._open_reader()
                if index is None:
                    raise NoUsableIndex
                with index.reading(prefetch), index.open_log(self._backend) as (log, behind):
                    indexer.check(log, index)
                    yield SearchSnapshot(index, log, behind)
            except _NO_GOOD as error:
                _log.info("the search reads the log without its index: %s", error)
                self._close_reader()
                if isinstance(error, Lost) and not isinstance(error, Gone):
                    self._suspect = True
                raise NoUsableIndex from error

    def _open_reader(self) -> Kept | None:
        if self._reader is not None and self._reader.moved():
            self._close_reader()
        location = None if self._stop.is_set() else self.place
        if self._reader is None and location is not None:
            self._reader = location.open(readonly=self._backend.readonly)
        return self._reader

    def _close_reader(self) -> None:
        storage, self._reader = self._reader, None
        if storage is not None:
            storage.close()

    # ----------------------------------------------------------------------------- catching up

    @property
    def _can_write(self) -> bool:
        stopped = self._failures >= _MOST_FAILURES or self._stop.is_set()
        return not stopped and not self._backend.readonly and self.place is not None

    def catch_up_briefly(self) -> None:
        """Index new messages for a short time, and start a background thread for the rest."""
        if not self._can_write or not self._writing.acquire(blocking=False):
            return  # Another thread is indexing; the search scans what is missing.
        try:
            until = time.monotonic() + _BRIEFLY
            complete = self._step()
            while complete is False and time.monotonic() < until:
                complete = self._step()
        finally:
            self._writing.release()
        if complete is False:
            self._start()

    def _is_whole(self) -> bool:
        """True if the index lacks nothing; read without taking its writer lock."""
        try:
            storage = self._open_writer(create=False)
            if storage is None or self._suspect:
                return False
            with storage.reading():
                return self._backend.read(lambda log: indexer.is_whole(log, storage))
        except (*_NO_GOOD, HoldfastError):
            return False

    def catch_up(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Index everything that is missing, however long it takes."""
        with self._writing:
            complete: bool | None = self._is_whole()
        total = 0 if complete or progress is None else self._backend.stats().messages
        while complete is False and self._can_write:
            with self._writing:
                complete = self._step()
                done = self._documents()
            if progress is not None:
                progress(min(done, total), total)

    def _documents(self) -> int:
        try:
            return 0 if self._writer is None else self._writer.documents()
        except (Lost, Hindered):  # The next step handles it.
            return 0

    def _step(self) -> bool | None:
        """Index the next messages. Return True if none are missing now, None if that failed."""
        if self._suspect:
            self._replace("a search found it corrupt")
        try:
            storage = self._open_writer(create=True)
            if storage is None:
                return None
            with storage.writing():
                complete = indexer.step(self._backend, storage).complete
        except Hindered:
            return None
        except HoldfastError as error:
            # The log cannot be read: the index is sound, and the search raises the error.
            _log.info("the search index cannot be brought up to date: %s", error)
            return None
        except Gone:
            self._failures += 1
            self._close_writer()
            return False if self._can_write else None
        except (Lost, Outdated) as error:
            self._failures += 1
            self._replace(error)
            return False if self._can_write else None
        except OSError as error:
            self._failures = _MOST_FAILURES
            _log.info("no search index can be stored: %s", error)
            return None
        self._failures = 0
        return complete

    def _open_writer(self, *, create: bool) -> Kept | None:
        if self._writer is not None and self._writer.moved():
            self._close_writer()
        location = self.place
        if self._writer is None and location is not None:
            self._writer = location.open()
            if self._writer is None and create:
                location.create()
                self._writer = location.open()
        return self._writer

    def _close_writer(self) -> None:
        storage, self._writer = self._writer, None
        if storage is not None:
            storage.close()

    def _replace(self, why: object) -> None:
        """Remove the index; other connections notice, and the next step creates a new one."""
        _log.info("the search index is rebuilt: %s", why)
        self._suspect = False
        self._close_writer()
        if self._found is not None:
            with suppress(OSError, Lost, Hindered):
                self._found.remove()

    # -------------------------------------------------------------------------- the background

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._serve, name="holdfast-index", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        complete: bool | None = False
        while complete is False and self._can_write:
            with self._writing:
                complete = self._step()

    def close(self) -> None:
        """Stop the background thread and close both connections."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._reading:
            self._close_reader()
        with self._writing:
            self._close_writer()

    # ---------------------------------------------------------------------------------- erasing

    @contextmanager
    def erasing(self, erased: Sequence[Segment] | None) -> Iterator[None]:
        """Wrap the write that erases these messages, and remove their words from the index.

        Words that cannot be removed message by message are removed with the whole index.
        """
        with self._writing:
            eraser = self._eraser(erased)
            if eraser is None:
                yield
                return
            try:
                yield
            except BaseException:
                self._undo(eraser)
                raise
            try:
                eraser.finish()
            except (*_NO_GOOD, HoldfastError) as error:
                eraser.give_up()
                self._replace(error)

    @contextmanager
    def between_erasures(self) -> Iterator[None]:
        """Wait for an erasure in another thread to end; none begins while the block runs."""
        with self._writing:
            yield

    def _eraser(self, erased: Sequence[Segment] | None) -> Eraser | None:
        """Lock the index and read what will be erased; None without a usable index."""
        if self._backend.readonly or self._stop.is_set() or self.place is None:
            return None
        try:
            storage = self._open_writer(create=False)
        except _NO_GOOD as error:
            self._replace(error)
            return None
        if storage is None:
            return None
        eraser = Eraser(self._backend, storage)
        storage.be_patient(_PATIENCE)
        try:
            eraser.prepare(erased)
        except (*_NO_GOOD, HoldfastError) as error:
            eraser.give_up()
            self._replace(error)
            return None
        finally:
            if self._writer is not None:
                storage.be_patient(BUSY)
        return eraser

    def _undo(self, eraser: Eraser) -> None:
        """Cancel an erasure whose write failed; if it may have committed, discard the index."""
        if not eraser.undo():
            self._replace("an erasure failed, and may have been committed")

    # ----------------------------------------------------------------------------------- status

    def status(self) -> IndexStatus:
        """Return the state of the index."""
        location, stored = self.place, self._backend.stats().messages
        if location is None:
            return IndexStatus(state="none", behind=stored)
        with self._reading:
            try:
                found = self._again_if_hindered(lambda storage: self._describe(storage, stored))
            except _NO_GOOD as error:
                _log.info("the search index cannot be read: %s", error)
                self._close_reader()
                return IndexStatus(state="damaged", path=location.shown, behind=stored)
        return found or IndexStatus(state="missing", path=location.shown, behind=stored)

    def _again_if_hindered(self, read: Callable[[Kept], T]) -> T | None:
        """Read the index, a second time if it was unavailable (say, the connection was lost)."""
        for last in (False, True):
            try:
                storage = self._open_reader()
                if storage is None:
                    return None
                with storage.reading():
                    return read(storage)
            except Hindered:
                self._close_reader()
                if last:
                    raise
        return None

    def _describe(self, storage: Kept, stored: int) -> IndexStatus:
        documents = storage.documents()
        try:
            self._backend.read(lambda snapshot: indexer.check(snapshot, storage))
        except Outdated:
            return IndexStatus(
                state="outdated", path=storage.shown, bytes=storage.size(), behind=stored
            )
        behind = max(0, stored - documents)
        return IndexStatus(
            state="behind" if behind else "ready",
            path=storage.shown,
            messages=documents,
            behind=behind,
            bytes=storage.size(),
            text=storage.text(),
        )

    def rebuild(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Discard the index and build it from scratch."""
        with self._writing:
            self._failures = 0
            if self._can_write:
                self._replace("requested")
        self.catch_up(progress)

    def check(self) -> list[str]:
        """Read the whole index, compare it with the log, and return what is wrong with it."""
        with self._reading:
            try:
                return self._again_if_hindered(self._problems) or []
            except _NO_GOOD as error:
                self._close_reader()
                return [f"the index cannot be used: {error}"]

    def _problems(self, storage: Kept) -> list[str]:
        counts = storage.counts()
        differences = self._backend.read(lambda log: _compare(log, storage, counts))
        return [*storage.problems(), *differences]

    # ------------------------------------------------------------------------------------ forks

    def before_fork(self) -> None:
        """Close the connections: a child must not inherit them."""
        for lock, close in (
            (self._reading, self._close_reader),
            (self._writing, self._close_writer),
        ):
            if lock.acquire(timeout=_PATIENCE):
                self._paused.append(lock)
                close()

    def after_fork_in_parent(self) -> None:
        """Release the locks; connections are opened again when they are needed."""
        while self._paused:
            self._paused.pop().release()

    def after_fork_in_child(self) -> None:
        """Reset everything; the child has no background thread."""
        for storage in (self._reader, self._writer):
            if storage is not None:  # It was in use when the process forked: it is the parent's.
                storage.disown()
        self._begin()


def _compare(snapshot: Snapshot, storage: Kept, counts: dict[int, int]) -> list[str]:
    indexer.check(snapshot, storage)
    wrong, seen, number = [], set(), 0
    while written := snapshot.activity_after(number, 1000):
        for number, session_id, _, _ in written:
            row = snapshot.find_session(id=session_id)
            for branch in [] if row is None else snapshot.branches(row.n):
                seen.add(branch.n)
                expected = branch.last_seq - branch.fork_seq
                if number <= storage.activity and counts.get(branch.n, 0) != expected:
                    wrong.append(
                        f"branch {branch.number} of session {session_id} has {expected} messages, "
                        f"the index has {counts.get(branch.n, 0)}"
                    )
    for n in counts.keys() - seen:
        branch_row = snapshot.find_branch(n)
        if branch_row is None:
            wrong.append(f"the index has {counts[n]} messages of a branch that no longer exists")
    return wrong


def _before_fork() -> None:
    _forking[:] = list(_live)
    for index in _forking:
        index.before_fork()


def _after_fork_in_parent() -> None:
    for index in _forking:
        index.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for index in _forking:
        index.after_fork_in_child()
    _forking.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
