"""Where a backend keeps a search index: the optional half of the protocol.

An index is a file beside the log, or tables in its database. Without either, a search reads the
messages themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Snapshot


class PendingRows(Protocol):
    """The result of a statement that was sent."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Wait for it and return all rows."""
        ...


class IndexConnection(Protocol):
    """A connection to the tables of a search index. It raises the errors of the store.

    The tables of the log are in the same database, so a search can read both in one snapshot.
    """

    def begin_reading(self) -> None:
        """Begin a read transaction; it is sent with the first statement."""
        ...

    def begin_writing(self, timeout_s: float) -> None:
        """Begin an exclusive write transaction; the first result waits `timeout_s` for others."""
        ...

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        ...

    def send(self, text: str, values: Sequence[object] = ()) -> PendingRows:
        """Send a statement; its rows, or its error, come with `fetchall`."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def roll_back(self) -> None:
        """Roll back the transaction."""
        ...

    def close(self) -> None:
        """Release the connection, in whatever state it is."""
        ...

    def prefetch(self, segments: Sequence[Segment], titles: Sequence[str] | None = None) -> None:
        """Prefetch messages and titles of the log, and its highest activity."""
        ...

    def log(self) -> Snapshot:
        """Return the log, in the snapshot of this transaction."""
        ...

    def log_activity(self) -> int:
        """Return the highest activity of the log; transactions with a lower one may be open."""
        ...

    def branches_of(
        self,
        scopes: Sequence[str],
        agents: Sequence[str],
        cwds: Sequence[str],
        *,
        all_branches: bool,
    ) -> list[int]:
        """Return the branches that sessions of these scopes, agents and directories may show."""
        ...


class IndexTables(Protocol):
    """Tables of a database for the search index of one tenant.

    `code` is the prefix of the tenant's index terms, which keeps tenants apart.
    """

    shown: str
    code: str

    def connect(self) -> IndexConnection:
        """Return a connection, which is opened when it is first used."""
        ...


class IndexFileHost(ABC):
    """A backend that has a file for the search index of its tenant."""

    @abstractmethod
    def index_path(self) -> Path | None:
        """Return the path of the index; `None` if there is none yet."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Open a snapshot of the log for a `with` block, in which the index is read as well."""


class IndexTableHost(ABC):
    """A backend that has tables for the search index of its tenant."""

    @abstractmethod
    def index_tables(self) -> IndexTables | None:
        """Return the tables; `None` if they cannot be used."""
