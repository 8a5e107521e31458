"""The file that an export is written to: written atomically and readable only by its owner.

The target's name never refers to half an export (`new_file`). Symbolic links are never followed,
neither at the temporary name nor at the target.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.errors import Invalid
from holdfast.storage.sqlite.location import PRIVATE_FILE
from holdfast.storage.sqlite.new_file import new_file

_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOTHING_EXPORTED: Final = "nothing was exported, and the store is unchanged."


@contextmanager
def atomic_file(target: str, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that becomes `target` if the block succeeds."""
    refuse_target(target, overwrite=overwrite)
    path = Path(os.path.abspath(target))  # noqa: PTH100 - keeps symbolic links
    with new_file(path, _NOTHING_EXPORTED, overwrite=overwrite) as temporary:
        descriptor = os.open(temporary, _CREATE_FLAGS, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb", buffering=1024 * 1024) as file:
            yield file
        refuse_target(target, overwrite=overwrite)


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
