"""A VFS that counts what reaches the disk, and one that makes syncs slower.

Both delegate to the default VFS. A pause in each sync simulates a slower disk.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from typing_extensions import Buffer

_serial = itertools.count(1)


class Watched:
    """The counts so far; `name` is that of the VFS."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.syncs = 0
        self.reads = 0
        self.bytes_written = 0


class _CountingFile(apsw.VFSFile):
    def __init__(
        self, watched: Watched, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self._watched = watched

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._watched.reads += 1
        return super().xRead(amount, offset)

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._watched.bytes_written += memoryview(data).nbytes

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._watched.syncs += 1


class _SlowFile(apsw.VFSFile):
    def __init__(self, pause: float, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._pause = pause

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        time.sleep(self._pause)


class _CountingVfs(apsw.VFS):
    def __init__(self, watched: Watched) -> None:
        super().__init__(watched.name, "", maxpathname=0)
        self._watched = watched

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        return _CountingFile(self._watched, name, flags)


class _SlowVfs(apsw.VFS):
    def __init__(self, name: str, pause: float) -> None:
        super().__init__(name, "", maxpathname=0)
        self._pause = pause

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        return _SlowFile(self._pause, name, flags)


@contextmanager
def watching() -> Iterator[Watched]:
    """Count the engine's file operations. Close every database before leaving the block."""
    watched = Watched(f"bench-watch-{os.getpid()}-{next(_serial)}")
    vfs = _CountingVfs(watched)
    try:
        yield watched
    finally:
        vfs.unregister()


@contextmanager
def slow_syncs(pause: float) -> Iterator[str]:
    """Make every sync `pause` seconds longer; yield the name of the VFS."""
    name = f"bench-slow-{os.getpid()}-{next(_serial)}"
    vfs = _SlowVfs(name, pause)
    try:
        yield name
    finally:
        vfs.unregister()
