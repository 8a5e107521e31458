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
    BUSY_TIMEOUT_S,
    ROLES,
    UNSEARCHABLE_LENGTH,
    Anchor,
    Bounds,
    Chunk,
    IndexBusy,
    IndexedMessage,
    IndexInvalid,
    IndexReplaced,
    IndexUnavailable,
    SearchPrefetch,
    id_hash,
)
from holdfast.search.query import Query
from holdfast.search.tokenize import parts, words
from holdfast.search.tsquery import (
    CHUNK,
    PROBE_MESSAGES,
    SQL,
    QueryStatements,
    Statement,
    array_literal,
    pad_tokens,
)
from holdfast.storage.ancestry import Segment
from holdfast.storage.index_tables import IndexConnection, IndexTables, PendingRows
from holdfast.storage.protocol import Backend, Snapshot

SCHEMA_VERSION: Final = 1
_REMOVE_BATCH: Final = 20_000
_REMOVE_TIMEOUT_S: Final = 5.0  # how long the removal of an index waits for other writers
_SCAN_START_RATIO: Final = 4  # a scan starts if one of so many messages has the words
_SCAN_END_RATIO: Final = 16  # and ends when fewer than one of so many has them
_FEW_MESSAGES: Final = 4000  # up to so many messages are scanned in any case
_MAX_STEP: Final = 20_000
_BLOCK_BITS: Final = 14  # a block has 2^14 numbers; lexemes are prefixed with their block
_FIRST_BLOCKS: Final = 2
_MAX_BLOCKS: Final = 64  # in one query


def stamp() -> str:
    """Return the version of the index format."""
    return f"{SCHEMA_VERSION} {words_module.VERSION}"


def _stamp_version(stamp: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", stamp)))


@contextmanager
def index_errors() -> Iterator[None]:
    """Translate the database's errors into those of an index: none may pass for the log's."""
    try:
        yield
    except StoreUnavailable as error:
        raise IndexBusy(str(error)) from error
    except StoreFull as error:
        raise IndexUnavailable(str(error)) from error
    except HoldfastError as error:  # The tables are damaged, or have a number twice.
        raise IndexInvalid(str(error)) from error


class IndexTableLocation:
    """The tables of a store's index."""

    def __init__(self, tables: IndexTables) -> None:
        self._tables = tables
        self.label = tables.shown

    def open(self, *, readonly: bool = False) -> IndexTable | None:  # noqa: ARG002 - no difference
        """Open the index; None if there is none."""
        table = IndexTable(self._tables)
        try:
            exists = table.exists()
        except BaseException:
            table.close()
            raise
        if exists:
            return table
        table.close()
        return None

    def create(self) -> None:
        """Create an empty index, unless another process just did."""
        with index_errors():
            self._delete_rows(_create)

    def remove(self) -> None:
        """Remove the index. Open snapshots stay readable; later ones find that it is gone."""
        with index_errors():
            connection = self._tables.connect()
            try:
                connection.begin_writing(_REMOVE_TIMEOUT_S)
                connection.send(SQL["remove"])
                connection.commit()
            finally:
                connection.close()
            self._delete_rows(_create_nothing)

    def _delete_rows(self, then: Callable[[IndexConnection], None]) -> None:
        """Delete the rows of a removed index, unless another process has created a new one."""
        connection = self._tables.connect()
        try:
            while True:
                connection.begin_writing(_REMOVE_TIMEOUT_S)
                if connection.rows(SQL["state"]):
                    connection.roll_back()
                    return
                ((removed,),) = connection.rows(SQL["remove_rows"], (_REMOVE_BATCH,))
                done = removed < _REMOVE_BATCH
                if done:
                    then(connection)
                connection.commit()
                if done:
                    return
        finally:
            connection.close()


def _create(connection: IndexConnection) -> None:
    connection.send(SQL["create"], (stamp(),))


def _create_nothing(connection: IndexConnection) -> None:
    """Create no index."""


class _State(msgspec.Struct):
    """The state of an index: its row in the table `indexes`."""

    stamp: str
    activity: int
    erasures: int | None
    anchor: Anchor | None
    last_number: int
    documents: int
    text: int
    highest_number: int  # the highest number in the index

    def columns(self) -> tuple[object, ...]:
        """Return the column values of the row."""
        anchor = (None,) * 3 if self.anchor is None else msgspec.structs.astuple(self.anchor)
        counts = (self.last_number, self.documents, self.text)
        return (self.stamp, self.activity, self.erasures, *anchor, *counts)


def _read_state(row: Sequence[Any]) -> _State:
    stamp, activity, erasures, branch, seq, crc, *counts = row
    anchor = None if branch is None else Anchor(branch, seq, crc)
    return _State(stamp, activity, erasures, anchor, *counts)


class IndexTable:
    """An index in tables, opened by one connection."""

    needs_words: Final = False
    is_remote: Final = True

    def __init__(self, tables: IndexTables) -> None:
        self.label = tables.shown
        self._code = tables.code
        self._connection = tables.connect()
        self._lock_timeout_s = BUSY_TIMEOUT_S
        self._last_state: _State | None = None
        self._prefetched: _Prefetched | None = None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def abandon_after_fork(self) -> None:
        """Close the connection in a forked child; that does not affect the parent's."""
        self._connection.close()

    def moved(self) -> bool:
        """Return False: every transaction reads the state of the index again."""
        return False

    def set_busy_timeout(self, seconds: float) -> None:
        """Set how long to wait for another writer."""
        self._lock_timeout_s = seconds

    def exists(self) -> bool:
        """True if there is an index, or rows of one that was not removed completely."""
        with index_errors():
            self._connection.begin_reading()
            try:
                return bool(self._connection.rows(SQL["state"])) or self._has_rows()
            finally:
                self._connection.roll_back()

    def _has_rows(self) -> bool:
        return self._connection.rows(SQL["has_rows"]) == [(True,)]

    @contextmanager
    def reading(self, prefetch: SearchPrefetch | None = None) -> Iterator[None]:
        """Read everything in the block from one snapshot.

        The reads that `prefetch` and the last known state predict are sent together with the query
        for the state, which saves round trips.
        """
        with index_errors():
            self._connection.begin_reading()
        try:
            with index_errors():
                state = self._connection.send(SQL["state"])
                if prefetch is not None:
                    self._send_prefetch(prefetch)
                found = state.fetchall()
            self._accept_state(found)
            yield
        finally:
            self._prefetched = None
            self._connection.roll_back()

    def _send_prefetch(self, prefetch: SearchPrefetch) -> None:
        anchor = None if self._last_state is None else self._last_state.anchor
        anchors = [] if anchor is None else [Segment(anchor.branch, anchor.seq, anchor.seq, "")]
        self._connection.prefetch(anchors, prefetch.titles)
        statements = QueryStatements(
            prefetch.query, prefetch.bounds, self._code, thinking=prefetch.thinking
        )
        if not statements.wanted or not prefetch.exact or self._last_state is None:
            return
        few = self._last_state.highest_number <= _FEW_MESSAGES
        ahead = statements.by_lexemes(_first_blocks(_FEW_MESSAGES)) if few else statements.probe()
        answer = self._connection.send(ahead.text, ahead.values)
        self._prefetched = _Prefetched(
            prefetch.query, prefetch.bounds, prefetch.thinking, few, answer
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run the block as one write transaction; it excludes other writers."""
        with index_errors():
            self._connection.begin_writing(self._lock_timeout_s)
        try:
            found = self._rows("state")
            if not found:
                self._refuse_leftover_rows()
            before = self._accept_state(found).columns()
            yield
            with index_errors():
                if self._state.columns() != before:
                    self._connection.send(SQL["put_state"], self._state.columns())
                self._connection.commit()
        except BaseException:
            self._connection.roll_back()
            raise

    def _refuse_leftover_rows(self) -> None:
        """Raise `IndexInvalid` if rows of a removed index are left: they must be deleted first."""
        with index_errors():
            if self._has_rows():
                raise IndexInvalid("the index was not removed completely")

    def _accept_state(self, rows: Sequence[Sequence[Any]]) -> _State:
        """Take over the state that was read; raise if the index cannot be used."""
        if not rows:
            raise IndexReplaced("the index was removed")
        self._last_state = _read_state(rows[0])
        if _stamp_version(self._last_state.stamp) > _stamp_version(stamp()):
            raise IndexUnavailable(
                "the index was made by a newer version"
            )  # Which may still use it.
        if self._last_state.stamp != stamp():
            raise IndexInvalid("the index is of another version")
        return self._last_state

    @contextmanager
    def open_log(self, backend: Backend) -> Iterator[tuple[Snapshot, bool]]:  # noqa: ARG002 - it is in the same database
        """Open the log in the transaction in which the index is read."""
        log = self._connection.log()
        try:
            yield log, self._connection.log_activity() > self.activity
        except (StoreUnavailable, StoreFull) as error:
            # Only this connection failed; the log can still be read by others.
            raise IndexUnavailable(str(error)) from error

    def prefetch_messages(self, segments: Sequence[Segment]) -> None:
        """Prefetch messages of the log that will probably be read next."""
        with index_errors():
            self._connection.prefetch(segments)

    def visible_branches(
        self,
        scopes: Sequence[str],
        agents: Sequence[str],
        cwds: Sequence[str],
        *,
        all_branches: bool,
    ) -> tuple[int, ...] | None:
        """Return the branches that such sessions may show, so that no others are searched."""
        with index_errors():
            return tuple(
                self._connection.branches_of(scopes, agents, cwds, all_branches=all_branches)
            )

    @property
    def _state(self) -> _State:
        if self._last_state is None:
            raise IndexUnavailable("the state of the index was not read yet")
        return self._last_state

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

    def message_count(self) -> int:
        """Return the number of indexed messages."""
        return self._state.documents

    def text_size(self) -> int:
        """Return the approximate number of characters in the indexed messages."""
        return self._state.text

    def newest_position(self) -> tuple[int, int] | None:
        """Return branch and seq of the message that was added last."""
        rows = self._rows("newest")
        return (rows[0][0], rows[0][1]) if rows else None

    def last_seq(self, branch: int) -> int:
        """Return the seq of a branch up to which all messages are indexed; 0 for none."""
        return self._rows("last", branch)[0][0] or 0

    def counts_by_branch(self) -> dict[int, int]:
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
        stored = sum(self.counts_by_branch().values())
        if stored != self._state.documents:
            found.append(f"the index should have {self._state.documents} messages and has {stored}")
        return found

    def _rows(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        with index_errors():
            return self._connection.rows(SQL[name], values)

    # ----------------------------------------------------------------------- adding, removing

    def prepare(self, docs: Sequence[IndexedMessage]) -> _Rows:
        """Return the rows of some messages, without their numbers, as one array per column."""
        return _Rows(_transpose([_row(doc) for doc in docs]), len(docs), sum(map(_text_size, docs)))

    def add(self, rows: _Rows) -> None:
        """Add prepared messages."""
        state = self._state
        first = state.last_number + 1
        with index_errors():
            self._connection.send(SQL["add"], [first, *rows.columns])
        state.last_number += rows.documents
        state.documents += rows.documents
        state.text += rows.text

    def remove_words(
        self,
        erased: Sequence[Segment],
        docs: Sequence[IndexedMessage],  # noqa: ARG002 - rows are found by position here
    ) -> None:
        """Remove the words of messages; their rows stay, without words."""
        for part in erased:
            values = (part.branch, part.first, part.last or 0)
            self._state.text -= self._rows("weight", *values)[0][0]
            with index_errors():
                self._connection.send(SQL["forget"], values)

    def truncate_branch(self, branch: int, last: int) -> None:
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
        statements = QueryStatements(query, bounds, self._code, thinking=thinking)
        prefetched = self._take_prefetched(query, bounds, thinking=thinking)
        before = self._state.highest_number + 1
        if not statements.wanted or self._has_few(bounds.branches):
            yield from self._pages(statements, statements.scan(), before)
            return
        if self._is_common(statements, prefetched):
            for chunk, low in self._scan_backwards(statements, before):
                before = low
                yield chunk
        yield from self._by_lexemes(statements, before, prefetched)

    def _take_prefetched(
        self, query: Query, bounds: Bounds, *, thinking: bool
    ) -> _Prefetched | None:
        """Return the prefetched rows, if they are of this query and the index is still as small."""
        found, self._prefetched = self._prefetched, None
        if found is None or (found.query, found.bounds, found.thinking) != (
            query,
            bounds,
            thinking,
        ):
            return None
        return found if found.few == (self._state.highest_number <= _FEW_MESSAGES) else None

    def _has_few(self, branches: Sequence[int] | None) -> bool:
        """True if these branches have so few messages that a scan is faster."""
        if branches is None:
            return False
        found: int = self._rows("count_on", array_literal(branches), _FEW_MESSAGES)[0][0]
        return found < _FEW_MESSAGES

    def _is_common(self, statements: QueryStatements, prefetched: _Prefetched | None) -> bool:
        """True if many messages have the words, judging by the newest ones."""
        if self._state.highest_number <= _FEW_MESSAGES:
            return False
        probe = statements.probe()
        with index_errors():
            answer = (
                prefetched.answer if prefetched else self._connection.send(probe.text, probe.values)
            )
            found: int = answer.fetchall()[0][0]
        return found * _SCAN_START_RATIO >= PROBE_MESSAGES

    def _scan_backwards(
        self, statements: QueryStatements, before: int
    ) -> Iterator[tuple[Chunk, int]]:
        """Scan backwards from the newest message while enough messages match."""
        highest, found, step = before, 0, _SCAN_START_RATIO * CHUNK
        while before > 1 and found * _SCAN_END_RATIO >= highest - before:
            if found:
                step = min(_MAX_STEP, max(step, 2 * CHUNK * (highest - before) // found))
            low = max(1, before - step)
            rows = self._query(statements.scan_from(low), before)
            before = rows[-1][6] if len(rows) == CHUNK else low
            chunk = statements.chunk(rows)
            found += len(chunk.candidates)
            yield chunk, before

    def _by_lexemes(
        self, statements: QueryStatements, before: int, prefetched: _Prefetched | None
    ) -> Iterator[Chunk]:
        """Query the index of lexemes by blocks; the fewer messages match, the more per query."""
        blocks = _first_blocks(before - 1) if before > 1 else []
        ready = prefetched.answer if prefetched is not None and prefetched.few else None
        while blocks:
            found = 0
            for chunk in self._pages(statements, statements.by_lexemes(blocks), before, ready):
                found += len(chunk.candidates)
                yield chunk
            ready, size = None, len(blocks) * CHUNK // max(1, found) + 1
            blocks = _blocks_before(blocks[-1], min(size, _MAX_BLOCKS))

    def _pages(
        self,
        statements: QueryStatements,
        statement: Statement,
        before: int,
        ready: PendingRows | None = None,
    ) -> Iterator[Chunk]:
        """Return the matches of a statement, page by page."""
        while True:
            if ready is None:
                rows = self._query(statement, before)
            else:
                with index_errors():
                    rows = ready.fetchall()
                ready = None
            yield statements.chunk(rows)
            if len(rows) < CHUNK:
                return
            before = rows[-1][6]

    def _query(self, statement: Statement, before: int) -> list[tuple[Any, ...]]:
        with index_errors():
            return self._connection.rows(statement.text, [before, *statement.values[1:]])


def _first_blocks(highest: int) -> list[int]:
    return _blocks_before((highest >> _BLOCK_BITS) + 1, _FIRST_BLOCKS)


def _blocks_before(block: int, size: int) -> list[int]:
    """Return the blocks of numbers before one, newest first."""
    return list(range(block - 1, max(block - 1 - size, -1), -1))


class _Prefetched(msgspec.Struct, frozen=True):
    """A prefetched answer: matches if the index is small (`few`), otherwise a probe."""

    query: Query
    bounds: Bounds
    thinking: bool
    few: bool
    answer: PendingRows


class _Rows(msgspec.Struct):
    """Messages to add: their columns, how many there are, and the size of their texts."""

    columns: list[object]
    documents: int
    text: int


def _row(doc: IndexedMessage) -> tuple[object, ...]:
    text, thinking = words(doc.document.text), words(doc.document.thinking)
    length = UNSEARCHABLE_LENGTH if doc.unreadable else len(text)
    said = pad_tokens(text)
    if names := parts(doc.document.text):
        said = f"{said}\n{pad_tokens(names)}"
    return (
        doc.branch, doc.seq, ROLES.index(doc.role), doc.at, length, len(thinking), id_hash(doc.id),
        _text_size(doc), said, pad_tokens(thinking),
    )  # fmt: skip


def _text_size(doc: IndexedMessage) -> int:
    return len(doc.document.text) + len(doc.document.thinking)


def _transpose(rows: Sequence[Sequence[Any]]) -> list[object]:
    """Transpose rows into one array per column."""
    *numbers, said, thought = zip(*rows, strict=True)
    return [*map(array_literal, numbers), list(said), list(thought)]
