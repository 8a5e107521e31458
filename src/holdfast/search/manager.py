"""The lifecycle of a store's index: open it, bring it up to date, discard and rebuild it.

A failing index never fails a search or an append. The search that finds it unusable reads the log
instead and the index is discarded; the next search starts a new one. Where no index can be stored
(a read-only store, a full disk), every search reads the log. The backend determines whether it is
in a file or in tables.

There are two connections, a reader and a writer, so that searches continue while a background
thread catches up. The thread is started by a search that finds the index far behind, and ends when
the index is complete; appends never start it. It pauses while a search runs, so that no search
competes with it for the interpreter.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar

from holdfast.errors import HoldfastError
from holdfast.search import indexer
from holdfast.search.fts5 import IndexFileLocation
from holdfast.search.index_erasure import Eraser
from holdfast.search.indexer import IndexStale
from holdfast.search.protocol import (
    BUSY_TIMEOUT_S,
    IndexBusy,
    IndexInvalid,
    IndexLocation,
    IndexReplaced,
    IndexStorage,
    IndexUnavailable,
    SearchPrefetch,
)
from holdfast.search.tsvector import IndexTableLocation
from holdfast.storage.ancestry import Segment
from holdfast.storage.index_tables import IndexFileHost, IndexTableHost
from holdfast.storage.protocol import Backend, Snapshot
from holdfast.values import IndexStatus

T = TypeVar("T")
_log = logging.getLogger("holdfast")
_live: weakref.WeakSet[IndexManager] = weakref.WeakSet()
_forking: list[IndexManager] = []
# How long a search may bring the index up to date before it queries it.
_QUICK_CATCH_UP_S: Final = 0.1
_PATIENCE_S: Final = 1.0  # how long one step waits for other connections, if no search waits for it
_MAX_PAUSE_S: Final = 0.1  # how long the background thread pauses for searches after each step
_LOCK_TIMEOUT_S: Final = 5.0  # how long an erasure waits for other writers, and a fork for searches
_STEP_BATCHES: Final = 8  # of the indexer, in one step that no search waits for
_MAX_FAILURES: Final = 3
_PASSING: Final = {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM}
_INDEX_ERRORS: Final = (IndexInvalid, IndexUnavailable, IndexStale, OSError)


class _Step(Enum):
    """What came of a step of the indexer."""

    COMPLETE = auto()  # nothing is missing now
    INCOMPLETE = auto()
    BUSY = auto()  # another connection prevents it, probably another process that indexes
    FAILED = auto()


class NoUsableIndex(Exception):
    """There is no index that a search could use, or it failed while the search read it."""


class SearchSnapshot(NamedTuple):
    """The index and the log during one search; `behind`: the log has messages the index lacks."""

    storage: IndexStorage
    log: Snapshot
    behind: bool


def index_location(backend: Backend) -> IndexLocation | None:
    """Return the file or the tables for a backend's index; None if it has neither (yet)."""
    if isinstance(backend, IndexFileHost) and (path := backend.index_path()) is not None:
        return IndexFileLocation(path)
    if isinstance(backend, IndexTableHost) and (tables := backend.index_tables()) is not None:
        return IndexTableLocation(tables)
    return None


class IndexManager:
    """The search index of a store, in whatever state it is."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._reset()
        _live.add(self)

    def _reset(self) -> None:
        self._location: IndexLocation | None = None
        self._reader: IndexStorage | None = None
        self._writer: IndexStorage | None = None
        self._read_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failures = 0
        self._suspect = False
        self._stored_messages: int | None = None
        self._held_locks: list[threading.Lock] = []

    @property
    def location(self) -> IndexLocation | None:
        """The file or the tables of the index; None if the backend has neither (yet)."""
        if self._location is None:
            self._location = index_location(self._backend)
        return self._location

    # ------------------------------------------------------------------------------- searching

    @contextmanager
    def snapshot(self, prefetch: SearchPrefetch) -> Iterator[SearchSnapshot]:
        """Open the index and the log together for one search.

        Raise `NoUsableIndex` if there is no index or it is stale, or if it fails inside the block.
        """
        with self._read_lock:
            try:
                index = self._open_reader()
                if index is None:
                    raise NoUsableIndex
                with index.reading(prefetch), index.open_log(self._backend) as (log, behind):
                    indexer.check_not_stale(log, index)
                    yield SearchSnapshot(index, log, behind)
            except _INDEX_ERRORS as error:
                _log.info("the search reads the log without its index: %s", error)
                self._close_reader()
                if isinstance(error, IndexInvalid) and not isinstance(error, IndexReplaced):
                    self._suspect = True
                raise NoUsableIndex from error

    def _open_reader(self) -> IndexStorage | None:
        if self._reader is not None and self._reader.moved():
            self._close_reader()
        location = None if self._stop.is_set() else self.location
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
        stopped = self._failures >= _MAX_FAILURES or self._stop.is_set()
        return not stopped and not self._backend.readonly and self.location is not None

    def catch_up_briefly(self) -> bool:
        """Index new messages for a short time, and start a background thread for the rest.

        Return True if what is still missing is being indexed, here or by another process.
        """
        if not self._can_write:
            return False
        if self._is_catching_up or not self._write_lock.acquire(blocking=False):
            return True
        try:
            until = time.monotonic() + _QUICK_CATCH_UP_S
            step = self._step()
            while step is _Step.INCOMPLETE and time.monotonic() < until:
                step = self._step()
        finally:
            self._write_lock.release()
        if step in {_Step.INCOMPLETE, _Step.BUSY}:
            self._start_background()
        return step is not _Step.FAILED

    def stored_messages(self) -> int:
        """Return how many messages the log had when the index began to catch up.

        Counting them takes longer than many a search, so they are not counted again until then.
        """
        if self._stored_messages is None:
            self._stored_messages = self._backend.stats().messages
        return self._stored_messages

    def _is_complete(self) -> bool:
        """True if the index lacks nothing; read without taking its writer lock."""
        try:
            storage = self._open_writer(create=False)
            if storage is None or self._suspect:
                return False
            with storage.reading():
                return self._backend.read(lambda log: indexer.is_complete(log, storage))
        except (*_INDEX_ERRORS, HoldfastError):
            return False

    def catch_up(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Index everything that is missing, however long it takes.

        Return True if nothing is missing then; False if another connection keeps the index locked,
        or if none can be stored.
        """
        with self._write_lock:
            step = _Step.COMPLETE if self._is_complete() else _Step.INCOMPLETE
        complete = step is _Step.COMPLETE
        total = 0 if complete or progress is None else self._backend.stats().messages
        while step is _Step.INCOMPLETE and self._can_write:
            with self._write_lock:
                step = self._step(_PATIENCE_S, _STEP_BATCHES)
                done = self._documents()
            if progress is not None:
                progress(min(done, total), total)
        return step is _Step.COMPLETE

    def _documents(self) -> int:
        try:
            return 0 if self._writer is None else self._writer.message_count()
        except (IndexInvalid, IndexUnavailable):  # The next step handles it.
            return 0

    def _step(self, timeout_s: float = 0.0, batches: int = 1) -> _Step:
        """Index the next messages; wait at most `timeout_s` for other connections."""
        if self._suspect:
            self._discard("a search found it corrupt")
        try:
            storage = self._open_writer(create=True)
            if storage is None:
                return _Step.FAILED
            storage.set_busy_timeout(timeout_s)
            with storage.writing():
                complete = indexer.step(self._backend, storage, batches)
        except IndexBusy:
            return _Step.BUSY
        except IndexUnavailable as error:
            _log.info("the search index cannot be written to: %s", error)
            return _Step.FAILED
        except HoldfastError as error:
            # The log cannot be read: the index is sound, and the search raises the error.
            _log.info("the search index cannot be brought up to date: %s", error)
            return _Step.FAILED
        except IndexReplaced:
            self._failures += 1
            self._close_writer()
            return _Step.INCOMPLETE if self._can_write else _Step.FAILED
        except (IndexInvalid, IndexStale) as error:
            self._failures += 1
            self._discard(error)
            return _Step.INCOMPLETE if self._can_write else _Step.FAILED
        except OSError as error:
            if error.errno not in _PASSING:
                self._failures = _MAX_FAILURES
            _log.info("no search index can be stored: %s", error)
            return _Step.FAILED
        self._failures = 0
        return _Step.COMPLETE if complete else _Step.INCOMPLETE

    def _open_writer(self, *, create: bool) -> IndexStorage | None:
        if self._writer is not None and self._writer.moved():
            self._close_writer()
        location = self.location
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

    def _discard(self, why: object) -> None:
        """Remove the index; other connections notice, and the next step creates a new one."""
        _log.info("the search index is rebuilt: %s", why)
        self._suspect = False
        self._close_writer()
        if self._location is not None:
            with suppress(OSError, IndexInvalid, IndexUnavailable):
                self._location.remove()

    # -------------------------------------------------------------------------- the background

    @property
    def _is_catching_up(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start_background(self) -> None:
        if self._is_catching_up:
            return
        self._stored_messages = None
        self._thread = threading.Thread(
            target=self._catch_up_in_background, name="holdfast-index", daemon=True
        )
        self._thread.start()

    def _catch_up_in_background(self) -> None:
        step = _Step.INCOMPLETE
        while step is _Step.INCOMPLETE and self._can_write:
            with self._write_lock:
                step = self._step(_PATIENCE_S, _STEP_BATCHES)
            if self._read_lock.acquire(timeout=_MAX_PAUSE_S):  # A search holds it while it runs.
                self._read_lock.release()

    def close(self) -> None:
        """Stop the background thread and close both connections."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._read_lock:
            self._close_reader()
        with self._write_lock:
            self._close_writer()

    # ---------------------------------------------------------------------------------- erasing

    @contextmanager
    def erasing(self, erased: Sequence[Segment] | None) -> Iterator[None]:
        """Wrap the write that erases these messages, and remove their words from the index.

        Words that cannot be removed message by message are removed with the whole index.
        """
        with self._write_lock:
            eraser = self._prepare_erasure(erased)
            if eraser is None:
                yield
                return
            try:
                yield
            except BaseException:
                self._cancel_erasure(eraser)
                raise
            try:
                eraser.finish()
            except (*_INDEX_ERRORS, HoldfastError) as error:
                eraser.roll_back()
                self._discard(error)

    @contextmanager
    def between_erasures(self) -> Iterator[None]:
        """Wait for an erasure in another thread to end; none begins while the block runs."""
        with self._write_lock:
            yield

    def _prepare_erasure(self, erased: Sequence[Segment] | None) -> Eraser | None:
        """Lock the index and read what will be erased; None without a usable index."""
        if self._backend.readonly or self._stop.is_set() or self.location is None:
            return None
        try:
            storage = self._open_writer(create=False)
        except _INDEX_ERRORS as error:
            self._discard(error)
            return None
        if storage is None:
            return None
        eraser = Eraser(self._backend, storage)
        storage.set_busy_timeout(_LOCK_TIMEOUT_S)
        try:
            eraser.prepare(erased)
        except (*_INDEX_ERRORS, HoldfastError) as error:
            eraser.roll_back()
            self._discard(error)
            return None
        finally:
            if self._writer is not None:
                storage.set_busy_timeout(BUSY_TIMEOUT_S)
        return eraser

    def _cancel_erasure(self, eraser: Eraser) -> None:
        """Cancel an erasure whose write failed; if it may have committed, discard the index."""
        if not eraser.cancel():
            self._discard("an erasure failed, and may have been committed")

    # ----------------------------------------------------------------------------------- status

    def status(self) -> IndexStatus:
        """Return the state of the index."""
        location, stored = self.location, self._backend.stats().messages
        if location is None:
            return IndexStatus(state="none", behind=stored)
        with self._read_lock:
            try:
                found = self._read_with_retry(lambda storage: self._describe(storage, stored))
            except _INDEX_ERRORS as error:
                _log.info("the search index cannot be read: %s", error)
                self._close_reader()
                return IndexStatus(state="damaged", path=location.label, behind=stored)
        return found or IndexStatus(state="missing", path=location.label, behind=stored)

    def _read_with_retry(self, read: Callable[[IndexStorage], T]) -> T | None:
        """Read the index, a second time if it was unavailable or replaced meanwhile."""
        for last in (False, True):
            try:
                storage = self._open_reader()
                if storage is None:
                    return None
                with storage.reading():
                    return read(storage)
            except (IndexUnavailable, IndexReplaced):
                self._close_reader()
                if last:
                    raise
        return None

    def _describe(self, storage: IndexStorage, stored: int) -> IndexStatus:
        documents = storage.message_count()
        try:
            self._backend.read(lambda snapshot: indexer.check_not_stale(snapshot, storage))
        except IndexStale:
            return IndexStatus(
                state="outdated", path=storage.label, bytes=storage.size(), behind=stored
            )
        behind = max(0, stored - documents)
        return IndexStatus(
            state="behind" if behind else "ready",
            path=storage.label,
            messages=documents,
            behind=behind,
            bytes=storage.size(),
            text=storage.text_size(),
        )

    def rebuild(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Discard the index and build it from scratch."""
        with self._write_lock:
            self._failures = 0
            if self._can_write:
                self._discard("requested")
        self.catch_up(progress)

    def check(self) -> list[str]:
        """Read the whole index, compare it with the log, and return what is wrong with it."""
        problems: list[str] = []
        for last in (False, True):
            with self._read_lock:
                try:
                    return self._read_with_retry(self._problems) or []
                except _INDEX_ERRORS as error:
                    self._close_reader()
                    problems = [f"the index cannot be used: {error}"]
            if not last:
                self._await_erasure()
        return problems

    def _await_erasure(self) -> None:
        """Wait for an erasure that is under way: it makes the index stale, or overwrites it."""
        with self._write_lock, suppress(*_INDEX_ERRORS):
            storage = None if self._backend.readonly else self._open_writer(create=False)
            if storage is not None:
                storage.set_busy_timeout(_LOCK_TIMEOUT_S)
                with storage.writing():
                    pass  # Its lock was all that was needed.

    def _problems(self, storage: IndexStorage) -> list[str]:
        counts = storage.counts_by_branch()
        differences = self._backend.read(lambda log: _compare(log, storage, counts))
        return [*storage.problems(), *differences]

    # ------------------------------------------------------------------------------------ forks

    def before_fork(self) -> None:
        """Close the connections: a child must not inherit them."""
        for lock, close in (
            (self._read_lock, self._close_reader),
            (self._write_lock, self._close_writer),
        ):
            if lock.acquire(timeout=_LOCK_TIMEOUT_S):
                self._held_locks.append(lock)
                close()

    def after_fork_in_parent(self) -> None:
        """Release the locks; connections are opened again when they are needed."""
        while self._held_locks:
            self._held_locks.pop().release()

    def after_fork_in_child(self) -> None:
        """Reset everything; the child has no background thread."""
        for storage in (self._reader, self._writer):
            if storage is not None:  # It was in use when the process forked: it is the parent's.
                storage.abandon_after_fork()
        self._reset()


def _compare(snapshot: Snapshot, storage: IndexStorage, counts: dict[int, int]) -> list[str]:
    indexer.check_not_stale(snapshot, storage)
    wrong, seen, number = [], set(), 0
    while written := snapshot.activity_after(number, 1000):
        for number, session_id, _, _ in written:
            row = snapshot.find_session(id=session_id)
            for branch in [] if row is None else snapshot.branches(session=row.n):
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
