"""The workspace: the folder that tools may read and write, and nothing around it.

A path is first resolved, links included, and must lie inside. Then it is opened from the
workspace's own folder downwards, one name at a time, following no link at all: a resolved path has
none, so one that appears was put there meanwhile, and is refused. Whoever swaps a folder for a link
between the two steps gets an error, not a file from elsewhere.

Only regular files are read and written. Devices, pipes and sockets could block for ever, or act. A
file that this program has open itself, such as its own store, is left alone: closing any descriptor
of a file lets go of all locks that a process has on it, and SQLite's are among them.
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

from holdfast.agent.tools.functions import ToolError

CONFIG: Final = "holdfast.toml"
MAX_FILE: Final = 8 * 1024 * 1024
_LONGEST_PATH: Final = 4096
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting: opening a pipe would else block until somebody writes to it.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DESCRIPTORS: Final = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"
_MOST_OPEN: Final = 1024  # Looked at where the system does not list them.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CHUNK: Final = 1024 * 1024
# Git runs programs that are named in there: writing it is running them.
_NEVER_WRITTEN: Final = frozenset({".git", ".hg", ".svn"})


class Place(msgspec.Struct, frozen=True):
    """Something inside the workspace, by the names that lead to it; none for the workspace.

    `base` leads to the folder that is worked in.
    """

    names: tuple[str, ...]
    base: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The path from the folder that is worked in, which finds it again."""
        pairs = zip(self.names, self.base, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return "/".join([*[".."] * (len(self.base) - shared), *self.names[shared:]]) or "."

    @property
    def parent(self) -> Place:
        """The folder it is in."""
        return Place(self.names[:-1], self.base)

    def below(self, name: str) -> Place:
        """Return what has this name in it."""
        return Place((*self.names, name), self.base)


class Workspace:
    """One folder, and all that is in it."""

    def __init__(self, root: str) -> None:
        """Use this folder, wherever it really is."""
        self.root = os.path.realpath(root)

    def find(self, path: str, cwd: str | None = None) -> Place:
        """Resolve a path, relative to `cwd`; one that leads outside raises `ToolError`."""
        if "\0" in path or len(path) > _LONGEST_PATH:
            raise ToolError("this cannot be a path.")
        if path == "~" or path.startswith("~/"):
            raise ToolError("~ is outside of the workspace; only paths inside may be used.")
        folder = self.root if cwd is None else os.path.realpath(cwd)
        base = self._inside(folder)
        if base is None:
            raise ToolError("the session works in a folder outside of the workspace.")
        try:
            real = os.path.realpath(Path(folder, path))
        except (OSError, ValueError) as error:
            raise ToolError(f"{path!r} cannot be a path.") from error
        names = self._inside(real)
        if names is None:
            raise ToolError(f"{path!r} is outside of the workspace; only paths inside may be used.")
        return Place(names, base)

    def _inside(self, real: str) -> tuple[str, ...] | None:
        if real == self.root:
            return ()
        start = self.root.rstrip("/") + "/"
        return tuple(real.removeprefix(start).split("/")) if real.startswith(start) else None

    def path_of(self, place: Place) -> str:
        """Return the whole path."""
        return str(Path(self.root, *place.names))

    # -------------------------------------------------------------------------------- opening

    @contextmanager
    def folder(self, place: Place, *, make: bool = False) -> Iterator[int]:
        """Open a folder, from the top down; `make` those that are missing."""
        with _telling(place):
            fd = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
            try:
                for name in place.names:
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

    def is_file(self, place: Place) -> bool | None:
        """Return whether this is a regular file; None if there is nothing."""
        if not place.names:
            return False
        try:
            with self.folder(place.parent) as folder:
                found = os.stat(place.names[-1], dir_fd=folder, follow_symlinks=False)
        except (OSError, ToolError):
            return None
        return stat.S_ISREG(found.st_mode)

    def read(self, place: Place, *, most: int = MAX_FILE) -> bytes:
        """Read a regular file of at most so many bytes."""
        if not place.names:
            raise ToolError(". is a folder.")
        with self.folder(place.parent) as folder, _telling(place):
            return _read_in(folder, place.names[-1], place.shown, most)

    def write(self, place: Place, data: bytes) -> bool:
        """Put a file in place at once: whoever reads it has the old one or the new one, whole.

        Folders that are missing are made. Gives whether the file is new.
        """
        self.check_writable(place)
        name = place.names[-1]
        with self.folder(place.parent, make=True) as folder, _telling(place):
            mode = _mode_of(folder, name, place.shown)
            passing = f".holdfast-{secrets.token_hex(8)}.new"
            try:
                _fill(folder, passing, data, mode)
                os.replace(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(passing, dir_fd=folder)
                raise
            os.fsync(folder)
            return mode is None

    def check_writable(self, place: Place, asked: str | None = None) -> None:
        """Refuse what no tool may write: the workspace itself, and a repository's own files."""
        if not place.names:
            raise ToolError(". is a folder.")
        if any(_CONTROL.search(name) for name in place.names):
            raise ToolError("a name with control characters in it is not written.")
        if any(folded(name) in _NEVER_WRITTEN for name in place.names):
            raise ToolError(f"{place.shown} belongs to the version control; it is not written to.")
        # Who allows writes looks at names, and the name of the configuration must not be hidden.
        if asked is not None and folded(place.names[-1]) == CONFIG != folded(Path(asked).name):
            raise ToolError(f"{asked!r} leads to {place.shown}; name that file itself.")


def folded(name: str) -> str:
    """A name as a file system may read it that minds neither case nor what cannot be seen."""
    return "".join(filter(str.isprintable, name)).casefold()


def _read_in(folder: int, name: str, shown: str, most: int) -> bytes:
    """Read a regular file in an open folder."""
    ours = _open_here()
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), shown, most, ours)
    fd = os.open(name, _READ, dir_fd=folder)
    if _identity(os.fstat(fd)) in ours:
        # Swapped just now. It stays open: closing it is what must not happen.
        raise ToolError(f"{shown} is in use by this program.")
    try:
        _check_regular(os.fstat(fd), shown, most, ours)
        pieces: list[bytes] = []
        size = 0
        while piece := os.read(fd, min(_CHUNK, most + 1 - size)):
            pieces.append(piece)
            size += len(piece)
            if size > most:  # It grew while it was read, or does not know its size.
                raise ToolError(f"{shown} has more than {most:,} bytes.")
        return b"".join(pieces)
    finally:
        os.close(fd)


def _check_regular(
    found: os.stat_result, shown: str, most: int, ours: Collection[tuple[int, int]]
) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ToolError(f"{shown} is a link; it may have been changed just now.")
    if stat.S_ISDIR(found.st_mode):
        raise ToolError(f"{shown} is a folder; list_files lists it.")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{shown} is not a regular file.")
    if _identity(found) in ours:
        raise ToolError(f"{shown} is in use by this program.")
    if found.st_size > most:
        raise ToolError(f"{shown} has {found.st_size:,} bytes, more than {most:,}.")


def _check_unused(found: os.stat_result, shown: str) -> None:
    """Refuse a file that this program has open."""
    if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) in _in_use():
        raise ToolError(f"{shown} is in use by this program; it is left alone.")


def _in_use() -> set[tuple[int, int]]:
    """Find the files that this process has open."""
    found = set()
    for number in Path("/dev/fd").iterdir():
        with suppress(OSError):  # The folder that was listed is closed again.
            file = os.fstat(int(number.name))
            found.add((file.st_dev, file.st_ino))
    return found


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_here() -> set[tuple[int, int]]:
    """Return the regular files that this process has open."""
    try:
        numbers = [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - only names
    except OSError:
        numbers = list(range(_MOST_OPEN))
    found: set[tuple[int, int]] = set()
    for number in numbers:
        with suppress(OSError):  # It is closed by now: that of the folder was, surely.
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
    os.fsync(folder)  # What is written in it would be lost with its name.
    return os.open(name, _FOLDER, dir_fd=folder)


def _mode_of(folder: int, name: str, shown: str) -> int | None:
    """Return the permissions of what is there; None if nothing is."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_regular(found, shown, found.st_size, _open_here())
    _check_unused(found, shown)
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
def _telling(place: Place) -> Iterator[None]:
    """Tell what went wrong with a path in the workspace's words, not the system's."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{place.shown}: {why(error)}.") from error
    except UnicodeEncodeError as error:
        raise ToolError(f"{place.shown!r} cannot be a path.") from error


def why(error: OSError) -> str:
    """Return why something could not be opened."""
    if error.errno in {errno.ELOOP, errno.EMLINK}:
        return "is a link; it may have been changed just now"
    if error.errno == errno.ENOENT:
        return "there is no such file or folder"
    if error.errno == errno.ENOTDIR:
        return "a part of the path is no folder"
    if error.errno == errno.ENXIO:
        return "is not a regular file"
    return os.strerror(error.errno) if error.errno else "cannot be used"
