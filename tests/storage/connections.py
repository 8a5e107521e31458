"""Connections to the server that outlive the stores which used them, for suites of short tests.

A test of a few writes spends most of its time on a connection that has just been made: the server
starts a process for it, which knows no table and no plan yet. Here a store that closes leaves its
idle connections to the next one. Those of the log and those of the search index are set up
differently and are kept apart. What is not idle, or belongs to another process, is closed as usual;
so is a connection that a store dropped.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.storage.postgres import backend, search_tables
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import ConnInfo

_MAX_PREPARED = (
    300  # A connection prepares no more than 500 statements; one store needs less than 200.
)


class _Shelf:
    """Idle connections of one purpose."""

    def __init__(self) -> None:
        self.open = True
        self._free: dict[ConnInfo, list[_KeptConnection]] = {}

    def take(self, target: ConnInfo, settings: Mapping[str, str] | None = None) -> Connection:
        """Return a connection that was kept, or a new one; all have the same settings."""
        free = self._free.setdefault(target, [])
        while free:
            link = free.pop()
            if link.revive():
                return link
        return _KeptConnection(target, settings, self)

    def keep(self, link: "_KeptConnection") -> None:
        self._free[link.target].append(link)

    def close(self) -> None:
        self.open = False
        for link in [link for free in self._free.values() for link in free]:
            link.close()


class _KeptConnection(Connection):
    """A connection that goes back to its shelf when it is closed."""

    def __init__(self, target: ConnInfo, settings: Mapping[str, str] | None, shelf: _Shelf) -> None:
        self.target = target
        self._shelf = shelf
        self._kept = False
        super().__init__(target, settings)

    def close(self) -> None:
        if self._kept and self._shelf.open:
            return
        fit = self.idle and self.pid == os.getpid() and len(self._prepared) < _MAX_PREPARED
        if fit and self._shelf.open:
            self._kept = True
            self._shelf.keep(self)
        else:
            super().close()

    def revive(self) -> bool:
        """Make it as good as new; false if it was lost meanwhile."""
        self._kept = False
        self.round_trips = 0
        self.timeout_s = self.target.answer
        try:
            self.backend_id = self._read_backend_id()
        except psycopg.Error:
            super().close()
            return False
        return True

    def __del__(self) -> None:
        """Close what was dropped by an interrupt."""
        if hasattr(self, "_connection"):
            super().close()


@contextmanager
def kept_links() -> Iterator[None]:
    """Let all stores on a server that are opened meanwhile share their connections in turn."""
    log, index = _Shelf(), _Shelf()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "Connection", log.take)
        patch.setattr(search_tables, "Connection", index.take)
        try:
            yield
        finally:
            log.close()
            index.close()
