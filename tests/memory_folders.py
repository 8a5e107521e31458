"""Folders in memory, for tests that kill processes and never cut the power.

Such a test syncs all the time, and a sync of a disk takes most of its time, more so while others
use the same disk. In memory it takes none, and a process that is killed loses no more there.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.testing.faults.recorder import fast_directory

_FOLDER_BYTES = 1 << 30


def place_in_memory(room: int) -> Path | None:
    """Return a directory in memory with this many bytes free, or None."""
    where = fast_directory()
    return where if where is not None and shutil.disk_usage(where).free > room else None


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Create a temporary folder: in memory, if there is room."""
    where = place_in_memory(_FOLDER_BYTES)
    with tempfile.TemporaryDirectory(dir=where, prefix="holdfast-test-") as made:
        yield Path(made)
