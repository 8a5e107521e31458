"""The tables of a search index, reached by connections of their own.

The indexer holds one of these connections while it also reads the log, so they do not come from the
pool: two threads that each held one and waited for another would deadlock. A search reads index and
log through one connection, in one transaction. The tables hold only what can be derived from the
log, so their commits do not wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from holdfast.errors import StoreUnavailable
from holdfast.storage.ancestry import Segment
from holdfast.storage.postgres import search_snapshot
from holdfast.storage.postgres.ancestry_cache import Paths
from holdfast.storage.postgres.connection import Answer, Link
from holdfast.storage.postgres.conninfo import Target
from holdfast.storage.postgres.errors import is_lost, translate
from holdfast.storage.postgres.rows import mark
from holdfast.storage.postgres.search_snapshot import Beside
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.postgres.statements import SQL

_CODE_LENGTH: Final = 5
_THEN: Final = "the search index was not changed."


def usable(connection: Link) -> bool:
    """True if a search index can be kept in the tables of this database."""
    return connection.ask_text(search_snapshot.SQL["usable"]).fetchone() == (True,)


class PostgresTables:
    """The tables of one tenant's index."""

    def __init__(self, conninfo: Target, tenant: Tenant) -> None:
        self._target = conninfo
        self._tenant = tenant
        self._paths = Paths()
        self.shown = f"{conninfo.shown} (tables {conninfo.schema}.index*, tenant {tenant.name})"
        self.code = tenant.mark.hex[:_CODE_LENGTH]
        self.lock = int.from_bytes(
            mark(f"index of {conninfo.schema}\0{tenant.name}").bytes[:8], "big", signed=True
        )

    def connect(self) -> TableLink:
        """Return a connection, which is opened when it is first used."""
        return TableLink(self._target, self._tenant, self.lock, self._paths)


class _Question:
    """The result of a statement, which can be sent again on another connection."""

    __slots__ = ("_link", "answer", "text", "values")

    def __init__(self, connection: TableLink, text: str, values: Sequence[object]) -> None:
        self._link = connection
        self.text = text
        self.values = values
        self.answer: Answer | None = None

    def fetchone(self) -> tuple[Any, ...] | None:
        found = self.fetchall()
        return found[0] if found else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._link.answer_to(self)


class TableLink:
    """One connection to the tables. Its errors are translated to Holdfast's."""

    def __init__(self, conninfo: Target, tenant: Tenant, lock: int, paths: Paths) -> None:
        self._target = conninfo
        self._tenant = tenant
        self._lock = lock
        self._paths = paths
        self._link: Link | None = None
        self._unheard: list[_Question] | None = None  # since BEGIN, until a row is received
        self._beside: Beside | None = None

    # ------------------------------------------------------------------------------ transactions

    def begin_reading(self) -> None:
        """Begin a read-only snapshot; it is sent with the first query."""
        self._begin("begin_reading")
        self._beside = Beside(self, self._tenant, self._paths)
        self._beside.enter("enter_snapshot", self._target.reading)

    def begin_writing(self, patience: float) -> None:
        """Begin an exclusive write; the first result waits at most this long for other writers."""
        self._begin("begin_writing")
        self.ask("enter_reading", (self._tenant.mark,))
        self.ask_text(search_snapshot.SQL["lock_timeout"], (_millis(patience),))
        self.ask_text(search_snapshot.SQL["lock"], (self._lock,))

    def _begin(self, name: str) -> None:
        with self._told():
            if self._link is None:
                self._connect()
        self._unheard = []
        self.ask(name)

    def _connect(self) -> Link:
        self._link = connection = Link(self._target)
        connection.patience = self._target.statement
        connection.ask_text(
            search_snapshot.SQL["settings"], (_millis(self._target.statement),)
        ).fetchall()
        return connection

    def commit(self) -> None:
        """Commit, and wait for the answer."""
        with self._told():
            self._open.commit()

    def roll_back(self) -> None:
        """Roll back, and end the snapshot."""
        self._beside = None
        if self._link is None:
            return
        try:
            self._link.roll_back()
            lost = not self._link.idle  # A caller was interrupted while it received results.
        except psycopg.Error:
            lost = True
        if lost:
            self.close()

    def close(self) -> None:
        """Close the connection, in whatever state it is."""
        connection, self._link = self._link, None
        if connection is not None:
            connection.close()

    # ---------------------------------------------------------------------------------- statements

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        return self.ask_text(text, values).fetchall()

    def send(self, text: str, values: Sequence[object] = ()) -> _Question:
        """Queue a statement; its rows or its error show when they are fetched."""
        return self.ask_text(text, values)

    def ask(self, name: str, values: Sequence[object] = ()) -> _Question:
        """Queue a statement of the log by its name."""
        return self.ask_text(SQL[name], values)

    def ask_text(self, text: str, values: Sequence[object]) -> _Question:
        """Queue a statement."""
        result = _Question(self, text, values)
        with self._told():
            result.answer = self._open.ask_text(text, values)
        if self._unheard is not None:
            self._unheard.append(result)
        return result

    def answer_to(self, result: _Question) -> list[tuple[Any, ...]]:
        """Wait for a result.

        The loss of an idle connection goes unnoticed until it is used: if no result was received
        since the beginning of the transaction, all its statements are sent again on a new one.
        """
        assert result.answer is not None  # noqa: S101 - it was queued
        with self._told():
            try:
                found = result.answer.fetchall()
            except psycopg.Error as error:
                if self._unheard is None or not is_lost(error):
                    raise
                self._ask_again(self._unheard)
                found = result.answer.fetchall()
        self._unheard = None
        return found

    def _ask_again(self, results: Sequence[_Question]) -> None:
        self.close()
        self._unheard, connection = None, self._connect()
        for result in results:
            result.answer = connection.ask_text(result.text, result.values)

    def sync(self) -> None:
        """Send all queued statements, and wait for their results."""
        with self._told():
            self._open.sync()

    @property
    def _open(self) -> Link:
        if self._link is None:
            raise StoreUnavailable(f"the connection to the search index was lost; {_THEN}")
        return self._link

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            self.close()
            raise translate(error, _THEN) from error

    # ----------------------------------------------------------------------------------- the log

    def log(self) -> Beside:
        """Return the log in the snapshot that is open."""
        if self._beside is None:
            raise StoreUnavailable(f"the search index has no open snapshot; {_THEN}")
        return self._beside

    def foresee(self, places: Sequence[Segment], titles: Sequence[str] | None = None) -> None:
        """Prefetch messages and titles of the log, and its highest activity."""
        self.log().expect(places, titles)

    def log_activity(self) -> int:
        """Return the highest activity number of the log; a lower one may be committed later.

        Raise `SchemaTooNew` if a newer version has migrated the tables.
        """
        found = self.log().activity()
        self.log().check_entered()
        return found

    def branches_of(
        self, scopes: Sequence[str], agents: Sequence[str], *, all_branches: bool
    ) -> list[int]:
        """Return the branches of the log that sessions of these scopes and agents can show."""
        return self.log().shown_in(scopes, agents, all_branches=all_branches)


def _millis(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
