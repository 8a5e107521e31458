"""The order of syncs, links and renames.

A file that gets its name before it is synced may be empty, or half of one, after a power cut; one
whose folder is not synced afterwards may be gone. No crash that a test can cause shows that: only
the order of the calls does.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import pytest

_Kind: TypeAlias = Literal["sync", "name"]


class _Event(NamedTuple):
    kind: _Kind
    identity: tuple[int, int]
    size: int


class SyncLog:
    """Records every sync, link and rename that Python code makes, and performs it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._events: list[_Event] = []
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self._sync)
        for name in ("link", "rename", "replace"):
            patch.setattr(os, name, self._naming(getattr(os, name)))

    def of(self, path: Path) -> list[str]:
        """Return the events of the file that is now at `path`, and of its folder.

        A sync counts for the whole file only if nothing was written after it.
        """
        file, folder = path.stat(), path.parent.stat()
        told: list[str] = []
        for event in self._events:
            if event.identity == _identity(file):
                part = event.kind == "sync" and event.size != _size(file)
                told.append("sync of a part" if part else event.kind)
            elif event.identity == _identity(folder):
                told.append(f"{event.kind} folder")
        return told

    def _sync(self, fd: int) -> None:
        self._note("sync", os.fstat(fd))
        self._fsync(fd)

    def _naming(self, call: Callable[..., None]) -> Callable[..., None]:
        def named(source: Any, target: Any, **options: Any) -> None:  # noqa: ANN401 - as os has it
            found = os.stat(source, dir_fd=options.get("src_dir_fd"), follow_symlinks=False)
            call(source, target, **options)
            self._note("name", found)

        return named

    def _note(self, kind: _Kind, found: os.stat_result) -> None:
        self._events.append(_Event(kind, _identity(found), _size(found)))


def without_links(patch: pytest.MonkeyPatch) -> None:
    """Make `os.link` fail, as on file systems without hard links."""

    def refuse(source: Any, target: Any, **options: Any) -> None:  # noqa: ANN401 - as os has it
        raise PermissionError(1, "Operation not permitted")

    patch.setattr(os, "link", refuse)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _size(found: os.stat_result) -> int:
    """Return the size of a file; 0 for a folder, whose size depends on the file system."""
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
