"""An index in tables of the store's own database, with its text search.

A row is a message. The engine's index of lexemes tells in which messages the words are that are
wanted, wherever they stand: it keeps no places, since it could keep only the first of many. Whether
they stand next to each other, and how often, is counted in the words themselves, which are kept in
order between spaces of their own: a term is a needle there, just as in `core.search.matching`.

What is written is written in one transaction with how far the index is, behind a lock that one has
at a time. A reader sees all of it or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast.backends.base import TableLink, Tables
from holdfast.backends.statements import load
from holdfast.core.branches import Segment
from holdfast.core.search import words as words_module
from holdfast.core.search.query import Query, Term
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
    Entry,
    Gone,
    Hindered,
    Lost,
    mark_of,
)

SCHEMA_VERSION: Final = 1
SQL: Final = load(__package__)
_CHUNK: Final = 1000
_LAST: Final = (1 << 63) - 1
_REMOVED_AT_ONCE: Final = 20_000
_PATIENCE: Final = 5.0  # seconds that whoever removes an index waits for others
_FIRST_STEP: Final = 1500  # messages that are looked at before the index of lexemes is asked
_LONGEST_STEP: Final = 50_000
_RARE: Final = 50  # what one message of so many has is quicker found by that index
_MOST_PHRASES: Final = 5
_HAS: Final = (
    "(strpos(said, (${0}::text[])[1]) > 0 OR strpos(said, (${0}::text[])[2]) > 0 "
    "OR strpos(thought, (${0}::text[])[3]) > 0)"
)
_MOST_LEXEMES: Final = 48  # of a query; what it says beside them is looked at in what is found
_MOST_OF_A_TERM: Final = 8


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

    def values(self) -> tuple[object, ...]:
        """Give the values of its row."""
        anchor = (None,) * 3 if self.anchor is None else msgspec.structs.astuple(self.anchor)
        counts = (self.newest, self.documents, self.text)
        return (self.stamp, self.activity, self.erasures, *anchor, *counts)


def _read_state(row: Sequence[Any]) -> _State:
    stamp, activity, erasures, branch, seq, crc, newest, documents, text = row
    anchor = None if branch is None else Anchor(branch, seq, crc)
    return _State(stamp, activity, erasures, anchor, newest, documents, text)


class IndexTable:
    """An index, reached by one connection."""

    needs_words: Final = False

    def __init__(self, tables: Tables) -> None:
        """Reach it in these tables."""
        self.shown = tables.shown
        self._code = tables.code
        self._link = tables.connect()
        self._patience = BUSY
        self._known: _State | None = None

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
        """Say whether there is an index, or what is left of one."""
        with telling():
            self._link.begin_reading()
            try:
                return bool(self._link.rows(SQL["state"])) or self._is_left()
            finally:
                self._link.roll_back()

    def _is_left(self) -> bool:
        return self._link.rows(SQL["left"]) == [(True,)]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let everything that is read be of one moment."""
        with telling():
            self._link.begin_reading()
        try:
            self._learn()
            yield
        finally:
            self._link.roll_back()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Change it, all or nothing; nobody else does meanwhile."""
        with telling():
            self._link.begin_writing(self._patience)
        try:
            self._refuse_rest()
            before = self._learn().values()
            yield
            with telling():
                if self._state.values() != before:
                    self._link.send(SQL["put_state"], self._state.values())
                self._link.commit()
        except BaseException:
            self._link.roll_back()
            raise

    def _learn(self) -> _State:
        """Read how far it is; refuse one that cannot be used."""
        rows = self._rows("state")
        if not rows:
            raise Gone("it was removed")
        self._known = _read_state(rows[0])
        if _age(self._known.stamp) > _age(stamp()):
            raise Hindered("it was made by a newer version")  # Which goes on to use it.
        if self._known.stamp != stamp():
            raise Lost("it is of another version")
        return self._known

    def _refuse_rest(self) -> None:
        """Refuse what is left of an index that somebody began to remove: it has to go first."""
        with telling():
            if not self._link.rows(SQL["state"]) and self._is_left():
                raise Lost("it was removed, and not all of it")

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
        """Say where the message lies that was added last."""
        rows = self._rows("newest")
        return (rows[0][0], rows[0][1]) if rows else None

    def last(self, branch: int) -> int:
        """Say up to which message of a branch it has them all; 0 for none."""
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
            self._link.send_many(SQL["add"], rows)
        state.newest += len(docs)
        state.documents += len(docs)
        state.text += sum(_weight(doc) for doc in docs)

    def _row(self, number: int, doc: Doc) -> tuple[object, ...]:
        text, thinking = words(doc.document.text), words(doc.document.thinking)
        length = LOST if doc.lost else len(text)
        said = _spaced(text)
        if names := parts(doc.document.text):
            said = f"{said}\n{_spaced(names)}"
        return (
            number, doc.branch, doc.seq, ROLES.index(doc.role), doc.at, length, len(thinking),
            mark_of(doc.id), _weight(doc), said, _spaced(thinking),
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
        """Give what has the words that are wanted and none that is not, the last added first.

        Terms without words are left out: whoever asks looks at the texts.
        """
        asked = _Asked(query, bounds, self._code, thinking=thinking)
        before, steps = _LAST, _Steps(self._highest())
        while asked.wanted and bounds.branches is None:
            low = steps.next()
            if low is None:
                break
            chunk = asked.chunk(self._ask(asked, before, _LONGEST_STEP, asked.scanning(low)))
            yield chunk
            steps.learn(len(chunk.entries))
            before = low
        while before > 1:
            found = self._ask(asked, before, _CHUNK, asked.conditions())
            yield asked.chunk(found)
            if len(found) < _CHUNK:
                return
            before = found[-1][6]

    def _highest(self) -> int:
        found: int = self._rows("highest")[0][0]
        return found

    def _ask(
        self, asked: _Asked, before: int, limit: int, conditions: Sequence[tuple[str, object]]
    ) -> list[tuple[Any, ...]]:
        values = [before, limit, *asked.values, *(value for _, value in conditions)]
        first = len(values) - len(conditions) + 1
        wanted = (f"  AND {text.format(at)}" for at, (text, _) in enumerate(conditions, first))
        with telling():
            return self._link.rows(
                "\n".join((SQL["matching"], *wanted, SQL["matching_end"])), values
            )


class _Steps:
    """How far to go back, message by message, for words that are common.

    First a few messages are looked at. If many of them have the words, it is the quickest to go on
    so until there are enough; if few have, the index of lexemes finds the others.
    """

    def __init__(self, highest: int) -> None:
        self._low = highest + 1
        self._seen = self._found = 0

    def next(self) -> int | None:
        """Give the number to go back to; nothing if it is time to ask the index of lexemes."""
        if self._seen and self._found * _RARE < self._seen:
            return None
        step = _FIRST_STEP
        if self._seen:
            step = min(_LONGEST_STEP, max(step, _CHUNK * self._seen // self._found))
        if self._low <= 1:
            return None
        low = max(1, self._low - step)
        self._seen += self._low - low
        self._low = low
        return low

    def learn(self, found: int) -> None:
        """Be told how many messages had the words in the last step."""
        self._found += found


class _Asked:
    """A query, as it is asked of tables."""

    def __init__(self, query: Query, bounds: Bounds, code: str, *, thinking: bool) -> None:
        self.wanted = [term for term in query.wanted if term.tokens]
        self._recounted = [at for at, term in enumerate(self.wanted) if _overlaps(term)]
        self._code = code
        self._thinking = thinking
        self._bounds = list(_bounds(bounds))
        unwanted = [term for term in query.unwanted if term.tokens]
        self.values: tuple[object, ...] = (
            *_needles(self.wanted), *_needles(unwanted), thinking, bool(self._recounted),
        )  # fmt: skip

    def conditions(self) -> list[tuple[str, object]]:
        """Say what must be so: the engine's index of lexemes tells where that may be."""
        if not self.wanted:
            return self._bounds
        phrases = [term for term in self.wanted if len(term.tokens) > 1][:_MOST_PHRASES]
        text = "lexemes(tenant, said, thought) @@ ${0}::tsquery"
        return [*self._bounds, (text, _lexemes(self.wanted, self._code)), *map(self._has, phrases)]

    def scanning(self, low: int) -> list[tuple[str, object]]:
        """Say what must be so from a number on, where each message is looked at.

        The longest word of all tells most of them apart.
        """
        longest = max(self.wanted, key=lambda term: max(map(len, term.tokens)))
        return [("n >= ${0}", low), *self._bounds, self._has(longest)]

    def _has(self, term: Term) -> tuple[str, object]:
        """Say that a term is there; no line break is in what was thought."""
        (said,), (named,) = _needles([term])
        return _HAS, [said, named or said, said if self._thinking else "\n"]

    def chunk(self, rows: Sequence[Sequence[Any]]) -> Chunk:
        """Give those of some rows that match."""
        entries = [_entry(row, self.wanted, self._recounted) for row in rows if row[7]]
        return Chunk(entries, _frequencies)


def _bounds(bounds: Bounds) -> Iterator[tuple[str, object]]:
    """Say what must be so beside the words."""
    if bounds.role is not None:
        yield "role = ${0}", ROLES.index(bounds.role)
    if bounds.since is not None:
        yield "at >= ${0}", bounds.since
    if bounds.until is not None:
        yield "at < ${0}", bounds.until
    if bounds.branches is not None:
        branches = ",".join(map(str, bounds.branches))
        yield "branch = ANY (${0}::bigint[])", f"{{{branches}}}"


def _weight(doc: Doc) -> int:
    return len(doc.document.text) + len(doc.document.thinking)


def _spaced(tokens: Sequence[str]) -> str:
    """Put words between spaces of their own, so that two of them never share one."""
    return f" {'  '.join(tokens)} " if tokens else ""


def _needles(terms: Sequence[Term]) -> tuple[list[str], list[str]]:
    """Give what terms are in what is said, and in the parts of names."""
    said = [_needle(term.tokens, prefix=term.prefix) for term in terms]
    named = [_needle(term.parts, prefix=term.prefix) if term.parts else "" for term in terms]
    return said, named


def _needle(tokens: Sequence[str], *, prefix: bool) -> str:
    spaced = _spaced(tokens)
    return spaced[:-1] if prefix else spaced


# ------------------------------------------------------------------------------------- counting


def _overlaps(term: Term) -> bool:
    """Say whether a phrase may begin again before it ends; the engine counts only one then."""
    return any(
        tokens[0] in tokens[1:] or (term.prefix and tokens[0].startswith(tokens[-1]))
        for tokens in (term.tokens, term.parts)
        if len(tokens) > 1
    )


def _entry(row: Sequence[Any], wanted: Sequence[Term], recounted: Sequence[int]) -> Entry:
    branch, seq, at, mark, length, often = row[:6]
    if recounted:
        counts = list(_frequencies(often))
        for place in recounted:
            counts[place] = _recount(wanted[place], row[8], row[9] or "")
        often = tuple(counts)
    return branch, seq, at, mark, length, often


def _recount(term: Term, said: str, thought: str) -> int:
    needle = _needle(term.tokens, prefix=term.prefix)
    often = _count(said, needle) + _count(thought, needle)
    if not term.parts:
        return often
    names = said.partition("\n")[2]
    return max(often, _count(names, _needle(term.parts, prefix=term.prefix)))


def _count(text: str, needle: str) -> int:
    often, at = 0, text.find(needle)
    while at >= 0:
        often += 1
        at = text.find(needle, at + 1)
    return often


def _frequencies(often: str | tuple[int, ...] | None) -> tuple[int, ...]:
    """Say how often each term is there."""
    if isinstance(often, tuple):
        return often
    return tuple(map(int, often.split(","))) if often else ()


# -------------------------------------------------------------------------------------- lexemes


def _lexemes(terms: Sequence[Term], code: str) -> str:
    """Ask for messages that may have some terms, in the engine's grammar.

    Tokens have no quotes in them. Messages with too many words to be asked for have a mark.
    """
    room = _MOST_LEXEMES
    asked = []
    for term in sorted(terms, key=lambda term: -max(map(len, term.tokens))):
        found = _lexemes_of(term.tokens, code, prefix=term.prefix)
        if term.parts:
            found = f"({found} | {_lexemes_of(term.parts, code, prefix=term.prefix)})"
        asked.append(found)
        room -= len(term.tokens) + len(term.parts)
        if room <= 0:
            break
    return f"({' & '.join(asked)}) | '{code}*'"


def _lexemes_of(tokens: Sequence[str], code: str, *, prefix: bool) -> str:
    """Ask for the words of a term; of many the longest, which are in the fewest messages."""
    marked = dict.fromkeys(tokens, "")
    if prefix and tokens.count(tokens[-1]) == 1:
        marked[tokens[-1]] = ":*"
    rarest = sorted(marked, key=len, reverse=True)[:_MOST_OF_A_TERM]
    asked = (f"'{code}{token}'{marked[token]}" for token in rarest)
    return f"({' & '.join(asked)})"
