"""The store files whose sessions are continued without asking, as ssh knows its hosts.

To continue a session is to let it act: its goal and its system messages instruct the model, its
queued input is sent as the user's. So a session of a file that another person may have made is
continued only after the user agreed, once for each store. Known are

- the user's own store: the default one, or the one that their configuration or environment names
  by an absolute path (a relative one would be whatever file lies in the current directory)
- stores that these commands have created, and those that the user agreed to: `known_stores` in the
  state directory lists the file's path and what tells its store from another at the same path
- stores that are not local files: only the user's own credentials open a server's

Reading a store, and new sessions in it, need no consent.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import holdfast
from holdfast.cli.store_access import UntrustedStore
from holdfast.config import loader, paths
from holdfast.storage import registry
from holdfast.url import Location, parse_url

FILE_NAME: Final = "known_stores"
_MODE: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class StoreTrust:
    """Whether the sessions of an open store may be continued."""

    def __init__(self, opened: holdfast.Store, url: str | None) -> None:
        """`url` is what the store was opened with."""
        self._opened = opened
        self._file = _file(parse_url(url, os.environ))
        self._accepted = False

    @property
    def file(self) -> str:
        """The path of the store's file; empty if it has none."""
        return self._file or ""

    def is_known(self) -> bool:
        """True if the store is the user's own, on their list, or was agreed to just now."""
        return self._accepted or self._file in {None, _own_file()} or self._line() in _lines()

    def accept(self) -> None:
        """Add the store to the user's list; if that cannot be written, this is for now only."""
        if self.is_known():
            return
        self._accepted = True
        path = _list_path()
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, _MODE, 0o600)
            try:
                os.write(descriptor, f"{self._line()}\n".encode())
            finally:
                os.close(descriptor)

    def require(self) -> None:
        """Raise `UntrustedStore` unless the store is known."""
        if not self.is_known():
            raise UntrustedStore(
                f"{self._file} may be another person's: its goals, queued input and system "
                "messages would act as yours. Nothing was sent or stored"
            )

    def _line(self) -> str:
        """Return the store's line of the list: what identifies it, and its path."""
        return json.dumps([self._opened.backend.identity(), self._file])


def _own_file() -> str | None:
    """Return the file of the user's own store, if it is one and named by an absolute path."""
    here, home = paths.working_directory(), paths.home_directory()
    location = parse_url(loader.configured_store(os.environ, here, home=home), os.environ)
    return _file(location) if Path(location.address).is_absolute() else None


def _file(location: Location) -> str | None:
    path = registry.store_file(location)
    return None if path is None else os.path.realpath(path)


def _lines() -> frozenset[str]:
    """Return the lines of the list; other bytes than those of a line spoil no other line."""
    try:
        return frozenset(_list_path().read_bytes().decode("ascii", "replace").split("\n"))
    except OSError:
        return frozenset()


def _list_path() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("holdfast", appauthor=False)) / FILE_NAME
