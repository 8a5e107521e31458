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

_PRIVATE: Final = 0o600
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_SAFE: Final = "nothing was exported, and the store is unchanged."


@contextmanager
def fresh_file(target: str, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; rename it to `target` if the block succeeds."""
    folder, name = os.path.split(os.path.abspath(target))  # noqa: PTH100 - keeps symbolic links
    temporary = os.path.join(folder, f".{name[:80]}.{ids.session_id()}.new")  # noqa: PTH118
    with _in_our_words():
        refuse_target(target, overwrite=overwrite)
        descriptor = os.open(temporary, _NEW, _PRIVATE)
        try:
            with os.fdopen(descriptor, "wb", buffering=1024 * 1024) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _give_name(temporary, target, overwrite=overwrite)
            _sync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108


def refuse_target(target: str, *, overwrite: bool) -> None:
    """Raise `Invalid` if `target` must not be created or replaced."""
    if not os.path.basename(target):  # noqa: PTH119
        raise Invalid(f"{target!r} is not the name of a file; {_SAFE}")
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise Invalid(f"{target} is a symbolic link and is not followed; {_SAFE}")
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(f"{target} is not a regular file; {_SAFE}")
    if not overwrite:
        raise Invalid(f"{target} exists already; {_SAFE} Choose another path, or overwrite it.")


def _give_name(temporary: str, target: str, *, overwrite: bool) -> None:
    """Rename the file; without `overwrite`, refuse if the target was created meanwhile."""
    if overwrite:
        refuse_target(target, overwrite=True)
        os.replace(temporary, target)  # noqa: PTH105
        return
    try:
        os.link(temporary, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        refuse_target(target, overwrite=False)
        os.rename(temporary, target)  # noqa: PTH104


def _sync(folder: str) -> None:
    """Sync the directory, so that the new name survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise Invalid(f"{error.filename2 or error.filename} exists already; {_SAFE}") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Invalid(f"{error.filename}: no such directory; {_SAFE}") from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull(
                f"the disk is full ({error}); {_SAFE} Free some space and export again."
            ) from error
        raise StoreUnavailable(f"the export cannot be written ({error}); {_SAFE}") from error
