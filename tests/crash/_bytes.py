"""Searching files for bytes that must be gone, and stopping processes before they wipe them.

The tests of purges and of erasures have a store with canaries in some messages, erase these, and
search every file for canaries: after a kill, beside a reader, on disks that fail or crash.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from zlib import crc32

import apsw
import pytest

from holdfast import Store
from holdfast.storage.sqlite import backend as sqlite
from holdfast.storage.sqlite.wipe import page_gap
from holdfast.testing.faults import (
    CrashState,
    FailingDisk,
    Recording,
    Trace,
    failing_disk,
    record,
)
from holdfast.testing.faults.failing_disk import FileOperation
from tests.crash._facts import DATABASE, checkpoints_every, open_store
from tests.crash._nursery import Nursery

CANARY = b"CANARY"
PAGE = 4096
OPERATIONS: list[FileOperation] = ["open", "read", "write", "truncate", "sync"]
SOME = {"open": 1, "read": 17, "write": 17, "truncate": 1, "sync": 1}
"""How far apart the faults are that need not be met everywhere."""


def long_or_short(word: str, chance: random.Random) -> str:
    """Repeat a word so that messages have all sizes, and pages are split and joined."""
    return word * (chance.choice((5, 50, 300, 900)) // 8 + 1)


def holding(path: Path, what: bytes = CANARY, but_for: Iterable[str] = ()) -> set[str]:
    """Return the files of a store that contain some bytes, apart from some allowed words."""
    found = set()
    for file in path.parent.iterdir():
        data = file.read_bytes()
        for word in but_for:
            data = data.replace(word.encode(), b"")
        if what in data:
            found.add(file.name)
    return found


def filled_gaps(file: Path) -> list[int]:
    """Return the pages of a database file with non-zero bytes in their unused middle."""
    data, size = file.read_bytes(), PAGE
    gaps = {at: page_gap(data, at, size, first=at == 0) for at in range(0, len(data), size)}
    return [at // size for at, (low, high) in gaps.items() if any(data[at + low : at + high])]


def die(nursery: Nursery, script: str, *words: object) -> None:
    """Run a script that ends by killing itself."""
    with nursery.start(script, *words) as child:
        assert child.wait() == -signal.SIGKILL


@contextmanager
def _no_patience() -> Iterator[None]:
    """Make wiping not wait for readers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "_WIPE_BUSY_TIMEOUT_MS", 1)
        yield


@contextmanager
def reading(path: Path) -> Iterator[Callable[[], int]]:
    """Hold a read snapshot; yield a function that counts the messages in it."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.execute("BEGIN")

        def count() -> int:
            found: int = connection.execute("SELECT count(*) FROM messages").get
            return found

        count()
        with _no_patience():
            yield count
    finally:
        connection.close(force=True)


def recorded(base: Path, pages: int, do: Callable[[Store, Recording], None]) -> Trace:
    """Record operations on a copy of a store, with a checkpoint after this many pages."""

    def run(recording: Recording) -> None:
        path = recording.directory / DATABASE
        with checkpoints_every(pages), open_store(path, vfs=recording.vfs) as store:
            do(store, recording)

    return record(run, prepare=lambda directory: shutil.copy(base, directory / DATABASE))


def is_one_in(number: int, state: CrashState) -> bool:
    """True for one state in `number`, chosen by its name."""
    return crc32(state.describe().encode()) % number == 0


Attempt = Callable[[Path, FailingDisk, FileOperation, int], bool]
"""Do something to the store at a path with a fault at such a place; say whether it was met."""


def at_every_place(
    base: Path, directory: Path, operation: FileOperation, step: int, attempt: Attempt
) -> None:
    """Run on fresh copies of a store, with the fault at each operation until it is not reached."""
    met = 0
    with failing_disk() as disk:
        for at in count(1, step):
            path = Path(shutil.copy(base, directory / DATABASE))
            if not attempt(path, disk, operation, at):
                break
            met += 1
    assert met
