"""An index in tables of the store's own database, with the full-text search of PostgreSQL.

A row is a message. The server's index of lexemes finds the messages that contain the wanted words,
without their positions: a `tsvector` stores only the first positions of a word. Whether words are
adjacent, and how often they occur, is determined from the words themselves, which are stored in
order and padded with spaces (`tsquery`).

Each write and the index's progress are one transaction under an exclusive lock, so a reader sees
all of a write or nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, StoreFull, StoreUnavailable
from holdfast.search import tokenize as words_module
from holdfast.search.protocol import (
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
from holdfast.search.query import Query
from holdfast.search.tokenize import parts, words
from holdfast.search.tsquery import CHUNK, PROBED, SQL, Asked, Statement, listed, spaced
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Rows, Snapshot, TableLink, Tables

SCHEMA_VERSION: Final = 1
_REMOVED_AT_ONCE: Final = 20_000
_PATIENCE: Final = 5.0  # how long the removal of an index waits for other writers
_COMMON: Final = 4  # a scan starts if one of so many messages has the words
_UNCOMMON: Final = 16  # and ends when fewer than one of so many has them
_ONE_BY_ONE: Final = 4000  # up to so many messages are scanned in any case
_LONGEST_STEP: Final = 20_000
_BLOCK_BITS: Final = 14  # a block has 2^14 numbers; lexemes are prefixed with their block
_FIRST_BLOCKS: Final = 2
_MOST_BLOCKS: Final = 64  # in one query


def stamp() -> str:
    """Return the version of the index format."""
    return f"{SCHEMA_VERSION} {words_module.VERSION}"


def _age(stamp: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", stamp)))


@contextmanager
def telling() -> Iterator[None]:
    """Translate the database's errors into those of an index: none may pass for the log's."""
    try:
        yield
    except (StoreUnavailable, StoreFull) as error:
        raise Hindered(str(error)) from error
    except HoldfastError as error:  # The tables are damaged, or have a number twice.
        raise Lost(str(error)) from error


class TablePlace:
    """The tables of a store's index."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.shown = tables.shown

    def open(self, *, readonly: bool = False) -> IndexTable | None:  # noqa: ARG002 - no difference
        """Open the index; None if there is none."""
        table = IndexTable(self._tables)
        try:
            exists = table.is_there()
        except BaseException:
            table.close()
            raise
        if exists:
            return table
        table.close()
        return None

    def create(self) -> None:
        """Create an empty index, unless another process just did."""
        with telling():
            self._clear(_create)

    def remove(self) -> None:
        """Remove the index. Open snapshots stay readable; later ones find that it is gone."""
        with telling():
            connection = self._tables.connect()
            try:
                connection.begin_writing(_PATIENCE)
                connection.send(SQL["remove"])
                connection.commit()
            finally:
                connection.close()
            self._clear(_leave)

    def _clear(self, then: Callable[[TableLink], None]) -> None:
        """Delete the rows of a removed index, unless another process has created a new one."""
        connection = self._tables.connect()
        try:
            while True:
                connection.begin_writing(_PATIENCE)
                if connection.rows(SQL["state"]):
                    connection.roll_back()
                    return
                ((removed,),) = connection.rows(SQL["remove_rows"], (_REMOVED_AT_ONCE,))
                done = removed < _REMOVED_AT_ONCE
                if done:
                    then(connection)
                connection.commit()
                if done:
                    return
        finally:
            connection.close()


def _create(connection: TableLink) -> None:
    connection.send(SQL["create"], (stamp(),))


def _leave(connection: TableLink) -> None:
    """Create no index."""


class _State(msgspec.Struct):
    """The state of an index: its row in the table `indexes`."""

    stamp: str
    activity: int
    erasures: int | None
    anchor: Anchor | None
    newest: int
    documents: int
    text: int
    highest: int  # the highest number in the index

    def values(self) -> tuple[object, ...]:
        """Return the column values of the row."""
        anchor = (None,) * 3 if self.anchor is None else msgspec.structs.astuple(self.anchor)
        counts = (self.newest, self.documents, self.text)
        return (self.stamp, self.activity, self.erasures, *anchor, *counts)


def _read_state(row: Sequence[Any]) -> _State:
    stamp, activity, erasures, branch, seq, crc, *counts = row
    anchor = None if branch is None else Anchor(branch, seq, crc)
    return _State(stamp, activity, erasures, anchor, *counts)


class IndexTable:
    """An index in tables, opened by one connection."""

    needs_words: Final = False
    far: Final = True

    def __init__(self, tables: Tables) -> None:
        self.shown = tables.shown
        self._code = tables.code
        self._link = tables.connect()
        self._patience = BUSY
        self._known: _State | None = None
        self._foreseen: _Foreseen | None = None

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def disown(self) -> None:
        """Close the connection in a forked child; that does not affect the parent's."""
        self._link.close()

    def moved(self) -> bool:
        """Return False: every transaction reads the state of the index again."""
        return False

    def be_patient(self, seconds: float) -> None:
        """Set how long to wait for another writer."""
        self._patience = seconds

    def is_there(self) -> bool:
        """True if there is an index, or rows of one that was not removed completely."""
        with telling():
            self._link.begin_reading()
            try:
                return bool(self._link.rows(SQL["state"])) or self._is_left()
            finally:
                self._link.roll_back()

    def _is_left(self) -> bool:
        return self._link.rows(SQL["has_rows"]) == [(True,)]

    @contextmanager
    def reading(self, prefetch: Wanted | None = None) -> Iterator[None]:
        """Read everything in the block from one snapshot.

        The reads that `prefetch` and the last known state predict are sent together with the query
        for the state, which saves round trips.
        """
        with telling():
            self._link.begin_reading()
        try:
            with telling():
                state = self._link.send(SQL["state"])
                if prefetch is not None:
                    self._foresee(prefetch)
                found = state.fetchall()
            self._learn(found)
            yield
        finally:
            self._foreseen = None
            self._link.roll_back()

    def _foresee(self, prefetch: Wanted) -> None:
        anchor = None if self._known is None else self._known.anchor
        anchors = [] if anchor is None else [Segment(anchor.branch, anchor.seq, anchor.seq, "")]
        self._link.foresee(anchors, prefetch.titles)
        statements = Asked(prefetch.query, prefetch.bounds, self._code, thinking=prefetch.thinking)
        if not statements.wanted or not prefetch.certain or self._known is None:
            return
        few = self._known.highest <= _ONE_BY_ONE
        ahead = statements.by_lexemes(_first_blocks(_ONE_BY_ONE)) if few else statements.probe()
        answer = self._link.send(ahead.text, ahead.values)
        self._foreseen = _Foreseen(prefetch.query, prefetch.bounds, prefetch.thinking, few, answer)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run the block as one write transaction; it excludes other writers."""
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
        """Raise `IndexInvalid` if rows of a removed index are left: they must be deleted first."""
        with telling():
            if self._is_left():
                raise Lost("the index was not removed completely")

    def _learn(self, rows: Sequence[Sequence[Any]]) -> _State:
        """Take over the state that was read; raise if the index cannot be used."""
        if not rows:
            raise Gone("the index was removed")
        self._known = _read_state(rows[0])
        if _age(self._known.stamp) > _age(stamp()):
            raise Hindered("the index was made by a newer version")  # Which may still use it.
        if self._known.stamp != stamp():
            raise Lost("the index is of another version")
        return self._known

    @contextmanager
    def open_log(self, backend: Backend) -> Iterator[tuple[Snapshot, bool]]:  # noqa: ARG002 - it is in the same database
        """Open the log in the transaction in which the index is read."""
        log = self._link.log()
        try:
            yield log, self._link.log_activity() > self.activity
        except (StoreUnavailable, StoreFull) as error:
            # Only this connection failed; the log can still be read by others.
            raise Hindered(str(error)) from error

    def expect(self, segments: Sequence[Segment]) -> None:
        """Prefetch messages of the log that will probably be read next."""
        with telling():
            self._link.foresee(segments)

    def narrowed(
        self, scopes: Sequence[str], agents: Sequence[str], *, all_branches: bool
    ) -> tuple[int, ...] | None:
        """Return the branches that such sessions may show, so that no others are searched."""
        with telling():
            return tuple(self._link.branches_of(scopes, agents, all_branches=all_branches))

    @property
    def _state(self) -> _State:
        if self._known is None:
            raise Hindered("the state of the index was not read yet")
        return self._known

    # -------------------------------------------------------------------------------- contents

    @property
    def activity(self) -> int:
        """The activity number of the log up to which everything is indexed."""
        return self._state.activity

    @property
    def erasures(self) -> int | None:
        """The number of erasures in the log when it was last updated; None if it is new."""
        return self._state.erasures

    @property
    def anchor(self) -> Anchor | None:
        """The message that was indexed last."""
        return self._state.anchor

    @anchor.setter
    def anchor(self, anchor: Anchor | None) -> None:
        self._state.anchor = anchor

    def put_meta(self, **values: int) -> None:
        """Change the state; it is stored when the transaction commits."""
        for name, value in values.items():
            setattr(self._state, name, value)

    def documents(self) -> int:
        """Return the number of indexed messages."""
        return self._state.documents

    def text(self) -> int:
        """Return the approximate number of characters in the indexed messages."""
        return self._state.text

    def newest(self) -> tuple[int, int] | None:
        """Return branch and seq of the message that was added last."""
        rows = self._rows("newest")
        return (rows[0][0], rows[0][1]) if rows else None

    def last(self, branch: int) -> int:
        """Return the seq of a branch up to which all messages are indexed; 0 for none."""
        return self._rows("last", branch)[0][0] or 0

    def counts(self) -> dict[int, int]:
        """Return the number of indexed messages by branch."""
        return dict(self._rows("counts"))

    def size(self) -> int:
        """Return its approximate size in bytes."""
        found: int = self._rows("size")[0][0]
        return found

    def problems(self) -> list[str]:
        """Read the whole index and return what is wrong with it."""
        found = [
            f"the words of message {seq} of branch {branch} do not match their checksum"
            for branch, seq in self._rows("corrupt_rows")
        ]
        stored = sum(self.counts().values())
        if stored != self._state.documents:
            found.append(f"the index should have {self._state.documents} messages and has {stored}")
        return found

    def _rows(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        with telling():
            return self._link.rows(SQL[name], values)

    # ----------------------------------------------------------------------- adding, removing

    def add(self, docs: Sequence[Doc]) -> None:
        """Add consecutive messages of one branch."""
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
        erased: Sequence[Segment],
        docs: Sequence[Doc],  # noqa: ARG002 - rows are found by position here
    ) -> None:
        """Remove the words of messages; their rows stay, without words."""
        for part in erased:
            values = (part.branch, part.first, part.last or 0)
            self._state.text -= self._rows("weight", *values)[0][0]
            with telling():
                self._link.send(SQL["forget"], values)

    def cut(self, branch: int, last: int) -> None:
        """Remove the rows of a branch after `last`; their words are removed already."""
        self._state.documents -= self._rows("cut", branch, last)[0][0]

    def wipe(self) -> None:
        """Do nothing: the server overwrites free space when it uses it again."""

    # -------------------------------------------------------------------------------- querying

    def matching(self, query: Query, bounds: Bounds, *, thinking: bool) -> Iterator[Chunk]:
        """Return the messages with all wanted and no unwanted words, the last added first.

        Terms without words are ignored: for those the caller checks the texts. Few messages, and
        messages with common words, are scanned one by one. Otherwise the index of lexemes is
        queried, block by block.
        """
        statements = Asked(query, bounds, self._code, thinking=thinking)
        prefetched = self._take_foreseen(query, bounds, thinking=thinking)
        before = self._state.highest + 1
        if not statements.wanted or self._are_few(bounds.branches):
            yield from self._pages(statements, statements.one_by_one(), before)
            return
        if self._are_common(statements, prefetched):
            for chunk, low in self._one_by_one(statements, before):
                before = low
                yield chunk
        yield from self._by_lexemes(statements, before, prefetched)

    def _take_foreseen(self, query: Query, bounds: Bounds, *, thinking: bool) -> _Foreseen | None:
        """Return the prefetched rows, if they are of this query and the index is still as small."""
        found, self._foreseen = self._foreseen, None
        if found is None or (found.query, found.bounds, found.thinking) != (
            query,
            bounds,
            thinking,
        ):
            return None
        return found if found.few == (self._state.highest <= _ONE_BY_ONE) else None

    def _are_few(self, branches: Sequence[int] | None) -> bool:
        """True if these branches have so few messages that a scan is faster."""
        if branches is None:
            return False
        found: int = self._rows("count_on", listed(branches), _ONE_BY_ONE)[0][0]
        return found < _ONE_BY_ONE

    def _are_common(self, statements: Asked, prefetched: _Foreseen | None) -> bool:
        """True if many messages have the words, judging by the newest ones."""
        if self._state.highest <= _ONE_BY_ONE:
            return False
        probe = statements.probe()
        with telling():
            answer = prefetched.answer if prefetched else self._link.send(probe.text, probe.values)
            found: int = answer.fetchall()[0][0]
        return found * _COMMON >= PROBED

    def _one_by_one(self, statements: Asked, before: int) -> Iterator[tuple[Chunk, int]]:
        """Scan backwards from the newest message while enough messages match."""
        highest, found, step = before, 0, _COMMON * CHUNK
        while before > 1 and found * _UNCOMMON >= highest - before:
            if found:
                step = min(_LONGEST_STEP, max(step, 2 * CHUNK * (highest - before) // found))
            low = max(1, before - step)
            rows = self._ask(statements.newest(low), before)
            before = rows[-1][6] if len(rows) == CHUNK else low
            chunk = statements.chunk(rows)
            found += len(chunk.entries)
            yield chunk, before

    def _by_lexemes(
        self, statements: Asked, before: int, prefetched: _Foreseen | None
    ) -> Iterator[Chunk]:
        """Query the index of lexemes by blocks; the fewer messages match, the more per query."""
        blocks = _first_blocks(before - 1) if before > 1 else []
        ready = prefetched.answer if prefetched is not None and prefetched.few else None
        while blocks:
            found = 0
            for chunk in self._pages(statements, statements.by_lexemes(blocks), before, ready):
                found += len(chunk.entries)
                yield chunk
            ready, size = None, len(blocks) * CHUNK // max(1, found) + 1
            blocks = _blocks_before(blocks[-1], min(size, _MOST_BLOCKS))

    def _pages(
        self, statements: Asked, statement: Statement, before: int, ready: Rows | None = None
    ) -> Iterator[Chunk]:
        """Return the matches of a statement, page by page."""
        while True:
            if ready is None:
                rows = self._ask(statement, before)
            else:
                with telling():
                    rows = ready.fetchall()
                ready = None
            yield statements.chunk(rows)
            if len(rows) < CHUNK:
                return
            before = rows[-1][6]

    def _ask(self, statement: Statement, before: int) -> list[tuple[Any, ...]]:
        with telling():
            return self._link.rows(statement.text, [before, *statement.values[1:]])


def _first_blocks(highest: int) -> list[int]:
    return _blocks_before((highest >> _BLOCK_BITS) + 1, _FIRST_BLOCKS)


def _blocks_before(block: int, size: int) -> list[int]:
    """Return the blocks of numbers before one, newest first."""
    return list(range(block - 1, max(block - 1 - size, -1), -1))


class _Foreseen(msgspec.Struct, frozen=True):
    """A prefetched answer: matches if the index is small (`few`), otherwise a probe."""

    query: Query
    bounds: Bounds
    thinking: bool
    few: bool
    answer: Rows


def _weight(doc: Doc) -> int:
    return len(doc.document.text) + len(doc.document.thinking)


def _columns(rows: Sequence[Sequence[Any]]) -> list[object]:
    """Transpose rows into one array per column."""
    *numbers, said, thought = zip(*rows, strict=True)
    return [*map(listed, numbers), list(said), list(thought)]
