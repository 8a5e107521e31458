"""An index in tables of the store's own database, with its text search.

A row is a message. The engine's index of lexemes tells in which messages the words are that are
wanted, wherever they stand: it keeps no places, since it could keep only the first of many. Whether
they stand next to each other, and how often, is counted in the words themselves, which are kept in
order between spaces of their own (`phrasing`).

What is written is written in one transaction with how far the index is, behind a lock that one has
at a time. A reader sees all of it or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast.backends.base import Backend, Rows, Snapshot, TableLink, Tables
from holdfast.core.branches import Segment
from holdfast.core.search import words as words_module
from holdfast.core.search.query import Query
from holdfast.core.search.words import parts, words
from holdfast.errors import HoldfastError, StoreFull, StoreUnavailable
from holdfast.index.kept import (
    BUSY,
    LOST,
    ROLES,
    Anchor,
    Bounds,
    Chunk,
    Doc,
    Gone,
    Hindered,
    Lost,
    Wanted,
    mark_of,
)
from holdfast.index.phrasing import CHUNK, PROBED, SQL, Asked, Statement, listed, spaced

SCHEMA_VERSION: Final = 1
_REMOVED_AT_ONCE: Final = 20_000
_PATIENCE: Final = 5.0  # seconds that whoever removes an index waits for others
_COMMON: Final = 4  # what one message of so many has is found by looking at one after the other
_UNCOMMON: Final = 16  # what fewer have is not any more
_ONE_BY_ONE: Final = 4000  # messages of some branches that are, whatever is wanted
_LONGEST_STEP: Final = 20_000
_BLOCK_BITS: Final = 14  # of the numbers in a block, by which lexemes are told apart
_FIRST_BLOCKS: Final = 2
_MOST_BLOCKS: Final = 64  # that are asked for at once


def stamp() -> str:
    """Name the form of an index."""
    return f"{SCHEMA_VERSION} {words_module.VERSION}"


def _age(stamp: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", stamp)))


@contextmanager
def telling() -> Iterator[None]:
    """Say the errors of the tables in the words of an index: those of the log are another's."""
    try:
        yield
    except (StoreUnavailable, StoreFull) as error:
        raise Hindered(str(error)) from error
    except HoldfastError as error:  # It is damaged, or has a number twice.
        raise Lost(str(error)) from error


class TablePlace:
    """The tables that the index of a store is kept in."""

    def __init__(self, tables: Tables) -> None:
        """Keep it in these."""
        self._tables = tables
        self.shown = tables.shown

    def open(self, *, readonly: bool = False) -> IndexTable | None:  # noqa: ARG002 - no difference
        """Open the index that is there."""
        table = IndexTable(self._tables)
        try:
            there = table.is_there()
        except BaseException:
            table.close()
            raise
        if there:
            return table
        table.close()
        return None

    def create(self) -> None:
        """Make an empty index, unless somebody just did."""
        with telling():
            self._clear(_create)

    def remove(self) -> None:
        """Take the index away; whoever uses it goes on with what it sees, and then notices."""
        with telling():
            link = self._tables.connect()
            try:
                link.begin_writing(_PATIENCE)
                link.send(SQL["remove"])
                link.commit()
            finally:
                link.close()
            self._clear(_leave)

    def _clear(self, then: Callable[[TableLink], None]) -> None:
        """Remove the rows of an index that is none any more, unless somebody began a new one."""
        link = self._tables.connect()
        try:
            while True:
                link.begin_writing(_PATIENCE)
                if link.rows(SQL["state"]):
                    link.roll_back()
                    return
                ((removed,),) = link.rows(SQL["remove_rows"], (_REMOVED_AT_ONCE,))
                done = removed < _REMOVED_AT_ONCE
                if done:
                    then(link)
                link.commit()
                if done:
                    return
        finally:
            link.close()


def _create(link: TableLink) -> None:
    link.send(SQL["create"], (stamp(),))


def _leave(link: TableLink) -> None:
    """Leave nothing in its place."""


class _State(msgspec.Struct):
    """How far an index is."""

    stamp: str
    activity: int
    erasures: int | None
    anchor: Anchor | None
    newest: int
    documents: int
    text: int
    highest: int  # the highest number that is there

    def values(self) -> tuple[object, ...]:
        """Return the values of its row."""
        anchor = (None,) * 3 if self.anchor is None else msgspec.structs.astuple(self.anchor)
        counts = (self.newest, self.documents, self.text)
        return (self.stamp, self.activity, self.erasures, *anchor, *counts)


def _read_state(row: Sequence[Any]) -> _State:
    stamp, activity, erasures, branch, seq, crc, *counts = row
    anchor = None if branch is None else Anchor(branch, seq, crc)
    return _State(stamp, activity, erasures, anchor, *counts)


class IndexTable:
    """An index, reached by one connection."""

    needs_words: Final = False
    far: Final = True

    def __init__(self, tables: Tables) -> None:
        """Reach it in these tables."""
        self.shown = tables.shown
        self._code = tables.code
        self._link = tables.connect()
        self._patience = BUSY
        self._known: _State | None = None
        self._foreseen: _Foreseen | None = None

    def close(self) -> None:
        """Let go of it."""
        self._link.close()

    def disown(self) -> None:
        """Let go of it in a forked child; the connection knows whose it is."""
        self._link.close()

    def moved(self) -> bool:
        """Say no: what is there is looked at whenever something is asked."""
        return False

    def be_patient(self, seconds: float) -> None:
        """Wait so long for others that write."""
        self._patience = seconds

    def is_there(self) -> bool:
        """Return whether there is an index, or what is left of one."""
        with telling():
            self._link.begin_reading()
            try:
                return bool(self._link.rows(SQL["state"])) or self._is_left()
            finally:
                self._link.roll_back()

    def _is_left(self) -> bool:
        return self._link.rows(SQL["left"]) == [(True,)]

    @contextmanager
    def reading(self, wanted: Wanted | None = None) -> Iterator[None]:
        """Let everything that is read be of one moment.

        With how far it is, all is asked for that will be looked at, as far as that can be known:
        from what is wanted, and from what was there the last time.
        """
        with telling():
            self._link.begin_reading()
        try:
            with telling():
                state = self._link.send(SQL["state"])
                if wanted is not None:
                    self._foresee(wanted)
                found = state.fetchall()
            self._learn(found)
            yield
        finally:
            self._foreseen = None
            self._link.roll_back()

    def _foresee(self, wanted: Wanted) -> None:
        anchor = None if self._known is None else self._known.anchor
        place = [] if anchor is None else [Segment(anchor.branch, anchor.seq, anchor.seq, "")]
        self._link.foresee(place, wanted.titles)
        asked = Asked(wanted.query, wanted.bounds, self._code, thinking=wanted.thinking)
        if not asked.wanted or not wanted.certain or self._known is None:
            return
        few = self._known.highest <= _ONE_BY_ONE
        ahead = asked.by_lexemes(_first_blocks(_ONE_BY_ONE)) if few else asked.probe()
        answer = self._link.send(ahead.text, ahead.values)
        self._foreseen = _Foreseen(wanted.query, wanted.bounds, wanted.thinking, few, answer)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Change it, all or nothing; nobody else does meanwhile."""
        with telling():
            self._link.begin_writing(self._patience)
        try:
            found = self._rows("state")
            if not found:
                self._refuse_rest()
            before = self._learn(found).values()
            yield
            with telling():
                if self._state.values() != before:
                    self._link.send(SQL["put_state"], self._state.values())
                self._link.commit()
        except BaseException:
            self._link.roll_back()
            raise

    def _refuse_rest(self) -> None:
        """Refuse what is left of an index that somebody began to remove: it has to go first."""
        with telling():
            if self._is_left():
                raise Lost("it was removed, and not all of it")

    def _learn(self, rows: Sequence[Sequence[Any]]) -> _State:
        """Learn how far it is; refuse one that cannot be used."""
        if not rows:
            raise Gone("it was removed")
        self._known = _read_state(rows[0])
        if _age(self._known.stamp) > _age(stamp()):
            raise Hindered("it was made by a newer version")  # Which goes on to use it.
        if self._known.stamp != stamp():
            raise Lost("it is of another version")
        return self._known

    @contextmanager
    def open_log(self, backend: Backend) -> Iterator[tuple[Snapshot, bool]]:  # noqa: ARG002 - it is in the same database
        """Open the log in the transaction in which the index is read."""
        log = self._link.log()
        try:
            yield log, self._link.log_activity() > self.activity
        except (StoreUnavailable, StoreFull) as error:
            raise Hindered(str(error)) from error  # The log has connections of its own.

    def expect(self, places: Sequence[Segment]) -> None:
        """Ask the log for messages that will probably be read next."""
        with telling():
            self._link.foresee(places)

    def narrowed(
        self, scopes: Sequence[str], agents: Sequence[str], *, all_branches: bool
    ) -> tuple[int, ...] | None:
        """Name the branches that such sessions may show: what is said elsewhere is not read."""
        with telling():
            return tuple(self._link.branches_of(scopes, agents, all_branches=all_branches))

    @property
    def _state(self) -> _State:
        if self._known is None:
            raise Hindered("nothing of it was read yet")
        return self._known

    # --------------------------------------------------------------------------- what it holds

    @property
    def activity(self) -> int:
        """Up to which activity of the log it has everything."""
        return self._state.activity

    @property
    def erasures(self) -> int | None:
        """How many erasures of the log it knows of; nothing if it is new."""
        return self._state.erasures

    @property
    def anchor(self) -> Anchor | None:
        """The message that was indexed last."""
        return self._state.anchor

    @anchor.setter
    def anchor(self, anchor: Anchor | None) -> None:
        self._state.anchor = anchor

    def put_meta(self, **values: int) -> None:
        """Note how far it is."""
        for name, value in values.items():
            setattr(self._state, name, value)

    def documents(self) -> int:
        """Count the messages it has."""
        return self._state.documents

    def text(self) -> int:
        """Tell about how much is said in the messages it has."""
        return self._state.text

    def newest(self) -> tuple[int, int] | None:
        """Return where the message lies that was added last."""
        rows = self._rows("newest")
        return (rows[0][0], rows[0][1]) if rows else None

    def last(self, branch: int) -> int:
        """Return up to which message of a branch it has them all; 0 for none."""
        return self._rows("last", branch)[0][0] or 0

    def counts(self) -> dict[int, int]:
        """Count the messages it has of each branch."""
        return dict(self._rows("counts"))

    def size(self) -> int:
        """Tell how many bytes it takes, about."""
        found: int = self._rows("size")[0][0]
        return found

    def problems(self) -> list[str]:
        """Read all of it and say what is wrong with it."""
        found = [
            f"the words of message {seq} of branch {branch} are not those that were added"
            for branch, seq in self._rows("misfits")
        ]
        there = sum(self.counts().values())
        if there != self._state.documents:
            found.append(f"it should have {self._state.documents} messages and has {there}")
        return found

    def _rows(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        with telling():
            return self._link.rows(SQL[name], values)

    # ------------------------------------------------------------------------- adding, dropping

    def add(self, docs: Sequence[Doc]) -> None:
        """Add messages that follow each other on one branch."""
        state = self._state
        rows = [self._row(number, doc) for number, doc in enumerate(docs, state.newest + 1)]
        with telling():
            self._link.send(SQL["add"], _columns(rows))
        state.newest += len(docs)
        state.documents += len(docs)
        state.text += sum(_weight(doc) for doc in docs)

    def _row(self, number: int, doc: Doc) -> tuple[object, ...]:
        text, thinking = words(doc.document.text), words(doc.document.thinking)
        length = LOST if doc.lost else len(text)
        said = spaced(text)
        if names := parts(doc.document.text):
            said = f"{said}\n{spaced(names)}"
        return (
            number, doc.branch, doc.seq, ROLES.index(doc.role), doc.at, length, len(thinking),
            mark_of(doc.id), _weight(doc), said, spaced(thinking),
        )  # fmt: skip

    def forget(
        self,
        doomed: Sequence[Segment],
        docs: Sequence[Doc],  # noqa: ARG002 - it knows the words by their message
    ) -> None:
        """Drop the words of messages; their places stay, as if they had said nothing."""
        for part in doomed:
            place = (part.branch, part.first, part.last or 0)
            self._state.text -= self._rows("weight", *place)[0][0]
            with telling():
                self._link.send(SQL["forget"], place)

    def cut(self, branch: int, last: int) -> None:
        """Forget the places of a branch behind `last`; their words are dropped already."""
        self._state.documents -= self._rows("cut", branch, last)[0][0]

    def wipe(self) -> None:
        """Leave it to the server, which overwrites what is free when it needs the room."""

    # ---------------------------------------------------------------------------------- asking

    def matching(self, query: Query, bounds: Bounds, *, thinking: bool) -> Iterator[Chunk]:
        """Return what has the words that are wanted and none that is not, the last added first.

        Terms without words are left out: whoever asks looks at the texts. Messages are looked at
        one after the other if there are few, or if the words are common. Otherwise the index of
        lexemes tells where to look, block by block.
        """
        asked = Asked(query, bounds, self._code, thinking=thinking)
        foreseen = self._take_foreseen(query, bounds, thinking=thinking)
        before = self._state.highest + 1
        if not asked.wanted or self._are_few(bounds.branches):
            yield from self._pages(asked, asked.one_by_one(), before)
            return
        if self._are_common(asked, foreseen):
            for chunk, low in self._one_by_one(asked, before):
                before = low
                yield chunk
        yield from self._by_lexemes(asked, before, foreseen)

    def _take_foreseen(self, query: Query, bounds: Bounds, *, thinking: bool) -> _Foreseen | None:
        """Return what was asked ahead, if it is what is wanted, and the index is still as small."""
        found, self._foreseen = self._foreseen, None
        if found is None or (found.query, found.bounds, found.thinking) != (
            query,
            bounds,
            thinking,
        ):
            return None
        return found if found.few == (self._state.highest <= _ONE_BY_ONE) else None

    def _are_few(self, branches: Sequence[int] | None) -> bool:
        """Return whether some branches have few messages."""
        if branches is None:
            return False
        found: int = self._rows("count_on", listed(branches), _ONE_BY_ONE)[0][0]
        return found < _ONE_BY_ONE

    def _are_common(self, asked: Asked, foreseen: _Foreseen | None) -> bool:
        """Return whether many messages have the words, going by the newest ones."""
        if self._state.highest <= _ONE_BY_ONE:
            return False
        probe = asked.probe()
        with telling():
            answer = foreseen.answer if foreseen else self._link.send(probe.text, probe.values)
            found: int = answer.fetchall()[0][0]
        return found * _COMMON >= PROBED

    def _one_by_one(self, asked: Asked, before: int) -> Iterator[tuple[Chunk, int]]:
        """Go back message by message, while many are found so."""
        highest, found, step = before, 0, _COMMON * CHUNK
        while before > 1 and found * _UNCOMMON >= highest - before:
            if found:
                step = min(_LONGEST_STEP, max(step, 2 * CHUNK * (highest - before) // found))
            low = max(1, before - step)
            rows = self._ask(asked.newest(low), before)
            before = rows[-1][6] if len(rows) == CHUNK else low
            chunk = asked.chunk(rows)
            found += len(chunk.entries)
            yield chunk, before

    def _by_lexemes(self, asked: Asked, before: int, foreseen: _Foreseen | None) -> Iterator[Chunk]:
        """Ask the index of lexemes, block by block: for more of them if few messages are found."""
        blocks = _first_blocks(before - 1) if before > 1 else []
        ready = foreseen.answer if foreseen is not None and foreseen.few else None
        while blocks:
            found = 0
            for chunk in self._pages(asked, asked.by_lexemes(blocks), before, ready):
                found += len(chunk.entries)
                yield chunk
            ready, size = None, len(blocks) * CHUNK // max(1, found) + 1
            blocks = _blocks_before(blocks[-1], min(size, _MOST_BLOCKS))

    def _pages(
        self, asked: Asked, statement: Statement, before: int, ready: Rows | None = None
    ) -> Iterator[Chunk]:
        """Return what a statement finds, page by page."""
        while True:
            if ready is None:
                rows = self._ask(statement, before)
            else:
                with telling():
                    rows = ready.fetchall()
                ready = None
            yield asked.chunk(rows)
            if len(rows) < CHUNK:
                return
            before = rows[-1][6]

    def _ask(self, statement: Statement, before: int) -> list[tuple[Any, ...]]:
        with telling():
            return self._link.rows(statement.text, [before, *statement.values[1:]])


def _first_blocks(highest: int) -> list[int]:
    return _blocks_before((highest >> _BLOCK_BITS) + 1, _FIRST_BLOCKS)


def _blocks_before(block: int, size: int) -> list[int]:
    """Return the blocks of numbers before one, the newest first."""
    return list(range(block - 1, max(block - 1 - size, -1), -1))


class _Foreseen(msgspec.Struct, frozen=True):
    """What was asked ahead: what has the words, of an index with few messages, or a probe."""

    query: Query
    bounds: Bounds
    thinking: bool
    few: bool
    answer: Rows


def _weight(doc: Doc) -> int:
    return len(doc.document.text) + len(doc.document.thinking)


def _columns(rows: Sequence[Sequence[Any]]) -> list[object]:
    """Put the values of several rows together, column by column."""
    *numbers, said, thought = zip(*rows, strict=True)
    return [*map(listed, numbers), list(said), list(thought)]
