"""The search itself: find the messages that match, rank them, and return a page of hits.

Candidates are the messages that match the query, pass the filters and are visible in a session; of
more than a thousand, those that were written last. Each gets a score (`match.score`). Of several in
one lineage the best is returned and the others are counted, unless one session is searched.
Sessions whose title has all wanted words come first. Messages are read only for the hits of the
page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from heapq import nsmallest
from itertools import islice
from typing import TypeAlias

import msgspec

from holdfast.clock import to_datetime, to_micros
from holdfast.operations.history import Report, read_row, read_span
from holdfast.search import indexer, scan
from holdfast.search.document import Document, document
from holdfast.search.manager import Index, NoUsableIndex
from holdfast.search.match import fits_title, matches, score
from holdfast.search.protocol import Bounds, Chunk, Entry, Kept, Wanted
from holdfast.search.request import MOST, Rank, Request
from holdfast.search.snippet import Snippet, snippet
from holdfast.search.tokenize import parts, words
from holdfast.search.visibility import Views
from holdfast.storage.ancestry import Path, Segment, lies_on
from holdfast.storage.protocol import Backend, MessageRow, Owner, SessionRow, Snapshot
from holdfast.values import Hit, Message, Page

_HOUR = 3_600_000_000
_CHUNK = 50
_MOST_NEEDED = 50  # in a database query for titles; further words are checked here


def search(backend: Backend, index: Index, request: Request, report: Report) -> Page[Hit]:
    """Return a page of hits.

    Query the index, and scan the log for messages that it lacks. An index that is behind is first
    brought up to date as far as that is quick. Without a usable index, scan the log only.
    """
    prefetch = _wanted(request)
    if index.place is not None:
        for caught_up in (False, True):
            with suppress(NoUsableIndex), index.snapshot(prefetch) as (storage, log, behind):
                if caught_up or not behind:
                    return _Search(log, storage, request, report, behind=behind).page()
            if not caught_up:
                index.catch_up_briefly()
    return backend.read(lambda log: _Search(log, None, request, report, behind=True).page())


def _wanted(request: Request) -> Wanted:
    """Return what the search will read."""
    return Wanted(
        query=request.query,
        bounds=request.bounds,
        thinking=request.thinking,
        certain=not (
            request.scopes or request.agents or request.session or request.query.filters.session
        ),
        titles=_in_titles(request),
    )


def _in_titles(request: Request) -> list[str] | None:
    """Return the words to search for in titles; None if titles are not searched."""
    query = request.query
    if not query.wanted or request.bounds.role is not None or request.impossible:
        return None
    return [word for term in query.wanted for word in term.parts or term.tokens][:_MOST_NEEDED]


@lru_cache(maxsize=65_536)
def _title_words(title: str) -> frozenset[str]:
    return frozenset((*words(title), *parts(title)))


def _chunked(entries: Iterator[Entry]) -> Iterator[Chunk]:
    """Group candidates whose counts are plain frequencies."""
    while batch := list(islice(entries, _CHUNK)):
        yield Chunk(batch, tuple)


def _faded(hours: int) -> float:
    """Return the factor by which the score of a message of this age is reduced."""
    return score((), 0, hours / 24)


# A scored match: its rank (five fields), the hash of the message's id (for a title a unique number
# below 0), and the session that shows it.
Weighed: TypeAlias = tuple[int, float, int, int, int, int, SessionRow | Owner]


class _Found(msgspec.Struct, gc=False):
    """A hit, and the number of further matches in its lineage."""

    rank: Rank
    session: SessionRow | Owner
    more: int = 0


class _Lasts(dict[int, int]):
    """The last indexed seq of each branch, read when first needed."""

    def __init__(self, storage: Kept | None) -> None:
        super().__init__()
        self._file = storage

    def __missing__(self, branch: int) -> int:
        self[branch] = last = 0 if self._file is None else self._file.last(branch)
        return last


class _Search:
    """One search of a snapshot of the log, and of the index if there is one."""

    def __init__(
        self,
        snapshot: Snapshot,
        storage: Kept | None,
        request: Request,
        report: Report,
        *,
        behind: bool,
    ) -> None:
        self._snapshot = snapshot
        self._asked = request
        self._report = report
        self._query = request.query
        self._now = to_micros(request.now)
        self._alone, self._only = request.named(snapshot)
        self._views = Views(
            snapshot, self._fits, all_branches=request.all_branches, only=self._only
        )
        # An index has no punctuation; it helps only if the query has at least one word, too.
        helps = not self._query.needs_scan or any(term.tokens for term in self._query.wanted)
        self._file = storage if helps else None
        self._behind = behind or not helps
        self._rows: dict[tuple[int, int], tuple[str, MessageRow]] = {}
        self._weights: dict[tuple[object, int], float] = {}
        self._ages: dict[int, float] = {}

    def page(self) -> Page[Hit]:
        """Return the best hits after the cursor."""
        request = self._asked
        if request.impossible or (self._alone and self._only is None):
            return Page((), None)
        matching = [*self._titled(), *self._messages()]
        ranked = self._each(matching) if self._alone else self._grouped(matching)
        if request.after is not None:
            after = request.after
            ranked = [item for item in ranked if item.rank > after]
        hits: list[Hit] = []
        batch = min(_CHUNK, request.limit)
        for at, item in enumerate(ranked, 1):
            if at % batch == 1 % batch:
                self._fetch(ranked[at - 1 : at - 1 + batch])
            hit = self._hit(item)
            if hit is not None:
                hits.append(hit)
            if len(hits) == request.limit and at < len(ranked):
                return Page(tuple(hits), request.cursor(item.rank))
        return Page(tuple(hits), None)

    # ----------------------------------------------------------------------------- candidates

    def _grouped(self, items: list[Weighed]) -> list[_Found]:
        """Return the best match of each lineage in order, with the number of its other matches.

        A message that is on several branches counts once.
        """
        best: dict[str, Weighed] = {}
        id_hashes: dict[str, set[int]] = {}
        lineages: dict[int, str] = {}
        for item in items:
            session = item[6]
            lineage = lineages.get(session.n)
            if lineage is None:
                lineage = lineages[session.n] = self._views.lineage(session)
            known = best.get(lineage)
            if known is None:
                best[lineage], id_hashes[lineage] = item, {item[5]}
                continue
            id_hashes[lineage].add(item[5])
            if item < known:
                best[lineage] = item
        order = sorted(best, key=lambda lineage: best[lineage][:5])
        return [
            _Found(Rank(*best[lineage][:5]), best[lineage][6], len(id_hashes[lineage]) - 1)
            for lineage in order
        ]

    def _each(self, items: list[Weighed]) -> list[_Found]:
        """Return all matches in order, each message once."""
        seen: set[int] = set()
        found = []
        for item in sorted(items):
            if item[5] not in seen:
                seen.add(item[5])
                found.append(_Found(Rank(*item[:5]), item[6]))
        return found

    def _messages(self) -> list[Weighed]:
        """Return the messages that match and are visible, with their scores."""
        found: list[Weighed] = []
        shown_by = self._views.shown_by
        for chunk in self._chunks():
            scores = self._weighed(chunk)
            if self._file is not None and self._file.far and not found:
                self._file.expect(self._likely(chunk.entries, scores))
            owners = self._views.simply({entry[0] for entry in chunk.entries})
            for (branch, seq, at, id_hash, _, _), negated in zip(
                chunk.entries, scores, strict=True
            ):
                session = owners[branch] or shown_by(branch, seq)
                if session is None:
                    continue
                found.append((1, negated, -at, -branch, -seq, id_hash, session))
                if len(found) == MOST:
                    return found
        return found

    def _weighed(self, chunk: Chunk) -> list[float]:
        """Return the negated scores of messages, so that the best sorts first.

        A score is the product of a factor for the words and one for the age. Both repeat often, so
        they are cached.
        """
        weights, ages, now, scores = self._weights, self._ages, self._now, []
        for _, _, at, _, length, counts in chunk.entries:
            weight, age = weights.get((counts, length)), (now - at) // _HOUR
            if weight is None:
                weight = score(chunk.frequencies(counts), length, 0.0)
                weights[counts, length] = weight
            factor = ages.get(age)
            if factor is None:
                factor = ages[age] = _faded(age)
            scores.append(-weight * factor)
        return scores

    def _likely(self, entries: Sequence[Entry], scores: Sequence[float]) -> list[Segment]:
        """Guess which messages the page will show: the best of each branch, if all are visible."""
        if self._asked.after is not None:
            return []
        best: dict[int, tuple[float, int, int, int]] = {}
        for (branch, seq, at, _, _, _), negated in zip(entries, scores, strict=True):
            rank = (negated, -at, -branch, -seq)
            if branch not in best or rank < best[branch]:
                best[branch] = rank
        likely = nsmallest(min(_CHUNK, self._asked.limit), best.values())
        return [Segment(-branch, -seq, -seq, "") for _, _, branch, seq in likely]

    def _chunks(self) -> Iterator[Chunk]:
        """Yield the messages that match, visible or not: unindexed ones first, being newer."""
        yield from _chunked(self._scanned())
        if self._file is None:
            return
        bounds = self._narrowed(self._file)
        found = self._file.matching(self._query, bounds, thinking=self._asked.thinking)
        yield from _chunked(self._confirmed(found)) if self._query.needs_scan else found

    def _narrowed(self, storage: Kept) -> Bounds:
        """Return the conditions for the index, with the branches to search if they are known."""
        request, branches = self._asked, None
        if self._only is not None:
            branches = self._branches(self._only)
        elif request.scopes or request.agents:
            branches = storage.narrowed(
                request.scopes, request.agents, all_branches=request.all_branches
            )
        if branches is None:
            return request.bounds
        return msgspec.structs.replace(request.bounds, branches=branches)

    def _branches(self, session: SessionRow) -> tuple[int, ...]:
        roots = self._views.roots(session)
        return tuple({part.branch for root in roots for part in self._views.path(root)})

    def _scanned(self) -> Iterator[Entry]:
        request, lasts = self._asked, _Lasts(self._file)
        if not self._behind:
            return
        activity = 0 if self._file is None else self._file.activity
        for session in scan.sessions(self._snapshot, activity, self._views, self._report):
            for part in scan.unknown(session, self._views, lasts):
                yield from scan.entries(
                    self._snapshot, part, self._query, request.bounds, thinking=request.thinking
                )

    def _confirmed(self, found: Iterator[Chunk]) -> Iterator[Entry]:
        """Check candidates in their texts, for terms that an index of words cannot answer."""
        query, bounds, thinking = self._query, self._asked.bounds, self._asked.thinking
        entries = (entry for chunk in found for entry in chunk.entries)
        while batch := list(islice(entries, _CHUNK)):
            segments = [Segment(entry[0], entry[1], entry[1], "") for entry in batch]
            read = zip(segments, self._snapshot.messages(segments), strict=True)
            for segment, (owner, rows) in read:
                for row in rows:
                    doc = indexer.doc_of(self._snapshot, owner, segment.branch, row)
                    match = scan.judged(doc, query, bounds, thinking=thinking)
                    if match is not None:
                        yield match

    def _fits(self, session: SessionRow | Owner) -> bool:
        titled = not self._query.filters.title or fits_title(self._query, session.title)
        return titled and self._asked.fits(session)

    # --------------------------------------------------------------------------------- titles

    def _titled(self) -> Iterator[Weighed]:
        """Return the sessions whose title has all wanted words, with their scores."""
        query, bounds, needed = self._query, self._asked.bounds, _in_titles(self._asked)
        if needed is None:
            return
        # A cheap test excludes most titles that have a word only as part of another one.
        plain = [term for term in query.wanted if not term.prefix and not term.parts]
        whole = {word for term in plain for word in term.tokens}
        for session in self._snapshot.titled(needed):
            at = session.updated_at
            too_early = bounds.since is not None and at < bounds.since
            too_late = bounds.until is not None and at >= bounds.until
            if too_early or too_late or not self._is_asked_for(session):
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
        """Read the messages of some hits in one query."""
        ranks = [item.rank for item in items if item.rank.kind]
        segments = [Segment(-rank.branch, -rank.seq, -rank.seq, "") for rank in ranks]
        found = zip(segments, self._snapshot.messages(segments), strict=True)
        self._rows = {
            (segment.branch, segment.first): (owner, row)
            for segment, (owner, rows) in found
            for row in rows
        }

    def _hit(self, item: _Found) -> Hit | None:
        """Return the public form of a hit; None if its message cannot be read."""
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
        """Return the path of a history of the session that has the message, and its last seq.

        The current history is preferred.
        """
        row = self._views.session(session)
        for root in [] if row is None else self._views.roots(row):
            path = self._views.path(root)
            if lies_on(path, branch, seq):
                end = self._views.branch(root)
                return path, seq if end is None else end.last_seq
        return self._snapshot.path(branch), seq
