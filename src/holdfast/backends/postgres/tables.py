"""The tables of a search index, reached by connections of their own.

Whoever indexes or searches holds one of these while it also reads the log, so they are not of the
pool: two who each hold one and wait for another would wait for each other. They hold nothing that
is not in the log as well, so their commits wait for no disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from holdfast.backends.postgres.failures import is_lost, translate
from holdfast.backends.postgres.link import Link
from holdfast.backends.postgres.rows import mark
from holdfast.backends.postgres.snapshot import Tenant
from holdfast.backends.postgres.target import Target
from holdfast.errors import StoreUnavailable

_CODE_LENGTH: Final = 5
# Words are common or rare, so a plan that is made for any word is good for none; and where many
# messages have one, they are still remembered one by one. Who erases holds the index meanwhile.
_SETTINGS: Final = """
SELECT set_config('plan_cache_mode', 'force_custom_plan', false), set_config('jit', 'off', false),
  set_config('synchronous_commit', 'off', false), set_config('work_mem', '32MB', false),
  set_config('idle_in_transaction_session_timeout', $1, false)
"""
_LOCK: Final = "SELECT pg_advisory_xact_lock($1)"
_PATIENCE: Final = "SELECT set_config('lock_timeout', $1, true)"
# Words of all scripts can be kept, and the role may look at the tables.
_USABLE: Final = """
SELECT getdatabaseencoding() = 'UTF8' AND coalesce(has_table_privilege(to_regclass('indexes'),
  'SELECT'), false) AND coalesce(has_table_privilege(to_regclass('indexed'), 'SELECT'), false)
"""
_THEN: Final = "the search index was not changed."


def usable(link: Link) -> bool:
    """Say whether an index can be kept in the tables of this database."""
    return link.ask_text(_USABLE).fetchone() == (True,)


class PostgresTables:
    """The tables of one tenant's index."""

    def __init__(self, target: Target, tenant: Tenant) -> None:
        """Reach them at this place."""
        self._target = target
        self._tenant = tenant
        self.shown = f"{target.shown} (tables {target.schema}.index*, tenant {tenant.name})"
        self.code = tenant.mark.hex[:_CODE_LENGTH]
        self.lock = int.from_bytes(
            mark(f"index of {target.schema}\0{tenant.name}").bytes[:8], "big", signed=True
        )

    def connect(self) -> TableLink:
        """Give a connection; it is made when it is needed."""
        return TableLink(self._target, self._tenant, self.lock)


class TableLink:
    """One connection to the tables. Its errors are said in our words."""

    def __init__(self, target: Target, tenant: Tenant, lock: int) -> None:
        """Remember where to connect to."""
        self._target = target
        self._tenant = tenant
        self._lock = lock
        self._link: Link | None = None

    def begin_reading(self) -> None:
        """Begin to read what is there at one moment."""
        self._begin(None)

    def begin_writing(self, patience: float) -> None:
        """Begin to write, alone; wait so long for others that do."""
        self._begin(patience)

    def _begin(self, patience: float | None) -> None:
        """Begin a transaction; on a new connection if the old one was lost meanwhile."""
        with self._told():
            if self._link is not None:
                try:
                    self._enter(self._link, patience)
                except psycopg.Error as error:
                    self.close()
                    if not is_lost(error):
                        raise
                else:
                    return
            self._link = Link(self._target)
            self._link.patience = self._target.statement
            self._link.ask_text(_SETTINGS, (_millis(self._target.statement),)).fetchall()
            self._enter(self._link, patience)

    def _enter(self, link: Link, patience: float | None) -> None:
        link.begin("begin_reading" if patience is None else "begin_writing")
        answer = link.ask("enter_reading", (self._tenant.mark,))
        if patience is not None:
            link.ask_text(_PATIENCE, (_millis(patience),))
            answer = link.ask_text(_LOCK, (self._lock,))
        answer.fetchall()

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Ask a statement and wait for its answer."""
        with self._told():
            return self._open.ask_text(text, values).fetchall()

    def send(self, text: str, values: Sequence[object] = ()) -> None:
        """Send a statement; what goes wrong with it shows later."""
        with self._told():
            self._open.ask_text(text, values)

    def send_many(self, text: str, values: Sequence[Sequence[object]]) -> None:
        """Send a statement once for each of several rows."""
        with self._told():
            for row in values:
                self._open.ask_text(text, row)

    def commit(self) -> None:
        """Keep what was written."""
        with self._told():
            self._open.commit()

    @property
    def _open(self) -> Link:
        if self._link is None:
            raise StoreUnavailable(f"the connection was lost; {_THEN}")
        return self._link

    def roll_back(self) -> None:
        """Undo what was written, and end what was read."""
        if self._link is None:
            return
        try:
            self._link.roll_back()
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        """Let go of the connection, in whatever state it is."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            self.close()
            raise translate(error, _THEN) from error


def _millis(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
