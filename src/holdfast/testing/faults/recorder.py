"""Record what a run does to its database files.

`record` runs a scenario once, in a fresh directory, with an apsw VFS that delegates to the default
one (so locks and shared memory work as usual) and records each effect on main database, WAL and
journal files. An effect is recorded after it happened and a sync covers what was recorded before it
began: with several threads the trace may promise less than the disk did, never more.

What bypasses the VFS is not recorded: shared memory (rebuilt after a crash anyway), temporary
files, and files written by other means. At the end the trace is replayed and compared with the real
files, so that a missed effect on a recorded file is an error and not a gap in the proof.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from holdfast.testing.faults.disk import Disk
from holdfast.testing.faults.trace import (
    Ack,
    Adopt,
    Begin,
    LinkName,
    Sync,
    SyncNames,
    Trace,
    TraceEvent,
    Truncate,
    Unlink,
    Write,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_JOURNAL_FLAGS = (
    apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)
_RECORDED_FLAGS = apsw.SQLITE_OPEN_MAIN_DB | _JOURNAL_FLAGS
_serial = itertools.count(1)


class RecordingIncomplete(Exception):
    """The trace does not add up to the files: something wrote past the recording VFS."""


class _Ledger:
    """The events so far, and the current file number of each name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.before = _files_in(directory)
        self.events: list[TraceEvent] = []
        self._names = {name: number for number, name in enumerate(self.before)}
        self._numbers = itertools.count(len(self.before))

    def note(self, event: TraceEvent) -> None:
        self.events.append(event)

    def now(self) -> int:
        return len(self.events)

    def name_of(self, path: str) -> str | None:
        """Return the path relative to the directory; None if outside: then it is not recorded."""
        try:
            return Path(path).relative_to(self.directory).as_posix()
        except ValueError:
            return None

    def opened(self, name: str, found: bytes | None) -> int:
        """Return the file's number; `found` is the path's content before it was opened."""
        if name in self._names:
            return self._names[name]
        number = self._names[name] = next(self._numbers)
        # An empty file created outside the VFS (to set its mode, say) is as uncertain as a new one.
        self.note(Adopt(name, number, found) if found else LinkName(name, number))
        return number

    def deleted(self, name: str, *, synced: bool) -> None:
        self._names.pop(name, None)
        self.note(Unlink(name))
        if synced:
            self.note(SyncNames(self.now()))


class Recording:
    """A run being recorded: the argument of a scenario."""

    def __init__(self, ledger: _Ledger, vfs: str) -> None:
        self.directory = ledger.directory
        """The directory for the scenario's database."""
        self.vfs = vfs
        """The name of the VFS to open it with."""
        self._ledger = ledger

    def begin(self, what: str) -> None:
        """Record that a write is about to begin; it may be found after any later crash."""
        self._ledger.note(Begin(what))

    def ack(self, what: str) -> None:
        """Record that a write has returned; it must be found after any later crash."""
        self._ledger.note(Ack(what))


class _File(apsw.VFSFile):
    """One open file, delegating to the default VFS and recording effects."""

    def __init__(
        self, ledger: _Ledger, name: str, path: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        requested = flags[0]
        found = _read_if_there(ledger.directory / name)
        super().__init__("", path, flags)
        self._ledger = ledger
        self._number = ledger.opened(name, found)
        # As in SQLite's unix VFS, the first sync of a new journal syncs the directory too.
        self._syncs_names = bool(requested & _JOURNAL_FLAGS and requested & apsw.SQLITE_OPEN_CREATE)

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._ledger.note(Write(self._number, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._ledger.note(Truncate(self._number, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        covers = self._ledger.now()
        super().xSync(flags)
        self._ledger.note(Sync(self._number, covers))
        if self._syncs_names:
            self._syncs_names = False
            self._ledger.note(SyncNames(covers))


class _Vfs(apsw.VFS):
    """The default VFS, with recorded files."""

    def __init__(self, ledger: _Ledger, name: str) -> None:
        super().__init__(name, "", maxpathname=0)
        self._ledger = ledger

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        known = self._ledger.name_of(path) if path else None
        if name is None or known is None or not flags[0] & _RECORDED_FLAGS:
            return apsw.VFSFile("", name, flags)
        return _File(self._ledger, known, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802
        super().xDelete(filename, syncdir)
        known = self._ledger.name_of(filename)
        if known is not None:
            self._ledger.deleted(known, synced=syncdir)


def record(
    scenario: Callable[[Recording], None], *, prepare: Callable[[Path], object] | None = None
) -> Trace:
    """Run the scenario once and return its trace; `prepare` fills the directory first.

    Pass a crash state's `write_to` as `prepare` to record what happens *after* a crash.
    """
    with tempfile.TemporaryDirectory(dir=fast_directory(), prefix="holdfast-record-") as made:
        directory = Path(made).resolve()
        if prepare is not None:
            prepare(directory)
        ledger = _Ledger(directory)
        name = f"holdfast-record-{os.getpid()}-{next(_serial)}"
        vfs = _Vfs(ledger, name)
        try:
            scenario(Recording(ledger, name))
            trace = Trace(ledger.before, list(ledger.events))
            _verify_trace(trace, directory)
        finally:
            vfs.unregister()
    return trace


def fast_directory() -> Path | None:
    """Return a directory in memory for files that need not outlive the test, or None."""
    shared = Path("/dev/shm")  # noqa: S108  (only the parent of a private temporary directory)
    return shared if os.access(shared, os.W_OK) else None


def _files_in(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _verify_trace(trace: Trace, directory: Path) -> None:
    replayed = Disk.at_start(trace)
    for event in trace.events:
        replayed.apply(event)
    touched = {event.name for event in trace.events if isinstance(event, LinkName | Adopt | Unlink)}
    for name in sorted(touched | set(trace.before)):
        real = _read_if_there(directory / name)
        if replayed.read(name) != real:
            raise RecordingIncomplete(f"{name}: the recorded effects differ from the file's bytes")
