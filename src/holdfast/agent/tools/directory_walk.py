"""Directory walk in a workspace, in order, without following links.

Folders that hold tools' own data (`.git`, caches, installed packages) are skipped by default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from threading import Event
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.agent.tools.function_tools import ToolError
from holdfast.agent.tools.workspace import Workspace, WorkspacePath

Kind: TypeAlias = Literal["file", "folder", "link", "other"]

SKIPPED: Final = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".idea", ".cache"}
)
_MAX_ENTRIES_PER_FOLDER: Final = 100_000
_MAX_ENTRIES: Final = 500_000
_TIMEOUT_S: Final = 30.0


class Entry(msgspec.Struct, frozen=True):
    """An entry of a folder; `size` and a link's `target` only if the walk collects them."""

    path: WorkspacePath
    kind: Kind
    size: int | None = None
    target: str | None = None

    @property
    def name(self) -> str:
        """The last name of its path."""
        return self.path.names[-1]


class Walk:
    """A walk of a folder.

    `ended_early`: it was stopped; `unreadable`: folders not read; `left_out`: secrets not read.
    """

    def __init__(
        self,
        space: Workspace,
        start: WorkspacePath,
        stop: Event,
        *,
        everything: bool,
        deep: bool = True,
        sized: bool = False,
        is_secret: Callable[[WorkspacePath], bool] | None = None,
    ) -> None:
        """Configure a walk; another thread may set `stop` to end it.

        Folders for which `is_secret` is true are not entered.
        """
        self._space = space
        self._start = start
        self._stop = stop
        self._everything = everything
        self._deep = deep
        self._with_details = sized
        self._is_secret = is_secret
        self._deadline = time.monotonic() + _TIMEOUT_S
        self._seen = 0
        self.ended_early = False
        self.unreadable = 0
        self.left_out = 0

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries; those of a folder before those of its subfolders."""
        waiting = [self._start]
        while waiting:
            path = waiting.pop()
            below: list[WorkspacePath] = []
            for entry in self._entries(path):
                if self._is_over():
                    return
                yield entry
                if entry.kind == "folder" and self._is_entered(entry):
                    below.append(entry.path)
            waiting += reversed(below)

    def _is_entered(self, entry: Entry) -> bool:
        wanted = self._deep and (self._everything or entry.name not in SKIPPED)
        return wanted and not self.leaves_out(entry.path)

    def leaves_out(self, path: WorkspacePath) -> bool:
        """True, and counted, if a file or folder is secret."""
        secret = self._is_secret is not None and self._is_secret(path)
        self.left_out += secret
        return secret

    def _entries(self, path: WorkspacePath) -> list[Entry]:
        try:
            with self._space.folder(path) as folder, os.scandir(folder) as found:
                names = sorted(islice(found, _MAX_ENTRIES_PER_FOLDER), key=lambda entry: entry.name)
                return [self._entry(path, folder, entry) for entry in names]
        except ToolError:
            if path is self._start:
                raise
            self.unreadable += 1
            return []

    def _entry(self, path: WorkspacePath, folder: int, entry: os.DirEntry[str]) -> Entry:
        here, kind = path.child(entry.name), _kind(entry)
        if not self._with_details:
            return Entry(here, kind)
        try:
            if kind == "link":
                return Entry(here, kind, target=os.readlink(entry.name, dir_fd=folder))
            return Entry(here, kind, entry.stat(follow_symlinks=False).st_size)
        except OSError:
            return Entry(here, kind)  # It was removed meanwhile.

    def _is_over(self) -> bool:
        self._seen += 1
        late = self._seen > _MAX_ENTRIES or time.monotonic() > self._deadline
        self.ended_early = late or self._stop.is_set()
        return self.ended_early


def _kind(entry: os.DirEntry[str]) -> Kind:
    try:
        if entry.is_symlink():
            return "link"
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:
        return "other"
