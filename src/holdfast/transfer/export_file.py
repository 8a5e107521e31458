"""The file that an export is written to: written atomically and readable only by its owner.

The target's name never refers to half an export (`new_file`). Until it is whole, the file has no
name at all, so a process that is killed leaves nothing of it; where the file system cannot do that,
it has a temporary name. Symbolic links are never followed, neither there nor at the target.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.errors import Invalid
from holdfast.storage.sqlite.location import PRIVATE_FILE
from holdfast.storage.sqlite.new_file import new_file

_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Only Linux has this; elsewhere a directory cannot be opened with the remaining flags.
_UNNAMED_FLAGS: Final = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC
_NOTHING_EXPORTED: Final = "nothing was exported, and the store is unchanged."


@contextmanager
def atomic_file(target: str, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that becomes `target` if the block succeeds."""
    refuse_target(target, overwrite=overwrite)
    path = Path(os.path.abspath(target))  # noqa: PTH100 - keeps symbolic links
    with new_file(path, _NOTHING_EXPORTED, overwrite=overwrite) as temporary:
        descriptor = _create(temporary)
        with os.fdopen(descriptor, "wb", buffering=1024 * 1024) as file:
            yield file
            file.flush()
            if not temporary.exists():
                os.fsync(descriptor)  # So that it has the temporary name only for a moment.
                _name(descriptor, temporary)
        refuse_target(target, overwrite=overwrite)


def _create(temporary: Path) -> int:
    """Create a file without a name, if it can be named later, else at the temporary path."""
    with suppress(OSError):
        trial = os.open(temporary.parent, _UNNAMED_FLAGS, PRIVATE_FILE)
        try:
            _name(trial, temporary)
            temporary.unlink()
        finally:
            os.close(trial)
        return os.open(temporary.parent, _UNNAMED_FLAGS, PRIVATE_FILE)
    return os.open(temporary, _CREATE_FLAGS, PRIVATE_FILE)


def _name(descriptor: int, path: Path) -> None:
    # With `src_dir_fd`, which an absolute path ignores, `os.link` follows the link to the file.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


def refuse_target(target: str, *, overwrite: bool) -> None:
    """Raise `Invalid` if `target` must not be created or replaced."""
    if not os.path.basename(target):  # noqa: PTH119
        raise Invalid(f"{target!r} is not the name of a file; {_NOTHING_EXPORTED}")
    try:
        found = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return  # A missing directory is found when the file is created.
    if stat.S_ISLNK(found.st_mode):
        raise Invalid(f"{target} is a symbolic link and is not followed; {_NOTHING_EXPORTED}")
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(f"{target} is not a regular file; {_NOTHING_EXPORTED}")
    if not overwrite:
        raise Invalid(
            f"{target} exists already; {_NOTHING_EXPORTED} Choose another path, or overwrite it."
        )
