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
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
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
# What may decide what runs or is allowed later, so that no rule for writes covers it: our own
# configuration; HEAD, which makes a folder a git repository with a configuration of its own, and
# all in a folder that has one, as `.git` may lie elsewhere by any name; and every name with a
# leading dot, by which shells, editors, version control and services are configured (.envrc,
# .vscode, .bashrc, .gitconfig, .husky, .github). Where the user's home is, or the whole system, any
# file may be such a one.
_REPOSITORY: Final = "HEAD"
_SENSITIVE: Final = frozenset({CONFIG, _REPOSITORY.lower()})
_HIDDEN: Final = "."


class WorkspacePath(msgspec.Struct, frozen=True):
    """A path inside the workspace: the names from its root, none for the root itself."""

    names: tuple[str, ...]

    @property
    def display(self) -> str:
        """The path relative to the root."""
        return "/".join(self.names) or "."

    @property
    def parent(self) -> WorkspacePath:
        """The folder that contains it."""
        return WorkspacePath(self.names[:-1])

    def child(self, name: str) -> WorkspacePath:
        """Return the path of the entry with this name in this folder."""
        return WorkspacePath((*self.names, name))


class Workspace:
    """A folder and everything in it; `root` is resolved.

    `config_file` is the user's own configuration, which may lie in the workspace by any name.
    """

    def __init__(self, root: str, config_file: str | None = None) -> None:
        self.root = os.path.realpath(root)
        self._config_file = config_file

    def resolve(self, path: str) -> WorkspacePath:
        """Resolve a path relative to the root; `ToolError` if it leads outside."""
        if "\0" in path or len(path) > _MAX_PATH_CHARS:
            raise ToolError("not a valid path: it is too long or contains a null character.")
        if path == "~" or path.startswith("~/"):
            raise ToolError("~ is outside the workspace; only paths inside are allowed.")
        try:
            real = os.path.realpath(Path(self.root, path))
        except (OSError, ValueError) as error:
            raise ToolError(f"{path!r} is not a valid path.") from error
        names = self._inside(real)
        if names is None:
            raise ToolError(f"{path!r} is outside the workspace; only paths inside are allowed.")
        return WorkspacePath(names)

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
        if any(fold_name(name) in _NEVER_WRITTEN for name in Path(self.absolute_path(path)).parts):
            raise ToolError(
                f"{path.display} belongs to version control; writing it is not allowed."
            )
        # A link may be changed between the approval and the write.
        if given is not None and self.is_sensitive(path) and not _names_itself(path, given):
            raise ToolError(f"{given!r} leads to {path.display}; name that file itself.")

    def contains_home(self) -> bool:
        """True if this is the user's home directory, or a folder that it is in."""
        home = os.path.expanduser("~")  # noqa: PTH111 - there may be none
        return home.startswith("/") and self._inside(os.path.realpath(home)) is not None

    def is_sensitive(self, path: WorkspacePath) -> bool:
        """True if this file may decide what runs or is allowed later."""
        names = [fold_name(name) for name in path.names]
        if names[-1:] and (names[-1] in _SENSITIVE or any(n.startswith(_HIDDEN) for n in names)):
            return True
        if self.contains_home() or self._is_in_repository(path):
            return True
        absolute = self.absolute_path(path)
        return any(_is_same_file(absolute, config) for config in self._config_files())

    def as_given(self, path: str) -> WorkspacePath:
        """Return the path by the names that it was given with, links not resolved."""
        whole = os.path.normpath(Path(self.root, path))
        return WorkspacePath(Path(os.path.relpath(whole, self.root)).parts)

    def _config_files(self) -> Iterator[str]:
        """Return the paths of our own configuration, each of which may be a link to any name."""
        if self._config_file is not None:
            yield self._config_file
        root = Path(self.root)
        yield from (str(folder / CONFIG) for folder in (root, *root.parents))

    def _is_in_repository(self, path: WorkspacePath) -> bool:
        """True if git would take a folder that this is in for a repository."""
        folders = Path(self.absolute_path(path)).parents
        return any(os.path.lexists(folder / _REPOSITORY) for folder in folders)


def fold_name(name: str) -> str:
    """Return a name as a file system treats it that ignores case, or characters without a shape."""
    seen = "".join(filter(str.isprintable, unicodedata.normalize("NFKC", name)))
    return seen.casefold().rstrip(". ") or name


def _names_itself(path: WorkspacePath, given: str) -> bool:
    """True if the path as it was given has the names that it resolved to."""
    names = [fold_name(name) for name in Path(path.display).parts]
    return [fold_name(name) for name in Path(os.path.normpath(given)).parts][-len(names) :] == names


def _is_same_file(path: str, other: str) -> bool:
    """True if two paths lead to one file, however they are written; it need not exist yet."""
    try:
        return os.path.samefile(path, other)  # noqa: PTH121 - a path that is longer than allowed is no error
    except (OSError, ValueError):
        return fold_name(path) == fold_name(os.path.realpath(other))


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
