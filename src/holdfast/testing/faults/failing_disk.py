"""A disk whose Nth operation fails, in this process.

`FailingDisk` is an apsw VFS that delegates to the default one, counts the operations on main
databases and their logs, and fails at a chosen one: once, or from then on until it is healed. No
process has to be started for a fault, so every single operation can be tried. What a killed process
or a power cut leaves is tested by `shim` and `crash_states`.

One thing differs from a real disk: SQLite ignores the failure of an automatic checkpoint after a
commit, but apsw raises it to the caller of the commit. The commit then succeeded and is reported as
failed: a hard test for retries, but not what a full disk does, where the commit itself fails. So
use `FullError` with `log_only`.

    with failing_disk() as disk:
        store = open(path, vfs=disk.name)
        disk.fail("sync", at=3, lasting=True)
        ...                             # what does the store report now?
        disk.heal()                     # disk.met: whether the fault was reached
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

import apsw

if TYPE_CHECKING:
    from typing_extensions import Buffer

FileOperation = Literal["open", "read", "write", "truncate", "sync", "delete"]

_WATCHED_FLAGS = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
_serial = itertools.count(1)


class FailingDisk(apsw.VFS):
    """The default VFS, failing on demand."""

    def __init__(self) -> None:
        self.name = f"holdfast-failing-{os.getpid()}-{next(_serial)}"
        super().__init__(self.name, "", maxpathname=0)
        self.counts: Counter[FileOperation] = Counter()
        """The number of operations of each kind since the last `fail`."""
        self.met = False
        """True if the fault was reached since then."""
        self._operation: FileOperation | None = None
        self._at = 0
        self._lasting = self._log_only = False
        self._error: type[apsw.Error] = apsw.IOError

    def fail(
        self,
        operation: FileOperation,
        *,
        at: int = 1,
        lasting: bool = False,
        error: type[apsw.Error] = apsw.IOError,
        log_only: bool = False,
    ) -> None:
        """Make the `at`-th operation of this kind from now fail; `lasting`: all later ones, too.

        Pass `apsw.FullError` for a full disk. With `log_only` only operations on write-ahead logs
        fail and count.
        """
        self.counts.clear()
        self.met = False
        self._at, self._lasting, self._error = at, lasting, error
        self._operation, self._log_only = operation, log_only

    def heal(self) -> None:
        """Stop failing."""
        self._operation = None

    def count_or_fail(self, operation: FileOperation, *, log: bool) -> None:
        """Count an operation, on a log or not; raise if it is the one chosen to fail."""
        if self._log_only and not log:
            return
        self.counts[operation] += 1
        if operation != self._operation or self.counts[operation] < self._at:
            return
        if self.counts[operation] == self._at or self._lasting:
            self.met = True
            raise self._error(f"the disk fails on demand: {operation} {self.counts[operation]}")

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        """Open a file; databases and logs are opened as files that can fail."""
        if name is None or not flags[0] & _WATCHED_FLAGS:
            return apsw.VFSFile("", name, flags)
        self.count_or_fail("open", log=bool(flags[0] & apsw.SQLITE_OPEN_WAL))
        return _FailingFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802
        """Delete a file."""
        self.count_or_fail("delete", log=filename.endswith("-wal"))
        super().xDelete(filename, syncdir)


class _FailingFile(apsw.VFSFile):
    """A file on a failing disk."""

    def __init__(self, disk: FailingDisk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__("", name, flags)
        self._suffer = partial(disk.count_or_fail, log=log)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._suffer("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802
        self._suffer("write")
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._suffer("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._suffer("sync")
        super().xSync(flags)


@contextmanager
def failing_disk() -> Iterator[FailingDisk]:
    """Register a disk that fails on demand; close all its files before leaving the block."""
    disk = FailingDisk()
    try:
        yield disk
    finally:
        disk.unregister()
