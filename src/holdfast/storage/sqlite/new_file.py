"""New files: stores, backups and exports get their name when they are whole, or not at all.

They are written to a private temporary file beside the target, synced to the disk, and only then
linked under the target's name. An existing target is not replaced unless the caller wants that.
After a failure nothing is left.

A process that is killed leaves its temporary file behind. Each one has a lock, which the system
releases when the process ends, so an abandoned file can be told from one that is being written. It
is removed when the next file of that name is made.

A copy of a store holds its conversations, and may be written anywhere. Until it is finished, a
symbolic link beside the store leads to it, so that an erasure finds and removes what was abandoned.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from holdfast import ids
from holdfast.errors import Invalid, system_error
from holdfast.storage.sqlite.connection import translate
from holdfast.storage.sqlite.location import PRIVATE_FILE, companion, sync_directory
from holdfast.written_files import ID, UNFINISHED, UNFINISHED_LINK

_LINK_UNSUPPORTED: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_LOCK_SUFFIX: Final = "-lock"
_MAX_PREFIX: Final = 40


@contextmanager
def new_file(
    target: Path,
    effect: str,
    *,
    overwrite: bool = False,
    copy_of: Path | None = None,
    before_naming: Callable[[Path], object] | None = None,
) -> Iterator[Path]:
    """Lend the path of a temporary file, which gets the target's name if the block succeeds.

    Errors are translated; `effect` states what was not made and not changed. `copy_of` is the store
    whose conversations the file will hold. `before_naming` is called when the file is synced; it
    may lock it, because no descriptor of it is closed any more.
    """
    with _translated_errors(effect):
        _check_target(target, effect, overwrite=overwrite)
        _remove_abandoned(target)
        temporary, lock = _reserve(target)
        link = None if copy_of is None else _link_from(copy_of, temporary)
        try:
            yield temporary
            _sync(temporary)
            if before_naming is not None:
                before_naming(temporary)
            _publish(temporary, target, overwrite=overwrite)
        finally:
            _remove(temporary)
            if link is not None:
                link.unlink(missing_ok=True)
            os.close(lock)


def _check_target(target: Path, effect: str, *, overwrite: bool) -> None:
    if not overwrite:
        _refuse_existing(target)
    if not target.parent.is_dir():
        raise Invalid(f"{target.parent} is not a directory; {effect} Create it first.")


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "exists", str(target))


def _reserve(target: Path) -> tuple[Path, int]:
    """Return an unused temporary path, and its lock, which marks it as in use."""
    while True:
        temporary = target.with_name(f"{_prefix(target)}{ids.session_id()}.new")
        path = companion(temporary, _LOCK_SUFFIX)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        if _acquire(lock) and _is_at(lock, path):
            return temporary, lock
        os.close(lock)  # Before it was locked, another process took it for abandoned.


def _prefix(target: Path) -> str:
    return f".{target.name[:_MAX_PREFIX]}."  # A name has at most 255 bytes.


def _link_from(store: Path, temporary: Path) -> Path | None:
    """Create a link beside a store to a copy of it; `None` where that is not possible.

    What cannot be written to, such as a store on a read-only disk, cannot be erased from either.
    """
    link = store.with_name(f"{_prefix(store)}{ids.session_id()}.{UNFINISHED_LINK}")
    try:
        list(remove_unfinished_copies(store))  # An erasure reports what stays.
        link.symlink_to(temporary.absolute())
        sync_directory(link.parent)
    except OSError:
        return None
    return link


def remove_unfinished_copies(store: Path) -> Iterator[str]:
    """Remove the copies that killed processes left of a store; yield a sentence for what stays."""
    names = re.compile(rf"{re.escape(_prefix(store))}{ID}\.{UNFINISHED_LINK}")
    for link in [file for file in store.parent.iterdir() if names.fullmatch(file.name)]:
        try:
            temporary = link.readlink()
            if not (temporary.is_absolute() and re.fullmatch(UNFINISHED, temporary.name)):
                continue  # A link that something else made.
            if not temporary.parent.is_dir():
                yield (
                    f"{temporary}, an unfinished copy of the store, cannot be reached now; if its "
                    f"directory was deleted, delete {link} too."
                )
            elif _remove_if_abandoned(temporary):
                link.unlink(missing_ok=True)
            else:
                yield (
                    f"{temporary} is a copy of the store that is being written; it may hold what "
                    "was erased."
                )
        except OSError as error:
            yield (
                f"{link}, which leads to an unfinished copy of the store, cannot be removed: "
                f"{error.strerror}."
            )


def _acquire(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files that killed processes left."""
    pattern = re.compile(rf"({re.escape(_prefix(target))}\w+\.new)(-\w+)?")
    beside = (pattern.fullmatch(file.name) for file in target.parent.iterdir())
    found = {match[1] for match in beside if match}
    for name in found:
        with suppress(OSError):
            _remove_if_abandoned(target.with_name(name))


def _remove_if_abandoned(temporary: Path) -> bool:
    """Remove a temporary file; return false, with nothing removed, if it is being written."""
    try:
        lock = os.open(companion(temporary, _LOCK_SUFFIX), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # It is created first and removed last.
        _remove(temporary)
        return True
    try:
        if abandoned := _acquire(lock):
            _remove(temporary)
    finally:
        os.close(lock)
    return abandoned


def _remove(temporary: Path) -> None:
    """Remove a temporary file and its companions, its lock last."""
    lock = companion(temporary, _LOCK_SUFFIX)
    for leftover in temporary.parent.glob(f"{glob.escape(temporary.name)}*"):
        if leftover != lock:
            leftover.unlink(missing_ok=True)
    lock.unlink(missing_ok=True)


def _sync(temporary: Path) -> None:
    """Sync the file to the disk; SQLite has closed it by now."""
    descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temporary: Path, target: Path, *, overwrite: bool) -> None:
    """Rename the file to its target; one that was created meanwhile is not replaced."""
    try:
        if overwrite:
            temporary.replace(target)
        else:
            os.link(temporary, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _LINK_UNSUPPORTED:
            raise
        _refuse_existing(target)
        temporary.rename(target)
    sync_directory(target.parent)


@contextmanager
def _translated_errors(effect: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error, effect) from error
    except FileExistsError as error:
        raise Invalid(
            f"{error.filename2 or error.filename} exists already and was not changed; {effect} "
            "Choose another path."
        ) from error
    except OSError as error:
        raise system_error(error, "the file cannot be written", effect) from error
