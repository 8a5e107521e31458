"""Searching: what there is, in the order of how good it is, a page of it with its texts.

Candidates are what matches, passes the filters and can be seen; of more than a thousand, those that
were written last. They are weighed (`core.search.matching.score`); of several in one lineage the
best is shown and the others are counted, unless one session is searched. Sessions whose title has
all that is wanted come first. Only for the hits of the page the messages are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from heapq import nsmallest
from itertools import islice
from typing import TypeAlias

import msgspec

from holdfast.backends.base import Backend, MessageRow, Owner, SessionRow, Snapshot
from holdfast.clock import to_datetime, to_micros
from holdfast.core.branches import Path, Segment, lies_on
from holdfast.core.search.documents import Document, document
from holdfast.core.search.matching import fits_title, matches, score
from holdfast.core.search.snippets import Snippet, snippet
from holdfast.core.search.words import parts, words
from holdfast.index import catching_up, scanning
from holdfast.index.asking import MOST, Rank, Request
from holdfast.index.keeping import Index, NoUsableIndex
from holdfast.index.kept import Bounds, Chunk, Entry, Kept, Wanted
from holdfast.index.views import Views
from holdfast.records import Hit, Message, Page
from holdfast.verbs.histories import Report, read_row, read_span

_HOUR = 3_600_000_000
_CHUNK = 50
_MOST_NEEDED = 50  # words of titles that a database is asked for; the others are looked for here


def search(backend: Backend, index: Index, asked: Request, report: Report) -> Page[Hit]:
    """Return a page of hits, from the index and, for what it lacks, from the log.

    An index that lacks something is first brought up to date as far as that is quick. Without a
    usable index all messages are read from the log.
    """
    prefetch = _wanted(asked)
    for caught_up in () if index.place is None else (False, True):
        if caught_up:
            index.catch_up_briefly()
        with suppress(NoUsableIndex), index.snapshot(prefetch) as (file, log, behind):
            if caught_up or not behind:
                return _Search(log, file, asked, report, behind=behind).page()
    return backend.read(lambda log: _Search(log, None, asked, report, behind=True).page())


def _wanted(asked: Request) -> Wanted:
    """Return what a search will ask for."""
    return Wanted(
        query=asked.query,
        bounds=asked.bounds,
        thinking=asked.thinking,
        certain=not (asked.scopes or asked.agents or asked.session or asked.query.filters.session),
        titles=_in_titles(asked),
    )


def _in_titles(asked: Request) -> list[str] | None:
    """Return the words that are looked for in titles; nothing if no title is looked at."""
    query = asked.query
    if not query.wanted or asked.bounds.role is not None or asked.impossible:
        return None
    return [word for term in query.wanted for word in term.parts or term.tokens][:_MOST_NEEDED]


@lru_cache(maxsize=65_536)
def _title_words(title: str) -> frozenset[str]:
    return frozenset((*words(title), *parts(title)))


def _chunked(entries: Iterator[Entry]) -> Iterator[Chunk]:
    """Put messages together whose counts are frequencies already."""
    while some := list(islice(entries, _CHUNK)):
        yield Chunk(some, tuple)


def _faded(hours: int) -> float:
    """Return what is left of a message's weight after so many hours."""
    return score((), 0, hours / 24)


# A hit that is weighed: its rank, the mark of its message (of a title a number of its own, below
# 0), and who shows it.
Weighed: TypeAlias = tuple[int, float, int, int, int, int, SessionRow | Owner]


class _Found(msgspec.Struct, gc=False):
    """A hit that stands for a lineage, and how many others there are."""

    rank: Rank
    session: SessionRow | Owner
    more: int = 0


class _Lasts(dict[int, int]):
    """Up to which message each branch is known."""

    def __init__(self, file: Kept | None) -> None:
        super().__init__()
        self._file = file

    def __missing__(self, branch: int) -> int:
        self[branch] = last = 0 if self._file is None else self._file.last(branch)
        return last


class _Search:
    """One search over one snapshot of the log, and one of the index if there is one."""

    def __init__(
        self,
        snapshot: Snapshot,
        file: Kept | None,
        asked: Request,
        report: Report,
        *,
        behind: bool,
    ) -> None:
        self._snapshot = snapshot
        self._asked = asked
        self._report = report
        self._query = asked.query
        self._now = to_micros(asked.now)
        self._alone, self._only = asked.named(snapshot)
        self._views = Views(snapshot, self._fits, all_branches=asked.all_branches, only=self._only)
        # Marks alone are not in an index; with a word beside them it says where to look.
        helps = not self._query.needs_scan or any(term.tokens for term in self._query.wanted)
        self._file = file if helps else None
        self._behind = behind or not helps
        self._rows: dict[tuple[int, int], tuple[str, MessageRow]] = {}
        self._weights: dict[tuple[object, int], float] = {}
        self._ages: dict[int, float] = {}

    def page(self) -> Page[Hit]:
        """Return the best hits behind the cursor."""
        asked = self._asked
        if asked.impossible or (self._alone and self._only is None):
            return Page((), None)
        items = [*self._titled(), *self._messages()]
        found = self._each(items) if self._alone else self._grouped(items)
        if asked.after is not None:
            after = asked.after
            found = [item for item in found if item.rank > after]
        hits: list[Hit] = []
        batch = min(_CHUNK, asked.limit)
        for at, item in enumerate(found, 1):
            if at % batch == 1 % batch:
                self._fetch(found[at - 1 : at - 1 + batch])
            hit = self._hit(item)
            if hit is not None:
                hits.append(hit)
            if len(hits) == asked.limit and at < len(found):
                return Page(tuple(hits), asked.cursor(item.rank))
        return Page(tuple(hits), None)

    # ----------------------------------------------------------------------------- candidates

    def _grouped(self, items: list[Weighed]) -> list[_Found]:
        """Keep the best of each lineage, in order, and count the others; nothing counts twice."""
        best: dict[str, Weighed] = {}
        marks: dict[str, set[int]] = {}
        lineages: dict[int, str] = {}
        for item in items:
            session = item[6]
            lineage = lineages.get(session.n)
            if lineage is None:
                lineage = lineages[session.n] = self._views.lineage(session)
            known = best.get(lineage)
            if known is None:
                best[lineage], marks[lineage] = item, {item[5]}
                continue
            marks[lineage].add(item[5])
            if item < known:
                best[lineage] = item
        order = sorted(best, key=lambda lineage: best[lineage][:5])
        return [
            _Found(Rank(*best[lineage][:5]), best[lineage][6], len(marks[lineage]) - 1)
            for lineage in order
        ]

    def _each(self, items: list[Weighed]) -> list[_Found]:
        """Keep all of one session, in order, each message once."""
        seen: set[int] = set()
        found = []
        for item in sorted(items):
            if item[5] not in seen:
                seen.add(item[5])
                found.append(_Found(Rank(*item[:5]), item[6]))
        return found

    def _messages(self) -> list[Weighed]:
        """Weigh what can be seen of what matches."""
        found: list[Weighed] = []
        shown_by = self._views.shown_by
        for chunk in self._chunks():
            weights = self._weighed(chunk)
            if self._file is not None and self._file.far and not found:
                self._file.expect(self._likely(chunk.entries, weights))
            shown = self._views.simply({entry[0] for entry in chunk.entries})
            for (branch, seq, at, mark, _, _), weight in zip(chunk.entries, weights, strict=True):
                session = shown[branch] or shown_by(branch, seq)
                if session is None:
                    continue
                found.append((1, weight, -at, -branch, -seq, mark, session))
                if len(found) == MOST:
                    return found
        return found

    def _weighed(self, chunk: Chunk) -> list[float]:
        """Weigh messages; more is less, so that the best comes first.

        Words and age weigh by factors of their own, and both come again and again.
        """
        weights, ages, now, found = self._weights, self._ages, self._now, []
        for _, _, at, _, length, counts in chunk.entries:
            weight, age = weights.get((counts, length)), (now - at) // _HOUR
            if weight is None:
                weight = score(chunk.frequencies(counts), length, 0.0)
                weights[counts, length] = weight
            factor = ages.get(age)
            if factor is None:
                factor = ages[age] = _faded(age)
            found.append(-weight * factor)
        return found

    def _likely(self, entries: Sequence[Entry], weights: Sequence[float]) -> list[Segment]:
        """Guess which messages will be shown: the best of each branch, if all can be seen."""
        if self._asked.after is not None:
            return []
        best: dict[int, tuple[float, int, int, int]] = {}
        for (branch, seq, at, _, _, _), weight in zip(entries, weights, strict=True):
            rank = (weight, -at, -branch, -seq)
            if branch not in best or rank < best[branch]:
                best[branch] = rank
        likely = nsmallest(min(_CHUNK, self._asked.limit), best.values())
        return [Segment(-branch, -seq, -seq, "") for _, _, branch, seq in likely]

    def _chunks(self) -> Iterator[Chunk]:
        """Return what matches, whoever shows it: what the index lacks first, for it is newer."""
        yield from _chunked(self._scanned())
        if self._file is None:
            return
        bounds = self._narrowed(self._file)
        found = self._file.matching(self._query, bounds, thinking=self._asked.thinking)
        yield from _chunked(self._confirmed(found)) if self._query.needs_scan else found

    def _narrowed(self, file: Kept) -> Bounds:
        """Return what must be so, and on which branches, if that is known."""
        asked, branches = self._asked, None
        if self._only is not None:
            branches = self._branches(self._only)
        elif asked.scopes or asked.agents:
            branches = file.narrowed(asked.scopes, asked.agents, all_branches=asked.all_branches)
        if branches is None:
            return asked.bounds
        return msgspec.structs.replace(asked.bounds, branches=branches)

    def _branches(self, session: SessionRow) -> tuple[int, ...]:
        roots = self._views.roots(session)
        return tuple({part.branch for root in roots for part in self._views.path(root)})

    def _scanned(self) -> Iterator[Entry]:
        asked, lasts = self._asked, _Lasts(self._file)
        if not self._behind:
            return
        activity = 0 if self._file is None else self._file.activity
        for session in scanning.sessions(self._snapshot, activity, self._views, self._report):
            for part in scanning.unknown(session, self._views, lasts):
                yield from scanning.entries(
                    self._snapshot, part, self._query, asked.bounds, thinking=asked.thinking
                )

    def _confirmed(self, found: Iterator[Chunk]) -> Iterator[Entry]:
        """Look at the texts of what the index found: it does not know all that is asked for."""
        query, bounds, thinking = self._query, self._asked.bounds, self._asked.thinking
        entries = (entry for chunk in found for entry in chunk.entries)
        while some := list(islice(entries, _CHUNK)):
            places = [Segment(entry[0], entry[1], entry[1], "") for entry in some]
            read = zip(places, self._snapshot.messages(places), strict=True)
            for place, (owner, rows) in read:
                for row in rows:
                    doc = catching_up.doc_of(self._snapshot, owner, place.branch, row)
                    judged = scanning.judged(doc, query, bounds, thinking=thinking)
                    if judged is not None:
                        yield judged

    def _fits(self, session: SessionRow | Owner) -> bool:
        titled = not self._query.filters.title or fits_title(self._query, session.title)
        return titled and self._asked.fits(session)

    # --------------------------------------------------------------------------------- titles

    def _titled(self) -> Iterator[Weighed]:
        """Return the sessions whose title has everything that is wanted."""
        query, bounds, needed = self._query, self._asked.bounds, _in_titles(self._asked)
        if needed is None:
            return
        # Most titles that only hold a word within another are told apart without much ado.
        plain = [term for term in query.wanted if not term.prefix and not term.parts]
        whole = {word for term in plain for word in term.tokens}
        for session in self._snapshot.titled(needed):
            at = session.updated_at
            late = bounds.since is not None and at < bounds.since
            early = bounds.until is not None and at >= bounds.until
            if late or early or not self._is_asked_for(session):
                continue
            if not whole <= _title_words(session.title or ""):
                continue
            match = matches(query, Document(session.title or ""))
            if match is not None:
                weight = score(match.frequencies, match.length, 0.0)
                weight *= _faded((self._now - at) // _HOUR)
                yield 0, -weight, -at, -session.n, 0, -session.n, session

    def _is_asked_for(self, session: Owner) -> bool:
        return (self._only is None or self._only.n == session.n) and self._fits(session)

    # ----------------------------------------------------------------------------------- hits

    def _fetch(self, items: Sequence[_Found]) -> None:
        """Read the messages of some hits, in one go."""
        ranks = [item.rank for item in items if item.rank.kind]
        places = [Segment(-rank.branch, -rank.seq, -rank.seq, "") for rank in ranks]
        found = zip(places, self._snapshot.messages(places), strict=True)
        self._rows = {
            (place.branch, place.first): (owner, row)
            for place, (owner, rows) in found
            for row in rows
        }

    def _hit(self, item: _Found) -> Hit | None:
        """Show a hit; nothing if its message cannot be read."""
        if not item.rank.kind:
            return self._shown(item, snippet(item.session.title or "", self._query), None)
        branch, seq = -item.rank.branch, -item.rank.seq
        message = self._read(branch, seq)
        if message is None:
            return None
        hit = self._shown(item, self._snippet(document(message)), message)
        if not self._asked.around:
            return hit
        before, after = self._around(item.session.n, branch, seq)
        return msgspec.structs.replace(hit, before=before, after=after)

    def _shown(self, item: _Found, shown: Snippet, message: Message | None) -> Hit:
        return Hit(
            session_id=item.session.id,
            title=item.session.title,
            message_id=None if message is None else message.id,
            seq=None if message is None else message.seq,
            role=None if message is None else message.role,
            snippet=shown.text,
            marks=shown.marks,
            score=-item.rank.score,
            created_at=to_datetime(-item.rank.at),
            more=item.more,
        )

    def _read(self, branch: int, seq: int) -> Message | None:
        if (branch, seq) not in self._rows:
            return None
        owner, row = self._rows[branch, seq]
        message = read_row(self._snapshot, owner, row, self._report)
        return None if message.status in {"erased", "damaged"} else message

    def _snippet(self, found: Document) -> Snippet:
        shown = snippet(found.text, self._query)
        if shown.marks or not self._asked.thinking or not found.thinking:
            return shown
        thought = snippet(found.thinking, self._query)
        return thought if thought.marks or not found.text else shown

    def _around(
        self, session: int, branch: int, seq: int
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Read the neighbours of a message in the history that shows it."""
        count = self._asked.around
        path, end = self._history(session, branch, seq)
        before = (max(1, seq - count), seq - 1)
        after = (seq + 1, min(end, seq + count))
        return tuple(self._span(path, before)), tuple(self._span(path, after))

    def _span(self, path: Path, span: tuple[int, int]) -> list[Message]:
        if span[0] > span[1]:
            return []
        return read_span(self._snapshot, path, span, report=self._report)

    def _history(self, session: int, branch: int, seq: int) -> tuple[Path, int]:
        """Find the history of a session in which a message is: that of now, if it is there."""
        row = self._views.session(session)
        for root in [] if row is None else self._views.roots(row):
            path = self._views.path(root)
            if lies_on(path, branch, seq):
                end = self._views.branch(root)
                return path, seq if end is None else end.last_seq
        return self._snapshot.path(branch), seq
