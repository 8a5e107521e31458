"""The file that an export is written to: written atomically and readable only by its owner.

The lines go to a temporary file beside the target, which is synced and only then renamed. So the
target's name never refers to half an export, and an error leaves no file behind. Symbolic links are
never followed, neither at the temporary name nor at the target.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from holdfast import ids
from holdfast.errors import Invalid, StoreFull, StoreUnavailable

_OWNER_ONLY: Final = 0o600
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HARD_LINKS_UNSUPPORTED: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOTHING_EXPORTED: Final = "nothing was exported, and the store is unchanged."


@contextmanager
def atomic_file(target: str, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; rename it to `target` if the block succeeds."""
    folder, name = os.path.split(os.path.abspath(target))  # noqa: PTH100 - keeps symbolic links
    temporary = os.path.join(folder, f".{name[:80]}.{ids.session_id()}.new")  # noqa: PTH118
    with _translate_errors():
        refuse_target(target, overwrite=overwrite)
        descriptor = os.open(temporary, _CREATE_FLAGS, _OWNER_ONLY)
        try:
            with os.fdopen(descriptor, "wb", buffering=1024 * 1024) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _publish(temporary, target, overwrite=overwrite)
            _sync_directory(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108


def refuse_target(target: str, *, overwrite: bool) -> None:
    """Raise `Invalid` if `target` must not be created or replaced."""
    if not os.path.basename(target):  # noqa: PTH119
        raise Invalid(f"{target!r} is not the name of a file; {_NOTHING_EXPORTED}")
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise Invalid(f"{target} is a symbolic link and is not followed; {_NOTHING_EXPORTED}")
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(f"{target} is not a regular file; {_NOTHING_EXPORTED}")
    if not overwrite:
        raise Invalid(
            f"{target} exists already; {_NOTHING_EXPORTED} Choose another path, or overwrite it."
        )


def _publish(temporary: str, target: str, *, overwrite: bool) -> None:
    """Rename the file; without `overwrite`, refuse if the target was created meanwhile."""
    if overwrite:
        refuse_target(target, overwrite=True)
        os.replace(temporary, target)  # noqa: PTH105
        return
    try:
        os.link(temporary, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _HARD_LINKS_UNSUPPORTED:
            raise
        refuse_target(target, overwrite=False)
        os.rename(temporary, target)  # noqa: PTH104


def _sync_directory(folder: str) -> None:
    """Sync the directory, so that the new name survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise Invalid(
            f"{error.filename2 or error.filename} exists already; {_NOTHING_EXPORTED}"
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Invalid(f"{error.filename}: no such directory; {_NOTHING_EXPORTED}") from error
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise StoreFull(
                f"the disk is full ({error}); {_NOTHING_EXPORTED} Free some space and export again."
            ) from error
        raise StoreUnavailable(
            f"the export cannot be written ({error}); {_NOTHING_EXPORTED}"
        ) from error
