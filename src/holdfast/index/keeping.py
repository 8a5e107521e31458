"""The index of a store: opened when it is needed, brought up to date, replaced when it is no good.

Nothing that goes wrong with it is ever the caller's problem: an index that cannot be used is closed
and taken away, the search that met it reads the log instead, and the next one begins a new index.
Where none can be kept (a read-only store, a full disk), every search reads the log. Where it is
kept, in a file or in tables, is the backend's to say (`places`).

There are two connections, one that reads and one that writes, so that searches go on while a thread
catches up in the background. It is started by a search that finds much to do, and ends when there
is nothing left; appends never start it.
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

from holdfast.backends.base import Backend, Snapshot
from holdfast.core.branches import Segment
from holdfast.errors import HoldfastError
from holdfast.index import catching_up
from holdfast.index.catching_up import Outdated
from holdfast.index.erasing import Eraser
from holdfast.index.file import FilePlace
from holdfast.index.kept import BUSY, Gone, Hindered, Kept, Lost, Place, Wanted
from holdfast.index.table import TablePlace
from holdfast.records import IndexStatus

T = TypeVar("T")
_log = logging.getLogger("holdfast")
_live: weakref.WeakSet[Index] = weakref.WeakSet()
_forking: list[Index] = []
_BRIEFLY: Final = 0.25  # seconds a search spends on catching up before it asks
_PATIENCE: Final = 5.0  # seconds an erasure waits for others that index
_MOST_FAILURES: Final = 3


_NO_GOOD: Final = (Lost, Hindered, Outdated, OSError)


class NoUsableIndex(Exception):
    """A search has to do without an index: there is none, or it failed."""


class SearchSnapshot(NamedTuple):
    """Index and log, each as of one moment; `behind`: the log has messages the index lacks."""

    storage: Kept
    log: Snapshot
    behind: bool


def place_of(backend: Backend) -> Place | None:
    """Return the file or the tables for the index of a backend; None if it has neither (yet)."""
    path = backend.index_path()
    if path is not None:
        return FilePlace(path)
    tables = backend.index_tables()
    return None if tables is None else TablePlace(tables)


class Index:
    """The search index of a store, whatever state it is in."""

    def __init__(self, backend: Backend) -> None:
        """Keep an index of what this backend has, if there is a place for it."""
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
        """Where the index is, or would be."""
        if self._found is None:
            self._found = place_of(self._backend)
        return self._found

    # ------------------------------------------------------------------------------- searching

    @contextmanager
    def snapshot(self, prefetch: Wanted) -> Iterator[SearchSnapshot]:
        """Open the index and the log together, for one search.

        Raise `NoUsableIndex` if there is no index or it fails, also while the block runs.
        """
        with self._reading:
            try:
                index = self._open_reader()
                if index is None:
                    raise NoUsableIndex
                with index.reading(prefetch), index.open_log(self._backend) as (log, behind):
                    catching_up.check(log, index)
                    yield SearchSnapshot(index, log, behind)
            except _NO_GOOD as error:
                _log.info("a search goes without its index: %s", error)
                self._close_reader()
                if isinstance(error, Lost) and not isinstance(error, Gone):
                    self._suspect = True
                raise NoUsableIndex from error

    def _open_reader(self) -> Kept | None:
        if self._reader is not None and self._reader.moved():
            self._close_reader()
        place = None if self._stop.is_set() else self.place
        if self._reader is None and place is not None:
            self._reader = place.open(readonly=self._backend.readonly)
        return self._reader

    def _close_reader(self) -> None:
        file, self._reader = self._reader, None
        if file is not None:
            file.close()

    # ----------------------------------------------------------------------------- catching up

    @property
    def _can_write(self) -> bool:
        hopeless = self._failures >= _MOST_FAILURES or self._stop.is_set()
        return not hopeless and not self._backend.readonly and self.place is not None

    def catch_up_briefly(self) -> None:
        """Bring the index up to date as far as that is quick; a background thread does the rest."""
        if not self._can_write or not self._writing.acquire(blocking=False):
            return  # Somebody does so already; what is left is looked through.
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
        """Return whether the index has everything, without taking its lock."""
        try:
            file = self._open_writer(create=False)
            if file is None or self._suspect:
                return False
            with file.reading():
                return self._backend.read(lambda log: catching_up.is_whole(log, file))
        except (*_NO_GOOD, HoldfastError):
            return False

    def catch_up(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Bring the index up to date now, however long it takes."""
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
        except (Lost, Hindered):  # The next step will see to that.
            return 0

    def _step(self) -> bool | None:
        """Take a step; say whether it was the last, or nothing if none can be taken now."""
        if self._suspect:
            self._replace("a search found it damaged")
        try:
            file = self._open_writer(create=True)
            if file is None:
                return None
            with file.writing():
                complete = catching_up.step(self._backend, file).complete
        except Hindered:
            return None
        except HoldfastError as error:
            # The log cannot be read: not the index's fault, and the search will say it.
            _log.info("the search index is not brought up to date: %s", error)
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
            _log.info("no search index can be kept: %s", error)
            return None
        self._failures = 0
        return complete

    def _open_writer(self, *, create: bool) -> Kept | None:
        if self._writer is not None and self._writer.moved():
            self._close_writer()
        place = self.place
        if self._writer is None and place is not None:
            self._writer = place.open()
            if self._writer is None and create:
                place.create()
                self._writer = place.open()
        return self._writer

    def _close_writer(self) -> None:
        file, self._writer = self._writer, None
        if file is not None:
            file.close()

    def _replace(self, why: object) -> None:
        """Take the index away; whoever has it open notices, and a new one is begun."""
        _log.info("the search index is made anew: %s", why)
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
        """Stop the background and let go of the files."""
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
    def erasing(self, doomed: Sequence[Segment] | None) -> Iterator[None]:
        """Surround the write that erases these messages: their words go from the index, too.

        If they cannot be taken out one by one, the index goes as a whole.
        """
        with self._writing:
            eraser = self._eraser(doomed)
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
        """Wait for an erasure that is under way in another thread; let none begin meanwhile."""
        with self._writing:
            yield

    def _eraser(self, doomed: Sequence[Segment] | None) -> Eraser | None:
        """Make ready to erase; nothing if there is no index to erase from."""
        if self._backend.readonly or self._stop.is_set() or self.place is None:
            return None
        try:
            file = self._open_writer(create=False)
        except _NO_GOOD as error:
            self._replace(error)
            return None
        if file is None:
            return None
        eraser = Eraser(self._backend, file)
        file.be_patient(_PATIENCE)
        try:
            eraser.prepare(doomed)
        except (*_NO_GOOD, HoldfastError) as error:
            eraser.give_up()
            self._replace(error)
            return None
        finally:
            if self._writer is not None:
                file.be_patient(BUSY)
        return eraser

    def _undo(self, eraser: Eraser) -> None:
        """The log was not written to, or nobody knows: then nobody knows what the index has."""
        if not eraser.undo():
            self._replace("an erasure failed")

    # ----------------------------------------------------------------------------------- status

    def status(self) -> IndexStatus:
        """Tell what state the index is in."""
        place, stored = self.place, self._backend.stats().messages
        if place is None:
            return IndexStatus(state="none", behind=stored)
        with self._reading:
            try:
                found = self._again_if_hindered(lambda file: self._describe(file, stored))
            except _NO_GOOD as error:
                _log.info("the search index cannot be read: %s", error)
                self._close_reader()
                return IndexStatus(state="damaged", path=place.shown, behind=stored)
        return found or IndexStatus(state="missing", path=place.shown, behind=stored)

    def _again_if_hindered(self, look: Callable[[Kept], T]) -> T | None:
        """Look at the index; once more if something came in between, a lost connection say."""
        for last in (False, True):
            try:
                file = self._open_reader()
                if file is None:
                    return None
                with file.reading():
                    return look(file)
            except Hindered:
                self._close_reader()
                if last:
                    raise
        return None

    def _describe(self, file: Kept, stored: int) -> IndexStatus:
        documents = file.documents()
        try:
            self._backend.read(lambda snapshot: catching_up.check(snapshot, file))
        except Outdated:
            return IndexStatus(state="outdated", path=file.shown, bytes=file.size(), behind=stored)
        behind = max(0, stored - documents)
        return IndexStatus(
            state="behind" if behind else "ready",
            path=file.shown,
            messages=documents,
            behind=behind,
            bytes=file.size(),
            text=file.text(),
        )

    def rebuild(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Throw the index away and make it anew."""
        with self._writing:
            self._failures = 0
            if self._can_write:
                self._replace("asked for")
        self.catch_up(progress)

    def check(self) -> list[str]:
        """Read all of the index and compare it with the log; say what is wrong with it."""
        with self._reading:
            try:
                return self._again_if_hindered(self._problems) or []
            except _NO_GOOD as error:
                self._close_reader()
                return [f"it cannot be used: {error}"]

    def _problems(self, file: Kept) -> list[str]:
        counts = file.counts()
        differences = self._backend.read(lambda log: _compare(log, file, counts))
        return [*file.problems(), *differences]

    # ------------------------------------------------------------------------------------ forks

    def before_fork(self) -> None:
        """Close the connections: none may be inherited."""
        for lock, close in (
            (self._reading, self._close_reader),
            (self._writing, self._close_writer),
        ):
            if lock.acquire(timeout=_PATIENCE):
                self._paused.append(lock)
                close()

    def after_fork_in_parent(self) -> None:
        """Go on; connections open again when they are needed."""
        while self._paused:
            self._paused.pop().release()

    def after_fork_in_child(self) -> None:
        """Begin anew, without the thread."""
        for file in (self._reader, self._writer):
            if file is not None:  # It was in use: it is the parent's.
                file.disown()
        self._begin()


def _compare(snapshot: Snapshot, file: Kept, counts: dict[int, int]) -> list[str]:
    catching_up.check(snapshot, file)
    wrong, seen, number = [], set(), 0
    while written := snapshot.activity_after(number, 1000):
        for number, session_id, _, _ in written:
            row = snapshot.find_session(id=session_id)
            for branch in [] if row is None else snapshot.branches(row.n):
                seen.add(branch.n)
                expected = branch.last_seq - branch.fork_seq
                if number <= file.activity and counts.get(branch.n, 0) != expected:
                    wrong.append(
                        f"branch {branch.number} of session {session_id} has {expected} messages, "
                        f"the index {counts.get(branch.n, 0)}"
                    )
    for n in counts.keys() - seen:
        branch_row = snapshot.find_branch(n)
        if branch_row is None:
            wrong.append(f"the index has {counts[n]} messages of a branch that is gone")
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
