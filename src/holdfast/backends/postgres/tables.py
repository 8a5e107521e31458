"""The tables of a search index, reached by connections of their own.

Whoever indexes holds one of these while it also reads the log, so they are not of the pool: two who
each hold one and wait for another would wait for each other. Who searches reads both through one of
these, in one transaction. They hold nothing that is not in the log as well, so their commits wait
for no disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from holdfast.backends.postgres import beside
from holdfast.backends.postgres.beside import Beside
from holdfast.backends.postgres.failures import is_lost, translate
from holdfast.backends.postgres.link import Answer, Link
from holdfast.backends.postgres.paths import Paths
from holdfast.backends.postgres.rows import mark
from holdfast.backends.postgres.snapshot import Tenant
from holdfast.backends.postgres.statements import SQL
from holdfast.backends.postgres.target import Target
from holdfast.core.branches import Segment
from holdfast.errors import StoreUnavailable

_CODE_LENGTH: Final = 5
_THEN: Final = "the search index was not changed."


def usable(link: Link) -> bool:
    """Return whether an index can be kept in the tables of this database."""
    return link.ask_text(beside.SQL["usable"]).fetchone() == (True,)


class PostgresTables:
    """The tables of one tenant's index."""

    def __init__(self, target: Target, tenant: Tenant) -> None:
        """Reach them at this place."""
        self._target = target
        self._tenant = tenant
        self._paths = Paths()
        self.shown = f"{target.shown} (tables {target.schema}.index*, tenant {tenant.name})"
        self.code = tenant.mark.hex[:_CODE_LENGTH]
        self.lock = int.from_bytes(
            mark(f"index of {target.schema}\0{tenant.name}").bytes[:8], "big", signed=True
        )

    def connect(self) -> TableLink:
        """Return a connection; it is made when it is needed."""
        return TableLink(self._target, self._tenant, self.lock, self._paths)


class _Question:
    """A statement that was asked. If its connection was lost in between, it is asked again."""

    __slots__ = ("_link", "answer", "text", "values")

    def __init__(self, link: TableLink, text: str, values: Sequence[object]) -> None:
        self._link = link
        self.text = text
        self.values = values
        self.answer: Answer | None = None

    def fetchone(self) -> tuple[Any, ...] | None:
        found = self.fetchall()
        return found[0] if found else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._link.answer_to(self)


class TableLink:
    """One connection to the tables. Its errors are said in our words."""

    def __init__(self, target: Target, tenant: Tenant, lock: int, paths: Paths) -> None:
        """Remember where to connect to."""
        self._target = target
        self._tenant = tenant
        self._lock = lock
        self._paths = paths
        self._link: Link | None = None
        self._unheard: list[_Question] | None = None  # All since the begin, if nothing was heard.
        self._beside: Beside | None = None

    # ------------------------------------------------------------------------------ transactions

    def begin_reading(self) -> None:
        """Begin to read what is there at one moment; it is sent with the first question."""
        self._begin("begin_reading")
        self._beside = Beside(self, self._tenant, self._paths)
        self._beside.enter("enter_snapshot", self._target.reading)

    def begin_writing(self, patience: float) -> None:
        """Begin to write, alone; wait so long for others that do, with the first answer."""
        self._begin("begin_writing")
        self.ask("enter_reading", (self._tenant.mark,))
        self.ask_text(beside.SQL["lock_timeout"], (_millis(patience),))
        self.ask_text(beside.SQL["lock"], (self._lock,))

    def _begin(self, name: str) -> None:
        with self._told():
            if self._link is None:
                self._connect()
        self._unheard = []
        self.ask(name)

    def _connect(self) -> Link:
        self._link = link = Link(self._target)
        link.patience = self._target.statement
        link.ask_text(beside.SQL["settings"], (_millis(self._target.statement),)).fetchall()
        return link

    def commit(self) -> None:
        """Keep what was written."""
        with self._told():
            self._open.commit()

    def roll_back(self) -> None:
        """Undo what was written, and end what was read."""
        self._beside = None
        if self._link is None:
            return
        try:
            self._link.roll_back()
            lost = not self._link.idle  # Somebody was interrupted in the middle of an answer.
        except psycopg.Error:
            lost = True
        if lost:
            self.close()

    def close(self) -> None:
        """Let go of the connection, in whatever state it is."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    # ---------------------------------------------------------------------------------- asking

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Ask a statement and wait for its answer."""
        return self.ask_text(text, values).fetchall()

    def send(self, text: str, values: Sequence[object] = ()) -> _Question:
        """Send a statement; what it gives, or what goes wrong with it, shows later."""
        return self.ask_text(text, values)

    def ask(self, name: str, values: Sequence[object] = ()) -> _Question:
        """Ask a statement of the log by its name."""
        return self.ask_text(SQL[name], values)

    def ask_text(self, text: str, values: Sequence[object]) -> _Question:
        """Ask a statement."""
        question = _Question(self, text, values)
        with self._told():
            question.answer = self._open.ask_text(text, values)
        if self._unheard is not None:
            self._unheard.append(question)
        return question

    def answer_to(self, question: _Question) -> list[tuple[Any, ...]]:
        """Wait for the answer to a question.

        A connection that lay idle may be lost without anybody knowing: if nothing was heard yet,
        all is asked again on a new one.
        """
        assert question.answer is not None  # noqa: S101 - it was asked
        with self._told():
            try:
                found = question.answer.fetchall()
            except psycopg.Error as error:
                if self._unheard is None or not is_lost(error):
                    raise
                self._ask_again(self._unheard)
                found = question.answer.fetchall()
        self._unheard = None
        return found

    def _ask_again(self, questions: Sequence[_Question]) -> None:
        self.close()
        self._unheard, link = None, self._connect()
        for question in questions:
            question.answer = link.ask_text(question.text, question.values)

    def sync(self) -> None:
        """Wait until all that was asked is answered."""
        with self._told():
            self._open.sync()

    @property
    def _open(self) -> Link:
        if self._link is None:
            raise StoreUnavailable(f"the connection was lost; {_THEN}")
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
        """Return the log, as of the moment that is read."""
        if self._beside is None:
            raise StoreUnavailable(f"nothing is read at the moment; {_THEN}")
        return self._beside

    def foresee(self, places: Sequence[Segment], titles: Sequence[str] | None = None) -> None:
        """Ask the log for messages and titles that will be looked at, and how far it is."""
        self.log().expect(places, titles)

    def log_activity(self) -> int:
        """Tell the highest activity of the log, whoever is still to commit a lower one.

        Refuse a log whose tables were changed by a newer version.
        """
        found = self.log().activity()
        self.log().check_entered()
        return found

    def branches_of(
        self, scopes: Sequence[str], agents: Sequence[str], *, all_branches: bool
    ) -> list[int]:
        """Name the branches of the log that sessions of these scopes and agents may show."""
        return self.log().shown_in(scopes, agents, all_branches=all_branches)


def _millis(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
