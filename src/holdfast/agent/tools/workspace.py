"""The workspace: the folder that tools may read and write, and nothing outside it.

A path is first resolved, links included, and must be inside. Then it is opened from the workspace's
root downwards, one name at a time, without following links: a resolved path has none, so a link
that appears was put there meanwhile, and is rejected. A folder swapped for a link between the two
steps gives an error, not a file from outside.

Only regular files are read and written. Devices, pipes and sockets could block forever or have side
effects. A file that this process has open itself, such as its own store, is never opened: closing
any descriptor of a file releases all locks that the process has on it, including SQLite's.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.tools.function_tools import ToolError

CONFIG: Final = "holdfast.toml"
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
_MAX_PATH_CHARS: Final = 4096
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: otherwise opening a pipe would block until another process opens it for writing.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DESCRIPTORS: Final = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"
_MAX_DESCRIPTORS: Final = 1024  # Descriptors that are checked where the system does not list them.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CHUNK: Final = 1024 * 1024
# Version control runs programs configured there: writing to it means running them.
_NEVER_WRITTEN: Final = frozenset({".git", ".hg", ".svn"})


class WorkspacePath(msgspec.Struct, frozen=True):
    """A path inside the workspace: the names from its root, none for the root itself.

    `base` is the working directory, also as names from the root.
    """

    names: tuple[str, ...]
    base: tuple[str, ...] = ()

    @property
    def display(self) -> str:
        """The path relative to the working directory."""
        pairs = zip(self.names, self.base, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return "/".join([*[".."] * (len(self.base) - shared), *self.names[shared:]]) or "."

    @property
    def parent(self) -> WorkspacePath:
        """The folder that contains it."""
        return WorkspacePath(self.names[:-1], self.base)

    def child(self, name: str) -> WorkspacePath:
        """Return the path of the entry with this name in this folder."""
        return WorkspacePath((*self.names, name), self.base)


class Workspace:
    """A folder and everything in it; `root` is resolved."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)

    def resolve(self, path: str, cwd: str | None = None) -> WorkspacePath:
        """Resolve a path relative to `cwd`; `ToolError` if it leads outside."""
        if "\0" in path or len(path) > _MAX_PATH_CHARS:
            raise ToolError("not a valid path: it is too long or contains a null character.")
        if path == "~" or path.startswith("~/"):
            raise ToolError("~ is outside the workspace; only paths inside are allowed.")
        folder = self.root if cwd is None else os.path.realpath(cwd)
        base = self._inside(folder)
        if base is None:
            raise ToolError("the session's working directory is outside the workspace.")
        try:
            real = os.path.realpath(Path(folder, path))
        except (OSError, ValueError) as error:
            raise ToolError(f"{path!r} is not a valid path.") from error
        names = self._inside(real)
        if names is None:
            raise ToolError(f"{path!r} is outside the workspace; only paths inside are allowed.")
        return WorkspacePath(names, base)

    def _inside(self, real: str) -> tuple[str, ...] | None:
        if real == self.root:
            return ()
        start = self.root.rstrip("/") + "/"
        return tuple(real.removeprefix(start).split("/")) if real.startswith(start) else None

    def absolute_path(self, path: WorkspacePath) -> str:
        """Return the absolute path."""
        return str(Path(self.root, *path.names))

    # -------------------------------------------------------------------------------- opening

    @contextmanager
    def folder(self, path: WorkspacePath, *, make: bool = False) -> Iterator[int]:
        """Open a folder, from the root down; `make`: create missing folders."""
        with _tool_errors(path):
            fd = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
            try:
                for name in path.names:
                    below = _enter(fd, name, make=make)
                    os.close(fd)
                    fd = below
            except BaseException:
                os.close(fd)
                raise
        try:
            yield fd
        finally:
            os.close(fd)

    def is_file(self, path: WorkspacePath) -> bool | None:
        """Return whether this is a regular file; None if it does not exist."""
        if not path.names:
            return False
        try:
            with self.folder(path.parent) as folder:
                found = os.stat(path.names[-1], dir_fd=folder, follow_symlinks=False)
        except (OSError, ToolError):
            return None
        return stat.S_ISREG(found.st_mode)

    def read(self, path: WorkspacePath, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a regular file of at most `max_bytes` bytes."""
        if not path.names:
            raise ToolError(". is a folder.")
        with self.folder(path.parent) as folder, _tool_errors(path):
            return _read_in(folder, path.names[-1], path.display, max_bytes)

    def write(self, path: WorkspacePath, data: bytes) -> bool:
        """Write a file atomically: a reader sees the old content or the new, never a part.

        Missing folders are created. Returns whether the file is new.
        """
        self.check_writable(path)
        name = path.names[-1]
        with self.folder(path.parent, make=True) as folder, _tool_errors(path):
            mode = _mode_of(folder, name, path.display)
            temporary = f".holdfast-{secrets.token_hex(8)}.new"
            try:
                _fill(folder, temporary, data, mode)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)
            return mode is None

    def check_writable(self, path: WorkspacePath, given: str | None = None) -> None:
        """Raise `ToolError` for what no tool may write: the root, and a repository's own files.

        `given` is the path as the model wrote it.
        """
        if not path.names:
            raise ToolError(". is a folder.")
        if any(_CONTROL.search(name) for name in path.names):
            raise ToolError("file names with control characters are not allowed.")
        if any(fold_name(name) in _NEVER_WRITTEN for name in path.names):
            raise ToolError(
                f"{path.display} belongs to version control; writing it is not allowed."
            )
        # Writes are approved by name, so the configuration's name must not be hidden by a link.
        if given is not None and fold_name(path.names[-1]) == CONFIG != fold_name(Path(given).name):
            raise ToolError(f"{given!r} leads to {path.display}; name that file itself.")


def fold_name(name: str) -> str:
    """Return a name as a file system may treat it that ignores case and invisible characters."""
    return "".join(filter(str.isprintable, name)).casefold()


def _read_in(folder: int, name: str, shown: str, max_bytes: int) -> bytes:
    """Read a regular file in an open folder."""
    own_files = _open_files()
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), shown, max_bytes, own_files)
    fd = os.open(name, _READ, dir_fd=folder)
    if _identity(os.fstat(fd)) in own_files:
        # Swapped just now. It stays open: closing it would release the locks.
        raise ToolError(f"{shown} is in use by this program.")
    try:
        _check_regular(os.fstat(fd), shown, max_bytes, own_files)
        pieces: list[bytes] = []
        size = 0
        while piece := os.read(fd, min(_CHUNK, max_bytes + 1 - size)):
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:  # It grew while it was read, or its reported size is wrong.
                raise ToolError(f"{shown} has more than {max_bytes:,} bytes.")
        return b"".join(pieces)
    finally:
        os.close(fd)


def _check_regular(
    found: os.stat_result, shown: str, max_bytes: int, own_files: Collection[tuple[int, int]]
) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ToolError(f"{shown} is a link; it may have been changed just now.")
    if stat.S_ISDIR(found.st_mode):
        raise ToolError(f"{shown} is a folder; use list_files.")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{shown} is not a regular file.")
    if _identity(found) in own_files:
        raise ToolError(f"{shown} is in use by this program.")
    if found.st_size > max_bytes:
        raise ToolError(f"{shown} has {found.st_size:,} bytes, more than {max_bytes:,}.")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_files() -> set[tuple[int, int]]:
    """Return the regular files that this process has open."""
    try:
        numbers = [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - only names
    except OSError:
        numbers = list(range(_MAX_DESCRIPTORS))
    found: set[tuple[int, int]] = set()
    for number in numbers:
        with suppress(OSError):  # The descriptor is closed by now, as that of the listing is.
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode):
                found.add(_identity(status))
    return found


def _enter(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)  # Without its name on disk, everything written in it would be lost.
    return os.open(name, _FOLDER, dir_fd=folder)


def _mode_of(folder: int, name: str, shown: str) -> int | None:
    """Return the permissions of the existing file; None if there is none."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_regular(found, shown, found.st_size, _open_files())
    return stat.S_IMODE(found.st_mode) & 0o777


def _fill(folder: int, name: str, data: bytes, mode: int | None) -> None:
    fd = os.open(name, _NEW, 0o666 if mode is None else 0o600, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if mode is not None:
            os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _tool_errors(path: WorkspacePath) -> Iterator[None]:
    """Convert operating system errors to `ToolError`, with the path as the model wrote it."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path.display}: {os_error_text(error)}.") from error
    except UnicodeEncodeError as error:
        raise ToolError(f"{path.display!r} is not a valid path.") from error


def os_error_text(error: OSError) -> str:
    """Return the reason of a failed operation on a file."""
    if error.errno in {errno.ELOOP, errno.EMLINK}:
        return "is a link; it may have been changed just now"
    if error.errno == errno.ENOENT:
        return "there is no such file or folder"
    if error.errno == errno.ENOTDIR:
        return "a part of the path is not a folder"
    if error.errno == errno.ENXIO:
        return "is not a regular file"
    return os.strerror(error.errno) if error.errno else "cannot be used"
