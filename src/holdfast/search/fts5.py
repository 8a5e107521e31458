"""An index in a file next to the store, with SQLite's full-text tables (FTS5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from holdfast.search import index_file
from holdfast.search.document import Document
from holdfast.search.indexer import is_behind
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
from holdfast.search.query import Query, Term
from holdfast.search.tokenize import parts, words
from holdfast.storage.ancestry import Segment
from holdfast.storage.index_tables import IndexFileHost
from holdfast.storage.protocol import Backend, Snapshot
from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.open_files import OpenFiles
from holdfast.storage.sqlite.tables import BOUNDS

_BRANCH_BITS: Final = 32
_SEQ_MASK: Final = (1 << _BRANCH_BITS) - 1
_, _MAX_BRANCH = BOUNDS["number"]
_WIPE_TIMEOUT_S: Final = 1.0
_ATTEMPTS: Final = 3
_MAX_WAL_BYTES: Final = 16_000_000  # before a write; one write adds about as much as its text

_STATE_NAMES: Final = ("stamp", "activity", "erasures", "anchor")
_STATE: Final = f"SELECT name, value FROM meta WHERE name IN {_STATE_NAMES}"  # noqa: S608 - ours
_SEPARATOR: Final = "|"  # of the columns of words (_ADD_WORDS); no token has it
_ADD: Final = (
    "INSERT INTO docs (n, place, role, at, length, thought, mark) SELECT ?1 + key, value ->> 0, "
    "value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?2)"
)
_ADD_WORDS: Final = """
INSERT INTO found (rowid, text, parts, thinking)
SELECT ?1 + key, substr(value, 1, first - 1), substr(value, first + 1, second - 1),
  substr(value, first + second + 1)
FROM (
  SELECT key, value, first, instr(substr(value, first + 1), '|') AS second
  FROM (SELECT key, value, instr(value, '|') AS first FROM json_each(?2) WHERE value <> '||')
)
"""
_DROP_WORDS: Final = (
    "INSERT INTO found (found, rowid, text, parts, thinking) VALUES ('delete', ?, ?, ?, ?)"
)
_CLEAR_LENGTHS: Final = "UPDATE docs SET length = ?, thought = 0 WHERE n = ?"
_CHUNK: Final = 1000
_COUNT_BITS: Final = 31  # of the number of instances of a phrase in a row
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_inherited: list[IndexFile] = []


@contextmanager
def index_errors() -> Iterator[None]:
    """Translate SQLite's errors into those of an index.

    The index is read inside a read of the log: there an untranslated error would count as damage of
    the store, which stops all writes.
    """
    try:
        yield
    except apsw.BusyError as error:
        raise IndexBusy(str(error)) from error
    except (apsw.FullError, apsw.CantOpenError) as error:  # Too many open files, say.
        raise IndexUnavailable(str(error)) from error
    except (apsw.Error, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise IndexInvalid(f"{type(error).__name__}: {error}") from error


class IndexFileLocation:
    """The file of a store's index."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def label(self) -> str:
        """The path, as shown to users."""
        return str(self._path)

    def open(self, *, readonly: bool = False) -> IndexFile | None:
        """Open the index; None if there is none."""
        if not index_file.exists(self._path):
            return None
        return IndexFile(self._path, readonly=readonly)

    def create(self) -> None:
        """Create an empty index, unless another process just did."""
        with index_errors():
            index_file.create(self._path)

    def remove(self) -> None:
        """Overwrite and delete the file."""
        index_file.remove(self._path)


class IndexFile:
    """An index in a file, opened by one connection."""

    needs_words: Final = True
    is_remote: Final = False

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        """Open a file; raise `IndexInvalid` if it is corrupt or of another version."""
        self.path = path
        self._state: dict[str, Any] | None = None  # rows of `meta`, while the index is read
        with index_errors():
            self._connection = index_file.connect(path, readonly=readonly)
        try:
            with index_errors():
                self._connection.register_fts5_function("counts", _count_phrases)
            self._refuse_other_version()
            with index_errors():
                self._files = OpenFiles(self._connection)  # The first read opened all of them.
        except (IndexInvalid, IndexUnavailable):
            self._connection.close(force=True)
            raise

    def _refuse_other_version(self) -> None:
        if self.meta("stamp") != index_file.stamp():
            raise IndexInvalid("the index is of another version")
        with index_errors():
            if not index_file.has_own_tables(self._connection):
                raise IndexInvalid("the file has tables that no index has")

    @property
    def label(self) -> str:
        """The path, as shown to users."""
        return str(self.path)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close(force=True)

    def abandon_after_fork(self) -> None:
        """Never close the connection: in a forked child that would drop the parent's locks."""
        _inherited.append(self)

    def set_busy_timeout(self, seconds: float) -> None:
        """Set how long to wait for another writer."""
        self._connection.set_busy_timeout(int(seconds * 1000))

    def moved(self) -> bool:
        """True if the file was deleted or replaced, or is being deleted: its WAL goes first."""
        with index_errors():
            return self._files.moved() is not None

    @contextmanager
    def reading(self, prefetch: SearchPrefetch | None = None) -> Iterator[None]:  # noqa: ARG002 - reads are local
        """Read everything in the block from one snapshot."""
        self._execute("BEGIN")
        try:
            self._state = self._read_state()  # The snapshot is that of the first read.
            self._refuse_moved()
            yield
        except IndexInvalid:
            self._refuse_moved()  # A file that is being deleted is overwritten first.
            raise
        finally:
            self._state = None
            self._end("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run the block as one write transaction; it excludes other writers."""
        self._bound_wal()
        self._execute("BEGIN IMMEDIATE")
        try:
            self._refuse_moved()
            yield
            self._refuse_moved()
        except BaseException:
            self._end("ROLLBACK")
            raise
        self._end("COMMIT")

    @contextmanager
    def open_log(self, backend: Backend) -> Iterator[tuple[Snapshot, bool]]:
        """Open the log. Its snapshot is the later one, so it has everything that is indexed."""
        assert isinstance(backend, IndexFileHost)  # noqa: S101 - only such a one has this index
        with backend.snapshot() as log:
            yield log, is_behind(log, self.activity)

    def prefetch_messages(self, segments: Sequence[Segment]) -> None:
        """Do nothing: reads of the log are local."""

    def visible_branches(
        self,
        scopes: Sequence[str],  # noqa: ARG002 - see below
        agents: Sequence[str],  # noqa: ARG002 - the same
        cwds: Sequence[str],  # noqa: ARG002 - the same
        *,
        all_branches: bool,  # noqa: ARG002 - the same
    ) -> tuple[int, ...] | None:
        """Return None: here it is fast to find the session that shows a message."""
        return None

    def _bound_wal(self) -> None:
        """Truncate the WAL if it is large; raise `IndexBusy` if readers prevent it.

        SQLite by itself never waits for readers: searches in a row would make the WAL grow for as
        long as messages are added.
        """
        with index_errors():
            large = location.wal_size(self.path) > _MAX_WAL_BYTES
            if large and not index_file.truncate_wal(self._connection):
                raise IndexBusy("searches of other connections keep its WAL from being truncated")

    def _refuse_moved(self) -> None:
        if self.moved():
            raise IndexReplaced("the index file was deleted or replaced")

    def _end(self, how: str) -> None:
        if self._connection.in_transaction:
            self._execute(how)

    def _execute(self, text: str) -> None:
        with index_errors():
            self._connection.execute(text)

    # -------------------------------------------------------------------------------- contents

    @index_errors()
    def _read_state(self) -> dict[str, Any]:
        """Read the rows of `meta` that every search needs, in one statement."""
        rows: list[Any] = self._connection.execute(_STATE).fetchall()
        return dict(rows)

    def meta(self, name: str) -> Any:  # noqa: ANN401 - a number or a text, by name
        """Return a value of the table `meta`; None if it has none."""
        if self._state is not None and name in _STATE_NAMES:
            return self._state.get(name)
        return self._value("SELECT value FROM meta WHERE name = ?", name)

    @index_errors()
    def put_meta(self, **values: int | str) -> None:
        """Store values in the table `meta`."""
        text = "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
        self._connection.executemany(text, list(values.items()))

    @property
    def activity(self) -> int:
        """The activity number of the log up to which everything is indexed."""
        return self._number("activity") or 0

    @property
    def erasures(self) -> int | None:
        """The number of erasures in the log when it was last updated; None if it is new."""
        return self._number("erasures")

    def _number(self, name: str) -> int | None:
        """Return a number of the table `meta`."""
        found = self.meta(name)
        if not isinstance(found, int | None):
            raise IndexInvalid(f"its {name} is not a number")
        return found

    @property
    def anchor(self) -> Anchor | None:
        """The message that was indexed last."""
        found = self.meta("anchor")
        if found is None:
            return None
        with index_errors():
            anchor = msgspec.json.decode(str(found), type=Anchor)
        if not (0 <= anchor.branch <= _MAX_BRANCH and 0 <= anchor.seq <= _SEQ_MASK):
            raise IndexInvalid("its last message is none that a log can have")
        return anchor

    @anchor.setter
    def anchor(self, anchor: Anchor | None) -> None:
        if anchor is None:
            self._execute("DELETE FROM meta WHERE name = 'anchor'")
        else:
            self.put_meta(anchor=msgspec.json.encode(anchor).decode())

    def newest_position(self) -> tuple[int, int] | None:
        """Return branch and seq of the message that was added last."""
        packed = self._value("SELECT place FROM docs ORDER BY n DESC LIMIT 1")
        return None if packed is None else (packed >> _BRANCH_BITS, packed & _SEQ_MASK)

    def last_seq(self, branch: int) -> int:
        """Return the seq of a branch up to which all messages are indexed; 0 for none."""
        text = "SELECT last FROM runs WHERE branch = ? ORDER BY first DESC LIMIT 1"
        return self._value(text, branch) or 0

    @index_errors()
    def counts_by_branch(self) -> dict[int, int]:
        """Return the number of indexed messages by branch."""
        rows = self._connection.execute("SELECT branch, sum(last - first + 1) FROM runs GROUP BY 1")
        return {branch: number for branch, number in rows}  # noqa: C416 - a cursor of pairs

    @index_errors()
    def problems(self) -> list[str]:
        """Read the whole file and return what is wrong with it."""
        # A query makes FTS5 read its list of segments again; the check alone takes the list that
        # this connection read last for the current one, and reports the segments that are gone.
        self._connection.execute("SELECT rowid FROM found WHERE found MATCH '\"\"'").fetchall()
        found = [row[0] for row in self._connection.execute("PRAGMA integrity_check(5)")]
        if found == ["ok"]:
            return []
        self._refuse_moved()
        return [str(problem) for problem in found]

    def message_count(self) -> int:
        """Return the number of indexed messages."""
        return self._value("SELECT coalesce(sum(last - first + 1), 0) FROM runs") or 0

    def size(self) -> int:
        """Return the size of the file and its WAL in bytes."""
        return location.file_size(self.path) + location.wal_size(self.path)

    def text_size(self) -> int:
        """Return the approximate number of characters in the indexed messages."""
        return self._number("text") or 0

    @index_errors()
    def _value(self, text: str, *values: object) -> Any:  # noqa: ANN401 - any SQL value
        row = self._connection.execute(text, values).fetchone()
        return None if row is None else row[0]

    # ----------------------------------------------------------------------- adding, removing

    def prepare(self, docs: Sequence[IndexedMessage]) -> _Rows:
        """Return the rows of some messages: their columns and their words as JSON."""
        rows, texts, size = [], [], 0
        for doc in docs:
            text, thinking = words(doc.document.text), words(doc.document.thinking)
            length = UNSEARCHABLE_LENGTH if doc.unreadable else len(text)
            rows.append(
                (doc.branch << _BRANCH_BITS | doc.seq, ROLES.index(doc.role), doc.at, length,
                 len(thinking), id_hash(doc.id))
            )  # fmt: skip
            texts.append(_SEPARATOR.join(_word_columns(text, doc.document, thinking)))
            size += _text_size(doc.document)
        return _Rows(_json(rows), _json(texts), _runs(docs), size)

    @index_errors()
    def add(self, rows: _Rows) -> None:
        """Add prepared messages, in statements that do not hold the interpreter."""
        n = (self._value("SELECT max(n) FROM docs") or 0) + 1
        self._connection.execute(_ADD, (n, rows.docs))
        self._connection.execute(_ADD_WORDS, (n, rows.words))
        for branch, first, last, offset in rows.runs:
            self._add_run(branch, first, last, n + offset)
        self._add_text_size(rows.size)

    def _add_run(self, branch: int, first: int, last: int, n: int) -> None:
        """Store the numbers of messages: extend the run that ends before them, or add one."""
        text = "UPDATE runs SET last = ? WHERE branch = ? AND last = ? AND n + last - first + 1 = ?"
        self._connection.execute(text, (last, branch, first - 1, n))
        if not self._connection.changes():
            values = (branch, first, last, n)
            self._connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", values)

    def _add_text_size(self, change: int) -> None:
        self.put_meta(text=self.text_size() + change)

    def message_number(self, branch: int, seq: int) -> int | None:
        """Return the number of a message; None if it is not indexed."""
        text = (
            "SELECT n + ?2 - first FROM runs WHERE branch = ?1 AND first <= ?2 AND last >= ?2 "
            "ORDER BY first DESC LIMIT 1"
        )
        found: int | None = self._value(text, branch, seq)
        return found

    def remove_words(
        self,
        erased: Sequence[Segment],  # noqa: ARG002 - the same messages as `docs`
        docs: Sequence[IndexedMessage],
    ) -> None:
        """Remove the words of messages, not their rows."""
        self.erase(docs)

    @index_errors()
    def erase(self, docs: Iterable[IndexedMessage]) -> None:
        """Remove the words of messages; their rows stay, without words."""
        change = 0
        for doc in docs:
            n = self.message_number(doc.branch, doc.seq)
            if n is None:
                continue
            if (
                doc.unreadable
                and self._value("SELECT length FROM docs WHERE n = ?", n) != UNSEARCHABLE_LENGTH
            ):
                raise IndexInvalid(
                    "the words of a damaged message are unknown and cannot be removed"
                )
            text, thinking = words(doc.document.text), words(doc.document.thinking)
            if text or thinking:
                self._connection.execute(
                    _DROP_WORDS, (n, *_word_columns(text, doc.document, thinking))
                )
            self._connection.execute(_CLEAR_LENGTHS, (UNSEARCHABLE_LENGTH, n))
            change -= _text_size(doc.document)
        self._add_text_size(change)

    @index_errors()
    def truncate_branch(self, branch: int, last: int) -> None:
        """Remove the rows of a branch after `last`; their words are removed already."""
        first = last + 1
        runs: list[Any] = self._connection.execute(
            "SELECT first, last, n FROM runs WHERE branch = ? AND last >= ?", (branch, first)
        ).fetchall()
        for begin, end, n in runs:
            keep = max(0, first - begin)
            self._connection.execute(
                "DELETE FROM docs WHERE n BETWEEN ? AND ?", (n + keep, n + end - begin)
            )
            key = (branch, begin)
            if keep:
                text = "UPDATE runs SET last = ? WHERE branch = ? AND first = ?"
                self._connection.execute(text, (last, *key))
            else:
                self._connection.execute("DELETE FROM runs WHERE branch = ? AND first = ?", key)

    @index_errors()
    def wipe(self) -> None:
        """Overwrite the bytes of removed words in the WAL and in the pages of the file."""
        self.set_busy_timeout(_WIPE_TIMEOUT_S)
        try:
            for _ in range(_ATTEMPTS):
                if index_file.truncate_wal(self._connection) and index_file.wipe(
                    self._connection, self.path
                ):
                    index_file.truncate_wal(self._connection)
                    return
        finally:
            self.set_busy_timeout(BUSY_TIMEOUT_S)
        raise IndexInvalid("other connections kept it from being wiped")

    # -------------------------------------------------------------------------------- querying

    def matching(self, query: Query, bounds: Bounds, *, thinking: bool) -> Iterator[Chunk]:
        """Return the messages with all wanted and no unwanted words, the last added first.

        Terms without words are ignored: for those the caller checks the texts.
        """
        wanted = [term for term in query.wanted if term.tokens]
        unwanted = [term for term in query.unwanted if term.tokens]
        if not wanted:
            yield from self._matching_all_but(unwanted, bounds, thinking=thinking)
            return
        expression = " AND ".join(_term(term, thinking=thinking) for term in wanted)
        if unwanted:
            not_these = " OR ".join(_term(term, thinking=thinking) for term in unwanted)
            expression = f"({expression}) NOT ({not_these})"
        counted = _PhraseCounts(wanted)
        conditions, values = self._conditions(bounds, "found.rowid")
        text = (
            f"SELECT {_candidate_columns(thinking=thinking)}, counts(found, ?1) "  # noqa: S608 - ours
            "FROM found CROSS JOIN docs d ON d.n = found.rowid "
            f"WHERE found MATCH ?2{conditions} ORDER BY found.rowid DESC"
        )
        for rows in self._chunks(text, counted.simple, expression, *values):
            yield Chunk(rows, counted.frequencies)

    def _matching_all_but(
        self, unwanted: Sequence[Term], bounds: Bounds, *, thinking: bool
    ) -> Iterator[Chunk]:
        """Return all messages without any of these terms."""
        without = self._numbers_with(unwanted, thinking=thinking)
        excluded = next(without, 0)
        conditions, values = self._conditions(bounds, "d.n")
        text = (
            f"SELECT {_candidate_columns(thinking=thinking)}, d.n FROM docs d "  # noqa: S608 - ours
            f"WHERE d.length >= 0{conditions} ORDER BY d.n DESC"
        )
        for rows in self._chunks(text, *values):
            kept = []
            for row in rows:
                while excluded > row[5]:
                    excluded = next(without, 0)
                if excluded != row[5]:
                    kept.append((*row[:5], ()))
            yield Chunk(kept, tuple)

    def _numbers_with(self, terms: Sequence[Term], *, thinking: bool) -> Iterator[int]:
        if not terms:
            return
        expression = " OR ".join(_term(term, thinking=thinking) for term in terms)
        text = "SELECT rowid FROM found WHERE found MATCH ? ORDER BY rowid DESC"
        for rows in self._chunks(text, expression):
            yield from (row[0] for row in rows)

    def _chunks(self, text: str, *values: object) -> Iterator[list[Any]]:
        """Yield the rows of a statement in chunks, which is the fastest way to read them."""
        with index_errors():
            cursor = self._connection.execute(text, values)
        while True:
            with index_errors():
                rows: list[Any] = list(islice(cursor, _CHUNK))
            if rows:
                yield rows
            if len(rows) < _CHUNK:
                return

    def _conditions(self, bounds: Bounds, number: str) -> tuple[str, list[object]]:
        """Return the conditions apart from the words as SQL, and their values."""
        wanted: list[tuple[str, object]] = []
        if bounds.role is not None:
            wanted.append(("d.role = ?", ROLES.index(bounds.role)))
        if bounds.since is not None:
            wanted.append(("d.at >= ?", bounds.since))
        if bounds.until is not None:
            wanted.append(("d.at < ?", bounds.until))
        if bounds.branches is not None:
            first, last = self._number_range(bounds.branches)
            wanted += [(f"{number} >= ?", first), (f"{number} <= ?", last)]
        text = "".join(f" AND {condition}" for condition, _ in wanted)
        return text, [value for _, value in wanted]

    @index_errors()
    def _number_range(self, branches: Sequence[int]) -> tuple[int, int]:
        """Return the lowest and the highest number of the messages on some branches."""
        text = "SELECT min(n), max(n + last - first) FROM runs WHERE branch = ?"
        ends = [self._connection.execute(text, (branch,)).fetchone() for branch in branches]
        known = [pair for pair in ends if pair and pair[0] is not None]
        if not known:
            return 1, 0
        return min(first for first, _ in known), max(last for _, last in known)


class _Rows(msgspec.Struct):
    """Messages to add: rows of `docs`, words of `found`, runs with their offset; text size."""

    docs: str
    words: str
    runs: list[tuple[int, int, int, int]]
    size: int


def _json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()


def _runs(docs: Sequence[IndexedMessage]) -> list[tuple[int, int, int, int]]:
    """Return the runs of messages that follow each other on a branch, and their offsets."""
    found: list[tuple[int, int, int, int]] = []
    for offset, doc in enumerate(docs):
        if found and (found[-1][0], found[-1][2] + 1) == (doc.branch, doc.seq):
            branch, first, _, start = found[-1]
            found[-1] = branch, first, doc.seq, start
        else:
            found.append((doc.branch, doc.seq, doc.seq, offset))
    return found


def _word_columns(text: list[str], document: Document, thinking: list[str]) -> tuple[str, str, str]:
    return " ".join(text), " ".join(parts(document.text)), " ".join(thinking)


def _text_size(document: Document) -> int:
    return len(document.text) + len(document.thinking)


def _candidate_columns(*, thinking: bool) -> str:
    length = "d.length + d.thought" if thinking else "d.length"
    return f"d.place >> 32, d.place & 4294967295, d.at, d.mark, {length}"


# ------------------------------------------------------------------------------------ expressions


def _term(term: Term, *, thinking: bool) -> str:
    """Return a term as an FTS5 expression. Tokens never contain quotes."""
    columns = "{text parts thinking}" if thinking else "{text parts}"
    found = f"{columns} : {_phrase(term.tokens, prefix=term.prefix)}"
    if not term.parts:
        return f"({found})"
    return f"({found} OR parts : {_phrase(term.parts, prefix=term.prefix)})"


def _phrase(tokens: Sequence[str], *, prefix: bool) -> str:
    return f'"{" ".join(tokens)}"{" *" if prefix else ""}'


class _PhraseCounts:
    """Maps the phrases of an expression, which are counted in order, to the terms of a query."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._phrases = [2 if term.parts else 1 for term in terms]
        # Where each term is one phrase, as many instances as terms mean one instance of each.
        self.simple = len(terms) if sum(self._phrases) == len(terms) else 0

    def frequencies(self, counts: int | str) -> tuple[int, ...]:
        """Return how often each term occurs."""
        if self.simple == 1:
            return (int(counts),)
        if counts == self.simple:
            return (1,) * self.simple
        numbers = (
            (counts >> _COUNT_BITS, counts & _COUNT_MASK)
            if isinstance(counts, int)
            else [int(count) for count in counts.split(",")]
        )
        found, at = [], 0
        for phrases in self._phrases:
            found.append(max(numbers[at : at + phrases]))
            at += phrases
        return tuple(found)


def _count_phrases(api: apsw.FTS5ExtensionApi, *values: Any) -> int | str:  # noqa: ANN401 - any SQL value
    """Return the number of instances of each phrase in a row; their sum if that is enough.

    Two numbers are returned as one, which takes less time than a text.
    """
    simple: int = values[0]
    instances = api.inst_count
    if simple in (1, instances):
        return instances
    phrases = api.phrase_count
    if phrases == 2:  # noqa: PLR2004 - the most frequent case: the second has the rest of them
        first = sum(map(len, api.phrase_locations(0)))
        return first << _COUNT_BITS | instances - first
    return ",".join(str(sum(map(len, api.phrase_locations(n)))) for n in range(phrases))
